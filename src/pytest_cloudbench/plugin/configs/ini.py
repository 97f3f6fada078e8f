r"""Parse INI text as Python 2's SafeConfigParser did, for which BenchCloud's files were written.

This module knows the dialect's syntax, interpolation and types, but no section and no key. The dialect differs from
today's ``configparser``: keys and sections may occur again (the last value wins, sections are merged), ``rem`` begins a
comment, ``;`` after a space cuts off the rest of a value's first line, an indented comment is part of the value above
it, and lines end at ``\n`` only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from string import ascii_lowercase, ascii_uppercase

from pytest_cloudbench.model import ConfigError

_SPACE = " \t\n\r\x0b\x0c"
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_SECTION = re.compile(r"\[(?P<name>[^]]+)\]")
_OPTION = re.compile(r"(?P<key>[^:=\s][^:=]*)[:=]\s*(?P<value>.*)", re.ASCII)
_REFERENCE = re.compile(r"%\(([^)]+)\)s")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_BOOLEANS = {"1": True, "yes": True, "true": True, "on": True, "0": False, "no": False, "false": False, "off": False}
_DEFAULTS = "DEFAULT"
_MAX_DEPTH = 10
_MAX_CHARACTERS = 1_000_000
"""Characters read to expand one value. References ten levels deep can multiply to more than any memory."""


def quote_value(value: str, max_length: int = 60) -> str:
    """Return a value for one line of a message: quoted, and cut off if it is long."""
    return repr(value if len(value) <= max_length else value[: max_length - 3] + "...")


@dataclass(frozen=True, slots=True)
class Ini:
    """Sections and keys in the order of the file. Values are raw, and the methods expand ``%``.

    The methods raise only ConfigError, with the source, ``section.key`` and what was expected.

    Attributes:
        source: where the text came from.
        sections: section to key to raw value; keys are in lower case.
        defaults: what ``[DEFAULT]`` says, for every section that lacks a key.
    """

    source: str
    sections: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, str] = field(default_factory=dict)

    def has(self, section: str, key: str) -> bool:
        """Return whether the section exists, and has the key or inherits it from ``[DEFAULT]``."""
        return section in self.sections and (key in self.sections[section] or key in self.defaults)

    def text(self, section: str, key: str, expected: str = "a value") -> str:
        """Return the value with ``%(name)s`` and ``%%`` expanded. A long value keeps its line breaks."""
        if not self.has(section, key):
            raise ConfigError(self.source, f"{section}.{key}", f"is missing; expected {expected}")
        names = {**self.defaults, "__name__": section, **self.sections[section]}
        return _Expansion(self.source, f"{section}.{key}", names).expand(names[key])

    def line(self, section: str, key: str, expected: str = "a text") -> str:
        """Return the value as one line. A line break and the spaces around it become one space."""
        return " ".join(part for part in self.text(section, key, expected).split("\n") if part)

    def boolean(self, section: str, key: str) -> bool:
        """Return the boolean for 1, yes, true, on, 0, no, false or off, in upper or lower case."""
        expected = "True or False"
        text = self.text(section, key, expected)
        if text.lower() not in _BOOLEANS:
            raise self.wrong_value(section, key, expected)
        return _BOOLEANS[text.lower()]

    def whole_number(self, section: str, key: str, minimum: int | None = None) -> int:
        """Return a whole number of at most 18 digits, not below ``minimum``."""
        expected = "a whole number" + ("" if minimum is None else f", {minimum} or more")
        text = self.text(section, key, expected).strip(_SPACE)
        if _WHOLE.fullmatch(text) is None or (minimum is not None and int(text) < minimum):
            raise self.wrong_value(section, key, expected)
        return int(text)

    def share(self, section: str, key: str) -> float:
        """Return a number from 0 to 1."""
        expected = "a number from 0 to 1"
        text = self.text(section, key, expected)
        try:
            value = float(text) if text.isascii() and "_" not in text else -1.0
        except ValueError:
            value = -1.0
        if not isfinite(value) or not 0 <= value <= 1:
            raise self.wrong_value(section, key, expected)
        return value

    def wrong_value(self, section: str, key: str, expected: str) -> ConfigError:
        """Return the error that names the key, the value that was expected and the value found."""
        value = {**self.defaults, **self.sections.get(section, {})}.get(key, "")
        return ConfigError(self.source, f"{section}.{key}", f"expected {expected}, found {quote_value(value)}")


@dataclass(slots=True)
class _Expansion:
    """The expansion of ``%(name)s`` and ``%%`` in one value, at most ten levels deep."""

    source: str
    key: str
    names: Mapping[str, str]
    characters: int = 0

    def expand(self, value: str, depth: int = 1) -> str:
        """Return a value with its references replaced, as BenchCloud's configparser does."""
        if depth > _MAX_DEPTH and "%" in value:
            raise self.error(f"references go more than {_MAX_DEPTH} deep, or in a circle")
        self.characters += len(value)  # no reference is empty, so this bounds the number of references too
        if self.characters > _MAX_CHARACTERS:
            raise self.error(f"is longer than {_MAX_CHARACTERS} characters with what it refers to")
        parts, remainder = [], value
        while remainder:
            plain, percent, _ = remainder.partition("%")
            parts.append(plain)
            remainder = remainder[len(plain) :]
            if remainder.startswith("%%"):
                parts.append("%")
                remainder = remainder[2:]
            elif percent:
                match = _REFERENCE.match(remainder)
                if match is None:
                    raise self.error(
                        f"expected %% or %(name)s, found {quote_value(remainder, 20)}; %% is a percent sign"
                    )
                name = match[1].translate(_LOWER)
                if name not in self.names:
                    raise self.error(f"refers to {quote_value(name)}, which is not a key of its section")
                parts.append(self.expand(self.names[name], depth + 1))
                remainder = remainder[match.end() :]
        return "".join(parts)

    def error(self, problem: str) -> ConfigError:
        return ConfigError(self.source, self.key, problem)


def parse_ini(text: str, source: str) -> Ini:
    """Read INI text. Raises only ConfigError, which names the line."""
    defaults: dict[str, list[str]] = {}
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] | None = None
    key = ""
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip(_SPACE) or _is_comment(line):
            continue
        if line[0] in _SPACE and section is not None and key:
            section[key].append(line.strip(_SPACE))
        elif header := _SECTION.match(line):
            name = header["name"]
            section = defaults if name == _DEFAULTS else sections.setdefault(name, {})
            key = ""
        elif section is None:
            raise ConfigError(source, f"line {number}", f"expected a [section] first, found {quote_value(line)}")
        elif option := _OPTION.match(line):
            key = option["key"].rstrip(_SPACE).translate(_LOWER)
            section[key] = [_strip_comment(option["value"])]
        else:
            expected = "[section], key = value, or, after spaces, more of the value above"
            raise ConfigError(source, f"line {number}", f"expected {expected}; found {quote_value(line)}")
    return Ini(source, {name: _join_lines(keys) for name, keys in sections.items()}, _join_lines(defaults))


def _is_comment(line: str) -> bool:
    """Return whether a line begins with ``#``, ``;`` or the word ``rem``, even in ``rem = 1``."""
    return line[0] in "#;" or (line[0] in "rR" and re.split(f"[{_SPACE}]", line, maxsplit=1)[0].lower() == "rem")


def _strip_comment(value: str) -> str:
    """Return a value's first line without its comment. The first ``;`` begins one if a space is before it."""
    position = value.find(";")
    if position >= 0 and value[position - 1] in _SPACE:  # at position 0 Python 2 looked at the last character, too
        value = value[:position]
    value = value.strip(_SPACE)
    return "" if value == '""' else value  # ``""`` is an empty value


def _join_lines(keys: Mapping[str, list[str]]) -> dict[str, str]:
    return {key: "\n".join(lines) for key, lines in keys.items()}
