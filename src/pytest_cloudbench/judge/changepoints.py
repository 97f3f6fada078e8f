"""Find lasting changes in a series of runs: E-divisive with a t-test.

The error rates are simulated, with known truth, in tests/judge/test_changepoints.py: false changes in at most 3 % of
series of 100 runs, and +10 % found from the fourth run on in at least 90 %, where runs vary by 3 %.

A run is one number, because the operations of a run share what disturbs it. The split with the largest energy distance
(Matteson and James 2014, exponent 1) is a candidate. A pooled t-test then decides whether it is more than noise. Unlike
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

from pytest_cloudbench.judge.noise import share_of_log
from pytest_cloudbench.judge.significance import f_sf

LEAST_RUNS = 4
"""The fewest runs on each side of a change."""
LEAST_STEP = 0.05
"""The smallest change of a noisy series that counts, as a share of the level before it."""
_MAX_P_VALUE = 1e-4
"""The largest p value of a change: one in 10,000, because a series has many possible splits."""
_MIN_STEP_POINTS = 0.005
"""The same as ``LEAST_STEP`` for values that reach zero: half a percentage point of a rate, or 0.005 units."""
_MIN_EXACT_STEP = 0.005
"""The smallest change of a series without noise, such as counts: half a percent."""
MAX_CORRELATION = 0.28
"""The correlation of successive runs up to which the error rates hold, as measured for runs 75 s apart. Where it is
larger, the level of runs wanders, and a test that assumes independent runs finds changes by chance."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A lasting change in a series.

    Attributes:
        first: the index of the first value after it.
        before, after: the levels of the values between it and its neighbouring changes: geometric means, or means if
            values reach zero.
        ratio: ``after / before - 1``. None if values reach zero.
        p_value: the probability of such a difference by chance, if runs are independent. 0 if neither side varies.
        correlation: of successive runs about the levels of the whole series. 0 if nothing varies.
    """

    first: int
    before: float
    after: float
    ratio: float | None
    p_value: float
    correlation: float = 0.0

    @property
    def is_doubtful(self) -> bool:
        """True if successive runs are so correlated that the change may be chance."""
        return self.p_value > 0 and self.correlation > MAX_CORRELATION

    @property
    def confidence(self) -> float:
        """The confidence in the change, from 0 to 1."""
        return 1 - self.p_value


def find_changes(values: Sequence[float]) -> list[ChangePoint]:
    """Return the changes in a series of runs, the oldest first. The values are finite numbers."""
    if len(set(values)) < 2:
        return []
    is_positive = min(values) > 0
    levels = [log(value) for value in values] if is_positive else list(values)
    splits = _find_splits(levels, 0, len(levels), is_positive)
    while splits:  # test each again against its neighbours, and drop the weakest until all are certain
        ends = [0, *splits, len(levels)]
        p_values = [
            _p_value(levels[a:b], levels[b:c], is_positive) for a, b, c in zip(ends[:-2], splits, ends[2:], strict=True)
        ]
        weakest = max(range(len(p_values)), key=p_values.__getitem__)
        if p_values[weakest] < _MAX_P_VALUE:
            correlation = _correlation([levels[a:b] for a, b in pairwise(ends)])
            changes = zip(ends[:-2], splits, ends[2:], p_values, strict=True)
            return [
                _change_point(levels[a:b], levels[b:c], b, p_value, correlation, is_positive)
                for a, b, c, p_value in changes
            ]
        del splits[weakest]
    return []


def _change_point(
    before: Sequence[float], after: Sequence[float], first: int, p_value: float, correlation: float, is_log: bool
) -> ChangePoint:
    old_level, new_level = fmean(before), fmean(after)
    if is_log:
        ratio = share_of_log(new_level - old_level)
        return ChangePoint(first, exp(old_level), exp(new_level), ratio, p_value, correlation)
    return ChangePoint(first, old_level, new_level, None, p_value, correlation)


def _correlation(parts: Sequence[Sequence[float]]) -> float:
    """Return the correlation of successive values about the mean of their part."""
    products = squares = 0.0
    for part in parts:
        mean = fmean(part)
        deviations = [value - mean for value in part]
        products += sum(earlier * later for earlier, later in pairwise(deviations))
        squares += sum(deviation**2 for deviation in deviations)
    return products / squares if squares else 0.0


def _find_splits(levels: Sequence[float], start: int, end: int, is_log: bool) -> list[int]:
    """Return the indices of changes in a range, by splitting it in two as long as the split is more than noise."""
    offset = _best_split(levels[start:end]) if _may_have_split(levels[start:end]) else None
    if offset is None or _p_value(levels[start : start + offset], levels[start + offset : end], is_log) >= _MAX_P_VALUE:
        return []
    middle = start + offset
    return [*_find_splits(levels, start, middle, is_log), middle, *_find_splits(levels, middle, end, is_log)]


def _may_have_split(levels: Sequence[float]) -> bool:
    """Return whether any split could pass the test. Much quicker than ``_best_split``, and most series have none."""
    count = len(levels)
    if count < 2 * LEAST_RUNS:
        return False
    mean = fmean(levels)
    deviations = [value - mean for value in levels]
    sums = list(accumulate(deviations))[LEAST_RUNS - 1 : count - LEAST_RUNS]
    between_squares = max(map(mul, map(mul, sums, sums), _split_weights(count)))
    within_squares = sum(map(mul, deviations, deviations)) - between_squares
    freedom = count - 2
    return (
        within_squares <= 1e-9 * between_squares
        or f_sf(between_squares * freedom / within_squares, 1, freedom) < 2 * _MAX_P_VALUE
    )


@cache
def _split_weights(count: int) -> tuple[float, ...]:
    """Return the inverse variance of the sum of the values before each possible split."""
    return tuple(count / (at * (count - at)) for at in range(LEAST_RUNS, count - LEAST_RUNS + 1))


def _best_split(levels: Sequence[float]) -> int | None:
    """Return the split with the largest energy distance, weighted by the sizes of its sides. None in a short series.

    The sums of distances within each side are updated while one value after the other moves from right to left.
    """
    count = len(levels)
    if count < 2 * LEAST_RUNS:
        return None
    left_sums = [0.0, *accumulate(_sum_distances(value, levels[:at]) for at, value in enumerate(levels))]
    right_sums = [0.0]
    for at in range(count - 1, -1, -1):
        right_sums.append(right_sums[-1] + _sum_distances(levels[at], levels[at + 1 :]))
    total, best_distance, best_index = left_sums[count], -inf, None
    for at in range(LEAST_RUNS, count - LEAST_RUNS + 1):
        m, n, within_left, within_right = at, count - at, left_sums[at], right_sums[count - at]
        across = total - within_left - within_right
        distance = 2 * across / (m * n) - 2 * within_left / (m * (m - 1)) - 2 * within_right / (n * (n - 1))
        weighted = m * n / count * distance
        if weighted > best_distance:
            best_distance, best_index = weighted, at
    return best_index


def _sum_distances(value: float, others: Sequence[float]) -> float:
    return float(sum(map(abs, map(sub, repeat(value), others))))


def _p_value(before: Sequence[float], after: Sequence[float], is_log: bool) -> float:
    """Return the probability of such a difference by chance, and 1 for a difference that is too small to count."""
    old_level, new_level = fmean(before), fmean(after)
    step, freedom = abs(new_level - old_level), len(before) + len(after) - 2
    squares = sum((value - old_level) ** 2 for value in before) + sum((value - new_level) ** 2 for value in after)
    noise = sqrt(squares / freedom)
    if noise <= 1e-9 * max(abs(old_level), abs(new_level), 1.0):  # the values of each side are all equal
        min_step = log(1 + _MIN_EXACT_STEP) if is_log else _MIN_EXACT_STEP * abs(old_level)
        return 0.0 if step > min_step else 1.0
    if step < (log(1 + LEAST_STEP) if is_log else _MIN_STEP_POINTS):
        return 1.0
    t_squared = step**2 / (noise**2 * (1 / len(before) + 1 / len(after)))
    return f_sf(t_squared, 1, freedom)
