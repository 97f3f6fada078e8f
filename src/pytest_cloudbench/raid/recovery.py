"""Agreement between an array's metadata and its children, which know more if the metadata is lost, or an old copy.

What may live here: listing children, opening the manifests of versions that the metadata does not know, and deciding
which version of each object is the newest that can be read.

Every version's generation is above those of all versions that began earlier, and the metadata notes the generation
before the first package is sent. So a version with a generation above that note proves that the metadata is older than
the children. One below it that the metadata does not know either was discarded once: it is never taken in by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from pytest_cloudbench.model import CloudError, ConfigError, ErrorKind
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.array import LENGTH_BYTES, Array, Unknown
from pytest_cloudbench.raid.coding.manifest import Manifest
from pytest_cloudbench.raid.coding.reed_solomon import Buffer
from pytest_cloudbench.raid.coding.sealing import NotGenuine
from pytest_cloudbench.raid.metadata import Lacking, ObjectRow, Snapshot
from pytest_cloudbench.raid.transfers import Ended, shortage
from pytest_cloudbench.results.owner import is_alive
from pytest_cloudbench.support import clock

_MOST_MANIFEST_BYTES = 1 << 24
_FIRST_BYTES = 4096
"""How much of a package is read to find its manifest: enough for most objects."""
_UNVERIFIED = "unverified"
"""The setting with the generation up to which the metadata was last compared with enough children."""
_MOST_ATTEMPTS = 8


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
    """What came of comparing the metadata with the children.

    Attributes:
        objects: how many were taken in.
        older: versions replaced by a newer one.
        unreadable: newest versions with too few packages left, or never written completely.
        strange: packages that belong to none of the versions: unfinished, of another key, or damaged.
        silent: children that did not answer, and why.
        unknown: versions that were not taken in, though the metadata has no newer ones of these objects.
        is_old: whether the metadata was older than the children.
        dropped: objects of an old copy of the metadata that were deleted since: no child has anything of them.
    """

    objects: int
    older: int
    unreadable: int
    strange: int
    silent: Mapping[int, CloudError]
    unknown: Sequence[Unknown] = ()
    is_old: bool = False
    dropped: int = 0


@dataclass(slots=True)
class _Comparison:
    """The metadata and what the children list, compared.

    Attributes:
        known: what the metadata knew after the children were listed.
        names: packages of each child that answers.
        silent: the errors of the others.
        is_new: whether nothing was known: then everything is taken in.
        is_still: whether the metadata did not change while the children were listed.
        ended: processes that have ended, with unfinished work.
        unfinished: versions that these had begun, and this process, too, if it does not write them now.
        held: known versions of which some child has a package.
        rows: versions to take in, oldest first, with what children lack of them.
        versions: all that children hold and the metadata does not know as written.
        deleted: the highest generation at which a process deleted anything.
        compared: up to this generation, the metadata was compared with the children before.
        recovery: the result, if it is written.
    """

    known: Snapshot
    names: Mapping[int, Mapping[str, int]]
    silent: dict[int, CloudError]
    is_new: bool
    is_still: bool
    ended: frozenset[str]
    unfinished: set[bytes]
    held: set[bytes]
    rows: list[tuple[ObjectRow, Sequence[Lacking]]]
    versions: Sequence[FoundVersion]
    deleted: int
    compared: int
    recovery: Recovery

    @property
    def highest(self) -> int:
        """The highest generation of these versions, and of the last deletions."""
        return max([self.deleted, *(each.manifest.generation for each in self.versions)])

    @property
    def is_old(self) -> bool:
        """Whether the metadata is an old copy."""
        return not self.is_new and self.highest > self.compared


class _Overtaken(Exception):
    """Another process changed the metadata meanwhile."""


def recover(array: Array, verb: str, path: str) -> Recovery:
    """Take in every object that children hold and the metadata does not know, even those that it once knew.

    Raises CloudError, see ``agree``.
    """
    return _agreed(array, verb, path, everything=True)


def agree(array: Array, verb: str, path: str) -> Recovery:
    """Compare the metadata with the children, and take in what is newer there; all of it if the metadata is new.

    Also takes over what ended processes left behind, and notes the array's children: later transactions of a process
    that has other ones fail.

    An acknowledged version can be read as long as no more children are silent than the file's durability tolerates.
    One that cannot be read belongs to an interrupted write, and the version before it counts.

    Raises CloudError, for the operation that needs it, if nothing opens with this key, if more children are silent and
    might hold a newer version of an object, or, with new metadata, if fewer than k children answer.
    """
    return _agreed(array, verb, path, everything=False)


def _agreed(array: Array, verb: str, path: str, *, everything: bool) -> Recovery:
    for _ in range(_MOST_ATTEMPTS):
        found = _compared(array, verb, path, everything=everything)
        try:
            dropped = _settle(array, found)
        except _Overtaken:
            continue
        return replace(found.recovery, unknown=_unknown(array, found.versions), is_old=found.is_old, dropped=dropped)
    detail = (
        f"{len(found.rows)} objects of the children are to be taken in, but others write all the time: end them first"
    )
    raise CloudError(ErrorKind.CONFLICT, verb, path, detail=detail)


def _compared(array: Array, verb: str, path: str, *, everything: bool) -> _Comparison:
    metadata, count = array.metadata, len(array.children)
    is_new, is_copy = not metadata.is_prepared, metadata.is_a_copy
    changes = metadata.number("changes")
    names, silent = listed(array, None if is_new else array.file.patience_s)
    if is_new and len(names) < array.file.k:
        reason = f"{len(names)} of {count} children answer, and {array.file.k} are needed to begin"
        raise shortage(verb, path, reason, silent, array.children.names) from next(iter(silent.values()))
    left = {child: dict(found) for child, found in names.items()}
    deleted = max((_generation_at(array, child, found) for child, found in left.items()), default=0)
    known = metadata.snapshot(count)  # after all that was read: what is not known now, was not known when it was read
    ended = frozenset(owner for owner in metadata.owners() if is_copy or is_alive(owner) is False)
    unfinished = {
        each.version for each in known.begun
        if each.owner in ended or (each.owner == metadata.owner and not each.is_ours)
    }  # fmt: skip
    held = _explain(array, known, unfinished, left)
    versions, strange = versions_in(array, left, silent)
    if is_new and not versions and any(name.startswith("m") for found in names.values() for name in found):
        raise CloudError(ErrorKind.AUTH, verb, path, detail="the children's packages were not sealed with this key")
    compared = metadata.number(_UNVERIFIED) if metadata.setting(_UNVERIFIED) is not None else known.generation
    newer = [
        each for each in versions
        if everything or is_new or each.manifest.generation > compared or each.manifest.version in unfinished
    ]  # fmt: skip
    rows, unreadable = _newest(array, newer, unfinished)
    if unreadable and len(silent) > array.file.tolerated:
        reason = (
            f"{unreadable} objects may be newer on children that do not answer; if one of them is gone for good, write "
            "its replacement into the array's file, and run: cloudbench raid replace FILE CHILD"
        )
        raise shortage(verb, path, reason, silent, array.children.names) from next(iter(silent.values()))
    taken_in = len({row.path for row, _ in rows})
    return _Comparison(
        known, names, silent, is_new, known.changes == changes, ended, unfinished, held, rows, versions, deleted,
        compared,
        Recovery(taken_in, len(rows) - taken_in, unreadable, strange, silent),
    )  # fmt: skip


def _explain(array: Array, known: Snapshot, unfinished: set[bytes], left: Mapping[int, dict[str, int]]) -> set[bytes]:
    """Remove the packages of known versions from ``left``, except unfinished ones.

    Returns the current versions of which some child has a package.
    """
    held = set[bytes]()
    for version, segments in known.objects:
        for child, names in left.items():
            for name in array.names_of(version, child, segments):
                if names.pop(name, None) is not None:
                    held.add(version)
    others = [(each.version, each.segments, left) for each in known.begun if each.version not in unfinished]
    others += [(each.version, each.segments, {each.child: left.get(each.child, {})}) for each in known.garbage]
    for version, segments, where in others:
        for child, names in where.items():
            for name in array.names_of(version, child, segments):
                names.pop(name, None)
    return held


def _unknown(array: Array, versions: Sequence[FoundVersion]) -> list[Unknown]:
    """Return the versions that the metadata still does not have, though it has no newer ones of these objects."""
    garbage, unknown = {each.version for each in array.metadata.garbage()}, list[Unknown]()
    for found in versions:
        manifest, row = found.manifest, array.metadata.find(found.manifest.path)
        if (row is None or row.generation < manifest.generation) and manifest.version not in garbage:
            unknown.append(Unknown(manifest.path, manifest.version, len(manifest.segments), found.is_whole))
    return unknown


def _settle(array: Array, found: _Comparison) -> int:
    """Write the result of a comparison into the metadata, in one transaction. Returns how many objects were dropped.

    Raises _Overtaken.
    """
    metadata, count, is_certain = array.metadata, len(array.children), len(found.silent) <= array.file.tolerated
    specs = [child.spec for child in array.file.children]
    before = metadata.children()
    lacking, examined = _lacking_in_new_places(array, before, specs, found.names)
    is_done = not (
        found.is_old
        or found.rows
        or found.ended
        or found.unfinished
        or found.is_new
        or metadata.is_a_copy
        or before != specs
    )
    if is_done and is_certain == (metadata.setting(_UNVERIFIED) is None):
        metadata.expect_children(json.dumps(specs))
        return 0
    with metadata.transaction():
        is_still = found.is_still and metadata.number("changes") == found.known.changes
        if (found.rows or found.is_old) and not is_still:
            raise _Overtaken
        dropped = _vanished(found)
        metadata.recovered(found.rows, count, found.highest)
        metadata.drop(dropped)
        for owner in {*found.ended, metadata.owner}:
            metadata.adopt(owner, count, () if is_certain else {each.version for each in found.known.begun})
        if before != specs:
            _note_new_places(array, before, specs, lacking, examined)
        metadata.expect_children(json.dumps(specs))
        metadata.keep("key", array.master.fingerprint)
        if is_certain and not (found.is_old and found.silent):  # what was deleted shows when all answer
            metadata.forget(_UNVERIFIED)
        else:
            metadata.keep(_UNVERIFIED, str(found.compared))
        metadata.settle_in()
    return len(dropped)


def _vanished(found: _Comparison) -> list[bytes]:
    """Return the objects that were deleted after the copy of the metadata was made.

    Only if it certainly is an old copy, and every child still has something: what one has lost was not deleted.
    """
    if not found.is_old or found.silent or not all(found.names.values()):
        return []
    return [version for version, _ in found.known.objects if version not in found.held]


def _new_places(before: Sequence[str], specs: Sequence[str]) -> list[int]:
    return [place for place, (old, new) in enumerate(zip(before, specs, strict=False)) if old != new]


def _lacking_in_new_places(
    array: Array, before: Sequence[str], specs: Sequence[str], names: Mapping[int, Mapping[str, int]]
) -> tuple[list[Lacking], set[bytes]]:
    """Return what children lack that took another's place, and which versions were examined."""
    lacking, examined = list[Lacking](), set[bytes]()
    if places := _new_places(before, specs):
        for row in array.rows():
            examined.add(row.version)
            lacking += _packages_at(array, row, places, names)
    return lacking, examined


def _note_new_places(
    array: Array, before: Sequence[str], specs: Sequence[str], lacking: Sequence[Lacking], examined: set[bytes]
) -> None:
    """Note what children lack that took another's place; everything, of objects that were written meanwhile."""
    if [child.spec for child in config.load(array.file.source).children] != specs:
        detail = "its children were changed just now; open the array again"
        raise ConfigError(str(array.file.source), "children", detail)
    places = _new_places(before, specs)
    late = [row for row in array.rows() if row.version not in examined] if places else []
    array.metadata.lacks([*lacking, *(each for row in late for each in _packages_at(array, row, places, {}))])


def _packages_at(
    array: Array, row: ObjectRow, places: Sequence[int], names: Mapping[int, Mapping[str, int]]
) -> list[Lacking]:
    """Return the packages of a version that children should have, and do not list."""
    manifest = array.manifest_of("replace", row)
    return [
        Lacking(row.version, number, child)
        for number, segment in enumerate(manifest.segments)
        for child in places
        if sum(segment.split.counts[child : child + 1])
        and array.name_of(manifest, child, number) not in names.get(child, {})
    ]


def listed(array: Array, patience_s: float | None = None) -> tuple[dict[int, Mapping[str, int]], dict[int, CloudError]]:
    """Return the packages of children that answer, name to size, and the errors of the others.

    Args:
        array: whose children are listed.
        patience_s: how long to wait for more once k children have answered; None: until all have, or failed.

    Passes on any error that is not a CloudError.
    """
    answers: SimpleQueue[tuple[Ended, Mapping[str, int]]] = SimpleQueue()
    for child in range(len(array.children)):
        array.children.list(child, lambda ended, found: answers.put((ended, found)))
    names: dict[int, Mapping[str, int]] = {}
    late = CloudError(ErrorKind.NETWORK, "list", array.file.folder, detail=f"no answer within {patience_s} s")
    silent: dict[int, CloudError] = dict.fromkeys(range(len(array.children)), late)
    until_ns = None
    for _ in range(len(array.children)):
        if patience_s is not None and until_ns is None and len(names) >= array.file.k:
            until_ns = clock.due_ns(patience_s)
        try:
            ended, found = answers.get(timeout=None if until_ns is None else max(0, until_ns - clock.now_ns()) / 1e9)
        except Empty:
            break
        if ended.error is None:
            names[ended.child] = found
            del silent[ended.child]
        elif isinstance(ended.error, CloudError):
            silent[ended.child] = ended.error
        else:
            raise ended.error
    return dict(sorted(names.items())), silent


def versions_in(
    array: Array, left: Mapping[int, dict[str, int]], silent: dict[int, CloudError]
) -> tuple[list[FoundVersion], int]:
    """Return all versions with a manifest, and how many packages belong to none of them.

    Removes from ``left`` the packages that it explains, and adds children that do not return a manifest to ``silent``.
    """
    versions: list[FoundVersion] = []
    for child, found in left.items():
        for name in [each for each in found if each.startswith("m")]:
            if name not in found:
                continue  # covered by another child's copy of the manifest
            try:
                manifest = _manifest_at(array, child, name)
            except CloudError as error:
                silent[child] = error
                break
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
    """Return the manifest in a package; None if there is none, or it belongs to another package. Raises CloudError."""
    data = _beginning(array, child, name, _FIRST_BYTES)
    size_bytes = int.from_bytes(data[:LENGTH_BYTES], "big")
    if not 0 < size_bytes <= _MOST_MANIFEST_BYTES:
        return None
    if len(data) < LENGTH_BYTES + size_bytes:
        data = _beginning(array, child, name, LENGTH_BYTES + size_bytes)
    try:
        return Manifest.open(array.master, data[LENGTH_BYTES : LENGTH_BYTES + size_bytes], name)
    except NotGenuine:
        return None


def _generation_at(array: Array, child: int, left: dict[str, int]) -> int:
    """Return the generation of the last deletion that a child was told of, see ``Array.marker``; 0 if there is none.

    Removes the marker from ``left``.
    """
    name = array.children.marker_name(child)
    if left.pop(name, None) is None:
        return 0
    try:
        return int(array.master.open(_beginning(array, child, name, _FIRST_BYTES), name.encode()))
    except (CloudError, ValueError):  # another child has one, too
        return 0


def _beginning(array: Array, child: int, name: str, most_bytes: int) -> Buffer:
    """Return the first bytes of a package; none if it is not there. Raises CloudError."""
    answers: SimpleQueue[Ended] = SimpleQueue()
    array.children.get(child, name, most_bytes, answers.put)
    answer = answers.get()
    if answer.error is not None and not (
        isinstance(answer.error, CloudError) and answer.error.kind is ErrorKind.NOT_FOUND
    ):
        raise answer.error
    return answer.data


def _explained(array: Array, manifest: Manifest, left: Mapping[int, dict[str, int]]) -> FoundVersion:
    """Return a version as found, and removes its packages from ``left``."""
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
    array: Array, versions: Sequence[FoundVersion], unfinished: set[bytes]
) -> tuple[list[tuple[ObjectRow, Sequence[Lacking]]], int]:
    """Return the whole versions, oldest first, and how many newest ones are not whole."""
    rows, newest = list[tuple[ObjectRow, Sequence[Lacking]]](), dict[str, FoundVersion]()
    # Copies have equal generations: of those, a whole one comes last.
    for found in sorted(versions, key=lambda each: (each.manifest.generation, each.is_whole)):
        if found.is_whole or found.manifest.version not in unfinished:
            newest[found.manifest.path] = found
        if found.is_whole:
            rows.append((array.row_of(found.manifest), found.lacking))
    unreadable = {path for path, found in newest.items() if not found.is_whole}
    return rows, len(unreadable)
