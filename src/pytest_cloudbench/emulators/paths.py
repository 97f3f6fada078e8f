"""A view of a store by paths, for APIs in which names in a folder are unique.

What may live here: finding nodes by path, and writes that keep names unique. The skin decides which paths and names are
allowed, and what happens if a name is taken: it inspects a ``Target`` first, and changes it or refuses.

A path is ``""`` for the root, or ``/A/b``. The store's ``fold`` decides whether case matters; the case first given is
kept. A node that was removed or moved away stays known at its old path until the path is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node, StoreError, Version


class PathEntry(NamedTuple):
    """A node at a path, and one of its versions: None for a folder, and for a removed node."""

    path: str
    node: Node
    version: Version | None
    is_gone: bool = False


class Gone(NamedTuple):
    """What was at a path: the node, which may be elsewhere now, and the versions that it had here.

    Reads still see a removed file until ``seen_until_s``.
    """

    path: str
    node: Node
    versions: Sequence[Version]
    deleted_s: float
    seen_until_s: float = 0.0

    def seen(self, now_s: float) -> Version | None:
        """Returns the version of a removed file that reads still see."""
        return self.node.seen(now_s) if now_s < self.seen_until_s and isinstance(self.node, File) else None


class Target(NamedTuple):
    """The place of a write.

    Attributes:
        folder: the deepest existing folder above it.
        missing: names of the folders in between, which a write creates.
        name: its name.
        node: what exists there now.
    """

    folder: Folder
    missing: tuple[str, ...]
    name: str
    node: Node | None


class PathView:
    """See the module. All writes must go through the view, or names may not be unique.

    ``log`` holds the folded path of each change; for a moved folder, the old and new paths of all its contents.
    """

    def __init__(self, store: NodeStore) -> None:
        self.store = store
        self.log: ChangeLog[str] = ChangeLog()
        self._gone: dict[str, Gone] = {}

    # ---------------------------------------------------------------- reads

    def path(self, node: Node) -> str:
        """Returns the path of a node, or the last path of a removed node."""
        path = ""
        while node.parent is not None:
            path = f"/{node.name}{path}"
            node = node.parent
        return path

    def find(self, path: str) -> Node | None:
        """Returns what is at a path now, whether reads see it or not."""
        node: Node = self.store.root
        for name in path.split("/")[1:]:
            same = self.store.named(node, name) if isinstance(node, Folder) else ()
            if not same:
                return None
            node = same[0]
        return node

    def gone(self, path: str) -> Gone | None:
        """Returns what was at a path where nothing is now."""
        return self._gone.get(self.store.fold(path))

    def get(self, path: str, now_s: float) -> PathEntry:
        """Returns what reads see at a path. Raises StoreError."""
        node = self.find(path)
        version = node.seen(now_s) if isinstance(node, File) else None
        if node is None or (version is None and isinstance(node, File)):
            gone = self.gone(path) if self.store.delete_delay_s and node is None else None
            if gone is None or (version := gone.seen(now_s)) is None:
                raise StoreError("not_found")
            return PathEntry(gone.path, gone.node, version)
        return PathEntry(self.path(node), node, version)

    def file(self, path: str, now_s: float) -> tuple[File, Version]:
        """Like ``get``, but it must be a file."""
        _, node, version, _ = self.get(path, now_s)
        if version is None or not isinstance(node, File):
            raise StoreError("not_file")
        return node, version

    def folder(self, path: str, now_s: float) -> Folder:
        """Like ``get``, but it must be a folder."""
        node = self.get(path, now_s).node
        if not isinstance(node, Folder):
            raise StoreError("not_folder")
        return node

    def entries(
        self, folder: Folder, now_s: float, *, recursive: bool = False, gone_too: bool = False, after: str = ""
    ) -> Iterator[PathEntry]:
        """Yields what reads see below a folder, in order of folded path, starting after ``after``."""
        path = self.path(folder)
        found: list[tuple[str, str, Node | Gone]] = [
            entry for entry in self._below(self.store.fold(path), path, folder, recursive=recursive) if entry[0] > after
        ]
        if gone_too or self.store.delete_delay_s:
            start = f"{self.store.fold(path)}/"
            found += [
                (key, gone.path, gone)
                for key, gone in self._gone.items()
                if key > after and key.startswith(start) and (recursive or "/" not in key[len(start) :])
            ]
        for _, at, what in sorted(found, key=itemgetter(0)):
            if isinstance(what, Gone):
                version = what.seen(now_s)
                if version is not None or gone_too:
                    yield PathEntry(at, what.node, version, is_gone=version is None)
            elif not isinstance(what, File):
                yield PathEntry(at, what, None)
            elif (version := what.listed(now_s)) is not None:
                yield PathEntry(at, what, version)

    def target(self, path: str) -> Target:
        """Returns the place of a write to that path. Raises StoreError below a file, and for the root."""
        if not path:
            raise StoreError("taken")
        fold, names = self.store.fold, path.split("/")
        folder, name = self.store.root, names[-1]
        for place in range(1, len(names) - 1):
            same = folder.children.get(fold(names[place]))
            if same is None:
                return Target(folder, tuple(names[place:-1]), name, None)
            above = same[0]
            if not isinstance(above, Folder):
                raise StoreError("file_ancestor")
            folder = above
        same = folder.children.get(fold(name))
        return Target(folder, (), name, same[0] if same is not None else None)

    def beside(self, target: Target, name: str) -> Target:
        """Returns the same place with another name."""
        same = () if target.missing else self.store.named(target.folder, name)
        return Target(target.folder, target.missing, name, same[0] if same else None)

    # ---------------------------------------------------------------- writes

    def put(
        self, target: Target, blob: Blob, now_s: float, *, client_s: float | None = None, extra: object = None
    ) -> PathEntry:
        """Store content as a new file, or as a new version of an existing one. Raises StoreError.

        The history of a new file begins with the versions of an earlier file at its path.
        """
        file = target.node
        if isinstance(file, File):
            version = self.store.add_version(file, blob, now_s, client_s=client_s, extra=extra)
            path = self.path(file)
            key = self.store.fold(path)
        else:
            self._require_free(target)
            if target.missing:
                self.store.require_space(blob.size_bytes)
            folder, path = self._made(target, now_s)
            key = self.store.fold(path)
            gone = self._gone.pop(key, None)
            former = gone.versions if gone is not None else ()
            file = self.store.add_file(folder, target.name, blob, now_s, client_s=client_s, extra=extra, former=former)
            version = file.versions[-1]
        self.log.add(key, now_s, max(version.visible_s, version.listed_s))
        return PathEntry(path, file, version)

    def add_folder(self, target: Target, now_s: float) -> PathEntry:
        """Add a folder, and missing folders above it. Raises StoreError."""
        self._require_free(target)
        folder, path = self._folders(target.folder, (*target.missing, target.name), now_s)
        return PathEntry(path, folder, None)

    def remove(self, node: Node, now_s: float) -> PathEntry:
        """Remove a node with all its contents; returns its newest version. Raises StoreError."""
        lost = self._with_all(node)
        self.store.remove(node, now_s)
        for path, entry in lost:
            self._leave(path, entry, now_s, self.store.fading_until_s(entry))
        path = lost[0][0]
        self.log.add(self.store.fold(path), now_s, self.store.fading_until_s(node))
        return PathEntry(path, node, node.versions[-1] if isinstance(node, File) else None)

    def forget(self, path: str) -> Sequence[Version]:
        """Forget what was at a path and below it, where nothing is now; returns its versions. Raises StoreError."""
        key = self.store.fold(path)
        lost = [each for each in self._gone if each == key or each.startswith(f"{key}/")]
        if not lost:
            raise StoreError("not_found")
        return [version for each in lost for version in self._gone.pop(each).versions]

    def move(self, node: Node, target: Target, now_s: float) -> PathEntry:
        """Give a node another path; ids and versions do not change. Raises StoreError."""
        if self.store.holds(node, target.folder):
            raise StoreError("into_itself")
        if target.node is not node:
            self._require_free(target)
        moved = self._with_all(node)
        before = moved[0][0]
        for path, entry in moved:
            self._leave(path, entry, now_s)
        self.log.add(self.store.fold(before), now_s)
        folder, path = self._made(target, now_s)
        self.store.move(node, folder, target.name, now_s)
        for former, entry in moved:
            self._arrive(path + former[len(before) :], entry, now_s, at_once=True)
        return PathEntry(path, node, node.versions[-1] if isinstance(node, File) else None)

    def copy(self, node: Node, target: Target, now_s: float) -> PathEntry:
        """Copy a node with all its contents; ids and versions are new. Raises StoreError."""
        if self.store.holds(node, target.folder):
            raise StoreError("into_itself")
        self._require_free(target)
        self.store.require_space(
            sum(entry.versions[-1].blob.size_bytes for _, entry in self._with_all(node) if isinstance(entry, File))
        )
        folder, _ = self._made(target, now_s)
        twin = self.store.copy(node, folder, target.name, now_s)
        made = self._with_all(twin)
        for path, entry in made:
            self._arrive(path, entry, now_s)
        return PathEntry(made[0][0], twin, twin.versions[-1] if isinstance(twin, File) else None)

    # ---------------------------------------------------------------- inside

    def _below(self, key: str, path: str, folder: Folder, *, recursive: bool) -> Iterator[tuple[str, str, Node]]:
        """Yields folded path, path and node of everything below a folder."""
        left = [(key, path, folder)]
        while left:
            key, path, folder = left.pop()
            for folded, same in folder.children.items():
                node = same[0]
                entry = f"{key}/{folded}", f"{path}/{node.name}", node
                yield entry
                if recursive and isinstance(node, Folder):
                    left.append((entry[0], entry[1], node))

    def _with_all(self, node: Node) -> list[tuple[str, Node]]:
        """Yields a node and all nodes below it with their paths, parents before children."""
        path = self.path(node)
        if not isinstance(node, Folder):
            return [(path, node)]
        return [(path, node), *((at, entry) for _, at, entry in self._below("", path, node, recursive=True))]

    def _require_free(self, target: Target) -> None:
        if target.node is not None:
            raise StoreError("taken")

    def _made(self, target: Target, now_s: float) -> tuple[Folder, str]:
        """Returns the folder of a target, created with its parents if missing, and the path of the new node in it."""
        folder = target.folder
        if target.missing:
            folder, path = self._folders(folder, target.missing, now_s)
        else:
            path = self.path(folder)
        return folder, f"{path}/{target.name}"

    def _folders(self, folder: Folder, names: Sequence[str], now_s: float) -> tuple[Folder, str]:
        """Add nested folders; returns the innermost one and its path."""
        path = self.path(folder)
        for name in names:
            folder = self.store.add_folder(folder, name, now_s)
            path = f"{path}/{name}"
            self._arrive(path, folder, now_s)
        return folder, path

    def _leave(self, path: str, node: Node, now_s: float, seen_until_s: float = 0.0) -> None:
        versions = (*node.versions,) if isinstance(node, File) else ()
        self._gone[self.store.fold(path)] = Gone(path, node, versions, now_s, seen_until_s)

    def _arrive(self, path: str, node: Node, now_s: float, *, at_once: bool = False) -> None:
        key = self.store.fold(path)
        self._gone.pop(key, None)
        last = node.versions[-1] if isinstance(node, File) else None
        visible_s = max(last.visible_s, last.listed_s) if last is not None else now_s
        self.log.add(key, now_s, visible_s, at_once=at_once)
