"""What is in the client's folder, and a sign that it may have changed.

What may live here: walking the folder, and inotify through ctypes, since the standard library has none. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["GONE", "FileMark", "Watch", "mark_of"]

GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors for a path that is no longer what it was when it was listed."""

_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE = 0x2, 0x4, 0x8
_IN_MOVED, _IN_CREATE, _IN_DELETE = 0xC0, 0x100, 0x200
_EVENTS = _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED | _IN_CREATE | _IN_DELETE
_IN_ONLYDIR = 0x0100_0000
_READ_BYTES = 1 << 16
# A folder that never rests is scanned all the same after this many times the time to rest.
_RESTLESS = 10
# Time stamps move in steps of some milliseconds: a file that was changed just now may change again unseen.
_STEP_NS = 50_000_000


class FileMark(NamedTuple):
    """Values that change when a file does."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    def is_reliable(self) -> bool:
        """Whether the mark will show any change from now on."""
        return time.time_ns() - self.changed_ns > _STEP_NS


def mark_of(status: os.stat_result) -> FileMark:
    """The mark of a file."""
    return FileMark(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class Watch:
    """A folder with all folders in it. Raises OSError when the kernel cannot watch them."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def files(self) -> dict[str, FileMark]:
        """Maps relative paths to marks of all regular files. From now on, changes in any folder are noticed."""
        return dict(self._walk(self._root, ""))

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once something has changed, False if the time is over first. None: no limit."""
        if not self._poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000):
            return False
        try:
            while os.read(self._fd, _READ_BYTES):
                pass
        except BlockingIOError:
            pass
        return True

    def settle(self, rest_s: float) -> None:
        """Return when nothing has changed for ``rest_s`` seconds, or after ten times that."""
        latest_s = time.monotonic() + _RESTLESS * rest_s
        while time.monotonic() < latest_s and self.wait(rest_s):
            pass

    def _walk(self, folder: str, prefix: str) -> Iterator[tuple[str, FileMark]]:
        # Watched first and listed afterwards, so that nothing can come in between unseen.
        if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _EVENTS | _IN_ONLYDIR) < 0:
            number = ctypes.get_errno()
            error = OSError(number, f"{os.strerror(number)}: watching {folder}")
            if isinstance(error, GONE) and prefix:
                return
            raise error
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except GONE:
            return
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    yield from self._walk(entry.path, f"{prefix}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name, mark_of(entry.stat(follow_symlinks=False))
            except GONE:
                continue
