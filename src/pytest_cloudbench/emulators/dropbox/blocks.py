"""Dropbox's block hash: content with the digests of its blocks, computed while it arrives.

What may live here: content and hashes. No paths, no clock, no I/O.

The block hash is the emulator's own implementation, written from the published rule: SHA-256 over the
concatenated SHA-256 digests of each 4 MiB block. Drivers have their own implementation, so a bug in one is found by the
other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from pytest_cloudbench.emulators.blob import Blob, flip_bit

__all__ = ["BLOCK_BYTES", "BlockBlob", "BlockWriter"]

BLOCK_BYTES = 4 * 1024 * 1024


class BlockBlob(Blob):
    """Bytes with the digests of their blocks."""

    __slots__ = ("block_digests",)

    def __init__(self, data: bytes, block_digests: bytes) -> None:
        super().__init__(data, sha256(block_digests).hexdigest())
        self.block_digests = block_digests

    @classmethod
    def of(cls, data: bytes) -> BlockBlob:
        """The blob of some bytes."""
        if len(data) <= BLOCK_BYTES:
            return cls(data, sha256(data).digest() if data else b"")
        view = memoryview(data)
        blocks = range(0, len(data), BLOCK_BYTES)
        return cls(data, b"".join(sha256(view[start : start + BLOCK_BYTES]).digest() for start in blocks))

    @classmethod
    def join(cls, parts: Iterable[BlockBlob]) -> BlockBlob:
        """Concatenates blobs; nothing is hashed again if they are joined at block boundaries."""
        blobs = [blob for blob in parts if blob.size_bytes]
        if len(blobs) == 1:
            return blobs[0]
        data = b"".join(blob.data for blob in blobs)
        if any(blob.size_bytes % BLOCK_BYTES for blob in blobs[:-1]):
            return cls.of(data)
        return cls(data, b"".join(blob.block_digests for blob in blobs))

    def flipped(self, bit: int) -> BlockBlob:
        """The same content with one bit changed."""
        return BlockBlob.of(flip_bit(self.data, bit)) if self.data else self


class BlockWriter:
    """Receives a body in pieces and hashes each block as soon as it is complete."""

    __slots__ = ("_block", "_digests", "_filled", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._digests: list[bytes] = []
        self._block = sha256()
        self._filled = 0

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        self._parts.append(piece)
        if self._filled + len(piece) < BLOCK_BYTES:
            self._block.update(piece)
            self._filled += len(piece)
            return
        view = memoryview(piece)
        while view:
            part = view[: BLOCK_BYTES - self._filled]
            self._block.update(part)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._digests.append(self._block.digest())
                self._block, self._filled = sha256(), 0

    def finish(self) -> BlockBlob:
        """The blob of all pieces."""
        last = [self._block.digest()] if self._filled else []
        return BlockBlob(b"".join(self._parts), b"".join(self._digests + last))
