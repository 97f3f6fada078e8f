"""The generators beyond random and identical files; docs/payloads.md says what each is for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from pytest_cloudbench.model import KIB, Content
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
    """Files of one repeated string, which compress well; all the same. Source: thesis 3.4.3, SparseFileGenerator."""

    seed: str
    size_bytes: int
    text: str = "0123456789abcdef"

    def content(self, sensor: int, seq: int) -> Content:
        """The string again and again."""
        return Repeated(self.text.encode(), self.size_bytes)


@dataclass(frozen=True, slots=True)
class DeltaPayload:
    """Files of one size that share ``percent`` of their content (0.9 is 90 %); the rest is random.

    Source: thesis 3.4.3 and Figure 4.9, DeltaFileGenerator, which has the common part at the front. ``where`` is front,
    middle or back; ``spread`` shares out whole 4 KiB blocks evenly.
    """

    seed: str
    size_bytes: int
    percent: float
    where: str = "front"

    def content(self, sensor: int, seq: int) -> Content:
        """Common bytes stand at the same place in every file."""
        common = RandomContent(f"{self.seed}/common", self.size_bytes)
        own = RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes)
        if self.where == "spread":
            shared = round(self.size_bytes // _SPREAD_BLOCK_BYTES * self.percent)
            return Spread(own, common, shared, _SPREAD_BLOCK_BYTES)
        size = round(self.size_bytes * self.percent)
        start = {"front": 0, "middle": (self.size_bytes - size) // 2, "back": self.size_bytes - size}[self.where]
        end = start + size
        return Pieces.join(
            [Piece(own, 0, start), Piece(common, start, size), Piece(own, end, self.size_bytes - end)]
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentedPayload:
    """One random object in ``segments`` parts of equal size (to a byte): sensor *k* has part *k*.

    Source: Cloud-RAID, III.B and Table II, where objects are split into chunks of equal size.
    """

    seed: str
    object_bytes: int
    segments: int

    @property
    def size_bytes(self) -> int:
        """Of the largest part."""
        return -(-self.object_bytes // self.segments)

    def content(self, sensor: int, seq: int) -> Content:
        """Part ``sensor`` of object ``seq``."""
        start, end = (self.object_bytes * place // self.segments for place in (sensor, sensor + 1))
        return Pieces.join([Piece(RandomContent(f"{self.seed}/{seq}", self.object_bytes), start, end - start)])


@dataclass(frozen=True, slots=True)
class TextPayload:
    """Files of English words, which a compressing client can shrink. Source: paper 001, 4.5."""

    suffix: ClassVar[str] = ".txt"
    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Words drawn from the dictionary shipped with the package."""
        return Text(f"{self.seed}/{sensor}/{seq}", self.size_bytes)


@dataclass(frozen=True, slots=True)
class CompressiblePayload:
    """Files that compression shrinks by the share ``ratio``, as fio's ``buffer_compress_percentage``."""

    seed: str
    size_bytes: int
    ratio: float
    chunk_bytes: int = 4 * KIB

    def content(self, sensor: int, seq: int) -> Content:
        """Random bytes, then zeros, in every chunk."""
        base = RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes)
        return Compressible(base, self.ratio, self.chunk_bytes)


@dataclass(frozen=True, slots=True)
class DuplicatedPayload:
    """Files in which the share ``ratio`` of the blocks repeats an earlier one, as fio's ``dedupe_percentage``.

    The first block is always new, so a ratio of 1 leaves one block. Files share no block with each other.
    """

    seed: str
    size_bytes: int
    ratio: float
    block_bytes: int = 4 * KIB

    def content(self, sensor: int, seq: int) -> Content:
        """Random blocks, some of them more than once."""
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
        """An image as near to a square as its bytes allow."""
        from pytest_cloudbench.workload.payload.jpeg import image

        return image(RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes))


@dataclass(frozen=True, slots=True)
class FakeJpegPayload:
    """Files with a JPEG's name and header but text inside: does a client inspect content before it compresses?

    Source: paper 001, 4.5.
    """

    suffix: ClassVar[str] = ".jpg"
    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """A header, then text, truncated to size."""
        from pytest_cloudbench.workload.payload.jpeg import head

        start = Literal(head(1024, 768)[: self.size_bytes])
        words = Text(f"{self.seed}/{sensor}/{seq}", self.size_bytes - start.size_bytes)
        return Pieces.join([Piece(start, 0, start.size_bytes), Piece(words, 0, words.size_bytes)])


@dataclass(frozen=True, slots=True)
class MixedPayload:
    """Files of another generator, of many sizes; ``make`` gives that generator for a size and a seed."""

    seed: str
    sizes: Sizes
    make: Callable[[int, str], Generator]

    @property
    def size_bytes(self) -> int:
        """The mean."""
        return self.sizes.mean_bytes

    @property
    def suffix(self) -> str:
        """That of the other generator."""
        return getattr(self.make(self.sizes.least_bytes, self.seed), "suffix", "")

    def content(self, sensor: int, seq: int) -> Content:
        """The size depends on the same things as the bytes do."""
        size = self.sizes.draw(Random(f"{self.seed}/size/{sensor}/{seq}"))
        return self.make(size, self.seed).content(sensor, seq)
