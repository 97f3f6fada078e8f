"""The system's limits on operations in flight: threads, processes, open files and memory.

What may live here: reading limits, and raising the one that a process may raise for itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_THREAD_BYTES = 48 * 1024
"""Memory of a thread in flight without its driver's: 14 KiB of this process, and the kernel's stack and tables."""

_DESCRIPTORS_PER_THREAD = 8
"""A connection, what its driver opens besides, and a share for files that tell how long threads wait."""


def count_fitting_threads() -> int:
    """Return the number of threads for which there is memory."""
    available = available_bytes()
    return sys.maxsize if available is None else max(1, available // _THREAD_BYTES)


def describe_limit(threads: int, are_refused: bool, root: Path = Path("/")) -> str:
    """Return a line which says that all of so many threads were in use, and why there were no more."""
    line = f"at most {threads:,} operations were in flight in one agent"
    if not are_refused:
        return f"{line}, as many as its engine or its memory allows: further ones began late; use more agents"
    limits = ", ".join(_thread_limits(root))
    return f"{line}, because the system refused a further thread{f' ({limits})' if limits else ''}: others began late"


def _thread_limits(root: Path) -> Iterator[str]:
    """Yield this process's limits on threads."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY:
        yield f"ulimit -u {soft}"
    for folder in _container_folders(root):
        limit, used = (_read_number(folder / name) for name in ("pids.max", "pids.current"))
        if limit is not None:
            yield f"pids.max {limit}, of which {used} are in use"
    for name in ("kernel/threads-max", "kernel/pid_max", "vm/max_map_count"):
        if (limit := _read_number(root / "proc/sys" / name)) is not None:
            yield f"{name.replace('/', '.')} {limit}"


def _container_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, with either version of them."""
    try:
        lines = (root / "proc/self/cgroup").read_text("ascii").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            base = root / "sys/fs/cgroup" / controllers
            group = base / path.lstrip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(base)))


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # there is no such limit, or it is "max"
        return None


def allow_descriptors(threads: int) -> None:
    """Raise this process's limit on open files for so many threads, as far as the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = threads * _DESCRIPTORS_PER_THREAD
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def count_descriptors_for_waits() -> int:
    """Return how many files this process may keep open to tell how long its threads wait."""
    try:
        import resource
    except ImportError:
        return 0
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // _DESCRIPTORS_PER_THREAD


def available_bytes() -> int | None:
    """Return the memory that this machine or container can still provide, None if unknown."""
    limits = [size for size in (_machine_bytes(), _container_bytes()) if size is not None]
    return min(limits, default=None)


def _machine_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows offers none of this
        return None


def _container_bytes() -> int | None:
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text("ascii") for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):  # there is no limit, or it is "max"
        return None
