"""Recovery: rebuilding the metadata from the children's packages, with only the key.

What may live here: listing children, opening their manifests, and deciding which version of each object is the newest
that can be read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from pytest_cloudbench.coding.manifest import Manifest
from pytest_cloudbench.coding.sealing import NotGenuine
from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.systems.raid.array import LENGTH_BYTES, Array
from pytest_cloudbench.systems.raid.metadata import Lacking, Metadata, ObjectRow
from pytest_cloudbench.systems.raid.transfers import Ended, shortage

__all__ = ["FoundVersion", "Recovery", "listed", "recover", "recovered_apart"]

_MOST_MANIFEST_BYTES = 1 << 24
_FIRST_BYTES = 4096
"""How much of a package is read to find its manifest: enough for most objects."""


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """One version, as its packages were found.

    Attributes:
        manifest: its description.
        lacking: packages that are missing on children that answered.
        is_whole: whether it can be read.
    """

    manifest: Manifest
    lacking: tuple[Lacking, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        objects: how many can be read.
        older: versions replaced by a newer one.
        unreadable: newest versions with too few packages left, or never written completely.
        strange: packages that belong to none of the versions: unfinished, of another key, or damaged.
        silent: children that did not answer, and why.
    """

    objects: int
    older: int
    unreadable: int
    strange: int
    silent: Mapping[int, CloudError]


def recover(array: Array, verb: str, path: str) -> Recovery:
    """Take in every object that children hold.

    An acknowledged version can be read as long as no more children are silent than the file's durability tolerates.
    One that cannot be read belongs to an interrupted write, and the version before it counts.

    Raises CloudError, for the operation that needs it, if fewer than k children answer, if nothing opens with this key,
    or if more are silent and might hold a newer version of an object.
    """
    names, silent = listed(array)
    if len(names) < array.file.k:
        told = f"{len(names)} of {len(array.children)} children answer, and {array.file.k} are needed to begin"
        raise shortage(verb, path, told, silent, array.children.names) from next(iter(silent.values()))
    versions, strange = _versions(array, names)
    if not versions and any(name.startswith("m") for found in names.values() for name in found):
        detail = "the children's packages were not sealed with this key"
        raise CloudError(ErrorKind.AUTH, verb, path, detail=detail)
    rows, older, unreadable = _newest(array, versions)
    if unreadable and len(silent) > array.file.tolerated:
        told = (
            f"{unreadable} objects may be newer on children that do not answer; if one of them is gone for good, write "
            "its replacement into the array's file, and run: cloudbench raid replace FILE CHILD"
        )
        raise shortage(verb, path, told, silent, array.children.names) from next(iter(silent.values()))
    highest = max((found.manifest.generation for found in versions), default=0)
    array.metadata.recovered(rows, len(array.children), highest)
    return Recovery(len(rows) - older, older, unreadable, strange, silent)


@contextmanager
def recovered_apart(array: Array, owner: str) -> Iterator[Array]:
    """Yields the array with separate metadata, built only from the children's packages. Raises CloudError."""
    with tempfile.TemporaryDirectory(prefix="cloudbench-recovered-") as folder:
        metadata = Metadata(Path(folder) / "array.sqlite", owner)
        try:
            apart = replace(array, metadata=metadata)
            recover(apart, "recover", "/")
            yield apart
        finally:
            metadata.close()


def listed(array: Array) -> tuple[dict[int, Mapping[str, int]], dict[int, CloudError]]:
    """Returns the packages of children that answer, name to size, and the errors of the others.

    Passes on any error that is not a CloudError.
    """
    answers: SimpleQueue[tuple[Ended, Mapping[str, int]]] = SimpleQueue()
    for child in range(len(array.children)):
        array.children.list(child, lambda ended, found: answers.put((ended, found)))
    names: dict[int, Mapping[str, int]] = {}
    silent: dict[int, CloudError] = {}
    for _ in range(len(array.children)):
        ended, found = answers.get()
        if ended.error is None:
            names[ended.child] = found
        elif isinstance(ended.error, CloudError):
            silent[ended.child] = ended.error
        else:
            raise ended.error
    return dict(sorted(names.items())), dict(sorted(silent.items()))


def _versions(array: Array, names: Mapping[int, Mapping[str, int]]) -> tuple[list[FoundVersion], int]:
    """Returns all versions with a manifest, and how many packages belong to none of them."""
    left = {child: dict(found) for child, found in names.items()}
    versions: list[FoundVersion] = []
    for child, found in left.items():
        for name in [each for each in found if each.startswith("m")]:
            if name not in found:
                continue  # covered by another child's copy of the manifest
            manifest = _manifest_at(array, child, name)
            if manifest is not None:
                _check_count(array, manifest)
                versions.append(_explained(array, manifest, left))
    return versions, sum(map(len, left.values()))


def _check_count(array: Array, manifest: Manifest) -> None:
    """Raise CloudError if a version is spread over more children than the array's file names."""
    count = max(len(segment.split.counts) for segment in manifest.segments)
    if count > len(array.children):
        detail = f"the children hold objects of an array of {count}, and its file names {len(array.children)} of them"
        raise CloudError(ErrorKind.INVALID, "recover", "/", detail=detail)


def _manifest_at(array: Array, child: int, name: str) -> Manifest | None:
    """Returns the manifest in a package; None if it cannot be read, or belongs to another package."""
    answers: SimpleQueue[Ended] = SimpleQueue()
    array.children.get(child, name, _FIRST_BYTES, answers.put)
    data = answers.get().data
    size_bytes = int.from_bytes(data[:LENGTH_BYTES], "big")
    if not 0 < size_bytes <= _MOST_MANIFEST_BYTES:
        return None
    if len(data) < LENGTH_BYTES + size_bytes:
        array.children.get(child, name, LENGTH_BYTES + size_bytes, answers.put)
        data = answers.get().data
    try:
        return Manifest.open(array.master, data[LENGTH_BYTES : LENGTH_BYTES + size_bytes], name)
    except NotGenuine:
        return None


def _explained(array: Array, manifest: Manifest, left: Mapping[int, dict[str, int]]) -> FoundVersion:
    """Returns a version as found, and removes its packages from ``left``."""
    lacking, is_whole = list[Lacking](), True
    for number, segment in enumerate(manifest.segments):
        holders = {child for child, count in enumerate(segment.split.counts) if count}
        held_by = set()
        for child in holders & left.keys():
            size_bytes = left[child].pop(array.name_of(manifest, child, number), -1)
            if size_bytes >= segment.split.counts[child] * segment.share_bytes:
                held_by.add(child)
            else:
                lacking.append(Lacking(manifest.version, number, child))
        is_whole = is_whole and segment.split.is_enough(held_by)
    return FoundVersion(manifest, tuple(lacking), is_whole)


def _newest(
    array: Array, versions: Sequence[FoundVersion]
) -> tuple[list[tuple[ObjectRow, Sequence[Lacking]]], int, int]:
    """Returns the whole versions, oldest first; how many of those are not the newest; how many newest are not whole."""
    rows, newest, unreadable = list[tuple[ObjectRow, Sequence[Lacking]]](), dict[str, FoundVersion](), set[str]()
    # Copies have equal generations: of those, a whole one comes last.
    for found in sorted(versions, key=lambda each: (each.manifest.generation, each.is_whole)):
        newest[found.manifest.path] = found
        if found.is_whole:
            rows.append((array.row_of(found.manifest), found.lacking))
    unreadable = {path for path, found in newest.items() if not found.is_whole}
    paths = {row.path for row, _ in rows}
    return rows, len(rows) - len(paths), len(unreadable)
