"""What follows from the observations of a file, case by case."""

from __future__ import annotations

import pytest

from pytest_cloudbench.judge.staleness import Glance, Trial, history_of, staleness_of, summarize_trials


def trial(*seen: str, number: int = 0, problem: str = "") -> Trial:
    """Reads that begin every 100 ms and take 10 ms."""
    reads = [Glance(place / 10, place / 10 + 0.01, what) for place, what in enumerate(seen)]
    return Trial(number, 0.05, reads, problem)


def test_a_file_that_is_right_from_the_first_read_on() -> None:
    found = staleness_of(trial("", "", ""))
    assert found is not None
    assert (found.stale, found.regressions, found.consistent_s, found.low_s) == (0, 0, 0.0, 0.0)
    assert found.high_s == pytest.approx(0.01)
    assert found.resolution_s is None


def test_the_truth_is_between_the_last_stale_read_and_the_first_right_one() -> None:
    found = staleness_of(trial("not there", "not there", "", "", ""))
    assert found is not None
    assert (found.stale, found.regressions) == (2, 0)
    assert (found.low_s, found.consistent_s, found.high_s) == pytest.approx((0.1, 0.2, 0.21))
    assert found.resolution_s == pytest.approx(0.1)


def test_who_goes_back_to_the_old_content_is_consistent_later() -> None:
    found = staleness_of(trial("", "old content", "", "", ""))
    assert found is not None
    assert (found.stale, found.regressions) == (1, 1)
    assert found.consistent_s == pytest.approx(0.2)


def test_a_file_that_never_is_right() -> None:
    found = staleness_of(trial("not there", "not there"))
    assert found is not None
    assert (found.stale, found.consistent_s, found.high_s) == (2, None, None)


def test_what_says_nothing_of_the_file_counts_for_neither_side() -> None:
    assert staleness_of(trial("? throttled", "? network")) is None
    found = staleness_of(trial("not there", "? throttled", ""))
    assert found is not None
    assert found.resolution_s == pytest.approx(0.2), "but what is known is coarser"
    assert staleness_of(trial("", problem="put: quota")) is None


def test_counts_and_percentiles() -> None:
    trials = [
        trial("", "", ""),
        trial("not there", ""),
        trial("not there", "not there", ""),
        trial("", problem="put: quota"),
    ]
    told = summarize_trials(trials)
    metrics, extra = told["metrics"], told["extra"]
    assert metrics["violation_rate"] == pytest.approx(2 / 3)
    assert (metrics["consistency_p50"], metrics["consistency_max"]) == pytest.approx((0.1, 0.2))
    assert (extra["files"], extra["violated"], extra["stale_reads"], extra["never"]) == (3, 2, 3, 0)
    assert extra["problems"] == {"put: quota": 1}
    assert extra["seen"] == {"not there": 3}
    assert extra["asked_every_ms"] == pytest.approx(100)
    never = summarize_trials([trial(""), trial("not there")])["metrics"]
    assert never["consistency_p50"] == 0.0
    assert never["consistency_max"] is None, "worse than any number"
    assert summarize_trials([])["metrics"]["violation_rate"] is None


def test_the_history_is_that_of_violated_files() -> None:
    told = history_of([trial("", number=1), trial("not there", "", number=2)])
    assert told == [
        {"file": 2, "write_s": 0.05, "reads": [[0.0, 0.01, "not there"], [0.1, pytest.approx(0.11), "right"]]}
    ]
