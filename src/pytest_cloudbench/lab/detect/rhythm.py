"""Whether events are periodic.

What may live here: event times in, a verdict about their period out.

A period is found when an event occurs at nearly every tick of a clock with that period. Two bursts per tick, or single
events between ticks, do not hide it; random events do not produce one, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import median

from pytest_cloudbench.lab.detect.values import Answer
from pytest_cloudbench.model import UsageError

LEAST_BEATS = 4
"""Ticks that make a period; a longer one than a third of the time is not looked for."""

_REACH = 0.2
"""How far from a tick a time may be, as a share of the period. A clock that waits after each answer drifts; each tick
counts from the one before."""
_ALWAYS, _OFTEN = 0.8, 0.5
"""Shares of ticks with an event: enough for yes, and too many for no."""
_CHANCE = 0.01
_LEAST_SCATTER = 0.005
_NEIGHBOURS = 8
_STEP = 1.03
"""Periods closer than this are tried as one."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Whether times have a period.

    Attributes:
        answer: ``no`` holds up to ``longest_s`` only.
        period_s: for yes.
        scatter_s: for yes: the median deviation from the time expected after the previous tick.
        beats: how many ticks had an event.
        longest_s: the longest period that this observation could have shown.
        evidence: what was seen, in sentences.
        first_s, last_s: for yes: the first and the last of the beats; whole periods lie between them.
    """

    answer: Answer
    period_s: float | None
    scatter_s: float | None
    beats: int
    longest_s: float
    evidence: tuple[str, ...]
    first_s: float | None = None
    last_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Chain:
    """One clock, followed from tick to tick."""

    period_s: float
    hits_s: tuple[float, ...]
    ticks: int
    scatters_s: tuple[float, ...]

    @property
    def coverage(self) -> float:
        return len(self.hits_s) / self.ticks

    def chance(self, rate_per_s: float, tries: int) -> float:
        """An upper bound on the probability of this pattern in random times (Chernoff, with Bonferroni)."""
        free, hits = self.ticks - 2, len(self.hits_s) - 2  # two of the times defined the period
        if free < 1 or hits < 1:
            return 1.0
        reach_s = max(*self.scatters_s, _LEAST_SCATTER * self.period_s)
        by_chance, seen = 1 - exp(-2 * reach_s * rate_per_s), min(1.0, hits / free)
        if seen <= by_chance:
            return 1.0
        distance = seen * log(seen / by_chance)
        if seen < 1:
            distance += (1 - seen) * log((1 - seen) / (1 - by_chance))
        return min(1.0, tries * exp(-free * distance))


def rhythm(times_s: Sequence[float], span_s: float, *, least_s: float = 0.2) -> Rhythm:
    """Whether what happened at ``times_s``, in a time from 0 to ``span_s``, has a period of at least ``least_s``.

    Yes: a period with events at 80 % or more of its ticks, which happens by chance in less than 1 % of cases; the
    shortest such period, since every second tick is periodic as well. No: no event, or at least five
    without such a period. Everything else is unknown. Raises UsageError for times outside of the span.
    """
    times = sorted(times_s)
    longest_s = span_s / (LEAST_BEATS - 1)
    if not times:
        return Rhythm("no", None, None, 0, longest_s, (f"nothing happened in {span_s:g} s",))
    if times[0] < 0 or times[-1] > span_s:
        raise UsageError(f"rhythm: times are from 0 to {span_s:g} s; got {times[0]:g} to {times[-1]:g} s")
    seen = f"{len(times)} events in {span_s:g} s"
    tried = list(_candidates(times, least_s, longest_s))
    chains = [chain for period, start in tried if (chain := _follow(times, start, period, span_s))]
    rate = len(times) / span_s
    likely = [each for each in chains if each.chance(rate, len(tried)) < _CHANCE and each.period_s >= least_s]
    if found := [each for each in likely if each.coverage >= _ALWAYS and len(each.hits_s) >= LEAST_BEATS]:
        shortest_s = min(each.period_s for each in found) * (1 + _REACH)
        best = max((each for each in found if each.period_s <= shortest_s), key=lambda each: each.coverage)
        scatter = median(best.scatters_s)
        beats = f"events at {len(best.hits_s)} of {best.ticks} ticks of {best.period_s:.3g} s"
        return Rhythm(
            "yes", best.period_s, scatter, len(best.hits_s), longest_s, (seen, beats), best.hits_s[0], best.hits_s[-1]
        )
    if len(times) <= LEAST_BEATS:
        few = f"too few to tell: a period needs {LEAST_BEATS} events with hardly any scatter"
        return Rhythm("unknown", None, None, 0, longest_s, (seen, few))
    if partly := [each for each in likely if each.coverage >= _OFTEN]:
        best = max(partly, key=lambda each: each.coverage)
        part = f"events at only {len(best.hits_s)} of {best.ticks} ticks of {best.period_s:.3g} s"
        return Rhythm("unknown", None, None, len(best.hits_s), longest_s, (seen, part))
    return Rhythm("no", None, None, 0, longest_s, (seen, f"no period up to {longest_s:.3g} s"))


def _candidates(times: Sequence[float], least_s: float, longest_s: float) -> Iterator[tuple[float, int]]:
    """(period, index of the time it begins at): distances between times that are not far apart, each about once."""
    known: set[int] = set()
    for apart in range(1, _NEIGHBOURS + 1):
        for start in range(len(times) - apart):
            period = times[start + apart] - times[start]
            if least_s <= period <= longest_s and (step := round(log(period) / log(_STEP))) not in known:
                known.add(step)
                yield period, start


def _follow(times: Sequence[float], start: int, period_s: float, span_s: float) -> _Chain | None:
    """The chain through ``times[start]``, with a period refined by all of its ticks; None if it has only a few."""
    first = _walk(times, start, period_s, span_s)
    hits = [tick for tick in first if tick[1] is not None]
    if len(hits) < LEAST_BEATS:
        return None
    period_s = (times[_place(hits[-1])] - times[_place(hits[0])]) / (hits[-1][0] - hits[0][0])
    ticks = _walk(times, start, period_s, span_s)
    hits_s = tuple(times[place] for _, place in ticks if place is not None)
    scatters = tuple(
        abs(times[after[1]] - times[before[1]] - period_s)
        for before, after in pairwise(ticks)
        if before[1] is not None and after[1] is not None
    )
    return _Chain(period_s, hits_s, len(ticks), scatters) if len(scatters) > 1 else None


def _place(tick: tuple[int, int | None]) -> int:
    assert tick[1] is not None
    return tick[1]


def _walk(times: Sequence[float], start: int, period_s: float, span_s: float) -> list[tuple[int, int | None]]:
    """(number of the tick, index of the time there or None), from the first tick in the span to the last."""
    reach_s = _REACH * period_s
    ticks: list[tuple[int, int | None]] = [(0, start)]
    for way in (-1, 1):
        number, at_s = 0, times[start]
        while True:
            number, at_s = number + way, at_s + way * period_s
            near = bisect_left(times, at_s)
            close = [place for place in (near - 1, near) if 0 <= place < len(times)]
            place = min(close, key=lambda place: abs(times[place] - at_s))
            if abs(times[place] - at_s) <= reach_s:
                at_s = times[place]
                ticks.append((number, place))
            elif reach_s <= at_s <= span_s - reach_s:
                ticks.append((number, None))
            else:
                break
    return sorted(ticks, key=lambda tick: tick[0])
