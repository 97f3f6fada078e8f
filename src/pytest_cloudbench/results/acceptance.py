"""The user's decisions about baselines: that a change was intended, or that a test has another name now.

Each decision is a file of its own, so that two at the same time lose nothing. pytest-benchmark does not see them,
because they do not end in ``.json``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import ResultsError
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.support import opening

ACCEPTED_FOLDER, ACCEPTED_SUFFIX = "cloudbench-accepted", ".accepted"
_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Accepted:
    """A run at which baselines begin.

    Attributes:
        run: its name.
        time_ms: when it started, Unix epoch, milliseconds. Earlier runs do not serve as a baseline.
        test: the full name of the test that this is about, or empty for all tests.
        reason: the user's words.
        until_ms: the start of the last entry that was stored when the user decided. The gate judged the entries up to
            it by the former baseline, so if only the gate failed one of them, it counts as passed. The gate judges
            later ones by the new baseline.
    """

    run: str
    time_ms: int
    test: str = ""
    reason: str = ""
    until_ms: int = 0

    def covers(self, test: str) -> bool:
        """Return whether the acceptance is about a test."""
        return self.test in ("", test)


def write_acceptance(storage: Path, decision: Accepted) -> Path:
    """Write an acceptance, and return its file. Raises ResultsError."""
    return _write_decision(storage, asdict(decision))


def withdraw_acceptances(storage: Path, run: str, tests: Sequence[str]) -> int:
    """Remove the acceptances of a run for some tests, or for all if none is named. Returns how many there were.

    Raises ResultsError.
    """
    count = 0
    for path in sorted((storage / ACCEPTED_FOLDER).glob(f"*{ACCEPTED_SUFFIX}")):
        decision = _read_decision(path)
        if decision is None or decision.get("run") != run or (tests and decision.get("test") not in tests):
            continue
        try:
            path.unlink()
        except OSError as error:
            raise ResultsError(f"{path}: cannot be removed: {error.strerror}") from error
        count += 1
    return count


def write_rename(storage: Path, old: str, new: str) -> Path:
    """Record that a test has another full name now, and takes over the runs of the old one.

    Return the file. Raises ResultsError.
    """
    return _write_decision(storage, {"renamed": old, "to": new})


def former_names(storage: Path) -> dict[str, list[str]]:
    """Return the former full names of tests that were renamed, by their present ones."""
    old_names: dict[str, list[str]] = {}
    for decision in _read_decisions(storage):
        old, new = decision.get("renamed"), decision.get("to")
        if isinstance(old, str) and isinstance(new, str):
            old_names.setdefault(new, []).append(old)
    for new, names in old_names.items():  # a test may have been renamed several times
        for name in names:
            names += [older for older in old_names.get(name, ()) if older not in names and older != new]
    return old_names


def names_before(renamed: Mapping[str, Sequence[str]], fullname: str) -> list[str]:
    """Return the former names of a test, as ``former_names`` has read them.

    A renamed function is renamed with all its parameters and labels.
    """
    test = split_name(fullname).test
    remainder = fullname.removeprefix(test)
    by_function = (f"{old}{remainder}" for old in renamed.get(test, ()) if remainder)
    return [*renamed.get(fullname, ()), *by_function]


def names_after(renamed: Mapping[str, Sequence[str]], fullname: str) -> list[str]:
    """Return the later names of a test that was called so, as ``former_names`` has read them."""
    test = split_name(fullname).test
    remainder = fullname.removeprefix(test)
    by_function = (f"{new}{remainder}" for new, old_names in renamed.items() if remainder and test in old_names)
    return [*(new for new, old_names in renamed.items() if fullname in old_names), *by_function]


def _write_decision(storage: Path, decision: Mapping[str, Any]) -> Path:
    content = json.dumps(decision, indent=1)
    path = storage / ACCEPTED_FOLDER / f"{blake2b(content.encode(), digest_size=8).hexdigest()}{ACCEPTED_SUFFIX}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opening.write_whole(path, lambda file: file.write(content.encode()))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def read_acceptances(storage: Path) -> list[Accepted]:
    """Return all acceptances, the latest run last. Files that are not acceptances are ignored."""
    decisions = []
    for fields in _read_decisions(storage):
        try:
            run, test, reason = (str(fields[name]) for name in ("run", "test", "reason"))
            decisions.append(Accepted(run, int(fields["time_ms"]), test, reason, int(fields.get("until_ms", 0))))
        except (ValueError, TypeError, LookupError, OverflowError):
            continue
    return sorted(decisions, key=lambda decision: decision.time_ms)


def explain_superseded(acceptances: Sequence[Accepted], tests: Collection[str], time_ms: int) -> str:
    """Return why a run is no baseline if the user accepted a later one as the new baseline. Empty otherwise.

    Args:
        acceptances: all acceptances, the latest run last.
        tests: all full names that the test has had.
        time_ms: when the run started, Unix epoch.
    """
    later = _find_later_run(acceptances, tests, time_ms)
    return f"came before {later}, which was accepted as the new baseline" if later else ""


def find_later_run(storage: Path, tests: Collection[str], time_ms: int) -> str:
    """Return the last run after a time that the user accepted for any of the tests. Empty if there is none."""
    return _find_later_run(read_acceptances(storage), tests, time_ms)


def _find_later_run(acceptances: Sequence[Accepted], tests: Collection[str], time_ms: int) -> str:
    newer = [acceptance for acceptance in acceptances if acceptance.time_ms > time_ms]
    return next((acceptance.run for acceptance in reversed(newer) if any(map(acceptance.covers, tests))), "")


def _read_decisions(storage: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the content of each file. Files without a decision are ignored."""
    for path in sorted((storage / ACCEPTED_FOLDER).glob(f"*{ACCEPTED_SUFFIX}")):
        if (decision := _read_decision(path)) is not None:
            yield decision


def _read_decision(path: Path) -> Mapping[str, Any] | None:
    """Return the content of a file, or None if it holds no decision."""
    try:
        if path.is_file() and path.stat().st_size <= _MAX_BYTES:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return fields if isinstance(fields, dict) else None
    except (OSError, ValueError, RecursionError):
        pass
    return None
