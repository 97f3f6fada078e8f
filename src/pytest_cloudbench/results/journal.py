"""What a run may leave on a provider: written down before it is made, crossed out when it is removed.

What may live here: one append-only file in the user's state folder. ``cloudbench clean`` removes what is left
of runs that were killed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_cloudbench.model import ResultsError

__all__ = ["forget", "journal_path", "note", "pending"]


def journal_path() -> Path:
    """The journal's file; ``CLOUDBENCH_JOURNAL`` names another one."""
    chosen = os.environ.get("CLOUDBENCH_JOURNAL")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_state_dir("pytest-cloudbench")) / "journal.jsonl"


def note(provider: str, folder: str) -> None:
    """Write down a folder that is about to be made. Raises ResultsError: without a journal nothing is made."""
    _append({"provider": provider, "folder": folder})


def forget(provider: str, folder: str) -> None:
    """Cross out a folder that has been removed; the file goes with its last entry."""
    _append({"provider": provider, "folder": folder, "removed": True})
    if not pending():
        journal_path().unlink(missing_ok=True)


def pending() -> list[tuple[str, str]]:
    """Provider and folder of everything that has not been removed, oldest first."""
    try:
        lines = journal_path().read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    left: dict[tuple[str, str], None] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            key = (entry["provider"], entry["folder"])
        except (ValueError, KeyError, TypeError):
            continue  # torn by a kill in mid-write: what it was about to name had not been made yet
        if entry.get("removed"):
            left.pop(key, None)
        else:
            left[key] = None
    return list(left)


def _append(entry: dict[str, object]) -> None:
    path = journal_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResultsError(f"{path}: cannot write the journal: {error.strerror}; set CLOUDBENCH_JOURNAL") from error
