"""The journal of folders that a run may leave on a provider, added before they are made and crossed out once they are
gone.

The journal is one append-only file in the user's state folder. A run has one folder at the top of a provider,
``/cloudbench-RUN``. The first file in it is a marker with the run's name. ``cloudbench clean`` removes only a folder
that has this name and this marker, whatever the journal says.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.model import CloudError, Entry, ErrorKind, ResultsError, ignore_missing
from pytest_cloudbench.support import opening

MARKER = "cloudbench-run"
"""The file in a run's folder that holds the run's name."""

_MAX_BYTES = 16 * 1024 * 1024
_MARKER_BYTES = 256
_FOLDER = re.compile(r"/cloudbench-([A-Za-z0-9][A-Za-z0-9._-]{0,99})")


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A run's folder that may still exist, and its provider's spec, which is valid from any working folder.

    ``owner`` is the process of the run, as ``results.owner`` describes it, or empty if that is not known.
    """

    provider: str
    folder: str
    owner: str = field(default="", compare=False)


def journal_path() -> Path:
    """Return the journal's file, which ``CLOUDBENCH_JOURNAL`` can change."""
    custom_path = os.environ.get("CLOUDBENCH_JOURNAL")
    if custom_path:
        return Path(custom_path)
    import platformdirs

    return Path(platformdirs.user_state_dir("pytest-cloudbench")) / "journal.jsonl"


def note_folder(provider: str, folder: str, owner: str = "") -> None:
    """Record a folder that is about to be made. Raises ResultsError, since without a journal no folder may be made."""
    _append_entry({"provider": provider, "folder": folder, "owner": owner})


def forget_folder(provider: str, folder: str) -> None:
    """Cross out a folder that is gone. The file becomes empty after the last one."""
    _append_entry({"provider": provider, "folder": folder, "removed": True})


def pending_folders() -> tuple[list[LeftFolder], list[str]]:
    """Return the folders that were not removed, oldest first, and a sentence about each invalid line of the file."""
    try:
        with opening.open_regular_file(journal_path(), _MAX_BYTES) as file:
            return _parse_journal(file)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{journal_path()}: {error.strerror}"]


@contextlib.contextmanager
def wait_to_clean(wait: Callable[[], None]) -> Iterator[None]:
    """Be the only process on this machine that removes folders of the journal.

    Calls ``wait`` before it waits for another process. Read ``pending_folders`` inside. Without a journal or a lock
    there is no waiting.
    """
    path = journal_path()
    with contextlib.ExitStack() as stack:
        if path.exists():
            with contextlib.suppress(OSError):  # such as a folder without write permission
                file = stack.enter_context(opening.open_regular_log(path.with_name(f"{path.name}.lock"), _MAX_BYTES))
                stack.enter_context(_lock_file(file, wait))
        yield


def run_in_name(folder: str) -> str:
    """Return the run that a folder is named after, or an empty text."""
    match = _FOLDER.fullmatch(folder)
    return match[1] if match else ""


def marker_beside(folder: str) -> str:
    """Return the path of a marker beside a run's folder, for a folder whose whole content a sync client mirrors.

    Most clients ignore files of such a name.
    """
    return f"/.~cloudbench-{run_in_name(folder)}"


# --- the folders themselves: calls of a driver --------------------------------------------------------


def claim_folder(driver: Driver, provider: str, folder: str, owner: str) -> None:
    """Make a run's folder with its marker, after adding it to the journal. Raises CloudError and ResultsError."""
    note_folder(provider, folder, owner)
    marker, run = f"{folder}/{MARKER}", run_in_name(folder)
    if driver.capabilities.overwrites or not _is_marker_of(driver, marker, run):  # each test of a run claims its folder
        from pytest_cloudbench.workload.payload.contents import Literal

        driver.put(marker, Literal(run.encode()))


def release_folder(driver: Driver, provider: str, folder: str) -> None:
    """Remove a run's folder that holds only its marker, and cross it out when it is gone. Raises CloudError."""
    with ignore_missing():
        if any(entry.path.rpartition("/")[2] != MARKER for entry in islice(driver.list(folder), 2)):
            return
        driver.delete(folder)
    if _is_gone(driver, folder):
        forget_folder(provider, folder)


def remove_folder(driver: Driver, left: LeftFolder) -> str:
    """Remove a folder that a run left, with all its contents, and cross it out when it is gone. Raises CloudError.

    Return why it was left alone, or an empty text.
    """
    run = run_in_name(left.folder)
    if not run:
        return "does not have the name of a run's folder: left alone"
    marker, outside_marker = f"{left.folder}/{MARKER}", marker_beside(left.folder)
    is_beside = _is_marker_of(driver, outside_marker, run)
    if not _is_gone(driver, left.folder):
        if not is_beside and not _is_marker_of(driver, marker, run):
            return f"has no marker of run {run}: left alone, since it may not be a run's; look at it yourself"
        with ignore_missing():
            paths = {"/".join(entry.path.split("/")[:3]) for entry in driver.list(left.folder)} - {marker}
            # The marker goes last, so that an interrupted removal can be continued.
            for path in [*paths, left.folder]:
                with ignore_missing():  # another machine may be cleaning, too
                    driver.delete(path)
        if not _is_gone(driver, left.folder):
            return "is still there"
    if is_beside:
        with ignore_missing():
            driver.delete(outside_marker)
    forget_folder(left.provider, left.folder)
    return ""


def _is_gone(driver: Driver, folder: str) -> bool:
    if not driver.capabilities.folders:  # flat key space: a folder is only a key prefix
        entries: list[Entry] = []
        with ignore_missing():
            entries += islice(driver.list(folder), 1)
        return not entries
    try:
        driver.stat(folder)
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
        return True
    return False


def _is_marker_of(driver: Driver, path: str, run: str) -> bool:
    """Return whether the marker exists and belongs to this run."""
    content = b""
    try:
        for piece in driver.get(path):
            content += piece
            if len(content) > _MARKER_BYTES:
                break
    except CloudError as error:
        if error.kind not in {ErrorKind.NOT_FOUND, ErrorKind.CONFLICT, ErrorKind.INVALID}:
            raise
    return content == run.encode()


# --- the file -----------------------------------------------------------------------------------------


def _parse_journal(file: IO[bytes]) -> tuple[list[LeftFolder], list[str]]:
    """Return the folders that are not crossed out, and a sentence about each invalid line."""
    folders: dict[LeftFolder, None] = {}
    problems = []
    for number, line in enumerate(file.read(_MAX_BYTES).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            folder = LeftFolder(entry["provider"], entry["folder"], entry.get("owner", ""))
            removed = entry.get("removed", False)
            if {type(folder.provider), type(folder.folder), type(folder.owner)} != {str}:
                raise TypeError("provider, folder and owner are texts")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # A kill may have torn the last line, but then its folder had not been made yet.
            problems.append(f"{journal_path()}: line {number} is not an entry of a journal: skipped")
            continue
        folders.pop(folder, None)
        if removed is not True:
            folders[folder] = None
    return list(folders), problems


def _append_entry(entry: dict[str, object]) -> None:
    path = journal_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opening.open_regular_log(path, _MAX_BYTES) as file, _lock_file(file):
            file.seek(0)
            content = file.read(_MAX_BYTES)
            # Start a new line after one that a kill has torn.
            file.write((b"\n" if content and not content.endswith(b"\n") else b"") + json.dumps(entry).encode() + b"\n")
            file.seek(0)
            if entry.get("removed") and _parse_journal(file) == ([], []):
                file.truncate(0)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the journal: {error.strerror}; set CLOUDBENCH_JOURNAL") from error


@contextlib.contextmanager
def _lock_file(file: IO[bytes], wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the file for this process. Calls ``wait`` before it has to wait.

    Agents and runs write one at a time, so that none empties the journal while another one adds to it.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where a line is still written at once
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wait()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError:  # a file system without locks
        pass
    yield
