"""Maintenance of an array: rebuilding missing packages, replacing a child, moving shares, and leaving the array.

What may live here: work over all objects, at the user's request, while the array stays in use. The process may be
killed after every step:

- A package to rebuild is first noted in the metadata, and the note goes when the child has the package. If a repair is
  killed, the next one continues with the remaining notes. A package that was rebuilt but still has its note is rebuilt
  once more, with the same bytes in its shares.
- An object moves as a new version, which becomes current in one transaction, and only in place of the version that it
  was copied from. A write that came in between wins.
- An exported file gets its name only when it is complete.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pytest_cloudbench.model import CloudError, ErrorKind, UsageError
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.metadata import Lacking, ObjectRow
from pytest_cloudbench.raid.reading import read
from pytest_cloudbench.raid.survey import Progress
from pytest_cloudbench.raid.upkeep import delete_leftovers, mend
from pytest_cloudbench.raid.writing import write
from pytest_cloudbench.support.opening import write_whole

_MOST_TOLD = 20


def _ignored(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


# --- repair -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Repaired:
    """The result of a repair.

    Attributes:
        mended: packages that were rebuilt.
        mended_bytes: their size.
        left: packages that are still missing, by child.
        reasons: why, by child: the first reason of each.
        lost_paths: the first objects that have too few shares left.
        garbage: unused packages that could not be deleted.
    """

    mended: int = 0
    mended_bytes: int = 0
    left: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lost_paths: list[str] = field(default_factory=list)
    garbage: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to rebuild."""
        return not self.left


def repair(array: Array, progress: Progress = _ignored) -> Repaired:
    """Rebuild the packages noted as missing in the metadata, and delete unused ones.

    A child that refuses a package is left alone for the rest of the repair.

    Passes on any error that is not a CloudError: a mistake of a driver.
    """
    done, names = Repaired(), array.children.names
    costs = Costs(operations=1)
    by_segment: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    missing = sorted(array.metadata.missing(), key=lambda each: (each.version, each.segment, each.child))
    for package in missing:
        by_segment[package.version, package.segment].append(package.child)
    refusing: set[int] = set()
    handled = 0
    for (version, segment), children in by_segment.items():
        for child in children:
            handled += 1
            package = Lacking(version, segment, child)
            reason = "" if child in refusing else _mended(array, package, costs, done, refusing)
            if reason or child in refusing:
                done.left[names[child]] = done.left.get(names[child], 0) + 1
                done.reasons.setdefault(names[child], reason)
            progress("packages", handled, len(missing))
    errors = delete_leftovers(array, array.metadata.garbage(), costs)
    done.garbage = len(array.metadata.garbage()) if errors else 0
    done.mended, done.mended_bytes = costs.mended, costs.sent_bytes
    array.ledger.add("repair", costs)
    return done


def _mended(array: Array, package: Lacking, costs: Costs, done: Repaired, refusing: set[int]) -> str:
    """Rebuild one package. Returns the reason if that failed, otherwise an empty text."""
    try:
        mend(array, package, costs)
    except CloudError as error:
        reason = f"{error.kind.value}{f' ({error.detail})' if error.detail else ''}"
        row = array.metadata.find_version(package.version)
        if error.operation == "mend":  # the other children do not have enough shares
            if row is not None and row.path not in done.lost_paths:
                done.lost_paths = [*done.lost_paths, row.path][:_MOST_TOLD]
        else:
            refusing.add(package.child)
        return reason
    return ""


def note_all_of(array: Array, child: int) -> int:
    """Note every package of a child as missing, because another provider replaces it. Returns how many packages."""
    noted = 0
    for row in array.rows():
        manifest = array.manifest_of("replace", row)
        lacking = [
            Lacking(row.version, number, child)
            for number, segment in enumerate(manifest.segments)
            if sum(segment.split.counts[child : child + 1])  # objects written before it was added have no share of it
        ]
        array.metadata.lacks(lacking)
        noted += len(lacking)
    return noted


def discard_incomplete(array: Array) -> int:
    """Turn versions that the metadata does not have and that cannot be read into garbage. Returns how many."""
    incomplete = [each for each in array.unknown if not each.is_whole]
    for each in incomplete:
        array.metadata.abandon(each.version, each.segments, len(array.children))
        array.unknown.remove(each)
    return len(incomplete)


# --- rebalance ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Moved:
    """The result of a rebalance.

    Attributes:
        objects: how many there are.
        moved: those that were rewritten.
        moved_bytes: the content of these.
        overtaken: those that were replaced or deleted meanwhile, and are left as they are.
        failed: the reason for each of the first paths that could not be moved; they stay as they were.
    """

    objects: int = 0
    moved: int = 0
    moved_bytes: int = 0
    overtaken: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def rebalance(array: Array, *, dry_run: bool = False, progress: Progress = _ignored) -> Moved:
    """Rewrite each object whose shares the placement would now spread differently.

    Args:
        array: prepared.
        dry_run: only count.
        progress: called with the progress.
    """
    done, total = Moved(), array.metadata.count()
    newest = array.metadata.newest_generation()  # later versions are placed correctly
    for row in array.rows():
        if row.generation > newest:
            continue
        done.objects += 1
        if _is_misplaced(array, row):
            if dry_run:
                done.moved, done.moved_bytes = done.moved + 1, done.moved_bytes + row.size_bytes
            else:
                _move(array, row, done)
        progress("objects", done.objects, max(total, done.objects))
    return done


def _is_misplaced(array: Array, row: ObjectRow) -> bool:
    manifest = array.manifest_of("rebalance", row)
    return not all(array.placement.suits(segment.split, segment.sealed_bytes) for segment in manifest.segments)


def _move(array: Array, row: ObjectRow, done: Moved) -> None:
    costs = Costs(operations=1)
    content = _Streamed(read(array, array.manifest_of("rebalance", row), 0, costs), row.size_bytes)
    try:
        is_current = write(array, row.path, content, costs, copy_of=row)
    except CloudError as error:
        if array.metadata.find_version(row.version) is None:
            done.overtaken += 1
        elif len(done.failed) < _MOST_TOLD:
            done.failed[row.path] = str(error)
        return
    finally:
        content.close()
        array.ledger.add("rebalance", costs)
    if is_current:
        done.moved, done.moved_bytes = done.moved + 1, done.moved_bytes + row.size_bytes
    else:
        done.overtaken += 1


class _Streamed:
    """Content read in order, once, as it arrives."""

    def __init__(self, pieces: Iterator[bytes], size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._pieces, self._rest, self._at = pieces, b"", 0

    def read(self, offset: int, length: int) -> bytes:
        if offset != self._at:
            raise ValueError(f"read at {offset} after {self._at}: this content can only be read in order")
        found = [self._rest]
        have = len(self._rest)
        while have < length and (piece := next(self._pieces, b"")):
            found.append(piece)
            have += len(piece)
        whole = b"".join(found)
        self._rest = whole[length:]
        self._at += min(length, len(whole))
        return whole[:length]

    def close(self) -> None:
        """Stop reading."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


# --- export -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Exported:
    """The result of an export.

    Attributes:
        objects: the number of files written, each complete and authenticated.
        content_bytes: their total size.
        failed: the reason for each path that could not be exported.
    """

    objects: int = 0
    content_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def export(array: Array, target: Path, progress: Progress = _ignored) -> Exported:
    """Write every object as a plain file below a folder, or into one archive if the name ends in ``.tar``.

    Raises UsageError if the target cannot be written.
    """
    is_archive = target.suffix == ".tar"
    try:
        return _exported(array, target, progress) if not is_archive else _archived(array, target, progress)
    except OSError as error:
        raise UsageError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from error


def _exported(array: Array, target: Path, progress: Progress) -> Exported:
    done, total = Exported(), array.metadata.count()
    target.mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(array.rows(), 1):
        parts = row.path.strip("/").split("/")
        if any(map(_cannot_be_a_name, parts)):
            done.failed[row.path] = "this system does not allow such a file name; export to a .tar"
        else:
            try:
                _one_file(array, row, target.joinpath(*parts))
            except CloudError as error:
                done.failed[row.path] = str(error)
            except (NotADirectoryError, FileExistsError, IsADirectoryError):
                done.failed[row.path] = "a file and a folder have the same name; export to a .tar"
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                done.failed[row.path] = "this system does not allow such a long name; export to a .tar"
            else:
                done.objects, done.content_bytes = done.objects + 1, done.content_bytes + row.size_bytes
        progress("objects", number, max(total, number))
    return done


def _cannot_be_a_name(part: str) -> bool:
    return "\0" in part or (os.name == "nt" and bool(set(part) & set('\\:<>"|?*')))


def _one_file(array: Array, row: ObjectRow, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_whole(place, lambda file: _copy(array, row, file), is_durable=True)


def _copy(array: Array, row: ObjectRow, file: BinaryIO) -> None:
    written, costs = 0, Costs(operations=1)
    for piece in read(array, array.manifest_of("export", row), 0, costs):
        file.write(piece)
        written += len(piece)
    array.ledger.add("export", costs)
    if written != row.size_bytes:
        raise CloudError(ErrorKind.CORRUPT, "export", row.path, detail=f"{written} of {row.size_bytes} bytes")


def _archived(array: Array, target: Path, progress: Progress) -> Exported:
    import tarfile

    done, total = Exported(), array.metadata.count()
    target.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for number, row in enumerate(array.rows(), 1):
                begin = file.tell()
                if "\0" in row.path:
                    done.failed[row.path] = "a NUL in its name, which an archive cuts it at"
                    continue
                header = tarfile.TarInfo(row.path.strip("/"))
                header.size, header.mode = row.size_bytes, 0o600
                try:
                    file.write(header.tobuf(tarfile.PAX_FORMAT))
                    _copy(array, row, file)
                except CloudError as error:
                    file.seek(begin)
                    file.truncate()
                    done.failed[row.path] = str(error)
                else:
                    file.write(bytes(-row.size_bytes % tarfile.BLOCKSIZE))
                    archive.offset = file.tell()
                    done.objects, done.content_bytes = done.objects + 1, done.content_bytes + row.size_bytes
                progress("objects", number, max(total, number))

    write_whole(target, write)
    return done
