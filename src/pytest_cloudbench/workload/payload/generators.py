"""All generators except random and identical files. docs/reference/payloads.md gives the purpose of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from pytest_cloudbench.model import KIB, Content, UsageError
from pytest_cloudbench.workload.payload.base import Generator, RandomContent
from pytest_cloudbench.workload.payload.contents import (
    Compressible,
    Duplicated,
    Literal,
    Piece,
    Pieces,
    Repeated,
    Spread,
    Text,
)
from pytest_cloudbench.workload.payload.sizes import Sizes

_SPREAD_BLOCK_BYTES = 4 * KIB


@dataclass(frozen=True, slots=True)
class SparsePayload:
    """Identical files of one repeated string, which compress well. Source: thesis 3.4.3, SparseFileGenerator."""

    seed: str
    size_bytes: int
    text: str = "0123456789abcdef"

    def content(self, sensor: int, seq: int) -> Content:
        """Return the string, repeated up to the size."""
        return Repeated(self.text.encode(), self.size_bytes)


@dataclass(frozen=True, slots=True)
class DeltaPayload:
    """Files of one size that share ``percent`` of their content (0.9 is 90 %), with random bytes otherwise.

    Source: thesis 3.4.3 and Figure 4.9, DeltaFileGenerator, which puts the common part at the front. ``where`` is
    front, middle or back, or ``spread`` to distribute whole common blocks of 4 KiB evenly.
    """

    seed: str
    size_bytes: int
    percent: float
    where: str = "front"

    def content(self, sensor: int, seq: int) -> Content:
        """Return a file whose common bytes are at the same offsets as in every other file."""
        common = RandomContent(f"{self.seed}/common", self.size_bytes)
        unique = RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes)
        if self.where == "spread":
            shared_blocks = round(self.size_bytes // _SPREAD_BLOCK_BYTES * self.percent)
            return Spread(unique, common, shared_blocks, _SPREAD_BLOCK_BYTES)
        size = round(self.size_bytes * self.percent)
        start = {"front": 0, "middle": (self.size_bytes - size) // 2, "back": self.size_bytes - size}[self.where]
        end = start + size
        return Pieces.join(
            [Piece(unique, 0, start), Piece(common, start, size), Piece(unique, end, self.size_bytes - end)]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentedPayload:
    """One random object in ``segments`` parts of equal size (to a byte), where sensor *k* has part *k*.

    Source: Cloud-RAID, III.B and Table II, where objects are split into chunks of equal size.
    """

    seed: str
    object_bytes: int
    segments: int

    @property
    def size_bytes(self) -> int:
        """Size of the largest part."""
        return -(-self.object_bytes // self.segments)

    def content(self, sensor: int, seq: int) -> Content:
        """Return part ``sensor`` of object ``seq``. Raises UsageError if the object has no such part."""
        if sensor >= self.segments:
            raise UsageError(f"payload segments: there is no file {sensor + 1}; expected count={self.segments} files")
        start, end = (self.object_bytes * part // self.segments for part in (sensor, sensor + 1))
        return Pieces.join([Piece(RandomContent(f"{self.seed}/{seq}", self.object_bytes), start, end - start)])


@dataclass(frozen=True, slots=True)
class TextPayload:
    """Files of English words, which a compressing client can shrink. Source: paper 001, 4.5."""

    suffix: ClassVar[str] = ".txt"
    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Return words drawn from the dictionary shipped with the package."""
        return Text(f"{self.seed}/{sensor}/{seq}", self.size_bytes)


@dataclass(frozen=True, slots=True)
class CompressiblePayload:
    """Files that compression shrinks by the share ``ratio``, like fio's ``buffer_compress_percentage``."""

    seed: str
    size_bytes: int
    ratio: float
    chunk_bytes: int = 4 * KIB

    def content(self, sensor: int, seq: int) -> Content:
        """Return chunks of random bytes followed by zeros."""
        base = RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes)
        return Compressible(base, self.ratio, self.chunk_bytes)


@dataclass(frozen=True, slots=True)
class DuplicatedPayload:
    """Files in which the share ``ratio`` of the blocks repeats an earlier one, like fio's ``dedupe_percentage``.

    The first block is always new, so a ratio of 1 leaves one block. Files share no block with each other.
    """

    seed: str
    size_bytes: int
    ratio: float
    block_bytes: int = 4 * KIB

    def content(self, sensor: int, seq: int) -> Content:
        """Return random blocks, some of them repeated."""
        blocks = -(-self.size_bytes // self.block_bytes)
        duplicates = max(0, min(round(blocks * self.ratio), blocks - 1))
        base = RandomContent(f"{self.seed}/{sensor}/{seq}", (blocks - duplicates) * self.block_bytes)
        return Duplicated(base, self.size_bytes, duplicates, self.block_bytes)


@dataclass(frozen=True, slots=True)
class JpegPayload:
    """Valid JPEG images with random pixels, as in paper 002: a format that is already compressed."""

    suffix: ClassVar[str] = ".jpg"
    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Return an image as close to a square as its bytes allow. Raises UsageError if they are too few for one."""
        from pytest_cloudbench.workload.payload.jpeg import MIN_BYTES, image

        if self.size_bytes < MIN_BYTES:
            raise UsageError(f"payload jpeg: size_bytes is {self.size_bytes}; expected {MIN_BYTES} or more")
        return image(RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes))


@dataclass(frozen=True, slots=True)
class FakeJpegPayload:
    """Files with a JPEG's name and header but text inside.

    They show whether a client inspects content before it compresses. Source: paper 001, 4.5.
    """

    suffix: ClassVar[str] = ".jpg"
    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Return a header followed by text, truncated to size."""
        from pytest_cloudbench.workload.payload.jpeg import head

        start = Literal(head(1024, 768)[: self.size_bytes])
        words = Text(f"{self.seed}/{sensor}/{seq}", self.size_bytes - start.size_bytes)
        return Pieces.join([Piece(start, 0, start.size_bytes), Piece(words, 0, words.size_bytes)])


@dataclass(frozen=True, slots=True)
class MixedPayload:
    """Another generator's files in many sizes. ``make`` returns that generator for a size and a seed."""

    seed: str
    sizes: Sizes
    make: Callable[[int, str], Generator]

    @property
    def size_bytes(self) -> int:
        """Mean of the sizes."""
        return self.sizes.mean_bytes

    @property
    def suffix(self) -> str:
        """Suffix of the other generator."""
        return getattr(self.make(self.sizes.least_bytes, self.seed), "suffix", "")

    def content(self, sensor: int, seq: int) -> Content:
        """Return content whose size, like its bytes, depends on the seed, the sensor and the sequence number."""
        size = self.sizes.draw(Random(f"{self.seed}/size/{sensor}/{seq}"))
        return self.make(size, self.seed).content(sensor, seq)
