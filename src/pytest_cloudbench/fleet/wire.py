"""What agents and controller say to each other: frozen dataclasses on both sides, plain data in between.

What may live here: conversion of any message to channel data and back, with its types checked, and the messages of the
transport itself. Other packages define their own messages, as in ``load.messages``. Imported by fifty agents: keep it
light.

A channel (execnet) carries None, truth values, numbers, texts, bytes, lists, tuples and dictionaries, but no integer
below -2**31: such a number goes as text, which ``from_plain`` reads as the number again.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pytest_cloudbench.model import FleetError

_T = TypeVar("_T")
_Reader = Callable[[Any, str], Any]
"""Reads one plain value for the field that the text names. Raises FleetError."""

_CARRIED = frozenset({NoneType, bool, float, str, bytes})
_LEAST_INT = -(2**31)
_NAMED = 4
"""So many other agents a line about missing ones names."""


class Message:
    """The base of a message: a frozen dataclass whose fields are plain values, dataclasses, or sequences of these."""

    __slots__ = ()

    def plain(self) -> dict[str, Any]:
        """Convert to what a channel carries. Raises FleetError for a value that no channel can carry."""
        return plain(self)

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Build from output of ``plain``. Raises FleetError naming the message and the missing, new or wrong field."""
        return from_plain(cls, data)


def plain(message: Any) -> dict[str, Any]:
    """Convert any dataclass to what a channel carries: its fields by name. Raises FleetError."""
    kind = type(message)
    given = {
        name: _given(getattr(message, name), f"{kind.__name__}.{name}", as_text=is_int)
        for name, (is_int, _) in _readers(kind).items()
    }
    return {name: list(value) if type(value) is tuple else value for name, value in given.items()}


def _given(value: Any, where: str, *, as_text: bool = False) -> Any:
    kind = type(value)
    if kind in _CARRIED:
        return value
    if kind is int:
        return value if value >= _LEAST_INT else _given_int(value, where, as_text=as_text)
    if kind is list or kind is tuple:
        kinds = set(map(type, value))  # a page of a listing has thousands of values of one type
        if kinds <= _CARRIED or (kinds == {int} and min(value) >= _LEAST_INT):
            return value
        return kind(_given(each, where) for each in value)
    if isinstance(value, Mapping):
        return {_given(key, where): _given(each, where) for key, each in value.items()}
    if is_dataclass(value):
        return plain(value)
    for base, made in _MADE_PLAIN.items():
        if isinstance(value, base):
            return _given(made(value), where)
    raise FleetError(f"{where}: no channel carries a {kind.__name__}; expected plain data")


_MADE_PLAIN: Mapping[type[Any], Callable[[Any], Any]] = {
    Enum: lambda value: value.value,
    datetime.date: datetime.date.isoformat,
    str: str.__str__,
    bytes: bytes,
    int: int,
    float: float,  # also numpy's
    Sequence: list,  # also an array
}


def _given_int(value: int, where: str, *, as_text: bool) -> str:
    if not as_text:
        raise FleetError(f"{where}: no channel carries {value}, which is below -2**31: make it a float or a text")
    return str(value)


def from_plain(kind: type[_T], data: Any) -> _T:
    """Build a dataclass ``kind`` from output of ``plain``. A list may stand for a tuple, a whole number for a float.

    Raises FleetError that names the message and the field that is missing, new or of another type.
    """
    name, described = kind.__name__, cast("Any", kind)
    if type(data) is not dict:
        raise FleetError(f"message {name}: expected its fields by name, found {_shown(data)}")
    readers = _readers(described)
    if new := [str(key) for key in data if key not in readers]:
        raise FleetError(f"message {name}: has a field {new[0]!r} that is not known here")
    if len(data) < len(readers):
        for each in fields(described):
            if each.name not in data and _is_needed(each):
                raise FleetError(f"message {name}: the field {each.name!r} is missing")
    return kind(**{key: readers[key][1](value, f"message {name}: {key}") for key, value in data.items()})


def _made_readers(kind: type[Any]) -> dict[str, tuple[bool, _Reader]]:
    """Returns for each field whether it is an integer, and its reader."""
    hints = get_type_hints(kind)
    found = ((each.name, hints[each.name]) for each in fields(kind))
    return {name: (int in (hint, *get_args(hint)), _reader(hint)) for name, hint in found}


_readers: Callable[[Any], dict[str, tuple[bool, _Reader]]] = cache(_made_readers)


def _is_needed(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _reader(hint: Any) -> _Reader:
    """Returns the reader for values of one type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _READ:
        return _READ[hint]
    if origin in (Union, UnionType):
        return _one_of(arguments)
    if origin is tuple:
        return _sequence(arguments[0]) if arguments[1:] == (...,) else _row(tuple(map(_reader, arguments)))
    if origin is not None:
        return _mapping(arguments[1])
    if is_dataclass(hint):
        return partial(_read_nested, hint)
    return _read_enum(hint) if issubclass(hint, Enum) else _of_type(hint)


def _read_nested(kind: Any, value: Any, where: str) -> Any:
    return from_plain(kind, value)


def _of_type(kind: type[Any]) -> _Reader:
    taken = _taken(kind)

    def read(value: Any, where: str) -> Any:
        if type(value) not in taken:
            raise FleetError(f"{where}: expected {_named(kind)}, found {_shown(value)}")
        return value

    return read


def _read_int(value: Any, where: str) -> int:
    if type(value) is int:
        return value
    if type(value) is str and value.startswith("-") and value[1:].isdecimal():
        return int(value)
    raise FleetError(f"{where}: expected int, found {_shown(value)}")


def _read_date(value: Any, where: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise FleetError(f"{where}: expected a date such as 2014-06-30, found {_shown(value)}") from None


_READ: Mapping[Any, _Reader] = {Any: lambda value, where: value, int: _read_int, datetime.date: _read_date}


def _read_enum(kind: type[Enum]) -> _Reader:
    def read(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise FleetError(f"{where}: expected one of {kind.__name__}, found {_shown(value)}") from None

    return read


def _one_of(kinds: Sequence[Any]) -> _Reader:
    readers = [_reader(kind) for kind in kinds if kind is not NoneType]
    takes_none = NoneType in kinds

    def read(value: Any, where: str) -> Any:
        if value is None and takes_none:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value, where)
            except FleetError:
                continue
        return readers[-1](value, where)

    return read


def _sequence(kind: Any) -> _Reader:
    reader, is_any, taken = _reader(kind), kind is Any, _taken(kind)

    def read(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise FleetError(f"{where}: expected a list, found {_shown(value)}")
        if is_any or taken.issuperset(map(type, value)):
            return tuple(value)
        return tuple(reader(each, where) for each in value)

    return read


def _taken(hint: Any) -> frozenset[type[Any]]:
    """Returns the types whose values are taken as is."""
    if get_origin(hint) in (Union, UnionType):
        return frozenset().union(*map(_taken, get_args(hint)))
    return frozenset({int, float}) if hint is float else frozenset({hint}) & {*_CARRIED, int}


def _row(readers: Sequence[_Reader]) -> _Reader:
    def read(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) not in (list, tuple) or len(value) != len(readers):
            raise FleetError(f"{where}: expected {len(readers)} values, found {_shown(value)}")
        return tuple(reader(each, where) for reader, each in zip(readers, value, strict=True))

    return read


def _mapping(kind: Any) -> _Reader:
    reader, is_any = _reader(kind), kind is Any

    def read(value: Any, where: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise FleetError(f"{where}: expected a mapping, found {_shown(value)}")
        return value if is_any else {key: reader(each, where) for key, each in value.items()}

    return read


def _named(kind: type[Any]) -> str:
    return {NoneType: "None", float: "a number"}.get(kind, kind.__name__)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- what every wing's items say ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entered(Message):
    """Answer to "enter": an agent's place among those that run an item.

    Attributes:
        index, count: its number, and of how many.
        stop: why the session is to stop, or an empty text.
        again: how often the item was run before, for repetitions at a session's end; None: it is not run this time.
    """

    index: int
    count: int
    stop: str
    again: int | None = 0


@dataclass(frozen=True, slots=True)
class ItemEnded(Message):
    """An item has ended, and its reports are about to be logged; the answer is ``WhatToLog``.

    Attributes:
        nodeid: pytest's node id.
        outcome: ``passed``, ``failed`` or ``skipped``.
        reports: all of them, as pytest serializes them.
    """

    nodeid: str
    outcome: str
    reports: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WhatToLog(Message):
    """What is to become of an item's reports.

    Attributes:
        is_held: they are not logged now.
        outcome: the outcome to log instead of ``passed``; empty to leave it.
        text: its reason.
        properties: to add to the reports.
    """

    is_held: bool = False
    outcome: str = ""
    text: str = ""
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class StockEntry(Message):
    """An entry that the stock ``benchmark`` fixture has made in a worker; see ``results.benchmarks.add_entry``."""

    name: str
    fullname: str
    group: str | None
    params: Mapping[str, Any]
    extra_info: Mapping[str, Any]
    iterations: int
    data_s: tuple[float, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Left(Message):
    """Answer to "leave": what became of an item.

    Attributes:
        failures: agent to its failure's text.
        missing: agent that was lost to the reason.
        agents: those that took part at the beginning.
        log: whether this agent is the one to report the item.
    """

    failures: Mapping[str, str]
    missing: Mapping[str, str]
    agents: tuple[str, ...]
    log: bool


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Who is missing, from agent to the reason: a line for each reason, not for each of fifty agents."""
    agents: dict[str, list[str]] = {}
    for agent, reason in missing.items():
        agents.setdefault(reason, []).append(agent)
    lines = []
    for reason, (first, *others) in agents.items():
        line = f"{first} {reason}"
        if others:
            named = ", ".join([*others[:_NAMED], *(["..."] if len(others) > _NAMED else [])])
            line += f"; the same goes for {len(others)} other{'s' if len(others) > 1 else ''} ({named})"
        lines.append(line)
    return lines
