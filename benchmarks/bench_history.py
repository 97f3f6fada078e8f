"""Measure how long stored runs take to list, to compare and to judge again.

There are 1,000 runs of 20 experiments of 500 operations.

Commands run as a user runs them, each in a process of its own. The reference is a bare interpreter that parses the
files of all runs, in turn with it.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from functools import partial
from math import exp
from pathlib import Path

from benchmarks.harness import Figure, Usage, cloudbench, environment, measure_growth, median, python, run_tree, scratch
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.results.index import INDEX_NAME

__all__ = ["make_runs", "measure"]

_RUNS, _TESTS, _OPS = 1000, 20, 500
_START_MS, _DAY_MS = 1_700_000_000_000, 86_400_000
_COMMANDS = {
    "history_list_ratio": (["baseline", "list"], 0.6, "1 s are wanted"),
    "history_all_ratio": (["history"], 1.2, ""),
    "history_compare_ratio": (["compare", "all"], 2.0, "3 s are wanted"),
    "history_backtest_ratio": (["gate", "backtest"], 12.0, ""),
}
"""For each figure, the command, the bound, and a remark on its seconds, which depend on the machine."""
_READ_ALL = (
    "import json, pathlib, sys; [json.loads(path.read_bytes()) for path in pathlib.Path(sys.argv[1]).rglob('*.json')]"
)


def make_runs(storage: Path, runs: int = _RUNS, tests: int = _TESTS, seed: int = 1) -> None:
    """Write runs as pytest-benchmark stores them, one for each day. Values vary by 3 % from run to run."""
    rng = random.Random(seed)
    folder = storage / "Linux-CPython-3.11-64bit"
    folder.mkdir(parents=True)
    for run in range(runs):
        run_id = f"{20200101 + run}T000000Z-{run:04x}"
        entries = [
            _entry(rng, f"suites/test_it.py::test_put[emulated:dropbox-{test}]", run, run_id) for test in range(tests)
        ]
        document = {
            "machine_info": {}, "benchmarks": entries, "datetime": "2026-11-22T07:11:54+00:00", "version": "5.1.0",
            "commit_info": {"id": f"{run:040x}", "branch": "main", "dirty": False},
        }  # fmt: skip
        (folder / f"{run + 1:04}_{run_id}.json").write_text(json.dumps(document, indent=4), encoding="utf-8")


def _entry(rng: random.Random, fullname: str, run: int, run_id: str) -> dict[str, object]:
    metrics = {name: exp(rng.gauss(0, 0.03)) / 10 for name, metric in METRICS.items() if metric.of is not None}
    info = {
        "schema": 2, "outcome": "passed", "machine": "Linux x86_64, 2 x AMD EPYC, CPython 3.11", "agents": 2,
        "missing_agents": {}, "provider": "emulated:dropbox", "profile": "dropbox", "profile_digest": "8c0e4c4d50d0",
        "emulated": True, "published": {}, "time_scale": 1.0, "seed": run_id, "run_id": run_id, "doubts": [],
        "versions": {f"library-{number}": "1.2.3" for number in range(8)}, "start_wall_ms": _START_MS + run * _DAY_MS,
        "ops": _OPS, "planned_ops": _OPS, "ok": _OPS, "throttled": 0, "failed": 0, "corrupt": 0, "errors": {},
        "error_details": {}, "operation": "put", "sensors": 10, "threads": None, "loop": "open", "size_bytes": 5120,
        "arrival": "FixedInterval(interval_s=0.02, first_delay_max_s=0.0)", "payload": "RandomPayload",
        "cpu_share": 0.5, "client_cpu_s": 1.5, "ops_file": f"{run_id}/{abs(hash(fullname))}.parquet", "notes": [],
        "expectations": ["no expectation"], "expectations_unmet": [], "quiet_ops": _OPS, "quiet_kept": _OPS,
        "files": _OPS, "lost": 0, "reference_cpu_s": exp(rng.gauss(0, 0.03)) / 100,
        "quiet_p50_error": 0.02, "quiet_p99_error": 0.05,
        **metrics, **dict.fromkeys(("failed_rate", "throttled_rate", "corrupt_rate", "loss_rate"), 0.0),
        "requests_per_op": 1.0, "payload_bytes_per_op": 5120.0,
    }  # fmt: skip
    stats = dict.fromkeys("min max mean stddev median iqr q1 q3 ld15iqr hd15iqr ops total".split(), 0.1)
    return {"group": None, "name": fullname.partition("::")[2], "fullname": fullname, "params": {"size": 5120},
            "param": "5120", "extra_info": info, "options": {},
            "stats": {**stats, "rounds": _OPS, "iterations": 1}}  # fmt: skip


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """Measure the CPU time of commands over that of parsing all runs' files, with their seconds."""
    with scratch() as folder:
        storage = folder / "results"
        make_runs(storage)
        building = _command(folder, "baseline", "list")  # the first command makes the index
        details = {
            "runs": _RUNS,
            "operations": _RUNS * _TESTS * _OPS,
            "index_bytes_per_entry": (storage / INDEX_NAME).stat().st_size / _RUNS / _TESTS,
        }
        figures = []
        for name, (words, bound, remark) in _COMMANDS.items():
            if names and name not in names:
                continue
            reading, usages = list[Usage](), list[Usage]()
            for _ in range(runs):
                reading.append(run_tree(python("-c", _READ_ALL, str(storage)), folder, sampled=False).require())
                usages.append(_command(folder, *words))
            wall = f"{' '.join(words)}, seconds" + (f" ({remark})" if remark else "")
            absolute = {
                wall: median([usage.wall_s for usage in usages]), f"{' '.join(words)}, CPU s": _cpu_s(usages),
                "parsing all files, CPU s": _cpu_s(reading), "making the index as well, CPU s": building.cpu_s,
            }  # fmt: skip
            ratio = _cpu_s(usages) / _cpu_s(reading)
            growth = measure_growth("runs", _RUNS // 100, partial(_cost_of, words))
            unit = "CPU / CPU to parse all runs"
            figures.append(Figure(name, ratio, unit, bound, details=details, absolute=absolute, growth=growth))
    return figures


def _command(folder: Path, *words: str) -> Usage:
    usage = run_tree(cloudbench(*words, "--storage", "results"), folder, environment(), sampled=False).require()
    if not usage.output:
        raise RuntimeError(f"cloudbench {' '.join(words)}: said nothing")
    return usage


def _cost_of(words: Sequence[str], runs: int) -> float:
    with scratch() as folder:
        make_runs(folder / "results", runs)
        _command(folder, "baseline", "list")  # it makes the index
        return _command(folder, *words).cpu_s


def _cpu_s(usages: Sequence[Usage]) -> float:
    return median([usage.cpu_s for usage in usages])


if __name__ == "__main__":
    make_runs(Path(sys.argv[1]))
