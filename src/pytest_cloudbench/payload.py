"""The bytes of files: seed in, bytes out.

What may live here: payload generators and the digests that providers list. Pure: no clock, no I/O.
A generator makes one ``Content`` for each (sensor, sequence number), the same for the same seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pytest_cloudbench.model import MIB, Content, UsageError, chunks

__all__ = ["DIGESTS", "Generator", "IdenticalPayload", "Payloads", "RandomContent", "RandomPayload", "digest"]

_BLOCK_BYTES = MIB


@dataclass(frozen=True, slots=True)
class RandomContent:
    """Incompressible bytes, a pure function of ``key`` and size; any part can be read without the parts before it.

    The size is part of it because a file that begins like another one is deduplicated.
    """

    key: str
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        end = min(offset + length, self.size_bytes)
        if end <= offset:
            return b""
        first, last = offset // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        parts = b"".join(self._block(number) for number in range(first, last + 1))
        return parts[offset - first * _BLOCK_BYTES : end - first * _BLOCK_BYTES]

    def _block(self, number: int) -> bytes:
        size = min(_BLOCK_BYTES, self.size_bytes - number * _BLOCK_BYTES)
        return Random(f"{self.key}/{self.size_bytes}/{number}").randbytes(size)


class Generator(Protocol):
    """Makes the content of file number ``seq`` of one sensor."""

    @property
    def size_bytes(self) -> int: ...

    def content(self, sensor: int, seq: int) -> Content:
        """The same bytes for the same arguments."""
        ...


@dataclass(frozen=True, slots=True)
class RandomPayload:
    """Files that cannot be compressed and never repeat, so that no server-side deduplication fakes a result.

    Source: thesis 3.4.3, RandomFileGenerator.
    """

    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Bytes that depend on the run's seed, the sensor and the sequence number."""
        return RandomContent(f"{self.seed}/{sensor}/{seq}", self.size_bytes)


@dataclass(frozen=True, slots=True)
class IdenticalPayload:
    """Files that all hold the same bytes. Source: thesis 3.4.3, IdenticalFileGenerator."""

    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """The same bytes for every file of the run."""
        return RandomContent(f"{self.seed}/identical", self.size_bytes)


@dataclass(frozen=True, slots=True)
class Payloads:
    """The generators of one run, as the ``payloads`` fixture gives them; ``seed`` is unique to the run."""

    seed: str

    def random(self, size_bytes: int) -> RandomPayload:
        """Incompressible files of ``size_bytes``."""
        return RandomPayload(self.seed, _checked(size_bytes))

    def identical(self, size_bytes: int) -> IdenticalPayload:
        """Files of ``size_bytes`` that are all the same."""
        return IdenticalPayload(self.seed, _checked(size_bytes))


def _checked(size_bytes: int) -> int:
    if size_bytes < 0:
        raise UsageError(f"payload: size_bytes is {size_bytes}; expected 0 or more")
    return size_bytes


def _streamed(name: str) -> Callable[[Content], bytes]:
    def compute(content: Content) -> bytes:
        state = hashlib.new(name)
        for piece in chunks(content):
            state.update(piece)
        return state.digest()

    return compute


def _sha256_of_blocks(content: Content) -> bytes:
    """SHA-256 over the SHA-256 of each 4 MiB block."""
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in chunks(content))).digest()


DIGESTS: dict[str, Callable[[Content], bytes]] = {
    "sha256": _streamed("sha256"),
    "sha1": _streamed("sha1"),
    "md5": _streamed("md5"),
    "sha256-4mib-blocks": _sha256_of_blocks,
}
"""Digest algorithms that providers list, by the name a driver's ``Capabilities.digest`` uses."""


def digest(content: Content, algorithm: str) -> bytes:
    """The digest of ``content``. Raises UsageError for an algorithm that is not in ``DIGESTS``."""
    try:
        return DIGESTS[algorithm](content)
    except KeyError:
        raise UsageError(f"digest {algorithm!r} is not known; known are {', '.join(DIGESTS)}") from None
