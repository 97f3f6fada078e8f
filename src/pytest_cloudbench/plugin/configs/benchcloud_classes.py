"""What stands here for each class of BenchCloud that its files name: ``data/benchcloud.toml`` as frozen values.

What may live here: the reading of that table, whose text the caller passes in.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.model import ConfigError
from pytest_cloudbench.plugin.configs.ini import shown


@dataclass(frozen=True, slots=True)
class DriverClass:
    """What stands for a driver class: a scheme; None if a provider overrides it. ``local``: remote paths are this
    machine's.
    """

    scheme: str | None = None
    local: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class OperatorClass:
    """Methods of an operator class that run here, each to its verb, and those that do not."""

    methods: Mapping[str, str]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratorClass:
    """What stands for a file generator: a name and parameters of the payload registry.

    ``keys``: more keys of ``[file_generator]``, each to the parameter (a share) that it sets.
    """

    generator: str
    params: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    least_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Classes:
    """BenchCloud's classes by the paths that its files name them by."""

    drivers: Mapping[str, DriverClass]
    operators: Mapping[str, OperatorClass]
    generators: Mapping[str, GeneratorClass]


def parse_classes(text: str, source: str) -> Classes:
    """Read ``data/benchcloud.toml``. Raises ConfigError naming file, key and what was expected; nothing else."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(source, "", f"is not valid TOML: {error}") from error
    made: dict[str, dict[str, Any]] = {}
    for kind, build in (("drivers", _driver_class), ("operators", _operator_class), ("generators", _generator_class)):
        tables = document.get(kind)
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise ConfigError(source, kind, "expected one table per class")
        made[kind] = {}
        for path, table in tables.items():
            try:
                made[kind][path] = build(table)
            except (TypeError, ValueError) as error:
                raise ConfigError(source, f"{kind}.{shown(path, 100)}", shown(str(error), 200)) from error
    return Classes(**made)


def _driver_class(table: Mapping[str, Any]) -> DriverClass:
    made = DriverClass(**table)
    if not made.scheme or not isinstance(made.local, bool):
        raise ValueError("expected a scheme; local is true or false")
    _check_texts(made.scheme, made.note)
    return made


def _operator_class(table: Mapping[str, Any]) -> OperatorClass:
    made = OperatorClass(dict(table.get("methods", {})), tuple(table.get("missing", ())))
    if table.keys() - {"methods", "missing"}:
        raise ValueError("expected methods and missing only")
    _check_texts(*made.methods.values(), *made.missing)
    return made


def _generator_class(table: Mapping[str, Any]) -> GeneratorClass:
    made = GeneratorClass(**table)
    if not isinstance(made.params, dict) or not isinstance(made.keys, dict) or not isinstance(made.least_bytes, int):
        raise ValueError("expected tables params and keys, and a whole number least_bytes")
    _check_texts(made.generator, *made.keys.values())
    return made


def _check_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"expected a text, found {value!r}")
