"""What the engine costs, and how punctual it is, with a driver that does nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import ROOT, Blocks, Figure, environment, median, python, run_tree

__all__ = ["measure"]

_MODES = ("open", "closed", "bare")
_BLOCKS = 4


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``engine_over_loop`` and ``lateness_over_sleep``."""
    figures = []
    if "engine_over_loop" in names:
        figures.append(_cost(runs))
    if "lateness_over_sleep" in names:
        figures.append(_punctuality(runs))
    return figures


def _agent(mode: str, blocks: int) -> tuple[Blocks, dict[str, Any]]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = python("-m", "benchmarks.engine_agent", mode, str(blocks))
    usage = run_tree(command, ROOT, environment(PYTHONPATH=path), sampled=False).require()
    measured: dict[str, Any] = json.loads(usage.output)
    return Blocks(measured["ours"], measured["reference"]), measured


def _cost(runs: int) -> Figure:
    """One process runs all blocks, so that both share the same interpreter, memory and CPU placement."""
    found = {mode: _agent(mode, _BLOCKS * runs)[0] for mode in _MODES}
    details = {mode: {"ratio": blocks.ratio, **blocks.details()} for mode, blocks in found.items()}
    absolute = {f"{mode}, operations / CPU-second": 1e6 / median(blocks.ours) for mode, blocks in found.items()}
    absolute["bare loop, operations / CPU-second"] = 1e6 / median(found["open"].reference)
    return Figure("engine_over_loop", found["open"].ratio, "CPU / CPU of a bare loop", 2.0, details=details,
                  absolute=absolute)  # fmt: skip


def _punctuality(runs: int) -> Figure:
    load = round(os.getloadavg()[0], 1)
    blocks, measured = _agent("sensors", max(3, runs))  # 20 s each
    details = {**blocks.details(), "runs": measured["runs"], "load_average_before": load}
    absolute = {"10,000 sensors, p99 ms": median(blocks.ours), "one sleeping thread, p99 ms": median(blocks.reference)}
    return Figure("lateness_over_sleep", blocks.ratio, "p99 / p99 of a thread that sleeps", 10.0, details=details,
                  absolute=absolute)  # fmt: skip
