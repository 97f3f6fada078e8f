"""The parts of payloads that every run needs and other generators build on: the protocol, and random bytes.

Up to fifty agents import this module, so keep it light.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytest_cloudbench.model import KIB, MIB, Content

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

_AES_ABOVE_BYTES = 64 * KIB
_AES_BLOCK_BYTES = 16
_AES_READ_BYTES = 4 * MIB


class RandomContent(NamedTuple):  # made for every operation: a frozen dataclass takes twice as long
    """Incompressible bytes, a pure function of ``key`` and size, readable at any offset.

    The bytes depend on the size because a file that begins like another one would be deduplicated. Above 64 KiB they
    are the key stream of AES-128 in counter mode. For smaller files, importing a cipher costs more than it saves.
    """

    key: str
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``."""
        length = min(length, self.size_bytes - offset)
        if length <= 0:
            return b""
        if self.size_bytes > _AES_ABOVE_BYTES:
            return self._key_stream(offset, length)
        return Random(f"{self.key}/{self.size_bytes}/0").randbytes(self.size_bytes)[offset : offset + length]

    def read_ranges(self, ranges: Iterable[tuple[int, int]]) -> Iterator[bytes | memoryview]:
        """Yield what ``read`` returns for each range of (offset, length), but with one cipher for all.

        All ranges must lie inside the content.
        """
        if self.size_bytes <= _AES_ABOVE_BYTES:
            data = memoryview(self.read(0, self.size_bytes))
            yield from (data[offset : offset + length] for offset, length in ranges)
            return
        stream, zeros = self._cipher(0), _zeros()
        reset, update, part = stream.reset_nonce, stream.update, zeros[:0]
        for offset, length in ranges:
            counter, skip = divmod(offset, _AES_BLOCK_BYTES)
            reset(counter.to_bytes(_AES_BLOCK_BYTES, "big"))
            if skip:
                update(zeros[:skip])
            if len(part) != length:  # most often all ranges have the same length
                part = zeros[:length]
            yield update(part) if len(part) == length else self.read(offset, length)

    def _cipher(self, counter: int) -> CipherContext:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key = hashlib.sha256(f"{self.key}/{self.size_bytes}".encode()).digest()[:_AES_BLOCK_BYTES]
        return Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(_AES_BLOCK_BYTES, "big"))).encryptor()

    def _key_stream(self, offset: int, length: int) -> bytes:
        counter, skip = divmod(offset, _AES_BLOCK_BYTES)
        stream, zeros = self._cipher(counter), _zeros()
        stream.update(zeros[:skip])
        if length <= len(zeros):
            return stream.update(zeros[:length])
        return b"".join(stream.update(zeros[: length - at]) for at in range(0, length, len(zeros)))


@lru_cache(maxsize=1)
def _zeros() -> memoryview:
    """Return zeros to encrypt. Cached, because zeroing memory takes four times as long as encrypting it."""
    # glibc gives freed memory back to the system at once, until a larger block than that has been freed. Without this
    # one, which nobody writes to, reads of a megabyte would spend most of their time on getting fresh pages.
    bytes(_AES_READ_BYTES // 2)
    return memoryview(bytes(_AES_READ_BYTES))


class Generator(Protocol):
    """A maker of file contents, one for each sensor and sequence number.

    It may have a ``suffix`` for the names of its files, such as ``.jpg``.
    """

    @property
    def size_bytes(self) -> int:
        """Size of each file, or the mean if sizes differ."""
        ...

    def content(self, sensor: int, seq: int) -> Content:
        """Return the content of file number ``seq`` of a sensor: the same bytes for the same arguments."""
        ...


@dataclass(frozen=True, slots=True)
class RandomPayload:
    """Files that cannot be compressed and never repeat, so that no server-side deduplication fakes a result.

    Source: thesis 3.4.3, RandomFileGenerator.
    """

    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Return bytes that depend on the run's seed, the sensor and the sequence number."""
        # ``RandomContent(...)`` would take twice as long, for every operation.
        return tuple.__new__(RandomContent, (f"{self.seed}/{sensor}/{seq}", self.size_bytes))


@dataclass(frozen=True, slots=True)
class IdenticalPayload:
    """Files with identical bytes. Source: thesis 3.4.3, IdenticalFileGenerator."""

    seed: str
    size_bytes: int

    def content(self, sensor: int, seq: int) -> Content:
        """Return the same bytes for every file of the run."""
        return RandomContent(f"{self.seed}/identical", self.size_bytes)
