"""Errors in a bench file: the file, the key, what was expected, and a suggestion.

The checks compare a file's tables with the tables of ``bench_keys``. They raise ConfigError only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from pytest_cloudbench.model import ConfigError, UsageError, did_you_mean
from pytest_cloudbench.plugin.configs.bench_keys import ARRIVALS, EXPECT, EXPERIMENT, PAYLOADS, Key, matches_schema
from pytest_cloudbench.support import opening

_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Locator:
    """The position of an experiment in its file. Its methods make errors for keys, which are dotted and relative to it.

    ``grid_keys`` maps each key whose value comes from the grid to its place there, such as ``grid.files[0]``.
    """

    source: str
    prefix: str
    grid_keys: Mapping[str, str] = field(default_factory=dict)

    def error(self, key: str, expected: str) -> ConfigError:
        """Return the error for a key."""
        location = self.grid_keys.get(key, key)
        return ConfigError(self.source, f"{self.prefix}.{location}" if location else self.prefix, expected)

    def wrong_value(self, key: str, expected: str, value: Any) -> ConfigError:
        """Return the error for a key that holds a wrong value."""
        return self.error(key, f"expected {expected}, found {format_value(value)}{suggest_value(key, value)}")

    def check_names(self, table: Mapping[str, Any], names: Collection[str], within: str = "") -> None:
        """Raise for the first key of a table that is not among ``names``."""
        for key in table:
            if key not in names:
                dotted = f"{within}.{format_key(key)}" if within else format_key(key)
                raise self.error(
                    dotted, f"unknown key{_suggest_key(key, names, within)}; expected one of {', '.join(names)}"
                )

    def read_name(self, key: str, table: Mapping[str, Any], names: Collection[str]) -> str:
        """Return the value of the last word of ``key`` in ``table``. Raises if it is not there or not in ``names``."""
        last_word = key.rpartition(".")[2]
        expected = f"one of {', '.join(names)}"
        if last_word not in table:
            raise self.error(key, f"is missing; expected {expected}")
        name = table[last_word]
        if not isinstance(name, str) or name not in names:
            raise self.error(key, f"expected {expected}, found {format_value(name)}{did_you_mean(name, names)}")
        return name

    def check_table(self, table: Mapping[str, Any], keys: Mapping[str, Key], within: str = "") -> None:
        """Raise for a key of a table that is unknown, missing or has a wrong value."""
        self.check_names(table, keys, within)
        for name, key in keys.items():
            dotted = f"{within}.{name}" if within else name
            if name in table and not matches_schema(table[name], key.schema):
                raise self.wrong_value(dotted, key.expected, table[name])
            if key.is_required and name not in table:
                raise self.error(dotted, f"is missing; expected {key.expected}")


def check_values(document: Mapping[str, Any], source: str) -> None:
    """Refuse numbers outside TOML's range, infinities, NaN and excessive nesting. Later checks rely on this."""
    pending: list[tuple[str, Any, int]] = [("", document, 0)]
    while pending:
        path, value, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise ConfigError(source, path[:100], f"expected tables and lists nested at most {_MAX_DEPTH} deep")
        if isinstance(value, dict):
            dot = "." if path else ""
            pending += [(f"{path}{dot}{format_key(key)}", item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{path}[{index}]", item, depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(source, path, "expected a whole number of at most 64 bits")
        elif isinstance(value, float) and not isfinite(value):
            raise ConfigError(source, path, f"expected a finite number, found {value}")


def format_key(key: str) -> str:
    """Format a key for one line of a message."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", key) else format_value(key)


def format_value(value: Any) -> str:
    """Format a value for one short line of a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def suggest_value(key: str, value: Any) -> str:
    """Return a suggestion of the value that was probably meant, or an empty text."""
    if not isinstance(value, str):
        return ""
    size = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})", value.strip())
    if key.endswith("_bytes") and size and size[2].lower() in _UNITS:
        return f"; write {round(float(size[1]) * _UNITS[size[2].lower()])}"
    return "; write it without quotes" if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", value) else ""


_TABLE_OF_KEY: Mapping[str, str] = {
    **dict.fromkeys(EXPECT, "expect"),
    **dict.fromkeys([key for keys in PAYLOADS.values() for key in keys] + ["generator"], "payload"),
    **dict.fromkeys([key for keys in ARRIVALS.values() for key in keys] + ["process"], "arrival"),
    **dict.fromkeys(EXPERIMENT, "experiment"),
}
"""The table that each key belongs to. TOML puts a key into the table of the last header above it, a common mistake."""

_HEADER_OF_TABLE = {
    "experiment": "[[experiment]], before the next line in brackets",
    "payload": "[experiment.payload]",
    "arrival": "[experiment.arrival]",
    "expect": "[[experiment.expect]]",
}


def _suggest_key(key: str, names: Collection[str], within: str) -> str:
    """Return advice about a key that a table does not have: another spelling, or the table that it belongs to."""
    this_table = re.split(r"[.\[]", within)[0] or "experiment"
    right_table = _TABLE_OF_KEY.get(key, this_table)
    if right_table == this_table:
        return did_you_mean(key, names)
    if this_table == "grid":
        return f"; did you mean {right_table}.{key}?"
    return f" here; it belongs below {_HEADER_OF_TABLE[right_table]}"


class NamedFiles:
    """The texts of the files that a bench file names. Reads each file once."""

    def __init__(self, read: Callable[[str], str] | None) -> None:
        self._read = read
        self._texts: dict[str, str] = {}

    def read_text(self, file: str) -> str:
        """Return the text of a file. Raises UsageError if it cannot be read."""
        if self._read is None:
            raise UsageError(f"{file!r} cannot be read here")
        if file not in self._texts:
            try:
                self._texts[file] = self._read(file)
            except (OSError, ValueError) as error:
                why = opening.explain_error(error)
                raise UsageError(f"{file!r} cannot be read: {why}") from error
        return self._texts[file]
