"""The run's clock, the one way to wait for something, and the one way to let time pass.

Fifty agents import this module, so keep it light.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

now_ns = time.monotonic_ns
"""Return the nanoseconds of this machine's monotonic clock, which all records of a run use."""


_READINGS = 9


def wall_offset_ns() -> int:
    """Return how far the wall clock is ahead of the monotonic one. It changes when the wall clock is set.

    It is the one of several readings that took the shortest time, because a busy machine may pause between both clocks.
    """
    readings = []
    for _ in range(_READINGS):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


class Signal(Protocol):
    """An event that wakes those who wait for it, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether the event has happened."""
        ...

    def wait(self, timeout: float | None = None) -> object:
        """Return when the event happens, or after ``timeout`` seconds."""
        ...


def parse_duration_s(text: str) -> float:
    """Return the seconds of a text such as ``500ms``, ``90s`` or ``1d12h``. Raises ValueError.

    A bare number is seconds, and ``min`` means the same as ``m``.
    """
    number = r"\d+(?:\.\d+)?"
    if re.fullmatch(rf"{number}|(?:{number}(?:ms|min|[smhd]))+", text, re.ASCII) is None:
        raise ValueError("expected a number with ms, s, m, h or d, such as 500ms, 90s or 1d12h")
    parts = re.findall(rf"({number})(ms|min|[smhd]|)", text)
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)


def due_ns(delay_s: float) -> int:
    """Return the time that is ``delay_s`` seconds from now."""
    return now_ns() + round(delay_s * 1e9)


def sleep_until_ns(due_ns: int) -> None:
    """Let time pass until ``due_ns``, which is for the pace of a workload, never to wait for something to happen."""
    while (remaining_ns := due_ns - now_ns()) > 0:
        time.sleep(remaining_ns / 1e9)


def wait_for(
    condition: Signal | Callable[[], bool], timeout_s: float, *, poll_s: float = 0.0,
    stop: Signal | Callable[[], bool] | None = None,
) -> bool:  # fmt: skip
    """Wait until a condition is true. Return False if it is not within ``timeout_s``, or if ``stop`` comes first.

    Args:
        condition: a signal, which ends the wait at once, or a function that is called again and again.
        timeout_s: the longest wait in seconds, at whose end a function is called once more.
        poll_s: the seconds between two calls, or with a signal and a ``stop``, between two checks of ``stop``.
        stop: also ends the wait, at once if it is a signal and ``condition`` is a function.

    Raises ValueError without a ``poll_s`` where one is needed.
    """
    signals = [signal for signal in (condition, stop) if signal is not None and not callable(signal)]
    if stop is None and signals:
        poll_s = timeout_s
    if poll_s <= 0 < timeout_s:
        raise ValueError(f"poll_s={poll_s:g}: expected seconds above 0 between two checks")
    until_s, pause = time.monotonic() + timeout_s, signals[0].wait if signals else time.sleep
    while not _is_true(condition):
        remaining_s = until_s - time.monotonic()
        if remaining_s <= 0 or (stop is not None and _is_true(stop)):
            return False
        pause(min(poll_s, remaining_s))
    return True


def _is_true(condition: Signal | Callable[[], bool]) -> bool:
    return condition() if callable(condition) else condition.is_set()
