"""Shares of operations in a baseline and in a run: how unlikely a rise is, and how large a rise would be noticed.

What may live here: counts into probabilities and intervals, as pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

from pytest_cloudbench.judge.noise import outliers_of
from pytest_cloudbench.judge.significance import Z90, Z95, binomial_sf, hypergeometric_sf, wilson

LEAST_POINTS = 0.005
"""A rise by less than half a point is never called broken."""
_SURELY_FAR = 1e-6
"""A run is left out of a baseline if chance alone hardly ever makes so many or so few of its operations count."""
_MOST_OPS = 10_000_000
"""It is no use to advise more operations in a run than this."""

Count = tuple[int, int]
"""How many operations of how many."""


@dataclass(frozen=True)
class BaselineRates:
    """Counts of the runs of a baseline.

    Attributes:
        counts: of each run.
        clump: the most operations that one cause can affect at a time.
        assumed_dispersion: see ``dispersion``; None to find it in the counts.
    """

    counts: tuple[Count, ...]
    clump: int = 1
    assumed_dispersion: float | None = None

    @cached_property
    def left_out(self) -> frozenset[int]:
        """Return the places of runs that do not count: far from the others, by more than chance explains."""
        far = outliers_of([count / of for count, of in self.counts])
        kept = [pair for index, pair in enumerate(self.counts) if index not in far]
        count, of = _pooled(kept)
        return frozenset(index for index in far if self._tail(*self.counts[index], count, of) < _SURELY_FAR)

    def _tail(self, count: int, of: int, others: int, of_others: int) -> float:
        if count * of_others < others * of:  # fewer than usual: look at those that do not count
            count, others = of - count, of_others - others
        return hypergeometric_sf(count // self.clump, max(1, of // self.clump), (count + others) // self.clump,
                                 max(1, (of + of_others) // self.clump))  # fmt: skip

    @cached_property
    def _kept(self) -> list[Count]:
        return [pair for index, pair in enumerate(self.counts) if index not in self.left_out]

    @cached_property
    def pooled(self) -> Count:
        """Return the counts of all runs that count, together."""
        return _pooled(self._kept)

    @cached_property
    def share(self) -> float:
        """Return the share of operations in the baseline."""
        count, of = self.pooled
        return count / of if of else 0.0

    @cached_property
    def dispersion(self) -> float:
        """Return how many times as much the runs differ as independent operations would, at least ``clump``."""
        share = self.share
        if self.assumed_dispersion is not None:
            return self.assumed_dispersion
        if not 0 < share < 1 or len(self._kept) < 2:
            return float(self.clump)
        chi2 = sum((count - of * share) ** 2 / (of * share * (1 - share)) for count, of in self._kept)
        return max(float(self.clump), chi2 / (len(self._kept) - 1))

    def change(self, readings: Sequence[Count]) -> float:
        """Return how far the share of some runs, together, is above the baseline's."""
        count, of = _pooled(readings)
        return (count / of if of else 0.0) - self.share

    def p_value(self, readings: Sequence[Count]) -> float:
        """Return the probability of so large a share in some runs, together, by Fisher's exact test."""
        count, of = _pooled(readings)
        return self._p_value(floor(count / self.dispersion), ceil(of / self.dispersion))

    def _p_value(self, count: int, of: int) -> float:
        marked, whole = (ceil(number / self.dispersion) for number in self.pooled)
        return hypergeometric_sf(count, of, count + marked, of + whole)

    def upper(self, readings: Sequence[Count]) -> float:
        """Return the one-sided 95 % bound of the change."""
        return self._newcombe(readings, Z90)[1]

    def interval(self, readings: Sequence[Count]) -> tuple[float, float]:
        """Return the 95 % interval of the change."""
        return self._newcombe(readings, Z95)

    def _newcombe(self, readings: Sequence[Count], z: float) -> tuple[float, float]:
        """Newcombe's interval of a difference of shares (1998, method 10), from Wilson's of both."""
        count, of = _pooled(readings)
        share = count / of if of else 0.0
        low, high = wilson(share, of / self.dispersion, z)
        their_low, their_high = wilson(self.share, self.pooled[1] / self.dispersion, z)
        change = share - self.share
        return (
            change - sqrt((share - low) ** 2 + (their_high - self.share) ** 2),
            change + sqrt((high - share) ** 2 + (self.share - their_low) ** 2),
        )

    def detects(self, ops: int, alpha: float) -> float | None:
        """Return the smallest rise that so many operations would show in 9 of 10 cases; None if none would."""
        of = ceil(ops / self.dispersion)
        if not of:
            return None
        low, high = ceil(of * self.share), of + 1
        while low < high:  # the first count that is significant
            middle = (low + high) // 2
            low, high = (low, middle) if self._p_value(middle, of) < alpha else (middle + 1, high)
        if low > of:
            return None
        below, above = self.share, 1.0
        for _ in range(30):
            share = (below + above) / 2
            below, above = (below, share) if binomial_sf(low, of, share) >= 0.9 else (share, above)
        return max(above - self.share, LEAST_POINTS)


def operations_needed(
    rates: BaselineRates, ops: int, runs: int, margin: float, alpha: float, repeats: int
) -> int | None:
    """Return how many operations in each run would tell a rise by the margin, to within a twentieth; None if none.

    Args:
        rates: of the baseline as it is.
        ops: operations in a run as it is.
        runs: how many a baseline will have.
        margin: the rise.
        alpha: the probability of a false alarm.
        repeats: runs that are judged together.
    """
    if not ops:
        return None
    differs = max(0.0, rates.dispersion / rates.clump - 1)  # operations of a run that are alike do not make up for it

    def would_do(more: int) -> bool:
        run = round(rates.share * more), more
        imagined = BaselineRates((run,) * runs, rates.clump, rates.clump * (1 + differs * more / ops))
        change = imagined.detects(repeats * more, alpha)
        return change is not None and change <= margin and imagined.upper([run]) < margin

    return _smallest(would_do, ops)


def _smallest(would_do: Callable[[int], bool], start: int) -> int | None:
    few, enough = 0, start
    while not would_do(enough):
        few, enough = enough, enough * 2
        if enough > _MOST_OPS:
            return None
    while enough - few > enough // 20:
        middle = (few + enough + 1) // 2
        few, enough = (few, middle) if would_do(middle) else (middle, enough)
    return enough


def _pooled(counts: Sequence[Count]) -> Count:
    return sum(count for count, _ in counts), sum(of for _, of in counts)
