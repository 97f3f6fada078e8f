"""The last agreement of the two folders, stored so that a process killed at any point finds it again.

What may live here: one SQLite file per pair of folders, held by one process at a time. An agreement that is older than
the folders is never wrong, only less useful: files that it does not cover are compared.

An entry is noted here before it is made, and a patch is journaled before it writes: checksums, before and after, of the
pieces that it writes, and of the rest of the file where that is cheap to read. From them the next process can tell an
entry of ours, whole or half patched, from one that another program changed.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from os import fsdecode
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.savingbox.records import DamagedError, Record, RecordFile
from pytest_cloudbench.savingbox.side import FoundEntry, Kind
from pytest_cloudbench.support.watching import FileMark

SCHEMA = 3
"""1 and 2 had columns instead of records: their agreements are read, their notes of unfinished work are dropped."""

NEVER = FileMark(0, -1, 0, 0)
"""A mark that no file has: forces the file to be compared."""


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
        self.path = path
        self._pending: dict[str, Agreed | None] = {}
        self._file = RecordFile(path, _records_of_columns)
        found = self._file.found
        self._meta: dict[str, str] = found.get("meta", {})
        known = self.meta("pair")
        if known not in ("", pair) or self.meta("schema") not in ("", str(SCHEMA)):
            self.close()
            raise UsageError(f"{str(path)!r}: belongs to other folders, or to another version: {known}")
        self.entries = {
            path: Agreed(kind, mode, FileMark(*box), FileMark(*sync), target)
            for path, (kind, mode, box, sync, target) in found.get("agreed", {}).items()
        }
        self._begun = {
            path: Intent(side, kind, mode, target, FileMark(*source), *was)
            for path, (side, kind, mode, target, source, *was) in found.get("begun", {}).items()
        }
        self._patches = {
            path: Patching(inode, was_bytes, to_bytes, tuple(WrittenPiece(*piece) for piece in pieces))
            for path, (inode, was_bytes, to_bytes, pieces) in found.get("patching", {}).items()
        }
        found.clear()
        try:
            self.set_meta(pair=pair, schema=str(SCHEMA))
        except OSError as error:
            self.close()
            raise ResultsError(f"{str(path)!r}: {error.strerror}") from error

    @property
    def problem(self) -> str:
        """What was wrong with the file at its opening; empty: nothing was."""
        return self._file.problem

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
        done: list[Record] = []
        for path, agreed in self._pending.items():
            done.append(("agreed", path, agreed))
            done += [(about, path, None) for about, notes in self._notes() if path in notes]
        self._file.write(done)
        for path in self._pending:
            for _, notes in self._notes():
                notes.pop(path, None)
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
        if new:
            self._file.write(("begun", path, intent) for path, intent in new.items())
            self._begun |= new

    def begun(self) -> dict[str, Intent]:
        """Entries that have begun and were not noted as done."""
        return dict(self._begun)

    def begin_patch(self, path: str, patch: Patching) -> None:
        """Note a patch that is about to be written. Raises OSError."""
        self._file.write([("patching", path, patch)])
        self._patches[path] = patch

    def patches(self) -> dict[str, Patching]:
        """Patches that have begun and were not noted as done."""
        return dict(self._patches)

    def patch_of(self, path: str) -> Patching | None:
        """The patch of one file that has begun and was not noted as done."""
        return self._patches.get(path)

    def forget_begun(self) -> None:
        """Drop the notes of entries and patches that have begun. Raises OSError."""
        self._file.write((about, path, None) for about, notes in self._notes() for path in notes)
        for _, notes in self._notes():
            notes.clear()

    def _notes(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        return ("begun", self._begun), ("patching", self._patches)

    # --- the pair ---

    def meta(self, name: str) -> str:
        """A value stored for the pair; empty: there is none."""
        return self._meta.get(name, "")

    def set_meta(self, **values: str) -> None:
        """Store values for the pair. Raises OSError."""
        self._file.write(("meta", name, value) for name, value in values.items())
        self._meta |= values

    def forget_all(self) -> None:
        """Drop all agreements, so that both folders are merged anew. Raises OSError."""
        self._file.write(("agreed", path, None) for path in {*self.entries, *self._pending})
        self.entries.clear()
        self._pending.clear()
        self.forget_begun()

    def close(self) -> None:
        """Close the file, without writing changes that were not flushed."""
        self._file.close()


def _records_of_columns(database: sqlite3.Connection) -> Iterator[Record]:
    """The records of a file of schema 1 or 2. Raises sqlite3.Error or DamagedError if it is none."""
    meta = dict(database.execute("SELECT name, value FROM meta").fetchall())
    if meta.get("schema") not in ("1", "2"):
        raise DamagedError("it is no state file of this or an older version")
    for name, value in (meta | {"schema": str(SCHEMA)}).items():
        yield "meta", str(name), str(value)
    for path, kind, mode, target, *marks in database.execute("SELECT * FROM agreed"):
        are_right = [isinstance(each, bytes) for each in (path, target)] + [isinstance(n, int) for n in (mode, *marks)]
        if kind not in get_args(Kind) or len(marks) != 2 * len(FileMark._fields) or not all(are_right):
            raise DamagedError(f"the agreement on {path!r} is none")
        yield "agreed", fsdecode(path), (kind, mode, marks[:4], marks[4:], fsdecode(target))
