"""The noise between the runs of a baseline: their mean, their spread, and how unlikely a further run is.

The estimate must not move with two bad runs of twenty, and must lose no precision without bad runs. So runs that lie
far from the others are left out, and the others give mean and standard deviation. For normal runs this has 98 % of the
efficiency of mean and standard deviation alone. Median and Qn, Huber's estimator and others that were compared by
simulation find fewer changes at the same rate of false alarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import expm1, inf, isfinite, isinf, log1p, sqrt
from statistics import fmean, median

from pytest_cloudbench.judge.significance import t_isf, t_sf

LEAST_SPREAD = 0.005
"""The smallest assumed standard deviation of the logarithms of runs: half a percent."""

_RUNS_PER_OUTLIER = 5
"""At most one run of five is left out."""
_OUTLIER_QN = 4.0
"""A run is left out if it is further from the median than this many Qn. In 0.3 % of cases, one of 20 normal runs is."""

_SELECTION_FREEDOM = 1.5
"""Degrees of freedom that the selection of outliers costs, in addition to that of the mean.

By simulation: with it, no tail from 5 % to 0.025 % of 10 to 100 normal runs is more than 2 % too large."""

MAX_EXPLAINED = 0.999
"""The largest share of waiting that explains anything: a logarithm needs less than 1."""

_MAX_LOG = 709.0
"""The largest whole logarithm whose number a float can hold."""

_QN = 2.21914
"""The factor that makes Qn the standard deviation of normal values: 1 / (sqrt(2) * z), where 5/8 of the standard normal
distribution lies below z. Rousseeuw and Croux (1993) print 2.2219, which is a misprint."""


@dataclass(frozen=True)
class Noise:
    """The noise between the runs of a baseline.

    Attributes:
        values: the value of each run, in their order. Larger is worse.
        least_spread: the smallest standard deviation to assume.
    """

    values: tuple[float, ...]
    least_spread: float = LEAST_SPREAD

    @cached_property
    def left_out(self) -> frozenset[int]:
        """The indices of the runs that are left out."""
        return outliers_of(self.values)

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """The values of the runs that count."""
        return tuple(value for index, value in enumerate(self.values) if index not in self.left_out)

    @cached_property
    def middle(self) -> float:
        """The mean of the runs that count."""
        return fmean(self.kept)

    @cached_property
    def spread(self) -> float:
        """The standard deviation between runs."""
        squares = sum((value - self.middle) ** 2 for value in self.kept)
        return max(sqrt(squares / (len(self.kept) - 1)), self.least_spread)

    @cached_property
    def scale(self) -> float:
        """The standard deviation of one further run around the mean."""
        return self.spread * sqrt(1 + 1 / len(self.kept))

    @property
    def freedom(self) -> float:
        """The degrees of freedom of Student's t for one further run."""
        return len(self.kept) - 1 - _SELECTION_FREEDOM

    def p_value(self, value: float) -> float:
        """Return the probability of a further run that is as bad or worse, if nothing has changed."""
        return t_sf((value - self.middle) / self.scale, self.freedom) if isfinite(value) else 0.0

    def reach(self, alpha: float) -> float:
        """Return the distance above the mean that an unchanged further run exceeds with this probability."""
        return t_quantile(alpha, self.freedom) * self.scale


t_quantile = lru_cache(maxsize=256)(t_isf)


def outliers_of(values: Sequence[float]) -> frozenset[int]:
    """Return the indices of values that lie far from the others, at most a fifth of all."""
    max_count = len(values) // _RUNS_PER_OUTLIER
    if not max_count:
        return frozenset()
    middle, spread = median(values), qn(values)
    far = [index for index, value in enumerate(values) if abs(value - middle) > _OUTLIER_QN * spread]
    return frozenset(sorted(far, key=lambda index: -abs(values[index] - middle))[:max_count])


def qn(values: Sequence[float]) -> float:
    """Return Rousseeuw and Croux's Qn: a spread that half of the values cannot move.

    It is the standard deviation for normal values, from the smallest quarter of all distances between two values.
    """
    count = len(values)
    if count < 2:
        return inf
    distances = sorted(abs(one - other) for index, one in enumerate(values) for other in values[:index])
    half = count // 2 + 1
    return _QN * distances[half * (half - 1) // 2 - 1]


def clip_points(change: float) -> float:
    """Return a change of a share, or a limit of it, without what no share can change by. Infinity means unknown."""
    return change if isinf(change) else max(-1.0, min(change, 1.0))


def share_of_log(change: float) -> float:
    """Return a change of a logarithm as a share: 0.1 is 10 % more. Infinite if no float can hold it."""
    return inf if change > _MAX_LOG else expm1(change)


def allowance(starved: float, usual: float) -> float:
    """Return how much larger a time's logarithm may be because threads waited more for a CPU than usual.

    A small excess counts by half, because quiet operations have waited less than the others. A large one counts almost
    fully.

    Args:
        starved: the share of the operations' time that threads waited for a CPU.
        usual: the same share in former runs.
    """
    excess = min(max(0.0, starved - usual), MAX_EXPLAINED)
    return -log1p(-excess) - excess / 2
