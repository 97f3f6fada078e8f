"""How long stored runs take to list and to compare, for 1,000 runs of 20 experiments with 500 operations each."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import exp
from pathlib import Path

from benchmarks.harness import Figure, median, scratch
from pytest_cloudbench import cli
from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.results.index import INDEX_NAME, Index
from pytest_cloudbench.results.stored import find, read_document

__all__ = ["make_runs", "measure"]

_RUNS, _TESTS, _OPS = 1000, 20, 500
_START_MS, _DAY_MS = 1_700_000_000_000, 86_400_000


def make_runs(storage: Path, runs: int = _RUNS, tests: int = _TESTS, seed: int = 1) -> None:
    """Write runs as pytest-benchmark stores them, one a day; values vary by 3 % from run to run."""
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
        "expectations": ["no expectation"], "expectations_unmet": [], **metrics,
    }  # fmt: skip
    stats = dict.fromkeys("min max mean stddev median iqr q1 q3 ld15iqr hd15iqr ops total".split(), 0.1)
    return {"group": None, "name": fullname.partition("::")[2], "fullname": fullname, "params": {"size": 5120},
            "param": "5120", "extra_info": info, "options": {},
            "stats": {**stats, "rounds": _OPS, "iterations": 1}}  # fmt: skip


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``history_list_ratio`` and ``history_compare_ratio``: over reading all runs' files, in CPU time."""
    with scratch() as folder:
        storage = folder / "results"
        make_runs(storage)
        reading = [_cpu_s(lambda: [read_document(file.path) for file in find(storage)]) for _ in range(runs)]
        building = _cpu_s(lambda: Index.open(storage))
        size_bytes = (storage / INDEX_NAME).stat().st_size
        commands = {
            "history_list_ratio": (["baseline", "list"], 0.5),
            "history_all_ratio": (["history"], 1.0),
            "history_compare_ratio": (["compare", "all"], 1.9),
        }
        details = {
            "runs": _RUNS,
            "operations": _RUNS * _TESTS * _OPS,
            "index_bytes_per_entry": size_bytes / _RUNS / _TESTS,
        }
        figures = []
        for name, (command, bound) in commands.items():
            taken = [_cpu_s(partial(_quiet, [*command, "--storage", str(storage)])) for _ in range(runs)]
            absolute = {
                f"{' '.join(command)}, CPU s": median(taken), "reading all, CPU s": median(reading),
                "building the index, CPU s": building,
            }  # fmt: skip
            ratio = median(taken) / median(reading)
            figures.append(Figure(name, ratio, "CPU / CPU to read all runs", bound, details=details, absolute=absolute))
        return [figure for figure in figures if not names or figure.name in names]


def _quiet(argv: Sequence[str]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main(argv)
    if status or not out.getvalue():
        raise RuntimeError(f"{argv}: exit status {status}")


def _cpu_s(work: Callable[[], object]) -> float:
    start_ns = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start_ns) / 1e9


if __name__ == "__main__":
    make_runs(Path(sys.argv[1]))
