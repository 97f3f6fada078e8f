"""The store behind every emulator: files and folders by id and parent, versions, space, and the log of changes.

This is pure state. Callers pass ``now_s`` in seconds. The skin decides which names are allowed, what happens if a name
is taken, and what ids and versions look like.

A folder may hold several nodes of the same name. ``paths`` and ``keys`` are views for APIs that do not allow that.

==============  =====================================================================
state           rule
==============  =====================================================================
visible         reads see a version from ``visible_s`` on, listings from ``listed_s`` on; writes see it immediately
removed         a removed node can still be found by its id, and has ``deleted_s``; writes see that immediately
fading          reads and listings still see a removed file for ``delete_delay_s``, until its name is used again
released        once nobody can read or restore a removed file, its content is dropped; hash and size stay
change log      the id of each node that changed, from when reads see it
==============  =====================================================================
"""

from __future__ import annotations

import random
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node, StoreError, Version

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class Tokens:
    """A source of names that look random. The same seed gives the same names in the same order."""

    def __init__(self, seed: int) -> None:
        self._random_bits = random.Random(seed).getrandbits

    def next(self, prefix: str, length: int) -> str:
        """Return a prefix followed by the given number of letters, digits, ``-`` and ``_``."""
        count = -(-length * 3 // 4)
        drawn = self._random_bits(8 * count).to_bytes(count, "little")  # as ``randbytes`` and ``urlsafe_b64encode`` do
        return prefix + b2a_base64(drawn, newline=False).translate(_URL_SAFE)[:length].decode()


class _Fading(NamedTuple):
    """A removed file that reads still see until ``until_s``, and the folder and folded name that listings show."""

    file: File
    folder: Folder | None
    name: str
    until_s: float


class NodeStore:
    """The files and folders of one account. Not thread-safe, so the caller must serialise calls.

    Args:
        new_id: makes the id of each new node.
        new_rev: makes the name of each new version.
        fold: maps names to the value by which ``named`` compares them. By default names are case-sensitive.

    Attributes:
        root: the topmost folder.
        quota_bytes: the space of the account, unlimited if 0.
        used_bytes: the space that is used, which counts the newest versions only.
        readiness_s: delay until reads see a written version, seconds.
        list_delay_s: delay until listings see it, if that is longer (``File.listed``).
        delete_delay_s: how long reads and listings still see a removed file.
        keeps_removed: whether the API can restore removed files, so that their content is kept until ``release``.
        log: the ids of changed nodes. Removing or moving a folder logs the folder alone.
    """

    def __init__(self, new_id: Callable[[], str], new_rev: Callable[[], str], fold: Callable[[str], str] = str) -> None:
        self._new_id = new_id
        self._new_rev = new_rev
        self.fold = fold
        self.quota_bytes = 0
        self.used_bytes = 0
        self.readiness_s = self.list_delay_s = self.delete_delay_s = 0.0
        self.log: ChangeLog[str] = ChangeLog()
        self.root = Folder(new_id(), "", None)
        self._nodes: dict[str, Node] = {self.root.id: self.root}
        self._fading: dict[str, _Fading] = {}
        self._fading_by_name: dict[tuple[Folder | None, str], list[File]] = {}
        self._settled_s = 0.0
        self.keeps_removed = False

    # ---------------------------------------------------------------- reads

    def by_id(self, node_id: str) -> Node | None:
        """Return the node with an id, removed or not, or None."""
        return self._nodes.get(node_id)

    def get(self, node_id: str) -> Node:
        """Return the node with an id. Raises StoreError if there is none or it was removed."""
        node = self._nodes.get(node_id)
        if node is None or node.deleted_s is not None:
            raise StoreError("not_found")
        return node

    def named(self, folder: Folder, name: str) -> Sequence[Node]:
        """Return the children of that name, in order of arrival."""
        return folder.children.get(self.fold(name), ())

    def fading_until_s(self, node: Node) -> float:
        """Return the time until which reads by id still see a removed file, or 0 if it was not removed."""
        fading = self._fading.get(node.id)
        return 0.0 if fading is None else fading.until_s

    def fading(self, folder: Folder | None, now_s: float, name: str | None = None) -> Iterator[File]:
        """Yield the removed files that listings still show in a folder, or in all folders if it is None.

        ``name`` limits them to the files of that name.
        """
        folded_name = None if name is None else self.fold(name)
        for file, shown_in, shown_name, until_s in self._fading.values():
            if now_s >= until_s or shown_in is None or folder not in (None, shown_in):
                continue
            if folded_name in (None, shown_name) and shown_name not in shown_in.children:
                yield file

    def is_settled(self, now_s: float) -> bool:
        """Return whether listings see every file as it was last written, and none that was removed."""
        return now_s >= self._settled_s and not any(now_s < fading.until_s for fading in self._fading.values())

    def holds(self, node: Node, folder: Folder) -> bool:
        """Return whether ``folder`` is ``node`` itself or somewhere below it."""
        ancestor: Folder | None = folder
        while ancestor is not None:
            if ancestor is node:
                return True
            ancestor = ancestor.parent
        return False

    def kept(self) -> Iterator[tuple[str, Blob]]:
        """Yield what is kept of each version of a file: the names on its path with the skin's data, and the content.

        Removed files are kept if ``keeps_removed``, because the API can restore them until they are released.
        """
        for node in self._nodes.values():
            if isinstance(node, File) and (node.deleted_s is None or self.keeps_removed):
                names, ancestor = [f"{node.name} {node.extra!r}"], node.parent
                while ancestor is not None:
                    names.append(f"{ancestor.name} {ancestor.extra!r}" if ancestor.extra else ancestor.name)
                    ancestor = ancestor.parent
                for version in node.versions:
                    if version.blob.has_content:
                        yield "/".join(reversed(names)), version.blob

    # ---------------------------------------------------------------- writes

    def require_space(self, more_bytes: int) -> None:
        """Raise StoreError if there is no space for this many additional bytes."""
        if self.quota_bytes and more_bytes > 0 and self.used_bytes + more_bytes > self.quota_bytes:
            raise StoreError("insufficient_space")

    def add_folder(self, parent: Folder, name: str, now_s: float) -> Folder:
        """Add a folder."""
        folder = Folder(self._new_id(), name, parent)
        self._attach(folder, parent)
        self.log.add(folder.id, now_s)
        return folder

    def add_file(
        self,
        parent: Folder,
        name: str,
        blob: Blob,
        now_s: float,
        *,
        client_s: float | None = None,
        extra: object = None,
        former: Sequence[Version] = (),
    ) -> File:
        """Add a file, next to others of its name. Raises StoreError if there is no space for it.

        ``former`` are the versions of earlier files in its place. They are its history, and reads do not see them.
        """
        self.require_space(blob.size_bytes)
        version = self._make_version(blob, now_s, client_s, extra)
        file = File(self._new_id(), name, parent, [*former, version], len(former))
        self.used_bytes += blob.size_bytes
        self._attach(file, parent)
        self.log.add(file.id, now_s, max(version.visible_s, version.listed_s))
        return file

    def add_version(
        self, file: File, blob: Blob, now_s: float, *, client_s: float | None = None, extra: object = None
    ) -> Version:
        """Add a version to a file. Raises StoreError if there is no space for it."""
        more_bytes = blob.size_bytes - file.versions[-1].blob.size_bytes
        self.require_space(more_bytes)
        version = self._make_version(blob, now_s, client_s, extra)
        self.used_bytes += more_bytes
        file.add_version(version)
        self.log.add(file.id, now_s, max(version.visible_s, version.listed_s))
        return version

    def move(self, node: Node, parent: Folder, name: str, now_s: float, *, fades: bool = False) -> None:
        """Give a node another parent, another name or both. Ids and versions do not change. Raises StoreError.

        With ``fades`` the new parent is a trash, so the files below stay visible for a while, as after ``remove``.
        """
        if self.holds(node, parent):
            raise StoreError("into_itself")
        if fades:
            self._fade(node, now_s)
        else:
            self._end_fading(node.id)
        self._detach(node)
        node.name, node.parent = name, parent
        self._attach(node, parent)
        self.log.add(node.id, now_s, self.fading_until_s(node) if fades else 0.0)

    def copy(self, node: Node, parent: Folder, name: str, now_s: float) -> Node:
        """Copy a file's newest version, or a folder with its contents, with new ids and versions. Raises StoreError."""
        if self.holds(node, parent):
            raise StoreError("into_itself")
        originals = [node, *(node.below() if isinstance(node, Folder) else ())]
        self.require_space(sum(entry.versions[-1].blob.size_bytes for entry in originals if isinstance(entry, File)))
        twins: dict[Node | None, Node] = {}
        for entry in originals:
            twin_parent = parent if entry is node else twins[entry.parent]
            assert isinstance(twin_parent, Folder)
            twin_name = name if entry is node else entry.name
            if isinstance(entry, File):
                newest = entry.versions[-1]
                twins[entry] = self.add_file(
                    twin_parent, twin_name, newest.blob, now_s, client_s=newest.client_s, extra=newest.extra
                )
            else:
                twins[entry] = self.add_folder(twin_parent, twin_name, now_s)
            twins[entry].extra = entry.extra
        return twins[node]

    def remove(self, node: Node, now_s: float, *, fades: bool = True) -> None:
        """Remove a node with all its contents. Raises StoreError for the root, which cannot be removed.

        Pass ``fades=False`` if reads no longer saw it before, as in a trash.
        """
        self._detach(node)
        if fades:
            self._fade(node, now_s)
        for entry in [node, *(node.below() if isinstance(node, Folder) else ())]:
            entry.deleted_s = now_s
            if isinstance(entry, File):
                self.used_bytes -= entry.versions[-1].blob.size_bytes
                if now_s >= self.fading_until_s(entry):
                    self._release_unless_kept(entry)
            elif isinstance(entry, Folder):
                entry.clear()
        self.log.add(node.id, now_s, self.fading_until_s(node))

    def release(self, file: File) -> None:
        """Drop the content of a removed file that nobody can restore any more. Copies of the file keep theirs."""
        if file.deleted_s is not None:
            file.drop_content()

    # ---------------------------------------------------------------- inside

    def _release_unless_kept(self, file: File) -> None:
        if not self.keeps_removed:
            self.release(file)

    def _attach(self, node: Node, parent: Folder) -> None:
        self._nodes[node.id] = node
        name = self.fold(node.name)
        if self._fading:
            for namesake in [*self._fading_by_name.get((parent, name), ())]:
                self._end_fading(namesake.id)
        parent.attach(name, node)

    def _detach(self, node: Node) -> None:
        if node.parent is None:
            raise StoreError("into_itself")
        node.parent.detach(self.fold(node.name), node)

    def _fade(self, node: Node, now_s: float) -> None:
        """Record the files that reads still see, and forget those that they no longer see.

        Reads that have not seen a file yet never will.
        """
        while self._fading and (first := next(iter(self._fading.values()))).until_s <= now_s:
            self._end_fading(first.file.id)
        if not self.delete_delay_s:
            return
        for entry in [node, *(node.below() if isinstance(node, Folder) else ())]:
            if isinstance(entry, File) and entry.seen(now_s) is not None:
                self._end_fading(entry.id)
                fading = _Fading(entry, entry.parent, self.fold(entry.name), now_s + self.delete_delay_s)
                self._fading[entry.id] = fading
                self._fading_by_name.setdefault((fading.folder, fading.name), []).append(entry)

    def _end_fading(self, file_id: str) -> None:
        """Let reads no longer see a removed file, and drop its content unless it can be restored."""
        fading = self._fading.pop(file_id, None)
        if fading is None:
            return
        namesakes = self._fading_by_name[fading.folder, fading.name]
        namesakes.remove(fading.file)
        if not namesakes:
            del self._fading_by_name[fading.folder, fading.name]
        self._release_unless_kept(fading.file)

    def _make_version(self, blob: Blob, now_s: float, client_s: float | None, extra: object) -> Version:
        modified_s = now_s if client_s is None else client_s
        listed_s = now_s + self.list_delay_s if self.list_delay_s else 0.0
        visible_s = now_s + self.readiness_s if self.readiness_s else now_s  # the same number costs no memory
        self._settled_s = max(self._settled_s, visible_s, listed_s)
        return Version(self._new_rev(), blob, modified_s, now_s, visible_s, extra, listed_s)
