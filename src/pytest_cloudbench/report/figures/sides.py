"""Two sides that were measured in turns: how far B is from A in each metric, with the interval of that.

What may live here: the figure of a stored comparison. What is shown of it and its words are ``report.versus``'s.
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
from pytest_cloudbench.report.svg import Canvas, Plane, shortened

_ROW, _GAP = 34.0, 52.0
_FAR = 0.5
"""Beyond such a change, as a share, ratios say more than differences."""

_LEGEND = (("d0", "change"), ("line s0 solid", "its interval"), ("band", "below the margin"))
_HEAD = ("metric", "A", "B", "change", "from", "to", "margin", "unit", "pairs", "answer")


@dataclass(frozen=True, slots=True)
class _Change:
    """One metric: of B against A, fractions or shares; None: not known, or without an end."""

    name: str
    answer: str
    change: float | None
    low: float | None
    high: float | None
    margin: float
    is_points: bool


@dataclass(frozen=True, slots=True)
class _Axis:
    """From changes to places: equal changes are equally far apart, or equal ratios if one is far from 1."""

    is_log: bool
    reach: float

    def of(self, change: float) -> float:
        """Return what is placed for a change."""
        return log1p(max(change, -0.9999)) if self.is_log else change

    def inside(self, end: float | None) -> float | None:
        """Return an end of an interval; None if it is beyond the axis."""
        return self.of(end) if end is not None and abs(self.of(end)) <= self.reach else None

    def scale(self) -> Scale:
        """Return the scale, with ticks at round changes."""
        return (_Ratios if self.is_log else Linear)(-self.reach, self.reach, _signed, fixed=True)


class _Ratios(Linear):
    """Logarithms of ratios, with the changes that they are as labels: halved is as far from 0 as doubled."""

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """See ``Scale``."""
        for base in (1.25, 1.5, 2, 5, 10, 100, 1000):
            count = int(self.high / log(base))
            if 2 * count < most:
                break
        return [(log(base) * power, self.text(float(base) ** power - 1)) for power in range(-count, count + 1)]


def _axis(changes: Sequence[_Change]) -> _Axis:
    """Return an axis on which every change has a place, and intervals that are not much longer."""
    is_log = not changes[0].is_points and any(abs(each.change or 0.0) > _FAR for each in changes)
    axis = _Axis(is_log, 0.0)
    near = max(abs(axis.of(value)) for each in changes for value in (each.change or 0.0, each.margin)) * 1.2
    ends = [abs(axis.of(end)) * 1.05 for each in changes for end in (each.low, each.high) if end is not None]
    return _Axis(is_log, max([near, *(min(end, 2.5 * near) for end in ends)]))


def between_sides(each: Measurement) -> Figure | None:
    """Return the figure of a comparison; None if it has another form, or nothing was compared."""
    try:
        changes, numbers = _changes(each.versus or {})
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    if not changes:
        return None
    parts = [part for part in ([each for each in changes if not each.is_points],
                               [each for each in changes if each.is_points]) if part]  # fmt: skip

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"B against A: {each.subject}", said)
        top = canvas.legend(6, 14, _LEGEND, width - 4) + 20
        for part in parts:
            top = _draw(canvas, part, top, width) + _GAP
        canvas.height = top - _GAP + 40
        return canvas

    said = (
        "A mark is how far B is from A; its interval says how certain that is. If an interval contains zero, the sides "
        "may be equal; if it is inside the band, they differ by less than matters. An arrow: it goes on beyond the "
        "axis."
    )
    return Figure("b-against-a", "B against A", said, draw, _HEAD, numbers)


def _changes(told: Mapping[str, Any]) -> tuple[list[_Change], list[list[object]]]:
    """Return what a comparison shows, and the numbers behind it. Raises what reading another form raises."""
    changes, numbers = list[_Change](), list[list[object]]()
    for name, *_, answer in versus.cells(told):
        of = told["differences"][name]
        change, low, high = (_number(of[key]) for key in ("change", "low", "high"))
        changes.append(_Change(name, str(of["answer"]), change, low, high, float(of["margin"]), bool(of["is_points"])))
        unit = "fraction, B - A" if of["is_points"] else "fraction, B / A - 1"
        numbers.append([name, of["a"], of["b"], change, low, high, of["margin"], unit, of.get("pairs"), answer])
    return changes, numbers


def _number(value: object) -> float | None:
    return float(value) if is_finite(value) else None  # type: ignore[arg-type]  # finite says that it is a number


def _draw(canvas: Canvas, changes: Sequence[_Change], top: float, width: int) -> float:
    """Draw metrics of one unit below each other. Returns where their plane ends."""
    left, axis = min(190.0, width * 0.42), _axis(changes)
    unit = " points" if changes[0].is_points else " %"
    x, y = axis.scale(), Linear(0, len(changes), fixed=True)
    plane = Plane(canvas, x, y, left, top, width - 14, top + _ROW * len(changes))
    for value, label in x.ticks(max(6, int((plane.right - plane.left) / 44))):
        canvas.add(f'<path d="M{plane.px(value):.1f} {top:.1f}V{plane.bottom + 4:.1f}" class="grid"/>')
        canvas.text(plane.px(value), plane.bottom + 17, label, anchor="middle")
    plane.rule(x=0.0, style="base")
    canvas.text(plane.right, plane.bottom + 34, f"change of B against A,{unit}", "axis", "end")
    for place, each in enumerate(changes):
        at = len(changes) - place - 0.5
        plane.bar(axis.of(-each.margin), axis.of(each.margin), at - 0.3, at + 0.3, "band")
        canvas.text(left - 8, plane.py(at) - 2, shortened(each.name.replace("_", " "), left - 10), "value", "end")
        canvas.text(left - 8, plane.py(at) + 12, shortened(each.answer, left - 10), anchor="end")
        if each.change is None:
            continue
        plane.span(axis.inside(each.low), axis.inside(each.high), at, "s0")
        plane.dot(axis.of(each.change), at, 0, f"{each.name}: {_signed(each.change)}{unit}, {each.answer}")
    return plane.bottom


def _signed(change: float) -> str:
    """Return a change in percent or points, without the unit."""
    if not round(change, 9):
        return "0"
    return f"{change * 100:+,.0f}" if abs(change) >= 1 else f"{change * 100:+.4g}"
