"""The object tree behind every emulator: folders, files, revisions, deleted entries and the log of changes.

What may live here: pure state. No I/O, no clock (``now_s``, seconds, is handed in), no provider's words:
a skin translates ``TreeError.reason`` into its API's errors. What a tree is made of is in ``nodes``.

Paths are ``""`` for the root or ``/A/b``; lookups ignore case, the case first given is kept for display.
``id:...``, ``id:.../rest``, ``rev:...`` and ``ns:...`` are understood as well.

==============  =====================================================================
state           rule
==============  =====================================================================
visible         a version is seen by reads from ``visible_s`` on; writes see it at once
deleted         a deleted entry keeps its path and revisions until the path is taken
change log      the path of each change, from when reads may know; a cursor is a place in it
==============  =====================================================================
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.nodes import (
    File,
    Folder,
    Node,
    TreeError,
    Version,
    below,
    shadow,
    split_path,
)

__all__ = ["Tree"]

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_DISALLOWED = frozenset({"desktop.ini", "thumbs.db", ".ds_store", "icon\r", ".dropbox", ".dropbox.attr"})
_FIRST_REV = 0x5F0_0000_0000


class Tree:
    """One account's files. Not thread-safe: the caller serialises."""

    def __init__(self, *, seed: int = 0, namespace: str = "1234567890") -> None:
        self.namespace = namespace
        self.quota_bytes = 0
        self.readiness_s = 0.0
        self.used_bytes = 0
        self.log: list[str] = []
        self._hidden: list[tuple[float, str]] = []
        self.on_change: list[Callable[[], None]] = []
        self._random = random.Random(seed)
        self._root = Folder(self.token("id:", 22), "")
        self._live: dict[str, Node] = {"": self._root}
        self._deleted: dict[str, Node] = {}
        self._ids: dict[str, Node] = {self._root.id: self._root}
        self._revs: dict[str, File] = {}
        self._next_rev = _FIRST_REV

    # ---------------------------------------------------------------- names

    def token(self, prefix: str, length: int) -> str:
        """An unguessable-looking name, the same ones in the same order for the same seed."""
        bits = self._random.getrandbits(6 * length)
        letters = [_ALPHABET[bits >> 6 * place & 63] for place in range(length)]
        return prefix + "".join(letters)

    def resolve(self, path: str) -> str:
        """The display path that ``id:`` and ``ns:`` forms stand for. Raises TreeError."""
        if path.startswith("/") or not path:
            return path
        head, mark, rest = path.partition("/")
        if head.startswith("ns:"):
            if head[3:] != self.namespace:
                raise TreeError("not_found")
            return mark + rest
        if head.startswith("id:"):
            node = self._ids.get(head)
            if node is None:
                raise TreeError("not_found")
            return node.display + mark + rest
        raise TreeError("malformed_path")

    # ---------------------------------------------------------------- reads

    def get(self, path: str, now_s: float, *, include_deleted: bool = False) -> tuple[Node, Version | None]:
        """What reads see at a path: the node, and its version if it is a file. Raises TreeError."""
        if path.startswith("rev:"):
            file = self._revs.get(path[4:])
            if file is None:
                raise TreeError("not_found")
            return file, next(version for version in file.versions if version.rev == path[4:])
        path = self.resolve(path)
        if path:
            split_path(path)
        lower = path.lower()
        node = self._live.get(lower)
        if node is None and include_deleted:
            node = self._deleted.get(lower)
            if node is not None:
                return node, None
        if isinstance(node, File):
            version = node.seen(now_s)
            if version is not None:
                return node, version
        elif node is not None:
            return node, None
        raise TreeError("not_found")

    def file(self, path: str, now_s: float) -> tuple[File, Version]:
        """As ``get``, for what must be a file."""
        node, version = self.get(path, now_s)
        if version is None or not isinstance(node, File):
            raise TreeError("not_file")
        return node, version

    def folder(self, path: str, now_s: float) -> Folder:
        """As ``get``, for what must be a folder."""
        node, _ = self.get(path, now_s)
        if not isinstance(node, Folder):
            raise TreeError("not_folder")
        return node

    def entries(
        self, folder: Folder, now_s: float, *, recursive: bool = False, include_deleted: bool = False
    ) -> list[tuple[Node, Version | None]]:
        """What reads see below a folder, ordered by path; deleted entries come without a version."""
        nodes = list(below(folder)) if recursive else list(folder.children.values())
        if include_deleted:
            prefix = f"{folder.lower}/"
            nodes += [
                node
                for lower, node in self._deleted.items()
                if lower.startswith(prefix) and (recursive or "/" not in lower[len(prefix) :])
            ]
        seen = [(node, node.seen(now_s) if isinstance(node, File) else None) for node in nodes]
        kept = [pair for pair in seen if pair[1] or not isinstance(pair[0], File) or pair[0].deleted_s is not None]
        return sorted(kept, key=lambda pair: pair[0].lower)

    def log_end(self, now_s: float) -> int:
        """How long the log is for a read at ``now_s``: what has become visible by then is added first."""
        while self._hidden and self._hidden[0][0] <= now_s:
            self.log.append(heappop(self._hidden)[1])
        return len(self.log)

    def next_change_s(self) -> float:
        """When the next change that is made but not visible yet will be; infinite where there is none."""
        return self._hidden[0][0] if self._hidden else inf

    def at(self, lower: str) -> tuple[Node | None, Node | None]:
        """The live and the deleted node at a lower-case path."""
        return self._live.get(lower), self._deleted.get(lower)

    def by_id(self, node_id: str) -> Node | None:
        """The node with an id, deleted or not."""
        return self._ids.get(node_id)

    def revisions(self, path: str, now_s: float) -> tuple[File, list[Version]]:
        """The versions of a live or deleted file, newest first. Raises TreeError."""
        path = self.resolve(path)
        split_path(path)
        live, deleted = self.at(path.lower())
        node = live or deleted
        if node is None:
            raise TreeError("not_found")
        if not isinstance(node, File):
            raise TreeError("not_file")
        return node, [version for version in reversed(node.versions) if version.visible_s <= now_s]

    # ---------------------------------------------------------------- writes

    def put(
        self,
        path: str,
        blob: Blob,
        now_s: float,
        *,
        mode: str = "add",
        update_rev: str = "",
        autorename: bool = False,
        strict: bool = False,
        client_s: float | None = None,
    ) -> tuple[File, Version]:
        """Store content. ``mode`` is ``add``, ``overwrite`` or ``update`` (of ``update_rev``). Raises TreeError."""
        parent, display = self._target(path)
        existing = self._live.get(display.lower())
        if existing is not None:
            if not isinstance(existing, File):
                if not autorename:
                    raise TreeError("conflict/folder")
                display, existing = self._free(display), None
            elif mode == "add" or (mode == "update" and existing.versions[-1].rev != update_rev):
                if not strict and existing.versions[-1].blob.hash_hex == blob.hash_hex:
                    return existing, existing.versions[-1]
                if not autorename:
                    raise TreeError("conflict/file")
                suffix = " (conflicted copy)" if mode == "update" else ""
                display, existing = self._free(display, suffix), None
        elif mode == "update" and strict:
            if not autorename:
                raise TreeError("conflict/file")
            display = self._free(display, " (conflicted copy)")
        replaced = existing.versions[-1].blob.size_bytes if isinstance(existing, File) else 0
        self._charge(blob.size_bytes - replaced)
        version = self._version(blob, now_s, now_s if client_s is None else client_s)
        if isinstance(existing, File):
            existing.versions.append(version)
            file = existing
        else:
            former = self._deleted.get(display.lower())
            history = former.versions if isinstance(former, File) else []
            file = File(self.token("id:", 22), display, [*history, version], len(history))
            self._attach(file, parent, now_s)
        self._revs[version.rev] = file
        self._note(file, now_s)
        return file, version

    def mkdir(self, path: str, now_s: float, *, autorename: bool = False) -> Folder:
        """Create a folder and what is missing above it. Raises TreeError."""
        parent, display = self._target(path)
        existing = self._live.get(display.lower())
        if existing is not None:
            if not autorename:
                raise TreeError("conflict/folder" if isinstance(existing, Folder) else "conflict/file")
            display = self._free(display)
        folder = Folder(self.token("id:", 22), display)
        self._attach(folder, parent, now_s)
        self._note(folder, now_s)
        return folder

    def delete(self, path: str, now_s: float, *, parent_rev: str = "") -> tuple[Node, Version | None]:
        """Delete a file (of that revision, if given) or a folder with all it holds. Raises TreeError."""
        node = self._existing(path)
        version = node.versions[-1] if isinstance(node, File) else None
        if parent_rev and version is None:
            raise TreeError("not_file")
        if version is not None and parent_rev and version.rev != parent_rev:
            raise TreeError("conflict/file")
        gone = [node, *(below(node) if isinstance(node, Folder) else ())]
        self._detach(node)
        for entry in gone:
            del self._live[entry.lower]
            entry.deleted_s = now_s
            self._deleted[entry.lower] = entry
            if isinstance(entry, File):
                self.used_bytes -= entry.versions[-1].blob.size_bytes
            else:
                assert isinstance(entry, Folder)
                entry.children.clear()
        self._note(node, now_s, at_once=True)
        return node, version

    def move(self, source: str, target: str, now_s: float, *, autorename: bool = False) -> Node:
        """Give a file or folder another path; ids stay. Raises TreeError; ``to/...`` when the target is at fault."""
        node, parent, display = self._relocation(source, target, autorename, keep_case_change=True)
        moved = [node, *(below(node) if isinstance(node, Folder) else ())]
        self._detach(node)
        before = node.display
        for entry in moved:
            del self._live[entry.lower]
            self._deleted[entry.lower] = shadow(entry, now_s)
        self._note(node, now_s, at_once=True)
        for entry in moved:
            entry.rename(display + entry.display[len(before) :])
            self._live[entry.lower] = entry
            self._deleted.pop(entry.lower, None)
        self._parent(parent, now_s).children[node.name.lower()] = node
        for entry in moved:
            self._note(entry, now_s, at_once=True)
        return node

    def copy(self, source: str, target: str, now_s: float, *, autorename: bool = False) -> Node:
        """Copy a file or folder with all it holds; new ids and revisions. Raises TreeError as ``move`` does."""
        node, parent, display = self._relocation(source, target, autorename, keep_case_change=False)
        originals = [node, *(below(node) if isinstance(node, Folder) else ())]
        self._charge(sum(entry.versions[-1].blob.size_bytes for entry in originals if isinstance(entry, File)))
        made: list[Node] = []
        for entry in originals:
            place = display + entry.display[len(node.display) :]
            twin: Node
            if isinstance(entry, File):
                last = entry.versions[-1]
                version = self._version(last.blob, now_s, last.client_s)
                twin = File(self.token("id:", 22), place, [version])
                self._revs[version.rev] = twin
            else:
                twin = Folder(self.token("id:", 22), place)
            self._attach(twin, parent if entry is node else place.rpartition("/")[0], now_s)
            self._note(twin, now_s)
            made.append(twin)
        return made[0]

    def restore(self, path: str, rev: str, now_s: float) -> tuple[File, Version]:
        """Make a former version the newest one again. Raises TreeError."""
        path = self.resolve(path)
        split_path(path)
        live, deleted = self.at(path.lower())
        if live is None and deleted is None:
            raise TreeError("not_found")
        if isinstance(live or deleted, Folder):
            raise TreeError("not_file")
        versions = [node.versions for node in (live, deleted) if isinstance(node, File)]
        former = next((version for kept in versions for version in kept if version.rev == rev), None)
        if former is None:
            raise TreeError("invalid_revision")
        return self.put(path, former.blob, now_s, mode="overwrite", client_s=former.client_s)

    def check_target(self, path: str) -> None:
        """Raise TreeError when nothing could be written at a path, whatever it is."""
        self._target(path)

    # ---------------------------------------------------------------- inside

    def _target(self, path: str) -> tuple[str, str]:
        """Parent and display path of something to be written."""
        parent, display = split_path(self.resolve(path))
        if display.rpartition("/")[2].lower() in _DISALLOWED:
            raise TreeError("disallowed_name")
        node = self._live.get(parent.lower())
        if node is not None:
            if not isinstance(node, Folder):
                raise TreeError("conflict/file_ancestor")
            return parent, node.display + display[len(parent) :]
        place = parent
        while place and place.lower() not in self._live:
            place = place.rpartition("/")[0]
        above = self._live[place.lower()]
        if not isinstance(above, Folder):
            raise TreeError("conflict/file_ancestor")
        return above.display + parent[len(place) :], above.display + display[len(place) :]

    def _existing(self, path: str) -> Node:
        path = self.resolve(path)
        split_path(path)
        node = self._live.get(path.lower())
        if node is None:
            raise TreeError("not_found")
        return node

    def _relocation(
        self, source: str, target: str, autorename: bool, *, keep_case_change: bool
    ) -> tuple[Node, str, str]:
        node = self._existing(source)
        try:
            parent, display = self._target(target)
            if f"{display.lower()}/".startswith(f"{node.lower}/") and display.lower() != node.lower:
                raise TreeError("into_itself")
            existing = self._live.get(display.lower())
            if existing is not None and not (keep_case_change and existing is node and display != node.display):
                if not autorename:
                    raise TreeError("conflict/folder" if isinstance(existing, Folder) else "conflict/file")
                display = self._free(display)
        except TreeError as error:
            raise TreeError(error.reason if error.reason == "into_itself" else f"to/{error.reason}") from error
        return node, parent, display

    def _free(self, display: str, suffix: str = "") -> str:
        """A path like this one that is not taken: ``name (1).txt``."""
        folder, _, name = display.rpartition("/")
        stem, dot, extension = name.rpartition(".")
        if not stem:
            stem, dot, extension = name, "", ""
        number = 0
        while True:
            mark = f"{suffix} ({number})" if number else suffix
            candidate = f"{folder}/{stem}{mark}{dot}{extension}"
            if mark and candidate.lower() not in self._live:
                return candidate
            number += 1

    def _parent(self, display: str, now_s: float) -> Folder:
        """The folder at a path, made with all above it where missing."""
        node = self._live.get(display.lower())
        if isinstance(node, Folder):
            return node
        above = self._parent(display.rpartition("/")[0], now_s)
        folder = Folder(self.token("id:", 22), f"{above.display}/{display.rpartition('/')[2]}")
        above.children[folder.name.lower()] = folder
        self._live[folder.lower] = folder
        self._ids[folder.id] = folder
        self._deleted.pop(folder.lower, None)
        self._note(folder, now_s)
        return folder

    def _attach(self, node: Node, parent: str, now_s: float) -> None:
        lower = node.lower
        self._parent(parent, now_s).children[node.name.lower()] = node
        self._live[lower] = node
        self._ids[node.id] = node
        self._deleted.pop(lower, None)

    def _detach(self, node: Node) -> None:
        if node is self._root:
            raise TreeError("malformed_path")
        parent = self._live[node.lower.rpartition("/")[0]]
        assert isinstance(parent, Folder)
        del parent.children[node.name.lower()]

    def _charge(self, more_bytes: int) -> None:
        if self.quota_bytes and self.used_bytes + more_bytes > self.quota_bytes and more_bytes > 0:
            raise TreeError("insufficient_space")
        self.used_bytes += more_bytes

    def _version(self, blob: Blob, now_s: float, client_s: float) -> Version:
        self._next_rev += 1
        return Version(f"{self._next_rev:x}", blob, client_s, now_s, now_s + self.readiness_s)

    def _note(self, node: Node, now_s: float, *, at_once: bool = False) -> None:
        """Log a change at a node's path, when its newest version becomes visible; ``at_once`` also now."""
        hidden = isinstance(node, File) and node.versions[-1].visible_s > now_s
        if isinstance(node, File) and hidden:
            heappush(self._hidden, (node.versions[-1].visible_s, node.lower))
        if at_once or not hidden:
            self.log.append(node.lower)
        for listener in self.on_change:
            listener()
