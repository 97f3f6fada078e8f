"""An open array: the children, metadata, key and policies that all of its operations share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.raid.coding.manifest import Manifest
from pytest_cloudbench.raid.coding.policies import Hedge, Placement, Split
from pytest_cloudbench.raid.coding.reed_solomon import Buffer
from pytest_cloudbench.raid.coding.sealing import SALT_BYTES, MasterKey, NotGenuine
from pytest_cloudbench.raid.config import ArrayFile
from pytest_cloudbench.raid.costs import Ledger
from pytest_cloudbench.raid.metadata import GarbagePackages, Metadata, MissingPackage, ObjectRow
from pytest_cloudbench.raid.transfers import Children, Package

LENGTH_BYTES = 4
"""The size of the length that precedes the sealed manifest in each object's last package."""

_PAGE = 1000
_PLACE = "metadata"
"""The place for which manifests in the metadata are sealed, see ``Manifest.seal``."""


@dataclass(frozen=True, slots=True)
class UnknownVersion:
    """A version on the children, where the metadata has neither this version nor a newer one of its object.

    It was deleted, is unfinished, or has lost too many packages.

    Attributes:
        path: the object's.
        version: the random bytes from which the names of its packages are derived.
        segments: the number of its packages on each child.
        may_be_readable: whether it could be read if all children that did not answer had their packages.
    """

    path: str
    version: bytes
    segments: int
    may_be_readable: bool


class Pending:
    """Transfers still running after their operation ended, and a signal that background work is waiting."""

    def __init__(self) -> None:
        self._lock, self._in_transfer, self._deleting = threading.Lock(), set[MissingPackage](), set[GarbagePackages]()
        self.signal = threading.Event()

    def add_transfers(self, packages: Iterable[MissingPackage]) -> None:
        """Note that these packages are being transferred, so that upkeep does not rebuild them."""
        with self._lock:
            self._in_transfer.update(packages)

    def end_transfer(self, package: MissingPackage) -> None:
        """Note that the transfer of this package has ended, with or without success."""
        with self._lock:
            self._in_transfer.discard(package)

    def is_in_transfer(self, package: MissingPackage) -> bool:
        """Return whether this package is being transferred."""
        with self._lock:
            return package in self._in_transfer

    def claim_leftovers(self, leftovers: Iterable[GarbagePackages]) -> list[GarbagePackages]:
        """Return the leftovers that can be deleted now, and note that they are being deleted.

        Skips leftovers to which a package may still be added, and those that are being deleted already.
        """
        with self._lock:
            arriving = {(package.version, package.child) for package in self._in_transfer}
            claimed = [
                leftover
                for leftover in leftovers
                if (leftover.version, leftover.child) not in arriving and leftover not in self._deleting
            ]
            self._deleting.update(claimed)
            return claimed

    def release_leftovers(self, leftovers: Iterable[GarbagePackages]) -> None:
        """Note that the deletion of these leftovers has ended, with or without success."""
        with self._lock:
            self._deleting.difference_update(leftovers)

    @property
    def count(self) -> int:
        """The number of packages being transferred, and of versions being deleted from a child."""
        with self._lock:
            return len(self._in_transfer) + len(self._deleting)

    def wake(self) -> None:
        """Tell upkeep that background work is waiting."""
        self.signal.set()


@dataclass(frozen=True, slots=True)
class Array:
    """An open array.

    Attributes:
        file: the contents of its file.
        children: the connected children.
        metadata: which version of each object is current.
        master: the key from which all others are derived.
        placement: decides which child holds how many shares.
        hedge: decides which children a read asks, and when it asks one more.
        ledger: the costs of operations.
        pending: transfers still running after their operation ended.
        unknown: versions on the children that the metadata did not have when the array was opened.
        silent: the errors of children that did not answer when new metadata was made from the others.
    """

    file: ArrayFile
    children: Children
    metadata: Metadata
    master: MasterKey
    placement: Placement
    hedge: Hedge
    ledger: Ledger = field(default_factory=Ledger)
    pending: Pending = field(default_factory=Pending)
    unknown: list[UnknownVersion] = field(default_factory=list)
    silent: dict[int, CloudError] = field(default_factory=dict)

    def is_durable(self, split: Split, held_by: set[int]) -> bool:
        """Return whether a segment counts as written: enough of its holders have it, by the file's ``durability``."""
        if self.file.losses is None:
            return all(child in held_by for child, count in enumerate(split.counts) if count)
        return split.is_enough(held_by, self.file.losses)

    def object_rows(self, prefix: str = "/") -> Iterator[ObjectRow]:
        """Yield the current versions of all objects below a prefix, in order of their paths."""
        after = prefix
        while rows := self.metadata.list_below(prefix, after, _PAGE):
            yield from rows
            after = rows[-1].path

    def row_of(self, manifest: Manifest) -> ObjectRow:
        """Return the metadata's row of a version."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), _PLACE)
        return ObjectRow(
            manifest.path, manifest.version, manifest.generation, manifest.size_bytes, len(manifest.segments), sealed
        )

    def manifest_of(self, verb: str, row: ObjectRow) -> Manifest:
        """Return a version's manifest. Raises CloudError if the stored manifest does not open."""
        try:
            return Manifest.open(self.master, row.manifest, _PLACE)
        except NotGenuine as error:
            raise CloudError(ErrorKind.CORRUPT, verb, row.path, detail=f"its manifest: {error}") from error

    def package_name(self, manifest: Manifest, child: int, segment: int) -> str:
        """Return the name of a package of a version."""
        is_last = segment == len(manifest.segments) - 1
        return self.children.package_name(manifest.version, child, segment, is_last=is_last)

    def package_names(self, version: bytes, child: int, segments: int) -> list[str]:
        """Return the names of all packages of a version on one child, beginning with the one that has the manifest.

        They are deleted in this order, so that an incomplete version is never mistaken for an object.
        """
        return [
            self.children.package_name(version, child, segment, is_last=segment == segments - 1)
            for segment in reversed(range(segments))
        ]

    def head_size_bytes(self, manifest: Manifest, segment: int) -> int:
        """Return the size of a package's head, the bytes before its shares: 0 except in the last segment's package."""
        is_last = segment == len(manifest.segments) - 1
        return LENGTH_BYTES + manifest.sealed_size if is_last else 0

    def package_size_bytes(self, manifest: Manifest, segment: int, child: int) -> int:
        """Return the size of a child's package, its head included."""
        coded = manifest.segments[segment]
        return self.head_size_bytes(manifest, segment) + coded.split.counts[child] * coded.share_bytes

    def make_head(self, manifest: Manifest, name: str) -> bytes:
        """Return the head of an object's last package on a child: its manifest, sealed for this package."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), name)
        return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed

    def make_marker(self, child: int, generation: int) -> Package:
        """Return the marker that a child keeps to prove that something was deleted at a generation.

        Deleted packages leave no trace. Without the marker, an old copy of the metadata would pass for the newest one.
        """
        name = self.children.marker_name(child)
        return Package([self.master.seal(str(generation).encode(), os.urandom(SALT_BYTES), name.encode())])

    def has_head(self, manifest: Manifest, name: str, package: Buffer) -> bool:
        """Return whether an object's last package on a child begins with its manifest, see ``make_head``."""
        end = LENGTH_BYTES + int.from_bytes(package[:LENGTH_BYTES], "big")
        try:
            return Manifest.open(self.master, package[LENGTH_BYTES:end], name) == manifest
        except NotGenuine:
            return False

    def end_late_transfer(self, package: MissingPackage, segments: int, *, has_it: bool) -> None:
        """End a transfer that outlasted its operation: the child has the package, or it has to be rebuilt."""
        try:
            # If this fails, the note stays, and the next process that opens the array rebuilds or finds the package.
            with suppress(CloudError):
                self.metadata.note_transfer_end(package, segments, has_it=has_it)
        finally:
            # Last, because a package that is neither noted as stored nor in transfer would be rebuilt.
            self.pending.end_transfer(package)
            self.pending.wake()
