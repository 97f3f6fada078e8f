"""Scales for the axes of figures, which map values to positions and choose ticks with labels.

``svg`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, isfinite, log10
from typing import Protocol

from pytest_cloudbench.report.quantities import format_number, format_short_share

_LEAST_POWER, _MOST_POWER = -307, 307
"""The powers of ten that a float holds with all its digits, and times five."""

_SHORTEST = 1e-300
"""The smallest difference of numbers that have a scale. Steps of shorter ones would be zero."""

_Tick = tuple[float, str]


class Scale(Protocol):
    """Maps values to positions between 0 and 1, the ends of an axis."""

    def position(self, value: float) -> float:
        """Return the position of a value. A value beyond the ends has the position of the nearer end."""

    def ticks(self, limit: int) -> list[_Tick]:
        """Return at most ``limit`` values with their labels."""


def _clamp_share(share: float) -> float:
    return 0.0 if share < 0 else 1.0 if share > 1 else share


class Linear:
    """A linear scale. Its ends are rounded outwards to ticks unless they are ``fixed``."""

    def __init__(
        self, low: float, high: float, text: Callable[[float], str] = format_number, *, fixed: bool = False
    ) -> None:
        if not (isfinite(low) and isfinite(high)) or high - low < _SHORTEST:
            low, high = (low, low + 1.0) if isfinite(low) else (0.0, 1.0)
        self.text, self.step = text, _round_step((high - low) / 5)
        self.low = low if fixed else floor(low / self.step + 1e-9) * self.step
        self.high = high if fixed else ceil(high / self.step - 1e-9) * self.step
        if self.high <= self.low:  # two numbers so close together that both are rounded to the same tick
            self.low, self.high, self.step = low, low + 1.0, 0.2

    def position(self, value: float) -> float:
        """See ``Scale``."""
        return _clamp_share((value - self.low) / (self.high - self.low))

    def ticks(self, limit: int) -> list[_Tick]:
        """See ``Scale``."""
        step = _round_step((self.high - self.low) / max(1, limit - 1))
        first = ceil(self.low / step - 1e-9)
        values = [number * step for number in range(first, floor(self.high / step + 1e-9) + 1)]
        return [(value, self.text(value)) for value in values]


def _round_step(lower_bound: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20... that is not below ``lower_bound``."""
    power: float = 10.0 ** floor(log10(lower_bound))
    return next((power * factor for factor in (1, 2, 5) if power * factor >= lower_bound * (1 - 1e-9)), power * 10)


class Log:
    """A logarithmic scale."""

    def __init__(self, low: float, high: float, text: Callable[[float], str] = format_number) -> None:
        low = low if low > 0 else high / 1000 if high > 0 else 0.001
        high = max(high, low * 1.5)
        self.text, self._low, self._high = text, log10(low), log10(high)

    def position(self, value: float) -> float:
        """See ``Scale``. Zero and negative values are at the lower end."""
        return 0.0 if value <= 0 else _clamp_share((log10(value) - self._low) / (self._high - self._low))

    def ticks(self, limit: int) -> list[_Tick]:
        """See ``Scale``."""
        for factors in ((1, 2, 5), (1, 3), (1,)):
            inside = self._values_inside(factors)
            if len(inside) <= limit:
                break
        else:
            inside = inside[:: ceil(len(inside) / limit)]
        if len(inside) < 2:  # a narrow scale
            low, high = 10**self._low, 10**self._high
            step = _round_step((high - low) / 5)
            inside = [step * number for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
            inside = inside[:: ceil(len(inside) / min(limit, 3))]
        return [(value, self.text(value)) for value in inside]

    def _values_inside(self, factors: Sequence[int]) -> list[float]:
        """Return the products of these factors and powers of ten that are on the scale, ascending."""
        first, last = max(floor(self._low - 1e-9), _LEAST_POWER), min(ceil(self._high + 1e-9), _MOST_POWER)
        values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        return [value for value in values if self._low - 1e-9 <= log10(value) <= self._high + 1e-9]


class Tail:
    """A scale for shares from 0 to just below 1, with equal distances for 0, 90, 99, 99.9 %...

    ``largest`` is the largest share on it.
    """

    def __init__(self, largest: float) -> None:
        self._end = max(1.0, -log10(1 - min(largest, 1 - 1e-9)))

    def position(self, value: float) -> float:
        """See ``Scale``."""
        return 1.0 if value >= 1 else _clamp_share(-log10(1 - value) / self._end)

    def ticks(self, limit: int) -> list[_Tick]:
        """See ``Scale``."""
        shares = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
        inside = [share for share in shares if -log10(1 - share) <= self._end + 1e-9]
        return [(share, format_short_share(share)) for share in inside[-limit:]]


class Categories:
    """A scale of names at equal distances. A value is the index of a name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def position(self, value: float) -> float:
        """See ``Scale``."""
        return _clamp_share((value + 0.5) / max(1, len(self.names)))

    def ticks(self, limit: int) -> list[_Tick]:
        """See ``Scale``."""
        stride = max(1, ceil(len(self.names) / limit))
        return [(float(number), name) for number, name in enumerate(self.names) if number % stride == 0]
