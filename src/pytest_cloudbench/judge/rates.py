"""Shares of operations in a baseline and in a run: how unlikely a rise is, and the smallest rise that would be noticed.

Counts become probabilities and intervals, as pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

from pytest_cloudbench.judge.noise import outliers_of
from pytest_cloudbench.judge.significance import Z90, Z95, binomial_sf, hypergeometric_sf, wilson

LEAST_POINTS = 0.005
"""The smallest rise that can be called broken: half a point."""
_OUTLIER_P_VALUE = 1e-6
"""A run is left out of a baseline if the probability by chance of such a count in it is smaller."""
_MAX_OPS = 10_000_000
"""The most operations in a run that make useful advice."""

Count = tuple[int, int]
"""The operations that count, and all operations."""


@dataclass(frozen=True)
class BaselineRates:
    """The counts of the runs of a baseline.

    Attributes:
        counts: the count of each run.
        cluster_ops: the most operations that one cause can affect at a time.
        assumed_dispersion: see ``dispersion``. None to estimate it from the counts.
    """

    counts: tuple[Count, ...]
    cluster_ops: int = 1
    assumed_dispersion: float | None = None

    @cached_property
    def left_out(self) -> frozenset[int]:
        """The indices of runs that are left out: far from the others, by more than chance explains."""
        far = outliers_of([count / total for count, total in self.counts])
        others = [pair for index, pair in enumerate(self.counts) if index not in far]
        count, total = _add_counts(others)
        return frozenset(
            index for index in far if self._tail_p_value(*self.counts[index], count, total) < _OUTLIER_P_VALUE
        )

    def _tail_p_value(self, count: int, total: int, other_count: int, other_total: int) -> float:
        # Fewer than usual: test the operations that do not count instead.
        if count * other_total < other_count * total:
            count, other_count = total - count, other_total - other_count
        clusters, all_clusters = max(1, total // self.cluster_ops), max(1, (total + other_total) // self.cluster_ops)
        return hypergeometric_sf(
            count // self.cluster_ops, clusters, (count + other_count) // self.cluster_ops, all_clusters
        )

    @cached_property
    def _kept(self) -> list[Count]:
        return [pair for index, pair in enumerate(self.counts) if index not in self.left_out]

    @cached_property
    def pooled(self) -> Count:
        """The sum of the counts of all runs that are not left out."""
        return _add_counts(self._kept)

    @cached_property
    def share(self) -> float:
        """The share of operations in the baseline."""
        count, total = self.pooled
        return count / total if total else 0.0

    @cached_property
    def dispersion(self) -> float:
        """The ratio of the variance between runs to that of independent operations, at least ``cluster_ops``."""
        share = self.share
        if self.assumed_dispersion is not None:
            return self.assumed_dispersion
        if not 0 < share < 1 or len(self._kept) < 2:
            return float(self.cluster_ops)
        chi2 = sum((count - total * share) ** 2 / (total * share * (1 - share)) for count, total in self._kept)
        return max(float(self.cluster_ops), chi2 / (len(self._kept) - 1))

    def change(self, readings: Sequence[Count]) -> float:
        """Return how far the joint share of some runs is above the baseline's."""
        count, total = _add_counts(readings)
        return (count / total if total else 0.0) - self.share

    def p_value(self, readings: Sequence[Count]) -> float:
        """Return the probability that some runs have such a joint share or a larger one, by Fisher's exact test."""
        count, total = _add_counts(readings)
        return self._p_value(floor(count / self.dispersion), ceil(total / self.dispersion))

    def _p_value(self, count: int, total: int) -> float:
        former_count, former_total = (ceil(number / self.dispersion) for number in self.pooled)
        return hypergeometric_sf(count, total, count + former_count, total + former_total)

    def upper(self, readings: Sequence[Count]) -> float:
        """Return the one-sided 95 % bound of the change."""
        return self._newcombe(readings, Z90)[1]

    def interval(self, readings: Sequence[Count]) -> tuple[float, float]:
        """Return the 95 % interval of the change."""
        return self._newcombe(readings, Z95)

    def _newcombe(self, readings: Sequence[Count], z: float) -> tuple[float, float]:
        """Return Newcombe's interval of a difference of shares (1998, method 10), from Wilson's of both."""
        count, total = _add_counts(readings)
        share = count / total if total else 0.0
        low, high = wilson(share, total / self.dispersion, z)
        former_low, former_high = wilson(self.share, self.pooled[1] / self.dispersion, z)
        change = share - self.share
        return (
            change - sqrt((share - low) ** 2 + (former_high - self.share) ** 2),
            change + sqrt((high - share) ** 2 + (self.share - former_low) ** 2),
        )

    def detects(self, ops: int, alpha: float) -> float | None:
        """Return the smallest rise that this many operations would show in 9 of 10 cases. None if none would."""
        total = ceil(ops / self.dispersion)
        if not total:
            return None
        low, high = ceil(total * self.share), total + 1
        while low < high:  # bisection for the smallest significant count
            middle = (low + high) // 2
            low, high = (low, middle) if self._p_value(middle, total) < alpha else (middle + 1, high)
        if low > total:
            return None
        low_share, high_share = self.share, 1.0
        for _ in range(30):
            share = (low_share + high_share) / 2
            low_share, high_share = (low_share, share) if binomial_sf(low, total, share) >= 0.9 else (share, high_share)
        return max(high_share - self.share, LEAST_POINTS)


def operations_needed(
    rates: BaselineRates, ops: int, runs: int, margin: float, alpha: float, repeats: int
) -> int | None:
    """Return how many operations in each run would show a rise by the margin, to within a twentieth.

    Args:
        rates: the current baseline.
        ops: the operations in a current run.
        runs: the number of runs in the future baseline.
        margin: the rise.
        alpha: the probability of a false alarm.
        repeats: the number of runs that are judged together.

    Returns None if no useful number is enough.
    """
    if not ops:
        return None
    # The part of the dispersion between runs, which more operations in a run do not reduce.
    between_runs = max(0.0, rates.dispersion / rates.cluster_ops - 1)

    def is_enough(count: int) -> bool:
        run = round(rates.share * count), count
        imagined = BaselineRates((run,) * runs, rates.cluster_ops, rates.cluster_ops * (1 + between_runs * count / ops))
        change = imagined.detects(repeats * count, alpha)
        return change is not None and change <= margin and imagined.upper([run]) < margin

    return _smallest_enough(is_enough, ops)


def _smallest_enough(is_enough: Callable[[int], bool], start: int) -> int | None:
    low, high = 0, start
    while not is_enough(high):
        low, high = high, high * 2
        if high > _MAX_OPS:
            return None
    while high - low > max(1, high // 20):
        middle = (low + high + 1) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _add_counts(counts: Sequence[Count]) -> Count:
    return sum(count for count, _ in counts), sum(total for _, total in counts)
