"""Summary of a run's records for its figures, in constant memory.

A first pass finds the begin and the end of the run, a second one counts. Response times fall into classes that are 1 %
wide, which cannot be distinguished from exact values in a drawing. Tables have the exact numbers of the entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import exp, floor, log
from pathlib import Path

from pytest_cloudbench.model import Outcome, ResultsError
from pytest_cloudbench.results import oplog

_CLASS_WIDTH = 0.01
_SHORTEST_S = 1e-6
_WEIGHT_TOLERANCE = 1e-11
"""The tolerance for sums of weights, relative to their total."""
MOST_PARTS, _FINE_PARTS = 100, 4000
"""The largest number of parts of a run in a drawing, and the number of finer parts for finding silences."""

_OPS_PER_PART, _LEAST_PARTS = 8, 10

FEWEST_WAITING, MOST_SILENCES = 2, 20
_SHORTEST_SILENCE_S = 0.25
_SILENT_TIMES = 5.0
"""In a silence, no operation ends for a quarter of a second and five median response times, while two or more wait."""


class Histogram:
    """Counts of positive values in classes that are 1 % wide.

    Attributes:
        total: the number of operations that it represents.
        value_count: the number of values that were added, each of which represents one or more operations.
    """

    def __init__(self) -> None:
        self.counts: dict[int, float] = {}
        self.total: float = 0
        self.value_count = 0

    def add(self, value: float, weight: float = 1) -> None:
        """Count one value, which represents ``weight`` operations."""
        class_number = floor(log(value if value > _SHORTEST_S else _SHORTEST_S) / _CLASS_WIDTH)
        self.counts[class_number] = self.counts.get(class_number, 0) + weight
        self.total += weight
        self.value_count += 1

    def merge(self, other: Histogram) -> None:
        """Count all values of another histogram."""
        for class_number, count in other.counts.items():
            self.counts[class_number] = self.counts.get(class_number, 0) + count
        self.total += other.total
        self.value_count += other.value_count

    def value_at(self, share: float) -> float | None:
        """Return the smallest value that at least this share of all does not exceed, or None if there are no values."""
        threshold, reached = (share - _WEIGHT_TOLERANCE) * self.total, 0.0
        for class_number in sorted(self.counts):
            reached += self.counts[class_number]
            if reached >= threshold:
                return _class_middle(class_number)
        return None

    def cumulative_shares(self) -> Iterator[tuple[float, float]]:
        """Yield the middle of each class, ascending, and the share of all values up to it."""
        reached = 0.0
        for class_number in sorted(self.counts):
            reached += self.counts[class_number]
            yield _class_middle(class_number), reached / self.total


def _class_middle(class_number: int) -> float:
    return exp((class_number + 0.5) * _CLASS_WIDTH)


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which no operation ended although at least ``waiting`` operations waited."""

    from_s: float
    to_s: float
    waiting: int


@dataclass(slots=True)
class Digest:
    """Summary of a run for its figures. A part of the run is the time between two neighbours of ``edges_s``.

    Attributes:
        edges_s: seconds since the first scheduled start, from 0 to the last end.
        p50_s, p99_s: response times of operations that succeeded, for each part. None if there are none.
        outcomes: the number of operations with each outcome, for each part.
        overall: response times of all operations that succeeded.
        silences: the longest ones, in order of time.
        ops: the number of operations.
        is_by_end: whether operations are counted in the part in which they ended, instead of when they were due.
        exact: response times that the entry has stored for the same operations, by their share.
    """

    edges_s: Sequence[float]
    p50_s: Sequence[float | None]
    p99_s: Sequence[float | None]
    outcomes: Sequence[Mapping[str, int]]
    overall: Histogram
    silences: Sequence[Silence] = ()
    ops: int = 0
    is_by_end: bool = False
    exact: Mapping[float, float] = field(default_factory=dict)

    def response_s(self, share: float) -> float | None:
        """Return the response time that a share of operations does not exceed, preferably the entry's exact number.

        Since classes are 1 % wide, a value from them may contradict the exact value of a larger or smaller share. It is
        then replaced by the exact value.
        """
        value = self.exact.get(share, self.overall.value_at(share))
        if value is None or share in self.exact:
            return value
        lower_bound = max((time for known_share, time in self.exact.items() if known_share < share), default=value)
        upper_bound = min((time for known_share, time in self.exact.items() if known_share > share), default=value)
        return min(max(value, lower_bound), upper_bound)

    @property
    def span_s(self) -> float:
        """The duration of the run in seconds."""
        return self.edges_s[-1]


def part_count(ops: int) -> int:
    """Return the number of parts of a run in a drawing. Few operations need fewer parts."""
    return min(MOST_PARTS, max(_LEAST_PARTS, ops // _OPS_PER_PART))


def shortest_silence_s(median_s: float | None) -> float:
    """Return the duration of the shortest silence in seconds, which depends on the median response time."""
    return max(_SHORTEST_SILENCE_S, _SILENT_TIMES * (median_s or 0.0))


def longest_silences(silences: Iterable[Silence]) -> list[Silence]:
    """Return the silences that a drawing shows, in order of time."""
    selected = sorted(silences, key=lambda silence: silence.from_s - silence.to_s)[:MOST_SILENCES]
    return sorted(selected, key=lambda silence: silence.from_s)


def digest_records(paths: Sequence[Path]) -> Digest | None:
    """Read the records of an experiment's run, or of several successive runs, without those of warm-ups.

    Returns None if there are none. Raises ResultsError, also if the files hold something else.
    """
    try:
        return _digest(paths)
    except (TypeError, LookupError, OverflowError, ValueError) as error:
        raise ResultsError(f"{paths[0]}: holds no records of operations ({error})") from error


def _digest(paths: Sequence[Path]) -> Digest | None:
    """Return the summary of all records, or None if there are none, or all are of one moment."""
    first_ns, last_ns, ops = _time_extent(paths)
    if not ops or last_ns <= first_ns:
        return None
    span_s, fine_ns, parts = (last_ns - first_ns) / 1e9, (last_ns - first_ns) / _FINE_PARTS, part_count(ops)
    response = [Histogram() for _ in range(parts)]
    outcomes: list[dict[str, int]] = [{} for _ in range(parts)]
    ended, waiting_changes = array("q", bytes(8 * _FINE_PARTS)), array("q", bytes(8 * (_FINE_PARTS + 1)))
    last_fine, ok = _FINE_PARTS - 1, Outcome.OK.value
    names = ("scheduled_ns", "end_ns", "outcome")
    for block in chain.from_iterable(oplog.read_measured(path, names) for path in paths):
        for scheduled_ns, end_ns, outcome in zip(*block.values(), strict=True):
            due, end = int((scheduled_ns - first_ns) / fine_ns), int((end_ns - first_ns) / fine_ns)
            due, end = min(due, last_fine), min(end, last_fine)
            if end < due:
                raise ValueError("an operation ended before it was due")
            ended[end] += 1
            waiting_changes[due] += 1
            waiting_changes[end + 1] -= 1
            part = due * parts // _FINE_PARTS
            counts = outcomes[part]
            counts[outcome] = counts.get(outcome, 0) + 1
            if outcome == ok:
                response[part].add((end_ns - scheduled_ns) / 1e9)
    overall = Histogram()
    for histogram in response:
        overall.merge(histogram)
    edges_s = [span_s * number / parts for number in range(parts + 1)]
    p50_s, p99_s = ([histogram.value_at(share) for histogram in response] for share in (0.5, 0.99))
    silences = _find_silences(ended, waiting_changes, fine_ns / 1e9, overall.value_at(0.5))
    return Digest(edges_s, p50_s, p99_s, outcomes, overall, silences, ops)


def _time_extent(paths: Sequence[Path]) -> tuple[int, int, int]:
    """Return the first scheduled start, the last end, and the number of records."""
    firsts, lasts, ops = list[int](), list[int](), 0
    for path in paths:
        for block in oplog.read_measured(path, ("scheduled_ns", "end_ns")):
            if block["end_ns"]:
                firsts.append(min(block["scheduled_ns"]))
                lasts.append(max(block["end_ns"]))
                ops += len(block["end_ns"])
    return min(firsts, default=0), max(lasts, default=0), ops


def _find_silences(
    ended: Sequence[int], waiting_changes: Sequence[int], fine_s: float, median_s: float | None
) -> list[Silence]:
    """Return the longest silences, with a resolution of a four-thousandth of the run."""
    shortest_s = max(shortest_silence_s(median_s), 2 * fine_s)
    silences: list[Silence] = []
    waiting, begin, fewest = 0, 0, 0
    for index, ends in enumerate([*ended, 1]):
        if ends == 0 and waiting + waiting_changes[index] >= FEWEST_WAITING:
            fewest = (
                waiting + waiting_changes[index] if begin == index else min(fewest, waiting + waiting_changes[index])
            )
        else:
            if (index - begin) * fine_s >= shortest_s:
                silences.append(Silence(begin * fine_s, index * fine_s, fewest))
            begin = index + 1
        waiting += waiting_changes[index] if index < len(waiting_changes) else 0
    return longest_silences(silences)
