"""Payloads: the bytes of files as pure functions of a seed, edits of files, and the digests that providers list.

A generator makes one ``Content`` for each (sensor, sequence number), always the same for the same seed. There is no
clock and no I/O here. This module has only the parts that every run needs. The others are imported at their first use,
because each agent is a process and there may be fifty. docs/reference/payloads.md lists all generators.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from pytest_cloudbench.model import KIB, Content, UsageError, chunks
from pytest_cloudbench.workload.payload.base import Generator, IdenticalPayload, RandomContent, RandomPayload

if TYPE_CHECKING:
    from pytest_cloudbench.workload.payload.edits import Edit
    from pytest_cloudbench.workload.payload.sizes import Sizes

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


def generator(
    name: str, params: Mapping[str, Any], seed: str, read_text: Callable[[str], str] | None = None
) -> Generator:
    """Return the generator that a configuration file names.

    Args:
        name: one of those that docs/reference/payloads.md lists.
        params: its parameters, as in the file.
        seed: with the parameters, determines all bytes.
        read_text: reads the file that a parameter names, since this package opens no files.

    Raises UsageError with the generator, the wrong key and the expected value.
    """
    from pytest_cloudbench.workload.payload import registry

    return registry.make_generator(name, params, seed, read_text)


def fresh(payload: Generator, run: int) -> Generator:
    """Return a copy of the generator with different bytes for its ``run``-th use.

    Without it, deduplication of repeated bytes would fake the result. Generators that repeat on purpose (identical
    files) and generators from outside this package are returned unchanged.
    """
    seed = getattr(payload, "seed", None)
    is_builtin = type(payload).__module__.startswith(__name__) and is_dataclass(payload)
    if not is_builtin or seed is None or isinstance(payload, (IdenticalPayload, type)):
        return payload
    reseeded: Generator = replace(cast(Any, payload), seed=f"{seed}#{run}")
    return reseeded


@dataclass(frozen=True, slots=True)
class Payloads:
    """The value of the ``payloads`` fixture: makes generators for one run, whose ``seed`` is unique.

    Every method takes the parameters that its generator has in a configuration file. docs/reference/payloads.md
    describes them.
    """

    seed: str

    def random(self, size_bytes: int) -> RandomPayload:
        """Make incompressible files of ``size_bytes``."""
        return RandomPayload(self.seed, _check_size(size_bytes))

    def identical(self, size_bytes: int) -> IdenticalPayload:
        """Make files of ``size_bytes`` that are all the same."""
        return IdenticalPayload(self.seed, _check_size(size_bytes))

    def sparse(self, size_bytes: int, text: str = "0123456789abcdef") -> Generator:
        """Make files of one repeated ``text``."""
        return generator("sparse", {"size_bytes": size_bytes, "text": text}, self.seed)

    def delta(self, size_bytes: int, percent: float, where: str = "front") -> Generator:
        """Make files that share ``percent`` of their bytes (0.9 is 90 %): at front, middle or back, or spread out."""
        return generator("delta", {"size_bytes": size_bytes, "percent": percent, "where": where}, self.seed)

    def segments(self, size_bytes: int, count: int) -> Generator:
        """Split one random object of ``size_bytes`` into ``count`` files, to be used with ``files=count``."""
        from pytest_cloudbench.workload.payload.generators import SegmentedPayload

        if not 1 <= count <= max(1, size_bytes):
            raise UsageError(f"payload segments: count is {count}; expected 1 to {max(1, size_bytes)}, its bytes")
        return SegmentedPayload(self.seed, _check_size(size_bytes), count)

    def text(self, size_bytes: int) -> Generator:
        """Make files of English words."""
        return generator("text", {"size_bytes": size_bytes}, self.seed)

    def compressible(self, size_bytes: int, ratio: float, chunk_bytes: int = 4 * KIB) -> Generator:
        """Make files that compression shrinks by the share ``ratio``."""
        params = {"size_bytes": size_bytes, "ratio": ratio, "chunk_bytes": chunk_bytes}
        return generator("compressible", params, self.seed)

    def duplicated(self, size_bytes: int, ratio: float, block_bytes: int = 4 * KIB) -> Generator:
        """Make files in which the share ``ratio`` of the blocks repeats an earlier block of the same file."""
        params = {"size_bytes": size_bytes, "ratio": ratio, "block_bytes": block_bytes}
        return generator("duplicated", params, self.seed)

    def jpeg(self, size_bytes: int) -> Generator:
        """Make valid JPEG images of exactly ``size_bytes``, with random pixels."""
        return generator("jpeg", {"size_bytes": size_bytes}, self.seed)

    def fake_jpeg(self, size_bytes: int) -> Generator:
        """Make files with the name and header of a JPEG image but words inside."""
        return generator("fake_jpeg", {"size_bytes": size_bytes}, self.seed)

    def mixed(self, distribution: str | Sizes, content: str | Mapping[str, Any] = "random", **params: Any) -> Generator:
        """Make another generator's files with sizes from a distribution, given as an object or by its name."""
        return generator("mixed", {"distribution": distribution, "content": content, **params}, self.seed)

    def edit(self, name: str, number: int = 0, **params: Any) -> Edit:
        """Make a change to an existing file. ``number`` distinguishes the edits of one test."""
        from pytest_cloudbench.workload.payload import registry

        return registry.make_edit(name, params, f"{self.seed}/edit/{number}")

    def updates(self, name: str, number: int = 0, **params: Any) -> Iterator[tuple[float, Edit]]:
        """Make a stream of edits to one file, each with its due time in seconds."""
        from pytest_cloudbench.workload.payload import registry

        return registry.make_updates(name, params, f"{self.seed}/updates/{number}")


def _check_size(size_bytes: int) -> int:
    if size_bytes < 0:
        raise UsageError(f"payload: size_bytes is {size_bytes}; expected 0 or more")
    return size_bytes


def _make_hasher(algorithm: str) -> Callable[[Content], bytes]:
    def compute(content: Content) -> bytes:
        state = hashlib.new(algorithm)
        for piece in chunks(content):
            state.update(piece)
        return state.digest()

    return compute


def _hash_blocks(content: Content) -> bytes:
    """Return the SHA-256 of the joined SHA-256 digests of all 4 MiB blocks."""
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in chunks(content))).digest()


def _hash_quickxor(content: Content) -> bytes:
    from pytest_cloudbench.workload.payload.quickxor import QuickXor

    hash_ = QuickXor()
    for chunk in chunks(content):
        hash_.update(chunk)
    return hash_.digest()


DIGESTS: dict[str, Callable[[Content], bytes]] = {
    "sha256": _make_hasher("sha256"),
    "sha1": _make_hasher("sha1"),
    "md5": _make_hasher("md5"),
    "sha256-4mib-blocks": _hash_blocks,
    "quickxorhash": _hash_quickxor,
}
"""Digest algorithms that providers list, by their names in ``Capabilities.digest`` of a driver."""


def digest(content: Content, algorithm: str) -> bytes:
    """Return the digest of ``content``. Raises UsageError for an algorithm that is not in ``DIGESTS``."""
    try:
        return DIGESTS[algorithm](content)
    except KeyError:
        raise UsageError(f"digest {algorithm!r} is not known; known are {', '.join(DIGESTS)}") from None
