"""The account's tree as a client of MEGA keeps it: nodes by handle, and paths over them.

What may live here: the tree, and what an event of the service does to it. No requests. MEGA has no paths: names are
encrypted, and a folder may hold several nodes of one name. Here a name means its newest file, and folders of the same
name count as one folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


class NodeTree:
    """All nodes of one account, as the SDK's values (``id``, ``parent_id``, ``attributes.name``, ``is_file``...)."""

    def __init__(self, nodes: Iterable[Any] = (), links: Mapping[str, str] | None = None, root: str = "") -> None:
        self.root = root
        self.links = dict(links or {})
        self._nodes: dict[str, Any] = {}
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()
        self._children: dict[str, dict[str, dict[str, Any]]] = {}
        for node in nodes:
            self.add(node)

    def __contains__(self, handle: str) -> bool:
        return handle in self._nodes

    def get(self, handle: str) -> Any:
        """Return the node of a handle. None if there is none."""
        return self._nodes.get(handle)

    # ---------------------------------------------------------------- changes

    def add(self, node: Any) -> None:
        """Add a node, or replace the one with that handle."""
        self._detach_node(node.id)
        self._nodes[node.id] = node
        self._numbers.setdefault(node.id, next(self._next))
        self._children.setdefault(node.parent_id, {}).setdefault(node.attributes.name, {})[node.id] = node

    def remove(self, handle: str) -> None:
        """Remove a node with all below it, if there is one."""
        lost = [*self._nodes_below(handle)]
        self._detach_node(handle)
        for node in lost:
            self._children.pop(node.id, None)
            del self._nodes[node.id], self._numbers[node.id]

    def _detach_node(self, handle: str) -> None:
        node = self._nodes.get(handle)
        if node is None:
            return
        names = self._children[node.parent_id]
        namesakes = names[node.attributes.name]
        del namesakes[handle]
        if not namesakes:
            del names[node.attributes.name]

    def _nodes_below(self, handle: str) -> Iterator[Any]:
        pending = [handle] if handle in self._nodes else []
        while pending:
            node = self._nodes[pending.pop()]
            yield node
            pending += [child for namesakes in self._children.get(node.id, {}).values() for child in namesakes]

    # ---------------------------------------------------------------- paths

    def nodes_at(self, path: str) -> list[Any]:
        """Return all nodes at a path: files, newest first, then folders."""
        nodes = [self._nodes[self.root]] if self.root in self._nodes else []
        for name in filter(None, path.split("/")):
            nodes = [
                child
                for node in nodes
                if not node.is_file
                for child in self._children.get(node.id, {}).get(name, {}).values()
            ]
        return sorted(nodes, key=self._sort_key)

    def _sort_key(self, node: Any) -> tuple[bool, float, int]:
        return not node.is_file, -node.created_at, -self._numbers[node.id]

    def files_at(self, path: str) -> list[Any]:
        """Return the files at a path, newest first."""
        return [node for node in self.nodes_at(path) if node.is_file]

    def folder_at(self, path: str) -> Any:
        """Return the folder at a path, the oldest if there are several. None if there is none."""
        folders = [node for node in self.nodes_at(path) if not node.is_file]
        return folders[-1] if folders else None

    def descendants(self, path: str) -> Iterator[tuple[str, Any]]:
        """Yield everything below a path with its own path, each path once, parents first."""
        pending = [("" if path == "/" else path, [node for node in self.nodes_at(path) if not node.is_file])]
        while pending:
            parent, folders = pending.pop()
            merged: dict[str, list[Any]] = {}
            for folder in folders:
                for name, namesakes in self._children.get(folder.id, {}).items():
                    merged.setdefault(name, []).extend(namesakes.values())
            for name, merged_nodes in merged.items():
                child_path = f"{parent}/{name}"
                best = min(merged_nodes, key=self._sort_key)
                yield child_path, best
                if not best.is_file:
                    pending.append((child_path, merged_nodes))

    def children_of(self, node: Any) -> list[Any]:
        """Return the nodes in a folder."""
        return [child for namesakes in self._children.get(node.id, {}).values() for child in namesakes.values()]
