"""Values along a parameter: one line per provider, with the published values beside them.

What may live here: the one figure that draws them all. Suites declare which value is drawn over which parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.figures.quotes import Quoted, quoted
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_bytes, format_number, format_seconds, format_short_share
from pytest_cloudbench.report.scales import Categories, Linear, Log, Scale
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane, text_width
from pytest_cloudbench.results.suite import Curve

_ENDS = (("_kbit_per_s", ", kbit/s"), ("_kb", ", kB"), ("_mb", ", MB"), ("_ms", ", ms"), ("_bytes", ""), ("_s", ""))
_TITLES = {"tue": "traffic usage efficiency", "size_bytes": "size of the file"}
_ID_LIKE = frozenset({"service", "client"})


@dataclass(frozen=True, slots=True)
class _Point:
    x: float | str
    y: float
    low: float | None = None
    high: float | None = None
    published: float | None = None
    is_doubted: bool = False


def curves(rows: Iterable[Curve], members: Sequence[Measurement]) -> list[Figure]:
    """Return the figures along a parameter that the experiments of one test function have."""
    return [drawn for row in rows if (drawn := _figure(row, members)) is not None]


def _figure(row: Curve, members: Sequence[Measurement]) -> Figure | None:
    lines = _lines(row, members)
    points = [point for line in lines.values() for point in line]
    if len({point.x for point in points}) < 2:
        return None
    marks = _marks(row, members, lines)
    names = [*dict.fromkeys(str(point.x) for point in points)] if isinstance(points[0].x, str) else []
    published = sorted({(point.x, point.published) for point in points if point.published is not None}, key=str)
    quotes = [each for each in quoted(row.quotes, members) if each.x is None or any(each.x == at.x for at in points)]
    is_theirs = row.mark.startswith("published")
    y_text, shown = text_of(row.y), list(lines.items())[:SERIES]
    titles = row.x_title or _words(row.x), row.y_title or _words(row.y)

    def place(x: float | str) -> float:
        return float(names.index(x)) if isinstance(x, str) else x

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title, told)
        entries = [(f"s{number}", name) for number, (name, _) in enumerate(shown)]
        entries += [("published", row.beside)] if published or any(each.x is not None for each in quotes) else []
        entries += [("rule", "published")] if any(each.x is None for each in quotes) else []
        top = canvas.legend(6, 14, entries, width - 4) + 34
        x_scale = _x_scale(row.x, points, names, marks.values())
        plane = Plane(canvas, x_scale, _y_scale(points, quotes, y_text), 62, top, width - 14, top + 190)
        plane.axes(*titles)
        lane = [(place(x), value) for x, value in published]
        plane.line(sorted(lane), "published")
        for x, y in lane:
            plane.ring(x, y, f"{row.beside}: {y_text(y)}")
        _draw_quotes(plane, [(each, None if each.x is None else place(each.x)) for each in quotes], y_text)
        for number, (name, line) in enumerate(shown):
            if not names:
                plane.line([(place(point.x), point.y) for point in line], f"s{number}")
            for point in line:
                shift = (number - (len(shown) - 1) / 2) * 0.12 if names else 0.0
                x = place(point.x) + shift
                if point.low is not None or point.high is not None:
                    plane.upright(x, _known(point.low, point.y), _known(point.high, point.y), f"s{number}")
                doubt = ", has doubts" if point.is_doubted else ""
                plane.dot(x, point.y, number, f"{name}, {_x_label(row, point.x)}: {y_text(point.y)}{doubt}")
        for mark in dict.fromkeys(marks.values()):
            plane.rule(x=mark, label=f"{row.mark.partition('_')[0]}: {mark:g}")
        canvas.height = top + 190 + 42
        return canvas

    said = [f"{name}: {row.mark.replace('_', ' ')} {mark:g}" for name, mark in marks.items() if not is_theirs]
    missing = len(lines) - len(shown)
    told = " ".join([row.told, *([f"{'; '.join(said)}."] if said else []),
                     *([f"{missing} more lines are in the numbers only."] if missing else [])])  # fmt: skip
    head = ["line", *titles, "from", "to", row.beside, "doubts"]
    table = [
        [name, point.x, point.y, point.low, point.high, point.published, point.is_doubted]
        for name, line in lines.items() for point in line
    ]  # fmt: skip
    table += [
        [" ".join(["published:", each.words, *each.bound.split()]), each.x, None, None, None, each.value, False]
        for each in quotes
    ]
    is_published = bool(published and row.beside == "published") or bool(marks and is_theirs)
    sources = [str(each.info["published"].get("source", "")) for each in members if is_published]
    sources += [each.source for each in quotes]
    notes = [f"Published: {source}" for source in dict.fromkeys(sources) if source]
    return Figure(f"{row.y}-by-{row.x}".replace("_", "-"), row.title, told, draw, head, table, notes)


def _draw_quotes(
    plane: Plane, quotes: Sequence[tuple[Quoted, float | None]], text: Callable[[float], str]
) -> None:  # fmt: skip
    """Draw what a paper quotes, with whose it is: a ring at its place, or a line across."""
    lowest = dict[float | None, float]()  # where the label above ends, so that two of one place do not overlap
    for each, x in sorted(quotes, key=lambda quote: -quote[0].value):
        told = each.told(text)
        if x is None:
            plane.rule(y=each.value, label=told)
            continue
        plane.ring(x, each.value, f"published, {told}")
        is_right = plane.px(x) + 10 + text_width(told) > plane.right
        lowest[x] = y = max(plane.py(each.value) - 6, lowest.get(x, 0.0) + 13)
        plane.canvas.text(plane.px(x) + (-8 if is_right else 8), y, told, "note", "end" if is_right else "start")


def _lines(row: Curve, members: Sequence[Measurement]) -> dict[str, list[_Point]]:
    """Return the points of each line: of a provider, and of all parameters besides x that differ."""
    names = dict.fromkeys(name for each in members for name in each.params)
    others = [name for name in [*names, "operation"] if name not in {row.x, *_ID_LIKE} and _splits(row, name, members)]
    # Two parameters that always say the same are one.
    others = list({tuple(str(_param(each, name)) for each in members): name for name in reversed(others)}.values())[
        ::-1
    ]
    lines: dict[str, list[_Point]] = {}
    for each in members:
        told = [f"{name.replace('_', ' ')} {_param(each, name)}" for name in others]
        for point in _points(row, each):
            lines.setdefault(", ".join([each.subject, *told]), []).append(point)
    for line in lines.values():
        if not any(isinstance(point.x, str) for point in line):
            line.sort(key=lambda point: float(point.x))
    return lines


def _splits(row: Curve, name: str, members: Sequence[Measurement]) -> bool:
    """Return whether a parameter has several values at one value of x, so that each needs a line of its own."""
    found: dict[tuple[str, object], set[str]] = {}
    for each in members:
        for point in _points(row, each):
            found.setdefault((each.subject, point.x), set()).add(str(_param(each, name)))
    return any(len(values) > 1 for values in found.values())


def _param(each: Measurement, name: str) -> Any:
    return each.params.get(name, each.info.get(name))


def _points(row: Curve, each: Measurement) -> Iterator[_Point]:
    doubted = bool(each.info["doubts"])
    if row.inside:
        found = each.info.get(row.inside)
        for level, values in found.items() if isinstance(found, dict) else ():
            numbers = [value for value in values if isinstance(value, (int, float))] if isinstance(values, list) else []
            if numbers and level.replace(".", "", 1).isdigit():
                low, high = (min(numbers), max(numbers)) if len(numbers) > 1 else (None, None)
                yield _Point(float(level), median(numbers), low, high, is_doubted=doubted)
        return
    x: Any = each.params.get(row.x, each.info.get(row.x))
    if row.x == "size_bytes" and not isinstance(x, (int, float)):
        x = _size_bytes(each.info.get("size", each.params.get("size")))
    y = each.number(row.y)
    if y is None or isinstance(x, bool) or not isinstance(x, (int, float, str)):
        return
    low, high, beside = (each.number(key) if key else None for key in (row.low, row.high, row.published))
    yield _Point(x, y, low, high, beside, doubted)


def _size_bytes(text: object) -> int | None:
    """Return the bytes that a size such as ``100KB`` or ``1MiB`` means."""
    found = str(text).replace(" ", "")
    units = {"KiB": 1024, "MiB": 1024**2, "KB": 1024, "MB": 1024**2, "kB": 1000, "B": 1}
    for unit, factor in units.items():
        number = found.removesuffix(unit)
        if number != found and number.replace(".", "", 1).isdigit():
            return int(float(number) * factor)
    return None


def _marks(row: Curve, members: Sequence[Measurement], lines: Mapping[str, object]) -> dict[str, float]:
    """Return the marked value of x of each line; nothing if a provider has several lines."""
    found: dict[str, float] = {}
    for each in members if row.mark else ():
        value: Any = each.number(row.mark) if row.mark in each.info else each.info["published"].get(row.mark)
        if is_finite(value) and each.subject in lines:
            found[each.subject] = float(value)
    return found


def _known(bound: float | None, value: float) -> float:
    return value if bound is None else bound


def _x_scale(key: str, points: Sequence[_Point], names: Sequence[str], marks: Iterable[float]) -> Scale:
    if names:
        return Categories(names)
    values = [*(float(point.x) for point in points), *marks]
    low, high = min(values), max(values)
    if low > 0 and high / low >= 16:
        return Log(low * 0.8, high * 1.25, text_of(key))
    margin = (high - low) * 0.04
    return Linear(low - margin, high + margin, text_of(key), fixed=True)


def _y_scale(points: Sequence[_Point], quotes: Sequence[Quoted], text: Callable[[float], str]) -> Scale:
    known = [value for point in points for value in (point.y, point.low, point.high, point.published)]
    values = [*(value for value in known if value is not None), *(each.value for each in quotes)]
    low, high = min(values), max(values)
    return Log(low * 0.8, high * 1.25, text) if low > 0 and high / low >= 30 else Linear(min(0.0, low), high, text)


def _x_label(row: Curve, value: float | str) -> str:
    return value if isinstance(value, str) else f"{row.x_title or _words(row.x)} {text_of(row.x)(value)}"


def text_of(key: str) -> Callable[[float], str]:
    """Return how values of a metric or extra value are written, by its unit."""
    unit = METRICS[key].unit if key in METRICS else ""
    if unit == "s" or (key.endswith("_s") and not key.endswith("_per_s") and not unit):
        return format_seconds
    if unit == "fraction" or key == "loss" or key.endswith("_share"):
        return format_short_share
    if unit == "bytes/s":
        return lambda value: f"{format_bytes(value)}/s"
    return format_bytes if unit == "bytes" or key.endswith("_bytes") else format_number


def _words(key: str) -> str:
    """Return the title of an axis; the unit is in its labels, or its name says it."""
    if key in _TITLES:
        return _TITLES[key]
    for end, unit in _ENDS:
        if key.endswith(end):
            return key.removesuffix(end).replace("_", " ") + unit
    return key.replace("_", " ")
