"""docs/adding-a-driver.md, followed to the letter in a copy of the checkout: nothing else has to change.

The page's blocks that begin with a path are what a contributor writes. The provider is made up; its server is
``pail_server.py`` beside this file, which stands for software that is installed.
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

from tests.adding import copy_checkout, environment_of, places, run_in, steps
from tests.test_docs import NOT_COPIED

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-driver.md"


def difference(one: Path, other: Path) -> set[str]:
    """Files that are not the same in two folders, by their paths below them."""

    def files(folder: Path) -> Mapping[str, bytes]:
        found = {}
        for base, folders, names in os.walk(folder):
            ignored = NOT_COPIED(base, [*folders, *names])
            folders[:] = [name for name in folders if name not in ignored]
            for name in set(names) - ignored:
                path = Path(base, name)
                if path.is_file():
                    found[str(path.relative_to(folder))] = path.read_bytes()
        return found

    first, second = files(one), files(other)
    return {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}


def written(ending: str) -> list[str]:
    return [place for place in places(PAGE.read_text("utf-8")) if place.endswith(ending)]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to compare with: the checkout itself may be worked on."""
    return copy_checkout(tmp_path_factory.mktemp("adding") / "original")


@pytest.fixture(scope="module")
def checkout(original: Path) -> Path:
    """A copy in which everything was done that the page says."""
    copy = Path(shutil.copytree(original, original.with_name("checkout")))
    for step in steps(PAGE.read_text("utf-8")):
        step.do(copy)
    return copy


@pytest.fixture(scope="module")
def environment(checkout: Path) -> dict[str, str]:
    """Where the copy is what is imported, and the provider's server is installed."""
    programs = checkout.with_name("bin")
    programs.mkdir()
    server = programs / "pail-server"
    server.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "pail_server.py").read_text("utf-8"))
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return environment_of(checkout, PATH=path)


def python(checkout: Path, environment: Mapping[str, str], *command: str) -> str:
    """What a module prints in the copy; fails when it does."""
    done = run_in(checkout, "-m", *command, environment=environment)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_page_names_every_place_and_no_other_one_changes(original: Path, checkout: Path) -> None:
    page = PAGE.read_text("utf-8")
    assert places(page) == [step.path for step in steps(page)]
    assert len(places(page)) == 6
    assert difference(original, checkout) == set(places(page))


def test_the_copy_is_what_is_tested(checkout: Path, environment: Mapping[str, str]) -> None:
    code = "from pytest_cloudbench import drivers; print(drivers.schemes(), drivers.__file__)"
    done = run_in(checkout, "-c", code, environment=environment)
    assert "'pail'" in done.stdout
    assert str(checkout) in done.stdout


@pytest.mark.slow
def test_what_it_says_is_well_formed(checkout: Path, environment: Mapping[str, str]) -> None:
    python(checkout, environment, "ruff", "check", *written(".py"))
    python(checkout, environment, "ruff", "format", "--check", *written(".py"))
    python(checkout, environment, "mypy", "--strict", "src/pytest_cloudbench/drivers")


def test_the_driver_passes_the_conformance_suite(checkout: Path, environment: Mapping[str, str]) -> None:
    tests = "tests/drivers/test_driver_conformance.py"
    told = python(checkout, environment, "pytest", "-p", "no:cacheprovider", "-v", tests, "-k", "pail")
    assert sorted(re.findall(r"::(\S+) PASSED", told)) == [
        "test_conformance[pail-0]", "test_conformance[pail-2]", "test_unknown_parameter_is_refused[pail]"
    ]  # fmt: skip


@pytest.mark.slow
def test_no_other_test_wants_a_change(checkout: Path, environment: Mapping[str, str]) -> None:
    """The rules of the architecture, and every test that looks at all drivers."""
    told = python(
        checkout, environment, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py",
        "tests/drivers/test_driver_registry.py", "tests/drivers/test_third_party.py",
        "tests/drivers/test_sdk_import.py", "tests/test_credentials.py",
    )  # fmt: skip
    assert re.search(r"\d+ passed", told)


def test_the_driver_passes_the_fault_matrix(checkout: Path, environment: Mapping[str, str]) -> None:
    told = python(checkout, environment, "pytest", "-q", "-p", "no:cacheprovider", "tests/drivers/faults", "-k", "pail")
    assert re.search(r"\d+ passed", told)


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [place for place in written(".py") if "/faults/" not in place])
def test_each_of_its_places_is_needed(
    original: Path, environment: Mapping[str, str], left_out: str, tmp_path: Path
) -> None:
    """What the tests above see is no accident: without one of the steps, the registry's tests fail."""
    copy = Path(shutil.copytree(original, tmp_path / "checkout"))
    for step in steps(PAGE.read_text("utf-8")):
        if step.path != left_out:
            step.do(copy)
    there = {**environment, "PYTHONPATH": str(copy / "src")}
    with pytest.raises(AssertionError, match="ended with 1"):
        python(copy, there, "pytest", "-q", "-p", "no:cacheprovider", "tests/drivers/test_driver_registry.py")
