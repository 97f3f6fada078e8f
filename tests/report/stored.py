"""Stored runs for tests of their readers: files as a session writes them, with the records of their operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cloudbench.judge.metrics import summarize
from pytest_cloudbench.judge.ranking import spread_of
from pytest_cloudbench.judge.records import OpTable
from pytest_cloudbench.model import Op, Outcome, Verb
from pytest_cloudbench.results.oplog import write_parquet

Entry = Mapping[str, Any]
MS = 1_000_000
HOSTILE = "<script>alert(1)</script>\"'&\u202e\x1b[31m=cmd"


def operations(
    count: int,
    taken_ms: float,
    *,
    every_ms: float = 20,
    throttled: int = 0,
    frozen_at: int = -1,
    frozen_ms: float = 2000,
) -> Iterator[Op]:
    """Yield operations that are due at a constant rate. From ``frozen_at`` on, none ends for ``frozen_ms``."""
    thaw_ms = frozen_at * every_ms + frozen_ms
    for number in range(count):
        due_ms = number * every_ms
        end_ms = due_ms + taken_ms * (1 + 0.3 * (number * 7 % 11) / 11)
        if frozen_at >= 0 and frozen_at * every_ms <= end_ms < thaw_ms:
            end_ms = thaw_ms + number % 5
        outcome = Outcome.THROTTLED if throttled and number % throttled == 0 else Outcome.OK
        times = [10**12 + round(time_ms * MS) for time_ms in (due_ms, due_ms, end_ms)]
        yield Op(Verb.PUT, number % 4, number // 4, 0, times[0], times[1], 0, times[2], 5120, outcome)


def entry(
    folder: Path,
    test: str,
    provider: str,
    ops: Sequence[Op] = (),
    params: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return an entry of a run, and write the file of its records."""
    table = OpTable.of(ops)
    summary = summarize(table, None)
    name = f"run/{len(list(folder.glob('run/*')))}.parquet"
    if ops:
        write_parquet(table, folder / name, {})
    experiment = f"{test}[{'-'.join(map(str, (params or {'n': 1}).values()))}]"
    info = {
        "schema": 2, "outcome": "passed", "machine": "Linux x86_64, 2 x Some CPU, CPython 3.11", "agents": 2,
        "missing_agents": {}, "provider": provider, "profile": "ideal", "emulated": True, "published": {},
        "time_scale": 1.0, "seed": "s", "run_id": "r", "versions": {"pytest-cloudbench": "0.1.0"},
        "start_wall_ms": 1_795_355_616_898, "ops": len(table), "operation": "put", "loop": "open", "threads": None,
        "doubts": [], "notes": [], "expectations": ["no expectation"], "expectations_unmet": [], "statuses": [],
        "columns": [], "spread": spread_of(table, summary.response_s), "experiment": experiment,
        **({"ops_file": name} if ops else {}), **summary.metrics,
        **{outcome.value: summary.outcomes.get(outcome, 0) for outcome in Outcome}, **changes,
    }  # fmt: skip
    return {
        "group": experiment, "name": experiment.rpartition("::")[2], "fullname": f"{experiment[:-1]}-{provider}]",
        "params": dict(params or {}), "extra_info": info, "stats": {"data": []},
    }  # fmt: skip


def store(path: Path, entries: Sequence[Entry]) -> Path:
    """Write a run's file as pytest-benchmark writes it."""
    document = {
        "machine_info": {"system": "Linux"}, "benchmarks": list(entries), "datetime": "2026-11-22T13:57:20+00:00",
        "commit_info": {"id": "4303970fed5c47bb3e97dab7f82876247d95af28", "branch": "main", "dirty": True},
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def path_points(path: str) -> list[tuple[float, float]]:
    """Return the points of a drawn line, whose path has a start and then differences."""
    x, y, points = 0.0, 0.0, list[tuple[float, float]]()
    for command, text in re.findall(r"([Mlhv])([^Mlhv]*)", path):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", text)]
        if command in "hv":
            moves = [(number, 0.0) if command == "h" else (0.0, number) for number in numbers]
        else:
            moves = list(zip(numbers[::2], numbers[1::2], strict=True))
        for dx, dy in moves:
            x, y = (dx, dy) if command == "M" else (x + dx, y + dy)
            points.append((x, y))
    return points
