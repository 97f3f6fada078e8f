"""A database in one SQLite file that many processes share, and that may be damaged, removed or replaced at any time.

What may live here: transactions, settings, and the checks by which a transaction fails with a clear message if the file
is no longer the one that this process opened.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_cloudbench.model import CloudError, ErrorKind, UsageError
from pytest_cloudbench.raid.locks import holder_text

_BUSY_S = 10.0
"""The time that a transaction waits for another process. Transactions take milliseconds, as none waits for children."""
_MOST_GENERATION = 1 << 62
_SETTINGS = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID"


def _use_write_ahead_log(db: sqlite3.Connection) -> None:
    """Switch a file to a write-ahead log, which it keeps. Other processes may do the same at this moment.

    SQLite does not wait for them here, because two that wait for each other would never end. It does wait for the lock
    of a transaction.
    """
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        db.execute("BEGIN EXCLUSIVE")
        db.execute("ROLLBACK")


def _is_damage(error: Exception, code: int | None) -> bool:
    if code is None:  # an error about text that is not UTF-8 has no code
        return isinstance(error, Damaged | UnicodeDecodeError | sqlite3.OperationalError)
    return code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


class Damaged(Exception):
    """The file holds something that no process writes."""


class Database:
    """A SQLite file with settings. Safe for many threads and processes.

    Args:
        path: the file. It is created if it is missing, readable by its owner only.
        rebuild: the command that rebuilds it if it is damaged, for messages.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, path: Path, rebuild: str) -> None:
        self._path, self._path_text, self._rebuild = path, str(path), rebuild
        self._lock, self._is_closed = threading.RLock(), False
        self._changes = 0
        self._children: str | None = None
        self._settings: dict[str, object] | None = None  # those of the transaction that is under way
        self._changed_settings = set[str]()
        self._is_synced = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            self._identity = path.stat().st_ino
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"{path}: cannot be used as an array's metadata: {error}") from error
        try:
            with self.reading() as db:
                _use_write_ahead_log(db)
                db.execute("PRAGMA synchronous = FULL")  # a power cut must not undo a commit
                self._open(db)
        except CloudError as error:
            self._db.close()
            raise UsageError(error.detail) from error

    def _open(self, db: sqlite3.Connection) -> None:
        """Create the settings, and check the file. Subclasses create or convert their own tables."""
        db.execute(_SETTINGS)
        self.check_is_current()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            self._db.close()

    # --- transactions ---

    @contextmanager
    def transaction(self, *, is_synced: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction, or as part of the transaction that is under way.

        ``is_synced``: a power cut must not undo it. Those that are not synced survive the end of the process, and a
        power cut undoes only the newest ones: each synced transaction makes all before it safe as well.

        Raises CloudError, see ``reading``, and if another process keeps the file locked.
        """
        with self.reading() as db:
            if db.in_transaction:
                yield db
                return
            if is_synced != self._is_synced:
                db.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
                self._is_synced = is_synced
            db.execute("BEGIN IMMEDIATE")
            try:
                self._settings = dict(db.execute("SELECT name, value FROM settings").fetchall())
                self.check_is_current()
                self._check_children()
                yield db
                self._store(db, self._changes + 1)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error is the one to report
                    db.execute("ROLLBACK")
                raise
            finally:
                self._settings = None
                self._changed_settings.clear()
            self._changes += 1
            self._check_is_same_file()  # a commit to a file that is no longer there must not be acknowledged

    def _store(self, db: sqlite3.Connection, changes: int) -> None:
        """Write the settings that a transaction has changed."""
        settings = self._settings or {}
        rows = [("changes", changes), *((name, settings[name]) for name in self._changed_settings & settings.keys())]
        db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows)
        if removed := self._changed_settings - settings.keys():
            db.executemany("DELETE FROM settings WHERE name = ?", [(name,) for name in removed])

    @contextmanager
    def consistent_read(self) -> Iterator[None]:
        """Run a block in which all reads see the file as of one moment."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            with suppress(sqlite3.Error):
                self._db.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Use the file without a transaction.

        Raises CloudError if SQLite fails, for instance on a full disk, or if the file is damaged or was replaced.
        """
        with self._lock:
            if not self._db.in_transaction:
                self._check_is_same_file()
            try:
                yield self._db
            except (sqlite3.Error, Damaged, UnicodeDecodeError) as error:
                raise self._describe_error(error) from error

    def _describe_error(self, error: Exception) -> CloudError:
        """Return the error that says what is wrong with the file, and what to do about it."""
        kind, detail = ErrorKind.SERVER, f"{self._path}: cannot be used as an array's metadata: {error}"
        code = getattr(error, "sqlite_errorcode", None)
        if _is_damage(error, code):
            kind = ErrorKind.CORRUPT
            advice = f"the children hold all objects; rebuild it with: {self._rebuild}"
            detail = f"{self._path} is damaged ({' '.join(str(error).split())}), but {advice}"
        elif code is not None and code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            holder = holder_text(self._path)
            detail = f"{holder} has kept {self._path} locked for {_BUSY_S:g} s; continue or end it, then try again"
        return CloudError(kind, "metadata", "/", detail=detail)

    def _check_is_same_file(self) -> None:
        """Raise CloudError if the file was replaced or removed, because writes to the old file would be lost."""
        try:
            is_same = os.stat(self._path_text).st_ino == self._identity
        except OSError:
            is_same = False
        if not is_same:
            detail = f"{self._path} was replaced or removed while this process used it; open the array again"
            raise CloudError(ErrorKind.CONFLICT, "metadata", "/", detail=detail)

    def check_is_current(self) -> None:
        """Raise CloudError if an older copy is in the file's place."""
        changes = self.number_setting("changes")
        if changes < self._changes:
            detail = f"an older copy took the place of {self._path} while this process used it; open the array again"
            raise CloudError(ErrorKind.CONFLICT, "metadata", "/", detail=detail)
        self._changes = changes

    def _check_children(self) -> None:
        """Raise CloudError if the array has other children than this process."""
        if self._children is not None and self.setting("children") != self._children:
            detail = "the array has other children since another process replaced one; open the array again"
            raise CloudError(ErrorKind.CONFLICT, "metadata", "/", detail=detail)

    # --- settings ---

    def expect_children(self, text: str) -> None:
        """Note the children of this process. Its later transactions fail if another process changes that setting."""
        if self.setting("children") == text:
            self._children = text
            return
        with self.transaction():
            self._children = None
            self.put_setting("children", text)
            self._children = text

    def setting(self, name: str) -> str | None:
        """Return a setting, or None if there is none."""
        with self._lock:
            if self._settings is not None:
                value = self._settings.get(name)
                return None if value is None else str(value)
        with self.reading() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def put_setting(self, name: str, value: str | int) -> None:
        """Store a setting."""
        with self.transaction():
            self.change_setting(name, value)

    def remove_setting(self, name: str) -> None:
        """Remove a setting."""
        with self.transaction():
            self.change_setting(name, None)

    def change_setting(self, name: str, value: str | int | None) -> None:
        """Change a setting of the transaction that is under way. None removes it."""
        if self._settings is None:
            raise RuntimeError("settings are changed in transactions only")
        self._changed_settings.add(name)
        if value is None:
            self._settings.pop(name, None)
        else:
            self._settings[name] = value

    def number_setting(self, name: str) -> int:
        """Return a setting that is a number, or 0 if there is none."""
        text = self.setting(name) or "0"
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and int(digits) <= 1 << 63):
            raise Damaged(f"impossible {name}")
        if name == "generation" and not 0 <= int(text) < _MOST_GENERATION:
            raise Damaged(f"impossible {name}")
        return int(text)


def replace_database(new: Path, old: Path) -> Path | None:
    """Replace a database by another, closed one. Returns the path under which the old one was kept, if there was one.

    Processes that have the old one open notice it, and their transactions fail.
    """
    kept_path = None
    if old.exists():
        number = 1
        while (kept_path := old.with_name(f"{old.name}.old{number}")).exists():
            number += 1
    for suffix in ("-wal", "-shm", "", "-journal"):
        if kept_path is not None:
            with suppress(FileNotFoundError):
                old.with_name(f"{old.name}{suffix}").replace(kept_path.with_name(f"{kept_path.name}{suffix}"))
    new.replace(old)
    return kept_path
