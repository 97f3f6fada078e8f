"""``--cloudbench-versus`` with ``--cloudbench-gate``: only a side that is known to be slower fails its test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

import pytest

from .harness import FinishedRun, Lab, lab_in

PROFILE = """
    [meta]
    name = "{name}"
    api = "dropbox"
    description = "side {name}"
    [latency]
    median_s = {median_s}
    sigma = 0.05
    min_s = 0.001
    write_factor = {write_factor}
"""
TESTS = """
    from pytest_cloudbench.model import Verb

    LOAD = {"arrival": ThinkTime(0.0), "sensors": 10, "ops_per_sensor": 5}

    def test_upload(experiment, payloads):
        experiment.run(payloads.random(300), **LOAD)

    def test_stat(experiment, payloads):
        experiment.run(payloads.random(300), **LOAD, operation=Verb.STAT)

    # A client that waits longer finds its caches cold: 20 to 40 % more CPU time for each operation where others work.
    @pytest.mark.cloudbench_gate(quiet_p50=5.0, service_p50=5.0, p99=None, cpu_per_op=None)
    def test_upload_may_be_six_times_as_slow(experiment, payloads):
        experiment.run(payloads.random(300), **LOAD)
"""
SIDES = ("--provider", "emulated:./a.toml", "--cloudbench-versus", "emulated:./b.toml")
NAME = "[emulated:./a.toml-vs-emulated:./b.toml]"


def write_sides(lab: Lab) -> Lab:
    """Write the tests and two sides. B writes three times as slowly as A, and reads in half the time."""
    lab.write(PROFILE.format(name="a", median_s=0.05, write_factor=1.0), "a.toml")
    lab.write(PROFILE.format(name="b", median_s=0.025, write_factor=6.0), "b.toml")
    return lab.write(TESTS)


@pytest.fixture(scope="module")
def compared_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedRun]:
    with lab_in(tmp_path_factory.mktemp("versus-gate")) as lab:
        options = ("--cloudbench-gate", "-ocloudbench_versus_minutes=3", "--junitxml=junit.xml", "-rA", "test_it.py")
        yield write_sides(lab).run(*SIDES, *options, timeout_s=600)


def info(ended: FinishedRun, test: str) -> Mapping[str, Any]:
    entry: Mapping[str, Any] = ended.info(test + NAME)
    return entry


@pytest.mark.slow
def test_a_side_that_is_slower_fails_the_test_with_one_line(compared_run: FinishedRun) -> None:
    assert (compared_run.status, compared_run.counts()) == (1, {"passed": 2, "failed": 1}), compared_run.text
    failures = compared_run.text.partition("= FAILURES =")[2].partition("= cloudbench")[0]
    lines = [line for line in failures.splitlines() if line.strip() and not line.startswith(("_", "=", "-"))]
    (line,) = lines
    assert re.match(
        r"gate broken: B is worse than A: .*p(?:25|50) \+[\d,]+ % \(\+[\d,.]+ to \+[\d,]+ %\), margin 10 %", line
    )
    entry = info(compared_run, "test_upload")
    assert entry["gate"] == {"answer": "broken", "lines": [line]}
    assert (entry["outcome"], entry["versus"]["stopped"]) == ("failed", "decided")


@pytest.mark.slow
def test_a_side_that_is_faster_or_within_its_margin_passes(compared_run: FinishedRun) -> None:
    for test in ("test_stat", "test_upload_may_be_six_times_as_slow"):
        entry = info(compared_run, test)
        assert (entry["outcome"], entry["gate"]["answer"], entry["versus"]["stopped"]) == ("passed", "met", "decided")
    assert info(compared_run, "test_stat")["versus"]["differences"]["service_p50"]["change"] < 0
    differences = info(compared_run, "test_upload_may_be_six_times_as_slow")["versus"]["differences"]
    assert (differences["service_p50"]["answer"], differences["service_p50"]["margin"]) == ("A better", 5.0)


@pytest.mark.slow
def test_junit_and_the_end_of_the_run_have_the_answers(compared_run: FinishedRun) -> None:
    cases = {
        str(case.get("name")): case for case in ElementTree.parse(compared_run.folder / "junit.xml").iter("testcase")
    }
    properties = {
        element.get("name"): str(element.get("value")) for element in cases[f"test_upload{NAME}"].iter("property")
    }
    assert properties["cloudbench.gate"] == "broken"
    answers = [properties.get(f"cloudbench.gate.{name}", "") for name in ("quiet_p50", "service_p25", "service_p50")]
    assert any(answer.startswith("broken +") for answer in answers)
    (line,) = compared_run.lines_with(f"broken       test_it.py::test_upload{NAME}: ")
    assert re.search(r"p(?:25|50) \+", line)
    assert compared_run.lines_with(f"met          test_it.py::test_stat{NAME}: ")
    assert not compared_run.lines_with("no experiment was measured")


@pytest.mark.slow
def test_comparison_without_enough_time_is_inconclusive(lab: Lab) -> None:
    """A strict gate fails the comparison with a status of its own. Any other gate skips it, also in a fleet."""
    write_sides(lab)
    short = ("-ocloudbench_versus_minutes=0.0001", "-rs", "-k", "test_upload and not may")
    reason = "gate inconclusive: no pair of blocks has a metric that is gated (the budget of 0.0001 min is used up)"
    run = lab.run(*SIDES, *short, "--cloudbench-gate", "-n2")
    assert (run.status, run.counts()["skipped"]) == (0, 1), run.text
    assert run.lines_with(reason)
    assert info(run, "test_upload")["outcome"] == "passed", "only the gate skipped it"
    strict = lab.run(*SIDES, *short, "--cloudbench-gate-strict")
    assert (strict.status, strict.counts()["failed"]) == (6, 1), strict.text
    assert strict.lines_with(reason)
