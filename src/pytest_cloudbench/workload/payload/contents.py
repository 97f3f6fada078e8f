"""File contents other than plain random bytes, each readable at any offset.

A read generates only the requested range plus a block at either end, so files of any size stream through constant
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha512
from io import BytesIO
from itertools import accumulate
from struct import unpack
from zlib import crc32

from pytest_cloudbench.model import KIB, Content
from pytest_cloudbench.workload.payload.base import RandomContent

_TEXT_BLOCK_BYTES = 32 * KIB
_WORDS_PER_LINE = 12
_STRIDES = 32  # with 4, xz finds 1 % more than in words drawn one by one
_SHORT_LINE_BYTES = 81  # below the average of 83.4, so that a block always has enough lines
_KNUTH_MULTIPLIER = 2654435761


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes held in memory."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        """Number of bytes."""
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        return self.data[offset : offset + length]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A repeated ``pattern``, cut off at ``size_bytes``."""

    pattern: bytes
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        length = max(0, min(length, self.size_bytes - offset))
        skip = offset % len(self.pattern)
        return (self.pattern * ((skip + length) // len(self.pattern) + 1))[skip : skip + length]


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of ``size_bytes`` of ``content`` from ``start``."""

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
        """Join pieces in order, without the empty ones."""
        flat: list[Piece] = []
        for piece in pieces:
            if isinstance(piece.content, Pieces):
                flat += piece.content.cut(piece.start, piece.size_bytes)
            elif piece.size_bytes > 0:
                flat.append(piece)
        return cls(tuple(flat), list(accumulate(piece.size_bytes for piece in flat)))

    @property
    def size_bytes(self) -> int:
        """Total size of all pieces."""
        return self._ends[-1] if self._ends else 0

    def cut(self, offset: int, length: int) -> list[Piece]:
        """Return the pieces, or parts of them, that make up ``length`` bytes from ``offset``."""
        parts: list[Piece] = []
        index = bisect_right(self._ends, offset)
        end = min(offset + length, self.size_bytes)
        while offset < end:
            piece, piece_end = self.pieces[index], self._ends[index]
            part_bytes = min(end, piece_end) - offset
            parts.append(Piece(piece.content, piece.start + piece.size_bytes - (piece_end - offset), part_bytes))
            offset += part_bytes
            index += 1
        return parts

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        return b"".join(piece.content.read(piece.start, piece.size_bytes) for piece in self.cut(offset, length))


@dataclass(frozen=True, slots=True)
class Spread:
    """The content ``over``, with ``shared_blocks`` evenly spread blocks replaced by ``under`` at the same offsets."""

    over: Content
    under: Content
    shared_blocks: int
    block_bytes: int = 4 * KIB

    @property
    def size_bytes(self) -> int:
        """Size of ``over``."""
        return self.over.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.block_bytes
        blocks, shared = max(1, self.size_bytes // size), self.shared_blocks
        if end <= offset:
            return b""
        first_byte = offset // size * size
        data = bytearray(self.over.read(first_byte, end - first_byte))
        common = memoryview(self.under.read(first_byte, end - first_byte))
        for block_start in range(first_byte, end, size):
            number = block_start // size
            if number < blocks and (number + 1) * shared // blocks > number * shared // blocks:
                data[block_start - first_byte : block_start - first_byte + size] = common[
                    block_start - first_byte : block_start - first_byte + size
                ]
        return bytes(memoryview(data)[offset - first_byte :])


@dataclass(frozen=True, slots=True)
class Compressible:
    """``base`` with the share ``ratio`` of each chunk zeroed at its end, like fio's buffer_compress_percentage."""

    base: Content
    ratio: float
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Size of ``base``."""
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.chunk_bytes
        if end <= offset:
            return b""
        data = memoryview(self.base.read(offset, end - offset))
        zeros = bytes(round(size * self.ratio))
        random_bytes = size - len(zeros)
        parts: list[bytes | memoryview] = []
        for chunk in range(offset // size * size - offset, end - offset, size):  # as an index of data
            if chunk >= 0 and chunk + size <= len(data):
                parts += data[chunk : chunk + random_bytes], zeros
                continue
            stop = min(chunk + size, self.size_bytes - offset)
            start = stop - round((stop - chunk) * self.ratio)
            stop = min(stop, len(data))
            parts += data[max(chunk, 0) : max(start, 0)], bytes(max(0, stop - max(start, 0)))
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Duplicated:
    """Blocks of which ``duplicates`` repeat an earlier block. ``base`` holds the unique ones in order."""

    base: RandomContent
    size_bytes: int
    duplicates: int
    block_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        end, size = min(offset + length, self.size_bytes), self.block_bytes
        if end <= offset:
            return b""
        first, last = offset // size, (end - 1) // size
        blocks, duplicates = -(-self.size_bytes // size), self.duplicates
        before, after = (number * duplicates // blocks for number in (first, last + 1))
        # The new blocks are neighbours in ``base`` and are read at once.
        new = memoryview(self.base.read((first - before) * size, (last + 1 - first - (after - before)) * size))
        repeating = [-(-(count + 1) * blocks // duplicates) - 1 for count in range(before, after)]
        repeated = [
            ((number * _KNUTH_MULTIPLIER >> 7) % (number - count) * size, size)
            for count, number in enumerate(repeating, before)
        ]
        parts: list[bytes | memoryview] = []
        used, position = 0, first
        for number, block in zip(repeating, self.base.read_ranges(repeated), strict=True):
            if number > position:
                parts.append(new[used : (used := used + (number - position) * size)])
            parts.append(block)
            position = number + 1
        parts.append(new[used:])
        data = b"".join(parts)
        skip = offset - first * size
        return data if skip == 0 and len(data) == end - offset else data[skip : skip + end - offset]


@dataclass(frozen=True, slots=True)
class Text:
    """Lines of dictionary words. Each block of 32 KiB is a pure function of ``key`` and its number.

    The text must compress like words drawn one by one, but such drawing takes seven times as long. So each of the
    twelve columns of words walks along the shuffled dictionary, with a start and a stride of its own. Neighbours in a
    line are independent, and a line recurs only if all twelve walks are back at its words.
    """

    key: str
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        end = min(offset + length, self.size_bytes)
        data = BytesIO()  # a list of blocks, to be joined, would take fresh pages from the system in each read
        words: list[str] = []
        for start in range(offset // _TEXT_BLOCK_BYTES * _TEXT_BLOCK_BYTES, end, _TEXT_BLOCK_BYTES):
            block = memoryview(self._make_block(start // _TEXT_BLOCK_BYTES, words))
            data.write(block[max(0, offset - start) : end - start])
        return data.getvalue()

    def _make_block(self, number: int, words: list[str]) -> bytes:
        """Return a block of whole words that ends with a line break, so that blocks join cleanly.

        ``words`` is a list to work in, which the next block of the same read takes over as it is.
        """
        size_bytes = min(_TEXT_BLOCK_BYTES, self.size_bytes - number * _TEXT_BLOCK_BYTES)
        numbers = unpack("<32H", sha512(f"{self.key}/{self.size_bytes}/{number}".encode()).digest())
        lines = size_bytes // _SHORT_LINE_BYTES + 2
        if len(words) != lines * _WORDS_PER_LINE:
            words[:] = [""] * (lines * _WORDS_PER_LINE)
        for column in range(_WORDS_PER_LINE):
            walk, length = _walk(" " if column < _WORDS_PER_LINE - 1 else "\n")
            start, stride = numbers[2 * column] % length, numbers[2 * column + 1] % _STRIDES + 1
            words[column::_WORDS_PER_LINE] = walk[start : start + lines * stride : stride]
        text = "".join(words)
        most_chars = max(0, size_bytes - 2)
        kept_chars = 1 + max(text.rfind(" ", 0, most_chars), text.rfind("\n", 0, most_chars))
        return (text[:kept_chars] + _fill_with_words(size_bytes - kept_chars, numbers[-1])).encode("ascii")


@lru_cache(maxsize=2)
def _walk(end: str) -> tuple[list[str], int]:
    """Return the shuffled dictionary, repeated, each word followed by ``end``, and how many words it has."""
    from pytest_cloudbench.workload.payload.words import WORDS

    words = [word + end for word in sorted(WORDS, key=lambda word: crc32(word.encode()))]
    steps = (_TEXT_BLOCK_BYTES // _SHORT_LINE_BYTES + 2) * _STRIDES
    return words * (steps // len(words) + 2), len(words)


@lru_cache(maxsize=1)
def words_by_length() -> dict[int, list[str]]:
    """Return the dictionary's words by length."""
    from pytest_cloudbench.workload.payload.words import WORDS

    by_length: dict[int, list[str]] = {}
    for word in WORDS:
        by_length.setdefault(len(word), []).append(word)
    return by_length


def _fill_with_words(size: int, chance: int) -> str:
    """Return exactly ``size`` characters of words, the last one a line break."""
    if size < 2:
        return "\n" * size
    if words := words_by_length().get(size - 1):
        return words[chance % len(words)] + "\n"
    return "a " + _fill_with_words(size - 2, chance)


def difference(actual: bytes, expected: bytes) -> str:
    """Describe the first difference between bytes, or return an empty text if they are equal.

    Use it in an ``assert``: where ``CI`` is set, pytest's own comparison of 100,000 bytes takes half an hour, because
    it then shows the whole difference.
    """
    if actual == expected:
        return ""
    shorter = min(len(actual), len(expected))
    equal_bytes = next((offset for offset in range(shorter) if actual[offset] != expected[offset]), shorter)
    return (
        f"{len(actual):,} bytes where {len(expected):,} were expected, of which the first {equal_bytes:,} are the same"
    )
