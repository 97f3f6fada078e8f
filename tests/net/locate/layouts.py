"""Random layouts: a server somewhere, vantage points around it, and round trips as real paths give them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from pytest_cloudbench.net.locate.discs import Disc
from pytest_cloudbench.net.locate.sphere import Position, distance_km

EUROPE = (36.0, 64.0, -9.0, 30.0)
WORLD = (-55.0, 70.0, -180.0, 180.0)
PATHS = {"usual": (1.2, 2.5, 0.05, 5.0), "good": (1.05, 1.6, 0.05, 0.5), "straight": (1.0, 1.3, 0.0, 0.1)}
"""Least and most of what cables are longer than straight lines, and of the milliseconds that hosts add."""


@dataclass(frozen=True)
class Layout:
    truth: Position
    discs: tuple[Disc, ...]

    @property
    def smallest_ms(self) -> float:
        return min(disc.rtt_ms for disc in self.discs)


def somewhere(random: Random, box: tuple[float, float, float, float]) -> Position:
    south, north, west, east = box
    return Position(random.uniform(south, north), random.uniform(west, east))


def make_disc(random: Random, name: str, center: Position, server: Position, paths: str, low_ms: float) -> Disc:
    least, most, fixed_least, fixed_most = PATHS[paths]
    way_ms = distance_km(center, server) / 100 * random.uniform(least, most)
    rtt_ms = max(1e-6, way_ms + random.uniform(fixed_least, fixed_most) - low_ms)
    return Disc(name, center, rtt_ms, has_proxy=False)


def make_layout(seed: int, *, paths: str, low_ms: float = 0.0) -> Layout:
    """A layout of 1 to 20 vantage points, every third of them with one near the server."""
    random = Random(seed)
    box = (EUROPE, WORLD)[seed % 2]
    truth = somewhere(random, box)
    centers = [somewhere(random, box) for _ in range(random.randint(1, 20))]
    if seed % 3 == 0:
        near = Position(truth.latitude_deg + random.uniform(-1, 1), truth.longitude_deg + random.uniform(-1, 1))
        centers.append(near)
    discs = (make_disc(random, f"v{n}", center, truth, paths, low_ms) for n, center in enumerate(centers))
    return Layout(truth, tuple(discs))
