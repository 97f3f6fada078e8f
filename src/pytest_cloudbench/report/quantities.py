"""Formats and rounding of numbers for every table, caption and figure.

A duration, size or rate has three significant digits, and from 1,000 on all digits before the point. Other numbers have
four, since a ratio such as 1.004 would become 1 otherwise. An unknown value is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, log10
from typing import Any

from pytest_cloudbench.judge.metrics import IS_YES, find_metric

UNKNOWN = "-"

_UNITS_BY_END = {
    "_per_s": "", "_s": "s", "_bytes": "bytes", **dict.fromkeys(("share", "deviation", "noise"), "fraction"),
}  # fmt: skip
"""The units of numbers that have no row in ``METRICS``, by the ends of their names (docs/extending/metric.md)."""


def format_number(value: float, digits: int = 3) -> str:
    """Return a number with ``digits`` significant digits and no trailing zeros, never with an exponent.

    All digits before the point are there: ``21,370`` is neither ``2.137e+04`` nor ``21,400``.
    """
    text = f"{value:,.{digits}g}"
    if "e" not in text:
        return text
    if abs(value) >= 1:
        return f"{value:,.0f}"
    decimals = digits - 1 - floor(log10(abs(value)))
    return f"{value:.{decimals}f}".rstrip("0")


def format_seconds(value: float) -> str:
    """Return a duration in the unit that suits it: ``850 us``, ``12 ms``, ``1.5 s``, ``3 min``."""
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if abs(value) < limit * 0.9995:
            return f"{format_number(value * factor)} {unit}"
    return f"{format_number(value / 3600)} h"


def format_milliseconds(value: float) -> str:
    """Return a duration in milliseconds without the unit, for a column whose title names it."""
    return format_number(value * 1e3)


def format_bytes(value: float) -> str:
    """Return a number of bytes in powers of 1,000: ``5.12 kB``, ``100 MB``."""
    for limit, factor, unit in ((1e3, 1.0, "B"), (1e6, 1e-3, "kB"), (1e9, 1e-6, "MB")):
        if abs(value) < limit * 0.9995:
            return f"{format_number(value * factor)} {unit}"
    return f"{format_number(value * 1e-9)} GB"


def format_chosen_size(size_bytes: int) -> str:
    """Return the size of a test's parameter exactly, in its usual unit: ``512 KiB``, ``10 MB``, ``10,001 B``."""
    for factor, unit in ((10**9, "GB"), (2**30, "GiB"), (10**6, "MB"), (2**20, "MiB"), (10**3, "kB"), (2**10, "KiB")):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor:,} {unit}"
    return f"{size_bytes:,} B"


def format_megabytes(value: float) -> str:
    """Return a rate in MB/s without the unit, for a column whose title names it."""
    return format_number(value / 1e6)


def format_share(value: float) -> str:
    """Return a fraction as a percentage with two decimals, or more where they matter: ``99.998 %`` is not all.

    More are shown from 99 % on, and where two would show a value above zero as zero, or one below 100 % as all.
    """
    from_end = min(abs(value), abs(1 - value)) * 100
    places = 4 if 0 < abs(value) < 0.00005 or 0.99 < value < 1 else 2
    if places == 4 and 0 < from_end < 0.00005:
        places = 1 - floor(log10(from_end))
    text = f"{value * 100:.{places}f}"
    head, _, decimals = text.partition(".")
    return f"{head}.{decimals[:2]}{decimals[2:].rstrip('0')} %"


def format_short_share(value: float) -> str:
    """Return the same percentage without trailing zeros, for axes and sentences: ``50 %``."""
    return f"{format_share(value).removesuffix(' %').rstrip('0').rstrip('.')} %"


def format_points(difference: float) -> str:
    """Return the difference of two fractions in percentage points: ``+6.00 points``, ``+0.002 points``."""
    points = round(difference * 100, 9) or 0.0  # without the errors of floats, and without -0.0
    places = 2 if abs(points) >= 0.005 or not points else -floor(log10(abs(points)))
    return f"{points:+.{places}f} points"


def format_with_unit(value: float | None, unit: str) -> str:
    """Return a value in a unit of ``METRICS``. An unknown unit is appended to the number."""
    if value is None:
        return UNKNOWN
    if unit == IS_YES:
        return "yes" if value else "no"
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    return f"{format_number(value, 4)} {unit}".rstrip()


def format_parameter(name: str, value: Any) -> str:
    """Return the value of a test's parameter. A parameter whose name ends in ``_bytes`` is a size."""
    is_size = name.endswith("_bytes") and isinstance(value, int) and not isinstance(value, bool)
    return format_chosen_size(value) if is_size else format_value(value)


def unit_of(name: str) -> str:
    """Return the unit of a metric, or of another number by the end of its name. Empty if there is none."""
    row = find_metric(name)
    if row is not None:
        return row.unit
    return next((unit for end, unit in _UNITS_BY_END.items() if name.endswith(end)), "")


def format_metric(value: float | None, metric: str) -> str:
    """Return the value of a metric or another number of an entry, with its unit."""
    row = find_metric(metric)
    return format_with_unit(value, row.unit if row is not None else "")


def format_value(value: Any) -> str:
    """Return any value of an entry for a cell of a table. None and empty collections are a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value, 4)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items()) or UNKNOWN
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(format_value, value)) or UNKNOWN
    return UNKNOWN if value is None else str(value)


_FORMATS: Mapping[str, Callable[[float], str]] = {
    "s": format_seconds, "fraction": format_share, "bytes": format_bytes,
    "bytes/s": lambda value: f"{format_megabytes(value)} MB/s",
}  # fmt: skip
