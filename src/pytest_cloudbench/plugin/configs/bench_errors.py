"""Errors in a bench file: file, key, what was expected, what was probably meant.

What may live here: checks of tables against the tables of ``bench_keys``. They raise ConfigError and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean
from pytest_cloudbench.plugin.configs.bench_keys import ARRIVALS, EXPECT, EXPERIMENT, PAYLOADS, Key, fits

_DEEPEST = 12


@dataclass(frozen=True, slots=True)
class Locator:
    """Where an experiment stands in its file; keys are dotted and count from there.

    ``moved`` says where in the grid a key's value stands, for the keys that have it from there.
    """

    source: str
    prefix: str
    moved: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, expected: str) -> ConfigError:
        """The error at a key."""
        at = self.moved.get(key, key)
        return ConfigError(self.source, f"{self.prefix}.{at}" if at else self.prefix, expected)

    def wrong(self, key: str, expected: str, value: Any) -> ConfigError:
        """The error where a key holds the wrong value."""
        return self.error(key, f"expected {expected}, found {shown(value)}{hint(key, value)}")

    def known(self, table: Mapping[str, Any], names: Collection[str], within: str = "") -> None:
        """Raise for the first key of a table that is not among ``names``."""
        for key in table:
            if key not in names:
                dotted = f"{within}.{named(key)}" if within else named(key)
                raise self.error(
                    dotted, f"unknown key{_nearest(key, names, within)}; expected one of {', '.join(names)}"
                )

    def one_of(self, key: str, table: Mapping[str, Any], names: Collection[str]) -> str:
        """The name that the last word of ``key`` holds in ``table``."""
        last = key.rpartition(".")[2]
        expected = f"one of {', '.join(names)}"
        if last not in table:
            raise self.error(key, f"is missing; expected {expected}")
        name = table[last]
        if not isinstance(name, str) or name not in names:
            raise self.error(key, f"expected {expected}, found {shown(name)}{did_you_mean(name, names)}")
        return name

    def fitting(self, table: Mapping[str, Any], keys: Mapping[str, Key], within: str = "") -> None:
        """Raise for a key of a table that is unknown, missing or holds what it must not."""
        self.known(table, keys, within)
        for name, key in keys.items():
            dotted = f"{within}.{name}" if within else name
            if name in table and not fits(table[name], key.schema):
                raise self.wrong(dotted, key.expected, table[name])
            if key.is_required and name not in table:
                raise self.error(dotted, f"is missing; expected {key.expected}")


def check_values(document: Mapping[str, Any], source: str) -> None:
    """Refuse numbers that TOML does not allow, infinities and NaN, and excessive nesting. Later checks rely on it."""
    todo: list[tuple[str, Any, int]] = [("", document, 0)]
    while todo:
        place, value, depth = todo.pop()
        if depth > _DEEPEST:
            raise ConfigError(source, place[:100], f"expected tables and lists nested at most {_DEEPEST} deep")
        if isinstance(value, dict):
            dot = "." if place else ""
            todo += [(f"{place}{dot}{named(key)}", each, depth + 1) for key, each in value.items()]
        elif isinstance(value, list):
            todo += [(f"{place}[{at}]", each, depth + 1) for at, each in enumerate(value)]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(source, place, "expected a whole number of at most 64 bits")
        elif isinstance(value, float) and not isfinite(value):
            raise ConfigError(source, place, f"expected a finite number, found {value}")


def named(key: str) -> str:
    """A key, formatted for one line."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else shown(key)


def shown(value: Any) -> str:
    """A value, formatted for one short line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def hint(key: str, value: Any) -> str:
    """A suggestion of what was probably meant."""
    if not isinstance(value, str):
        return ""
    size = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})", value.strip())
    if key.endswith("_bytes") and size and size[2].lower() in _UNITS:
        return f"; write {round(float(size[1]) * _UNITS[size[2].lower()])}"
    return "; write it without quotes" if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", value) else ""


_HOMES: Mapping[str, str] = {
    **dict.fromkeys(EXPECT, "expect"),
    **dict.fromkeys([key for keys in PAYLOADS.values() for key in keys] + ["generator"], "payload"),
    **dict.fromkeys([key for keys in ARRIVALS.values() for key in keys] + ["process"], "arrival"),
    **dict.fromkeys(EXPERIMENT, "experiment"),
}
"""The table that a key belongs to. In TOML that is the last one that was begun above it, which is easy to get wrong."""

_LINES = {
    "experiment": "[[experiment]], before the next line in brackets",
    "payload": "[experiment.payload]",
    "arrival": "[experiment.arrival]",
    "expect": "[[experiment.expect]]",
}


def _nearest(key: str, names: Collection[str], within: str) -> str:
    """What to do about a key that a table does not have."""
    here = re.split(r"[.\[]", within)[0] or "experiment"
    home = _HOMES.get(key, here)
    if home == here:
        return did_you_mean(key, names)
    if here == "grid":
        return f"; did you mean {home}.{key}?"
    return f" here; it belongs below {_LINES[home]}"


class NamedFiles:
    """The texts of the files that a bench file names, each read once."""

    def __init__(self, read: Callable[[str], str] | None) -> None:
        self._read = read
        self._texts: dict[str, str] = {}

    def text(self, file: str) -> str:
        """Raises UsageError when it cannot be read."""
        if self._read is None:
            raise UsageError(f"{file!r} cannot be read here")
        if file not in self._texts:
            try:
                self._texts[file] = self._read(file)
            except (OSError, ValueError) as error:
                raise UsageError(f"{file!r} cannot be read: {error}") from error
        return self._texts[file]
