"""Measure the project itself: ``python benchmarks/run.py [FIGURE ...] [--runs N]``.

Writes ``results.json`` beside this file. Figures that are not measured this time stay in it. Each has the date, the
commit and the machine it was measured at. Exit status 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.harness import Figure

__all__ = ["main"]

SCHEMA = 3
"""Of results.json. 1: the first. 2: bounds are of ratios, and ``absolute`` has what they are of. 3: each figure names
its machine."""

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")

GROUPS: Mapping[str, tuple[str, ...]] = {
    "benchmarks.bench_engine": ("engine_over_loop", "lateness_over_sleep"),
    "benchmarks.bench_drivers": ("driver_overhead_ratio",),
    "benchmarks.bench_plugin": ("unused_plugin_ratio", "ordinary_session_ratio", "percentiles_exact"),
    "benchmarks.bench_emulator": (
        "emulator_over_asgi",
        "emulator_over_asgi_box",
        "emulator_over_asgi_gdrive",
        "emulator_over_asgi_onedrive",
    ),
    "benchmarks.bench_emulator_listing": (
        "emulator_listing_growth",
        "emulator_listing_growth_box",
        "emulator_listing_growth_gdrive",
        "emulator_listing_growth_onedrive",
        "emulator_memory",
    ),
    "benchmarks.bench_fleet": ("fleet50_start_ratio", "iot50_ready_ratio", "providers50_ready_ratio"),
    "benchmarks.bench_payload": ("payload_over_aes",),
    "benchmarks.bench_freeze": ("freeze_p99_error", "freeze_out_of_order"),
    "benchmarks.bench_memory": ("controller_bytes_per_op",),
    "benchmarks.bench_hosts": ("hosts_controller_ratio",),
    "benchmarks.bench_emulator_mega": ("emulator_over_asgi_mega",),
    "benchmarks.bench_traffic": ("traffic_packets_per_cpu_s",),
    "benchmarks.bench_versus": (
        "versus_false_answers",
        "versus_finds_p50",
        "versus_false_answers_busy",
        "versus_finds_p50_busy",
        "versus_finds_p50_really",
    ),
    "benchmarks.bench_ways": ("way_round_trip_ratio", "way_throughput_ratio"),
    "benchmarks.bench_live": ("live_view_core_share",),
    "benchmarks.bench_objects": ("s3_fast_puts_per_cpu_s",),
    "benchmarks.bench_history": (
        "history_list_ratio",
        "history_all_ratio",
        "history_compare_ratio",
        "history_backtest_ratio",
    ),
    "benchmarks.bench_raid": ("raid_put_isal", "raid_put_portable", "raid_put_small", "raid_over_tahoe", "raid_rss"),
    "benchmarks.bench_batching": (
        "written_ranges_over_rsync",
        "written_ranges_growth",
        "compare_over_rsync",
        "savingbox_over_rsync",
        "savingbox_growth",
    ),
    "benchmarks.bench_drift": ("drift_false_doubts", "drift_found"),
    "benchmarks.bench_gate": (
        "gate_false_alarms_calm",
        "gate_false_alarms_busy4",
        "gate_false_alarms_busy16",
        "gate_false_alarms_new",
        "gate_false_alarms_calm_to_busy16",
        "gate_false_alarms_calm_to_bursts",
        "gate_false_alarms",
        "gate_false_alarms_t3",
        "gate_false_alarms_t3_shared",
        "gate_finds_lost",
        "gate_finds_lost_busy16",
        "gate_finds_corrupt",
        "gate_finds_p50",
        "gate_finds_p50_simulated",
        "gate_finds_p99",
        "gate_finds_errors",
        "gate_finds_request",
        "gate_finds_bytes",
        "gate_finds_request_busy16",
        "gate_finds_bytes_busy16",
        "gate_finds_p50_incident",
        "gate_finds_p50_incidents",
        "gate_finds_p99_incident",
        "gate_finds_p99_incidents",
        "gate_finds_errors_incidents",
        "gate_finds_p99_incident_busy4",
        "gate_finds_p99_incidents_busy4",
        "gate_finds_p50_new",
        "gate_finds_p50_calm_to_bursts",
        "gate_finds_p50_busy4",
        "gate_finds_p50_busy16",
        "gate_met_p50_busy16_to_calm",
        "gate_met_p50_new",
        "gate_met_p50_calm_to_bursts",
        "gate_decided_open",
        "gate_decided_closed",
        "gate_drift_03_1",
        "gate_drift_03_3",
        "gate_drift_03_5",
        "gate_drift_05_1",
        "gate_drift_05_3",
        "gate_drift_05_5",
        "gate_step_15_1",
        "gate_step_15_3",
        "gate_step_15_5",
    ),
}
"""Module to the figures it measures; a figure may bring others with it (its memory)."""


def main(arguments: Sequence[str] | None = None) -> int:
    known = [name for names in GROUPS.values() for name in names]
    parser = argparse.ArgumentParser(description="Measure the project itself, into benchmarks/results.json.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"all by default: {', '.join(known)}")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="repetitions of each (default: %(default)s)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.figures if name not in known]
    if unknown or options.runs < 1:
        parser.error(f"no figure is called {unknown[0]}; see --help" if unknown else "--runs: expected 1 or more")
    wanted = options.figures or known
    sys.path.insert(0, str(ROOT))
    _compile()
    measured: dict[str, dict[str, Any]] = {}
    for module, names in GROUPS.items():
        chosen = [name for name in names if name in wanted]
        if chosen:
            print(f"measuring {', '.join(chosen)} ...", flush=True)
            for figure in importlib.import_module(module).measure(chosen, options.runs):
                measured[figure.name] = _plain(figure)
            _write(measured)
    _print(measured)
    return 0 if all(figure["met"] for figure in measured.values()) else 1


def _compile() -> None:
    """Users have byte code; without it, every process would compile again."""
    print("compiling src and suites to byte code, as an installation does", flush=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "suites"], cwd=ROOT, check=True)


def _plain(figure: Figure) -> dict[str, Any]:
    return {
        "value": figure.value if math.isfinite(figure.value) else None,
        "unit": figure.unit,
        "bound": figure.bound,
        "sense": figure.sense,
        "met": figure.met,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%MZ}",
        "commit": _commit(),
        "machine": _machine(),
        "absolute": figure.absolute,
        "details": figure.details,
    }


def _machine() -> dict[str, Any]:
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def _commit() -> str:
    command = "git --no-optional-locks describe --always --dirty --abbrev=12 --exclude=*".split()
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip() or "unknown"


def _write(measured: Mapping[str, Any]) -> None:
    """Called after each group, so that an interrupted run keeps its results so far."""
    former: dict[str, Any] = {}
    if RESULTS.is_file():
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
        if document["schema"] == SCHEMA:
            former = document["figures"]
    document = {"schema": SCHEMA, "figures": {**former, **measured}}
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    partial.replace(RESULTS)


def _print(measured: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [("figure", "value", "bound", "met", "unit")]
    for name, figure in measured.items():
        absent = "unknown" if "unknown" in figure["details"] else "broken"
        value = absent if figure["value"] is None else f"{figure['value']:,.5g}"
        if figure["value"] is not None and figure["value"] >= 1e4:
            value = f"{figure['value']:,.0f}"
        bound = f"{figure['sense']} {figure['bound']:,g}"
        rows.append((name, value, bound, "yes" if figure["met"] else "NO", figure["unit"]))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    print()
    for number, (name, value, bound, met, unit) in enumerate(rows):
        print(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {bound:<{widths[2]}}  {met:<{widths[3]}}  {unit}")
        if not number:
            print("-" * (sum(widths) + 8))
        for what, each in measured[name]["absolute"].items() if number else ():
            print(
                f"{'':<{widths[0]}}  {what}: {each:,.4g}" if each < 1e4 else f"{'':<{widths[0]}}  {what}: {each:,.0f}"
            )
    print(f"\n{RESULTS.relative_to(ROOT)}: values with their details")


if __name__ == "__main__":
    sys.exit(main())
