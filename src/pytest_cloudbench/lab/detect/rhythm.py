"""The search for a period in the times of events.

A period is found when an event occurs at nearly every tick of a clock with that period. Two bursts per tick, or single
events between ticks, do not hide it. Random events do not produce one, however many there are.
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
from pytest_cloudbench.support.wording import format_count

LEAST_BEATS = 4
"""The fewest ticks that make a period. A period longer than a third of the time is not looked for."""

_REACH = 0.2
"""The largest distance of a time from its tick, as a share of the period. Each tick counts from the one before, because
a clock that waits after each answer drifts."""
_ALWAYS, _OFTEN = 0.8, 0.5
"""Shares of ticks with an event: enough for yes, and too many for no."""
_CHANCE = 0.01
_LEAST_SCATTER = 0.005
_NEIGHBOURS = 8
_STEP = 1.03
"""Periods closer than this are tried as one."""
_PLANTED_STEP, _PLANTED_PHASES, _PLANTED_SCATTER = 1.25, (0.1, 0.5, 0.9), 0.005
"""The periods and phases of clocks that are added to events to see which of them would be found."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The answer to whether times have a period.

    Attributes:
        answer: ``no`` holds up to ``longest_s`` only.
        period_s: for yes.
        scatter_s: for yes: the median deviation from the time expected after the previous tick.
        beats: the number of ticks with an event.
        longest_s: the longest period that this observation could have shown. Among many other events, that is less
            than a third of the time.
        evidence: what was seen, in sentences.
        first_s, last_s: for yes: the first and the last of the beats, with whole periods between them.
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

    @property
    def is_regular(self) -> bool:
        """True if it ticks nearly always, and often enough to be a clock."""
        return self.coverage >= _ALWAYS and len(self.hits_s) >= LEAST_BEATS

    def chance(self, rate_per_s: float, tries: int) -> float:
        """Return an upper bound on the probability of this pattern in random times (Chernoff, with Bonferroni)."""
        free, hits = self.ticks - 2, len(self.hits_s) - 2  # two of the times defined the period
        if free < 1 or hits < 1:
            return 1.0
        reach_s = max(*self.scatters_s, _LEAST_SCATTER * self.period_s)
        by_chance, hit_share = 1 - exp(-2 * reach_s * rate_per_s), min(1.0, hits / free)
        if hit_share <= by_chance:
            return 1.0
        distance = hit_share * log(hit_share / by_chance)
        if hit_share < 1:
            distance += (1 - hit_share) * log((1 - hit_share) / (1 - by_chance))
        return min(1.0, tries * exp(-free * distance))


def find_rhythm(times_s: Sequence[float], span_s: float, *, least_s: float = 0.2) -> Rhythm:
    """Find a period of at least ``least_s`` in ``times_s``, which lie between 0 and ``span_s``.

    Yes: a period with events at 80 % or more of its ticks, which happens by chance in less than 1 % of cases. It is the
    shortest such period, since every second tick is periodic as well. No: no event, or at least five without such a
    period, where a clock would have been found. Everything else is unknown. Raises UsageError for times outside of the
    span.
    """
    times = sorted(times_s)
    longest_s = span_s / (LEAST_BEATS - 1)
    if not times:
        return Rhythm("no", None, None, 0, longest_s, (f"nothing happened in {span_s:g} s",))
    if times[0] < 0 or times[-1] > span_s:
        raise UsageError(f"rhythm: times are from 0 to {span_s:g} s; got {times[0]:g} to {times[-1]:g} s")
    counts = f"{format_count(len(times), 'event')} in {span_s:g} s"
    likely = _find_likely(times, span_s, least_s)
    if regular := [chain for chain in likely if chain.is_regular]:
        shortest_s = min(chain.period_s for chain in regular) * (1 + _REACH)
        best = max((chain for chain in regular if chain.period_s <= shortest_s), key=lambda chain: chain.coverage)
        scatter = median(best.scatters_s)
        beats = f"events at {len(best.hits_s)} of {best.ticks} ticks of {best.period_s:.3g} s"
        return Rhythm(
            "yes", best.period_s, scatter, len(best.hits_s), longest_s, (counts, beats), best.hits_s[0], best.hits_s[-1]
        )
    if len(times) <= LEAST_BEATS:
        reason = f"too few to tell: a period needs {LEAST_BEATS} events with hardly any scatter"
        return Rhythm("unknown", None, None, 0, longest_s, (counts, reason))
    if partial := [chain for chain in likely if chain.coverage >= _OFTEN]:
        best = max(partial, key=lambda chain: chain.coverage)
        description = f"events at only {len(best.hits_s)} of {best.ticks} ticks of {best.period_s:.3g} s"
        return Rhythm("unknown", None, None, len(best.hits_s), longest_s, (counts, description))
    longest_s = _find_longest_visible_s(times, span_s, least_s)
    if not longest_s:
        return Rhythm("unknown", None, None, 0, longest_s, (counts, "too many to tell a clock among them"))
    return Rhythm("no", None, None, 0, longest_s, (counts, f"no period up to {longest_s:.3g} s"))


def _find_likely(times: Sequence[float], span_s: float, least_s: float, *, near_s: float | None = None) -> list[_Chain]:
    """Return the clocks that are unlikely to be there by chance, or only those with nearly the period ``near_s``."""
    tried = list(_candidates(times, least_s, span_s / (LEAST_BEATS - 1)))
    near = [pair for pair in tried if near_s is None or 1 / _STEP**2 < pair[0] / near_s < _STEP**2]
    chains = [chain for period, start in near if (chain := _build_chain(times, start, period, span_s))]
    rate = len(times) / span_s
    return [chain for chain in chains if chain.chance(rate, len(tried)) < _CHANCE and chain.period_s >= least_s]


def _find_longest_visible_s(times: Sequence[float], span_s: float, least_s: float) -> float:
    """Return the longest period of a clock that would be found among these events, or 0 if none would."""
    period_s = span_s / (LEAST_BEATS - 1)
    while period_s >= least_s:
        if all(_would_be_found(times, span_s, least_s, period_s, phase) for phase in _PLANTED_PHASES):
            return period_s
        period_s /= _PLANTED_STEP
    return 0.0


def _would_be_found(times: Sequence[float], span_s: float, least_s: float, period_s: float, phase: float) -> bool:
    """Add a clock to the events, and return whether it is found."""
    ticks = (number + phase + number % 2 * _PLANTED_SCATTER for number in range(int(span_s / period_s) + 1))
    planted = sorted([*times, *(at_s for tick in ticks if (at_s := tick * period_s) <= span_s)])
    return any(chain.is_regular for chain in _find_likely(planted, span_s, least_s, near_s=period_s))


def _candidates(times: Sequence[float], least_s: float, longest_s: float) -> Iterator[tuple[float, int]]:
    """Yield periods, each about once, with the index of the time they begin at.

    They are distances between times that are not far apart.
    """
    tried: set[int] = set()
    for distance in range(1, _NEIGHBOURS + 1):
        for start in range(len(times) - distance):
            period = times[start + distance] - times[start]
            if least_s <= period <= longest_s and (step := round(log(period) / log(_STEP))) not in tried:
                tried.add(step)
                yield period, start


def _build_chain(times: Sequence[float], start: int, period_s: float, span_s: float) -> _Chain | None:
    """Return the chain through ``times[start]``, with a period refined by all its ticks, or None if it has few."""
    first = _follow_ticks(times, start, period_s, span_s)
    hits = [tick for tick in first if tick[1] is not None]
    if len(hits) < LEAST_BEATS:
        return None
    period_s = (times[_index_of(hits[-1])] - times[_index_of(hits[0])]) / (hits[-1][0] - hits[0][0])
    ticks = _follow_ticks(times, start, period_s, span_s)
    hits_s = tuple(times[index] for _, index in ticks if index is not None)
    scatters = tuple(
        abs(times[after[1]] - times[before[1]] - period_s)
        for before, after in pairwise(ticks)
        if before[1] is not None and after[1] is not None
    )
    return _Chain(period_s, hits_s, len(ticks), scatters) if len(scatters) > 1 else None


def _index_of(tick: tuple[int, int | None]) -> int:
    assert tick[1] is not None
    return tick[1]


def _follow_ticks(times: Sequence[float], start: int, period_s: float, span_s: float) -> list[tuple[int, int | None]]:
    """Return the ticks of the span in order: the number of each, counted from ``start``, and the index of its time.

    The index is None for a tick without a time.
    """
    reach_s = _REACH * period_s
    ticks: list[tuple[int, int | None]] = [(0, start)]
    for direction in (-1, 1):
        number, at_s = 0, times[start]
        while True:
            number, at_s = number + direction, at_s + direction * period_s
            near = bisect_left(times, at_s)
            close = [index for index in (near - 1, near) if 0 <= index < len(times)]
            index = min(close, key=lambda index: abs(times[index] - at_s))
            if abs(times[index] - at_s) <= reach_s:
                at_s = times[index]
                ticks.append((number, index))
            elif reach_s <= at_s <= span_s - reach_s:
                ticks.append((number, None))
            else:
                break
    return sorted(ticks, key=lambda tick: tick[0])
