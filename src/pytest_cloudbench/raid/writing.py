"""Writing: content is sealed, coded and sent, segment by segment; it becomes current once it is as durable as required.

What may live here: sending one version to the children. While a segment travels, the next one is coded, and no third
one is in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from pytest_cloudbench.model import Content
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.coding.manifest import VERSION_BYTES, CodedSegment, Manifest
from pytest_cloudbench.raid.coding.policies import Split
from pytest_cloudbench.raid.coding.reed_solomon import Buffer, find_codec, share_bytes, split_evenly
from pytest_cloudbench.raid.coding.sealing import (
    CHUNK_BYTES,
    KEY_BYTES,
    PREFIX_BYTES,
    TAG_BYTES,
    Stream,
    chunk_count,
    sealed_bytes,
)
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.metadata import Lacking, ObjectRow
from pytest_cloudbench.raid.transfers import Ended, Package, shortage

_AT_ONCE = 2
"""The number of segments of one object in memory."""


@dataclass(slots=True)
class _Flight:
    """The packages of one segment: which children were sent one, have it, or failed."""

    number: int
    split: Split
    buffer: bytearray
    packages: dict[int, Package] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    held_by: set[int] = field(default_factory=set)
    failures: dict[int, Exception] = field(default_factory=dict)

    @property
    def holders(self) -> set[int]:
        """The children that are to receive a package."""
        return {child for child, count in enumerate(self.split.counts) if count}

    @property
    def travelling(self) -> set[int]:
        """The children whose package was sent and has neither arrived nor failed."""
        return self.sent - self.held_by - self.failures.keys()


def write(array: Array, path: str, content: Content, costs: Costs, copy_of: ObjectRow | None = None) -> bool:
    """Write an object. If that fails, the object is as it was before.

    Returns whether this version became current: another may have been faster. A copy replaces only its original.

    Raises CloudError.
    """
    count = max(1, -(-content.size_bytes // array.file.segment_bytes))
    version = os.urandom(VERSION_BYTES)
    with costs.timed("metadata_ns"):
        generation = array.metadata.begin(version, path, count, copy_of.generation if copy_of else 0)
    writer = _Writer(array, path, version, count, costs)
    try:
        return writer.commit(writer.send(content, generation), copy_of.version if copy_of else b"")
    except BaseException:
        writer.abandon()
        raise


def packages_of(
    array: Array, manifest: Manifest, number: int, shares: Mapping[int, Buffer], children: Iterable[int], count: int
) -> Iterator[tuple[int, str, Package]]:
    """Yield child, name and content of the packages of one segment of ``count``, from its shares by number."""
    split = manifest.segments[number].split
    for child in children:
        name = array.children.package_name(manifest.version, child, number, is_last=number == count - 1)
        head = [array.head(manifest, name)] if number == count - 1 else []
        yield child, name, Package([*head, *(shares[share] for share in split.shares_of(child))])


class _Writer:
    """One version being written."""

    def __init__(self, array: Array, path: str, version: bytes, count: int, costs: Costs) -> None:
        self._array, self._path, self._version, self._count, self._costs = array, path, version, count, costs
        self._key, self._prefix = os.urandom(KEY_BYTES), os.urandom(PREFIX_BYTES)
        self._changed = threading.Condition()
        self._flights: list[_Flight] = []
        self._is_over = False

    def send(self, content: Content, generation: int) -> Manifest:
        """Return the manifest when all segments are durable. Raises CloudError."""
        stream, segments = Stream(self._key, self._prefix), list[CodedSegment]()
        for number in range(self._count):
            for flight in self._flights[: max(0, number - _AT_ONCE + 1)]:
                self._wait(flight)
            segment, buffer = self._coded(stream, content, number)
            segments.append(segment)
            manifest = Manifest(
                self._version, generation, self._path, content.size_bytes, self._key, self._prefix, tuple(segments)
            )
            self._launch(manifest, number, buffer)
        for flight in self._flights:
            self._wait(flight)
        return manifest

    def _coded(self, stream: Stream, content: Content, number: int) -> tuple[CodedSegment, bytearray]:
        """Return a segment, and the buffer with all its shares."""
        begin = number * self._array.file.segment_bytes
        size_bytes = min(self._array.file.segment_bytes, content.size_bytes - begin)
        split = self._array.placement.split(sealed_bytes(size_bytes))
        share = share_bytes(sealed_bytes(size_bytes), split.data)
        buffer = self._array.children.buffers.take(share * (split.data + split.parity))
        whole, view = memoryview(buffer)[: share * split.data], memoryview(buffer)
        self._seal(stream, content, begin, size_bytes, whole)
        shares = split_evenly(view, split.data + split.parity)
        with self._costs.timed("code_ns"):
            find_codec(split.data, split.parity).encode(whole, shares[split.data :])
        with self._costs.timed("hash_ns"):
            digests = tuple(sha256(each).digest() for each in shares)
        return CodedSegment(size_bytes, split, digests), buffer

    def _seal(self, stream: Stream, content: Content, begin: int, size_bytes: int, into: memoryview) -> None:
        """Fill the data shares with sealed content, padded with zeros."""
        count, filled = chunk_count(size_bytes), 0
        is_end = begin + size_bytes == content.size_bytes
        for chunk in range(count):
            at = begin + chunk * CHUNK_BYTES
            plain = content.read(at, min(CHUNK_BYTES, begin + size_bytes - at))
            end = filled + len(plain) + TAG_BYTES
            with self._costs.timed("seal_ns"):
                stream.seal(at // CHUNK_BYTES, is_end and chunk == count - 1, plain, into[filled:end])
            filled = end
        into[filled:] = bytes(len(into) - filled)

    def _launch(self, manifest: Manifest, number: int, buffer: bytearray) -> None:
        """Send a segment's packages. ``manifest`` has the segments so far; the last package includes it."""
        split = manifest.segments[number].split
        shares = dict(enumerate(split_evenly(buffer, split.data + split.parity)))
        flight = _Flight(number, split, buffer)
        self._flights.append(flight)
        waits = self._array.file.losses is None
        packages = packages_of(self._array, manifest, number, shares, sorted(flight.holders), self._count)
        for child, name, package in packages:
            self._costs.sent_bytes += package.size_bytes
            flight.packages[child] = package
            self._array.children.put(child, name, package, partial(self._arrived, flight), waits=waits)
            flight.sent.add(child)

    def _arrived(self, flight: _Flight, result: Ended) -> None:
        """A package's transfer has ended, with or without success. Called in that transfer's thread."""
        with self._changed:
            is_late = self._is_over
            if result.error is None:
                flight.held_by.add(result.child)
            else:
                flight.failures[result.child] = result.error
            if not is_late:
                self._costs.requests += result.requests or 0
                self._costs.failed += result.error is not None
            self._changed.notify_all()
        if is_late:
            package = Lacking(self._version, flight.number, result.child)
            self._array.late(package, self._count, has_it=result.error is None)

    def _wait(self, flight: _Flight) -> None:
        """Wait until a segment is durable. Raises CloudError once it cannot become so."""
        array = self._array
        with self._costs.timed("transfer_ns"), self._changed:
            while not array.is_durable(flight.split, flight.held_by):
                if not array.is_durable(flight.split, flight.holders - flight.failures.keys()):
                    break
                self._changed.wait()
            else:
                self._free(flight)
                return
            failures = dict(flight.failures)
        needed = "all" if array.file.losses is None else f"k+{array.file.losses}"
        told = f"{len(failures)} of {len(flight.holders)} children failed, but a write must reach {needed}"
        cause = next(iter(failures.values()))
        raise shortage("put", self._path, told, failures, array.children.names) from cause

    def _free(self, flight: _Flight) -> None:
        """Reuse the memory of a durable segment; packages still in transfer keep their own copies."""
        if flight.packages:
            for child in flight.travelling:
                flight.packages[child].detach()
            self._array.children.buffers.give(flight.buffer)
            flight.packages, flight.buffer = {}, bytearray()

    def commit(self, manifest: Manifest, instead_of: bytes) -> bool:
        """Make the version current, see ``Metadata``. Packages in transfer are noted as missing until they arrive."""
        array = self._array
        with self._costs.timed("metadata_ns"), self._changed:
            row = array.row_of(manifest)
            missing = [
                Lacking(self._version, flight.number, child)
                for flight in self._flights
                for child in sorted(flight.holders - flight.held_by)
            ]
            array.pending.travel(self._travelling())
            is_current = array.metadata.commit(row, missing, len(array.children), instead_of)
            self._is_over = True
        array.pending.wake()
        return is_current

    def abandon(self) -> None:
        """Give this version up: its packages, whether they have arrived or will, are garbage."""
        with self._changed:
            self._array.pending.travel(self._travelling())
            self._is_over = True
        self._array.metadata.abandon(self._version, self._count, len(self._array.children))
        self._array.pending.wake()

    def _travelling(self) -> set[Lacking]:
        return {Lacking(self._version, flight.number, child) for flight in self._flights for child in flight.travelling}
