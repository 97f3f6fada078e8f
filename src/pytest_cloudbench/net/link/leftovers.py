"""Processes that killed links leave behind: finding and ending them.

What may live here: marks, and looking through processes. A mark names run, user, the owner and its start, and the
namespace in which the owner's pid is valid; the holder and every command inside a link carry it in their environment.
Anybody can set a variable: a process is a link's only if it also belongs to that user, began after the owner, and is in
a network namespace of its own, or keeps one. What cannot be judged from here (a mark of another pid namespace, whose
owner may still live) is left alone. Namespaces and devices are removed by the kernel with the last process that is
inside, so only processes have to be ended. Linux only.
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
"""The environment variable with the mark."""
_END_S = 5.0


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 when there is none (any more)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def _pid_namespace() -> int:
    """The number of this process's pid namespace; 0 if /proc shows another one, with other pids."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino if os.readlink("/proc/self") == str(os.getpid()) else 0
    except OSError:
        return 0


def _user(pid: int) -> int:
    """The real user of a process; -1 when there is none (any more)."""
    for line in _read(pid, "status").split(b"\n"):
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


@dataclass(frozen=True, slots=True)
class Mark:
    """Whom a link belongs to."""

    run: str
    user: int
    pid_namespace: int
    pid: int
    start_ticks: int

    @classmethod
    def own(cls, run: str) -> Mark:
        """The mark of this process."""
        pid = os.getpid()
        return cls(run.replace(":", "-"), os.getuid(), _pid_namespace(), pid, _start_ticks(pid))

    @classmethod
    def parse(cls, text: str) -> Mark:
        """The mark in ``str(mark)``. Raises ValueError."""
        run, *numbers = text.rsplit(":", 4)
        user, pid_namespace, pid, start_ticks = map(int, numbers)
        return cls(run, user, pid_namespace, pid, start_ticks)

    def __str__(self) -> str:
        return f"{self.run}:{self.user}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    def is_alive(self) -> bool:
        """Whether the owner still runs: the same process, not a later one with the same pid."""
        return _start_ticks(self.pid) == self.start_ticks

    def is_left(self, user: int) -> bool:
        """Whether it belongs to a link of this user whose owner is known to be gone."""
        is_here = self.pid_namespace != 0 and self.pid_namespace == _pid_namespace()
        return self.user == user and is_here and not self.is_alive()


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that was found: a link's holder, or what ran inside."""

    pid: int
    command: str
    mark: str


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:  # gone, or somebody else's
        return b""


def _net(pid: int | str) -> int:
    """The number of a process's network namespace, 0 when it is not known."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return 0


def _kept(pid: int) -> list[int]:
    """The numbers of network namespaces that a process keeps by descriptor, as a holder does."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith("net:["):
                    found.append(os.stat(f"/proc/{pid}/fd/{name}").st_ino)
    return found


def inside(namespaces: Iterable[int]) -> list[int]:
    """The processes in network namespaces that are given by descriptor; not the caller."""
    numbers = {os.fstat(namespace).st_ino for namespace in namespaces}
    return [pid for pid in _pids() if _net(pid) in numbers]


def leftovers(user: int | None = None) -> list[Leftover]:
    """Processes of links whose owners are gone: all that carry a mark, and all in a namespace of one that does.

    A command that emptied its environment is found by its namespace, as long as the holder or another marked process is
    still in it.

    Args:
        user: whose links; by default this process's own user's. If root asks for another user, root's processes count
            as that user's, too: a link that was made with sudo has some.
    """
    user = os.getuid() if user is None else user
    users = {user, os.getuid()}
    marks: dict[int, str] = {}
    namespaces: dict[int, str] = {}
    shared = {0, _net("self"), _net(1)}  # never a namespace that others share
    for pid in _pids():
        if (mark := _mark(pid)) is None or not mark.is_left(user) or _user(pid) not in users:
            continue
        own = {number for number in [_net(pid), *_kept(pid)] if number not in shared}
        if own and _start_ticks(pid) >= mark.start_ticks:
            marks[pid] = str(mark)
            namespaces |= dict.fromkeys(own, str(mark))
    for pid in _pids():
        number = _net(pid)
        if number in namespaces and pid not in marks and _user(pid) in users:
            marks[pid] = namespaces[number]
    return [
        Leftover(pid, _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip(), text)
        for pid, text in marks.items()
    ]


def _mark(pid: int) -> Mark | None:
    """The mark that a process carries, if any."""
    for pair in _read(pid, "environ").split(b"\0"):
        if pair.startswith(MARK.encode() + b"="):
            with contextlib.suppress(ValueError):
                return Mark.parse(pair.partition(b"=")[2].decode(errors="replace"))
    return None


def end_all(pids: Iterable[int]) -> list[int]:
    """Kill processes and wait until they are gone; returns those that have gone."""
    descriptors: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors[os.pidfd_open(pid)] = pid
    ended, waiting, until_s = [], dict(descriptors), time.monotonic() + _END_S
    try:
        for descriptor, pid in descriptors.items():
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended by itself
            except PermissionError:
                waiting.pop(descriptor)
                continue
            ended.append(pid)
        while waiting and time.monotonic() < until_s:
            for descriptor in select.select(list(waiting), (), (), until_s - time.monotonic())[0]:
                waiting.pop(descriptor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return [pid for pid in ended if pid not in waiting.values()]


def end_leftovers(user: int | None = None) -> list[Leftover]:
    """End what ``leftovers`` finds; returns what could be ended."""
    found = leftovers(user)
    ended = set(end_all(one.pid for one in found))
    return [one for one in found if one.pid in ended]


def main() -> int:
    """Run ``end_leftovers`` with other rights, for the user who called sudo; prints what was ended, as JSON."""
    sys.stdout.write(json.dumps([asdict(one) for one in end_leftovers(int(os.environ["SUDO_UID"]))]))
    return 0
