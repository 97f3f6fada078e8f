"""What the regression gate says: rulings, and differences of two sides, as texts.

What may live here: numbers into short lines.
"""

from __future__ import annotations

from math import isfinite

from pytest_cloudbench.judge.gate import Ruling
from pytest_cloudbench.judge.paired import Difference

__all__ = ["brief", "difference_text", "ruling_text"]


def brief(ruling: Ruling) -> str:
    """The change and its interval, such as ``+31 % (+22 to +41 %)``; empty if it is not known."""
    if ruling.change is None:
        return ""
    unit = "points" if ruling.check.kind == "rate" else "%"
    if ruling.low is None or ruling.high is None or ruling.low == ruling.high:
        return f"{_signed(ruling.change)} {unit}"
    return _with_interval(ruling.change, ruling.low, ruling.high, unit)


def ruling_text(ruling: Ruling) -> str:
    """One line: the metric, how much worse it is, and against how many runs, or why nobody can tell."""
    check, change = ruling.check, brief(ruling)
    said = f"{check.metric}: {change} worse than" if change else f"{check.metric}: against"
    if check.kind == "yes":
        said = f"{check.metric}: was yes, and is {'yes' if check.now.value == 1 else 'no'}, in"
    runs = f"{said} {len(check.baseline)} runs"
    return f"{runs}: {ruling.why}" if ruling.why else runs


def difference_text(each: Difference) -> str:
    """B against A in one metric, such as ``quiet_p50 +98 % (+80 to +118 %), margin 10 %``, or why it is not known."""
    unit = "points" if each.is_points else "%"
    margin = f"margin {each.margin * 100:g} {unit}"
    if not isfinite(each.change):
        return f"{each.metric} is not known ({each.why}), {margin}"
    return f"{each.metric} {_with_interval(each.change, each.low, each.high, unit)}, {margin}"


def _with_interval(change: float, low: float, high: float, unit: str) -> str:
    return f"{_signed(change)} {unit} ({_signed(low)} to {_signed(high)} {unit})"


def _signed(value: float) -> str:
    """As percent, or points."""
    number = value * 100
    if not isfinite(number):
        return "+inf" if number > 0 else "-inf"
    return f"{number:+.1f}" if abs(number) < 10 else f"{number:+,.0f}"
