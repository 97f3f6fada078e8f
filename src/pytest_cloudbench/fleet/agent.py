"""The agent's half of the fleet: one process that carries sensors, and its conversation with the coordinator."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pytest_cloudbench.fleet.messages import (
    Ask,
    Done,
    Entered,
    FromAgent,
    Left,
    Meet,
    Reply,
    Said,
    Tell,
    ToAgent,
    decode_from_agent,
    decode_to_agent,
    encode,
)
from pytest_cloudbench.model import FleetError
from pytest_cloudbench.support import redact
from pytest_cloudbench.support.clock import now_ns

if TYPE_CHECKING:
    from pytest_cloudbench.fleet.coordinator import Coordinator
    from pytest_cloudbench.fleet.offsets import Offset

_LIFE_S = 1.0
_CLOCK_HOLDS_NS = 60_000_000_000
"""How long the offset of another host's clock is used before it is measured again."""
_BETWEEN_TESTS = frozenset({"enter", "leave", "entries", "ruled"})
"""The names of messages whose answers an agent waits for outside of a test."""


class _Channel(Protocol):
    """The part of an execnet channel that the agent uses."""

    def send(self, item: Any) -> None: ...

    def setcallback(self, callback: Callable[[Any], None], endmarker: Any = ...) -> None: ...


def host_id() -> str:
    """Return an id of the running kernel. Agents with equal ids share one monotonic clock."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import platform

        return platform.node()


class Agent:
    """One agent's view of the fleet.

    Attributes:
        name: the worker's id, ``main`` without xdist.
        host_name: the name of the host that it runs on, empty on the controller's machine.
        agents_here: the number of agents on that host, this one included.
        stop: set when the controller is gone or the session ends; the engine watches it.
        index: this agent's place among those that run the current item; the first one leads.
        count: how many agents run the current item.
        again: how often the current item was run before; None if it is not run this time.
        gated: whether the controller decides what is logged of an item.
        clock_offset_ns: add it to this host's clock to get the controller's. 0 if they share one. It is measured when
            an item is entered.
        clock_error_ns: bound on the error of the offset.
        clock_was_measured: called when both are known, and each time that they were measured again.
        listeners: by the name of a message that the controller sends unasked: called with its payload in another
            thread, so they must be quick.
        time_limits: exceptions that a test's time limit raises in this thread; waiting between tests is not cut off.
    """

    def __init__(self, name: str, send: Callable[[FromAgent], None], same_clock: bool = True) -> None:
        self.name, self.host_name, self.stop = name, "", threading.Event()
        self.index, self.count, self.agents_here = 0, 1, 1
        self.again: int | None = 0
        self.gated = False
        self.clock_offset_ns = self.clock_error_ns = self._clock_is_due_ns = 0
        self._offset: Offset | None = None
        self.clock_was_measured: Callable[[], None] = lambda: None
        self.same_clock = same_clock
        self._item, self._asked = "", 0
        self.listeners: dict[str, Callable[[Any], None]] = {}
        self.time_limits: tuple[type[BaseException], ...] = ()
        self._send, self._inbox = send, queue.SimpleQueue[Reply | None]()

    @classmethod
    def over(cls, channel: _Channel, name: str, controller_host: str) -> Agent:
        """Return an agent that talks over an xdist channel. The end of the channel stops whatever it is doing."""
        agent = cls(name, lambda message: channel.send(encode(message)), same_clock=host_id() == controller_host)

        def receive(data: bytes | None) -> None:
            agent.deliver(None if data is None else decode_to_agent(data))

        channel.setcallback(receive, endmarker=None)
        redact.on_learn(lambda secrets: agent.tell("secret", secrets))
        return agent

    @property
    def pid(self) -> int:
        """This process's id, or 0 on another host than the controller's."""
        return os.getpid() if self.same_clock else 0

    def controller_ns(self) -> int:
        """Return the time now by the controller's clock."""
        return now_ns() + self.clock_offset_ns

    def deliver(self, message: ToAgent | None) -> None:
        """Take a message of the coordinator, or None at the end of the channel."""
        if isinstance(message, Said):
            if (listener := self.listeners.get(message.name)) is not None:
                listener(message.payload)
            return
        if message is None:
            self.stop.set()
        self._inbox.put(message)

    def tell(self, name: str, payload: Any = None) -> None:
        """Say something without waiting for an answer. Does nothing if the controller is gone."""
        try:
            self._send(Tell(name, payload))
        except OSError:
            self.stop.set()

    def ask(self, name: str, payload: Any = None) -> Any:
        """Ask the controller for something by name. The answer is plain data, from which a message can be built."""
        return self._call(Ask(self._next(), name, payload))

    def enter(self, item: str) -> str:
        """Wait until all agents are at this item. Returns why the session is to stop, or an empty text."""
        self._item = item
        try:
            entered = Entered.from_plain(self.gather("enter"))
        except FleetError as error:
            return str(error)
        self.index, self.count, self.again = entered.index, entered.count, entered.again
        self._measure_clock()
        return entered.stop

    def gather(self, name: str, payload: Any = None) -> Any:
        """Hand in ``payload``, wait for all agents, and get what the controller made of all payloads."""
        self._check_entered()
        return self._call(Meet(self._next(), self._item, name, payload))

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """Let one agent do ``work``, and return its result as plain data. All agents get it, or the error."""
        self._check_entered()
        name = f"once:{name}"
        reply = self._exchange(Meet(self._next(), self._item, name))
        if not reply.is_turn:
            return _value(reply)
        try:
            value = work()
        except BaseException as error:
            with contextlib.suppress(FleetError):  # its own error is the one to report
                self._call(Done(self._next(), self._item, name, error=redact.clean(str(error))))
            raise
        return self._call(Done(self._next(), self._item, name, value))

    def leave(self, failure: str) -> Left | None:
        """Report how the item ended. Returns its outcome on all agents, or None if the controller no longer answers."""
        try:
            return Left.from_plain(self.gather("leave", failure))
        except FleetError:
            return None
        finally:
            self._item = ""

    def _check_entered(self) -> None:
        """Raise FleetError outside of an item: nobody would come to the meeting."""
        if not self._item:
            raise FleetError(
                "another plugin runs this test by itself (in pytest_runtest_protocol), so that no agent began it; "
                "switch that plugin off with -p no:NAME"
            )

    @contextlib.contextmanager
    def sign_of_life(self) -> Iterator[None]:
        """Tell the controller once a second that this process runs, while it does what others wait for."""
        done = threading.Event()

        def tell() -> None:
            while not done.wait(_LIFE_S):
                self.tell("alive")

        thread = threading.Thread(target=tell, name="sign-of-life", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _next(self) -> int:
        self._asked += 1
        return self._asked

    def _call(self, message: Ask | Meet | Done) -> Any:
        return _value(self._exchange(message))

    def _exchange(self, message: Ask | Meet | Done) -> Reply:
        try:
            self._send(message)
        except OSError as error:
            self.stop.set()
            raise FleetError("the controller is gone") from error
        while True:
            try:
                reply = self._receive()
            except self.time_limits:
                if message.name not in _BETWEEN_TESTS:
                    raise
            else:
                if reply.to == message.number:  # any other answers a request that a time limit has cut off
                    return reply

    def _receive(self) -> Reply:
        reply = self._inbox.get()
        if reply is None:
            self._inbox.put(None)
            raise FleetError("the controller is gone")
        return reply

    def _measure_clock(self) -> None:
        """Measure the offset between the monotonic clocks that stamp operations. See ``offsets.measure_offset``.

        Two clocks drift apart, by up to a second in some hours, so a measurement holds for a while only.
        """
        from pytest_cloudbench.fleet.offsets import measure_offset

        if self.same_clock or now_ns() < self._clock_is_due_ns:
            return
        offset = self._offset = measure_offset(lambda: int(self.ask("clock")))
        self.clock_offset_ns, self.clock_error_ns = offset.offset_ns, offset.error_ns
        self._clock_is_due_ns = offset.at_ns + _CLOCK_HOLDS_NS
        self.clock_was_measured()

    def check_clock(self) -> str:
        """Measure the offset again. Return a doubt if this host's clock has jumped since, or an empty text."""
        if self.same_clock:
            return ""
        from pytest_cloudbench.fleet.offsets import Span

        before, self._clock_is_due_ns = self._offset, 0
        self._measure_clock()
        if before is None or self._offset is None or not (span := Span(before, self._offset)).has_jumped:
            return ""
        return (
            f"the clock of {self.name} on {self.host_name or 'another host'} jumped by {abs(span.drift_ns) / 1e9:.3g} s"
        )


def _value(reply: Reply) -> Any:
    if reply.error is not None:
        raise FleetError(reply.error)
    return reply.value


def local_agent(coordinator: Coordinator) -> Agent:
    """Return the one agent of a run without xdist. Its messages are encoded, as in a channel."""
    agent = Agent("main", lambda message: coordinator.receive("main", decode_from_agent(encode(message))))

    def deliver(message: ToAgent | None) -> None:
        agent.deliver(None if message is None else decode_to_agent(encode(message)))

    coordinator.join("main", deliver)
    return agent
