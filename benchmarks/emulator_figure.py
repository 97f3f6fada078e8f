"""What the emulator costs per upload: ``bench_emulator`` as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import bench_emulator
from benchmarks.harness import Figure, median

__all__ = ["measure"]


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``emulator_cpu_ms_per_upload``: each measurement has rounds of its own, so few are enough."""
    measured = [bench_emulator.measure() for _ in range(max(1, runs // 3))]
    name = "emulator_cpu_ms_per_upload"
    details = {key: [round(each[key], 4) for each in measured] for key in measured[0]}
    return [Figure(name, round(median([each[name] for each in measured]), 4), "ms CPU", 0.2, details=details)]
