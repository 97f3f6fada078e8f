"""Measure the cost of an operation in a whole session, and its lateness, with a driver that does nothing.

The session is what a user types: pytest with one experiment, from its start to its table, records stored. The
reference is a program of ten lines that puts the same files with ``ThreadPoolExecutor`` and lists their times.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import ROOT, Blocks, Figure, alternating, environment, measure_growth, median, python, run_tree
from benchmarks.many_operations import run_session

__all__ = ["measure"]

_SENSORS, _OPS = 50, 200_000
_LOOPS = {"engine_over_executor": "open", "engine_closed_over_executor": "closed"}
_PROGRAM = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from benchmarks.engine_agent import NoDriver
from pytest_cloudbench.workload.payload import Payloads

driver, payload, times = NoDriver(), Payloads("bench").random(5120), []

def put(number):
    sensor, seq = number % 50, number // 50
    content = payload.content(sensor, seq)
    start_ns = time.monotonic_ns()
    driver.put(f"/run/s{sensor:05d}-{seq:06d}.bin", content)
    times.append((sensor, seq, start_ns, time.monotonic_ns()))

with ThreadPoolExecutor(50) as pool:
    for _ in pool.map(put, range(int(sys.argv[1]))):
        pass
print(len(times))
"""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``engine_over_executor`` in the open and the closed loop, and ``lateness_over_sleep``."""
    figures = [_measure_cost(name, runs) for name in names if name in _LOOPS]
    return [*figures, _measure_punctuality(runs)] if "lateness_over_sleep" in names else figures


def _measure_cost(name: str, runs: int) -> Figure:
    def ours(ops: int) -> float:
        return run_session(_SENSORS, ops, loop=_LOOPS[name]).cpu_s

    blocks = alternating(lambda: _OPS / ours(_OPS), lambda: _OPS / _run(("-c", _PROGRAM, str(_OPS))).cpu_s, runs)
    absolute = {
        "operations / CPU-second": median(blocks.ours),
        "operations of the executor / CPU-second": median(blocks.reference),
    }
    growth = measure_growth("operations", _OPS // 100, ours)
    unit = "operations / CPU-second over a ThreadPoolExecutor's"
    return Figure(name, blocks.ratio, unit, 1.9, "at least", blocks.details(), absolute, growth)


def _run(arguments: Sequence[str]) -> Any:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return run_tree(python(*arguments), ROOT, environment(PYTHONPATH=path), sampled=False).require()


def _measure_punctuality(runs: int) -> Figure:
    load = round(os.getloadavg()[0], 1)
    measured = json.loads(_run(("-m", "benchmarks.engine_agent", str(max(3, runs)))).output)  # 20 s each
    blocks = Blocks(measured["ours"], measured["reference"])
    details = {**blocks.details(), "runs": measured["runs"], "load_average_before": load}
    absolute = {"10,000 sensors, p99 ms": median(blocks.ours), "one sleeping thread, p99 ms": median(blocks.reference)}
    unit = "p99 / p99 of a thread that sleeps"
    return Figure("lateness_over_sleep", blocks.ratio, unit, 10.0, details=details, absolute=absolute)
