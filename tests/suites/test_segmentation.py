"""A best level that follows from bandwidth, latency and slots is found, and none where there is none."""

from __future__ import annotations

import pytest

from suites.segmentation.test_segmentation import REPEATS
from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import conclusion, profile, run_suite

SIZE_BYTES = 10 * 1024 * 1024


@pytest.mark.slow
def test_the_best_level_is_the_number_of_slots(lab: Lab, truths: Truths) -> None:
    latency_s, bytes_per_s, slots = 0.1, 12_000_000, 8
    speed, capacity = {"up_bytes_per_s": bytes_per_s}, {"slots": slots}
    known = profile(lab, latency={"median_s": latency_s}, bandwidth=speed, capacity=capacity)
    run = run_suite(lab, "segmentation", *known)
    found = conclusion(run, "")
    if not truths.judged(run, found):
        return
    first, last = map(int, found["contenders"].split("-"))
    # Or the run cannot tell them apart.
    assert slots - 1 <= found["best_segments"] <= slots or first <= slots <= last, found["segments_s"]
    own_s = found["client_cpu_s"] / (found["probes"] + REPEATS)
    moved_s = SIZE_BYTES / bytes_per_s
    truths.assert_time(found["native"], latency_s + moved_s, 0.15, own_s)
    truths.assert_time(found["segmented"], latency_s + moved_s / found["best_segments"], 0.2, own_s)
    truths.assert_time(found["single_chunk"], latency_s + moved_s / found["best_segments"], 0.2, own_s)
    assert found["improvement_factor"] == pytest.approx(found["native"] / found["segmented"])


@pytest.mark.slow
def test_one_segment_is_best_without_parallel_gain(lab: Lab, truths: Truths) -> None:
    run = run_suite(lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, capacity={"slots": 1}))
    found = conclusion(run, "")
    if truths.judged(run, found):
        assert (found["best_segments"], found["improvement_factor"]) == (1, 1.0)


@pytest.mark.slow
def test_levels_with_refused_parts_are_not_chosen(lab: Lab, truths: Truths) -> None:
    limits = {"max_in_flight": 15, "reason": '"too_many_requests"', "retry_after_s": 1}
    speed = {"up_bytes_per_s": 20_000_000}
    run = run_suite(
        lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, bandwidth=speed, throttle=limits), "-n", "2"
    )
    found = conclusion(run, "")
    if truths.judged(run, found):
        assert 5 <= found["best_segments"] <= 15
    assert 50 in found["refused"]
    assert run.lines_with("note: 50 segments: some uploads failed")


@pytest.mark.slow
def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "segmentation", *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
