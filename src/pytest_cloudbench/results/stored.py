"""The files in which pytest-benchmark stores runs: finding them, reading them, and explaining why one cannot be read.

Nothing in a file is trusted: it may be torn, huge, from another program or from a later version of this one. ``index``
caches the content of many files.
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
_NUMBERED = re.compile(r"(\d{4,})_.*\.json")
"""Names of files of runs in pytest-benchmark's folder. Other files, such as published tables, are not runs."""
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]+")
"""Names of folders of records, into which ``cloudbench recover`` writes the entries of a killed run."""
_FIRST_SCHEMA_KEYS = frozenset({"provider", "emulated", "versions", "ops", "response_p50"})
"""Keys of entries of schema 1, which those of stock benchmarks do not have."""
_COMPARISON_KEYS = ("A", "B", "deciding", "stopped", "minutes", "pairs", "differences")
"""Keys that are kept of a comparison of two sides, which are all but its blocks."""
_HOST_NUMBERS = ("ok_rate", "throttled_rate", "failed_rate", "response_p50", "response_p95", "response_p99")
"""Metrics of each host that have a history."""
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, after which no calendar of Python has a date."""
_NO_COMMIT = frozenset({"unversioned", "unknown", ""})
_NO_BRANCH = frozenset({"(unknown)", "(detached head)", "unknown"})


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that should hold entries of a run.

    Attributes:
        path: the file.
        place: its path below the storage, with ``/`` on every system, which identifies it.
        run: the place of its run. A recovered run has a file for each entry.
        size_bytes, mtime_ns: as the file system reports them. Another value means other content.
    """

    path: Path
    place: str
    run: str
    size_bytes: int
    mtime_ns: int

    @property
    def is_recovered(self) -> bool:
        """True if ``cloudbench recover`` has written it, and not pytest-benchmark."""
        return self.run != self.place


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of the code under test, as far as pytest-benchmark knew it. Unknown texts are empty.

    ``is_dirty`` means that files had been changed since the commit.
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


def run_number(file_name: str) -> int | None:
    """Return the number in the name of a run's file as pytest-benchmark gives it, None for any other file."""
    match = _NUMBERED.fullmatch(file_name)
    return match and int(match[1])


def find_run_files(storage: Path) -> Iterator[RunFile]:
    """Yield the files of runs below a storage, in no order. A storage that does not exist has none.

    Raises ResultsError if the storage cannot be listed.
    """
    for folder in [storage, *machine_folders(storage)]:
        for item in _list_folder(folder):
            if run_number(item.name) is not None:
                yield from _make_run_file(storage, item)
            elif _RUN_ID.fullmatch(item.name) and item.is_dir(follow_symlinks=False):
                for entry in _list_folder(Path(item.path)):
                    is_note = entry.name == "run.json"  # of an unmerged run
                    if entry.name.endswith(".json") and not is_note:
                        yield from _make_run_file(storage, entry, is_recovered=True)


def machine_folders(storage: Path) -> list[Path]:
    """Return the folders of a storage, one for each kind of machine. Raises ResultsError if it cannot be listed."""
    return [
        Path(item.path) for item in _list_folder(storage) if not _RUN_ID.fullmatch(item.name) and item.is_dir()
    ]  # fmt: skip


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ResultsError(f"{folder}: cannot be listed: {error.strerror}") from error


def _make_run_file(storage: Path, item: os.DirEntry[str], *, is_recovered: bool = False) -> Iterator[RunFile]:
    """Yield the file, unless it is gone."""
    path = Path(item.path)
    try:
        status = item.stat()
    except OSError:  # removed meanwhile, or a dangling link
        return
    place = path.relative_to(storage).as_posix()
    run = path.parent.relative_to(storage).as_posix() if is_recovered else place
    yield RunFile(path, place, run, status.st_size, status.st_mtime_ns)


def read_document(path: Path) -> Any:
    """Read the JSON of a stored run, which may hold anything. Raises ResultsError."""
    try:
        status = path.stat()
        if not S_ISREG(status.st_mode):
            raise ResultsError(f"{path}: expected a file")
        if status.st_size > LARGEST_BYTES:
            raise ResultsError(f"{path}: is larger than {LARGEST_BYTES:,} bytes; expected a stored run")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: is not JSON: {error}") from error


def read_run(path: Path) -> tuple[Commit, int | None, list[StoredEntry]]:
    """Return the commit, the time at which a run was stored (Unix epoch, milliseconds), and our entries.

    Entries of stock benchmarks, which do not describe themselves, are omitted. Raises ResultsError.
    """
    # Imported here, because agents never need it.
    from pytest_cloudbench.results.installed import learn_installed, learn_stored

    document = read_document(path)
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list):
        raise ResultsError(f"{path}: is not a run stored by pytest-benchmark: it has no list of benchmarks")
    entries = [entry for benchmark in benchmarks if (entry := _read_entry(path, benchmark)) is not None]
    learn_installed()  # it declares the metrics of the entries
    for entry in entries:
        learn_stored(entry.info.get("suite"))
    return read_commit(document.get("commit_info")), epoch_ms(document.get("datetime")), entries


def _read_entry(path: Path, benchmark: Any) -> StoredEntry | None:
    fields = benchmark if isinstance(benchmark, dict) else {}
    fullname, name, info = fields.get("fullname"), fields.get("name"), fields.get("extra_info") or {}
    if not isinstance(fullname, str) or not isinstance(info, dict):
        raise ResultsError(f"{path}: is not a run stored by pytest-benchmark: an entry without a name")
    # The first version stored no schema number.
    schema = info.get("schema", 1 if info.keys() >= _FIRST_SCHEMA_KEYS else None)
    if schema is None:
        return None
    if not isinstance(schema, int) or not 1 <= schema <= ENTRY_SCHEMA:
        raise ResultsError(f"{path}: has entry schema {schema}; this version reads 1 to {ENTRY_SCHEMA}")
    params = dict(fields["params"]) if isinstance(fields.get("params"), dict) else {}
    if params.get("provider") == info.get("provider"):  # it is there for pytest-benchmark's own grouping
        params.pop("provider", None)
    return StoredEntry(fullname, name if isinstance(name, str) else fullname, params, schema, info)


def read_sides(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry's fields about two sides, which are ``versus`` or ``block``, if it has any."""
    sides = {key: info[key] for key in ("versus", "block") if key in info}
    if "versus" in sides:
        comparison = sides["versus"] if isinstance(sides["versus"], dict) else {}
        sides["versus"] = {key: comparison[key] for key in _COMPARISON_KEYS if key in comparison}
    return sides


def start_ms(info: Mapping[str, Any]) -> int | None:
    """Return when an entry began, Unix epoch, milliseconds. None if it holds no such time."""
    value = info.get("start_wall_ms")
    return value if isinstance(value, int) and 0 < value <= _LAST_MS else None


def read_columns(info: Mapping[str, Any]) -> list[str]:
    """Return the names that the table of a conclusion shows. Empty for other entries."""
    names = info.get("columns")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def records_path(name: str) -> Path:
    r"""Return the relative path of a file that an entry names. Earlier versions wrote it with ``\`` on Windows."""
    return Path(name.replace("\\", "/"))


def read_host_numbers(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual numbers of each host of an entry by ``NAME@HOST``. Empty unless several hosts measured."""
    hosts = info.get("by_host")
    return {
        f"{name}@{host}": figures[name]
        for host, figures in (hosts.items() if isinstance(hosts, dict) else ()) if isinstance(figures, dict)
        for name in _HOST_NUMBERS if name in figures
    }  # fmt: skip


def read_commit(commit_info: Any) -> Commit:
    """Return the commit in pytest-benchmark's ``commit_info``, of whatever type that is."""
    fields = commit_info if isinstance(commit_info, dict) else {}
    commit, branch = (value if isinstance(value, str) else "" for value in (fields.get("id"), fields.get("branch")))
    is_dirty = fields.get("dirty") is True
    return Commit("" if commit in _NO_COMMIT else commit, "" if branch in _NO_BRANCH else branch, is_dirty)


def epoch_ms(date: Any) -> int | None:
    """Return the time of a date as pytest-benchmark writes it, or None for anything else. Unix epoch, milliseconds."""
    try:
        return round(datetime.fromisoformat(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time use a folder. A killed process releases it."""
    try:
        import fcntl
    except ImportError:  # on Windows no file can be removed while another process has it open
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # another process has removed it
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
