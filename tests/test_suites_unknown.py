"""The package names no suite, because each suite declares its own metrics, figures and options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_text import docstrings, nodes

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pytest_cloudbench"
SUITES = {path.parent.name for path in (ROOT / "suites").glob("*/__init__.py")}
TESTS = {
    node.name
    for path in (ROOT / "suites").rglob("test_*.py")
    for node in ast.walk(ast.parse(path.read_text("utf-8")))
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
}

RUN_BY = {"commands/load.py": "load"}
"""A command that passes its options on to a suite may name it."""

ORDINARY = {
    "availability": "what providers have: an aim of an array, and the heading of a report's table",
    "batching": "what a batching folder does, and the package that decides it",
    "capacity": "a section of an emulator's profile",
    "conformance": "the extra with what the conformance suite needs besides",
    "consistency": "what two clients see: its metrics and threads are the package's own",
    "constancy": "a category of what a provider does under load",
    "idle": "a step in which nothing is changed",
    "load": "what is put on a provider",
    "propagation": "what a second device waits for",
    "readiness": "a section of an emulator's profile, and metrics of the package's own",
    "security": "a variable for what paramiko calls so, and one of the words that payloads are made of",
    "transfer": "what moves a file",
    "updates": "changes of files",
}
"""Names of suites that are ordinary words, and their meaning in the package."""


def find_suite_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each suite, and each test of a suite, that some code names."""
    for number, line in enumerate(source.splitlines(), 1):
        for name in re.findall(r"suites[./](\w+)", line):
            if name in SUITES:
                yield number, name
    forbidden, exempt = TESTS | (SUITES - ORDINARY.keys()), docstrings(source)
    for node in nodes(source):
        names = [getattr(node, field, None) for field in ("id", "attr", "name", "arg")]
        if isinstance(node, ast.Constant) and id(node) not in exempt:
            names.append(node.value)
        yield from ((getattr(node, "lineno", 0), name) for name in names if isinstance(name, str) and name in forbidden)


def test_the_package_names_no_suite() -> None:
    assert ORDINARY.keys() <= SUITES
    findings = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "suites"
        for line, name in find_suite_names(path.read_text("utf-8"))
        if RUN_BY.get(path.relative_to(SOURCE).as_posix()) != name
    ]
    assert findings == []


@pytest.mark.parametrize("folder", ["data", "configs"])
def test_data_files_name_no_suite(folder: str) -> None:
    findings = [
        (path.name, word)
        for path in (SOURCE / folder).rglob("*.toml")
        for word in re.findall(r"suites[./](\w+)", path.read_text("utf-8"))
    ]
    assert [(name, word) for name, word in findings if word in SUITES] == []


@pytest.mark.parametrize(
    "source",
    [
        'ROWS = {"cloudraid": 1}',
        'if test == "test_figure_4_8": pass',
        "def iot(): pass",
        'NAME = "cloud" "raid"',
        '"""From an entry of ``suites/updates``."""',
        "import_module('pytest_cloudbench.suites.idle')",
    ],
)
def test_a_name_is_found(source: str) -> None:
    assert [*find_suite_names(source)]


@pytest.mark.parametrize("source", ['step = "idle"', "def availability(): pass", '"""About concurrency."""'])
def test_ordinary_words_pass(source: str) -> None:
    assert [*find_suite_names(source)] == []
