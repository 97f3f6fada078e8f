"""Figures of a value over a parameter, with one line for each provider, and published values.

Suites declare which value is drawn over which parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.quotes import QuotedValue, find_quotes
from pytest_cloudbench.report.gathering import Measurement, PageRun, line_name
from pytest_cloudbench.report.quantities import format_bytes, format_number, format_seconds, format_short_share, unit_of
from pytest_cloudbench.report.scales import Categories, Linear, Log, Scale
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane, text_width
from pytest_cloudbench.results.suite import Curve
from pytest_cloudbench.support.wording import format_count

_UNIT_SUFFIXES = (
    ("_kbit_per_s", ", kbit/s"),
    ("_kb", ", kB"),
    ("_mb", ", MB"),
    ("_ms", ", ms"),
    ("_bytes", ""),
    ("_s", ""),
)
_AXIS_TITLES = {"tue": "traffic usage efficiency", "size_bytes": "size of the file"}
_SUBJECT_KEYS = frozenset({"service", "client"})


@dataclass(frozen=True, slots=True)
class _Point:
    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    published: float | None = None
    is_doubted: bool = False


def draw_curves(rows: Iterable[Curve], members: Sequence[Measurement]) -> list[Figure]:
    """Return the figures over a parameter for the experiments of one test function."""
    return [drawn for row in rows if (drawn := _build_figure(row, members)) is not None]


def _build_figure(row: Curve, members: Sequence[Measurement]) -> Figure | None:
    """Return the figure of values along a parameter, or None if it has fewer than two values."""
    lines = _group_into_lines(row, members)
    points = [point for line in lines.values() for point in line]
    if len({point.x for point in points}) < 2:
        return None
    marks = _marked_values(row, members, lines)
    has_names = any(isinstance(point.x, str) for point in points)
    names = [*dict.fromkeys(str(point.x) for point in points)] if has_names else []
    published = sorted({(point.x, point.published) for point in points if point.published is not None}, key=str)
    quotes = [
        quote
        for quote in find_quotes(row.quotes, members)
        if quote.x is None or any(quote.x == point.x for point in points)  # so it has a place among names, too
    ]
    is_published_mark = row.mark.startswith("published")
    format_y, shown = value_format(row.y), list(lines.items())[:SERIES]
    titles = row.x_title or _axis_title(row.x), row.y_title or _axis_title(row.y)

    def x_position(x: float | str) -> float:
        return float(names.index(str(x))) if names else float(x)

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title)
        entries = [(f"s{number}", name) for number, (name, _) in enumerate(shown)]
        entries += [("published", row.beside)] if published or any(quote.x is not None for quote in quotes) else []
        entries += [("rule", "published")] if any(quote.x is None for quote in quotes) else []
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x_scale = _x_scale(row.x, points, names, marks.values())
        plane = Plane(canvas, x_scale, _y_scale(points, quotes, format_y), 62, top, width - 14, top + 190)
        plane.draw_axes(*titles)
        published_points = [(x_position(x), value) for x, value in published]
        plane.draw_line(sorted(published_points), "published")
        for x, y in published_points:
            plane.draw_ring(x, y, f"{row.beside}: {format_y(y)}")
        _draw_quotes(plane, [(quote, None if quote.x is None else x_position(quote.x)) for quote in quotes], format_y)
        for number, (name, line) in enumerate(shown):
            if not names:
                plane.draw_line([(x_position(point.x), point.y) for point in line], f"s{number}")
            for point in line:
                shift = (number - (len(shown) - 1) / 2) * 0.12 if names else 0.0
                x = x_position(point.x) + shift
                if point.low is not None or point.high is not None:
                    plane.draw_y_interval(
                        x, _bound_or_value(point.low, point.y), _bound_or_value(point.high, point.y), f"s{number}"
                    )
                doubt = ", has doubts" if point.is_doubted else ""
                plane.draw_dot(x, point.y, number, f"{name}, {_x_label(row, point.x)}: {format_y(point.y)}{doubt}")
        for mark in dict.fromkeys(() if names else marks.values()):
            plane.draw_rule(x=mark, label=f"{row.mark.partition('_')[0]}: {mark:g}")
        canvas.height = top + 190 + 42
        return canvas

    mark_texts = [
        f"{name}: {row.mark.replace('_', ' ')} {mark:g}" for name, mark in marks.items() if not is_published_mark
    ]
    hidden_lines = format_count(len(lines) - len(shown), "more line is", "more lines are")
    description = " ".join([row.caption, *([f"{'; '.join(mark_texts)}."] if mark_texts else []),
                     *([f"{hidden_lines} in the numbers only."] if len(lines) > len(shown) else [])])  # fmt: skip
    head = ["line", *titles, "from", "to", row.beside, "doubts"]
    table = [
        [name, point.x, point.y, point.low, point.high, point.published, point.is_doubted]
        for name, line in lines.items() for point in line
    ]  # fmt: skip
    table += [
        [" ".join(["published:", quote.words, *quote.bound.split()]), quote.x, None, None, None, quote.value, False]
        for quote in quotes
    ]
    is_published = bool(published and row.beside == "published") or bool(marks and is_published_mark)
    sources = [str(measurement.info["published"].get("source", "")) for measurement in members if is_published]
    sources += [quote.source for quote in quotes]
    notes = [f"Published: {source}" for source in dict.fromkeys(sources) if source]
    return Figure(f"{row.y}-by-{row.x}".replace("_", "-"), row.title, description, draw, head, table, notes)


def _draw_quotes(
    plane: Plane, quotes: Sequence[tuple[QuotedValue, float | None]], format_value: Callable[[float], str]
) -> None:  # fmt: skip
    """Draw values quoted from a paper with their labels: a ring if x is known, otherwise a horizontal line."""
    label_ends = dict[float | None, float]()  # by x, the end of the last label, so that labels do not overlap
    for quoted, x in sorted(quotes, key=lambda quote: -quote[0].value):
        label = quoted.label(format_value)
        if x is None:
            plane.draw_rule(y=quoted.value, label=label)
            continue
        plane.draw_ring(x, quoted.value, f"published, {label}")
        is_right = plane.canvas_x(x) + 10 + text_width(label) > plane.right
        label_ends[x] = y = max(plane.canvas_y(quoted.value) - 6, label_ends.get(x, 0.0) + 13)
        plane.canvas.draw_text(
            plane.canvas_x(x) + (-8 if is_right else 8), y, label, "note", "end" if is_right else "start"
        )


def _group_into_lines(row: Curve, members: Sequence[Measurement]) -> dict[str, list[_Point]]:
    """Return points by line. There is a line for each subject and combination of the differing other parameters."""
    subjects = _name_subjects(members)
    names = dict.fromkeys(name for measurement in members for name in measurement.params)
    others = [
        name
        for name in [*names, "operation"]
        if name not in {row.x, *_SUBJECT_KEYS} and _needs_own_lines(row, name, members, subjects)
    ]
    # Of parameters that always have equal values, one is enough for the names of lines.
    others = list(
        {
            tuple(str(_parameter_value(measurement, name)) for measurement in members): name
            for name in reversed(others)
        }.values()
    )[::-1]
    lines: dict[str, list[_Point]] = {}
    for measurement, subject in zip(members, subjects, strict=True):
        differing = [f"{name.replace('_', ' ')} {_parameter_value(measurement, name)}" for name in others]
        for point in _curve_points(row, measurement):
            lines.setdefault(", ".join([subject, *differing]), []).append(point)
    for line in lines.values():
        if not any(isinstance(point.x, str) for point in line):
            line.sort(key=lambda point: float(point.x))
    return lines


def _name_subjects(members: Sequence[Measurement]) -> list[str]:
    """Return the provider of each measurement, with the run if the provider was measured alike in several runs."""
    firsts: dict[str, dict[PageRun, Measurement]] = {}  # by subject: its first measurement in each run
    runs_of: dict[tuple[str, str], set[PageRun]] = {}
    for measurement in members:
        firsts.setdefault(measurement.subject, {}).setdefault(measurement.run, measurement)
        runs_of.setdefault((measurement.subject, measurement.experiment), set()).add(measurement.run)
    repeated = {subject for (subject, _), runs in runs_of.items() if len(runs) > 1}
    names = {
        (subject, run): line_name(first, [*runs.values()]) if subject in repeated else subject
        for subject, runs in firsts.items() for run, first in runs.items()
    }  # fmt: skip
    return [names[measurement.subject, measurement.run] for measurement in members]


def _needs_own_lines(row: Curve, name: str, members: Sequence[Measurement], subjects: Sequence[str]) -> bool:
    """Return whether each value of a parameter needs a line of its own.

    It does if there are several values at one x, or if they name kinds of things, such as ``end`` and ``random``, which
    no line may join. A text with digits, such as ``100 KB``, only says what a number says.
    """
    values_by_point: dict[tuple[str, object], set[str]] = {}
    kinds_by_subject: dict[str, set[str]] = {}
    for measurement, subject in zip(members, subjects, strict=True):
        value = _parameter_value(measurement, name)
        is_kind = isinstance(value, str) and not any(map(str.isdigit, value))
        for point in _curve_points(row, measurement):
            values_by_point.setdefault((subject, point.x), set()).add(str(value))
            if is_kind and not isinstance(point.x, str):  # a line joins numbers only
                kinds_by_subject.setdefault(subject, set()).add(str(value))
    return any(len(values) > 1 for values in [*values_by_point.values(), *kinds_by_subject.values()])


def _parameter_value(measurement: Measurement, name: str) -> Any:
    return measurement.params.get(name, measurement.info.get(name))


def _curve_points(row: Curve, measurement: Measurement) -> Iterator[_Point]:
    is_doubted = bool(measurement.info["doubts"])
    if row.inside:
        levels = measurement.info.get(row.inside)
        for level, values in levels.items() if isinstance(levels, dict) else ():
            numbers = [value for value in values if isinstance(value, (int, float))] if isinstance(values, list) else []
            if numbers and level.replace(".", "", 1).isdigit():
                low, high = (min(numbers), max(numbers)) if len(numbers) > 1 else (None, None)
                yield _Point(float(level), median(numbers), low, high, is_doubted=is_doubted)
        return
    x: Any = measurement.params.get(row.x, measurement.info.get(row.x))
    if row.x == "size_bytes" and not isinstance(x, (int, float)):
        x = _parse_size(measurement.info.get("size", measurement.params.get("size")))
    y = measurement.number(row.y)
    if y is None or isinstance(x, bool) or not isinstance(x, (int, float, str)):
        return
    low, high, published = (measurement.number(key) if key else None for key in (row.low, row.high, row.published))
    yield _Point(x, y, low, high, published, is_doubted)


def _parse_size(text: object) -> int | None:
    """Convert a size such as ``100KB`` or ``1MiB`` to bytes. Return None if it is not a size."""
    size = str(text).replace(" ", "")
    units = {"KiB": 1024, "MiB": 1024**2, "KB": 1024, "MB": 1024**2, "kB": 1000, "B": 1}
    for unit, factor in units.items():
        number = size.removesuffix(unit)
        if number != size and number.replace(".", "", 1).isdigit():
            return int(float(number) * factor)
    return None


def _marked_values(row: Curve, members: Sequence[Measurement], lines: Mapping[str, object]) -> dict[str, float]:
    """Return the marked x of each line that has the name of a subject. Other lines have no mark."""
    marks: dict[str, float] = {}
    for measurement, subject in zip(members, _name_subjects(members), strict=True) if row.mark else ():
        value: Any = (
            measurement.number(row.mark)
            if row.mark in measurement.info
            else measurement.info["published"].get(row.mark)
        )
        if is_finite(value) and subject in lines:
            marks[subject] = float(value)
    return marks


def _bound_or_value(bound: float | None, value: float) -> float:
    return value if bound is None else bound


def _x_scale(key: str, points: Sequence[_Point], names: Sequence[str], marks: Iterable[float]) -> Scale:
    if names:
        return Categories(names)
    values = [*(float(point.x) for point in points), *marks]
    low, high = min(values), max(values)
    if low > 0 and high / low >= 16:
        return Log(low * 0.8, high * 1.25, value_format(key))
    margin = (high - low) * 0.04
    return Linear(low - margin, high + margin, value_format(key), fixed=True)


def _y_scale(points: Sequence[_Point], quotes: Sequence[QuotedValue], format_value: Callable[[float], str]) -> Scale:
    numbers = [value for point in points for value in (point.y, point.low, point.high, point.published)]
    values = [*(value for value in numbers if value is not None), *(quote.value for quote in quotes)]
    low, high = min(values), max(values)
    return (
        Log(low * 0.8, high * 1.25, format_value)
        if low > 0 and high / low >= 30
        else Linear(min(0.0, low), high, format_value)
    )


def _x_label(row: Curve, value: float | str) -> str:
    return value if isinstance(value, str) else f"{row.x_title or _axis_title(row.x)} {value_format(row.x)(value)}"


def value_format(key: str) -> Callable[[float], str]:
    """Return the function that formats values of a metric or extra value in its unit."""
    unit = unit_of(key)
    if unit == "s":
        return format_seconds
    if unit == "fraction" or key == "loss":
        return format_short_share
    if unit == "bytes/s":
        return lambda value: f"{format_bytes(value)}/s"
    return format_bytes if unit == "bytes" else format_number


def _axis_title(key: str) -> str:
    """Return the title of an axis. It names the unit unless the labels do."""
    if key in _AXIS_TITLES:
        return _AXIS_TITLES[key]
    for end, unit in _UNIT_SUFFIXES:
        if key.endswith(end):
            return key.removesuffix(end).replace("_", " ") + unit
    return key.replace("_", " ")
