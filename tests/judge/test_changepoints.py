"""Tests of changes in series with a known truth: only real changes are found."""

from __future__ import annotations

import random
from math import exp, inf, sqrt

import pytest

from pytest_cloudbench.judge import changepoints
from pytest_cloudbench.judge.changepoints import LEAST_RUNS, find_changes

RUNS, SERIES = 100, 150
SD = 0.03


def noise(kind: str, rng: random.Random, count: int = RUNS, correlation: float = 0.28) -> list[float]:
    """Return run-to-run noise of log values, with the same standard deviation for every kind.

    Runs 75 s apart were correlated by 0.28.
    """
    if kind == "normal":
        return [rng.gauss(0, SD) for _ in range(count)]
    if kind == "heavy tails":  # t with 4 degrees of freedom
        return [rng.gauss(0, 1) / sqrt(rng.gammavariate(2, 2) / 4) * SD / sqrt(2) for _ in range(count)]
    values = [rng.gauss(0, SD)]
    while len(values) < count:
        values.append(correlation * values[-1] + rng.gauss(0, SD * sqrt(1 - correlation**2)))
    return values


def series(kind: str, rng: random.Random, change: float = 0.0, first: int = RUNS) -> list[float]:
    return [exp(value) * (1 + change * (number >= first)) for number, value in enumerate(noise(kind, rng))]


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "correlated"])
def test_a_series_without_a_change_seldom_has_one(kind: str) -> None:
    rng = random.Random(kind)
    assert sum(bool(find_changes(series(kind, rng))) for _ in range(SERIES)) <= 0.03 * SERIES


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "correlated"])
@pytest.mark.parametrize("change", [0.10, -0.10])
def test_ten_percent_is_found_after_four_runs(kind: str, change: float) -> None:
    rng, first = random.Random(kind), RUNS - 4
    results = [find_changes(series(kind, rng, change, first)) for _ in range(SERIES)]
    last_changes = [changes[-1] for changes in results if changes and abs(changes[-1].first - first) <= 1]
    assert len(last_changes) >= 0.9 * SERIES
    assert all((last_change.ratio or 0) * change > 0 for last_change in last_changes)


def test_a_change_beyond_all_bounds_is_found() -> None:
    (change,) = find_changes([1e-300] * 8 + [1e300] * 8)
    assert (change.first, change.ratio) == (8, inf)


def test_a_change_by_chance_among_runs_that_are_alike_is_doubtful() -> None:
    rng = random.Random(11)
    alike = [[exp(3 * value) for value in noise("correlated", rng, correlation=0.6)] for _ in range(SERIES)]
    by_chance = [change for values in alike for change in find_changes(values)]
    assert len(by_chance) > 0.2 * SERIES, "a test that takes runs for independent errs here"
    assert sum(change.is_doubtful for change in by_chance) >= 0.9 * len(by_chance)


@pytest.mark.parametrize(("kind", "limit"), [("normal", 0.02), ("heavy tails", 0.02), ("correlated", 0.5)])
def test_a_real_change_is_seldom_doubtful_unless_runs_are_alike(kind: str, limit: float) -> None:
    rng = random.Random(kind)
    changes = [find_changes(series(kind, rng, 0.3, RUNS // 2))[0] for _ in range(SERIES)]
    assert sum(change.is_doubtful for change in changes) <= limit * SERIES


def test_a_change_without_noise_is_never_doubtful() -> None:
    (change,) = find_changes([1000.0] * 20 + [1010.0] * 5)
    assert (change.correlation, change.is_doubtful) == (0.0, False)


def test_several_changes_are_found_at_their_places() -> None:
    rng = random.Random(1)
    levels = [1.0] * 30 + [1.3] * 30 + [0.9] * 40
    changes = find_changes([level * exp(value) for level, value in zip(levels, noise("normal", rng), strict=True)])
    assert [change.first for change in changes] == [30, 60]
    assert changes[0].ratio == pytest.approx(0.3, abs=0.03)
    assert changes[1].before == pytest.approx(1.3, rel=0.02)
    assert changes[1].after == pytest.approx(0.9, rel=0.02)
    assert all(change.confidence > 0.9999 for change in changes)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 7, [1.0, 9.0] * 3, [5.0] * 300])
def test_short_and_constant_series_have_none(values: list[float]) -> None:
    assert find_changes(values) == []


def test_one_outlier_is_no_change() -> None:
    rng = random.Random(3)
    values = series("normal", rng)
    values[50] *= 3
    values[99] *= 3
    assert find_changes(values) == []


def test_a_change_has_four_runs_on_each_side() -> None:
    values = [exp(value) for value in noise("normal", random.Random(5), 40)]
    assert [change.first for change in find_changes([*values, 1.2, 1.2, 1.2, 1.2])] == [40]
    assert find_changes([*values, 1.2]) == []
    for extra_runs in range(1, 8):
        changes = find_changes([*values, *[9.0] * extra_runs])
        assert all(LEAST_RUNS <= change.first <= 40 + extra_runs - LEAST_RUNS for change in changes)
    assert LEAST_RUNS == 4


def test_one_percent_is_a_change_in_a_constant_series() -> None:
    (change,) = find_changes([1000.0] * 20 + [1010.0] * 5)
    assert (change.first, change.p_value, change.confidence) == (20, 0.0, 1.0)
    assert (change.before, change.after, change.ratio) == pytest.approx((1000, 1010, 0.01))
    assert find_changes([1000.0] * 20 + [1002.0] * 5) == []


def test_a_rate_that_is_zero_has_a_change_in_points() -> None:
    rng = random.Random(8)
    rates = [0.0] * 30 + [max(0.0, rng.gauss(0.03, 0.004)) for _ in range(10)]
    (change,) = find_changes(rates)
    assert (change.first, change.before, change.ratio) == (30, 0.0, None)
    assert change.after == pytest.approx(0.03, abs=0.004)
    assert find_changes([0.0] * 30 + [0.001] * 3 + [0.0] * 10) == []


def test_quick_check_skips_only_series_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check whether any split could pass only saves time. It does not change the answer."""
    source = random.Random("quick")
    all_series = [
        [exp(source.gauss(0, spread)) * (1 + step * (number >= at)) for number in range(length)]
        for spread in (0.0, 0.01, 0.05) for step in (0.0, 0.04, 0.06, 0.1, 0.3) for at in (4, 12) for length in (8, 30)
        for _ in range(3)
    ]  # fmt: skip
    all_series += [[float(source.random() < 0.2) for _ in range(40)] for _ in range(5)]
    quick_answers = [find_changes(values) for values in all_series]
    monkeypatch.setattr(changepoints, "_may_have_split", lambda levels: True)
    assert [find_changes(values) for values in all_series] == quick_answers
    assert any(quick_answers)
    assert not all(quick_answers)
