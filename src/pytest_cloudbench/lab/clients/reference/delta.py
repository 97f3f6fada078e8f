"""What a file has in common with its older version on the server.

What may live here: signatures of a version, and the two ways to match a file with one. No network, no folder.

A signature has, for each block of the older version, its first and last eight bytes and a strong digest. ``fixed``
compares blocks at their own places. ``rolling`` finds them at any place, as rsync does; its weak checksum is these
bytes, which, unlike a sum, can be searched for in a whole file without a step of Python for each place.
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
"""Maps (offset, length) to bytes of the new file; fewer only at its end."""


class DeltaSegment(NamedTuple):
    """The next bytes of a new file, and where they are taken from.

    ``kind``: ``data`` (sent; ``where`` is the offset in the new file), ``base`` (``where``: the offset in the older
    version), ``own`` (``where``: an earlier offset in the new file) or ``block`` (``where``: the SHA-256 of a block).
    """

    kind: str
    where: int | str
    length_bytes: int


class Signature:
    """What a client learns about the server's version of a file."""

    def __init__(
        self, size_bytes: int, block_bytes: int, sha256: bytes, blocks: list[tuple[bytes, bytes, bytes]]
    ) -> None:
        self.size_bytes, self.block_bytes, self.sha256 = size_bytes, block_bytes, sha256
        self._blocks = blocks
        self.strong = [strong for *_, strong in blocks]
        whole = size_bytes // block_bytes
        self.tail_bytes = size_bytes % block_bytes
        self.begins = {int.from_bytes(begin, sys.byteorder) for begin, *_ in blocks[:whole]}
        self.ends = {end for _, end, _ in blocks[:whole]}
        # A block that occurs more than once is found at its first place, unless its neighbour was found just before.
        self._index = {strong: index for index, strong in reversed(list(enumerate(self.strong[:whole])))}

    def index_of(self, data: bytes, likely: int) -> int | None:
        """The number of the whole block with this content; ``likely`` if that block has it."""
        strong = _strong(data)
        if likely < len(self.strong) - bool(self.tail_bytes) and self.strong[likely] == strong:
            return likely
        return self._index.get(strong)

    def is_tail(self, data: bytes) -> bool:
        """Whether this is the last block, which is shorter than the others."""
        return bool(self.tail_bytes) and len(data) == self.tail_bytes and _strong(data) == self.strong[-1]

    def pack(self) -> bytes:
        """As it goes over the wire: 32 bytes for each block."""
        head = _HEAD.pack(self.size_bytes, self.block_bytes, self.sha256)
        return head + b"".join(b"".join(block) for block in self._blocks)

    @classmethod
    def unpack(cls, packed: memoryview) -> tuple[Signature, memoryview]:
        """The signature at the start, and what follows it. Raises ValueError."""
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
    """The signature of an open file whose SHA-256 is known."""
    blocks = []
    size_bytes = 0
    while data := file.read(block_bytes):
        begin, end = data[:_WORD_BYTES].ljust(_WORD_BYTES, b"\0"), data[-_WORD_BYTES:].ljust(_WORD_BYTES, b"\0")
        blocks.append((begin, end, _strong(data)))
        size_bytes += len(data)
    return Signature(size_bytes, block_bytes, bytes.fromhex(sha256), blocks)


def match(method: str, read: _Read, start: int, stop: int, end: int, signature: Signature) -> Iterator[DeltaSegment]:
    """The new file's bytes from ``start`` to ``stop`` as segments of kind ``data`` and ``base``.

    Args:
        method: ``fixed`` or ``rolling``.
        read: gives the bytes of the new file.
        start: where to begin.
        stop: where to end.
        end: the new file's size in bytes.
        signature: that of the older version.

    Neighbours are not joined; ``join`` does that.
    """
    if method == "fixed":
        yield from _fixed(read, start, stop, signature)
    else:
        yield from _rolling(read, start, stop, end, signature)


def join(segments: Iterator[DeltaSegment]) -> list[DeltaSegment]:
    """The same bytes in as few segments as possible; empty ones are left out."""
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


def _strong(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_STRONG_BYTES).digest()


def _fixed(read: _Read, start: int, stop: int, signature: Signature) -> Iterator[DeltaSegment]:
    at = start
    while at < stop:
        index, inside = divmod(at, signature.block_bytes)
        until = min((index + 1) * signature.block_bytes, stop)
        same = False
        if not inside and index < len(signature.strong) and until <= signature.size_bytes:
            same = _strong(read(at, until - at)) == signature.strong[index]
        yield DeltaSegment("base" if same else "data", at, until - at)
        at = until


def _rolling(read: _Read, start: int, stop: int, end: int, signature: Signature) -> Iterator[DeltaSegment]:
    size = signature.block_bytes
    at, likely = start, 0
    while signature.begins and stop - at >= size:
        window = read(at, min(_WINDOW_BYTES + size, stop - at))
        done = 0
        while (found := _next_match(window, done, signature, likely)) is not None:
            offset, index = found
            yield DeltaSegment("data", at + done, offset - done)
            yield DeltaSegment("base", index * size, size)
            done, likely = offset + size, index + 1
        # No block begins in what is left, except perhaps at the window's last places, which were too short for one.
        searched = max(done, len(window) - size + 1)
        yield DeltaSegment("data", at + done, searched - done)
        if len(window) < size:
            break  # the file became shorter meanwhile
        at += searched
    tail = signature.tail_bytes
    if stop == end and tail and stop - at >= tail and signature.is_tail(read(stop - tail, tail)):
        yield DeltaSegment("data", at, stop - tail - at)
        yield DeltaSegment("base", signature.size_bytes - tail, tail)
    else:
        yield DeltaSegment("data", at, stop - at)


def _next_match(window: bytes, first: int, signature: Signature, likely: int) -> tuple[int, int] | None:
    """The first place from ``first`` on that holds a block of the older version, and the number of that block."""
    size = signature.block_bytes
    places = len(window) - size + 1
    begin = first
    while begin < places:
        # A block is usually followed by its neighbour: look at that one place before many.
        until = min(begin + (_STEP_BYTES if begin > first else 1), places)
        for place in _begun(window, begin, until, signature.begins):
            if window[place + size - _WORD_BYTES : place + size] not in signature.ends:
                continue
            index = signature.index_of(window[place : place + size], likely)
            if index is not None:
                return place, index
        begin = until
    return None


def _begun(window: bytes, begin: int, until: int, begins: set[int]) -> list[int]:
    """Places from ``begin`` to before ``until`` that hold the first eight bytes of a block."""
    view = memoryview(window)
    found = []
    for shift in range(min(_WORD_BYTES, until - begin)):
        first = begin + shift
        count = -(-(until - first) // _WORD_BYTES)
        words = view[first : first + count * _WORD_BYTES].cast("Q")
        if not begins.isdisjoint(words):
            found += [first + _WORD_BYTES * i for i, word in enumerate(words) if word in begins]
    return sorted(found)
