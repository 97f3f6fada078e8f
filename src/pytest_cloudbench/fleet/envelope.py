"""What agents and coordinator hand to each other: frozen dataclasses that carry the messages of the wings.

What may live here: one class for each thing that either side can say, and its form in a channel. What is carried is
plain data already (``fleet.wire``), converted once for all agents that get it. Imported by fifty agents: keep it light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pytest_cloudbench.fleet.wire import from_plain
from pytest_cloudbench.model import FleetError

_T = TypeVar("_T")


# --- an agent to the coordinator ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Something that nobody answers: its name and what it carries."""

    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A question of one agent, without a meeting. ``number`` says which of its questions a ``Reply`` is to."""

    number: int
    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Meet:
    """An agent has come to a meeting at an item, and waits for the others. ``number`` is as in ``Ask``."""

    number: int
    item: str
    name: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class Done:
    """The agent that works for all at a meeting has ended: with a value, or with an error. All get the same reply.

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


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to what an agent has asked or met for.

    Attributes:
        value: what was asked for.
        error: what the agent raises instead; None if nothing went wrong.
        is_turn: there is no answer yet: this agent is to do the work for all, and then to say ``Done``.
        to: the number of what it answers, by which the agent recognises a reply that arrives too late.
    """

    value: Any = None
    error: str | None = None
    is_turn: bool = False
    to: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """Something that the agent did not ask for; see ``Agent.listeners``."""

    name: str
    payload: Any


# --- in a channel -------------------------------------------------------------------------------------

FromAgent = Tell | Ask | Meet | Done
ToAgent = Reply | Said
FROM_AGENT: Sequence[type[FromAgent]] = (Tell, Ask, Meet, Done)
TO_AGENT: Sequence[type[ToAgent]] = (Reply, Said)


def pack(envelope: FromAgent | ToAgent) -> tuple[str, dict[str, Any]]:
    """Convert to what a channel carries: its kind, and its fields by name. What it carries stays as it is."""
    kind = type(envelope)
    return kind.__name__, {each.name: getattr(envelope, each.name) for each in fields(kind)}


def unpack(kinds: Sequence[type[_T]], packed: Any) -> _T:
    """Build one of ``kinds`` from output of ``pack``. Raises FleetError."""
    name, given = packed
    for kind in kinds:
        if kind.__name__ == name:
            return from_plain(kind, given)
    raise FleetError(f"expected one of {', '.join(kind.__name__ for kind in kinds)}, found {name!r}")
