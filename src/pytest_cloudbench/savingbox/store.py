"""The last agreement of the two folders, stored so that a process killed at any point finds it again.

Each pair of folders has one SQLite file, held by one process at a time. An agreement that is older than the folders is
never wrong, only less useful: files that it does not cover are compared.

An entry is noted here before it is made, and a patch is journaled before it writes: checksums, before and after, of the
pieces that it writes, and of the rest of the file where that is cheap to read. From them the next process can tell an
entry of ours, whole or half patched, from one that another program changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import fsdecode
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pytest_cloudbench.model import ResultsError, UsageError
from pytest_cloudbench.savingbox.agreements import Agreed, AgreedFolder, Agreements, join_path
from pytest_cloudbench.savingbox.listings import FoundEntry, Kind
from pytest_cloudbench.savingbox.patching import Patching, WrittenPiece
from pytest_cloudbench.savingbox.records import DamagedError, Record, RecordFile
from pytest_cloudbench.support.watching import FileMark

SCHEMA = 4
"""1 and 2 had columns instead of records: their agreements are read, their notes of unfinished work are dropped. 3 had
only a record for each agreement. 4 still has these for agreements that are newer than the listings."""

NEVER = FileMark(0, -1, 0, 0)
"""A mark that no file has: forces the file to be compared."""

_GONE: list[object] = []
"""Stored where an entry of a folder's listing is gone."""
_MANY = 64
"""More intents than this are one record."""


class Intent(NamedTuple):
    """An entry that is about to be made on one side as it is on the other.

    Attributes:
        side: where it is made: in the sync folder (``theirs``) for a push, in the box (``ours``) for a pull.
        kind: of the finished entry.
        mode: its permissions.
        target: of a symbolic link.
        source: the mark of the original. ``changed_ns`` is 0 where the mark was too young to show a change.
        was_inode: the inode of an earlier entry that already looks like the finished one, or 0.
        was_changed_ns: the change time of that entry, or 0 for a folder, which changes with its entries.
    """

    side: Literal["ours", "theirs"]
    kind: Kind
    mode: int
    target: str
    source: FileMark
    was_inode: int = 0
    was_changed_ns: int = 0

    @classmethod
    def from_record(cls, values: Sequence[Any]) -> Intent:
        """Return the note that was stored as these values."""
        side, kind, mode, target, source, *was = values
        return cls(side, kind, mode, target, FileMark(*source), *was)

    @classmethod
    def for_entry(
        cls, side: Literal["ours", "theirs"], source_entry: FoundEntry, present: FoundEntry | None, seen_ns: int
    ) -> Intent:
        """Return the note to store before ``present`` on this side becomes what ``source_entry`` is on the other.

        ``present`` is None if this side has no such entry. ``seen_ns`` is a time before both were looked at.
        """
        mark = source_entry.mark
        mark = mark if mark.is_reliable(seen_ns) else mark._replace(changed_ns=0)
        intent = cls(side, source_entry.kind, source_entry.mode, source_entry.target, mark)
        if present is None or not intent._is_like(present):
            return intent
        return intent._replace(was_inode=present.mark.inode, was_changed_ns=intent._changed_ns(present))

    def is_for_new_entry(
        self, side: Literal["ours", "theirs"], source_entry: FoundEntry, present: FoundEntry | None
    ) -> bool:
        """Return whether this is the note for making ``source_entry`` on ``side``, which has no such entry yet."""
        kind, mode, mark, _, target = source_entry
        return (
            present is None
            and not self.was_inode
            and self[:4] == (side, kind, mode, target)
            and self.source[:3] == mark[:3]
            and self.source.changed_ns in (0, mark.changed_ns)  # 0 has the file compared, which is never wrong
        )

    def is_done(self, present: FoundEntry | None) -> bool:
        """Return whether we made ``present``: it is as intended, and not what was there before."""
        return (
            present is not None
            and self._is_like(present)
            and (present.mark.inode, self._changed_ns(present)) != (self.was_inode, self.was_changed_ns)
        )

    def has_made_room(self, was: Agreed | None, present: FoundEntry | None) -> bool:
        """Return whether we removed the agreed entry to make another one: it had to go first, and nothing is there."""
        return present is None and was is not None and (was.kind != self.kind or self.kind == "link")

    def agreement(self, made: FoundEntry) -> Agreed:
        """Return the agreement of both sides once it is done."""
        # An earlier entry that looked finished had the source's size and time, maybe not its content: compare that.
        source = NEVER if self.was_inode and self.kind == "file" else self.source
        box, sync = (made.mark, source) if self.side == "ours" else (source, made.mark)
        return Agreed(self.kind, made.mode, box, sync, self.target)

    def _is_like(self, present: FoundEntry) -> bool:
        if (present.kind, present.mode, present.target) != (self.kind, self.mode, self.target):
            return False
        return self.kind != "file" or present.mark[1:3] == self.source[1:3]  # size and time: only we set this time

    def _changed_ns(self, present: FoundEntry) -> int:
        return 0 if self.kind == "folder" else present.mark.changed_ns


class AgreementStore:
    """The agreements of one pair of folders.

    Args:
        path: the file, created with its folder.
        pair: both folders, so that the file of another pair is refused.

    Raises UsageError if another process holds the file, or if it belongs to another pair, and ResultsError if it cannot
    be written. A damaged file is moved aside, as ``problem`` says.
    """

    def __init__(self, path: Path, pair: str) -> None:
        self.path = path
        self.entries = Agreements()
        self._pending: set[str] = set()
        self._file = RecordFile(path, _records_of_columns)
        records = self._file.found
        self._meta: dict[str, str] = records.get("meta", {})
        stored_pair = self.read_meta("pair")
        if stored_pair not in ("", pair) or self.read_meta("schema") not in ("", "3", str(SCHEMA)):
            self.close()
            raise UsageError(f"{str(path)!r}: belongs to other folders, or to another version: {stored_pair}")
        self._read_agreements(records)
        self._groups: dict[str, set[str]] = {}
        self._begun: dict[str, Intent] = {}
        for number, intents in records.get("begun together", {}).items():
            self._groups[number] = set(intents)
            self._begun |= {path: Intent.from_record(values) for path, values in intents.items()}
        self._begun |= {path: Intent.from_record(values) for path, values in records.get("begun", {}).items()}
        self._patches = {
            path: Patching(inode, was_bytes, to_bytes, tuple(WrittenPiece(*piece) for piece in pieces))
            for path, (inode, was_bytes, to_bytes, pieces) in records.get("patching", {}).items()
        }
        records.clear()
        try:
            self.write_meta(pair=pair, schema=str(SCHEMA))
            self._write_folders(folder for folder, agreements in self.entries.folders.items() if agreements.is_due)
        except OSError as error:
            self.close()
            raise ResultsError(f"{str(path)!r}: {error.strerror}") from error

    @property
    def problem(self) -> str:
        """The damage of the file when it was opened, or empty if there was none."""
        return self._file.problem

    def _read_agreements(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        folders = self.entries.folders
        for folder, data in records.get("folder", {}).items():
            folders[folder] = AgreedFolder.unpack(data)
        for path, values in records.get("agreed", {}).items():
            agreed = None
            if values != _GONE:
                kind, mode, box, sync, target = values
                agreed = Agreed(kind, mode, FileMark(*box), FileMark(*sync), target)
            self.entries.put(path, agreed)

    # --- agreements ---

    def get(self, path: str) -> Agreed | None:
        """Return the agreement on an entry, or None if there is none."""
        return self.entries.find(path)

    def agree_on(self, path: str, kind: Kind, box: FoundEntry, sync: FoundEntry) -> None:
        """Note that both folders have this entry with the same content."""
        self.replace(path, Agreed(kind, box.mode, box.mark, sync.mark, box.target))

    def replace(self, path: str, agreed: Agreed | None) -> None:
        """Replace an agreement, or drop it with None if neither folder has the entry."""
        self.entries.put(path, agreed)
        self._pending.add(path)

    def rename(self, old: str, new: str) -> None:
        """Note that an entry, with everything in it, has a new name in both folders."""
        for path in self.entries.paths_below(old):
            agreed = self.get(path)
            self.replace(path, None)
            self.replace(new + path[len(old) :], agreed)

    def flush(self) -> None:
        """Write all changes. If that raises OSError, as on a full disk, they are kept for the next call."""
        if not self._pending:
            return
        folders = {path.rpartition("/")[0] for path in self._pending}
        due = {folder for folder in folders if self.entries.folders[folder].is_due}
        changed_records: list[Record] = []
        for path in self._pending:
            if path.rpartition("/")[0] not in due:
                changed_records.append(("agreed", path, self.get(path) or _GONE))
        changed_records += [
            (about, path, None) for about, notes in self._notes() for path in self._pending & notes.keys()
        ]
        split_groups = [number for number, paths in self._groups.items() if not paths.isdisjoint(self._pending)]
        for number in split_groups:
            changed_records.append(("begun together", number, None))
            remaining_paths = self._groups[number] - self._pending
            changed_records += [("begun", path, self._begun[path]) for path in remaining_paths if path in self._begun]
        self._write_folders(due, changed_records)
        for number in split_groups:
            del self._groups[number]
        for _, notes in self._notes():
            for path in self._pending & notes.keys():
                del notes[path]
        self._pending.clear()

    def _write_folders(self, folders: Iterable[str], others: Iterable[Record] = ()) -> None:
        """Write new listings of folders, and other records with them. Raises OSError."""
        renewed = {folder: self.entries.folders[folder].renewed() for folder in folders}
        changed_records = list(others)
        for folder, agreements in renewed.items():
            changed_records.append(("folder", folder, agreements.pack() or None))
            names = self.entries.folders[folder].newer
            changed_records += [("agreed", join_path(folder, name), None) for name in names]
        if changed_records:
            self._file.write(changed_records)
        self.entries.folders.update(renewed)

    # --- what is under way ---

    def begin_intents(self, intents: Mapping[str, Intent]) -> None:
        """Note entries that are about to be made. Raises OSError."""
        new = {path: intent for path, intent in intents.items() if self._begun.get(path) != intent}
        if len(new) > _MANY:
            number = str(max(map(int, self._groups), default=0) + 1)
            self._file.write([("begun together", number, new)])
            self._groups[number] = set(new)
        elif new:
            self._file.write(("begun", path, intent) for path, intent in new.items())
        self._begun |= new

    def unfinished_intents(self) -> dict[str, Intent]:
        """Return the entries that have begun and were not noted as done."""
        return dict(self._begun)

    def unfinished_intent(self, path: str) -> Intent | None:
        """Return the note of one entry that has begun and was not noted as done."""
        return self._begun.get(path)

    def begin_patch(self, path: str, patch: Patching) -> None:
        """Note a patch that is about to be written. Raises OSError."""
        self._file.write([("patching", path, patch)])
        self._patches[path] = patch

    def unfinished_patches(self) -> dict[str, Patching]:
        """Return the patches that have begun and were not noted as done."""
        return dict(self._patches)

    def unfinished_patch(self, path: str) -> Patching | None:
        """Return the patch of one file that has begun and was not noted as done."""
        return self._patches.get(path)

    def forget_unfinished(self) -> None:
        """Drop the notes of entries and patches that have begun. Raises OSError."""
        records = [(about, path, None) for about, notes in self._notes() for path in notes]
        records += [("begun together", number, None) for number in self._groups]
        if records:
            self._file.write(records)
        self._groups.clear()
        for _, notes in self._notes():
            notes.clear()

    def _notes(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        return ("begun", self._begun), ("patching", self._patches)

    # --- the pair ---

    def read_meta(self, name: str) -> str:
        """Return a value stored for the pair, or an empty one if there is none."""
        return self._meta.get(name, "")

    def write_meta(self, **values: str) -> None:
        """Store values for the pair. Raises OSError."""
        new = {name: value for name, value in values.items() if self._meta.get(name) != value}
        if new:
            self._file.write(("meta", name, value) for name, value in new.items())
        self._meta |= new

    def forget_all(self) -> None:
        """Drop all agreements, so that both folders are merged anew. Raises OSError."""
        folders = self.entries.folders
        records = [("folder", folder, None) for folder in folders]
        records += [("agreed", join_path(folder, name), None) for folder in folders for name in folders[folder].newer]
        self._file.write(records)
        folders.clear()
        self._pending.clear()
        self.forget_unfinished()

    def close(self) -> None:
        """Close the file, without writing changes that were not flushed."""
        self._file.close()


def _records_of_columns(database: sqlite3.Connection) -> Iterator[Record]:
    """Yield the records of a file of schema 1 or 2. Raises sqlite3.Error or DamagedError if it is none."""
    meta = dict(database.execute("SELECT name, value FROM meta").fetchall())
    if meta.get("schema") not in ("1", "2"):
        raise DamagedError("it is not a state file of this or an older version")
    for name, value in (meta | {"schema": str(SCHEMA)}).items():
        yield "meta", str(name), str(value)
    for path, kind, mode, target, *marks in database.execute("SELECT * FROM agreed"):
        are_right = [isinstance(text, bytes) for text in (path, target)] + [isinstance(n, int) for n in (mode, *marks)]
        if kind not in get_args(Kind) or len(marks) != 2 * len(FileMark._fields) or not all(are_right):
            raise DamagedError(f"the agreement on {path!r} has wrong types")
        yield "agreed", fsdecode(path), (kind, mode, marks[:4], marks[4:], fsdecode(target))
