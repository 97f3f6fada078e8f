"""Figures, and runs of whole process trees whose CPU and memory are counted.

Linux only: CPU is read from each process's own CPU clock (nanoseconds, threads that have ended included)
and, for children that have been waited for, from ``/proc/PID/stat`` (ticks of 10 ms). What one whole
run has cost comes from ``wait4``.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_cloudbench.judge.significance import binomial_sf

__all__ = [
    "ROOT",
    "Blocks",
    "Figure",
    "Growth",
    "Sample",
    "Usage",
    "alternating",
    "at",
    "children_cpu_s",
    "cloudbench",
    "environment",
    "measure_growth",
    "median",
    "python",
    "run_tree",
    "scratch",
]

ROOT = Path(__file__).resolve().parents[1]
MIB = 1024 * 1024

_SAMPLE_S = 0.05
_PSS_SHARE = 0.2
"""Reading the proportional size takes at most this share of the time: of fifty processes it takes some 50 ms."""
_HANG_S = 300.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Growth:
    """The cost of something at a size, at ten times the size and at a hundred times.

    Attributes:
        of: what the size counts, such as "packets".
        sizes: the three sizes.
        costs: the cost of each, in CPU-seconds unless ``unit`` names something else.
        unit: the unit of the costs.
    """

    of: str
    sizes: tuple[int, ...]
    costs: tuple[float, ...]
    unit: str = "CPU-seconds"

    @property
    def exponent(self) -> float:
        """The power of the size that the cost follows between the two largest sizes. 1 is linear.

        Small sizes tell the start of a process, which grows with nothing.
        """
        (_, small, large), (_, few, many) = self.sizes, self.costs
        return round(math.log(many / few) / math.log(large / small), 2) if min(few, many) > 0 else math.nan


def measure_growth(of: str, size: int, cost: Callable[[int], float], unit: str = "CPU-seconds") -> Growth:
    """Measure the cost at a size, at ten times the size and at a hundred times, once each."""
    sizes = (size, 10 * size, 100 * size)
    return Growth(of, sizes, tuple(round(cost(at_size), 6) for at_size in sizes), unit)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure and its bound.

    A figure that depends on the machine's speed is bounded as a ratio to a reference in the same run. ``absolute`` has
    the values of both, by names with units; they have no bound. ``growth`` is ours at three sizes.
    """

    name: str
    value: float
    unit: str
    bound: float
    sense: Literal["at most", "at least", "below"] = "at most"
    details: Mapping[str, Any] = field(default_factory=dict)
    absolute: Mapping[str, float] = field(default_factory=dict)
    growth: Growth | None = None

    @property
    def met(self) -> bool:
        if self.sense == "at least":
            return self.value >= self.bound
        return self.value < self.bound if self.sense == "below" else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a process tree at one time of the monotonic clock.

    Attributes:
        at_ns: the time.
        cpu_s: the CPU-seconds so far.
        rss_bytes: the sum over the tree; pages that processes share count once for each.
        pss_bytes: the proportional size of the tree, 0 in most samples, because reading it is costly.
    """

    at_ns: int
    cpu_s: float
    rss_bytes: int
    pss_bytes: int = 0


@dataclass(slots=True)
class Usage:
    """The CPU, time and memory that a command and everything it started have used."""

    status: int
    cpu_s: float
    wall_s: float
    output: str
    samples: list[Sample]

    @property
    def rss_bytes(self) -> int:
        """Return the peak of the sum over the tree."""
        return max((sample.rss_bytes for sample in self.samples), default=0)

    @property
    def pss_bytes(self) -> int:
        """Return the peak of the tree's proportional size."""
        return max((sample.pss_bytes for sample in self.samples), default=0)

    def require(self, *statuses: int) -> Usage:
        """Raise RuntimeError unless it ended as expected."""
        if self.status not in (statuses or (0,)):
            raise RuntimeError(f"exit status {self.status}:\n{self.output[-4000:]}")
        return self


@dataclass(frozen=True, slots=True)
class Blocks:
    """The costs of something and of its reference, in blocks that took turns."""

    ours: list[float]
    reference: list[float]

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbours, so that drift in the course of a run cancels out."""
        return round(median([ours / reference for ours, reference in zip(self.ours, self.reference, strict=True)]), 3)

    @property
    def interval95(self) -> tuple[float, float]:
        """Return the 95 % interval of the ratios' median (sign test). With fewer than six, it spans all of them."""
        ratios, rank = sorted(self.details()["ratios"]), 0
        while binomial_sf(len(ratios) - rank, len(ratios), 0.5) <= 0.025:
            rank += 1
        return ratios[max(rank - 1, 0)], ratios[-max(rank, 1)]

    def details(self) -> dict[str, list[float]]:
        """Return the ratio of each pair."""
        pairs = zip(self.ours, self.reference, strict=True)
        return {"ratios": [round(ours / reference, 3) for ours, reference in pairs]}


def alternating(ours: Callable[[], float], reference: Callable[[], float], blocks: int) -> Blocks:
    """Measure both in turns (A B, B A, A B, ...), after one warm-up block of each."""
    ours()
    reference()
    blocks_measured = Blocks([], [])
    for number in range(blocks):
        first = [(blocks_measured.ours, ours), (blocks_measured.reference, reference)]
        for costs, measure in first if number % 2 == 0 else reversed(first):
            costs.append(measure())
    return blocks_measured


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def python(*args: str) -> list[str]:
    return [sys.executable, *args]


def cloudbench(*args: str) -> list[str]:
    """Return the ``cloudbench`` command that was installed beside this interpreter."""
    return [str(Path(sys.executable).with_name("cloudbench")), *args]


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without variables that would distort results."""
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTEST_", "CLOUDBENCH_", "COV_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return variables | {"COLUMNS": "120", "PYTHONUNBUFFERED": "1"} | changes


@contextmanager
def scratch(**files: str) -> Iterator[Path]:
    """Yield a folder with some Python files in it, each by its name without ``.py``."""
    with tempfile.TemporaryDirectory(prefix="cloudbench-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        yield folder


def run_tree(
    command: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    *,
    sampled: bool = True,
    enough: Callable[[], bool] | None = None,
) -> Usage:
    """Run a command in ``folder``. End it by Ctrl-C as soon as ``enough`` returns True."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and so would all
    began = time.monotonic()
    samples: list[Sample] = []
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment() if env is None else env, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        is_ending, pss_due_ns = False, 0
        try:
            while True:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() - began > _HANG_S:
                    raise RuntimeError(f"{' '.join(command)} took longer than {_HANG_S:g} s")
                if sampled:
                    sample = _sample(_tree(process.pid), has_pss=time.monotonic_ns() >= pss_due_ns)
                    samples.append(sample)
                    if sample.pss_bytes:
                        now_ns = time.monotonic_ns()
                        pss_due_ns = now_ns + round((now_ns - sample.at_ns) / _PSS_SHARE)
                if enough is not None and not is_ending and enough():
                    is_ending = True
                    os.kill(process.pid, signal.SIGINT)
                time.sleep(_SAMPLE_S)
        except BaseException:
            for stray in _tree(process.pid):
                os.kill(stray, signal.SIGKILL)
            process.wait()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read().decode(errors="replace")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Usage(process.returncode, cpu_s, time.monotonic() - began, output, samples)


def children_cpu_s(is_wanted: Callable[[str], bool]) -> float:
    """Return the CPU-seconds so far of descendants with such a command line, which must not end in between."""
    total_s = 0.0
    for pid in set(_tree(os.getpid())) - {os.getpid()}:
        with suppress(OSError):  # it has just ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").rstrip()
            if is_wanted(command):
                total_s += time.clock_gettime((~pid << 3) | 2)
    return total_s


def at(samples: Sequence[Sample], at_ns: int) -> Sample:
    """Return the state at a time between two samples, by linear interpolation."""
    for before, after in itertools.pairwise(samples):
        if before.at_ns <= at_ns <= after.at_ns:
            share = (at_ns - before.at_ns) / max(1, after.at_ns - before.at_ns)
            cpu_s = before.cpu_s + share * (after.cpu_s - before.cpu_s)
            return Sample(at_ns, cpu_s, round(before.rss_bytes + share * (after.rss_bytes - before.rss_bytes)))
    raise RuntimeError("the time is outside of what was sampled")


def _stat(pid: int | str) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on, or none if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _tree(root: int) -> dict[int, list[str]]:
    """Return the process and all its descendants, with their stat fields."""
    stats = {int(name): fields for name in os.listdir("/proc") if name.isdigit() if (fields := _stat(name))}
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[1]), []).append(pid)
    tree, todo = dict[int, list[str]](), [root]
    while todo:
        pid = todo.pop()
        if pid in stats:
            tree[pid] = stats[pid]
            todo += children.get(pid, [])
    return tree


def _sample(tree: Mapping[int, list[str]], *, has_pss: bool) -> Sample:
    cpu_s, rss_bytes = 0.0, 0
    for pid, fields in tree.items():
        try:
            cpu_s += time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): the whole process's CPU clock
        except OSError:
            cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS
        cpu_s += (int(fields[13]) + int(fields[14])) / _TICKS
        rss_bytes += int(fields[21]) * _PAGE_BYTES
    return Sample(time.monotonic_ns(), cpu_s, rss_bytes, sum(map(_pss_bytes, tree)) if has_pss else 0)


def _pss_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0
