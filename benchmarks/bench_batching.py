"""CPU time of ``cloudbench savingbox`` over rsync's for the same work.

Many small files at once: both folders made equal for the first time, and once more with nothing to do.

A file that grows: 2 KB appended to a file of 1, 10 or 100 MiB. A savingbox finds the written bytes by the kernel's
tracepoints or, where these do not work, by comparing both files. It runs all the time and pushes each append by
itself, so its time includes the event, the counter, the patch with its journal, and the look at its own echo. rsync is
started for each, as UDS does.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    MIB,
    Blocks,
    Figure,
    Growth,
    alternating,
    cloudbench,
    environment,
    measure_growth,
    median,
    run_tree,
    scratch,
)

__all__ = ["measure"]

_FILES, _FILE_BYTES = 100_000, 100
_APPENDED_BYTES = 2048
_BLOCKS = 5
_CHANGES = 10
_QUIET_S, _ECHO_S = 0.05, 0.5
"""A push is due after the first without a change. After the second, the savingbox has looked at its own echo."""
_HANG_S = 60.0
_OVER_RSYNC = "CPU time over rsync's"
_BOUNDS = {"savingbox_first_ratio": 2.0, "savingbox_again_ratio": 2.0, "savingbox_append_ratio": 0.2,
           "savingbox_compare_ratio": 1.0}  # fmt: skip


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``savingbox_first_ratio``, ``savingbox_again_ratio``, ``savingbox_append_ratio``, ``savingbox_compare_ratio``."""
    if shutil.which("rsync") is None:
        missing = {"unknown": "rsync is not installed"}
        return [Figure(name, math.nan, _OVER_RSYNC, _BOUNDS[name], details=missing) for name in names]
    figures = []
    with scratch() as folder:
        if {"savingbox_first_ratio", "savingbox_again_ratio"} & set(names):
            figures += _measure_small_files(folder, runs)
        for name, ranges in (("savingbox_append_ratio", "auto"), ("savingbox_compare_ratio", "compare")):
            if name in names:
                figures.append(_measure_appends(name, ranges, folder, max(_BLOCKS, runs)))
    return figures


def _measure_small_files(folder: Path, runs: int) -> list[Figure]:
    source = _make_files(folder, _FILES)
    rounds = [(_cost_twice(source, _run_savingbox), _cost_twice(source, _run_rsync)) for _ in range(runs)]
    figures = []
    for number, name in enumerate(("savingbox_first_ratio", "savingbox_again_ratio")):
        blocks = Blocks([ours[number] for ours, _ in rounds], [rsync[number] for _, rsync in rounds])

        def cost(count: int, number: int = number) -> float:
            return _cost_twice(_make_files(folder, count), _run_savingbox)[number]

        figures.append(_figure(name, blocks, measure_growth("files", _FILES // 100, cost)))
    return figures


def _make_files(folder: Path, count: int) -> Path:
    source = folder / f"files-{count}"
    if not source.exists():
        for number in range(count):
            path = source / f"{number // 1000:03d}" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(_FILE_BYTES))
    return source


def _cost_twice(source: Path, sync: Callable[[Path, Path, Path], float]) -> tuple[float, float]:
    """Return the CPU-seconds of syncing a folder into an empty one, and of syncing both once more.

    The copies stay until all is measured. Without a journal, ext4 passes over each inode that was deleted in the last
    minutes whenever it creates a file, so deleted copies would make the next ones up to five times as expensive.
    """
    home = Path(tempfile.mkdtemp(dir=source.parent))
    target, state = home / "target", home / "state"
    target.mkdir()
    costs = sync(source, target, state), sync(source, target, state)
    if len(list(target.rglob("*.txt"))) != len(list(source.rglob("*.txt"))):
        raise RuntimeError(f"{target} does not have all files of {source}")
    return costs


def _run_savingbox(source: Path, target: Path, state: Path) -> float:
    command = cloudbench("savingbox", str(source), str(target), "--once", "--state", str(state))
    return run_tree(command, source.parent, sampled=False).require().cpu_s


def _run_rsync(source: Path, target: Path, state: Path) -> float:
    command = ["rsync", "-a", f"{source}/", f"{target}/"]
    return run_tree(command, source.parent, sampled=False).require().cpu_s


def _measure_appends(name: str, ranges: str, folder: Path, blocks: int) -> Figure:
    with _started_box(folder, 10, ranges) as box, _rsynced_file(folder, 10) as rsync:
        compared = alternating(box.cost, rsync, blocks)

    def cost(size_mib: int) -> float:
        with _started_box(folder, size_mib, ranges) as box:
            return box.cost()

    return _figure(name, compared, measure_growth("MiB", 1, cost), {"mechanism": box.mechanism})


def _figure(name: str, blocks: Blocks, growth: Growth, details: dict[str, Any] | None = None) -> Figure:
    absolute = {
        "ms CPU": round(median(blocks.ours) * 1e3, 3),
        "ms CPU of rsync": round(median(blocks.reference) * 1e3, 3),
    }
    return Figure(name, blocks.ratio, _OVER_RSYNC, _BOUNDS[name], "at most", {**blocks.details(), **(details or {})},
                  absolute, growth)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Box:
    """A running savingbox with one file in it."""

    process: subprocess.Popen[str]
    file: Path
    mechanism: str

    def cost(self) -> float:
        """Return the CPU-seconds of one append, from the event to the look at its echo."""
        before_s = self._cpu_s()
        for _ in range(_CHANGES):
            _append(self.file)
            _await_event(self.process, "push")
        time.sleep(_ECHO_S)
        return (self._cpu_s() - before_s) / _CHANGES

    def _cpu_s(self) -> float:
        return time.clock_gettime((~self.process.pid << 3) | 2)  # clock_getcpuclockid(3)


def _await_event(process: subprocess.Popen[str], name: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            return event
    raise RuntimeError(f"the savingbox ended before a {name}")


def _append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(os.urandom(_APPENDED_BYTES))


def _make_pair(home: Path, size_mib: int) -> Path:
    for name in ("box", "sync"):
        (home / name).mkdir()
    file = home / "box" / "file"
    with file.open("wb") as opened:
        for _ in range(size_mib):
            opened.write(os.urandom(MIB))
    return file


@contextmanager
def _started_box(folder: Path, size_mib: int, ranges: str) -> Iterator[_Box]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        file = _make_pair(home, size_mib)
        options = ["--json", f"--quiet={_QUIET_S}s", f"--ranges={ranges}", f"--state={home / 'state'}"]
        command = cloudbench("savingbox", str(home / "box"), str(home / "sync"), *options)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        try:
            mechanism = _await_event(process, "ready")["mechanism"]
            _await_event(process, "push")
            box = _Box(process, file, mechanism)
            box.cost()  # the first comparison, after which the writes are followed
            yield box
        finally:
            process.terminate()
            process.wait(_HANG_S)


@contextmanager
def _rsynced_file(folder: Path, size_mib: int) -> Iterator[Callable[[], float]]:
    """Yield what appends to a file, brings its copy up to date, and returns rsync's CPU-seconds."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        file = _make_pair(Path(name), size_mib)
        command = ["rsync", "-a", "--no-whole-file", "--inplace", f"{file.parent}/", f"{name}/sync/"]
        subprocess.run(command, check=True)

        def sync() -> float:
            costs_s = []
            for _ in range(_CHANGES):
                _append(file)
                costs_s.append(run_tree(command, file.parent, sampled=False).require().cpu_s)
            return sum(costs_s) / _CHANGES

        yield sync
