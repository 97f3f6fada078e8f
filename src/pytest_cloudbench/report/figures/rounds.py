"""Figures of a long series over time: the share of writes that completed, and the duration of hash calls.

Their source is the series' state file, with one line for each round.
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
from pytest_cloudbench.support.wording import format_count

_MOST_PARTS = 60
_TOP = 0.9999
"""The top of the axis. Larger shares are drawn at this value."""

_UNITS_S = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0))


@dataclass(slots=True)
class _Part:
    """Successive rounds. Times are seconds since the series began.

    ``calls`` has, by size in kB, the number of hash calls that were answered, and their total duration in seconds.
    """

    from_s: float
    to_s: float
    tried: int = 0
    ok: int = 0
    is_doubted: bool = False
    calls: Mapping[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Course:
    """The parts of a series, and the times during which it was stopped."""

    parts: Sequence[_Part]
    stops: Sequence[tuple[float, float]]


def completed_over_time(row: Rounds, measurement: Measurement) -> Figure | str | None:
    """Return the figure of a series, the reason why it cannot be drawn, or None if the entry is not of a series."""
    course = _read_course(measurement)
    if course is None or isinstance(course, str):
        return course
    return (
        _completed_figure(row, measurement, course)
        if course.parts
        else f"not drawn, {measurement.series}: no round has tried a write"
    )


def hash_calls_over_time(row: Rounds, measurement: Measurement) -> Figure | None:
    """Return the figure of a series' hash calls, or None if none was answered or the series cannot be read."""
    course = _read_course(measurement)
    if course is None or isinstance(course, str):
        return None
    sizes = sorted({size for part in course.parts for size, (answered, _) in part.calls.items() if answered})
    return _hash_calls_figure(row, measurement, course, sizes) if sizes else None


def _read_course(measurement: Measurement) -> _Course | str | None:
    """Return a series, the reason why it cannot be read, or None if the entry is not of a series."""
    count = measurement.info.get("rounds")
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    if measurement.series is None:
        return "not drawn, the entry names no state file with its rounds"
    try:
        return _parse_course(series.read_lines(measurement.series), count)
    except ResultsError as error:
        return f"not drawn, {error}"
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return f"not drawn, {measurement.series}: its rounds are not as expected ({error})"


def _parse_course(lines: Iterable[Mapping[str, Any]], count: int) -> _Course:
    """Return the first ``count`` rounds. Later rounds do not belong to the entry."""
    rounds, stops, start_s, last_s = list[_Part](), list[tuple[float, float]](), 0.0, 0.0
    for line in lines:
        if "session" in line and len(rounds) < count:
            at_s = series.read_time(line["session"]["at_s"])
            start_s = start_s or at_s
            if rounds:
                stops.append((last_s - start_s, at_s - start_s))
            last_s = at_s
        elif "round" in line and len(rounds) < count:
            writes = line["writes"]
            began_s = series.read_time(line.get("began_s", last_s))
            last_s = series.read_time(line["ended_s"])
            part = _Part(began_s - start_s, last_s - start_s, int(writes["tried"]), int(writes["ok"]))
            if not 0 <= part.ok <= part.tried:
                raise ValueError(f"{part.ok} of {part.tried} writes")
            part.is_doubted = bool(line.get("doubts"))
            part.calls = {
                int(size): (int(call["answered"]), float(call["total_s"]))
                for size, call in line.get("hash", {}).items()
            }
            rounds.append(part)
    if len(rounds) < count:
        raise ValueError(f"{len(rounds)} of the entry's {format_count(count, 'round')} are there")
    tried = [part for part in rounds if part.tried]
    size = max(1, ceil(len(tried) / _MOST_PARTS))
    parts = [_merge_rounds(list(islice(tried, first, first + size))) for first in range(0, len(tried), size)]
    return _Course(parts, stops)


def _merge_rounds(rounds: Sequence[_Part]) -> _Part:
    tried, ok = sum(part.tried for part in rounds), sum(part.ok for part in rounds)
    calls: dict[int, tuple[int, float]] = {}
    for part in rounds:
        for size, (answered, total_s) in part.calls.items():
            before = calls.get(size, (0, 0.0))
            calls[size] = before[0] + answered, before[1] + total_s
    return _Part(rounds[0].from_s, rounds[-1].to_s, tried, ok, any(part.is_doubted for part in rounds), calls)


def _completed_figure(row: Rounds, measurement: Measurement, course: _Course) -> Figure:
    """Return the figure of the share of writes that completed, in each part of a series and so far."""
    parts, table = course.parts, published.load_table(row.table) if row.table in published.table_names() else None
    shares = [availability(part.ok, part.tried) for part in parts]
    published_shares = sorted(cell.value / 100 for cell in table.rows) if table else []
    end_s = parts[-1].to_s
    unit, unit_s = _time_unit(end_s)
    so_far, tried, ok = list[tuple[float, float]](), 0, 0
    for part in parts:
        tried, ok = tried + part.tried, ok + part.ok
        so_far.append((part.to_s / unit_s, ok / tried))

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Writes completed over time, {measurement.subject}")
        entries = [("d0", "completed, 95 % interval"), ("s1", "so far")]
        entries += [("d4", "has doubts")] if any(part.is_doubted for part in parts) else []
        entries += [("unknown", "stopped: not measured")] if course.stops else []
        entries += [("rule", "published, lowest and highest")] if published_shares else []
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x = Linear(0, end_s / unit_s, format_number, fixed=True)
        plane = Plane(canvas, x, Tail(_TOP), 62, top, width - 14, top + 190)
        for from_s, to_s in course.stops:
            left, right = plane.canvas_x(from_s / unit_s), plane.canvas_x(to_s / unit_s)
            canvas.draw_box(left, top, max(2.0, right - left), plane.bottom - top, "unknown", "stopped: not measured")
        plane.draw_axes(f"{unit} since the start", f"writes completed (top: {format_short_share(_TOP)} and more)")
        for value in dict.fromkeys((*published_shares[:1], *published_shares[-1:])):
            plane.draw_rule(y=value)
        for part, share in zip(parts, shares, strict=True):
            middle = (part.from_s + part.to_s) / 2 / unit_s
            plane.draw_y_interval(middle, share.low, share.high, "s0")
            doubt = ", has doubts" if part.is_doubted else ""
            plane.draw_dot(middle, share.share or 0.0, 4 if part.is_doubted else 0,
                      f"{part.ok:,} of {part.tried:,} writes completed{doubt}")  # fmt: skip
        plane.draw_line(so_far, "s1")
        canvas.height = plane.bottom + 42
        return canvas

    description = (
        f"{ok:,} of {format_count(tried, 'write')} completed; some did not in "
        f"{sum(share.share != 1 for share in shares)} of {format_count(len(parts), 'part')} of the time, "
        f"each one or several rounds. Each step up is ten times rarer. {_emulation_note(measurement)}"
    )
    if course.stops:
        description += f"Stopped {len(course.stops)} x: these times count neither as measured nor as unavailable. "
    if published_shares:
        lowest, highest = map(format_short_share, (published_shares[0], published_shares[-1]))
        description += f"Published: {lowest} to {highest}, of other services."
    head = ["from, s", "to, s", "tried", "completed", "share", "interval from", "interval to", "doubts"]
    rows = [
        [part.from_s, part.to_s, part.tried, part.ok, share.share, share.low, share.high, part.is_doubted]
        for part, share in zip(parts, shares, strict=True)
    ]
    title = f"Writes completed over time: {measurement.subject}"
    notes = [f"Published: {table.source} ({table.date})"] if table else []
    return Figure("completed-over-time", title, description, draw, head, rows, notes)


def _time_unit(end_s: float) -> tuple[str, float]:
    """Return the unit of a time axis and its length in seconds."""
    return next(((name, size) for name, size in _UNITS_S if end_s >= 2 * size), ("seconds", 1.0))


def _hash_calls_figure(row: Rounds, measurement: Measurement, course: _Course, sizes: Sequence[int]) -> Figure:
    """Return the figure of the mean times of hash calls by size of file, in each part of a series."""
    unit, unit_s = _time_unit(course.parts[-1].to_s)
    means = {size: [_mean_call_s(part, size) for part in course.parts] for size in sizes}
    known_s = [mean_s for values in means.values() for mean_s in values if mean_s is not None]
    shown = list(means.items())[:SERIES]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, f"Hash calls over time, {measurement.subject}")
        entries = [(f"s{number}", f"{size:,} kB") for number, (size, _) in enumerate(shown)]
        entries += [("unknown", "stopped: not measured")] if course.stops else []
        top = canvas.draw_legend(6, 14, entries, width - 4) + 34
        x = Linear(0, course.parts[-1].to_s / unit_s, format_number, fixed=True)
        plane = Plane(canvas, x, Linear(0, max(known_s), format_seconds), 62, top, width - 14, top + 190)
        for from_s, to_s in course.stops:
            plane.draw_bar(from_s / unit_s, to_s / unit_s, 0.0, 2 * max(known_s), "unknown", "stopped: not measured")
        plane.draw_axes(f"{unit} since the start", "mean time of a hash call")
        for number, (size, values) in enumerate(shown):
            middles = [(part.from_s + part.to_s) / 2 / unit_s for part in course.parts]
            line = [None if mean_s is None else (x, mean_s) for x, mean_s in zip(middles, values, strict=True)]
            plane.draw_line(line, f"s{number}")
            for point in filter(None, line):
                plane.draw_dot(*point, number, f"{size:,} kB: {format_seconds(point[1])} on average")
        canvas.height = plane.bottom + 42
        return canvas

    description = (
        "From a call to its answer, on average of each part of the time, by the size of the file. "
        f"{_emulation_note(measurement)}"
        f"{row.calls_caption}"
    ).rstrip()
    rows = [
        [size, part.from_s, part.to_s, part.calls.get(size, (0, 0.0))[0], mean_s]
        for size, values in means.items() for part, mean_s in zip(course.parts, values, strict=True)
    ]  # fmt: skip
    title = f"Hash calls over time: {measurement.subject}"
    return Figure(
        "hash-calls-over-time", title, description, draw, ["size, kB", "from, s", "to, s", "answered", "mean, s"], rows
    )


def _mean_call_s(part: _Part, size: int) -> float | None:
    answered, total_s = part.calls.get(size, (0, 0.0))
    return total_s / answered if answered else None


def _emulation_note(measurement: Measurement) -> str:
    return "Emulated: this is the profile's availability, not a service's. " if measurement.info["emulated"] else ""
