"""Stored runs in one archive, which CI can carry from one machine to the next and import there.

The archive is a zip file of pytest-benchmark's own files and of acceptances. The index is made again where they are
imported. The archive is not trusted: only files with names of runs are imported, below the storage, and of bounded
size.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.acceptance import ACCEPTED_FOLDER, ACCEPTED_SUFFIX
from pytest_cloudbench.results.index import Index
from pytest_cloudbench.support import opening

_FOLDER = r"(?!\.)[\w.,+ -]{1,100}"
_ACCEPTED_NAMES = re.compile(
    rf"({_FOLDER}/)?\d{{4,}}_[^/\\:\x00]{{1,200}}\.json|({_FOLDER}/)?\d{{8}}T\d{{6}}Z-[0-9a-f]+/(?!run\.json)[^/\\:\x00]{{1,200}}\.json"
    rf"|{re.escape(ACCEPTED_FOLDER)}/[0-9a-f]+{re.escape(ACCEPTED_SUFFIX)}"
)
_MAX_BYTES = 1 << 30
"""The maximum size of an archive, packed and unpacked."""
_MAX_RATIO = 200
"""How many times its own size an archive may unpack to: text deflates to about a tenth, a bomb to a thousandth."""
_MAX_NAME_BYTES = 210
"""The longest name of a file in an archive: file systems hold 255 bytes, and a little is added to it."""
_DAMAGE_ERRORS = (
    OSError, ValueError, LookupError, OverflowError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
    struct.error,
)  # fmt: skip
"""The errors of zipfile for bytes that are not an archive, which have no common class."""


def export_runs(index: Index, runs: Sequence[str], target: Path) -> int:
    """Write runs, by their places, into an archive, and return the number of files.

    Raises ResultsError and UsageError.
    """
    places = {file.place: file.path for file in find_own_files(index, runs)}
    folder = index.storage / ACCEPTED_FOLDER
    places |= {f"{ACCEPTED_FOLDER}/{path.name}": path for path in folder.glob(f"*{ACCEPTED_SUFFIX}")}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for place, path in sorted(places.items()):
                archive.write(path, place)

    try:
        opening.write_whole(target, write)
    except (OSError, ValueError, zipfile.LargeZipFile) as error:
        raise ResultsError(f"{target}: cannot be written: {opening.explain_error(error)}") from error
    return len(places)


def find_own_files(index: Index, runs: Collection[str]) -> list[stored.RunFile]:
    """Return the files of runs. Raises UsageError for a run of another storage, which the index may have as well."""
    wanted = set(runs)
    files = [file for file in stored.find_run_files(index.storage) if file.run in wanted]
    if others := wanted - {file.run for file in files}:
        raise UsageError(f"{min(others)}: is not in {index.storage}: name the folder that it is in by --storage")
    return files


def import_runs(storage: Path, source: Path) -> tuple[int, int, list[str]]:
    """Import the runs of an archive. Existing files are never overwritten.

    Return how many files are new, how many existed already, and the names of files that are not runs. Raises
    UsageError if the archive cannot be opened, and ResultsError. If it is at fault, nothing was imported.
    """
    planned, known_count = dict[Path, tuple[zipfile.ZipInfo, str]](), 0
    try:
        with opening.open_regular_file(source, _MAX_BYTES) as file, zipfile.ZipFile(file) as archive:
            runs, other_names = _select_runs(archive, source)
            for member in runs:  # all are read before the first is written, one at a time
                content = archive.read(member)
                digest = blake2b(content, digest_size=16).hexdigest()
                path = _choose_path(storage / member.filename, content, digest, planned)
                known_count += path is None
                if path is not None:
                    planned[path] = member, digest
            for path, (member, _) in planned.items():
                _write_file(path, archive.read(member))
    except _DAMAGE_ERRORS as error:
        if isinstance(error, OSError) and error.filename is not None:  # it was not opened
            why = f"{error.strerror}; expected what cloudbench baseline export wrote"
            raise UsageError(f"{source}: {why}") from error
        raise ResultsError(f"{source}: not an archive of runs, or damaged: {error}") from error
    return len(planned), known_count, other_names


def _select_runs(archive: zipfile.ZipFile, source: Path) -> tuple[list[zipfile.ZipInfo], list[str]]:
    """Return the members that are runs, and the names of the others. Raises ResultsError for what no export writes."""
    members = [member for member in archive.infolist() if not member.is_dir()]
    size_bytes, packed_bytes = sum(member.file_size for member in members), source.stat().st_size
    if size_bytes > _MAX_BYTES:
        raise ResultsError(f"{source}: unpacks to more than {_MAX_BYTES:,} bytes; expected stored runs")
    if size_bytes > _MAX_RATIO * packed_bytes + opening.MIB:
        ratio = size_bytes // packed_bytes
        raise ResultsError(f"{source}: unpacks to {ratio:,} times its size; stored runs stay below {_MAX_RATIO}")
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            name = ascii(member.filename)
            raise ResultsError(f"{source}: {name} is compressed in a way that cloudbench baseline export does not use")
    runs = [member for member in members if _is_run(member)]
    return runs, [member.filename for member in members if not _is_run(member)]


def _is_run(member: zipfile.ZipInfo) -> bool:
    name_bytes = len(member.filename.rpartition("/")[2].encode())
    is_named = _ACCEPTED_NAMES.fullmatch(member.filename) is not None and name_bytes <= _MAX_NAME_BYTES
    return is_named and member.file_size <= stored.LARGEST_BYTES


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error


def _choose_path(
    path: Path, content: bytes, digest: str, planned: Mapping[Path, tuple[zipfile.ZipInfo, str]]
) -> Path | None:
    """Return the path for a file, beside another one of its name if necessary, or None if it exists already."""
    for candidate in (path, path.with_stem(f"{path.stem}-{digest[:8]}")):
        if candidate in planned:
            if planned[candidate][1] == digest:
                return None
        elif not os.path.lexists(candidate):
            return candidate
        elif _has_content(candidate, content):
            return None
    return None


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return opening.read_file(path, stored.LARGEST_BYTES) == content
    except OSError:  # such as a folder, or a file that only another user may read
        return False


def delete_run(index: Index, run: str) -> None:
    """Delete the files of a run. The records of its operations stay. Raises ResultsError and UsageError."""
    for file in find_own_files(index, [run]):
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            raise ResultsError(f"{file.path}: cannot be removed: {error.strerror}") from error
