"""The holder of a SQLite lock on a file, for messages of a process that waits for it.

What may live here: reading the kernel's table of locks. Only Linux has it, so elsewhere nobody can be named.
"""

from __future__ import annotations

import os
from pathlib import Path

_LOCKS = Path("/proc/locks")
_STOPPED = {"T": "stopped", "t": "stopped by a debugger"}


def holder_text(database: Path) -> str:
    """Describe the process that is writing to a database, such as ``process 123 (python x.py), which is stopped``.

    Returns ``another process`` if the system does not say which. The database itself is not opened, because a process
    that closes a file loses all locks that it has on it.
    """
    files = {
        inode for path in (database, database.with_name(f"{database.name}-shm")) if (inode := _inode_of_path(path))
    }
    try:
        rows = [line.split() for line in _LOCKS.read_text("ascii").splitlines()]
    except OSError:
        rows = []
    # 1: POSIX ADVISORY WRITE 4242 08:01:131 120 120
    pids = {int(row[4]) for row in rows if row[1:2] == ["POSIX"] and row[3] == "WRITE" and _inode_of_lock(row) in files}
    texts = [_process_text(pid) for pid in sorted(pids) if pid > 0]
    return ", ".join(texts) or "another process"


def _inode_of_path(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _inode_of_lock(row: list[str]) -> int:
    return int(row[5].rpartition(":")[2])


def _process_text(pid: int) -> str:
    if pid == os.getpid():
        return f"this process ({pid})"
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"process {pid}"
    state_text = f", which is {_STOPPED[state]}" if state in _STOPPED else ""
    return f"process {pid} ({' '.join(' '.join(arguments).split())[:60]}){state_text}"
