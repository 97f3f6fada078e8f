"""Maintenance of an array: rebuilding missing packages, replacing a child, moving shares, and exporting all objects.

What may live here: work over all objects, at the user's request, while the array stays in use. The process may be
killed after every step:

- A package to rebuild is first noted in the metadata, and the note is removed when the child has the package. If a
  repair is killed, the next one continues with the remaining notes. A package that was rebuilt but still has its note
  is rebuilt once more, with the same bytes in its shares.
- An object moves as a new version, which becomes current in one transaction, and only in place of the version that it
  was copied from. A write in between wins.
- An exported file gets its name only when it is complete.
"""

from __future__ import annotations

import errno
import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pytest_cloudbench.model import CloudError, ErrorKind, UsageError
from pytest_cloudbench.raid.array import Array
from pytest_cloudbench.raid.costs import Costs
from pytest_cloudbench.raid.metadata import MissingPackage, ObjectRow
from pytest_cloudbench.raid.reading import read_object
from pytest_cloudbench.raid.survey import Progress, describe_error
from pytest_cloudbench.raid.upkeep import delete_leftovers, rebuild_package
from pytest_cloudbench.raid.writing import write_object
from pytest_cloudbench.support.opening import write_whole

_MOST_PATHS = 20
_ADVICE = "export to a .tar"
_REFUSED = "this system does not allow such a file name"
_REFUSALS = {
    errno.ENAMETOOLONG: "this system does not allow such a long name", errno.EINVAL: _REFUSED, errno.EILSEQ: _REFUSED,
}  # fmt: skip
"""Reasons why a file system refuses a name, by the error's number."""


def _ignore_progress(step: str, done: int, total: int) -> None:
    """Ignore the progress."""


# --- repair -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RepairResult:
    """The result of a repair.

    Attributes:
        mended: packages that were rebuilt.
        mended_bytes: their size.
        left: packages that are still missing, by child.
        reasons: the first reason of each child.
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
        """True if nothing is left to rebuild."""
        return not self.left


def repair_array(array: Array, progress: Progress = _ignore_progress) -> RepairResult:
    """Rebuild the packages noted as missing in the metadata, and delete unused ones.

    A child that refuses a package is left alone for the rest of the repair.

    Passes on any error that is not a CloudError: a mistake of a driver.
    """
    result, names = RepairResult(), array.children.names
    costs = Costs(operations=1)
    by_segment: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    missing = sorted(
        array.metadata.missing_packages(), key=lambda package: (package.version, package.segment, package.child)
    )
    for package in missing:
        by_segment[package.version, package.segment].append(package.child)
    refusing: set[int] = set()
    count = 0
    for (version, segment), children in by_segment.items():
        for child in children:
            count += 1
            package = MissingPackage(version, segment, child)
            reason = "" if child in refusing else _try_rebuild(array, package, costs, result, refusing)
            if reason or child in refusing:
                result.left[names[child]] = result.left.get(names[child], 0) + 1
                result.reasons.setdefault(names[child], reason)
            progress("packages", count, len(missing))
    errors = delete_leftovers(array, array.metadata.garbage(), costs)
    result.garbage = len(array.metadata.garbage()) if errors else 0
    result.mended = costs.mended
    array.ledger.add("repair", costs)
    return result


def _try_rebuild(array: Array, package: MissingPackage, costs: Costs, result: RepairResult, refusing: set[int]) -> str:
    """Rebuild one package. Returns the reason if that failed, otherwise an empty text."""
    try:
        result.mended_bytes += rebuild_package(array, package, costs)
    except CloudError as error:
        reason = describe_error(error)
        row = array.metadata.find_version(package.version)
        if error.operation == "mend":  # the other children do not have enough shares to rebuild it
            if row is not None and row.path not in result.lost_paths:
                result.lost_paths = [*result.lost_paths, row.path][:_MOST_PATHS]
        else:
            refusing.add(package.child)
        return reason
    return ""


def note_all_missing(array: Array, child: int) -> int:
    """Note every package of a child as missing, because another provider replaces it. Returns how many packages."""
    noted = 0
    for row in array.object_rows():
        manifest = array.manifest_of("replace", row)
        lacking = [
            MissingPackage(row.version, number, child)
            for number, segment in enumerate(manifest.segments)
            if sum(segment.split.counts[child : child + 1])  # older objects than the child have no share on it
        ]
        array.metadata.note_missing(lacking)
        noted += len(lacking)
    return noted


def discard_incomplete_versions(array: Array) -> int:
    """Turn versions that the metadata does not have into garbage. Returns how many.

    Keeps those that can be read, or that children that did not answer may complete.
    """
    incomplete = [version for version in array.unknown if not version.may_be_readable]
    for version in incomplete:
        array.metadata.abandon_write(version.version, version.segments, len(array.children))
        array.unknown.remove(version)
    return len(incomplete)


# --- rebalance ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class RebalanceResult:
    """The result of a rebalance.

    Attributes:
        objects: how many there are.
        moved: those that were rewritten.
        moved_bytes: the size of their content.
        overtaken: those that were replaced or deleted meanwhile, and are left as they are.
        failed: the reason for each of the first paths that could not be moved; they stay as they were.
    """

    objects: int = 0
    moved: int = 0
    moved_bytes: int = 0
    overtaken: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def rebalance_array(array: Array, *, dry_run: bool = False, progress: Progress = _ignore_progress) -> RebalanceResult:
    """Rewrite each object whose shares the placement would now spread differently.

    Args:
        array: prepared.
        dry_run: only count.
        progress: called with the progress.
    """
    result, total = RebalanceResult(), array.metadata.count()
    newest_generation = array.metadata.newest_generation()  # later versions are already placed by the same rule
    for row in array.object_rows():
        if row.generation > newest_generation:
            continue
        result.objects += 1
        if _is_misplaced(array, row):
            if dry_run:
                result.moved, result.moved_bytes = result.moved + 1, result.moved_bytes + row.size_bytes
            else:
                _move_object(array, row, result)
        progress("objects", result.objects, max(total, result.objects))
    return result


def _is_misplaced(array: Array, row: ObjectRow) -> bool:
    manifest = array.manifest_of("rebalance", row)
    return not all(array.placement.suits(segment.split, segment.sealed_bytes) for segment in manifest.segments)


def _move_object(array: Array, row: ObjectRow, result: RebalanceResult) -> None:
    costs = Costs(operations=1)
    content = _StreamedContent(read_object(array, array.manifest_of("rebalance", row), 0, costs), row.size_bytes)
    try:
        is_current = write_object(array, row.path, content, costs, copy_of=row)
    except CloudError as error:
        if array.metadata.find_version(row.version) is None:
            result.overtaken += 1
        elif len(result.failed) < _MOST_PATHS:
            result.failed[row.path] = str(error)
        return
    finally:
        content.close()
        array.ledger.add("rebalance", costs)
    if is_current:
        result.moved, result.moved_bytes = result.moved + 1, result.moved_bytes + row.size_bytes
    else:
        result.overtaken += 1


class _StreamedContent:
    """Content that is read once and in order, as it arrives."""

    def __init__(self, pieces: Iterator[bytes], size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._pieces, self._buffered, self._offset = pieces, b"", 0

    def read(self, offset: int, length: int) -> bytes:
        if offset != self._offset:
            raise ValueError(f"read at {offset} after {self._offset}: this content can only be read in order")
        pieces = [self._buffered]
        available = len(self._buffered)
        while available < length and (piece := next(self._pieces, b"")):
            pieces.append(piece)
            available += len(piece)
        content = b"".join(pieces)
        self._buffered = content[length:]
        self._offset += min(length, len(content))
        return content[:length]

    def close(self) -> None:
        """Stop reading."""
        close = getattr(self._pieces, "close", None)
        if close is not None:
            close()


# --- export -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ExportResult:
    """The result of an export.

    Attributes:
        objects: the number of files written, each complete and authenticated.
        content_bytes: their total size.
        failed: the reason for each path that could not be exported.
    """

    objects: int = 0
    content_bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def count_object(self, row: ObjectRow) -> None:
        """Count an object that was exported."""
        self.objects, self.content_bytes = self.objects + 1, self.content_bytes + row.size_bytes


def export_objects(array: Array, target: Path, progress: Progress = _ignore_progress) -> ExportResult:
    """Write every object as a plain file below a folder, or into one archive if the name ends in ``.tar``.

    Raises UsageError if the target cannot be written.
    """
    is_archive = target.suffix == ".tar"
    try:
        return _export_files(array, target, progress) if not is_archive else _export_archive(array, target, progress)
    except OSError as error:
        raise UsageError(f"{error.filename or target}: cannot be written: {error.strerror or error}") from error


def _export_files(array: Array, target: Path, progress: Progress) -> ExportResult:
    """Write each object into a file of a folder. What this system cannot name is noted as failed."""
    result, total = ExportResult(), array.metadata.count()
    target.mkdir(parents=True, exist_ok=True)
    written: dict[str, list[str]] = defaultdict(list)
    for number, row in enumerate(array.object_rows(), 1):
        alike, path = written[_fold_names(row.path)], target.joinpath(*_names(row.path))
        if any(map(_is_forbidden_name, _names(row.path))):
            result.failed[row.path] = f"{_REFUSED}; {_ADVICE}"
        elif same := next((other for other in alike if _is_one_file(path, target.joinpath(*_names(other)))), ""):
            result.failed[row.path] = f"this system takes its name for that of {same}; {_ADVICE}"
        else:
            alike.append(row.path)
            try:
                _export_newest(array, row, partial(_export_file, array, path), result)
            except (NotADirectoryError, FileExistsError, IsADirectoryError):
                result.failed[row.path] = f"a file and a folder have the same name; {_ADVICE}"
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                result.failed[row.path] = f"{_REFUSALS[error.errno]}; {_ADVICE}"
        progress("objects", number, max(total, number))
    return result


def _names(path: str) -> list[str]:
    return path.strip("/").split("/")


def _is_forbidden_name(part: str) -> bool:
    return "\0" in part or (os.name == "nt" and bool(set(part) & set('\\:<>"|?*')))


def _fold_names(path: str) -> str:
    """Return a text that is equal for all names that any file system takes for one."""
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFD", path).casefold())
    return "/".join(name.rstrip(". ") for name in _names(decomposed))


def _is_one_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # one of them does not exist
        return False


def _export_newest(array: Array, row: ObjectRow, export: Callable[[ObjectRow], None], result: ExportResult) -> None:
    """Export an object in its newest version, or not at all if it is deleted meanwhile."""
    newest: ObjectRow | None = row
    while newest is not None:
        try:
            export(newest)
        except CloudError as error:
            failed, newest = newest, array.metadata.find(row.path)
            if newest is not None and newest.version == failed.version:
                result.failed[row.path] = str(error)
                return
        else:
            result.count_object(newest)
            return


def _export_file(array: Array, path: Path, row: ObjectRow) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: _copy_content(array, row, file), is_durable=True)


def _copy_content(array: Array, row: ObjectRow, file: BinaryIO) -> None:
    written, costs = 0, Costs(operations=1)
    for piece in read_object(array, array.manifest_of("export", row), 0, costs):
        file.write(piece)
        written += len(piece)
    array.ledger.add("export", costs)
    if written != row.size_bytes:
        raise CloudError(ErrorKind.CORRUPT, "export", row.path, detail=f"{written} of {row.size_bytes} bytes")


def _export_archive(array: Array, target: Path, progress: Progress) -> ExportResult:
    """Write the newest readable version of each object into a tar archive."""
    import tarfile

    result, total = ExportResult(), array.metadata.count()
    target.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for number, row in enumerate(array.object_rows(), 1):
                if "\0" in row.path:
                    result.failed[row.path] = "its name has a NUL, where an archive would cut it off"
                else:
                    _export_newest(array, row, partial(add_object, archive, file), result)
                progress("objects", number, max(total, number))

    def add_object(archive: tarfile.TarFile, file: BinaryIO, row: ObjectRow) -> None:
        begin = file.tell()
        header = tarfile.TarInfo(row.path.strip("/"))
        header.size, header.mode = row.size_bytes, 0o600
        try:
            file.write(header.tobuf(tarfile.PAX_FORMAT))
            _copy_content(array, row, file)
        except CloudError:
            file.seek(begin)
            file.truncate()
            raise
        file.write(bytes(-row.size_bytes % tarfile.BLOCKSIZE))
        archive.offset = file.tell()

    write_whole(target, write)
    return result
