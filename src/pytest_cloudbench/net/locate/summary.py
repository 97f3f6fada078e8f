"""A summary of the location of one provider or name, as plain values that entries store and later runs read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytest_cloudbench.net.locate.placing import UNKNOWN, Location
from pytest_cloudbench.net.locate.sphere import HALF_AROUND_KM, Cap, distance_km


def summarize_location(
    names: Sequence[str], locations: Sequence[Location], here: Cap | None, date: str
) -> dict[str, Any] | None:
    """Return a summary of where servers are, or None if none was measured and nothing is published about them.

    The keys are names, servers (how many), place, operator, known_by, layer, date, nearest_km and farthest_km. All
    servers are between these two distances from this machine. Both distances are None if the machine's place or a
    server's region is unknown.
    """
    if not any(row.vantages or row.place != UNKNOWN for row in locations):
        return None
    nearest_km, farthest_km = bound_distance_km([row.cap for row in locations], here)
    return {
        "names": [*names],
        "servers": len(locations),
        "place": _join(row.place for row in locations),
        "operator": _join(row.operator or UNKNOWN for row in locations),
        "known_by": _join(row.by for row in locations),
        "layer": _join(row.layer for row in locations),
        "nearest_km": nearest_km,
        "farthest_km": farthest_km,
        "date": date,
    }


def bound_distance_km(caps: Sequence[Cap | None], here: Cap | None) -> tuple[float | None, float | None]:
    """Return the smallest and largest distance from here to any point of these regions. Both are None if unknown."""
    if here is None or not caps:
        return None, None
    nearest, farthest = list[float](), list[float]()
    for cap in caps:
        if cap is None:
            return None, None
        between_km, off_km = distance_km(here.center, cap.center), here.radius_km + cap.radius_km
        nearest.append(max(0.0, between_km - off_km))
        farthest.append(min(HALF_AROUND_KM, between_km + off_km))
    return round(min(nearest), 1), round(max(farthest), 1)


def _join(values: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(values))
