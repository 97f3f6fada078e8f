"""The difference between a file and its older version on the server. No network, no folder.

A signature has, for each block of the older version, its first and last eight bytes and a strong digest. ``fixed``
compares blocks at their own places. ``rolling`` finds them at any place, as rsync does. Its weak checksum is these
bytes, which, unlike a sum, can be searched for in a whole file without a step of Python for each offset.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple

_WORD_BYTES = 8
_STRONG_BYTES = 16
_HEAD = struct.Struct("!QI32s")
_WINDOW_BYTES = 1 << 20
_STEP_BYTES = 1 << 13

_Read = Callable[[int, int], bytes]
"""Maps (offset, length) to bytes of the new file, or fewer at its end."""


class DeltaSegment(NamedTuple):
    """The next bytes of a new file, and where they are taken from.

    ``kind``: ``data`` (sent, and ``where`` is the offset in the new file), ``base`` (``where``: the offset in the older
    version), ``own`` (``where``: an earlier offset in the new file) or ``block`` (``where``: the SHA-256 of a block).
    """

    kind: str
    where: int | str
    length_bytes: int


class Signature:
    """The facts that a client learns about the server's version of a file."""

    def __init__(
        self, size_bytes: int, block_bytes: int, sha256: bytes, blocks: list[tuple[bytes, bytes, bytes]]
    ) -> None:
        self.size_bytes, self.block_bytes, self.sha256 = size_bytes, block_bytes, sha256
        self._blocks = blocks
        self.strong = [strong for *_, strong in blocks]
        whole_blocks = size_bytes // block_bytes
        self.tail_bytes = size_bytes % block_bytes
        self.begins = {int.from_bytes(begin, sys.byteorder) for begin, *_ in blocks[:whole_blocks]}
        self.ends = {end for _, end, _ in blocks[:whole_blocks]}
        # A block that occurs more than once is found at its first place, unless its neighbour was found just before.
        self._index = {strong: index for index, strong in reversed(list(enumerate(self.strong[:whole_blocks])))}

    def index_of(self, data: bytes, likely_index: int) -> int | None:
        """Return the number of the whole block with this content, preferably ``likely_index``."""
        strong = _hash_block(data)
        if likely_index < len(self.strong) - bool(self.tail_bytes) and self.strong[likely_index] == strong:
            return likely_index
        return self._index.get(strong)

    def is_tail(self, data: bytes) -> bool:
        """Return whether this is the last block, which is shorter than the others."""
        return bool(self.tail_bytes) and len(data) == self.tail_bytes and _hash_block(data) == self.strong[-1]

    def pack(self) -> bytes:
        """Return it as it goes over the wire: 32 bytes for each block."""
        head = _HEAD.pack(self.size_bytes, self.block_bytes, self.sha256)
        return head + b"".join(b"".join(block) for block in self._blocks)

    @classmethod
    def unpack(cls, packed: memoryview) -> tuple[Signature, memoryview]:
        """Return the signature at the start, and the bytes after it. Raises ValueError."""
        try:
            size_bytes, block_bytes, sha256 = _HEAD.unpack_from(packed)
        except struct.error as error:
            raise ValueError("a signature is cut short") from error
        count, packed = -(-size_bytes // block_bytes), packed[_HEAD.size :]
        length = 2 * _WORD_BYTES + _STRONG_BYTES
        if len(packed) < count * length:
            raise ValueError("a signature is cut short")
        rows = [bytes(packed[index * length : (index + 1) * length]) for index in range(count)]
        blocks = [(row[:_WORD_BYTES], row[_WORD_BYTES : 2 * _WORD_BYTES], row[2 * _WORD_BYTES :]) for row in rows]
        return cls(size_bytes, block_bytes, sha256, blocks), packed[count * length :]


def make_signature(file: IO[bytes], block_bytes: int, sha256: str) -> Signature:
    """Return the signature of an open file whose SHA-256 is known."""
    blocks = []
    size_bytes = 0
    while data := file.read(block_bytes):
        begin, end = data[:_WORD_BYTES].ljust(_WORD_BYTES, b"\0"), data[-_WORD_BYTES:].ljust(_WORD_BYTES, b"\0")
        blocks.append((begin, end, _hash_block(data)))
        size_bytes += len(data)
    return Signature(size_bytes, block_bytes, bytes.fromhex(sha256), blocks)


def match_segments(
    method: str, read: _Read, start: int, stop: int, end: int, signature: Signature
) -> Iterator[DeltaSegment]:
    """Yield the new file's bytes from ``start`` to ``stop`` as segments of kind ``data`` and ``base``.

    Args:
        method: ``fixed`` or ``rolling``.
        read: gives the bytes of the new file.
        start: where to begin.
        stop: where to end.
        end: the new file's size in bytes.
        signature: that of the older version.

    Neighbours are not joined, which ``join_segments`` does.
    """
    if method == "fixed":
        yield from _match_fixed(read, start, stop, signature)
    else:
        yield from _match_rolling(read, start, stop, end, signature)


def join_segments(segments: Iterator[DeltaSegment]) -> list[DeltaSegment]:
    """Return the same bytes in as few segments as possible, without empty ones."""
    joined: list[DeltaSegment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.kind == segment.kind
            and isinstance(last.where, int)
            and isinstance(segment.where, int)
            and last.where + last.length_bytes == segment.where
        ):
            joined[-1] = last._replace(length_bytes=last.length_bytes + segment.length_bytes)
        elif segment.length_bytes:
            joined.append(segment)
    return joined


def _hash_block(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_STRONG_BYTES).digest()


def _match_fixed(read: _Read, start: int, stop: int, signature: Signature) -> Iterator[DeltaSegment]:
    offset = start
    while offset < stop:
        index, offset_in_block = divmod(offset, signature.block_bytes)
        end = min((index + 1) * signature.block_bytes, stop)
        is_same = False
        if not offset_in_block and index < len(signature.strong) and end <= signature.size_bytes:
            is_same = _hash_block(read(offset, end - offset)) == signature.strong[index]
        yield DeltaSegment("base" if is_same else "data", offset, end - offset)
        offset = end


def _match_rolling(read: _Read, start: int, stop: int, end: int, signature: Signature) -> Iterator[DeltaSegment]:
    """Yield segments of a file: blocks of the base wherever one begins, and the data between them."""
    block_bytes = signature.block_bytes
    offset, likely_index = start, 0
    while signature.begins and stop - offset >= block_bytes:
        window = read(offset, min(_WINDOW_BYTES + block_bytes, stop - offset))
        done_bytes = 0
        while (block_match := _next_match(window, done_bytes, signature, likely_index)) is not None:
            match_offset, index = block_match
            yield DeltaSegment("data", offset + done_bytes, match_offset - done_bytes)
            yield DeltaSegment("base", index * block_bytes, block_bytes)
            done_bytes, likely_index = match_offset + block_bytes, index + 1
        # No block begins in what is left, except perhaps at the window's last places, which were too short for one.
        searched = max(done_bytes, len(window) - block_bytes + 1)
        yield DeltaSegment("data", offset + done_bytes, searched - done_bytes)
        if len(window) < block_bytes:
            break  # the file became shorter meanwhile
        offset += searched
    tail = signature.tail_bytes
    if stop == end and tail and stop - offset >= tail and signature.is_tail(read(stop - tail, tail)):
        yield DeltaSegment("data", offset, stop - tail - offset)
        yield DeltaSegment("base", signature.size_bytes - tail, tail)
    else:
        yield DeltaSegment("data", offset, stop - offset)


def _next_match(window: bytes, first: int, signature: Signature, likely_index: int) -> tuple[int, int] | None:
    """Return the first offset from ``first`` on that holds a block of the older version, and that block's number."""
    block_bytes = signature.block_bytes
    candidates = len(window) - block_bytes + 1
    begin = first
    while begin < candidates:
        # A block is usually followed by its neighbour: look at that one place before many.
        end = min(begin + (_STEP_BYTES if begin > first else 1), candidates)
        for offset in _find_beginnings(window, begin, end, signature.begins):
            if window[offset + block_bytes - _WORD_BYTES : offset + block_bytes] not in signature.ends:
                continue
            index = signature.index_of(window[offset : offset + block_bytes], likely_index)
            if index is not None:
                return offset, index
        begin = end
    return None


def _find_beginnings(window: bytes, start: int, end: int, begins: set[int]) -> list[int]:
    """Return the offsets from ``start`` to before ``end`` that hold the first eight bytes of a block."""
    view = memoryview(window)
    offsets = []
    for shift in range(min(_WORD_BYTES, end - start)):
        first_word = start + shift
        count = -(-(end - first_word) // _WORD_BYTES)
        words = view[first_word : first_word + count * _WORD_BYTES].cast("Q")
        if not begins.isdisjoint(words):
            offsets += [first_word + _WORD_BYTES * i for i, word in enumerate(words) if word in begins]
    return sorted(offsets)
