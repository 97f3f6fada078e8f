"""The files in which pytest-benchmark stores runs: finding them, reading them, and saying why one cannot be read.

What may live here: what is true of one such file, whoever asks. Nothing in a file is trusted: it may be torn, huge,
from another program or from a later version of this one. ``index`` keeps what it finds in many of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from stat import S_ISREG
from typing import Any

from pytest_cloudbench.judge.baseline import ENTRY_SCHEMA
from pytest_cloudbench.model import ResultsError

LARGEST_BYTES = 256 * 1024 * 1024
_NUMBERED = re.compile(r"\d{4,}_.*\.json")
"""Files of runs, as pytest-benchmark names them; other files in its folder, such as published tables, are not runs."""
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]+")
"""Folders of records; ``cloudbench recover`` writes the entries of a killed run into them."""
_OF_FIRST = frozenset({"provider", "emulated", "versions", "ops", "response_p50"})
"""What entries of schema 1 hold, unlike those of stock benchmarks."""
_OF_SIDES = ("A", "B", "deciding", "stopped", "minutes", "pairs", "differences")
"""What is kept of a comparison of two sides: all but its blocks."""
_NO_COMMIT = frozenset({"unversioned", "unknown", ""})
_NO_BRANCH = frozenset({"(unknown)", "(detached head)", "unknown"})


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that should hold entries of a run.

    Attributes:
        path: the file.
        place: where it is below the storage, with ``/`` on every system; this names it.
        run: the place of the run that it is part of: a recovered run has a file for each entry.
        size_bytes, mtime_ns: as the file system says; another value means other content.
    """

    path: Path
    place: str
    run: str
    size_bytes: int
    mtime_ns: int

    @property
    def is_recovered(self) -> bool:
        """Whether ``cloudbench recover`` has written it, and not pytest-benchmark."""
        return self.run != self.place


@dataclass(frozen=True, slots=True)
class Commit:
    """What pytest-benchmark knew of the code under test; texts are empty if it did not.

    ``is_dirty``: files had been changed since the commit.
    """

    id: str = ""
    branch: str = ""
    is_dirty: bool = False


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry as pytest-benchmark's file holds it, and the schema of its ``info``."""

    fullname: str
    name: str
    params: Mapping[str, Any]
    schema: int
    info: Mapping[str, Any]


def find(storage: Path) -> Iterator[RunFile]:
    """Yields the files of runs below a storage, in no order. A storage that does not exist has none.

    Raises ResultsError if the storage cannot be listed.
    """
    for folder in [storage, *folders(storage)]:
        for found in _listed(folder):
            if _NUMBERED.fullmatch(found.name):
                yield from _run_file(storage, found, found.name)
            elif _RUN_ID.fullmatch(found.name) and found.is_dir(follow_symlinks=False):
                for entry in _listed(Path(found.path)):
                    if entry.name.endswith(".json") and entry.name != "run.json":  # an unmerged run's note
                        yield from _run_file(storage, entry, "")


def folders(storage: Path) -> list[Path]:
    """Returns the folders of a storage, one for each kind of machine. Raises ResultsError if it cannot be listed."""
    return [
        Path(found.path) for found in _listed(storage) if not _RUN_ID.fullmatch(found.name) and found.is_dir()
    ]  # fmt: skip


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ResultsError(f"{folder}: cannot be listed: {error.strerror}") from error


def _run_file(storage: Path, found: os.DirEntry[str], name: str) -> Iterator[RunFile]:
    path = Path(found.path)
    try:
        status = found.stat()
    except OSError:  # gone since, or a link to nothing
        return
    place = path.relative_to(storage).as_posix()
    run = place if name else path.parent.relative_to(storage).as_posix()
    yield RunFile(path, place, run, status.st_size, status.st_mtime_ns)


def read_document(path: Path) -> Any:
    """Read the JSON of a stored run; it may hold anything. Raises ResultsError."""
    try:
        found = path.stat()
        if not S_ISREG(found.st_mode):
            raise ResultsError(f"{path}: expected a file")
        if found.st_size > LARGEST_BYTES:
            raise ResultsError(f"{path}: is larger than {LARGEST_BYTES:,} bytes; expected a stored run")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: is not JSON: {error}") from error


def read(path: Path) -> tuple[Commit, int | None, list[StoredEntry]]:
    """Returns the commit, the time at which a run was stored (Unix epoch, milliseconds), and our entries.

    Entries of stock benchmarks, which say nothing about themselves, are omitted. Raises ResultsError.
    """
    from pytest_cloudbench.results.installed import learn_declared, learn_installed  # agents never come here

    document = read_document(path)
    listed = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ResultsError(f"{path}: is not a run stored by pytest-benchmark: it has no list of benchmarks")
    entries = [entry for each in listed if (entry := _entry(path, each)) is not None]
    learn_installed()  # what the numbers in it mean
    for entry in entries:
        learn_declared(entry.info.get("suite"))
    return commit_of(document.get("commit_info")), _epoch_ms(document.get("datetime")), entries


def _entry(path: Path, found: Any) -> StoredEntry | None:
    named = found if isinstance(found, dict) else {}
    fullname, name, info = named.get("fullname"), named.get("name"), named.get("extra_info") or {}
    if not isinstance(fullname, str) or not isinstance(info, dict):
        raise ResultsError(f"{path}: is not a run stored by pytest-benchmark: an entry without a name")
    schema = info.get("schema", 1 if info.keys() >= _OF_FIRST else None)  # the first version did not number it
    if schema is None:
        return None
    if not isinstance(schema, int) or not 1 <= schema <= ENTRY_SCHEMA:
        raise ResultsError(f"{path}: has entry schema {schema}; this version reads 1 to {ENTRY_SCHEMA}")
    params = named.get("params")
    return StoredEntry(
        fullname, name if isinstance(name, str) else fullname, params if isinstance(params, dict) else {}, schema, info
    )  # fmt: skip


def sides_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an entry says of two sides, ``versus``, or whose ``block`` it is; else nothing."""
    found = {key: info[key] for key in ("versus", "block") if key in info}
    if "versus" in found:
        told = found["versus"] if isinstance(found["versus"], dict) else {}
        found["versus"] = {key: told[key] for key in _OF_SIDES if key in told}
    return found


def commit_of(found: Any) -> Commit:
    """Returns what pytest-benchmark's ``commit_info`` says, of whatever type it is."""
    known = found if isinstance(found, dict) else {}
    commit, branch = (value if isinstance(value, str) else "" for value in (known.get("id"), known.get("branch")))
    is_dirty = known.get("dirty") is True
    return Commit("" if commit in _NO_COMMIT else commit, "" if branch in _NO_BRANCH else branch, is_dirty)


def _epoch_ms(found: Any) -> int | None:
    try:
        return round(datetime.fromisoformat(found).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let in one process at a time to a folder; a killed one releases it."""
    try:
        import fcntl
    except ImportError:  # Windows removes no file that another process has open
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # another one was quicker
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
