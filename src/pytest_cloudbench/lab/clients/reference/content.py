"""The computations of both halves of the reference client on the content of files.

Digests of files and blocks, and whether a file is worth deflating. No network.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

_MAGIC = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF8",
    b"\x1f\x8b",  # gzip
    b"PK\x03\x04",  # zip, and all formats built on it
    b"BZh",
    b"\xfd7zXZ\x00",
    b"7z\xbc\xaf\x27\x1c",
    b"\x28\xb5\x2f\xfd",  # zstd
    b"OggS",
    b"ID3",
)
_EXTENSIONS = frozenset(
    "jpg jpeg png gif webp gz tgz zip bz2 xz 7z zst mp3 mp4 mkv webm ogg docx xlsx pptx jar".split()
)


class Block(NamedTuple):
    """One block of a file: SHA-256 and length."""

    digest: bytes
    length_bytes: int


class Digests(NamedTuple):
    """A file's size, its SHA-256, and its blocks one after another."""

    size_bytes: int
    sha256: str
    blocks: tuple[Block, ...]


class Digester:
    """Digests of a stream in one pass.

    Args:
        block_bytes: the length of all blocks but the last. With 0, the whole stream is one block. With None, there are
            no blocks.
    """

    def __init__(self, block_bytes: int | None) -> None:
        self._block_bytes = block_bytes
        self._size_bytes = 0
        self._whole = hashlib.sha256()
        self._block = hashlib.sha256()
        self._in_block_bytes = 0
        self._blocks: list[Block] = []

    def update(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        self._whole.update(data)
        self._size_bytes += len(data)
        if not self._block_bytes:
            return
        view = memoryview(data)
        while view:
            piece = view[: self._block_bytes - self._in_block_bytes]
            self._block.update(piece)
            self._in_block_bytes += len(piece)
            view = view[len(piece) :]
            if self._in_block_bytes == self._block_bytes:
                self._end_block()

    def digests(self) -> Digests:
        """Return the digests of everything that came. Call this only once, because it ends the last block."""
        if self._block_bytes == 0 and self._size_bytes:
            self._blocks = [Block(self._whole.digest(), self._size_bytes)]
        elif self._in_block_bytes:
            self._end_block()
        return Digests(self._size_bytes, self._whole.hexdigest(), tuple(self._blocks))

    def _end_block(self) -> None:
        self._blocks.append(Block(self._block.digest(), self._in_block_bytes))
        self._block, self._in_block_bytes = hashlib.sha256(), 0


def is_worth_deflating(policy: str, name: str, first_bytes: bytes) -> bool:
    """Return whether a file is deflated, by ``compression`` of the settings, its name and how its content begins.

    IMC 2013, section 4.5: a client that judges by content does not compress a text that begins like a JPEG.
    """
    if policy == "smart":
        is_mp4_or_webp = first_bytes[4:8] == b"ftyp" or (first_bytes[:4] == b"RIFF" and first_bytes[8:12] == b"WEBP")
        return not (first_bytes.startswith(_MAGIC) or is_mp4_or_webp)
    if policy == "by-name":
        return os.path.splitext(name)[1][1:].lower() not in _EXTENSIONS
    return policy == "always"
