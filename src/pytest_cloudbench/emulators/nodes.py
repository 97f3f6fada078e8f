"""The parts of a store: files, folders, their versions, and the log of changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from pytest_cloudbench.emulators.blob import Blob
from pytest_cloudbench.emulators.order import SortedItems

_Key = TypeVar("_Key")


class StoreError(Exception):
    """A request that the store refuses. A skin translates ``reason`` into its API's terms.

    The core uses ``not_found``, ``not_file``, ``not_folder``, ``taken``, ``file_ancestor``, ``insufficient_space`` or
    ``into_itself``. A skin may raise it with reasons of its own.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Version(NamedTuple):
    """One version of a file. Times are seconds of the emulator's clock.

    Attributes:
        rev: its name, unique in the store.
        blob: its content.
        client_s: the modification time that the client gave.
        server_s: when it was stored.
        visible_s: when reads begin to see it.
        extra: the skin's own data, such as a content type.
        listed_s: when listings begin to see it, if that is later.
    """

    rev: str
    blob: Blob
    client_s: float
    server_s: float
    visible_s: float
    extra: object = None
    listed_s: float = 0.0


class Node:
    """A file or a folder. A removed node keeps its name and parent, and has the time of its removal in ``deleted_s``.

    ``extra`` is the skin's own data, such as a flag for the trash.
    """

    __slots__ = ("deleted_s", "extra", "id", "name", "parent")

    def __init__(self, node_id: str, name: str, parent: Folder | None) -> None:
        self.id = node_id
        self.name = name
        self.parent = parent
        self.deleted_s: float | None = None
        self.extra: object = None

    def is_seen(self, now_s: float) -> bool:
        """Return whether reads see it. They see a folder as soon as it is made."""
        return True


class Folder(Node):
    """A folder. ``children`` are by folded name, in order of arrival, and several may have the same name."""

    __slots__ = ("_new_nodes", "_orders", "children")

    def __init__(self, node_id: str, name: str, parent: Folder | None) -> None:
        super().__init__(node_id, name, parent)
        self.children: dict[str, list[Node]] = {}
        self._orders: dict[Callable[[Node], Any], SortedItems[Node]] = {}
        self._new_nodes: list[Node] = []

    def sorted_by(self, key: Callable[[Node], Any]) -> SortedItems[Node]:
        """Return the children sorted by a key, which must not change while a node is in this folder.

        The first call sorts. Later changes keep the order, so a page of a listing costs the same in every folder.
        """
        self._sort_new_nodes()
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = SortedItems(key, self.nodes())
        return order

    def attach(self, name: str, node: Node) -> None:
        """Add a child under a folded name."""
        self.children.setdefault(name, []).append(node)
        if self._orders:
            self._new_nodes.append(node)  # sorted later, because a skin sets its own data after the node was added

    def detach(self, name: str, node: Node) -> None:
        """Remove the child that was added under a folded name."""
        namesakes = self.children[name]
        namesakes.remove(node)
        if not namesakes:
            del self.children[name]
        if self._orders:
            self._sort_new_nodes()
            for order in self._orders.values():
                order.discard(node)

    def clear(self) -> None:
        """Forget all children."""
        self.children, self._orders, self._new_nodes = {}, {}, []

    def _sort_new_nodes(self) -> None:
        if self._new_nodes:
            for order in self._orders.values():
                for node in self._new_nodes:
                    order.add(node)
            self._new_nodes = []

    def nodes(self) -> Iterator[Node]:
        """Yield the children."""
        for namesakes in self.children.values():
            yield from namesakes

    def below(self) -> Iterator[Node]:
        """Yield all nodes below, parents before children."""
        pending: list[Iterator[Node]] = [self.nodes()]
        while pending:
            for node in pending[-1]:
                yield node
                if isinstance(node, Folder):
                    pending.append(node.nodes())
                    break
            else:
                pending.pop()


class File(Node):
    """A file with its versions.

    ``versions`` are oldest first and never empty. Those before index ``born`` are of earlier files in its place.
    ``newest`` is the last of them: a listing of many files takes time for each object that it has to look at.
    """

    __slots__ = ("born", "newest", "versions")

    def __init__(self, node_id: str, name: str, parent: Folder, versions: list[Version], born: int = 0) -> None:
        self.id, self.name, self.parent = node_id, name, parent  # without super(), because every upload makes a file
        self.deleted_s = self.extra = None
        self.versions, self.newest, self.born = versions, versions[-1], born

    def add_version(self, version: Version) -> None:
        """Add a version, which is the newest one from now on."""
        self.versions.append(version)
        self.newest = version

    def remove_version(self, version: Version) -> None:
        """Remove a version, which must not be the only one."""
        self.versions.remove(version)
        self.newest = self.versions[-1]

    def drop_content(self) -> None:
        """Keep only the name, hash, size and times of each version."""
        self.versions = [version._replace(blob=version.blob.without_content()) for version in self.versions]
        self.newest = self.versions[-1]

    def is_seen(self, now_s: float) -> bool:
        """Return whether reads see any version of it."""
        return self.seen(now_s) is not None

    def seen(self, now_s: float) -> Version | None:
        """Return the newest version that reads see, or None."""
        if self.newest.visible_s <= now_s:  # nearly always
            return self.newest
        for index in range(len(self.versions) - 1, self.born - 1, -1):
            if self.versions[index].visible_s <= now_s:
                return self.versions[index]
        return None

    def listed(self, now_s: float) -> Version | None:
        """Return the newest version that listings see, or None."""
        newest = self.newest
        if newest.visible_s <= now_s and newest.listed_s <= now_s:  # nearly always
            return newest
        for index in range(len(self.versions) - 1, self.born - 1, -1):
            if max(self.versions[index].visible_s, self.versions[index].listed_s) <= now_s:
                return self.versions[index]
        return None


class ChangeLog(Generic[_Key]):
    """A log of changes, in the order in which reads see them. A cursor is an index into ``keys``.

    Attributes:
        keys: the ids, paths or keys of what changed, as the code that adds them chooses.
        listeners: called after each change, even if reads do not see it yet, and at the end.
        has_ended: whether a reset has replaced the account, so that nothing will change any more.
        number: larger than those of all earlier logs of this process, so that clients cannot use their positions in
            the log of an account that was replaced.
    """

    _numbers = count()

    def __init__(self) -> None:
        self.number = next(ChangeLog._numbers)
        self.keys: list[_Key] = []
        self._shown_s: list[float] = []
        self.listeners: list[Callable[[], None]] = []
        self.has_ended = False
        self._hidden: list[tuple[float, int, _Key]] = []
        self._count = 0

    def add(self, key: _Key, now_s: float, visible_s: float = 0.0, *, at_once: bool = False) -> None:
        """Log a change once reads see it. With ``at_once``, log it immediately as well."""
        if visible_s > now_s:
            self._count += 1
            heappush(self._hidden, (visible_s, self._count, key))
        if at_once or visible_s <= now_s:
            self._append(key, now_s)
        if self.listeners:
            self.wake()

    def wake(self) -> None:
        """Call the listeners."""
        for listener in self.listeners:
            listener()

    def finish(self) -> None:
        """Tell the listeners that nothing will change any more."""
        self.has_ended = True
        self.wake()

    def end(self, now_s: float) -> int:
        """Add the changes that have become visible by ``now_s``, and return the log's length for a read at that time.

        The length is less than that of ``keys`` if a replica that leads has already read further.
        """
        while self._hidden and self._hidden[0][0] <= now_s:
            visible_s, _, key = heappop(self._hidden)
            self._append(key, visible_s)
        return bisect_right(self._shown_s, now_s)

    def next_change_s(self, now_s: float = inf) -> float:
        """Return when the next pending change becomes visible, or infinity if there is none.

        Pass the time of the read if replicas may lead, because a change that one of them has read is still pending.
        """
        end = bisect_right(self._shown_s, now_s)
        if end < len(self._shown_s):
            return self._shown_s[end]
        return self._hidden[0][0] if self._hidden else inf

    def _append(self, key: _Key, visible_s: float) -> None:
        """Add a change that reads see from ``visible_s`` on, but not before they see the one in front of it.

        A cursor that passed over a hidden change would never come back to it.
        """
        self.keys.append(key)
        self._shown_s.append(max(visible_s, self._shown_s[-1]) if self._shown_s else visible_s)
