"""The records of a run, however many, in the few numbers that its figures need.

What may live here: one pass for the times between which a run lies, one that counts. Memory does not grow with the
records: response times fall into classes that are 1 % wide, which no eye can tell from exact ones in a drawing. Tables
have the entry's numbers, which are exact.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, floor, log
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import Outcome, ResultsError
from pytest_cloudbench.results import oplog

_WIDTH = 0.01
_LEAST_S = 1e-6
_ROUNDING = 1e-11
"""The share by which sums of weights may differ from their total."""
MOST_PARTS, _FINE = 100, 4000
"""Parts of a run that a drawing tells apart; finer ones in which silences are looked for."""

_OPS_PER_PART, _LEAST_PARTS = 8, 10

WAITING, MOST_SILENCES = 2, 20
_LEAST_SILENCE_S = 0.25
_SILENT_TIMES = 5.0
"""A silence: no operation ended for a quarter of a second and five median response times, while two or more waited."""

_COLUMNS = ("scheduled_ns", "start_ns", "end_ns", "outcome", "size_bytes")


class Histogram:
    """How often values fell into classes that are 1 % wide. Values are seconds, or anything else above zero.

    Attributes:
        total: of how many operations it speaks.
        seen: how many values it was given; fewer, if each stands for several operations.
    """

    def __init__(self) -> None:
        self.counts: dict[int, float] = {}
        self.total: float = 0
        self.seen = 0

    def add(self, value: float, weight: float = 1) -> None:
        """Count one value, which stands for ``weight`` operations."""
        place = floor(log(value if value > _LEAST_S else _LEAST_S) / _WIDTH)
        self.counts[place] = self.counts.get(place, 0) + weight
        self.total += weight
        self.seen += 1

    def merge(self, other: Histogram) -> None:
        """Count all values of another one."""
        for place, number in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + number
        self.total += other.total
        self.seen += other.seen

    def at(self, share: float) -> float | None:
        """Return the value that at least this share of all does not exceed; None if there is none."""
        least, reached = (share - _ROUNDING) * self.total, 0.0
        for place in sorted(self.counts):
            reached += self.counts[place]
            if reached >= least:
                return _middle(place)
        return None

    def steps(self) -> Iterator[tuple[float, float]]:
        """Yield the middle of each class, ascending, and the share of all values up to it."""
        reached = 0.0
        for place in sorted(self.counts):
            reached += self.counts[place]
            yield _middle(place), reached / self.total


def _middle(place: int) -> float:
    return exp((place + 0.5) * _WIDTH)


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no operation ended although some waited; ``waiting`` is the fewest at any moment of it."""

    from_s: float
    to_s: float
    waiting: int


@dataclass(slots=True)
class Digest:
    """What the figures of a run need. Its parts are between neighbours of ``edges_s``.

    Attributes:
        edges_s: seconds since the first scheduled start, from 0 to the last end.
        p50_s, p99_s: response times of operations that succeeded, in each part; None if there are none.
        outcomes: in each part, how many operations had each outcome.
        whole: response times of all operations that succeeded.
        silences: the longest ones, in order of time.
        ops: operations.
        is_by_end: whether operations belong to the part in which they ended, not to that in which they were due.
        exact: shares, to the response times that the entry has stored for the same operations.
    """

    edges_s: Sequence[float]
    p50_s: Sequence[float | None]
    p99_s: Sequence[float | None]
    outcomes: Sequence[Mapping[str, int]]
    whole: Histogram
    silences: Sequence[Silence] = ()
    ops: int = 0
    is_by_end: bool = False
    exact: Mapping[float, float] = field(default_factory=dict)

    def response_s(self, share: float) -> float | None:
        """Return the response time that a share of all do not exceed: the entry's own number where there is one.

        Classes are 1 % wide, so a value of theirs can be beyond an exact one of a larger or smaller share. It is then
        moved to it.
        """
        value = self.exact.get(share, self.whole.at(share))
        if value is None or share in self.exact:
            return value
        least = max((time for known, time in self.exact.items() if known < share), default=value)
        most = min((time for known, time in self.exact.items() if known > share), default=value)
        return min(max(value, least), most)

    @property
    def span_s(self) -> float:
        """How long it took."""
        return self.edges_s[-1]


def parts_for(ops: int) -> int:
    """Return how many parts of a run a drawing should tell apart: fewer for few operations."""
    return min(MOST_PARTS, max(_LEAST_PARTS, ops // _OPS_PER_PART))


def least_silence_s(usual_s: float | None) -> float:
    """Return how long a silence must be at least, by the median response time."""
    return max(_LEAST_SILENCE_S, _SILENT_TIMES * (usual_s or 0.0))


def longest(silences: Iterable[Silence]) -> list[Silence]:
    """Return those that a drawing shows, in order of time."""
    kept = sorted(silences, key=lambda each: each.from_s - each.to_s)[:MOST_SILENCES]
    return sorted(kept, key=lambda each: each.from_s)


def digest(paths: Sequence[Path]) -> Digest | None:
    """Read the records of an experiment, of one run or of several that followed each other; None if there are none.

    Raises ResultsError.
    """
    first_ns, last_ns, ops = _extent(paths)
    if not ops or last_ns <= first_ns:
        return None
    span_s, fine_ns, parts = (last_ns - first_ns) / 1e9, (last_ns - first_ns) / _FINE, parts_for(ops)
    response = [Histogram() for _ in range(parts)]
    outcomes: list[dict[str, int]] = [{} for _ in range(parts)]
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
            place = due * parts // _FINE
            of = outcomes[place]
            of[outcome] = of.get(outcome, 0) + 1
            if outcome == ok:
                response[place].add((end_ns - scheduled_ns) / 1e9)
    whole = Histogram()
    for each in response:
        whole.merge(each)
    edges_s = [span_s * number / parts for number in range(parts + 1)]
    p50_s, p99_s = ([each.at(share) for each in response] for share in (0.5, 0.99))
    silences = _silences(ended, change, fine_ns / 1e9, whole.at(0.5))
    return Digest(edges_s, p50_s, p99_s, outcomes, whole, silences, ops)


def _blocks(paths: Sequence[Path]) -> Iterator[Mapping[str, Sequence[Any]]]:
    for path in paths:
        try:
            yield from oplog.read_columns(path, _COLUMNS)
        except (TypeError, KeyError) as error:
            raise ResultsError(f"{path}: holds no records of operations ({error})") from error


def _extent(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Return the first scheduled start, the last end, and the number of records."""
    firsts, lasts, ops = list[int](), list[int](), 0
    for path in paths:
        for block in oplog.read_columns(path, ("scheduled_ns", "end_ns")):
            if block["end_ns"]:
                firsts.append(min(block["scheduled_ns"]))
                lasts.append(max(block["end_ns"]))
                ops += len(block["end_ns"])
    return min(firsts, default=0), max(lasts, default=0), ops


def _silences(ended: Sequence[int], change: Sequence[int], fine_s: float, usual_s: float | None) -> list[Silence]:
    """Return the longest silences. The resolution is a four-thousandth of the run."""
    least_s = max(least_silence_s(usual_s), 2 * fine_s)
    found: list[Silence] = []
    waiting, begun, fewest = 0, 0, 0
    for place, ends in enumerate([*ended, 1]):
        if ends == 0 and waiting + change[place] >= WAITING:
            fewest = waiting + change[place] if begun == place else min(fewest, waiting + change[place])
        else:
            if (place - begun) * fine_s >= least_s:
                found.append(Silence(begun * fine_s, place * fine_s, fewest))
            begun = place + 1
        waiting += change[place] if place < len(change) else 0
    return longest(found)
