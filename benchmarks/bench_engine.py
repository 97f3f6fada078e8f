"""What the engine costs, and how punctual it is, with a driver that does nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import ROOT, Figure, environment, median, python, run_tree

__all__ = ["measure"]

_MODES = ("open", "closed", "bare")


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``engine_ops_per_cpu_s`` and ``sensors_per_process_lateness_p99_ms``."""
    figures = []
    if "engine_ops_per_cpu_s" in names:
        figures.append(_throughput(runs))
    if "sensors_per_process_lateness_p99_ms" in names:
        figures.append(_punctuality(runs))
    return figures


def _agent(mode: str) -> dict[str, float]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = python("-m", "benchmarks.engine_agent", mode)
    usage = run_tree(command, ROOT, environment(PYTHONPATH=path), sampled=False).require()
    measured: dict[str, float] = json.loads(usage.output)
    return measured


def _throughput(runs: int) -> Figure:
    rates: dict[str, list[float]] = {mode: [] for mode in _MODES}
    for _ in range(runs):
        for mode in _MODES:
            rates[mode].append(_agent(mode)["ops_per_cpu_s"])
    details: dict[str, Any] = {f"{mode}_runs": [round(rate) for rate in each] for mode, each in rates.items()}
    details |= {f"{mode}_us_per_op": round(1e6 / median(each), 2) for mode, each in rates.items()}
    return Figure("engine_ops_per_cpu_s", round(median(rates["open"])), "operations / CPU-second", 60_000,
                  "at least", details)  # fmt: skip


def _punctuality(runs: int) -> Figure:
    measured, load = [], []
    for _ in range(max(1, runs // 3)):  # each takes 40 s
        load.append(round(os.getloadavg()[0], 1))
        measured.append(_agent("sensors"))
    details = {key: [float(f"{each[key]:.6g}") for each in measured] for key in measured[0]}
    value = median([each["lateness_p99_ms"] for each in measured])
    return Figure("sensors_per_process_lateness_p99_ms", round(value, 3), "ms", 10.0, "below",
                  details | {"load_average_before": load})  # fmt: skip
