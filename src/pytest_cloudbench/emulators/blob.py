"""The bytes of one stored version and their hash, which is computed while they arrive. The skin chooses the hash.

Content stays in the pieces in which it arrived. Joining contents and cutting a range out of one copy no bytes, so
memory holds each stored byte once, however it was uploaded and however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class Hash(Protocol):
    """The interface of ``hashlib``'s hashes, also for skins whose API has its own hash."""

    def update(self, piece: bytes | memoryview, /) -> None:
        """Add the next piece."""
        ...

    def hexdigest(self) -> str:
        """Return the hash of all pieces."""
        ...


class BytePieces:
    """Bytes in pieces, which never change after construction."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self, pieces: Iterable[bytes | memoryview] = ()) -> None:
        self.pieces = tuple(pieces)
        self.size_bytes = sum(map(len, self.pieces))

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return self.data

    @property
    def data(self) -> bytes:
        """All bytes in one piece. This is a copy, so use it for short content only."""
        return b"".join(self.pieces)

    def part(self, start: int, end: int) -> BytePieces:
        """Return the bytes from ``start`` up to ``end``."""
        return BytePieces(self._cut(start, end))

    def _cut(self, start: int, end: int) -> Iterator[memoryview]:
        offset = 0
        for piece in self.pieces:
            if offset >= end:
                return
            if offset + len(piece) > start:
                yield memoryview(piece)[max(0, start - offset) : end - offset]
            offset += len(piece)

    def flipped(self, bit: int) -> BytePieces:
        """Return the content with one bit flipped, as a corrupting store would keep it. ``bit`` may be any number."""
        if not self.size_bytes:
            return self
        offset = bit // 8 % self.size_bytes
        changed_byte = bytes(self.part(offset, offset + 1))[0] ^ 1 << bit % 8
        remainder = self._cut(offset + 1, self.size_bytes)
        return BytePieces([*self._cut(0, offset), bytes([changed_byte]), *remainder])

    @staticmethod
    def join(contents: Iterable[BytePieces]) -> BytePieces:
        """Return several contents joined into one."""
        return BytePieces(piece for content in contents for piece in content.pieces)


class Blob(BytePieces):
    """Content and its hash."""

    __slots__ = ("hash_hex",)

    def __init__(self, pieces: Iterable[bytes | memoryview], hash_hex: str) -> None:
        super().__init__(pieces)
        self.hash_hex = hash_hex


class PieceWriter:
    """A receiver of a body in pieces. ``size_bytes`` counts the bytes that have arrived so far."""

    __slots__ = ("_pieces", "size_bytes")

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self.size_bytes = 0

    def feed(self, piece: bytes | memoryview) -> None:
        """Add the next piece."""
        if piece:
            self._pieces.append(piece)
            self.size_bytes += len(piece)

    def finish(self) -> BytePieces:
        """Return the content of all pieces."""
        return BytePieces(self._pieces)


class BlobWriter(PieceWriter):
    """A receiver of a body in pieces that hashes each piece immediately: ``BlobWriter(hashlib.md5())``."""

    __slots__ = ("_hash",)

    def __init__(self, content_hash: Hash) -> None:
        super().__init__()
        self._hash = content_hash

    def feed(self, piece: bytes | memoryview) -> None:
        """Add the next piece."""
        super().feed(piece)
        self._hash.update(piece)

    def finish(self) -> Blob:
        """Return the blob of all pieces."""
        return Blob(self._pieces, self._hash.hexdigest())


def hash_blob(content: bytes | BytePieces, content_hash: Hash) -> Blob:
    """Return the blob of some content: ``hash_blob(data, hashlib.md5())``."""
    pieces = (content,) if isinstance(content, bytes) else content.pieces
    for piece in pieces:
        content_hash.update(piece)
    return Blob(pieces, content_hash.hexdigest())
