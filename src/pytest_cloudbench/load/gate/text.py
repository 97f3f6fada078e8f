"""What the regression gate says: rulings, and differences of two sides, as texts.

What may live here: numbers into short lines.
"""

from __future__ import annotations

from math import expm1, isfinite

from pytest_cloudbench.judge.drift import DriftState
from pytest_cloudbench.judge.gate import Ruling
from pytest_cloudbench.judge.paired import Difference


def brief(ruling: Ruling) -> str:
    """The change and its interval, such as ``+31 % (+22 to +41 %)``; empty if it is not known."""
    if ruling.check.kind == "fact":
        return _count_text(ruling) if ruling.answer == "broken" else ""
    if ruling.change is None:
        return ""
    if ruling.low is None or ruling.high is None or ruling.low == ruling.high:
        return f"{_signed(ruling.change)} {_unit(ruling)}"
    return _with_interval(ruling.change, ruling.low, ruling.high, _unit(ruling))


def ruling_text(ruling: Ruling) -> str:
    """One line: the metric, how much worse it is, and against how many runs, or why that is not known."""
    check, change = ruling.check, brief(ruling)
    runs = f"{len(check.baseline)} runs"
    text = ""
    if ruling.why.startswith("baseline "):  # what it was is not known well enough to be told
        pass
    elif check.kind == "fact":
        text = change
    elif ruling.course is not None and not ruling.is_significant:
        text = _course_text(ruling.course)
    elif check.kind == "yes" and check.baseline:
        text = _capability_text(ruling)
    elif ruling.change is not None:
        text = f"{change} worse than {runs}" if ruling.change >= 0 else f"better than {runs}, {change}"
        text += f"; {_incident_text(ruling)}" if ruling.first is not None and ruling.answer == "broken" else ""
        text += f"; {_course_text(ruling.course)}" if ruling.course is not None else ""
    return ": ".join(filter(None, (check.metric, text, ruling.why)))


def remarks_of(ruling: Ruling) -> list[str]:
    """Returns what else a reader must know of a metric, whatever the answer: a line each."""
    check, lines = ruling.check, list[str]()
    if ruling.is_quarantined:
        lines.append(f"{check.metric}: {_incident_text(ruling)}: this run is no baseline")
    if ruling.left_out:
        runs = ", ".join(f"{run or 'a run'} ({_signed(change)} {_unit(ruling)})" for run, change in ruling.left_out)
        lines.append(f"{check.metric}: left out of the baseline, too far from its other runs: {runs}")
    if check.since and check.improved is not None and not check.is_before:
        lines.append(
            f"{check.metric}: improved by {-check.improved * 100:.0f} % at {check.since}, where the baseline begins"
        )
    return lines


def _incident_text(ruling: Ruling) -> str:
    """What this run was, and what measuring it again said."""
    check = ruling.check
    again = [reading for reading in check.again if reading.value is not None]
    if check.kind == "rate":
        count, of = sum(reading.count for reading in again), sum(reading.of for reading in again)
        return f"an incident, {check.now.count:,} of {check.now.of:,} in the run, {count:,} of {of:,} when repeated"
    unit, first, later = _unit(ruling), _signed(ruling.first or 0.0), _signed(ruling.change or 0.0)
    return f"{first} {unit} in the run, {later} {unit} when repeated"


def _count_text(ruling: Ruling) -> str:
    now = ruling.check.now
    return f"{now.count:,} of {now.of:,}" if now.of else f"{now.count:,}"


def _course_text(course: DriftState) -> str:
    """How an open regression stands: how far it has come since the accepted state, how fast, and since when."""
    slope = (
        f"{_signed(expm1(course.slope))} % a run ({_signed(expm1(course.slope_low))} to "
        f"{_signed(expm1(course.slope_high))} %)"
    )
    since = f"since {course.since}" if course.since else "with this run"
    text = f"an open regression {since}, {_signed(expm1(course.change))} % worse than the accepted state"
    text += f", {slope} over {course.runs} runs"
    return text if course.is_worse else f"{text}; the last runs are better, but it is not sure that it is gone"


def _unit(ruling: Ruling) -> str:
    return "points" if ruling.check.kind == "rate" else "%"


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
