"""Tests of probabilities against printed tables, and of statistics against calculations by hand."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.judge.significance import (
    chi2_sf,
    f_sf,
    jonckheere,
    kruskal_wallis,
    normal_sf,
    relative_errors,
    theil_sen,
    trimmed_mean,
    weighted_line,
)
from tests.limits import scale_examples

# Critical values as statistical tables print them.
CHI2 = [
    (1, 0.05, 3.841), (1, 0.01, 6.635), (2, 0.05, 5.991), (5, 0.01, 15.086), (10, 0.05, 18.307), (10, 0.95, 3.940),
    (23, 0.05, 35.172), (30, 0.01, 50.892), (100, 0.05, 124.342), (100, 0.95, 77.929),
]  # fmt: skip
F = [
    (1, 1, 0.05, 161.448), (1, 2, 0.05, 18.513), (1, 10, 0.05, 4.965), (1, 10, 0.01, 10.044), (4, 10, 0.05, 3.478),
    (1, 120, 0.05, 3.920), (5, 20, 0.01, 4.103), (10, 5, 0.05, 4.735),
]  # fmt: skip


@pytest.mark.parametrize(("freedom", "p_value", "critical"), CHI2)
def test_chi_square_agrees_with_the_table(freedom: int, p_value: float, critical: float) -> None:
    assert chi2_sf(critical, freedom) == pytest.approx(p_value, rel=2e-3)


@pytest.mark.parametrize(("freedom", "residual_freedom", "p_value", "critical"), F)
def test_f_agrees_with_the_table(freedom: int, residual_freedom: int, p_value: float, critical: float) -> None:
    assert f_sf(critical, freedom, residual_freedom) == pytest.approx(p_value, rel=2e-3)


@pytest.mark.parametrize(("z", "p_value"), [(0.0, 0.5), (1.0, 0.158655), (1.959964, 0.025), (3.0, 0.00134990)])
def test_normal_agrees_with_the_table(z: float, p_value: float) -> None:
    assert normal_sf(z) == pytest.approx(p_value, rel=1e-5)
    assert normal_sf(-z) == pytest.approx(1 - p_value, rel=1e-5)


@settings(deadline=None, max_examples=scale_examples(200))
@given(statistic=st.floats(0, 1e4), freedom=st.integers(1, 500), residual_freedom=st.integers(1, 500))
def test_probabilities_are_probabilities_and_fall(statistic: float, freedom: int, residual_freedom: int) -> None:
    for value, later_value in (
        (chi2_sf(statistic, freedom), chi2_sf(statistic * 1.1 + 0.1, freedom)),
        (f_sf(statistic, freedom, residual_freedom), f_sf(statistic * 1.1 + 0.1, freedom, residual_freedom)),
    ):
        assert -1e-9 <= later_value <= value + 1e-9 <= 1 + 2e-9


def test_f_with_many_degrees_of_freedom_is_a_chi_square() -> None:
    assert f_sf(3.0, 1, 10**6) == pytest.approx(chi2_sf(3.0, 1), rel=1e-4)


def test_kruskal_wallis_by_hand() -> None:
    """The ranks are 1 2 3 | 4 5 6, so H is 12 / 42 * (36 / 3 + 225 / 3) - 21 = 27 / 7."""
    evidence = kruskal_wallis([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert evidence.statistic == pytest.approx(27 / 7)
    assert evidence.p_value == pytest.approx(0.0495, abs=1e-4)


def test_kruskal_wallis_corrects_for_ties() -> None:
    """The ranks are 1.5 1.5 3.5 | 3.5 5.5 5.5, so H is 12 / 42 * (6.5**2 + 14.5**2) / 3 - 21, over 1 - 18 / 210."""
    raw = 12 / 42 * (6.5**2 + 14.5**2) / 3 - 21
    assert kruskal_wallis([[1, 1, 2], [2, 3, 3]]).statistic == pytest.approx(raw / (1 - 18 / 210))
    assert kruskal_wallis([[7.0, 7.0], [7.0]]).p_value == 1.0


def test_jonckheere_is_near_the_exact_share_of_orders() -> None:
    """The normal tail is near the share of all orders of six values in three pairs that have as many rising pairs."""
    observed = [[1.0, 3.0], [2.0, 5.0], [4.0, 6.0]]

    def count_rising(values: tuple[float, ...]) -> int:
        return sum(
            values[i] < values[j] for i in range(6) for j in range(6) if i // 2 < j // 2
        )  # fmt: skip

    score = count_rising(tuple(value for pair in observed for value in pair))
    order_scores = [count_rising(order) for order in permutations((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))]
    higher_count, equal_count = (
        sum(order_score > score for order_score in order_scores),
        sum(order_score == score for order_score in order_scores),
    )
    assert jonckheere(observed).p_value == pytest.approx((higher_count + equal_count / 2) / len(order_scores), abs=0.01)


def test_jonckheere_is_one_sided() -> None:
    falling = [[9.0, 8.0, 7.5], [6.0, 5.0, 5.5], [3.0, 2.0, 1.0]]
    assert jonckheere(falling).p_value > 0.99
    assert jonckheere(falling[::-1]).p_value < 0.01


def test_theil_sen_by_hand() -> None:
    """Ten rising values give S = 45, a variance of 125, and z = 44 / sqrt(125)."""
    trend = theil_sen([[(float(time), 3.0 * time) for time in range(10)]], is_seasonal=False)
    assert trend.slope == trend.low == trend.high == 3.0
    assert trend.evidence.statistic == pytest.approx(44 / 125**0.5)


def test_seasons_hide_no_trend_and_make_none() -> None:
    """Differences between seasons alone are not a trend, although values rise from the first to the last of each
    day."""
    daily = [[(day + hour / 24, float(hour)) for day in range(6)] for hour in range(24)]
    assert theil_sen(daily, is_seasonal=True).slope == 0
    rising = [[(time, value + time) for time, value in group] for group in daily]
    assert theil_sen(rising, is_seasonal=True).slope == pytest.approx(1.0)


def test_trimmed_mean_sees_two_of_five_but_not_one_of_ten() -> None:
    assert trimmed_mean([1.0] * 9 + [100.0]) == 1.0
    assert trimmed_mean([1.0] * 6 + [2.0] * 4) == pytest.approx((5 + 3 * 2) / 8)
    assert trimmed_mean([1.0, 2.0, 90.0]) == 2.0


def test_errors_shrink_with_the_number_of_values_but_not_below_the_levels_own() -> None:
    values_by_level = {1: [1.0, 1.2] * 5, 2: [1.0, 1.2] * 5000}
    few, many = relative_errors(
        values_by_level, {level: trimmed_mean(values) for level, values in values_by_level.items()}
    )
    assert few > 1.1 * many
    assert many == pytest.approx(0.03, rel=0.01)


def test_weighted_line_passes_through_the_heaviest_points() -> None:
    fit = weighted_line([0, 1, 2], [1.0, 3.0, 50.0], [1e9, 1e9, 1.0])
    assert fit.level == pytest.approx(1.0, abs=1e-5)
    assert fit.slope == pytest.approx(2.0, abs=1e-5)
