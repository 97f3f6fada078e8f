"""The bytes of one stored version and their hash, computed while they arrive.

What may live here: content, and receiving it. No paths, no clock, no I/O; the skin chooses the hash.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Blob", "BlobWriter", "Hash", "flip_bit", "hashed"]


class Hash(Protocol):
    """The interface of ``hashlib``'s hashes, also for skins whose API has its own hash."""

    def update(self, piece: bytes, /) -> None:
        """Add the next piece."""
        ...

    def hexdigest(self) -> str:
        """Returns the hash of all pieces."""
        ...


class Blob:
    """Bytes and their hash. Never changed after construction."""

    __slots__ = ("data", "hash_hex", "size_bytes")

    def __init__(self, data: bytes, hash_hex: str) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.hash_hex = hash_hex


class BlobWriter:
    """Receives a body in pieces and hashes each immediately: ``BlobWriter(hashlib.md5())``."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, content_hash: Hash) -> None:
        self._parts: list[bytes] = []
        self._hash = content_hash

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        self._parts.append(piece)
        self._hash.update(piece)

    def finish(self) -> Blob:
        """Returns the blob of all pieces."""
        return Blob(b"".join(self._parts), self._hash.hexdigest())


def hashed(data: bytes, content_hash: Hash) -> Blob:
    """Returns the blob of some bytes: ``hashed(data, hashlib.md5())``."""
    content_hash.update(data)
    return Blob(data, content_hash.hexdigest())


def flip_bit(data: bytes, bit: int) -> bytes:
    """Returns the content with one bit flipped, as a corrupting store would keep it. ``bit`` may be any number."""
    if not data:
        return data
    place = bit % (len(data) * 8)
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)
