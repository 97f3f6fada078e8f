"""docs/extending/driver.md, followed to the letter in a copy of the checkout: nothing else has to change.

A contributor writes the page's blocks that begin with a path. The provider is made up, and its server is
``pail_server.py`` in this folder, which stands for software that is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.followed_page import copy_checkout, environment_of, listed_paths, parse_steps, run_in
from tests.test_architecture import DRIVER_IMPORTS
from tests.test_docs import NOT_COPIED, commands

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "extending" / "driver.md"
TOOL = re.compile(r"python (tools/\S+)")
GENERATED = {"docs/reference/drivers.md"}
"""The files that the page's tool writes."""

ABOUT_ALL = re.compile(r"\bschemes\(\)|\bconformance_table\b|load_tool\(.make_driver_tables")
"""Matches the text of a test file that examines all drivers of the package."""
LONG = (
    "tests/drivers/test_driver_conformance.py",
    "tests/drivers/faults/test_faults.py",
    "tests/drivers/test_odd_names.py",
)
"""Files that test each driver in turn, with its service. Only the new driver's tests in them are run."""


def difference(one: Path, other: Path) -> set[str]:
    """Return the relative paths of the files that differ between two folders."""

    def files(folder: Path) -> Mapping[str, bytes]:
        contents = {}
        for base, folders, names in os.walk(folder):
            ignored = NOT_COPIED(base, [*folders, *names])
            folders[:] = [name for name in folders if name not in ignored]
            for name in set(names) - ignored:
                path = Path(base, name)
                if path.is_file():
                    contents[str(path.relative_to(folder))] = path.read_bytes()
        return contents

    first, second = files(one), files(other)
    return {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}


def list_paths(ending: str) -> list[str]:
    return [path for path in listed_paths(PAGE.read_text("utf-8")) if path.endswith(ending)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to compare with, since the checkout itself may change meanwhile."""
    return copy_checkout(tmp_path_factory.mktemp("adding") / "original")


@pytest.fixture(scope="module")
def checkout(original: Path) -> Path:
    """A copy in which all steps of the page were done."""
    copy = Path(shutil.copytree(original, original.with_name("checkout"), symlinks=True))
    follow_in(copy)
    return copy


def follow_in(copy: Path, without: str = "") -> None:
    """Do the steps of the page in a copy, except for one file."""
    page = PAGE.read_text("utf-8")
    for step in parse_steps(page):
        if step.path != without:
            step.do(copy)
    for command in filter(None, map(TOOL.fullmatch, commands(page))):
        if without not in GENERATED:
            done = run_in(copy, command[1])
            assert without or done.returncode == 0, done.stderr


def about_all() -> list[str]:
    """Return the test files that examine all drivers, except the slow ones and this one."""
    paths = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
             if ABOUT_ALL.search(path.read_text("utf-8"))}  # fmt: skip
    assert paths > {*LONG}
    return sorted(paths - {*LONG, str(Path(__file__).relative_to(ROOT))})


@pytest.fixture(scope="module")
def environment(checkout: Path) -> dict[str, str]:
    """An environment in which the copy is imported, and the provider's server is installed."""
    programs = checkout.with_name("bin")
    programs.mkdir()
    server = programs / "pail-server"
    server.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "pail_server.py").read_text("utf-8"))
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return environment_of(checkout, PATH=path)


def python(checkout: Path, environment: Mapping[str, str], *command: str) -> str:
    """Run a module in the copy, and return its output. Fail if the module fails."""
    done = run_in(checkout, "-m", *command, environment=environment)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_page_lists_exactly_the_files_that_change(original: Path, checkout: Path) -> None:
    page = PAGE.read_text("utf-8")
    assert [path for path in listed_paths(page) if path not in GENERATED] == [step.path for step in parse_steps(page)]
    assert len(listed_paths(page)) == 7
    assert difference(original, checkout) == set(listed_paths(page))


def test_page_lists_imports_allowed_in_drivers() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in DRIVER_IMPORTS if f"`{name}`" not in page] == []


def test_driver_is_tested_in_the_copied_checkout(checkout: Path, environment: Mapping[str, str]) -> None:
    code = "from pytest_cloudbench import drivers; print(drivers.schemes(), drivers.__file__)"
    done = run_in(checkout, "-c", code, environment=environment)
    assert "'pail'" in done.stdout
    assert str(checkout) in done.stdout


@pytest.mark.slow
def test_code_of_the_page_is_well_formed(checkout: Path, environment: Mapping[str, str]) -> None:
    python(checkout, environment, "ruff", "check", *list_paths(".py"))
    python(checkout, environment, "ruff", "format", "--check", *list_paths(".py"))
    python(checkout, environment, "mypy", "--strict", "src/pytest_cloudbench/drivers")


def test_the_driver_passes_the_conformance_suite(checkout: Path, environment: Mapping[str, str]) -> None:
    tests = "tests/drivers/test_driver_conformance.py"
    output = python(checkout, environment, "pytest", "-p", "no:cacheprovider", "-v", tests, "-k", "pail")
    assert sorted(re.findall(r"::(\S+) PASSED", output)) == [
        "test_conformance[pail-0]", "test_conformance[pail-2]", "test_unknown_parameter_is_refused[pail]"
    ]  # fmt: skip


@pytest.mark.slow
def test_no_other_test_needs_a_change(checkout: Path, environment: Mapping[str, str]) -> None:
    """The rules of the architecture, and every test that examines all drivers."""
    output = python(
        checkout, environment, "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/test_architecture.py",
        "tests/providers/test_credentials.py", *about_all(),
    )  # fmt: skip
    assert re.search(r"\d+ passed", output)


def test_the_driver_keeps_odd_names(checkout: Path, environment: Mapping[str, str]) -> None:
    tests = "tests/drivers/test_odd_names.py"
    output = python(checkout, environment, "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", "pail")
    assert "1 passed" in output


def test_the_driver_passes_the_fault_matrix(checkout: Path, environment: Mapping[str, str]) -> None:
    tests = "tests/drivers/faults"
    output = python(
        checkout, environment, "pytest", "-q", "-p", "no:cacheprovider", tests, "-k", "pail or every_driver"
    )
    assert re.search(r"\d+ passed", output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "test"),
    [
        ("src/pytest_cloudbench/drivers/pail.py", "test_driver_registry.py"),
        ("src/pytest_cloudbench/drivers/__init__.py", "test_driver_registry.py"),
        ("tests/drivers/conformance_table.py", "test_driver_registry.py"),
        ("tests/drivers/faults/rows.py", "faults/test_faults.py::test_every_driver_has_a_row"),
        ("docs/reference/drivers.md", "test_driver_tables.py"),
    ],
)
def test_each_place_of_the_page_is_needed(
    original: Path, environment: Mapping[str, str], left_out: str, test: str, tmp_path: Path
) -> None:
    """The tests above do not pass by accident: if one of the steps is omitted, a test of all drivers fails."""
    copy = Path(shutil.copytree(original, tmp_path / "checkout", symlinks=True))
    follow_in(copy, without=left_out)
    copy_environment = {**environment, "PYTHONPATH": str(copy / "src")}
    with pytest.raises(AssertionError, match="ended with 1"):
        python(copy, copy_environment, "pytest", "-q", "-p", "no:cacheprovider", f"tests/drivers/{test}")
