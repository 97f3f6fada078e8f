"""Two sides in turns: known differences are found, and equal sides are never told apart."""

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

DECIDING = ("response_p50",)


def made(random: Random, count: int, ratio: float = 1.0, sd: float = 0.05, drift: float = 0.0) -> list[Pair]:
    """Pairs whose B takes ``ratio`` times as long as A; ``sd`` is that of a block's logarithm."""
    pairs = []
    for number in range(count):
        sides = {}
        for block in (2 * number, 2 * number + 1):
            side = side_of(block)
            level = 0.1 * exp(random.gauss(0, sd) + drift * block) * (ratio if side == "B" else 1.0)
            sides[side] = BlockValues({"response_p50": level, "throughput": 1 / level, "failed_rate": 0.0}, 100)
        pairs.append((sides["A"], sides["B"]))
    return pairs


def counted(*rates: tuple[float, float], ops: int = 100, metric: str = "failed_rate") -> list[Pair]:
    return [(BlockValues({metric: a}, ops), BlockValues({metric: b}, ops)) for a, b in rates]


def test_sides_take_turns_so_that_a_drift_hits_both_alike() -> None:
    assert "".join(map(side_of, range(16))) == "ABBABAABBAABABBA"
    drifting = made(Random(1), 4, sd=0.0, drift=0.3)
    changes = [log((b.values["response_p50"] or 0) / (a.values["response_p50"] or 0)) for a, b in drifting]
    assert min(changes) < -0.2 < 0.2 < max(changes)
    assert sum(changes) == pytest.approx(0, abs=1e-9)


def test_a_difference_is_found_with_its_direction_and_size() -> None:
    for seed in range(20):
        found = compare(made(Random(seed), 60, ratio=1.1), DECIDING)
        slower, less = found["response_p50"], found["throughput"]
        assert slower.answer == less.answer == "A better"
        assert slower.low <= 0.1 <= slower.high
        assert less.low <= 1 / 1.1 - 1 <= less.high
        assert found["failed_rate"].answer == "no difference"
    faster = compare(made(Random(5), 60, ratio=0.8), DECIDING)["response_p50"]
    assert faster.answer == "B better"
    assert faster.low <= -0.2 <= faster.high < 0


def test_equal_sides_with_enough_pairs_have_no_difference_above_the_margin() -> None:
    found = compare(made(Random(3), 60), DECIDING)["response_p50"]
    assert found.answer == "no difference"
    assert -0.1 < found.low < 0 < found.high < 0.1


def test_inconclusive_answer_names_a_sufficient_number_of_pairs() -> None:
    random, enough = Random(7), 0
    for _ in range(20):
        pairs = made(random, 400, ratio=1.1, sd=0.1)
        first = compare(pairs[:12], DECIDING)["response_p50"]
        if first.answer == "inconclusive":
            assert first.needed is not None
            assert 12 < first.needed < 400
            enough += compare(pairs[: 2 * first.needed], DECIDING)["response_p50"].answer != "inconclusive"
        else:
            enough += 1
    assert enough >= 16


def test_few_pairs_decide_nothing() -> None:
    pairs = made(Random(4), LEAST_PAIRS - 1, ratio=3.0, sd=0.001)
    found = compare(pairs, DECIDING)
    assert not is_decided(found, DECIDING)
    assert (found["response_p50"].low, found["response_p50"].high) == (-1, inf)
    assert is_decided(compare(made(Random(4), 12, ratio=3.0, sd=0.001), DECIDING), DECIDING)
    assert compare([], DECIDING) == {}
    assert not is_decided({}, DECIDING)


def test_rates_differ_in_points_and_never_by_chance_alone() -> None:
    random = Random(8)

    def share(chance: float) -> float:
        return sum(random.random() < chance for _ in range(100)) / 100

    found = compare(counted(*((share(0.0), share(0.01)) for _ in range(60))), ("failed_rate",))["failed_rate"]
    assert (found.answer, found.is_points) == ("A better", True)
    assert found.low <= 0.01 <= found.high
    same = compare(counted(*[(0.0, 0.0)] * 60), ("failed_rate",))["failed_rate"]
    assert same.answer == "no difference"
    assert same.high > 0
    one = compare(counted(*[(0.0, 0.0)] * 5, (0.0, 0.01)), ("failed_rate",))["failed_rate"]
    assert one.answer == "inconclusive"


def test_a_difference_without_variance_is_exact() -> None:
    twice = compare(counted(*[(1.0, 2.0)] * 12, metric="requests_per_op"))["requests_per_op"]
    assert (twice.answer, round(twice.change, 9)) == ("A better", 1.0)
    same = compare(counted(*[(1.0, 1.0)] * 12, metric="requests_per_op"))["requests_per_op"]
    assert same.answer == "no difference"


def quiet(random: Random, ops: int, median_s: float) -> BlockValues:
    return BlockValues({}, ops, [median_s * exp(random.gauss(0, 0.35)) for _ in range(ops)])


def test_quiet_operations_of_several_blocks_make_one_percentile() -> None:
    random = Random(9)
    pairs = [(quiet(random, 15, 0.1), quiet(random, 15, 0.13)) for _ in range(90)]
    found = compare(pairs)
    assert found["quiet_p50"].pairs == 30  # three blocks of 15 have 40
    assert found["quiet_p50"].answer == "A better"
    assert found["quiet_p50"].low <= 0.3 <= found["quiet_p50"].high
    assert found["quiet_p99"].pairs == 4
    few = compare(pairs[:2])["quiet_p50"]
    assert (few.answer, few.why) == ("inconclusive", "30 quiet operations per side; at least 40 are needed")
    assert isnan(few.change)
    none = compare([(BlockValues({}, 100), BlockValues({}, 100))] * 9)["quiet_p50"]
    assert (none.needed, none.why) == (None, "0 quiet operations per side; at least 40 are needed")


@pytest.mark.parametrize("values", [{"response_p50": None}, {"response_p50": 0.0}, {}, {"response_p50": float("nan")}])
def test_a_number_that_is_not_known_is_not_compared(values: Mapping[str, float | None]) -> None:
    pairs = [*made(Random(1), 8), (BlockValues({"response_p50": 0.1}, 100), BlockValues(values, 100))]
    assert "response_p50" not in compare(pairs, DECIDING)


def test_without_a_deciding_metric_all_decide() -> None:
    found = compare(counted(*[(1.0, 2.0)] * 12, metric="tue"), ("quiet_p50",))
    assert is_decided(found, ("quiet_p50",)) is ("quiet_p50" not in found)


def starved(random: Random, count: int, shifted: Mapping[str, float]) -> list[Pair]:
    """Pairs on a busy machine, which disturbs the median of a block more than its quicker operations.

    ``shifted`` has, by metric, B's time as a share of A's.
    """
    pairs = []
    for _ in range(count):
        sides = []
        for of in ({}, shifted):
            busy = random.expovariate(1)
            logs = {"service_p50": random.gauss(busy / 2, 0.05 + busy / 2), "service_p25": random.gauss(0, 0.07)}
            sides.append(BlockValues({name: exp(each) * of.get(name, 1.0) for name, each in logs.items()}, 80))
        pairs.append((sides[0], sides[1]))
    return pairs


def test_the_metric_that_differs_is_named_and_another_is_not() -> None:
    """A difference of the quick operations says nothing about the median."""
    found = compare(starved(Random(3), 60, {"service_p25": 1.1}))
    assert (found["service_p25"].answer, found["service_p50"].answer) == ("A better", "inconclusive")
    assert is_decided(found, DEFAULT)
    equal = compare(starved(Random(3), 60, {}))
    assert (equal["service_p25"].answer, equal["service_p50"].answer) == ("no difference", "inconclusive")
    assert not is_decided(equal, DEFAULT)


def test_the_lower_quartile_is_not_awaited_beside_the_median() -> None:
    assert metrics_to_await(DEFAULT) == ["quiet_p50", "service_p50"]
    assert metrics_to_await(["service_p25", "tue"]) == ["service_p25", "tue"]


def test_a_drift_and_an_effect_of_the_order_are_remarked() -> None:
    calm = made(Random(2), 20, sd=0.02)
    firsts = [side_of(2 * number) for number in range(20)]
    assert remarks(calm, firsts) == []
    (drift,) = remarks(made(Random(2), 20, sd=0.02, drift=0.02), firsts)
    assert "drifted by +" in drift
    seconds = []
    for first, (a, b) in zip(firsts, calm, strict=True):
        late = {"response_p50": 1.3 * ((b if first == "A" else a).values["response_p50"] or 0)}
        seconds.append((a, BlockValues(late, 100)) if first == "A" else (BlockValues(late, 100), b))
    (order,) = remarks(seconds, firsts)
    assert "in the second block of a pair" in order
