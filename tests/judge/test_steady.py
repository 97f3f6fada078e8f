"""Tests of the early end of a run: with seeded times that settle, drift, never settle, or resemble the time before."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate, count, islice
from math import exp, sqrt
from random import Random

import pytest

from benchmarks.bench_drift import STEADY, count_alarms, cut_recorded, draw_steady
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.steady import (
    LEAST_OPS,
    Stable,
    SteadinessWatch,
    amount_of,
    describe_settling,
    drift,
    steadiness,
)
from pytest_cloudbench.model import UsageError

TRUE_S, SIGMA, BUDGET = 0.05, 0.35, 12_000
Truth = Callable[[Random], Iterator[float]]


def draw_time_s(level: float, draws: Random) -> float:
    return TRUE_S * level * exp(SIGMA * draws.gauss(0, 1))


def flat(draws: Random) -> Iterator[float]:
    """Return times of always the same distribution."""
    return (draw_time_s(1, draws) for _ in count())


def remembers(draws: Random) -> Iterator[float]:
    """Yield times of the same distribution, each of which resembles the one before (0.6)."""
    state = 0.0
    while True:
        state = 0.6 * state + 0.8 * draws.gauss(0, 1)
        yield TRUE_S * exp(SIGMA * state)


def settles(draws: Random) -> Iterator[float]:
    """Return times that begin three times as slow, and are steady after some hundred operations."""
    return (draw_time_s(1 + 2 * exp(-number / 500), draws) for number in count())


def drifts(draws: Random) -> Iterator[float]:
    """Return times that have doubled after 10,000 operations."""
    return (draw_time_s(1 + number / 10_000, draws) for number in count())


def wanders(draws: Random) -> Iterator[float]:
    """Yield times that wander and never settle."""
    level = 0.0
    while True:
        level += draws.gauss(0, 0.02)
        yield draw_time_s(exp(level), draws)


def run(truth: Truth, seed: int, until: Stable, step: int = 50) -> tuple[bool, array[int], array[int]]:
    """Return whether the run ended early, and its operations. One ends each 10 ms, and 50 are reported at a time."""
    values, watch = truth(Random(seed)), SteadinessWatch(until)
    ends_ns, amounts = array("q"), array("q")
    for first in range(0, BUDGET, step):
        new_ends = [(number + 1) * 10_000_000 for number in range(first, first + step)]
        new_amounts = [round(value * 1e9) for value in islice(values, step)]
        ends_ns.extend(new_ends)
        amounts.extend(new_amounts)
        if watch.add(new_ends, new_amounts):
            return True, ends_ns, amounts
    return False, ends_ns, amounts


UNTIL = Stable("response_p50", within=0.04)
SEEDS = range(8)


@pytest.mark.parametrize("truth", [flat, remembers, settles])
def test_a_settling_run_ends_early_with_the_right_number(truth: Truth) -> None:
    misses = []
    for seed in SEEDS:
        is_early, ends_ns, amounts = run(truth, seed, UNTIL)
        assert is_early, (truth.__name__, seed)
        result = steadiness(UNTIL, ends_ns, amounts)
        assert result is not None
        assert result.is_within(UNTIL.within)
        assert len(amounts) >= UNTIL.least_ops
        misses.append(abs(result.value / TRUE_S - 1) > UNTIL.within)
    assert sum(misses) <= 1


@pytest.mark.parametrize("truth", [drifts, wanders])
def test_a_run_that_does_not_settle_uses_its_whole_budget(truth: Truth) -> None:
    until = Stable("response_p50", within=0.02)
    assert sum(run(truth, seed, until)[0] for seed in SEEDS) <= 1


HOUR_NS = 3_600_000_000_000


def test_only_a_drift_is_reported() -> None:
    for seed in SEEDS[:4]:
        _, ends_ns, amounts = run(drifts, seed, Stable("response_p50", within=0.001))
        message = drift("response_p50", ends_ns, amounts, HOUR_NS, UNTIL.within)
        assert message.startswith("response_p50 drifted during the run (+")
        assert drift("response_p50", ends_ns, amounts[::-1], HOUR_NS).startswith(
            "response_p50 drifted during the run (-"
        )
    messages = [drift("response_p50", *run(flat, seed, UNTIL)[1:], HOUR_NS, UNTIL.within) for seed in SEEDS]
    assert messages == [""] * len(SEEDS)


def test_run_with_steady_times_does_not_drift() -> None:
    """This holds however much its operations resemble each other. A doubt would take the run out of every baseline."""
    results = [
        count_alarms(draw_steady(kind, ops, seed) for seed in range(300)) for kind in STEADY for ops in (200, 300)
    ]
    assert sum(alarm_count for alarm_count, _ in results) <= 0.001 * sum(run_count for _, run_count in results)


def test_a_recorded_run_does_not_drift() -> None:
    alarm_count, run_count = count_alarms(cut_recorded(1000))
    assert alarm_count <= 0.001 * run_count


@pytest.mark.parametrize(("ops", "rise"), [(300, 3.0), (1000, 1.0)])
def test_run_with_rising_times_drifts(ops: int, rise: float) -> None:
    alarm_count, run_count = count_alarms(draw_steady("independent", ops, seed, rise) for seed in range(50))
    assert alarm_count >= 0.9 * run_count


def test_a_step_a_slow_beginning_and_a_disturbance_are_no_drift() -> None:
    """Neither is a rise that is too small to matter, nor a rise of too few operations."""
    draws = Random("no line")
    levels: dict[str, list[float]] = {
        "a step": [1 + (number >= 500) for number in range(1000)],
        "a cold start": [1 + 4 * (number < 100) for number in range(1000)],
        "a disturbance": [1 + 4 * (400 <= number < 500) for number in range(1000)],
        "little": [1 + 0.08 * number / 1000 for number in range(1000)],
        "few": [1 + number / 199 for number in range(199)],
    }
    for name, factors in levels.items():
        assert not drift("response_p50", (), [0.01 * factor * exp(draws.gauss(0, 0.01)) for factor in factors], 1e9), (
            name
        )


def test_operations_that_are_all_due_at_once_wait_for_those_before_them() -> None:
    """Each operation takes longer than the one before, although nothing has drifted."""
    queue_s = [0.1 + 0.01 * number for number in range(300)]
    assert drift("response_p50", (), queue_s, max(queue_s)) == ""
    assert drift("response_p50", (), queue_s, sum(queue_s))


def test_a_slow_beginning_is_reported_after_the_end() -> None:
    """The metric of the whole run includes the beginning, which a warm-up would have left out."""
    draws = Random("slow")
    slow = [round(draw_time_s(3 if number < 1200 else 1, draws) * 1e9) for number in range(6000)]
    assert "above that of the run's second half" in describe_settling(UNTIL, range(6000), slow)
    late = [round(draw_time_s(1.3 if 2000 < number < 2700 else 1, draws) * 1e9) for number in range(6000)]
    message = describe_settling(Stable("response_p50", 0.015), range(6000), late)
    assert message.endswith("above that of the run's second half: it was still settling")
    assert describe_settling(UNTIL, range(6000), late) == ""


def test_rates_are_judged_by_the_time_that_blocks_take() -> None:
    """An operation of 1,000 bytes ends each 10 ms."""
    ends_ns = [10_000_000 * (number + 1) for number in range(2000)]
    sizes = [1000] * 2000
    for metric, value in (("ops_per_s", 100.0), ("throughput", 100_000.0)):
        result = steadiness(Stable(metric), ends_ns, sizes)
        assert result is not None
        assert [result.value, result.error, result.change] == pytest.approx([value, 0, 0])
    slower = [10_000_000 * (number + 1) + number * number * 20_000 for number in range(2000)]
    result = steadiness(Stable("ops_per_s"), slower, sizes)
    assert result is not None
    assert not result.is_within(0.02)
    assert result.change < -0.3
    assert describe_settling(Stable("ops_per_s"), slower, sizes).startswith("ops_per_s is ")
    falling = [round(end_ns) for end_ns in accumulate(1e9 / (100 - number / 50) for number in range(2000))]
    assert drift("ops_per_s", falling, sizes, 0).startswith("ops_per_s drifted during the run (-")


def test_too_few_operations_and_a_clock_that_stands_are_no_answer() -> None:
    assert steadiness(UNTIL, range(999), range(999)) is None
    assert steadiness(Stable("ops_per_s"), [5] * 1000, [1] * 1000) is None
    assert steadiness(UNTIL, range(1000), [0] * 1000) is None
    assert describe_settling(UNTIL, range(999), range(999)) == ""
    assert drift("response_p99", (), range(2999), HOUR_NS) == ""
    assert drift("ops_per_s", [5] * 1000, [1] * 1000, HOUR_NS) == ""


def test_it_does_not_end_before_as_many_operations_as_are_asked_for() -> None:
    for min_ops in (0, 3000):
        watch, value = SteadinessWatch(Stable("response_p50", 0.5, min_ops=min_ops)), TRUE_S * 1e9
        ended = next(number for number in count(1) if watch.add([number], [round(value)]))
        assert max(1000, min_ops) <= ended <= 1.2 * max(1000, min_ops)


def test_the_amount_of_an_operation_depends_on_the_metric() -> None:
    assert [amount_of(metric, 1, 3, 10, 500) for metric in ("response_p50", "service_p99", "throughput")] == [9, 7, 500]


def test_every_metric_that_can_be_steady_is_one_of_a_run() -> None:
    assert all(METRICS[name].of is not None for name in LEAST_OPS)
    assert LEAST_OPS["response_p99"] == 3000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "respnse_p50"}, "did you mean response_p50"),
        ({"metric": "response_max"}, "expected one of response_p50, "),
        ({"metric": "response_p50", "within": 0}, "within=0: expected a fraction"),
        ({"metric": "response_p50", "within": 2}, "within=2: expected a fraction"),
        ({"metric": "response_p50", "within": True}, "within=True"),
        ({"metric": "response_p50", "min_ops": -1}, "min_ops=-1: expected a whole number"),
    ],
)
def test_invalid_conditions_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        Stable(**arguments)  # type: ignore[arg-type]  # the test passes wrong types


def test_block_error_of_independent_operations_matches_theory() -> None:
    """A median of n lognormal values has a relative standard error of 1.25 sigma / sqrt(n)."""
    errors = []
    for seed in SEEDS:
        values = [round(value * 1e9) for value in islice(flat(Random(seed)), 4000)]
        result = steadiness(UNTIL, range(4000), values)
        assert result is not None
        errors.append(result.error / 2.262)
    assert sum(errors) / len(errors) == pytest.approx(1.253 * SIGMA / sqrt(2000), rel=0.3)
