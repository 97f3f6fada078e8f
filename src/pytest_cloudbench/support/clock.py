"""The run's clock, and waiting by it.

What may live here: reading the time that all records are in, the one way to wait for something, the one way to let
time pass, and durations as people write them. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Protocol

_UNITS_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

now_ns = time.monotonic_ns
"""Nanoseconds of this machine's monotonic clock: what every record of a run is in."""


class Signal(Protocol):
    """What wakes those who wait for it, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether it was given."""
        ...

    def wait(self, timeout: float | None = None) -> object:
        """Return when it is given, or after ``timeout`` seconds."""
        ...


def duration_s(text: str) -> float:
    """Seconds of a text such as ``500ms``, ``90s`` or ``1d12h``; a bare number is seconds. Raises ValueError."""
    number = r"\d+(?:\.\d+)?"
    if re.fullmatch(rf"{number}|(?:{number}(?:ms|[smhd]))+", text, re.ASCII) is None:
        raise ValueError("expected a number with ms, s, m, h or d, such as 500ms, 90s or 1d12h")
    parts = re.findall(rf"({number})(ms|[smhd]|)", text)
    return sum(float(amount) * _UNITS_S[unit] for amount, unit in parts)


def due_ns(delay_s: float) -> int:
    """The time in ``delay_s`` seconds."""
    return now_ns() + round(delay_s * 1e9)


def sleep_until_ns(due_ns: int) -> None:
    """Let time pass until ``due_ns``: for the pace of a workload, never to wait for something to happen."""
    while (left_ns := due_ns - now_ns()) > 0:
        time.sleep(left_ns / 1e9)


def wait_for(
    wanted: Signal | Callable[[], bool], timeout_s: float, *, poll_s: float = 0.0,
    stop: Signal | Callable[[], bool] | None = None,
) -> bool:  # fmt: skip
    """Wait until ``wanted`` holds. False: it did not within ``timeout_s``, or ``stop`` held first.

    Args:
        wanted: a signal, which ends the wait at once, or a question.
        timeout_s: seconds; a question is asked once more at their end.
        poll_s: between two questions; with a signal and a ``stop``, between two looks at ``stop``.
        stop: ends the wait, too; at once where it is a signal and ``wanted`` is a question.

    Raises ValueError without a ``poll_s`` where one is needed.
    """
    signals = [each for each in (wanted, stop) if each is not None and not callable(each)]
    if stop is None and signals:
        poll_s = timeout_s
    if poll_s <= 0 < timeout_s:
        raise ValueError(f"poll_s={poll_s:g}: expected seconds above 0 between two looks")
    until_s, pause = time.monotonic() + timeout_s, signals[0].wait if signals else time.sleep
    while not _holds(wanted):
        left_s = until_s - time.monotonic()
        if left_s <= 0 or (stop is not None and _holds(stop)):
            return False
        pause(min(poll_s, left_s))
    return True


def _holds(condition: Signal | Callable[[], bool]) -> bool:
    return condition() if callable(condition) else condition.is_set()
