"""Points and caps on the Earth as a sphere: distances, crossings of circles, and the smallest cap around points.

The Earth's flattening changes distances by less than 0.6 %, which paths in cables exceed by far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

EARTH_RADIUS_KM = 6371.0
HALF_AROUND_KM = math.pi * EARTH_RADIUS_KM
"""Distance to the opposite point, the largest possible one."""
_NEGLIGIBLE = 1e-12

Vector = tuple[float, float, float]
Bound = tuple[Vector, float]


class Position(NamedTuple):
    """A point on the Earth, in degrees north and degrees east."""

    latitude_deg: float
    longitude_deg: float

    @property
    def vector(self) -> Vector:
        """The unit vector of this point."""
        latitude, longitude = math.radians(self.latitude_deg), math.radians(self.longitude_deg)
        level = math.cos(latitude)
        return level * math.cos(longitude), level * math.sin(longitude), math.sin(latitude)


class Cap(NamedTuple):
    """All points within a distance of a center."""

    center: Position
    radius_km: float

    @property
    def bound(self) -> Bound:
        """The center and the cosine of the radius, for a quick test of whether a point is inside."""
        return self.center.vector, math.cos(min(self.radius_km / EARTH_RADIUS_KM, math.pi))


def distance_km(one: Position, other: Position) -> float:
    """Return the length of the shortest way over the surface."""
    return _angle(one.vector, other.vector) * EARTH_RADIUS_KM


def move(start: Position, bearing_deg: float, length_km: float) -> Position:
    """Return the end of a great-circle path that starts in a direction given clockwise from north."""
    latitude, longitude = math.radians(start.latitude_deg), math.radians(start.longitude_deg)
    bearing, angle = math.radians(bearing_deg), length_km / EARTH_RADIUS_KM
    sine = math.sin(latitude) * math.cos(angle) + math.cos(latitude) * math.sin(angle) * math.cos(bearing)
    end_latitude = math.asin(max(-1.0, min(1.0, sine)))
    east = math.sin(bearing) * math.sin(angle) * math.cos(latitude)
    turned = longitude + math.atan2(east, math.cos(angle) - math.sin(latitude) * sine)
    return Position(math.degrees(end_latitude), (math.degrees(turned) + 540) % 360 - 180)


def cross_circles(one: Bound, other: Bound) -> list[Vector]:
    """Return the points on the edges of both caps: two, or none."""
    (a, cosine_a), (b, cosine_b) = one, other
    cosine_between = _dot(a, b)
    sine_squared = 1 - cosine_between * cosine_between
    if sine_squared < _NEGLIGIBLE:
        return []
    share_a, share_b = (
        (cosine_a - cosine_between * cosine_b) / sine_squared,
        (cosine_b - cosine_between * cosine_a) / sine_squared,
    )
    foot = _add(_scale(a, share_a), _scale(b, share_b))
    height_squared = (1 - _dot(foot, foot)) / sine_squared
    if height_squared < 0:
        return []
    offset = _scale(_cross(a, b), math.sqrt(height_squared))
    return [_add(foot, offset), _add(foot, _scale(offset, -1))]


def points_of_edge(cap: Cap, count: int) -> list[Vector]:
    """Return points on the edge of a cap, in equal steps."""
    center = cap.center.vector
    aside = _normalize(_cross(center, (0.0, 0.0, 1.0) if abs(center[2]) < 0.9 else (1.0, 0.0, 0.0)))
    across, angle = _cross(center, aside), cap.radius_km / EARTH_RADIUS_KM
    middle, sine = _scale(center, math.cos(angle)), math.sin(angle)
    turns = [2 * math.pi * number / count for number in range(count)]
    return [
        _add(middle, _add(_scale(aside, sine * math.cos(turn)), _scale(across, sine * math.sin(turn))))
        for turn in turns
    ]


def is_inside(point: Vector, bound: Bound) -> bool:
    """Return whether a point is in a cap or on its edge."""
    (x, y, z), cosine = bound
    return x * point[0] + y * point[1] + z * point[2] >= cosine - _NEGLIGIBLE


def enclose(points: Sequence[Vector]) -> Cap:
    """Return the smallest cap around points that lie within half of the sphere (Welzl 1991, moved to the sphere)."""
    vectors = [*points]
    Random(len(vectors)).shuffle(vectors)  # in random order, the expected time is linear
    bound = (vectors[0], 1.0)
    for last, point in enumerate(vectors):
        if not is_inside(point, bound):
            bound = _enclose_with(vectors[:last], point)
    return Cap(to_position(bound[0]), max(_angle(bound[0], vector) for vector in vectors) * EARTH_RADIUS_KM)


def _enclose_with(vectors: Sequence[Vector], first: Vector) -> Bound:
    """Return the smallest cap around points that has ``first`` on its edge, as center and cosine of the radius."""
    cap = (first, 1.0)
    for last, point in enumerate(vectors):
        if not is_inside(point, cap):
            cap = _cap_of_two(first, point)
            for third in vectors[:last]:
                if not is_inside(third, cap):
                    cap = _cap_of_three(first, point, third)
    return cap


def _cap_of_two(one: Vector, other: Vector) -> Bound:
    center = _normalize(_add(one, other))
    return center, _dot(center, one)


def _cap_of_three(one: Vector, two: Vector, three: Vector) -> Bound:
    normal = _cross(_add(two, _scale(one, -1)), _add(three, _scale(one, -1)))
    if _dot(normal, normal) < _NEGLIGIBLE**2:  # nearly the same points
        return _cap_of_two(one, three)
    center = _normalize(normal)
    if _dot(center, one) < 0:
        center = _scale(center, -1)
    return center, _dot(center, one)


def _angle(a: Vector, b: Vector) -> float:
    across = _cross(a, b)
    return math.atan2(math.sqrt(_dot(across, across)), _dot(a, b))


def to_position(vector: Vector) -> Position:
    """Return the point on the Earth in a direction from its center."""
    x, y, z = vector
    return Position(math.degrees(math.atan2(z, math.hypot(x, y))), math.degrees(math.atan2(y, x)))


def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _add(a: Vector, b: Vector) -> Vector:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _scale(a: Vector, factor: float) -> Vector:
    return a[0] * factor, a[1] * factor, a[2] * factor


def _normalize(a: Vector) -> Vector:
    return _scale(a, 1 / math.sqrt(_dot(a, a)))
