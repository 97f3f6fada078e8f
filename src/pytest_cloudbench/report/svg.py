"""Drawings as static SVG: a canvas, and planes on it with two scales and a few kinds of marks.

Nothing is external. Colours, dashes and patterns are classes of the page's style sheet (``data/report.css``), so that
one drawing serves light, dark and print, telephones and large screens. A screen reader reads the title and the figure's
description aloud. A page may have a thousand drawings, so what a drawing repeats is one path.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count, pairwise
from typing import Literal

from pytest_cloudbench.report.scales import Scale
from pytest_cloudbench.support.printable import printable

SERIES = 8
"""The number of series with their own colour, dash and marker."""

_CHARACTER_WIDTH = 6.9
"""Mean width of a character of the labels, in the drawing's units. Wide East Asian characters are twice as wide."""

_Point = tuple[float, float]
_drawing_numbers = count(1)


def text_width(text: str) -> float:
    """Return the approximate width of a label in the drawing's units."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text) * _CHARACTER_WIDTH


def shorten_text(text: object, room: float) -> str:
    """Return a printable text that fits into ``room`` units. A longer text is cut in its middle."""
    shown = printable(text)
    if text_width(shown) <= room:
        return shown
    half = max(2, int(room / _CHARACTER_WIDTH / 2) - 1)
    while half > 2 and text_width(shown[:half] + "\u2026" + shown[-half:]) > room:
        half -= 1
    return f"{shown[:half]}\u2026{shown[-half:]}"


def _coord(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """A drawing of a width and a height, with a title for screen readers.

    Attributes:
        name: its ID on the page. The ID of the element with its description ends in ``d``.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self.width, self.height, self._title = width, height, title
        self.name = f"g{next(_drawing_numbers)}"
        self._parts: list[str] = []

    def add_element(self, part: str) -> None:
        """Add an SVG element."""
        self._parts.append(part)

    def draw_text(
        self, x: float, y: float, text: object, style: str = "", anchor: Literal["start", "middle", "end"] = "start",
        *, turned: bool = False,
    ) -> None:  # fmt: skip
        """Draw a text, from bottom to top if it is ``turned``."""
        turn = f' transform="rotate(-90 {_coord(x)} {_coord(y)})"' if turned else ""
        styles = " ".join(filter(None, (style, "" if anchor == "start" else anchor)))
        name = f' class="{styles}"' if styles else ""
        self.add_element(f'<text x="{_coord(x)}" y="{_coord(y)}"{name}{turn}>{escape(printable(text))}</text>')

    def draw_box(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        """Draw a rectangle. ``tip`` is its tooltip."""
        size = f'x="{_coord(x)}" y="{_coord(y)}" width="{_coord(max(0.0, width))}" height="{_coord(max(0.0, height))}"'
        self.add_element(f'<rect {size} class="{style}"{_tooltip(tip)}/>')

    def draw_marker(self, x: float, y: float, series: int, tip: str = "") -> None:
        """Draw the marker of a series at a position. ``tip`` is its tooltip."""
        self.add_element(_marker_path(x, y, series, tip))

    def draw_legend(self, x: float, y: float, entries: Sequence[tuple[str, str]], right: float) -> float:
        """Draw the legend in as many lines as necessary. Return the y coordinate of the last line.

        ``entries`` are pairs of a style and a name. A style ``sN`` is a line with its marker, ``dN`` a marker,
        ``published`` a ring, ``rule`` or ``line ...`` a line, and any other style a box. The first line begins at
        ``x`` and ``y``, and lines end at ``right``.
        """
        entry_x = x
        for style, name in entries:
            shown = shorten_text(name, right - x - 30)
            entry_width = 26 + text_width(shown) + 12
            if entry_x > x and entry_x + entry_width - 12 > right:
                entry_x, y = x, y + 17
            if style[0] == "s" and style[1:].isdigit():
                self.add_element(f'<path d="M{_coord(entry_x)} {_coord(y - 4)}h20" class="line {style}"/>')
                self.add_element(_marker_path(entry_x + 10, y - 4, int(style[1:]), ""))
            elif style[0] == "d" and style[1:].isdigit():
                self.add_element(_marker_path(entry_x + 10, y - 4, int(style[1:]), ""))
            elif style == "rule" or style.startswith("line "):
                self.add_element(f'<path d="M{_coord(entry_x)} {_coord(y - 4)}h20" class="{style}"/>')
            elif style == "published":
                self.add_element(
                    f'<circle cx="{_coord(entry_x + 10)}" cy="{_coord(y - 4)}" r="4.5" class="published"/>'
                )
            else:
                self.draw_box(entry_x + 4, y - 10, 13, 11, style)
            self.draw_text(entry_x + 25, y, shown)
            entry_x += entry_width
        return y

    def to_svg(self) -> str:
        """Return the drawing as an ``svg`` element."""
        name, size = self.name, f"{_coord(self.width)} {_coord(self.height)}"
        return (
            f'<svg role="img" viewBox="0 0 {size}" aria-labelledby="{name} {name}d">'
            f'<title id="{name}">{escape(printable(self._title))}</title>{"".join(self._parts)}</svg>'
        )


def _tooltip(text: str) -> str:
    return f' data-tip="{escape(printable(text))}"' if text else ""


def _marker_path(x: float, y: float, series: int, tip: str) -> str:
    """Return the marker of a series by its shape: disc, square, triangle, diamond, ring, empty square, cross, star."""
    shapes = (
        "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "m-2.8-2.8h5.6v5.6h-5.6z", "m0-3.8l3.6 6.4h-7.2z",
        "m0-4l4 4l-4 4l-4-4z", "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "m-2.8-2.8h5.6v5.6h-5.6z",
        "m-3-3l6 6m0-6l-6 6", "m-3.6 0h7.2m-3.6-3.6v7.2m-2.5-6.1l5 5m0-5l-5 5",
    )  # fmt: skip
    return (
        f'<path d="M{_coord(x)} {_coord(y)}{shapes[series % SERIES]}" class="dot d{series % SERIES}"{_tooltip(tip)}/>'
    )


def _relative_path(points: Iterable[_Point], *, is_stepped: bool = False) -> str:
    """Return a path through points, or an empty text without points.

    A page has thousands of paths, and differences are half as long as coordinates. They are differences of rounded
    coordinates, so that errors do not add up. Points on a straight line between their neighbours are left out.
    """
    tenths = [(round(x * 10), round(y * 10)) for x, y in points]
    if not tenths:
        return ""
    moves: list[tuple[int, int]] = []
    for (from_x, from_y), (to_x, to_y) in pairwise(tenths):
        step = to_x - from_x, to_y - from_y
        for dx, dy in ((step[0], 0), (0, step[1])) if is_stepped else (step,):
            last_dx, last_dy = moves[-1] if moves else (0, 0)
            if last_dx * dy == last_dy * dx and last_dx * dx + last_dy * dy > 0:
                moves[-1] = last_dx + dx, last_dy + dy
            elif dx or dy:
                moves.append((dx, dy))
    path, command = f"M{_in_tenths(*tenths[0])}", ""
    # A line of no length is a dot, because its ends are round.
    for dx, dy in moves or [(0, 0)]:
        former, command = command, "l" if dx and dy else "v" if dy else "h"
        text = _in_tenths(dx, dy) if command == "l" else _in_tenths(dx or dy)
        path += text if command == former and text[0] == "-" else f"{' ' if command == former else command}{text}"
    return path


def _in_tenths(*tenths: int) -> str:
    """Return numbers of tenths as SVG writes them: ``12.3-.5``."""
    text = ""
    for number in tenths:
        whole, tenth = divmod(abs(number), 10)
        digits = f"{whole or ''}.{tenth}" if tenth else f"{whole}"
        text += f"{'-' if number < 0 else ' ' if text else ''}{digits}"
    return text


class Plane:
    """A part of a canvas with a coordinate system.

    Args:
        canvas: the drawing.
        x, y: the scales.
        left, top, right, bottom: its edges, in the canvas's units.
    """

    def __init__(
        self, canvas: Canvas, x: Scale, y: Scale, left: float, top: float, right: float, bottom: float
    ) -> None:
        self.canvas, self.x, self.y = canvas, x, y
        self.left, self.top, self.right, self.bottom = left, top, right, bottom

    def canvas_x(self, value: float) -> float:
        """Return the horizontal position of a value on the canvas."""
        return self.left + self.x.position(value) * (self.right - self.left)

    def canvas_y(self, value: float) -> float:
        """Return the vertical position of a value on the canvas."""
        return self.bottom - self.y.position(value) * (self.bottom - self.top)

    def draw_axes(self, x_title: str = "", y_title: str = "", *, x_labels: bool = True, grid: bool = True) -> None:
        """Draw both axes with their ticks. Call it before the data is drawn, so that the axes are behind it."""
        canvas, left, right = self.canvas, _coord(self.left), _coord(self.right)
        lines = ""
        for value, label in self.y.ticks(max(3, int((self.bottom - self.top) / 26))):
            tick_y = self.canvas_y(value)
            lines += f"M{left} {_coord(tick_y)}H{right}"
            canvas.draw_text(self.left - 6, tick_y + 4, label, anchor="end")
        if grid and lines:
            canvas.add_element(f'<path d="{lines}" class="grid"/>')
        if y_title:
            canvas.draw_text(2, self.top - 13, y_title, "axis")
        base, last = f"M{left} {_coord(self.bottom)}H{right}", -1e9
        for value, label in self.x.ticks(max(2, int((self.right - self.left) / 62))) if x_labels else ():
            tick_x, half_width = self.canvas_x(value), text_width(label) / 2
            base += f"M{_coord(tick_x)} {_coord(self.bottom)}v4"
            if tick_x - half_width > last and tick_x + half_width < canvas.width:
                canvas.draw_text(tick_x, self.bottom + 17, label, anchor="middle")
                last = tick_x + half_width + 6
        canvas.add_element(f'<path d="{base}" class="base"/>')
        if x_title and x_labels:
            canvas.draw_text(self.right, self.bottom + 34, x_title, "axis", "end")

    def draw_line(self, points: Iterable[_Point | None], style: str, *, steps: bool = False) -> None:
        """Draw a line through points. None, for an unknown value, interrupts it."""
        parts, stroke, former = list[str](), list[_Point](), (1e9, 1e9)
        for point in [*points, None]:
            if point is None:
                parts.append(_relative_path(stroke, is_stepped=steps))
                stroke, former = [], (1e9, 1e9)
                continue
            x, y = self.canvas_x(point[0]), self.canvas_y(point[1])
            if stroke and abs(x - former[0]) + abs(y - former[1]) < 0.4:
                continue
            stroke.append((x, y))
            former = x, y
        if path := "".join(parts):
            self.canvas.add_element(f'<path d="{path}" class="line {style}"/>')

    def draw_dot(self, x: float, y: float, series: int, tip: str = "") -> None:
        """Draw the marker of a series."""
        self.canvas.add_element(_marker_path(self.canvas_x(x), self.canvas_y(y), series, tip))

    def draw_ring(self, x: float, y: float, tip: str = "") -> None:
        """Draw the ring of a published value."""
        center = f'cx="{_coord(self.canvas_x(x))}" cy="{_coord(self.canvas_y(y))}"'
        self.canvas.add_element(f'<circle {center} r="4.5" class="published"{_tooltip(tip)}/>')

    def draw_dots(self, points: Iterable[_Point], style: str) -> None:
        """Draw many points as one path, which is small. They have no tooltips."""
        path = "".join(f"M{_coord(self.canvas_x(x))} {_coord(self.canvas_y(y))}h0" for x, y in points)
        if path:
            self.canvas.add_element(f'<path d="{path}" class="{style}"/>')

    def draw_x_interval(self, low: float | None, high: float | None, y: float, style: str) -> None:
        """Draw an interval of x at a value of y. An end of None is an arrow, for an end beyond the axis."""
        line_y = self.canvas_y(y)
        left = self.left if low is None else self.canvas_x(low)
        right = self.right if high is None else self.canvas_x(high)
        ends = (
            f"M{_coord(left)} {_coord(line_y - 4)}v8"
            if low is not None
            else f"M{_coord(left + 6)} {_coord(line_y - 4)}l-6 4l6 4"
        )
        ends += (
            f"M{_coord(right)} {_coord(line_y - 4)}v8"
            if high is not None
            else f"M{_coord(right - 6)} {_coord(line_y - 4)}l6 4l-6 4"
        )
        self.canvas.add_element(
            f'<path d="M{_coord(left)} {_coord(line_y)}H{_coord(right)}{ends}" class="whisker {style}"/>'
        )

    def draw_y_interval(self, x: float, low: float, high: float, style: str) -> None:
        """Draw an interval of y at a value of x."""
        line_x, bottom, top = self.canvas_x(x), self.canvas_y(low), self.canvas_y(high)
        ends = f"M{_coord(line_x - 4)} {_coord(bottom)}h8M{_coord(line_x - 4)} {_coord(top)}h8"
        self.canvas.add_element(
            f'<path d="M{_coord(line_x)} {_coord(bottom)}V{_coord(top)}{ends}" class="whisker {style}"/>'
        )

    def draw_bar(self, x_from: float, x_to: float, low: float, high: float, style: str, tip: str = "") -> None:
        """Draw a bar from one value of x to another, and from one value of y to another."""
        left, right, top, bottom = self.canvas_x(x_from), self.canvas_x(x_to), self.canvas_y(high), self.canvas_y(low)
        self.canvas.draw_box(left, top, right - left, bottom - top, style, tip)

    def draw_boxes(self, boxes: Iterable[tuple[float, float, float, float]], style: str) -> None:
        """Draw boxes as one path, which is small. A box is given as x from, x to, lower y and upper y.

        Boxes that touch have one outline. They have no tooltips: see ``show_rows``.
        """
        path, upper, lower = "", list[_Point](), list[_Point]()
        for x_from, x_to, low, high in boxes:
            left = self.canvas_x(x_from)
            right = self.canvas_x(x_to)
            top = self.canvas_y(high)
            bottom = self.canvas_y(low)
            if upper and upper[-1][0] != left:
                path += _relative_path([*upper, *reversed(lower)])
                upper, lower = [], []
            upper += [(left, top), (right, top)]
            lower += [(left, bottom), (right, bottom)]
        if path := path + _relative_path([*upper, *reversed(lower)]):
            self.canvas.add_element(f'<path d="{path}" class="{style}"/>')

    def show_rows(self, end: float) -> None:
        """Let a tooltip show the row of the figure's numbers at the pointer.

        The first column of the numbers is x, ascending, and ``end`` is the value of x at the right edge.
        """
        corners = f"M{_coord(self.left)} {_coord(self.top)}H{_coord(self.right)}V{_coord(self.bottom)}"
        self.canvas.add_element(f'<path d="{corners}H{_coord(self.left)}" class="rows" data-end="{end:.6g}"/>')

    def draw_rule(
        self, *, x: float | None = None, y: float | None = None, style: str = "rule", label: str = "",
        label_line: int = 0,
    ) -> None:  # fmt: skip
        """Draw a line across the plane at one value, with a label at its end.

        The label of a value of x is ``label_line`` lines below the upper end.
        """
        if x is not None:
            line_x = self.canvas_x(x)
            self.canvas.add_element(
                f'<path d="M{_coord(line_x)} {_coord(self.top)}V{_coord(self.bottom)}" class="{style}"/>'
            )
            if label:
                is_right = line_x + 5 + text_width(label) > self.right
                self.canvas.draw_text(line_x + (-5 if is_right else 5), self.top + 10 + 13 * label_line, label, "note",
                                 "end" if is_right else "start")  # fmt: skip
        if y is not None:
            line_y = self.canvas_y(y)
            self.canvas.add_element(
                f'<path d="M{_coord(self.left)} {_coord(line_y)}H{_coord(self.right)}" class="{style}"/>'
            )
            if label:
                self.canvas.draw_text(self.right, line_y - 4, label, "note", "end")
