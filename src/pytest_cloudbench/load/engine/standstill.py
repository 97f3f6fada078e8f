"""Times in which this process stood still, as while it was stopped: operations under way took so much longer.

A late start shows a standstill to operations that are due then. Those of a closed loop are due when others end, so
nothing else shows that theirs is not the provider's time.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_cloudbench.support.clock import now_ns

NAP_S = 0.2
"""The time after which a thread that waits for others looks around, such as for Ctrl-C on every platform."""

_LEAST_S = 1.0
"""A thread of a busy process may oversleep for less than this."""


class Standstills:
    """The standstills of this process, noticed by a thread that oversleeps.

    Args:
        count_in_flight: returns how many operations have begun and not ended.
        count_begun: returns how many have begun at all.
        clock: returns the time in nanoseconds.

    Attributes:
        total_s: how long all of them with operations under way took.
        ops: how many operations may have been under way in all of them.
    """

    def __init__(
        self, count_in_flight: Callable[[], int], count_begun: Callable[[], int], clock: Callable[[], int] = now_ns
    ) -> None:
        self._count_in_flight, self._count_begun, self._clock = count_in_flight, count_begun, clock
        self.total_s, self.ops = 0.0, 0

    def nap(self, wait: Callable[[float], object]) -> None:
        """Call ``wait`` with the seconds after which it returns at the latest."""
        begun, in_flight, start_ns = self._count_begun(), self._count_in_flight(), self._clock()
        wait(NAP_S)
        stood_s = (self._clock() - start_ns) / 1e9 - NAP_S
        # One may have begun before the standstill and ended after it, all within this nap.
        ops = in_flight + self._count_begun() - begun if stood_s >= _LEAST_S else 0
        if ops:
            self.total_s, self.ops = self.total_s + stood_s, self.ops + ops
