"""Tests of searches against known truths: their results, their end, and what they report as unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.search import BestLevel, Bracket, BracketSearch, LevelSearch
from tests.limits import scale_examples

FEW = settings(deadline=None, max_examples=scale_examples(100))
SEEDS = range(100)


# --- the best level ---


def run_level_search(search: LevelSearch, time_s: Callable[[int], float | None]) -> BestLevel:
    while (level := search.next()) is not None:
        search.tell(level, time_s(level))
    return search.result()


def add_noise(truth_s: Callable[[int], float], noise: float, seed: int) -> Callable[[int], float]:
    random = Random(seed)
    return lambda level: truth_s(level) * random.lognormvariate(0, noise)


def valley(level: int) -> float:
    """Return a time that is shortest at 30: more segments mean less work for each, but more overhead."""
    return 10 / level + level / 90


def plateau(level: int) -> float:
    return max(10 / level, 0.5)


def falling(level: int) -> float:
    return 10 / level


def growing(level: int) -> float:
    return float(level**0.5)


def edge_at_50(level: int) -> float:
    """Return a time that is shortest at 50, above which connections wait, as with one provider of Table II."""
    return 10 / level if level <= 50 else 0.2 + 0.01 * (level - 50)


@pytest.mark.parametrize(
    ("truth_s", "low", "high"),
    [(valley, 20, 40), (plateau, 19, 50), (falling, 99, 100), (growing, 1, 1), (edge_at_50, 45, 52)],
)
def test_the_best_level_is_found_with_few_probes(truth_s: Callable[[int], float], low: int, high: int) -> None:
    results = [run_level_search(LevelSearch(), add_noise(truth_s, 0.02, seed)) for seed in SEEDS]
    assert sum(result.level is not None and low <= result.level <= high for result in results) >= 90
    best_s = min(truth_s(level) for level in range(1, 101))
    assert sum(result.level is not None and truth_s(result.level) <= 1.1 * best_s for result in results) >= 95
    assert all(result.is_complete for result in results)
    assert sorted(result.probes for result in results)[50] <= 36, "a grid in steps of 5 with three repeats takes 60"


@pytest.mark.parametrize("truth_s", [valley, plateau, falling, edge_at_50])
def test_a_noisy_search_finds_a_nearly_best_level(truth_s: Callable[[int], float]) -> None:
    best_s = min(truth_s(level) for level in range(1, 101))
    results = [
        run_level_search(LevelSearch(repeats=5, max_probes=80), add_noise(truth_s, 0.05, seed)) for seed in SEEDS
    ]
    assert sum(result.level is not None and truth_s(result.level) <= 1.15 * best_s for result in results) >= 95
    assert sum(result.noise == pytest.approx(0.05, rel=0.5) for result in results) >= 85


def waves(level: int) -> float:
    """Return the time of segments that are sent eight at a time: nine take twice as long as eight."""
    return ceil(level / 8) * (0.1 + 0.874 / level)


def add_delays(truth_s: Callable[[int], float], share: float, seed: int) -> Callable[[int], float]:
    """Return a measurement function whose results are sometimes up to twice as long, at random."""
    random, time_s = Random(seed), add_noise(truth_s, 0.02, seed)
    return lambda level: time_s(level) * (random.uniform(1.2, 2) if random.random() < share else 1)


@pytest.mark.parametrize("truth_s", [waves, valley, falling, edge_at_50])
def test_single_measurements_that_took_much_longer_decide_nothing(truth_s: Callable[[int], float]) -> None:
    best_s = min(truth_s(level) for level in range(1, 101))
    results = [run_level_search(LevelSearch(), add_delays(truth_s, 0.05, seed)) for seed in SEEDS]
    assert sum(result.level is not None and truth_s(result.level) <= 1.1 * best_s for result in results) >= 94
    assert sum(result.noise is not None and result.noise < 0.05 for result in results) >= 94


def test_a_level_beside_the_answer_is_not_left_out_after_one_slow_measurement() -> None:
    measured_levels: list[int] = []

    def time_s(level: int) -> float:
        measured_levels.append(level)
        return waves(level) * (1.6 if level == 8 and measured_levels.count(8) == 1 else 1)

    result = run_level_search(LevelSearch(start=[1, 5, 8, 10, 20, 50]), time_s)
    assert (result.level, result.quickest, measured_levels.count(8)) == (8, 8, 3)


def test_without_noise_the_least_level_of_a_plateau_is_found() -> None:
    result = run_level_search(LevelSearch(), plateau)
    assert result.level is not None
    assert 18 <= result.level <= 22
    assert all(level >= result.level for level in result.contenders)
    assert result.quickest is not None
    assert result.quickest >= 20


def test_the_gap_below_the_smallest_contender_is_searched_too() -> None:
    """Level 100 is best by a margin too small to see. So 20 is as good, and it lies between 16 and 32."""
    result = run_level_search(LevelSearch(), lambda level: plateau(level) * (1 - level / 10_000))
    assert result.quickest == 100
    assert result.level is not None
    assert 19 <= result.level <= 23


def test_before_anything_was_measured_twice_small_differences_decide_nothing() -> None:
    search = LevelSearch(start=[10, 20])
    search.tell(10, 1.1)
    search.tell(20, 1.0)
    assert search.result().contenders == (10, 20)
    assert search.next() == 10


def test_more_segments_are_not_answered_when_they_are_not_seen_to_be_better() -> None:
    result = run_level_search(LevelSearch(1, 100), add_noise(lambda _: 1.0, 0.05, 3))
    assert result.level is not None
    assert result.level <= 4
    assert len(result.contenders) > 3


def test_the_first_pass_doubles_and_can_be_chosen() -> None:
    search, levels = LevelSearch(1, 100), []
    for _ in range(8):
        level = search.next()
        assert level is not None
        levels.append(level)
        search.tell(level, falling(level))
    assert levels == [1, 2, 4, 8, 16, 32, 64, 100]
    assert LevelSearch(1, 100, start=[50, 5, 25]).next() == 5


def test_next_is_repeatable_and_equal_searches_agree() -> None:
    first_search, second_search = LevelSearch(max_probes=40), LevelSearch(max_probes=40)
    time_s = add_noise(valley, 0.1, 7)
    while (level := first_search.next()) is not None:
        assert first_search.next() == level == second_search.next()
        first_search.result()  # reading the result changes nothing
        seconds = time_s(level)
        first_search.tell(level, seconds)
        second_search.tell(level, seconds)
    assert second_search.next() is None
    assert first_search.result() == second_search.result()


def test_a_level_that_fails_is_tried_twice_and_left_out() -> None:
    measured_levels: list[int] = []

    def time_s(level: int) -> float | None:
        measured_levels.append(level)
        return None if level > 30 else falling(level)

    result = run_level_search(LevelSearch(), time_s)
    assert result.level is not None
    assert 26 <= result.level <= 30
    assert measured_levels.count(100) == 2
    assert result.measured[100] == ()
    assert result.probes == len(measured_levels)


def test_one_failure_does_not_exclude_a_level() -> None:
    failed: set[int] = set()

    def time_s(level: int) -> float | None:
        is_first = level not in failed
        failed.add(level)
        return None if is_first else falling(level)

    assert run_level_search(LevelSearch(), time_s).level == 100


def test_a_search_without_measurements_has_no_level() -> None:
    fresh = LevelSearch().result()
    assert (fresh.level, fresh.time_s, fresh.contenders, fresh.is_complete) == (None, None, (), False)
    broken = run_level_search(LevelSearch(), lambda _: None)
    assert (broken.level, broken.probes, broken.is_complete) == (None, 16, True)


def test_one_level_is_its_own_best_and_a_spent_budget_says_so() -> None:
    result = run_level_search(LevelSearch(5, 5, repeats=3), lambda _: 1.0)
    assert (result.level, result.probes, result.is_complete) == (5, 3, True)
    assert not run_level_search(LevelSearch(max_probes=4), valley).is_complete


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
    result = search.result()
    assert result.probes == count
    assert result.is_complete or count == max_probes
    time_count = sum(len(level_times) for level_times in result.measured.values())
    assert (result.level is None) == (time_count == 0)
    if result.level is not None:
        assert result.level == result.contenders[0]
        assert result.quickest in result.contenders
        assert max(len(level_times) for level_times in result.measured.values()) <= repeats


# --- the largest level that passes ---


def run_bracket_search(
    search: BracketSearch, judge: Callable[[float], bool | None], ops: Callable[[float], int] = lambda _: 1
) -> Bracket:
    while (level := search.next()) is not None:
        search.tell(level, judge(level), ops(level))
    return search.result()


@pytest.mark.parametrize("truth", [1.0, 1.5, 7.0, 300.0, 512.0, 9999.0])
@pytest.mark.parametrize("start", [1.0, 100.0, 10_000.0])
def test_a_sharp_threshold_is_bracketed(truth: float, start: float) -> None:
    bracket = run_bracket_search(BracketSearch(1, 10_000, 0.1, start=start), lambda level: level <= truth)
    assert bracket.passes_at is not None
    assert bracket.fails_at is not None
    assert bracket.passes_at <= truth < bracket.fails_at <= 1.1 * bracket.passes_at
    assert (bracket.low, bracket.high) == (bracket.passes_at, bracket.fails_at)
    assert (bracket.is_bounded, bracket.is_monotonic, bracket.ended, bracket.inconclusive) == (
        True,
        True,
        "resolution",
        "",
    )


def test_integer_search_ends_at_adjacent_levels() -> None:
    bracket = run_bracket_search(BracketSearch(1, 1000, 1e-9, integer=True), lambda level: level <= 137)
    assert (bracket.passes_at, bracket.fails_at) == (137, 138)
    assert all(isinstance(probe.level, int) for probe in bracket.probes)


def test_a_soft_threshold_lies_in_the_wider_interval() -> None:
    """The chance to pass falls from 98 % to 2 % within a fifth around the truth."""

    def soft(seed: int) -> Callable[[float], bool]:
        random = Random(seed)
        return lambda level: random.random() < 1 / (1 + (level / 300) ** 40)

    brackets = [run_bracket_search(BracketSearch(1, 10_000, 0.1), soft(seed)) for seed in range(400)]
    assert {bracket.ended for bracket in brackets} == {"resolution"}
    assert sum((bracket.low or 0) <= 300 <= (bracket.high or 1e9) for bracket in brackets) >= 320
    assert all(bracket.passes_at is not None and 240 < bracket.passes_at < 360 for bracket in brackets)


def test_one_disturbed_probe_of_three_is_outvoted_and_widens_the_interval() -> None:
    disturbed = [64.0]

    def judge(level: float) -> bool:
        if level in disturbed:
            disturbed.remove(level)
            return False
        return level <= 300

    bracket = run_bracket_search(BracketSearch(1, 1000, 0.1), judge)
    assert bracket.passes_at is not None
    assert bracket.passes_at <= 300 < bracket.passes_at * 1.1
    assert bracket.low == 32, "at and above 64, not all probes passed"
    assert bracket.ended == "resolution"


def test_a_disturbance_of_a_whole_level_is_noticed_by_looking_above_and_outvoted() -> None:
    probed_levels: list[float] = []

    def judge(level: float) -> bool:
        probed_levels.append(level)
        return level <= 300 and not (level == 16 and probed_levels.count(16) <= 2)

    bracket = run_bracket_search(BracketSearch(1, 1000, 0.1), judge)
    assert bracket.passes_at is not None
    assert bracket.passes_at <= 300 < bracket.passes_at * 1.1
    assert bracket.is_monotonic
    assert probed_levels.count(16) == 6


def test_a_level_that_always_fails_below_one_that_passes_is_not_monotonic() -> None:
    bracket = run_bracket_search(BracketSearch(1, 1000, 0.1), lambda level: level <= 100 and level != 16)
    assert not bracket.is_monotonic
    assert bracket.fails_at == 16
    assert bracket.passes_at is not None
    assert bracket.passes_at < 16 <= bracket.passes_at * 1.1
    assert (bracket.low, bracket.high) == (bracket.passes_at, 128)


def test_probing_a_level_stops_as_soon_as_it_is_decided() -> None:
    bracket = run_bracket_search(BracketSearch(1, 4, 10.0, 3), lambda _: True)
    assert [probe.level for probe in bracket.probes] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(("truth", "passes_at", "fails_at"), [(1e9, 1000, None), (0.1, None, 1)])
def test_at_an_edge_only_one_bound_is_known(truth: float, passes_at: float | None, fails_at: float | None) -> None:
    bracket = run_bracket_search(BracketSearch(1, 1000), lambda level: level <= truth)
    assert (bracket.passes_at, bracket.fails_at, bracket.is_bounded, bracket.ended) == (
        passes_at,
        fails_at,
        False,
        "edge",
    )


def test_levels_that_cannot_be_judged_leave_the_upper_end_open() -> None:
    """The engine is saturated above 100, so nothing is known about those levels. The search still goes up to them."""
    bracket = run_bracket_search(BracketSearch(1, 1000, 0.1), lambda level: None if level > 100 else True)
    assert bracket.passes_at is not None
    assert bracket.passes_at <= 100 < bracket.passes_at * 1.1
    assert (bracket.fails_at, bracket.high, bracket.is_bounded, bracket.ended) == (None, None, False, "inconclusive")
    assert bracket.inconclusive.startswith("could not be judged: ")


def test_a_probe_that_cannot_be_judged_is_made_again() -> None:
    count = 0

    def judge(level: float) -> bool | None:
        nonlocal count
        count += 1
        return None if count % 3 == 0 else level <= 20

    bracket = run_bracket_search(BracketSearch(1, 100, 0.1, max_probes=100), judge)
    assert bracket.passes_at is not None
    assert bracket.passes_at <= 20 < bracket.passes_at * 1.1
    assert bracket.ended == "resolution"


def test_nothing_that_can_be_judged_ends_without_an_answer() -> None:
    bracket = run_bracket_search(BracketSearch(1, 1000), lambda _: None)
    assert (bracket.passes_at, bracket.fails_at, bracket.ended) == (None, None, "inconclusive")
    assert len(bracket.probes) == 3


def test_a_bracket_before_the_first_probe_is_empty() -> None:
    bracket = BracketSearch(1, 1000).result()
    assert (bracket.passes_at, bracket.fails_at, bracket.ended, bracket.ops, bracket.probes) == (
        None,
        None,
        "running",
        0,
        (),
    )


def test_operations_are_budgeted_ahead() -> None:
    bracket = run_bracket_search(BracketSearch(1, 10_000, 0.05, max_ops=3000), lambda level: level <= 300, ops=int)
    assert bracket.ops <= 3000
    assert bracket.ended == "budget"
    assert bracket.passes_at is not None
    assert bracket.fails_at is not None
    assert bracket.passes_at <= 300 < bracket.fails_at


def test_probes_are_budgeted_and_an_open_level_counts_for_neither_side() -> None:
    bracket = run_bracket_search(BracketSearch(1, 1000, max_probes=5), lambda _: True)
    assert (bracket.passes_at, bracket.fails_at, bracket.ended, len(bracket.probes)) == (2, None, "budget", 5)


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
    first_search, second_search = (
        BracketSearch(lowest, highest, 0.1, repeats, max_probes=max_probes, max_ops=max_ops, integer=is_integer)
        for _ in range(2)
    )
    count = 0
    while (level := first_search.next()) is not None:
        assert lowest <= level <= highest
        assert level == second_search.next()
        for search in (first_search, second_search):
            search.tell(level, answers[count % len(answers)], round(level))
        count += 1
        assert count <= max_probes
    bracket = first_search.result()
    assert bracket == second_search.result()
    assert bracket.ended != "running"
    assert len(bracket.probes) == count
    assert max_ops is None or count <= 1 or bracket.ops <= max_ops * 1.5 + 1, "levels are rounded to operations"
    if bracket.passes_at is not None and bracket.fails_at is not None:
        assert bracket.passes_at < bracket.fails_at
    assert bracket.low is None or (bracket.passes_at is not None and bracket.low <= bracket.passes_at)
    assert bracket.high is None or (bracket.fails_at is not None and bracket.fails_at <= bracket.high)
    assert bracket.is_bounded == (bracket.passes_at is not None and bracket.fails_at is not None)


@FEW
@given(truth=st.floats(0.5, 3000), start=st.floats(1, 1000), repeats=st.integers(1, 4), resolution=st.floats(0.01, 1))
def test_the_bracket_always_holds_a_sharp_threshold(
    truth: float, start: float, repeats: int, resolution: float
) -> None:
    bracket = run_bracket_search(
        BracketSearch(1, 1000, resolution, repeats, start=start, max_probes=500), lambda level: level <= truth
    )
    assert (bracket.low or 0) <= truth < (bracket.high or 4000)
    assert bracket.is_monotonic
    if bracket.is_bounded:
        assert bracket.ended == "resolution"
        assert bracket.fails_at is not None
        assert bracket.passes_at is not None
        assert bracket.fails_at <= bracket.passes_at * (1 + resolution)
