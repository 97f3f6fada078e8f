"""Which sockets are this process's and its descendants', as Linux lists them in ``/proc``.

What may live here: reading ``/proc``. A process that ends meanwhile has no sockets any more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

_SOCKET = "socket:["


def family_of(*ancestors: int) -> set[int]:
    """Returns the ids of some processes and of all processes that descend from them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, left = set[int](), list(ancestors)
    while left:
        found.add(pid := left.pop())
        left += children.get(pid, ())
    return found


def inodes_of(pids: Collection[int]) -> set[int]:
    """Returns the inodes of all sockets that these processes hold."""
    found = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith(_SOCKET):
                        found.add(int(target[len(_SOCKET) : -1]))
    return found
