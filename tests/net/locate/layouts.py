"""Random layouts: a server, vantage points around it, and round trips like those of real paths."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pytest_cloudbench.net.locate.discs import Disc
from pytest_cloudbench.net.locate.sphere import Position, distance_km, move

EUROPE = (36.0, 64.0, -9.0, 30.0)
WORLD = (-55.0, 70.0, -180.0, 180.0)
PACIFIC = (-45.0, 45.0, 150.0, 210.0)
ARCTIC = (80.0, 90.0, -180.0, 180.0)
BOXES = (EUROPE, WORLD, PACIFIC, ARCTIC)
MOST_VANTAGES = 21
PATHS = {"usual": (1.2, 2.5, 0.05, 5.0), "good": (1.05, 1.6, 0.05, 0.5), "straight": (1.0, 1.3, 0.0, 0.1)}
"""Limits of the factor by which cables are longer than straight lines, and of the milliseconds that hosts add."""


@dataclass(frozen=True)
class Layout:
    truth: Position
    discs: tuple[Disc, ...]

    @property
    def smallest_ms(self) -> float:
        return min(disc.rtt_ms for disc in self.discs)


def choose_position(random: Random, box: tuple[float, float, float, float]) -> Position:
    """Return a position in a box of degrees: south, north, west and east. East may lie beyond the antimeridian."""
    south, north, west, east = box
    return Position(random.uniform(south, north), (random.uniform(west, east) + 180) % 360 - 180)


def make_disc(random: Random, name: str, center: Position, server: Position, paths: str, low_ms: float) -> Disc:
    min_factor, max_factor, min_fixed_ms, max_fixed_ms = PATHS[paths]
    way_ms = distance_km(center, server) / 100 * random.uniform(min_factor, max_factor)
    rtt_ms = max(1e-6, way_ms + random.uniform(min_fixed_ms, max_fixed_ms) - low_ms)
    return Disc(name, center, rtt_ms, has_proxy=False)


def make_layout(seed: int, *, paths: str, low_ms: float = 0.0, is_odd: bool = False) -> Layout:
    """Return a layout of 1 to 20 vantage points. Some layouts have one more near the server or at the server.

    Odd layouts are also around the pole and across the antimeridian. Every seventh has nearly all vantage points at one
    position.
    """
    random = Random(seed)
    box = BOXES[seed % (4 if is_odd else 2)]
    truth = choose_position(random, box)
    centers = [choose_position(random, box) for _ in range(random.randint(1, MOST_VANTAGES - 1))]
    if is_odd and seed % 7 == 0:
        centers = [centers[0]] * len(centers)
    if seed % 3 == 0:
        near = Position(truth.latitude_deg + random.uniform(-1, 1), truth.longitude_deg + random.uniform(-1, 1))
        odd = move(truth, random.uniform(0, 360), random.uniform(0, 100)) if seed % 2 else truth
        centers.append(odd if is_odd else near)
    discs = (make_disc(random, f"v{n}", center, truth, paths, low_ms) for n, center in enumerate(centers))
    return Layout(truth, tuple(discs))
