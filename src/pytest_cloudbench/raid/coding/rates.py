"""The observed transfer rate of each child: exponentially weighted, in the caller's time.

What may live here: turning observations into bytes per second. The caller has the clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

_MOST_PLAUSIBLE = 1e18
"""Bytes and seconds beyond this are a mistake, and their sums would become infinite."""


class ObservedRate:
    """The rate of one direction of one child: bytes moved over busy seconds, both halved after each half-life.

    It is a quotient of sums, not a mean of quotients. A transfer counts by its bytes, so many small objects, which
    mostly wait, do not hide the rate of a large one. Time in which several transfers run counts once, so transfers that
    share a line, or wait for each other, do not make it look slower. A constant rate is exact from the first
    observation on.

    Attributes:
        half_life_s: after this time, an observation weighs half.
    """

    __slots__ = ("_at_s", "_counted_until_s", "_moved_bytes", "_taken_s", "half_life_s")

    def __init__(self, half_life_s: float = 300.0) -> None:
        if not half_life_s > 0:
            raise ValueError(f"a half-life must be above 0 s, not {half_life_s}")
        self.half_life_s = half_life_s
        self._at_s = self._moved_bytes = self._taken_s = 0.0
        self._counted_until_s = -inf

    def observe(self, moved_bytes: int, taken_s: float, at_s: float) -> None:
        """Count one transfer that ended at ``at_s``. A transfer without bytes or time says nothing about a rate.

        An ``at_s`` before the last one (a clock that was set back) discards nothing.
        """
        if not (0 < moved_bytes < _MOST_PLAUSIBLE and 0 < taken_s < _MOST_PLAUSIBLE):
            return
        weight = 0.5 ** (max(0.0, at_s - self._at_s) / self.half_life_s) if self._taken_s else 0.0
        new_s = min(taken_s, max(0.0, at_s - self._counted_until_s)) if weight else taken_s
        self._counted_until_s = at_s if at_s < self._counted_until_s - taken_s else max(self._counted_until_s, at_s)
        self._moved_bytes = weight * self._moved_bytes + moved_bytes
        self._taken_s = weight * self._taken_s + new_s
        self._at_s = max(self._at_s, at_s) if weight else at_s

    @property
    def bytes_per_s(self) -> float | None:
        """The estimate, or None if nothing was observed."""
        return self._moved_bytes / self._taken_s if self._taken_s else None

    def plain(self) -> dict[str, float]:
        """Return the state as plain data, for a later process to restore."""
        return {"at_s": self._at_s, "moved_bytes": self._moved_bytes, "taken_s": self._taken_s}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Restore a state from ``plain``. Impossible numbers are ignored: rates are learned again."""
        try:
            at_s, moved_bytes, taken_s = (float(plain[name]) for name in ("at_s", "moved_bytes", "taken_s"))
        except (KeyError, TypeError, ValueError):
            return
        if isfinite(at_s) and 0 < moved_bytes < _MOST_PLAUSIBLE and 0 < taken_s < _MOST_PLAUSIBLE:
            self._at_s, self._moved_bytes, self._taken_s = at_s, moved_bytes, taken_s


class ChildRates:
    """The observed rates of some children in one direction, by their numbers."""

    def __init__(self, children: int, half_life_s: float = 300.0) -> None:
        self._rates = [ObservedRate(half_life_s) for _ in range(children)]

    def __getitem__(self, child: int) -> ObservedRate:
        return self._rates[child]

    def __len__(self) -> int:
        return len(self._rates)

    def observe(self, child: int, moved_bytes: int, taken_s: float, at_s: float) -> None:
        """Count one transfer of a child, see ``ObservedRate.observe``."""
        self._rates[child].observe(moved_bytes, taken_s, at_s)

    def observed_rates(self) -> Sequence[float | None]:
        """Return bytes per second of each child, None where nothing was observed."""
        return [rate.bytes_per_s for rate in self._rates]
