"""Listings of folders as bytes, so that one comparison tells whether a folder is as agreed.

What may live here: found entries, and the format of a listing, which is one row for each entry, sorted by name. Nothing
here does I/O.
"""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pytest_cloudbench.support.watching import FileMark

Kind = Literal["file", "folder", "link"]

NUMBERS = struct.Struct("<HQqqqH")
"""The numbers after a name and a NUL: type and permissions, the mark, and the length of the rest of the row."""
_FORMATS: dict[Kind, int] = {"file": stat.S_IFREG, "folder": stat.S_IFDIR, "link": stat.S_IFLNK}
_KINDS: dict[int, Kind] = {bits: kind for kind, bits in _FORMATS.items()}
_MODE = 0o7777
_ENCODING, _ENCODE_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_WIDE = 0
"""The type of a row whose numbers do not fit, such as times after 2262. They follow as JSON."""


class FoundEntry(NamedTuple):
    """One entry, as it was seen.

    Attributes:
        kind: ``file``, ``folder`` or ``link`` (symbolic).
        mode: permissions.
        mark: changes whenever the file changes.
        names: the number of its hard links.
        target: of a symbolic link.
    """

    kind: Kind
    mode: int
    mark: FileMark
    names: int = 1
    target: str = ""


@dataclass(frozen=True, slots=True)
class FoundAll:
    """The entries of a folder, as they were seen.

    Attributes:
        entries: by relative path, each folder before its entries. Of compared folders, only those that are not as
            agreed.
        unknown: relative paths of folders that could not be read, with the reason. Their entries are not known.
        compared: relative paths of the folders that were compared with what is agreed.
        gone: agreed entries of compared folders that no longer exist.
        mounts: relative paths of mounts inside the folder, with what tells each from another file system.
    """

    entries: Mapping[str, FoundEntry]
    unknown: Mapping[str, OSError]
    compared: Set[str] = frozenset()
    gone: Set[str] = frozenset()
    mounts: Mapping[str, str] = field(default_factory=dict)

    def is_known(self, path: str) -> bool:
        """Return whether the entry's folders could be read, so that an entry absent from ``entries`` does not exist."""
        return not self.unknown or not any(parent in self.unknown for parent in ("", *parents(path)))


def parents(path: str) -> list[str]:
    """Return the folders that a relative path is in, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def encode_row(name: str, kind: Kind, mode: int, mark: FileMark, target: str = "") -> bytes:
    """Return the row of an entry. A folder's row has only the inode of its mark: the rest changes with its entries."""
    numbers = (mark.inode, 0, 0, 0) if kind == "folder" else mark
    head, rest = encode_name(name) + b"\0", os.fsencode(target) if target else b""
    try:
        return head + NUMBERS.pack(_FORMATS[kind] | mode, *numbers, len(rest)) + rest
    except struct.error:
        rest = json.dumps([kind, mode, numbers, target], separators=(",", ":")).encode()
        return head + NUMBERS.pack(_WIDE, 0, 0, 0, 0, len(rest)) + rest


def decode_row(row: bytes) -> FoundEntry:
    """Return the entry of a row."""
    at = row.index(0) + 1
    bits, inode, size_bytes, modified_ns, changed_ns, rest_bytes = NUMBERS.unpack_from(row, at)
    mark = FileMark(inode, size_bytes, modified_ns, changed_ns)
    if not rest_bytes:
        return FoundEntry(_KINDS[bits & ~_MODE], bits & _MODE, mark)
    rest = row[at + NUMBERS.size :]
    if bits == _WIDE:
        kind, mode, numbers, target = json.loads(rest)
        return FoundEntry(kind, mode, FileMark(*numbers), target=target)
    return FoundEntry(_KINDS[bits & ~_MODE], bits & _MODE, mark, target=os.fsdecode(rest))


def name_of(row: bytes) -> str:
    """Return the name in a row."""
    return row[: row.index(0)].decode(_ENCODING, _ENCODE_ERRORS)


def encode_name(name: str) -> bytes:
    """Return what ``os.fsencode`` does, in half the time: all names go through here."""
    return name.encode(_ENCODING, _ENCODE_ERRORS)


def split_listing(listing: bytes) -> Iterator[bytes]:
    """Yield the rows of a listing."""
    begin, length, numbers_bytes = 0, len(listing), NUMBERS.size
    while begin < length:
        end = listing.index(0, begin) + 1 + numbers_bytes
        end += listing[end - 2] | listing[end - 1] << 8  # the last of the numbers: the length of the rest
        yield listing[begin:end]
        begin = end


class FolderListing:
    """A listing in which single rows are looked up."""

    __slots__ = ("_begins", "data")

    def __init__(self, data: bytes = b"") -> None:
        self.data = data
        self._begins: array[int] | None = None

    def __len__(self) -> int:
        return len(self._find_begins()) - 1

    def get(self, name: str) -> bytes | None:
        """Return the row with this name, or None if there is none."""
        begins, sought = self._find_begins(), encode_name(name) + b"\0"
        index = bisect_left(
            begins, sought, hi=len(begins) - 1, key=lambda begin: self.data[begin : begin + len(sought)]
        )
        if self.data.startswith(sought, begins[index]):
            return self.data[begins[index] : begins[index + 1]]
        return None

    def _find_begins(self) -> array[int]:
        """Return where each row begins, and the end of the last one."""
        if self._begins is None:
            self._begins, end = array("Q", [0]), 0
            for row in split_listing(self.data):
                end += len(row)
                self._begins.append(end)
        return self._begins
