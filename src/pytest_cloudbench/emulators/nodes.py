"""What the tree is made of: files, folders, versions, and the rules of paths.

What may live here: values and entries, and functions of them alone. No account, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_cloudbench.emulators.blob import Blob

__all__ = ["File", "Folder", "Node", "TreeError", "Version", "below", "shadow", "split_path"]

_MAX_NAME = 255


class TreeError(Exception):
    """A request the tree refuses.

    ``reason`` is one of ``not_found``, ``not_file``, ``not_folder``, ``malformed_path``, ``disallowed_name``,
    ``conflict/file``, ``conflict/folder``, ``conflict/file_ancestor``, ``insufficient_space``,
    ``into_itself``, ``invalid_revision``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One revision of a file. Times are seconds of the emulator's clock."""

    rev: str
    blob: Blob
    client_s: float
    server_s: float
    visible_s: float


class Node:
    """A file or a folder; after deletion it stays reachable as a deleted entry."""

    __slots__ = ("deleted_s", "display", "id", "lower", "name")

    def __init__(self, node_id: str, display: str) -> None:
        self.id = node_id
        self.deleted_s: float | None = None
        self.rename(display)

    def rename(self, display: str) -> None:
        """Give the node another path."""
        self.display = display
        self.lower = display.lower()
        self.name = display.rpartition("/")[2]


class Folder(Node):
    """A folder; ``children`` by lower-case name."""

    __slots__ = ("children",)

    def __init__(self, node_id: str, display: str) -> None:
        super().__init__(node_id, display)
        self.children: dict[str, Node] = {}


class File(Node):
    """A file; ``versions`` oldest first, never empty. Those before ``born`` were of deleted files at its path."""

    __slots__ = ("born", "versions")

    def __init__(self, node_id: str, display: str, versions: list[Version], born: int = 0) -> None:
        super().__init__(node_id, display)
        self.versions = versions
        self.born = born

    def seen(self, now_s: float) -> Version | None:
        """The newest version that reads see."""
        for place in range(len(self.versions) - 1, self.born - 1, -1):
            if self.versions[place].visible_s <= now_s:
                return self.versions[place]
        return None


def split_path(path: str) -> tuple[str, str]:
    """The display paths of parent and entry. Raises TreeError when the path is malformed."""
    if path in ("", "/"):
        raise TreeError("malformed_path")
    if "//" in path or "\\" in path or "/." in path or path[-1] == "/" or "\0" in path or len(path) > _MAX_NAME:
        _check_names(path)
    return path.rpartition("/")[0], path


def _check_names(path: str) -> None:
    for name in path.split("/")[1:]:
        if name in ("", ".", "..") or "\\" in name or "\0" in name or len(name) > _MAX_NAME:
            raise TreeError("malformed_path")


def below(folder: Folder) -> Iterator[Node]:
    """All nodes below a folder, parents before children."""
    for node in folder.children.values():
        yield node
        if isinstance(node, Folder):
            yield from below(node)


def shadow(node: Node, now_s: float) -> Node:
    """What stays behind at the former path of something moved."""
    twin = (
        Folder(node.id, node.display)
        if not isinstance(node, File)
        else File(node.id, node.display, [*node.versions], node.born)
    )
    twin.deleted_s = now_s
    return twin
