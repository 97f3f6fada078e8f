"""The drive: items in folders, the recycle bin, names, and what the API knows of an item besides its content.

What may live here: rules about names and places. No HTTP and no JSON. Names are unique in a folder, whatever their
case; an item keeps its id and its versions when it is moved, and while it is in the recycle bin.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

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
    """What the API knows of an item besides its content.

    Attributes:
        guid: the id that its tags hold.
        created_s: when it was created here.
        changed_s: when it last changed here.
        client_created_s: when it was created, as the client says.
        client_changed_s: when it was last changed, as the client says.
        tag: counts every change.
        size_bytes: of a folder: all files below.
        description: the client's text.
        former: of an item in the recycle bin: the folder that it was in.
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


def details_of(node: Node) -> ItemDetails:
    """Returns the details of a node."""
    known = node.extra
    assert isinstance(known, ItemDetails)
    return known


class GraphTree:
    """One drive. ``root`` is its top folder, ``bin`` the recycle bin beside it."""

    def __init__(self, seed: int, now_s: float, drive_id: str) -> None:
        self._random, self._tokens = Random(seed), Tokens(seed)
        self._prefix, self._versions = ("01", 0) if drive_id.startswith("b!") else (f"{drive_id}!s", 0)
        self.store = NodeStore(self._new_id, self._new_rev, str.lower)
        self.root = self.add_folder(self.store.root, "root", now_s)
        self.bin = self.add_folder(self.store.root, "recycle bin", now_s)

    def _new_id(self) -> str:
        if self._prefix == "01":  # the form of SharePoint's ids
            return self._prefix + b32encode(self._random.randbytes(20)).decode()
        return f"{self._prefix}{self._random.getrandbits(128):032x}"

    def _new_rev(self) -> str:
        self._versions += 1
        return str(self._versions)

    def token(self, length: int) -> str:
        """Returns a text that looks random."""
        return self._tokens.next("", length)

    def guid(self) -> str:
        """Returns a GUID that looks random."""
        text = f"{self._random.getrandbits(128):032X}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    # ---------------------------------------------------------------- reads

    def get(self, item_id: str) -> Node:
        """Returns the item with an id, unless it is in the recycle bin. Raises StoreError."""
        node = self.root if item_id == "root" else self.store.get(item_id)
        if not self.is_here(node):
            raise StoreError("not_found")
        return node

    def is_here(self, node: Node) -> bool:
        """Returns whether an item is below the root, or the root."""
        above: Node | None = node
        while above is not None:
            if above is self.root:
                return node.deleted_s is None
            above = above.parent
        return False

    def below(self, node: Node, path: str) -> Node:
        """Returns the item at a path below an item. Raises StoreError."""
        for name in path.split("/"):
            if not name:
                continue
            same = self.store.named(node, name) if isinstance(node, Folder) else ()
            if not same:
                raise StoreError("not_found")
            node = same[0]
        return node

    def is_fading(self, node: Node, now_s: float) -> bool:
        """Returns whether reads still see an item that was removed or recycled."""
        return now_s < self.store.fading_until_s(node) and not self.is_here(node)

    def fading_below(self, node: Node, path: str, now_s: float) -> File | None:
        """Returns the removed file that reads still see at a path below an item. Raises StoreError."""
        above, _, name = path.strip("/").rpartition("/")
        folder = self.below(node, above)
        return next(self.store.fading(folder, now_s, name), None) if isinstance(folder, Folder) else None

    def place(self, node: Node, now_s: float) -> Folder | None:
        """Returns the folder in which reads see an item."""
        return (details_of(node).former or node.parent) if self.is_fading(node, now_s) else node.parent

    def path(self, node: Node) -> str:
        """Returns the path of an item from the root: empty, or ``/a/b``."""
        path = ""
        while node.parent is not None and node is not self.root:
            path = f"/{node.name}{path}"
            node = node.parent
        return path

    def file(self, node: Node, now_s: float) -> tuple[File, Version]:
        """Returns a file and its version that reads see. Raises StoreError."""
        if not isinstance(node, File):
            raise StoreError("not_file")
        version = node.seen(now_s)
        if version is None:
            raise StoreError("not_found")
        return node, version

    def children(self, folder: Folder, now_s: float) -> Iterator[Node]:
        """Yields what listings see in a folder, in order of folded name."""
        fading: dict[str, list[Node]] = {
            self.store.fold(file.name): [file] for file in self.store.fading(folder, now_s)
        }
        shown = {**folder.children, **fading} if fading else folder.children
        for name in sorted(shown):
            for node in shown[name]:
                if not isinstance(node, File) or node.listed(now_s) is not None:
                    yield node

    # ---------------------------------------------------------------- writes

    def check_name(self, name: object) -> str:
        """Returns a name that an item may have. Raises GraphError."""
        if not isinstance(name, str) or not name:
            raise GraphError(400, "invalidRequest", "The name of an item must be a text that is not empty")
        if _REFUSED.search(name) or _RESERVED.fullmatch(name):
            raise GraphError(400, "invalidRequest", "The provided name contains invalid characters, or is reserved")
        if len(name) > _MAX_NAME:
            raise GraphError(400, "invalidRequest", "The provided name is too long", "parameterIsTooLong")
        return name

    def check_path(self, folder: Folder, name: str) -> None:
        """Raise GraphError if a path would be too long."""
        if len(self.path(folder)) + 1 + len(name) > _MAX_PATH:
            raise GraphError(400, "invalidRequest", "The path of the item is too long", "pathIsTooLong")

    def made(self, folder: Node, names: list[str], now_s: float) -> Folder:
        """Returns a folder below another one; creates it and the folders in between. Raises StoreError, GraphError."""
        for name in names:
            if not isinstance(folder, Folder):
                raise StoreError("file_ancestor")
            same = self.store.named(folder, name)
            folder = same[0] if same else self.add_folder(folder, self.check_name(name), now_s)
        if not isinstance(folder, Folder):
            raise StoreError("file_ancestor")
        return folder

    def taken(self, folder: Folder, name: str) -> Node | None:
        """Returns what has a name in a folder."""
        same = self.store.named(folder, name)
        return same[0] if same else None

    def free_name(self, folder: Folder, name: str) -> str:
        """Returns the name with the smallest number that nothing in the folder has: ``a 1.txt``."""
        stem, dot, ending = name.rpartition(".")
        if not stem:
            stem, dot, ending = name, "", ""
        number = 1
        while self.store.named(folder, f"{stem} {number}{dot}{ending}"):
            number += 1
        return f"{stem} {number}{dot}{ending}"

    def add_folder(self, parent: Folder, name: str, now_s: float) -> Folder:
        """Add a folder, whose name must be free."""
        folder = self.store.add_folder(parent, name, now_s)
        folder.extra = ItemDetails(self.guid(), now_s, now_s, now_s, now_s)
        return folder

    def add_file(self, parent: Folder, name: str, blob: Blob, now_s: float) -> File:
        """Store content as a new file, whose name must be free. Raises StoreError."""
        file = self.store.add_file(parent, name, blob, now_s)
        file.extra = ItemDetails(self.guid(), now_s, now_s, now_s, now_s)
        self._grow(parent, blob.size_bytes)
        return file

    def put(self, parent: Folder, name: str, blob: Blob, now_s: float) -> tuple[File, bool]:
        """Store content as a new file, or as the next version of one; returns whether it is new. Raises StoreError."""
        there = self.taken(parent, name)
        if there is None:
            return self.add_file(parent, name, blob, now_s), True
        if not isinstance(there, File):
            raise StoreError("taken")
        before = there.versions[-1].blob.size_bytes
        self.store.add_version(there, blob, now_s)
        self._grow(parent, blob.size_bytes - before)
        known = details_of(there)
        known.changed_s = known.client_changed_s = now_s
        known.tag += 1
        return there, False

    def touch(self, node: Node, now_s: float) -> None:
        """Note a change of an item."""
        known = details_of(node)
        known.tag += 1
        known.changed_s = now_s
        self.store.log.add(node.id, now_s)

    def move(self, node: Node, parent: Folder, name: str, now_s: float) -> None:
        """Give an item another parent, another name or both; the name must be free. Raises StoreError."""
        if node is self.root or self.store.holds(node, parent):
            raise StoreError("into_itself")
        size, before = self.size(node), node.parent
        self.store.move(node, parent, name, now_s)
        if before is not None and before is not parent:
            self._grow(before, -size)
            self._grow(parent, size)
        details_of(node).tag += 1

    def copy(self, node: Node, parent: Folder, name: str, now_s: float) -> Node:
        """Copy an item with all its contents; the name must be free. Raises StoreError."""
        originals = [node, *(node.below() if isinstance(node, Folder) else ())]
        twin = self.store.copy(node, parent, name, now_s)
        twins = [twin, *(twin.below() if isinstance(twin, Folder) else ())]
        for original, made in zip(originals, twins, strict=True):
            known = details_of(original)
            made.extra = ItemDetails(
                self.guid(), now_s, now_s, known.client_created_s, known.client_changed_s, 1, known.size_bytes
            )
        self._grow(parent, self.size(node))
        return twin

    def recycle(self, node: Node, now_s: float) -> None:
        """Put an item into the recycle bin. Raises StoreError for the root."""
        former = node.parent
        if node is self.root or former is None:
            raise StoreError("into_itself")
        size = self.size(node)
        gone = [node, *(node.below() if isinstance(node, Folder) else ())]
        self.store.move(node, self.bin, node.name, now_s, fades=True)
        for entry in gone[1:]:
            self.store.log.add(entry.id, now_s)
        details_of(node).former = former
        self._grow(former, -size)
        details_of(self.bin).size_bytes += size
        self.store.used_bytes -= size

    def restore(self, item_id: str, parent: Folder | None, name: str, now_s: float) -> Node:
        """Bring an item back from the recycle bin, to its former folder unless another is given. Raises StoreError."""
        node = self.store.get(item_id)
        former = parent or details_of(node).former
        if node.parent is not self.bin or former is None or not self.is_here(former):
            raise StoreError("not_found")
        name = name or node.name
        if self.taken(former, name) is not None:
            raise StoreError("taken")
        size = self.size(node)
        self.store.require_space(size)
        self.store.move(node, former, name, now_s)
        for entry in node.below() if isinstance(node, Folder) else ():
            self.store.log.add(entry.id, now_s)
        details_of(node).former = None
        details_of(self.bin).size_bytes -= size
        self._grow(former, size)
        self.store.used_bytes += size
        return node

    def remove(self, node: Node, now_s: float) -> None:
        """Remove an item with all its contents for good. Raises StoreError for the root."""
        if node is self.root or node.parent is None:
            raise StoreError("into_itself")
        gone = [*node.below()] if isinstance(node, Folder) else []
        self._grow(node.parent, -self.size(node))
        self.store.remove(node, now_s)
        for entry in gone:
            self.store.log.add(entry.id, now_s)

    def size(self, node: Node) -> int:
        """Returns the bytes of a file, or of all files below a folder."""
        return node.versions[-1].blob.size_bytes if isinstance(node, File) else details_of(node).size_bytes

    def _grow(self, folder: Folder | None, more_bytes: int) -> None:
        while folder is not None and folder is not self.store.root:
            details_of(folder).size_bytes += more_bytes
            folder = folder.parent
