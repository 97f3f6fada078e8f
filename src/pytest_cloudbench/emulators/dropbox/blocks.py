"""Dropbox's block hash: content with the digests of its blocks, computed while it arrives.

The block hash is the emulator's own implementation, written from the published rule: SHA-256 over the concatenated
SHA-256 digests of each 4 MiB block. Drivers have their own implementation, so a bug in one is found by the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from pytest_cloudbench.emulators.blob import Blob, BytePieces, PieceWriter

BLOCK_BYTES = 4 * 1024 * 1024


class BlockBlob(Blob):
    """Content with the digests of its blocks."""

    __slots__ = ("block_digests",)

    def __init__(self, pieces: Iterable[bytes | memoryview], block_digests: bytes) -> None:
        super().__init__(pieces, sha256(block_digests).hexdigest())
        self.block_digests = block_digests

    @classmethod
    def from_content(cls, content: bytes | BytePieces) -> BlockBlob:
        """Return the blob of some content."""
        writer = BlockWriter()
        for piece in (content,) if isinstance(content, bytes) else content.pieces:
            writer.feed(piece)
        return writer.finish()

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
        last_block = [self._block.digest()] if self._filled else []
        return BlockBlob(self._pieces, b"".join(self._digests + last_block))
