"""The bytes of files: seed in, bytes out.

What may live here: payload generators, edits of existing files and the digests that providers list. Pure: no clock,
no I/O. A generator makes one ``Content`` for each (sensor, sequence number), the same for the same seed.
This module holds what every run needs; the rest is imported when it is asked for, because an agent is a process
and there may be fifty (docs/payloads.md lists all of it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast

from pytest_cloudbench.model import KIB, MIB, Content, UsageError, chunks

if TYPE_CHECKING:
    from pytest_cloudbench.payload.edits import Edit
    from pytest_cloudbench.payload.sizes import Sizes

__all__ = [
    "DIGESTS",
    "Generator",
    "IdenticalPayload",
    "Payloads",
    "RandomContent",
    "RandomPayload",
    "digest",
    "fresh",
    "generator",
]

_AES_ABOVE_BYTES = 64 * KIB
_AES_BLOCK_BYTES = 16
_AES_READ_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class RandomContent:
    """Incompressible bytes, a pure function of ``key`` and size; any part can be read without the parts before it.

    The size is part of it because a file that begins like another one is deduplicated. Above 64 KiB the bytes are the
    key stream of AES-128 in counter mode; below, importing a cipher would cost more than it saves.
    """

    key: str
    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``."""
        length = min(length, self.size_bytes - offset)
        if length <= 0:
            return b""
        if self.size_bytes > _AES_ABOVE_BYTES:
            return self._key_stream(offset, length)
        return Random(f"{self.key}/{self.size_bytes}/0").randbytes(self.size_bytes)[offset : offset + length]

    def _key_stream(self, offset: int, length: int) -> bytes:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        key = hashlib.sha256(f"{self.key}/{self.size_bytes}".encode()).digest()[:_AES_BLOCK_BYTES]
        counter, skip = divmod(offset, _AES_BLOCK_BYTES)
        stream = Cipher(algorithms.AES(key), modes.CTR(counter.to_bytes(_AES_BLOCK_BYTES, "big"))).encryptor()
        zeros = _zeros()
        stream.update(zeros[:skip])
        if length <= len(zeros):
            return stream.update(zeros[:length])
        return b"".join(stream.update(zeros[: length - at]) for at in range(0, length, len(zeros)))


@lru_cache(maxsize=1)
def _zeros() -> memoryview:
    """What becomes the key stream. Made once: zeroing memory takes four times as long as encrypting it."""
    return memoryview(bytes(_AES_READ_BYTES))


class Generator(Protocol):
    """Makes the content of file number ``seq`` of one sensor.

    It may have a ``suffix``, such as ``.jpg``, that the names of its files should end with.
    """

    @property
    def size_bytes(self) -> int:
        """Of each file; the mean where sizes differ."""
        ...

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


def generator(
    name: str, params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None = None
) -> Generator:
    """The generator that a configuration file names.

    Args:
        name: one of those that docs/payloads.md lists.
        params: its parameters, as the file gives them.
        seed: what its bytes depend on, besides the parameters.
        read_text: reads the file that a parameter names (this layer opens none).

    Raises UsageError that names the generator, the wrong key and what was expected.
    """
    from pytest_cloudbench.payload import registry

    return registry.make_generator(name, params, seed, read_text)


def fresh(payload: Generator, run: int) -> Generator:
    """The same generator with other bytes, for the ``run``-th use of it: or deduplication would fake that one.

    What is meant to repeat (identical files), and a generator that is not ours, stays as it is.
    """
    seed = getattr(payload, "seed", None)
    ours = type(payload).__module__.startswith(__name__) and is_dataclass(payload)
    if not ours or seed is None or isinstance(payload, (IdenticalPayload, type)):
        return payload
    renewed: Generator = replace(cast(Any, payload), seed=f"{seed}#{run}")
    return renewed


@dataclass(frozen=True, slots=True)
class Payloads:
    """The generators of one run, as the ``payloads`` fixture gives them; ``seed`` is unique to the run.

    Every method takes what its generator takes in a configuration file. docs/payloads.md says what each is for.
    """

    seed: str

    def random(self, size_bytes: int) -> RandomPayload:
        """Incompressible files of ``size_bytes``."""
        return RandomPayload(self.seed, _checked(size_bytes))

    def identical(self, size_bytes: int) -> IdenticalPayload:
        """Files of ``size_bytes`` that are all the same."""
        return IdenticalPayload(self.seed, _checked(size_bytes))

    def sparse(self, size_bytes: int, text: str = "0123456789abcdef") -> Generator:
        """Files of one repeated ``text``."""
        return generator("sparse", {"size_bytes": size_bytes, "text": text}, self.seed)

    def delta(self, size_bytes: int, percent: float, where: str = "front") -> Generator:
        """Files with a common share of ``percent`` (0.9 is 90 %) at front, middle or back, or spread over the file."""
        return generator("delta", {"size_bytes": size_bytes, "percent": percent, "where": where}, self.seed)

    def segments(self, size_bytes: int, count: int) -> Generator:
        """The ``count`` parts of one random object of ``size_bytes``: one file each, for ``files=count``."""
        from pytest_cloudbench.payload.generators import SegmentedPayload

        if not 1 <= count <= max(1, size_bytes):
            raise UsageError(f"payload segments: count is {count}; expected 1 to {max(1, size_bytes)}, its bytes")
        return SegmentedPayload(self.seed, _checked(size_bytes), count)

    def text(self, size_bytes: int) -> Generator:
        """Files of English words."""
        return generator("text", {"size_bytes": size_bytes}, self.seed)

    def compressible(self, size_bytes: int, ratio: float, chunk_bytes: int = 4 * KIB) -> Generator:
        """Files of which compression removes the share ``ratio``."""
        params = {"size_bytes": size_bytes, "ratio": ratio, "chunk_bytes": chunk_bytes}
        return generator("compressible", params, self.seed)

    def duplicated(self, size_bytes: int, ratio: float, block_bytes: int = 4 * KIB) -> Generator:
        """Files in which the share ``ratio`` of the blocks repeats an earlier block of the same file."""
        params = {"size_bytes": size_bytes, "ratio": ratio, "block_bytes": block_bytes}
        return generator("duplicated", params, self.seed)

    def jpeg(self, size_bytes: int) -> Generator:
        """Valid JPEG images of exactly ``size_bytes``, with random pixels."""
        return generator("jpeg", {"size_bytes": size_bytes}, self.seed)

    def fake_jpeg(self, size_bytes: int) -> Generator:
        """Files named and beginning like a JPEG image, with words inside."""
        return generator("fake_jpeg", {"size_bytes": size_bytes}, self.seed)

    def mixed(self, distribution: str | Sizes, content: str | Mapping[str, Any] = "random", **params: Any) -> Generator:
        """Files of another generator whose sizes follow a distribution: its name and parameters, or one at hand."""
        return generator("mixed", {"distribution": distribution, "content": content, **params}, self.seed)

    def edit(self, name: str, number: int = 0, **params: Any) -> Edit:
        """A change to an existing file; ``number`` tells apart those of one test."""
        from pytest_cloudbench.payload import registry

        return registry.make_edit(name, params, f"{self.seed}/edit/{number}")

    def updates(self, name: str, number: int = 0, **params: Any) -> Iterator[tuple[float, Edit]]:
        """A stream of edits of one file, each with the second at which it is due."""
        from pytest_cloudbench.payload import registry

        return registry.make_updates(name, params, f"{self.seed}/updates/{number}")


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
