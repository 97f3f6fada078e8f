"""A series of runs against the state that was accepted: what adds up where each run is only a little worse.

What may live here: the rule, as pure functions of one number for each run. A baseline of the last runs moves with what
it should notice: a rise of 0.3 % with each run is never far from the runs before, and a step that was not noticed at
once becomes the baseline. So a series is also compared with its first runs, which do not move. How often that is wrong,
and what it finds, is in docs/method/gate.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import sqrt
from statistics import fmean, median
from typing import NamedTuple

from pytest_cloudbench.judge.noise import Noise, allowance
from pytest_cloudbench.judge.significance import theil_sen

ANCHOR_RUNS = 20
"""The first runs that a series is compared with."""

_WINDOWS = (5, 10, 20)
"""How many of the last runs are compared with the first ones: a step shows in few of them, a slow rise needs many."""
_OPENS_SHARE = 0.75
"""A regression opens when the last runs are worse by this share of the margin."""
_OPENS_ERRORS, _CLOSES_ERRORS = 4.0, 3.0
"""How many standard errors make that sure, and make sure that it is gone."""
_RED_ERRORS = 2.33
"""A run that the gate has called broken opens a regression if it is worse by this many standard deviations, too: the
gate may have meant another metric, and 1 of 100 runs is worse by that much."""
_LEAST_ALIKE, _MOST_ALIKE, _ALIKE_BY_CHANCE = 0.3, 0.8, 0.15
"""Correlation of successive runs. Less than 0.3 is not assumed: that is what runs 75 s apart have. Of 20 runs it is
known to some 0.2 only, so that a little more may be chance."""
_MEDIAN_OF_CHI2 = 0.4549
"""Of one degree of freedom: makes the median of squared differences their mean, for normal values."""


@dataclass(frozen=True, slots=True)
class DriftState:
    """How a series stands after its last run.

    Attributes:
        is_open: it has become worse than the first runs, and it is not sure that this is gone.
        is_worse: the last runs, too, are worse by most of the margin.
        change: how much worse the last runs are than the first ones, in the measure of the values.
        since: the name of the run with which the regression opened, empty if that is the last one.
        slope, slope_low, slope_high: change from run to run by Theil and Sen, with its 95 % interval.
        runs: how many there are in all.
    """

    is_open: bool = False
    is_worse: bool = False
    change: float = 0.0
    since: str = ""
    slope: float = 0.0
    slope_low: float = 0.0
    slope_high: float = 0.0
    runs: int = 0


class _Standing(NamedTuple):
    """How a series stands after a run.

    Attributes:
        opening: the place of the run with which a regression opened that is open; None without.
        since: the place of the first run that can open one: neither the first runs, nor those of a regression that is
            gone, open another one.
    """

    opening: int | None = None
    since: int = ANCHOR_RUNS


class SeriesDrift:
    """Follows one series. Each run is looked at once, however often it is asked how the series stands.

    Args:
        margin: the rise that matters, in the measure of the values; larger values are worse.
        usual_starved: the share of the operations' time that threads waited for a CPU in the first runs, if known.
    """

    def __init__(self, margin: float, usual_starved: float | None = None) -> None:
        self._margin, self._usual_starved = margin, usual_starved
        self._values: list[float] = []
        self._names: list[str] = []
        self._standings: list[_Standing] = []  # after each run
        self._count: int | None = None

    def __len__(self) -> int:
        return len(self._values) if self._count is None else self._count

    def add(self, value: float, starved: float | None = None, name: str = "", *, was_broken: bool = False) -> None:
        """Take the next run.

        Args:
            value: of the run.
            starved: the share of its time that threads waited for a CPU, if known.
            name: of the run.
            was_broken: whether the gate called the run broken, in this metric or another.
        """
        value -= self._allowed(starved)
        self._standings.append(self._standing_after(value, was_broken=was_broken))
        self._values.append(value)
        self._names.append(name)

    def now(self) -> SeriesDrift:
        """Return the series as it is, which runs that are added later do not change."""
        earlier = SeriesDrift(self._margin, self._usual_starved)
        earlier._values, earlier._names, earlier._standings = self._values, self._names, self._standings
        earlier._count = len(self._values)
        return earlier

    def after(self, value: float, starved: float | None = None) -> DriftState:
        """Return how the series would stand after one more run, which is not taken."""
        value -= self._allowed(starved)
        opening = self._standing_after(value).opening
        if opening is None:
            return DriftState(runs=len(self) + 1)
        values = [*self._values[: len(self)], value]
        change, is_worse = self._change(values, opening)
        trend = theil_sen([list(enumerate(values))], is_seasonal=False)
        since = self._names[opening] if opening < len(self) else ""
        return DriftState(True, is_worse, change, since, trend.slope, trend.low, trend.high, len(values))

    def _allowed(self, starved: float | None) -> float:
        return 0.0 if starved is None or self._usual_starved is None else allowance(starved, self._usual_starved)

    @cached_property
    def _anchor(self) -> Noise:
        return Noise(tuple(self._values[:ANCHOR_RUNS]))

    def _change(self, values: Sequence[float], opening: int) -> tuple[float, bool]:
        """Return how much worse the runs since the opening are, and whether the last ones still are."""
        since = values[max(opening - _WINDOWS[0] + 1, len(values) - _WINDOWS[-1]) :]
        change = Noise(tuple(since)).middle - self._anchor.middle
        return change, median(values[-_WINDOWS[0] :]) - self._anchor.middle >= _OPENS_SHARE * self._margin

    def _standing_after(self, value: float, *, was_broken: bool = False) -> _Standing:
        count = len(self)
        if count < ANCHOR_RUNS:
            return _Standing()
        values = [*self._values[max(0, count - _WINDOWS[-1] + 1) : count], value]
        threshold, error, usual = _OPENS_SHARE * self._margin, self._error(values), self._anchor.middle
        opening, since = self._standings[count - 1]
        if opening is None:
            is_far = value - usual >= max(threshold, _RED_ERRORS * self._anchor.scale)
            if was_broken and is_far and count >= since:
                return _Standing(count, since)
            for window in (window for window in _WINDOWS if window <= count + 1 - since):
                rise = Noise(tuple(values[-window:])).middle - usual
                if rise >= threshold and rise > _OPENS_ERRORS * error * _of_runs(window):
                    return _Standing(count, since)
            return _Standing(None, since)
        for window in range(1, min(len(values), count + 1 - opening) + 1):
            if fmean(values[-window:]) - usual + _CLOSES_ERRORS * error * _of_runs(window) < threshold:
                return _Standing(None, count + 1 - window)
        return _Standing(opening, since)

    def _error(self, last: Sequence[float]) -> float:
        """Return the standard deviation between runs, made larger because successive runs are alike.

        The noise may have become larger since the first runs. Differences of successive runs tell, whatever the trend.
        """
        steps = [(after - before) ** 2 for before, after in pairwise(last)]
        recent = sqrt(median(steps) / _MEDIAN_OF_CHI2 / 2) if len(steps) >= _WINDOWS[0] else 0.0
        alike = min(_MOST_ALIKE, max(_LEAST_ALIKE, _correlation(self._anchor.values) - _ALIKE_BY_CHANCE))
        return max(self._anchor.spread, recent) * sqrt((1 + alike) / (1 - alike))


def _of_runs(count: int) -> float:
    """Return the factor of the standard error of so many runs against the first ones."""
    return sqrt(1 / count + 1 / ANCHOR_RUNS)


def _correlation(values: Sequence[float]) -> float:
    """Return the correlation of successive values."""
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    products = sum((one - middle) * (other - middle) for one, other in pairwise(values))
    return products / squares if squares else 0.0
