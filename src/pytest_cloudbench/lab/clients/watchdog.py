"""A tiny process that ends what another process started once that process is gone, even by SIGKILL.

It finds the processes of a tree in /proc, and ends them. Standard library only, and no import from the package: this
file is also run by its path, as ``python -I -S watchdog.py``, and must start fast.

The watchdog reads pids from its standard input, one per line, and ``-PID`` takes one back. The first line is a secret
sign that all of these processes carry in their environment. When the input ends, it kills the trees of those that are
left, and all other processes that carry the sign.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

SIGN = "CLOUDBENCH_CLIENT"
"""The environment variable with the sign."""

_KILL_S = 5.0
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class ProcessStat(NamedTuple):
    """The fields of /proc/PID/stat. ``start`` tells a process from a later one with the same pid."""

    pid: int
    parent: int
    session: int
    start: int
    cpu_s: float
    state: str


def read_stat(pid: int) -> ProcessStat | None:
    """Return the process, or None if it is gone. ``cpu_s`` includes children it has waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The second field is the name in brackets, which may hold anything.
    fields = text.rpartition(b")")[2].split()
    ticks = sum(int(field) for field in fields[11:15])
    return ProcessStat(
        pid, int(fields[1]), int(fields[3]), int(fields[19]), ticks / _CLOCK_TICKS_PER_S, fields[0].decode()
    )


def find_tree(leader: int, start: int | None = None) -> tuple[ProcessStat, ...]:
    """Return the process, all that descend from it and all of its session, in the order of their pids.

    A descendant that made a session of its own is found only while its parents live. With ``start``, the time when the
    process began, nothing is found if another process has its pid by now. Nothing is found either if /proc shows the
    pids of another namespace.
    """
    now = read_stat(leader)
    if not _is_proc_ours() or (start is not None and now is not None and now.start != start):
        return ()
    all_stats = [stat for name in os.listdir("/proc") if name.isdecimal() and (stat := read_stat(int(name)))]
    members = {leader}
    has_grown = True
    while has_grown:
        new_members = {stat.pid for stat in all_stats if stat.parent in members or stat.session == leader} - members
        members |= new_members
        has_grown = bool(new_members)
    return tuple(sorted(stat for stat in all_stats if stat.pid in members))


def find_carriers(sign: str, start: int) -> tuple[ProcessStat, ...]:
    """Return this user's processes that carry the sign in their environment and began at ``start`` or later.

    The sign is random and known only to processes that were started with it, wherever they are now. One that empties
    its environment is not found.
    """
    pair = f"{SIGN}={sign}".encode()
    carriers = []
    for name in os.listdir("/proc") if _is_proc_ours() else ():
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with suppress(OSError):  # gone, or somebody else's
            with open(f"/proc/{name}/environ", "rb") as file:
                is_carrier = pair in file.read().split(b"\0")
            stat = read_stat(int(name)) if is_carrier and os.stat(f"/proc/{name}").st_uid == os.geteuid() else None
            if stat is not None and stat.start >= start:
                carriers.append(stat)
    return tuple(carriers)


def _is_proc_ours() -> bool:
    """Return whether /proc shows the pids of this pid namespace, and not those of the one around it."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def kill_processes(processes: tuple[ProcessStat, ...]) -> None:
    """Send SIGKILL to those that are still the same processes. Returns when they have ended."""
    for pidfd in _signal_and_open(processes, signal.SIGKILL):
        wait_any([pidfd], _KILL_S)
        os.close(pidfd)


def signal_processes(processes: tuple[ProcessStat, ...], number: int) -> None:
    """Send a signal to those that are still the same processes, and that this user may signal."""
    for pidfd in _signal_and_open(processes, number):
        os.close(pidfd)


def _signal_and_open(processes: tuple[ProcessStat, ...], number: int) -> list[int]:
    """Send a signal, and return a descriptor of each process that got it."""
    signalled = []
    for process in processes:
        with suppress(OSError):  # gone already
            pidfd = os.pidfd_open(process.pid)
            try:
                now = read_stat(process.pid)
                if now is not None and now.start == process.start:
                    signal.pidfd_send_signal(pidfd, number)
                    signalled.append(pidfd)
            finally:
                if pidfd not in signalled:
                    os.close(pidfd)
    return signalled


def wait_any(fds: Iterable[int], timeout_s: float | None) -> list[int]:
    """Return descriptors that became readable, as a pidfd does when its process ends. None: wait forever."""
    poll = select.poll()  # select.select refuses descriptors above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000)]


def main() -> None:
    """Read the sign and pids until the input ends, then kill their process trees and all others that carry the sign."""
    own = read_stat(os.getpid())
    sign = sys.stdin.readline().strip()
    leaders: dict[int, int | None] = {}
    for line in sys.stdin:
        pid = int(line)
        if pid > 0:
            stat = read_stat(pid)
            leaders[pid] = stat.start if stat else None
        else:
            leaders.pop(-pid, None)
    for leader, start in leaders.items():
        kill_processes(find_tree(leader, start))
    if sign and own is not None:
        kill_processes(find_carriers(sign, own.start))


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches the whole foreground group, but only the input decides what must be ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
