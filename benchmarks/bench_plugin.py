"""Measure the plugin's cost for a run that does not use it, and check that reported percentiles are exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Figure,
    Usage,
    alternating,
    environment,
    measure_growth,
    median,
    python,
    run_tree,
    scratch,
)
from pytest_cloudbench.judge.significance import binomial_sf

__all__ = ["measure"]

HEAVY = "pyarrow rich dropbox numpy hypothesis uvicorn trustme requests".split()
_SHARES = {"p50": (50, 100), "p90": (90, 100), "p99": (99, 100), "p99.9": (999, 1000), "max": (1, 1)}
_TIMES = ("response", "service", "lateness")

_TEST = "def test_nothing(): pass\n"
_CONFTEST = """
    import json, os, pathlib, pytest, sys

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config):
        role = "worker" if hasattr(config, "workerinput") else "controller"
        pathlib.Path(os.environ["BENCH_OUT"], f"{role}-{os.getpid()}.json").write_text(json.dumps(sorted(sys.modules)))
"""
_ORDINARY = """
    import os
    import pytest

    @pytest.mark.parametrize("number", range(int(os.environ["TESTS"])))
    def test_ordinary(number, request):
        assert number >= 0
"""
_EXPERIMENT = """
    from pytest_cloudbench.workload.arrival import FixedInterval

    def test_percentiles(experiment, payloads):
        arrival = FixedInterval(0.5, first_delay_max_s=0.5)
        experiment.run(payloads.random(5120), arrival=arrival, sensors=40, ops_per_sensor=20)
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``unused_plugin_ratio``, ``ordinary_session_ratio`` and ``percentiles_exact``."""
    figures = []
    if "unused_plugin_ratio" in names:
        figures.append(_measure_unused(runs * 5))
    if "ordinary_session_ratio" in names:
        figures.append(_measure_ordinary(runs * 8))
    if "percentiles_exact" in names:
        figures.append(_compare_percentiles())
    return figures


def _measure_unused(pairs: int) -> Figure:
    """Run one empty test, with and without. Each pair of runs has a ratio, as a slow machine is as slow for both."""
    modules: dict[str, dict[bool, set[str]]] = {}
    with scratch(test_nothing=_TEST, conftest=_CONFTEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")

        def run(workers: int, with_plugin: bool) -> float:
            usage = _run(folder, workers, with_plugin)
            for path in folder.glob("*-*.json"):
                role = f"{path.name.partition('-')[0]} of -n {workers}"
                modules.setdefault(role, {})[with_plugin] = set(json.loads(path.read_text()))
                path.unlink()
            return usage.cpu_s

        blocks = {
            workers: alternating(partial(run, workers, True), partial(run, workers, False), pairs) for workers in (0, 2)
        }
    more = {role: imported[True] - imported[False] for role, imported in modules.items()}
    heavy = sorted({name for names in more.values() for name in names if name.partition(".")[0] in HEAVY})
    absolute = {f"-n {workers}, {which}, CPU-seconds": median(costs) for workers, turns in blocks.items()
                for which, costs in (("with", turns.ours), ("without", turns.reference))}  # fmt: skip
    ratio = float("inf") if heavy else max(turns.ratio for turns in blocks.values())
    details = {"ratios": {f"-n {workers}": turns.details() for workers, turns in blocks.items()},
               "heavy_imports": heavy, "imported": {role: sorted(names) for role, names in more.items()}}  # fmt: skip
    unit = "CPU / CPU without the plugin"
    return Figure("unused_plugin_ratio", ratio, unit, 1.15, details=details, absolute=absolute)


def _measure_ordinary(pairs: int) -> Figure:
    """Run a session of 2,000 ordinary tests. The bound is met unless the pairs rule it out."""
    with scratch(test_ordinary=_ORDINARY) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")

        def run(with_plugin: bool, tests: int = 2000) -> float:
            return _run(folder, 0, with_plugin, TESTS=str(tests)).cpu_s

        blocks = alternating(lambda: run(True), lambda: run(False), pairs)
        growth = measure_growth("ordinary tests", 200, lambda tests: run(True, tests))
    ratios = sorted(blocks.details()["ratios"])
    details = {"median": blocks.ratio, "quartiles": [ratios[pairs // 4], ratios[-1 - pairs // 4]], **blocks.details()}
    absolute = {"with, CPU-seconds": median(blocks.ours), "without, CPU-seconds": median(blocks.reference)}
    unit = "CPU / CPU without the plugin, at least"
    return Figure("ordinary_session_ratio", ratios[_sure_below(pairs)], unit, 1.01, details=details,
                  absolute=absolute, growth=growth)  # fmt: skip


def _sure_below(count: int) -> int:
    """Return the index of the sorted value that the true median exceeds with 95 % confidence (sign test)."""
    return max((index for index in range(count) if binomial_sf(count - index, count, 0.5) <= 0.05), default=0)


def _run(folder: Path, workers: int, with_plugin: bool, **variables: str) -> Usage:
    """Run pytest with the two plugins that ours depends on, and no others."""
    plugins = ["xdist", "benchmark", *(["cloudbench"] if with_plugin else [])]
    options = [word for plugin in plugins for word in ("-p", plugin)] + (["-n", str(workers)] if workers else [])
    command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *options)
    variables |= {"BENCH_OUT": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_tree(command, folder, environment(**variables), sampled=False).require()


def _compare_percentiles() -> Figure:
    """Recompute with integers alone: nearest rank is the smallest value with at least the share at or below it."""
    from pyarrow import parquet

    with scratch(test_percentiles=_EXPERIMENT) as folder:
        options = ["-n", "4", "-p", "no:cacheprovider", "--benchmark-json", "entries.json"]
        run_tree(python("-m", "pytest", *options), folder, sampled=False).require()
        entry = json.loads((folder / "entries.json").read_text())["benchmarks"][0]["extra_info"]
        rows = parquet.read_table(next(folder.rglob("*.parquet"))).to_pylist()
    ok = [row for row in rows if row["outcome"] == "ok"]
    times_ns = {
        "response": sorted(row["end_ns"] - row["scheduled_ns"] for row in ok),
        "service": sorted(row["end_ns"] - row["start_ns"] for row in ok),
        "lateness": sorted(row["start_ns"] - row["scheduled_ns"] for row in rows),
    }
    expected = {
        f"{time}_{label}": times_ns[time][-(-part * len(times_ns[time]) // parts) - 1] / 1e9
        for time in _TIMES
        for label, (part, parts) in _SHARES.items()
    }
    different = {name: [entry[name], value] for name, value in expected.items() if entry[name] != value}
    details = {"compared": len(expected), "records": len(rows), "ok": len(ok), "agents": entry["agents"],
               "reported_and_recomputed": different}  # fmt: skip
    return Figure("percentiles_exact", float(len(different)), "percentiles that differ", 0.0, details=details)
