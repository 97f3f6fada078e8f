"""The drive: items in folders, the recycle bin, the rules for names, and the details of items besides their content.

Names are unique in a folder regardless of their case. An item keeps its id and its versions when it is moved, and while
it is in the recycle bin.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from random import Random
from typing import NamedTuple

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.onedrive.answers import GraphError

_REFUSED = re.compile(r'["*:<>?/\\|\x00-\x1f]|_vti_|^~\$|^ | $', re.IGNORECASE)
_RESERVED = re.compile(r"\.{1,2}|\.lock|desktop\.ini|con|prn|aux|nul|(com|lpt)[0-9]", re.IGNORECASE)
"""Reserved names ("Restrictions and limitations in OneDrive and SharePoint")."""
_MAX_NAME = 255
_MAX_PATH = 400


@dataclass(slots=True)
class ItemDetails:
    """The details of an item besides its content.

    Attributes:
        guid: the id in the tags of the item.
        created_s: when it was created in this drive.
        changed_s: when it last changed in this drive.
        client_created_s: its time of creation according to the client.
        client_changed_s: the time of its last change according to the client.
        tag: the number of its changes.
        size_bytes: the size of all files below, if it is a folder.
        description: a text of the client's.
        former: the folder that it was in before it went to the recycle bin.
    """

    guid: str
    created_s: float
    changed_s: float
    client_created_s: float
    client_changed_s: float
    tag: int = 1
    size_bytes: int = 0
    description: str = ""
    former: Folder | None = None


class ClientTimes(NamedTuple):
    """The times of an item according to its client, each None if the client does not name it."""

    created_s: float | None
    changed_s: float | None


def item_details(node: Node) -> ItemDetails:
    """Return the details of a node."""
    details = node.extra
    assert isinstance(details, ItemDetails)
    return details


def version_number(file: File, version: Version) -> int:
    """Return the number of a version of a file, from 1."""
    return len(file.versions) if version is file.newest else file.versions.index(version) + 1


class ItemChanges(NamedTuple):
    """The number of an item's changes, and the two times of the last one, as in ``ItemDetails``."""

    tag: int
    changed_s: float
    client_changed_s: float


def item_changes(node: Node, version: Version | None = None) -> ItemChanges:
    """Return the changes of an item that a read sees together with one of its versions, by default the newest.

    Later versions do not count yet. Each keeps the times that the item had before it (``Version.extra``).
    """
    details = item_details(node)
    if version is None or not isinstance(node, File) or version is node.newest:
        return ItemChanges(details.tag, details.changed_s, details.client_changed_s)
    number = version_number(node, version)
    former = node.versions[number].extra
    assert isinstance(former, ItemChanges)
    return former._replace(tag=details.tag - (len(node.versions) - number))


def _fold_name(node: Node) -> str:
    return node.name.lower()


class GraphTree:
    """One drive. ``root`` is its top folder, and ``bin`` is the recycle bin beside it."""

    def __init__(self, seed: int, now_s: float, drive_id: str) -> None:
        self._random, self._tokens = Random(seed), Tokens(seed)
        self._prefix, self._versions = ("01", 0) if drive_id.startswith("b!") else (f"{drive_id}!s", 0)
        self.store = NodeStore(self._new_id, self._new_rev, str.lower)
        self.root = self.add_folder(self.store.root, "root", now_s)
        self.bin = self.add_folder(self.store.root, "recycle bin", now_s)
        self._departures: dict[str, list[tuple[int, Folder]]] = {}

    def _new_id(self) -> str:
        if self._prefix == "01":  # the format of SharePoint's ids
            return self._prefix + b32encode(self._random.randbytes(20)).decode()
        return f"{self._prefix}{self._random.getrandbits(128):032x}"

    def _new_rev(self) -> str:
        self._versions += 1
        return str(self._versions)

    def random_token(self, length: int) -> str:
        """Return a text of this length that looks random."""
        return self._tokens.next("", length)

    def random_guid(self) -> str:
        """Return a GUID that looks random."""
        text = f"{self._random.getrandbits(128):032X}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    # ---------------------------------------------------------------- reads

    def find_by_id(self, item_id: str) -> Node:
        """Return the item with an id. Raises StoreError if there is none or it is in the recycle bin."""
        node = self.root if item_id == "root" else self.store.get(item_id)
        if not self.is_in_drive(node):
            raise StoreError("not_found")
        return node

    def is_in_drive(self, node: Node) -> bool:
        """Return whether an item is the root or below it, and not removed."""
        ancestor: Node | None = node
        while ancestor is not None:
            if ancestor is self.root:
                return node.deleted_s is None
            ancestor = ancestor.parent
        return False

    def find_below(self, node: Node, path: str) -> Node:
        """Return the item at a path below an item. Raises StoreError."""
        for name in path.split("/"):
            if not name:
                continue
            matches = self.store.named(node, name) if isinstance(node, Folder) else ()
            if not matches:
                raise StoreError("not_found")
            node = matches[0]
        return node

    def is_fading(self, node: Node, now_s: float) -> bool:
        """Return whether an item was removed or recycled and reads still see it."""
        return now_s < self.store.fading_until_s(node) and not self.is_in_drive(node)

    def find_fading_below(self, node: Node, path: str, now_s: float) -> File | None:
        """Return the removed file that reads still see at a path below an item. Raises StoreError."""
        folder_path, _, name = path.strip("/").rpartition("/")
        folder = self.find_below(node, folder_path)
        return next(self.store.fading(folder, now_s, name), None) if isinstance(folder, Folder) else None

    def visible_parent(self, node: Node, now_s: float) -> Folder | None:
        """Return the folder in which reads see an item."""
        former = item_details(node).former
        return former if former is not None and self.is_fading(node, now_s) else node.parent

    def path_of(self, node: Node) -> str:
        """Return the path of an item from the root: empty, or ``/a/b``."""
        path = ""
        while node.parent is not None and node is not self.root:
            path = f"/{node.name}{path}"
            node = node.parent
        return path

    def find_visible_version(self, node: Node, now_s: float) -> tuple[File, Version]:
        """Return a file and its version that reads see. Raises StoreError, also for a folder."""
        if not isinstance(node, File):
            raise StoreError("not_file")
        version = node.seen(now_s)
        if version is None:
            raise StoreError("not_found")
        return node, version

    def folders_left(self, node: Node, since: int) -> Iterator[Folder]:
        """Yield the folders that an item has left at a position in the log or later, except for the recycle bin."""
        yield from (folder for position, folder in self._departures.get(node.id, ()) if position >= since)

    def list_children(self, folder: Folder, now_s: float, after: str = "") -> Iterator[Node]:
        """Yield the items that listings see in a folder, in order of folded name, starting after ``after``."""
        nodes: Iterator[Node] = folder.sorted_by(_fold_name).after(after)
        fading: dict[str, Node] = {_fold_name(file): file for file in self.store.fading(folder, now_s)}
        if fading:
            nodes = merge(nodes, (fading[name] for name in sorted(fading) if name > after), key=_fold_name)
        for node in nodes:
            if not isinstance(node, File) or node.listed(now_s) is not None:
                yield node

    # ---------------------------------------------------------------- writes

    def check_name(self, name: object) -> str:
        """Return the name if an item may have it. Raises GraphError otherwise."""
        if not isinstance(name, str) or not name:
            raise GraphError(400, "invalidRequest", "The name of an item must be a text that is not empty")
        if _REFUSED.search(name) or _RESERVED.fullmatch(name):
            raise GraphError(400, "invalidRequest", "The provided name contains invalid characters, or is reserved")
        if len(name) > _MAX_NAME:
            raise GraphError(400, "invalidRequest", "The provided name is too long", "parameterIsTooLong")
        return name

    def check_path(self, folder: Node, path: str) -> None:
        """Raise GraphError if the path of an item at this path below a folder would be too long."""
        if len(self.path_of(folder)) + 1 + len(path) > _MAX_PATH:
            raise GraphError(400, "invalidRequest", "The path of the item is too long", "pathIsTooLong")

    def ensure_folder(self, folder: Node, names: list[str], now_s: float, more_bytes: int = 0) -> Folder:
        """Return the folder at a path below another one. Raises StoreError and GraphError.

        Makes missing folders, but none unless there is space for ``more_bytes``, which are to be stored in the folder.
        """
        deepest, missing_names = self.find_deepest_folder(folder, names)
        if missing_names:
            self.store.require_space(more_bytes)
        for name in missing_names:
            deepest = self.add_folder(deepest, name, now_s)
        return deepest

    def find_deepest_folder(self, folder: Node, names: list[str]) -> tuple[Folder, list[str]]:
        """Return the deepest existing folder of a path below another one, and the names of those that are missing.

        Raises StoreError and GraphError.
        """
        missing_names = [*names]
        while isinstance(folder, Folder):
            child = self.find_child(folder, missing_names[0]) if missing_names else None
            if child is None:
                return folder, [self.check_name(name) for name in missing_names]
            folder = child
            del missing_names[0]
        raise StoreError("file_ancestor")

    def find_child(self, folder: Folder, name: str) -> Node | None:
        """Return the item of this name in a folder, or None."""
        matches = self.store.named(folder, name)
        return matches[0] if matches else None

    def find_free_name(self, folder: Folder, name: str) -> str:
        """Return the first free name with a number added, such as ``a 1.txt``."""
        stem, dot, ending = name.rpartition(".")
        if not stem:
            stem, dot, ending = name, "", ""
        number = 1
        while self.store.named(folder, f"{stem} {number}{dot}{ending}"):
            number += 1
        return f"{stem} {number}{dot}{ending}"

    def add_folder(self, parent: Folder, name: str, now_s: float) -> Folder:
        """Add a folder. Its name must be free."""
        folder = self.store.add_folder(parent, name, now_s)
        folder.extra = ItemDetails(self.random_guid(), now_s, now_s, now_s, now_s)
        return folder

    def add_file(self, parent: Folder, name: str, blob: Blob, now_s: float) -> File:
        """Store content as a new file. Its name must be free. Raises StoreError."""
        file = self.store.add_file(parent, name, blob, now_s)
        file.extra = ItemDetails(self.random_guid(), now_s, now_s, now_s, now_s)
        self._add_size(parent, blob.size_bytes)
        return file

    def put_content(self, parent: Folder, name: str, blob: Blob, now_s: float) -> tuple[File, bool]:
        """Store content in the file of this name, which is made if there is none.

        Return the file, and whether it is new. Raises StoreError.
        """
        existing = self.find_child(parent, name)
        if existing is None:
            return self.add_file(parent, name, blob, now_s), True
        if not isinstance(existing, File):
            raise StoreError("taken")
        former_bytes = existing.versions[-1].blob.size_bytes
        self.store.add_version(existing, blob, now_s, extra=item_changes(existing))
        self._add_size(parent, blob.size_bytes - former_bytes)
        details = item_details(existing)
        details.changed_s = details.client_changed_s = now_s
        details.tag += 1
        return existing, False

    def log_change(self, node: Node, now_s: float) -> None:
        """Log a change of an item."""
        details = item_details(node)
        details.tag += 1
        details.changed_s = now_s
        self.store.log.add(node.id, now_s)

    def move(self, node: Node, parent: Folder, name: str, now_s: float) -> None:
        """Give an item another parent, another name or both. The name must be free. Raises StoreError."""
        if node is self.root or self.store.holds(node, parent):
            raise StoreError("into_itself")
        size, former = self.size_of(node), node.parent
        if former is not None and former is not parent:
            self._note_departure(node, former)
        self.store.move(node, parent, name, now_s)
        if former is not None and former is not parent:
            self._add_size(former, -size)
            self._add_size(parent, size)
        item_details(node).tag += 1

    def copy(self, node: Node, parent: Folder, name: str, now_s: float) -> Node:
        """Copy an item with all its contents. The name must be free. Raises StoreError."""
        originals = [node, *(node.below() if isinstance(node, Folder) else ())]
        twin = self.store.copy(node, parent, name, now_s)
        twins = [twin, *(twin.below() if isinstance(twin, Folder) else ())]
        for original, copied in zip(originals, twins, strict=True):
            details = item_details(original)
            copied.extra = ItemDetails(
                self.random_guid(),
                now_s,
                now_s,
                details.client_created_s,
                details.client_changed_s,
                1,
                details.size_bytes,
            )
        self._add_size(parent, self.size_of(node))
        return twin

    def recycle(self, node: Node, now_s: float) -> None:
        """Put an item into the recycle bin. Raises StoreError for the root."""
        former = node.parent
        if node is self.root or former is None:
            raise StoreError("into_itself")
        size = self.size_of(node)
        entries = [node, *(node.below() if isinstance(node, Folder) else ())]
        self.store.move(node, self.bin, node.name, now_s, fades=True)
        for entry in entries[1:]:
            self.store.log.add(entry.id, now_s, self.store.fading_until_s(entry))
        item_details(node).former = former
        self._add_size(former, -size)
        item_details(self.bin).size_bytes += size
        self.store.used_bytes -= size

    def restore(self, item_id: str, parent: Folder | None, name: str, now_s: float) -> Node:
        """Move an item from the recycle bin to ``parent``, by default to its former folder. Raises StoreError."""
        node = self.store.get(item_id)
        former = item_details(node).former
        folder = parent or former
        if node.parent is not self.bin or former is None or folder is None or not self.is_in_drive(folder):
            raise StoreError("not_found")
        name = name or node.name
        if self.find_child(folder, name) is not None:
            raise StoreError("taken")
        size = self.size_of(node)
        self.store.require_space(size)
        self._note_departure(node, former)
        self.store.move(node, folder, name, now_s)
        for entry in node.below() if isinstance(node, Folder) else ():
            self.store.log.add(entry.id, now_s)
        item_details(node).former = None
        item_details(self.bin).size_bytes -= size
        self._add_size(folder, size)
        self.store.used_bytes += size
        return node

    def remove(self, node: Node, now_s: float) -> None:
        """Remove an item with all its contents for good. Raises StoreError for the root."""
        if node is self.root or node.parent is None:
            raise StoreError("into_itself")
        descendants = [*node.below()] if isinstance(node, Folder) else []
        self._add_size(node.parent, -self.size_of(node))
        self.store.remove(node, now_s)
        for entry in descendants:
            self.store.log.add(entry.id, now_s, self.store.fading_until_s(entry))

    def size_of(self, node: Node) -> int:
        """Return the size of a file, or of all files below a folder, in bytes."""
        return node.versions[-1].blob.size_bytes if isinstance(node, File) else item_details(node).size_bytes

    def _note_departure(self, node: Node, former: Folder) -> None:
        """Note that an item is about to leave a folder for another one."""
        self._departures.setdefault(node.id, []).append((len(self.store.log.keys), former))

    def _add_size(self, folder: Folder | None, more_bytes: int) -> None:
        top = self.store.root
        while folder is not None and folder is not top:
            item_details(folder).size_bytes += more_bytes
            folder = folder.parent
