"""Options that a suite declares in its own ``conftest.py``: each is known if its suite is named, and is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cloudbench.load.policy import suite_folder
from tests.fleet.harness import FOLDER, Lab
from tests.runs import SPREAD, Spread
from tests.suites.harness import SUITES

ONLY = ("--collect-only", "-q")

WRONG = {
    ("batching", "--batching-bytes", "0"): "one byte or more",
    ("batching", "--batching-seconds", "nan"): "seconds above 0",
    ("capacity", "--capacity-loss", "nan"): "a share from 0 to 1",
    ("capacity", "--capacity-loss", "2"): "a share from 0 to 1",
    ("capacity", "--capacity-p99", "0"): "seconds above 0",
    ("capacity", "--capacity-seconds", "nan"): "seconds above 0",
    ("batching", "--batching-seconds", "inf"): "seconds above 0",
    ("capacity", "--capacity-seconds", "inf"): "seconds above 0",
    ("idle", "--idle-seconds", "inf"): "a second or more",
    ("capacity", "--capacity-ops", "0"): "a whole number, 1 or more",
    ("cloudraid", "--cloudraid-objects", "0"): "one object or more",
    ("cloudraid", "--cloudraid-failure", "nan"): "a share from 0 to 1",
    ("idle", "--idle-seconds", "-inf"): "a second or more",
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("arguments", "expected"), WRONG.items(), ids=[" ".join(arguments) for arguments in WRONG])
def test_meaningless_numbers_of_options_are_refused(lab: Lab, arguments: tuple[str, str, str], expected: str) -> None:
    suite, name, value = arguments
    run = lab.run(str(SUITES / suite), *FOLDER, f"{name}={value}")
    assert run.status == 4, run.text
    (line,) = run.lines_with("ERROR: ")
    assert line == f"ERROR: {name} {value}: expected {expected}"


@SPREAD
def test_a_suite_beside_other_tests(lab: Lab, spread: Spread) -> None:
    lab.write("""
        def test_it(request):
            option = request.config.option
            assert (option.cloudbench_capacity_ops, option.cloudbench_idle_seconds) == (7, 3.5)
    """)
    paths = ["test_it.py", str(SUITES / "capacity"), str(SUITES / "idle")]
    run = lab.run(*paths, "-k", "test_it", "--capacity-ops", "7", "--idle-seconds=3.5", *spread)
    assert run.status == 0, run.text
    assert run.counts()["passed"] == 1


def test_the_options_of_a_suite_that_pytest_comes_to_late_have_their_defaults(lab: Lab) -> None:
    run = lab.run(str(SUITES), *FOLDER, *ONLY)
    assert run.status == 0, run.text
    run = lab.run(str(SUITES), *FOLDER, *ONLY, "--idle-seconds", "3")
    assert run.status == 4
    assert run.lines_with("unrecognized arguments: --idle-seconds")


STRANGER = """
def pytest_addoption(parser):
    parser.addoption("--duration", type=int, default=0)


def pytest_configure(config):
    assert (config.option.duration, config.option.cloudbench_duration) == (5, 90.0)
"""


def test_another_owner_of_a_short_name_keeps_it(lab: Lab) -> None:
    (lab.folder / "conftest.py").write_text(STRANGER)
    paths = ["test_it.py", str(SUITES / "availability")]
    run = lab.write("def test_it(): pass").run(*paths, *ONLY, "--duration", "5", "--cloudbench-duration", "90s")
    assert run.status == 0, run.text


def test_help_shows_options_of_a_named_suite(lab: Lab) -> None:
    assert not lab.run("--help", store=False).lines_with("--capacity-loss")
    assert lab.run(str(SUITES / "capacity"), "--help", store=False).lines_with("--cloudbench-capacity-loss")


@pytest.mark.parametrize(
    "name", ["pytest_cloudbench.load", "pytest_cloudbench", "json.tool", "nosuch.idle", "pytest_cloudbench.suitesx"]
)
def test_other_packages_are_not_suites(name: str) -> None:
    assert suite_folder(name) is None


def test_a_suite_is_found_in_the_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    idle = tmp_path / "pytest_cloudbench" / "suites" / "idle"
    idle.mkdir(parents=True)
    (idle / "test_idle.py").touch()
    monkeypatch.setattr(
        "pytest_cloudbench.load.policy.__file__", str(tmp_path / "pytest_cloudbench" / "load" / "policy.py")
    )
    for name in ("pytest_cloudbench.suites.idle", "pytest_cloudbench.suites.idle.test_idle::test_login[a.b]"):
        assert suite_folder(name) == idle
    assert suite_folder("pytest_cloudbench.suites") == idle.parent
    assert suite_folder("pytest_cloudbench.suites.nosuch.test_x") is None
