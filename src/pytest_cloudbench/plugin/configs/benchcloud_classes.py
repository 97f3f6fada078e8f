"""Parse ``data/benchcloud.toml``: the replacement of each BenchCloud class that files name.

The caller passes the text.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.configs.ini import quote_value


@dataclass(frozen=True, slots=True)
class DriverClass:
    """The replacement of a driver class.

    ``scheme`` is that of the provider, None if ``--provider`` overrides it. ``local`` says that remote paths are paths
    of this machine.
    """

    scheme: str | None = None
    local: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """The methods of an operator class that can run here, each with its verb, and the names of those that cannot."""

    methods: Mapping[str, str]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratorClass:
    """The replacement of a file generator: a name and parameters of the payload registry.

    ``keys``: more keys of ``[file_generator]``, each with the parameter (a share) that it sets.
    """

    generator: str
    params: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    least_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Classes:
    """BenchCloud's classes by the import paths that its files use."""

    drivers: Mapping[str, DriverClass]
    operators: Mapping[str, OperatorClass]
    generators: Mapping[str, GeneratorClass]


def parse_classes(text: str, source: str) -> Classes:
    """Read ``data/benchcloud.toml``. Raises only ConfigError, which names file, key and what was expected."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    classes: dict[str, dict[str, Any]] = {}
    for kind, build in (("drivers", _driver_class), ("operators", _operator_class), ("generators", _generator_class)):
        tables = document.get(kind)
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise ConfigError(source, kind, "expected one table per class")
        classes[kind] = {}
        for path, table in tables.items():
            try:
                classes[kind][path] = build(table)
            except (TypeError, ValueError) as error:
                raise ConfigError(source, f"{kind}.{quote_value(path, 100)}", quote_value(str(error), 200)) from error
    return Classes(**classes)


def _driver_class(table: Mapping[str, Any]) -> DriverClass:
    parsed = DriverClass(**table)
    if not parsed.scheme or not isinstance(parsed.local, bool):
        raise ValueError("expected a scheme; local is true or false")
    _check_texts(parsed.scheme, parsed.note)
    return parsed


def _operator_class(table: Mapping[str, Any]) -> OperatorClass:
    parsed = OperatorClass(dict(table.get("methods", {})), tuple(table.get("missing", ())))
    if table.keys() - {"methods", "missing"}:
        raise ValueError("expected methods and missing only")
    _check_texts(*parsed.methods.values(), *parsed.missing)
    return parsed


def _generator_class(table: Mapping[str, Any]) -> GeneratorClass:
    parsed = GeneratorClass(**table)
    if (
        not isinstance(parsed.params, dict)
        or not isinstance(parsed.keys, dict)
        or not isinstance(parsed.least_bytes, int)
    ):
        raise ValueError("expected tables params and keys, and a whole number least_bytes")
    _check_texts(parsed.generator, *parsed.keys.values())
    return parsed


def _check_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"expected a text, found {value!r}")
