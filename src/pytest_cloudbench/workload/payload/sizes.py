"""Distributions of file sizes for ``mixed``, as pure functions of a seeded ``Random``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Protocol

from pytest_cloudbench.model import UsageError


class Sizes(Protocol):
    """A distribution of file sizes."""

    @property
    def mean_bytes(self) -> int: ...

    @property
    def least_bytes(self) -> int: ...

    def draw(self, chance: Random) -> int:
        """Return a random size."""
        ...


@dataclass(frozen=True, slots=True)
class FixedSize:
    """The same size for every file."""

    size_bytes: int

    @property
    def mean_bytes(self) -> int:
        """The fixed size."""
        return self.size_bytes

    @property
    def least_bytes(self) -> int:
        """The fixed size."""
        return self.size_bytes

    def draw(self, chance: Random) -> int:
        """Return the fixed size."""
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class UniformSizes:
    """Sizes from ``min_bytes`` to ``max_bytes``, all equally likely."""

    min_bytes: int
    max_bytes: int

    def __post_init__(self) -> None:
        if self.max_bytes < self.min_bytes:
            raise UsageError(f"max_bytes is {self.max_bytes}; expected {self.min_bytes} (min_bytes) or more")

    @property
    def mean_bytes(self) -> int:
        """Midpoint of the two bounds."""
        return (self.min_bytes + self.max_bytes) // 2

    @property
    def least_bytes(self) -> int:
        """The smallest size."""
        return self.min_bytes

    def draw(self, chance: Random) -> int:
        """Return a random size."""
        return chance.randint(self.min_bytes, self.max_bytes)


@dataclass(frozen=True, slots=True)
class LognormalSizes:
    """Many small and few big files, clamped to ``min_bytes`` and ``max_bytes``."""

    median_bytes: int
    sigma: float
    min_bytes: int = 0
    max_bytes: int = 2**40

    def __post_init__(self) -> None:
        if self.max_bytes < self.min_bytes:
            raise UsageError(f"max_bytes is {self.max_bytes}; expected {self.min_bytes} (min_bytes) or more")

    @property
    def mean_bytes(self) -> int:
        """Mean of the clamped distribution."""
        mu, sigma = math.log(self.median_bytes), self.sigma
        if not sigma:
            return min(max(self.median_bytes, self.min_bytes), self.max_bytes)
        low_z = (math.log(max(self.min_bytes, 1e-9)) - mu) / sigma
        high_z = (math.log(max(self.max_bytes, 1e-9)) - mu) / sigma
        mean_inside = math.exp(mu + sigma * sigma / 2) * (_normal_cdf(high_z - sigma) - _normal_cdf(low_z - sigma))
        return round(self.min_bytes * _normal_cdf(low_z) + mean_inside + self.max_bytes * _normal_cdf(-high_z))

    @property
    def least_bytes(self) -> int:
        """The lower bound."""
        return self.min_bytes

    def draw(self, chance: Random) -> int:
        """Return a random size."""
        exponent = chance.gauss(math.log(self.median_bytes), self.sigma)
        size = round(math.exp(min(exponent, 60.0)))
        return min(max(size, self.min_bytes), self.max_bytes)


def _normal_cdf(z: float) -> float:
    """Return the cumulative standard normal distribution at ``z``."""
    return math.erfc(-z / math.sqrt(2)) / 2  # 1 + erf would lose all digits far below zero


@dataclass(frozen=True, slots=True)
class EmpiricalSizes:
    """Observed sizes with cumulative weights. Without weights, all are equally likely."""

    sizes_bytes: tuple[int, ...]
    cumulative_weights: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str, source: str = "sizes") -> EmpiricalSizes:
        """Parse one size in bytes per line, optionally followed by its weight. ``#`` begins a comment.

        Raises UsageError with the source and the line.
        """
        sizes, weights = [], []
        for number, line in enumerate(text.splitlines(), 1):
            cells = line.partition("#")[0].replace(",", " ").replace(";", " ").split()
            if not cells:
                continue
            try:
                size, weight = int(cells[0]), float(cells[1]) if len(cells) > 1 else 1.0
            except ValueError:
                size, weight = -1, 0.0
            if size < 0 or not 0 < weight < math.inf or len(cells) > 2:
                raise UsageError(f"{source}, line {number}: {line.strip()!r}; expected BYTES or BYTES,WEIGHT")
            sizes.append(size)
            weights.append(weight)
        if not sizes:
            raise UsageError(f"{source}: holds no sizes; expected one per line")
        return cls(tuple(sizes), tuple(accumulate(weights)) if len(set(weights)) > 1 else ())

    @property
    def mean_bytes(self) -> int:
        """Weighted mean."""
        ends: Sequence[float] = self.cumulative_weights or range(1, len(self.sizes_bytes) + 1)
        weights = (end - start for start, end in zip((0, *ends), ends, strict=False))
        return round(sum(size * weight for size, weight in zip(self.sizes_bytes, weights, strict=True)) / ends[-1])

    @property
    def least_bytes(self) -> int:
        """The smallest size."""
        return min(self.sizes_bytes)

    def draw(self, chance: Random) -> int:
        """Return one of the sizes."""
        return chance.choices(self.sizes_bytes, cum_weights=self.cumulative_weights or None)[0]
