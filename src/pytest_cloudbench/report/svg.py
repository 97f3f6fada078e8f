"""Drawing: a canvas, planes with two scales on it, and a handful of marks, as static SVG.

What may live here: turning places into SVG. No JavaScript, no external names: colours, dashes and patterns are classes
of the page's style sheet (``data/report.css``), so that one drawing serves light, dark and print. What a reader of a
screen hears is the title and the description; the numbers are in the table behind each figure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count
from typing import Literal

from pytest_cloudbench.report.scales import Scale

SERIES = 8
"""How many series have a colour, a dash and a marker of their own."""

_CHARACTER = 6.3
"""Mean width of a character of the labels, in the drawing's units; wide East Asian ones take two."""

_Point = tuple[float, float]
_numbers = count(1)


def printable(text: object) -> str:
    """Return a text without control characters and without marks that change the direction of what follows."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(text))


def text_width(text: str) -> float:
    """Return about how wide a label is."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text) * _CHARACTER


def shortened(text: object, room: float) -> str:
    """Return a printable text that fits into ``room`` units, cut in its middle if it must be."""
    shown = printable(text)
    if text_width(shown) <= room:
        return shown
    half = max(2, int(room / _CHARACTER / 2) - 1)
    while half > 2 and text_width(shown[:half] + "\u2026" + shown[-half:]) > room:
        half -= 1
    return f"{shown[:half]}\u2026{shown[-half:]}"


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """A drawing of a width and a height, with a title and a description for readers who do not see it."""

    def __init__(self, width: float, height: float, title: str, told: str) -> None:
        self.width, self.height, self._title, self._told = width, height, title, told
        self._parts: list[str] = []

    def add(self, part: str) -> None:
        """Add a mark that is SVG already."""
        self._parts.append(part)

    def text(
        self, x: float, y: float, text: object, style: str = "", anchor: Literal["start", "middle", "end"] = "start",
        *, turned: bool = False,
    ) -> None:  # fmt: skip
        """Write a text, from bottom to top if it is ``turned``."""
        turn = f' transform="rotate(-90 {_at(x)} {_at(y)})"' if turned else ""
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        name = f' class="{style}"' if style else ""
        self.add(f'<text x="{_at(x)}" y="{_at(y)}"{place}{name}{turn}>{escape(printable(text))}</text>')

    def box(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        """Draw a rectangle; ``tip`` is shown where the pointer is."""
        size = f'x="{_at(x)}" y="{_at(y)}" width="{_at(max(0.0, width))}" height="{_at(max(0.0, height))}"'
        self.add(f'<rect {size} class="{style}"{_tip(tip)}/>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str]], right: float) -> float:
        """Write what marks mean, in as many lines as it takes. Returns where the last line is.

        ``entries`` are styles and names: a style ``sN`` is a line with its marker, ``dN`` a marker alone, ``rule`` a
        line alone, as is each that begins with ``line``, any other one a box. The first line begins at ``x`` and ``y``,
        and lines end at ``right``.
        """
        place = x
        for style, name in entries:
            shown = shortened(name, right - x - 30)
            wide = 26 + text_width(shown) + 12
            if place > x and place + wide - 12 > right:
                place, y = x, y + 17
            if style[0] == "s" and style[1:].isdigit():
                self.add(f'<path d="M{_at(place)} {_at(y - 4)}h20" class="line {style}"/>')
                self.add(_marker(place + 10, y - 4, int(style[1:]), ""))
            elif style[0] == "d" and style[1:].isdigit():
                self.add(_marker(place + 10, y - 4, int(style[1:]), ""))
            elif style == "rule" or style.startswith("line "):
                self.add(f'<path d="M{_at(place)} {_at(y - 4)}h20" class="{style}"/>')
            elif style == "published":
                self.add(f'<circle cx="{_at(place + 10)}" cy="{_at(y - 4)}" r="4.5" class="published"/>')
            else:
                self.box(place + 4, y - 10, 13, 11, style)
            self.text(place + 25, y, shown)
            place += wide
        return y

    def svg(self) -> str:
        """Return the drawing as an ``svg`` element."""
        name = f"g{next(_numbers)}"
        size = f'viewBox="0 0 {_at(self.width)} {_at(self.height)}" width="{_at(self.width)}"'
        return (
            f'<svg role="img" {size} height="{_at(self.height)}" aria-labelledby="{name} {name}d">'
            f'<title id="{name}">{escape(printable(self._title))}</title>'
            f'<desc id="{name}d">{escape(printable(self._told))}</desc>{"".join(self._parts)}</svg>'
        )


def _tip(text: str) -> str:
    return f' data-tip="{escape(printable(text))}"' if text else ""


def _marker(x: float, y: float, series: int, tip: str) -> str:
    """Each series has a shape of its own: disc, square, triangle, diamond, ring, empty square, cross, star."""
    shapes = (
        "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "m-2.8-2.8h5.6v5.6h-5.6z", "m0-3.8l3.6 6.4h-7.2z",
        "m0-4l4 4l-4 4l-4-4z", "m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "m-2.8-2.8h5.6v5.6h-5.6z",
        "m-3-3l6 6m0-6l-6 6", "m-3.6 0h7.2m-3.6-3.6v7.2m-2.5-6.1l5 5m0-5l-5 5",
    )  # fmt: skip
    return f'<path d="M{_at(x)} {_at(y)}{shapes[series % SERIES]}" class="dot d{series % SERIES}"{_tip(tip)}/>'


class Plane:
    """A part of a canvas in which values have places.

    Args:
        canvas: where it is drawn.
        x, y: the scales.
        left, top, right, bottom: its edges, in the canvas's units.
    """

    def __init__(
        self, canvas: Canvas, x: Scale, y: Scale, left: float, top: float, right: float, bottom: float
    ) -> None:
        self.canvas, self.x, self.y = canvas, x, y
        self.left, self.top, self.right, self.bottom = left, top, right, bottom

    def px(self, value: float) -> float:
        """Return where a value of x is on the canvas."""
        return self.left + self.x.at(value) * (self.right - self.left)

    def py(self, value: float) -> float:
        """Return where a value of y is on the canvas."""
        return self.bottom - self.y.at(value) * (self.bottom - self.top)

    def axes(self, x_title: str = "", y_title: str = "", *, x_labels: bool = True, grid: bool = True) -> None:
        """Draw both axes with their ticks; draw them first, so that they are behind the data."""
        canvas, edge = self.canvas, self.left
        for value, label in self.y.ticks(max(3, int((self.bottom - self.top) / 26))):
            place = self.py(value)
            if grid:
                canvas.add(f'<path d="M{_at(self.left)} {_at(place)}H{_at(self.right)}" class="grid"/>')
            canvas.text(self.left - 6, place + 4, label, anchor="end")
            edge = min(edge, self.left - 6 - text_width(label))
        if y_title:
            canvas.text(2, self.top - 13, y_title, "axis")
        canvas.add(f'<path d="M{_at(self.left)} {_at(self.bottom)}H{_at(self.right)}" class="base"/>')
        if not x_labels:
            return
        last = -1e9
        for value, label in self.x.ticks(max(2, int((self.right - self.left) / 62))):
            place, half = self.px(value), text_width(label) / 2
            canvas.add(f'<path d="M{_at(place)} {_at(self.bottom)}v4" class="base"/>')
            if place - half > last and place + half < canvas.width:
                canvas.text(place, self.bottom + 17, label, anchor="middle")
                last = place + half + 6
        if x_title:
            canvas.text(self.right, self.bottom + 34, x_title, "axis", "end")

    def line(self, points: Iterable[_Point | None], style: str, *, steps: bool = False) -> None:
        """Draw a line; None interrupts it, because what is not known has no place."""
        path, is_open, former = list[str](), False, (1e9, 1e9)
        for point in points:
            if point is None:
                is_open = False
                continue
            x, y = self.px(point[0]), self.py(point[1])
            if is_open and abs(x - former[0]) + abs(y - former[1]) < 0.4:
                continue
            if is_open and steps:
                path.append(f"H{_at(x)}V{_at(y)}")
            else:
                path.append(f"{'L' if is_open else 'M'}{_at(x)} {_at(y)}")
            is_open, former = True, (x, y)
        if path:
            self.canvas.add(f'<path d="{"".join(path)}" class="line {style}"/>')

    def band(self, edges: Iterable[tuple[float, float, float] | None], style: str) -> None:
        """Fill between two lines: x, the lower y, the upper y; None interrupts it."""
        run: list[tuple[float, float, float]] = []
        for edge in [*edges, None]:
            if edge is not None:
                run.append(edge)
                continue
            if len(run) > 1:
                there = [(self.px(x), self.py(low)) for x, low, _ in run]
                back = [(self.px(x), self.py(high)) for x, _, high in reversed(run)]
                path = "L".join(f"{_at(x)} {_at(y)}" for x, y in (*there, *back))
                self.canvas.add(f'<path d="M{path}z" class="{style}"/>')
            run = []

    def dot(self, x: float, y: float, series: int, tip: str = "") -> None:
        """Draw the marker of a series."""
        self.canvas.add(_marker(self.px(x), self.py(y), series, tip))

    def ring(self, x: float, y: float, tip: str = "") -> None:
        """Draw the ring of a published value."""
        place = f'cx="{_at(self.px(x))}" cy="{_at(self.py(y))}"'
        self.canvas.add(f'<circle {place} r="4.5" class="published"{_tip(tip)}/>')

    def dots(self, points: Iterable[_Point], style: str) -> None:
        """Draw many points as one mark, which takes little room in a page; they have no tips."""
        path = "".join(f"M{_at(self.px(x))} {_at(self.py(y))}h0" for x, y in points)
        if path:
            self.canvas.add(f'<path d="{path}" class="{style}"/>')

    def span(self, low: float | None, high: float | None, y: float, style: str) -> None:
        """Draw an interval of x at a value of y; None: it goes on beyond the axis, which an arrow says."""
        place = self.py(y)
        left, right = self.left if low is None else self.px(low), self.right if high is None else self.px(high)
        ends = f"M{_at(left)} {_at(place - 4)}v8" if low is not None else f"M{_at(left + 6)} {_at(place - 4)}l-6 4l6 4"
        ends += (
            f"M{_at(right)} {_at(place - 4)}v8" if high is not None else f"M{_at(right - 6)} {_at(place - 4)}l6 4l-6 4"
        )
        self.canvas.add(f'<path d="M{_at(left)} {_at(place)}H{_at(right)}{ends}" class="whisker {style}"/>')

    def upright(self, x: float, low: float, high: float, style: str) -> None:
        """Draw an interval of y, with ends, at a value of x."""
        place, bottom, top = self.px(x), self.py(low), self.py(high)
        ends = f"M{_at(place - 4)} {_at(bottom)}h8M{_at(place - 4)} {_at(top)}h8"
        self.canvas.add(f'<path d="M{_at(place)} {_at(bottom)}V{_at(top)}{ends}" class="whisker {style}"/>')

    def bar(self, x_from: float, x_to: float, low: float, high: float, style: str, tip: str = "") -> None:
        """Draw a bar between two values of x and two of y."""
        left, right, top, bottom = self.px(x_from), self.px(x_to), self.py(high), self.py(low)
        self.canvas.box(left, top, right - left, bottom - top, style, tip)

    def rule(
        self, *, x: float | None = None, y: float | None = None, style: str = "rule", label: str = "", line: int = 0
    ) -> None:  # fmt: skip
        """Draw a line across the plane at one value, with a label at its end; of x, ``line`` lines below the end."""
        if x is not None:
            place = self.px(x)
            self.canvas.add(f'<path d="M{_at(place)} {_at(self.top)}V{_at(self.bottom)}" class="{style}"/>')
            if label:
                is_right = place + 5 + text_width(label) > self.right
                self.canvas.text(place + (-5 if is_right else 5), self.top + 10 + 13 * line, label, "note",
                                 "end" if is_right else "start")  # fmt: skip
        if y is not None:
            place = self.py(y)
            self.canvas.add(f'<path d="M{_at(self.left)} {_at(place)}H{_at(self.right)}" class="{style}"/>')
            if label:
                self.canvas.text(self.right, place - 4, label, "note", "end")
