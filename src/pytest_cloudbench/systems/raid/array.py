"""What an array's operations share: its children, its metadata, its key, and how it decides.

What may live here: the one value that writing, reading, keeping and recovering have in common.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_cloudbench.coding.manifest import Manifest
from pytest_cloudbench.coding.policies import Hedge, Placement, Split
from pytest_cloudbench.coding.reed_solomon import Buffer
from pytest_cloudbench.coding.sealing import SALT_BYTES, MasterKey, NotGenuine
from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.systems.raid.config import ArrayFile
from pytest_cloudbench.systems.raid.costs import Ledger
from pytest_cloudbench.systems.raid.metadata import Lacking, Metadata, ObjectRow
from pytest_cloudbench.systems.raid.transfers import Children

__all__ = ["LENGTH_BYTES", "Array", "Pending"]

LENGTH_BYTES = 4
"""In front of the sealed manifest in each object's last package."""

_HERE = "metadata"
"""The place of the manifests that are kept in the metadata."""


class Pending:
    """What is on its way after its operation has ended, and a signal that there is something to see to."""

    def __init__(self) -> None:
        self._lock, self._travelling = threading.Lock(), set[Lacking]()
        self.signal = threading.Event()

    def travel(self, packages: Iterable[Lacking]) -> None:
        """These are on their way: nobody else needs to make them."""
        with self._lock:
            self._travelling.update(packages)

    def ended(self, package: Lacking) -> None:
        """This one has arrived, or will not."""
        with self._lock:
            self._travelling.discard(package)

    def is_travelling(self, package: Lacking) -> bool:
        """Returns whether this one is on its way."""
        with self._lock:
            return package in self._travelling

    @property
    def count(self) -> int:
        """How many are on their way."""
        with self._lock:
            return len(self._travelling)

    def may_arrive(self, version: bytes, child: int) -> bool:
        """Returns whether any package of a version is on its way to a child."""
        with self._lock:
            return any(each.version == version and each.child == child for each in self._travelling)

    def wake(self) -> None:
        """There is something to see to."""
        self.signal.set()


@dataclass(frozen=True, slots=True)
class Array:
    """An array that is open.

    Attributes:
        file: what its file says.
        children: connected.
        metadata: which version of each object is current.
        master: the key from which all others come.
        placement: decides who holds how many shares.
        hedge: decides whom a read asks, and when it asks one more.
        ledger: what operations cost.
        pending: what is on its way after its operation has ended.
    """

    file: ArrayFile
    children: Children
    metadata: Metadata
    master: MasterKey
    placement: Placement
    hedge: Hedge
    ledger: Ledger = field(default_factory=Ledger)
    pending: Pending = field(default_factory=Pending)

    def is_durable(self, split: Split, held_by: set[int]) -> bool:
        """Returns whether a segment is written: as many of its holders have it as the file says."""
        if self.file.losses is None:
            return all(child in held_by for child, count in enumerate(split.counts) if count)
        return split.is_enough(held_by, self.file.losses)

    def row_of(self, manifest: Manifest) -> ObjectRow:
        """Returns what the metadata keeps of a version."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), _HERE)
        return ObjectRow(
            manifest.path, manifest.version, manifest.generation, manifest.size_bytes, len(manifest.segments), sealed
        )

    def manifest_of(self, verb: str, row: ObjectRow) -> Manifest:
        """Returns a version's manifest. Raises CloudError if the metadata was changed by another."""
        try:
            return Manifest.open(self.master, row.manifest, _HERE)
        except NotGenuine as error:
            raise CloudError(ErrorKind.CORRUPT, verb, row.path, detail=f"its manifest: {error}") from error

    def name_of(self, manifest: Manifest, child: int, segment: int) -> str:
        """Returns what a package of a version is called."""
        is_last = segment == len(manifest.segments) - 1
        return self.children.package_name(manifest.version, child, segment, is_last=is_last)

    def names_of(self, version: bytes, child: int, segments: int) -> list[str]:
        """Returns what all packages of a version on one child are called; the one with the manifest first.

        In this order they are deleted, so that what is left of a version is never taken for an object.
        """
        return [
            self.children.package_name(version, child, segment, is_last=segment == segments - 1)
            for segment in reversed(range(segments))
        ]

    def head_bytes(self, manifest: Manifest, segment: int) -> int:
        """Returns the size of what a package begins with before its shares."""
        is_last = segment == len(manifest.segments) - 1
        return LENGTH_BYTES + manifest.sealed_size if is_last else 0

    def head(self, manifest: Manifest, name: str) -> bytes:
        """Returns what an object's last package on a child begins with: its manifest, sealed for this package."""
        sealed = manifest.seal(self.master, os.urandom(SALT_BYTES), name)
        return len(sealed).to_bytes(LENGTH_BYTES, "big") + sealed

    def has_head(self, manifest: Manifest, name: str, package: Buffer) -> bool:
        """Returns whether an object's last package on a child begins with its manifest, see ``head``."""
        end = LENGTH_BYTES + int.from_bytes(package[:LENGTH_BYTES], "big")
        try:
            return Manifest.open(self.master, package[LENGTH_BYTES:end], name) == manifest
        except NotGenuine:
            return False

    def late(self, package: Lacking, segments: int, *, has_it: bool) -> None:
        """A package ended its way after its operation: the child has it, or failed and it is to be made again."""
        try:
            self.metadata.arrived(package, segments, has_it=has_it)
        finally:
            self.pending.ended(package)  # only now, or somebody would find it neither there nor on its way
            self.pending.wake()
