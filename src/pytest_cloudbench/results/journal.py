"""What a run may leave on a provider: noted before it is made, crossed out once it is known to be gone.

What may live here: one append-only file in the user's state folder, and the folders of runs that it names. A run has
one folder at the top of a provider, ``/cloudbench-RUN``. In it, before anything else, is a marker with the run's name:
``cloudbench clean`` removes a folder that has both, and nothing else, whatever the file says.
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
from pytest_cloudbench.model import CloudError, Entry, ErrorKind, ResultsError
from pytest_cloudbench.support import opening
from pytest_cloudbench.workload.payload.contents import Literal

MARKER = "cloudbench-run"
"""The file in a run's folder that holds the run's name."""

_MOST_BYTES = 16 * 1024 * 1024
_MARKER_BYTES = 256
_FOLDER = re.compile(r"/cloudbench-([A-Za-z0-9][A-Za-z0-9._-]{0,99})")


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A run's folder that may still exist, and its provider's spec, which is valid from any working folder.

    ``owner`` is the process whose run it is, as ``results.owner`` describes it; empty if that is not known.
    """

    provider: str
    folder: str
    owner: str = field(default="", compare=False)


def journal_path() -> Path:
    """Returns the journal's file; ``CLOUDBENCH_JOURNAL`` names another one."""
    chosen = os.environ.get("CLOUDBENCH_JOURNAL")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_state_dir("pytest-cloudbench")) / "journal.jsonl"


def note(provider: str, folder: str, owner: str = "") -> None:
    """Write down a folder that is about to be made. Raises ResultsError: without a journal nothing is made."""
    _append({"provider": provider, "folder": folder, "owner": owner})


def forget(provider: str, folder: str) -> None:
    """Cross out a folder that is gone; the file becomes empty after the last one."""
    _append({"provider": provider, "folder": folder, "removed": True})


def pending() -> tuple[list[LeftFolder], list[str]]:
    """Returns what has not been removed, oldest first, and what is wrong with the file, a sentence for each line."""
    try:
        with opening.regular_file(journal_path(), _MOST_BYTES) as file:
            return _read(file)
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{journal_path()}: {error.strerror}"]


@contextlib.contextmanager
def cleaning(wait: Callable[[], None]) -> Iterator[None]:
    """Be the only process on this machine that removes what the journal names; ``wait`` is called if another one does.

    Read what is ``pending`` after that. If there is no journal, or no lock, there is no waiting.
    """
    path = journal_path()
    with contextlib.ExitStack() as stack:
        if path.exists():
            with contextlib.suppress(OSError):  # a folder that cannot be written
                file = stack.enter_context(opening.regular_log(path.with_name(f"{path.name}.lock"), _MOST_BYTES))
                stack.enter_context(_locked(file, wait))
        yield


def run_of(folder: str) -> str:
    """Returns the run that a folder is named after; empty if it does not have a run's name."""
    found = _FOLDER.fullmatch(folder)
    return found[1] if found else ""


def marker_beside(folder: str) -> str:
    """Returns the name of a marker beside a run's folder, for a folder whose whole content a sync client mirrors.

    Most clients ignore such a name.
    """
    return f"/.~cloudbench-{run_of(folder)}"


# --- the folders themselves: calls of a driver --------------------------------------------------------


def claim(driver: Driver, provider: str, folder: str, owner: str) -> None:
    """Make a run's folder, with its marker; it is in the journal first. Raises CloudError and ResultsError."""
    note(provider, folder, owner)
    marker, run = f"{folder}/{MARKER}", run_of(folder)
    if driver.capabilities.overwrites or not _holds(driver, marker, run):  # each test of a run claims its folder
        driver.put(marker, Literal(run.encode()))


def release(driver: Driver, provider: str, folder: str) -> None:
    """Remove a run's folder that holds nothing but its marker, and cross it out when it is gone. Raises CloudError."""
    with _missing_is_fine():
        if any(entry.path.rpartition("/")[2] != MARKER for entry in islice(driver.list(folder), 2)):
            return
        driver.delete(folder)
    if _is_gone(driver, folder):
        forget(provider, folder)


def remove(driver: Driver, left: LeftFolder) -> str:
    """Remove a folder that a run left, with all it holds, and cross it out when it is gone. Raises CloudError.

    Returns why it was left alone, or an empty text.
    """
    run = run_of(left.folder)
    if not run:
        return "does not have the name of a run's folder: left alone"
    inside, beside = f"{left.folder}/{MARKER}", marker_beside(left.folder)
    is_beside = _holds(driver, beside, run)
    if not _is_gone(driver, left.folder):
        if not is_beside and not _holds(driver, inside, run):
            return f"has no marker of run {run}: left alone, since it may not be a run's; look at it yourself"
        with _missing_is_fine():
            paths = {"/".join(entry.path.split("/")[:3]) for entry in driver.list(left.folder)} - {inside}
            # The marker goes last, so that an interrupted removal can be continued.
            for path in [*paths, left.folder]:
                with _missing_is_fine():  # another machine cleans, too
                    driver.delete(path)
        if not _is_gone(driver, left.folder):
            return "is still there"
    if is_beside:
        with _missing_is_fine():
            driver.delete(beside)
    forget(left.provider, left.folder)
    return ""


def _is_gone(driver: Driver, folder: str) -> bool:
    if not driver.capabilities.folders:  # a folder is what its files' keys begin with
        left: list[Entry] = []
        with _missing_is_fine():
            left += islice(driver.list(folder), 1)
        return not left
    try:
        driver.stat(folder)
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise
        return True
    return False


def _holds(driver: Driver, path: str, run: str) -> bool:
    """Returns whether the marker exists and belongs to this run."""
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


@contextlib.contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise


# --- the file -----------------------------------------------------------------------------------------


def _read(file: IO[bytes]) -> tuple[list[LeftFolder], list[str]]:
    left: dict[LeftFolder, None] = {}
    problems = []
    for number, line in enumerate(file.read(_MOST_BYTES).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found = LeftFolder(entry["provider"], entry["folder"], entry.get("owner", ""))
            removed = entry.get("removed", False)
            if {type(found.provider), type(found.folder), type(found.owner)} != {str}:
                raise TypeError("provider, folder and owner are texts")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # The last one may be torn by a kill in mid-write: what it was about to name had not been made yet.
            problems.append(f"{journal_path()}: line {number} is not an entry of a journal: skipped")
            continue
        left.pop(found, None)
        if removed is not True:
            left[found] = None
    return list(left), problems


def _append(entry: dict[str, object]) -> None:
    path = journal_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opening.regular_log(path, _MOST_BYTES) as file, _locked(file):
            file.seek(0)
            before = file.read(_MOST_BYTES)
            # After a line that a kill has torn, one of its own.
            file.write((b"\n" if before and not before.endswith(b"\n") else b"") + json.dumps(entry).encode() + b"\n")
            file.seek(0)
            if entry.get("removed") and _read(file) == ([], []):
                file.truncate(0)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the journal: {error.strerror}; set CLOUDBENCH_JOURNAL") from error


@contextlib.contextmanager
def _locked(file: IO[bytes], wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock the file for this process; ``wait`` is called before it has to wait.

    Agents and runs write one at a time: none may empty the journal while another one adds to it.
    """
    try:
        import fcntl
    except ImportError:  # Windows: a line is written at once
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
