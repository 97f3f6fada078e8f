"""A limit that is set in an emulator is bracketed, by loss or by response time; without one, none is found."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab

from .harness import conclusion, profile, run_suite

THROTTLE = {"rate_per_s": 30, "burst": 10, "refused_cost": 0, "retry_after_s": 1, "reason": '"too_many_requests"'}


@pytest.mark.slow
def test_the_rate_of_the_throttle_is_bracketed(lab: Lab) -> None:
    """30 a second and 10 at once are 40 in the first second; random phases clump, so a little less gets through."""
    run = run_suite(lab, "capacity::test_rate", *profile(lab, throttle=THROTTLE), "--capacity-seconds", "1")
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert 40 / 1.5 <= found["passes_at"] <= 40 * 1.1
    assert 40 / 1.1 <= found["fails_at"] <= 40 * 1.5
    assert found["passes_at"] == found["capacity_per_s"] < found["fails_at"] <= found["passes_at"] * 1.5
    assert found["is_bounded"]
    losses = {probe["level"]: probe["loss_rate"] for probe in found["probes"]}
    assert losses[min(losses)] == 0 < losses[max(losses)]


@pytest.mark.slow
def test_sensors_that_wait_too_long_are_too_many(lab: Lab) -> None:
    """Four slots of 0.1 s are 40 uploads/s; above, the queue grows until the end: 54 wait 0.35 s after 1 s."""
    known = profile(lab, latency={"median_s": 0.1}, capacity={"slots": 4})
    run = run_suite(
        lab, "capacity::test_sensors", *known, "--capacity-p99", "0.45", "--capacity-seconds", "1", "-n", "2"
    )
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert 32 <= found["capacity_sensors"] <= 60, found["probes"]
    assert 40 <= found["fails_at"] <= 72
    assert all(probe["loss_rate"] == 0 for probe in found["probes"]), "it is the time that fails"


@pytest.mark.slow
def test_capacity_without_failures_is_reported_as_a_bound(lab: Lab) -> None:
    run = run_suite(lab, "capacity::test_rate", *FOLDER, "--capacity-ops", "400", "--capacity-seconds", "0.5")
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert (found["fails_at"], found["is_bounded"], found["ended"]) == (None, False, "budget")
    assert found["ops_used"] <= 400
    assert run.lines_with("note: at least ")


@pytest.mark.slow
def test_a_machine_that_is_late_gives_no_answer(lab: Lab) -> None:
    late = ("-ocloudbench_max_lateness=0.0000001", "--capacity-seconds", "0.3", "--capacity-ops", "150")
    run = run_suite(lab, "capacity::test_rate", *FOLDER, *late)
    found = conclusion(run, "")
    assert found["capacity_per_s"] is None
    assert found["doubts"]
