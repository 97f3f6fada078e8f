"""Leftover processes of killed links: finding and ending them. Linux only.

The holder and every command inside a link carry a mark in their environment. It holds the run, the user, the owner's
pid and start time, and the pid namespace in which that pid is valid. Since anybody can set a variable, a process
belongs to a link only if it also has that user, started after the owner, and is in a network namespace of its own or
keeps one open. A mark from another pid namespace is left alone, because its owner may still run. The kernel removes
namespaces and devices with the last process inside, so only processes have to be ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

MARK = "CLOUDBENCH_LINK"
"""Name of the environment variable that holds the mark."""
_END_S = 5.0


def _read_start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _own_pid_namespace() -> int:
    """Return the inode of this process's pid namespace, or 0 if /proc shows the pids of another one."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino if os.readlink("/proc/self") == str(os.getpid()) else 0
    except OSError:
        return 0


def _read_user(pid: int) -> int:
    """Return the real user id of a process, or -1 if it does not exist."""
    for line in _read_proc_file(pid, "status").split(b"\n"):
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


@dataclass(frozen=True, slots=True)
class Mark:
    """The owner of a link."""

    run: str
    user: int
    pid_namespace: int
    pid: int
    start_ticks: int

    @classmethod
    def of_this_process(cls, run: str) -> Mark:
        """Return the mark of this process."""
        pid = os.getpid()
        return cls(run.replace(":", "-"), os.getuid(), _own_pid_namespace(), pid, _read_start_ticks(pid))

    @classmethod
    def parse(cls, text: str) -> Mark:
        """Parse the text of a mark. Raises ValueError."""
        run, *numbers = text.rsplit(":", 4)
        user, pid_namespace, pid, start_ticks = map(int, numbers)
        return cls(run, user, pid_namespace, pid, start_ticks)

    def __str__(self) -> str:
        return f"{self.run}:{self.user}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    def is_alive(self) -> bool:
        """Return whether the owner still runs, not just a later process with the same pid."""
        return _read_start_ticks(self.pid) == self.start_ticks

    def is_orphaned(self, user: int) -> bool:
        """Return whether this is a link of ``user`` whose owner is known to be gone."""
        is_here = self.pid_namespace != 0 and self.pid_namespace == _own_pid_namespace()
        return self.user == user and is_here and not self.is_alive()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A leftover process: a link's holder, or a command inside."""

    pid: int
    command: str
    mark: str


def _list_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _read_proc_file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # the process has ended, or belongs to another user
        return b""


def _read_net_namespace(pid: int | str) -> int:
    """Return the inode of a process's network namespace, or 0 if unknown."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _held_namespaces(pid: int) -> list[int]:
    """Return the inodes of network namespaces that a process, such as a holder, keeps open by descriptor."""
    namespaces = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("net:["):
                    namespaces.append(os.stat(f"/proc/{pid}/fd/{name}").st_ino)
    return namespaces


def find_inside(namespaces: Iterable[int]) -> list[int]:
    """Return the pids of other processes in the network namespaces with these descriptors."""
    inodes = {os.fstat(namespace).st_ino for namespace in namespaces}
    return [pid for pid in _list_pids() if _read_net_namespace(pid) in inodes]


def find_leftovers(user: int | None = None) -> list[Leftover]:
    """Return the processes of links whose owners are gone.

    These are all processes with a mark, and all others in their namespaces. A command that cleared its environment is
    thus found while the holder or another marked process is still in its namespace.

    Args:
        user: the user id whose links to search, by default this process's. If root asks for another user, root's
            processes count as that user's, because a link made with sudo has some.
    """
    user = os.getuid() if user is None else user
    users = {user, os.getuid()}
    marks: dict[int, str] = {}
    namespaces: dict[int, str] = {}
    shared_namespaces = {0, _read_net_namespace("self"), _read_net_namespace(1)}  # these also hold unrelated processes
    for pid in _list_pids():
        if (mark := _read_mark(pid)) is None or not mark.is_orphaned(user) or _read_user(pid) not in users:
            continue
        private_namespaces = {
            namespace
            for namespace in [_read_net_namespace(pid), *_held_namespaces(pid)]
            if namespace not in shared_namespaces
        }
        if private_namespaces and _read_start_ticks(pid) >= mark.start_ticks:
            marks[pid] = str(mark)
            namespaces |= dict.fromkeys(private_namespaces, str(mark))
    for pid in _list_pids():
        namespace = _read_net_namespace(pid)
        if namespace in namespaces and pid not in marks and _read_user(pid) in users:
            marks[pid] = namespaces[namespace]
    return [
        Leftover(pid, _read_proc_file(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip(), mark_text)
        for pid, mark_text in marks.items()
    ]


def _read_mark(pid: int) -> Mark | None:
    """Return the mark in the environment of a process, if any."""
    for pair in _read_proc_file(pid, "environ").split(b"\0"):
        if pair.startswith(MARK.encode() + b"="):
            with contextlib.suppress(ValueError):
                return Mark.parse(pair.partition(b"=")[2].decode(errors="replace"))
    return None


def end_all(pids: Iterable[int]) -> list[int]:
    """Kill processes, wait until they are gone, and return the pids that are gone."""
    descriptors: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors[os.pidfd_open(pid)] = pid
    ended, running, until_s = [], dict(descriptors), time.monotonic() + _END_S
    try:
        for descriptor, pid in descriptors.items():
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended by itself
            except PermissionError:
                running.pop(descriptor)
                continue
            ended.append(pid)
        while running and time.monotonic() < until_s:
            for descriptor in select.select(list(running), (), (), until_s - time.monotonic())[0]:
                running.pop(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return [pid for pid in ended if pid not in running.values()]


def end_leftovers(user: int | None = None) -> list[Leftover]:
    """End all leftover processes, and return those that ended."""
    leftovers = find_leftovers(user)
    ended = set(end_all(leftover.pid for leftover in leftovers))
    return [leftover for leftover in leftovers if leftover.pid in ended]


def main() -> int:
    """Run ``end_leftovers`` as root for the user who called sudo, and print the ended processes as JSON."""
    sys.stdout.write(json.dumps([asdict(leftover) for leftover in end_leftovers(int(os.environ["SUDO_UID"]))]))
    return 0
