"""Content on disk: unnamed files in the emulator's folder that hold what is too large for memory.

Content goes to the end of the current file, and a full file is followed by another one. A file is deleted with the last
piece that refers to it, so the disk space of removed content comes back without any bookkeeping.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any

_FILE_BYTES = 64 * 1024 * 1024
"""Each file costs a descriptor, and keeps its space as long as any piece in it is in use."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFullError(Exception):
    """There is no space left for content."""


class _SpoolFile:
    """One unnamed file. Several threads may use it at the same time."""

    __slots__ = ("_file", "_lock", "size_bytes")

    def __init__(self, folder: str) -> None:
        self._file: Any = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # it closes with its last piece
        self._lock = threading.Lock()
        self.size_bytes = 0

    def append(self, data: bytes) -> int:
        """Add bytes at the end, and return where they begin. Raises OSError, and then nothing was added."""
        with self._lock:
            start, view = self.size_bytes, memoryview(data)
            self._file.seek(start)
            while view:
                view = view[self._file.write(view) :]
            self.size_bytes += len(data)
            return start

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return bytes that were added."""
        with self._lock:
            self._file.seek(start)
            data: bytes = self._file.read(size_bytes)
            while len(data) < size_bytes and (more := self._file.read(size_bytes - len(data))):
                data += more
            return data


class DiskPiece:
    """Bytes on disk, which are read when they are needed."""

    __slots__ = ("_file", "_size_bytes", "_start")

    def __init__(self, file: _SpoolFile, start: int, size_bytes: int) -> None:
        self._file, self._start, self._size_bytes = file, start, size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return self._file.read(self._start, self._size_bytes)

    def __getitem__(self, part: slice) -> DiskPiece:
        start, stop, _ = part.indices(self._size_bytes)
        return DiskPiece(self._file, self._start + start, max(0, stop - start))


class Spool:
    """The place for large content. Without a folder everything stays in memory."""

    def __init__(self) -> None:
        self.folder = ""
        self._file: _SpoolFile | None = None
        self._lock = threading.Lock()

    def store(self, pieces: Sequence[bytes | memoryview]) -> DiskPiece:
        """Write bytes to disk. Raises DiskFullError."""
        data = b"".join(pieces)
        try:
            with self._lock:
                if self._file is None or self._file.size_bytes >= _FILE_BYTES:
                    self._file = _SpoolFile(self.folder)
                file = self._file
            return DiskPiece(file, file.append(data), len(data))
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError from error
            raise


SPOOL = Spool()
"""The spool of this process, which is that of one emulator."""
