"""Tests of cases that once hid a bad run from the gate, or made it red for a good one."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp
from typing import Any

import pytest

from pytest_cloudbench.judge.baseline import ONLY_AT_GATE
from pytest_cloudbench.judge.gate import Answer, Ruling, answer_of, judge
from pytest_cloudbench.judge.watched import ACCEPTED, FOLLOWED_ONLY, FormerNumbers, checks_of

from .test_watched import RUN

CLEAN: dict[str, Any] = RUN | {"silent_loss_rate": 0.0, "silently_lost": 0}
LOST = CLEAN | {"silent_loss_rate": 0.0025, "silently_lost": 1}


def rulings(
    now: dict[str, Any], before: list[dict[str, Any]], *again: dict[str, Any], **more: Any
) -> dict[str, Ruling]:
    return {ruling.check.metric: ruling for ruling in judge(checks_of("t", now, (), before, {}, again, **more))}


def answer(now: dict[str, Any], before: list[dict[str, Any]], *again: dict[str, Any], **more: Any) -> Answer | None:
    return answer_of(list(rulings(now, before, *again, **more).values()))


# --- what has happened ---


def test_a_loss_that_was_stored_without_the_gate_is_no_permission() -> None:
    assert answer(LOST, [CLEAN] * 19 + [LOST]) == "broken"
    assert answer(LOST, [LOST | {ACCEPTED: True}] + [CLEAN] * 40) == "met", "but an accepted one is, however long ago"


def test_a_loss_in_a_repetition_is_a_loss() -> None:
    slow = CLEAN | {"quiet_p50": 0.2}
    assert answer(slow, [CLEAN] * 20, CLEAN) == "met"
    ruling = rulings(slow, [CLEAN] * 20, CLEAN, LOST)["silent_loss_rate"]
    assert (ruling.answer, ruling.why) == ("broken", "not in the run, but in 1 of 2 repetitions: intermittent")
    assert ruling.check.now.count == 1, "it is what the line counts"


def test_more_requests_in_a_repetition_are_more_requests() -> None:
    usual, more = CLEAN | {"requests_usual": 3.0}, CLEAN | {"requests_per_op": 6.0, "requests_usual": 6.0}
    retry = CLEAN | {"requests_per_op": 3.1, "requests_usual": 3.0}
    slow = usual | {"quiet_p50": 0.2}
    assert answer(slow, [usual] * 20, usual, more) == "broken"
    assert answer(slow, [usual] * 20, usual, retry) == "met", "that was the service"


def test_no_doubt_undoes_a_loss() -> None:
    assert answer(LOST, [CLEAN] * 20, why="doubts: gw1 is missing") == "broken"
    assert answer(CLEAN, [CLEAN] * 20, why="doubts: gw1 is missing") == "inconclusive"


@pytest.mark.parametrize(
    ("unknown", "metric"),
    [
        ({"quiet_ops": 0, "quiet_kept": 0, "quiet_share": 0.0, "quiet_p50": None, "quiet_p99": None}, "quiet_p50"),
        (dict.fromkeys(("silent_loss_rate", "silently_lost", "lost", "loss_rate")), "silent_loss_rate"),
        ({"requests_per_op": None}, "requests_per_op"),
    ],
)
def test_run_lacking_a_metric_of_most_others_is_inconclusive(unknown: dict[str, Any], metric: str) -> None:
    ruling_by_metric = rulings(CLEAN | unknown, [CLEAN] * 20)
    assert ruling_by_metric[metric].answer == "inconclusive"
    assert answer(CLEAN | unknown, [CLEAN] * 20) == "inconclusive"
    assert answer(CLEAN | unknown, [CLEAN] * 9 + [CLEAN | unknown] * 11) != "broken"
    assert metric not in rulings(CLEAN | unknown, [CLEAN | unknown] * 20) or metric.startswith("quiet")


# --- what adds up ---


def first_red(metric: str, change: Callable[[int, random.Random], dict[str, Any]], runs: int) -> float | None:
    """Return the metric's value in the first broken run after twenty unchanged ones, or None."""
    source = random.Random(metric)
    courses = [CLEAN | {"run": f"{run:04d}"} | change(max(0, run - 20), source) for run in range(runs)]
    former = FormerNumbers(courses)
    for run in range(20, runs):
        (check,) = [
            check for check in checks_of("t", courses[run], (), former.before(run), {}, [courses[run]] * 3)
            if check.metric == metric
        ]  # fmt: skip
        (ruling,) = judge([check])
        if ruling.answer == "broken":
            assert ruling.course is not None
            assert ruling.course.is_worse
            return float(courses[run][metric])
    return None


def test_failures_that_rise_a_little_with_each_run_are_an_open_regression() -> None:
    ops = 30_000

    def failing(run: int, source: random.Random) -> dict[str, Any]:
        count = max(0, round(source.gauss(0.0003 * run * ops, 20)))
        return {"ops": ops, "files": ops, "failed": count, "failed_rate": count / ops}

    value = first_red("failed_rate", failing, 100)
    assert value is not None
    assert value < 0.02


@pytest.mark.parametrize("metric", ["payload_bytes_per_op", "requests_per_op"])
def test_counts_that_rise_by_less_than_half_a_percent_with_each_run_are_an_open_regression(metric: str) -> None:
    value = first_red(metric, lambda run, _: {metric: CLEAN[metric] * 1.004**run}, 60)
    assert value is not None
    assert value < CLEAN[metric] * 1.10


@pytest.mark.parametrize(("repeated", "is_open"), [(3.30, True), (3.00, False)])
def test_a_retry_in_one_run_hides_no_open_regression_of_a_count(repeated: float, is_open: bool) -> None:
    before = [CLEAN] * 20 + [CLEAN | {"requests_per_op": 3.30}] * 30
    again = [CLEAN | {"requests_per_op": repeated}] * 3
    ruling = rulings(CLEAN | {"requests_per_op": 3.33}, before, *again)["requests_per_op"]
    assert (ruling.answer, ruling.course is not None) == (("broken", True) if is_open else ("met", False))
    assert ruling.is_quarantined


def test_a_retry_in_one_run_is_not_met_by_the_runs_before_an_improvement() -> None:
    before = [CLEAN] * 12 + [CLEAN | {"requests_per_op": 2.0}] * 5
    ruling = rulings(CLEAN | {"requests_per_op": 3.02}, before, *[CLEAN] * 3)["requests_per_op"]
    assert (ruling.answer, ruling.is_quarantined) == ("inconclusive", True)
    assert ruling.why.startswith("it improved by 33 % at ")


def test_counts_that_rise_in_steps_too_small_to_see_are_an_open_regression() -> None:
    value = first_red("requests_per_op", lambda run, _: {"requests_per_op": 3.0 * 1.0045 ** (run // 22)}, 520)
    assert value is not None
    assert value < 3.0 * 1.10


def test_incidents_of_a_service_open_no_regression() -> None:
    """Two bad runs of the last five are two incidents."""
    bad = CLEAN | {"failed": 120, "failed_rate": 0.3, FOLLOWED_ONLY: ONLY_AT_GATE}
    before = [CLEAN] * 30 + [bad, CLEAN, CLEAN, bad]
    assert rulings(CLEAN, before)["failed_rate"].answer == "met"


def test_good_runs_after_failures_are_no_incidents_while_the_regression_closes() -> None:
    failing = CLEAN | {"failed": 8, "failed_rate": 0.02}
    ruling = rulings(CLEAN, [CLEAN] * 20 + [failing] * 30, *[CLEAN] * 3)["failed_rate"]
    assert ruling.course is not None, "one good run does not prove that it is gone"
    assert (ruling.is_quarantined, ruling.first) == (False, None)


def make_improved_runs(slope: float, runs: int) -> list[dict[str, Any]]:
    """Return runs that are a third faster from the 25th on, and then slower by this share with each run."""
    source = random.Random("improved")
    levels = [0.1 if run < 25 else 0.07 * (1 + slope) ** (run - 25) for run in range(runs)]
    return [CLEAN | {"quiet_p50": level * exp(source.gauss(0, 0.01)), "run": f"{run:04d}"}
            for run, level in enumerate(levels)]  # fmt: skip


def test_slow_loss_of_an_old_improvement_breaks_the_gate() -> None:
    """It does however old the improvement is. After 120 runs, the bound from the first runs would still allow the
    loss."""
    runs = make_improved_runs(0.001, 146)
    ruling = rulings(runs[-1], runs[:-1], *[runs[-1]] * 3)["quiet_p50"]
    assert ruling.answer == "broken"
    assert ruling.course is not None
    assert 0.08 < ruling.course.change < 0.14
    runs = make_improved_runs(0.0, 146)
    assert rulings(runs[-1], runs[:-1], *[runs[-1]] * 3)["quiet_p50"].answer == "met"


def test_no_up_and_down_moves_the_state_that_runs_are_compared_with() -> None:
    """The level goes up by 7 % and down by 5 %, again and again."""
    source = random.Random("up and down")

    def level(run: int) -> float:
        cycle, position = divmod(max(0, run - 20), 40)
        return float(0.1 * 1.02**cycle * (1.07 if position >= 15 else 1.0) * exp(source.gauss(0, 0.005)))

    runs = [CLEAN | {"quiet_p50": level(run), "run": f"{run:04d}"} for run in range(221)]
    now = runs[-1] | {"quiet_p50": 0.1 * 1.02**5}
    assert rulings(now, runs[:-1], *[now] * 3)["quiet_p50"].answer == "broken"
