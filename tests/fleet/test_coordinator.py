"""The coordinator alone, without pytest, processes or a channel. Agents are lists of the replies they got."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import execnet
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pytest_cloudbench.fleet.agent import Agent
from pytest_cloudbench.fleet.coordinator import Coordinator, Item
from pytest_cloudbench.fleet.messages import (
    Ask,
    Done,
    Meet,
    Reply,
    Said,
    Tell,
    decode_from_agent,
    decode_to_agent,
    encode,
)
from pytest_cloudbench.load.messages import EndOfRun
from pytest_cloudbench.model import CloudbenchError, FleetError
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns, wait_for
from tests.limits import HANG_S, scale_examples

NODE = "test_it.py::test_one"
YOUR_TURN = Reply(is_turn=True)


class Fleet:
    """A coordinator and its agents. ``replies`` holds the replies each agent has got."""

    def __init__(self, count: int, patience_s: float = 60.0, **options: Any) -> None:
        self.killed: list[str] = []
        self.handled: list[tuple[str, dict[str, Any]]] = []
        self.coordinator = Coordinator(
            handlers={"sum": self._sum, "broken": self._broken},
            answers={
                "twice": lambda agent, payload: [agent, payload * 2],
                "odd": lambda agent, payload: object(),
                "broken": self._broken,
            },
            patience_s=patience_s,
            kill=lambda agent, reason: self.killed.append(agent),
            **options,
        )
        self.replies: dict[str, list[Any]] = {}
        for number in range(count):
            self.join(f"gw{number}")

    def _sum(self, item: Item, payloads: dict[str, Any]) -> int:
        self.handled.append((item.nodeid, payloads))
        return sum(payloads.values())

    def _broken(self, item: object, payloads: object) -> int:
        raise CloudbenchError("it broke")

    def join(self, agent: str) -> None:
        self.replies[agent] = []
        self.coordinator.join(agent, self.replies[agent].append)

    def assign(self, nodeid: str = NODE) -> None:
        for agent in self.replies:
            self.coordinator.assign(nodeid, agent)

    def meet(self, agent: str, name: str, payload: Any = None, nodeid: str = NODE) -> None:
        self.coordinator.receive(agent, Meet(0, nodeid, name, payload))

    def done(self, agent: str, name: str, value: Any = None, error: str | None = None) -> None:
        self.coordinator.receive(agent, Done(0, NODE, name, value, error))

    def take(self, agent: str) -> Any:
        """Return and remove the oldest reply. None if there is none."""
        return self.replies[agent].pop(0) if self.replies[agent] else None

    def enter(self, *agents: str, nodeid: str = NODE) -> None:
        for agent in agents:
            self.meet(agent, "enter", nodeid=nodeid)
        for agent in agents:
            assert self.take(agent) is not None

    def wait_until_killed(self, agent: str) -> None:
        assert wait_for(lambda: agent in self.killed, 30, poll_s=0.01)


@pytest.fixture
def three_agents() -> Fleet:
    fleet = Fleet(3)
    fleet.assign()
    return fleet


def test_agents_enter_together_and_in_order() -> None:
    fleet = Fleet(0)
    for name in ("gw10", "gw2", "gw0"):
        fleet.join(name)
    fleet.assign()
    fleet.meet("gw10", "enter")
    fleet.meet("gw0", "enter")
    assert fleet.replies == {"gw10": [], "gw2": [], "gw0": []}
    fleet.meet("gw2", "enter")
    assert {agent: fleet.take(agent).value["index"] for agent in fleet.replies} == {"gw0": 0, "gw2": 1, "gw10": 2}


def test_gathering_answers_all_agents_with_result_of_the_handler(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    for number, agent in enumerate(three_agents.replies):
        three_agents.meet(agent, "sum:a", number)
    assert [three_agents.take(agent) for agent in three_agents.replies] == [Reply(3)] * 3
    assert three_agents.handled == [(NODE, {"gw0": 0, "gw1": 1, "gw2": 2})], "once, with all payloads"
    for agent in three_agents.replies:
        three_agents.meet(agent, "broken")
    assert [three_agents.take(agent) for agent in three_agents.replies] == [Reply(error="it broke")] * 3
    for agent in three_agents.replies:
        three_agents.meet(agent, "plain", agent)
    assert three_agents.take("gw1") == Reply({"gw0": "gw0", "gw1": "gw1", "gw2": "gw2"})


def test_leader_runs_once_and_late_agents_receive_its_answer(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw1", "once:work")
    assert three_agents.take("gw1") is None, "it waits for the leader"
    three_agents.meet("gw0", "once:work")
    assert three_agents.take("gw0") == YOUR_TURN
    three_agents.done("gw1", "once:work", "not mine to say")
    three_agents.done("gw0", "once:work", 7)
    assert three_agents.take("gw0") == Reply(7)
    assert three_agents.take("gw1") == Reply(7)
    three_agents.meet("gw2", "once:work")
    assert three_agents.take("gw2") == Reply(7)


def test_answers_that_all_have_got_are_forgotten(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    for number in range(50):
        three_agents.meet("gw0", f"once:{number}")
        assert three_agents.take("gw0") == YOUR_TURN
        three_agents.done("gw0", f"once:{number}", number)
        for agent in ("gw1", "gw2"):
            three_agents.meet(agent, f"once:{number}")
        for agent in ("gw0", "gw1", "gw2"):
            three_agents.meet(agent, f"sum:{number}", number)
        assert [three_agents.replies[agent] for agent in ("gw0", "gw1", "gw2")] == [
            [Reply(number), Reply(3 * number)]
        ] * 3
        for replies in three_agents.replies.values():
            replies.clear()
    (item,) = three_agents.coordinator._items.values()
    assert list(item.answers) == ["sum:49"]


def test_a_new_leader_is_elected(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw0", "once:work")
    three_agents.meet("gw2", "once:work")
    assert three_agents.take("gw0") == YOUR_TURN
    three_agents.coordinator.leave_fleet("gw0", "was lost")
    assert three_agents.take("gw2") is None, "gw1 leads now, and has not arrived"
    three_agents.meet("gw1", "once:work")
    assert three_agents.take("gw1") == YOUR_TURN
    three_agents.coordinator.leave_fleet("gw1", "was lost")
    assert three_agents.take("gw2") == YOUR_TURN
    three_agents.done("gw2", "once:work", error="no")
    assert three_agents.take("gw2") == Reply(error="no")
    three_agents.meet("gw2", "leave", "")
    verdict = three_agents.take("gw2").value
    assert verdict["missing"] == {"gw0": "was lost", "gw1": "was lost"}
    assert verdict["agents"] == ["gw0", "gw1", "gw2"]
    assert verdict["log"] is True


def test_agents_do_not_wait_for_one_that_left_early(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw0", "leave", "its fixture broke")
    three_agents.meet("gw1", "sum:a", 1)
    assert three_agents.take("gw1") is None
    three_agents.meet("gw2", "sum:a", 2)
    assert (three_agents.take("gw1"), three_agents.take("gw2")) == (Reply(3), Reply(3))
    three_agents.meet("gw2", "once:work")
    three_agents.meet("gw1", "once:work")
    assert three_agents.take("gw1") == YOUR_TURN, "the first that is still there"
    three_agents.done("gw1", "once:work", 1)
    assert three_agents.take("gw0") is None, "all leave together"
    three_agents.meet("gw1", "leave", "")
    three_agents.meet("gw2", "leave", "")
    verdict = three_agents.take("gw0").value
    assert verdict["failures"] == {"gw0": "its fixture broke"}
    assert verdict["log"] is True


@pytest.mark.parametrize("first", ["failed one", "others"])
def test_failed_agent_waits_at_clean_up_without_delaying_others(three_agents: Fleet, first: str) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    if first == "failed one":
        three_agents.meet("gw0", "once:clean:x")
    for agent in ("gw1", "gw2"):
        three_agents.meet(agent, "sum:a", 1)
    if first == "others":
        assert three_agents.take("gw1") is None
        three_agents.meet("gw0", "once:clean:x")
    assert (three_agents.take("gw1"), three_agents.take("gw2")) == (Reply(2), Reply(2))
    for agent in ("gw1", "gw2"):
        three_agents.meet(agent, "once:list:x")
    assert three_agents.take("gw1") == YOUR_TURN
    assert three_agents.take("gw0") is None, "nothing is cleaned while the others still work"
    three_agents.done("gw1", "once:list:x", 1)
    for agent in ("gw1", "gw2"):
        assert three_agents.take(agent) == Reply(1)
        three_agents.meet(agent, "once:clean:x")
    assert three_agents.take("gw0") == YOUR_TURN
    three_agents.done("gw0", "once:clean:x", None)
    for agent in three_agents.replies:
        assert three_agents.take(agent) == Reply(None)
        three_agents.meet(agent, "sum:b", 1)
    assert three_agents.take("gw0") == Reply(3), "and takes part again"


def test_agent_that_failed_earlier_does_not_wait_at_folder_removal(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw1", "once:clean:first")
    assert three_agents.take("gw1") is None
    three_agents.meet("gw0", "once:remove:first")
    assert three_agents.take("gw0") == YOUR_TURN
    three_agents.done("gw0", "once:remove:first", True)
    three_agents.meet("gw2", "once:remove:first")
    assert (three_agents.take("gw0"), three_agents.take("gw2")) == (Reply(True), Reply(True))
    three_agents.meet("gw0", "once:clean:second")
    assert (three_agents.take("gw0"), three_agents.take("gw1")) == (None, None)
    three_agents.meet("gw2", "once:clean:second")
    assert (three_agents.take("gw0"), three_agents.take("gw1")) == (YOUR_TURN, YOUR_TURN)


def test_lost_agent_is_missing_only_in_its_current_test(three_agents: Fleet) -> None:
    three_agents.assign("second")
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw0", "sum:a", 1)
    three_agents.meet("gw1", "sum:a", 1)
    three_agents.coordinator.leave_fleet("gw2", "was lost")
    three_agents.coordinator.leave_fleet("gw2", "was lost")
    assert three_agents.take("gw0") == Reply(2)
    assert three_agents.take("gw1") == Reply(2)
    for agent in ("gw0", "gw1"):
        three_agents.meet(agent, "leave", "")
    assert three_agents.take("gw1").value["missing"] == {"gw2": "was lost"}
    three_agents.take("gw0")
    for agent in ("gw0", "gw1"):
        three_agents.meet(agent, "enter", nodeid="second")
    assert three_agents.take("gw1").value == {"index": 1, "count": 2, "stop": "", "again": 0}
    for agent in ("gw0", "gw1"):
        three_agents.meet(agent, "leave", "", nodeid="second")
    three_agents.take("gw0")
    assert three_agents.take("gw1").value["missing"] == {}


def test_an_agent_lost_at_an_item_of_its_own_is_missing_nowhere() -> None:
    fleet = Fleet(2, apart=lambda agent: agent == "gw1")
    fleet.assign()
    fleet.meet("gw0", "enter")
    fleet.coordinator.leave_fleet("gw1", "was lost")
    assert fleet.take("gw0").value["count"] == 1
    fleet.meet("gw0", "leave", "")
    assert fleet.take("gw0").value["missing"] == {}


def test_the_first_survivor_logs(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw0", "leave", "")
    three_agents.coordinator.leave_fleet("gw0", "was lost")
    for agent in ("gw1", "gw2"):
        three_agents.meet(agent, "leave", "")
    assert [three_agents.take(agent).value["log"] for agent in ("gw1", "gw2")] == [True, False]
    assert not three_agents.coordinator.take_orphan(NODE)
    three_agents.coordinator.leave_fleet("gw1", "was lost")
    assert three_agents.coordinator.take_orphan(NODE), "it was lost before it could log"
    assert not three_agents.coordinator.take_orphan(NODE), "reported once"


def test_test_that_lost_all_its_agents_is_reported_once(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    for agent in three_agents.replies:
        assert not three_agents.coordinator.take_orphan(NODE)
        three_agents.coordinator.leave_fleet(agent, "was lost")
    assert [three_agents.coordinator.take_orphan(NODE) for _ in range(3)] == [True, False, False]


def test_maxfail_counts_items_and_stops_at_the_next() -> None:
    fleet = Fleet(2, maxfail=2)
    for number, failure in enumerate(["no", "", "no"]):
        fleet.assign(f"item{number}")
        fleet.enter("gw0", "gw1", nodeid=f"item{number}")
        for agent in fleet.replies:
            fleet.meet(agent, "leave", failure, nodeid=f"item{number}")
            fleet.replies[agent].clear()
        fleet.replies["gw0"].clear()
    for agent in fleet.replies:
        fleet.meet(agent, "enter", nodeid="last")
    fleet.assign("last")
    assert fleet.take("gw0").value["stop"] == "stopping after 2 failures"


def test_straggler_is_killed_but_waiting_agents_are_not() -> None:
    fleet = Fleet(3, patience_s=0.2)
    fleet.assign()
    fleet.meet("gw0", "enter")
    fleet.meet("gw1", "enter")
    fleet.wait_until_killed("gw2")
    assert fleet.take("gw0").value["count"] == 2
    fleet.take("gw1")
    fleet.meet("gw0", "once:clean:x")
    fleet.meet("gw1", "sum:a", 1)
    assert fleet.take("gw1") == Reply(1)
    fleet.wait_until_killed("gw1")
    assert fleet.take("gw0") == YOUR_TURN
    fleet.coordinator.close()
    assert fleet.killed[:2] == ["gw2", "gw1"]
    assert fleet.coordinator.lost["gw1"] == "showed no sign of life for 0.2 s and was ended"


def test_agents_with_signs_of_life_or_tests_of_their_own_are_not_killed() -> None:
    alone = threading.Event()
    fleet = Fleet(3, patience_s=0.4, apart=lambda agent: agent == "gw2" and not alone.is_set())
    fleet.assign()
    fleet.meet("gw0", "enter")
    for _ in range(20):
        fleet.coordinator.receive("gw1", Ask(0, "twice", 2))
        assert fleet.take("gw1") == Reply(["gw1", 4])
        sleep_until_ns(due_ns(0.05))
    assert fleet.killed == []
    alone.set()
    fleet.wait_until_killed("gw2")
    fleet.coordinator.close()


def test_work_for_all_may_take_any_time_until_another_agent_waits() -> None:
    fleet = Fleet(2, patience_s=0.4)
    fleet.assign()
    fleet.enter("gw0", "gw1")
    fleet.meet("gw0", "once:work")
    assert fleet.take("gw0") == YOUR_TURN
    sleep_until_ns(due_ns(1.0))
    assert fleet.killed == []
    fleet.meet("gw1", "once:work")
    sleep_until_ns(due_ns(0.2))
    assert fleet.killed == [], "its patience begins now"
    fleet.wait_until_killed("gw0")
    assert fleet.take("gw1") == YOUR_TURN
    fleet.coordinator.close()


def test_an_agent_whose_question_is_not_answered_yet_is_not_silent() -> None:
    """A user may take any time to answer. Meanwhile no message of the agent that asked is read, nor its process's."""
    answered = threading.Event()
    fleet = Fleet(2, patience_s=0.2, ask=lambda agent, note: note() if agent == "gw1" else None)
    fleet.coordinator._answers["agree"] = lambda agent, payload: answered.wait(HANG_S)
    fleet.assign()
    fleet.enter("gw0", "gw1")
    fleet.meet("gw0", "once:work")
    fleet.meet("gw1", "once:work")
    asking = threading.Thread(target=fleet.coordinator.receive, args=("gw0", Ask(0, "agree")))
    asking.start()
    sleep_until_ns(due_ns(1.0))
    killed = list(fleet.killed)
    answered.set()
    asking.join()
    assert killed == []
    fleet.wait_until_killed("gw0")
    fleet.coordinator.close()


def test_dismissed_fleet_stops_with_a_reason(three_agents: Fleet) -> None:
    three_agents.enter("gw0", "gw1", "gw2")
    three_agents.meet("gw2", "sum:a", 1)
    returned = threading.Event()

    def dismiss() -> None:
        three_agents.coordinator.dismiss(30)
        returned.set()

    dismissal = threading.Thread(target=dismiss)
    dismissal.start()
    assert wait_for(lambda: three_agents.replies["gw1"] == [None], 10, poll_s=0.01)
    three_agents.meet("gw0", "sum:a", 1)
    assert not returned.is_set()
    three_agents.coordinator.receive("gw1", Tell("interrupted"))
    dismissal.join(HANG_S)
    assert returned.is_set(), "gw0 has stopped, gw1 was interrupted, gw2 was waiting anyway"
    assert three_agents.handled == [], "nothing is merged after the end"


class FleetMachine(RuleBasedStateMachine):
    """Agents that run one script, and are lost or fail at any time. None waits for ever, and none overtakes."""

    SCRIPT = ("enter", "sum:a", "once:work", "sum:b", "once:clean:x", "leave")
    FAIL_AT = SCRIPT.index("once:clean:x")

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(4)
        self.fleet.assign()
        self.step: dict[str, int] = dict.fromkeys(self.fleet.replies, -1)  # the last step that was answered
        self.waiting: dict[str, int] = {}
        self.running: set[str] = set()
        self.logs = 0

    def idle_agents(self) -> list[str]:
        return [agent for agent in self.step if agent not in self.waiting and agent not in self.running
                and self.step[agent] < len(self.SCRIPT) - 1]  # fmt: skip

    def _go(self, agent: str, step: int) -> None:
        self.waiting[agent] = step
        name = self.SCRIPT[step]
        self.fleet.meet(agent, name, 1 if name.startswith("sum") else "")
        self._collect()

    def _collect(self) -> None:
        for agent in list(self.step):
            while (reply := self.fleet.take(agent)) is not None:
                step = self.waiting.pop(agent)
                if reply == YOUR_TURN:
                    assert not self.running, "one at a time"
                    self.running.add(agent)
                    self.waiting[agent] = step
                    continue
                self.running.discard(agent)
                self.step[agent] = step
                if self.SCRIPT[step] == "leave":
                    self.logs += reply.value["log"]

    @precondition(lambda self: self.idle_agents())
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(self.idle_agents()))
        self._go(agent, self.step[agent] + 1)

    @precondition(lambda self: any(0 <= self.step[agent] < self.FAIL_AT - 1 for agent in self.idle_agents()))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        agent = data.draw(
            st.sampled_from(
                [idle_agent for idle_agent in self.idle_agents() if 0 <= self.step[idle_agent] < self.FAIL_AT - 1]
            )
        )
        self._go(agent, self.FAIL_AT)

    @precondition(lambda self: self.running)
    @rule()
    def finish(self) -> None:
        (agent,) = self.running
        self.running.clear()
        self.fleet.done(agent, self.SCRIPT[self.waiting[agent]], 1)
        self._collect()

    @precondition(lambda self: len(self.step) > 1)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.step)))
        del self.step[agent]
        self.waiting.pop(agent, None)
        self.running.discard(agent)
        self.fleet.coordinator.leave_fleet(agent, "was lost")
        self._collect()

    @precondition(lambda self: not self.idle_agents() and not self.running)
    @rule()
    def do_nothing(self) -> None:
        """Do nothing, because all agents are done."""

    @invariant()
    def somebody_can_move(self) -> None:
        finished = all(step == len(self.SCRIPT) - 1 for step in self.step.values())
        assert finished or self.idle_agents() or self.running, f"all wait: {self.waiting}"

    @invariant()
    def nobody_overtakes(self) -> None:
        """No agent is past the clean-up while another one still works before it."""
        past = [agent for agent, step in self.step.items() if step >= self.FAIL_AT]
        before = [agent for agent, step in self.step.items() if step < self.FAIL_AT and agent not in self.waiting]
        assert not (past and before)

    @invariant()
    def at_most_one_logs(self) -> None:
        assert self.logs <= 1


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(
    max_examples=scale_examples(150), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_an_agent_that_is_gone_before_its_first_item_is_not_waited_for() -> None:
    fleet = Fleet(2)
    fleet.coordinator.leave_fleet("gw0", "was lost")
    fleet.assign()
    fleet.meet("gw1", "enter")
    assert fleet.take("gw1") == Reply({"index": 0, "count": 1, "stop": "", "again": 0})


def test_broadcast_reaches_only_agents_at_the_test() -> None:
    fleet = Fleet(3)
    for agent in ("gw0", "gw1"):
        fleet.coordinator.assign(NODE, agent)
    fleet.coordinator.say(NODE, "end", EndOfRun("a run", 7))
    fleet.coordinator.say("another item", "end", EndOfRun("a run", 7))
    message = Said("end", {"run": "a run", "end_ns": 7})
    assert fleet.replies == {"gw0": [message], "gw1": [message], "gw2": []}


def test_agent_receives_broadcasts_between_question_and_answer() -> None:
    heard: list[Any] = []
    agent = Agent("gw0", lambda message: agent.deliver(Reply(5, to=1)))
    agent.listeners["end"] = heard.append
    agent.deliver(Said("end", {"run": "a", "end_ns": 1}))
    agent.deliver(Said("what nobody listens to", {}))
    assert (agent.ask("anything"), heard) == (5, [{"run": "a", "end_ns": 1}])


def test_an_item_that_is_run_again_waits_for_all_in_each_round() -> None:
    """Agents get the item again before its previous round is over."""
    fleet = Fleet(2, again=lambda nodeid, before: before)
    fleet.assign()
    fleet.enter("gw0", "gw1")
    fleet.assign()
    for agent in ("gw0", "gw1"):
        fleet.meet(agent, "leave", "")
    assert [fleet.take(agent).value["log"] for agent in ("gw0", "gw1")] == [True, False]
    fleet.meet("gw0", "enter")
    assert fleet.take("gw0") is None, "gw1 is still to come"
    fleet.meet("gw1", "enter")
    assert fleet.take("gw0").value == {"index": 0, "count": 2, "stop": "", "again": 1}
    assert fleet.take("gw1").value["again"] == 1


def test_entering_a_test_without_a_repetition_ends_it() -> None:
    fleet = Fleet(2, again=lambda nodeid, before: None if before else 0)
    fleet.assign()
    fleet.enter("gw0", "gw1")
    fleet.assign()
    for agent in ("gw0", "gw1"):
        fleet.meet(agent, "leave", "")
    assert [fleet.take(agent).value["log"] for agent in ("gw0", "gw1")] == [True, False]
    for agent in ("gw0", "gw1"):
        fleet.meet(agent, "enter")
    assert [fleet.take(agent).value["again"] for agent in ("gw0", "gw1")] == [None, None]


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (decode_from_agent, Tell("alive")),
        (decode_from_agent, Ask(1, "provide", "folder:x")),
        (decode_from_agent, Meet(2, NODE, "start:x", {"a": [1.5, None]})),
        (decode_from_agent, Done(3, NODE, "once:x", error="it broke")),
        (decode_to_agent, Reply({"b": [b"1", 2]}, to=3)),
        (decode_to_agent, YOUR_TURN),
        (decode_to_agent, Said("end", {"run": "a"})),
    ],
)
def test_messages_survive_an_execnet_channel(decode: Callable[[bytes], Any], message: Any) -> None:
    assert decode(execnet.loads(execnet.dumps(encode(message)))) == message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encode(YOUR_TURN), "Invalid value 'Reply' - at `$.type`"),
        (encode({"type": "Ask", "number": "one", "name": "clock"}), "Expected `int`, got `str` - at `$.number`"),
        (encode({"type": "Ask", "number": 1}), "Object missing required field `name`"),
        (encode({"type": "Tell", "name": "alive", "kind": "tell"}), "Object contains unknown field `kind`"),
        (b"", "Input data was truncated"),
    ],
)
def test_unreadable_message_is_refused_in_one_line(data: bytes, reason: str) -> None:
    with pytest.raises(FleetError, match=re.escape(f"a message of the fleet cannot be read: {reason}")):
        decode_from_agent(data)


def test_asker_receives_error_for_answer_that_cannot_be_sent() -> None:
    fleet = Fleet(1)
    fleet.coordinator.receive("gw0", Ask(4, "odd"))
    assert fleet.replies["gw0"][0] == Reply(error="object: cannot send a object; expected plain data", to=4)


def test_an_error_in_the_handler_of_a_message_without_an_answer_is_passed_on() -> None:
    errors: list[tuple[str, str, str]] = []
    fleet = Fleet(1, unhandled=lambda agent, name, error: errors.append((agent, name, str(error))))
    fleet.coordinator.receive("gw0", Tell("broken"))
    assert errors == [("gw0", "broken", "it broke")]
