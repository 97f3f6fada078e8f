"""What went over the wire, or took CPU time, in the course of one experiment: a line for each client.

What may live here: the one figure that draws them all. Suites declare which list of an entry is drawn over which times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import ceil
from statistics import fmean
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.curves import text_of
from pytest_cloudbench.report.figures.quotes import quoted
from pytest_cloudbench.report.gathering import Measurement, line_name
from pytest_cloudbench.report.quantities import format_seconds
from pytest_cloudbench.report.scales import Linear
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane
from pytest_cloudbench.results.suite import TimeCourse

_MOST_POINTS = 200
_MOST_SAID = 4
"""Up to this many lines, words say where each ends; for more, the table does."""

_Point = tuple[float, float]


def courses(rows: Iterable[TimeCourse], members: Sequence[Measurement]) -> list[Figure | str]:
    """Return the figures over time that the experiments of one test function have, and why some have none."""
    found: list[Figure | str] = []
    for row in rows:
        lines = dict[str, list[_Point]]()
        for each in members:
            line = _line(row, each)
            if isinstance(line, str):
                found.append(f"{each.subject}: not drawn, {line}")
            else:
                lines[_name(each, members)] = line
        found += [_figure(row, members, lines)] if lines else []
    return found


def _name(each: Measurement, members: Sequence[Measurement]) -> str:
    """Return what a line is called: whose it is, and the parameters that differ."""
    alike = [other for other in members if other.params == each.params]
    told = [f"{name.replace('_', ' ')} {value}" for name, value in each.params.items()
            if any(other.params.get(name) != value for other in members)]  # fmt: skip
    is_one = bool(told) and len(alike) == 1 and all(other.subject == each.subject for other in members)
    return ", ".join(told if is_one else [line_name(each, alike), *told])


def _line(row: TimeCourse, each: Measurement) -> list[_Point] | str:
    """Return the points of an entry, or why there are none."""
    values, over = _numbers(each.info.get(row.values)), each.number(row.over) if row.over else 1.0
    if not values:
        return f"the entry's {row.values} is not a list of numbers"
    if not over or over < 0:
        return f"the entry does not say its {row.over}"
    step_s = each.number(row.times) if isinstance(row.times, str) else row.times
    times = _numbers(each.info.get(row.times)) if isinstance(row.times, str) and step_s is None else []
    if step_s is not None and step_s > 0:
        times = [(place + 1) * step_s for place in range(len(values))]
    if len(times) != len(values):
        return f"the entry does not say when its {row.values} were seen ({row.times})"
    size = ceil(len(values) / _MOST_POINTS)  # a log of four hours is drawn from parts of more than a minute
    parts = [slice(first, first + size) for first in range(0, len(values), size)]
    if not row.is_sum:
        return [(times[part][-1], round(fmean(values[part]), 4)) for part in parts]
    sums = list(accumulate(values))
    return [(0.0, 0.0), *((times[part][-1], sums[part][-1] / over) for part in parts)]


def _numbers(found: Any) -> list[float]:
    """Return a list of numbers, 0 or more each, or nothing."""
    values = found if isinstance(found, list) else []
    return [float(each) for each in values] if all(is_finite(each) and each >= 0 for each in values) else []


def _published(row: TimeCourse, members: Sequence[Measurement]) -> Iterator[tuple[float | None, float, str]]:
    """Yield the time at which each published value holds, None for always, the value and words."""
    for y_key, x_key, words in row.published:
        for given in (each.info["published"] for each in members):
            y, x = given.get(y_key), given.get(x_key) if x_key else None
            if is_finite(y) and (is_finite(x) or not x_key):
                yield None if x is None else float(x), float(y), words
                break


def _figure(row: TimeCourse, members: Sequence[Measurement], lines: Mapping[str, Sequence[_Point]]) -> Figure:
    quotes, text = quoted(row.quotes, members), text_of(row.y)
    theirs = [
        *_published(row, members),
        *((None, each.value, " ".join([each.words, *each.bound.split()])) for each in quotes),
    ]
    shown = list(lines.items())[:SERIES]
    end_s = max([line[-1][0] for _, line in shown] + [x for x, _, _ in theirs if x is not None])
    top = max([y for _, line in shown for _, y in line] + [y for _, y, _ in theirs])
    y_words = row.y.removesuffix("_bytes").replace("_", " ")

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title, told)
        entries = [(f"s{number}", name) for number, (name, _) in enumerate(shown)]
        entries += [("rule", "published")] if any(x is None for x, _, _ in theirs) else []
        entries += [("published", "published")] if any(x is not None for x, _, _ in theirs) else []
        head = canvas.legend(6, 14, entries, width - 4) + 34
        x, y = Linear(0, end_s, format_seconds, fixed=True), Linear(0, top, text)
        plane = Plane(canvas, x, y, 62, head, width - 14, head + 190)
        plane.axes("since the start", y_words)
        for at_s, value, words in theirs:
            if at_s is None:
                plane.rule(y=value, label=f"{words}: {text(value)}")
            else:
                tip = f"published, {words}: {text(value)} after {format_seconds(at_s)}"
                plane.ring(at_s, value, tip)
        for number, (_, line) in enumerate(shown):
            plane.line(line, f"s{number}")
            plane.dot(*line[-1], number, f"{shown[number][0]}: {text(line[-1][1])} after {format_seconds(line[-1][0])}")
        canvas.height = plane.bottom + 42
        return canvas

    missing = len(lines) - len(shown)
    told = row.told + (f" {missing} more lines are in the numbers only." if missing else "")
    told += "".join(f" {_said(row, name, line)}." for name, line in shown) if len(shown) <= _MOST_SAID else ""
    rows: list[list[object]] = [[name, at_s, value] for name, line in lines.items() for at_s, value in line]
    rows += [[f"published: {words}", at_s, value] for at_s, value, words in theirs]
    sources = [str(each.info["published"].get("source") or "") for each in members if len(theirs) > len(quotes)]
    sources += [each.source for each in quotes]
    notes = [f"Published: {source}" for source in dict.fromkeys(sources) if source]
    name = f"{row.values}-over-time".replace("_", "-")
    return Figure(name, row.title, told, draw, ["line", "since the start, s", y_words], rows, notes)


def _said(row: TimeCourse, name: str, line: Sequence[_Point]) -> str:
    text = text_of(row.y)
    if row.is_sum:
        return f"{name}: {text(line[-1][1])} after {format_seconds(line[-1][0])}"
    return f"{name}: {text(round(fmean(value for _, value in line), 4))} on average"
