"""The bytes of one stored version and their hash, which is computed while they arrive. The skin chooses the hash.

Content stays in the pieces in which it arrived, and large content goes to disk (``spool``) while it arrives. No bytes
are copied when contents are joined or a range is cut out, so each stored byte is held once, however it was uploaded and
however often it is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Protocol, Self, TypeAlias

from pytest_cloudbench.emulators.spool import SPOOL, DiskPiece

_MEMORY_BYTES = 256 * 1024
"""Shorter content stays in memory. The least unit of Drive's and OneDrive's upload sessions must not be shorter."""
_CHUNK_BYTES = 1024 * 1024
_LEAST_DISK_BYTES = 4096

Piece: TypeAlias = "bytes | memoryview | DiskPiece"


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

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self.pieces = tuple(pieces)
        self.size_bytes = sum(map(len, self.pieces))

    def __len__(self) -> int:
        return self.size_bytes

    def __bytes__(self) -> bytes:
        return self.data

    @property
    def data(self) -> bytes:
        """All bytes in one piece. This is a copy, so use it for short content only."""
        return b"".join(self.chunks())

    def chunks(self, max_bytes: int = _CHUNK_BYTES) -> Iterator[bytes | memoryview]:
        """Yield all bytes in order, in pieces of at most ``max_bytes``. Each is read from disk when it is its turn."""
        for piece in self.pieces:
            for start in range(0, len(piece), max_bytes):
                chunk = piece if len(piece) <= max_bytes else piece[start : start + max_bytes]
                yield bytes(chunk) if isinstance(chunk, DiskPiece) else chunk

    def move_to_disk(self) -> None:
        """Move what is in memory to disk, unless it is very short. Raises DiskFullError."""
        in_memory_bytes = sum(len(piece) for piece in self.pieces if not isinstance(piece, DiskPiece))
        if SPOOL.folder and in_memory_bytes >= _LEAST_DISK_BYTES:
            self.pieces = tuple(_move_to_disk(self.pieces))

    def part(self, start: int, end: int) -> BytePieces:
        """Return the bytes from ``start`` up to ``end``."""
        return BytePieces(self._cut(start, end))

    def _cut(self, start: int, end: int) -> Iterator[Piece]:
        offset = 0
        for piece in self.pieces:
            if offset >= end:
                return
            if offset + len(piece) > start:
                sliceable = piece if isinstance(piece, DiskPiece) else memoryview(piece)
                yield sliceable[max(0, start - offset) : end - offset]
            offset += len(piece)

    def flip_bit(self, bit: int) -> BytePieces:
        """Return the content with one bit flipped, as a corrupting store would keep it. ``bit`` may be any number."""
        if not self.size_bytes:
            return self
        offset = bit // 8 % self.size_bytes
        changed_byte = bytes(self.part(offset, offset + 1))[0] ^ 1 << bit % 8
        remainder = self._cut(offset + 1, self.size_bytes)
        return BytePieces([*self._cut(0, offset), bytes([changed_byte]), *remainder])

    @staticmethod
    def join(contents: Iterable[BytePieces]) -> BytePieces:
        """Return several contents joined into one. Raises DiskFullError."""
        joined = BytePieces(piece for content in contents for piece in content.pieces)
        if sum(len(piece) for piece in joined.pieces if not isinstance(piece, DiskPiece)) >= _MEMORY_BYTES:
            joined.move_to_disk()
        return joined


def _move_to_disk(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Write the pieces that are in memory to disk, a chunk at a time."""
    batch: list[bytes | memoryview] = []
    batch_bytes = 0
    for piece in pieces:
        if batch and (batch_bytes >= _CHUNK_BYTES or isinstance(piece, DiskPiece)):
            yield SPOOL.store(batch)
            batch, batch_bytes = [], 0
        if isinstance(piece, DiskPiece):
            yield piece
        else:
            batch.append(piece)
            batch_bytes += len(piece)
    if batch:
        yield SPOOL.store(batch)


class Blob(BytePieces):
    """Content and its hash."""

    __slots__ = ("hash_hex",)

    def __init__(self, pieces: Iterable[Piece], hash_hex: str) -> None:
        super().__init__(pieces)
        self.hash_hex = hash_hex

    @property
    def has_content(self) -> bool:
        """True if all its bytes are here."""
        return bool(self.pieces) or not self.size_bytes

    def without_content(self) -> Self:
        """Return a blob that still has the hash and the size, but no bytes."""
        emptied = copy(self)
        emptied.pieces = ()
        return emptied


class PieceWriter:
    """A receiver of a body in pieces. ``size_bytes`` counts the bytes that have arrived so far."""

    __slots__ = ("_on_disk", "_pieces", "_stored_bytes", "size_bytes")

    def __init__(self) -> None:
        self._on_disk: list[DiskPiece] = []
        self._pieces: list[bytes | memoryview] = []
        self._stored_bytes = 0
        self.size_bytes = 0

    def feed(self, piece: bytes | memoryview) -> None:
        """Add the next piece. Raises DiskFullError."""
        if piece:
            self._pieces.append(piece)
            self.size_bytes += len(piece)
            if self.size_bytes - self._stored_bytes >= _MEMORY_BYTES:
                self._store_pieces()

    def take_pieces(self) -> list[Piece]:
        """Return all pieces. Raises DiskFullError."""
        if self._on_disk and self._pieces:
            self._store_pieces()
        return [*self._on_disk, *self._pieces]

    def finish(self) -> BytePieces:
        """Return the content of all pieces. Raises DiskFullError."""
        return BytePieces(self.take_pieces())

    def _store_pieces(self) -> None:
        if SPOOL.folder:
            self._on_disk.append(SPOOL.store(self._pieces))
            self._stored_bytes, self._pieces = self.size_bytes, []


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
        return Blob(self.take_pieces(), self._hash.hexdigest())


def hash_blob(content: bytes | BytePieces, content_hash: Hash) -> Blob:
    """Return the blob of some content: ``hash_blob(data, hashlib.md5())``."""
    if isinstance(content, bytes):
        writer = BlobWriter(content_hash)
        writer.feed(content)
        return writer.finish()
    for chunk in content.chunks():
        content_hash.update(chunk)
    return Blob(content.pieces, content_hash.hexdigest())
