"""The offset between two clocks, by Cristian's algorithm, and bounds on it between two measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_cloudbench.fleet.messages import Message
from pytest_cloudbench.support.clock import now_ns

PINGS = 9
"""Round trips of one measurement; the shortest one counts."""

_SLEW_PPM = 500
"""The fastest that a kernel corrects its clock (adjtimex); a larger difference is a jump."""


class Offset(Message, frozen=True):
    """One measurement of another clock.

    Attributes:
        offset_ns: add it to this clock to get the other one.
        error_ns: bound on its error, half of the shortest round trip.
        at_ns: when it was measured, on this clock.
    """

    offset_ns: int
    error_ns: int
    at_ns: int

    def inverse(self) -> Offset:
        """Return the same measurement as the other clock sees it."""
        return Offset(-self.offset_ns, self.error_ns, self.at_ns + self.offset_ns)

    def minus(self, other: Offset) -> Offset:
        """Return the offset from this clock to the other's, both measured against a third clock. Errors add up."""
        return Offset(self.offset_ns - other.offset_ns, self.error_ns + other.error_ns, self.at_ns)


def measure_offset(ask: Callable[[], int], clock: Callable[[], int] = now_ns, pings: int = PINGS) -> Offset:
    """Measure the offset to the clock that ``ask`` reads, by the shortest of some round trips.

    Source: F. Cristian, Probabilistic clock synchronization, 1989. The other clock was read at some moment between
    question and answer: in the middle of the two, give or take half of the time between them.
    """
    trips = []
    for _ in range(pings):
        sent_ns = clock()
        remote_ns = ask()
        received_ns = clock()
        trips.append((received_ns - sent_ns, remote_ns, (sent_ns + received_ns) // 2))
    trip_ns, remote_ns, middle_ns = min(trips)
    return Offset(remote_ns - middle_ns, trip_ns // 2 + 1, middle_ns)


@dataclass(frozen=True, slots=True)
class Span:
    """The offset during the time between two measurements. Its bounds hold unless the clock jumped and jumped back."""

    before: Offset
    after: Offset

    @property
    def offset_ns(self) -> int:
        """The midpoint of all offsets that the two measurements allow."""
        return sum(self._ends()) // 2

    @property
    def error_ns(self) -> int:
        """The bound on the error of ``offset_ns``, which includes the drift between the two measurements."""
        low_ns, high_ns = self._ends()
        return (high_ns - low_ns + 1) // 2

    @property
    def drift_ns(self) -> int:
        """The difference of the second measurement from the first."""
        return self.after.offset_ns - self.before.offset_ns

    @property
    def has_jumped(self) -> bool:
        """True if the two differ by more than their errors and the drift that a sound clock can have."""
        drift_ns = abs(self.after.at_ns - self.before.at_ns) * _SLEW_PPM // 1_000_000
        return abs(self.drift_ns) > self.before.error_ns + self.after.error_ns + drift_ns

    def _ends(self) -> tuple[int, int]:
        measurements = (self.before, self.after)
        return min(measurement.offset_ns - measurement.error_ns for measurement in measurements), max(
            measurement.offset_ns + measurement.error_ns for measurement in measurements
        )
