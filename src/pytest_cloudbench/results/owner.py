"""The process that owns a file, and whether it still lives: by host, boot, namespace, pid and start, never by age.

Fifty agents import this module, so keep it light.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

_OWNER_FILE = "owner.json"


@cache
def owner_text() -> str:
    """Describe this process by host, boot, namespace, pid and start, so that others can tell whether it still lives."""
    return json.dumps([platform.node(), _boot_id(), _pid_namespace(), os.getpid(), _start_ticks(os.getpid()) or 0])


def _boot_id() -> str:
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
    """Return the start of a process in clock ticks since boot, 0 if there is none, or None if that is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return 0 if fields[0] in "ZX" else int(fields[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except (OSError, ValueError, IndexError):  # such as too many open files
        return None


def is_alive(owner: str) -> bool | None:
    """Return whether the process that ``owner_text`` described still lives, or None if that is unknown here."""
    try:
        node, boot, namespace, pid, start_ticks = json.loads(owner)
    except (ValueError, TypeError, RecursionError):
        return None
    current_boot = _boot_id()
    if node != platform.node() or not isinstance(pid, int) or not boot or not current_boot:
        return None
    if boot != current_boot:
        return False
    if namespace != _pid_namespace():
        return None
    current_ticks = _start_ticks(pid)
    if not start_ticks or current_ticks is None:  # its start was not known then, or is not known now
        return None
    return bool(current_ticks == start_ticks)


def make_private_folder(prefix: str) -> Path:
    """Make a temporary folder that only this user can enter. The caller removes it.

    This also removes folders of this user with the same prefix whose processes are certainly dead.
    """
    import tempfile

    _remove_dead_folders(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    (folder / _OWNER_FILE).write_text(owner_text(), encoding="utf-8")
    return folder


def _remove_dead_folders(parent: Path, prefix: str) -> None:
    import shutil

    from pytest_cloudbench.support.opening import read_file

    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError, ValueError):
            status = folder.lstat()
            is_ours = stat.S_ISDIR(status.st_mode) and (os.name == "nt" or status.st_uid == os.geteuid())
            if is_ours and is_alive(read_file(folder / _OWNER_FILE, 4096).decode()) is False:
                shutil.rmtree(folder)
