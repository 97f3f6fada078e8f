"""Runs that are bounded by time instead of a number of operations, and files that are used in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.fleet.harness import FOLDER, FinishedRun, lab_in
from tests.runs import ALONE, FLEET

BODY = """
import pytest
from pytest_cloudbench import FixedInterval, Poisson, ThinkTime, Threads, UsageError, Verb

def test_open(experiment, payloads):
    up = experiment.run(payloads.random(10), arrival=FixedInterval(0.1), sensors=2, for_s=0.95, keep=True, label="up")
    again = dict(on=up.files, operation=Verb.GET, in_turn=True, sensors=2)
    experiment.run(arrival=FixedInterval(0.02), for_s=0.5, **again, label="more operations than files")
    closed = experiment.run(
        arrival=ThinkTime(0.01), for_s=0.5, ops_per_sensor=1000, detail=True, **again, label="closed get")
    assert max(start_s for start_s in closed.ops["start_s"]) < 0.5 + 0.1

def test_chance(experiment, payloads):
    experiment.run(payloads.random(10), arrival=Poisson(0.02), sensors=4, for_s=1)

def test_closed(experiment, payloads):
    up = experiment.run(
        payloads.random(10), arrival=ThinkTime(0.05), sensors=2, ops_per_sensor=1000, for_s=0.6, keep=True, label="up")
    down = experiment.run(on=up.files, arrival=Threads(2), operation=Verb.GET, label="down")
    assert len(up.files.members) == up["ops"] == down["ok"]
    few = experiment.run(payloads.random(10), arrival=Threads(2), files=20, for_s=600, label="few")
    assert few["ok"] == 20

@pytest.mark.parametrize("load, line", [
    (dict(arrival=Poisson(1), ops_per_sensor=7, for_s=1), "expected for_s or ops_per_sensor in an open loop"),
    (dict(arrival=ThinkTime(1), for_s=1), "also expects ops_per_sensor, the most"),
    (dict(arrival=Poisson(1), for_s=-1), "for_s=-1: expected seconds, 0 or more"),
    (dict(arrival=Poisson(1), for_s=1, warm_up_s=1), "expected more than warm_up_s=1"),
    (dict(arrival=FixedInterval(0), for_s=1), "operations of a sensor are due in 1 s"),
    (dict(arrival=Poisson(1), in_turn=True), "in_turn expects on=files"),
    (dict(arrival=ThinkTime(1), ops_per_sensor=9, for_s=1, operation=Verb.GET), "expects on=files"),
])
def test_contradictions(experiment, payloads, load, line):
    with pytest.raises(UsageError, match=line):
        experiment.run(payloads.random(10), sensors=1, **load)
"""


@pytest.fixture(scope="module", params=[ALONE, FLEET])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """One session for all tests here."""
    with lab_in(tmp_path_factory.mktemp("time_bound")) as lab:
        yield lab.write(BODY).run(*FOLDER, *request.param)


def infos(run: FinishedRun) -> dict[str, Mapping[str, Any]]:
    return {
        entry["fullname"].partition("::")[2].replace("[folder:objects]", ""): entry["extra_info"]
        for entry in run.document["benchmarks"]
    }


@pytest.mark.slow
def test_all_pass(run: FinishedRun) -> None:
    assert (run.status, run.counts(), run.leftovers) == (0, {"passed": 10}, []), run.text


@pytest.mark.slow
def test_timed_open_loop_performs_all_due_operations(run: FinishedRun) -> None:
    info = infos(run)["test_open#up"]
    assert (info["ops"], info["for_s"], info["planned_ops"], info["doubts"]) == (20, 0.95, None, [])


def test_files_are_used_in_turn_by_more_operations_than_there_are(run: FinishedRun) -> None:
    info = infos(run)["test_open#more operations than files"]
    assert (info["ops"], info["ok"], info["corrupt"], info["doubts"]) == (50, 50, 0, [])


def test_operations_of_a_random_process_end_with_the_time_not_with_a_number(run: FinishedRun) -> None:
    info = infos(run)["test_chance"]
    assert 120 <= info["ops"] <= 280, "200 are expected, give or take 14"
    assert (info["planned_ops"], info["doubts"]) == (None, [])


def test_a_closed_loop_begins_nothing_after_the_time(run: FinishedRun) -> None:
    info = infos(run)["test_closed#up"]
    assert 4 <= info["ops"] <= 24, "two sensors, an operation each 50 ms"
    assert (info["planned_ops"], info["doubts"], info["missing_agents"]) == (None, [], {})


def test_a_closed_loop_that_runs_out_of_operations_says_so(run: FinishedRun) -> None:
    line = "all 20 operations, the most that it may do, were done before the 600 s were up"
    assert line in infos(run)["test_closed#few"]["notes"]
    assert run.lines_with(line)
