r"""INI text as Python 2's SafeConfigParser took it, which is what BenchCloud's files were written for.

What may live here: the dialect's syntax, its interpolation and its types. What sections and keys mean is another
module's.

It differs from today's ``configparser``: keys and sections may occur again (the last value wins, sections are merged),
``rem`` begins a comment, ``;`` after a space cuts off the rest of a value's first line, an indented comment is part of
the value above it, and lines end at ``\n`` only.
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
_MAX_WORK = 1_000_000
"""Characters read to expand one value. Ten levels can multiply to more than any memory."""


def shown(value: str, most: int = 60) -> str:
    """A value for one line of an error or a note: quoted, and cut off when it is long."""
    return repr(value if len(value) <= most else value[: most - 3] + "...")


@dataclass(frozen=True, slots=True)
class Ini:
    """Sections and keys, both in the order of the file. Values are raw: ``%`` is expanded by the methods.

    Every method raises ConfigError with the source, ``section.key`` and what was expected, and nothing else.

    Attributes:
        source: where the text came from.
        sections: section to key to raw value; keys are in lower case.
        defaults: what ``[DEFAULT]`` says, for every section that lacks a key.
    """

    source: str
    sections: Mapping[str, Mapping[str, str]]
    defaults: Mapping[str, str] = field(default_factory=dict)

    def has(self, section: str, key: str) -> bool:
        """Whether the section is there, and has the key or inherits it from ``[DEFAULT]``."""
        return section in self.sections and (key in self.sections[section] or key in self.defaults)

    def text(self, section: str, key: str, expected: str = "a value") -> str:
        """The value with ``%(name)s`` and ``%%`` expanded. A long value keeps its line breaks."""
        if not self.has(section, key):
            raise ConfigError(self.source, f"{section}.{key}", f"is missing; expected {expected}")
        names = {**self.defaults, "__name__": section, **self.sections[section]}
        return _Expansion(self.source, f"{section}.{key}", names).of(names[key])

    def line(self, section: str, key: str, expected: str = "a text") -> str:
        """The value as one line: a line break and the spaces around it become one space."""
        return " ".join(part for part in self.text(section, key, expected).split("\n") if part)

    def boolean(self, section: str, key: str) -> bool:
        """1, yes, true, on; 0, no, false, off; in upper or lower case."""
        expected = "True or False"
        text = self.text(section, key, expected)
        if text.lower() not in _BOOLEANS:
            raise self.wrong(section, key, expected)
        return _BOOLEANS[text.lower()]

    def whole(self, section: str, key: str, least: int | None = None) -> int:
        """A whole number of at most 18 digits, ``least`` or more."""
        expected = "a whole number" + ("" if least is None else f", {least} or more")
        text = self.text(section, key, expected).strip(_SPACE)
        if _WHOLE.fullmatch(text) is None or (least is not None and int(text) < least):
            raise self.wrong(section, key, expected)
        return int(text)

    def share(self, section: str, key: str) -> float:
        """A number from 0 to 1."""
        expected = "a number from 0 to 1"
        text = self.text(section, key, expected)
        try:
            value = float(text) if text.isascii() and "_" not in text else -1.0
        except ValueError:
            value = -1.0
        if not isfinite(value) or not 0 <= value <= 1:
            raise self.wrong(section, key, expected)
        return value

    def wrong(self, section: str, key: str, expected: str) -> ConfigError:
        """The error that names the key, what it must hold and what it holds."""
        value = {**self.defaults, **self.sections.get(section, {})}.get(key, "")
        return ConfigError(self.source, f"{section}.{key}", f"expected {expected}, found {shown(value)}")


@dataclass(slots=True)
class _Expansion:
    """``%(name)s`` and ``%%`` in one value, at most ten levels deep."""

    source: str
    place: str
    names: Mapping[str, str]
    work: int = 0

    def of(self, value: str, depth: int = 1) -> str:
        if depth > _MAX_DEPTH and "%" in value:
            raise self.refused(f"references go more than {_MAX_DEPTH} deep, or in a circle")
        self.work += len(value)  # a reference is longer than nothing, so this bounds their number too
        if self.work > _MAX_WORK:
            raise self.refused(f"is longer than {_MAX_WORK} characters with what it refers to")
        parts, rest = [], value
        while rest:
            plain, percent, _ = rest.partition("%")
            parts.append(plain)
            rest = rest[len(plain) :]
            if rest.startswith("%%"):
                parts.append("%")
                rest = rest[2:]
            elif percent:
                match = _REFERENCE.match(rest)
                if match is None:
                    raise self.refused(f"expected %% or %(name)s, found {shown(rest, 20)}; %% is a percent sign")
                name = match[1].translate(_LOWER)
                if name not in self.names:
                    raise self.refused(f"refers to {shown(name)}, which is not a key of its section")
                parts.append(self.of(self.names[name], depth + 1))
                rest = rest[match.end() :]
        return "".join(parts)

    def refused(self, why: str) -> ConfigError:
        return ConfigError(self.source, self.place, why)


def parse_ini(text: str, source: str) -> Ini:
    """Read INI text. Raises ConfigError that names the line; nothing else."""
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
            raise ConfigError(source, f"line {number}", f"expected a [section] first, found {shown(line)}")
        elif option := _OPTION.match(line):
            key = option["key"].rstrip(_SPACE).translate(_LOWER)
            section[key] = [_first_line(option["value"])]
        else:
            expected = "[section], key = value, or, after spaces, more of the value above"
            raise ConfigError(source, f"line {number}", f"expected {expected}; found {shown(line)}")
    return Ini(source, {name: _joined(keys) for name, keys in sections.items()}, _joined(defaults))


def _is_comment(line: str) -> bool:
    """``#`` or ``;`` in the first column, or the word ``rem`` there: also ``rem = 1``."""
    return line[0] in "#;" or (line[0] in "rR" and re.split(f"[{_SPACE}]", line, maxsplit=1)[0].lower() == "rem")


def _first_line(value: str) -> str:
    """Without a comment: the first ``;`` begins one if a space is before it. ``""`` is an empty value."""
    place = value.find(";")
    if place >= 0 and value[place - 1] in _SPACE:  # in the first place, as then, it is the last character that counts
        value = value[:place]
    value = value.strip(_SPACE)
    return "" if value == '""' else value


def _joined(keys: Mapping[str, list[str]]) -> dict[str, str]:
    return {key: "\n".join(lines) for key, lines in keys.items()}
