"""Suspects of the regression gate: which tests it measures again, for how long, and how it treats outliers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from pytest_cloudbench.commands.cli import main
from tests.runs import SPREAD, Spread

from .harness import FOLDER, FinishedRun, Lab
from .test_every_test_is_reported import LIMIT
from .test_regression_gate import HISTORY, SETTINGS, TESTS, entry, write_history

GATE = (*FOLDER, "--cloudbench-gate", "-rs")
SLOW_ONCE = """
    def test_slow(experiment, payloads):
        slow = (HERE / "slow").exists()
        payload = payloads.random(100)
        experiment.run(payload, arrival=FixedInterval(0.01), sensors=2, ops_per_sensor=3)
        (HERE / "slow").unlink(missing_ok=True)
"""
SLOW_STORE = """
    import threading
    from pathlib import Path
    from pytest_cloudbench.drivers.folder import FolderDriver

    SLOW, put = Path(__file__).with_name("slow"), FolderDriver.put

    def slow_put(self, path, content):
        if SLOW.exists():
            threading.Event().wait(1)
        return put(self, path, content)

    FolderDriver.put = slow_put
"""


def around(level_s: float) -> Callable[[int, dict[str, Any]], None]:
    """Return a change that gives a history around this response time."""

    def change(number: int, info: dict[str, Any]) -> None:
        info["response_p50"] = level_s * 1.01 ** (number % 5 - 2)

    return change


def run_suspects(lab: Lab, *options: str, settings: str = SETTINGS) -> FinishedRun:
    """Run a session with two suspects, which are as bad in each repetition."""
    selection = ("-k", "test_broken or test_own_suspect")
    body = f"{TESTS}\n    def test_own_suspect(experiment, payloads):\n        run(experiment, payloads)\n"
    (lab.folder / "pyproject.toml").write_text(settings)
    lab.write(body).run(*GATE, *selection)
    write_history(lab, dict.fromkeys(("test_broken", "test_own_suspect"), HISTORY["test_broken"]))
    return lab.run(*GATE, *selection, *options)


def count_repetitions(run: FinishedRun) -> list[int]:
    return sorted(len(entry(run, test)["gate"]["again"]) for test in ("test_broken", "test_own_suspect"))


@pytest.mark.slow
def test_measuring_suspects_again_is_announced(lab: Lab) -> None:
    run = run_suspects(lab)
    assert (run.status, count_repetitions(run)) == (1, [3, 3]), run.text
    (line,) = run.lines_with("gate: measuring ")
    assert re.fullmatch(r"cloudbench: gate: measuring 2 suspects again, about [\d.]+ s", line)


def test_the_time_to_be_apart_from_the_first_run_is_announced(lab: Lab) -> None:
    run = run_suspects(lab, settings=SETTINGS.replace("apart_s = 0", "apart_s = 3"))
    (line,) = run.lines_with("gate: measuring ")
    assert re.search(r"2 suspects again, about [\d.]+ s, of which [123] s to be apart from the first time$", line)


@pytest.mark.slow
def test_suspects_beyond_the_budget_are_inconclusive(lab: Lab) -> None:
    """The most suspicious one is measured in any case."""
    run = run_suspects(lab, "-ocloudbench_gate_budget=0.01")
    assert (run.status, count_repetitions(run)) == (1, [0, 3]), run.text
    assert run.counts() == {"failed": 1, "skipped": 1, "deselected": 5}
    (line,) = run.lines_with("gate: measuring ")
    assert "; the budget is 0.01 s (cloudbench_gate_budget), all would take " in line
    assert run.lines_with(
        "a suspect, measured again 0 of 3 times; the budget is 0.01 s and was used up (cloudbench_gate_budget)"
    )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("where", ["option", "settings"])
def test_without_a_budget_nothing_is_measured_again(lab: Lab, where: str) -> None:
    if where == "option":
        run = run_suspects(lab, "-ocloudbench_gate_budget=0")
    else:
        run = run_suspects(lab, settings=SETTINGS.replace('"5000%"', "0"))
    assert (run.status, count_repetitions(run)) == (0, [0, 0]), run.text
    assert run.counts() == {"skipped": 2, "deselected": 5}
    assert not run.lines_with("gate: measuring ")
    assert run.lines_with("gate: 2 suspects will not be measured again: the budget is 0 s (cloudbench_gate_budget)")
    assert run.lines_with("a suspect, measured again 0 of 3 times; the budget is 0 s (cloudbench_gate_budget)")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("budget", ["half", "-1", "-5%", "inf", "nan"])
def test_invalid_budget_is_refused_in_one_line(lab: Lab, budget: str) -> None:
    run = lab.write(TESTS).run(*GATE, f"-ocloudbench_gate_budget={budget}", store=False)
    assert run.status == 4, run.text
    assert run.lines_with('cloudbench_gate_budget: expected a share of the session such as "50%", or seconds, found')


def run_slow_once(lab: Lab, *spread: str, settings: str = SETTINGS, conftest: str = "") -> FinishedRun:
    """Run a session in which a test is slow at first, and not when it is measured again."""
    (lab.folder / "pyproject.toml").write_text(settings)
    lab.write(SLOW_STORE + conftest, "conftest.py")
    lab.write(SLOW_ONCE).run(*GATE, *spread)
    write_history(lab, {"test_slow": around(0.3)})
    (lab.folder / "slow").touch()
    return lab.run(*GATE, *spread)


@pytest.mark.slow
@SPREAD
def test_a_suspect_is_cleared_by_its_first_repetition_and_its_run_is_no_baseline(lab: Lab, spread: Spread) -> None:
    run = run_slow_once(lab, *spread)
    assert (run.status, run.counts()) == (0, {"passed": 1}), run.text
    gate = entry(run, "test_slow")["gate"]
    assert (gate["answer"], gate["quarantined"], len(gate["again"]), gate["runs"]) == ("met", ["response_p50"], 1, 12)
    assert entry(run, "test_slow")["response_p50"] > 1, "what was measured is stored"
    (line,) = run.lines_with("when repeated")
    assert re.search(r"response_p50: \+\d+ % in the run, -\d+ % when repeated: this run is no baseline$", line)
    later = lab.run(*GATE, *spread)
    assert entry(later, "test_slow")["gate"]["runs"] == 12, "the outlier is not among them"
    assert entry(lab.run(*GATE, *spread), "test_slow")["gate"]["runs"] == 13, "and the run after it is"


@pytest.mark.slow
@SPREAD
def test_the_wait_before_a_repetition_counts_towards_no_time_limit(lab: Lab, spread: Spread) -> None:
    limit = LIMIT.replace("ITIMER_REAL, 3", "ITIMER_REAL, 6")
    run = run_slow_once(lab, *spread, settings=SETTINGS.replace("apart_s = 0", "apart_s = 8"), conftest=limit)
    assert (run.status, run.counts()) == (0, {"passed": 1}), run.text
    assert len(entry(run, "test_slow")["gate"]["again"]) == 1


@pytest.mark.slow
def test_the_commands_say_why_a_run_that_was_an_outlier_is_no_baseline(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    run_slow_once(lab)
    storage = str(lab.folder / "results")
    assert main(["baseline", "show", "--storage", storage]) == 0
    assert "1 was an outlier that did not come again" in capsys.readouterr().out
    assert main(["baseline", "accept", "last", "--storage", storage]) == 0
    capsys.readouterr()
    run = lab.run(*GATE)
    assert run.lines_with("gate inconclusive: baseline 1 of 10"), "the user may say that it was none"


@pytest.mark.slow
def test_a_lasting_improvement_begins_a_new_baseline_and_says_so(lab: Lab) -> None:
    def improve_from_14(number: int, info: dict[str, Any]) -> None:
        around(8.0 if number < 14 else 2.0)(number, info)

    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*GATE, "-k", "test_met")
    write_history(lab, {"test_met": improve_from_14}, runs=26)
    run = lab.run(*GATE, "-k", "test_met")
    assert (run.status, run.counts()) == (0, {"passed": 1, "deselected": 5}), run.text
    assert run.lines_with("response_p50: improved by 75 % at 0015_before, where the baseline begins")


@pytest.mark.slow
def test_runs_left_out_of_a_baseline_are_named(lab: Lab) -> None:
    def spoil_one_run(number: int, info: dict[str, Any]) -> None:
        around(40.0 if number == 6 else 8.0)(number, info)

    (lab.folder / "pyproject.toml").write_text(SETTINGS)
    lab.write(TESTS).run(*GATE, "-k", "test_met")
    write_history(lab, {"test_met": spoil_one_run})
    run = lab.run(*GATE, "-k", "test_met")
    assert run.counts() == {"passed": 1, "deselected": 5}, run.text
    (line,) = run.lines_with("left out of the baseline")
    assert re.search(
        r"response_p50: left out of the baseline, too far from its other runs: 0007_before \(\+\d\d\d %\)$", line
    )
