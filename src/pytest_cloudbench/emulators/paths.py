"""A view of a store by paths, for APIs in which names in a folder are unique.

The view finds nodes by path, and its writes keep names unique. The skin decides which paths and names are allowed, and
what happens if a name is taken: it inspects a ``Target`` first, and changes it or refuses.

A path is ``""`` for the root, or ``/A/b``. The store's ``fold`` decides whether case matters, and the case in which a
name was first written is kept. The view remembers a node that was removed or moved away under its old path until the
path is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.core import NodeStore
from pytest_cloudbench.emulators.nodes import ChangeLog, File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.order import SortedItems


class PathEntry(NamedTuple):
    """A node at a path with one of its versions, which is None for a folder and for a removed node."""

    path: str
    node: Node
    version: Version | None
    is_gone: bool = False


class Gone(NamedTuple):
    """A node that is no longer at a path, with the versions that it had there. It may be elsewhere now.

    Reads still see a removed file until ``seen_until_s``.
    """

    path: str
    node: Node
    versions: Sequence[Version]
    deleted_s: float
    seen_until_s: float = 0.0

    def seen(self, now_s: float) -> Version | None:
        """Return the version of a removed file that reads still see, or None."""
        return self.node.seen(now_s) if now_s < self.seen_until_s and isinstance(self.node, File) else None


class Target(NamedTuple):
    """The folder and name that a write is for.

    Attributes:
        folder: the deepest existing folder above it.
        missing: the names of the folders in between, which a write creates.
        name: the last part of its path.
        node: the node that has this path now, or None.
    """

    folder: Folder
    missing: tuple[str, ...]
    name: str
    node: Node | None


class PathView:
    """The paths of one store. All writes must go through the view, or names may not be unique.

    ``log`` holds the folded path of each change, which for a moved folder means the old and new paths of all its
    contents.
    """

    def __init__(self, store: NodeStore) -> None:
        self.store = store
        store.keeps_removed = True  # a later file at the path of a removed one has its versions as its history
        self.log: ChangeLog[str] = ChangeLog()
        self._gone: dict[str, Gone] = {}
        self._gone_in_order: SortedItems[Gone] = SortedItems(self._fold_gone_path)

    # ---------------------------------------------------------------- reads

    def path(self, node: Node) -> str:
        """Return the path of a node, or the last path of a removed node."""
        path = ""
        while node.parent is not None:
            path = f"/{node.name}{path}"
            node = node.parent
        return path

    def find(self, path: str) -> Node | None:
        """Return the node that is at a path now, whether reads see it or not, or None."""
        node: Node = self.store.root
        for name in path.split("/")[1:]:
            namesakes = self.store.named(node, name) if isinstance(node, Folder) else ()
            if not namesakes:
                return None
            node = namesakes[0]
        return node

    def gone(self, path: str) -> Gone | None:
        """Return the record of the node that was last at a path, or None if there was none or the path is in use."""
        return self._gone.get(self.store.fold(path))

    def get(self, path: str, now_s: float) -> PathEntry:
        """Return the node and version that reads see at a path. Raises StoreError."""
        node = self.find(path)
        version = node.seen(now_s) if isinstance(node, File) else None
        if node is None or (version is None and isinstance(node, File)):
            gone = self.gone(path) if self.store.delete_delay_s and node is None else None
            if gone is None or (version := gone.seen(now_s)) is None:
                raise StoreError("not_found")
            return PathEntry(gone.path, gone.node, version)
        return PathEntry(self.path(node), node, version)

    def file(self, path: str, now_s: float) -> tuple[File, Version]:
        """Return the file and version that reads see at a path. Raises StoreError, also for a folder."""
        _, node, version, _ = self.get(path, now_s)
        if version is None or not isinstance(node, File):
            raise StoreError("not_file")
        return node, version

    def folder(self, path: str, now_s: float) -> Folder:
        """Return the folder that reads see at a path. Raises StoreError, also for a file."""
        node = self.get(path, now_s).node
        if not isinstance(node, Folder):
            raise StoreError("not_folder")
        return node

    def entries(
        self, folder: Folder, now_s: float, *, recursive: bool = False, gone_too: bool = False, after: str = ""
    ) -> Iterator[PathEntry]:
        """Yield the nodes that reads see below a folder, in order of folded path, starting after ``after``."""
        path = self.path(folder)
        stem = f"{self.store.fold(path)}/"
        if after.startswith(stem):
            after = after[len(stem) :]
        elif after > stem:
            return
        else:
            after = ""
        shows_gone = gone_too or self.store.delete_delay_s > 0
        if not recursive and not shows_gone:  # nearly always, and in fewer steps
            for node in folder.sorted_by(self._fold_name).after(after):
                version = node.listed(now_s) if isinstance(node, File) else None
                if version is not None or not isinstance(node, File):
                    yield PathEntry(f"{path}/{node.name}", node, version)
            return
        candidates: Iterator[tuple[str, str, Node | Gone]] = self._walk_in_order(
            stem, path, folder, after, recursive=recursive
        )
        if shows_gone:
            candidates = merge(candidates, self._gone_below(stem, after, recursive=recursive), key=itemgetter(0))
        for _, node_path, candidate in candidates:
            if isinstance(candidate, Gone):
                version = candidate.seen(now_s)
                if version is not None or gone_too:
                    yield PathEntry(node_path, candidate.node, version, is_gone=version is None)
            elif not isinstance(candidate, File):
                yield PathEntry(node_path, candidate, None)
            elif (version := candidate.listed(now_s)) is not None:
                yield PathEntry(node_path, candidate, version)

    def target(self, path: str) -> Target:
        """Return the target of a write to a path. Raises StoreError below a file, and for the root."""
        if not path:
            raise StoreError("taken")
        fold, names = self.store.fold, path.split("/")
        folder, name = self.store.root, names[-1]
        for index in range(1, len(names) - 1):
            namesakes = folder.children.get(fold(names[index]))
            if namesakes is None:
                return Target(folder, tuple(names[index:-1]), name, None)
            child = namesakes[0]
            if not isinstance(child, Folder):
                raise StoreError("file_ancestor")
            folder = child
        namesakes = folder.children.get(fold(name))
        return Target(folder, (), name, namesakes[0] if namesakes is not None else None)

    def beside(self, target: Target, name: str) -> Target:
        """Return a target in the same folder with another name."""
        namesakes = () if target.missing else self.store.named(target.folder, name)
        return Target(target.folder, target.missing, name, namesakes[0] if namesakes else None)

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
            folder, path = self._create_parents(target, now_s)
            key = self.store.fold(path)
            gone = self._pop_gone(key)
            former = gone.versions if gone is not None else ()
            file = self.store.add_file(folder, target.name, blob, now_s, client_s=client_s, extra=extra, former=former)
            version = file.versions[-1]
        self.log.add(key, now_s, max(version.visible_s, version.listed_s))
        return PathEntry(path, file, version)

    def add_folder(self, target: Target, now_s: float) -> PathEntry:
        """Add a folder, and missing folders above it. Raises StoreError."""
        self._require_free(target)
        folder, path = self._create_folders(target.folder, (*target.missing, target.name), now_s)
        return PathEntry(path, folder, None)

    def remove(self, node: Node, now_s: float) -> PathEntry:
        """Remove a node with all its contents, and return its newest version. Raises StoreError."""
        removed = self._list_subtree(node)
        self.store.remove(node, now_s)
        for path, entry in removed:
            self._record_gone(path, entry, now_s, self.store.fading_until_s(entry))
        path = removed[0][0]
        self.log.add(self.store.fold(path), now_s, self.store.fading_until_s(node))
        return PathEntry(path, node, node.versions[-1] if isinstance(node, File) else None)

    def forget(self, path: str) -> Sequence[Version]:
        """Forget the nodes that were at or below a path. Returns their versions. Raises StoreError without any."""
        key = self.store.fold(path)
        gone_keys = [key] if key in self._gone else []
        gone_keys += [gone_key for gone_key, _, _ in self._gone_below(f"{key}/", "", recursive=True)]
        if not gone_keys:
            raise StoreError("not_found")
        gone_nodes = [gone for gone_key in gone_keys if (gone := self._pop_gone(gone_key)) is not None]
        return [version for gone in gone_nodes for version in gone.versions]

    def move(self, node: Node, target: Target, now_s: float) -> PathEntry:
        """Give a node another path. Ids and versions do not change. Raises StoreError."""
        if self.store.holds(node, target.folder):
            raise StoreError("into_itself")
        if target.node is not node:
            self._require_free(target)
        subtree = self._list_subtree(node)
        old_path = subtree[0][0]
        for path, entry in subtree:
            self._record_gone(path, entry, now_s)
        self.log.add(self.store.fold(old_path), now_s)
        folder, path = self._create_parents(target, now_s)
        self.store.move(node, folder, target.name, now_s)
        for entry_path, entry in subtree:
            self._log_arrival(path + entry_path[len(old_path) :], entry, now_s, at_once=True)
        return PathEntry(path, node, node.versions[-1] if isinstance(node, File) else None)

    def copy(self, node: Node, target: Target, now_s: float) -> PathEntry:
        """Copy a node with all its contents, with new ids and versions. Raises StoreError."""
        if self.store.holds(node, target.folder):
            raise StoreError("into_itself")
        self._require_free(target)
        self.store.require_space(
            sum(entry.versions[-1].blob.size_bytes for _, entry in self._list_subtree(node) if isinstance(entry, File))
        )
        folder, _ = self._create_parents(target, now_s)
        twin = self.store.copy(node, folder, target.name, now_s)
        copies = self._list_subtree(twin)
        for path, entry in copies:
            self._log_arrival(path, entry, now_s)
        return PathEntry(copies[0][0], twin, twin.versions[-1] if isinstance(twin, File) else None)

    # ---------------------------------------------------------------- inside

    def _walk_below(self, key: str, path: str, folder: Folder, *, recursive: bool) -> Iterator[tuple[str, str, Node]]:
        """Yield folded path, path and node of everything below a folder."""
        pending = [(key, path, folder)]
        while pending:
            key, path, folder = pending.pop()
            for folded, namesakes in folder.children.items():
                node = namesakes[0]
                entry = f"{key}/{folded}", f"{path}/{node.name}", node
                yield entry
                if recursive and isinstance(node, Folder):
                    pending.append((entry[0], entry[1], node))

    def _walk_in_order(
        self, stem: str, path: str, folder: Folder, after: str, *, recursive: bool
    ) -> Iterator[tuple[str, str, Node]]:
        """Yield folded path, path and node of everything below a folder, in order of folded path.

        ``stem`` is the folded path of the folder and a slash, and ``after`` is relative to it. The contents of a folder
        need not follow it at once: ``/a``, ``/a-1``, ``/a/b``.
        """
        fold = self.store.fold
        if not recursive:
            for node in folder.sorted_by(self._fold_name).after(after):
                yield f"{stem}{fold(node.name)}", f"{path}/{node.name}", node
            return
        steps = count()
        heap: list[tuple[str, int, str, Node, Iterator[Node] | None]] = []
        """The next node of each folder that was begun, and each folder whose contents come later (without iterator)."""

        def push_next(stem: str, path: str, nodes: Iterator[Node]) -> None:
            if (node := next(nodes, None)) is not None:
                heappush(heap, (f"{stem}{fold(node.name)}", next(steps), path, node, nodes))

        inner: Folder | None = folder
        while inner is not None:
            top, inner = inner, None
            push_next(stem, path, iter(top.sorted_by(self._fold_name).after(after)))
            for end in range(1, len(after) + 1):
                name, following = after[:end], after[end : end + 1]
                child = top.children[name][0] if name in top.children else None
                if not isinstance(child, Folder):
                    continue
                if following == "/":  # in the middle of its contents
                    inner, stem, path, after = child, f"{stem}{name}/", f"{path}/{child.name}", after[end + 1 :]
                    break
                if following < "/":  # its contents come later
                    heappush(heap, (f"{stem}{name}/", next(steps), f"{path}/{child.name}", child, None))
        while heap:
            key, _, path, node, nodes = heappop(heap)
            if nodes is None:
                assert isinstance(node, Folder)
                push_next(key, path, iter(node.sorted_by(self._fold_name)))
                continue
            node_path = f"{path}/{node.name}"
            yield key, node_path, node
            if isinstance(node, Folder):
                heappush(heap, (f"{key}/", next(steps), node_path, node, None))
            push_next(key[: key.rindex("/") + 1], path, nodes)

    def _gone_below(self, stem: str, after: str, *, recursive: bool) -> Iterator[tuple[str, str, Gone]]:
        """Yield folded path, path and record of the nodes that are no longer below a folder, in order."""
        for gone in self._gone_in_order.after(f"{stem}{after}"):
            key = self.store.fold(gone.path)
            if not key.startswith(stem):
                return
            if recursive or "/" not in key[len(stem) :]:
                yield key, gone.path, gone

    def _fold_name(self, node: Node) -> str:
        return self.store.fold(node.name)

    def _fold_gone_path(self, gone: Gone) -> str:
        return self.store.fold(gone.path)

    def _pop_gone(self, key: str) -> Gone | None:
        gone = self._gone.pop(key, None)
        if gone is not None:
            self._gone_in_order.discard(gone)
        return gone

    def _list_subtree(self, node: Node) -> list[tuple[str, Node]]:
        """Return a node and all nodes below it with their paths, parents before children."""
        path = self.path(node)
        if not isinstance(node, Folder):
            return [(path, node)]
        return [
            (path, node),
            *((entry_path, entry) for _, entry_path, entry in self._walk_below("", path, node, recursive=True)),
        ]

    def _require_free(self, target: Target) -> None:
        if target.node is not None:
            raise StoreError("taken")

    def _create_parents(self, target: Target, now_s: float) -> tuple[Folder, str]:
        """Create the missing folders of a target. Return the new node's folder and path."""
        folder = target.folder
        if target.missing:
            folder, path = self._create_folders(folder, target.missing, now_s)
        else:
            path = self.path(folder)
        return folder, f"{path}/{target.name}"

    def _create_folders(self, folder: Folder, names: Sequence[str], now_s: float) -> tuple[Folder, str]:
        """Add nested folders. Return the innermost one and its path."""
        path = self.path(folder)
        for name in names:
            folder = self.store.add_folder(folder, name, now_s)
            path = f"{path}/{name}"
            self._log_arrival(path, folder, now_s)
        return folder, path

    def _record_gone(self, path: str, node: Node, now_s: float, seen_until_s: float = 0.0) -> None:
        versions = (*node.versions,) if isinstance(node, File) else ()
        key = self.store.fold(path)
        self._pop_gone(key)
        gone = self._gone[key] = Gone(path, node, versions, now_s, seen_until_s)
        self._gone_in_order.add(gone)

    def _log_arrival(self, path: str, node: Node, now_s: float, *, at_once: bool = False) -> None:
        key = self.store.fold(path)
        gone = self._pop_gone(key)
        if gone is not None and isinstance(gone.node, Folder) and isinstance(node, Folder):
            self._log_lost_contents(f"{key}/", gone, now_s)
        newest = node.versions[-1] if isinstance(node, File) else None
        visible_s = max(newest.visible_s, newest.listed_s) if newest is not None else now_s
        self.log.add(key, now_s, visible_s, at_once=at_once)

    def _log_lost_contents(self, stem: str, gone: Gone, now_s: float) -> None:
        """Log what went with a folder that another one replaces.

        A reader of the log learns of each path once. If it learns that a folder is there, it keeps what was in it.
        """
        for key, _, lost in self._gone_below(stem, "", recursive=True):
            if lost.deleted_s >= gone.deleted_s:  # what went before was logged then
                self.log.add(key, now_s, lost.seen_until_s)
