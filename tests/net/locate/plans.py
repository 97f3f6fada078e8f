"""Random plans of small internets, of kinds that are known to mislead the placing of servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from random import Random

from pytest_cloudbench import data
from pytest_cloudbench.net.link import Way
from pytest_cloudbench.net.locate.sphere import Position, distance_km, move

from .layouts import ARCTIC, EUROPE, PACIFIC, WORLD, choose_position
from .small_internet import Site, Ways, usual_way

KINDS = (
    "europe", "world", "antimeridian", "pole", "equal places", "one vantage point", "at the vantage points",
    "asymmetric", "lossy", "dead for IPv6", "proxy",
)  # fmt: skip
NAMED_KM = 50.0
_FAR_KM = 5000.0


@dataclass(frozen=True)
class Plan:
    """Positions of all hosts, and the ways of their packets.

    Attributes:
        home: the position of the host that runs the command. It is a vantage point, too.
        vantages: the positions of the other vantage points, by name.
        plain, six: two servers. The second has only an IPv6 address.
        named_server: a server whose name by reverse DNS has the code of an airport near it, and that code.
        false_server: a server whose name has the code of an airport that is far away, and that code.
        anycast: the positions of two servers with the same address, at vantage points that are far from each other.
        edges: the positions of two servers of one name. Each subnet of clients gets one of them.
        cdn, storage: a server, and the storage from which it gets all content.
        ways: a function that gives the way between two sites.
        resolver_fault: a fault of the resolver, see ``dns_server``.
        proxied: the position of a vantage point behind a proxy, if there is one.
        routers: addresses of routers on the way to the first server.
    """

    home: Position
    vantages: Mapping[str, Position]
    plain: Position
    six: Position
    named_server: tuple[Position, str]
    false_server: tuple[Position, str]
    anycast: tuple[Position, Position]
    edges: tuple[Position, Position]
    cdn: Position
    storage: Position
    ways: Ways = usual_way
    resolver_fault: str = ""
    proxied: Position | None = None
    routers: tuple[str, ...] = ()


def make_plan(kind: str, seed: int) -> Plan:
    """Return a plan of one of ``KINDS``."""
    random = Random(f"{kind} {seed}")
    box = {"world": WORLD, "antimeridian": PACIFIC, "pole": ARCTIC}.get(kind, EUROPE)
    home = choose_position(random, box)
    vantages = {f"v{number}": home if kind == "equal places" else choose_position(random, box) for number in range(3)}
    measuring = [home, *vantages.values()]
    if kind == "one vantage point":
        vantages, measuring = {}, [home]

    def serve() -> Position:
        return random.choice(measuring) if kind == "at the vantage points" else choose_position(random, box)

    false_position = move(random.choice(measuring), random.uniform(0, 360), random.uniform(0, 150))
    airport, cdn = find_airport(random, serve()), serve()
    return Plan(
        home, vantages, serve(), serve(),
        (move(airport[1], random.uniform(0, 360), random.uniform(0, NAMED_KM)), airport[0]),
        (false_position, find_far_airport(random, false_position)),
        # Round trips cannot tell servers near each other from one in between.
        max(combinations([home, *measuring], 2), key=lambda pair: distance_km(*pair))
        if len(measuring) > 1 else (serve(), serve()),
        (serve(), serve()), cdn, move(cdn, random.uniform(0, 360), random.uniform(500, 2000)),
        make_ways(kind, seed), "dead for IPv6" if kind == "dead for IPv6" else "",
        choose_position(random, box) if kind == "proxy" else None,
    )  # fmt: skip


def make_ways(kind: str, seed: int) -> Ways:
    """Return ways that are longer than straight lines, by a different share for each pair of sites."""

    def way(source: Site, target: Site) -> Way:
        pair = Random(f"{kind} {seed} {sorted((source.name, target.name))}")
        rtt_ms = distance_km(source.position, target.position) / 100 * pair.uniform(1.02, 2.0) + pair.uniform(0.1, 0.8)
        share_out, jitter_ms = 0.5, pair.uniform(0.0, 1.0)
        if kind == "asymmetric":
            share_out = pair.uniform(0.05, 0.95)
        share = share_out if source.name < target.name else 1 - share_out
        loss = 0.02 if kind == "lossy" else 0.0
        return Way(rtt_ms * share + jitter_ms, jitter_ms, loss)  # jitter only delays packets

    return way


@cache
def read_airports() -> tuple[tuple[str, Position], ...]:
    """Return codes and positions of all airports."""
    rows = (line.split("\t") for line in data.read_locate_table("airports.txt").splitlines())
    return tuple((code, Position(float(north), float(east))) for code, north, east, _ in rows)


def find_airport(random: Random, near: Position) -> tuple[str, Position]:
    """Return one of the three airports that are nearest to a position."""
    return random.choice(sorted(read_airports(), key=lambda row: distance_km(row[1], near))[:3])


def find_far_airport(random: Random, origin: Position) -> str:
    """Return the code of an airport that is too far away for the round trips from a position."""
    return random.choice([code for code, position in read_airports() if distance_km(position, origin) > _FAR_KM])
