"""A limit that is set in an emulator is bracketed, by loss or by response time. Without a limit none is found."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab

from .harness import conclusion, profile, run_suite

UNREACHED = """
    [[expect]]
    provider = "folder:objects"
    metric = "capacity_per_s"
    at_least = 4000
    source = "a test: a search that ends early does not show that less is the limit"
    date = 2026-12-01
"""
THROTTLE = {"rate_per_s": 30, "burst": 10, "refused_cost": 0, "retry_after_s": 1, "reason": '"too_many_requests"'}


@pytest.mark.slow
def test_the_rate_of_the_throttle_is_bracketed(lab: Lab) -> None:
    """30 a second and 10 at once are 40 in the first second. Random phases clump, so a little less gets through."""
    run = run_suite(lab, "capacity::test_rate", *profile(lab, throttle=THROTTLE), "--capacity-seconds", "1")
    assert run.counts() == {"passed": 1}, run.text
    info = conclusion(run, "")
    assert 40 / 1.5 <= info["passes_at"] <= 40 * 1.1
    assert 40 / 1.1 <= info["fails_at"] <= 40 * 1.5
    assert info["passes_at"] == info["capacity_per_s"] < info["fails_at"] <= info["passes_at"] * 1.5
    assert info["is_bounded"]
    losses = {probe["level"]: probe["loss_rate"] for probe in info["probes"]}
    assert losses[min(losses)] == 0 < losses[max(losses)]


@pytest.mark.slow
def test_sensors_that_wait_too_long_are_too_many(lab: Lab) -> None:
    """Four slots of 0.1 s are 40 uploads/s. Above that the queue grows until the end: 54 wait 0.35 s after 1 s."""
    profile_options = profile(lab, latency={"median_s": 0.1}, capacity={"slots": 4})
    run = run_suite(
        lab, "capacity::test_sensors", *profile_options, "--capacity-p99", "0.45", "--capacity-seconds", "1", "-n", "2"
    )
    assert run.counts() == {"passed": 1}, run.text
    info = conclusion(run, "")
    assert 32 <= info["capacity_sensors"] <= 60, info["probes"]
    assert 40 <= info["fails_at"] <= 72
    assert all(probe["loss_rate"] == 0 for probe in info["probes"]), "it is the time that fails"


@pytest.mark.slow
def test_capacity_without_failures_is_reported_as_a_bound(lab: Lab) -> None:
    options = ("capacity::test_rate", *FOLDER, "--capacity-ops", "400", "--capacity-seconds", "0.5")
    run = run_suite(lab, *options)
    assert run.counts() == {"passed": 1}, run.text
    info = conclusion(run, "")
    assert (info["fails_at"], info["is_bounded"], info["ended"]) == (None, False, "budget")
    assert info["ops_used"] <= 400
    assert run.lines_with("note: at least ")
    assert info["doubts"] == ["the budget of 400 operations ended the search (--capacity-ops)"]
    lab.write(UNREACHED, "expectations.toml")
    run = run_suite(lab, *options, "-ocloudbench_expectations=expectations.toml")
    assert run.counts() == {"skipped": 1}, run.text
    assert run.lines_with("inconclusive: capacity_per_s >= 4000")


@pytest.mark.slow
def test_a_machine_that_is_late_gives_no_answer(lab: Lab) -> None:
    late = ("-ocloudbench_max_lateness=0.0000001", "--capacity-seconds", "0.3", "--capacity-ops", "150")
    run = run_suite(lab, "capacity::test_rate", *FOLDER, *late)
    info = conclusion(run, "")
    assert info["capacity_per_s"] is None
    assert info["doubts"]
