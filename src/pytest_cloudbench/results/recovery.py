"""Recovery of a killed run: agents' logs that were never merged become records and an entry.

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

from pytest_cloudbench.judge.by_host import figures_by_host
from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Outcome, ResultsError
from pytest_cloudbench.results import benchmarks, oplog, stored
from pytest_cloudbench.results.entry_names import split_name
from pytest_cloudbench.results.owner import is_alive, owner_text

_NOTE = "run.json"
_MAX_BYTES = 1 << 20
"""The maximum length of a note or of a log's first line."""
_REQUIRED_KEYS = {"fullname": str, "name": str, "run": str, "run_id": str, "owner": str, "params": dict, "info": dict}
_OPTIONAL_KEYS = {"logs": dict, "measured_from_ns": int}
_REASON = "interrupted: the controller was killed"


def write_note(folder: Path, note: Mapping[str, Any], logs: Mapping[str, Path]) -> None:
    """Write a note beside a run's logs, with what its entry says and which logs are elsewhere. Raises OSError."""
    partial = folder / f"{_NOTE}.partial"
    elsewhere = {agent: str(path) for agent, path in logs.items()}
    partial.write_text(json.dumps({**note, "owner": owner_text(), "logs": elsewhere}), encoding="utf-8")
    os.replace(partial, folder / _NOTE)


@dataclass(slots=True)
class Unmerged:
    """The logs of one run that were never merged.

    Attributes:
        folder: the folder of the logs.
        note: the content that ``write_note`` wrote, or else what the logs themselves say.
        logs: the regular files of that run, by agent.
        is_alive: whether a process lives that may still write or merge them, or None if that is unknown.
    """

    folder: Path
    note: dict[str, Any]
    logs: dict[str, Path] = field(default_factory=dict)
    is_alive: bool | None = None


def find_unmerged(*results: Path) -> Iterator[Unmerged]:
    """Yield all runs below results folders with unmerged logs, each once. Skips what cannot be read."""
    yielded = set[Path]()
    for folder_path, folders, names in (step for root in results for step in os.walk(root)):
        folders.sort()
        if (
            any(name.endswith(".oplog") for name in names)
            and (unmerged := _read_unmerged(Path(folder_path))) is not None
        ):
            resolved = unmerged.folder.resolve()
            if resolved not in yielded:
                yielded.add(resolved)
                yield unmerged


def _read_unmerged(folder: Path) -> Unmerged | None:
    """Return the logs in a run's folder and all that is known of the run, or None without logs."""
    note = _read_note(folder)
    logs = {path.stem: path for path in sorted(folder.glob("*.oplog"))}
    run = note.get("run")
    for agent, text in dict(note.get("logs") or {}).items() if run else ():
        elsewhere = Path(str(text))
        if elsewhere.suffix == ".oplog" and _read_header(elsewhere).get("run") == run:  # a note may name any file
            logs[agent] = elsewhere
    logs = {agent: path for agent, path in logs.items() if _is_regular(path)}
    if not logs:
        return None
    headers = {agent: _read_header(path) for agent, path in logs.items()}
    first_header = next((header for header in headers.values() if isinstance(header.get("nodeid"), str)), {})
    fullname = str(first_header.get("nodeid", folder.name))
    defaults = {
        "fullname": fullname,
        "name": split_name(fullname).title,
        "run": fullname,
        "run_id": folder.parent.name,
    }
    note = {**defaults, "params": {}, "info": {}, "owner": str(first_header.get("owner", "")), **note}
    writers = {str(header["writer"]) for header in headers.values() if "writer" in header}
    states = {is_alive(owner) for owner in {note["owner"], *writers}}
    is_running = next((state for state in (True, None) if state in states), False)  # unknown counts more than ended
    return Unmerged(folder, note, logs, is_running)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def _read_note(folder: Path) -> dict[str, Any]:
    note = _read_object(folder / _NOTE, whole=True)
    return {
        key: note[key] for key, kind in (_REQUIRED_KEYS | _OPTIONAL_KEYS).items() if isinstance(note.get(key), kind)
    }


def _read_header(path: Path) -> dict[str, Any]:
    return _read_object(path, whole=False)


def _read_object(path: Path, *, whole: bool) -> dict[str, Any]:
    """Return the JSON object that a file or its first line holds, or an empty one."""
    if not _is_regular(path):  # reading a FIFO could block forever
        return {}
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES) if whole else file.readline(_MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def recover_run(unmerged: Unmerged) -> tuple[int, Path] | None:
    """Merge the logs of a run into a Parquet file and an entry beside it, and remove them.

    A second call changes nothing, even at the same time in another process, or after one that was killed. Return the
    number of records and the Parquet file, or None if another process has recovered them. Raises ResultsError, and then
    leaves everything as it was.
    """
    target = unmerged.folder.with_name(f"{unmerged.folder.name}.parquet")
    with stored.lock_folder(unmerged.folder):
        logs = [path for path in unmerged.logs.values() if _is_regular(path)]
        if not logs:
            return None
        try:
            table = oplog.read_logs(logs)
            if not (target.exists() and len(oplog.read_parquet(target)) == len(table)):
                if target.exists():  # it has other records, so both files stay
                    target = target.with_name(f"{unmerged.folder.name}-recovered.parquet")
                metadata = {"nodeid": unmerged.note["fullname"], "run_id": unmerged.note["run_id"]}
                oplog.write_parquet(table, target, metadata, unmerged.note.get("measured_from_ns"))
            _write_entry(unmerged, table, target)
            count = len(table)
        except (OSError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
            raise ResultsError(f"{unmerged.folder}: cannot be recovered: {error}") from error
        for path in logs:
            path.unlink(missing_ok=True)
        for name in (_NOTE, f"{_NOTE}.partial"):
            (unmerged.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # other files in the folder are not ours
            unmerged.folder.rmdir()
    return count, target


def _write_entry(unmerged: Unmerged, table: OpTable, records: Path) -> None:
    """Write an entry that says what happened, and that no gate uses as a baseline."""
    note, since_ns = unmerged.note, unmerged.note.get("measured_from_ns")
    summary = summarize(table if since_ns is None else table.since(since_ns), None)
    excluded = {} if since_ns is None else {"warm_up_ops": len(table) - summary.ops}
    planned = note["info"].get("planned_ops")
    missing = [f"{planned - len(table)} of {planned} operations were not tried"] if isinstance(planned, int) else []
    info = {
        **note["info"],
        **({"by_host": hosts} if (hosts := figures_by_host(table, since_ns)) else {}),
        **summary.metrics,
        "ops": summary.ops,
        **excluded,
        **{name.value: summary.outcomes.get(name, 0) for name in Outcome if name is not Outcome.LOST},
        **summary.errors(),
        "ops_file": f"{records.parent.name}/{records.name}",
        "outcome": "interrupted",
        "doubts": [_REASON, *missing],
    }
    data_s = list(summary.response_s) or ([] if info["elapsed"] is None else [info["elapsed"]])
    if not data_s:  # without a record there is no time for the entry
        return
    benchmarks.write_entry(
        records.with_suffix(".json"), name=note["name"], fullname=note["fullname"], params=note["params"],
        extra_info=info, data_s=data_s,
    )  # fmt: skip
