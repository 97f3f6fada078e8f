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
    """The generator that a configuration file names.

    Args:
        name: one of those that docs/payloads.md lists.
        params: its parameters, as the file gives them.
        seed: what its bytes depend on, besides the parameters.
        read_text: reads the file that a parameter names (this layer opens none).

    Raises UsageError that names the generator, the wrong key and what was expected.
    """
    from pytest_cloudbench.workload.payload import registry

    return registry.make_generator(name, params, seed, read_text)


def fresh(payload: Generator, run: int) -> Generator:
    """The same generator with different bytes for its ``run``-th use; otherwise deduplication would fake the result.

    Generators that repeat on purpose (identical files), and generators that are not ours, stay as they are.
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

    Every method takes the same parameters as its generator in a configuration file. docs/payloads.md describes each.
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
        from pytest_cloudbench.workload.payload.generators import SegmentedPayload

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
        """A change to an existing file; ``number`` distinguishes the edits of one test."""
        from pytest_cloudbench.workload.payload import registry

        return registry.make_edit(name, params, f"{self.seed}/edit/{number}")

    def updates(self, name: str, number: int = 0, **params: Any) -> Iterator[tuple[float, Edit]]:
        """A stream of edits to one file, each with its due time in seconds."""
        from pytest_cloudbench.workload.payload import registry

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


def _quickxor(content: Content) -> bytes:
    from pytest_cloudbench.workload.payload.quickxor import QuickXor

    hash_ = QuickXor()
    for chunk in chunks(content):
        hash_.update(chunk)
    return hash_.digest()


DIGESTS: dict[str, Callable[[Content], bytes]] = {
    "sha256": _streamed("sha256"),
    "sha1": _streamed("sha1"),
    "md5": _streamed("md5"),
    "sha256-4mib-blocks": _sha256_of_blocks,
    "quickxorhash": _quickxor,
}
"""Digest algorithms that providers list, by the name a driver's ``Capabilities.digest`` uses."""


def digest(content: Content, algorithm: str) -> bytes:
    """The digest of ``content``. Raises UsageError for an algorithm that is not in ``DIGESTS``."""
    try:
        return DIGESTS[algorithm](content)
    except KeyError:
        raise UsageError(f"digest {algorithm!r} is not known; known are {', '.join(DIGESTS)}") from None
