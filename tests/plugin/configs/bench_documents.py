"""Bench files for tests: valid ones as values, a function that changes them, and one that writes values as TOML."""

from __future__ import annotations

import copy
import datetime
import json
from typing import Any

PATHS = (
    "", "name", "description", "provider", "operations", "repeat", "sensors", "ops_per_sensor", "threads", "files",
    "pause_s", "payload", "payload.generator", "payload.size_bytes", "payload.percent", "payload.where",
    "payload.distribution", "payload.content", "payload.sigma", "payload.file", "arrival", "arrival.process",
    "arrival.interval_s", "arrival.first_delay_max_s", "arrival.curve", "arrival.file", "arrival.scale", "grid",
    "grid.sensors", "grid.threads", "grid.payload", "grid.payload.size_bytes", "grid.arrival",
    "grid.arrival.interval_s", "expect", "expect.0", "expect.0.metric", "expect.0.at_most", "expect.0.at_least",
    "warm_up_s", "until", "until.metric", "until.within", "until.min_ops", "gate", "gate.p50",
    "gate.unknown", "may_drift",
    "expect.0.operation", "expect.0.where", "expect.0.where.sensors", "unknown", "payload.unknown", "grid.unknown",
)  # fmt: skip
"""Dotted keys of an experiment that tests may change."""

BASE: dict[str, Any] = {
    "name": "readings",
    "operations": ["upload", "download"],
    "sensors": 5,
    "ops_per_sensor": 2,
    "payload": {"generator": "random", "size_bytes": 5120},
    "arrival": {"process": "fixed", "interval_s": 1},
    "expect": [{"metric": "loss_rate", "at_most": 0.1, "operation": "upload"}],
}

FILES = {
    "load.csv": "time,sensor,operation,size\n0,a,put,100\n1,a,get,0\n2,b,put,700\n3,b,put,900\n",
    "sizes.txt": "100\n2000, 3\n",
}
"""Texts of the files that the bench files refer to."""

PAYLOADS: list[dict[str, Any]] = [
    {"generator": "random", "size_bytes": 0},
    {"generator": "identical", "size_bytes": 9},
    {"generator": "sparse", "size_bytes": 9, "text": "ab"},
    {"generator": "delta", "size_bytes": 9, "percent": 0.5, "where": "spread"},
    {"generator": "text", "size_bytes": 9},
    {"generator": "compressible", "size_bytes": 9, "ratio": 1},
    {"generator": "duplicated", "size_bytes": 9, "ratio": 0.2, "block_bytes": 3},
    {"generator": "jpeg", "size_bytes": 5000},
    {"generator": "fake_jpeg", "size_bytes": 9},
    {"generator": "mixed", "distribution": "fixed", "size_bytes": 7, "content": "text"},
    {"generator": "mixed", "distribution": "uniform", "min_bytes": 1, "max_bytes": 9},
    {"generator": "mixed", "distribution": "lognormal", "median_bytes": 9, "sigma": 1.5,
     "content": {"generator": "sparse", "text": "x"}},
    {"generator": "mixed", "distribution": "empirical", "sizes_bytes": [1, 2, 2]},
    {"generator": "mixed", "distribution": "empirical", "file": "sizes.txt"},
]  # fmt: skip

ARRIVALS: list[dict[str, Any]] = [
    {"process": "fixed", "interval_s": 0, "first_delay_max_s": 2.5},
    {"process": "uniform", "interval_s": 1},
    {"process": "jittered", "interval_s": 1, "jitter_s": 0.5},
    {"process": "poisson", "interval_s": 1},
    {"process": "lognormal", "interval_s": 1, "sigma": 1},
    {"process": "bursts", "interval_s": 1, "on_s": 2, "off_s": 0},
    {"process": "diurnal", "interval_s": 1, "curve": [0, 1, 2]},
    {"process": "think", "interval_s": 1},
]

TRACE = {"name": "trace", "payload": {"generator": "text"}, "arrival": {"process": "trace", "file": "load.csv"}}
THREADS = {"name": "threads", "threads": 4, "files": 10, "payload": {"generator": "text", "size_bytes": 5}}
GRID: dict[str, Any] = {
    "name": "grid",
    "payload": {"generator": "delta"},
    "arrival": {"process": "uniform"},
    "ops_per_sensor": 1,
    "grid": {
        "sensors": [10, 50],
        "payload": {"size_bytes": [1, 2, 3], "percent": [0.5]},
        "arrival": {"interval_s": [1, 0.5]},
    },
    "expect": [{"metric": "ok_rate", "at_least": 0.5, "where": {"sensors": 50}}],
}
VALID: list[dict[str, Any]] = [
    BASE, TRACE, THREADS, GRID, {**TRACE, "sensors": 1},
    {**BASE, "may_drift": True},
    {**BASE, "warm_up_s": 0.5, "until": {"metric": "response_p99", "within": 0.1, "min_ops": 5000}},
    {**THREADS, "until": {"metric": "throughput"}},
    {**THREADS, "gate": {"p50": 0.05, "quiet_p99": "30%", "throttled_rate": False}},
    *({**BASE, "payload": payload} for payload in PAYLOADS),
    *({**BASE, "arrival": arrival} for arrival in ARRIVALS),
]  # fmt: skip
"""Valid experiments."""

GONE = object()


def read_file(name: str) -> str:
    """Return the text of one of ``FILES``."""
    if name not in FILES:
        raise FileNotFoundError(name)
    return FILES[name]


def with_changes(experiment: dict[str, Any], *changes: tuple[str, Any]) -> dict[str, Any]:
    """Return the experiment with other values at dotted keys such as ``expect.0.metric``. ``GONE`` removes a key."""
    new = copy.deepcopy(experiment)
    for path, value in changes:
        *parents, last = path.split(".")
        inner: Any = new
        for step in parents:
            inner = inner[int(step)] if isinstance(inner, list) else inner.setdefault(step, {})
        if value is GONE:
            del inner[int(last) if isinstance(inner, list) else last]
        else:
            inner[int(last) if isinstance(inner, list) else last] = value
    return new


def toml(value: Any) -> str:
    """Return a value as TOML, without a key."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, (str, bool)):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)


def document(*experiments: Any) -> str:
    """Return the text of a bench file."""
    return f"experiment = {toml(list(experiments))}\n"
