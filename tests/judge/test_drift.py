"""Tests of drift in series with a known truth: slow changes are found, and steady series are left alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from math import log, log1p, sqrt
from statistics import fmean

import pytest

from pytest_cloudbench.judge.drift import ANCHOR_RUNS, DriftState, SeriesDrift
from pytest_cloudbench.judge.noise import allowance

MARGIN = 0.10
SERIES = 40


def noise_of(kind: str, spread: float, seed: object, runs: int, correlation: float = 0.3) -> list[float]:
    """Return the logarithms of successive unchanged runs, each a little like the one before it."""
    source = random.Random(f"drift/{kind}/{spread}/{seed}")

    def draw() -> float:
        if kind == "normal":
            return source.gauss(0, 1)
        return source.gauss(0, 1) / sqrt(source.gammavariate(1.5, 2) / 3) / sqrt(3)  # t3 with a deviation of 1

    values = [draw()]
    while len(values) < runs:
        values.append(correlation * values[-1] + sqrt(1 - correlation * correlation) * draw())
    return [spread * value for value in values]


def states_of(values: Sequence[float], margin: float = MARGIN) -> list[DriftState]:
    """Return the state of a series after each of its runs."""
    drift, states = SeriesDrift(log1p(margin)), []
    for number, value in enumerate(values):
        states.append(drift.preview(value))
        drift.add(value, name=f"{number:04d}")
    return states


def first_open(values: Sequence[float]) -> int | None:
    """Return the index of the run that opened a regression, or None."""
    drift = SeriesDrift(log1p(MARGIN))
    for number, value in enumerate(values):
        if drift.preview(value).is_open:
            return number
        drift.add(value)
    return None


def with_course(noise: Sequence[float], course: Callable[[int], float]) -> list[float]:
    return [value + course(number) for number, value in enumerate(noise)]


@pytest.mark.parametrize("spread", [0.001, 0.01, 0.03])
def test_a_steady_series_opens_no_regression(spread: float) -> None:
    opened = [first_open(noise_of("normal", spread, seed, 100)) for seed in range(SERIES)]
    assert opened == [None] * SERIES


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spread", [0.01, 0.03])
@pytest.mark.parametrize("rise", [0.003, 0.005])
@pytest.mark.parametrize("steady", [0, ANCHOR_RUNS, 60])
def test_a_slow_rise_opens_a_regression_before_it_is_twice_the_margin(spread: float, rise: float, steady: int) -> None:
    """The rise is measured from the mean of the first twenty runs, which may rise themselves."""
    first_runs = 0.0 if steady else (ANCHOR_RUNS - 1) / 2
    runs = steady + int(first_runs + log1p(2 * MARGIN) / log1p(rise))
    opened = [
        first_open(with_course(noise_of("normal", spread, seed, runs), lambda n: max(0, n - steady) * log1p(rise)))
        for seed in range(SERIES)
    ]
    assert opened.count(None) <= SERIES // 20
    assert all(index > steady for index in opened if index is not None)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_a_step_opens_a_regression_that_never_closes_while_it_lasts(spread: float) -> None:
    step, steady = log1p(1.5 * MARGIN), 30
    for seed in range(SERIES):
        states = states_of(with_course(noise_of("normal", spread, seed, 110), lambda n: step * (n >= steady)))
        opened = next(number for number, state in enumerate(states) if state.is_open)
        assert steady <= opened <= steady + 15
        assert all(state.is_open for state in states[opened:])
        assert states[-1].since == f"{opened:04d}"
        assert states[-1].is_worse
        assert states[-1].change == pytest.approx(step, abs=3 * spread)


@pytest.mark.parametrize("spread", [0.01, 0.03])
def test_a_regression_closes_after_the_step_is_gone(spread: float) -> None:
    step, begins, ends = log1p(1.5 * MARGIN), 25, 60
    for seed in range(SERIES // 2):
        noise = noise_of("normal", spread, seed, 110)
        states = states_of(with_course(noise, lambda n: step * (begins <= n < ends)))
        assert states[ends - 1].is_open
        closed = next(number for number in range(ends, 110) if not states[number].is_open)
        assert closed <= ends + 15
        assert not any(state.is_open for state in states[closed:]), (
            "runs of a regression that is gone open no other one"
        )


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("spread", [0.001, 0.01, 0.03])
def test_a_regression_that_comes_back_opens_again(spread: float) -> None:
    step = log1p(1.5 * MARGIN)
    for seed in range(SERIES // 2):
        noise = noise_of("normal", spread, seed, 140)
        states = states_of(with_course(noise, lambda n: step * (25 <= n < 60 or n >= 90)))
        assert not states[89].is_open
        opened = next(number for number in range(90, 140) if states[number].is_open)
        assert opened <= 105
        assert all(state.is_open for state in states[opened:])


@pytest.mark.parametrize("good", [1, 2])
def test_a_lucky_run_ends_a_regression_for_few_runs_at_most(good: int) -> None:
    step = log1p(1.5 * MARGIN)
    noise = noise_of("normal", 0.01, "lucky", 120)
    states = states_of(with_course(noise, lambda n: step * (n >= 25 and not 50 <= n < 50 + good)))
    assert all(state.is_open for state in states[55 + good :])


def test_while_it_is_not_sure_that_a_regression_is_gone_it_is_open_but_no_worse() -> None:
    step = log1p(1.5 * MARGIN)
    noise = noise_of("normal", 0.03, "gone", 100)
    states = states_of(with_course(noise, lambda n: step * (25 <= n < 60)))
    between = [state for state in states[60:] if state.is_open]
    assert any(not state.is_worse for state in between)
    assert all(state.is_worse for state in states[45:60])


def test_trend_is_reported_with_its_interval() -> None:
    rise = log1p(0.005)
    (*_, state) = states_of(with_course(noise_of("normal", 0.01, "trend", 60), lambda n: n * rise))
    assert state.slope_low < rise < state.slope_high
    assert state.slope == pytest.approx(rise, rel=0.1)
    assert state.runs == 60


@pytest.mark.parametrize("change", [0.5, 2.0])
def test_a_change_for_the_better_opens_nothing(change: float) -> None:
    for seed in range(10):
        series = with_course(noise_of("normal", 0.03, seed, 80), lambda n: -log1p(change) * (n >= 30))
        assert first_open(series) is None


@pytest.mark.parametrize("outlier", [0.2, 1.0, 5.0])
def test_single_outliers_open_nothing(outlier: float) -> None:
    """The outliers are single runs, among the first twenty or later."""
    for seed in range(10):
        series = with_course(noise_of("normal", 0.01, seed, 100), lambda n: outlier * (n % 25 == 7))
        assert first_open(series) is None


def test_heavy_tails_open_few_regressions() -> None:
    opened = sum(first_open(noise_of("t3", 0.03, seed, 100)) is not None for seed in range(2 * SERIES))
    assert opened <= 2 * SERIES // 10


def test_fewer_runs_than_the_first_twenty_open_nothing() -> None:
    drift = SeriesDrift(log1p(MARGIN))
    for number in range(ANCHOR_RUNS):
        assert drift.preview(9.0) == DriftState(runs=number + 1)
        drift.add(0.001 * (number % 3))
    assert len(drift) == ANCHOR_RUNS


@pytest.mark.parametrize(("spread", "rise", "is_open"), [
    (0.01, 0.12, True), (0.03, 0.12, True),
    (0.01, 0.06, False),  # less than three quarters of the margin
    (0.05, 0.08, False),  # one of twenty unchanged runs is that far, so another metric was broken
])  # fmt: skip
def test_a_run_that_the_gate_called_broken_opens_a_regression(spread: float, rise: float, is_open: bool) -> None:
    noise = noise_of("normal", spread, "one broken", ANCHOR_RUNS)
    for was_broken in (True, False):
        drift = SeriesDrift(log1p(MARGIN))
        for value in noise:
            drift.add(value)
        drift.add(fmean(noise) + rise, name="0020", was_broken=was_broken)
        state = drift.preview(fmean(noise) + rise)
        assert state.is_open is (is_open and was_broken)
        assert state.since == ("0020" if state.is_open else "")
        if state.is_open:
            assert state.change == pytest.approx(rise, abs=3 * spread)
            assert state.is_worse


def test_good_runs_before_a_broken_one_do_not_hide_that_it_came_again() -> None:
    noise = noise_of("normal", 0.01, "before a broken one", 30)
    drift = SeriesDrift(log1p(MARGIN))
    for value in noise:
        drift.add(value)
    drift.add(0.4, name="0030", was_broken=True)
    for count in range(6):
        state = drift.preview(0.4)
        assert (state.is_open, state.is_worse, state.since) == (True, True, "0030"), count
        assert state.change == pytest.approx(0.4, abs=0.03)
        drift.add(0.4)


def test_after_a_broken_run_one_that_is_hardly_worse_is_no_longer_worse() -> None:
    drift = SeriesDrift(log1p(MARGIN))
    for value in noise_of("normal", 0.03, "hardly worse", 30):
        drift.add(value)
    drift.add(0.25, was_broken=True)
    state = drift.preview(0.04)
    assert (state.is_open, state.is_worse) == (True, False)


def test_a_broken_run_is_closed_by_good_ones() -> None:
    drift = SeriesDrift(log1p(MARGIN))
    for value in noise_of("normal", 0.01, "closed", ANCHOR_RUNS):
        drift.add(value)
    drift.add(0.15, was_broken=True)
    assert drift.preview(0.15).is_open
    assert not drift.preview(0.0).is_open
    drift.add(0.0)
    assert not drift.preview(0.0).is_open


def test_a_series_as_it_was_is_not_changed_by_later_runs() -> None:
    drift = SeriesDrift(log1p(MARGIN))
    noise = noise_of("normal", 0.01, "as it was", 40)
    for value in noise:
        drift.add(value)
    earlier_drift = drift.snapshot()
    states = [earlier_drift.preview(value) for value in (0.0, 0.2)]
    for number in range(30):
        drift.add(0.3 + noise[number], name="later")
    assert drift.preview(0.3).is_open
    assert len(earlier_drift) == 40
    assert [earlier_drift.preview(value) for value in (0.0, 0.2)] == states
    fresh_drift = SeriesDrift(log1p(MARGIN))
    for value in noise:
        fresh_drift.add(value)
    assert [fresh_drift.preview(value) for value in (0.0, 0.2)] == states


def test_preview_does_not_add_a_run() -> None:
    drift = SeriesDrift(log1p(MARGIN))
    for value in noise_of("normal", 0.01, "asked", 40):
        for _ in range(3):
            drift.preview(9.0)
        drift.add(value)
    assert len(drift) == 40
    assert not drift.preview(0.0).is_open


@pytest.mark.parametrize("starved", [0.2, 0.5])
def test_runs_that_are_slower_because_threads_waited_for_a_cpu_open_nothing(starved: float) -> None:
    """The same rise without waiting is a regression."""
    slower = allowance(starved, 0.02)
    assert slower > 0.75 * log1p(MARGIN)
    for share, is_open in ((starved, False), (0.02, True), (None, True)):
        drift = SeriesDrift(log1p(MARGIN))
        for value in noise_of("normal", 0.01, "waits", 30):
            drift.add(value, 0.02)
        for value in noise_of("normal", 0.01, "waits more", 20):
            drift.add(value + slower, share)
        assert drift.preview(slower, share).is_open is is_open


def test_runs_that_are_all_the_same_are_no_error() -> None:
    assert first_open([log(0.1)] * 60) is None
    opened = first_open([log(0.1)] * 30 + [log(0.12)] * 30)
    assert opened is not None
    assert 30 < opened <= 40
