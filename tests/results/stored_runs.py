"""Stored runs as pytest-benchmark writes them, made from plain values, for tests that read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MACHINE = "Linux-CPython-3.11-64bit"
START_MS = 1_790_000_000_000
DAY_MS = 86_400_000


def info(**overrides: Any) -> dict[str, Any]:
    """Return an entry's extra_info of schema 2. Keyword arguments replace its values."""
    return {
        "schema": 2, "outcome": "passed", "machine": "Linux x86_64, 2 x A CPU, CPython 3.11", "agents": 2,
        "missing_agents": {}, "provider": "emulated:dropbox", "profile": "dropbox", "profile_digest": "8c0e4c4d50d0",
        "emulated": True, "published": {}, "time_scale": 1.0, "seed": "a", "run_id": "20261122T071148Z-ec62",
        "versions": {"pytest-cloudbench": "0.1.0"}, "ops": 300, "planned_ops": 300, "operation": "put", "sensors": 10,
        "threads": None, "arrival": "FixedInterval(interval_s=1.0)", "loop": "open", "size_bytes": 5120,
        "payload": "RandomPayload", "doubts": [], "notes": [], "failed": 0, "throttled": 0, "failed_rate": 0.0,
        "response_p50": 0.1, "response_p99": 0.2, "throughput": 1e6, "first_byte_p50": None,
        "ops_file": "20261122T071148Z-ec62/it.parquet", **overrides,
    }  # fmt: skip


def document(entries: dict[str, dict[str, Any]], *, commit: str = "abc", branch: str = "main") -> dict[str, Any]:
    """Return the content of a run's file. ``entries`` has each entry's extra_info by its full name."""
    benchmarks = [
        {"fullname": name, "name": name.partition("::")[2], "params": {"provider": "emulated:dropbox"}, "group": None,
         "options": {}, "param": None, "extra_info": extra,
         "stats": {"min": 0.1, "max": 0.1, "mean": 0.1, "stddev": 0, "rounds": 1, "median": 0.1, "iqr": 0, "q1": 0.1,
                   "q3": 0.1, "iqr_outliers": 0, "stddev_outliers": 0, "outliers": "0;0", "ld15iqr": 0.1,
                   "hd15iqr": 0.1, "ops": 10.0, "total": 0.1, "iterations": 1}}
        for name, extra in entries.items()
    ]  # fmt: skip
    return {
        "machine_info": {"node": "x"}, "commit_info": {"id": commit, "branch": branch, "dirty": False},
        "benchmarks": benchmarks, "datetime": "2026-11-22T07:11:54.405735+00:00", "version": "5.1.0",
    }  # fmt: skip


def store(
    storage: Path, number: int, entries: dict[str, dict[str, Any]], *, name: str = "run", **commit_info: str
) -> Path:
    """Write a run's file to the path that pytest-benchmark would choose."""
    path = storage / MACHINE / f"{number:04}_{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(entries, **commit_info)), encoding="utf-8")
    return path


def store_series(storage: Path, values: list[float], fullname: str = "test_it.py::test_put", **overrides: Any) -> None:
    """Write one run a day, with these values of ``response_p50``."""
    for number, value in enumerate(values, 1):
        entry = info(response_p50=value, start_wall_ms=START_MS + number * DAY_MS, **overrides)
        store(storage, number, {fullname: entry}, commit=f"c{number:03}")
