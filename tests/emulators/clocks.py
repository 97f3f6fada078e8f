"""Clocks of emulators in the test's own process."""

from __future__ import annotations

__all__ = ["SkippingClock"]


class SkippingClock:
    """A clock of the emulator on which waiting takes no real time."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def real_s(self, emulated_s: float) -> float:
        self.at_s += emulated_s
        return 0.0
