"""The file that a log of operations is written to, which must lose no record while the log grows.

What may live here: one open file. A full disk, or a file that is taken away, moves it to another place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pytest_cloudbench.model import ResultsError

_COPY_BYTES = 1024 * 1024


class LogFile:
    """An open file that records are added to.

    Args:
        path: the file, whose folder is created.
        moved: called with the new path when the file has to continue elsewhere.

    Attributes:
        path: where it is now.
        notes: remarks about how it was written.
    """

    def __init__(self, path: Path, moved: Callable[[Path], None] = lambda path: None) -> None:
        self.path, self.notes = path, list[str]()
        self._report_move, self._has_moved = moved, False
        self._file = self._open(path)

    @staticmethod
    def _open(path: Path, mode: str = "ab") -> IO[bytes]:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open(f"{mode}+", buffering=0)
        except OSError as error:
            raise ResultsError(f"{path}: {error.strerror}; choose another place with --cloudbench-results") from error

    def write(self, unwritten: bytearray) -> None:
        """Write bytes, and remove from ``unwritten`` what was written. Raises ResultsError if no place is left."""
        while unwritten:
            try:
                del unwritten[: self._file.write(unwritten)]
            except OSError as error:
                self._move_elsewhere(error.strerror or str(error))
        self.restore()

    def restore(self) -> None:
        """Write everything again if the file was taken away. Raises ResultsError if no place is left."""
        if self._is_file_lost():
            self._write_again()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _is_file_lost(self) -> bool:
        """Return whether the file is no longer where it was opened: removed, moved away, or replaced by another."""
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # the path can no longer be read, but the open file can still be written
            return False

    def _write_again(self) -> None:
        """Write all records so far, which the open file still has, to a new file at the same place or elsewhere."""
        reason = "was removed, moved or replaced during the run"
        try:
            file = self._open(self.path, "xb")
        except ResultsError:
            self._move_elsewhere(reason)
            return
        try:
            self._copy_to(file)
        except OSError:
            file.close()
            self._move_elsewhere(reason)
            return
        self._continue_in(file, self.path, f"{self.path}: {reason}; all records were written there again")

    def _move_elsewhere(self, reason: str) -> None:
        """Continue in the system's temporary folder with all records so far. Raises ResultsError if it is full too."""
        former_path = self.path
        if self._has_moved:
            raise ResultsError(f"{former_path}: {reason}; free some space and run again")
        try:
            descriptor, name = tempfile.mkstemp(prefix=f"cloudbench-{os.getpid()}-", suffix=f"-{former_path.name}")
        except OSError as error:
            raise ResultsError(
                f"{former_path}: {reason}, and no temporary file can be made: {error.strerror}"
            ) from error
        os.close(descriptor)
        target = Path(name)
        file = self._open(target)
        try:
            self._copy_to(file)
        except OSError as error:
            file.close()
            target.unlink()
            raise ResultsError(f"{former_path}: {reason}, and {target}: {error.strerror}") from error
        self._has_moved = True
        self._continue_in(file, target, f"{former_path}: {reason}; the records continue in {target}")
        self._report_move(target)

    def _copy_to(self, file: IO[bytes]) -> None:
        source = self._file.fileno()
        os.lseek(source, 0, os.SEEK_SET)  # appending ignores this position
        while piece := memoryview(os.read(source, _COPY_BYTES)):
            while piece:
                piece = piece[file.write(piece) :]

    def _continue_in(self, file: IO[bytes], path: Path, note: str) -> None:
        self._file.close()
        self._file, self.path = file, path
        if note not in self.notes:
            self.notes.append(note)
