"""Writing of objects: content is sealed, coded and sent in segments, and becomes current once it is durable enough.

What may live here: sending one version to the children. While a segment is sent, the next one is coded, and no third
one is in memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from pytest_cloudbench.model import CloudError, Content, ErrorKind
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
from pytest_cloudbench.raid.metadata import MissingPackage, ObjectRow
from pytest_cloudbench.raid.transfers import Package, TransferResult, shortage_error

_MOST_SEGMENTS = 2
"""The most segments of one object in memory."""


@dataclass(slots=True)
class _SegmentTransfer:
    """The transfer of one segment's packages: the children to which one was sent, that have it, or that failed."""

    number: int
    split: Split
    buffer: bytearray
    packages: dict[int, Package] = field(default_factory=dict)
    sent_to: set[int] = field(default_factory=set)
    held_by: set[int] = field(default_factory=set)
    failures: dict[int, Exception] = field(default_factory=dict)

    @property
    def holders(self) -> set[int]:
        """The children that are to receive a package."""
        return {child for child, count in enumerate(self.split.counts) if count}

    @property
    def in_transfer(self) -> set[int]:
        """The children whose package was sent and has neither arrived nor failed."""
        return self.sent_to - self.held_by - self.failures.keys()


def write_object(array: Array, path: str, content: Content, costs: Costs, copy_of: ObjectRow | None = None) -> bool:
    """Write an object. If that fails, the object is as it was before.

    Returns whether this version became current: another may have been faster. A copy replaces only its original.

    Raises CloudError.
    """
    count = max(1, -(-content.size_bytes // array.file.segment_bytes))
    version = os.urandom(VERSION_BYTES)
    with costs.timed("metadata_ns"):
        generation = array.metadata.begin_write(version, path, count, copy_of.generation if copy_of else 0)
    writer = _Writer(array, path, version, count, costs)
    try:
        return writer.commit(writer.send(content, generation), copy_of.version if copy_of else b"")
    except BaseException:
        writer.abandon()
        raise


def make_packages(
    array: Array, manifest: Manifest, number: int, shares: Mapping[int, Buffer], children: Iterable[int], count: int
) -> Iterator[tuple[int, str, Package]]:
    """Yield child, name and content of the packages of one segment of ``count``, from its shares by number."""
    split = manifest.segments[number].split
    for child in children:
        name = array.children.package_name(manifest.version, child, number, is_last=number == count - 1)
        head = [array.make_head(manifest, name)] if number == count - 1 else []
        yield child, name, Package([*head, *(shares[share] for share in split.shares_of(child))])


class _Writer:
    """The write of one version."""

    def __init__(self, array: Array, path: str, version: bytes, count: int, costs: Costs) -> None:
        self._array, self._path, self._version, self._count, self._costs = array, path, version, count, costs
        self._key, self._prefix = os.urandom(KEY_BYTES), os.urandom(PREFIX_BYTES)
        self._changed = threading.Condition()
        self._transfers: list[_SegmentTransfer] = []
        self._has_ended = False

    def send(self, content: Content, generation: int) -> Manifest:
        """Send all segments, and return the manifest when they are durable. Raises CloudError."""
        stream, segments = Stream(self._key, self._prefix), list[CodedSegment]()
        for number in range(self._count):
            if number >= _MOST_SEGMENTS:  # all before it were waited for already
                self._wait_until_durable(self._transfers[number - _MOST_SEGMENTS])
            segment, buffer = self._code_segment(stream, content, number)
            segments.append(segment)
            manifest = Manifest(
                self._version, generation, self._path, content.size_bytes, self._key, self._prefix, tuple(segments)
            )
            self._send_segment(manifest, number, buffer)
        for transfer in self._transfers:
            self._wait_until_durable(transfer)
        return manifest

    def _code_segment(self, stream: Stream, content: Content, number: int) -> tuple[CodedSegment, bytearray]:
        """Seal and code a segment. Returns the segment, and the buffer with all its shares."""
        begin = number * self._array.file.segment_bytes
        size_bytes = min(self._array.file.segment_bytes, content.size_bytes - begin)
        split = self._array.placement.split(sealed_bytes(size_bytes))
        share_size = share_bytes(sealed_bytes(size_bytes), split.data)
        buffer = self._array.children.buffers.take(share_size * (split.data + split.parity))
        data_shares, all_shares = memoryview(buffer)[: share_size * split.data], memoryview(buffer)
        self._seal_segment(stream, content, begin, size_bytes, data_shares)
        shares = split_evenly(all_shares, split.data + split.parity)
        with self._costs.timed("code_ns"):
            find_codec(split.data, split.parity).encode(data_shares, shares[split.data :])
        with self._costs.timed("hash_ns"):
            digests = tuple(sha256(share).digest() for share in shares)
        return CodedSegment(size_bytes, split, digests), buffer

    def _seal_segment(self, stream: Stream, content: Content, begin: int, size_bytes: int, into: memoryview) -> None:
        """Fill the data shares with sealed content and zeros. Raises CloudError for content of another size."""
        count, filled = chunk_count(size_bytes), 0
        is_last_segment = begin + size_bytes == content.size_bytes
        for chunk in range(count):
            offset = begin + chunk * CHUNK_BYTES
            length = min(CHUNK_BYTES, begin + size_bytes - offset)
            plain = content.read(offset, length)
            if len(plain) != length:  # such as of a file that has changed: nobody could read it back
                detail = f"the content does not have the {content.size_bytes:,} bytes that it announced"
                raise CloudError(ErrorKind.INVALID, "put", self._path, detail=detail)
            end = filled + len(plain) + TAG_BYTES
            with self._costs.timed("seal_ns"):
                stream.seal(offset // CHUNK_BYTES, is_last_segment and chunk == count - 1, plain, into[filled:end])
            filled = end
        into[filled:] = bytes(len(into) - filled)

    def _send_segment(self, manifest: Manifest, number: int, buffer: bytearray) -> None:
        """Send a segment's packages. ``manifest`` has the segments up to this one, and goes into the last package."""
        split = manifest.segments[number].split
        shares = dict(enumerate(split_evenly(buffer, split.data + split.parity)))
        transfer = _SegmentTransfer(number, split, buffer)
        self._transfers.append(transfer)
        children, waits = self._array.children, self._array.file.losses is None
        are_enough = partial(self._array.is_durable, split)
        far_behind = set() if waits else children.find_far_behind(transfer.holders, are_enough)
        # Slow children come first, and all packages are sealed before the first one is sent, which is quicker.
        holders = sorted(transfer.holders, key=lambda child: (children.is_quick(child), child))
        packages = [*make_packages(self._array, manifest, number, shares, holders, self._count)]
        for child, name, package in packages:
            self._costs.sent_bytes += package.size_bytes
            transfer.packages[child] = package
            transfer.sent_to.add(child)
            done = partial(self._note_result, transfer)
            children.put_package(child, name, package, done, waits=waits, is_skipped=child in far_behind)
            if transfer.failures and not self._can_become_durable(transfer):
                return  # otherwise the write would wait for a quick child that hangs just now

    def _can_become_durable(self, transfer: _SegmentTransfer) -> bool:
        with self._changed:
            return self._array.is_durable(transfer.split, transfer.holders - transfer.failures.keys())

    def _note_result(self, transfer: _SegmentTransfer, result: TransferResult) -> None:
        """Note that a package's transfer has ended, with or without success. Called in that transfer's thread."""
        with self._changed:
            is_late = self._has_ended
            if result.error is None:
                transfer.held_by.add(result.child)
            else:
                transfer.failures[result.child] = result.error
            if not is_late:
                self._costs.requests += result.requests or 0
                self._costs.failed += result.error is not None
            self._changed.notify_all()
        if is_late:
            package = MissingPackage(self._version, transfer.number, result.child)
            self._array.end_late_transfer(package, self._count, has_it=result.error is None)

    def _wait_until_durable(self, transfer: _SegmentTransfer) -> None:
        """Wait until a segment is durable. Raises CloudError once it cannot become so."""
        array = self._array
        with self._costs.timed("transfer_ns"), self._changed:
            while not array.is_durable(transfer.split, transfer.held_by):
                if not self._can_become_durable(transfer):
                    break
                self._changed.wait()
            else:
                self._release_buffer(transfer)
                return
            failures = dict(transfer.failures)
        required = "all" if array.file.losses is None else f"k+{array.file.losses}"
        summary = f"{len(failures)} of {len(transfer.holders)} children failed, but a write must reach {required}"
        cause = next(iter(failures.values()))
        raise shortage_error("put", self._path, summary, failures, array.children.names) from cause

    def _release_buffer(self, transfer: _SegmentTransfer) -> None:
        """Give back the memory of a durable segment. Packages still in transfer get copies of their own."""
        if transfer.packages:
            for child in transfer.in_transfer:
                transfer.packages[child].detach()
            self._array.children.buffers.give(transfer.buffer)
            transfer.packages, transfer.buffer = {}, bytearray()

    def commit(self, manifest: Manifest, instead_of: bytes) -> bool:
        """Make the version current, see ``Metadata``. Packages in transfer count as missing until they arrive."""
        array = self._array
        with self._costs.timed("metadata_ns"), self._changed:
            row = array.row_of(manifest)
            missing = [
                MissingPackage(self._version, transfer.number, child)
                for transfer in self._transfers
                for child in sorted(transfer.holders - transfer.held_by)
            ]
            array.pending.add_transfers(self._packages_in_transfer())
            ended = array.metadata.commit_write(row, missing, len(array.children), instead_of)
            self._has_ended = True
        if ended.leaves_work:
            array.pending.wake()
        return ended.is_current

    def abandon(self) -> None:
        """Give the version up. Its packages become garbage, even those that are still to arrive."""
        with self._changed:
            self._array.pending.add_transfers(self._packages_in_transfer())
            self._has_ended = True
        self._array.metadata.abandon_write(self._version, self._count, len(self._array.children))
        self._array.pending.wake()

    def _packages_in_transfer(self) -> set[MissingPackage]:
        return {
            MissingPackage(self._version, transfer.number, child)
            for transfer in self._transfers
            for child in transfer.in_transfer
        }
