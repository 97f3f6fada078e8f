"""A long series over its time: which share of its writes completed, and how long hash calls took.

What may live here: rounds of a series' state file into parts of its time, and the figures of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil
from typing import Any

from pytest_cloudbench.judge.shapes import availability
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.quantities import format_number, format_seconds, format_short_share
from pytest_cloudbench.report.scales import Linear, Tail
from pytest_cloudbench.report.svg import SERIES, Canvas, Plane
from pytest_cloudbench.results import published, series
from pytest_cloudbench.results.suite import Rounds

_MOST_PARTS = 60
_TOP = 0.9999
"""The top of the axis: what is between it and all of them cannot be told apart there."""

_UNITS_S = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


@dataclass(slots=True)
class _Part:
    """Rounds that follow each other. Times are seconds since the series began; ``calls`` has, by size in kB, how many
    hash calls were answered, and how long they took together.
    """

    from_s: float
    to_s: float
    tried: int = 0
    ok: int = 0
    is_doubted: bool = False
    calls: Mapping[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Course:
    """Parts of a series, and the times without measurements because it was stopped."""

    parts: Sequence[_Part]
    stops: Sequence[tuple[float, float]]


def completed_over_time(row: Rounds, each: Measurement) -> Figure | str | None:
    """Return the figure of a series, why there is none, or None for an entry that is about no series as a whole."""
    course = _read(each)
    if course is None or isinstance(course, str):
        return course
    return _figure(row, each, course) if course.parts else f"not drawn, {each.series}: no round has tried a write"


def hash_calls_over_time(row: Rounds, each: Measurement) -> Figure | None:
    """Return the figure of a series' hash calls; None if none was answered, or another figure says why."""
    course = _read(each)
    if course is None or isinstance(course, str):
        return None
    sizes = sorted({size for part in course.parts for size, (answered, _) in part.calls.items() if answered})
    return _calls(row, each, course, sizes) if sizes else None


def _read(each: Measurement) -> _Course | str | None:
    """Return a series, why it cannot be read, or None for an entry that is about no series as a whole."""
    count = each.info.get("rounds")
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    if each.series is None:
        return "not drawn, the entry names no state file with its rounds"
    try:
        return _course(series.read_lines(each.series), count)
    except ResultsError as error:
        return f"not drawn, {error}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return f"not drawn, {each.series}: a round is not as expected ({error})"


def _course(lines: Iterable[Mapping[str, Any]], count: int) -> _Course:
    """Return the first ``count`` rounds, which are those of the entry: the series may have gone on since."""
    rounds, stops, start_s, last_s = list[_Part](), list[tuple[float, float]](), 0.0, 0.0
    for line in lines:
        if "session" in line and len(rounds) < count:
            at_s = float(line["session"]["at_s"])
            start_s = start_s or at_s
            if rounds:
                stops.append((last_s - start_s, at_s - start_s))
            last_s = at_s
        elif "round" in line and len(rounds) < count:
            writes = line["writes"]
            began_s, last_s = float(line.get("began_s", last_s)), float(line["ended_s"])
            part = _Part(began_s - start_s, last_s - start_s, int(writes["tried"]), int(writes["ok"]))
            part.is_doubted = bool(line.get("doubts"))
            part.calls = {
                int(size): (int(told["answered"]), float(told["total_s"]))
                for size, told in line.get("hash", {}).items()
            }
            rounds.append(part)
    tried = [each for each in rounds if each.tried]
    size = max(1, ceil(len(tried) / _MOST_PARTS))
    parts = [_joined(list(islice(tried, first, first + size))) for first in range(0, len(tried), size)]
    return _Course(parts, stops)


def _joined(rounds: Sequence[_Part]) -> _Part:
    tried, ok = sum(each.tried for each in rounds), sum(each.ok for each in rounds)
    calls: dict[int, tuple[int, float]] = {}
    for each in rounds:
        for size, (answered, total_s) in each.calls.items():
            before = calls.get(size, (0, 0.0))
            calls[size] = before[0] + answered, before[1] + total_s
    return _Part(rounds[0].from_s, rounds[-1].to_s, tried, ok, any(each.is_doubted for each in rounds), calls)


def _figure(row: Rounds, each: Measurement, course: _Course) -> Figure:
    parts, table = course.parts, published.load_table(row.table) if row.table in published.table_names() else None
    seen = [availability(part.ok, part.tried) for part in parts]
    theirs = sorted(cell.value / 100 for cell in table.rows) if table else []
    end_s = parts[-1].to_s
    unit, unit_s = _unit(end_s)
    so_far, tried, ok = list[tuple[float, float]](), 0, 0
    for part in parts:
        tried, ok = tried + part.tried, ok + part.ok
        so_far.append((part.to_s / unit_s, ok / tried))

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Writes completed over time, {each.subject}", told)
        entries = [("d0", "completed, 95 % interval"), ("s1", "so far")]
        entries += [("d4", "has doubts")] if any(part.is_doubted for part in parts) else []
        entries += [("unknown", "stopped: not measured")] if course.stops else []
        entries += [("rule", "published, lowest and highest")] if theirs else []
        top = canvas.legend(6, 14, entries, width - 4) + 34
        x = Linear(0, end_s / unit_s, format_number, fixed=True)
        plane = Plane(canvas, x, Tail(_TOP), 62, top, width - 14, top + 190)
        for from_s, to_s in course.stops:
            left, right = plane.px(from_s / unit_s), plane.px(to_s / unit_s)
            canvas.box(left, top, max(2.0, right - left), plane.bottom - top, "unknown", "stopped: not measured")
        plane.axes(f"{unit} since the start", f"writes completed (top: {format_short_share(_TOP)} and more)")
        for value in dict.fromkeys((*theirs[:1], *theirs[-1:])):
            plane.rule(y=value)
        for part, share in zip(parts, seen, strict=True):
            middle = (part.from_s + part.to_s) / 2 / unit_s
            plane.upright(middle, share.low, share.high, "s0")
            doubt = ", has doubts" if part.is_doubted else ""
            plane.dot(middle, share.share or 0.0, 4 if part.is_doubted else 0,
                      f"{part.ok:,} of {part.tried:,} writes completed{doubt}")  # fmt: skip
        plane.line(so_far, "s1")
        canvas.height = plane.bottom + 42
        return canvas

    told = (
        f"{ok:,} of {tried:,} writes completed; some did not in {sum(share.share != 1 for share in seen)} of "
        f"{len(parts)} parts of the time, each one or several rounds. Each step up is ten times rarer. {_nature(each)}"
    )
    if course.stops:
        told += f"Stopped {len(course.stops)} x: these times count neither as measured nor as unavailable. "
    if theirs:
        told += f"Published: {format_short_share(theirs[0])} to {format_short_share(theirs[-1])}, of other services."
    head = ["from, s", "to, s", "tried", "completed", "share", "interval from", "interval to", "doubts"]
    rows = [
        [part.from_s, part.to_s, part.tried, part.ok, share.share, share.low, share.high, part.is_doubted]
        for part, share in zip(parts, seen, strict=True)
    ]
    title = f"Writes completed over time: {each.subject}"
    notes = [f"Published: {table.source} ({table.date})"] if table else []
    return Figure("completed-over-time", title, told, draw, head, rows, notes)


def _unit(end_s: float) -> tuple[str, float]:
    """Return the unit of an axis of time, and its seconds."""
    return next(((name, size) for name, size in _UNITS_S if end_s >= 2 * size), ("seconds", 1.0))


def _calls(row: Rounds, each: Measurement, course: _Course, sizes: Sequence[int]) -> Figure:
    unit, unit_s = _unit(course.parts[-1].to_s)
    means = {size: [_mean_s(part, size) for part in course.parts] for size in sizes}
    known = [mean_s for values in means.values() for mean_s in values if mean_s is not None]
    shown = list(means.items())[:SERIES]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Hash calls over time, {each.subject}", told)
        entries = [(f"s{number}", f"{size:,} kB") for number, (size, _) in enumerate(shown)]
        entries += [("unknown", "stopped: not measured")] if course.stops else []
        top = canvas.legend(6, 14, entries, width - 4) + 34
        x = Linear(0, course.parts[-1].to_s / unit_s, format_number, fixed=True)
        plane = Plane(canvas, x, Linear(0, max(known), format_seconds), 62, top, width - 14, top + 190)
        for from_s, to_s in course.stops:
            plane.bar(from_s / unit_s, to_s / unit_s, 0.0, 2 * max(known), "unknown", "stopped: not measured")
        plane.axes(f"{unit} since the start", "mean time of a hash call")
        for number, (size, values) in enumerate(shown):
            places = [(part.from_s + part.to_s) / 2 / unit_s for part in course.parts]
            line = [None if mean_s is None else (x, mean_s) for x, mean_s in zip(places, values, strict=True)]
            plane.line(line, f"s{number}")
            for point in filter(None, line):
                plane.dot(*point, number, f"{size:,} kB: {format_seconds(point[1])} on average")
        canvas.height = plane.bottom + 42
        return canvas

    told = (
        f"From a call to its answer, on average of each part of the time, by the size of the file. {_nature(each)}"
        f"{row.calls_told}"
    ).rstrip()
    rows = [
        [size, part.from_s, part.to_s, part.calls.get(size, (0, 0.0))[0], mean_s]
        for size, values in means.items() for part, mean_s in zip(course.parts, values, strict=True)
    ]  # fmt: skip
    title = f"Hash calls over time: {each.subject}"
    return Figure(
        "hash-calls-over-time", title, told, draw, ["size, kB", "from, s", "to, s", "answered", "mean, s"], rows
    )


def _mean_s(part: _Part, size: int) -> float | None:
    answered, total_s = part.calls.get(size, (0, 0.0))
    return total_s / answered if answered else None


def _nature(each: Measurement) -> str:
    return "Emulated: this is the profile's availability, not a service's. " if each.info["emulated"] else ""
