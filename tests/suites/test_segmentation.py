"""A best level that follows from bandwidth, latency and slots is found again, and none where there is none."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab

from .harness import conclusion, profile, run_suite

SIZE_BYTES = 10 * 1024 * 1024


def test_the_best_level_is_the_number_of_slots(lab: Lab) -> None:
    latency_s, bytes_per_s, slots = 0.1, 12_000_000, 8
    speed, capacity = {"up_bytes_per_s": bytes_per_s}, {"slots": slots}
    known = profile(lab, latency={"median_s": latency_s}, bandwidth=speed, capacity=capacity)
    run = run_suite(lab, "segmentation", *known)
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert slots - 1 <= found["best_segments"] <= slots
    assert found["native"] == pytest.approx(latency_s + SIZE_BYTES / bytes_per_s, rel=0.15)
    assert found["segmented"] == pytest.approx(latency_s + SIZE_BYTES / bytes_per_s / found["best_segments"], rel=0.2)
    assert found["single_chunk"] == pytest.approx(found["segmented"], rel=0.25)
    assert found["improvement_factor"] == pytest.approx(found["native"] / found["segmented"])


def test_where_segments_gain_nothing_one_is_best(lab: Lab) -> None:
    run = run_suite(lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, capacity={"slots": 1}))
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert (found["best_segments"], found["improvement_factor"]) == (1, 1.0)


@pytest.mark.slow
def test_levels_at_which_parts_are_refused_are_no_answer(lab: Lab) -> None:
    limits = {"max_in_flight": 15, "reason": '"too_many_requests"', "retry_after_s": 1}
    speed = {"up_bytes_per_s": 20_000_000}
    run = run_suite(
        lab, "segmentation", *profile(lab, latency={"median_s": 0.05}, bandwidth=speed, throttle=limits), "-n", "2"
    )
    assert run.counts() == {"passed": 1}, run.text
    found = conclusion(run, "")
    assert 5 <= found["best_segments"] <= 15
    assert 50 in found["refused"]
    assert run.lines_with("note: 50 segments: not all of them got through")


def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "segmentation", *FOLDER)
    assert run.counts() == {"passed": 1}, run.text
