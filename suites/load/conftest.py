"""Options of the load suite, which ``cloudbench put``, ``get`` and ``mixed`` pass on."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cloudbench import Option, Verb, add_suite_options, parse_duration_s

from .source import Workload

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment

ShowTest = Callable[[str], None]

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3}


def pytest_addoption(parser: pytest.Parser) -> None:
    rows = tomllib.loads(Path(__file__).with_name("options.toml").read_text("utf-8"))
    options = (_make_option(name, row, _PARSERS[name]) for name, row in rows.items())
    add_suite_options(parser, "load", options)


@pytest.fixture
def workload(request: pytest.FixtureRequest) -> Workload:
    """The load that the options describe."""
    option = request.config.option
    return Workload(
        option.cloudbench_load_size, option.cloudbench_load_rate, option.cloudbench_load_threads,
        option.cloudbench_load_for, option.cloudbench_load_files, option.cloudbench_load_mix,
    )  # fmt: skip


@pytest.fixture
def show_test(request: pytest.FixtureRequest, experiment: Experiment) -> ShowTest:
    """A function that shows the source of the same test without this suite, once for several providers."""
    spec, specs = experiment.provider.spec, request.config.option.cloudbench_provider

    def show(source: str) -> None:
        if specs and spec != specs[0]:
            return
        experiment.report(f"The same as a test of your own, run by:\n{write_command(specs or [spec])}\n\n{source}")

    return show


def write_command(specs: Sequence[str]) -> str:
    """Return the command of a shell that runs a user's own test on these providers."""
    return shlex.join(["pytest", "test_own.py", *(word for spec in specs for word in ("--provider", spec))])


def _make_option(name: str, row: Mapping[str, str], parse: Callable[[str], Any]) -> Option:
    """Return the option of one row of ``options.toml``, whose default is written as a user would write it."""
    default = parse(row["default"]) if "default" in row else None
    settings = {"type": _wrap_parser(name, parse), "metavar": row["metavar"], "default": default}
    return Option(f"--load-{name}", {**settings, "help": row["help"].format_map(row)})


def _wrap_parser(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that raises pytest.UsageError where ``parse`` raises ValueError."""

    def parse_option(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise pytest.UsageError(f"{name} {text!r}: {error}") from None

    return parse_option


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``5KiB``, ``1MB`` or ``4096``. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)", text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("expected a size such as 5KiB, 1MB or 4096")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def parse_rate(text: str) -> float:
    """Return the operations in a second of a rate such as ``50/s`` or ``600/min``. Raises ValueError."""
    number, _, unit = text.partition("/")
    seconds = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}.get(unit)
    try:
        rate_per_s = float(number) / seconds if seconds else 0.0
    except ValueError:
        rate_per_s = 0.0
    if not (isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError("expected a rate above 0, such as 50/s, 600/min or 2/h")
    return rate_per_s


def parse_mix(text: str) -> dict[Verb, float]:
    """Return the share of each operation of ``put=25,get=75``. The shares add up to 1. Raises ValueError."""
    names = {verb.value: verb for verb in (Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST)}
    weights: dict[Verb, float] = {}
    for part in text.split(","):
        name, _, weight = part.strip().partition("=")
        if name not in names or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", weight):
            raise ValueError(f"expected shares of {', '.join(names)} such as put=25,get=75, not {part!r}")
        if names[name] in weights:
            raise ValueError(f"{name} is given twice")
        weights[names[name]] = float(weight)
    if not sum(weights.values()):
        raise ValueError("expected a share above 0")
    return {verb: weight / sum(weights.values()) for verb, weight in weights.items()}


def _parse_whole(maximum: int, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= maximum:
        raise ValueError(f"expected a whole number from 1 to {maximum:,}")
    return int(text)


def _parse_time(text: str) -> float:
    seconds = parse_duration_s(text)
    if not seconds > 0:
        raise ValueError("expected a time above 0, such as 30s")
    return seconds


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "size": parse_size,
    "rate": parse_rate,
    "threads": partial(_parse_whole, 512),
    "for": _parse_time,
    "files": partial(_parse_whole, 1_000_000),
    "mix": parse_mix,
}
