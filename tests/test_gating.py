"""The commands about the regression gate, on runs with a known truth."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import cli
from pytest_cloudbench.judge import changepoints, watched
from tests.results.stored_runs import DAY_MS, START_MS, info, store

TEST = "test_it.py::test_put"
Run = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str) -> list[str]:
        assert cli.main(["gate", *argv, "--storage", str(folder)]) == 0
        return capfd.readouterr().out.splitlines()

    return run


def store_runs(folder: Path, first: int, runs: int, spread: float = 0.01, p50: float = 0.1, **given: Any) -> None:
    """Store a run a day, with quiet times that vary this much."""
    source = random.Random(first)
    for number in range(first, first + runs):
        told = {
            "quiet_ops": 300, "quiet_p50": p50 * exp(source.gauss(0, spread)), "quiet_p99": 0.2, "quiet_kept": 300,
            "start_wall_ms": START_MS + number * DAY_MS, "quiet_share": 1.0, **given,
        }  # fmt: skip
        store(folder, number, {TEST: info(**told)})


def test_power_gives_no_figure_for_what_the_gate_refuses(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, quiet_ops=50)
    (line,) = [line for line in run("power") if "quiet_p99" in line]
    assert line == "  quiet_p99: 300 quiet operations are needed, found 50"
    assert any(line.startswith("  quiet_p50: changes from ") for line in run("power"))


def test_power_writes_large_changes_as_people_do(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, spread=0.6)
    (line,) = [line for line in run("power") if "quiet_p50" in line]
    assert "e+0" not in line
    assert " % would be seen (margin 10 %)" in line


def test_power_says_how_many_operations_would_find_a_rise_of_a_rate(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12, ops=60)
    (line,) = [line for line in run("power") if "failed_rate" in line]
    assert " points would be seen (margin 1 point): about " in line
    assert line.endswith(" operations and 15 runs would suffice")


def test_power_says_why_other_runs_are_no_baseline(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 13)
    store_runs(folder, 14, 1, machine="Another")
    assert run("power")[0] == (
        f"{TEST}: 1 run, and 10 are needed (the 13 stored runs differed in machine "
        "(Linux x86_64, 2 x A CPU, CPython 3.11, here Another))"
    )


def test_power_names_the_run_of_the_last_change(folder: Path, run: Run) -> None:
    store_runs(folder, 1, 12)
    store_runs(folder, 13, 4, p50=0.2)
    (line,) = [line for line in run("power") if "quiet_p50" in line]
    assert line.endswith("; 4 runs since the change at 0013_run")


def test_as_many_runs_are_searched_for_a_change_as_in_the_gate(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_runs(folder, 1, 70)
    lengths = set[int]()

    def find_changes(values: list[float]) -> list[changepoints.ChangePoint]:
        lengths.add(len(values))
        return changepoints.find_changes(values)

    monkeypatch.setattr(watched, "find_changes", find_changes)
    run("power")
    assert max(lengths) == 60
    lengths.clear()
    assert run("backtest")[-1].startswith("60 of 60 sessions had 10 runs before them")
    assert max(lengths) == 60
