"""Maps of servers: the region in which each server is, drawn over coast lines (IMC 2013, Figure 2).

The map shows the part of the world that has servers. A region is where a server can be, and not where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import pairwise
from math import cos, radians
from typing import Any

from pytest_cloudbench import data
from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.net.locate.sphere import Cap, Position, points_of_edge, to_position
from pytest_cloudbench.report.figures import Figure
from pytest_cloudbench.report.gathering import Measurement
from pytest_cloudbench.report.svg import SERIES, Canvas
from pytest_cloudbench.results.suite import WorldMap
from pytest_cloudbench.support.wording import format_count

_STEPS_PER_DEGREE = 4
_LEAST_DEGREES = 24.0
"""The map is never smaller, so that a coast can be recognized."""
_EDGE_POINTS = 60
_MARK_KM = 50.0
"""The radius around a published place that the map shows."""
_HEAD = ["subject", "server", "address", "operator", "place", "degrees north", "degrees east", "radius, km", "known by"]

_Degrees = tuple[float, float]


def draw_maps(row: WorldMap, members: Sequence[Measurement]) -> list[Figure]:
    """Return one map of all servers of all subjects, or nothing if no entry lists any."""
    servers = [
        (measurement.subject, place) for measurement in members for place in _read_places(measurement.info, row.places)
    ]
    if not servers:
        return []
    subjects = [*dict.fromkeys(subject for subject, _ in servers)]
    caps = [(subjects.index(subject), place, cap) for subject, place in servers if (cap := _read_cap(place))]

    published = [
        (text, Position(north, east)) for text, north, east in row.published if abs(north) <= 90 and abs(east) <= 180
    ]

    def draw(width: int) -> Canvas:
        canvas = Canvas(width, 0, row.title)
        view = _choose_view([*(cap for _, _, cap in caps), *(Cap(center, _MARK_KM) for _, center in published)])
        height = _draw_view(canvas, view, width, caps, published)
        legend = [(f"d{number % SERIES}", subject) for number, subject in enumerate(subjects)]
        legend += [("published", "areas that the paper names")] if published else []
        canvas.height = canvas.draw_legend(4, height + 18, legend, width - 4) + 10
        return canvas

    unknown = len(servers) - len(caps)
    description = f"{format_count(len(caps), 'server')} of {', '.join(subjects)} with a known region"
    description += f", and {unknown} without. " if unknown else ". "
    description += "A server can be anywhere in its region. " + row.caption
    if published:
        areas = format_count(len(published), "area")
        description += f" Rings: {areas} that the paper names, which says nothing of today."
    rows = [_table_row(*server) for server in servers]
    rows += [["published", text, "", "", "", *center, None, "a paper, area only"] for text, center in published]
    return [Figure("map", row.title, description, draw, _HEAD, rows)]


def _read_places(info: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """Return the servers of an entry, which may come from anywhere."""
    places = info.get(name)
    return [place for place in places if isinstance(place, Mapping)] if isinstance(places, list) else []


def _read_cap(place: Mapping[str, Any]) -> Cap | None:
    values = [place.get(key) for key in ("latitude_deg", "longitude_deg", "radius_km")]
    numbers = [float(value) for value in values if value is not None and is_finite(value)]
    if len(numbers) != len(values):
        return None
    latitude, longitude, radius = numbers
    is_valid = abs(latitude) <= 90 and abs(longitude) <= 180 and 0 <= radius <= 10_000
    return Cap(Position(latitude, longitude), radius) if is_valid else None


def _table_row(subject: str, place: Mapping[str, Any]) -> list[Any]:
    cap = _read_cap(place)
    region = [None] * 3 if cap is None else [*cap.center, cap.radius_km]
    texts = [str(place.get(key, "")) for key in ("name", "address", "operator", "place")]
    return [subject, *texts, *region, str(place.get("known_by", ""))]


def _choose_view(caps: Sequence[Cap]) -> tuple[float, float, float, float]:
    """Return south, north, west and east of the map, in degrees."""
    if not caps:
        return (-60.0, 80.0, -180.0, 180.0)
    points = [point for cap in caps for point in _outline(cap)]
    north, south = max(p[1] for p in points), min(p[1] for p in points)
    east, west = max(p[0] for p in points), min(p[0] for p in points)
    tall = max(_LEAST_DEGREES, (north - south) * 1.2)
    wide = max(1.6 * tall, (east - west) * 1.2)
    middle_x, middle_y = (east + west) / 2, max(-90 + tall / 2, min(90 - tall / 2, (north + south) / 2))
    if wide > 300:
        return (max(-85.0, middle_y - tall / 2), min(85.0, middle_y + tall / 2), -180.0, 180.0)
    return (max(-90.0, middle_y - tall / 2), min(90.0, middle_y + tall / 2), middle_x - wide / 2, middle_x + wide / 2)


def _draw_view(
    canvas: Canvas, view: tuple[float, float, float, float], width: int,
    caps: Sequence[tuple[int, Mapping[str, Any], Cap]], published: Sequence[tuple[str, Position]],
) -> float:  # fmt: skip
    """Draw land, published places, regions and their centers, cut at the map's edge. Returns the map's height."""
    south, north, west, east = view
    scale = width / (east - west)
    stretch = 1 / max(0.2, cos(radians((south + north) / 2)))  # so that shapes in the middle are not distorted
    height = (north - south) * scale * stretch

    def project(point: _Degrees) -> _Degrees:
        return (point[0] - west) * scale, (north - point[1]) * scale * stretch

    canvas.add_element(f'<svg width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}">')
    canvas.add_element(f'<path d="{_land_path(view, project)}" class="land"/>')
    for number, _, cap in caps:
        canvas.add_element(f'<path d="{_path(map(project, _outline(cap)))}" class="reach s{number % SERIES}"/>')
    for text, center in published:
        x, y = project((center.longitude_deg, center.latitude_deg))
        title = f"<title>{escape(text)}</title>"
        canvas.add_element(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="published">{title}</circle>')
    for number, place, cap in caps:
        x, y = project((cap.center.longitude_deg, cap.center.latitude_deg))
        tip = f"{place.get('name', '')}: {place.get('operator', '')}, {place.get('place', '')}"
        canvas.draw_marker(x, y, number, tip)
    canvas.add_element("</svg>")
    return height


def _land_path(view: tuple[float, float, float, float], project: Any) -> str:
    """Return all land that may be in view, as one path. Land that continues beyond 180 degrees is drawn twice."""
    south, north, west, east = view
    parts = []
    for ring in _land():
        for turn in (-360.0, 0.0, 360.0):
            xs, ys = [x + turn for x, _ in ring], [y for _, y in ring]
            if max(xs) >= west and min(xs) <= east and max(ys) >= south and min(ys) <= north:
                parts.append(_path(map(project, zip(xs, ys, strict=True))))
    return "".join(parts)


def _path(points: Any) -> str:
    """Return a closed path, in steps of tenths."""
    tenths = [(round(x * 10), round(y * 10)) for x, y in points]
    moves = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(tenths)]
    steps = " ".join(f"{dx / 10:g} {dy / 10:g}" for dx, dy in moves if dx or dy)
    return f"M{tenths[0][0] / 10:g} {tenths[0][1] / 10:g}l{steps}z" if steps else ""


@cache
def _land() -> tuple[tuple[_Degrees, ...], ...]:
    return tuple(tuple(_unwrap(line)) for line in data.read_locate_table("coasts.txt").splitlines())


def _unwrap(line: str) -> Iterator[_Degrees]:
    """Yield the points of a ring without jumps from 180 to -180 degrees. A ring around a pole is closed over it."""
    steps = [tuple(map(int, word.split(","))) for word in line.split()]
    x, y = steps[0]
    first_x, around = x, 360 * _STEPS_PER_DEGREE
    yield x / _STEPS_PER_DEGREE, y / _STEPS_PER_DEGREE
    for dx, dy in steps[1:]:
        x, y = x + dx, y + dy
        if abs(dx) > around / 2:  # the step crosses 180 degrees, so it is short in the other direction
            x += around if dx < 0 else -around
        yield x / _STEPS_PER_DEGREE, y / _STEPS_PER_DEGREE
    if abs(x - first_x) >= around:
        yield x / _STEPS_PER_DEGREE, -90.0
        yield first_x / _STEPS_PER_DEGREE, -90.0


def _outline(cap: Cap) -> list[_Degrees]:
    """Return the edge of a region in degrees east and north, without jumps."""
    points = [to_position(vector) for vector in points_of_edge(cap, _EDGE_POINTS)]
    east = cap.center.longitude_deg
    return [((p.longitude_deg - east + 540) % 360 - 180 + east, p.latitude_deg) for p in points]
