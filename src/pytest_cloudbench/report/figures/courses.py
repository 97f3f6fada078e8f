"""Figures over the time of an experiment, such as bytes sent or CPU time used, with one line for each client.

Suites declare which list of an entry is drawn over which times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import ceil
from statistics import fmean
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.curves import value_format
from pytest_cloudbench.report.figures.quotes import find_quotes
from pytest_cloudbench.report.gathering import Measurement, line_name
from pytest_cloudbench.report.quantities import format_seconds
from pytest_cloudbench.report.scales import Linear
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane
from pytest_cloudbench.results.suite import TimeCourse
from pytest_cloudbench.support.wording import format_count

_MOST_POINTS = 200
_MOST_DESCRIBED = 4
"""The description gives the last value of up to this many lines. For more lines, the table does."""

_Point = tuple[float, float]


def draw_courses(rows: Iterable[TimeCourse], members: Sequence[Measurement]) -> list[Figure | str]:
    """Return the figures over time for the experiments of one test function, and reasons for missing lines."""
    figures: list[Figure | str] = []
    for row in rows:
        points_by_name, means = dict[str, list[_Point]](), dict[str, float]()
        for measurement in members:
            points = _course_points(row, measurement)
            if isinstance(points, str):
                figures.append(f"{measurement.subject}: not drawn, {points}")
            else:
                name = _course_name(measurement, members)
                points_by_name[name], means[name] = points, fmean(_read_numbers(measurement.info.get(row.values)))
        figures += [_build_figure(row, members, points_by_name, means)] if points_by_name else []
    return figures


def _course_name(measurement: Measurement, members: Sequence[Measurement]) -> str:
    """Return the name of a line: its client and the parameters that differ among the members."""
    twins = [other for other in members if other.params == measurement.params]
    differing = [f"{name.replace('_', ' ')} {value}" for name, value in measurement.params.items()
            if any(other.params.get(name) != value for other in members)]  # fmt: skip
    is_unique = bool(differing) and len(twins) == 1 and all(other.subject == measurement.subject for other in members)
    return ", ".join(differing if is_unique else [line_name(measurement, twins), *differing])


def _course_points(row: TimeCourse, measurement: Measurement) -> list[_Point] | str:
    """Return the points of an entry, or the reason why it has none."""
    values, divisor = _read_numbers(measurement.info.get(row.values)), measurement.number(row.over) if row.over else 1.0
    if not values:
        return f"the entry's {row.values} is not a list of numbers"
    if not divisor or divisor < 0:
        return f"the entry does not say its {row.over}"
    step_s = measurement.number(row.times) if isinstance(row.times, str) else row.times
    times = _read_numbers(measurement.info.get(row.times)) if isinstance(row.times, str) and step_s is None else []
    if step_s is not None and step_s > 0:
        times = [(number + 1) * step_s for number in range(len(values))]
    if len(times) != len(values):
        return f"the entry does not say when its {row.values} were seen ({row.times})"
    size = ceil(len(values) / _MOST_POINTS)  # for a log of four hours, a point is the mean of more than a minute
    parts = [slice(first, first + size) for first in range(0, len(values), size)]
    if not row.is_sum:
        return [(times[part][-1], _round_digits(fmean(values[part]))) for part in parts]
    sums = list(accumulate(values))
    return [(0.0, 0.0), *((times[part][-1], sums[part][-1] / divisor) for part in parts)]


def _round_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _read_numbers(stored: Any) -> list[float]:
    """Return a stored list of non-negative numbers, or an empty list if it is anything else."""
    values = stored if isinstance(stored, list) else []
    return [float(number) for number in values] if all(is_finite(number) and number >= 0 for number in values) else []


def _published_values(row: TimeCourse, members: Sequence[Measurement]) -> Iterator[tuple[float | None, float, str]]:
    """Yield each published value as its time (None if it holds at any time), the value and its label."""
    for y_key, x_key, words in row.published:
        for published in (measurement.info["published"] for measurement in members):
            y, x = published.get(y_key), published.get(x_key) if x_key else None
            if is_finite(y) and (is_finite(x) or not x_key):
                yield None if x is None else float(x), float(y), words
                break


def _build_figure(
    row: TimeCourse, members: Sequence[Measurement], lines: Mapping[str, Sequence[_Point]], means: Mapping[str, float]
) -> Figure:
    """Return the figure of values over time, with published ones and a sentence about each line."""
    quotes, format_value = find_quotes(row.quotes, members), value_format(row.y)
    published_points = [
        *_published_values(row, members),
        *((None, quote.value, " ".join([quote.words, *quote.bound.split()])) for quote in quotes),
    ]
    shown = list(lines.items())[:SERIES]
    end_s = max([line[-1][0] for _, line in shown] + [x for x, _, _ in published_points if x is not None])
    top = max([y for _, line in shown for _, y in line] + [y for _, y, _ in published_points])
    y_words = row.y.removesuffix("_bytes").replace("_", " ")

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title)
        entries = [(f"s{number}", name) for number, (name, _) in enumerate(shown)]
        entries += [("rule", "published")] if any(x is None for x, _, _ in published_points) else []
        entries += [("published", "published")] if any(x is not None for x, _, _ in published_points) else []
        head = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x, y = Linear(0, end_s, format_seconds, fixed=True), Linear(0, top, format_value)
        plane = Plane(canvas, x, y, 62, head, width - 14, head + 190)
        plane.draw_axes("since the start", y_words)
        for at_s, value, words in published_points:
            if at_s is None:
                plane.draw_rule(y=value, label=f"{words}: {format_value(value)}")
            else:
                tip = f"published, {words}: {format_value(value)} after {format_seconds(at_s)}"
                plane.draw_ring(at_s, value, tip)
        for number, (_, line) in enumerate(shown):
            plane.draw_line(line, f"s{number}")
            plane.draw_dot(
                *line[-1],
                number,
                f"{shown[number][0]}: {format_value(line[-1][1])} after {format_seconds(line[-1][0])}",
            )
        canvas.height = plane.bottom + 42
        return canvas

    hidden_count = len(lines) - len(shown)
    description = row.caption + (
        f" {format_count(hidden_count, 'more line is', 'more lines are')} in the numbers only." if hidden_count else ""
    )
    description += (
        "".join(f" {_describe_line(row, name, line, means[name])}." for name, line in shown)
        if len(shown) <= _MOST_DESCRIBED
        else ""
    )
    rows: list[list[object]] = [[name, at_s, value] for name, line in lines.items() for at_s, value in line]
    rows += [[f"published: {words}", at_s, value] for at_s, value, words in published_points]
    sources = [
        str(measurement.info["published"].get("source") or "")
        for measurement in members
        if len(published_points) > len(quotes)
    ]
    sources += [quote.source for quote in quotes]
    notes = [f"Published: {source}" for source in dict.fromkeys(sources) if source]
    name = f"{row.values}-over-time".replace("_", "-")
    return Figure(name, row.title, description, draw, ["line", "since the start, s", y_words], rows, notes)


def _describe_line(row: TimeCourse, name: str, line: Sequence[_Point], mean: float) -> str:
    format_value = value_format(row.y)
    if row.is_sum:
        return f"{name}: {format_value(line[-1][1])} after {format_seconds(line[-1][0])}"
    return f"{name}: {format_value(_round_digits(mean))} on average"
