"""Differences between measured and published values, and the bounds that apply to them.

The terminal's table, ``cloudbench published`` and the report use these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_cloudbench.judge.baseline import find_number, is_finite
from pytest_cloudbench.judge.expect import ClaimBounds, find_bounds
from pytest_cloudbench.judge.metrics import IS_YES
from pytest_cloudbench.report.quantities import (
    UNKNOWN,
    format_number,
    format_points,
    format_share,
    format_with_unit,
    unit_of,
)

NO_BOUND = "no bound"


def format_distance(measured: float | None, published: float, unit: str) -> str:
    """Return the difference of shares in points, that of verdicts in words, and otherwise the ratio if there is one.

    ``unit`` is a unit of ``METRICS``, or of a published table, in which shares are in percent.
    """
    if measured is None:
        return UNKNOWN
    if unit in ("%", "fraction"):
        return format_points((measured - published) / (100 if unit == "%" else 1))
    if unit in ("yes/no", IS_YES):
        return "same" if bool(measured) == bool(published) else "other"
    if published <= 0:
        return UNKNOWN
    ratio = measured / published
    return f"{ratio:.2f} x" if ratio >= 0.1 or not ratio else f"{format_number(ratio)} x"


def format_bounds(bounds: ClaimBounds | None, unit: str) -> str:
    """Return the allowed range: ``at most 16 %``, ``10 % to 45 %``, or ``no bound``."""
    if bounds is None:
        return NO_BOUND
    low, high = (None if bound is None else _format_bound(bound, unit) for bound in (bounds.at_least, bounds.at_most))
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def _format_bound(bound: float, unit: str) -> str:
    if unit in ("%", "fraction"):
        return format_share(bound / (100 if unit == "%" else 1)).replace(".00 %", " %")
    if unit in ("yes/no", IS_YES):
        return "yes" if bound else "no"
    return format_with_unit(bound, unit) if unit in ("s", "bytes", "bytes/s") else format_number(bound, 6)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured and a published value as text, with their distance and the allowed range."""

    title: str
    measured: str
    published: str
    distance: str
    allowed: str

    @property
    def line(self) -> str:
        """The comparison in one line."""
        values = f"published {self.published}, measured {self.measured}"
        return f"{self.title}: {values}: {self.distance}, allowed: {self.allowed}"


def compare_with_published(info: Mapping[str, Any]) -> Iterator[Comparison]:
    """Yield a comparison for each number of an entry for which a published value is known."""
    published = info.get("published")
    for name, value in published.items() if isinstance(published, Mapping) else ():
        if name not in info or isinstance(value, bool) or not is_finite(value):
            continue
        measured = find_number(info, name)
        if measured is None and info[name] is not None:
            continue
        unit = unit_of(name)
        yield Comparison(
            name.replace("_", " ").removesuffix(" s"), format_with_unit(measured, unit), format_with_unit(value, unit),
            format_distance(measured, value, unit), format_bounds(find_bounds(info.get("expectations"), name), unit),
        )  # fmt: skip
