"""What a killed run left: agents' logs that were never merged, and how they still become records and an entry.

What may live here: the note beside a run's logs, finding them, and the merge.
Nothing found on disk is trusted: notes and logs may be torn, from another program, or malicious.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Outcome, ResultsError
from pytest_cloudbench.results import benchmarks, oplog, stored
from pytest_cloudbench.results.owner import lives, owner_text

_NOTE = "run.json"
_MOST_BYTES = 1 << 20
"""The maximum length of a note or of a log's first line."""
_KEYS = {"fullname": str, "name": str, "run": str, "run_id": str, "owner": str, "params": dict, "info": dict}
_MORE_KEYS = {"logs": dict, "measured_from_ns": int}
_WHY = "interrupted: the controller was killed"


def write_note(folder: Path, note: Mapping[str, Any], logs: Mapping[str, Path]) -> None:
    """Write beside a run's logs what its entry says, and which logs are elsewhere. Raises OSError."""
    partial = folder / f"{_NOTE}.partial"
    elsewhere = {agent: str(path) for agent, path in logs.items()}
    partial.write_text(json.dumps({**note, "owner": owner_text(), "logs": elsewhere}), encoding="utf-8")
    os.replace(partial, folder / _NOTE)


@dataclass(slots=True)
class Unmerged:
    """The logs of one run that were never merged.

    Attributes:
        folder: where they are.
        note: what ``write_note`` wrote, or what the logs themselves say.
        logs: regular files of that run, by agent.
        lives: whether a process lives that may still write or merge them; None if that cannot be told.
    """

    folder: Path
    note: dict[str, Any]
    logs: dict[str, Path] = field(default_factory=dict)
    lives: bool | None = None


def find_left(*results: Path) -> Iterator[Unmerged]:
    """Yields all runs below results folders with unmerged logs, each once. Skips what cannot be read."""
    seen = set[Path]()
    for place, folders, names in (each for root in results for each in os.walk(root)):
        folders.sort()
        if any(name.endswith(".oplog") for name in names) and (left := _left_in(Path(place))) is not None:
            whole = left.folder.resolve()
            if whole not in seen:
                seen.add(whole)
                yield left


def _left_in(folder: Path) -> Unmerged | None:
    note = _read_note(folder)
    logs = {path.stem: path for path in sorted(folder.glob("*.oplog"))}
    run = note.get("run")
    for agent, text in dict(note.get("logs") or {}).items() if run else ():
        elsewhere = Path(str(text))
        if elsewhere.suffix == ".oplog" and _head(elsewhere).get("run") == run:  # not just any file that a note names
            logs[agent] = elsewhere
    logs = {agent: path for agent, path in logs.items() if _is_regular(path)}
    if not logs:
        return None
    heads = {agent: _head(path) for agent, path in logs.items()}
    first = next((head for head in heads.values() if isinstance(head.get("nodeid"), str)), {})
    named = str(first.get("nodeid", folder.name))
    known = {"fullname": named, "name": named.rpartition("::")[2], "run": named, "run_id": folder.parent.name}
    note = {**known, "params": {}, "info": {}, "owner": str(first.get("owner", "")), **note}
    writers = {str(head["writer"]) for head in heads.values() if "writer" in head}
    states = [lives(owner) for owner in {note["owner"], *writers}]
    return Unmerged(folder, note, logs, True if True in states else None if None in states else False)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _read_note(folder: Path) -> dict[str, Any]:
    found = _object(folder / _NOTE, whole=True)
    return {key: found[key] for key, kind in (_KEYS | _MORE_KEYS).items() if isinstance(found.get(key), kind)}


def _head(path: Path) -> dict[str, Any]:
    return _object(path, whole=False)


def _object(path: Path, *, whole: bool) -> dict[str, Any]:
    """Returns the JSON object that a file or its first line holds; an empty one if there is none."""
    if not _is_regular(path):  # a FIFO would wait for ever
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES) if whole else file.readline(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def recover(left: Unmerged) -> tuple[int, Path] | None:
    """Merge the logs of a run into a Parquet file and an entry beside it, and remove them.

    A second call changes nothing, even at the same time in another process, or after one that was killed.
    Returns how many records there were, and the Parquet file; None if another process has recovered them. Raises
    ResultsError, and then leaves everything as it was.
    """
    target = left.folder.with_name(f"{left.folder.name}.parquet")
    with stored.alone(left.folder):
        logs = [path for path in left.logs.values() if _is_regular(path)]
        if not logs:
            return None
        try:
            table = OpTable(*map(oplog.read_log, logs))
            if not (target.exists() and len(oplog.read_parquet(target)) == len(table)):
                if target.exists():  # of other records: both stay
                    target = target.with_name(f"{left.folder.name}-recovered.parquet")
                metadata = {"nodeid": left.note["fullname"], "run_id": left.note["run_id"]}
                oplog.write_parquet(table, target, metadata, left.note.get("measured_from_ns"))
            _write_entry(left, table, target)
            count = len(table)
        except (OSError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
            raise ResultsError(f"{left.folder}: cannot be recovered: {error}") from error
        for path in logs:
            path.unlink(missing_ok=True)
        for rest in (_NOTE, f"{_NOTE}.partial"):
            (left.folder / rest).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # what else is in it is not ours
            left.folder.rmdir()
    return count, target


def _write_entry(left: Unmerged, table: OpTable, records: Path) -> None:
    """Write an entry that says what happened, and that no gate uses as a baseline."""
    note, since_ns = left.note, left.note.get("measured_from_ns")
    summary = summarize(table if since_ns is None else table.since(since_ns), None)
    left_out = {} if since_ns is None else {"warm_up_ops": len(table) - summary.ops}
    planned = note["info"].get("planned_ops")
    missing = [f"{planned - len(table)} of {planned} operations were not tried"] if isinstance(planned, int) else []
    info = {
        **note["info"],
        **summary.metrics,
        "ops": summary.ops,
        **left_out,
        **{name.value: summary.outcomes.get(name, 0) for name in Outcome if name is not Outcome.LOST},
        **summary.errors(),
        "ops_file": str(Path(records.parent.name) / records.name),
        "outcome": "interrupted",
        "doubts": [_WHY, *missing],
    }
    data_s = list(summary.response_s) or ([] if info["elapsed"] is None else [info["elapsed"]])
    if not data_s:  # no record, so there is no time to show in its place
        return
    benchmarks.write_entry(
        records.with_suffix(".json"), name=note["name"], fullname=note["fullname"], params=note["params"],
        extra_info=info, data_s=data_s,
    )  # fmt: skip
