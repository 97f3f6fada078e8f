"""Tests of the noise estimate from a baseline that includes a few bad runs."""

from __future__ import annotations

import random
from math import inf, log, nan, sqrt
from statistics import NormalDist, fmean, stdev

import pytest

from pytest_cloudbench.judge.noise import LEAST_SPREAD, Noise, allowance, outliers_of, qn

COPPER = (
    2.20, 2.20, 2.40, 2.40, 2.50, 2.70, 2.80, 2.90, 3.03, 3.03, 3.10, 3.37,
    3.40, 3.40, 3.40, 3.50, 3.60, 3.70, 3.70, 3.70, 3.70, 3.77, 5.28, 28.95,
)  # fmt: skip
"""Copper in wholemeal flour, parts per million (Analytical Methods Committee 1989)."""


def normal(seed: object, count: int) -> list[float]:
    source = random.Random(f"noise/{seed}/{count}")
    return [source.gauss(0, 1) for _ in range(count)]


def test_qn_matches_other_programs_on_published_data() -> None:
    assert qn(COPPER) == pytest.approx(0.73231, abs=1e-5), "statsmodels.robust.scale.qn_scale, R's robustbase::Qn"


@pytest.mark.parametrize(("values", "distance"), [
    ((3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5), 1.0),
    ((1, 2, 4, 7, 11, 16, 22, 100), 7.0),
    ((1, 2, 4, 8, 16), 3.0),
    ((5, 5, 5, 5), 0.0),
])  # fmt: skip
def test_qn_is_one_of_the_distances_made_a_standard_deviation(values: tuple[int, ...], distance: float) -> None:
    """Five values, for example, have ten distances. Qn is the third smallest, because three of the values, more than
    half, have three distances among them."""
    assert qn(values) == pytest.approx(distance / (sqrt(2) * NormalDist().inv_cdf(5 / 8)), rel=1e-5)


@pytest.mark.parametrize("values", [(), (1.0,)])
def test_the_spread_of_fewer_than_two_values_is_not_known(values: tuple[float, ...]) -> None:
    assert qn(values) == inf


@pytest.mark.parametrize("values", [COPPER, tuple(normal("any", 20)), tuple(normal("any", 11))])
def test_moving_and_stretching_all_runs_leaves_out_the_same_ones(values: tuple[float, ...]) -> None:
    assert outliers_of([1000 - 7 * value for value in values]) == outliers_of(values)


# --- what bad runs can do ---


@pytest.mark.parametrize("far", [25.0, 1e3, 1e12, -25.0, -1e6])
@pytest.mark.parametrize(("runs", "bad"), [(20, 1), (20, 2), (20, 4), (15, 3), (10, 1), (10, 2)])
def test_runs_far_away_are_left_out_as_if_there_were_none(runs: int, bad: int, far: float) -> None:
    for seed in range(20):
        good = normal(seed, runs - bad)
        noise = Noise((*good, *(far * (number + 1) for number in range(bad))))
        assert noise.left_out == frozenset(range(runs - bad, runs))
        assert noise.middle == fmean(good)
        assert noise.spread == pytest.approx(stdev(good))


@pytest.mark.parametrize(("runs", "bad", "moved", "wider"), [(20, 1, 0.4, 1.8), (20, 2, 0.8, 2.5), (20, 4, 2.0, 4.5)])
@pytest.mark.parametrize("sides", [1, 2])
def test_bad_runs_at_the_worst_distance_move_a_baseline_of_twenty_by_so_many_standard_deviations(
    runs: int, bad: int, moved: float, wider: float, sides: int
) -> None:
    """The worst bad runs are just near enough not to be left out."""
    for seed in range(30):
        good = normal(seed, runs)
        clean = Noise(tuple(good))
        for far in (2, 3, 4, 5, 6, 7, 8, 10, 15, 50, 1e9):
            bad_runs = [far if number % sides == 0 else -far for number in range(bad)]
            noise = Noise((*bad_runs, *good[bad:]))
            assert abs(noise.middle - clean.middle) < moved * clean.spread
            assert 0.7 < noise.spread / clean.spread < wider


@pytest.mark.parametrize(("runs", "limit"), [(4, 0), (5, 1), (9, 1), (10, 2), (20, 4), (24, 4)])
def test_at_most_one_run_of_five_is_left_out_and_of_those_the_furthest(runs: int, limit: int) -> None:
    values = [100.0 * (number + 1) for number in range(runs // 3)] + [0.0] * (runs - runs // 3)
    left_out = outliers_of(values)
    assert len(left_out) == min(limit, runs // 3)
    assert left_out == frozenset(range(runs // 3 - len(left_out), runs // 3))


def test_normal_runs_are_hardly_ever_left_out() -> None:
    assert sum(bool(Noise(tuple(normal(seed, 20))).left_out) for seed in range(1000)) < 60


# --- how unlikely a further run is ---


@pytest.mark.parametrize("runs", [10, 15, 20])
def test_as_many_unchanged_runs_are_called_unlikely_as_is_said(runs: int) -> None:
    """Simulate the whole estimate with normal runs. The tolerance is three standard errors of 6,000 draws."""
    draws = 6000
    source = random.Random(f"false alarms/{runs}")
    p_values = []
    for _ in range(draws):
        noise = Noise(tuple(source.gauss(5, 2) for _ in range(runs)))
        p_values.append(noise.p_value(source.gauss(5, 2)))
    for share in (0.05, 0.01):
        tolerance = 3 * sqrt(share * (1 - share) / draws)
        assert sum(p_value < share for p_value in p_values) / draws == pytest.approx(share, abs=tolerance)


@pytest.mark.parametrize("runs", [10, 15, 20])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.01 / 40])
def test_a_run_at_the_reach_has_just_that_probability(runs: int, alpha: float) -> None:
    noise = Noise(tuple(normal("reach", runs)))
    assert noise.p_value(noise.middle + noise.reach(alpha)) == pytest.approx(alpha, rel=1e-6)


@pytest.mark.parametrize("value", [inf, nan])
def test_a_value_that_is_no_number_is_as_bad_as_can_be(value: float) -> None:
    assert Noise(tuple(normal("any", 10))).p_value(value) == 0.0


def test_runs_that_are_all_alike_differ_by_half_a_percent() -> None:
    noise = Noise((log(0.1),) * 20)
    assert (noise.spread, noise.left_out) == (LEAST_SPREAD, frozenset())
    assert noise.p_value(log(0.1005)) > 0.01 > noise.p_value(log(0.102))


def test_one_odd_run_among_runs_that_are_all_alike_is_left_out() -> None:
    assert Noise((*(0.0,) * 19, 0.3)).left_out == {19}


# --- waiting for a CPU ---


@pytest.mark.parametrize(("starved", "usual"), [(0.02, 0.02), (0.0, 0.3), (0.1, 0.9)])
def test_waiting_no_longer_than_usual_excuses_nothing(starved: float, usual: float) -> None:
    assert allowance(starved, usual) == 0.0


@pytest.mark.parametrize("more", [0.01, 0.02, 0.05])
def test_half_of_a_little_more_waiting_is_allowed_for(more: float) -> None:
    assert allowance(0.1 + more, 0.1) == pytest.approx(more / 2, rel=0.06)


def test_the_more_threads_have_waited_the_more_is_allowed_and_it_is_always_a_number() -> None:
    allowed = [allowance(share / 100, 0.0) for share in range(101)]
    assert allowed == sorted(allowed)
    assert allowed[90] == pytest.approx(log(10), rel=0.25), (
        "who waits for nine tenths of the time takes ten times as long"
    )
    assert allowed[-1] < inf
