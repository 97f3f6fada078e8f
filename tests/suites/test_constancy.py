"""The three categories of providers, each set in an emulator and found."""

from __future__ import annotations

import pytest

from tests.fleet.harness import FOLDER, Lab
from tests.truths import Truths

from .harness import conclusion, profile, run_suite


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slots", "latency_s", "category"),
    [
        pytest.param(0, 0.25, "constant", id="none"),
        pytest.param(1, 0.05, "degrading", id="one"),
        pytest.param(6, 0.3, "degrading_above", id="six"),
    ],
)
def test_the_category_of_a_provider_with_so_many_slots(
    lab: Lab, truths: Truths, slots: int, latency_s: float, category: str
) -> None:
    """If few or no transfers wait, latency is long enough for this machine's own work not to matter."""
    profile_options = profile(lab, latency={"median_s": latency_s}, capacity={"slots": slots})
    run = run_suite(lab, "constancy::test_upload", *profile_options)
    info = conclusion(run, "category")
    if not truths.judged(run, info):
        return
    assert info["category"] == category, run.text
    if slots == 0:
        assert info["slowdown"] < 0.2
    else:  # the mean wait of 20 transfers if `slots` of them are worked on at a time
        rounds = [position // slots + 1 for position in range(20)]
        assert info["slowdown"] == pytest.approx(sum(rounds) / 20 - 1, rel=0.35)
    if slots == 6:
        assert 2 <= info["above_level"] <= 10


@pytest.mark.slow
def test_level_with_refused_files_is_left_out_with_a_note(lab: Lab, truths: Truths) -> None:
    limits = {"max_in_flight": 12, "reason": '"too_many_requests"', "retry_after_s": 1}
    run = run_suite(lab, "constancy::test_upload", *profile(lab, latency={"median_s": 0.2}, throttle=limits))
    info = conclusion(run, "category")
    assert "20" not in info["centres_s"]
    if truths.judged(run, info):
        assert info["category"] == "constant"
    assert run.lines_with("note: level 20 is left out: ")
    refused = conclusion(run, "level 20")
    assert (refused["throttled"] > 0, refused["elapsed"], refused["median_s"]) == (True, None, None)
    assert conclusion(run, "level 10")["median_s"] > 0


def test_a_folder_is_a_provider_too(lab: Lab) -> None:
    run = run_suite(lab, "constancy", *FOLDER, "-n", "2")
    assert run.counts() == {"passed": 2}, run.text
    assert conclusion(run, "category", "test_download")["category"] in (
        "constant",
        "degrading",
        "degrading_above",
        "unknown",
    )
