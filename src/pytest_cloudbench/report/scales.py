"""From values to places: the axes of figures, with ticks that people read.

What may live here: how values are spread over an axis, which of them are labelled, and how a label is written. Pure
functions; ``svg`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, isfinite, log10
from typing import Protocol

from pytest_cloudbench.report.quantities import format_number, format_short_share

_Tick = tuple[float, str]


class Scale(Protocol):
    """Places values between 0 and 1, the ends of an axis."""

    def at(self, value: float) -> float:
        """Return where a value is; beyond the ends, the nearer end."""

    def ticks(self, most: int) -> list[_Tick]:
        """Return at most ``most`` values with their labels."""


def _clamped(share: float) -> float:
    return 0.0 if share < 0 else 1.0 if share > 1 else share


class Linear:
    """Equal differences are equally far apart. The ends are rounded outwards to ticks unless they are ``fixed``."""

    def __init__(
        self, low: float, high: float, text: Callable[[float], str] = format_number, *, fixed: bool = False
    ) -> None:
        if not (isfinite(low) and isfinite(high)) or high <= low:
            low, high = (low, low + 1.0) if isfinite(low) else (0.0, 1.0)
        self.text, self.step = text, _step((high - low) / 5)
        self.low = low if fixed else floor(low / self.step + 1e-9) * self.step
        self.high = high if fixed else ceil(high / self.step - 1e-9) * self.step

    def at(self, value: float) -> float:
        """See ``Scale``."""
        return _clamped((value - self.low) / (self.high - self.low))

    def ticks(self, most: int) -> list[_Tick]:
        """See ``Scale``."""
        step = _step((self.high - self.low) / max(1, most - 1))
        first = ceil(self.low / step - 1e-9)
        values = [number * step for number in range(first, floor(self.high / step + 1e-9) + 1)]
        return [(value, self.text(value)) for value in values]


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20... that is not below ``least``."""
    power: float = 10.0 ** floor(log10(least))
    return next((power * factor for factor in (1, 2, 5) if power * factor >= least * (1 - 1e-9)), power * 10)


class Log:
    """Equal ratios are equally far apart."""

    def __init__(self, low: float, high: float, text: Callable[[float], str] = format_number) -> None:
        low = low if low > 0 else high / 1000 if high > 0 else 0.001
        high = max(high, low * 1.5)
        self.text, self._low, self._high = text, log10(low), log10(high)

    def at(self, value: float) -> float:
        """See ``Scale``. What is not above zero is at the lower end."""
        return 0.0 if value <= 0 else _clamped((log10(value) - self._low) / (self._high - self._low))

    def ticks(self, most: int) -> list[_Tick]:
        """See ``Scale``."""
        first, last = floor(self._low - 1e-9), ceil(self._high + 1e-9)
        for factors in ((1, 2, 5), (1, 3), (1,)):
            values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
            inside = [each for each in values if self._low - 1e-9 <= log10(each) <= self._high + 1e-9]
            if len(inside) <= most:
                break
        else:
            inside = inside[:: ceil(len(inside) / most)]
        return [(value, self.text(value)) for value in inside]


class Tail:
    """Shares from 0 to just below 1; each further nine is as far from the one before (0, 90, 99, 99.9 %...).

    ``most`` is the largest share to be shown.
    """

    def __init__(self, most: float) -> None:
        self._end = max(1.0, -log10(1 - min(most, 1 - 1e-9)))

    def at(self, value: float) -> float:
        """See ``Scale``."""
        return 1.0 if value >= 1 else _clamped(-log10(1 - value) / self._end)

    def ticks(self, most: int) -> list[_Tick]:
        """See ``Scale``."""
        shares = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
        inside = [share for share in shares if -log10(1 - share) <= self._end + 1e-9]
        return [(share, format_short_share(share)) for share in inside[-most:]]


class Categories:
    """Names side by side, each in the middle of its step. A value is a name's number, from 0."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def at(self, value: float) -> float:
        """See ``Scale``."""
        return _clamped((value + 0.5) / max(1, len(self.names)))

    def ticks(self, most: int) -> list[_Tick]:
        """See ``Scale``."""
        every = max(1, ceil(len(self.names) / most))
        return [(float(number), name) for number, name in enumerate(self.names) if number % every == 0]
