"""Tests of the anytime interval, which contains the truth after every pair, and is little affected by wild pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import exp, inf, log
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.anytime import AnytimeInterval, interval, values_needed
from tests.limits import scale_examples

Noise = tuple[list[float], list[float]]
"""The difference of each pair, and its level."""


def normal(random: Random, count: int) -> Noise:
    return [random.gauss(0, 0.1) for _ in range(count)], [0.0] * count


def heavy(random: Random, count: int) -> Noise:
    """Return noise in which every fifth pair varies ten times as much as the others."""
    return [random.gauss(0, 0.5 if random.random() < 0.2 else 0.05) for _ in range(count)], [0.0] * count


def busy(random: Random, count: int) -> Noise:
    """Return noise in which a pair tells less if both sides are slower."""
    levels = [random.gauss(0, 0.6) for _ in range(count)]
    return [random.gauss(0, 0.15 * exp(2 * level)) for level in levels], levels


def outside(bounds: AnytimeInterval, truth: float) -> bool:
    return not bounds.low <= truth <= bounds.high


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("noise", [normal, heavy, busy])
def test_the_interval_holds_the_truth_at_every_look(noise: Callable[[Random, int], Noise]) -> None:
    """An ordinary 95 % interval would miss it in every third session."""
    random, wrong, ordinary, shift = Random(12), 0, 0, 0.3
    for _ in range(40):
        changes, levels = noise(random, 40)
        changes = [change + shift for change in changes]
        looks = [interval(changes[:count], 0.05, 0.0, levels[:count]) for count in range(2, 41)]
        assert all(look.low <= look.change <= look.high for look in looks)
        wrong += any(outside(look, shift) for look in looks)
        prefixes = [changes[:count] for count in range(4, 41)]
        ordinary += any(abs(fmean(prefix) - shift) > 2.0 * stdev(prefix) / len(prefix) ** 0.5 for prefix in prefixes)
    assert wrong <= 2  # 5 % of 40
    assert ordinary >= 6


def test_equal_sides_rarely_differ_in_all_exchanges_of_sides() -> None:
    """There is no randomness: all 512 sessions are equally likely."""
    distances, levels = [0.1, 0.12, 0.09, 0.3, 0.11, 0.08, 0.1, 0.25, 0.12], [3.0, 1, 4, 2, 5, 1, 2, 1, 6]
    wrong = 0
    for signs in product((-1, 1), repeat=len(distances)):
        changes = [sign * distance for sign, distance in zip(signs, distances, strict=True)]
        looks = (interval(changes[:count], 0.2, 0.0, levels[:count]) for count in range(4, len(distances) + 1))
        wrong += any(outside(look, 0.0) for look in looks)
    assert 0 < wrong <= 0.2 * 2 ** len(distances)


def pairs_needed(noise: Noise, change: float, alpha: float = 0.005, *, sees_levels: bool = True) -> float:
    """Return the number of pairs after which a change is found with its direction, or infinity."""
    values, levels = [value + change for value in noise[0]], noise[1]
    for count in range(4, len(values) + 1):
        if interval(values[:count], alpha, 0.005, levels[:count] if sees_levels else None).low > 0:
            return count
    return inf


def test_a_few_wild_pairs_do_not_hide_a_difference() -> None:
    random = Random(3)
    pair_counts = [pairs_needed(heavy(random, 90), log(1.1)) for _ in range(20)]
    assert sum(count < inf for count in pair_counts) >= 18
    spreads = [stdev(heavy(random, 90)[0]) for _ in range(20)]
    assert min(spreads) > 0.1  # an interval for normal noise would need 100 pairs and more


@pytest.mark.slow
def test_differences_are_found_in_quick_pairs_if_slow_ones_are_noisy() -> None:
    random = Random(4)
    sessions = [busy(random, 80) for _ in range(20)]
    aware = sum(pairs_needed(session, log(1.1)) < inf for session in sessions)
    unaware = sum(pairs_needed(session, log(1.1), sees_levels=False) < inf for session in sessions)
    assert aware >= 18
    assert unaware <= 14


def test_few_precise_pairs_are_enough() -> None:
    random = Random(5)
    pair_counts = [pairs_needed(([random.gauss(0, 0.01) for _ in range(20)], [0.0] * 20), log(1.1)) for _ in range(20)]
    assert max(pair_counts) <= 9


@pytest.mark.parametrize("values", [[], [0.2], [0.2, 0.2], [0.1, 0.2, 0.3]])
def test_a_few_values_say_nothing(values: Sequence[float]) -> None:
    result = interval(values, 0.01)
    assert (result.low, result.high) == (-inf, inf)
    assert result.change == pytest.approx(fmean(values) if values else 0.0)


def test_values_without_variance_are_as_exact_as_the_least_deviation() -> None:
    exact = interval([0.7] * 12, 0.01, 0.005)
    assert exact.change == pytest.approx(0.7, abs=1e-9)
    assert 0.001 < exact.high - exact.change < 0.02
    certain = interval([0.7] * 12, 0.01)
    assert certain.low == pytest.approx(0.7, abs=1e-9) == certain.high


CHANGES = st.lists(st.integers(-1000, 1000).map(lambda number: number / 1000), min_size=12, max_size=40)


@given(CHANGES, st.randoms(use_true_random=False))
@settings(max_examples=scale_examples(40), deadline=None)
def test_the_interval_shifts_flips_and_scales_with_its_values(changes: list[float], random: Random) -> None:
    levels = [random.gauss(0, 1) for _ in changes]
    original = interval(changes, 0.01, 0.001, levels)
    assert original.low <= original.change <= original.high
    moved = interval([change + 3 for change in changes], 0.01, 0.001, levels)
    turned = interval([-change for change in changes], 0.01, 0.001, levels)
    grown = interval([2 * change for change in changes], 0.01, 0.002, levels)
    assert (moved.low - 3, moved.high - 3) == pytest.approx((original.low, original.high), abs=1e-6)
    assert (-turned.high, -turned.low) == pytest.approx((original.low, original.high), abs=1e-6)
    assert (grown.low / 2, grown.high / 2) == pytest.approx((original.low, original.high), abs=1e-6)


@given(CHANGES)
@settings(max_examples=scale_examples(40), deadline=None)
def test_a_larger_alpha_gives_a_narrower_interval(changes: list[float]) -> None:
    strict, loose = interval(changes, 0.001, 0.001), interval(changes, 0.1, 0.001)
    assert strict.low <= loose.low <= loose.high <= strict.high


@pytest.mark.parametrize("noise", [normal, heavy, busy])
def test_the_values_needed_find_a_change_in_most_cases(noise: Callable[[Random, int], Noise]) -> None:
    random, enough, promised = Random(6), 0, 0
    for _ in range(20):
        values, levels = noise(random, 400)
        values = [value + log(1.1) for value in values]
        first = interval(values[:25], 0.005, 0.005, levels[:25])
        count = values_needed(first, values[:25], 0.005, 0.005, log(1.1))
        if outside(first, 0.0):
            continue
        assert count is not None
        promised += 1
        looks = range(25, min(count, 400), 4)
        enough += any(interval(values[:look], 0.005, 0.005, levels[:look]).low > 0 for look in looks)
    assert enough >= 0.75 * promised


def test_no_number_of_values_is_promised_for_a_hopeless_change() -> None:
    wild = [(-1.0) ** number * 50 for number in range(20)]
    assert values_needed(interval(wild, 0.005), wild, 0.005, 0.005, 0.1) is None
    assert values_needed(interval([0.1], 0.005), [0.1], 0.005, 0.005, 0.1) is None
