"""Signs that files change: values of a file that change with it, and the kernel's events for folders.

Events come from inotify through ctypes, since the standard library has no access to it. They are Linux only, but
importing this module is not. The reference client's processes import it, so it uses only the standard library.
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
_HEADER = struct.Struct("iIII")
_READ_BYTES, _MAX_READS = 1 << 16, 1 << 10
# Time stamps move in steps of some milliseconds, so a file that has just changed may change again without a sign.
_CLOCK_STEP_NS = 50_000_000


class FileMark(NamedTuple):
    """Values that change when a file does."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    def is_reliable(self, taken_ns: int | None = None) -> bool:
        """Return whether every later change to the file is certain to change its mark.

        ``taken_ns`` is when the mark was taken, or a time before that. Without it the mark was taken just now.
        """
        return (time.time_ns() if taken_ns is None else taken_ns) - self.changed_ns > _CLOCK_STEP_NS


def mark_file(status: os.stat_result) -> FileMark:
    """Return the mark of a file."""
    return FileMark(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class FolderEvent(NamedTuple):
    """An event in a watched folder.

    Attributes:
        watch: the folder's number, as ``Inotify.add`` returned it, or -1 if events were lost.
        name: the name of the entry, or empty for the folder itself.
        is_folder: whether the entry is a folder.
        is_move: whether the entry was moved from or to another name.
        is_new: whether the entry has appeared.
        is_unwatched: whether the folder is no longer watched, for example because it was deleted.
        is_overflow: whether events were lost, so that anything may have happened.
    """

    watch: int
    name: str
    is_folder: bool
    is_move: bool
    is_new: bool
    is_unwatched: bool
    is_overflow: bool


class Inotify:
    """The kernel's events for some folders. Raises OSError if the system has none."""

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
        """Return the descriptor that can be read when there are events."""
        return self._fd

    def add(self, folder: str) -> int:
        """Watch a folder, and return its number, which stays the same if it is watched already. Raises OSError."""
        watch: int = self._libc.inotify_add_watch(self._fd, os.fsencode(folder), _EVENTS | _IN_ONLYDIR)
        if watch < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)}: watching {folder}")
        return watch

    def remove(self, watch: int) -> None:
        """Stop watching a folder. Does nothing if it is not watched."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once there are events, or False after the timeout. None means no timeout."""
        return bool(self._poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000))

    def read(self) -> Iterator[FolderEvent]:
        """Yield the pending events without waiting. This ends even if new ones arrive as fast as they are read."""
        for data in self._read_pieces():
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size + length
                name = os.fsdecode(data[offset - length : offset].rstrip(b"\0"))
                yield FolderEvent(
                    watch, name, bool(mask & _IN_ISDIR), bool(mask & _IN_MOVED), bool(mask & (_IN_CREATE | 0x80)),
                    bool(mask & _IN_IGNORED), bool(mask & _IN_OVERFLOW),
                )  # fmt: skip

    def drop_events(self) -> None:
        """Discard the pending events."""
        for _ in self._read_pieces():
            pass

    def close(self) -> None:
        """Stop watching, and close the descriptor."""
        os.close(self._fd)

    def _read_pieces(self) -> Iterator[bytes]:
        with suppress(BlockingIOError):
            for _ in range(_MAX_READS):
                yield os.read(self._fd, _READ_BYTES)
