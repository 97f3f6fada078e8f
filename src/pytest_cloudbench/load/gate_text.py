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
    """One line: the metric, how much worse it is, and against how many runs, or why that is not known."""
    check, change = ruling.check, brief(ruling)
    runs = f"{len(check.baseline)} runs"
    said = ""
    if ruling.why.startswith("baseline "):  # what it was is not known well enough to be told
        pass
    elif check.kind == "yes" and check.baseline:
        said = _capability_text(ruling)
    elif ruling.change is not None:
        said = f"{change} worse than {runs}" if ruling.change >= 0 else f"better than {runs}, {change}"
    return ": ".join(filter(None, (check.metric, said, ruling.why)))


def _capability_text(ruling: Ruling) -> str:
    """What a capability was in how many runs, and what it is."""
    check, count = ruling.check, len(ruling.check.baseline)
    were = sum(each.value == 1 for each in check.baseline)
    was = f"no in {count} runs" if not were else f"yes in {count} runs" if were == count else (
        f"yes in {were} of {count} runs"
    )  # fmt: skip
    now = check.now.value if ruling.value is None else ruling.value
    return f"was {was}, and is {'not known' if now is None else 'yes' if now == 1 else 'no'}"


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
