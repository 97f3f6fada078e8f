"""Files that a program must not simply open: each hangs, has no end, or is not a regular file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["ODD_FILES", "make_odd_file"]

ODD_FILES = ("pipe", "socket", "folder", "device", "link to a pipe", "link to a device", "huge")
_HUGE_BYTES = 8 * 2**30


def make_odd_file(folder: Path, kind: str, name: str = "odd.toml") -> Path:
    """Create an odd file of a kind in ``folder``. The huge one is sparse and takes no space."""
    path = folder / name
    target = folder / f"target-of-{name}" if kind.startswith("link") else path
    if kind.endswith("pipe"):
        os.mkfifo(target)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(target))
    elif kind == "folder":
        target.mkdir()
    elif kind.endswith("device"):
        path.symlink_to("/dev/zero")
        return path
    else:
        with target.open("wb") as file:
            file.truncate(_HUGE_BYTES)
    if target != path:
        path.symlink_to(target)
    return path
