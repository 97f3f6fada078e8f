"""The controller's half of the fleet: meetings of agents, and the handling of lost and late ones.

It knows neither pytest nor xdist. Any duplex channel carries the messages (``fleet.messages``). Without xdist, the one
agent calls the coordinator directly.

Life of an item (one experiment)::

    assign -> enter -> { gather | once }* -> leave -> forgotten

An agent that is lost, or that leaves early, is no longer waited for. An agent that shows no sign of
life for ``patience_s`` after another began to wait for it is a straggler and is removed. So is one whose
process does not even answer a probe, whether or not anyone waits, since all agents may be stopped. An agent that
failed goes to the last meeting of its experiment (``once:clean:*``) at once: the others meet without it,
and it waits for them there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytest_cloudbench.fleet.messages import (
    Ask,
    Done,
    Entered,
    FromAgent,
    Left,
    Meet,
    Message,
    Reply,
    Said,
    ToAgent,
    make_plain,
)
from pytest_cloudbench.model import CloudbenchError
from pytest_cloudbench.support.wording import format_count

_ONCE, _LAST = "once:", "once:clean:"

Handler = Callable[["Item", dict[str, Any]], Any]
"""Called with the item and the payloads by agent when a gathering is complete. All agents get its result."""


@dataclass(slots=True)
class _Meeting:
    """One gathering in progress. ``numbers`` has the number of each agent's last request, which the answer repeats."""

    name: str
    arrived: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    since_s: float = field(default_factory=time.monotonic)
    runner: str | None = None

    @property
    def is_awaited(self) -> bool:
        """True if an agent waits for others, or for the one that works for all."""
        return any(agent != self.runner for agent in self.arrived)


@dataclass(slots=True)
class Item:
    """One experiment while the fleet works on it.

    Attributes:
        nodeid: pytest's node id.
        members: agents that take part, in order; the first one leads. Fixed when the item is entered.
        entered: agents that took part at the beginning.
        missing: the reason why an agent was lost at this item, by agent.
        expected: how many agents would have taken part if none had been lost before; 0 if that is not known.
        finished: agents that are done with it.
        busy_until_s: time until which all agents are known to be busy, on the monotonic clock; none is late before it.
    """

    nodeid: str
    members: list[str] = field(default_factory=list)
    entered: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    expected: int = 0
    finished: set[str] = field(default_factory=set)
    meetings: dict[str, _Meeting] = field(default_factory=dict)
    answers: dict[str, Reply] = field(default_factory=dict)
    busy_until_s: float = 0.0


class Coordinator:
    """Keeps the agents of all items in step.

    Args:
        handlers: called when a gathering is complete, by its name up to ``:``; without one, agents get all payloads.
        answers: by the name of a request: called to answer one agent, without a meeting.
        patience_s: how long an agent may show no sign of life while others wait for it.
        kill: ends an agent, with the reason.
        ask: asks whether an agent's process runs, and calls back when it answers; None if there is no other process.
        apart: whether an agent is at an item that only it runs, which may take any time.
        stop: whether the session is to stop before the next item, and why.
        maxfail: failed items after which to stop; 0 means never.
        again: returns which round of an item begins, given how many rounds have ended; None: it is not run.
        size: returns how many agents the session is to have.
        unhandled: called with an agent, the name of a message that awaits no answer, and the error of its handler.
            Without it, ``receive`` raises the error.
    """

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        answers: Mapping[str, Callable[[str, Any], Any]],
        patience_s: float,
        kill: Callable[[str, str], None] = lambda agent, reason: None,
        ask: Callable[[str, Callable[[], None]], None] | None = None,
        apart: Callable[[str], bool] = lambda agent: False,
        stop: Callable[[], str] = lambda: "",
        maxfail: int = 0,
        again: Callable[[str, int], int | None] = lambda nodeid, before: 0,
        size: Callable[[], int] = lambda: 1,
        unhandled: Callable[[str, str, Exception], None] | None = None,
    ) -> None:
        self._handlers, self._answers, self._patience_s = dict(handlers), dict(answers), patience_s
        self._kill, self._ask, self._apart, self._stop, self._maxfail = kill, ask, apart, stop, maxfail
        self._again, self._size, self._unhandled = again, size, unhandled
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._dismissed = False
        self._at_rest: set[str] = set()
        self._send: dict[str, Callable[[ToAgent | None], None]] = {}
        self._life_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._answered_s: dict[str, float] = {}
        self._asking: set[str] = set()
        self._sending: tuple[str, float] | None = None
        self._items: dict[str, Item] = {}
        self._loggers: dict[str, str] = {}
        self._left = Counter[str]()
        self._assigned_again: dict[str, list[str]] = {}
        self._orphans: set[str] = set()
        self._failed_items = 0
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        self.lost: dict[str, str] = {}

    # -- agents ---------------------------------------------------------------------------------

    def join(self, agent: str, send: Callable[[ToAgent | None], None]) -> None:
        """Add a new agent. ``send`` reaches it, and sending None tells it that the session ends."""
        with self._lock:
            self._send[agent] = send
            self._life_s[agent] = time.monotonic()
            if self._ask is not None:
                self._start_watch()

    def leave_fleet(self, agent: str, reason: str) -> None:
        """Stop waiting for an agent that is gone. Its measurements are kept.

        It counts as missing at its current item; the items that it was given in advance begin without it.
        """
        with self._lock:
            if self._send.pop(agent, None) is None:
                return
            self.lost[agent] = reason
            at_item = not self._apart(agent)
            for item in [item for item in self._items.values() if agent in item.members]:
                item.members.remove(agent)
                if at_item:
                    item.missing[agent] = reason
                at_item = False
                if agent not in item.finished:
                    for meeting in item.meetings.values():
                        meeting.arrived.pop(agent, None)
                self._settle(item)
            self._changed.notify_all()

    def assign(self, nodeid: str, agent: str) -> None:
        """Note that the scheduler gave an item to an agent. An agent that is already gone is not waited for."""
        with self._lock:
            item = self._items.setdefault(nodeid, Item(nodeid))
            if agent in self._send and agent not in item.members:
                item.members.append(agent)
            elif agent in self._send:  # it is to run this item once more
                self._assigned_again.setdefault(nodeid, []).append(agent)

    def take_orphan(self, nodeid: str) -> bool:
        """Return whether no agent is left to report an item. It is True once, for the caller who then reports it."""
        with self._lock:
            item = self._items.get(nodeid)
            is_orphaned = not item.members if item else self._loggers.get(nodeid) not in {None, *self._send}
            if not is_orphaned or nodeid in self._orphans:
                return False
            self._orphans.add(nodeid)
            self._items.pop(nodeid, None)
            return True

    def dismiss(self, patience_s: float) -> None:
        """End the session: agents stop what they do. Returns when none measures any more, or after ``patience_s``."""
        with self._changed:
            self._dismissed = True
            entered = [item for item in self._items.values() if item.entered]
            for meeting in (meeting for item in entered for meeting in item.meetings.values()):
                self._at_rest |= meeting.arrived.keys() - {meeting.runner}
            for agent in list(self._send):
                self._tell(agent, None)
            busy = {agent for item in entered for agent in item.members}
            self._changed.wait_for(lambda: not busy & self._send.keys() - self._at_rest, patience_s)

    def _note_rest(self, agent: str) -> None:
        """Note that the agent has stopped measuring for good."""
        with self._changed:
            self._at_rest.add(agent)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop watching for stragglers."""
        self._closed.set()
        if self._watch is not None:
            self._watch.join()

    # -- messages -------------------------------------------------------------------------------

    def receive(self, agent: str, message: FromAgent) -> None:
        """Handle one message from an agent. Called from any thread."""
        with self._lock:
            self._life_s[agent] = time.monotonic()
            if isinstance(message, (Meet, Done)):
                if self._dismissed:  # it finds the end of the session in its inbox
                    self._note_rest(agent)
                elif isinstance(message, Meet):
                    self._meet(agent, message)
                else:
                    self._done(agent, message)
                return
        if isinstance(message, Ask):
            self._asking.add(agent)  # nothing else that its process says is read until it has its answer
            try:
                reply = _answer(self._answers[message.name], agent, message.payload)
            finally:
                self._life_s[agent] = time.monotonic()
                self._asking.discard(agent)
            self._reply(agent, message.number, reply)
        elif message.name == "interrupted":
            self._note_rest(agent)
        else:
            try:
                self._answers[message.name](agent, message.payload)
            except Exception as error:  # it must not end the channel, as if the controller were gone
                if self._unhandled is None:
                    raise
                self._unhandled(agent, message.name, error)

    def say(self, nodeid: str, name: str, payload: Message) -> None:
        """Tell all agents at an item something that they did not ask for. See ``Agent.listeners``."""
        with self._lock:
            item = self._items.get(nodeid)
            for agent in item.members if item is not None else ():
                self._tell(agent, Said(name, payload.plain()))

    def _meet(self, agent: str, message: Meet) -> None:
        name, item = message.name, self._items.setdefault(message.item, Item(message.item))
        if name == "enter" and agent not in item.members:
            item.members.append(agent)
        if name in item.answers:
            self._reply(agent, message.number, item.answers[name])
            return
        meeting = item.meetings.setdefault(name, _Meeting(name))
        if not meeting.is_awaited:
            meeting.since_s = time.monotonic()
        meeting.arrived[agent], meeting.numbers[agent] = message.payload, message.number
        if name == "leave":
            item.finished.add(agent)
        self._start_watch()
        self._settle(item)

    def _done(self, agent: str, message: Done) -> None:
        item = self._items.get(message.item)
        meeting = item.meetings.get(message.name) if item else None
        if item is None or meeting is None or meeting.runner != agent:
            return
        meeting.numbers[agent] = message.number
        self._answer_all(item, meeting, Reply(message.value, message.error))

    def _reply(self, agent: str, number: int, reply: Reply) -> None:
        self._tell(agent, reply.replace(to=number))

    def _tell(self, agent: str, message: ToAgent | None) -> None:
        send = self._send.get(agent)
        if send is not None:
            self._sending = agent, time.monotonic()
            with contextlib.suppress(OSError):  # its channel is closing: leave_fleet follows
                send(message)
            self._sending = None

    def find_item(self, agent: str) -> Item | None:
        """Return the first item that an agent has not finished."""
        with self._lock:
            items = self._items.values()
            return next((item for item in items if agent in item.members and agent not in item.finished), None)

    # -- meetings -------------------------------------------------------------------------------

    def _settle(self, item: Item) -> None:
        """Close every meeting of an item that no longer waits for anyone."""
        for meeting in list(item.meetings.values()):
            if meeting.name.startswith(_ONCE):
                self._elect(item, meeting)
            elif meeting.arrived and not self._list_awaited(item, meeting):
                self._close_meeting(item, meeting)
        if not item.members and item.entered:
            item.meetings.clear()

    @staticmethod
    def _list_participants(item: Item, meeting: _Meeting) -> list[str]:
        """Return the members that have arrived at a meeting or are still to come. All come to ``leave``."""
        if meeting.name == "leave":
            return item.members
        gone = set(item.finished)
        # An agent that failed skips the rest of its experiment, and removes the files that it knows of.
        for other in item.meetings.values():
            if other.name.startswith(_LAST) and other is not meeting:
                gone |= other.arrived.keys()
        return [agent for agent in item.members if agent not in gone]

    def _list_awaited(self, item: Item, meeting: _Meeting) -> list[str]:
        """Return the members that are still to come. If the first one works for all, only that one is awaited."""
        members = self._list_participants(item, meeting)
        if meeting.name.startswith(_ONCE) and not meeting.name.startswith(_LAST):
            members = members[:1]
        return [agent for agent in members if agent not in meeting.arrived]

    def _elect(self, item: Item, meeting: _Meeting) -> None:
        """Let the first remaining member run what must be done once."""
        members = self._list_participants(item, meeting)
        if meeting.runner in members or self._list_awaited(item, meeting):
            return
        meeting.runner = members[0] if members else None
        if meeting.runner is not None:
            self._reply(meeting.runner, meeting.numbers[meeting.runner], Reply(is_turn=True))

    def _close_meeting(self, item: Item, meeting: _Meeting) -> None:
        if meeting.name == "enter":
            self._close_enter(item, meeting)
        elif meeting.name == "leave":
            self._close_leave(item, meeting)
        else:
            handler = self._handlers.get(meeting.name.partition(":")[0], lambda item, payloads: payloads)
            self._answer_all(item, meeting, _answer(handler, item, dict(meeting.arrived)))

    def _answer_all(self, item: Item, meeting: _Meeting, reply: Reply) -> None:
        item.meetings.pop(meeting.name, None)
        if not meeting.name.startswith(_ONCE):  # everyone came to this meeting, so everyone has the earlier answers
            item.answers = {name: answer for name, answer in item.answers.items() if name.startswith(_LAST)}
        item.answers[meeting.name] = reply
        for agent in meeting.arrived:
            self._reply(agent, meeting.numbers[agent], reply)

    def _close_enter(self, item: Item, meeting: _Meeting) -> None:
        item.meetings.pop("enter")
        item.members.sort(key=_natural)
        item.entered = list(item.members)
        item.expected = self._size()
        stop = self._stop()
        if not stop and self._maxfail and self._failed_items >= self._maxfail:
            stop = f"stopping after {format_count(self._failed_items, 'failure')}"
        again = self._again(item.nodeid, self._left[item.nodeid])
        for index, agent in enumerate(item.members):
            entered = Entered(index, len(item.members), stop, again)
            self._reply(agent, meeting.numbers[agent], Reply(entered.plain()))
        if stop or again is None:
            self._forget(item)

    def _forget(self, item: Item) -> None:
        """Forget an item that is over. Agents that are to run it again wait for the others of that round."""
        self._items.pop(item.nodeid, None)
        again = [agent for agent in self._assigned_again.pop(item.nodeid, ()) if agent in self._send]
        if again:
            self._items[item.nodeid] = Item(item.nodeid, list(dict.fromkeys(again)))

    def _close_leave(self, item: Item, meeting: _Meeting) -> None:
        self._left[item.nodeid] += 1
        self._forget(item)
        failures = {agent: text for agent, text in meeting.arrived.items() if text}
        self._failed_items += bool(failures or item.missing)
        logger = self._loggers[item.nodeid] = next(iter(item.members), "")
        for agent in item.members:
            ending = Left(failures, item.missing, tuple(item.entered), log=agent == logger)
            self._reply(agent, meeting.numbers[agent], Reply(ending.plain()))

    # -- stragglers -----------------------------------------------------------------------------

    def _start_watch(self) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=self._watch_stragglers, name="stragglers", daemon=True)
            self._watch.start()

    def _watch_stragglers(self) -> None:
        period_s, last_s = min(1.0, self._patience_s / 4), time.monotonic()
        while not self._closed.wait(period_s):
            former_s, last_s = last_s, time.monotonic()
            if not self._lock.acquire(timeout=period_s):
                self._free_sender()
                continue
            try:
                if last_s - former_s > 10 * period_s:  # this process was stopped itself (Ctrl-Z)
                    self._begin_anew(last_s)
                late = {agent for item in self._items.values() for agent in self._stragglers(item)}
                late |= set(self._silent(last_s))
            finally:
                self._lock.release()
            for agent in late:
                reason = f"showed no sign of life for {self._patience_s:g} s and was ended"
                self.leave_fleet(agent, reason)
                self._kill(agent, reason)

    def _begin_anew(self, now_s: float) -> None:
        """Forget how long agents have been silent, because the coordinator was not listening."""
        self._life_s = dict.fromkeys(self._life_s, now_s)
        self._asked_s.clear()
        for meeting in (meeting for item in self._items.values() for meeting in item.meetings.values()):
            meeting.since_s = now_s

    def _free_sender(self) -> None:
        """End an agent that has stopped reading, if all agents wait because a message does not fit into its pipe."""
        sending = self._sending
        if sending is not None and time.monotonic() - sending[1] > self._patience_s:
            self._kill(sending[0], f"has read nothing for {self._patience_s:g} s and was ended")

    def _silent(self, now_s: float) -> list[str]:
        """Return agents silent for half of the patience whose process then did not answer for the other half."""
        late, half_s = list[str](), self._patience_s / 2
        if self._ask is None:
            return late
        for agent in self._send.keys() - self._asking:
            heard_s = max(self._life_s.get(agent, 0), self._answered_s.get(agent, 0))
            if now_s - heard_s < half_s:
                self._asked_s.pop(agent, None)
            elif agent not in self._asked_s:
                self._asked_s[agent] = now_s
                self._ask(agent, partial(self._note_answer, agent))
            elif now_s - self._asked_s[agent] >= half_s:
                late.append(agent)
        return late

    def _note_answer(self, agent: str) -> None:
        self._answered_s[agent] = time.monotonic()

    def _stragglers(self, item: Item) -> list[str]:
        """Return members that others wait for, that do not wait themselves, and that have been silent for too long."""
        now_s, late = time.monotonic(), []
        waiting = {agent for meeting in item.meetings.values() for agent in meeting.arrived if agent != meeting.runner}
        for meeting in (meeting for meeting in item.meetings.values() if meeting.is_awaited):
            for agent in [meeting.runner] if meeting.runner else self._list_awaited(item, meeting):
                life_s = max(self._life_s.get(agent, 0), meeting.since_s, item.busy_until_s)
                silent = now_s - life_s > self._patience_s and agent not in waiting | self._asking
                if silent and self.find_item(agent) is item and not self._apart(agent):
                    late.append(agent)
        return late


def _answer(call: Callable[..., Any], *args: Any) -> Reply:
    """Return a handler's answer, or its error as data, which the agent raises again."""
    try:
        return Reply(make_plain(call(*args)))  # here and not in the channel: it fails in the test that asked
    except CloudbenchError as error:
        return Reply(error=str(error))
    except Exception as error:  # a bug here must reach the test's report, not hang the fleet
        return Reply(error=f"{type(error).__name__}: {error}")


def _natural(agent: str) -> tuple[int, str]:
    """Return a sort key that puts gw2 before gw10."""
    digits = "".join(character for character in agent if character.isdigit())
    return (int(digits) if digits else -1, agent)
