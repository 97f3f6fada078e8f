"""A tiny process that ends what another one started, when that one is gone, even by SIGKILL.

What may live here: finding the processes of a tree in /proc, and ending them. Standard library only and no
import from the package: this file is also run by its path, as ``python -I -S watchdog.py``, and must start fast.

The watchdog reads pids from its standard input, one in a line; ``-PID`` takes one back. When the input ends, it
kills the trees of those that are left.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

__all__ = ["ProcessStat", "kill", "main", "read_stat", "tree", "wait_any"]

_KILL_S = 5.0
_CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says of one process; ``start`` tells it from a later one with the same pid."""

    pid: int
    parent: int
    session: int
    start: int
    cpu_s: float
    state: str


def read_stat(pid: int) -> ProcessStat | None:
    """The process, or None where it is gone. ``cpu_s`` includes the children that it has waited for."""
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


def tree(leader: int) -> tuple[ProcessStat, ...]:
    """The process, all that descend from it and all of its session, in the order of their pids.

    A descendant that made a session of its own is found only while its parents live.
    """
    everyone = [stat for name in os.listdir("/proc") if name.isdecimal() and (stat := read_stat(int(name)))]
    found = {leader}
    grown = True
    while grown:
        more = {stat.pid for stat in everyone if stat.parent in found or stat.session == leader} - found
        found |= more
        grown = bool(more)
    return tuple(sorted(stat for stat in everyone if stat.pid in found))


def kill(processes: tuple[ProcessStat, ...]) -> None:
    """SIGKILL to those that still are the same processes; return when they have ended."""
    killed = []
    for process in processes:
        with suppress(OSError):  # gone already
            pidfd = os.pidfd_open(process.pid)
            now = read_stat(process.pid)
            if now is not None and now.start == process.start:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                killed.append(pidfd)
            else:
                os.close(pidfd)
    for pidfd in killed:
        wait_any([pidfd], _KILL_S)
        os.close(pidfd)


def wait_any(fds: Iterable[int], timeout_s: float | None) -> list[int]:
    """Those that became readable; a pidfd does when its process ends. Without a time: wait for ever."""
    poll = select.poll()  # select.select refuses descriptors above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000)]


def main() -> None:
    """Read pids until the input ends, then kill their trees."""
    leaders: set[int] = set()
    for line in sys.stdin:
        pid = int(line)
        if pid > 0:
            leaders.add(pid)
        else:
            leaders.discard(-pid)
    for leader in leaders:
        kill(tree(leader))


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches the whole foreground group; what must be ended is decided by the input alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
