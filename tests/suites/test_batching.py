"""The batching suite: a savingbox pushes as its rules say, and the client behind it sends less."""

from __future__ import annotations

import csv
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from suites.batching.test_batching import measure_stream, read_log
from tests.fleet.harness import FinishedRun, Lab
from tests.suites import clients
from tests.suites.harness import run_suite
from tests.tool_scripts import load_tool

QUIET_S = 2
ALONE, BEHIND = "reference", f"savingbox?over=reference&quiet={QUIET_S}s"
SCAN_S = 1.0
"""The time between two scans if the kernel raises no events. Either side may notice a change so much later."""


def test_the_made_log_has_the_statistics_that_the_paper_prints() -> None:
    tool = load_tool("make_update_log")
    assert tool.FILE.read_text("ascii") == tool.text()
    with tool.FILE.open(encoding="ascii", newline="") as file:
        rows = [(float(row["due_s"]), int(row["size_bytes"])) for row in csv.DictReader(file)]
    gaps = [later - earlier for (earlier, _), (later, _) in pairwise(rows)]
    assert fmean(gaps) == pytest.approx(2.6, abs=0.01)
    assert rows[-1][0] == pytest.approx(4 * 3600, abs=1)
    size_bytes = sum(size for _, size in rows)
    assert 1.13 + len(rows) * 36_300 / size_bytes == pytest.approx(21, rel=0.05), "a session for each update"
    assert min(gaps) >= 0


def test_a_time_without_any_update_is_refused_in_one_line() -> None:
    lab: Any = None  # nothing is done with it
    stream = read_log("seed", 0.01)
    with pytest.raises(pytest.fail.Exception, match="no update is due in this time"):
        measure_stream(lab, stream, "log", "Figures 15 and 22", None)


def run_both_clients(lab: Lab, suite: str, *args: str) -> FinishedRun:
    run = run_suite(lab, suite, "--client", ALONE, "--client", BEHIND, *args)
    if reasons := [line for line in run.lines_with("SKIPPED") if ": client " in line]:
        # something is missing here that both clients need
        pytest.skip(reasons[0])
    assert run.status == 0, run.text
    assert run.leftovers == []
    return run


@pytest.mark.slow
def test_single_bytes_go_in_one_push_and_cost_a_tenth(lab: Lab) -> None:
    run = run_both_clients(lab, "batching::test_single_bytes", "--batching-seconds", "8")
    alone, behind = (run.info(f"test_single_bytes[{spec}]") for spec in (ALONE, BEHIND))
    assert (alone["updates"], behind["updates"]) == (40, 40)
    assert behind["expected_pushes"] == 1
    assert behind["pushes"] in (1, 2), "a busy machine may pause for two seconds between two updates"
    assert behind["tue"] < alone["tue"] / 10
    assert alone["sync_events"] > 10
    assert QUIET_S <= behind["sync_delay_s"] <= QUIET_S + alone["sync_delay_s"] + SCAN_S
    assert behind["longest_wait_s"] >= 2
    assert 0 < behind["box_cpu_share"] <= behind["cpu_share"] + 1e-9
    assert "pushes" not in alone
    assert any("changed bytes are found by" in note for note in behind["notes"])


@pytest.mark.slow
def test_byte_counter_decides_number_of_pushes(lab: Lab) -> None:
    run = run_both_clients(lab, "batching::test_threshold", "--batching-bytes", "204800", "-k", "20KB or 100KB")
    small, large = (run.info(f"test_threshold[{size}-{BEHIND}]") for size in ("20KB", "100KB"))
    for info, expected in ((small, 10), (large, 2)):
        assert info["expected_pushes"] == expected
        assert abs(info["pushes"] - expected) <= 1
    assert run.lines_with("has no byte counter; try --client 'savingbox?over=reference'")
    assert large["tue"] < small["tue"], "the reference client sends the whole file each time"


def test_no_threshold_is_reported_for_a_byte_counter_of_the_users_own(lab: Lab) -> None:
    spec = f"{BEHIND}&bytes=50k"
    run = run_suite(lab, "batching::test_threshold", "--client", spec, "-k", "20KB or 100KB")
    if not run.lines_with("sets its byte counter"):
        pytest.skip(run.lines_with("SKIPPED")[0])
    assert (run.counts(), run.entries) == ({"skipped": 2}, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("idle::test_idle", "--idle-seconds", "10"),
        ("propagation",),
        ("updates", "-k", "test_blocks"),
        ("sync_capabilities::test_table_1",),
        ("sync_performance",),
    ],
    ids=lambda args: args[0].partition("::")[0],
)
def test_every_suite_of_sync_clients_runs_behind_a_savingbox(lab: Lab, args: tuple[str, ...]) -> None:
    suite, *options = args
    run = clients.run_client_suite(lab, suite, "--client", "savingbox?over=reference&quiet=300ms", *options)
    assert run.status == 0, run.text
    assert clients.entries_of(run)
    assert run.leftovers == []
