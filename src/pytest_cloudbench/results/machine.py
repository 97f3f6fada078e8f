"""Which machine measured: what tells apart machines whose times must not be compared.

What may live here: one line from what the system says about itself, without the host's name: in CI each run has
another. And how fast it is at the moment, by a piece of work that is always the same.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from dataclasses import dataclass
from hashlib import blake2b

_WORK_BYTES, _WORK_ROWS, _TRIES = 1 << 20, 1500, 5
_LEAST_TICKS = 20


def machine_text() -> str:
    """System, processors that this process may use, their model, and the Python that runs the load."""
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    python = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.system()} {platform.machine()}, {cpus} x {_model()}, {python}"


def _model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown processor"


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Clock ticks of this machine's CPUs since it started.

    Attributes:
        busy: in which they worked, or their host gave them to others.
        stolen: in which their host gave them to others.
        whole: all.
    """

    busy: int
    stolen: int
    whole: int

    def shares_since(self, before: CpuTicks) -> tuple[float, float] | None:
        """Returns the busy and the stolen share since then; None if too little time has passed to tell."""
        whole = self.whole - before.whole
        if whole < _LEAST_TICKS:
            return None
        return (self.busy - before.busy) / whole, (self.stolen - before.stolen) / whole


def cpu_ticks() -> CpuTicks | None:
    """Returns the clock ticks of this machine's CPUs; None if the system does not say."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return CpuTicks(sum(ticks) - sum(ticks[3:5]), ticks[7], sum(ticks))


def reference_cpu_s() -> float:
    """CPU seconds that this thread needs for a fixed piece of work: how fast this machine is, beside its neighbours.

    The work is what clients do: hashes and texts. The median of five tries, some 5 ms each.
    """
    data, rows = bytes(_WORK_BYTES), [{"name": f"file-{row}", "size": row} for row in range(_WORK_ROWS)]
    taken_s = []
    for _ in range(_TRIES):
        begun_s = time.thread_time()
        blake2b(data).digest()
        json.loads(json.dumps(rows))
        taken_s.append(time.thread_time() - begun_s)
    return sorted(taken_s)[_TRIES // 2]
