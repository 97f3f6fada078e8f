"""The controller's memory for each additional operation, at most: a session of two agents with a driver that does
nothing.

Two sizes of the same session (see ``many_operations``); the difference of the controller's peaks over the difference in
operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import MIB, Figure, measure_growth, median
from benchmarks.many_operations import run_session

__all__ = ["measure"]

_FEW, _MANY = 20_000, 220_000
_SENSORS = 50


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``controller_bytes_per_op``."""
    peaks = {
        ops: [run_session(_SENSORS, ops, "-n", "2").controller_peak_bytes for _ in range(max(1, runs // 3))]
        for ops in (_FEW, _MANY)
    }
    value = (median(peaks[_MANY]) - median(peaks[_FEW])) / (_MANY - _FEW)
    absolute = {f"peak with {ops:,} operations, MiB": median(values) / MIB for ops, values in peaks.items()}
    growth = measure_growth("operations", _FEW // 10, _peak_mib, "MiB of the controller")
    unit = "bytes of the controller's peak / operation"
    return [Figure("controller_bytes_per_op", round(value, 1), unit, 100, absolute=absolute, growth=growth)]


def _peak_mib(ops: int) -> float:
    return run_session(_SENSORS, ops, "-n", "2").controller_peak_bytes / MIB
