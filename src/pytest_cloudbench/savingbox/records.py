"""A file of small records, each with a checksum, so that a damaged file is noticed when it is opened.

SQLite notices damage only where it happens to read, and a flipped bit in a value not at all. So the whole file is
checked and read when it is opened, and only written afterwards. A file that fails the check is moved aside. ``store``
gives the records their meaning.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pytest_cloudbench.model import CloudbenchError, ResultsError, UsageError
from pytest_cloudbench.savingbox.listings import encode_name

Record = tuple[str, str, Any]
"""The subject of a value, its path, and the value: bytes, or what JSON can hold."""

_CREATE = "CREATE TABLE record (about TEXT, path BLOB, value BLOB, PRIMARY KEY (about, path)) WITHOUT ROWID"
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_NO_DAMAGE = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
_CHECKSUM_BYTES = 4
_BYTES = b"\0"
"""The prefix of a value of bytes. JSON never begins like this."""


class DamagedError(CloudbenchError):
    """The file does not hold what was written to it."""


class RecordFile:
    """Values by subject and path, in a file that one process has open.

    Args:
        path: the file, created with its folder.
        convert: reads the records of a file that has other tables: one that an older version has written. Raises
            sqlite3.Error or DamagedError if it is no such file.

    Attributes:
        path: the file.
        found: the values that it had when it was opened, by subject and path.
        problem: the damage of a file that was moved aside, or empty if there was none.

    Raises UsageError if another process holds the file, and ResultsError if it cannot be opened for another reason than
    damage.
    """

    def __init__(self, path: Path, convert: Callable[[sqlite3.Connection], Iterable[Record]]) -> None:
        self.path, self.problem, self._convert = path, "", convert
        self._keys: set[tuple[str, bytes]] = set()  # of all records in the file, and perhaps of more
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._open()
            except DamagedError as damage:
                self.move_aside(f"damaged ({damage})")
        except sqlite3.Error as error:
            if _primary_code(error) in _BUSY:
                raise UsageError(
                    f"{str(path)!r}: another savingbox is running on these folders; end it first"
                ) from error
            raise ResultsError(f"{str(path)!r}: {error}") from error
        except OSError as error:
            raise ResultsError(f"{str(path)!r}: {error.strerror}") from error

    def move_aside(self, why: str) -> None:
        """Start with an empty file, and keep the present one under another name. Raises OSError and sqlite3.Error."""
        self.close()
        aside = self.path.with_name(f"{self.path.name}.damaged")
        for ending in ("", "-wal", "-journal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + ending).replace(aside.with_name(aside.name + ending))
        self.problem = f"{str(self.path)!r}: {why}; it is now {aside.name!r}, and both folders are merged anew"
        self._open()

    def write(self, records: Iterable[Record]) -> None:
        """Store records, all or none of them. A value of None removes its record. Raises OSError."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                removed = self._write_rows(records)
                self._db.execute("COMMIT")
                self._keys -= removed  # not earlier: after a rollback they still have their records
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"{error}", str(self.path)) from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _write_rows(self, records: Iterable[Record]) -> set[tuple[str, bytes]]:
        """Store and remove records in the open transaction, and return the keys that have no record after it."""
        rows = [((about, encode_name(path)), value) for about, path, value in records]
        stored = [(*key, _pack_value(*key, value)) for key, value in rows if value is not None]
        # Most removed records were never written, which SQLite needs several microseconds to find out.
        removed = {key for key, value in rows if value is None and key in self._keys}
        self._db.executemany("DELETE FROM record WHERE about = ? AND path = ?", removed)
        self._db.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?)", stored)
        stored_keys = {(about, path) for about, path, _ in stored}
        self._keys |= stored_keys
        return removed - stored_keys

    def _open(self) -> None:
        """Open, check and read the file. Raises DamagedError, and sqlite3.Error for any other trouble."""
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # a power cut may take agreements: their files are compared
            self._db.execute("BEGIN IMMEDIATE")
            self.found = self._read_values()
            self._db.execute("PRAGMA user_version=1")  # shows whether the file can be written
            self._db.execute("COMMIT")
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error) and self._is_damage(error):
                raise DamagedError(f"{error}") from error
            raise

    def _read_values(self) -> dict[str, dict[str, Any]]:
        """Check the file, and return all its values. Raises DamagedError and sqlite3.Error."""
        for (trouble,) in self._db.execute("PRAGMA integrity_check(1)"):
            if trouble != "ok":
                raise DamagedError(" ".join(str(trouble).split()))
        tables = dict(self._db.execute("SELECT name, sql FROM sqlite_master").fetchall())
        if tables != {"record": _CREATE}:
            older = list(self._convert(self._db)) if tables else []
            for name in tables:
                self._db.execute(f"DROP TABLE {name}")
            self._db.execute(_CREATE)
            self._write_rows(older)
        values: dict[str, dict[str, Any]] = {}
        for about, path, value in self._db.execute("SELECT about, path, value FROM record"):
            values.setdefault(about, {})[os.fsdecode(path)] = _unpack_value(about, path, value)
            self._keys.add((about, path))
        return values

    def _is_damage(self, error: sqlite3.Error) -> bool:
        code = _primary_code(error)
        if code == sqlite3.SQLITE_READONLY:  # a damaged header says so, too
            return os.access(self.path, os.W_OK)
        if code == sqlite3.SQLITE_IOERR:
            return error.sqlite_errorcode in _UNREADABLE
        return code not in (*_BUSY, *_NO_DAMAGE)


def _primary_code(error: sqlite3.Error) -> int:
    """Return the primary code, or 0 for an error of Python's module, such as text that is not UTF-8."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _pack_value(about: str, path: bytes, value: Any) -> bytes:
    is_raw = isinstance(value, bytes)  # in JSON, integers may have any size: times may exceed 64 bits
    text = _BYTES + value if is_raw else json.dumps(value, separators=(",", ":")).encode()
    return _checksum_of(about, path, text) + text


def _unpack_value(about: object, path: object, value: object) -> Any:
    """Return the value of a record. Raises DamagedError."""
    if isinstance(about, str) and isinstance(path, bytes) and isinstance(value, bytes):
        checksum, text = value[:_CHECKSUM_BYTES], value[_CHECKSUM_BYTES:]
        if checksum == _checksum_of(about, path, text):
            return text[1:] if text.startswith(_BYTES) else json.loads(text)
    raise DamagedError(f"the record of {path!r} does not have its checksum")


def _checksum_of(about: str, path: bytes, text: bytes) -> bytes:
    return zlib.crc32(b"\0".join((about.encode(), path, text))).to_bytes(_CHECKSUM_BYTES, "big")
