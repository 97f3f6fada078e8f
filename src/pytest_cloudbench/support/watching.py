"""Signs that files change: values of a file that change with it, and the kernel's events for folders.

What may live here: marks of files, and inotify through ctypes, since the standard library has none. Events are Linux
only; importing this is not. The reference client's processes import it: the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors for a path that is no longer what it was when it was listed."""

_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE = 0x2, 0x4, 0x8
_IN_MOVED, _IN_CREATE, _IN_DELETE = 0xC0, 0x100, 0x200
_EVENTS = _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVED | _IN_CREATE | _IN_DELETE
_IN_ONLYDIR = 0x0100_0000
_IN_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x4000, 0x8000, 0x4000_0000
_HEAD = struct.Struct("iIII")
_READ_BYTES, _MOST_READS = 1 << 16, 1 << 10
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


class FolderEvent(NamedTuple):
    """What happened in a watched folder.

    Attributes:
        watch: the folder's number, as ``Inotify.add`` gave it; -1 where events were lost.
        name: of the entry; empty for the folder itself.
        is_folder: whether the entry is one.
        is_move: whether the entry has come from, or gone to, another name.
        is_new: whether the entry has come.
        is_unwatched: whether the folder is no longer watched, such as one that was deleted.
        is_overflow: whether events were lost: anything may have happened.
    """

    watch: int
    name: str
    is_folder: bool
    is_move: bool
    is_new: bool
    is_unwatched: bool
    is_overflow: bool


class Inotify:
    """The kernel's events for some folders. Raises OSError when there can be none."""

    def __init__(self) -> None:
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (AttributeError, TypeError) as error:
            raise OSError("this system has no inotify") from error
        if self._fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)}: inotify_init1")
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """The descriptor that can be read when there are events."""
        return self._fd

    def add(self, folder: str) -> int:
        """Watch a folder; returns its number, the same one if it is watched already. Raises OSError."""
        watch: int = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _EVENTS | _IN_ONLYDIR)
        if watch < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)}: watching {folder}")
        return watch

    def remove(self, watch: int) -> None:
        """Stop watching a folder. Does nothing if it is not watched."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once there are events, False if the time is over first. None: no limit."""
        return bool(self._poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))

    def read(self) -> Iterator[FolderEvent]:
        """Yields the pending events without waiting; ends even if new ones arrive as fast as they are read."""
        for data in self._pieces():
            at = 0
            while at < len(data):
                watch, mask, _, length = _HEAD.unpack_from(data, at)
                at += _HEAD.size + length
                name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                yield FolderEvent(
                    watch, name, bool(mask & _IN_ISDIR), bool(mask & _IN_MOVED), bool(mask & (_IN_CREATE | 0x80)),
                    bool(mask & _IN_IGNORED), bool(mask & _IN_OVERFLOW),
                )  # fmt: skip

    def drop(self) -> None:
        """Discard the pending events."""
        for _ in self._pieces():
            pass

    def close(self) -> None:
        """End it."""
        os.close(self._fd)

    def _pieces(self) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            for _ in range(_MOST_READS):
                yield os.read(self._fd, _READ_BYTES)
