"""Rhythms of events: known periods are found, and times without a period give "no"."""

from __future__ import annotations

from random import Random

import pytest

from pytest_cloudbench.lab.detect.rhythm import find_rhythm
from pytest_cloudbench.model import UsageError

SPAN_S = 40.0


def ticks(period_s: float, seed: str, jitter: float = 0.0) -> list[float]:
    """Return the ticks of a clock that waits after each answer, so that its scatter adds up."""
    chance, times, at_s = Random(seed), [], 0.0
    at_s = chance.uniform(0, period_s)
    while at_s < SPAN_S:
        times.append(at_s)
        at_s += period_s * (1 + chance.gauss(0, jitter))
    return times


@pytest.mark.parametrize("period_s", [0.5, 2, 5, 9])
@pytest.mark.parametrize("jitter", [0, 0.01])
def test_a_period_is_found_again(period_s: float, jitter: float) -> None:
    for number in range(20):
        rhythm = find_rhythm(ticks(period_s, f"{number}", jitter), SPAN_S)
        assert rhythm.answer == "yes", rhythm
        assert rhythm.period_s == pytest.approx(period_s, rel=0.02)
        assert rhythm.scatter_s is not None
        assert rhythm.scatter_s <= 4 * jitter * period_s + 1e-9


def test_beats_are_whole_periods_apart() -> None:
    rhythm = find_rhythm(ticks(2, "a"), SPAN_S)
    assert rhythm.first_s is not None
    assert rhythm.last_s is not None
    assert rhythm.last_s - rhythm.first_s == pytest.approx((rhythm.beats - 1) * 2)


@pytest.mark.parametrize("more", ["a second burst", "another clock", "by chance"])
def test_other_events_do_not_hide_a_rhythm(more: str) -> None:
    right = 0
    for number in range(20):
        times, chance = ticks(2, f"{number}", 0.005), Random(f"{more}/{number}")
        times += {
            "a second burst": [time_s + 0.4 for time_s in times if time_s < SPAN_S - 1],
            "another clock": [1.3 + 7 * index for index in range(5)],
            "by chance": [chance.uniform(0, SPAN_S) for _ in range(8)],
        }[more]
        rhythm = find_rhythm(times, SPAN_S)
        assert rhythm.answer == "yes"
        right += rhythm.period_s == pytest.approx(2, rel=0.02)
    assert right >= 18


def test_some_missing_beats_do_not_hide_it() -> None:
    times = ticks(2, "a")
    del times[7], times[12]
    rhythm = find_rhythm(times, SPAN_S)
    assert rhythm.answer == "yes"
    assert rhythm.period_s == pytest.approx(2)


def test_no_times_have_no_period() -> None:
    rhythm = find_rhythm([], SPAN_S)
    assert rhythm.answer == "no"
    assert rhythm.period_s is None
    assert rhythm.longest_s == pytest.approx(SPAN_S / 3)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("count", [6, 12, 40, 200])
def test_times_by_chance_have_no_period(count: int) -> None:
    answers = []
    for number in range(50):
        chance = Random(f"{count}/{number}")
        answers.append(find_rhythm([chance.uniform(0, SPAN_S) for _ in range(count)], SPAN_S).answer)
    assert answers.count("no") >= 45
    assert answers.count("yes") <= 1


@pytest.mark.parametrize(("period_s", "others"), [(2, 100), (5, 20), (5, 100), (10, 6), (10, 40), (12, 3)])
def test_no_period_is_denied_that_other_events_hide(period_s: float, others: int) -> None:
    for number in range(10):
        times, chance = ticks(period_s, f"{number}", 0.005), Random(f"hidden/{number}")
        rhythm = find_rhythm([*times, *(chance.uniform(0, SPAN_S) for _ in range(others))], SPAN_S)
        assert rhythm.answer != "no" or 0 < rhythm.longest_s < period_s, rhythm


def test_events_without_a_break_tell_nothing() -> None:
    rhythm = find_rhythm([number / 100 for number in range(4000)], SPAN_S, least_s=5)
    assert (rhythm.answer, rhythm.longest_s) == ("unknown", 0)
    assert rhythm.evidence[-1] == "too many to tell a clock among them"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_few_times_are_unknown(count: int) -> None:
    assert find_rhythm([3.0 + 12 * number for number in range(count)], SPAN_S).answer == "unknown"


def test_a_clock_that_stops_is_unknown() -> None:
    rhythm = find_rhythm([time_s for time_s in ticks(2, "a") if time_s < 0.6 * SPAN_S], SPAN_S)
    assert rhythm.answer == "unknown"
    assert "only" in rhythm.evidence[-1]


def test_every_second_tick_is_not_the_period() -> None:
    assert find_rhythm(ticks(0.25, "a"), SPAN_S).period_s == pytest.approx(0.25)


def test_shorter_than_asked_for_is_not_found() -> None:
    rhythm = find_rhythm(ticks(0.25, "a"), SPAN_S, least_s=0.3)
    assert rhythm.period_s == pytest.approx(0.5), "every second tick is one"


def test_times_outside_of_the_span_are_an_error() -> None:
    with pytest.raises(UsageError, match="from 0 to 40 s"):
        find_rhythm([1.0, 41.0], SPAN_S)
