"""File contents other than random bytes, each readable at any offset.

What may live here: ``Content`` classes, and where two contents differ. A read generates only the requested range plus a
block at either end, so files of any size stream through constant memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from random import Random

from pytest_cloudbench.model import KIB, Content

_TEXT_BLOCK_BYTES = 16 * KIB
_WORDS_PER_LINE = 12
_MIX = 2654435761


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes at hand."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """As many as there are."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        return self.data[offset : offset + length]


@dataclass(frozen=True, slots=True)
class Repeated:
    """``pattern`` repeated, cut off at the end."""

    pattern: bytes
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        length = max(0, min(length, self.size_bytes - offset))
        skip = offset % len(self.pattern)
        return (self.pattern * ((skip + length) // len(self.pattern) + 1))[skip : skip + length]


@dataclass(frozen=True, slots=True)
class Piece:
    """``size_bytes`` of ``content``, from ``start``."""

    content: Content
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """Concatenated parts of contents. Nested ``Pieces`` are flattened, so that edits do not nest."""

    pieces: tuple[Piece, ...]
    _ends: Sequence[int] = field(repr=False, compare=False)

    @classmethod
    def join(cls, pieces: Iterable[Piece]) -> Pieces:
        """Pieces in order; empty ones are left out."""
        flat: list[Piece] = []
        for piece in pieces:
            if isinstance(piece.content, Pieces):
                flat += piece.content.cut(piece.start, piece.size_bytes)
            elif piece.size_bytes > 0:
                flat.append(piece)
        return cls(tuple(flat), list(accumulate(piece.size_bytes for piece in flat)))

    @property
    def size_bytes(self) -> int:
        """Of all pieces together."""
        return self._ends[-1] if self._ends else 0

    def cut(self, offset: int, length: int) -> list[Piece]:
        """The pieces, or parts of them, that make up ``length`` bytes from ``offset``."""
        found: list[Piece] = []
        index = bisect_right(self._ends, offset)
        end = min(offset + length, self.size_bytes)
        while offset < end:
            piece, last = self.pieces[index], self._ends[index]
            taken = min(end, last) - offset
            found.append(Piece(piece.content, piece.start + piece.size_bytes - (last - offset), taken))
            offset += taken
            index += 1
        return found

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        return b"".join(piece.content.read(piece.start, piece.size_bytes) for piece in self.cut(offset, length))


@dataclass(frozen=True, slots=True)
class Spread:
    """``over`` with ``shared_blocks`` of its whole blocks, evenly spread, taken from ``under`` at the same place."""

    over: Content
    under: Content
    shared_blocks: int
    block_bytes: int = 4 * KIB

    @property
    def size_bytes(self) -> int:
        """That of ``over``."""
        return self.over.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.block_bytes
        blocks, shared = max(1, self.size_bytes // size), self.shared_blocks
        if end <= offset:
            return b""
        first = offset // size * size
        data, common = bytearray(self.over.read(first, end - first)), memoryview(self.under.read(first, end - first))
        for at in range(first, end, size):
            number = at // size
            if number < blocks and (number + 1) * shared // blocks > number * shared // blocks:
                data[at - first : at - first + size] = common[at - first : at - first + size]
        return bytes(memoryview(data)[offset - first :])


@dataclass(frozen=True, slots=True)
class Compressible:
    """``base`` with zeros at the end of each chunk: the share ``ratio`` of it, as fio's buffer_compress_percentage."""

    base: Content
    ratio: float
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """That of ``base``."""
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.chunk_bytes
        if end <= offset:
            return b""
        data = bytearray(self.base.read(offset, end - offset))
        for chunk in range(offset // size * size, end, size):
            stop = min(chunk + size, self.size_bytes)
            start = max(stop - round((stop - chunk) * self.ratio), offset)
            stop = min(stop, end)
            if start < stop:
                data[start - offset : stop - offset] = bytes(stop - start)
        return bytes(data)


@dataclass(frozen=True, slots=True)
class Duplicated:
    """Blocks of which ``duplicates`` repeat an earlier block; ``base`` holds the others, one after the other."""

    base: Content
    size_bytes: int
    duplicates: int
    block_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.block_bytes
        if end <= offset:
            return b""
        first = offset // size
        runs: list[list[int]] = []
        for number in range(first, (end - 1) // size + 1):
            source = self._source(number)
            if runs and sum(runs[-1]) == source:
                runs[-1][1] += 1
            else:
                runs.append([source, 1])
        data = b"".join(self.base.read(source * size, count * size) for source, count in runs)
        return data[offset - first * size : end - first * size]

    def _source(self, number: int) -> int:
        """Which block of ``base`` stands at block ``number``; the first of them is never a duplicate."""
        blocks = -(-self.size_bytes // self.block_bytes)
        before = number * self.duplicates // blocks
        if (number + 1) * self.duplicates // blocks > before:
            return (number * _MIX >> 7) % (number - before)
        return number - before


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of words from the dictionary; each block of 16 KiB is a pure function of ``key`` and its number."""

    key: str
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        end = min(offset + length, self.size_bytes)
        if end <= offset:
            return b""
        first, last = offset // _TEXT_BLOCK_BYTES, (end - 1) // _TEXT_BLOCK_BYTES
        parts = b"".join(self._block(number) for number in range(first, last + 1))
        return parts[offset - first * _TEXT_BLOCK_BYTES : end - first * _TEXT_BLOCK_BYTES]

    def _block(self, number: int) -> bytes:
        """Whole words and a line break at the end, so that blocks join up."""
        from pytest_cloudbench.workload.payload.words import WORDS

        size = min(_TEXT_BLOCK_BYTES, self.size_bytes - number * _TEXT_BLOCK_BYTES)
        chance = Random(f"{self.key}/{self.size_bytes}/{number}")
        chosen = chance.choices(WORDS, k=size // 5 + 1)
        lines = (" ".join(chosen[at : at + _WORDS_PER_LINE]) for at in range(0, len(chosen), _WORDS_PER_LINE))
        words = "\n".join(lines)
        keep = 1 + max(words.rfind(" ", 0, max(0, size - 2)), words.rfind("\n", 0, max(0, size - 2)))
        return (words[:keep] + _fill(size - keep, chance)).encode("ascii")


@lru_cache(maxsize=1)
def words_by_length() -> dict[int, list[str]]:
    """The dictionary's words by length."""
    from pytest_cloudbench.workload.payload.words import WORDS

    found: dict[int, list[str]] = {}
    for word in WORDS:
        found.setdefault(len(word), []).append(word)
    return found


def _fill(size: int, chance: Random) -> str:
    """Exactly ``size`` characters of words, the last one a line break."""
    if size < 2:
        return "\n" * size
    if size - 1 in words_by_length():
        return chance.choice(words_by_length()[size - 1]) + "\n"
    return "a " + _fill(size - 2, chance)


def difference(found: bytes, expected: bytes) -> str:
    """Where bytes are not the expected ones, in words; empty where they are.

    For an ``assert``: pytest's own comparison of 100,000 bytes takes half an hour where ``CI`` is set, since it then
    shows the whole difference.
    """
    if found == expected:
        return ""
    shorter = min(len(found), len(expected))
    same = next((at for at in range(shorter) if found[at] != expected[at]), shorter)
    return f"{len(found):,} bytes where {len(expected):,} were expected, of which the first {same:,} are the same"
