"""Tests of the counts of a baseline: which of its runs count, and how unlikely a rise is."""

from __future__ import annotations

import random

import pytest

from pytest_cloudbench.judge.noise import outliers_of
from pytest_cloudbench.judge.rates import BaselineRates, Count, operations_needed
from pytest_cloudbench.judge.significance import hypergeometric_sf


def draw_count(source: random.Random, ops: int, share: float) -> Count:
    return sum(source.random() < share for _ in range(ops)), ops


def draw_runs(seed: object, share: float, runs: int = 20, ops: int = 400) -> list[Count]:
    source = random.Random(f"rates/{seed}/{share}")
    return [draw_count(source, ops, share) for _ in range(runs)]


@pytest.mark.parametrize(
    ("share", "incident"), [(0.0, 0.1), (0.002, 0.1), (0.01, 0.2), (0.1, 0.4), (0.5, 0.95), (0.9, 0.2)]
)
@pytest.mark.parametrize("incidents", [1, 2, 4])
def test_runs_with_an_incident_do_not_count(share: float, incident: float, incidents: int) -> None:
    runs = draw_runs("incident", share)
    runs[3 : 3 + incidents] = [(round(400 * incident), 400)] * incidents
    rates = BaselineRates(tuple(runs))
    assert rates.left_out == frozenset(range(3, 3 + incidents))
    remaining_runs = [run for index, run in enumerate(runs) if index not in rates.left_out]
    assert rates.pooled == (sum(count for count, _ in remaining_runs), sum(ops for _, ops in remaining_runs))


@pytest.mark.parametrize("share", [0.0, 0.002, 0.01, 0.1, 0.5, 0.99, 1.0])
def test_runs_that_differ_by_chance_all_count(share: float) -> None:
    for seed in range(40):
        runs = draw_runs(seed, share)
        assert BaselineRates(tuple(runs)).left_out == frozenset(), runs


def test_first_single_failure_is_no_incident() -> None:
    runs = (*((0, 400),) * 19, (1, 400))
    assert outliers_of([count / ops for count, ops in runs]) == {19}
    assert BaselineRates(runs).left_out == frozenset()


@pytest.mark.parametrize("ops", [(40, 400, 4000), (300, 301, 299)])
def test_runs_of_different_lengths_that_differ_by_chance_all_count(ops: tuple[int, ...]) -> None:
    source = random.Random("lengths")
    for _ in range(20):
        runs = [draw_count(source, ops[number % 3], 0.02) for number in range(20)]
        assert BaselineRates(tuple(runs)).left_out == frozenset(), runs


def test_clustered_failures_count_as_one() -> None:
    """Eleven operations around a late one are not quiet, so a run with three late ones is no incident."""
    runs = (*((0, 400),) * 19, (33, 400))
    assert BaselineRates(runs, cluster_ops=11).left_out == frozenset()
    assert BaselineRates(runs).left_out == {19}


def test_no_run_of_fewer_than_five_is_left_out() -> None:
    assert BaselineRates(((0, 400), (0, 400), (0, 400), (300, 400))).left_out == frozenset()


def test_an_incident_in_the_baseline_hides_no_rise() -> None:
    clean = BaselineRates(((1, 400),) * 20)
    hurt = BaselineRates((*((1, 400),) * 18, (200, 400), (150, 400)))
    rise = [(12, 400)]
    assert hurt.change(rise) == pytest.approx(clean.change(rise))
    assert hurt.p_value(rise) == pytest.approx(clean.p_value(rise), rel=0.5)
    assert hurt.detects(400, 0.001) == pytest.approx(clean.detects(400, 0.001), rel=0.1)


def test_a_rise_is_as_unlikely_as_fisher_says() -> None:
    rates = BaselineRates(((1, 400),) * 20, assumed_dispersion=1.0)
    assert rates.p_value([(12, 1600)]) == hypergeometric_sf(12, 1600, 32, 9600)


def test_runs_that_differ_more_than_chance_make_a_rise_less_sure() -> None:
    runs = tuple((4 + 12 * (number % 2), 400) for number in range(20))
    rates = BaselineRates(runs)
    assert rates.dispersion == pytest.approx(3.8, abs=0.1)
    assert rates.p_value([(20, 400)]) > 10 * BaselineRates(runs, assumed_dispersion=1.0).p_value([(20, 400)])


@pytest.mark.parametrize("share", [0.002, 0.01, 0.1, 0.5])
def test_unchanged_runs_seem_worse_at_most_as_often_as_is_said(share: float) -> None:
    """Fisher's exact test never errs more often than it says, and with few failures it errs less often."""
    source, alarms, sessions = random.Random(f"alarms/{share}"), 0, 400
    for seed in range(sessions):
        rates = BaselineRates(tuple(draw_runs(seed, share, ops=200)))
        alarms += rates.p_value([draw_count(source, 200, share)]) < 0.05
    assert alarms / sessions <= 0.05 + 3 * (0.05 * 0.95 / sessions) ** 0.5


@pytest.mark.parametrize(("share", "rise"), [(0.0, 0.03), (0.01, 0.05), (0.2, 0.1)])
def test_the_interval_of_a_change_holds_it(share: float, rise: float) -> None:
    source, covered_count = random.Random(f"interval/{share}"), 0
    for seed in range(200):
        rates = BaselineRates(tuple(draw_runs(seed, share, ops=200)), assumed_dispersion=1.0)
        low, high = rates.interval([draw_count(source, 200, share + rise)])
        covered_count += low <= rise <= high
    assert covered_count >= 182, "95 % of 200, less three standard errors"


@pytest.mark.parametrize("runs", [(), ((0, 400),), ((400, 400),) * 20])
def test_a_baseline_without_runs_or_without_difference_gives_numbers_and_no_error(runs: tuple[Count, ...]) -> None:
    rates = BaselineRates(runs)
    assert 0 <= rates.p_value([(3, 400)]) <= 1
    assert rates.dispersion == 1.0
    low, high = rates.interval([(3, 400)])
    assert low <= rates.change([(3, 400)]) <= high


def test_more_operations_are_asked_for_only_if_they_help() -> None:
    few = BaselineRates(((0, 80),) * 20)
    needed_ops = operations_needed(few, 80, 20, 0.01, 0.001, 4)
    assert needed_ops is not None
    rise = BaselineRates(((0, needed_ops),) * 20).detects(4 * needed_ops, 0.001)
    assert rise is not None
    assert rise <= 0.01
    assert operations_needed(few, 0, 20, 0.01, 0.001, 4) is None, "of a run without operations nothing is known"
