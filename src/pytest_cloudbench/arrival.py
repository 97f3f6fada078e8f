"""When operations are due: arrival processes as pure functions of a seed.

What may live here: arrival processes and the plan they unfold to. No clock, no sleep: times are
seconds from the start of the experiment, and the engine turns them into deeds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from pytest_cloudbench.model import UsageError

__all__ = ["FixedInterval", "Plan", "ThinkTime", "plan"]


def _first_delay_s(seed: str, sensor: int, longest_s: float) -> float:
    return Random(f"{seed}/first/{sensor}").uniform(0.0, longest_s) if longest_s else 0.0


@dataclass(frozen=True, slots=True)
class FixedInterval:
    """Open loop: a sensor keeps its clock, whatever becomes of its operations.

    Attributes:
        interval_s: seconds between two due times of one sensor.
        first_delay_max_s: the first operation is due at a uniformly random time up to this; 0 starts
            all sensors together.
    """

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.interval_s, self.first_delay_max_s)

    def due_s(self, seed: str, sensor: int, count: int) -> list[float]:
        """The due times of ``count`` operations of one sensor, in seconds from the start."""
        first = _first_delay_s(seed, sensor, self.first_delay_max_s)
        return [first + self.interval_s * seq for seq in range(count)]


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """Closed loop: a sensor sleeps ``interval_s`` *after* each operation, as the thesis's threads do (4.2.4)."""

    interval_s: float
    first_delay_max_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.interval_s, self.first_delay_max_s)

    def first_s(self, seed: str, sensor: int) -> float:
        """When the sensor's first operation is due, in seconds from the start."""
        return _first_delay_s(seed, sensor, self.first_delay_max_s)


def _check(interval_s: float, first_delay_max_s: float) -> None:
    if not (0 <= interval_s < float("inf") and 0 <= first_delay_max_s < float("inf")):
        raise UsageError(
            f"arrival: interval_s={interval_s} and first_delay_max_s={first_delay_max_s}: expected 0 or more seconds"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """Every operation of a schedule in the order it is due: three columns of equal length.

    Attributes:
        due_ns: nanoseconds from the start, ascending.
        sensor: the sensor that is due.
        seq: the sensor's sequence number of the operation.
    """

    due_ns: array[int]
    sensor: array[int]
    seq: array[int]

    def __len__(self) -> int:
        return len(self.due_ns)

    def busiest(self, window_ns: int) -> int:
        """The most operations due within any ``window_ns``."""
        best, tail = 0, 0
        for head, due in enumerate(self.due_ns):
            while due - self.due_ns[tail] > window_ns:
                tail += 1
            best = max(best, head - tail + 1)
        return best


def plan(arrival: FixedInterval, sensors: Iterable[int], count: int, seed: str, time_scale: float = 1.0) -> Plan:
    """Unfold an arrival process for some sensors, ``count`` operations each; ``time_scale`` divides all times."""
    rows = sorted(
        (round(due * 1e9 / time_scale), sensor, seq)
        for sensor in sensors
        for seq, due in enumerate(arrival.due_s(seed, sensor, count))
    )
    return Plan(
        array("q", (row[0] for row in rows)), array("q", (row[1] for row in rows)), array("q", (row[2] for row in rows))
    )
