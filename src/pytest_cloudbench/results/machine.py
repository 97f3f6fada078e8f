"""A line of text that separates machines whose times must not be compared, and a measure of a machine's speed.

The line is made of what the system reports about itself, without the host's name, because in CI each run has another.
The speed at the moment is measured by a piece of work that is always the same.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from hashlib import blake2b

THIS_MACHINE = "this machine"
"""The name of the controller's machine where agents are on other hosts, too. No table of hosts can have it."""

_WORK_BYTES, _WORK_ROWS, _REPEATS = 1 << 20, 1500, 5
_MIN_TICKS = 20


def describe_machine() -> str:
    """Return the system, the processors that this process may use, their model, and the Python that runs the load."""
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.system()} {platform.machine()}, {cpus} x {_cpu_model()}, {python}"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


def read_memory_bytes() -> int | None:
    """Return how much memory this machine has, or None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # there is no sysconf on Windows
        return None


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Clock ticks of this machine's CPUs since it started.

    Attributes:
        busy: ticks in which they worked, or in which their host gave them to others.
        stolen: ticks in which their host gave them to others.
        total: all ticks.
    """

    busy: int
    stolen: int
    total: int

    def shares_since(self, before: CpuTicks) -> tuple[float, float] | None:
        """Return the busy and the stolen share since then, or None if too little time has passed to tell."""
        total = self.total - before.total
        if total < _MIN_TICKS:
            return None
        return (self.busy - before.busy) / total, (self.stolen - before.stolen) / total


def read_cpu_ticks() -> CpuTicks | None:
    """Return the clock ticks of this machine's CPUs, or None if the system does not report them."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return CpuTicks(sum(ticks) - sum(ticks[3:5]), ticks[7], sum(ticks))


def reference_cpu_s() -> float:
    """Return the CPU seconds that this thread needs for a fixed piece of work: how fast this machine is at the moment.

    The work is what clients do: hashes and texts. The result is the median of five repeats of some 5 ms each.
    """
    data, rows = bytes(_WORK_BYTES), [{"name": f"file-{row}", "size": row} for row in range(_WORK_ROWS)]
    durations_s = []
    for _ in range(_REPEATS):
        start_s = time.thread_time()
        blake2b(data).digest()
        json.loads(json.dumps(rows))
        durations_s.append(time.thread_time() - start_s)
    return sorted(durations_s)[_REPEATS // 2]
