"""Tests of known shapes under noise. Where there is no shape, the answer is "no" or "unknown"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import sin, tau
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.shapes import availability, constancy, drift, fit_line, knee
from tests.limits import scale_examples

FEW = settings(deadline=None, max_examples=scale_examples(60))
SEEDS = range(100)
DAY_S = 86400.0

KB, MB = 1000, 1000_000
THESIS_SIZES = (KB, 10 * KB, 100 * KB, MB, 5 * MB, 10 * MB, 15 * MB, 20 * MB)
THESIS_THREADS = (1, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50)
PAPER_LEVELS = tuple(range(5, 101, 5))
FEW_LEVELS = (1, 5, 10, 20, 50)

times = st.floats(1e-4, 1e4)
tables = st.dictionaries(st.integers(1, 200), st.lists(times, max_size=6), max_size=8)


def draw_times(
    truth_s: Callable[[int], float], keys: Sequence[int], repeats: int, noise: float, seed: int
) -> dict[int, list[float]]:
    random = Random(seed)
    return {key: [truth_s(key) * random.lognormvariate(0, noise) for _ in range(repeats)] for key in keys}


# --- knee ---


def thesis_total_s(knee_at: int) -> Callable[[int], float]:
    """Return the shape of Figure 4.1: the total falls with the number of threads, up to the knee."""
    return lambda threads: max(50.0 / threads, 50.0 / knee_at)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("truth", "repeats"), [(5, 3), (10, 3), (25, 3), (10, 5)])
def test_the_knee_is_found_and_its_interval_holds_it(truth: int, repeats: int) -> None:
    results = [knee(draw_times(thesis_total_s(truth), THESIS_THREADS, repeats, 0.02, seed)) for seed in SEEDS]
    assert sum(result.level == truth for result in results) >= 95
    assert (
        sum(result.interval is not None and result.interval[0] <= truth <= result.interval[1] for result in results)
        >= 95
    )


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_when_noise_exceeds_the_tolerance_the_interval_still_holds_the_knee(noise: float) -> None:
    results = [knee(draw_times(thesis_total_s(10), THESIS_THREADS, 3, noise, seed)) for seed in SEEDS]
    intervals = [result.interval for result in results if result.interval is not None]
    assert sum(low <= 10 <= high for low, high in intervals) >= 90
    assert sum(low < high for low, high in intervals) > 50, "so much noise leaves some doubt"


def test_totals_that_do_not_depend_on_threads_have_their_knee_at_the_first_level() -> None:
    assert knee({1: [2.0, 2.01], 5: [2.0, 2.0], 10: [1.99, 2.0]}).level == 1


@pytest.mark.parametrize(
    ("limits", "level"), [({}, None), ({"most": 50}, 50), ({"refused": [60]}, 50), ({"refused": [3]}, None)]
)
def test_a_knee_at_the_last_level_is_known_only_if_nothing_can_be_beyond(limits: Any, level: int | None) -> None:
    result = knee(draw_times(lambda threads: 50 / threads, THESIS_THREADS, 3, 0.02, 1), **limits)
    assert (result.level, result.best_level, result.interval) == (level, 50, (50, 50))
    expected = "at the edge: 50 is the highest level that was measured, and more levels would be needed"
    assert result.edge == ("" if level else expected)


def test_a_knee_at_the_first_level_is_unknown_if_less_was_not_tried() -> None:
    totals = {5: [2.0, 2.01], 10: [2.0, 2.0]}
    assert knee(totals).edge.startswith("at the edge: 5 is the lowest level")
    assert knee(totals).level is None
    assert knee({1: [2.0], **totals}).edge == ""


def test_tolerance_decides_and_both_times_are_given() -> None:
    totals = {1: [10.0], 5: [2.2], 10: [2.0], 20: [2.1]}
    assert knee(totals).best_level == 10
    result = knee(totals, tolerance=0.1)
    assert (result.level, result.time_s, result.best_time_s) == (5, 2.2, 2.0)
    assert result.interval is None, "one repeat tells nothing about noise"


@pytest.mark.parametrize("totals", [{}, {1: []}, {4: [1.0, 1.1]}, {4: [1.0], 8: []}])
def test_the_knee_of_less_than_two_levels_is_unknown(totals: Mapping[int, list[float]]) -> None:
    assert knee(totals).level is None


@FEW
@given(totals=tables, tolerance=st.floats(0, 1))
def test_a_knee_is_a_measured_level_within_tolerance_and_inside_its_interval(
    totals: Mapping[int, list[float]], tolerance: float
) -> None:
    result = knee(totals, tolerance)
    if result.time_s is None or result.best_time_s is None:
        assert sum(bool(values) for values in totals.values()) < 2
        return
    assert result.best_time_s <= result.time_s <= result.best_time_s * (1 + tolerance)
    if result.level is None:
        assert result.edge.startswith("at the edge: ")
        return
    assert totals[result.level]
    assert result.interval is None or result.interval[0] <= result.level <= result.interval[1]
    assert result == knee(totals, tolerance), "the same numbers, the same interval"


# --- line ---


def transfer_s(size_bytes: int) -> float:
    return 0.1 + size_bytes / 4e6


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_latency_and_bandwidth_are_found_and_no_size_is_off_when_none_is(noise: float) -> None:
    lines = [fit_line(draw_times(transfer_s, THESIS_SIZES, 5, noise, seed)) for seed in SEEDS]
    assert sum(all(point.off is False for point in line.sizes.values()) for line in lines) >= 98
    assert sum(line.latency_s == pytest.approx(0.1, rel=0.1) for line in lines) >= 95
    assert sum(line.bytes_per_s == pytest.approx(4e6, rel=0.1) for line in lines) >= 95
    assert sum(line.noise == pytest.approx(noise, rel=0.5) for line in lines) >= 95


@pytest.mark.parametrize("factor", [0.5, 1.8])
@pytest.mark.parametrize("size", THESIS_SIZES)
def test_the_one_size_that_is_off_is_named_and_does_not_pull_the_line(size: int, factor: float) -> None:
    def truth_s(size_bytes: int) -> float:
        return transfer_s(size_bytes) * (factor if size_bytes == size else 1)

    lines = [fit_line(draw_times(truth_s, THESIS_SIZES, 5, 0.05, seed)) for seed in SEEDS[:25]]
    off_sizes = [{off_size for off_size, point in line.sizes.items() if point.off} for line in lines]
    assert sum(sizes == {size} for sizes in off_sizes) >= 24
    assert sum(line.sizes[size].deviation == pytest.approx(factor - 1, abs=0.2) for line in lines) >= 24
    assert sum(line.bytes_per_s == pytest.approx(4e6, rel=0.1) for line in lines) >= 24


def test_points_that_are_not_off_share_in_the_line() -> None:
    """A line of least absolute deviations passes through two noisy points, but all together determine it better."""
    lines = [fit_line(draw_times(transfer_s, THESIS_SIZES, 5, 0.1, seed)) for seed in SEEDS]
    squares = [(line.latency_s / 0.1 - 1) ** 2 for line in lines if line.latency_s is not None]
    assert len(squares) == len(lines)
    assert (sum(squares) / len(squares)) ** 0.5 < 0.037


def test_two_sizes_that_are_off_are_both_named() -> None:
    def truth_s(size: int) -> float:
        return transfer_s(size) * {10 * KB: 3.0, 15 * MB: 2.0}.get(size, 1.0)

    lines = [fit_line(draw_times(truth_s, THESIS_SIZES, 5, 0.05, seed)) for seed in SEEDS[:25]]
    off_sizes = [{size for size, point in line.sizes.items() if point.off} for line in lines]
    assert sum(sizes == {10 * KB, 15 * MB} for sizes in off_sizes) >= 24


def test_four_sizes_name_the_one_that_is_off_or_say_that_they_cannot() -> None:
    sizes = (KB, 100 * KB, MB, 20 * MB)
    outcomes: Counter[str] = Counter()
    for seed in SEEDS:
        line = fit_line(draw_times(lambda size: transfer_s(size) * (1.8 if size == MB else 1), sizes, 3, 0.05, seed))
        off = {size for size, point in line.sizes.items() if point.off is not False}
        is_sure = all(point.off is not None for point in line.sizes.values())
        outcomes["right" if is_sure and off == {MB} else "wrong" if is_sure else "unknown"] += 1
    assert outcomes["right"] >= 75
    assert outcomes["wrong"] <= 1


def test_three_sizes_do_not_reveal_the_outlier() -> None:
    line = fit_line({KB: [0.1, 0.1], MB: [0.7, 0.71], 10 * MB: [2.6, 2.6]})
    assert line.is_known
    assert {point.off for point in line.sizes.values()} == {None}
    straight = fit_line({KB: [0.1, 0.1], MB: [0.35, 0.35], 10 * MB: [2.6, 2.6]})
    assert {point.off for point in straight.sizes.values()} == {False}


@pytest.mark.parametrize("empty_s", [0.5, 1e-4])
def test_an_empty_file_that_is_quicker_than_the_line_of_the_others_has_a_fitted_time(empty_s: float) -> None:
    """The other sizes are on a line without latency, which predicts no time at all for an empty file."""
    line = fit_line({0: [empty_s], 1000: [1.0], 2000: [2.0], 3000: [3.0]})
    assert line.is_known
    assert all(point.fitted_s > 0 for point in line.sizes.values())


def test_noisy_repeats_raise_the_limit() -> None:
    calm, wild = ({size: [transfer_s(size) * factor for factor in spread] for size in THESIS_SIZES}
                  for spread in ((0.99, 1.0, 1.01), (0.7, 1.0, 1.4)))  # fmt: skip
    for table in (calm, wild):
        table[MB] = [time_s * 1.5 for time_s in table[MB]]
    assert fit_line(calm).sizes[MB].off is True
    assert fit_line(wild).sizes[MB].off is False
    assert fit_line(wild).sizes[MB].limit > 0.9


def test_sizes_measured_once_take_the_noise_from_each_other() -> None:
    for noise, minimum in ((0.05, 98), (0.1, 90)):
        lines = [fit_line(draw_times(transfer_s, THESIS_SIZES, 1, noise, seed)) for seed in SEEDS]
        assert sum(not any(point.off for point in line.sizes.values()) for line in lines) >= minimum
        assert all(line.noise is not None for line in lines)
    assert fit_line({KB: [0.1], MB: [0.3], 2 * MB: [0.5], 4 * MB: [0.9]}).noise is None


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_without_a_size_dependence_bandwidth_is_none(noise: float) -> None:
    lines = [fit_line(draw_times(lambda _: 0.2, THESIS_SIZES, 3, noise, seed)) for seed in SEEDS]
    assert sum(line.bytes_per_s is None for line in lines) >= 95
    assert sum(line.latency_s == pytest.approx(0.2, rel=0.1) for line in lines) >= 95


def test_without_a_visible_latency_it_is_none() -> None:
    sizes = (5 * MB, 10 * MB, 15 * MB, 20 * MB)
    lines = [fit_line(draw_times(lambda size: 0.01 + size / 4e6, sizes, 3, 0.05, seed)) for seed in SEEDS]
    assert sum(line.latency_s is None for line in lines) >= 95
    assert sum(line.bytes_per_s == pytest.approx(4e6, rel=0.15) for line in lines) >= 90


@pytest.mark.parametrize("times_s", [{}, {KB: [0.1]}, {KB: [0.1, 0.1], MB: [0.3]}, {KB: [0.1], MB: [0.3], 9: []}])
def test_a_line_through_less_than_three_sizes_is_unknown(times_s: Mapping[int, list[float]]) -> None:
    line = fit_line(times_s)
    assert (line.is_known, line.latency_s, line.bytes_per_s, line.sizes) == (False, None, None, {})


@FEW
@example(times_s={0: [6711.79122296599], 1: [0.0001], 2: [0.0001]})
@given(
    times_s=st.dictionaries(st.integers(0, 20 * MB), st.lists(times, min_size=1, max_size=4), min_size=3, max_size=8)
)
def test_a_line_never_falls_and_every_size_is_judged(times_s: Mapping[int, list[float]]) -> None:
    line = fit_line(times_s)
    assert line.sizes.keys() == times_s.keys()
    assert line.latency_s is None or line.latency_s >= 0
    assert line.bytes_per_s is None or line.bytes_per_s > 0
    fitted = [line.sizes[size].fitted_s for size in sorted(times_s)]
    assert all(time_s > 0 for time_s in fitted)
    assert fitted == sorted(fitted)
    for point in line.sizes.values():
        # A deviation near -1 lacks the digits of a time that is small compared with the line. A large one is rounded.
        expected_s = point.fitted_s * (1 + point.deviation)
        assert point.measured_s == pytest.approx(expected_s, rel=1e-15, abs=1e-9 * point.fitted_s)


# --- constancy ---


def transfers(
    truth_s: Callable[[int, int], float], levels: Sequence[int], noise: float, seed: int, batch: float = 0.0
) -> dict[int, list[float]]:
    """Return each level's transfers, a batch of as many as the level says. Each batch has its own conditions."""
    random = Random(seed)
    durations = {}
    for level in levels:
        condition = random.lognormvariate(0, batch)
        durations[level] = [
            truth_s(level, index) * condition * random.lognormvariate(0, noise) for index in range(level)
        ]
    return durations


def share_capacity(capacity: int) -> Callable[[int, int], float]:
    return lambda level, _: 3.0 * max(1.0, level / capacity)


CLASSES: list[tuple[str, str, Callable[[int, int], float], Sequence[int]]] = [
    ("constant", "flat", lambda _level, _: 3.0, PAPER_LEVELS),
    ("constant", "flat, five levels", lambda _level, _: 3.0, FEW_LEVELS),
    ("constant", "3 % in all", lambda level, _: 3.0 + 0.09 * level / 100, PAPER_LEVELS),
    ("degrading", "proportional", lambda level, _: 0.5 * level, PAPER_LEVELS),
    ("degrading", "proportional, five levels", lambda level, _: 0.5 * level, FEW_LEVELS),
    ("degrading", "to the double", lambda level, _: 3.0 * (1 + level / 100), PAPER_LEVELS),
    ("degrading", "by a root", lambda level, _: level**0.5, PAPER_LEVELS),
    ("degrading_above", "capacity 10", share_capacity(10), PAPER_LEVELS),
    ("degrading_above", "capacity 10, five levels", share_capacity(10), FEW_LEVELS),
    ("degrading_above", "capacity 50", share_capacity(50), PAPER_LEVELS),
    (
        "degrading_above",
        "threads above 50 take twice as long",
        lambda _, index: 3.0 * (1 + (index >= 50)),
        PAPER_LEVELS,
    ),
]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("category", "truth_s", "levels"), [row[:1] + row[2:] for row in CLASSES],
                         ids=[row[1] for row in CLASSES])  # fmt: skip
def test_the_category_is_found(category: str, truth_s: Callable[[int, int], float], levels: Sequence[int]) -> None:
    category_counts = Counter[str](constancy(transfers(truth_s, levels, 0.1, seed)).category for seed in SEEDS)
    assert category_counts[category] >= 95, category_counts


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(("category", "truth_s"), [(row[0], row[2]) for row in CLASSES if row[3] is PAPER_LEVELS],
                         ids=[row[1] for row in CLASSES if row[3] is PAPER_LEVELS])  # fmt: skip
def test_batches_with_conditions_of_their_own_rarely_mislead(
    category: str, truth_s: Callable[[int, int], float]
) -> None:
    category_counts = Counter[str](
        constancy(transfers(truth_s, PAPER_LEVELS, 0.1, seed, batch=0.05)).category for seed in SEEDS[:50]
    )
    assert category_counts[category] >= 43, category_counts


@pytest.mark.parametrize("levels", [FEW_LEVELS, PAPER_LEVELS])
def test_wild_conditions_leave_the_category_open_rather_than_make_it_up(levels: Sequence[int]) -> None:
    category_counts = Counter(
        constancy(transfers(lambda *_: 3.0, levels, 0.2, seed, batch=0.1)).category for seed in SEEDS
    )
    assert category_counts["degrading"] + category_counts["degrading_above"] <= 8
    assert category_counts["unknown"] >= 30


@pytest.mark.parametrize("capacity", [20, 50, 75])
def test_level_of_degradation_is_found(capacity: int) -> None:
    results = [constancy(transfers(share_capacity(capacity), PAPER_LEVELS, 0.1, seed)) for seed in SEEDS]
    assert sum(result.above_level == pytest.approx(capacity, abs=5) for result in results) >= 95
    intervals = [result.above_interval for result in results if result.above_interval is not None]
    assert sum(low <= capacity <= high for low, high in intervals) >= 85
    assert sum(result.slowdown == pytest.approx(100 / capacity - 1, rel=0.15) for result in results) >= 95


def test_a_certain_slowdown_below_the_bound_is_constant_and_above_another_bound_is_not() -> None:
    durations = {level: [3.0 * (1 + 0.08 * level / 100) * (1 + index % 7 / 500) for index in range(400)]
                 for level in PAPER_LEVELS}  # fmt: skip
    result = constancy(durations)
    assert result.category == "constant"
    assert result.trend is not None
    assert result.trend.p_value < 1e-6
    assert result.slowdown == pytest.approx(0.076, abs=0.01)
    assert constancy(durations, bound=0.02).category == "degrading"


def test_one_transfer_that_hangs_at_each_level_changes_nothing() -> None:
    durations = transfers(lambda _level, _: 3.0, PAPER_LEVELS, 0.1, 1)
    for values in durations.values():
        values[0] = 300.0
    assert constancy(durations).category == "constant"


def test_durations_that_fall_are_none_of_the_categories() -> None:
    result = constancy(transfers(lambda level, _: 3.0 / level**0.5, PAPER_LEVELS, 0.05, 1))
    assert (result.category, result.reason) == ("unknown", "durations fall as levels rise")


def test_levels_that_differ_without_order_are_unknown() -> None:
    result = constancy(transfers(lambda level, _: 3.0 * (1.35 if level == 50 else 1), PAPER_LEVELS, 0.02, 1))
    assert (result.category, result.reason) == ("unknown", "levels differ, but not by their order")
    assert result.difference is not None
    assert result.difference.p_value < 0.01


def test_too_few_transfers_for_the_bound_are_unknown_and_the_reason_says_so() -> None:
    result = constancy({1: [1.0, 2.0], 2: [2.0, 1.0], 4: [1.5, 1.5]})
    assert result.slowdown == pytest.approx(0.0, abs=1e-9), "no slowdown is seen, but it might well be there"
    assert result.category == "unknown"
    assert "bound" in result.reason


@pytest.mark.parametrize("durations", [{}, {1: [1.0]}, {1: [1.0, 1.1], 9: [1.0]}, {1: [1.0], 2: [], 3: [1.0]}])
def test_less_than_three_levels_have_no_category(durations: Mapping[int, list[float]]) -> None:
    result = constancy(durations)
    assert (result.category, result.reason) == ("unknown", "fewer than three levels")


@FEW
@given(durations=tables)
def test_an_unknown_category_has_a_reason_and_only_a_bend_has_a_level(durations: Mapping[int, list[float]]) -> None:
    result = constancy(durations)
    assert (result.category == "unknown") == bool(result.reason)
    assert (
        (result.category == "degrading_above")
        == (result.above_level is not None)
        == (result.above_interval is not None)
    )
    for evidence in (result.difference, result.trend, result.bend):
        assert evidence is None or -1e-9 <= evidence.p_value <= 1 + 1e-9


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("shape", [knee, fit_line, constancy])
def test_invalid_times_are_refused(shape: Callable[[Mapping[int, Sequence[float]]], object], bad: float) -> None:
    with pytest.raises(ValueError, match="finite and above zero"):
        shape({1: [1.0], 2: [bad], 3: [1.0]})


# --- availability ---


@pytest.mark.parametrize(
    ("completed", "tried", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_interval_of_known_examples(completed: int, tried: int, low: float, high: float) -> None:
    """The last one is an example from Newcombe (1998)."""
    result = availability(completed, tried)
    assert result.low == pytest.approx(low, abs=1e-4)
    assert result.high == pytest.approx(high, abs=1e-4)


def test_availability_of_the_rows_of_table_iii() -> None:
    assert availability(72500 - 16, 72500).share == pytest.approx(0.99978, abs=1e-5)
    assert availability(72500, 72500).low > 0.9999
    assert availability(42000 - 145, 42000).high < availability(42000 - 3, 42000).low


def test_nothing_tried_is_unknown_and_more_than_all_is_refused() -> None:
    assert (availability(0, 0).share, availability(0, 0).low, availability(0, 0).high) == (None, 0.0, 1.0)
    for completed, tried in ((2, 1), (-1, 1)):
        with pytest.raises(ValueError, match="not a share"):
            availability(completed, tried)


@FEW
@given(tried=st.integers(1, 10**6), data=st.data())
def test_the_share_lies_in_its_interval(tried: int, data: st.DataObject) -> None:
    result = availability(data.draw(st.integers(0, tried)), tried)
    assert result.share is not None
    assert 0 <= result.low <= result.share <= result.high <= 1


# --- drift ---


def course(
    truth: Callable[[float], float], days: float, per_day: int, seed: int, noise: float = 0.1, period_s: float = DAY_S
) -> tuple[list[float], list[float]]:
    random = Random(seed)
    at_days = [index / per_day for index in range(int(days * per_day))]
    return [at * period_s for at in at_days], [truth(at) * random.lognormvariate(0, noise) for at in at_days]


def flat(_: float) -> float:
    return 1.0


def daily(day: float) -> float:
    return 1 + 0.3 * sin(tau * day)


def rising(day: float) -> float:
    return 1 + 0.1 * day


COURSES = [
    (flat, "no", "no"), (daily, "yes", "no"), (rising, "no", "yes"),
    (lambda day: daily(day) * rising(day), "yes", "yes"), (lambda day: 2 - rising(day), "no", "yes"),
    (lambda day: 1 + 0.01 * sin(tau * day), "no", "no"),
]  # fmt: skip


@pytest.mark.parametrize(("truth", "of_day", "over_time"), COURSES)
def test_the_course_of_a_week_is_found(truth: Callable[[float], float], of_day: str, over_time: str) -> None:
    results = [drift(*course(truth, 7, 100, seed)) for seed in SEEDS]
    assert sum(result.daily == of_day for result in results) >= 95
    assert sum(result.trend == over_time for result in results) >= 95


def test_the_size_of_a_daily_change_and_a_trend_is_found() -> None:
    result = drift(*course(daily, 7, 500, 1))
    assert result.daily_change == pytest.approx(0.6, abs=0.1)
    flat_changes = [drift(*course(flat, 7, 100, seed)).daily_change for seed in SEEDS[:20]]
    assert sum(change is not None and change < 0.05 for change in flat_changes) >= 15, (
        "hours differ by chance; that is taken away"
    )
    result = drift(*course(rising, 7, 500, 1))
    assert result.slope_per_s == pytest.approx(0.1 / DAY_S, rel=0.1)
    assert result.trend_interval is not None
    assert result.trend_interval[0] < 0.7 / 1.35 < result.trend_interval[1]


def test_a_short_day_may_stand_for_a_long_one() -> None:
    short = drift(*course(daily, 7, 100, 3, period_s=60.0), period_s=60.0)
    long = drift(*course(daily, 7, 100, 3))
    assert (short.daily, short.trend) == (long.daily, long.trend) == ("yes", "no")


def test_within_one_day_a_trend_and_a_daily_course_cannot_be_told_apart() -> None:
    for seed in SEEDS[:20]:
        result = drift(*course(daily, 1, 1000, seed))
        assert (result.daily, result.trend) == ("unknown", "unknown")
        assert "two days" in result.daily_reason
        assert "two days" in result.trend_reason


def test_a_few_hours_can_rise_or_stay() -> None:
    results = [drift(*course(lambda day: 1 + 2 * day, 0.2, 500, seed, noise=0.05)) for seed in SEEDS]
    assert sum(result.trend == "yes" for result in results) >= 95
    results = [drift(*course(flat, 0.2, 500, seed, noise=0.05)) for seed in SEEDS]
    assert sum((result.daily, result.trend) == ("no", "no") for result in results) >= 95


def test_correlated_values_are_not_taken_for_a_daily_course() -> None:
    """Wandering values are alike within an hour, but not at the same hour of the next day."""
    daily_count = 0
    for seed in SEEDS:
        random, wander, values = Random(seed), 0.0, []
        for _ in range(2000):
            wander = 0.95 * wander + 0.3 * random.gauss(0, 0.1)
            values.append(1 + wander)
        daily_count += drift([index * DAY_S / 100 for index in range(2000)], values).daily == "yes"
    assert daily_count <= 5


def test_a_hundred_thousand_values_are_reduced_and_the_answer_stays() -> None:
    at_s, values = course(lambda day: daily(day) * rising(day), 20, 5000, 1)
    assert len(values) == 100_000
    result = drift(at_s, values)
    assert (result.daily, result.trend, result.hours) == ("yes", "yes", 24)


def test_order_does_not_matter() -> None:
    at_s, values = course(daily, 3, 100, 5)
    assert drift(at_s[::-1], values[::-1]) == drift(at_s, values)


@pytest.mark.parametrize(
    ("at_s", "values", "reason"),
    [([], [], "fewer than 20 values"), ([1.0] * 30, [1.0] * 30, "all at one time"),
     (list(range(19)), [1.0] * 19, "fewer than 20 values")],
)  # fmt: skip
def test_few_values_give_unknown_answers(at_s: list[float], values: list[float], reason: str) -> None:
    result = drift(at_s, values)
    assert (result.daily, result.trend, result.daily_reason, result.trend_reason) == (
        "unknown",
        "unknown",
        reason,
        reason,
    )


def test_one_hour_of_the_day_says_nothing_about_the_others() -> None:
    at_s = [day * DAY_S + minute * 60.0 for day in range(5) for minute in range(50)]
    result = drift(at_s, [1 + index % 3 / 100 for index in range(len(at_s))])
    assert (result.daily, result.daily_reason) == ("unknown", "only one hour of the day was seen")


def test_a_value_that_never_changes_neither_drifts_nor_has_a_course() -> None:
    at_s = [index * 600.0 for index in range(1000)]
    assert (drift(at_s, [5.0] * 1000).daily, drift(at_s, [5.0] * 1000).trend) == ("no", "no")
    assert (drift(at_s, [0.0] * 1000).daily, drift(at_s, [0.0] * 1000).trend) == ("no", "no")


def test_infinite_and_unpaired_values_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        drift([0.0, 1.0], [1.0, float("nan")])
    with pytest.raises(ValueError):
        drift([0.0, 1.0], [1.0])


@FEW
@given(points=st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), max_size=60))
def test_an_unknown_answer_has_a_reason(points: list[tuple[float, float]]) -> None:
    result = drift([at for at, _ in points], [value for _, value in points])
    assert (result.daily == "unknown") == bool(result.daily_reason)
    assert (result.trend == "unknown") == bool(result.trend_reason)
