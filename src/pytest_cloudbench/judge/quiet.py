"""Which operations the client's own lateness, and waiting for a CPU, did not touch.

What may live here: the rule, as pure functions of columns, and how well a percentile of some number of operations is
known. A starved client is late, and measures its own starvation. A closed loop is never late, but its threads wait for
a CPU within the operation, as a server on the same machine does. Such operations are left out, so that what remains
speaks of the service. How many are left out is a number of its own: a client that burns CPU shows there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import log, sqrt
from operator import sub

from pytest_cloudbench.judge.stats import rows_in_order

LATE_NS = 20_000_000
"""An operation that starts later than this after it was due disturbs its neighbours: 20 ms."""

NEIGHBOURS = 5
"""How many operations due before a late one, and as many after it, count as disturbed."""


MOST_WAIT_SHARE = 0.05
"""An operation that waited for a CPU for more than this share of its time is not quiet."""


@dataclass(frozen=True, slots=True)
class WaitSeries:
    """How long threads beside those that run operations had waited for a CPU, summed up to several times.

    These are threads of services, and threads and processes that work for clients.

    Attributes:
        time_ns: ascending, on the clock of the records.
        waited_ns: of all these threads together, up to that time.
        why: which of it is not known, or an empty text.
    """

    time_ns: array[int] = field(default_factory=lambda: array("q"))
    waited_ns: array[int] = field(default_factory=lambda: array("q"))
    why: str = ""


def waits_of(start_ns: array[int], end_ns: array[int], own_ns: array[int], beside: WaitSeries) -> array[float]:
    """Return how long each operation waited for a CPU, in nanoseconds: its own thread, and those that worked for it.

    What other threads waited is shared equally by the operations that were in flight meanwhile. No operation waits
    longer than it takes, although several threads may work for it.

    Args:
        start_ns: when each operation began.
        end_ns: when it ended.
        own_ns: how long its own thread waited; -1 if that is not known.
        beside: of the other threads.
    """
    own = array("d", (max(0, waited_ns) for waited_ns in own_ns))
    if len(beside.time_ns) < 2 or beside.waited_ns[-1] == beside.waited_ns[0]:
        return own
    waits = _Interpolated(beside.time_ns, _waits_per_operation(start_ns, end_ns, beside))
    rows = zip(own, start_ns, end_ns, strict=True)
    return array("d", (min(waited + waits.at(end) - waits.at(start), end - start) for waited, start, end in rows))


def _waits_per_operation(start_ns: array[int], end_ns: array[int], beside: WaitSeries) -> list[float]:
    """Returns, up to each time of the series, what an operation would have waited that was in flight all the time."""
    in_flight_ns = list(map(sub, _elapsed(start_ns, beside.time_ns), _elapsed(end_ns, beside.time_ns)))
    waits = [0.0]
    for (first_ns, last_ns), (waited, later), (before, after) in zip(
        pairwise(beside.time_ns), pairwise(beside.waited_ns), pairwise(in_flight_ns), strict=True
    ):
        operations = (after - before) / max(1, last_ns - first_ns)
        waits.append((later - waited) / max(1.0, operations))
    return list(accumulate(waits))


def _elapsed(moments_ns: array[int], until_ns: array[int]) -> list[int]:
    """Return for each time the sum of what has passed since the moments before it. Times ascend."""
    ordered, sums = sorted(moments_ns), []
    passed = total = 0
    for time_ns in until_ns:
        while passed < len(ordered) and ordered[passed] < time_ns:
            total += ordered[passed]
            passed += 1
        sums.append(passed * time_ns - total)
    return sums


class _Interpolated:
    """A function that is known at ascending places, linear between them and constant outside."""

    def __init__(self, places: array[int], values: Sequence[float]) -> None:
        self._places, self._values = places, values

    def at(self, place: int) -> float:
        after = bisect_left(self._places, place)
        if after == 0:
            return self._values[0]
        if after == len(self._places):
            return self._values[-1]
        first, last = self._places[after - 1], self._places[after]
        low, high = self._values[after - 1], self._values[after]
        return low + (high - low) * (place - first) / (last - first)


def quiet_rows(
    scheduled_ns: array[int], start_ns: array[int], end_ns: array[int], waits_ns: Sequence[float]
) -> bytearray:
    """Return 1 for each operation that is quiet.

    Neither it nor one of the 5 due before and after began late, and it waited for a CPU for at most 5 % of its time.

    Args:
        scheduled_ns: when each operation was due.
        start_ns: when it began, in the same order.
        end_ns: when it ended.
        waits_ns: how long it waited for a CPU (``waits_of``).
    """
    quiet = bytearray(b"\1") * len(scheduled_ns)
    rows = rows_in_order(scheduled_ns) if scheduled_ns else array("q")
    touched_until = -1
    for place, row in enumerate(rows):
        if start_ns[row] - scheduled_ns[row] > LATE_NS:
            for near in range(max(place - NEIGHBOURS, touched_until + 1), min(place + NEIGHBOURS + 1, len(rows))):
                quiet[rows[near]] = 0
            touched_until = place + NEIGHBOURS
    for row, (start, end, waited) in enumerate(zip(start_ns, end_ns, waits_ns, strict=True)):
        if waited > MOST_WAIT_SHARE * (end - start):
            quiet[row] = 0
    return quiet


def log_error(ordered: Sequence[int], share: float) -> float | None:
    """Standard error of the logarithm of a percentile, from the order statistics around it.

    How many of independent operations lie below a percentile varies binomially; the values that many ranks to either
    side tell how much it varies itself. It is what more operations would make smaller.

    Args:
        ordered: values above zero, ascending.
        share: which percentile, such as 0.5.

    Returns None if there are too few values to tell.
    """
    count = len(ordered)
    half = sqrt(count * share * (1 - share))
    low, high = round(count * share - half) - 1, round(count * share + half) - 1
    if low < 0 or high >= count or low == high or ordered[low] <= 0:
        return None
    return log(ordered[high] / ordered[low]) * half / (high - low) if half else None
