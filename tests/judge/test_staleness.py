"""Tests of the conclusions from observations of a file, case by case."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_cloudbench.judge.staleness import (
    ObservedRead,
    Settling,
    Trial,
    find_hidden_s,
    history_of,
    staleness_of,
    summarize_trials,
)


def trial(*observations: str, number: int = 0, problem: str = "") -> Trial:
    """Return a trial of reads that begin every 100 ms and take 10 ms each."""
    reads = [ObservedRead(index / 10, index / 10 + 0.01, observation) for index, observation in enumerate(observations)]
    return Trial(number, 0.05, reads, problem)


def test_a_file_that_is_right_from_the_first_read_on() -> None:
    staleness = staleness_of(trial("", "", ""))
    assert staleness is not None
    assert (staleness.stale, staleness.flips, staleness.consistent_s, staleness.low_s) == (0, 0, 0.0, 0.0)
    assert staleness.high_s == pytest.approx(0.01)
    assert staleness.resolution_s is None


def test_the_truth_is_between_the_last_stale_read_and_the_first_right_one() -> None:
    staleness = staleness_of(trial("not there", "not there", "", "", ""))
    assert staleness is not None
    assert (staleness.stale, staleness.flips) == (2, 0)
    assert (staleness.low_s, staleness.consistent_s, staleness.high_s) == pytest.approx((0.1, 0.2, 0.21))
    assert staleness.resolution_s == pytest.approx(0.1)


def test_a_file_that_goes_back_is_consistent_later() -> None:
    staleness = staleness_of(trial("", "old content", "", "", ""))
    assert staleness is not None
    assert (staleness.stale, staleness.flips) == (1, 1)
    assert staleness.consistent_s == pytest.approx(0.2)


def test_a_file_that_never_is_right() -> None:
    staleness = staleness_of(trial("not there", "not there"))
    assert staleness is not None
    assert (staleness.stale, staleness.consistent_s, staleness.high_s) == (2, None, None)


def test_failed_reads_are_neither_stale_nor_right() -> None:
    assert staleness_of(trial("? throttled", "? network")) is None
    staleness = staleness_of(trial("not there", "? throttled", ""))
    assert staleness is not None
    assert staleness.resolution_s == pytest.approx(0.2), "but what is known is coarser"
    assert staleness_of(trial("", problem="put: quota")) is None


def test_a_file_that_was_right_but_not_read_for_long_enough_is_not_never_consistent() -> None:
    right, stale = (
        Trial(0, 0.05, trial(*observations).reads, is_settled=False)
        for observations in (("", "? throttled", ""), ("not there", ""))
    )
    extra = summarize_trials([right, stale, trial("", "", "")])["extra"]
    assert (extra["never"], extra["undecided"], extra["violated"]) == (1, 1, 1)
    assert extra["consistent_s"] == [None, None, 0.0]


@pytest.mark.parametrize(
    ("observations", "hidden_s"),
    [
        (("", "? throttled", ""), 0.0),
        (("? throttled", "? network", "", ""), 0.2),
        (("not there", "", "? throttled", ""), 0.0),
        (("not there", "? throttled", "? throttled", "", ""), 0.3),
        (("not there", "? throttled", "not there", ""), 0.0),
        (("? throttled", "? throttled"), 0.0),
    ],
)
def test_how_long_failed_reads_hid_when_a_file_became_right(observations: tuple[str, ...], hidden_s: float) -> None:
    assert find_hidden_s(trial(*observations)) == pytest.approx(hidden_s)


def test_counts_and_percentiles() -> None:
    trials = [
        trial("", "", ""),
        trial("not there", ""),
        trial("not there", "not there", ""),
        trial("", problem="put: quota"),
    ]
    summary = summarize_trials(trials)
    metrics, extra = summary["metrics"], summary["extra"]
    assert metrics["violation_rate"] == pytest.approx(2 / 3)
    assert (metrics["consistency_p50"], metrics["consistency_max"]) == pytest.approx((0.1, 0.2))
    assert (extra["files"], extra["violated"], extra["stale_reads"], extra["never"]) == (3, 2, 3, 0)
    assert extra["problems"] == {"put: quota": 1}
    assert extra["seen"] == {"not there": 3}
    assert extra["asked_every_ms"] == pytest.approx(100)
    never_metrics = summarize_trials([trial(""), trial("not there")])["metrics"]
    assert never_metrics["consistency_p50"] == 0.0
    assert never_metrics["consistency_max"] is None, "worse than any number"
    assert summarize_trials([])["metrics"]["violation_rate"] is None


def test_the_history_is_that_of_violated_files() -> None:
    history = history_of([trial("", number=1), trial("not there", "", number=2)])
    assert history == [
        {"file": 2, "write_s": 0.05, "reads": [[0.0, 0.01, "not there"], [0.1, pytest.approx(0.11), "right"]]}
    ]


# --- when reading may end --------------------------------------------------------------------------

LASTS_S = (0.2, 1.0, 3.0)
EVERY_S = (0.005, 0.03, 0.3)
FLAPPING: dict[str, Callable[[int, float, random.Random], bool]] = {
    "by request": lambda count, now_s, draws: count % 2 == 1,
    "two right, one stale": lambda count, now_s, draws: count % 3 == 2,
    "by time": lambda count, now_s, draws: now_s % 0.8 < 0.4,
    "at random": lambda count, now_s, draws: draws.random() < 0.5,
    "one replica of three": lambda count, now_s, draws: draws.random() < 1 / 3,
    "always": lambda count, now_s, draws: True,
}
"""Maps a pattern to a rule that says, from the number and time of a read, if it is stale while replicas differ."""


def read_until_settled(
    is_stale: Callable[[int, float], bool], every_s: float, *, fails: Callable[[int], bool] = lambda count: False,
    limit_s: float = 60.0,
) -> Trial:  # fmt: skip
    """Read every ``every_s`` until ``Settling`` says that it is enough."""
    settling, reads = Settling(2.0, lambda observation: not observation), list[ObservedRead]()
    while not settling.is_settled and len(reads) * every_s < limit_s:
        start_s = len(reads) * every_s
        observation = "? throttled" if fails(len(reads)) else "old" if is_stale(len(reads), start_s) else ""
        reads.append(ObservedRead(start_s, start_s + every_s / 2, observation))
        settling.add(reads[-1])
    return Trial(0, 0.0, reads, is_settled=settling.is_settled)


@pytest.mark.parametrize("pattern", FLAPPING)
@pytest.mark.parametrize(
    ("lasts_s", "every_s"),
    [(lasts_s, every_s) for lasts_s in LASTS_S for every_s in EVERY_S if every_s < lasts_s],
)
def test_interval_contains_the_time_of_agreement_of_replicas(pattern: str, lasts_s: float, every_s: float) -> None:
    draws = random.Random(f"{pattern} {lasts_s} {every_s}")
    trials = [
        read_until_settled(lambda count, now_s: now_s < lasts_s and FLAPPING[pattern](count, now_s, draws), every_s)
        for _ in range(10)
    ]
    extra = summarize_trials(trials)["extra"]
    for low_s, high_s in zip(extra["low_s"], extra["high_s"], strict=True):
        assert low_s < lasts_s <= high_s


def test_reading_goes_on_for_as_long_as_the_file_was_stale() -> None:
    assert read_until_settled(lambda count, now_s: False, 0.01).reads[-1].start_s == pytest.approx(2.0, abs=0.02)
    assert read_until_settled(lambda count, now_s: now_s < 0.5, 0.01).reads[-1].start_s == pytest.approx(2.5, abs=0.02)
    assert read_until_settled(lambda count, now_s: now_s < 7, 0.01).reads[-1].start_s == pytest.approx(14, abs=0.1)
    late_trial = read_until_settled(lambda count, now_s: 5 <= now_s < 6 or now_s < 4, 0.01)
    staleness = staleness_of(late_trial)
    assert staleness is not None
    assert staleness.low_s == pytest.approx(5.99), "it was seen to be stale again"


@pytest.mark.parametrize("every_s", [0.5, 1.0, 5.0])
def test_slow_reads_are_at_least_ten(every_s: float) -> None:
    assert 10 <= len(read_until_settled(lambda count, now_s: False, every_s).reads) <= 12


def test_reads_that_fail_neither_end_the_quiet_time_nor_fill_it() -> None:
    half_failed = read_until_settled(lambda count, now_s: now_s < 1, 0.3, fails=lambda count: count % 2 == 1)
    assert half_failed.is_settled
    assert sum(not read.seen for read in half_failed.reads) >= 10
    failed_late = read_until_settled(lambda count, now_s: now_s < 1, 0.1, fails=lambda count: count > 12, limit_s=20)
    assert not failed_late.is_settled
    staleness = staleness_of(failed_late)
    assert staleness is not None
    assert (staleness.consistent_s, staleness.high_s) == (None, None), "a lower bound only"
    assert staleness.low_s == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("observations", "flips"),
    [
        (["", ""], 0),
        (["old", "old", ""], 0),
        (["", "old", "", "old", "old", ""], 2),
        (["old", "", "? throttled", "old", ""], 1),
        (["version 1", "version 2", ""], 0),
        (["version 1", "version 2", "version 1", ""], 1),
        (["not there", "old", "not there", "", "old", ""], 2),
    ],
)
def test_a_flip_is_a_read_that_went_back(observations: list[str], flips: int) -> None:
    staleness = staleness_of(trial(*observations))
    assert staleness is not None
    assert staleness.flips == flips
    assert summarize_trials([trial(*observations), trial("")])["metrics"]["flips"] == flips


def test_flapping_files_invalidate_first_right_reads_as_bounds() -> None:
    lucky, flapping = trial("old", "", "", "", ""), trial("old", "", "old", "", "")
    lucky_extra = summarize_trials([lucky])["extra"]
    assert lucky_extra["high_s"] == pytest.approx([0.11])
    both_extra = summarize_trials([lucky, flapping])["extra"]
    assert both_extra["high_s"] == pytest.approx([0.41, 0.41])
    assert (both_extra["flapped"], both_extra["low_s"]) == (1, pytest.approx([0.0, 0.2]))
