"""The drift of a series of runs from the state that was accepted, where each run is only a little worse.

A baseline of the last runs moves along with a slow change: a rise of 0.3 % with each run is never far from the runs
before, and a step that was not noticed at once becomes the baseline. So a series is also compared with its first runs,
which do not move. docs/method/gate.md says how often that is wrong, and what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from statistics import fmean, median, median_low
from typing import NamedTuple

from pytest_cloudbench.judge.noise import Noise, allowance
from pytest_cloudbench.judge.significance import theil_sen

ANCHOR_RUNS = 20
"""The first runs that a series is compared with."""

_WINDOWS = (5, 10, 20)
"""Numbers of last runs that are compared with the first ones. A step shows in few of them, a slow rise needs many."""
_OPENS_SHARE = 0.75
"""A regression opens when the last runs are worse by this share of the margin."""
_GAIN_SHARE = 0.5
"""Runs that are better by this share of the margin become those that later runs are compared with."""
_OPENS_ERRORS, _CLOSES_ERRORS = 4.0, 3.0
"""The standard errors that a regression must exceed to open, and to close."""
_RED_ERRORS = 2.33
"""A run that the gate has called broken opens a regression if it is worse by this many standard deviations, too: the
gate may have meant another metric, and 1 of 100 runs is worse by that much."""
_LEAST_ALIKE, _MOST_ALIKE, _ALIKE_BY_CHANCE = 0.3, 0.8, 0.15
"""Limits of the assumed correlation of successive runs, and the part of an estimate that may be chance. Runs 75 s apart
have a correlation of 0.3. From 20 runs it is known to some 0.2 only."""
_MEDIAN_OF_CHI2 = 0.4549
"""The median of chi-square with one degree of freedom. Dividing by it turns the median of squares of normal values
into their mean."""


@dataclass(frozen=True, slots=True)
class DriftState:
    """The state of a series after its last run.

    Attributes:
        is_open: the series has become worse than its first runs, and has not surely recovered.
        is_worse: the last runs, too, are worse by most of the margin.
        change: the rise of the last runs over the first ones, in the measure of the values.
        since: the name of the run with which the regression opened, or empty if that is the last one.
        slope, slope_low, slope_high: the change from run to run by Theil and Sen, with its 95 % interval.
        runs: the number of all runs.
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
    """A run: its value, the share of its time that threads waited for a CPU if known, and its name."""

    value: float
    starved: float | None = None
    name: str = ""


class _Position(NamedTuple):
    """The indexes of the runs that matter, after a run.

    Attributes:
        opening: index of the run with which the open regression opened, or None if none is open.
        earliest: index of the first run that can open one. Neither the first runs, nor those of a regression that is
            gone, open another one.
        anchor: index of the first of the runs that the series is compared with.
        first_bad: index of the first run of the open regression: the broken run that opened it alone, or the first of
            the last runs that opened it together.
    """

    opening: int | None = None
    earliest: int = ANCHOR_RUNS
    anchor: int = 0
    first_bad: int = 0


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The runs that a series is compared with.

    Attributes:
        noise: the noise of their values.
        middle: the middle of their values.
        starved: the share of the operations' time that threads waited for a CPU in them, if known.
    """

    noise: Noise
    middle: float
    starved: float | None


class SeriesDrift:
    """Follows one series. Each run is examined once, however often the state of the series is asked for.

    The series is compared with its first runs. If it becomes better and stays so, the first runs that are better take
    their place, so that a gain may not be lost again. A gain of less than half the margin moves nothing, or a series
    that goes up and down would move the anchor.

    Args:
        margin: the rise that matters, in the measure of the values. Larger values are worse.
        is_rate: True if the values are shares of operations. A service's incidents are many failures in few runs, so
            that a regression opens only for a rise that more than half of the last runs have.
    """

    def __init__(self, margin: float, *, is_rate: bool = False) -> None:
        self._margin, self._is_rate = margin, is_rate
        self._runs: list[_Run] = []
        self._positions: list[_Position] = []  # after each run
        self._anchors: dict[int, _Anchor] = {}
        self._count: int | None = None

    def __len__(self) -> int:
        return len(self._runs) if self._count is None else self._count

    def add(self, value: float, starved: float | None = None, name: str = "", *, was_broken: bool = False) -> None:
        """Add the next run.

        Args:
            value: the run's value.
            starved: the share of its time that threads waited for a CPU, if known.
            name: the run's name.
            was_broken: True if the gate called the run broken, in this metric or another.
        """
        run = _Run(value, starved, name)
        self._positions.append(self._position_after(run, was_broken=was_broken))
        self._runs.append(run)

    def snapshot(self) -> SeriesDrift:
        """Return a copy of the series that runs added later do not change."""
        copy = SeriesDrift(self._margin, is_rate=self._is_rate)
        copy._runs, copy._positions, copy._anchors = self._runs, self._positions, self._anchors
        copy._count = len(self._runs)
        return copy

    def preview(self, value: float, starved: float | None = None) -> DriftState:
        """Return the state that one more run would give, without adding it."""
        run = _Run(value, starved)
        opening, _, start, first_bad = self._position_after(run)
        if opening is None:
            return DriftState(runs=len(self) + 1)
        anchor = self._anchor_at(start)
        runs = (*self._runs[start : len(self)], run)
        values = [_subtract_starvation(past_run, anchor.starved) for past_run in runs]
        change, is_worse = self._change(values, first_bad - start, anchor)
        trend = theil_sen([list(enumerate(values))], is_seasonal=False)
        since = self._runs[opening].name if opening < len(self) else ""
        return DriftState(True, is_worse, change, since, trend.slope, trend.low, trend.high, len(values))

    def _anchor_at(self, start: int) -> _Anchor:
        anchor = self._anchors.get(start)
        if anchor is None:
            runs = self._runs[start : start + ANCHOR_RUNS]
            shares = [run.starved for run in runs if run.starved is not None]
            starved = median(shares) if len(shares) == len(runs) else None
            noise = Noise(tuple(_subtract_starvation(run, starved) for run in runs))
            anchor = self._anchors[start] = _Anchor(noise, self._middle_of(noise.values), starved)
        return anchor

    def _middle_of(self, values: Sequence[float]) -> float:
        return median(values) if self._is_rate else Noise(tuple(values)).middle

    def _change(self, values: Sequence[float], first_bad: int, anchor: _Anchor) -> tuple[float, bool]:
        """Return the rise of the runs of a regression, and whether most of the last ones are still worse."""
        bad_values = values[max(first_bad, len(values) - _WINDOWS[-1]) :]
        is_worse = median_low(bad_values[-_WINDOWS[0] :]) - anchor.middle >= _OPENS_SHARE * self._margin
        return self._middle_of(bad_values) - anchor.middle, is_worse

    def _position_after(self, run: _Run, *, was_broken: bool = False) -> _Position:
        """Return where a series stands after one more run: which regression is open, and what it is compared with."""
        count = len(self)
        if count < ANCHOR_RUNS:
            return _Position()
        position = self._positions[count - 1]
        opening, earliest, start, _ = position
        anchor = self._anchor_at(start)
        last_runs = (*self._runs[max(0, count - _WINDOWS[-1] + 1) : count], run)
        values = [_subtract_starvation(last_run, anchor.starved) for last_run in last_runs]
        threshold, gain, middle = _OPENS_SHARE * self._margin, _GAIN_SHARE * self._margin, anchor.middle
        if opening is None and max(values) < middle + threshold and min(values) > middle - gain:
            return position  # the usual case, without the work below
        error = self._error(values, anchor.noise)
        if opening is None:
            is_far = values[-1] - middle >= max(threshold, _RED_ERRORS * anchor.noise.scale)
            if was_broken and is_far and count >= earliest:
                return _Position(count, earliest, start, count)
            for window in (window for window in _WINDOWS if window <= count + 1 - earliest):
                rise = self._middle_of(values[-window:]) - middle
                if rise >= threshold and rise > _OPENS_ERRORS * error * _error_factor(window):
                    return _Position(count, earliest, start, count + 1 - _WINDOWS[0])
            if count + 1 - ANCHOR_RUNS >= earliest:
                # The first of these runs must be better, too, because a mixture of old and new runs is no new state.
                highest = middle - max(gain, _OPENS_ERRORS * error * _error_factor(ANCHOR_RUNS))
                if max(map(self._middle_of, (values, values[: _WINDOWS[0]]))) <= highest:
                    return _Position(None, count + 1, count + 1 - ANCHOR_RUNS)
            return position
        for window in range(1, min(len(values), count + 1 - opening) + 1):
            rise = self._middle_of_last(values, window) - middle
            if rise + _CLOSES_ERRORS * error * _error_factor(window) < threshold:
                return _Position(None, count + 1 - window, start)
        return position

    def _middle_of_last(self, values: Sequence[float], window: int) -> float:
        return median(values[-window:]) if self._is_rate else fmean(values[-window:])

    @staticmethod
    def _error(values: Sequence[float], anchor: Noise) -> float:
        """Return the standard deviation between runs, made larger because successive runs are alike.

        The noise may have become larger since the first runs. Differences of successive runs show it in any trend.
        """
        steps = [(after - before) ** 2 for before, after in pairwise(values)]
        recent = sqrt(median(steps) / _MEDIAN_OF_CHI2 / 2) if len(steps) >= _WINDOWS[0] else 0.0
        correlation = min(_MOST_ALIKE, max(_LEAST_ALIKE, _correlation(anchor.values) - _ALIKE_BY_CHANCE))
        return max(anchor.spread, recent) * sqrt((1 + correlation) / (1 - correlation))


def _subtract_starvation(run: _Run, anchor_starved: float | None) -> float:
    """Return a run's value, less the part that waiting for a CPU for longer than the anchor's runs explains."""
    if run.starved is None or anchor_starved is None:
        return run.value
    return run.value - allowance(run.starved, anchor_starved)


def _error_factor(count: int) -> float:
    """Return the standard error of ``count`` runs against the anchor's runs, in standard deviations between runs."""
    return sqrt(1 / count + 1 / ANCHOR_RUNS)


def _correlation(values: Sequence[float]) -> float:
    """Return the correlation of successive values."""
    middle = fmean(values)
    squares = sum((value - middle) ** 2 for value in values)
    products = sum((earlier - middle) * (later - middle) for earlier, later in pairwise(values))
    return products / squares if squares else 0.0
