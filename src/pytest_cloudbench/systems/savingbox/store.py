"""The last agreement of the two folders, stored so that a process killed at any point finds it again.

What may live here: one SQLite file per pair of folders, held by one process at a time. An agreement that is older than
the folders is never wrong, only less useful: files that it does not cover are compared.

An entry is noted here before it is made, and a patch is journaled before it writes: checksums, before and after, of the
pieces that it writes, and of the rest of the file where that is cheap to read. From them the next process can tell an
entry of ours, whole or half patched, from one that another program changed.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.systems.savingbox.side import FoundEntry, Kind
from pytest_cloudbench.watching import FileMark

__all__ = ["NEVER", "SCHEMA", "Agreed", "AgreementStore", "Intent", "Patching", "WrittenPiece"]

SCHEMA = 2
"""1: the first one. 2: notes of links, folders and pulls, too; of an older file, the notes are dropped."""

_READ_SCHEMAS = ("", "1", str(SCHEMA))
NEVER = FileMark(0, -1, 0, 0)
"""A mark that no file has: forces the file to be compared."""

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS agreed (
  path BLOB PRIMARY KEY, kind TEXT, mode INT, target BLOB,
  box_inode INT, box_bytes INT, box_modified_ns INT, box_changed_ns INT,
  sync_inode INT, sync_bytes INT, sync_modified_ns INT, sync_changed_ns INT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS begun (
  path BLOB PRIMARY KEY, side TEXT, kind TEXT, mode INT, target BLOB,
  inode INT, bytes INT, modified_ns INT, changed_ns INT, was_inode INT, was_changed_ns INT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS patching (path BLOB PRIMARY KEY, inode INT, was_bytes INT, to_bytes INT, pages BLOB);
"""
_PIECE = struct.Struct("<QIIII")


class Agreed(NamedTuple):
    """An entry that both folders had with the same content.

    Attributes:
        kind: what it is.
        mode: its permissions.
        box: its mark in the box; ``NEVER`` if a change might not show.
        sync: its mark in the sync folder.
        target: of a symbolic link.
    """

    kind: Kind
    mode: int
    box: FileMark
    sync: FileMark
    target: str = ""


class Intent(NamedTuple):
    """An entry that is about to be made on one side as it is on the other.

    Attributes:
        side: where it is made: in the sync folder (``theirs``) for a push, in the box (``ours``) for a pull.
        kind: what it is to be.
        mode: its permissions.
        target: of a symbolic link.
        source: the mark of what it is made of; ``changed_ns`` is 0 where the mark was too young to show a change.
        was_inode: of what is there before, if that looks as if it were done already; else 0.
        was_changed_ns: likewise; 0 for a folder, which changes with what is in it.
    """

    side: Literal["ours", "theirs"]
    kind: Kind
    mode: int
    target: str
    source: FileMark
    was_inode: int = 0
    was_changed_ns: int = 0

    @classmethod
    def of(cls, side: Literal["ours", "theirs"], wanted: FoundEntry, there: FoundEntry | None) -> Intent:
        """The note before ``wanted``, as it is on the other side, is made of what is there."""
        mark = wanted.mark if wanted.mark.is_reliable() else wanted.mark._replace(changed_ns=0)
        intent = cls(side, wanted.kind, wanted.mode, wanted.target, mark)
        if there is None or not intent._is_like(there):
            return intent
        return intent._replace(was_inode=there.mark.inode, was_changed_ns=intent._changed_ns(there))

    def is_done(self, there: FoundEntry | None) -> bool:
        """Whether what is there was made by us: it is what was wanted, and not what was there before."""
        return (
            there is not None
            and self._is_like(there)
            and (there.mark.inode, self._changed_ns(there)) != (self.was_inode, self.was_changed_ns)
        )

    def agreed(self, made: FoundEntry) -> Agreed:
        """What both sides agree on once it is done."""
        # What looked done before has the size and time of its source, but maybe not its content: that is compared.
        source = NEVER if self.was_inode and self.kind == "file" else self.source
        box, sync = (made.mark, source) if self.side == "ours" else (source, made.mark)
        return Agreed(self.kind, made.mode, box, sync, self.target)

    def _is_like(self, there: FoundEntry) -> bool:
        if (there.kind, there.mode, there.target) != (self.kind, self.mode, self.target):
            return False
        return self.kind != "file" or there.mark[1:3] == self.source[1:3]  # size and time, which only we set

    def _changed_ns(self, there: FoundEntry) -> int:
        return 0 if self.kind == "folder" else there.mark.changed_ns


class WrittenPiece(NamedTuple):
    """One piece of a patched file: its offset, and the length and CRC-32 of its bytes before and after."""

    offset: int
    old_bytes: int
    old_crc: int
    new_bytes: int
    new_crc: int


class Patching(NamedTuple):
    """A patch of a file in the sync folder that has begun: the file's inode, its size before and after, its pieces."""

    inode: int
    was_bytes: int
    to_bytes: int
    pieces: tuple[WrittenPiece, ...]

    @property
    def is_all_known(self) -> bool:
        """Whether the pieces cover the whole old file, including the parts that are not written."""
        return sum(piece.old_bytes for piece in self.pieces) == self.was_bytes

    def wrote(self, begin: int, end: int) -> bool:
        """Whether a part of the file lies in one of the pieces."""
        at = bisect_right(self.pieces, begin, key=lambda piece: piece.offset) - 1
        return at >= 0 and end <= self.pieces[at].offset + max(self.pieces[at].old_bytes, self.pieces[at].new_bytes)


class AgreementStore:
    """The agreements of one pair of folders.

    Args:
        path: the file; created with its folder.
        pair: both folders, so that the file of another pair is refused.

    Raises UsageError if another process holds the file, or if it belongs to another pair, and ResultsError if it cannot
    be written. A damaged file is moved aside; ``problem`` says so.
    """

    def __init__(self, path: Path, pair: str) -> None:
        self.path, self.problem = path, ""
        self._pending: dict[str, Agreed | None] = {}
        self._begun: dict[str, Intent] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                aside = path.with_name(f"{path.name}.damaged")
                path.replace(aside)
                self.problem = (
                    f"{str(path)!r}: damaged ({error}); it is now {aside.name!r}, and both folders are merged anew"
                )
                self._open()
            self.entries = dict(self._read())
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise UsageError(
                    f"{str(path)!r}: another savingbox is running on these folders; end it first"
                ) from error
            raise ResultsError(f"{str(path)!r}: {error}") from error
        except OSError as error:
            raise ResultsError(f"{str(path)!r}: {error.strerror}") from error
        known = self.meta("pair")
        if known not in ("", pair) or self.meta("schema") not in _READ_SCHEMAS:
            self.close()
            raise UsageError(f"{str(path)!r}: belongs to other folders, or to another version: {known}")
        self._db.execute("DROP TABLE IF EXISTS pushing")  # the notes of schema 1
        self.set_meta(pair=pair, schema=str(SCHEMA))

    def _open(self) -> None:
        self._db = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")  # files whose agreement a power cut takes are compared again
            self._db.executescript(_TABLES)
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("COMMIT")
        except BaseException:
            self._db.close()
            raise

    def _read(self) -> Iterator[tuple[str, Agreed]]:
        for path, kind, mode, target, *marks in self._db.execute("SELECT * FROM agreed"):
            yield os.fsdecode(path), Agreed(kind, mode, FileMark(*marks[:4]), FileMark(*marks[4:]), os.fsdecode(target))

    # --- agreements ---

    def get(self, path: str) -> Agreed | None:
        """The agreement on an entry; None: there is none."""
        return self.entries.get(path)

    def put(self, path: str, kind: Kind, box: FoundEntry, sync: FoundEntry) -> None:
        """Note that both folders have this entry with the same content."""
        self._set(path, Agreed(kind, box.mode, box.mark, sync.mark, box.target))

    def replace(self, path: str, agreed: Agreed | None) -> None:
        """Replace an agreement; None: neither folder has the entry."""
        self._set(path, agreed)

    def rename(self, old: str, new: str) -> None:
        """Note that an entry, with everything in it, has a new name in both folders."""
        for path in [path for path in self.entries if path == old or path.startswith(f"{old}/")]:
            agreed = self.entries[path]
            self._set(path, None)
            self._set(new + path[len(old) :], agreed)

    def flush(self) -> None:
        """Write all changes. Raises OSError, for instance if the disk is full; then they are kept for the next call."""
        if not self._pending:
            return
        gone = [(os.fsencode(path),) for path, agreed in self._pending.items() if agreed is None]
        here = [
            (os.fsencode(path), each.kind, each.mode, os.fsencode(each.target), *each.box, *each.sync)
            for path, each in self._pending.items()
            if each is not None
        ]
        self._transaction([
            ("DELETE FROM agreed WHERE path = ?", gone),
            (f"INSERT OR REPLACE INTO agreed VALUES ({', '.join('?' * 12)})", here),
            *((f"DELETE FROM {table} WHERE path = ?", [(os.fsencode(path),) for path in self._pending])
              for table in ("patching", "begun")),
        ])  # fmt: skip
        for path in self._pending:
            self._begun.pop(path, None)
        self._pending.clear()

    def _set(self, path: str, agreed: Agreed | None) -> None:
        if agreed is None:
            self.entries.pop(path, None)
        else:
            self.entries[path] = agreed
        self._pending[path] = agreed

    # --- what is under way ---

    def begin(self, intents: Mapping[str, Intent]) -> None:
        """Note entries that are about to be made. Raises OSError."""
        new = {path: intent for path, intent in intents.items() if self._begun.get(path) != intent}
        if not new:
            return
        rows = [
            (os.fsencode(path), each.side, each.kind, each.mode, os.fsencode(each.target), *each.source, *each[5:])
            for path, each in new.items()
        ]
        self._transaction([(f"INSERT OR REPLACE INTO begun VALUES ({', '.join('?' * 11)})", rows)])
        self._begun |= new

    def begun(self) -> dict[str, Intent]:
        """Entries that have begun and were not noted as done."""
        rows = self._db.execute("SELECT * FROM begun").fetchall()
        return {
            os.fsdecode(path): Intent(side, kind, mode, os.fsdecode(target), FileMark(*more[:4]), *more[4:])
            for path, side, kind, mode, target, *more in rows
        }

    def begin_patch(self, path: str, patch: Patching) -> None:
        """Note a patch that is about to be written. Raises OSError."""
        packed = b"".join(_PIECE.pack(*piece) for piece in patch.pieces)
        row = (os.fsencode(path), patch.inode, patch.was_bytes, patch.to_bytes, packed)
        self._transaction([("INSERT OR REPLACE INTO patching VALUES (?, ?, ?, ?, ?)", [row])])

    def patches(self) -> dict[str, Patching]:
        """Patches that have begun and were not noted as done."""
        return self._patches("")

    def patch_of(self, path: str) -> Patching | None:
        """The patch of one file that has begun and was not noted as done."""
        return self._patches("WHERE path = ?", os.fsencode(path)).get(path)

    def _patches(self, where: str, *values: bytes) -> dict[str, Patching]:
        rows = self._db.execute(f"SELECT path, inode, was_bytes, to_bytes, pages FROM patching {where}", values)
        return {
            os.fsdecode(path): Patching(inode, was, to, tuple(map(WrittenPiece._make, _PIECE.iter_unpack(pieces))))
            for path, inode, was, to, pieces in rows.fetchall()
        }

    def forget_begun(self) -> None:
        """Drop the notes of entries and patches that have begun. Raises OSError."""
        self._transaction([("DELETE FROM patching", [()]), ("DELETE FROM begun", [()])])
        self._begun.clear()

    # --- the pair ---

    def meta(self, name: str) -> str:
        """A value stored for the pair; empty: there is none."""
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def set_meta(self, **values: str) -> None:
        """Store values for the pair. Raises OSError."""
        self._transaction([("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))])

    def forget_all(self) -> None:
        """Drop all agreements, so that both folders are merged anew. Raises OSError."""
        self.entries.clear()
        self._pending.clear()
        self._transaction([("DELETE FROM agreed", [()])])
        self.forget_begun()

    def close(self) -> None:
        """Close the file, without writing changes that were not flushed."""
        self._db.close()

    def _transaction(self, statements: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, rows in statements:
                    self._db.executemany(statement, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise OSError(f"{str(self.path)!r}: {error}") from error
