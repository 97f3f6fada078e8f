"""``cloudbench estimate`` computes the operations and cost of a test from its own code, and changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cloudbench.load.conductor.costs import price_of
from tests.limits import HANG_S

TESTS = """
import pytest
from pytest_cloudbench import FixedInterval, ThinkTime, Threads, Verb

@pytest.fixture
def connected(provider):
    provider.driver.mkdir("/x")

def test_open(experiment, payloads):
    result = experiment.run(
        payloads.random(size_bytes=5000), arrival=FixedInterval(2.0), sensors=10, ops_per_sensor=6,
    )
    assert result["loss_rate"] == 0
    assert result["response_p99"] < 1
    result.check()

def test_closed(experiment, payloads):
    up = experiment.run(payloads.random(1000), arrival=ThinkTime(2.0, 9.0), sensors=2, ops_per_sensor=5, keep=True)
    experiment.run(on=up.files, operation=Verb.GET, arrival=Threads(2))
    experiment.run(on=up.files, operation=Verb.GET, arrival=Threads(2), for_s=7, files=1000)

def test_search(experiment, payloads):
    level = experiment.run(payloads.random(10), arrival=Threads(4), files=8, store=False)
    assert level["no_such_metric"] > 1

def test_by_hand(experiment, payloads, connected):
    experiment.run(payloads.random(10), arrival=Threads(4), files=8)

def test_plain():
    raise AssertionError("not run")
"""


def estimate(tmp_path: Path, *words: str, **environment: str) -> dict[str, dict[str, str]]:
    """Return the command's rows about each test, by the names of test and row."""
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "estimate", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    estimates: dict[str, dict[str, str]] = {"": {"text": done.stdout}}
    for block in done.stdout.strip().split("\n\n"):
        title, *rows = block.splitlines()
        name = re.sub(r".*::|[\[,:].*", "", title)
        estimates[name] = dict(re.split(r"(?<!:) {2,}|: ", row.strip(), maxsplit=1) for row in rows if row[:2] == "  ")
    return estimates


def test_estimate_needs_no_credentials_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    before = sorted(tmp_path.rglob("*"))
    estimates = estimate(tmp_path, "test_it.py", "--provider", "s3://my-bucket")
    assert estimates["test_open"]["operations"] == "61 (60 put, 1 list)"
    assert estimates["test_open"]["bytes"] == "300,000 up, 0 down"
    assert estimates["test_open"]["requests"] == "at least 61"
    assert estimates["test_open"]["duration"] == "about 10 s"
    price = price_of("s3://my-bucket")
    assert price is not None
    usd = 60 * price.requests["put"] + price.requests["list"]
    assert estimates["test_open"]["cost"].startswith(f"about ${usd:.5f}"[:11])
    assert "at most 300 kB at the provider" in estimates["test_open"]["space"]
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


def test_estimate_marks_figures_that_depend_on_measurement(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    estimates = estimate(tmp_path, "test_it.py", "--provider", "folder:nowhere", "-n", "4")
    assert estimates["test_closed"]["operations"] == "31 (10 put, 1 list, 20 get)"
    assert estimates["test_closed"]["bytes"] == "10,000 up, 20,000 down"
    assert estimates["test_closed"]["duration"] == "as long as the provider takes, at least 15 s"
    assert estimates["test_closed"]["cost"] == "none: no account is used"
    assert estimates["test_search"]["more"].startswith("at least this: it depends on what is measured: no_such_metric")
    assert estimates["test_by_hand"] == {"not estimated": "it asks for provide"}
    assert estimates["all 3 tests"]["operations"] == "101 (78 put, 3 list, 20 get)"
    assert estimates[""]["text"].endswith("1 test that runs no experiment: not estimated\n")
    assert not (tmp_path / "nowhere").exists()


STRANGERS = """
import pytest

@pytest.fixture
def experiment():
    open("ran", "w").close()

def test_own(experiment):
    raise AssertionError("not run")
"""

DERIVED = """
import pytest
from pytest_cloudbench import Threads

@pytest.fixture
def experiment(experiment):
    return experiment

@pytest.fixture
def mine(experiment):
    return experiment

def test_mine(mine, payloads):
    mine.run(payloads.random(10), arrival=Threads(1), files=3)
"""


def test_tests_with_an_experiment_of_their_own_are_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(STRANGERS)
    (tmp_path / "test_derived.py").write_text(DERIVED)
    estimates = estimate(tmp_path, ".", "--provider", "emulated:ideal")
    assert not (tmp_path / "ran").exists()
    assert estimates["test_mine"]["operations"] == "4 (3 put, 1 list)"
    assert estimates[""]["text"].endswith("1 test that runs no experiment: not estimated\n")


@pytest.mark.parametrize(("tests", "is_whole"), [("open or closed", True), ("open or closed or by_hand", False)])
def test_a_total_says_that_it_lacks_tests(tmp_path: Path, tests: str, is_whole: bool) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    total = estimate(tmp_path, "test_it.py", "--provider", "folder:nowhere", "-k", tests)["all 2 tests"]
    missing = "at least this: test_by_hand[folder:nowhere]: it asks for provide"
    assert total.get("more") == (None if is_whole else missing)


@pytest.mark.parametrize("words", [["iot"], ["segmentation"]])
def test_a_suite_is_estimated_to_its_end(tmp_path: Path, words: list[str]) -> None:
    text = estimate(tmp_path, f"pytest_cloudbench.suites.{words[0]}")[""]["text"]
    assert "operations" in text
    assert "at least this" not in text
    assert "not estimated" not in text


def test_a_bench_file_is_estimated(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "pytest_cloudbench.commands.cli", "new"], cwd=tmp_path, check=True)
    text = estimate(tmp_path, "experiment.bench.toml", "--provider", "emulated:ideal")[""]["text"]
    assert "in this machine's memory" in text


def test_an_unknown_provider_in_a_mark_is_the_reason_that_its_test_is_not_estimated(tmp_path: Path) -> None:
    mark = '@pytest.mark.cloudbench_provider("foldr:x")\ndef test_open('
    (tmp_path / "test_it.py").write_text(TESTS.replace("def test_open(", mark))
    estimates = estimate(tmp_path, "test_it.py", COLUMNS="400")
    assert estimates["test_open"]["not estimated"].startswith("provider 'foldr': no driver has this name"), estimates
    assert estimates["test_closed"]["operations"] == "31 (10 put, 1 list, 20 get)"


def test_unknown_provider_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "estimate", "test_it.py", "--provider", "no:x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 4
    assert "no driver has this name" in done.stdout + done.stderr


def test_a_file_that_is_missing_is_called_a_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest_cloudbench.commands.cli", "estimate", "test_snesors.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 4
    assert "file or directory not found: test_snesors.py" in done.stdout + done.stderr


def test_a_load_that_is_refused_is_no_matter_of_what_is_measured(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pytest_cloudbench import Threads\n"
        "def test_refused(experiment, payloads):\n"
        "    experiment.run(payloads.random(-1), arrival=Threads(2), files=8)\n"
    )
    row = estimate(tmp_path, "test_it.py", "--provider", "folder:.")["test_refused"]
    assert row == {"not estimated": "payload: size_bytes is -1; expected 0 or more"}
