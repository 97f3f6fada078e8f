"""Tests that skip, xfail or measure nothing. The regression gate judges them all the same."""

from __future__ import annotations

import shutil

import pytest

from tests.runs import SPREAD, Spread

from .harness import FOLDER, Lab
from .test_gate_facts import FAULTY_STORE, GATE, STRICT_SETTINGS
from .test_regression_gate import find_stored_runs, times, write_history

TESTS = """
    def run(experiment, payloads, **more):
        return experiment.run(payloads.random(100), arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3, **more)

    def test_skips(experiment, payloads):
        run(experiment, payloads)
        pytest.skip("the service has a bad day")

    @pytest.mark.xfail(reason="known")
    def test_xfails(experiment, payloads):
        run(experiment, payloads)
        assert False

    @pytest.mark.xfail(reason="known")
    def test_xpasses(experiment, payloads):
        run(experiment, payloads)

    def test_skips_again(experiment, payloads):
        run(experiment, payloads)
        if (HERE / "measured").exists():
            pytest.skip("the service has a bad day")
        (HERE / "measured").touch()

    def test_xfails_again(experiment, payloads, request):
        run(experiment, payloads)
        if (HERE / "measured").exists():
            request.applymarker(pytest.mark.xfail(reason="known"))
            assert False
        (HERE / "measured").touch()

    @pytest.mark.parametrize("case", ["a#1"])
    def test_returns(experiment, payloads, case):
        if not (HERE / "bad").exists():
            run(experiment, payloads)

    def test_broken(experiment, payloads):
        run(experiment, payloads)
"""
ENDINGS = ("test_skips", "test_xfails", "test_xpasses", "test_skips_again", "test_xfails_again")


def write_suite(lab: Lab) -> Lab:
    (lab.folder / "pyproject.toml").write_text(STRICT_SETTINGS)
    lab.write(FAULTY_STORE, "conftest.py")
    return lab.write(TESTS)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("test", ENDINGS)
@SPREAD
def test_no_ending_of_a_test_or_of_its_repetitions_hides_a_loss(lab: Lab, test: str, spread: Spread) -> None:
    write_suite(lab)
    (lab.folder / "lose-0").touch()
    run = lab.run(*GATE, "-k", f"{test}[", *spread)
    assert not (lab.folder / "lose-0").exists()
    assert run.status == 1, run.text
    assert run.lines_with("gate broken: silent_loss_rate: 1 of 6: not in 3 repetitions: intermittent"), run.text


def test_gate_keeps_skipped_and_xfailed_tests_if_nothing_is_broken(lab: Lab) -> None:
    run = write_suite(lab).run(*GATE, "--cloudbench-gate-strict", "-k", "test_skips[ or test_xfails[")
    assert run.counts() == {"skipped": 1, "xfailed": 1, "deselected": 5}, run.text


def test_loss_breaks_gate_without_stored_runs(lab: Lab) -> None:
    write_suite(lab)
    (lab.folder / "lose-0").touch()
    run = lab.run(*FOLDER, "--cloudbench-gate", "-p", "no:benchmark", "-k", "test_broken[", store=False)
    assert run.status == 1, run.text
    (line, *_) = run.lines_with("gate broken: silent_loss_rate: 1 of 6")
    assert line.endswith("; -p no:benchmark switches off what stores runs: nothing is compared, and nothing is stored")


@pytest.mark.slow
def test_broken_tests_left_out_of_a_session_are_named(lab: Lab) -> None:
    write_suite(lab)
    (lab.folder / "lose-0").touch()
    assert lab.run(*GATE, "-k", "test_broken[").status == 1
    run = lab.run(*GATE, "-k", "test_returns[")
    assert run.lines_with("not measured here, and broken when they last were: test_it.py::test_broken["), run.text
    (lab.folder / "bad").touch()
    run = lab.run(*GATE, "-k", "test_returns[ or test_broken[")
    (line,) = run.lines_with("nothing was measured by tests that passed, and were measured before: ")
    assert line.endswith(": test_it.py::test_returns[folder:objects-a#1]"), line
    assert not run.lines_with("not measured here, and broken")


@pytest.mark.slow
def test_copies_of_a_run_are_one_run(lab: Lab) -> None:
    """A folder of artifacts that was unpacked twice does not count twice."""
    write_suite(lab).run(*GATE, "-k", "test_broken[")
    write_history(lab, {"test_broken": times(1e5)}, runs=6)
    (lab.folder / "results" / "copy").mkdir()
    for path in find_stored_runs(lab):
        shutil.copy(path, lab.folder / "results" / "copy")
    run = lab.run(*GATE, "-k", "test_broken[")
    assert run.lines_with("gate inconclusive: baseline 6 of 10"), run.text
