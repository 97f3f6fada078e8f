"""The system's limits on operations in flight: threads, processes, open files and memory.

What may live here: reading limits, and raising the one that a process may raise for itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pytest_cloudbench.support.wording import format_count

_THREAD_BYTES = 48 * 1024
"""Memory of a thread in flight without its driver's: 14 KiB of this process, and the kernel's stack and tables."""

_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""The files with the limit on memory and its use, in both versions of control groups."""

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this machine's system for want of open files, local ports or memory, whatever a provider does."""

_DESCRIPTORS_PER_THREAD = 8
"""Open files of a thread: its connection, others of its driver, and a share for those that tell how long it waits."""


def count_fitting_threads(agents: int, root: Path = Path("/")) -> int:
    """Return the number of threads that each of ``agents`` agents may have on this machine.

    All agents together get the memory that is available, and half of the threads that the system still allows, so that
    servers and other programs can go on, which fail if they cannot start a thread.
    """
    available = available_bytes(root)
    rooms = [] if available is None else [available // _THREAD_BYTES]
    rooms += [max(0, limit - used) // 2 for _, limit, used in _thread_limits(root)]
    return max(1, min(rooms, default=sys.maxsize) // agents)


def describe_limit(threads: int, engine_threads: int, are_refused: bool, root: Path = Path("/")) -> str:
    """Return a line which says that all threads were in use, and why there were no more.

    Args:
        threads: how many there were.
        engine_threads: the most that the engine would have.
        are_refused: whether the system refused one.
        root: of the file system.
    """
    line = f"at most {format_count(threads, 'operation was', 'operations were')} in flight in one agent"
    if threads >= engine_threads and not are_refused:
        return f"{line}, as many as its engine allows: further ones began late; use more agents"
    limits = ", ".join(f"{name} {limit}" for name, limit, _ in _thread_limits(root))  # the same for all agents
    limits = f" ({limits})" if limits else ""
    if are_refused:
        return f"{line}, because the system refused a further thread{limits}: others began late"
    return f"{line}, its share of this machine's memory and threads{limits}: further ones began late; use more machines"


def find_own_limit(error: BaseException) -> str:
    """Return the limit of this machine at which an operation failed, in the system's words. Empty if it was none.

    Libraries hide the system's error among the causes, the reason or the arguments of their own.
    """
    pending, seen = [error], set[int]()
    while pending:
        latest = pending.pop()
        if isinstance(latest, OSError) and latest.errno in _OWN_LIMITS:
            return os.strerror(latest.errno)
        seen.add(id(latest))
        hidden = (latest.__cause__, latest.__context__, getattr(latest, "reason", None), *latest.args)
        pending += [part for part in hidden if isinstance(part, BaseException) and id(part) not in seen]
    return ""


def _thread_limits(root: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the limits on threads: a name, the most, and how many are in use."""
    used = _count_all_threads(root)
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        if soft != resource.RLIM_INFINITY and os.geteuid():  # root may have more
            yield "ulimit -u", soft, used if used <= soft // 2 else _count_own_threads(root)
    for folder in _container_folders(root, "pids"):
        limit, in_folder = (_read_number(folder / name) for name in ("pids.max", "pids.current"))
        if limit is not None and in_folder is not None:
            yield "pids.max", limit, in_folder
    for name in ("kernel/threads-max", "kernel/pid_max"):
        if (limit := _read_number(root / "proc/sys" / name)) is not None:
            yield name.replace("/", "."), limit, used


def _count_all_threads(root: Path) -> int:
    """Return how many threads there are on this machine. 0 if the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((root / "proc/loadavg").read_text("ascii").split()[3].partition("/")[2])
    return 0


def _count_own_threads(root: Path) -> int:
    """Return how many threads the processes of this process's user have. This reads a file for each process."""
    user, count = str(os.getuid()), 0
    for path in (root / "proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # the process has ended
            status = dict(line.split(":", 1) for line in path.read_text(errors="replace").splitlines())
            count += int(status["Threads"]) if status["Uid"].split()[0] == user else 0
    return count


def _container_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process, with either version of them."""
    try:
        lines = (root / "proc/self/cgroup").read_text("ascii").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", controller):
            base = root / "sys/fs/cgroup" / controllers
            group = base / path.lstrip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(base)))


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):  # there is no such limit, or it is "max"
        return None


def allow_descriptors(threads: int) -> None:
    """Raise this process's limit on open files for a number of threads, as far as the system allows."""
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


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that this machine or container can still provide, None if unknown."""
    limits = [*_container_bytes(root)]
    if (machine := _machine_bytes(root)) is not None:
        limits.append(machine)
    return min(limits, default=None)


def _machine_bytes(root: Path) -> int | None:
    try:
        with (root / "proc/meminfo").open(encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows offers none of this
        return None


def _container_bytes(root: Path) -> Iterator[int]:
    """Yield the memory that is left in each control group that limits this process.

    Files in memory count as used there, but they give way to programs, as in ``MemAvailable``.
    """
    for folder in _container_folders(root, "memory"):
        for limit_name, used_name in _MEMORY_FILES:
            limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
            if limit is not None and used is not None:
                yield max(0, limit - max(0, used - _count_file_bytes(folder)))


def _count_file_bytes(folder: Path) -> int:
    """Return how much memory of a control group, and of those below it, holds files. 0 if the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
        names = ("inactive_file", "active_file")  # in the first version, these leave out the groups below it
        return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in names)
    return 0
