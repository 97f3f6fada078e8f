"""Location of a server by round trips. Each one bounds the distance to the server, which is where all bounds overlap.

The bounds are physical limits. Tighter bounds, fitted to usual paths, excluded the true place in half of all layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import cos, isfinite, pi
from typing import Literal

from pytest_cloudbench.net.locate.sphere import (
    EARTH_RADIUS_KM,
    HALF_AROUND_KM,
    Bound,
    Cap,
    Position,
    Vector,
    cross_circles,
    distance_km,
    enclose,
    is_inside,
    points_of_edge,
)

KM_PER_MS = 100.0
"""Largest distance to a server for each millisecond of round trip: light in glass travels two thirds of 300 km/ms, and
it travels there and back (Gueye et al., Constraint-based geolocation, IEEE/ACM ToN 2006)."""
SLACK_KM = 20.0
"""Largest error of a bound, for clocks that read 0.2 ms too little and cables straighter than any known."""
WIDEST_KM = 2500.0
"""Largest radius of a region that counts as a place. A wider one is a continent."""
_EDGE_POINTS = 360

Reason = Literal["", "no round trip", "clock", "anycast", "proxy or anycast", "contradiction", "too wide"]


@dataclass(frozen=True, slots=True)
class Disc:
    """The region in which a server can be, bounded by the shortest round trip from one vantage point.

    Attributes:
        vantage: the name of the vantage point.
        center: where it is.
        rtt_ms: the shortest round trip to the server.
        off_km: how far the vantage point may be from ``center``.
        has_proxy: whether something near it answers in place of servers. None if nobody has checked.
    """

    vantage: str
    center: Position
    rtt_ms: float
    off_km: float = 0.0
    has_proxy: bool | None = None

    @property
    def cap(self) -> Cap:
        """The region without slack."""
        return Cap(self.center, min(HALF_AROUND_KM, self.rtt_ms * KM_PER_MS + self.off_km))


@dataclass(frozen=True, slots=True)
class DiscVerdict:
    """The place that round trips allow, or the reason why it is unknown.

    Attributes:
        cap: the smallest cap around all places that are possible. None if the place is unknown.
        reason: why the place is unknown, in a few words, or empty if it is known. ``detail`` is the same as a sentence.
        vantages: how many vantage points count.
        sites: a cap for each of several servers that share the address. No two caps can hold the same server.
        left_out: vantage points that do not count, and why.
    """

    cap: Cap | None
    reason: Reason = ""
    detail: str = ""
    vantages: int = 0
    sites: tuple[Cap, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)


def place_server(discs: Iterable[Disc]) -> DiscVerdict:
    """Return where a server can be. The true place is inside if no vantage point is wrong about its own place.

    The radius is never larger than that of the smallest disc.
    """
    counted, left_out = _leave_out(discs)
    if not counted:
        reason: Reason = "clock" if "clock" in " ".join(left_out.values()) else "no round trip"
        return DiscVerdict(None, reason, "no vantage point has a round trip that counts", left_out=left_out)
    sites = _find_sites(counted)
    if len(sites) > 1:
        return _describe_sites(sites, counted, left_out)
    smallest = min(counted, key=lambda disc: disc.cap.radius_km)
    cap = _intersect([_widen(disc) for disc in _select_constraining(counted, smallest)], smallest)
    if cap is None:
        detail = "round trips of three or more vantage points contradict each other: a place or a clock is wrong"
        return DiscVerdict(None, "contradiction", detail, len(counted), left_out=left_out)
    if cap.radius_km > smallest.cap.radius_km:
        cap = smallest.cap
    if cap.radius_km > WIDEST_KM:
        detail = f"the nearest vantage point, {smallest.vantage}, is {smallest.rtt_ms:.0f} ms away"
        return DiscVerdict(None, "too wide", detail, len(counted), left_out=left_out)
    return DiscVerdict(cap, vantages=len(counted), left_out=left_out)


def place_nearest_server(discs: Iterable[Disc]) -> DiscVerdict:
    """Return the place of the server that answers the vantage point with the shortest round trip.

    Other vantage points are ignored. If several servers share an address, all bounds can overlap at a place between
    them that has no server.
    """
    counted, left_out = _leave_out(discs)
    nearest = sorted(counted, key=lambda disc: disc.cap.radius_km)[:1]
    return replace(place_server(nearest), left_out=left_out)


def is_possible(cap: Cap, discs: Iterable[Disc]) -> bool:
    """Return whether a server can be in a region, as far as round trips tell."""
    counted, _ = _leave_out(discs)
    return all(
        distance_km(disc.center, cap.center) <= disc.cap.radius_km + cap.radius_km + SLACK_KM for disc in counted
    )


def _leave_out(discs: Iterable[Disc]) -> tuple[list[Disc], dict[str, str]]:
    """Keep the shortest round trip of each vantage point, and leave out those that say nothing about the server."""
    shortest, left_out = dict[str, Disc](), dict[str, str]()
    for disc in discs:
        if not (isfinite(disc.rtt_ms) and disc.rtt_ms > 0):
            left_out[disc.vantage] = "its clock is wrong: a round trip of no time"
        elif disc.has_proxy:
            left_out[disc.vantage] = "a proxy near it answers for servers that do not exist"
        elif disc.vantage not in shortest or disc.rtt_ms < shortest[disc.vantage].rtt_ms:
            shortest[disc.vantage] = disc
    return [disc for name, disc in shortest.items() if name not in left_out], left_out


def _find_sites(discs: Sequence[Disc]) -> list[Disc]:
    """Return discs no two of which can hold the same server: the smallest, then each that excludes all before it."""
    sites: list[Disc] = []
    for disc in sorted(discs, key=lambda disc: disc.cap.radius_km):
        if all(_exclude_each_other(disc, site) for site in sites):
            sites.append(disc)
    if len(sites) == 1:  # the smallest disc may meet all others, while two larger ones exclude each other
        pairs = ((one, other) for index, one in enumerate(discs) for other in discs[index + 1 :])
        return next(([one, other] for one, other in pairs if _exclude_each_other(one, other)), sites)
    return sites


def _exclude_each_other(one: Disc, other: Disc) -> bool:
    return distance_km(one.center, other.center) > one.cap.radius_km + other.cap.radius_km + 2 * SLACK_KM


def _describe_sites(sites: Sequence[Disc], counted: Sequence[Disc], left_out: dict[str, str]) -> DiscVerdict:
    names = f"{sites[0].vantage} and {sites[1].vantage}, if both are where they are said to be"
    is_checked = all(disc.has_proxy is False for disc in sites)
    text = f"at least {len(sites)} servers share the address: none can be near both {names}"
    if not is_checked:
        text = f"several servers share the address, or a proxy answers for it: none can be near both {names}"
    reason: Reason = "anycast" if is_checked else "proxy or anycast"
    return DiscVerdict(None, reason, text, len(counted), tuple(disc.cap for disc in sites), left_out)


def _widen(disc: Disc) -> Cap:
    return Cap(disc.center, disc.cap.radius_km + SLACK_KM)


def _select_constraining(discs: Sequence[Disc], smallest: Disc) -> list[Disc]:
    """Return the discs that do not contain the whole smallest one. The others constrain nothing."""
    reach_km = smallest.cap.radius_km + 2 * SLACK_KM
    return [
        disc
        for disc in discs
        if disc is smallest or distance_km(disc.center, smallest.center) + reach_km > disc.cap.radius_km
    ]


def _intersect(caps: Sequence[Cap], smallest: Disc) -> Cap | None:
    """Return the smallest cap around the intersection of all caps, or None if it is empty."""
    if _widen(smallest).radius_km > HALF_AROUND_KM / 2:
        return smallest.cap  # larger than half of the sphere, so it is too wide anyway
    bounds = [cap.bound for cap in caps]
    points = [
        point
        for index, one in enumerate(bounds)
        for other in bounds[index + 1 :]
        for point in cross_circles(one, other)
        if _is_in_all(point, bounds)
    ]
    points += [
        point
        for cap in caps
        if cap.radius_km < HALF_AROUND_KM
        for point in points_of_edge(cap, _EDGE_POINTS)
        if _is_in_all(point, bounds)
    ]
    if not points:
        return None
    around = enclose(points)
    longest_km = max(cap.radius_km for cap in caps)
    return Cap(around.center, around.radius_km + _bulge_km(min(longest_km, HALF_AROUND_KM / 2)))


def _bulge_km(radius_km: float) -> float:
    """Return how far an edge bulges at most between two of its neighbouring points."""
    return min(radius_km, EARTH_RADIUS_KM) * (1 - cos(pi / _EDGE_POINTS)) + 0.001


def _is_in_all(point: Vector, bounds: Sequence[Bound]) -> bool:
    return all(is_inside(point, bound) for bound in bounds)
