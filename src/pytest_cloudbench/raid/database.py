"""A database in one SQLite file that many processes share, and that may be damaged, removed or replaced at any time.

What may live here: transactions, settings, and the checks that make every transaction fail, in one line, rather than
rely on a file that is not what this process takes it for.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_cloudbench.model import CloudError, ErrorKind, UsageError
from pytest_cloudbench.raid.locks import holder_text

_BUSY_S = 10.0
"""How long a transaction waits for another process. They take milliseconds: nothing in them waits for children."""
_MOST_GENERATION = 1 << 62
_COUNT_CHANGE = "INSERT INTO settings VALUES ('changes', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
_SETTINGS = "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID"


def _is_damage(error: Exception, code: int | None) -> bool:
    if code is None:  # text that is no UTF-8 has none
        return isinstance(error, Damaged | UnicodeDecodeError | sqlite3.OperationalError)
    return code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR}


class Damaged(Exception):
    """The file holds what no process writes."""


class Database:
    """A SQLite file with settings. Safe for many threads and processes.

    Args:
        path: the file; created if it is missing, readable by its owner only.
        rebuild: the command that rebuilds it if it is damaged, for messages.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, path: Path, rebuild: str) -> None:
        self._path, self._rebuild = path, rebuild
        self._lock, self._is_closed = threading.RLock(), False
        self._changes = 0
        self._children: str | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            self._identity = path.stat().st_ino
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise UsageError(f"{path}: cannot be used as an array's metadata: {error}") from error
        try:
            with self.reading() as db:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")  # a power cut must not undo a commit
                self._open(db)
        except CloudError as error:
            self._db.close()
            raise UsageError(error.detail) from error

    def _open(self, db: sqlite3.Connection) -> None:
        """Make or convert what the file should contain, and check it."""
        db.execute(_SETTINGS)
        self.check_it_is_current()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            self._db.close()

    # --- transactions ---

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is done in this block happens, or none of it; within another transaction, it is part of that one.

        Raises CloudError, see ``reading``, and if another process keeps the file locked.
        """
        with self.reading() as db:
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                self.check_it_is_current()
                self._check_children()
                yield db
                db.execute(_COUNT_CHANGE)
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error is the one to report
                    db.execute("ROLLBACK")
                raise
            self._changes += 1
            self._check_file()  # a commit to a file that is no longer there must not be acknowledged

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """All that is read in this block is of one moment."""
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
            self._check_file()
            try:
                yield self._db
            except (sqlite3.Error, Damaged, UnicodeDecodeError) as error:
                raise self._explained(error) from error

    def _explained(self, error: Exception) -> CloudError:
        """Return an error that says what is wrong with the file, and what to do about it."""
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

    def _check_file(self) -> None:
        """Raise CloudError if the file was replaced or removed: nobody would see what is written to the old one."""
        try:
            is_same = self._path.stat().st_ino == self._identity
        except OSError:
            is_same = False
        if not is_same:
            detail = f"{self._path} was replaced or removed while this process used it; open the array again"
            raise CloudError(ErrorKind.CONFLICT, "metadata", "/", detail=detail)

    def check_it_is_current(self) -> None:
        """Raise CloudError if an older copy is in the file's place."""
        changes = self.number("changes")
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
        """Refuse all later transactions of this process if the setting of the children is another one by then."""
        if self.setting("children") == text:
            self._children = text
            return
        with self.transaction():
            self._children = None
            self.keep("children", text)
            self._children = text

    def setting(self, name: str) -> str | None:
        """Return a setting; None if there is none."""
        with self.reading() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def keep(self, name: str, text: str) -> None:
        """Set a setting."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, text))

    def forget(self, name: str) -> None:
        """Remove a setting."""
        with self.transaction() as db:
            db.execute("DELETE FROM settings WHERE name = ?", (name,))

    def number(self, name: str) -> int:
        """Return a setting that is a number; 0 if there is none."""
        text = self.setting(name) or "0"
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and int(digits) <= 1 << 63):
            raise Damaged(f"impossible {name}")
        if name == "generation" and not 0 <= int(text) < _MOST_GENERATION:
            raise Damaged(f"impossible {name}")
        return int(text)


def put_in_place(new: Path, old: Path) -> Path | None:
    """Put a closed database in another's place. Returns the name under which the other one was kept, if there was one.

    Processes that have the other one open notice it, and fail.
    """
    kept = None
    if old.exists():
        number = 1
        while (kept := old.with_name(f"{old.name}.old{number}")).exists():
            number += 1
    for suffix in ("-wal", "-shm", "", "-journal"):
        if kept is not None:
            with suppress(FileNotFoundError):
                old.with_name(f"{old.name}{suffix}").replace(kept.with_name(f"{kept.name}{suffix}"))
    new.replace(old)
    return kept
