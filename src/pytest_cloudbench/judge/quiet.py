"""Which operations the client's own lateness did not touch.

What may live here: the rule, as pure functions of columns, and how well a percentile of some number of operations is
known. A starved client is late, and measures its own starvation; the operations around a late one are left out, so that
what remains speaks of the service. How many are left out is a number of its own: a client that burns CPU shows there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import log, sqrt

from pytest_cloudbench.judge.stats import rows_in_order

__all__ = ["LATE_NS", "NEIGHBOURS", "log_error", "quiet_rows"]

LATE_NS = 20_000_000
"""An operation that starts later than this after it was due disturbs its neighbours: 20 ms."""

NEIGHBOURS = 5
"""How many operations due before a late one, and as many after it, count as disturbed."""


def quiet_rows(scheduled_ns: array[int], start_ns: array[int]) -> bytearray:
    """Returns 1 for each operation that is quiet: neither it nor one of the 5 due before and after began late.

    Args:
        scheduled_ns: when each operation was due.
        start_ns: when it began, in the same order.
    """
    quiet = bytearray(b"\1") * len(scheduled_ns)
    rows = rows_in_order(scheduled_ns) if scheduled_ns else array("q")
    touched_until = -1
    for place, row in enumerate(rows):
        if start_ns[row] - scheduled_ns[row] > LATE_NS:
            for near in range(max(place - NEIGHBOURS, touched_until + 1), min(place + NEIGHBOURS + 1, len(rows))):
                quiet[rows[near]] = 0
            touched_until = place + NEIGHBOURS
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
