"""What the regression gate says: rulings as texts.

What may live here: numbers into short lines.
"""

from __future__ import annotations

from math import isfinite

from pytest_cloudbench.judge.gate import Ruling

__all__ = ["brief", "ruling_text"]


def brief(ruling: Ruling) -> str:
    """The change and its interval, such as ``+31 % (+22 to +41 %)``; empty if it is not known."""
    if ruling.change is None:
        return ""
    is_rate = ruling.check.kind == "rate"
    unit = "points" if is_rate else "%"
    change = f"{_signed(ruling.change)} {unit}"
    if ruling.low is None or ruling.high is None or ruling.low == ruling.high:
        return change
    return f"{change} ({_signed(ruling.low)} to {_signed(ruling.high)} {unit})"


def ruling_text(ruling: Ruling) -> str:
    """One line: the metric, how much worse it is, and against how many runs, or why nobody can tell."""
    check, change = ruling.check, brief(ruling)
    said = f"{check.metric}: {change} worse than" if change else f"{check.metric}: against"
    if check.kind == "yes":
        said = f"{check.metric}: was yes, and is {'yes' if check.now.value == 1 else 'no'}, in"
    runs = f"{said} {len(check.baseline)} runs"
    return f"{runs}: {ruling.why}" if ruling.why else runs


def _signed(value: float) -> str:
    """As percent, or points."""
    number = value * 100
    if not isfinite(number):
        return "+inf" if number > 0 else "-inf"
    return f"{number:+.1f}" if abs(number) < 10 else f"{number:+,.0f}"
