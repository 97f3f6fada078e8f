"""Searches against known truths: what they find, that they end, and that they say what they do not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.search import BestLevel, Bracket, BracketSearch, LevelSearch

FEW = settings(deadline=None, max_examples=100)
SEEDS = range(100)


# --- the best level ---


def look(search: LevelSearch, time_s: Callable[[int], float | None]) -> BestLevel:
    while (level := search.next()) is not None:
        search.tell(level, time_s(level))
    return search.result()


def noisy(truth_s: Callable[[int], float], noise: float, seed: int) -> Callable[[int], float]:
    random = Random(seed)
    return lambda level: truth_s(level) * random.lognormvariate(0, noise)


def valley(level: int) -> float:
    """Least at 30: less work for each segment, more overhead for all."""
    return 10 / level + level / 90


def plateau(level: int) -> float:
    return max(10 / level, 0.5)


def falling(level: int) -> float:
    return 10 / level


def growing(level: int) -> float:
    return float(level**0.5)


def edge_at_50(level: int) -> float:
    """Table II, the provider whose best level is 50 at every size: beyond it, connections wait."""
    return 10 / level if level <= 50 else 0.2 + 0.01 * (level - 50)


@pytest.mark.parametrize(
    ("truth_s", "low", "high"),
    [(valley, 20, 40), (plateau, 19, 50), (falling, 99, 100), (growing, 1, 1), (edge_at_50, 45, 52)],
)
def test_the_best_level_is_found_with_few_probes(truth_s: Callable[[int], float], low: int, high: int) -> None:
    found = [look(LevelSearch(), noisy(truth_s, 0.02, seed)) for seed in SEEDS]
    assert sum(each.level is not None and low <= each.level <= high for each in found) >= 90
    best_s = min(truth_s(level) for level in range(1, 101))
    assert sum(each.level is not None and truth_s(each.level) <= 1.1 * best_s for each in found) >= 95
    assert all(each.is_complete for each in found)
    assert sorted(each.probes for each in found)[50] <= 36, "a grid in steps of 5 with three repeats takes 60"


@pytest.mark.parametrize("truth_s", [valley, plateau, falling, edge_at_50])
def test_a_noisy_search_finds_a_nearly_best_level(truth_s: Callable[[int], float]) -> None:
    best_s = min(truth_s(level) for level in range(1, 101))
    found = [look(LevelSearch(repeats=5, max_probes=80), noisy(truth_s, 0.05, seed)) for seed in SEEDS]
    assert sum(each.level is not None and truth_s(each.level) <= 1.15 * best_s for each in found) >= 95
    assert sum(each.noise == pytest.approx(0.05, rel=0.5) for each in found) >= 85


def waves(level: int) -> float:
    """Eight at a time, so nine take twice as long."""
    return ceil(level / 8) * (0.1 + 0.874 / level)


def held_up(truth_s: Callable[[int], float], share: float, seed: int) -> Callable[[int], float]:
    """Some measurements take up to twice as long, for reasons of their own."""
    random, time_s = Random(seed), noisy(truth_s, 0.02, seed)
    return lambda level: time_s(level) * (random.uniform(1.2, 2) if random.random() < share else 1)


@pytest.mark.parametrize("truth_s", [waves, valley, falling, edge_at_50])
def test_single_measurements_that_took_much_longer_decide_nothing(truth_s: Callable[[int], float]) -> None:
    best_s = min(truth_s(level) for level in range(1, 101))
    found = [look(LevelSearch(), held_up(truth_s, 0.05, seed)) for seed in SEEDS]
    assert sum(each.level is not None and truth_s(each.level) <= 1.1 * best_s for each in found) >= 94
    assert sum(each.noise is not None and each.noise < 0.05 for each in found) >= 94


def test_a_level_beside_the_answer_is_not_left_out_after_one_slow_measurement() -> None:
    told: list[int] = []

    def time_s(level: int) -> float:
        told.append(level)
        return waves(level) * (1.6 if level == 8 and told.count(8) == 1 else 1)

    found = look(LevelSearch(start=[1, 5, 8, 10, 20, 50]), time_s)
    assert (found.level, found.quickest, told.count(8)) == (8, 8, 3)


def test_without_noise_the_least_level_of_a_plateau_is_found() -> None:
    found = look(LevelSearch(), plateau)
    assert found.level is not None
    assert 18 <= found.level <= 22
    assert all(level >= found.level for level in found.contenders)
    assert found.quickest is not None
    assert found.quickest >= 20


def test_the_gap_below_the_smallest_contender_is_searched_too() -> None:
    """Best at 100 by an invisible margin: then 20 is as good, and lies between 16 and 32."""
    found = look(LevelSearch(), lambda level: plateau(level) * (1 - level / 10_000))
    assert found.quickest == 100
    assert found.level is not None
    assert 19 <= found.level <= 23


def test_before_anything_was_measured_twice_small_differences_decide_nothing() -> None:
    search = LevelSearch(start=[10, 20])
    search.tell(10, 1.1)
    search.tell(20, 1.0)
    assert search.result().contenders == (10, 20)
    assert search.next() == 10


def test_more_segments_are_not_answered_when_they_are_not_seen_to_be_better() -> None:
    found = look(LevelSearch(1, 100), noisy(lambda _: 1.0, 0.05, 3))
    assert found.level is not None
    assert found.level <= 4
    assert len(found.contenders) > 3


def test_the_first_pass_doubles_and_can_be_chosen() -> None:
    search, asked = LevelSearch(1, 100), []
    for _ in range(8):
        level = search.next()
        assert level is not None
        asked.append(level)
        search.tell(level, falling(level))
    assert asked == [1, 2, 4, 8, 16, 32, 64, 100]
    assert LevelSearch(1, 100, start=[50, 5, 25]).next() == 5


def test_next_is_repeatable_and_equal_searches_agree() -> None:
    one, two = LevelSearch(max_probes=40), LevelSearch(max_probes=40)
    time_s = noisy(valley, 0.1, 7)
    while (level := one.next()) is not None:
        assert one.next() == level == two.next()
        one.result()  # reading the result has no effect either
        seconds = time_s(level)
        one.tell(level, seconds)
        two.tell(level, seconds)
    assert two.next() is None
    assert one.result() == two.result()


def test_a_level_that_fails_is_tried_twice_and_left_out() -> None:
    asked: list[int] = []

    def time_s(level: int) -> float | None:
        asked.append(level)
        return None if level > 30 else falling(level)

    found = look(LevelSearch(), time_s)
    assert found.level is not None
    assert 26 <= found.level <= 30
    assert asked.count(100) == 2
    assert found.measured[100] == ()
    assert found.probes == len(asked)


def test_one_failure_does_not_exclude_a_level() -> None:
    failed: set[int] = set()

    def time_s(level: int) -> float | None:
        is_first = level not in failed
        failed.add(level)
        return None if is_first else falling(level)

    assert look(LevelSearch(), time_s).level == 100


def test_a_search_without_measurements_has_no_level() -> None:
    fresh = LevelSearch().result()
    assert (fresh.level, fresh.time_s, fresh.contenders, fresh.is_complete) == (None, None, (), False)
    broken = look(LevelSearch(), lambda _: None)
    assert (broken.level, broken.probes, broken.is_complete) == (None, 16, True)


def test_one_level_is_its_own_best_and_a_spent_budget_says_so() -> None:
    found = look(LevelSearch(5, 5, repeats=3), lambda _: 1.0)
    assert (found.level, found.probes, found.is_complete) == (5, 3, True)
    assert not look(LevelSearch(max_probes=4), valley).is_complete


def test_wrong_levels_and_times_are_refused() -> None:
    search = LevelSearch()
    with pytest.raises(ValueError, match="expected a measurement of level 1, got one of 2"):
        search.tell(2, 1.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="is not a time"):
            search.tell(1, seconds)
    assert search.result().probes == 0


@pytest.mark.parametrize(
    "limits",
    [
        {"lowest": 0},
        {"lowest": 9, "highest": 8},
        {"repeats": 0},
        {"max_probes": 0},
        {"resolution": 0},
        {"start": [101]},
    ],
)
def test_limits_that_leave_nothing_to_search_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        LevelSearch(**limits)  # type: ignore[arg-type]  # one wrong value at a time


@FEW
@given(
    answers=st.lists(st.one_of(st.none(), st.floats(1e-3, 1e3)), min_size=1, max_size=60),
    lowest=st.integers(1, 50), span=st.integers(0, 100), repeats=st.integers(1, 5), max_probes=st.integers(1, 80),
)  # fmt: skip
def test_a_level_search_always_ends_within_its_budget(
    answers: Sequence[float | None], lowest: int, span: int, repeats: int, max_probes: int
) -> None:
    search = LevelSearch(lowest, lowest + span, repeats, max_probes)
    count = 0
    while (level := search.next()) is not None:
        assert lowest <= level <= lowest + span
        search.tell(level, answers[count % len(answers)])
        count += 1
        assert count <= max_probes
    found = search.result()
    assert found.probes == count
    assert found.is_complete or count == max_probes
    times = sum(len(each) for each in found.measured.values())
    assert (found.level is None) == (times == 0)
    if found.level is not None:
        assert found.level == found.contenders[0]
        assert found.quickest in found.contenders
        assert max(len(each) for each in found.measured.values()) <= repeats


# --- the largest level that passes ---


def probe(
    search: BracketSearch, judge: Callable[[float], bool | None], ops: Callable[[float], int] = lambda _: 1
) -> Bracket:
    while (level := search.next()) is not None:
        search.tell(level, judge(level), ops(level))
    return search.result()


@pytest.mark.parametrize("truth", [1.0, 1.5, 7.0, 300.0, 512.0, 9999.0])
@pytest.mark.parametrize("start", [1.0, 100.0, 10_000.0])
def test_a_sharp_threshold_is_bracketed(truth: float, start: float) -> None:
    found = probe(BracketSearch(1, 10_000, 0.1, start=start), lambda level: level <= truth)
    assert found.passes_at is not None
    assert found.fails_at is not None
    assert found.passes_at <= truth < found.fails_at <= 1.1 * found.passes_at
    assert (found.low, found.high) == (found.passes_at, found.fails_at)
    assert (found.is_bounded, found.is_monotonic, found.ended, found.inconclusive) == (True, True, "resolution", "")


def test_integer_search_ends_at_adjacent_levels() -> None:
    found = probe(BracketSearch(1, 1000, 1e-9, integer=True), lambda level: level <= 137)
    assert (found.passes_at, found.fails_at) == (137, 138)
    assert all(isinstance(each.level, int) for each in found.probes)


def test_a_soft_threshold_lies_in_the_wider_interval() -> None:
    """The chance to pass falls from 98 % to 2 % within a fifth around the truth."""

    def soft(seed: int) -> Callable[[float], bool]:
        random = Random(seed)
        return lambda level: random.random() < 1 / (1 + (level / 300) ** 40)

    found = [probe(BracketSearch(1, 10_000, 0.1), soft(seed)) for seed in range(400)]
    assert {each.ended for each in found} == {"resolution"}
    assert sum((each.low or 0) <= 300 <= (each.high or 1e9) for each in found) >= 320
    assert all(each.passes_at is not None and 240 < each.passes_at < 360 for each in found)


def test_one_disturbed_probe_of_three_is_outvoted_and_widens_the_interval() -> None:
    disturbed = [64.0]

    def judge(level: float) -> bool:
        if level in disturbed:
            disturbed.remove(level)
            return False
        return level <= 300

    found = probe(BracketSearch(1, 1000, 0.1), judge)
    assert found.passes_at is not None
    assert found.passes_at <= 300 < found.passes_at * 1.1
    assert found.low == 32, "at and above 64, not all probes passed"
    assert found.ended == "resolution"


def test_a_disturbance_of_a_whole_level_is_noticed_by_looking_above_and_outvoted() -> None:
    seen: list[float] = []

    def judge(level: float) -> bool:
        seen.append(level)
        return level <= 300 and not (level == 16 and seen.count(16) <= 2)

    found = probe(BracketSearch(1, 1000, 0.1), judge)
    assert found.passes_at is not None
    assert found.passes_at <= 300 < found.passes_at * 1.1
    assert found.is_monotonic
    assert seen.count(16) == 6


def test_a_level_that_always_fails_below_one_that_passes_is_not_monotonic() -> None:
    found = probe(BracketSearch(1, 1000, 0.1), lambda level: level <= 100 and level != 16)
    assert not found.is_monotonic
    assert found.fails_at == 16
    assert found.passes_at is not None
    assert found.passes_at < 16 <= found.passes_at * 1.1
    assert (found.low, found.high) == (found.passes_at, 128)


def test_probing_a_level_stops_as_soon_as_it_is_decided() -> None:
    found = probe(BracketSearch(1, 4, 10.0, 3), lambda _: True)
    assert [each.level for each in found.probes] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(("truth", "passes_at", "fails_at"), [(1e9, 1000, None), (0.1, None, 1)])
def test_at_an_edge_only_one_bound_is_known(truth: float, passes_at: float | None, fails_at: float | None) -> None:
    found = probe(BracketSearch(1, 1000), lambda level: level <= truth)
    assert (found.passes_at, found.fails_at, found.is_bounded, found.ended) == (passes_at, fails_at, False, "edge")


def test_levels_that_cannot_be_judged_leave_the_upper_end_open() -> None:
    """The engine is saturated above 100, so nothing is known there; the search still goes up to it."""
    found = probe(BracketSearch(1, 1000, 0.1), lambda level: None if level > 100 else True)
    assert found.passes_at is not None
    assert found.passes_at <= 100 < found.passes_at * 1.1
    assert (found.fails_at, found.high, found.is_bounded, found.ended) == (None, None, False, "inconclusive")
    assert found.inconclusive.startswith("could not be judged: ")


def test_a_probe_that_cannot_be_judged_is_made_again() -> None:
    count = 0

    def judge(level: float) -> bool | None:
        nonlocal count
        count += 1
        return None if count % 3 == 0 else level <= 20

    found = probe(BracketSearch(1, 100, 0.1, max_probes=100), judge)
    assert found.passes_at is not None
    assert found.passes_at <= 20 < found.passes_at * 1.1
    assert found.ended == "resolution"


def test_nothing_that_can_be_judged_ends_without_an_answer() -> None:
    found = probe(BracketSearch(1, 1000), lambda _: None)
    assert (found.passes_at, found.fails_at, found.ended) == (None, None, "inconclusive")
    assert len(found.probes) == 3


def test_a_bracket_before_the_first_probe_is_empty() -> None:
    found = BracketSearch(1, 1000).result()
    assert (found.passes_at, found.fails_at, found.ended, found.ops, found.probes) == (None, None, "running", 0, ())


def test_operations_are_budgeted_ahead() -> None:
    found = probe(BracketSearch(1, 10_000, 0.05, max_ops=3000), lambda level: level <= 300, ops=int)
    assert found.ops <= 3000
    assert found.ended == "budget"
    assert found.passes_at is not None
    assert found.fails_at is not None
    assert found.passes_at <= 300 < found.fails_at


def test_probes_are_budgeted_and_an_open_level_counts_for_neither_side() -> None:
    found = probe(BracketSearch(1, 1000, max_probes=5), lambda _: True)
    assert (found.passes_at, found.fails_at, found.ended, len(found.probes)) == (2, None, "budget", 5)


def test_wrong_levels_and_operations_are_refused() -> None:
    search = BracketSearch(1, 1000)
    with pytest.raises(ValueError, match="expected a measurement of level 1, got one of 2"):
        search.tell(2, True)
    with pytest.raises(ValueError, match="-1 operations"):
        search.tell(1, True, -1)


@pytest.mark.parametrize(
    "limits",
    [{"lowest": 0.0}, {"lowest": 2000.0}, {"resolution": 0.0}, {"repeats": 0}, {"max_probes": 0}, {"start": 0.5},
     {"highest": float("inf")}, {"integer": True, "lowest": 1.5}],
)  # fmt: skip
def test_brackets_that_leave_nothing_to_search_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        BracketSearch(**{"lowest": 1.0, "highest": 1000.0, **limits})  # type: ignore[arg-type]  # one wrong at a time


@FEW
@given(
    answers=st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=60),
    lowest=st.integers(1, 20), span=st.integers(0, 2000), is_integer=st.booleans(), repeats=st.integers(1, 5),
    max_probes=st.integers(1, 60), max_ops=st.one_of(st.none(), st.integers(1, 20_000)),
)  # fmt: skip
def test_a_bracket_search_always_ends_within_its_budgets(
    answers: Sequence[bool | None], lowest: int, span: int, is_integer: bool, repeats: int, max_probes: int,
    max_ops: int | None,
) -> None:  # fmt: skip
    highest = lowest + span
    one, two = (
        BracketSearch(lowest, highest, 0.1, repeats, max_probes=max_probes, max_ops=max_ops, integer=is_integer)
        for _ in range(2)
    )
    count = 0
    while (level := one.next()) is not None:
        assert lowest <= level <= highest
        assert level == two.next()
        for search in (one, two):
            search.tell(level, answers[count % len(answers)], round(level))
        count += 1
        assert count <= max_probes
    found = one.result()
    assert found == two.result()
    assert found.ended != "running"
    assert len(found.probes) == count
    assert max_ops is None or count <= 1 or found.ops <= max_ops * 1.5 + 1, "levels are rounded to operations"
    if found.passes_at is not None and found.fails_at is not None:
        assert found.passes_at < found.fails_at
    assert found.low is None or (found.passes_at is not None and found.low <= found.passes_at)
    assert found.high is None or (found.fails_at is not None and found.fails_at <= found.high)
    assert found.is_bounded == (found.passes_at is not None and found.fails_at is not None)


@FEW
@given(truth=st.floats(0.5, 3000), start=st.floats(1, 1000), repeats=st.integers(1, 4), resolution=st.floats(0.01, 1))
def test_the_bracket_always_holds_a_sharp_threshold(
    truth: float, start: float, repeats: int, resolution: float
) -> None:
    found = probe(
        BracketSearch(1, 1000, resolution, repeats, start=start, max_probes=500), lambda level: level <= truth
    )
    assert (found.low or 0) <= truth < (found.high or 4000)
    assert found.is_monotonic
    if found.is_bounded:
        assert found.ended == "resolution"
        assert found.fails_at is not None
        assert found.passes_at is not None
        assert found.fails_at <= found.passes_at * (1 + resolution)
