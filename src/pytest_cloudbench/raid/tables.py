"""Strict reading of TOML tables: every key must be known, and every value must have its type.

Whatever a table contains, only ConfigError is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from pytest_cloudbench.model import ConfigError, did_you_mean


class StrictTable:
    """One table: each value with its type checked, or a ConfigError that names file and key.

    Args:
        source: the file's name in messages.
        table: its contents.
        known: the allowed keys. Any other is refused.
        place: the prefix of keys in messages.
    """

    def __init__(self, source: str, table: Mapping[str, Any], known: tuple[str, ...], place: str = "") -> None:
        self._source, self._table, self._place = source, table, place
        for key in table:
            if key not in known:
                expected = f"{'one of ' if len(known) > 1 else ''}{', '.join(known)}"
                self.fail(ascii(key)[1:-1], f"unknown; expected {expected}{did_you_mean(key, known)}")

    def subtable(self, place: str, table: Mapping[str, Any], known: tuple[str, ...]) -> StrictTable:
        """Return a table within this one."""
        return StrictTable(self._source, table, known, place)

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raise ConfigError for a key."""
        raise ConfigError(self._source, f"{self._place}{key}", expected)

    def get(self, key: str, default: Any, fits: Callable[[Any], bool], expected: str) -> Any:
        """Return a value that ``fits``, or ``default`` if the key is missing. Without a default, it is required."""
        value = self._table.get(key, default)
        if value is None or (key in self._table and not fits(value)):
            found_text = f", found {ascii(value)[:60]}" if key in self._table else ""
            self.fail(key, f"expected {expected}{found_text}")
        return value

    def number(self, key: str, default: int | None, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        number: int = self.get(
            key, default, lambda value: type(value) is int and least <= value <= most,
            f"a whole number from {least} to {most}",
        )  # fmt: skip
        return number

    def real(self, key: str, default: float | None, least: float, most: float) -> float:
        """Return a number within bounds."""
        number = self.get(
            key, default, lambda value: type(value) in (int, float) and least <= value <= most,
            f"a number from {least:g} to {most:g}",
        )  # fmt: skip
        return float(number)

    def real_if_any(self, key: str, least: float, most: float) -> float | None:
        """Return a number within bounds, or None if it is missing."""
        return self.real(key, None, least, most) if key in self._table else None

    def text(self, key: str, default: str | None, expected: str = "a text") -> str:
        """Return a printable text."""
        text: str = self.get(
            key, default, lambda value: isinstance(value, str) and bool(value.strip()) and value.isprintable(), expected
        )
        return text

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        flag: bool = self.get(key, default, lambda value: isinstance(value, bool), "true or false")
        return flag

    def one_of(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of ``choices``, by default the first."""
        choice = self.text(key, choices[0])
        if choice not in choices:
            self.fail(key, f"expected one of {', '.join(choices)}, found {choice!r}{did_you_mean(choice, choices)}")
        return choice
