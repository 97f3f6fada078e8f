"""No test depends on those that ran before it: secrets that one has learned end with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.support import redact
from tests.limits import HANG_S

ROOT = Path(__file__).resolve().parents[1]
FILES = ("tests/drivers/test_driver_opendal.py", "tests/load/test_cassette_drivers.py")


@pytest.fixture(scope="module")
def issued() -> str:
    redact.learn(["module-4711-issued"])
    return "module-4711-issued"


@pytest.mark.parametrize("turn", [1, 2])
def test_a_secret_ends_with_its_test_and_one_of_a_module_does_not(issued: str, turn: int) -> None:
    assert redact.clean(f"{issued} test-4711-issued") == "*** test-4711-issued"
    redact.learn(["test-4711-issued"])
    assert redact.clean(f"{issued} test-4711-issued") == "*** ***"


@pytest.mark.slow
@pytest.mark.parametrize("files", [FILES, FILES[::-1]], ids=["forwards", "backwards"])
def test_two_files_pass_in_both_orders(files: tuple[str, ...]) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout
    assert " failed" not in done.stdout
