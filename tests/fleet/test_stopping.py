"""Runs that end when their metric is steady, on one agent and on several, and their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.results import parquet
from tests.fleet.harness import FOLDER, FinishedRun, Lab, lab_in
from tests.runs import ALONE, FLEET

FEW = """
from pytest_cloudbench.judge import steady
steady.LEAST_OPS = dict.fromkeys(steady.LEAST_OPS, 100)
"""
"""A tenth of the operations that the rule needs, because these tests are only about the end of a run."""

BODY = """
from pytest_cloudbench.workload.arrival import FixedInterval, Poisson, ThinkTime, Threads
from pytest_cloudbench.judge.steady import Stable
from pytest_cloudbench.model import Verb

ANY = Stable("response_p50", within=1.0)

def test_open(experiment, payloads):
    load = dict(arrival=Poisson(0.04), sensors=4, ops_per_sensor=500)
    up = experiment.run(payloads.random(10), **load, warm_up_s=0.3, until=ANY, keep=True, label="up")
    stat = experiment.run(on=up.files, **load, operation=Verb.STAT, label="stat")
    assert stat["planned_ops"] == stat["ok"] == up["ops"] + up["warm_up_ops"], "those that there are"

def test_closed(experiment, payloads):
    made = experiment.run(payloads.random(10), arrival=ThinkTime(0.01), sensors=4, ops_per_sensor=500, until=ANY)
    assert made["ended"] == "steady"

def test_budget(experiment, payloads):
    exact = Stable("ops_per_s", within=0.0001)
    up = experiment.run(payloads.random(10), arrival=Threads(4), files=150, until=exact, keep=True, label="up")
    assert (up["ended"], len(up.files.members)) == ("budget", 150)
    few = experiment.run(on=up.files, arrival=Threads(4), operation=Verb.STAT, until=exact, warm_up_s=9, label="stat")
    assert few["ops"] == 0

def test_detail(experiment, payloads):
    made = experiment.run(
        payloads.random(10), arrival=FixedInterval(0.1), sensors=2, ops_per_sensor=6, warm_up_s=0.25, detail=True)
    assert min(made.ops["start_s"]) >= 0.25 and len(made.ops["start_s"]) == made["ops"] == 6
    assert made["files"] == 6, "of lost files too, only those after the warm-up count"
"""


@pytest.fixture(scope="module", params=[ALONE, FLEET])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    """One session for all tests here."""
    with lab_in(tmp_path_factory.mktemp("stopping")) as lab:
        yield lab.write(FEW, "conftest.py").write(BODY).run(*FOLDER, *request.param)


def infos(run: FinishedRun) -> dict[str, Mapping[str, Any]]:
    return {
        entry["fullname"].partition("::")[2].replace("[folder:objects]", ""): entry["extra_info"]
        for entry in run.document["benchmarks"]
    }


@pytest.mark.slow
def test_all_pass(run: FinishedRun) -> None:
    assert (run.status, run.counts(), run.leftovers) == (0, {"passed": 4}, []), run.text


@pytest.mark.slow
def test_it_ends_early_on_all_agents_and_says_so(run: FinishedRun) -> None:
    infos_by_name, agents = infos(run), 2 if "2 workers" in run.text else 1
    for name in ("test_open#up", "test_closed"):
        info = infos_by_name[name]
        assert info["ended"] == "steady"
        assert 100 <= info["ops"] < 1900
        assert (info["agents"], info["planned_ops"], info["missing_agents"]) == (agents, 2000, {})
        assert not any("not tried" in doubt for doubt in info["doubts"])
        assert info["until"] == {"metric": "response_p50", "within": 1.0, "min_ops": 0}
        assert info["steadiness"]["error"] <= 1.0
        (line,) = [note for note in info["notes"] if note.startswith("ended steady after ")]
        assert "of 2,000 operations: response_p50 known to ±" in line
        assert run.lines_with(line)


def test_all_agents_end_at_one_due_time(run: FinishedRun) -> None:
    """An open loop does what was due before the end. No sensor has a gap, and their last due times are close."""
    (path,) = run.folder.rglob("*test_open*1-*.parquet")
    columns, _ = parquet.read(path.read_bytes())
    last: dict[int, int] = {}
    for sensor, seq in sorted(zip(columns["sensor"], columns["seq"], strict=True)):
        assert seq == last.get(sensor, -1) + 1
        last[sensor] = seq
    assert len(last) == 4
    due = {
        sensor: max(
            due for due, owner in zip(columns["scheduled_ns"], columns["sensor"], strict=True) if owner == sensor
        )
        for sensor in last
    }
    assert max(due.values()) - min(due.values()) < 2e9


def test_a_warm_up_is_recorded_and_left_out(run: FinishedRun) -> None:
    info = infos(run)["test_open#up"]
    (path,) = run.folder.rglob("*test_open*1-*.parquet")
    phases = Counter(phase_of(path))
    assert (info["warm_up_s"], info["warm_up_ops"], info["ops"]) == (0.3, phases["warm_up"], phases["measured"])
    assert phases["warm_up"] > 0
    assert info["files"] == info["ops"]
    (line,) = [note for note in info["notes"] if note.startswith("warm-up of 0.3 s: ")]
    assert line == f"warm-up of 0.3 s: {phases['warm_up']:,} operations left out"
    assert info["cpu_per_op"] == pytest.approx(info["client_cpu_s"] / info["ops"]), "of the measured part alone"
    assert "warm_up_s" not in infos(run)["test_closed"]


def phase_of(path: Path) -> list[str]:
    columns, _ = parquet.read(path.read_bytes())
    return list(columns["phase"])


def test_a_run_that_ends_at_its_budget_was_not_steady(run: FinishedRun) -> None:
    info = infos(run)["test_budget#up"]
    (line,) = [note for note in info["notes"] if note.startswith("ended at its budget")]
    assert line.startswith("ended at its budget of 150 operations: ops_per_s not steady, known to ±")
    assert line.endswith("% (±0.0% was asked for)")
    assert info["ops"] == 150


def test_a_run_that_is_all_warm_up_has_no_numbers(run: FinishedRun) -> None:
    assert run.lines_with("all operations were due in the warm-up of 9 s")
    assert "test_budget#stat" not in infos(run), "no time is not 0 s"


SLOWER = """
import time
import pytest
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import ProviderSpec
from pytest_cloudbench.providers import Provider

class Slower(FolderDriver):
    done = 0

    def put(self, path, content):
        self.done += 1
        time.sleep(self.done / 5000)
        return super().put(path, content)

@pytest.fixture
def provider(tmp_path):
    return Provider("own:slower", Slower.connect(ProviderSpec.parse(f"folder:{tmp_path}"), None, {}))
"""

RISING = """
from pytest_cloudbench.workload.arrival import Threads

def test_each_is_slower(experiment, payloads):
    made = experiment.run(payloads.random(10), arrival=Threads(2), files=300, verify=False)
    assert made.doubts

def test_so_it_should(experiment, payloads):
    experiment.run(payloads.random(10), arrival=Threads(2), files=300, verify=False, may_drift=True)

def test_part(experiment, payloads):
    experiment.run(payloads.random(10), arrival=Threads(2), files=300, verify=False, store=False)
    experiment.conclude({}, [1.0], stats_of="nothing")
"""


@pytest.mark.slow
def test_a_drift_is_a_doubt_unless_it_was_expected_or_the_run_is_a_part(lab: Lab) -> None:
    run = lab.write(SLOWER, "conftest.py").write(RISING).run("-n", "2")
    assert run.counts() == {"passed": 3}, run.text
    prefix = "response_p50 drifted during the run (+"
    rising, expected, part = (entry["extra_info"] for entry in run.document["benchmarks"])
    assert [doubt.startswith(prefix) for doubt in rising["doubts"]] == [True]
    assert expected["doubts"] == part["doubts"] == []
    note_counts = [sum(note.startswith(prefix) for note in info["notes"]) for info in (rising, expected, part)]
    assert note_counts == [0, 1, 0]
