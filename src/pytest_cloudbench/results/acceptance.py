"""Runs that the user accepted as new baselines: a change was meant, and what was before it no longer counts.

What may live here: the files that say so. Each acceptance is a file of its own, so that two at the same time lose
nothing; pytest-benchmark does not see them, because they do not end in ``.json``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from pytest_cloudbench import opening
from pytest_cloudbench.model import ResultsError

__all__ = ["ACCEPTED_FOLDER", "ACCEPTED_SUFFIX", "Accepted", "accept", "accepted"]

ACCEPTED_FOLDER, ACCEPTED_SUFFIX = "cloudbench-accepted", ".accepted"
_MOST_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run with which baselines begin.

    Attributes:
        run: its name.
        time_ms: when it started, Unix epoch, milliseconds; earlier runs do not serve as a baseline.
        test: the full name of the test that this is about; empty: all tests.
        reason: in the user's words.
        until_ms: when the last run started that was stored by then. The gate judged the runs up to it by what was
            before the change: if only the gate failed one of them, it counts as passed. Later ones it judges by the
            new baseline.
    """

    run: str
    time_ms: int
    test: str = ""
    reason: str = ""
    until_ms: int = 0

    def is_about(self, test: str) -> bool:
        """Returns whether the acceptance is about a test."""
        return self.test in ("", test)


def accept(storage: Path, decision: Accepted) -> Path:
    """Write an acceptance down. Returns its file. Raises ResultsError."""
    content = json.dumps(asdict(decision), indent=1)
    path = storage / ACCEPTED_FOLDER / f"{blake2b(content.encode(), digest_size=8).hexdigest()}{ACCEPTED_SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(path, lambda file: file.write(content.encode()))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def accepted(storage: Path) -> list[Accepted]:
    """Returns all acceptances, the latest run last. Files that are not acceptances are ignored."""
    found = []
    for path in sorted((storage / ACCEPTED_FOLDER).glob(f"*{ACCEPTED_SUFFIX}")):
        try:
            if path.is_file() and path.stat().st_size <= _MOST_BYTES:
                told = json.loads(path.read_text(encoding="utf-8"))
                run, test, reason = (str(told[name]) for name in ("run", "test", "reason"))
                found.append(Accepted(run, int(told["time_ms"]), test, reason, int(told.get("until_ms", 0))))
        except (OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
            continue
    return sorted(found, key=lambda each: each.time_ms)
