"""Find quiet operations: those that neither the client's own lateness nor waiting for a CPU has disturbed.

This module has the rule as pure functions of columns, and the precision of a percentile. A starved client is late, and
measures its own starvation. A closed loop is never late, but its threads wait for a CPU within the operation, as does a
server on the same machine. Such operations are left out, so that the others describe the service. The share that is
left out is a metric of its own, which shows a client that burns CPU.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise, repeat
from math import log, sqrt
from operator import le, mul, sub

from pytest_cloudbench.judge.stats import rows_in_order

LATE_NS = 20_000_000
"""An operation that starts later than this after it was due disturbs its neighbours: 20 ms."""

NEIGHBOURS = 5
"""How many operations due before a late one, and as many after it, count as disturbed."""

MAX_WAIT_SHARE = 0.05
"""An operation that waited for a CPU for more than this share of its time is not quiet."""


@dataclass(frozen=True, slots=True)
class WaitSeries:
    """The cumulative waits for a CPU, sampled over time, of all threads except those that run operations.

    These are threads of services, and threads and processes that work for clients.

    Attributes:
        time_ns: the times of the samples, ascending, on the clock of the records.
        waited_ns: the wait of all these threads together up to that time.
        why: which part of it is unknown, or an empty text.
    """

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    waited_ns: array[int] = field(default_factory=lambda: array("q"))
    why: str = ""


def waits_of(start_ns: array[int], end_ns: array[int], own_ns: array[int], other_waits: WaitSeries) -> array[float]:
    """Return how many nanoseconds each operation waited for a CPU, in its own thread and in those that worked for it.

    The waits of other threads are shared equally by the operations in flight at the time. No operation waits longer
    than it takes, although several threads may work for it.

    Args:
        start_ns: when each operation began.
        end_ns: when it ended.
        own_ns: how long its own thread waited. -1 if unknown.
        other_waits: the waits of the other threads.
    """
    own = array("d", map(max, repeat(0), own_ns))
    if len(other_waits.time_ns) < 2 or other_waits.waited_ns[-1] == other_waits.waited_ns[0]:
        return own
    waits = _Interpolated(other_waits.time_ns, _waits_per_operation(start_ns, end_ns, other_waits))
    left = right = 0
    base = rise = 0.0
    for row, (waited, start, end) in enumerate(zip(own, start_ns, end_ns, strict=True)):
        if left < start and end <= right:  # the usual case: between the same two samples as the one before
            until_start = base + rise * (start - left) / (right - left)
        else:
            until_start = waits.at(start)
            left, right, base, rise = waits.find_piece(end)
        wait, took = waited + (base + rise * (end - left) / (right - left)) - until_start, end - start
        own[row] = wait if wait < took else took
    return own


def _waits_per_operation(start_ns: array[int], end_ns: array[int], other_waits: WaitSeries) -> list[float]:
    """Return how long an operation in flight all the time has waited by each time of the series."""
    in_flight_ns = list(
        map(sub, _sum_elapsed(start_ns, other_waits.time_ns), _sum_elapsed(end_ns, other_waits.time_ns))
    )
    waits = [0.0]
    for (first_ns, last_ns), (waited, later), (before, after) in zip(
        pairwise(other_waits.time_ns), pairwise(other_waits.waited_ns), pairwise(in_flight_ns), strict=True
    ):
        operations = (after - before) / max(1, last_ns - first_ns)
        waits.append((later - waited) / max(1.0, operations))
    return list(accumulate(waits))


def _sum_elapsed(moments_ns: array[int], until_ns: array[int]) -> list[int]:
    """Return the sum of the durations since all moments before each of some ascending times."""
    ordered, sums = sorted(moments_ns), []
    count = total = 0
    for time_ns in until_ns:
        later = bisect_left(ordered, time_ns, count)
        total += sum(ordered[count:later])
        count = later
        sums.append(count * time_ns - total)
    return sums


class _Interpolated:
    """A function with known values at ascending positions, linear between them and constant outside."""

    def __init__(self, positions: array[int], values: Sequence[float]) -> None:
        self._positions, self._values = positions, values

    def at(self, position: int) -> float:
        left, right, base, rise = self.find_piece(position)
        return base + rise * (position - left) / (right - left)

    def find_piece(self, position: int) -> tuple[int, int, float, float]:
        """Return the ends of the piece that a position is in, the value at its left end, and how far it rises."""
        index = bisect_left(self._positions, position)
        if index == 0 or index == len(self._positions):
            return position - 1, position, self._values[0 if index == 0 else -1], 0.0
        base = self._values[index - 1]
        return self._positions[index - 1], self._positions[index], base, self._values[index] - base


def quiet_rows(
    scheduled_ns: array[int], start_ns: array[int], end_ns: array[int], waits_ns: Sequence[float]
) -> bytearray:
    """Return a byte for each operation: 1 if it is quiet.

    A quiet operation and the 5 due before and after it started in time, and it waited for a CPU for at most 5 % of its
    time.

    Args:
        scheduled_ns: when each operation was due.
        start_ns: when it began, in the same order.
        end_ns: when it ended.
        waits_ns: how long it waited for a CPU (``waits_of``).
    """
    most_ns = map(mul, repeat(MAX_WAIT_SHARE), map(sub, end_ns, start_ns))
    quiet = bytearray(map(le, waits_ns, most_ns))
    late = bytearray(map(LATE_NS.__lt__, map(sub, start_ns, scheduled_ns)))
    if all(late):
        return bytearray(len(late))
    if any(late):
        rows = rows_in_order(scheduled_ns)
        for row in compress(rows, _mark_neighbours(bytes(map(late.__getitem__, rows)))):
            quiet[row] = 0
    return quiet


def _mark_neighbours(marks: bytes) -> bytes:
    """Return the marks with those before and after each of them: all bytes as one number, which is shifted."""
    number = int.from_bytes(marks, "little")
    for _ in range(NEIGHBOURS):
        number |= number << 8 | number >> 8
    return number.to_bytes(len(marks) + NEIGHBOURS, "little")[: len(marks)]


def log_error(ordered: Sequence[float], share: float) -> float | None:
    """Return the standard error of the logarithm of a percentile, from the order statistics around it.

    The number of independent operations below a percentile varies binomially. The values one standard deviation of that
    number to either side of it show how much the percentile itself varies. More operations make this error smaller.

    Args:
        ordered: values above zero, ascending.
        share: the percentile as a share, such as 0.5.

    Returns None if there are too few values.
    """
    count = len(ordered)
    rank_error = sqrt(count * share * (1 - share))
    low, high = round(count * share - rank_error) - 1, round(count * share + rank_error) - 1
    if low < 0 or high >= count or low == high or ordered[low] <= 0:
        return None
    return log(ordered[high] / ordered[low]) * rank_error / (high - low) if rank_error else None
