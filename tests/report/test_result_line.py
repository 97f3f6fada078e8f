"""The line of each experiment that is printed when its test ends, with various options of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANG_S
from tests.runs import LEAN

_TWO_TESTS = """
from pytest_cloudbench import FixedInterval


def test_first(experiment, payloads):
    experiment.run(payloads.random(10), arrival=FixedInterval(0.05), sensors=2, ops_per_sensor=2)


def test_second(experiment, payloads):
    for label in ("a", "b"):
        experiment.run(payloads.random(10), arrival=FixedInterval(0.05), sensors=2, ops_per_sensor=2, label=label)
"""


def run_two_tests(folder: Path, *args: str) -> str:
    (folder / "test_it.py").write_text(_TWO_TESTS)
    (folder / "objects").mkdir()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *LEAN.split(), "--provider", "folder:objects"]
    done = subprocess.run([*command, *args], cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("args", [("-n", "2"), ("-q",), ("-v",), (), ("-v", "-n", "2"), ("-s",)])
def test_result_is_printed_when_its_test_ends(tmp_path: Path, args: tuple[str, ...]) -> None:
    before_tables, _, tables = run_two_tests(tmp_path, *args).partition("= cloudbench =")
    lines = [line for line in before_tables.splitlines() if "lost 0.00 %, p50 " in line]
    names = ["test_first[folder:objects]: ", "test_second[folder:objects]#a: ", "test_second[folder:objects]#b: "]
    assert [line.startswith(name) for line, name in zip(lines, names, strict=True)] == [True] * 3, before_tables
    assert all(len(line) <= 80 for line in lines)
    assert tables.count("files  ") == 2, "the tables at the end stay"
    if "-n" in args and "-v" in args:
        assert before_tables.index("PASSED test_it.py::test_first") < before_tables.index(lines[0])


@pytest.mark.parametrize("args", [("-qq",), ("-p", "no:terminal")])
def test_no_result_line_is_printed_without_a_table(tmp_path: Path, args: tuple[str, ...]) -> None:
    assert "lost" not in run_two_tests(tmp_path, *args)
