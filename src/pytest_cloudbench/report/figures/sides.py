"""The figure of two sides that were measured in turns: the change of B against A in each metric, with its interval.

``report.versus`` chooses the metrics and their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report import versus
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.scales import Linear, Scale
from pytest_cloudbench.report.svg import Canvas, Plane, shorten_text

_ROW_HEIGHT, _GAP = 34.0, 52.0
_LARGE_CHANGE = 0.5
"""If a change is larger than this share, the axis is logarithmic."""

_LEGEND = (("d0", "change"), ("line s0 solid", "its interval"), ("band", "below the margin"))
_HEAD = ("metric", "A", "B", "change", "from", "to", "margin", "unit", "pairs", "answer")


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of one metric of B against A, as fractions. None is unknown, or an interval without an end."""

    name: str
    answer: str
    change: float | None
    low: float | None
    high: float | None
    margin: float
    is_points: bool


@dataclass(frozen=True, slots=True)
class _Axis:
    """The horizontal axis of changes. It is logarithmic if a change is large."""

    is_log: bool
    reach: float

    def position(self, change: float) -> float:
        """Return the position of a change on the axis."""
        return log1p(max(change, -0.9999)) if self.is_log else change

    def visible_end(self, end: float | None) -> float | None:
        """Return the position of an interval's end, or None if it is beyond the axis."""
        return self.position(end) if end is not None and abs(self.position(end)) <= self.reach else None

    def make_scale(self) -> Scale:
        """Return a scale with ticks at round changes."""
        return (_Ratios if self.is_log else Linear)(-self.reach, self.reach, _format_signed, fixed=True)


class _Ratios(Linear):
    """A scale for logarithms of ratios with changes as labels. Half is as far from 0 as double."""

    def ticks(self, limit: int) -> list[tuple[float, str]]:
        """See ``Scale``."""
        for base in (1.25, 1.5, 2, 5, 10, 100, 1000):
            count = int(self.high / log(base))
            if 2 * count < limit:
                break
        return [(log(base) * power, self.text(float(base) ** power - 1)) for power in range(-count, count + 1)]


def _choose_axis(changes: Sequence[_Change]) -> _Axis:
    """Return an axis that contains all changes, and the intervals that are not much longer."""
    is_log = not changes[0].is_points and any(abs(change.change or 0.0) > _LARGE_CHANGE for change in changes)
    axis = _Axis(is_log, 0.0)
    near = max(abs(axis.position(value)) for change in changes for value in (change.change or 0.0, change.margin)) * 1.2
    ends = [
        abs(axis.position(end)) * 1.05 for change in changes for end in (change.low, change.high) if end is not None
    ]
    return _Axis(is_log, max([near, *(min(end, 2.5 * near) for end in ends)]))


def between_sides(measurement: Measurement) -> Figure | None:
    """Return the figure of a comparison, or None if its form is unknown or nothing was compared."""
    try:
        changes, numbers = _read_changes(measurement.versus or {})
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    if not changes:
        return None
    parts = [part for part in ([change for change in changes if not change.is_points],
                               [change for change in changes if change.is_points]) if part]  # fmt: skip

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"B against A: {measurement.subject}")
        top = canvas.draw_legend(6, 14, _LEGEND, width - 4) + 20
        for part in parts:
            top = _draw_changes(canvas, part, top, width) + _GAP
        canvas.height = top - _GAP + 40
        return canvas

    description = (
        "A mark is how far B is from A; its interval says how certain that is. If an interval contains zero, the sides "
        "may be equal; if it is inside the band, they differ by less than matters. An arrow: it goes on beyond the "
        "axis."
    )
    return Figure("b-against-a", "B against A", description, draw, _HEAD, numbers)


def _read_changes(comparison: Mapping[str, Any]) -> tuple[list[_Change], list[list[object]]]:
    """Return the changes of a comparison and a table of numbers. Raises any error of reading an unknown form."""
    changes, numbers = list[_Change](), list[list[object]]()
    for name, *_, answer in versus.comparison_cells(comparison):
        difference = comparison["differences"][name]
        change, low, high = (_finite_or_none(difference[key]) for key in ("change", "low", "high"))
        changes.append(
            _Change(
                name,
                str(difference["answer"]),
                change,
                low,
                high,
                float(difference["margin"]),
                bool(difference["is_points"]),
            )
        )
        unit = "fraction, B - A" if difference["is_points"] else "fraction, B / A - 1"
        numbers.append(
            [
                name,
                difference["a"],
                difference["b"],
                change,
                low,
                high,
                difference["margin"],
                unit,
                difference.get("pairs"),
                answer,
            ]
        )
    return changes, numbers


def _finite_or_none(value: object) -> float | None:
    return float(value) if is_finite(value) else None  # type: ignore[arg-type]  # finite says that it is a number


def _draw_changes(canvas: Canvas, changes: Sequence[_Change], top: float, width: int) -> float:
    """Draw metrics of one unit below each other. Return the lower end of their plane."""
    left, axis = min(190.0, width * 0.42), _choose_axis(changes)
    unit = " points" if changes[0].is_points else " %"
    x, y = axis.make_scale(), Linear(0, len(changes), fixed=True)
    plane = Plane(canvas, x, y, left, top, width - 14, top + _ROW_HEIGHT * len(changes))
    for value, label in x.ticks(max(6, int((plane.right - plane.left) / 44))):
        canvas.add_element(f'<path d="M{plane.canvas_x(value):.1f} {top:.1f}V{plane.bottom + 4:.1f}" class="grid"/>')
        canvas.draw_text(plane.canvas_x(value), plane.bottom + 17, label, anchor="middle")
    plane.draw_rule(x=0.0, style="base")
    canvas.draw_text(plane.right, plane.bottom + 34, f"change of B against A,{unit}", "axis", "end")
    for index, change in enumerate(changes):
        row_y = len(changes) - index - 0.5
        plane.draw_bar(axis.position(-change.margin), axis.position(change.margin), row_y - 0.3, row_y + 0.3, "band")
        canvas.draw_text(
            left - 8, plane.canvas_y(row_y) - 2, shorten_text(change.name.replace("_", " "), left - 10), "value", "end"
        )
        canvas.draw_text(left - 8, plane.canvas_y(row_y) + 12, shorten_text(change.answer, left - 10), anchor="end")
        if change.change is None:
            continue
        plane.draw_x_interval(axis.visible_end(change.low), axis.visible_end(change.high), row_y, "s0")
        plane.draw_dot(
            axis.position(change.change),
            row_y,
            0,
            f"{change.name}: {_format_signed(change.change)}{unit}, {change.answer}",
        )
    return plane.bottom


def _format_signed(change: float) -> str:
    """Return a change in percent or points, without the unit."""
    if not round(change, 9):
        return "0"
    return f"{change * 100:+,.0f}" if abs(change) >= 1 else f"{change * 100:+.4g}"
