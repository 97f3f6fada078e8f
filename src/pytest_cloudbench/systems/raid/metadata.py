"""An array's metadata in SQLite: which version of each object is current, and which work is unfinished.

What may live here: the tables and their transactions. Many processes of one machine share the file. It may be lost:
except for unfinished work, the children hold everything, too (see ``recovery``).

A version passes through these states. Each step is one transaction, so a killed process never leaves half a step:

    begun    in ``writes``: some of its packages may be with children; it is not read
    current  in ``objects``: it replaced the path's earlier version; packages that a child lacks are in ``missing``
    garbage  in ``garbage``: it is not read; its packages are to be deleted from these children
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_cloudbench.model import CloudError, ErrorKind, UsageError

__all__ = ["Discarded", "Lacking", "Metadata", "ObjectRow"]

_LAYOUT = 2
"""1: garbage had no ``note``."""

_BUSY_S = 120.0
_TABLES = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (path BLOB PRIMARY KEY, version BLOB NOT NULL, generation INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, segments INTEGER NOT NULL, manifest BLOB NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS object_versions ON objects (version);
CREATE TABLE IF NOT EXISTS writes (version BLOB PRIMARY KEY, path BLOB NOT NULL, generation INTEGER NOT NULL,
    segments INTEGER NOT NULL, owner TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS missing (version BLOB, segment INTEGER, child INTEGER, owner TEXT NOT NULL,
    PRIMARY KEY (version, segment, child)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS garbage (version BLOB, child INTEGER, segments INTEGER NOT NULL, owner TEXT NOT NULL,
    note INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (version, child)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """The current version of one object.

    Attributes:
        path: the object's.
        version: names its packages.
        generation: a later version has a larger number.
        size_bytes: of its content.
        segments: the number of its packages on each child.
        manifest: sealed.
    """

    path: str
    version: bytes
    generation: int
    size_bytes: int
    segments: int
    manifest: bytes


@dataclass(frozen=True, slots=True)
class Lacking:
    """A package of a current version that a child lacks, or holds damaged."""

    version: bytes
    segment: int
    child: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """Packages of an unused version, on one child.

    Attributes:
        note: changes when a package arrives: a deletion that began earlier may not have seen that package.
    """

    version: bytes
    child: int
    segments: int
    note: int


class Metadata:
    """One array's metadata. Safe for many threads and processes.

    Args:
        path: the file; created if it is missing, readable by its owner only.
        owner: this process, in a form by which others can check whether it still runs.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, path: Path, owner: str) -> None:
        self._owner, self._lock, self._is_closed = owner, threading.RLock(), False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # a power cut must not undo a commit
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                self._db.execute("INSERT OR IGNORE INTO settings VALUES ('layout', ?)", (_LAYOUT,))
                found = self._brought_up()
        except (OSError, sqlite3.Error, CloudError) as error:
            raise UsageError(f"{path}: cannot be used as an array's metadata: {error}") from error
        if found != _LAYOUT:
            raise UsageError(f"{path}: has layout {found}, expected {_LAYOUT}: another version of this package made it")

    def _brought_up(self) -> object:
        """Returns the layout, after converting an earlier one."""
        (found,) = self._db.execute("SELECT value FROM settings WHERE name = 'layout'").fetchone()
        if found != 1:
            return found
        self._db.execute("ALTER TABLE garbage ADD COLUMN note INTEGER NOT NULL DEFAULT 0")
        self._db.execute("UPDATE settings SET value = ? WHERE name = 'layout'", (_LAYOUT,))
        return _LAYOUT

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._is_closed = True
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # the first error is the one to report
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Raises CloudError if SQLite fails, for instance on a full disk."""
        with self._lock:
            try:
                yield self._db
            except sqlite3.Error as error:
                raise CloudError(ErrorKind.SERVER, "metadata", "/", detail=f"the array's own: {error}") from error

    # --- the array itself ---------------------------------------------------------------------------

    @contextmanager
    def preparing(self) -> Iterator[bool]:
        """Let one process prepare the array, while the others wait. Yields whether it is still unprepared.

        All writes in this block are one transaction.
        """
        with self._transaction() as db:
            is_new = db.execute("SELECT 1 FROM settings WHERE name = 'prepared'").fetchone() is None
            yield is_new
            db.execute("INSERT OR IGNORE INTO settings VALUES ('prepared', 1)")

    @property
    def is_prepared(self) -> bool:
        """Whether a process has prepared the array."""
        return self.setting("prepared") is not None

    def setting(self, name: str, default: str | None = None) -> str | None:
        """Returns a setting; if there is none yet, sets it to ``default``."""
        with self._reading() as db:
            row = db.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
            if row is None and default is not None:
                db.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, default))
                return self.setting(name)
        return None if row is None else str(row[0])

    def keep(self, name: str, text: str) -> None:
        """Set a setting."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, text))

    # --- objects ------------------------------------------------------------------------------------

    def find(self, path: str) -> ObjectRow | None:
        """Returns an object's current version; None if there is no such object."""
        rows = self._objects("path = ?", _key(path))
        return rows[0] if rows else None

    def find_version(self, version: bytes) -> ObjectRow | None:
        """Returns a version; None if it is not current."""
        rows = self._objects("version = ?", version)
        return rows[0] if rows else None

    def below(self, prefix: str, after: str, most: int) -> Sequence[ObjectRow]:
        """Returns the next objects whose path begins with ``prefix`` and comes after ``after``, in order of paths."""
        return self._objects(
            "path > ? AND path < ? ORDER BY path LIMIT ?", max(_key(after), _key(prefix)), _key(prefix) + b"\xff", most
        )

    def _objects(self, where: str, *values: object) -> list[ObjectRow]:
        with self._reading() as db:
            rows = db.execute(
                f"SELECT path, version, generation, size_bytes, segments, manifest FROM objects WHERE {where}", values
            ).fetchall()
        return [ObjectRow(path.decode(), *rest) for path, *rest in rows]

    def newest_generation(self) -> int:
        """Returns the generation of the version that began last; 0 if there was none."""
        return int(self.setting("generation") or 0)

    def count(self) -> int:
        """Returns how many objects there are."""
        with self._lock:
            (found,) = self._db.execute("SELECT count(*) FROM objects").fetchone()
        return int(found)

    def begun(self) -> Sequence[tuple[bytes, int]]:
        """Returns version and segments of unfinished writes of all processes, running or ended."""
        with self._lock:
            return self._db.execute("SELECT version, segments FROM writes").fetchall()

    def begin(self, version: bytes, path: str, segments: int, generation: int = 0) -> int:
        """Begin to write a version. Returns its generation.

        ``generation``: for a copy, that of the original, so that every newly written version is newer than the copy.
        """
        with self._transaction() as db:
            if not generation:
                generation = self.newest_generation() + 1
                self._raise_generation(generation)
            values = (version, _key(path), generation, segments, self._owner)
            db.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?)", values)
        return generation

    def _raise_generation(self, generation: int) -> None:
        self._db.execute(
            "INSERT INTO settings VALUES ('generation', ?) ON CONFLICT (name) DO UPDATE SET value = max(value, ?)",
            (generation, generation),
        )

    def commit(self, row: ObjectRow, missing: Iterable[Lacking], children: int, instead_of: bytes = b"") -> bool:
        """Make a version that was begun current; its path's earlier version becomes garbage.

        Returns whether it became current. If a version that began later was faster, this one is garbage. So is a copy
        whose original, ``instead_of``, is no longer current.
        """
        with self._transaction() as db:
            db.execute("DELETE FROM writes WHERE version = ?", (row.version,))
            if instead_of and self.find_version(instead_of) is None:
                self._discard(row.version, row.segments, children)
                return False
            return self._make_current(row, missing, children)

    def _make_current(self, row: ObjectRow, missing: Iterable[Lacking], children: int) -> bool:
        current = self.find(row.path)
        if current is not None and current.generation > row.generation:
            self._discard(row.version, row.segments, children)
            return False
        if current is not None:
            self._discard(current.version, current.segments, children)
        self._db.execute(
            "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)",
            (_key(row.path), row.version, row.generation, row.size_bytes, row.segments, row.manifest),
        )
        self._add_missing(missing)
        return True

    def recovered(self, rows: Iterable[tuple[ObjectRow, Sequence[Lacking]]], children: int, generation: int) -> None:
        """Take in versions that children hold. Later versions get a generation above ``generation``."""
        with self._transaction_or_within():
            for row, missing in rows:
                self._make_current(row, missing, children)
            self._raise_generation(generation)

    @contextmanager
    def _transaction_or_within(self) -> Iterator[None]:
        if self._db.in_transaction:
            with self._lock:
                yield
        else:
            with self._transaction():
                yield

    def abandon(self, version: bytes, segments: int, children: int) -> None:
        """Turn a version that was begun into garbage: it will not become current."""
        with self._transaction() as db:
            db.execute("DELETE FROM writes WHERE version = ?", (version,))
            self._discard(version, segments, children)

    def remove(self, row: ObjectRow, children: int) -> Sequence[Discarded]:
        """Remove an object. Returns its packages as garbage; none if this was not the current version."""
        with self._transaction() as db:
            if not db.execute("DELETE FROM objects WHERE version = ?", (row.version,)).rowcount:
                return []
            self._discard(row.version, row.segments, children)
            return self._garbage(" WHERE version = ?", row.version)

    def _discard(self, version: bytes, segments: int, children: int) -> None:
        self._db.execute("DELETE FROM missing WHERE version = ?", (version,))
        for child in range(children):
            self._note_garbage(version, child, segments)

    def _note_garbage(self, version: bytes, child: int, segments: int) -> None:
        values = (version, child, segments, self._owner)
        self._db.execute("INSERT OR REPLACE INTO garbage VALUES (?, ?, ?, ?, random())", values)

    # --- unfinished work ----------------------------------------------------------------------------

    def lacks(self, missing: Iterable[Lacking]) -> None:
        """Note packages that children lack, or hold damaged. Packages of versions that are not current are left out."""
        with self._transaction():
            self._add_missing(each for each in list(missing) if self.find_version(each.version))

    def _add_missing(self, missing: Iterable[Lacking]) -> None:
        self._db.executemany(
            "INSERT OR IGNORE INTO missing VALUES (?, ?, ?, ?)",
            [(each.version, each.segment, each.child, self._owner) for each in missing],
        )

    def arrived(self, package: Lacking, segments: int, *, has_it: bool) -> None:
        """A transfer has ended: the child has the package now, or failed, and then may have the package anyway.

        If the version is no longer current, the package is garbage.
        """
        with self._lock:
            if self._is_closed:
                return  # the note stays; the next repair finds that the package is there
            self._arrived(package, segments, has_it=has_it)

    def _arrived(self, package: Lacking, segments: int, *, has_it: bool) -> None:
        with self._transaction() as db:
            if has_it:
                db.execute(
                    "DELETE FROM missing WHERE version = ? AND segment = ? AND child = ?",
                    (package.version, package.segment, package.child),
                )
            if self.find_version(package.version) is None:
                self._note_garbage(package.version, package.child, segments)

    def is_missing(self, package: Lacking) -> bool:
        """Returns whether a child lacks a package now."""
        with self._reading() as db:
            where = "version = ? AND segment = ? AND child = ?"
            values = (package.version, package.segment, package.child)
            return db.execute(f"SELECT 1 FROM missing WHERE {where}", values).fetchone() is not None

    def missing(self, *, own: bool = False) -> Sequence[Lacking]:
        """Returns packages that children lack: all, or those that this process is responsible for."""
        where, values = self._whose(own)
        with self._reading() as db:
            rows = db.execute(f"SELECT version, segment, child FROM missing{where}", values).fetchall()
        return [Lacking(*row) for row in rows]

    def garbage(self, *, own: bool = False) -> Sequence[Discarded]:
        """Returns the packages to delete from children: all, or those that this process is responsible for."""
        where, values = self._whose(own)
        return self._garbage(where, *values)

    def _garbage(self, where: str, *values: object) -> list[Discarded]:
        with self._reading() as db:
            rows = db.execute(f"SELECT version, child, segments, note FROM garbage{where}", values).fetchall()
        return [Discarded(*row) for row in rows]

    def _whose(self, own: bool) -> tuple[str, tuple[str, ...]]:
        return (" WHERE owner = ?", (self._owner,)) if own else ("", ())

    def deleted(self, leftovers: Iterable[Discarded]) -> None:
        """Note that children have deleted these, except those with packages that arrived since the note was read."""
        with self._transaction() as db:
            db.executemany(
                "DELETE FROM garbage WHERE version = ? AND child = ? AND note = ?",
                [(each.version, each.child, each.note) for each in leftovers],
            )

    def owners(self) -> frozenset[str]:
        """Returns the other processes that have unfinished work."""
        with self._reading() as db:
            rows = db.execute(
                "SELECT owner FROM writes UNION SELECT owner FROM missing UNION SELECT owner FROM garbage"
            ).fetchall()
        return frozenset(owner for (owner,) in rows) - {self._owner}

    def adopt(self, owner: str, children: int) -> None:
        """Take over what a process that has ended left behind: its unfinished writes become garbage."""
        with self._transaction() as db:
            begun = db.execute("SELECT version, segments FROM writes WHERE owner = ?", (owner,)).fetchall()
            db.execute("DELETE FROM writes WHERE owner = ?", (owner,))
            for table in ("missing", "garbage"):
                db.execute(f"UPDATE {table} SET owner = ? WHERE owner = ?", (self._owner, owner))
            for version, segments in begun:
                self._discard(version, segments, children)


def _key(path: str) -> bytes:
    return path.encode()
