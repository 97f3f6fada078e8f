"""The scheduler and the coordinator together, without processes: workers that are replaced while items are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from xdist.remote import Producer

from pytest_cloudbench.fleet.coordinator import Coordinator
from pytest_cloudbench.fleet.messages import Meet
from pytest_cloudbench.fleet.scheduler import FleetScheduling

ITEMS = ["test_it.py::test_a", "test_it.py::test_b"]
SUSPECT = ITEMS[1]
ROUNDS = 3


class Worker:
    """A worker that runs an item once it has a next one or is told to end, as xdist's workers do."""

    def __init__(self, name: str) -> None:
        self.gateway = self
        self.id = name
        self.shutting_down = False
        self.queue: list[int] = []
        self.replies: list[Any] = []
        self.stage = ""

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.queue.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True


class GatedSession:
    """A controller that has one suspect measured again at the end, and its workers. See ``add``.

    Attributes:
        rounds: the agents that measured an item, for each time that it was measured.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.rounds: list[tuple[str, list[str]]] = []
        self._curtain = ""
        self.coordinator = Coordinator(handlers={}, answers={}, patience_s=60, again=self._find_round)
        self.scheduler = FleetScheduling(
            config, Producer("scheduler", enabled=False), lambda: self.coordinator, set(ITEMS),
            lambda: [SUSPECT] * ROUNDS, self._set_curtain,
        )  # fmt: skip
        self.workers: dict[str, Worker] = {}

    def _set_curtain(self, nodeid: str) -> None:
        self._curtain = nodeid

    def _find_round(self, nodeid: str, before: int) -> int | None:
        if before and nodeid == self._curtain:
            self._curtain = ""
            return None
        return before

    def add(self, name: str) -> None:
        """Start a worker, which collects the tests at once."""
        worker: Any = Worker(name)
        self.workers[name] = worker
        self.coordinator.join(name, worker.replies.append)
        self.scheduler.add_node(worker)
        self.scheduler.add_node_collection(worker, ITEMS)
        if self.scheduler.collection_is_completed:
            self.scheduler.schedule()

    def lose(self, name: str) -> None:
        """Lose a worker at whatever it does."""
        worker: Any = self.workers.pop(name)
        self.coordinator.leave_fleet(name, "was lost")
        self.scheduler.remove_node(worker)

    def run_until(self, name: str, stage: str, rounds: int) -> None:
        """Let workers go on until one has come to a stage of an item, after so many measurements have begun."""
        while not (self.workers[name].stage == stage and len(self.rounds) >= rounds):
            assert self.go_on(), f"all wait: {self.describe()}"

    def run_to_the_end(self) -> None:
        """Let workers go on until nothing is left to do."""
        while not (self.scheduler.tests_finished and not any(worker.queue for worker in self.workers.values())):
            assert self.go_on(), f"all wait: {self.describe()}"

    def describe(self) -> dict[str, tuple[str, list[int]]]:
        return {name: (worker.stage, worker.queue) for name, worker in self.workers.items()}

    def go_on(self) -> bool:
        """Let each worker take its next step. Return whether any could."""
        if self.scheduler.tests_finished:
            for worker in self.workers.values():
                worker.shutdown()
        steps = [self._take_step(worker) for worker in self.workers.values()]
        return any(steps)

    def _take_step(self, worker: Any) -> bool:
        if not worker.stage:
            if len(worker.queue) < 2 and not (worker.queue and worker.shutting_down):
                return False
            return self._meet(worker, "enter")
        if not worker.replies:
            return False
        reply = worker.replies.pop(0)
        if worker.stage == "enter" and reply.value["again"] is not None:
            if reply.value["index"] == 0:
                nodeid = ITEMS[worker.queue[0]]
                self.rounds.append((nodeid, list(self.coordinator._items[nodeid].entered)))
            return self._meet(worker, "leave", "")
        worker.stage = ""
        self.scheduler.mark_test_complete(worker, worker.queue.pop(0))
        return True

    def _meet(self, worker: Any, name: str, payload: Any = None) -> bool:
        worker.stage = name
        self.coordinator.receive(worker.id, Meet(0, ITEMS[worker.queue[0]], name, payload))
        return True


@pytest.fixture
def empty_session(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[GatedSession]:
    monkeypatch.setattr(pytestconfig.option, "tx", ["2*popen"])
    new_session = GatedSession(pytestconfig)
    yield new_session
    new_session.coordinator.close()
    pytestconfig.pluginmanager.unregister(new_session.scheduler._reported)


@pytest.fixture
def session(empty_session: GatedSession) -> GatedSession:
    """A session whose two workers have collected the tests."""
    for name in ("gw0", "gw1"):
        empty_session.add(name)
    return empty_session


def test_a_suspect_is_measured_again_by_all_workers(session: GatedSession) -> None:
    session.run_to_the_end()
    assert session.rounds == [(ITEMS[0], ["gw0", "gw1"]), *[(SUSPECT, ["gw0", "gw1"])] * (1 + ROUNDS)]


@pytest.mark.parametrize("stage", ["enter", "leave", ""])
@pytest.mark.parametrize("rounds", range(1, 2 + ROUNDS))
def test_a_worker_that_replaces_a_lost_one_at_any_time_hangs_nobody(
    session: GatedSession, rounds: int, stage: str
) -> None:
    """Others have entered a repetition that it was not there for, or are one ahead of it."""
    session.run_until("gw0", stage, rounds)
    session.lose("gw1")
    session.add("gw2")
    session.run_to_the_end()
    assert sum(nodeid == SUSPECT for nodeid, _ in session.rounds) == 1 + ROUNDS
    assert all("gw0" in agents for _, agents in session.rounds)


def test_a_worker_that_is_lost_while_it_collects_keeps_nobody_from_the_items(empty_session: GatedSession) -> None:
    lost: Any = Worker("gw1")
    empty_session.add("gw0")
    empty_session.scheduler.add_node(lost)
    empty_session.scheduler.remove_node(lost)
    empty_session.add("gw2")
    empty_session.run_to_the_end()
    assert [agents for _, agents in empty_session.rounds] == [["gw0", "gw2"]] * (2 + ROUNDS)


@pytest.mark.parametrize("rounds", range(2, 2 + ROUNDS))
def test_replacements_take_over_when_all_others_are_lost(session: GatedSession, rounds: int) -> None:
    session.run_until("gw0", "leave", rounds)
    session.lose("gw1")
    session.add("gw2")
    session.run_until("gw0", "leave", rounds)
    session.lose("gw0")
    session.add("gw3")
    session.run_to_the_end()
    assert sum(nodeid == SUSPECT for nodeid, _ in session.rounds) == ROUNDS, "all but those handed to lost workers"
