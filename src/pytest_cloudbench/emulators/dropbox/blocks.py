"""Dropbox's block hash: content with the digests of its blocks, computed while it arrives.

The block hash is the emulator's own implementation, written from the published rule: SHA-256 over the concatenated
SHA-256 digests of each 4 MiB block. Drivers have their own implementation, so a bug in one is found by the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from pytest_cloudbench.emulators.blob import Blob, BytePieces, Piece, PieceWriter

BLOCK_BYTES = 4 * 1024 * 1024


class BlockBlob(Blob):
    """Content with the digests of its blocks."""

    __slots__ = ("block_digests",)

    def __init__(self, pieces: Iterable[Piece], block_digests: bytes) -> None:
        super().__init__(pieces, sha256(block_digests).hexdigest())
        self.block_digests = block_digests

    @classmethod
    def from_content(cls, content: bytes | BytePieces) -> BlockBlob:
        """Return the blob of some content."""
        writer = BlockWriter()
        if isinstance(content, bytes):
            writer.feed(content)
            return writer.finish()
        for chunk in content.chunks():
            writer.hash(chunk)
        return cls(content.pieces, writer.digests())

    @classmethod
    def concatenate(cls, parts: Iterable[BlockBlob]) -> BlockBlob:
        """Return several blobs as one. No block is hashed again if they are joined at block boundaries."""
        blobs = [blob for blob in parts if blob.size_bytes]
        content = BytePieces.join(blobs)
        if any(blob.size_bytes % BLOCK_BYTES for blob in blobs[:-1]):
            return cls.from_content(content)
        return cls(content.pieces, b"".join(blob.block_digests for blob in blobs))


class BlockWriter(PieceWriter):
    """A receiver of a body in pieces that hashes each block as soon as it is complete."""

    __slots__ = ("_block", "_digests", "_filled")

    def __init__(self) -> None:
        super().__init__()
        self._digests: list[bytes] = []
        self._block, self._filled = sha256(), 0

    def feed(self, piece: bytes | memoryview) -> None:
        """Add the next piece."""
        super().feed(piece)
        self.hash(piece)

    def hash(self, piece: bytes | memoryview) -> None:
        """Hash the next piece without keeping it."""
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
        """Return the blob of all pieces."""
        return BlockBlob(self.take_pieces(), self.digests())

    def digests(self) -> bytes:
        """Return the digests of all blocks."""
        last_block = [self._block.digest()] if self._filled else []
        return b"".join(self._digests + last_block)
