"""The scheduler for xdist: fleet items go to all workers, the others are distributed.

It knows nothing about what an item does. It uses private names of pytest-xdist (the schedulers' attributes,
``DSession.sched``). The upper bound on its version is in pyproject.toml, and ``tests/fleet`` fails loudly when a name
moves.

A worker starts an item only when it knows the next one, so every node is kept two items ahead and no
more: ``-x`` and a failing fleet stop soon.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import EachScheduling, LoadScheduling
from xdist.workermanage import WorkerController

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.coordinator import Coordinator

_AHEAD = 2


class _Reported:
    """Tests whose outcome has reached the controller."""

    def __init__(self) -> None:
        self.nodeids: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (report.when == "call" or not report.passed) and str(report.outcome) != "rerun":
            self.nodeids.add(report.nodeid)


class FleetScheduling(EachScheduling):
    """A scheduler that gives items of the fleet, and items that must run alone, to every node in one order, at the end.

    At the end, ``again`` is asked which items to run once more, in which order. A node runs its last item only once it
    has a next one or is told to end. So the last item is queued twice: no node has ended yet when ``again`` is asked.
    ``curtain`` tells the coordinator which item it is, and the coordinator does not run it the second time.
    """

    def __init__(
        self, config: pytest.Config, log: Any, coordinator: Callable[[], Coordinator], fleet_items: set[str],
        again: Callable[[], Sequence[str]] | None = None, curtain: Callable[[str], None] = lambda nodeid: None,
    ) -> None:  # fmt: skip
        super().__init__(config, log)
        self._again, self._curtain = again, curtain
        self._has_curtain = False  # whether the last item is queued twice
        self.collection_is_completed: bool = False
        self._coordinator = coordinator
        self._shared: deque[int] = deque()
        self._for_all: list[int] = []
        self._cursor: dict[WorkerController, int] = {}
        self._handed = 0  # items of ``_for_all`` that some node has been given
        self._over: set[int] = set()  # items that somebody has finished, or that are to be reported as crashed
        self._reported = _Reported()
        self._collection: list[str] = []
        self.fleet_items = fleet_items
        """Node ids that every node runs; filled while the workers collect."""

    # -- what xdist asks --------------------------------------------------------------------------

    @property
    def tests_finished(self) -> bool:
        """True when every item has been sent, and no node has more than its last one to do."""
        if not self.collection_is_completed or self._shared:
            return False
        is_all_sent = all(cursor >= len(self._for_all) for cursor in [self._handed, *self._cursor.values()])
        return is_all_sent and all(len(pending) < _AHEAD for pending in self.node2pending.values())

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        """Remember what a node collected. A node that replaces a lost one must have collected the same."""
        assert node in self.node2pending
        self.node2collection[node] = list(collection)
        if not self.collection_is_completed and len(self.node2collection) >= self.numnodes:
            self.collection_is_completed = True

    def schedule(self) -> None:
        """Send the first items to nodes that have none yet, unless it is too late for them."""
        if not self._collection:
            if not LoadScheduling._check_nodes_have_same_collection(self):  # says what differs
                return
            self._collection = next(iter(self.node2collection.values()))
            self.config.pluginmanager.register(self._reported)
            for index, nodeid in enumerate(self._collection):
                (self._for_all if nodeid in self.fleet_items else self._shared).append(index)
            if self._again is not None and self._for_all:
                self._for_all.append(self._for_all[-1])
                self._has_curtain = True
                self._curtain(self._collection[self._for_all[-1]])
        self._admit_nodes()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Send another item to a node that has finished one."""
        self.node2pending[node].remove(item_index)
        self._over.add(item_index)
        self._ask_again()
        self._feed(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a lost node, and return the item to report as crashed. The fleet reports its own items itself."""
        pending = self.node2pending.pop(node)
        self._cursor.pop(node, 0)
        self.node2collection.pop(node, None)
        crashed = pending[0] if pending and self._is_ours_to_report(self._collection[pending[0]]) else None
        if crashed is not None:
            self._over.add(crashed)
        self._take_back(pending[1:])
        self._admit_nodes()
        self._ask_again()
        for other in self._cursor:
            self._feed(other)
        return None if crashed is None else self._collection[crashed]

    def list_unreported(self) -> list[str]:
        """Return items that no report has arrived for."""
        return [nodeid for nodeid in self._collection if nodeid not in self._reported.nodeids]

    def _is_ours_to_report(self, nodeid: str) -> bool:
        """Return whether a lost node was the last one that could have reported its current item."""
        if nodeid in self._reported.nodeids:
            return False
        return nodeid not in self.fleet_items or self._coordinator().take_orphan(nodeid)

    def _take_back(self, indices: Sequence[int]) -> None:
        """Give items that a lost node had not begun to the remaining nodes or to its replacement."""
        for index in reversed(indices):
            if self._collection[index] not in self.fleet_items:
                self._shared.appendleft(index)
            elif index not in self._over and not self._somebody_has(index):
                self._for_all.insert(self._handed, index)

    def _somebody_has(self, index: int) -> bool:
        """Return whether a remaining node still has to run an item, which is queued there or only at faster nodes."""
        return any(index in pending for pending in self.node2pending.values()) or any(
            index in self._for_all[cursor : self._handed] for cursor in self._cursor.values()
        )

    # -- what the coordinator asks -----------------------------------------------------------------

    def is_apart(self, agent: str) -> bool:
        """Return whether an agent is at an item that only it runs."""
        for node, pending in list(self.node2pending.items()):
            if node.gateway.id == agent and pending:
                return self._collection[pending[0]] not in self.fleet_items
        return False

    # ----------------------------------------------------------------------------------------------

    def _admit_nodes(self) -> None:
        """Let new nodes take part from the next item on that nobody has yet.

        From the second turn of the last item on, one item comes several times in a row, and the others may be in its
        former turn, in which a new node would be awaited without ever coming. So it takes no part if there are others.
        """
        if not self._collection or (self._cursor and self._only_turns_are_left()):
            return
        new = [node for node in self.node2pending if node in self.node2collection and node not in self._cursor]
        self._cursor.update(dict.fromkeys(new, self._handed))
        for node in new:
            self._feed(node)

    def _only_turns_are_left(self) -> bool:
        """Return whether nobody has yet only the last item's second turn, or repetitions after it."""
        return self._has_curtain and (self._again is None or self._handed >= len(self._for_all) - 1)

    def _ask_again(self) -> None:
        """Once every node has finished all but the last item's second turn, ask what is to be run again.

        The first finished node is too early, because the leader of an item then still has to report how it ended.
        """
        total, pending = len(self._for_all), self.node2pending
        if self._again is None or not self._cursor or self._shared:
            return
        if any(cursor < total or len(pending[node]) >= _AHEAD for node, cursor in self._cursor.items()):
            return
        again, self._again = self._again(), None
        self._for_all += [self._collection.index(nodeid) for nodeid in again]
        for node in self._cursor:
            self._feed(node)

    def _feed(self, node: WorkerController) -> None:
        """Keep a node ``_AHEAD`` items ahead: shared items first, then those that every node runs."""
        if node.shutting_down:
            return
        pending, batch = self.node2pending[node], list[int]()
        while len(pending) + len(batch) < _AHEAD:
            if self._shared:
                batch.append(self._shared.popleft())
            elif self._cursor[node] < len(self._for_all):
                batch.append(self._next_for_all(node))
            else:
                break
        if batch:
            pending.extend(batch)
            # If the node is gone, xdist calls ``remove_node`` next, which takes its items back.
            with contextlib.suppress(OSError):
                node.send_runtest_some(batch)

    def _next_for_all(self, node: WorkerController) -> int:
        """Return a node's next item among those that all nodes run.

        If no other node has it yet, tell the coordinator to wait for all nodes that have not passed it.
        """
        position = self._cursor[node]
        index = self._for_all[position]
        for other, cursor in self._cursor.items() if position >= self._handed else ():
            if cursor <= position:
                self._coordinator().assign(self._collection[index], other.gateway.id)
        self._cursor[node] += 1
        self._handed = max(self._handed, self._cursor[node])
        return index
