"""Which worker gets which item: fleet items go to all, the rest is shared out.

What may live here: the xdist scheduler, and nothing about what an item does. Leans on private names of
pytest-xdist (``EachScheduling``'s attributes, ``DSession.sched``); the upper bound on its version is in
pyproject.toml, and ``tests/fleet`` fails loudly when a name moves.

A worker starts an item only when it knows the next one, so every node is kept two items ahead and no
more: ``-x`` and a failing fleet stop soon.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import EachScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.coordinator import Coordinator

__all__ = ["FleetScheduling"]

_AHEAD = 2


class FleetScheduling(EachScheduling):
    """Gives items marked ``fleet`` (and those that must run alone) to every node in one order, after the others.

    In a session without such items it hands over to the scheduler that ``--dist`` asks for.
    """

    def __init__(
        self, config: pytest.Config, log: Any, coordinator: Callable[[], Coordinator], fleet_items: set[str]
    ) -> None:
        super().__init__(config, log)
        self.collection_is_completed: bool = False
        self._log, self._coordinator = log, coordinator
        self._shared: deque[int] = deque()
        self._for_all: list[int] = []
        self._cursor: dict[WorkerController, int] = {}
        self._begin = 0
        self._collection: list[str] = []
        self.fleet_items = fleet_items
        """Node ids that every node runs; filled while the workers collect."""

    # -- what xdist asks --------------------------------------------------------------------------

    @property
    def tests_finished(self) -> bool:
        """Whether every item has been sent, and no node has more than its last one to do."""
        if not self.collection_is_completed or self._shared:
            return False
        sent = all(cursor >= len(self._for_all) for cursor in self._cursor.values())
        return sent and all(len(pending) < _AHEAD for pending in self.node2pending.values())

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Remember what a node collected; a node that replaces a lost one must have collected the same."""
        assert node in self.node2pending
        self.node2collection[node] = list(collection)
        if not self.collection_is_completed and len(self.node2collection) >= self.numnodes:
            self.collection_is_completed = True

    def schedule(self) -> None:
        """Send the first items to nodes that have none yet."""
        if not self._collection:
            self._collection = next(iter(self.node2collection.values()))
            if any(collection != self._collection for collection in self.node2collection.values()):
                raise pytest.UsageError("cloudbench: the workers collected different tests")
            if not self.fleet_items:
                self._hand_over()
                return
            for index, nodeid in enumerate(self._collection):
                (self._for_all if nodeid in self.fleet_items else self._shared).append(index)
        new = [node for node in self.node2pending if node in self.node2collection and node not in self._cursor]
        begin = max(self._cursor.values(), default=self._begin)  # a replacement joins at the next item nobody has yet
        self._cursor.update(dict.fromkeys(new, begin))
        for node in new:
            self._feed(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """A node has finished an item: send it another one."""
        self.node2pending[node].remove(item_index)
        self._feed(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """A node is gone. Returns the item to report as crashed; the fleet reports its own items itself."""
        pending = self.node2pending.pop(node)
        cursor = self._cursor.pop(node, 0)
        self.node2collection.pop(node, None)
        crashed = self._collection[pending[0]] if pending else None
        if not self._cursor:  # all are lost: what they had not begun is for those that replace them
            self._begin = cursor - sum(self._collection[index] in self.fleet_items for index in pending[1:])
        for index in reversed(pending[1:]):
            if self._collection[index] not in self.fleet_items:
                self._shared.appendleft(index)
        for other in self._cursor:
            self._feed(other)
        if crashed in self.fleet_items and not self._coordinator().orphaned(crashed):
            return None
        return crashed

    # -- what the coordinator asks -----------------------------------------------------------------

    def apart(self, agent: str) -> bool:
        """Whether an agent is at an item that it alone runs."""
        for node, pending in list(self.node2pending.items()):
            if node.gateway.id == agent and pending:
                return self._collection[pending[0]] not in self.fleet_items
        return False

    # ----------------------------------------------------------------------------------------------

    def _feed(self, node: WorkerController) -> None:
        """Keep a node ``_AHEAD`` items ahead: shared items first, then what all run."""
        pending, batch = self.node2pending[node], list[int]()
        while len(pending) + len(batch) < _AHEAD:
            if self._shared:
                batch.append(self._shared.popleft())
            elif self._cursor[node] < len(self._for_all):
                batch.append(self._next_for_all(node))
            else:
                break
        if batch and not node.shutting_down:
            pending.extend(batch)
            node.send_runtest_some(batch)

    def _next_for_all(self, node: WorkerController) -> int:
        """The next item that all run. Whoever has not come so far yet takes part in it: it waits for them."""
        position = self._cursor[node]
        index = self._for_all[position]
        for other, cursor in self._cursor.items():
            if cursor <= position:
                self._coordinator().assign(self._collection[index], other.gateway.id)
        self._cursor[node] += 1
        return index

    def _hand_over(self) -> None:
        """No fleet item in this session: the stock scheduler takes over as if it had been there from the start."""
        session: Any = self.config.pluginmanager.getplugin("dsession")
        stock = session.pytest_xdist_make_scheduler(config=self.config, log=self._log)
        for node in self.node2pending:
            stock.add_node(node)
            if node in self.node2collection:
                stock.add_node_collection(node, self.node2collection[node])
        session.sched = stock
        stock.schedule()
