"""The regression gate's texts: short lines about rulings and about differences of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from pytest_cloudbench.judge.gate import Ruling
from pytest_cloudbench.judge.noise import share_of_log
from pytest_cloudbench.judge.paired import Difference
from pytest_cloudbench.support.wording import format_count


def change_text(ruling: Ruling) -> str:
    """Return the change and its interval, such as ``+31 % (+22 to +41 %)``. Empty if unknown."""
    if ruling.check.kind == "fact":
        return _count_text(ruling) if ruling.answer == "broken" else ""
    if ruling.change is None:
        return ""
    if ruling.low is None or ruling.high is None or ruling.low == ruling.high:
        return f"{_signed_text(ruling.change)} {_unit_text(ruling)}"
    return _interval_text(ruling.change, ruling.low, ruling.high, _unit_text(ruling))


def ruling_text(ruling: Ruling) -> str:
    """Return one line: the metric, and how much worse it is than in the former runs, or why that is unknown."""
    check, change = ruling.check, change_text(ruling)
    runs = format_count(len(check.baseline), "run")
    text = ""
    if ruling.why.startswith("baseline "):  # too few runs to describe the former state
        pass
    elif check.kind == "fact":
        text = change
    elif ruling.course is not None and not ruling.is_significant:
        text = _course_text(ruling)
    elif check.kind == "yes" and check.baseline:
        text = _capability_text(ruling)
    elif ruling.change is not None:
        text = f"{change} worse than {runs}" if ruling.change >= 0 else f"better than {runs}, {change}"
        text += f"; {_incident_text(ruling)}" if ruling.first is not None and ruling.answer == "broken" else ""
        text += f"; {_course_text(ruling)}" if ruling.course is not None else ""
    return ": ".join(filter(None, (check.metric, text, ruling.why)))


def exclusion_text(ruling: Ruling, left_out: Sequence[str]) -> str:
    """Return the end of a line: why repetitions do not count. ``left_out`` are the doubts of those that had some."""
    text, count = "", len(left_out)
    if count:
        text = f"; {format_count(count, 'repetition does', 'repetitions do')} not count: {left_out[0]}"
    unknown = sum(reading.value is None for reading in ruling.check.again) - count
    if unknown > 0:
        repetitions = format_count(unknown, "repetition had", "repetitions had")
        text += f"; {repetitions} too few operations for it, or a slower machine"
    return text


def remarks_of(ruling: Ruling) -> list[str]:
    """Return further remarks on a metric, whatever the answer, a line each."""
    check, lines = ruling.check, list[str]()
    if ruling.is_quarantined:
        lines.append(f"{check.metric}: {_incident_text(ruling)}: this run is no baseline")
    if ruling.left_out:
        runs = ", ".join(
            f"{run or 'a run'} ({_signed_text(change)} {_unit_text(ruling)})" for run, change in ruling.left_out
        )
        lines.append(f"{check.metric}: left out of the baseline, too far from its other runs: {runs}")
    if check.since and check.improved is not None and not check.is_before:
        lines.append(
            f"{check.metric}: improved by {abs(check.improved) * 100:.0f} % at {check.since}, where the baseline begins"
        )
    return lines


def _incident_text(ruling: Ruling) -> str:
    """Return the change in this run, and the change when it was measured again."""
    check = ruling.check
    again = [reading for reading in check.again if reading.value is not None]
    if check.kind == "rate":
        count, of = sum(reading.count for reading in again), sum(reading.of for reading in again)
        return f"an incident, {check.now.count:,} of {check.now.of:,} in the run, {count:,} of {of:,} when repeated"
    unit, first, later = _unit_text(ruling), _signed_text(ruling.first or 0.0), _signed_text(ruling.change or 0.0)
    return f"{first} {unit} in the run, {later} {unit} when repeated"


def _count_text(ruling: Ruling) -> str:
    now = ruling.check.now
    return f"{now.count:,} of {now.of:,}" if now.of else f"{now.count:,}"


def _course_text(ruling: Ruling) -> str:
    """Describe an open regression: its change since the accepted state, its slope, and its beginning."""
    course, unit = ruling.course, _unit_text(ruling)
    assert course is not None
    change, slope, low, high = (
        _signed_text(value if ruling.check.kind == "rate" else share_of_log(value))
        for value in (course.change, course.slope, course.slope_low, course.slope_high)
    )
    since = f"since {course.since}" if course.since else "with this run"
    text = f"an open regression {since}, {change} {unit} worse than the accepted state"
    text += f", {slope} {unit} a run ({low} to {high} {unit}) over {format_count(course.runs, 'run')}"
    return text if course.is_worse else f"{text}; the last runs are better, but it is not sure that it is gone"


def _unit_text(ruling: Ruling) -> str:
    return "points" if ruling.check.kind == "rate" else "%"


def _capability_text(ruling: Ruling) -> str:
    """Describe a capability: its former values with the number of runs, and its present one."""
    check, count = ruling.check, len(ruling.check.baseline)
    yes_count = sum(reading.value == 1 for reading in check.baseline)
    runs = format_count(count, "run")
    former_text = f"yes in {yes_count} of {runs}"
    if yes_count in (0, count):
        former_text = f"yes in {runs}" if yes_count else f"no in {runs}"
    now = check.now.value if ruling.value is None else ruling.value
    return f"was {former_text}, and is {'not known' if now is None else 'yes' if now == 1 else 'no'}"


def difference_text(difference: Difference) -> str:
    """Return the change from A to B in one metric, or the reason if it is unknown.

    An example is ``quiet_p50 +98 % (+80 to +118 %), margin 10 %``.
    """
    unit = "points" if difference.is_points else "%"
    margin = f"margin {difference.margin * 100:g} {unit}"
    if not isfinite(difference.change):
        return f"{difference.metric} is not known ({difference.why}), {margin}"
    return f"{difference.metric} {_interval_text(difference.change, difference.low, difference.high, unit)}, {margin}"


def loss_text(difference: Difference, share_of_b: float) -> str:
    """Return what B lost or changed, and how much of it is allowed."""
    return f"{difference.metric} of B is {share_of_b * 100:.3g} %, {difference.margin * 100:g} % is allowed"


def _interval_text(change: float, low: float, high: float, unit: str) -> str:
    return f"{_signed_text(change)} {unit} ({_signed_text(low)} to {_signed_text(high)} {unit})"


def _signed_text(value: float) -> str:
    """Format a ratio as percent or points."""
    number = value * 100
    if not isfinite(number):
        return "+inf" if number > 0 else "-inf"
    return f"{number:+.1f}" if abs(number) < 10 else f"{number:+,.0f}"
