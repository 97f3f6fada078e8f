"""A series of runs against the state that was accepted: what adds up where each run is only a little worse.

What may live here: the rule, as pure functions of one number for each run. A baseline of the last runs moves with what
it should notice: a rise of 0.3 % with each run is never far from the runs before, and a step that was not noticed at
once becomes the baseline. So a series is also compared with its first runs, which do not move. How often that is wrong,
and what it finds, is in docs/method/gate.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
_GAIN_SHARE = 0.5
"""Runs that are better by this share of the margin are what later ones are compared with."""
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


class _Run(NamedTuple):
    """What is known of a run: its value, the share of its time that threads waited for a CPU, and its name."""

    value: float
    starved: float | None = None
    name: str = ""


class _Standing(NamedTuple):
    """How a series stands after a run.

    Attributes:
        opening: the place of the run with which a regression opened that is open; None without.
        since: the place of the first run that can open one: neither the first runs, nor those of a regression that is
            gone, open another one.
        anchor: the place of the first of the runs that it is compared with.
    """

    opening: int | None = None
    since: int = ANCHOR_RUNS
    anchor: int = 0


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The runs that a series is compared with.

    Attributes:
        noise: of their values.
        usual: the middle of their values.
        usual_starved: the share of the operations' time that threads waited for a CPU in them, if that is known.
    """

    noise: Noise
    usual: float
    usual_starved: float | None


class SeriesDrift:
    """Follows one series. Each run is looked at once, however often it is asked how the series stands.

    It is compared with its first runs. If it becomes better and stays so, the first runs that are better take their
    place: what was gained may not be lost again. Less than half the margin moves nothing, so that no up and down does.

    Args:
        margin: the rise that matters, in the measure of the values; larger values are worse.
        is_rate: whether the values are shares of operations. A service's incidents are many failures in few runs, so
            that only what more than half of the last runs have can open a regression.
    """

    def __init__(self, margin: float, *, is_rate: bool = False) -> None:
        self._margin, self._is_rate = margin, is_rate
        self._runs: list[_Run] = []
        self._standings: list[_Standing] = []  # after each run
        self._anchors: dict[int, _Anchor] = {}
        self._count: int | None = None

    def __len__(self) -> int:
        return len(self._runs) if self._count is None else self._count

    def add(self, value: float, starved: float | None = None, name: str = "", *, was_broken: bool = False) -> None:
        """Take the next run.

        Args:
            value: of the run.
            starved: the share of its time that threads waited for a CPU, if known.
            name: of the run.
            was_broken: whether the gate called the run broken, in this metric or another.
        """
        run = _Run(value, starved, name)
        self._standings.append(self._standing_after(run, was_broken=was_broken))
        self._runs.append(run)

    def now(self) -> SeriesDrift:
        """Return the series as it is, which runs that are added later do not change."""
        earlier = SeriesDrift(self._margin, is_rate=self._is_rate)
        earlier._runs, earlier._standings, earlier._anchors = self._runs, self._standings, self._anchors
        earlier._count = len(self._runs)
        return earlier

    def after(self, value: float, starved: float | None = None) -> DriftState:
        """Return how the series would stand after one more run, which is not taken."""
        run = _Run(value, starved)
        opening, _, place = self._standing_after(run)
        if opening is None:
            return DriftState(runs=len(self) + 1)
        anchor = self._anchor_at(place)
        values = [_cleaned(each, anchor.usual_starved) for each in (*self._runs[place : len(self)], run)]
        change, is_worse = self._change(values, opening - place, anchor)
        trend = theil_sen([list(enumerate(values))], is_seasonal=False)
        since = self._runs[opening].name if opening < len(self) else ""
        return DriftState(True, is_worse, change, since, trend.slope, trend.low, trend.high, len(values))

    def _anchor_at(self, place: int) -> _Anchor:
        anchor = self._anchors.get(place)
        if anchor is None:
            runs = self._runs[place : place + ANCHOR_RUNS]
            shares = [run.starved for run in runs if run.starved is not None]
            usual_starved = median(shares) if len(shares) == len(runs) else None
            noise = Noise(tuple(_cleaned(run, usual_starved) for run in runs))
            anchor = self._anchors[place] = _Anchor(noise, self._middle_of(noise.values), usual_starved)
        return anchor

    def _middle_of(self, values: Sequence[float]) -> float:
        return median(values) if self._is_rate else Noise(tuple(values)).middle

    def _change(self, values: Sequence[float], opening: int, anchor: _Anchor) -> tuple[float, bool]:
        """Return how much worse the runs since the opening are, and whether the last ones still are."""
        since = values[max(opening - _WINDOWS[0] + 1, len(values) - _WINDOWS[-1]) :]
        is_worse = median(values[-_WINDOWS[0] :]) - anchor.usual >= _OPENS_SHARE * self._margin
        return self._middle_of(since) - anchor.usual, is_worse

    def _standing_after(self, run: _Run, *, was_broken: bool = False) -> _Standing:
        count = len(self)
        if count < ANCHOR_RUNS:
            return _Standing()
        opening, since, place = self._standings[count - 1]
        anchor = self._anchor_at(place)
        last = (*self._runs[max(0, count - _WINDOWS[-1] + 1) : count], run)
        values = [_cleaned(each, anchor.usual_starved) for each in last]
        threshold, gain, usual = _OPENS_SHARE * self._margin, _GAIN_SHARE * self._margin, anchor.usual
        if opening is None and max(values) < usual + threshold and min(values) > usual - gain:
            return _Standing(None, since, place)  # as nearly always, and without the work that follows
        error = self._error(values, anchor.noise)
        if opening is None:
            is_far = values[-1] - usual >= max(threshold, _RED_ERRORS * anchor.noise.scale)
            if was_broken and is_far and count >= since:
                return _Standing(count, since, place)
            for window in (window for window in _WINDOWS if window <= count + 1 - since):
                rise = self._middle_of(values[-window:]) - usual
                if rise >= threshold and rise > _OPENS_ERRORS * error * _of_runs(window):
                    return _Standing(count, since, place)
            if count + 1 - ANCHOR_RUNS >= since:
                # Also the first of them are better: a mixture of old and new runs is no state.
                least = usual - max(gain, _OPENS_ERRORS * error * _of_runs(ANCHOR_RUNS))
                if max(map(self._middle_of, (values, values[: _WINDOWS[0]]))) <= least:
                    return _Standing(None, count + 1, count + 1 - ANCHOR_RUNS)
            return _Standing(None, since, place)
        for window in range(1, min(len(values), count + 1 - opening) + 1):
            if self._middle_of_last(values, window) - usual + _CLOSES_ERRORS * error * _of_runs(window) < threshold:
                return _Standing(None, count + 1 - window, place)
        return _Standing(opening, since, place)

    def _middle_of_last(self, values: Sequence[float], window: int) -> float:
        return median(values[-window:]) if self._is_rate else fmean(values[-window:])

    @staticmethod
    def _error(last: Sequence[float], anchor: Noise) -> float:
        """Return the standard deviation between runs, made larger because successive runs are alike.

        The noise may have become larger since the first runs. Differences of successive runs tell, whatever the trend.
        """
        steps = [(after - before) ** 2 for before, after in pairwise(last)]
        recent = sqrt(median(steps) / _MEDIAN_OF_CHI2 / 2) if len(steps) >= _WINDOWS[0] else 0.0
        alike = min(_MOST_ALIKE, max(_LEAST_ALIKE, _correlation(anchor.values) - _ALIKE_BY_CHANCE))
        return max(anchor.spread, recent) * sqrt((1 + alike) / (1 - alike))


def _cleaned(run: _Run, usual_starved: float | None) -> float:
    """Return a run's value, less what waiting for a CPU explains if there was more than usual."""
    if run.starved is None or usual_starved is None:
        return run.value
    return run.value - allowance(run.starved, usual_starved)


def _of_runs(count: int) -> float:
    """Return the factor of the standard error of so many runs against the first ones."""
    return sqrt(1 / count + 1 / ANCHOR_RUNS)


def _correlation(values: Sequence[float]) -> float:
    """Return the correlation of successive values."""
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    products = sum((one - middle) * (other - middle) for one, other in pairwise(values))
    return products / squares if squares else 0.0
