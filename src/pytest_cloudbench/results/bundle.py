"""Stored runs in one file that CI can carry from one machine to the next, and taken in again.

What may live here: the archive, and changes to a storage. The archive is a zip file of pytest-benchmark's own files and
of acceptances; the index is made again where they are taken in. It is not trusted: only names that runs have are taken,
below the storage, of bounded size.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import IO

from pytest_cloudbench import opening
from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results import stored
from pytest_cloudbench.results.acceptance import ACCEPTED_FOLDER, ACCEPTED_SUFFIX
from pytest_cloudbench.results.index import Index

__all__ = ["drop", "export_runs", "import_runs"]

_FOLDER = r"(?!\.)[\w.,+ -]{1,100}"
_TAKEN = re.compile(
    rf"({_FOLDER}/)?\d{{4,}}_[^/\\:\x00]{{1,200}}\.json|({_FOLDER}/)?\d{{8}}T\d{{6}}Z-[0-9a-f]+/(?!run\.json)[^/\\:\x00]{{1,200}}\.json"
    rf"|{re.escape(ACCEPTED_FOLDER)}/[0-9a-f]+{re.escape(ACCEPTED_SUFFIX)}"
)
_MOST_BYTES = 1 << 30
"""The most that an archive may unpack to."""


def export_runs(index: Index, runs: Sequence[str], target: Path) -> int:
    """Write runs, by their places, into an archive. Returns how many files. Raises ResultsError."""
    places = {file.place: file.path for file in stored.find(index.storage) if file.run in set(runs)}
    folder = index.storage / ACCEPTED_FOLDER
    places |= {f"{ACCEPTED_FOLDER}/{path.name}": path for path in folder.glob(f"*{ACCEPTED_SUFFIX}")}

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for place, path in sorted(places.items()):
                archive.write(path, place)

    try:
        opening.write_whole(target, write)
    except (OSError, ValueError, zipfile.LargeZipFile) as error:
        raise ResultsError(f"{target}: cannot be written: {error}") from error
    return len(places)


def import_runs(storage: Path, source: Path) -> tuple[int, int, list[str]]:
    """Take in the runs of an archive. What is there is never overwritten.

    Returns how many files are new, how many were there already, and the names of files that are not runs. Raises
    ResultsError; then nothing was taken in.
    """
    new, known, strange = list[tuple[Path, bytes]](), 0, list[str]()
    try:
        with zipfile.ZipFile(source) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if sum(member.file_size for member in members) > _MOST_BYTES:
                raise ResultsError(f"{source}: unpacks to more than {_MOST_BYTES:,} bytes; expected stored runs")
            for member in members:
                if not _TAKEN.fullmatch(member.filename) or member.file_size > stored.LARGEST_BYTES:
                    strange.append(member.filename)
                    continue
                content = archive.read(member)
                path = _place_for(storage / member.filename, content)
                if path is None:
                    known += 1
                else:
                    new.append((path, content))
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise ResultsError(f"{source}: not an archive of runs, or damaged: {error}") from error
    for path, content in new:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opening.write_whole(path, partial(_put, content))
        except OSError as error:
            raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
    return len(new), known, strange


def _put(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def _place_for(path: Path, content: bytes) -> Path | None:
    """Returns where to put a file, beside another one of its name if need be; None if it is there."""
    for candidate in (path, path.with_stem(f"{path.stem}-{blake2b(content, digest_size=4).hexdigest()}")):
        if not candidate.exists():
            return candidate
        if candidate.read_bytes() == content:
            return None
    return None


def drop(index: Index, run: str) -> int:
    """Delete the files of a run; the records of its operations stay. Returns how many. Raises ResultsError."""
    paths = [file.path for file in stored.find(index.storage) if file.run == run]
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ResultsError(f"{path}: cannot be removed: {error.strerror}") from error
    return len(paths)
