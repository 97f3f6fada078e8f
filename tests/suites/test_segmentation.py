"""The best level follows from bandwidth, latency and slots. It is one if parallel segments gain nothing."""

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
    profile_options = profile(lab, latency={"median_s": latency_s}, bandwidth=speed, capacity=capacity)
    run = run_suite(lab, "segmentation", *profile_options)
    info = conclusion(run, "")
    counts = {name: len(info["spread"][name]) for name in ("native", "segmented", "single_chunk")}
    assert counts == dict.fromkeys(counts, REPEATS), "one slow measurement decides none of them"
    if not truths.judged(run, info):
        return
    first, last = map(int, info["contenders"].split("-"))
    # Or the run cannot tell them apart.
    assert slots - 1 <= info["best_segments"] <= slots or first <= slots <= last, info["segments_s"]
    own_s = info["client_cpu_s"] / (info["probes"] + 2 * REPEATS - len(info["segments_s"]["1"]))
    moved_s = SIZE_BYTES / bytes_per_s
    truths.assert_time(info["native"], latency_s + moved_s, 0.15, own_s)
    truths.assert_time(info["segmented"], latency_s + moved_s / info["best_segments"], 0.2, own_s)
    truths.assert_time(info["single_chunk"], latency_s + moved_s / info["best_segments"], 0.2, own_s)
    assert info["improvement_factor"] == pytest.approx(info["native"] / info["segmented"])


@pytest.mark.slow
def test_one_segment_is_best_without_parallel_gain(lab: Lab, truths: Truths) -> None:
    run = run_suite(lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, capacity={"slots": 1}))
    info = conclusion(run, "")
    if truths.judged(run, info):
        assert (info["best_segments"], info["improvement_factor"]) == (1, 1.0)


@pytest.mark.slow
def test_levels_with_refused_parts_are_not_chosen(lab: Lab, truths: Truths) -> None:
    limits = {"max_in_flight": 15, "reason": '"too_many_requests"', "retry_after_s": 1}
    speed = {"up_bytes_per_s": 20_000_000}
    run = run_suite(
        lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, bandwidth=speed, throttle=limits), "-n", "2"
    )
    info = conclusion(run, "")
    if truths.judged(run, info):
        assert 5 <= info["best_segments"] <= 15
    assert 50 in info["refused"]
    assert run.lines_with("note: 50 segments: some uploads failed")


@pytest.mark.slow
def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "segmentation", *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
