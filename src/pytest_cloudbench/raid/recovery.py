"""Agreement between an array's metadata and its children, which know more if the metadata is lost, or an old copy.

What may live here: listing children, opening the manifests of versions that the metadata does not know, and deciding
which version of each object is the newest that can be read.

Every version's generation is above those of all versions that began earlier, and the metadata notes the generation
before the first package is sent. So a version with a generation above that note proves that the metadata is older than
the children. A version below the note that the metadata does not know was discarded once, and is only taken in if the
user asks for a recovery.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from pytest_cloudbench.model import CloudError, ConfigError, ErrorKind
from pytest_cloudbench.raid import config
from pytest_cloudbench.raid.array import LENGTH_BYTES, Array, UnknownVersion
from pytest_cloudbench.raid.coding.manifest import Manifest
from pytest_cloudbench.raid.coding.reed_solomon import Buffer
from pytest_cloudbench.raid.coding.sealing import NotGenuine
from pytest_cloudbench.raid.metadata import UNCOMPARED, UNVERIFIED, MissingPackage, ObjectRow, Snapshot
from pytest_cloudbench.raid.transfers import TransferResult, shortage_error
from pytest_cloudbench.results.owner import is_alive
from pytest_cloudbench.support import clock
from pytest_cloudbench.support.wording import format_count

_FIRST_BYTES = 4096
"""The number of bytes of a package that are read to find its manifest, enough for most objects."""
_MOST_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """One version, as its packages were found on the children.

    Attributes:
        manifest: its description.
        missing: packages that are missing on children that answered.
        unseen: packages that should be on children that did not answer.
        is_readable: whether it can be read from the children that answered.
        may_be_readable: whether it could be read if the others had their packages.
    """

    manifest: Manifest
    missing: tuple[MissingPackage, ...]
    unseen: tuple[MissingPackage, ...]
    is_readable: bool
    may_be_readable: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of comparing the metadata with the children.

    Attributes:
        objects: how many were taken in.
        older: versions replaced by a newer one.
        unreadable: newest versions of objects with too few packages left, or never written completely.
        strange: packages that belong to none of the versions: unfinished, of another key, or damaged.
        silent: children that did not answer, and why.
        unknown: versions that were not taken in, although the metadata has no newer version of their object.
        is_old: whether the metadata was older than the children.
        dropped: objects of an old copy of the metadata that were deleted since: the children have none of their
            packages, or too few to read them.
    """

    objects: int
    older: int
    unreadable: int
    strange: int
    silent: Mapping[int, CloudError]
    unknown: Sequence[UnknownVersion] = ()
    is_old: bool = False
    dropped: int = 0


@dataclass(slots=True)
class _Comparison:
    """The metadata and what the children list, compared.

    Attributes:
        snapshot: the metadata's versions after the children were listed.
        names: packages of each child that answers.
        silent: the errors of the others.
        is_new: whether the metadata is new, so that everything is taken in.
        is_unchanged: whether the metadata did not change while the children were listed.
        ended: processes that have ended, with unfinished work.
        unfinished: versions that these had begun, or that this process had begun and does not write now.
        held: how many packages of each known version the children have.
        rows: versions to take in, oldest first, with the packages that children lack.
        versions: all that children hold and the metadata does not know as written.
        deleted: the highest generation at which a process deleted anything.
        compared: the generation up to which the metadata was compared with the children before.
        recovery: the result, which holds once the comparison is written.
    """

    snapshot: Snapshot
    names: Mapping[int, Mapping[str, int]]
    silent: dict[int, CloudError]
    is_new: bool
    is_unchanged: bool
    ended: frozenset[str]
    unfinished: set[bytes]
    held: Mapping[bytes, int]
    rows: list[tuple[ObjectRow, Sequence[MissingPackage]]]
    versions: Sequence[FoundVersion]
    deleted: int
    compared: int
    recovery: Recovery

    @property
    def highest(self) -> int:
        """The highest generation of the found versions and of the last deletions."""
        return max([self.deleted, *(version.manifest.generation for version in self.versions)])

    @property
    def is_old(self) -> bool:
        """True if the metadata is an old copy."""
        return not self.is_new and self.highest > self.compared


class _MetadataChanged(Exception):
    """Another process changed the metadata meanwhile."""


def recover(array: Array, verb: str, path: str) -> Recovery:
    """Take in every object that children hold and the metadata does not know, even those that it once knew.

    Raises CloudError, see ``agree``.
    """
    return _agree_with_retries(array, verb, path, everything=True, takes_over_all=False)


def agree(array: Array, verb: str, path: str, *, takes_over_all: bool = False) -> Recovery:
    """Compare the metadata with the children, and take in newer versions, or all versions if the metadata is new.

    Also takes over what ended processes left behind, and notes the array's children, so that later transactions of a
    process with other children fail. ``takes_over_all``: also what processes left that may run, for all that is known
    here, such as on another machine. Their writes fail if they do.

    An acknowledged version can be read as long as no more children are silent than the file's durability tolerates.
    A version that cannot be read then belongs to an interrupted write, and the version before it counts.

    Raises CloudError, for the operation that needs it, if nothing opens with this key, if more children are silent and
    might hold a newer version of an object, or, with new metadata, if fewer than k children answer.
    """
    return _agree_with_retries(array, verb, path, everything=False, takes_over_all=takes_over_all)


def find_unknown_owners(array: Array) -> frozenset[str]:
    """Return the processes with unfinished work of which it is not known here whether they still run."""
    return frozenset(owner for owner in array.metadata.other_owners() if is_alive(owner) is None)


def _agree_with_retries(array: Array, verb: str, path: str, *, everything: bool, takes_over_all: bool) -> Recovery:
    for _ in range(_MOST_ATTEMPTS):
        comparison = _compare(array, verb, path, everything=everything, takes_over_all=takes_over_all)
        try:
            deleted, remains = _find_deleted_objects(array, comparison)
            _write_comparison(array, comparison, deleted)
        except _MetadataChanged:
            continue
        return replace(
            comparison.recovery,
            unknown=_find_unknown(array, [*comparison.versions, *remains]),
            is_old=comparison.is_old,
            dropped=len(deleted),
        )
    detail = (
        f"{format_count(len(comparison.rows), 'object of the children is', 'objects of the children are')} to be taken "
        "in, but other processes keep writing: end them first"
    )
    raise CloudError(ErrorKind.CONFLICT, verb, path, detail=detail)


def _compare(array: Array, verb: str, path: str, *, everything: bool, takes_over_all: bool) -> _Comparison:
    """Compare the metadata with the children's packages, and return what has to be taken in or given up."""
    metadata, count = array.metadata, len(array.children)
    is_new, is_copy = not metadata.is_prepared, metadata.is_copy
    changes = metadata.number_setting("changes")
    # A child whose spec has changed may only have another parameter, and all of its packages.
    waits_for_all = is_new or metadata.setting("children") != json.dumps([child.spec for child in array.file.children])
    names, silent = list_children(array, None if waits_for_all else array.file.patience_s)
    if is_new and len(names) < array.file.k:
        reason = f"{len(names)} of {count} children answer, and {array.file.k} are needed to begin"
        raise shortage_error(verb, path, reason, silent, array.children.names) from next(iter(silent.values()))
    unexplained = {child: dict(listing) for child, listing in names.items()}
    deleted = max((_read_marker_generation(array, child, listing) for child, listing in unexplained.items()), default=0)
    snapshot = metadata.snapshot(count)  # after the listing: a version that is not known now was not known then
    ended = frozenset(owner for owner in metadata.other_owners() if is_copy or is_alive(owner) is False)
    if takes_over_all:
        ended |= find_unknown_owners(array)
    unfinished = {
        write.version for write in snapshot.begun
        if write.owner in ended or (write.owner == metadata.owner and not write.is_ours)
    }  # fmt: skip
    held = _remove_known_packages(array, snapshot, unfinished, unexplained)
    versions, strange = find_versions(array, unexplained, silent)
    has_packages = any(name.startswith("m") for listing in names.values() for name in listing)
    if is_new and not versions and has_packages and not metadata.is_prepared:  # another process may write
        if silent:
            reason = f"{len(silent)} of {count} children do not return their packages"
            if len(silent) < count:
                reason += ", and the others have none that was sealed with this key"
            raise shortage_error(verb, path, reason, silent, array.children.names) from next(iter(silent.values()))
        raise CloudError(ErrorKind.AUTH, verb, path, detail="the children's packages were not sealed with this key")
    compared = metadata.number_setting(UNVERIFIED) if metadata.setting(UNVERIFIED) is not None else snapshot.generation
    newer = [
        version for version in versions
        if everything or is_new or version.manifest.generation > compared or version.manifest.version in unfinished
    ]  # fmt: skip
    # An unfinished version that cannot be read was not acknowledged, unless silent children have the rest of it, and a
    # power cut undid its end.
    is_certain = len(silent) <= array.file.tolerated_failures
    rows, unreadable = _select_newest(array, newer, unfinished if is_certain else set(), is_new=is_new)
    if unreadable and not is_certain:
        reason = (
            f"{format_count(unreadable, 'object')} may be newer on children that do not answer; if one of them is gone "
            "for good, write its replacement into the array's file, and run: cloudbench raid replace FILE CHILD"
        )
        raise shortage_error(verb, path, reason, silent, array.children.names) from next(iter(silent.values()))
    taken_in = len({row.path for row, _ in rows})
    return _Comparison(
        snapshot, names, silent, is_new, snapshot.changes == changes, ended, unfinished, held, rows, versions, deleted,
        compared,
        Recovery(taken_in, len(rows) - taken_in, unreadable, strange, silent),
    )  # fmt: skip


def _remove_known_packages(
    array: Array, snapshot: Snapshot, unfinished: set[bytes], unexplained: Mapping[int, dict[str, int]]
) -> Counter[bytes]:
    """Remove the packages of known versions from ``unexplained``, except unfinished ones.

    Returns how many packages of each current version the children have.
    """
    held = Counter[bytes]()
    for version, segments in snapshot.objects:
        for child, names in unexplained.items():
            for name in array.package_names(version, child, segments):
                if names.pop(name, None) is not None:
                    held[version] += 1
    others = [
        (write.version, write.segments, unexplained) for write in snapshot.begun if write.version not in unfinished
    ]
    others += [
        (leftover.version, leftover.segments, {leftover.child: unexplained.get(leftover.child, {})})
        for leftover in snapshot.garbage
    ]
    for version, segments, listings in others:
        for child, names in listings.items():
            for name in array.package_names(version, child, segments):
                names.pop(name, None)
    return held


def _find_unknown(array: Array, versions: Sequence[FoundVersion]) -> list[UnknownVersion]:
    """Return the versions that are newer than their object's row in the metadata, or have no row, without garbage."""
    garbage, unknown = {leftover.version for leftover in array.metadata.garbage()}, list[UnknownVersion]()
    for version in versions:
        manifest, row = version.manifest, array.metadata.find(version.manifest.path)
        if (row is None or row.generation < manifest.generation) and manifest.version not in garbage:
            unknown.append(
                UnknownVersion(manifest.path, manifest.version, len(manifest.segments), version.may_be_readable)
            )
    return unknown


def _write_comparison(array: Array, comparison: _Comparison, deleted: Sequence[bytes]) -> None:
    """Write the result of a comparison into the metadata, and drop deleted objects, in one transaction.

    Raises _MetadataChanged.
    """
    metadata, count = array.metadata, len(array.children)
    is_certain = len(comparison.silent) <= array.file.tolerated_failures
    specs = [child.spec for child in array.file.children]
    before = metadata.child_specs()
    replaced = [child for child, (old, new) in enumerate(zip(before, specs, strict=False)) if old != new]
    answering = [child for child in replaced if child in comparison.names]
    missing, examined = _missing_on_replaced(array, answering, comparison.names)
    incomplete = [version for version in comparison.versions if not version.is_readable]
    is_done = not (
        any(_is_replaced(array, version) for version in incomplete)
        or comparison.is_old
        or comparison.rows
        or comparison.ended
        or comparison.unfinished
        or comparison.is_new
        or metadata.is_copy
        or before != specs
    )
    if is_done and is_certain == (metadata.setting(UNVERIFIED) is None):
        metadata.expect_children(json.dumps(specs))
        return
    with metadata.transaction():
        is_unchanged = comparison.is_unchanged and metadata.number_setting("changes") == comparison.snapshot.changes
        if (comparison.rows or comparison.is_old) and not is_unchanged:
            raise _MetadataChanged
        metadata.take_in_versions(comparison.rows, count, comparison.highest)
        metadata.drop_objects(deleted)
        for version in incomplete:
            if _is_replaced(array, version):  # nobody needs what is left of it
                metadata.abandon_write(version.manifest.version, len(version.manifest.segments), count)
        for owner in {*comparison.ended, metadata.owner}:
            metadata.adopt_work(
                owner, count, () if is_certain else {write.version for write in comparison.snapshot.begun}
            )
        if before != specs:
            _note_missing_on_replaced(array, answering, specs, missing, examined)
        metadata.expect_children(json.dumps(specs))
        metadata.put_setting(UNCOMPARED, json.dumps([child for child in replaced if child not in answering]))
        metadata.put_setting("key", array.master.fingerprint)
        # Only when all children answer can the objects that were deleted after an old copy be recognised.
        if is_certain and not (comparison.is_old and comparison.silent):
            metadata.remove_setting(UNVERIFIED)
        else:
            metadata.put_setting(UNVERIFIED, str(comparison.compared))
        metadata.note_prepared()


def _is_replaced(array: Array, version: FoundVersion) -> bool:
    """Return whether a version that the metadata does not know is older than its object's current version."""
    current = array.metadata.find(version.manifest.path)
    return current is not None and current.generation >= version.manifest.generation


def _find_deleted_objects(array: Array, comparison: _Comparison) -> tuple[list[bytes], list[FoundVersion]]:
    """Return the objects that were deleted after the copy of the metadata was made, and what is left of their packages.

    A process that was killed while it deleted packages leaves some of them. An object with too few packages was
    deleted, or has lost them: nobody can read it, and its other packages are kept, as they are if the metadata is lost.

    The result is empty unless the metadata certainly is an old copy and every child still has packages, because
    packages that a child has lost do not mean that their objects were deleted.
    """
    if not comparison.is_old or comparison.silent or not all(comparison.names.values()):
        return [], []
    deleted, remains = list[bytes](), list[FoundVersion]()
    listings = {child: dict(listing) for child, listing in comparison.names.items()}
    for version, segments in comparison.snapshot.objects:
        if not comparison.held.get(version):
            deleted.append(version)
        elif comparison.held[version] < segments * len(array.children):
            row = array.metadata.find_version(version)
            if row is None:
                raise _MetadataChanged
            found_version = _assemble_version(array, array.manifest_of("recover", row), listings)
            if not found_version.is_readable:
                deleted.append(version)
                remains.append(found_version)
    return deleted, remains


def _missing_on_replaced(
    array: Array, replaced: Sequence[int], names: Mapping[int, Mapping[str, int]]
) -> tuple[list[MissingPackage], set[bytes]]:
    """Return the packages that replaced children lack, and the versions that were examined."""
    missing, examined = list[MissingPackage](), set[bytes]()
    if replaced:
        for row in array.object_rows():
            examined.add(row.version)
            missing += _unlisted_packages(array, row, replaced, names)
    return missing, examined


def _note_missing_on_replaced(
    array: Array, replaced: Sequence[int], specs: Sequence[str], missing: Sequence[MissingPackage], examined: set[bytes]
) -> None:
    """Note the packages that replaced children lack, and all packages of objects that were written meanwhile."""
    if [child.spec for child in config.load(array.file.source).children] != specs:
        detail = "its children were changed just now; open the array again"
        raise ConfigError(str(array.file.source), "children", detail)
    late_rows = [row for row in array.object_rows() if row.version not in examined] if replaced else []
    array.metadata.note_missing(
        [*missing, *(package for row in late_rows for package in _unlisted_packages(array, row, replaced, {}))]
    )


def _unlisted_packages(
    array: Array, row: ObjectRow, children: Sequence[int], names: Mapping[int, Mapping[str, int]]
) -> list[MissingPackage]:
    """Return the packages of a version that some children should have and do not list."""
    manifest = array.manifest_of("replace", row)
    return [
        MissingPackage(row.version, number, child)
        for number, segment in enumerate(manifest.segments)
        for child in children
        if sum(segment.split.counts[child : child + 1])
        and array.package_name(manifest, child, number) not in names.get(child, {})
    ]


def list_children(
    array: Array, patience_s: float | None = None
) -> tuple[dict[int, Mapping[str, int]], dict[int, CloudError]]:
    """Return the packages of children that answer, name to size, and the errors of the others.

    Args:
        array: whose children are listed.
        patience_s: how long to wait for more once k children have answered. None: until all have answered or failed.

    Passes on any error that is not a CloudError.
    """
    answers: SimpleQueue[tuple[TransferResult, Mapping[str, int]]] = SimpleQueue()
    for child in range(len(array.children)):
        array.children.list_packages(child, lambda ended, listing: answers.put((ended, listing)))
    names: dict[int, Mapping[str, int]] = {}
    late_error = CloudError(ErrorKind.NETWORK, "list", array.file.folder, detail=f"no answer within {patience_s} s")
    silent: dict[int, CloudError] = dict.fromkeys(range(len(array.children)), late_error)
    until_ns = None
    for _ in range(len(array.children)):
        if patience_s is not None and until_ns is None and len(names) >= array.file.k:
            until_ns = clock.due_ns(patience_s)
        try:
            ended, listing = answers.get(timeout=None if until_ns is None else max(0, until_ns - clock.now_ns()) / 1e9)
        except Empty:
            break
        if ended.error is None:
            names[ended.child] = listing
            del silent[ended.child]
        elif isinstance(ended.error, CloudError):
            silent[ended.child] = ended.error
        else:
            raise ended.error
    return dict(sorted(names.items())), silent


def find_versions(
    array: Array, unexplained: Mapping[int, dict[str, int]], silent: dict[int, CloudError]
) -> tuple[list[FoundVersion], int]:
    """Return all versions with a manifest, and how many packages belong to none of them.

    Removes the packages of these versions from ``unexplained``, and adds children that do not return a manifest to
    ``silent``.
    """
    versions: list[FoundVersion] = []
    for child, names in unexplained.items():
        for name in [name for name in names if name.startswith("m")]:
            if name not in names:
                continue  # it belongs to a version that another child's copy of the manifest has described
            try:
                manifest = _read_manifest(array, child, name, names[name])
            except CloudError as error:
                silent[child] = error
                break
            if manifest is not None:
                _check_child_count(array, manifest)
                versions.append(_assemble_version(array, manifest, unexplained))
    return versions, sum(map(len, unexplained.values()))


def _check_child_count(array: Array, manifest: Manifest) -> None:
    """Raise CloudError if a version is spread over more children than the array's file names."""
    count = max(len(segment.split.counts) for segment in manifest.segments)
    if count > len(array.children):
        detail = f"the children hold objects of an array of {count}, and its file names {len(array.children)} of them"
        raise CloudError(ErrorKind.INVALID, "recover", "/", detail=detail)


def _read_manifest(array: Array, child: int, name: str, package_bytes: int) -> Manifest | None:
    """Return the manifest in a package, or None if there is none or it belongs elsewhere. Raises CloudError.

    ``package_bytes``: the package's listed size. A manifest that claims to be larger is damaged.
    """
    data = _read_beginning(array, child, name, _FIRST_BYTES)
    size_bytes = int.from_bytes(data[:LENGTH_BYTES], "big")
    if not 0 < size_bytes <= package_bytes - LENGTH_BYTES:
        return None
    if len(data) < LENGTH_BYTES + size_bytes:
        data = _read_beginning(array, child, name, LENGTH_BYTES + size_bytes)
    try:
        return Manifest.open(array.master, data[LENGTH_BYTES : LENGTH_BYTES + size_bytes], name)
    except NotGenuine:
        return None


def _read_marker_generation(array: Array, child: int, unexplained: dict[str, int]) -> int:
    """Return the generation of the last deletion, as a child's marker records it (see ``Array.make_marker``).

    It is 0 if the child has no marker, or one that cannot be read.
    Removes the marker from ``unexplained``.
    """
    name = array.children.marker_name(child)
    if unexplained.pop(name, None) is None:
        return 0
    try:
        return int(array.master.open(_read_beginning(array, child, name, _FIRST_BYTES), name.encode()))
    except (CloudError, ValueError):  # the markers of the other children are enough
        return 0


def _read_beginning(array: Array, child: int, name: str, most_bytes: int) -> Buffer:
    """Return the first bytes of a package, or none if it is not there. Raises CloudError."""
    answers: SimpleQueue[TransferResult] = SimpleQueue()
    array.children.get_package(child, name, most_bytes, answers.put)
    answer = answers.get()
    if answer.error is not None and not (
        isinstance(answer.error, CloudError) and answer.error.kind is ErrorKind.NOT_FOUND
    ):
        raise answer.error
    return answer.data


def _assemble_version(array: Array, manifest: Manifest, unexplained: Mapping[int, dict[str, int]]) -> FoundVersion:
    """Return a version as found, and remove its packages from ``unexplained``."""
    missing, unseen = list[MissingPackage](), list[MissingPackage]()
    is_readable = may_be_readable = True
    for number, segment in enumerate(manifest.segments):
        holders = {child for child, count in enumerate(segment.split.counts) if count}
        silent = holders - unexplained.keys()
        unseen += [MissingPackage(manifest.version, number, child) for child in sorted(silent)]
        held_by = set()
        for child in holders - silent:
            size_bytes = unexplained[child].pop(array.package_name(manifest, child, number), -1)
            if size_bytes >= array.package_size_bytes(manifest, number, child):
                held_by.add(child)
            else:
                missing.append(MissingPackage(manifest.version, number, child))
        is_readable = is_readable and segment.split.is_enough(held_by)
        may_be_readable = may_be_readable and segment.split.is_enough(held_by | silent)
    return FoundVersion(manifest, tuple(missing), tuple(unseen), is_readable, may_be_readable)


def _select_newest(
    array: Array, versions: Sequence[FoundVersion], ignored: set[bytes], *, is_new: bool
) -> tuple[list[tuple[ObjectRow, Sequence[MissingPackage]]], int]:
    """Return the readable versions, oldest first, and the number of objects whose newest version is not readable.

    ``ignored``: versions that do not matter if they are not readable. ``is_new``: silent children count as having their
    packages, because rebuilding all of them would take long.
    """
    rows, newest = list[tuple[ObjectRow, Sequence[MissingPackage]]](), dict[str, FoundVersion]()
    # A copy has the generation of its original. Of versions with equal generations, a readable one is last and counts.
    for version in sorted(versions, key=lambda version: (version.manifest.generation, version.is_readable)):
        if version.is_readable or version.manifest.version not in ignored:
            newest[version.manifest.path] = version
        if version.is_readable:
            missing = version.missing if is_new else (*version.missing, *version.unseen)
            rows.append((array.row_of(version.manifest), missing))
    unreadable = {path for path, version in newest.items() if not version.is_readable}
    return rows, len(unreadable)
