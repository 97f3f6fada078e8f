"""Whose files these are, and whether that process still lives: by host, boot, namespace, pid and start, never by age.

What may live here: the description of a process, looking for it, and temporary folders that a killed process cannot
leave for ever. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

_OWNER = "owner.json"


@cache
def owner_text() -> str:
    """Describe this process, so that another one can tell whether it still lives: host, boot, namespace, pid, start."""
    return json.dumps([platform.node(), _boot(), _pid_namespace(), os.getpid(), _start_ticks(os.getpid()) or 0])


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Returns when a process started, in clock ticks since boot; 0 if there is none, None if that cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except (OSError, ValueError, IndexError):  # such as too many open files
        return None


def lives(owner: str) -> bool | None:
    """Returns whether the process that ``owner_text`` described still lives; None if that cannot be told from here."""
    try:
        node, boot, namespace, pid, start_ticks = json.loads(owner)
    except (ValueError, TypeError, RecursionError):
        return None
    boot_now = _boot()
    if node != platform.node() or not isinstance(pid, int) or not boot or not boot_now:
        return None
    if boot != boot_now:
        return False
    if namespace != _pid_namespace():
        return None
    now_ticks = _start_ticks(pid)
    if not start_ticks or now_ticks is None:  # not known then, or not now
        return None
    return bool(now_ticks == start_ticks)


def make_private_folder(prefix: str) -> Path:
    """Make a temporary folder that only this user can enter; the caller removes it.

    Removes those with the same prefix whose processes are certainly dead, of this user only.
    """
    import tempfile

    _sweep(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    (folder / _OWNER).write_text(owner_text(), encoding="utf-8")
    return folder


def _sweep(parent: Path, prefix: str) -> None:
    import shutil

    from pytest_cloudbench.support.opening import read_file

    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError, ValueError):
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and (os.name == "nt" or status.st_uid == os.geteuid())
            if is_ours and lives(read_file(folder / _OWNER, 4096).decode()) is False:
                shutil.rmtree(folder)
