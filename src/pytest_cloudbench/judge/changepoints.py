"""Where a series of runs changed for good: E-divisive with a t-test.

What may live here: finding changes in one series, as a pure function. Its rates are simulated, with known truth, in
tests/judge/test_changepoints.py: false in at most 3 % of series of 100 runs, and +10 % found from the fourth run on in
at least 90 %, where runs vary by 3 %.

A run is one number, because the operations of a run share what disturbs it. The split with the largest energy distance
(Matteson and James 2014, exponent 1) is a candidate; a pooled t-test then says whether it is more than noise. Unlike
the permutation test of the paper, it gives the same answer each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise, repeat
from math import exp, inf, log, sqrt
from operator import mul, sub
from statistics import fmean

from pytest_cloudbench.judge.significance import f_sf

LEAST_RUNS = 4
"""The fewest runs on each side of a change."""
LEAST_STEP = 0.05
"""The smallest change of a noisy series that counts, as a share of the level before it."""
_CERTAIN = 1e-4
"""The largest probability of such a difference by chance: one in 10,000, since each series has many places to split."""
_LEAST_POINTS = 0.005
"""The same as ``LEAST_STEP`` for values that reach zero, such as rates: half a point, or units."""
_EXACT = 0.005
"""The smallest change of a series without noise, such as counts: half a percent."""
MOST_ALIKE = 0.28
"""The correlation of successive runs up to which the rates hold; measured of runs 75 s apart. Where it is larger, the
level of runs wanders, and a test that takes them for independent finds changes by chance."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A lasting change in a series.

    Attributes:
        first: the place of the first value after it.
        before, after: the levels up to the change before or after it: geometric means, or means if values reach zero.
        ratio: ``after / before - 1``; None if values reach zero.
        p_value: the probability of such a difference by chance, if runs are independent; 0 where neither side varies.
        correlation: of successive runs about the levels of the whole series; 0 where nothing varies.
    """

    first: int
    before: float
    after: float
    ratio: float | None
    p_value: float
    correlation: float = 0.0

    @property
    def is_doubtful(self) -> bool:
        """Whether runs are so alike that the change may be chance."""
        return self.p_value > 0 and self.correlation > MOST_ALIKE

    @property
    def confidence(self) -> float:
        """Return how sure it is, from 0 to 1."""
        return 1 - self.p_value


def find_changes(values: Sequence[float]) -> list[ChangePoint]:
    """Return the changes in a series of runs, the oldest first. The values are finite numbers."""
    if len(set(values)) < 2:
        return []
    is_positive = min(values) > 0
    levels = [log(value) for value in values] if is_positive else list(values)
    splits = _split(levels, 0, len(levels), is_positive)
    while splits:  # each against its neighbours: a change that only its own noisy half supported goes
        ends = [0, *splits, len(levels)]
        tested = [
            _test(levels[a:b], levels[b:c], is_positive) for a, b, c in zip(ends[:-2], splits, ends[2:], strict=True)
        ]
        weakest = max(range(len(tested)), key=tested.__getitem__)
        if tested[weakest] < _CERTAIN:
            alike = _correlation([levels[a:b] for a, b in pairwise(ends)])
            found = zip(ends[:-2], splits, ends[2:], tested, strict=True)
            return [_change(levels[a:b], levels[b:c], b, p_value, alike, is_positive) for a, b, c, p_value in found]
        del splits[weakest]
    return []


def _change(
    before: Sequence[float], after: Sequence[float], first: int, p_value: float, alike: float, is_log: bool
) -> ChangePoint:
    old, new = fmean(before), fmean(after)
    if is_log:
        return ChangePoint(first, exp(old), exp(new), exp(new - old) - 1, p_value, alike)
    return ChangePoint(first, old, new, None, p_value, alike)


def _correlation(parts: Sequence[Sequence[float]]) -> float:
    """Return the correlation of successive values about the mean of their part."""
    products = squares = 0.0
    for part in parts:
        middle = fmean(part)
        apart = [value - middle for value in part]
        products += sum(one * other for one, other in pairwise(apart))
        squares += sum(each**2 for each in apart)
    return products / squares if squares else 0.0


def _split(levels: Sequence[float], start: int, end: int, is_log: bool) -> list[int]:
    """Return the places of changes between two places, by splitting in two as long as that is more than noise."""
    place = _best(levels[start:end]) if _may_differ(levels[start:end]) else None
    if place is None or _test(levels[start : start + place], levels[start + place : end], is_log) >= _CERTAIN:
        return []
    middle = start + place
    return [*_split(levels, start, middle, is_log), middle, *_split(levels, middle, end, is_log)]


def _may_differ(levels: Sequence[float]) -> bool:
    """Return whether any split could pass the test: most series have none, and this is far quicker than ``_best``."""
    count = len(levels)
    if count < 2 * LEAST_RUNS:
        return False
    middle = fmean(levels)
    apart = [value - middle for value in levels]
    sums = list(accumulate(apart))[LEAST_RUNS - 1 : count - LEAST_RUNS]
    between = max(map(mul, map(mul, sums, sums), _weights(count)))
    within = sum(map(mul, apart, apart)) - between
    freedom = count - 2
    return within <= 1e-9 * between or f_sf(between * freedom / within, 1, freedom) < 2 * _CERTAIN


@cache
def _weights(count: int) -> tuple[float, ...]:
    """Return for each place of a split the inverse variance of the sum of what is before it."""
    return tuple(count / (at * (count - at)) for at in range(LEAST_RUNS, count - LEAST_RUNS + 1))


def _best(levels: Sequence[float]) -> int | None:
    """Return the split with the largest energy distance, weighted by the sizes of its sides; None in a short series.

    Sums of distances of each side are kept up while one value after the other moves from the right to the left.
    """
    count = len(levels)
    if count < 2 * LEAST_RUNS:
        return None
    left = [0.0, *accumulate(_distances(value, levels[:at]) for at, value in enumerate(levels))]
    right = [0.0]
    for at in range(count - 1, -1, -1):
        right.append(right[-1] + _distances(levels[at], levels[at + 1 :]))
    total, best, place = left[count], -inf, None
    for at in range(LEAST_RUNS, count - LEAST_RUNS + 1):
        m, n, of_left, of_right = at, count - at, left[at], right[count - at]
        across = total - of_left - of_right
        distance = 2 * across / (m * n) - 2 * of_left / (m * (m - 1)) - 2 * of_right / (n * (n - 1))
        weighted = m * n / count * distance
        if weighted > best:
            best, place = weighted, at
    return place


def _distances(value: float, others: Sequence[float]) -> float:
    return float(sum(map(abs, map(sub, repeat(value), others))))


def _test(before: Sequence[float], after: Sequence[float], is_log: bool) -> float:
    """Return the probability of such a difference by chance, and 1 for one that is too small to count."""
    old, new = fmean(before), fmean(after)
    step, freedom = abs(new - old), len(before) + len(after) - 2
    squares = sum((value - old) ** 2 for value in before) + sum((value - new) ** 2 for value in after)
    noise = sqrt(squares / freedom)
    if noise <= 1e-9 * max(abs(old), abs(new), 1.0):  # each side has one value again and again
        least = log(1 + _EXACT) if is_log else _EXACT * abs(old)
        return 0.0 if step > least else 1.0
    if step < (log(1 + LEAST_STEP) if is_log else _LEAST_POINTS):
        return 1.0
    t_squared = step**2 / (noise**2 * (1 / len(before) + 1 / len(after)))
    return f_sf(t_squared, 1, freedom)
