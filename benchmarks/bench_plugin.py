"""What the plugin costs a run that does not use it, and whether the percentiles it reports are exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, alternating, environment, median, python, run_tree, scratch
from pytest_cloudbench.judge.significance import binomial_sf

__all__ = ["measure"]

HEAVY = "pyarrow rich dropbox numpy hypothesis uvicorn trustme requests".split()
_SHARES = {"p50": (50, 100), "p90": (90, 100), "p99": (99, 100), "p99.9": (999, 1000), "max": (1, 1)}
_TIMES = ("response", "service", "lateness")

_TEST = "def test_nothing(): pass\n"
_CONFTEST = """
    import json, os, pathlib, pytest, sys, time

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(config):
        cpu_s = time.process_time()
        role = "worker" if hasattr(config, "workerinput") else "controller"
        report = {"cpu_ms": cpu_s * 1e3, "modules": sorted(sys.modules)}
        pathlib.Path(os.environ["BENCH_OUT"], f"{role}-{os.getpid()}.json").write_text(json.dumps(report))
"""
_ORDINARY = """
    import pytest

    @pytest.mark.parametrize("number", range(2000))
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
        figures.append(_unused(runs * 5))
    if "ordinary_session_ratio" in names:
        figures.append(_ordinary(runs * 8))
    if "percentiles_exact" in names:
        figures.append(_percentiles())
    return figures


def _unused(runs: int) -> Figure:
    """Every pair of runs, with and without, has a ratio: a slow machine is as slow for both."""
    with scratch(test_nothing=_TEST, conftest=_CONFTEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")
        modules: dict[str, dict[bool, set[str]]] = {}
        latest: dict[str, float] = {}

        def run(workers: int, with_plugin: bool) -> float:
            for role, report in _reports(folder, workers, with_plugin):
                label = f"{role} of -n {workers}" if workers else role
                modules.setdefault(label, {})[with_plugin] = set(report["modules"])
                latest[role] = report["cpu_ms"]
            return latest["controller"]

        blocks = {
            f"-n {workers}": alternating(lambda: run(workers, True), lambda: run(workers, False), runs)  # noqa: B023 - called at once
            for workers in (0, 2)
        }
    more = {label: each[True] - each[False] for label, each in modules.items()}
    heavy = sorted({name for each in more.values() for name in each if name.partition(".")[0] in HEAVY})
    absolute = {f"controller of {name}, {which}, ms CPU": median(costs) for name, each in blocks.items()
                for which, costs in (("with", each.ours), ("without", each.reference))}  # fmt: skip
    ratio = float("inf") if heavy else max(each.ratio for each in blocks.values())
    details = {"ratios": {name: {"ratio": each.ratio, **each.details()} for name, each in blocks.items()},
               "heavy_imports": heavy, "imported": {label: sorted(each) for label, each in more.items()}}  # fmt: skip
    return Figure("unused_plugin_ratio", ratio, "CPU / CPU without the plugin", 1.15, details=details,
                  absolute=absolute)  # fmt: skip


def _ordinary(pairs: int) -> Figure:
    """A session of 2,000 ordinary tests. The bound is met unless the pairs rule it out."""
    with scratch(test_ordinary=_ORDINARY, conftest=_CONFTEST) as folder:
        (folder / "pytest.ini").write_text("[pytest]\n")

        def run(with_plugin: bool) -> float:
            ((_, report),) = _reports(folder, 0, with_plugin)
            return float(report["cpu_ms"])

        blocks = alternating(lambda: run(True), lambda: run(False), pairs)
    ratios = sorted(blocks.details()["ratios"])
    details = {"median": blocks.ratio, "quartiles": [ratios[pairs // 4], ratios[-1 - pairs // 4]], **blocks.details()}
    absolute = {"with, ms CPU": median(blocks.ours), "without, ms CPU": median(blocks.reference)}
    return Figure("ordinary_session_ratio", ratios[_sure_below(pairs)], "CPU / CPU without the plugin, at least", 1.01,
                  details=details, absolute=absolute)  # fmt: skip


def _sure_below(count: int) -> int:
    """Returns which of ``count`` sorted values the true median is above, with 95 % confidence (sign test)."""
    return max((index for index in range(count) if binomial_sf(count - index, count, 0.5) <= 0.05), default=0)


def _reports(folder: Path, workers: int, with_plugin: bool) -> list[tuple[str, dict[str, Any]]]:
    for old in folder.glob("*-*.json"):
        old.unlink()
    switch = [] if with_plugin else ["-p", "no:cloudbench"]
    spread = ["-n", str(workers)] if workers else []
    command = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *switch, *spread)
    run_tree(command, folder, environment(BENCH_OUT=str(folder)), sampled=False).require()
    return [(path.name.partition("-")[0], json.loads(path.read_text())) for path in folder.glob("*-*.json")]


def _percentiles() -> Figure:
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
        f"{time}_{label}": times_ns[time][-(-of * len(times_ns[time]) // whole) - 1] / 1e9
        for time in _TIMES
        for label, (of, whole) in _SHARES.items()
    }
    different = {name: [entry[name], value] for name, value in expected.items() if entry[name] != value}
    details = {"compared": len(expected), "records": len(rows), "ok": len(ok), "agents": entry["agents"],
               "reported_and_recomputed": different}  # fmt: skip
    return Figure("percentiles_exact", float(len(different)), "percentiles that differ", 0.0, details=details)
