"""The records of a run, however many, in the few numbers that its figures need.

What may live here: one pass for the times between which a run lies, one that counts. Memory does not grow with the
records: response times fall into classes that are 1 % wide, which no eye can tell from exact ones in a drawing. Tables
have the entry's numbers, which are exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, floor, log
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import Outcome, ResultsError
from pytest_cloudbench.results import oplog

__all__ = ["Digest", "Histogram", "Silence", "digest"]

_WIDTH = 0.01
_LEAST_S = 1e-6
_MOST_BINS, _OPS_PER_BIN, _FINE = 100, 8, 4000
"""Parts of a run that a drawing tells apart, fewer for few operations; finer ones in which silences are looked for."""

_LEAST_SILENCE_S = 0.25
_SILENT_TIMES = 5.0
_WAITING = 2
"""A silence: no operation ended for a quarter of a second and five median response times, while two or more waited."""

_COLUMNS = ("scheduled_ns", "start_ns", "end_ns", "outcome", "size_bytes")


class Histogram:
    """How often values fell into classes that are 1 % wide. Values are seconds, or anything else above zero."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0

    def add(self, value: float) -> None:
        """Count one value."""
        place = floor(log(value if value > _LEAST_S else _LEAST_S) / _WIDTH)
        self.counts[place] = self.counts.get(place, 0) + 1
        self.total += 1

    def merge(self, other: Histogram) -> None:
        """Count all values of another one."""
        for place, number in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + number
        self.total += other.total

    def at(self, share: float) -> float | None:
        """Returns the value that at least this share of all does not exceed; None if there is none."""
        return next((value for value, reached in self.steps() if reached >= share - 1e-12), None)

    def steps(self) -> Iterator[tuple[float, float]]:
        """Yields the middle of each class, ascending, and the share of all values up to it."""
        seen = 0
        for place in sorted(self.counts):
            seen += self.counts[place]
            yield exp((place + 0.5) * _WIDTH), seen / self.total


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no operation ended although some waited; ``waiting`` is the fewest at any moment of it."""

    from_s: float
    to_s: float
    waiting: int


@dataclass(slots=True)
class Digest:
    """What the figures of a run need.

    Attributes:
        span_s: from the first scheduled start to the last end.
        bin_s: length of one of the parts of ``response`` and ``outcomes``, by the scheduled start.
        response: response times of operations that succeeded, in each part.
        outcomes: in each part, how many operations had each outcome.
        silences: the longest ones, in order of time.
        ops: records that were read.
    """

    span_s: float
    bin_s: float
    response: Sequence[Histogram] = ()
    outcomes: Sequence[Mapping[str, int]] = ()
    silences: Sequence[Silence] = ()
    ops: int = 0
    whole: Histogram = field(default_factory=Histogram)


def digest(paths: Sequence[Path]) -> Digest | None:
    """Read the records of an experiment, of one run or of several that followed each other; None if there are none.

    Raises ResultsError.
    """
    first_ns, last_ns, ops = _extent(paths)
    if not ops or last_ns <= first_ns:
        return None
    span_s = (last_ns - first_ns) / 1e9
    bins = min(_MOST_BINS, max(10, ops // _OPS_PER_BIN))
    bin_s, fine_ns = span_s / bins, (last_ns - first_ns) / _FINE
    response = [Histogram() for _ in range(bins)]
    outcomes: list[dict[str, int]] = [{} for _ in range(bins)]
    ended, change = array("q", bytes(8 * _FINE)), array("q", bytes(8 * (_FINE + 1)))
    last, ok = _FINE - 1, Outcome.OK.value
    for block in _blocks(paths):
        times = zip(*(block[name] for name in ("scheduled_ns", "end_ns", "outcome")), strict=True)
        for scheduled_ns, end_ns, outcome in times:
            due, end = int((scheduled_ns - first_ns) / fine_ns), int((end_ns - first_ns) / fine_ns)
            due, end = min(due, last), min(end, last)
            ended[end] += 1
            change[due] += 1
            change[end + 1] -= 1
            place = due * bins // _FINE
            of = outcomes[place]
            of[outcome] = of.get(outcome, 0) + 1
            if outcome == ok:
                response[place].add((end_ns - scheduled_ns) / 1e9)
    found = Digest(span_s, bin_s, response, outcomes, (), ops)
    for each in response:
        found.whole.merge(each)
    found.silences = _silences(ended, change, fine_ns / 1e9, found.whole.at(0.5))
    return found


def _blocks(paths: Sequence[Path]) -> Iterator[Mapping[str, Sequence[Any]]]:
    for path in paths:
        try:
            yield from oplog.read_columns(path, _COLUMNS)
        except (TypeError, KeyError) as error:
            raise ResultsError(f"{path}: holds no records of operations ({error})") from error


def _extent(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Returns the first scheduled start, the last end, and the number of records."""
    firsts, lasts, ops = list[int](), list[int](), 0
    for path in paths:
        for block in oplog.read_columns(path, ("scheduled_ns", "end_ns")):
            if block["end_ns"]:
                firsts.append(min(block["scheduled_ns"]))
                lasts.append(max(block["end_ns"]))
                ops += len(block["end_ns"])
    return min(firsts, default=0), max(lasts, default=0), ops


def _silences(ended: Sequence[int], change: Sequence[int], fine_s: float, usual_s: float | None) -> list[Silence]:
    """Returns the twenty longest silences. The resolution is a four-thousandth of the run."""
    least_s = max(_LEAST_SILENCE_S, _SILENT_TIMES * (usual_s or 0.0), 2 * fine_s)
    found: list[Silence] = []
    waiting, begun, fewest = 0, 0, 0
    for place, ends in enumerate([*ended, 1]):
        if ends == 0 and waiting + change[place] >= _WAITING:
            fewest = waiting + change[place] if begun == place else min(fewest, waiting + change[place])
        else:
            if (place - begun) * fine_s >= least_s:
                found.append(Silence(begun * fine_s, place * fine_s, fewest))
            begun = place + 1
        waiting += change[place] if place < len(change) else 0
    longest = sorted(found, key=lambda each: each.from_s - each.to_s)[:20]
    return sorted(longest, key=lambda each: each.from_s)
