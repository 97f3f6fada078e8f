"""The shared parts of an array's operations: its children, metadata, key and policies.

What may live here: the one value that writing, reading, maintenance and recovery have in common.
"""

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
from pytest_cloudbench.raid.metadata import Discarded, Lacking, Metadata, ObjectRow
from pytest_cloudbench.raid.transfers import Children, Package

LENGTH_BYTES = 4
"""Marks the sealed manifest at the start of each object's last package."""

_PAGE = 1000
_HERE = "metadata"
"""The place that manifests in the metadata are sealed for."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A version on the children that the metadata does not have, and no newer one of its object either.

    It was deleted, is unfinished, or has lost too many packages.

    Attributes:
        path: the object's.
        version: names its packages.
        segments: the number of its packages on each child.
        is_whole: whether it can be read.
    """

    path: str
    version: bytes
    segments: int
    is_whole: bool


class Pending:
    """Transfers still running after their operation ended, and a signal that background work is waiting."""

    def __init__(self) -> None:
        self._lock, self._travelling, self._deleting = threading.Lock(), set[Lacking](), set[Discarded]()
        self.signal = threading.Event()

    def travel(self, packages: Iterable[Lacking]) -> None:
        """Note that these packages are being transferred: nothing else needs to rebuild them."""
        with self._lock:
            self._travelling.update(packages)

    def ended(self, package: Lacking) -> None:
        """Note that the transfer of this package has ended, with or without success."""
        with self._lock:
            self._travelling.discard(package)

    def is_travelling(self, package: Lacking) -> bool:
        """Return whether this package is being transferred."""
        with self._lock:
            return package in self._travelling

    def claim(self, leftovers: Iterable[Discarded]) -> list[Discarded]:
        """Return those that can be deleted now, noted as being deleted: none that may still arrive, none twice."""
        with self._lock:
            arriving = {(each.version, each.child) for each in self._travelling}
            free = [
                each for each in leftovers if (each.version, each.child) not in arriving and each not in self._deleting
            ]
            self._deleting.update(free)
            return free

    def release(self, leftovers: Iterable[Discarded]) -> None:
        """Note that the deletion of these has ended, with or without success."""
        with self._lock:
            self._deleting.difference_update(leftovers)

    @property
    def count(self) -> int:
        """The number of packages being transferred, and of versions being deleted from a child."""
        with self._lock:
            return len(self._travelling) + len(self._deleting)

    def wake(self) -> None:
        """Signal that background work is waiting."""
        self.signal.set()


@dataclass(frozen=True, slots=True)
class Array:
    """An open array.

    Attributes:
        file: the contents of its file.
        children: connected.
        metadata: which version of each object is current.
        master: the key from which all others are derived.
        placement: decides which child holds how many shares.
        hedge: decides which children a read asks, and when it asks one more.
        ledger: the costs of operations.
        pending: transfers still running after their operation ended.
        unknown: what the children hold and the metadata does not have, as of the opening.
    """

    file: ArrayFile
    children: Children
    metadata: Metadata
    master: MasterKey
    placement: Placement
    hedge: Hedge
    ledger: Ledger = field(default_factory=Ledger)
    pending: Pending = field(default_factory=Pending)
    unknown: list[Unknown] = field(default_factory=list)

    def is_durable(self, split: Split, held_by: set[int]) -> bool:
        """Return whether a segment counts as written: enough of its holders have it, by the file's ``durability``."""
        if self.file.losses is None:
            return all(child in held_by for child, count in enumerate(split.counts) if count)
        return split.is_enough(held_by, self.file.losses)

    def rows(self, prefix: str = "/") -> Iterator[ObjectRow]:
        """Yield the current versions of all objects below a prefix, in order of their paths."""
        after = prefix
        while rows := self.metadata.below(prefix, after, _PAGE):
            yield from rows
            after = rows[-1].path

    def row_of(self, manifest: Manifest) -> ObjectRow:
        """Return the metadata's row of a version."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), _HERE)
        return ObjectRow(
            manifest.path, manifest.version, manifest.generation, manifest.size_bytes, len(manifest.segments), sealed
        )

    def manifest_of(self, verb: str, row: ObjectRow) -> Manifest:
        """Return a version's manifest. Raises CloudError if the stored manifest does not open."""
        try:
            return Manifest.open(self.master, row.manifest, _HERE)
        except NotGenuine as error:
            raise CloudError(ErrorKind.CORRUPT, verb, row.path, detail=f"its manifest: {error}") from error

    def name_of(self, manifest: Manifest, child: int, segment: int) -> str:
        """Return the name of a package of a version."""
        is_last = segment == len(manifest.segments) - 1
        return self.children.package_name(manifest.version, child, segment, is_last=is_last)

    def names_of(self, version: bytes, child: int, segments: int) -> list[str]:
        """Return the names of all packages of a version on one child; the one with the manifest first.

        They are deleted in this order, so that the rest of a version is never mistaken for an object.
        """
        return [
            self.children.package_name(version, child, segment, is_last=segment == segments - 1)
            for segment in reversed(range(segments))
        ]

    def head_bytes(self, manifest: Manifest, segment: int) -> int:
        """Return the size of a package's head, which comes before its shares."""
        is_last = segment == len(manifest.segments) - 1
        return LENGTH_BYTES + manifest.sealed_size if is_last else 0

    def head(self, manifest: Manifest, name: str) -> bytes:
        """Return the head of an object's last package on a child: its manifest, sealed for this package."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), name)
        return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed

    def marker(self, child: int, generation: int) -> Package:
        """Return what a child keeps to prove that something was deleted at a generation.

        Deleted packages prove nothing: without this, an old copy of the metadata would pass for the newest one.
        """
        name = self.children.marker_name(child)
        return Package([self.master.seal(str(generation).encode(), os.urandom(SALT_BYTES), name.encode())])

    def has_head(self, manifest: Manifest, name: str, package: Buffer) -> bool:
        """Return whether an object's last package on a child begins with its manifest, see ``head``."""
        end = LENGTH_BYTES + int.from_bytes(package[:LENGTH_BYTES], "big")
        try:
            return Manifest.open(self.master, package[LENGTH_BYTES:end], name) == manifest
        except NotGenuine:
            return False

    def late(self, package: Lacking, segments: int, *, has_it: bool) -> None:
        """A package's transfer ended after its operation: the child has it, or it failed and has to be rebuilt."""
        try:
            with suppress(CloudError):  # the note stays, or the next process that opens the array finds the package
                self.metadata.arrived(package, segments, has_it=has_it)
        finally:
            self.pending.ended(package)  # only now, or it would be neither stored nor in transfer
            self.pending.wake()
