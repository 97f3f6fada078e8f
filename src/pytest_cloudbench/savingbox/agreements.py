"""Agreements of two folders in memory, about a hundred bytes for each entry.

An agreed folder is two listings, one of each side, so that a scan can tell by one comparison that nothing in it has
changed. Agreements that are newer than the listings are kept beside them, until there are enough to make new listings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from pytest_cloudbench.savingbox.listings import (
    FolderListing,
    FoundEntry,
    Kind,
    decode_row,
    encode_row,
    name_of,
    split_listing,
)
from pytest_cloudbench.support.watching import FileMark

Side = Literal["ours", "theirs"]
"""The box (``ours``) or the sync folder (``theirs``)."""
Change = Literal["no", "time", "unsure", "yes"]
"""Whether an entry has changed. ``time``: its content can only have changed if a program has set its time back.
``unsure``: its mark was too recent to show a change."""
_LENGTH_BYTES = 8
_NEWER_SHARE = 8
"""New listings are made when at least 1/N of a folder's agreements are newer than the old ones."""


class Agreed(NamedTuple):
    """An entry that both folders had with the same content.

    Attributes:
        kind: of both entries.
        mode: its permissions.
        box: its mark in the box, or ``NEVER`` if a change might not show.
        sync: its mark in the sync folder.
        target: of a symbolic link.
    """

    kind: Kind
    mode: int
    box: FileMark
    sync: FileMark
    target: str = ""


class AgreedFolder:
    """The agreements on the entries of one folder.

    Attributes:
        newer: agreements that are newer than the listings, by name, with None for entries that are gone.
    """

    __slots__ = ("_box", "_sync", "newer")

    def __init__(self, box: bytes = b"", sync: bytes = b"") -> None:
        self._box, self._sync = FolderListing(box), FolderListing(sync)
        self.newer: dict[str, Agreed | None] = {}

    @classmethod
    def unpack(cls, data: bytes) -> AgreedFolder:
        """Return the folder that ``pack`` has packed."""
        box_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
        return cls(data[_LENGTH_BYTES:][:box_bytes], data[_LENGTH_BYTES + box_bytes :])

    def pack(self) -> bytes:
        """Return the listings as bytes, which are empty for a folder without agreements."""
        if not self._box.data:
            return b""
        return len(self._box.data).to_bytes(_LENGTH_BYTES, "little") + self._box.data + self._sync.data

    def renewed(self) -> AgreedFolder:
        """Return the same agreements with new listings."""
        return AgreedFolder(self.listing("ours"), self.listing("theirs"))

    @property
    def is_due(self) -> bool:
        """True if there are enough newer agreements to make new listings."""
        return bool(self.newer) and len(self.newer) * _NEWER_SHARE >= len(self._box)

    def get(self, name: str) -> Agreed | None:
        """Return the agreement on an entry, or None if there is none."""
        if name in self.newer:
            return self.newer[name]
        if not self._box.data:
            return None
        box, sync = self._box.get(name), self._sync.get(name)
        return None if box is None or sync is None else _join_rows(box, sync)

    def items(self) -> Iterator[tuple[str, Agreed]]:
        """Yield the entries' names and agreements."""
        for box, sync in zip(split_listing(self._box.data), split_listing(self._sync.data), strict=True):
            if (name := name_of(box)) not in self.newer:
                yield name, _join_rows(box, sync)
        yield from ((name, agreed) for name, agreed in self.newer.items() if agreed is not None)

    def names(self) -> Iterator[str]:
        """Yield the names of the entries."""
        yield from (name for row in split_listing(self._box.data) if (name := name_of(row)) not in self.newer)
        yield from (name for name, agreed in self.newer.items() if agreed is not None)

    def listing(self, side: Side) -> bytes:
        """Return the agreed entries of one side of this folder."""
        data = (self._box if side == "ours" else self._sync).data
        if not self.newer:
            return data
        rows = [row for row in split_listing(data) if name_of(row) not in self.newer]
        for name, agreed in self.newer.items():
            if agreed is not None:
                mark = agreed.box if side == "ours" else agreed.sync
                rows.append(encode_row(name, agreed.kind, agreed.mode, mark, agreed.target))
        return b"".join(sorted(rows))


class Agreements(Mapping[str, Agreed]):
    """The agreements of two folders by relative path.

    Attributes:
        folders: the agreements by folder, with an empty name for the root.
    """

    def __init__(self) -> None:
        self.folders: dict[str, AgreedFolder] = {}

    def __getitem__(self, path: str) -> Agreed:
        """Return the agreement on an entry."""
        agreed = self.find(path)
        if agreed is None:
            raise KeyError(path)
        return agreed

    def __iter__(self) -> Iterator[str]:
        for folder, agreements in self.folders.items():
            yield from (join_path(folder, name) for name in agreements.names())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self.find(path) is not None

    def find(self, path: str) -> Agreed | None:
        """Return the agreement on an entry, or None if there is none."""
        folder, _, name = path.rpartition("/")
        agreements = self.folders.get(folder)
        return None if agreements is None else agreements.get(name)

    def put(self, path: str, agreed: Agreed | None) -> None:
        """Replace an agreement, or drop it with None."""
        folder, _, name = path.rpartition("/")
        agreements = self.folders.get(folder)
        if agreements is None:
            agreements = self.folders[folder] = AgreedFolder()
        agreements.newer[name] = agreed

    def listing(self, folder: str, side: Side) -> bytes:
        """Return the agreed entries of one side of a folder."""
        agreements = self.folders.get(folder)
        return b"" if agreements is None else agreements.listing(side)

    def paths_in(self, folder: str) -> list[str]:
        """Return the paths of the entries directly in a folder."""
        return [join_path(folder, name) for name in self.folders[folder].names()] if folder in self.folders else []

    def paths_below(self, path: str) -> list[str]:
        """Return the paths of an entry and of all below it."""
        inside = [folder for folder in self.folders if folder == path or folder.startswith(f"{path}/")]
        return [path] * (path in self) + [child for folder in inside for child in self.paths_in(folder)]

    def paths_with_inodes(self, inodes: set[int]) -> list[str]:
        """Return the paths of entries that have one of these inodes in the box."""
        return [
            join_path(folder, name_of(row))
            for folder, agreements in self.folders.items()
            for row in split_listing(agreements.listing("ours"))
            if decode_row(row).mark.inode in inodes
        ]


def change_of(was: Agreed | None, mark: FileMark | None, now: FoundEntry | None) -> Change:
    """Return whether an entry has changed on one side since an agreement that had ``mark`` for that side."""
    if was is None or now is None:
        return "no" if was is None and now is None else "yes"
    if was.kind != now.kind or (now.kind == "link" and was.target != now.target):
        return "yes"
    if now.kind == "link":
        return "no"
    if now.kind == "folder":
        return "no" if was.mode == now.mode else "time"
    if mark == now.mark:
        return "no"
    if mark is not None and mark[:3] == now.mark[:3]:
        return "unsure" if mark[3] == 0 else "time"
    return "yes"


def join_path(folder: str, name: str) -> str:
    """Return the relative path of an entry of a folder."""
    return f"{folder}/{name}" if folder else name


def _join_rows(box: bytes, sync: bytes) -> Agreed:
    ours: FoundEntry = decode_row(box)
    return Agreed(ours.kind, ours.mode, ours.mark, decode_row(sync).mark, ours.target)
