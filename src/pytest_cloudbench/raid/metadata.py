"""An array's metadata in SQLite: which version of each object is current, and which work is unfinished.

What may live here: the tables and their transactions. Many processes of one machine share the file. It may be lost,
because the children hold everything but the unfinished work (see ``recovery``).

A process must not rely on what it read before. Each transaction first checks that this is still the file that the
process opened, that no older copy has taken its place, and that the array still has the same children.

SQLite itself has no checksums. Each object's row has one, and a combination of them all is a setting, so that flipped
bits and pages of different times are noticed.

A version passes through these states. Each step is one transaction, so a killed process never leaves half a step:

    begun    in ``writes``: some of its packages may be with children; it is not read
    current  in ``objects``: it replaced the path's earlier version; packages that a child lacks are in ``missing``
    garbage  in ``garbage``: it is not read; its packages are to be deleted from these children
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from operator import xor
from pathlib import Path

from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.raid.database import Damaged, Database

_LAYOUT = 3
"""The version of the tables. A file of an earlier one is converted when it is opened, and a later one is refused.

1: garbage had no ``note``. 2: objects had no ``checksum``."""

_COLUMNS = "path, version, generation, size_bytes, segments, manifest"
_MOST_SEGMENTS = 1 << 24
_MOST_CHILDREN = 1 << 10
UNVERIFIED = "unverified"
"""The setting with the generation up to which the metadata was last compared with enough children."""
UNCOMPARED = "uncompared"
"""The setting with the numbers of the children that have not answered since their specs changed."""
_TABLES = """
CREATE TABLE IF NOT EXISTS objects (path BLOB PRIMARY KEY, version BLOB NOT NULL, generation INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL, segments INTEGER NOT NULL, checksum INTEGER NOT NULL, manifest BLOB NOT NULL);
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
        version: the random bytes from which the names of its packages are derived.
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
class MissingPackage:
    """A package of a current version that a child lacks, or holds damaged."""

    version: bytes
    segment: int
    child: int


@dataclass(frozen=True, slots=True)
class GarbagePackages:
    """Packages of an unused version, on one child.

    Attributes:
        note: a random number, new whenever a package arrives, because a deletion that began earlier may have missed it.
    """

    version: bytes
    child: int
    segments: int
    note: int


@dataclass(frozen=True, slots=True)
class BegunWrite:
    """A version that some process began to write.

    Attributes:
        version: the random bytes from which the names of its packages are derived.
        segments: the number of its packages on each child.
        owner: the process.
        is_ours: whether this process is writing it now.
    """

    version: bytes
    segments: int
    owner: str
    is_ours: bool


@dataclass(frozen=True, slots=True)
class EndedWrite:
    """The end of a write that reached enough children.

    Attributes:
        is_current: whether its version became current.
        leaves_work: whether packages are missing, or garbage.
    """

    is_current: bool
    leaves_work: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All versions that the metadata knows of, at one moment.

    Attributes:
        changes: how many transactions there have been.
        generation: at least the largest generation of all versions that the metadata knows of.
        objects: the current versions: version and segments.
        begun: those being written.
        garbage: those to be deleted.
    """

    changes: int
    generation: int
    objects: Sequence[tuple[bytes, int]]
    begun: Sequence[BegunWrite]
    garbage: Sequence[GarbagePackages]


_WRITING: set[bytes] = set()
"""The versions that this process is writing now. Others that it began, perhaps before an old copy was restored, will
not be finished."""


class Metadata(Database):
    """One array's metadata. Safe for many threads and processes.

    Args:
        path: the file. It is created if it is missing, readable by its owner only.
        owner: this process, in a form by which others can check whether it still runs.
        rebuild: the command that rebuilds damaged metadata, for messages.

    Raises UsageError for a file that cannot be used.
    """

    def __init__(self, path: Path, owner: str, rebuild: str = "cloudbench raid recover FILE") -> None:
        self.owner = owner
        super().__init__(path, rebuild)

    def _open(self, db: sqlite3.Connection) -> None:
        """Create missing tables, convert an earlier layout, and check everything once."""
        super()._open(db)
        if self.setting("layout") is None:
            with self.transaction():
                has_tables = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'objects'").fetchone()
                if has_tables and self.setting("layout") is None:
                    raise Damaged("it has no layout")
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                self.put_setting("layout", self.setting("layout") or str(_LAYOUT))
        layout = self._convert_layout() if self.setting("layout") in {"1", "2"} else self.setting("layout")
        if layout is None or not layout.isdecimal():
            raise Damaged("its layout is no number")
        if layout != str(_LAYOUT):
            detail = (
                f"{self._path}: has layout {layout}, and this version of pytest-cloudbench reads up to {_LAYOUT}; "
                f"update it, or rebuild the file with: {self._rebuild}"
            )
            raise CloudError(ErrorKind.INVALID, "metadata", "/", detail=detail)
        self._verify()

    def _convert_layout(self) -> str | None:
        """Convert an earlier layout to the current one. Returns the layout that the file has afterwards."""
        with self.transaction() as db:
            layout = self.setting("layout")  # another process may have been faster
            if layout == "1":
                db.execute("ALTER TABLE garbage ADD COLUMN note INTEGER NOT NULL DEFAULT 0")
            if layout in {"1", "2"}:
                rows = db.execute(f"SELECT {_COLUMNS} FROM objects").fetchall()
                db.execute("DROP TABLE objects")
                self.remove_setting("checksum")
                for statement in _TABLES.split(";"):
                    db.execute(statement)
                for row in rows:
                    self._insert(row)
                self.put_setting("layout", str(_LAYOUT))
            return self.setting("layout")

    def _verify(self) -> None:
        """Raise CloudError if the file is damaged, in its structure or in the values of its rows."""
        with self.reading() as db, self.consistent_read():
            (problem,) = db.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                raise Damaged(problem)
            checksums = [checksum for (checksum,) in db.execute("SELECT checksum FROM objects")]
            if reduce(xor, checksums, 0) != self.number_setting("checksum"):
                raise Damaged("its pages are from different times")
            for table in ("writes", "garbage"):
                where = f"segments BETWEEN 1 AND {_MOST_SEGMENTS} AND typeof(segments) = 'integer'"
                where += " AND typeof(version) = 'blob' AND typeof(owner) = 'text'"
                if db.execute(f"SELECT 1 FROM {table} WHERE NOT ({where})").fetchone():
                    raise Damaged(f"impossible {table}")
            for table in ("missing", "garbage"):
                where = f"typeof(child) = 'integer' AND child BETWEEN 0 AND {_MOST_CHILDREN}"
                if db.execute(f"SELECT 1 FROM {table} WHERE NOT ({where})").fetchone():
                    raise Damaged(f"impossible {table}")
            for name in ("generation", UNVERIFIED):
                self.number_setting(name)

    # --- the array itself ---------------------------------------------------------------------------

    @property
    def is_prepared(self) -> bool:
        """True if a process has prepared the array."""
        return self.setting("prepared") is not None

    def child_specs(self) -> list[str]:
        """Return the specs of the array's children at its last use, or none if it was not used yet.

        The spec of a child that has not answered since its spec changed is empty.
        """
        with self.reading():
            try:
                specs, uncompared = (json.loads(self.setting(name) or "[]") for name in ("children", UNCOMPARED))
            except (ValueError, RecursionError) as error:
                raise Damaged("impossible children") from error
            if not isinstance(specs, list) or not isinstance(uncompared, list):
                raise Damaged("impossible children")
            return ["" if child in uncompared else str(spec) for child, spec in enumerate(specs)]

    @property
    def is_copy(self) -> bool:
        """True if the file is a copy, perhaps an old one, of the file that was last used."""
        return self.setting("file") not in {None, str(self._identity)}

    def note_prepared(self) -> None:
        """Note that the array is prepared, and that this file is the one in use."""
        with self.transaction():
            self.put_setting("prepared", "1")
            self.put_setting("file", str(self._identity))

    # --- objects ------------------------------------------------------------------------------------

    def find(self, path: str) -> ObjectRow | None:
        """Return an object's current version, or None if there is no such object."""
        rows = self._select_objects("path = ?", _path_bytes(path))
        return rows[0] if rows else None

    def find_version(self, version: bytes) -> ObjectRow | None:
        """Return a version, or None if it is not current."""
        rows = self._select_objects("version = ?", version)
        return rows[0] if rows else None

    def list_below(self, prefix: str, after: str, most: int) -> Sequence[ObjectRow]:
        """Return the next objects whose path begins with ``prefix`` and comes after ``after``, in order of paths."""
        return self._select_objects(
            "path > ? AND path < ? ORDER BY path LIMIT ?",
            max(_path_bytes(after), _path_bytes(prefix)),
            _path_bytes(prefix) + b"\xff",
            most,
        )

    def _select_objects(self, where: str, *values: object) -> list[ObjectRow]:
        with self.reading() as db:
            if not db.in_transaction:
                self.check_is_current()
            rows = db.execute(f"SELECT {_COLUMNS}, checksum FROM objects WHERE {where}", values).fetchall()
            for *values_read, checksum in rows:
                if _checksum(values_read) != checksum:
                    raise Damaged("the row of an object differs from what was written")
        return [ObjectRow(path.decode(), *others) for path, *others, _ in rows]

    def newest_generation(self) -> int:
        """Return the generation of the version that began last, or 0 if there was none."""
        with self.reading():
            return self.number_setting("generation")

    def count(self) -> int:
        """Return how many objects there are."""
        with self.reading() as db:
            (count,) = db.execute("SELECT count(*) FROM objects").fetchone()
        return int(count)

    @property
    def is_empty(self) -> bool:
        """True if there are no objects."""
        with self.reading() as db:
            return db.execute("SELECT 1 FROM objects LIMIT 1").fetchone() is None

    def snapshot(self, children: int) -> Snapshot:
        """Return all versions that the metadata knows. Raises CloudError if it names a child that does not exist."""
        with self.reading() as db, self.consistent_read():
            for table in ("missing", "garbage"):
                if db.execute(f"SELECT 1 FROM {table} WHERE child >= ?", (children,)).fetchone():
                    raise Damaged(f"impossible {table}")
            objects = db.execute("SELECT version, segments FROM objects").fetchall()
            begun = db.execute("SELECT version, segments, owner FROM writes").fetchall()
            return Snapshot(
                self.number_setting("changes"), self.number_setting("generation"), objects,
                [BegunWrite(version, segments, owner, version in _WRITING) for version, segments, owner in begun],
                self._garbage("", ()),
            )  # fmt: skip

    def begin_write(self, version: bytes, path: str, segments: int, generation: int = 0) -> int:
        """Begin to write a version. Returns its generation.

        ``generation``: for a copy, that of the original, so that every newly written version is newer than the copy.
        Generations grow with the wall clock, so that none is used twice, even after an old copy is restored.

        The beginning of a version with one segment that is no copy is not synced: if a power cut undoes it, the
        generation in its packages' manifest shows that. Of several segments, only the last one's packages have that.
        """
        with self.transaction(is_synced=bool(generation) or segments > 1) as db:
            generation = generation or self._make_generation()
            _WRITING.add(version)
            values = (version, _path_bytes(path), generation, segments, self.owner)
            db.execute("INSERT INTO writes VALUES (?, ?, ?, ?, ?)", values)
        return generation

    def next_generation(self) -> int:
        """Return a new generation, above those of all versions."""
        with self.transaction():
            return self._make_generation()

    def _make_generation(self) -> int:
        generation = max(self.number_setting("generation") + 1, time.time_ns() // 1000)
        self.change_setting("generation", generation)
        return generation

    def _raise_generation(self, generation: int) -> None:
        self.change_setting("generation", max(self.number_setting("generation"), generation))

    def commit_write(
        self, row: ObjectRow, missing: Sequence[MissingPackage], children: int, instead_of: bytes = b""
    ) -> EndedWrite:
        """Make a version that was begun the current one. The path's earlier version becomes garbage.

        If a version that began later was faster, this one becomes garbage. So does a copy whose original,
        ``instead_of``, is no longer current.

        Only the commit of a copy is synced. If a power cut undoes any other commit, the next process finds the version
        on the children, as an unfinished write or by its generation, and takes it in.

        Raises CloudError if another process has taken the write over, because this process seemed to have ended.
        """
        with self.transaction(is_synced=bool(instead_of)) as db:
            was_noted = db.execute("DELETE FROM writes WHERE version = ?", (row.version,)).rowcount
            if not was_noted and self.find_version(row.version) is None:
                detail = "another process has discarded this write"
                raise CloudError(ErrorKind.CONFLICT, "put", row.path, detail=detail)
            if instead_of and self.find_version(instead_of) is None:
                self._make_garbage(row.version, row.segments, children)
                ended = EndedWrite(is_current=False, leaves_work=True)
            else:
                ended = self._make_current(row, missing, children)
        _WRITING.discard(row.version)
        return ended

    def _make_current(self, row: ObjectRow, missing: Sequence[MissingPackage], children: int) -> EndedWrite:
        current = self.find(row.path)
        if current is not None and current.generation > row.generation:
            self._make_garbage(row.version, row.segments, children)
            return EndedWrite(is_current=False, leaves_work=True)
        if current is not None:
            self._delete(current.version)
            if current.version != row.version:
                self._make_garbage(current.version, current.segments, children)
        self._insert((_path_bytes(row.path), row.version, row.generation, row.size_bytes, row.segments, row.manifest))
        self._add_missing(missing)
        return EndedWrite(is_current=True, leaves_work=bool(current or missing))

    def _insert(self, row: Sequence[object]) -> None:
        checksum = _checksum(row)
        self._db.execute("INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)", (*row[:-1], checksum, row[-1]))
        self.change_setting("checksum", str(self.number_setting("checksum") ^ checksum))

    def _delete(self, version: bytes) -> bool:
        """Delete the row of a current version. Returns whether there was such a row."""
        row = self._db.execute("SELECT checksum FROM objects WHERE version = ?", (version,)).fetchone()
        if row is not None:
            self._db.execute("DELETE FROM objects WHERE version = ?", (version,))
            self.change_setting("checksum", str(self.number_setting("checksum") ^ row[0]))
        return row is not None

    def take_in_versions(
        self, rows: Iterable[tuple[ObjectRow, Sequence[MissingPackage]]], children: int, generation: int
    ) -> None:
        """Take in versions that children hold. Later versions get a generation above ``generation``."""
        with self.transaction() as db:
            for row, missing in rows:
                db.execute("DELETE FROM writes WHERE version = ?", (row.version,))
                db.execute("DELETE FROM garbage WHERE version = ?", (row.version,))
                self._make_current(row, missing, children)
            self._raise_generation(generation)

    def drop_objects(self, versions: Iterable[bytes]) -> None:
        """Remove objects whose packages were deleted from the children."""
        with self.transaction() as db:
            for version in versions:
                self._delete(version)
                db.execute("DELETE FROM missing WHERE version = ?", (version,))

    def abandon_write(self, version: bytes, segments: int, children: int) -> None:
        """Turn a version that was begun into garbage: it will not become current."""
        _WRITING.discard(version)
        with self.transaction() as db:
            db.execute("DELETE FROM writes WHERE version = ?", (version,))
            if self.find_version(version) is None:
                self._make_garbage(version, segments, children)

    def remove_object(self, row: ObjectRow, children: int) -> Sequence[GarbagePackages]:
        """Remove an object. Returns its packages as garbage, or none if this was not the current version."""
        with self.transaction():
            if not self._delete(row.version):
                return []
            self._make_garbage(row.version, row.segments, children)
            return self._garbage(" AND version = ?", (row.version,))

    def _make_garbage(self, version: bytes, segments: int, children: int) -> None:
        self._db.execute("DELETE FROM missing WHERE version = ?", (version,))
        self._note_garbage(version, range(children), segments)

    def _note_garbage(self, version: bytes, children: Iterable[int], segments: int) -> None:
        rows = [(version, child, segments, self.owner) for child in children]
        self._db.executemany("INSERT OR REPLACE INTO garbage VALUES (?, ?, ?, ?, random())", rows)

    # --- unfinished work ----------------------------------------------------------------------------

    def note_missing(self, missing: Iterable[MissingPackage]) -> None:
        """Note packages that children lack, or hold damaged. Packages of versions that are not current are left out."""
        if packages := list(missing):
            with self.transaction():
                self._add_missing(package for package in packages if self.find_version(package.version))

    def _add_missing(self, missing: Iterable[MissingPackage]) -> None:
        if rows := [(package.version, package.segment, package.child, self.owner) for package in missing]:
            self._db.executemany("INSERT OR IGNORE INTO missing VALUES (?, ?, ?, ?)", rows)

    def note_transfer_end(self, package: MissingPackage, segments: int, *, has_it: bool) -> None:
        """Note that a transfer has ended: the child has the package, or failed, and may have stored the package anyway.

        If the version is no longer current, the package is garbage.
        """
        with self._lock:
            if self._is_closed:
                return  # the note stays; the next repair finds that the package is there
            self._note_transfer_end(package, segments, has_it=has_it)

    def _note_transfer_end(self, package: MissingPackage, segments: int, *, has_it: bool) -> None:
        with self.transaction() as db:
            if has_it:
                db.execute(
                    "DELETE FROM missing WHERE version = ? AND segment = ? AND child = ?",
                    (package.version, package.segment, package.child),
                )
            if self.find_version(package.version) is None:
                self._note_garbage(package.version, [package.child], segments)

    def is_missing(self, package: MissingPackage) -> bool:
        """Return whether a child lacks a package now."""
        with self.reading() as db:
            where = "version = ? AND segment = ? AND child = ?"
            values = (package.version, package.segment, package.child)
            return db.execute(f"SELECT 1 FROM missing WHERE {where}", values).fetchone() is not None

    def missing_packages(self, *, own: bool = False) -> Sequence[MissingPackage]:
        """Return the packages that children lack: all, or only those that this process is responsible for."""
        query = (
            "SELECT version, segment, child FROM missing JOIN objects USING (version) "
            "WHERE segment BETWEEN 0 AND segments - 1"
        )
        with self.reading() as db:
            condition, values = self._owner_condition(own)
            return [MissingPackage(*row) for row in db.execute(f"{query}{condition}", values).fetchall()]

    def garbage(self, *, own: bool = False) -> Sequence[GarbagePackages]:
        """Return the packages to delete from children: all, or only those that this process is responsible for."""
        return self._garbage(*self._owner_condition(own))

    def _garbage(self, where: str, values: tuple[object, ...]) -> list[GarbagePackages]:
        query = "SELECT version, child, segments, note FROM garbage WHERE version NOT IN (SELECT version FROM objects)"
        with self.reading() as db:
            return [GarbagePackages(*row) for row in db.execute(f"{query}{where}", values).fetchall()]

    def _owner_condition(self, own: bool) -> tuple[str, tuple[str, ...]]:
        return (" AND owner = ?", (self.owner,)) if own else ("", ())

    def note_deleted(self, leftovers: Iterable[GarbagePackages]) -> None:
        """Remove the notes of garbage that children have deleted, except where a package has arrived since."""
        with self.transaction() as db:
            db.executemany(
                "DELETE FROM garbage WHERE version = ? AND child = ? AND note = ?",
                [(leftover.version, leftover.child, leftover.note) for leftover in leftovers],
            )

    def other_owners(self) -> frozenset[str]:
        """Return the other processes that have unfinished work."""
        with self.reading() as db:
            rows = db.execute(
                "SELECT owner FROM writes UNION SELECT owner FROM missing UNION SELECT owner FROM garbage"
            ).fetchall()
        return frozenset(owner for (owner,) in rows) - {self.owner}

    def adopt_work(self, owner: str, children: int, keeping: Collection[bytes] = ()) -> None:
        """Take over the work that an ended process left behind. Its unfinished writes become garbage.

        ``keeping``: versions that stay as they are, because it is not known yet whether they were finished.
        """
        with self.transaction() as db:
            begun = db.execute("SELECT version, segments FROM writes WHERE owner = ?", (owner,)).fetchall()
            for table in ("missing", "garbage"):
                db.execute(f"UPDATE {table} SET owner = ? WHERE owner = ?", (self.owner, owner))
            for version, segments in begun:
                if version not in keeping and version not in _WRITING:
                    self.abandon_write(version, segments, children)


def _path_bytes(path: str) -> bytes:
    return path.encode()


def _checksum(row: Sequence[object]) -> int:
    """Return the checksum of an object's row, as a number that fits a SQLite integer."""
    return int.from_bytes(blake2b(repr(tuple(row)).encode(), digest_size=8).digest(), "big", signed=True)
