"""Tests of two sides in turns: known differences are found, and equal sides are never told apart."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf, isnan, log
from random import Random

import pytest

from pytest_cloudbench.judge.paired import DECIDING as DEFAULT
from pytest_cloudbench.judge.paired import (
    LEAST_PAIRS,
    BlockValues,
    Pair,
    compare,
    is_decided,
    metrics_to_await,
    remarks,
    side_of,
)
from pytest_cloudbench.judge.paired_gate import judge_pairs

DECIDING = ("response_p50",)


def make_pairs(random: Random, count: int, ratio: float = 1.0, sd: float = 0.05, drift: float = 0.0) -> list[Pair]:
    """Return pairs whose B takes ``ratio`` times as long as A. ``sd`` is that of the logarithm of a block's time."""
    pairs = []
    for number in range(count):
        sides = {}
        for block in (2 * number, 2 * number + 1):
            side = side_of(block)
            level = 0.1 * exp(random.gauss(0, sd) + drift * block) * (ratio if side == "B" else 1.0)
            sides[side] = BlockValues({"response_p50": level, "throughput": 1 / level, "failed_rate": 0.0}, 100)
        pairs.append((sides["A"], sides["B"]))
    return pairs


def make_rate_pairs(*rates: tuple[float, float], ops: int = 100, metric: str = "failed_rate") -> list[Pair]:
    return [(BlockValues({metric: a}, ops), BlockValues({metric: b}, ops)) for a, b in rates]


def test_sides_take_turns_so_that_a_drift_hits_both_alike() -> None:
    assert "".join(map(side_of, range(16))) == "ABBABAABBAABABBA"
    drifting = make_pairs(Random(1), 4, sd=0.0, drift=0.3)
    changes = [log((b.values["response_p50"] or 0) / (a.values["response_p50"] or 0)) for a, b in drifting]
    assert min(changes) < -0.2 < 0.2 < max(changes)
    assert sum(changes) == pytest.approx(0, abs=1e-9)


def test_a_difference_is_found_with_its_direction_and_size() -> None:
    for seed in range(20):
        differences = compare(make_pairs(Random(seed), 60, ratio=1.1), DECIDING)
        slower, throughput = differences["response_p50"], differences["throughput"]
        assert slower.answer == throughput.answer == "A better"
        assert slower.low <= 0.1 <= slower.high
        assert throughput.low <= 1 / 1.1 - 1 <= throughput.high
        assert differences["failed_rate"].answer == "no difference"
    faster = compare(make_pairs(Random(5), 60, ratio=0.8), DECIDING)["response_p50"]
    assert faster.answer == "B better"
    assert faster.low <= -0.2 <= faster.high < 0


def test_equal_sides_with_enough_pairs_have_no_difference_above_the_margin() -> None:
    difference = compare(make_pairs(Random(3), 60), DECIDING)["response_p50"]
    assert difference.answer == "no difference"
    assert -0.1 < difference.low < 0 < difference.high < 0.1


def test_inconclusive_answer_names_a_sufficient_number_of_pairs() -> None:
    random, enough = Random(7), 0
    for _ in range(20):
        pairs = make_pairs(random, 400, ratio=1.1, sd=0.1)
        first = compare(pairs[:12], DECIDING)["response_p50"]
        if first.answer == "inconclusive":
            assert first.needed is not None
            assert 12 < first.needed < 400
            enough += compare(pairs[: 2 * first.needed], DECIDING)["response_p50"].answer != "inconclusive"
        else:
            enough += 1
    assert enough >= 16


def test_few_pairs_decide_nothing() -> None:
    pairs = make_pairs(Random(4), LEAST_PAIRS - 1, ratio=3.0, sd=0.001)
    differences = compare(pairs, DECIDING)
    assert not is_decided(differences, DECIDING)
    assert (differences["response_p50"].low, differences["response_p50"].high) == (-1, inf)
    assert is_decided(compare(make_pairs(Random(4), 12, ratio=3.0, sd=0.001), DECIDING), DECIDING)
    assert compare([], DECIDING) == {}
    assert not is_decided({}, DECIDING)


def test_rates_differ_in_points_and_never_by_chance_alone() -> None:
    random = Random(8)

    def share(chance: float) -> float:
        return sum(random.random() < chance for _ in range(100)) / 100

    difference = compare(make_rate_pairs(*((share(0.0), share(0.01)) for _ in range(60))), ("failed_rate",))[
        "failed_rate"
    ]
    assert (difference.answer, difference.is_points) == ("A better", True)
    assert difference.low <= 0.01 <= difference.high
    same = compare(make_rate_pairs(*[(0.0, 0.0)] * 60), ("failed_rate",))["failed_rate"]
    assert same.answer == "no difference"
    assert same.high > 0
    one = compare(make_rate_pairs(*[(0.0, 0.0)] * 5, (0.0, 0.01)), ("failed_rate",))["failed_rate"]
    assert one.answer == "inconclusive"
    all_failed = compare(make_rate_pairs(*[(0.0, 1.0)] * 60), ("failed_rate",))["failed_rate"]
    assert (all_failed.answer, all_failed.change, all_failed.high) == ("A better", 1.0, 1.0)
    assert 0.9 < all_failed.low < 1.0


def test_a_difference_without_variance_is_exact() -> None:
    twice = compare(make_rate_pairs(*[(1.0, 2.0)] * 12, metric="requests_per_op"))["requests_per_op"]
    assert (twice.answer, round(twice.change, 9)) == ("A better", 1.0)
    same = compare(make_rate_pairs(*[(1.0, 1.0)] * 12, metric="requests_per_op"))["requests_per_op"]
    assert same.answer == "no difference"


def quiet_block(random: Random, ops: int, median_s: float) -> BlockValues:
    return BlockValues({}, ops, [median_s * exp(random.gauss(0, 0.35)) for _ in range(ops)])


def test_quiet_operations_of_several_blocks_make_one_percentile() -> None:
    random = Random(9)
    pairs = [(quiet_block(random, 15, 0.1), quiet_block(random, 15, 0.13)) for _ in range(90)]
    differences = compare(pairs)
    assert differences["quiet_p50"].pairs == 30  # three blocks of 15 have 40
    assert differences["quiet_p50"].answer == "A better"
    assert differences["quiet_p50"].low <= 0.3 <= differences["quiet_p50"].high
    assert differences["quiet_p99"].pairs == 4
    few = compare(pairs[:2])["quiet_p50"]
    assert (few.answer, few.why) == ("inconclusive", "30 quiet operations per side; at least 40 are needed")
    assert isnan(few.change)
    none = compare([(BlockValues({}, 100), BlockValues({}, 100))] * 9)["quiet_p50"]
    assert (none.needed, none.why) == (None, "0 quiet operations per side; at least 40 are needed")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"response_p50": None}, "known in 41 of 42 blocks"),
        ({}, "known in 41 of 42 blocks"),
        ({"response_p50": float("nan")}, "known in 41 of 42 blocks"),
        ({"response_p50": 0.0}, "0 in some blocks, to which there is no ratio"),
    ],
)
@pytest.mark.parametrize("deciding", [DECIDING, ()], ids=["it decides", "all decide"])
def test_a_number_that_is_not_known_in_a_block_leaves_the_answer_open(
    values: Mapping[str, float | None], why: str, deciding: tuple[str, ...]
) -> None:
    """Whatever the other metrics say. They alone would say that there is no difference."""
    alike = (BlockValues({"response_p50": 0.1, "elapsed": 1.0}), BlockValues({"response_p50": 0.1, "elapsed": 1.0}))
    differences = compare([*[alike] * 20, (alike[0], BlockValues({"elapsed": 1.0, **values}))], deciding)
    assert {name: difference.answer for name, difference in differences.items()} == {
        "response_p50": "inconclusive", "elapsed": "no difference"
    }  # fmt: skip
    assert differences["response_p50"].why == why
    assert not is_decided(differences, deciding)
    assert judge_pairs(differences, deciding, {}, ()).answer == "inconclusive"
    others = compare([*[alike] * 20, (alike[0], BlockValues({"elapsed": 1.0, **values}))], ("elapsed",))
    assert list(others) == ["elapsed"], "it is not compared, and nobody has asked for it"


def test_a_number_that_one_side_never_has_leaves_the_answer_open() -> None:
    pairs = [(BlockValues({"response_p50": 0.1, "elapsed": 1.0}), BlockValues({"elapsed": 1.0}))] * 20
    differences = compare(pairs, DECIDING)
    assert not is_decided(differences, DECIDING)
    assert judge_pairs(differences, DECIDING, {}, ()).answer == "inconclusive"
    nothing = compare([(BlockValues({"response_p50": 0.0, "elapsed": 1.0}),) * 2] * 20, DECIDING)
    assert is_decided(nothing, DECIDING), "two sides that are always 0 do not differ"


def test_without_a_deciding_metric_all_decide() -> None:
    differences = compare(make_rate_pairs(*[(1.0, 2.0)] * 12, metric="tue"), ("quiet_p50",))
    assert is_decided(differences, ("quiet_p50",)) is ("quiet_p50" not in differences)


def make_busy_pairs(random: Random, count: int, shifted: Mapping[str, float]) -> list[Pair]:
    """Return pairs on a busy machine, which disturbs the median of a block more than its quicker operations.

    ``shifted`` maps a metric to B's time as a share of A's.
    """
    pairs = []
    for _ in range(count):
        sides = []
        for factors in ({}, shifted):
            busy = random.expovariate(1)
            logs = {"service_p50": random.gauss(busy / 2, 0.05 + busy / 2), "service_p25": random.gauss(0, 0.07)}
            sides.append(BlockValues({name: exp(value) * factors.get(name, 1.0) for name, value in logs.items()}, 80))
        pairs.append((sides[0], sides[1]))
    return pairs


def test_the_metric_that_differs_is_named_and_another_is_not() -> None:
    """A difference of the quick operations says nothing about the median."""
    differences = compare(make_busy_pairs(Random(3), 60, {"service_p25": 1.1}))
    assert (differences["service_p25"].answer, differences["service_p50"].answer) == ("A better", "inconclusive")
    assert is_decided(differences, DEFAULT)
    equal_sides = compare(make_busy_pairs(Random(3), 60, {}))
    assert (equal_sides["service_p25"].answer, equal_sides["service_p50"].answer) == ("no difference", "inconclusive")
    assert not is_decided(equal_sides, DEFAULT)


def test_the_lower_quartile_is_not_awaited_beside_the_median() -> None:
    assert metrics_to_await(DEFAULT) == ["quiet_p50", "service_p50"]
    assert metrics_to_await(["service_p25", "tue"]) == ["service_p25", "tue"]


def test_a_drift_and_an_effect_of_the_order_are_remarked() -> None:
    calm = make_pairs(Random(2), 20, sd=0.02)
    firsts = [side_of(2 * number) for number in range(20)]
    assert remarks(calm, firsts) == []
    (drift,) = remarks(make_pairs(Random(2), 20, sd=0.02, drift=0.02), firsts)
    assert "drifted by +" in drift
    seconds = []
    for first, (a, b) in zip(firsts, calm, strict=True):
        late = {"response_p50": 1.3 * ((b if first == "A" else a).values["response_p50"] or 0)}
        seconds.append((a, BlockValues(late, 100)) if first == "A" else (BlockValues(late, 100), b))
    (order,) = remarks(seconds, firsts)
    assert "in the second block of a pair" in order
