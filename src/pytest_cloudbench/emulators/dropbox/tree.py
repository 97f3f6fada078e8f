"""Dropbox's rules for paths, names and conflicts, on a path view of the core's store.

Names are stored composed (NFC), as the service does it. Lookups ignore case, but a name that is not composed is not
found. ``id:...``, ``id:.../rest``, ``rev:...`` and ``ns:...`` are accepted as well as paths.

This module adds these reasons of StoreError: ``malformed_path``, ``disallowed_name``, ``conflict/file``,
``conflict/folder``, ``conflict/file_ancestor`` and ``invalid_revision``. If the target of a copy or move is the cause,
the reason is ``to/...``.
"""

from __future__ import annotations

from itertools import count
from random import Random
from typing import NamedTuple
from unicodedata import normalize

from pytest_cloudbench.emulators.core import NodeStore, Tokens
from pytest_cloudbench.emulators.dropbox.blocks import BlockBlob
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.paths import PathEntry, PathView, Target

_MAX_NAME_LENGTH = 255
_DISALLOWED = frozenset({"desktop.ini", "thumbs.db", ".ds_store", "icon\r", ".dropbox", ".dropbox.attr"})
_FIRST_NAMESPACE = 2_000_000_000
_FIRST_REV = 0x5F0_0000_0001


class Revisions(NamedTuple):
    """The versions of a file, newest first. ``deleted_s`` is the time of its deletion, if it was deleted."""

    path: str
    node_id: str
    versions: list[Version]
    deleted_s: float | None


class Tree:
    """The files of one account. Not thread-safe, so the caller must serialise calls."""

    def __init__(self, *, seed: int = 0) -> None:
        tokens, revs = Tokens(seed), count(_FIRST_REV)
        self.namespace = str(_FIRST_NAMESPACE + Random(seed).randrange(_FIRST_NAMESPACE))
        self.token = tokens.next
        self.store = NodeStore(lambda: tokens.next("id:", 22), lambda: f"{next(revs):x}", str.lower)
        self.paths = PathView(self.store)
        self._revs: dict[str, File] = {}

    # ---------------------------------------------------------------- reads

    def resolve_path(self, path: str) -> str:
        """Return the path for an ``id:`` or ``ns:`` form. Raises StoreError."""
        if path.startswith("/") or not path:
            return path
        prefix, slash, remainder = path.partition("/")
        if prefix.startswith("ns:"):
            if prefix[3:] != self.namespace:
                raise StoreError("not_found")
            return slash + remainder
        if prefix.startswith("id:"):
            node = self.store.by_id(prefix)
            if node is None:
                raise StoreError("not_found")
            path = self.paths.path(node)
            if node.deleted_s is not None and ((gone := self.paths.gone(path)) is None or gone.node is not node):
                raise StoreError("not_found")  # the path may be that of a later file
            return path + slash + remainder
        raise StoreError("malformed_path")

    def get(self, path: str, now_s: float, *, include_deleted: bool = False) -> PathEntry:
        """Return the entry that reads see at a path. Raises StoreError."""
        if path.startswith("rev:"):
            file = self._revs.get(path[4:])
            if file is None:
                raise StoreError("not_found")
            version = next(version for version in file.versions if version.rev == path[4:])
            if version.visible_s > now_s:
                raise StoreError("not_found")
            return PathEntry(self.paths.path(file), file, version)
        path = self.resolve_path(path)
        if path:
            _check_path(path)
        gone = self.paths.gone(path) if include_deleted else None
        return PathEntry(gone.path, gone.node, None, is_gone=True) if gone else self.paths.get(path, now_s)

    def find_file(self, path: str, now_s: float) -> tuple[PathEntry, Version]:
        """Like ``get``, but raise StoreError unless the entry is a file."""
        entry = self.get(path, now_s)
        if entry.version is None:
            raise StoreError("not_file")
        return entry, entry.version

    def find_folder(self, path: str, now_s: float) -> Folder:
        """Like ``get``, but raise StoreError unless the entry is a folder."""
        node = self.get(path, now_s).node
        if not isinstance(node, Folder):
            raise StoreError("not_folder")
        return node

    def newest_entry(self, node: Node) -> PathEntry:
        """Return a node as writes see it."""
        return PathEntry(self.paths.path(node), node, node.versions[-1] if isinstance(node, File) else None)

    def list_revisions(self, path: str, now_s: float) -> Revisions:
        """Return the versions of a file that is or was at a path. Raises StoreError."""
        path = self.resolve_path(path)
        _check_path(path)
        node, gone = self.paths.find(path), self.paths.gone(path)
        if node is None and gone is None:
            raise StoreError("not_found")
        file = gone.node if gone else node
        if not isinstance(file, File):
            raise StoreError("not_file")
        versions = gone.versions if gone else file.versions
        visible = [version for version in reversed(versions) if version.visible_s <= now_s]
        return Revisions(
            gone.path if gone else self.paths.path(file), file.id, visible, gone.deleted_s if gone else None
        )

    # ---------------------------------------------------------------- writes

    def put(
        self,
        path: str,
        blob: BlockBlob,
        now_s: float,
        *,
        mode: str = "add",
        update_rev: str = "",
        autorename: bool = False,
        strict: bool = False,
        client_s: float | None = None,
    ) -> PathEntry:
        """Store content. ``mode`` is ``add``, ``overwrite`` or ``update`` (of ``update_rev``). Raises StoreError."""
        target = self._write_target(path)
        node, conflict = target.node, ""
        if isinstance(node, File):
            newest = node.versions[-1]
            if mode == "add" or (mode == "update" and newest.rev != update_rev):
                if not strict and newest.blob.hash_hex == blob.hash_hex:
                    return self.newest_entry(node)
                conflict = "conflict/file"
        elif node is not None:
            conflict = "conflict/folder"
        elif mode == "update" and strict:
            conflict = "conflict/file"
        if conflict and not autorename:
            raise StoreError(conflict)
        if conflict:
            is_copy = mode == "update" and conflict == "conflict/file"
            target = self._find_free_name(target, " (conflicted copy)" if is_copy else "")
        entry = self.paths.put(target, blob, now_s, client_s=client_s)
        self._remember_revision(entry.node)
        return entry

    def create_folder(self, path: str, now_s: float, *, autorename: bool = False) -> PathEntry:
        """Create a folder and missing folders above it. Raises StoreError."""
        return self.paths.add_folder(self._require_free(self._write_target(path), autorename=autorename), now_s)

    def delete(self, path: str, now_s: float, *, parent_rev: str = "") -> PathEntry:
        """Delete a file or a folder with all its contents. Raises StoreError, also for a file not at ``parent_rev``."""
        node = self._find_existing(path)
        if parent_rev and not isinstance(node, File):
            raise StoreError("not_file")
        if parent_rev and isinstance(node, File) and node.versions[-1].rev != parent_rev:
            raise StoreError("conflict/file")
        return self.paths.remove(node, now_s)

    def purge(self, path: str, now_s: float, *, parent_rev: str = "") -> None:
        """Permanently delete an entry and its revisions, even if it is deleted already. Raises StoreError."""
        path = self.resolve_path(path)
        _check_path(path)
        if self.paths.find(path) is not None:
            self.delete(path, now_s, parent_rev=parent_rev)
        for version in self.paths.forget(path):
            file = self._revs.get(version.rev)
            if file is not None and file.deleted_s is not None:  # otherwise it was moved away
                del self._revs[version.rev]
                self.store.release(file)

    def move(self, source: str, target: str, now_s: float, *, autorename: bool = False) -> PathEntry:
        """Give a file or folder another path. Ids do not change. Raises StoreError."""
        node = self._find_existing(source)
        destination = self._relocation_target(node, target, autorename=autorename, keep_case_change=True)
        return self.paths.move(node, destination, now_s)

    def copy(self, source: str, target: str, now_s: float, *, autorename: bool = False) -> PathEntry:
        """Copy a file, a revision (``rev:``), or a folder with all its contents. Ids and revisions are new.

        Raises StoreError.
        """
        if source.startswith("rev:"):
            (_, file, _, _), version = self.find_file(source, now_s)
            destination = self._relocation_target(file, target, autorename=autorename, keep_case_change=False)
            entry = self.paths.put(destination, version.blob, now_s, client_s=version.client_s)
            self._remember_revision(entry.node)
            return entry
        node = self._find_existing(source)
        destination = self._relocation_target(node, target, autorename=autorename, keep_case_change=False)
        entry = self.paths.copy(node, destination, now_s)
        for twin in (entry.node, *(entry.node.below() if isinstance(entry.node, Folder) else ())):
            self._remember_revision(twin)
        return entry

    def restore(self, path: str, rev: str, now_s: float) -> PathEntry:
        """Make an earlier version the newest one again. Raises StoreError."""
        path = self.resolve_path(path)
        _check_path(path)
        node, gone = self.paths.find(path), self.paths.gone(path)
        if node is None and gone is None:
            raise StoreError("not_found")
        if isinstance(node or (gone and gone.node), Folder):
            raise StoreError("not_file")
        versions = [*(node.versions if isinstance(node, File) else ()), *(gone.versions if gone else ())]
        restored = next((version for version in versions if version.rev == rev), None)
        if restored is None or not isinstance(restored.blob, BlockBlob):
            raise StoreError("invalid_revision")
        return self.put(path, restored.blob, now_s, mode="overwrite", client_s=restored.client_s)

    def check_target(self, path: str) -> None:
        """Raise StoreError if nothing could be written at a path."""
        self._write_target(path)

    # ---------------------------------------------------------------- inside

    def _write_target(self, path: str) -> Target:
        path = normalize("NFC", self.resolve_path(path))
        _check_path(path)
        if path.rpartition("/")[2].lower() in _DISALLOWED:
            raise StoreError("disallowed_name")
        try:
            return self.paths.target(path)
        except StoreError:
            raise StoreError("conflict/file_ancestor") from None

    def _find_existing(self, path: str) -> Node:
        path = self.resolve_path(path)
        _check_path(path)
        node = self.paths.find(path)
        if node is None:
            raise StoreError("not_found")
        return node

    def _require_free(self, target: Target, *, autorename: bool) -> Target:
        if target.node is None:
            return target
        if not autorename:
            raise StoreError("conflict/folder" if isinstance(target.node, Folder) else "conflict/file")
        return self._find_free_name(target)

    def _relocation_target(self, node: Node, path: str, *, autorename: bool, keep_case_change: bool) -> Target:
        try:
            target = self._write_target(path)
            if self.store.holds(node, target.folder):
                raise StoreError("into_itself")
            if keep_case_change and target.node is node and target.name != node.name:
                return target
            return self._require_free(target, autorename=autorename)
        except StoreError as error:
            raise StoreError(error.reason if error.reason == "into_itself" else f"to/{error.reason}") from error

    def _find_free_name(self, target: Target, suffix: str = "") -> Target:
        """Return a target with a free name like this one: ``name (1).txt``."""
        stem, dot, extension = target.name.rpartition(".")
        if not stem:
            stem, dot, extension = target.name, "", ""
        for number in count():
            addition = f"{suffix} ({number})" if number else suffix
            candidate = self.paths.beside(target, f"{stem}{addition}{dot}{extension}")
            if addition and candidate.node is None:
                return candidate
        raise AssertionError

    def _remember_revision(self, node: Node) -> None:
        if isinstance(node, File):
            self._revs[node.versions[-1].rev] = node


def _check_path(path: str) -> None:
    """Raise StoreError if a path is malformed or the root."""
    if path in ("", "/"):
        raise StoreError("malformed_path")
    if "//" in path or "\\" in path or "/." in path or path[-1] == "/" or "\0" in path or len(path) > _MAX_NAME_LENGTH:
        for name in path.split("/")[1:]:
            if name in ("", ".", "..") or "\\" in name or "\0" in name or len(name) > _MAX_NAME_LENGTH:
                raise StoreError("malformed_path")
