"""The bytes of one stored version and their block hash, computed while they arrive.

What may live here: content and hashes. No paths, no clock, no I/O.

The block hash is the emulators' own implementation, written from the published rule: SHA-256 over the
concatenated SHA-256 digests of each 4 MiB block. Drivers have theirs, so a bug in one shows against the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

__all__ = ["BLOCK_BYTES", "Blob", "BlobWriter"]

BLOCK_BYTES = 4 * 1024 * 1024


class Blob:
    """Bytes with the digests of their blocks. Never changed after construction."""

    __slots__ = ("block_digests", "data", "hash_hex", "size_bytes")

    def __init__(self, data: bytes, block_digests: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.block_digests = block_digests
        self.hash_hex = sha256(block_digests).hexdigest()

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """The blob of some bytes."""
        if len(data) <= BLOCK_BYTES:
            return cls(data, sha256(data).digest() if data else b"")
        view = memoryview(data)
        blocks = range(0, len(data), BLOCK_BYTES)
        return cls(data, b"".join(sha256(view[start : start + BLOCK_BYTES]).digest() for start in blocks))

    @classmethod
    def join(cls, parts: Iterable[Blob]) -> Blob:
        """The blobs one after the other; nothing is hashed again where the seams fall on block bounds."""
        blobs = [blob for blob in parts if blob.size_bytes]
        if len(blobs) == 1:
            return blobs[0]
        data = b"".join(blob.data for blob in blobs)
        if any(blob.size_bytes % BLOCK_BYTES for blob in blobs[:-1]):
            return cls.of(data)
        return cls(data, b"".join(blob.block_digests for blob in blobs))

    def flipped(self, bit: int) -> Blob:
        """The same content with one bit changed: what a corrupting store would keep."""
        if not self.data:
            return self
        place = bit % (len(self.data) * 8)
        changed = bytearray(self.data)
        changed[place // 8] ^= 1 << place % 8
        return Blob.of(bytes(changed))


class BlobWriter:
    """Takes a body in pieces and hashes each block as soon as it is complete."""

    __slots__ = ("_block", "_digests", "_filled", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._digests: list[bytes] = []
        self._block = sha256()
        self._filled = 0

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        self._parts.append(piece)
        view = memoryview(piece)
        while view:
            part = view[: BLOCK_BYTES - self._filled]
            self._block.update(part)
            self._filled += len(part)
            view = view[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._digests.append(self._block.digest())
                self._block, self._filled = sha256(), 0

    def finish(self) -> Blob:
        """The blob of all pieces."""
        last = [self._block.digest()] if self._filled else []
        return Blob(b"".join(self._parts), b"".join(self._digests + last))
