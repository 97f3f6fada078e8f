"""Messages between the agents of a fleet and its controller, and their form in a channel.

A message is a frozen ``msgspec.Struct``, and travels as MessagePack: both sides declare the types of its fields, and
what arrives is checked against them. Packages of higher layers define messages of their own, as in ``load.messages``.
Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Self, TypeVar

from msgspec import DecodeError, Struct, ValidationError, convert
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from pytest_cloudbench.model import FleetError
from pytest_cloudbench.support.wording import format_count

_T = TypeVar("_T")
_MOST_NAMED = 4
"""The most other agents that a line about missing agents names."""


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """The base of a message, whose fields are plain values, messages, dataclasses, or sequences of these."""

    def plain(self) -> dict[str, Any]:
        """Return the fields by name, as the other end of a channel gets them. Raises FleetError like ``encode``."""
        fields: dict[str, Any] = make_plain(self)
        return fields

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Build from output of ``plain``. Raises FleetError naming the message and the missing, new or wrong field."""
        try:
            return convert(data, cls)
        except ValidationError as error:
            raise FleetError(f"message {cls.__name__}: {error}") from None

    def replace(self, **fields: Any) -> Self:
        """Return the same message with other values in some fields."""
        return replace(self, **fields)


def _convert_subclass(value: Any) -> Any:
    """Convert a value that is not quite plain, such as a numpy number, to a plain type. Raises FleetError."""
    for base, conversion in _CONVERSIONS.items():
        if isinstance(value, base):
            return conversion(value)
    raise FleetError(f"cannot send a {type(value).__name__}; expected plain data")


_CONVERSIONS: Mapping[type[Any], Callable[[Any], Any]] = {
    Enum: lambda value: value.value,
    str: str.__str__,
    bytes: bytes,
    int: int,
    float: float,
    Mapping: dict,
    Sequence: list,  # also an array
}
_ENCODER = Encoder(enc_hook=_convert_subclass)
_PLAIN_DECODER = Decoder()


def encode(value: Any) -> bytes:
    """Encode a message, or a value that a message may carry. Raises FleetError naming the field that cannot be sent."""
    try:
        return _ENCODER.encode(value)
    except (FleetError, OverflowError) as error:
        raise FleetError(f"{_find_refused(value)}: {error}") from None


def make_plain(value: Any) -> Any:
    """Return plain data as it arrives at the other end of a channel: messages as dictionaries, tuples as lists."""
    return _PLAIN_DECODER.decode(encode(value))


def _find_refused(value: Any) -> str:
    """Return the names of the message and the field that cannot be encoded."""
    for name in getattr(value, "__struct_fields__", ()):
        field = getattr(value, name)
        try:
            _ENCODER.encode(field)
        except (FleetError, OverflowError):
            return _find_refused(field) if isinstance(field, Message) else f"{type(value).__name__}.{name}"
    return type(value).__name__


# --- an agent to the coordinator ----------------------------------------------------------------------


class Tell(Message, frozen=True, tag=True):
    """A message that nobody answers."""

    name: str
    payload: Any = None


class Ask(Message, frozen=True, tag=True):
    """A question of one agent, without a meeting. Its ``Reply`` repeats the ``number``."""

    number: int
    name: str
    payload: Any = None


class Meet(Message, frozen=True, tag=True):
    """An agent has come to a meeting at an item, and waits for the others. ``number`` is as in ``Ask``."""

    number: int
    item: str
    name: str
    payload: Any = None


class Done(Message, frozen=True, tag=True):
    """The agent that works for all at a meeting has finished, with a value or an error. All get the same reply.

    Attributes:
        number: as in ``Ask``.
        item, name: the meeting.
        value, error: as in ``Reply``.
    """

    number: int
    item: str
    name: str
    value: Any = None
    error: str | None = None


# --- the coordinator to an agent ----------------------------------------------------------------------


class Reply(Message, frozen=True, tag=True):
    """The answer to an ``Ask``, a ``Meet`` or a ``Done`` of an agent.

    Attributes:
        value: what was asked for.
        error: what the agent raises instead; None if nothing went wrong.
        is_turn: there is no answer yet: this agent is to do the work for all, and then to send ``Done``.
        to: the number of the message that it answers, by which the agent recognises a reply that arrives too late.
    """

    value: Any = None
    error: str | None = None
    is_turn: bool = False
    to: int = 0


class Said(Message, frozen=True, tag=True):
    """A message that the agent did not ask for. See ``Agent.listeners``."""

    name: str
    payload: Any


# --- in a channel -------------------------------------------------------------------------------------

FromAgent = Tell | Ask | Meet | Done
ToAgent = Reply | Said
_FROM_AGENT: Decoder[FromAgent] = Decoder(FromAgent)
_TO_AGENT: Decoder[ToAgent] = Decoder(ToAgent)


def decode_from_agent(data: bytes) -> FromAgent:
    """Decode what an agent has sent to the coordinator. Raises FleetError."""
    return _decode(_FROM_AGENT, data)


def decode_to_agent(data: bytes) -> ToAgent:
    """Decode what the coordinator has sent to an agent. Raises FleetError."""
    return _decode(_TO_AGENT, data)


def decode_plain(data: bytes) -> Any:
    """Decode output of ``encode`` to plain data. Raises FleetError."""
    return _decode(_PLAIN_DECODER, data)


def _decode(decoder: Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except DecodeError as error:
        raise FleetError(f"a message of the fleet cannot be read: {error}") from None


# --- payloads of messages about every item ------------------------------------------------------------


class Entered(Message, frozen=True):
    """Answer to "enter": an agent's place among those that run an item.

    Attributes:
        index, count: the agent's number, from 0, and how many agents there are.
        stop: why the session is to stop, or an empty text.
        again: how often the item was run before, for repetitions at a session's end; None: it is not run this time.
    """

    index: int
    count: int
    stop: str
    again: int | None = 0


class ItemEnded(Message, frozen=True):
    """An item has ended, and its reports are about to be logged. The answer is ``WhatToLog``.

    Attributes:
        nodeid: pytest's node id.
        outcome: ``passed``, ``failed`` or ``skipped``.
        reports: all of them, as pytest serializes them.
    """

    nodeid: str
    outcome: str
    reports: tuple[Any, ...]


class WhatToLog(Message, frozen=True):
    """The decision about an item's reports: when they are logged, and with which outcome.

    Attributes:
        is_held: they are not logged now.
        outcome: the outcome to log instead of ``passed``; empty to leave it.
        text: the reason for that outcome.
        properties: to add to the reports.
    """

    is_held: bool = False
    outcome: str = ""
    text: str = ""
    properties: tuple[tuple[str, str], ...] = ()


class StockEntry(Message, frozen=True):
    """An entry that the stock ``benchmark`` fixture has made in a worker. See ``results.benchmarks.add_entry``."""

    name: str
    fullname: str
    group: str | None
    params: Mapping[str, Any]
    extra_info: Mapping[str, Any]
    iterations: int
    data_s: tuple[float, ...]
    options: Mapping[str, Any]


class Left(Message, frozen=True):
    """Answer to "leave": what became of an item.

    Attributes:
        failures: the text of an agent's failure, by agent.
        missing: the reason why an agent was lost, by agent.
        agents: those that took part at the beginning.
        log: whether this agent is the one to report the item.
    """

    failures: Mapping[str, str]
    missing: Mapping[str, str]
    agents: tuple[str, ...]
    log: bool


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Return a line for each reason why agents are missing, so that fifty agents with one reason take one line."""
    agents: dict[str, list[str]] = {}
    for agent, reason in missing.items():
        agents.setdefault(reason, []).append(agent)
    lines = []
    for reason, (first, *others) in agents.items():
        line = f"{first} {reason}"
        if others:
            names = ", ".join([*others[:_MOST_NAMED], *(["..."] if len(others) > _MOST_NAMED else [])])
            line += f"; the same goes for {format_count(len(others), 'other')} ({names})"
        lines.append(line)
    return lines
