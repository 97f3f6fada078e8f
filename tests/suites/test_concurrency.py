"""The knee of a provider that works on a known number of requests at once."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import conclusion, profile, run_suite

SLOW = {"median_s": 0.04}


@pytest.mark.slow
def test_knee_is_at_the_number_of_provider_slots(lab: Lab, truths: Truths) -> None:
    """Within one level of the grid: between two requests of a client, its slot is free for a waiting thread."""
    latency_s, slots = 0.06, 5
    run = run_suite(lab, "concurrency", *profile(lab, latency={"median_s": latency_s}, capacity={"slots": slots}))
    knees = {test: conclusion(run, "knee", test) for test in ("test_upload", "test_download")}
    if not truths.judged(run, *knees.values()):
        return
    for test, found in knees.items():
        own_s = found["client_cpu_s"] / found["ops"]
        assert slots <= found["knee_threads"] <= 2 * slots
        assert found["knee_from"] <= found["knee_threads"] <= found["knee_to"]
        truths.assert_time(found["best_total"], 50 * latency_s / slots, 0.25, 50 * own_s)
        one, many = conclusion(run, "1 threads", test), conclusion(run, "25 threads", test)
        assert one["elapsed"] >= 50 * latency_s
        truths.assert_time(one["elapsed"], 50 * latency_s, 0.25, 50 * own_s)
        assert many["mean_s"] > 2 * one["mean_s"], "thesis 4.2.2: the average time rises with the threads"


@pytest.mark.slow
def test_without_a_limit_more_threads_are_always_better(lab: Lab, truths: Truths) -> None:
    run = run_suite(lab, "concurrency::test_upload", *profile(lab, latency=SLOW), "-n", "3")
    found = conclusion(run, "knee")
    assert found["agents"] == 3
    if truths.judged(run, found):
        # 50 threads need half of the service's time that 25 need, unless this machine's own work takes as long.
        assert found["knee_threads"] in (25, 50)


@pytest.mark.slow
def test_level_with_refused_files_is_left_out_with_a_note(lab: Lab, truths: Truths) -> None:
    limits = {"max_in_flight": 7, "retry_after_s": 1, "reason": '"too_many_requests"'}
    run = run_suite(lab, "concurrency::test_upload", *profile(lab, latency=SLOW, throttle=limits))
    found = conclusion(run, "knee")
    if truths.judged(run, found):
        assert found["knee_threads"] == 5
    assert sorted(found["totals_s"]) == ["1", "5"]
    assert run.lines_with("note: 10 threads are left out: ")
    assert conclusion(run, "25 threads")["throttled"] > 0


def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "concurrency", *FOLDER)
    assert run.counts() == {"passed": 2}, run.text
    assert not [path for path in (lab.folder / "objects").rglob("*") if path.is_file()]
