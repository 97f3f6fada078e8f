"""The updates suite on the reference client, whose traffic follows from its protocol."""

from __future__ import annotations

import re

import pytest

from tests.fleet.harness import FinishedRun, Lab
from tests.suites.harness import run_suite

WHOLE, DELTA = "reference", "reference?delta=rolling"
OVERHEAD = 1.052
"""The overhead of a large body of random bytes: headers of TCP, IP and Ethernet, acknowledgements, and TLS."""


def run_updates_suite(lab: Lab, suite: str, *args: str) -> FinishedRun:
    run = run_suite(lab, suite, *args)
    if reasons := [line for line in run.lines_with("SKIPPED") if re.search(r": client reference\S*: ", line)]:
        pytest.skip(reasons[0])
    assert run.status == 0, run.text
    assert run.leftovers == []
    return run


@pytest.mark.slow
def test_without_delta_the_whole_file_goes_with_each_update(lab: Lab) -> None:
    run = run_updates_suite(lab, "updates::test_blocks", "--client", WHOLE, "--client", DELTA, "-n", "2")
    plain, delta = (run.info(f"test_blocks[100KB-{spec}]") for spec in (WHOLE, DELTA))
    assert plain["updates"] == delta["updates"] == 3
    for info in (plain, delta):
        assert info["sync_events"] in (3, 4), "a busy machine may pause within one"
    assert plain["tue"] == pytest.approx((1 + 2 + 3) / 3 * OVERHEAD, rel=0.02)
    assert delta["tue"] == pytest.approx(OVERHEAD, rel=0.04), "questions and signatures are small"
    assert plain["changed_bytes"] == plain["file_bytes"] == 300 * 1024
    assert sum(plain["each_second_bytes"]) == plain["traffic_bytes"]


@pytest.mark.slow
def test_updates_that_come_faster_are_batched(lab: Lab) -> None:
    run = run_updates_suite(lab, "updates::test_appends", "--client", "reference?settle_s=0.3", "-n", "2")
    fast, slow = (run.info(f"test_appends[{case}-reference?settle_s=0.3]") for case in ("0.1s-8", "1s-8"))
    assert (fast["updates"], slow["updates"]) == (8, 8)
    assert slow["sync_events"] in (8, 9), "each is sent before the next comes"
    assert fast["sync_events"] <= 3, "continuing changes are waited for"
    assert slow["tue"] == pytest.approx(slow["traffic_bytes"] / 8)
    assert fast["tue"] < slow["tue"] / 2
    assert slow["tue"] > 100, "one byte takes a whole request"
    assert slow["sync_delay_s"] > 0.3


@pytest.mark.slow
def test_a_new_file_stands_beside_the_published_one(lab: Lab) -> None:
    run = run_updates_suite(lab, "updates::test_table_1", "--client", WHOLE, "-k", "1MB or 1B")
    large, tiny = run.info(f"test_table_1[1MB-{WHOLE}]"), run.info(f"test_table_1[1B-{WHOLE}]")
    assert large["tue"] == pytest.approx(OVERHEAD, rel=0.01)
    assert large["kb_per_file"] * large["files"] * 1e3 == pytest.approx(large["traffic_bytes"])
    assert tiny["tue"] == tiny["traffic_bytes"] > 300
    assert (large["published"]["tue"], tiny["published"]["tue"]) == (1.22, 38200)
    assert run.entries[f"test_table_1[1MB-{WHOLE}]"]["params"] == {"provider": "reference", "size": "1 MB"}
    for info in (large, tiny):
        assert 0.1 < info["sync_delay_s"] < 10, "the client waits for 0.1 s before it sends"


@pytest.mark.slow
def test_start_up_time_equals_the_settle_time(lab: Lab) -> None:
    """Indexing takes no time here, so all of it is ``settle_s``. A client's own traffic is told apart."""
    specs = [f"reference?{options}" for options in ("settle_s=0.5", "settle_s=0.01", "polling=0.1")]
    run = run_updates_suite(lab, "updates::test_delays", *(f"--client={spec}" for spec in specs), "-n", "2")
    patient, quick, polling = (run.info(f"test_delays[1B-3-{spec}]") for spec in specs)
    for info in (patient, quick, polling):
        assert (info["appends"], info["file_bytes"], len(info["start_ups_s"])) == (3, 3, 3)
        assert info["published"]["start_up_p50_5400_rpm_s"] == 0.4
        assert info["start_up_max"] == max(info["start_ups_s"])
    assert min(patient["start_ups_s"]) >= 0.5
    assert min(patient["start_ups_s"]) < 1.0
    assert min(quick["start_ups_s"]) < 0.3
    assert all(late > early for late, early in zip(patient["sync_delays_s"], patient["start_ups_s"], strict=True))
    assert patient["sync_events"] in (3, 4), "each append was sent separately; a busy machine may pause within one"
    assert patient["doubts"] == quick["doubts"] == []
    assert re.search(r"times in \d\.\d s of rest", polling["doubts"][0])


OFF_LINK = """
    from pytest_cloudbench.net.link import Link

    Link.deviations = lambda self: ["up delay: 10 ms requested, 30 delivered"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "test", ["updates::test_table_1[1B-reference]", "updates::test_delays", "batching::test_single_bytes"]
)
def test_delays_on_a_link_that_is_not_as_asked_are_doubtful(lab: Lab, test: str) -> None:
    lab.write(OFF_LINK, "conftest.py")
    seconds = ("--batching-seconds", "1") if test.startswith("batching") else ()
    run = run_updates_suite(lab, test, ".", "--client", WHOLE, *seconds)
    (entry,) = run.document["benchmarks"]
    assert "link: up delay: 10 ms requested, 30 delivered" in entry["extra_info"]["doubts"]


def test_delays_of_the_paper_are_collected_with_larger_appends(lab: Lab) -> None:
    run = run_suite(lab, "updates::test_delays", "--client", WHOLE, "--grid", "paper", "--collect-only")
    assert run.lines_with("test_delays[1B-1024-reference]")
    assert run.lines_with("test_delays[100KB-50-reference]")
