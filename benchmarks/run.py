"""Measure the project itself: ``python benchmarks/run.py [FIGURE ...] [--runs N]``.

Writes ``results.json`` beside this file. Figures that are not measured this time stay in it. Each has the date, the
commit and the machine that it was measured at, so a checkout with changes is refused. ``--list`` shows what is stored,
and marks figures that are older than the code they measure. Exit status 1 when a bound is broken.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.harness import Figure

__all__ = ["main"]

SCHEMA = 4
"""Of results.json. 1: the first. 2: bounds are of ratios, and ``absolute`` has what they are of. 3: each figure names
its machine. 4: each figure of a cost has its growth; commits are clean."""

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True)
class Group:
    """The figures of one module, which are measured together.

    Attributes:
        figures: their names. A figure may bring others with it, such as its memory, whose names begin as its own.
        code: what they measure, as paths in the package. A figure is older than its code once that has changed.
    """

    figures: tuple[str, ...]
    code: tuple[str, ...]


GROUPS: Mapping[str, Group] = {
    "bench_engine": Group(
        ("engine_over_executor", "engine_closed_over_executor", "lateness_over_sleep"),
        ("load/engine", "results/oplog.py", "workload"),
    ),
    "bench_drivers": Group(("driver_overhead_ratio", "driver_get_ratio"), ("drivers",)),
    "bench_plugin": Group(
        ("unused_plugin_ratio", "ordinary_session_ratio", "percentiles_exact"), ("plugin", "__init__.py")
    ),
    "bench_emulator": Group(
        ("emulator_over_asgi", "emulator_over_asgi_box", "emulator_over_asgi_gdrive", "emulator_over_asgi_onedrive"),
        ("emulators",),
    ),
    "bench_emulator_listing": Group(
        (
            "emulator_listing_growth",
            "emulator_listing_growth_box",
            "emulator_listing_growth_gdrive",
            "emulator_listing_growth_onedrive",
            "emulator_memory",
        ),
        ("emulators",),
    ),
    "bench_fleet": Group(
        ("fleet50_start_ratio", "iot50_ready_ratio", "providers50_ready_ratio"), ("fleet", "plugin", "providers")
    ),
    "bench_payload": Group(
        (
            "payload_random_over_aes",
            "payload_delta_over_aes",
            "payload_compressible_over_aes",
            "payload_duplicated_over_aes",
            "payload_jpeg_over_aes",
            "payload_sparse_over_aes",
            "payload_text_over_aes",
        ),
        ("workload/payload",),
    ),
    "bench_freeze": Group(("freeze_p99_error", "freeze_out_of_order"), ("load/engine", "drivers")),
    "bench_memory": Group(("controller_bytes_per_op",), ("load", "results")),
    "bench_hosts": Group(("hosts_controller_ratio",), ("fleet", "load")),
    "bench_emulator_mega": Group(("emulator_over_asgi_mega",), ("emulators",)),
    "bench_traffic": Group(
        (
            "traffic_short_over_tcptrace",
            "traffic_short_over_tshark",
            "traffic_lossy_over_tcptrace",
            "traffic_lossy_over_tshark",
            "traffic_long_over_tcptrace",
            "traffic_long_over_tshark",
            "traffic_ipv6_over_tcptrace",
            "traffic_ipv6_over_tshark",
            "traffic_interfaces_over_tcptrace",
            "traffic_interfaces_over_tshark",
            "traffic_quic_over_tcptrace",
            "traffic_quic_over_tshark",
            "traffic_parallel_over_dpkt",
            "traffic_parallel_over_pyshark",
            "traffic_2gb_rss_mb",
        ),
        ("net",),
    ),
    "bench_versus": Group(
        (
            "versus_false_answers",
            "versus_finds_p50",
            "versus_false_answers_busy",
            "versus_finds_p50_busy",
            "versus_finds_p50_really",
        ),
        ("load/versus", "judge/paired.py", "judge/paired_gate.py"),
    ),
    "bench_ways": Group(("way_round_trip_ratio", "way_throughput_ratio"), ("fleet/hosts",)),
    "bench_live": Group(("live_view_core_share",), ("report/live.py", "report/live_digest.py", "report/live_page.py")),
    "bench_objects": Group(("s3_fast_over_obstore", "s3_fast_over_warp"), ("drivers",)),
    "bench_history": Group(
        ("history_list_ratio", "history_all_ratio", "history_compare_ratio", "history_backtest_ratio"),
        ("results", "judge", "commands"),
    ),
    "bench_raid": Group(
        ("raid_put_isal", "raid_put_portable", "raid_put_small", "raid_over_tahoe", "raid_rss"), ("raid",)
    ),
    "bench_batching": Group(
        ("savingbox_first_ratio", "savingbox_again_ratio", "savingbox_append_ratio", "savingbox_compare_ratio"),
        ("savingbox",),
    ),
    "bench_drift": Group(("drift_false_doubts", "drift_found"), ("judge/steady.py",)),
    "bench_gate": Group(
        (
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
        (
            "judge/gate.py",
            "judge/noise.py",
            "judge/watched.py",
            "judge/significance.py",
            "judge/anytime.py",
            "judge/drift.py",
        ),
    ),
}
"""Groups of figures, by the module of this folder that measures them."""


def main(arguments: Sequence[str] | None = None) -> int:
    names = [name for group in GROUPS.values() for name in group.figures]
    parser = argparse.ArgumentParser(description="Measure the project itself, into benchmarks/results.json.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"all by default: {', '.join(names)}")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="repetitions of each (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the stored figures; measure nothing")
    parser.add_argument("--try", action="store_true", dest="is_trial", help="print figures without storing them")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.figures if name not in names]
    if unknown or options.runs < 1:
        parser.error(f"no figure is called {unknown[0]}; see --help" if unknown else "--runs: expected 1 or more")
    selected = options.figures or names
    if options.list:
        _print({name: figure for name, figure in _read_stored().items() if name in selected or not options.figures})
        return 0
    commit = _commit()
    if commit.endswith("-dirty") and not options.is_trial:
        parser.error("the checkout has changes: a figure is of a commit. Commit them first, or --try")
    sys.path.insert(0, str(ROOT))
    _compile()
    measured: dict[str, dict[str, Any]] = {}
    for module, group in GROUPS.items():
        chosen = [name for name in group.figures if name in selected]
        if chosen:
            print(f"measuring {', '.join(chosen)} ...", flush=True)
            for figure in importlib.import_module(f"benchmarks.{module}").measure(chosen, options.runs):
                measured[figure.name] = _plain(figure, commit)
            if not options.is_trial:
                _write(measured)
    _print(measured)
    return 0 if all(figure["met"] for figure in measured.values()) else 1


def _compile() -> None:
    """Compile to byte code, which users have. Without it, every process would compile again."""
    print("compiling src and suites to byte code, as an installation does", flush=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "src", "suites"], cwd=ROOT, check=True)


def _plain(figure: Figure, commit: str) -> dict[str, Any]:
    growth = figure.growth
    return {
        "value": figure.value if math.isfinite(figure.value) else None,
        "unit": figure.unit,
        "bound": figure.bound,
        "sense": figure.sense,
        "met": figure.met,
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%MZ}",
        "commit": commit,
        "machine": _machine(),
        "absolute": figure.absolute,
        "growth": None if growth is None else {**asdict(growth), "exponent": growth.exponent},
        "details": figure.details,
    }


def _machine() -> dict[str, Any]:
    model = "unknown"
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), model)
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "--no-optional-locks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _commit() -> str:
    """Return the commit, with "-dirty" if a file other than the results has changed since."""
    changes = _git("status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}").stdout.strip()
    commit = _git("rev-parse", "--short=12", "HEAD").stdout.strip() or "unknown"
    return f"{commit}-dirty" if changes else commit


def describe_age(name: str, commit: str) -> str:
    """Return why a stored figure may not hold for this checkout, or nothing if its code has not changed since."""
    if commit.endswith("-dirty"):
        return "of a checkout with changes"
    for module, group in GROUPS.items():
        if any(name == figure or name.startswith(f"{figure.removesuffix('_ratio')}_") for figure in group.figures):
            code = tuple(f"src/pytest_cloudbench/{path}" for path in group.code)
            return _describe_changes(commit, (*code, f"benchmarks/{module}.py"))
    return "of a benchmark that is gone"


@functools.cache
def _describe_changes(commit: str, paths: tuple[str, ...]) -> str:
    """Return whether files have changed since a commit, or nothing. Cached, since figures of a group share theirs."""
    status = _git("diff", "--quiet", commit, "--", *paths).returncode
    return {0: "", 1: "older than the code that it measures"}.get(status, "of a commit that is not here")


def _read_stored() -> dict[str, dict[str, Any]]:
    if not RESULTS.is_file():
        return {}
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    figures: dict[str, dict[str, Any]] = document["figures"] if document["schema"] == SCHEMA else {}
    return figures


def _write(measured: Mapping[str, Any]) -> None:
    """Called after each group, so that an interrupted run keeps its results so far."""
    document = {"schema": SCHEMA, "figures": {**_read_stored(), **measured}}
    partial = RESULTS.with_suffix(".partial")
    partial.write_text(json.dumps(document, indent=1, sort_keys=False) + "\n", encoding="utf-8")
    partial.replace(RESULTS)


def _print(figures: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [("figure", "value", "bound", "met", "unit")]
    for name, figure in figures.items():
        absent = "unknown" if "unknown" in figure["details"] else "broken"
        value = absent if figure["value"] is None else _number(figure["value"], 5)
        bound = f"{figure['sense']} {figure['bound']:,g}"
        rows.append((name, value, bound, "yes" if figure["met"] else "NO", figure["unit"]))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    print()
    for number, row in enumerate(rows):
        print("  ".join(f"{cell:{'>' if column == 1 else '<'}{widths[column]}}" for column, cell in enumerate(row)))
        for line in _details(row[0], figures[row[0]]) if number else ["-" * (sum(widths) + 8)]:
            print(line if not number else f"{'':<{widths[0]}}  {line}")
    print(f"\n{RESULTS.relative_to(ROOT)}: values with their details")


def _details(name: str, figure: Mapping[str, Any]) -> list[str]:
    lines = [f"{quantity}: {_number(value, 4)}" for quantity, value in figure["absolute"].items()]
    if growth := figure["growth"]:
        costs = ", ".join(
            f"{cost:,.4g} for {size:,}" for size, cost in zip(growth["sizes"], growth["costs"], strict=True)
        )
        lines.append(f"{growth['unit']}: {costs} {growth['of']}; exponent {growth['exponent']:.2f}")
    if age := describe_age(name, figure["commit"]):
        lines.append(f"{figure['commit']}, {figure['date'][:10]}: {age}")
    return lines


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}g}" if value < 1e4 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
