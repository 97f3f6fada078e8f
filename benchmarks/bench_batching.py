"""CPU time for 2 KB appended to a file of 1, 10 and 100 MiB: to find the difference, and of a whole savingbox.

Finding the difference, three ways: by the written ranges (UDS+), by a compare with the copy (a savingbox without
rights), and by rsync's diff with the copy, as UDS does. What differs is deflated each time, since UDS counts compressed
bytes. Both files are in the page cache.

The whole savingbox is the command in a process of its own. Each append is pushed by itself, so its CPU time includes
the events, the counter, the patch with its journal, and the look at its own echo.
"""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import MIB, Figure, alternating, environment, median, python, scratch
from pytest_cloudbench.savingbox.content import compressed_bytes
from pytest_cloudbench.savingbox.written import TracedWrites, find_writes

__all__ = ["measure"]

_APPENDED_BYTES = 2048
_BLOCKS = 5
_REPEATS = 20
_CHANGES = 10
_QUIET_S, _ECHO_S = 0.05, 0.5
"""A push is due after the first without a change; after the second, the savingbox has looked at its own echo."""
_HANG_S = 60.0
_BOUNDS = {
    "written_ranges_over_rsync": (0.2, "at most a fifth of rsync's CPU time at 10 MiB"),
    "written_ranges_growth": (2.0, "CPU time at 100 MiB over that at 1 MiB"),
    "compare_over_rsync": (0.5, "CPU time over rsync's at 10 MiB"),
    "savingbox_over_rsync": (0.2, "CPU time of the whole process per change, over rsync's at 10 MiB"),
    "savingbox_growth": (1.5, "CPU time of the whole process per change at 100 MiB over that at 1 MiB"),
}


@dataclass(frozen=True, slots=True)
class _Pair:
    """A file with an append that its copy does not have."""

    source: Path
    copy: Path
    fd: int
    writes: TracedWrites


_Way = Callable[[_Pair], int]
"""Finds out how many compressed bytes differ."""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """Each figure is unknown where its mechanism cannot be used, and says why."""
    with scratch() as folder:
        writes = find_writes(folder)
        if not isinstance(writes, TracedWrites) or shutil.which("rsync") is None:
            why = writes.why or "rsync is not installed"
            return [Figure(name, math.nan, _BOUNDS[name][1], _BOUNDS[name][0], details={"unknown": why})
                    for name in names]  # fmt: skip
        try:
            return _figures(folder, writes, max(_BLOCKS, runs))
        finally:
            writes.close()


def _figures(folder: Path, writes: TracedWrites, blocks: int) -> list[Figure]:
    with _pair(folder, 1, writes) as small, _pair(folder, 10, writes) as middle, _pair(folder, 100, writes) as large:
        found = {
            "written_ranges_over_rsync": alternating(_cost(_by_ranges, middle), _cost(_by_rsync, middle, 1), blocks),
            "written_ranges_growth": alternating(_cost(_by_ranges, large), _cost(_by_ranges, small), blocks),
            "compare_over_rsync": alternating(_cost(_by_compare, middle), _cost(_by_rsync, middle, 1), blocks),
        }
        boxes = [_box(folder, size_mib) for size_mib in (1, 10, 100)]
        with boxes[0] as small_box, boxes[1] as middle_box, boxes[2] as large_box:
            found |= {
                "savingbox_over_rsync": alternating(middle_box.cost, _cost(_by_rsync, middle, 1), blocks),
                "savingbox_growth": alternating(large_box.cost, small_box.cost, blocks),
            }
        absolute = {
            f"{way.__name__[4:]}, {size} MiB, ms CPU": round(median([_cost(way, pair, 1)() for _ in range(3)]) * 1e3, 3)
            for way in (_by_ranges, _by_compare, _by_rsync)
            for size, pair in ((1, small), (10, middle), (100, large))
        }
    for ranges in ("auto", "compare"):
        for size in (1, 10, 100):
            with _box(folder, size, ranges) as box:
                box.cost()
                absolute[f"savingbox, {box.mechanism}, {size} MiB, ms CPU"] = round(box.cost() * 1e3, 3)
    return [
        Figure(name, each.ratio, _BOUNDS[name][1], _BOUNDS[name][0], details=each.details(), absolute=absolute)
        for name, each in found.items()
    ]


@dataclass(frozen=True, slots=True)
class _Box:
    """A running savingbox with one file in it."""

    process: subprocess.Popen[str]
    file: Path
    mechanism: str

    def cost(self) -> float:
        """CPU seconds of one append, from the event to the look at its echo."""
        before = self._cpu_s()
        for _ in range(_CHANGES):
            with self.file.open("ab") as file:
                file.write(os.urandom(_APPENDED_BYTES))
            self.told("push")
        time.sleep(_ECHO_S)
        return (self._cpu_s() - before) / _CHANGES

    def told(self, event: str) -> dict[str, Any]:
        """The next such event."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (said := json.loads(line))["event"] == event:
                return dict(said)
        raise RuntimeError(f"the savingbox ended before it told of a {event}")

    def _cpu_s(self) -> float:
        return time.clock_gettime((~self.process.pid << 3) | 2)  # clock_getcpuclockid(3)


@contextmanager
def _box(folder: Path, size_mib: int, ranges: str = "auto") -> Iterator[_Box]:
    home = Path(tempfile.mkdtemp(dir=folder))
    for name in ("box", "sync"):
        (home / name).mkdir()
    file = home / "box" / "file"
    with file.open("wb") as made:
        for _ in range(size_mib):
            made.write(os.urandom(MIB))
    argv = python("-m", "pytest_cloudbench.commands.cli", "savingbox", str(home / "box"), str(home / "sync"), "--json")
    argv += [f"--quiet={_QUIET_S}s", f"--ranges={ranges}", f"--state={home / 'state'}"]
    process = subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        box = _Box(process, file, "")
        ready = box.told("ready")
        box.told("push")
        box = replace(box, mechanism=ready["mechanism"])
        box.cost()  # the first comparison, after which the writes are known
        yield box
    finally:
        process.terminate()
        process.wait(_HANG_S)
        shutil.rmtree(home)


@contextmanager
def _pair(folder: Path, size_mib: int, writes: TracedWrites) -> Iterator[_Pair]:
    source, copy = folder / f"source{size_mib}", folder / f"copy{size_mib}"
    with source.open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))
    shutil.copyfile(source, copy)
    fd = os.open(source, os.O_RDONLY)
    try:
        writes.follow_file(fd)
        with source.open("ab") as file:
            file.write(os.urandom(_APPENDED_BYTES))
        pair = _Pair(source, copy, fd, writes)
        for way in (_by_ranges, _by_compare, _by_rsync):
            assert way(pair) >= _APPENDED_BYTES, "random bytes cannot be compressed"
        yield pair
    finally:
        os.close(fd)


def _by_ranges(pair: _Pair) -> int:
    ranges = pair.writes.peek_writes(pair.fd).ranges
    assert ranges is not None
    return compressed_bytes(pair.fd, pair.fd, list(ranges), enough_bytes=MIB)


def _by_compare(pair: _Pair) -> int:
    with pair.source.open("rb") as source, pair.copy.open("rb") as copy:
        return compressed_bytes(source.fileno(), copy.fileno(), enough_bytes=MIB)


def _by_rsync(pair: _Pair) -> int:
    """The delta alone, as a batch file; rsync writes the names of files into it, too."""
    batch = pair.copy.with_name("batch")
    argv = ["rsync", "--no-whole-file", "--inplace", f"--only-write-batch={batch}", str(pair.source), str(pair.copy)]
    subprocess.run(argv, env=environment(), check=True, capture_output=True)
    return len(zlib.compress(batch.read_bytes(), 1))


def _cost(way: _Way, pair: _Pair, repeats: int = _REPEATS) -> Callable[[], float]:
    """CPU seconds of one time, with those of processes that it started."""

    def block() -> float:
        before = _cpu_s()
        for _ in range(repeats):
            way(pair)
        return (_cpu_s() - before) / repeats

    return block


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
