"""Descendants of processes and the sockets they hold, as Linux lists them in ``/proc``.

Processes that end during a search are left out.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_SOCKET = "socket:["


def find_descendants(*ancestors: int) -> set[int]:
    """Return the ids of some processes and of all their descendants."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    descendants, pending = set[int](), list(ancestors)
    while pending:
        descendants.add(pid := pending.pop())
        pending += children.get(pid, ())
    return descendants


def find_socket_inodes(pids: Collection[int]) -> set[int]:
    """Return the inodes of all sockets that these processes hold."""
    inodes = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith(_SOCKET):
                        inodes.add(int(target[len(_SOCKET) : -1]))
    return inodes
