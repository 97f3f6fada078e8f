"""The times and overheads of Table II's six clouds, and the bound that no other split can beat."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.placement import (
    Throughput,
    compute_bounded_fill,
    least_overhead,
    least_placement_time_s,
    placement_cost,
    throughput_split,
)
from pytest_cloudbench.raid.coding.policies import Equal, Split

ROOT = Path(__file__).resolve().parents[3]
SIZE_BYTES = 10_000_000


def table_2_rates() -> list[float]:
    """Return the published bytes per second of native uploads of 10 MB, the fastest first."""
    entries = json.loads((ROOT / "results/published/cloud-raid-2012-table-2.json").read_text())["benchmarks"]
    rows = [entry["extra_info"] for entry in entries if entry["extra_info"]["size_mb"] == 10]
    return sorted((SIZE_BYTES / row["native"] for row in rows), reverse=True)


RATES = table_2_rates()


def survives_any(split: Split, failures: int) -> bool:
    """Return whether every combination of remaining children has enough shares."""
    children = range(len(split.counts))
    return all(
        sum(split.counts[child] for child in remaining) >= split.data
        for remaining in combinations(children, len(split.counts) - failures)
    )


def fill_time_s(fill: Sequence[float], rates: Sequence[float]) -> float:
    return max(held / rate for held, rate in zip(fill, rates, strict=True))


# --- the six clouds of Table II, 10 MB ---


def test_equal_shares_without_redundancy_wait_for_the_slowest() -> None:
    assert placement_cost(Split(6, (1,) * 6), SIZE_BYTES, RATES).time_s == pytest.approx(38.5, abs=0.05)


def test_a_proportional_fill_ends_together_and_survives_no_failure() -> None:
    fill = compute_bounded_fill(SIZE_BYTES, RATES, 0)
    assert fill_time_s(fill, RATES) == pytest.approx(2.51, abs=0.005)
    assert [held / rate for held, rate in zip(fill, RATES, strict=True)] == pytest.approx([2.51] * 6, abs=0.005)
    assert sum(fill) == pytest.approx(SIZE_BYTES)


def test_a_bounded_fill_survives_any_one_failure() -> None:
    fill = compute_bounded_fill(SIZE_BYTES, RATES, 1)
    assert fill_time_s(fill, RATES) == pytest.approx(7.35, abs=0.005)
    assert fill_time_s(fill, RATES) == pytest.approx(least_placement_time_s(SIZE_BYTES, RATES, 1))
    assert sum(fill) / SIZE_BYTES == pytest.approx(1.52, abs=0.005)
    assert min(sum(fill) - held for held in fill) == pytest.approx(SIZE_BYTES), "each w_i <= W - D"


def test_a_split_comes_near_the_bound() -> None:
    split = throughput_split(RATES, 1)
    cost = placement_cost(split, SIZE_BYTES, RATES)
    assert cost.least_time_s == pytest.approx(7.35, abs=0.005)
    assert cost.time_s <= 1.03 * cost.least_time_s
    assert cost.failures == 1
    assert cost.overhead == pytest.approx(1.52, abs=0.03)
    assert survives_any(split, 1)
    assert not survives_any(split, 2)


def test_fewer_shares_take_more_time() -> None:
    few = throughput_split(RATES, 1, most_shares=32)
    assert (few.data, sum(few.counts)) == (20, 31)
    assert 1.04 < placement_cost(few, SIZE_BYTES, RATES).time_s / least_placement_time_s(SIZE_BYTES, RATES, 1) < 1.07


def test_equal_shares_take_six_times_longer_and_store_less() -> None:
    cost = placement_cost(Equal(5, 6).split(SIZE_BYTES), SIZE_BYTES, RATES)
    assert cost.time_s == pytest.approx(46.2, abs=0.05)
    assert cost.overhead == pytest.approx(1.2)
    assert cost.failures == 1


def test_time_of_the_best_equal_subset() -> None:
    costs = [placement_cost(Split(count - 1, (1,) * count), SIZE_BYTES, RATES[:count]) for count in range(2, 7)]
    best = min(costs, key=lambda cost: cost.time_s)
    assert best.time_s == pytest.approx(11.1, abs=0.05)
    assert best.overhead == pytest.approx(1.5)


def test_time_of_the_best_single_cloud() -> None:
    assert SIZE_BYTES / RATES[0] == pytest.approx(3.81, abs=0.005)


def test_less_overhead_takes_more_time() -> None:
    fills = [compute_bounded_fill(SIZE_BYTES, RATES, 1, overhead) for overhead in (1.52, 1.4, 1.3, 1.2)]
    times_s = [fill_time_s(fill, RATES) for fill in fills]
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx(46.2, abs=0.05), "the least overhead is that of equal shares"
    assert [sum(fill) / SIZE_BYTES for fill in fills] == pytest.approx([1.516, 1.4, 1.3, 1.2], abs=0.001)
    splits = [throughput_split(RATES, 1, overhead) for overhead in (1.52, 1.4, 1.3, 1.2)]
    assert all(survives_any(split, 1) for split in splits)
    assert [
        sum(split.counts) / split.data <= overhead + 1e-9
        for split, overhead in zip(splits, (1.52, 1.4, 1.3, 1.2), strict=True)
    ] == [True] * 4


def test_price_counts_the_bytes_of_each_child() -> None:
    assert placement_cost(Split(2, (2, 0, 1)), 1000, [1.0, 1.0, 1.0], [0.5, 9.0, 0.25]).price == 625


# --- any rates ---

rates_of_children = st.lists(st.floats(1e3, 1e9), min_size=1, max_size=7)


@given(rates_of_children, st.data())
def test_no_split_survives_in_less_time(rates: Sequence[float], data: st.DataObject) -> None:
    failures = data.draw(st.integers(0, len(rates) - 1))
    time_s = least_placement_time_s(1.0, rates, failures) * data.draw(st.floats(0.1, 0.999))
    largest = sorted((rate * time_s for rate in rates), reverse=True)
    assert sum(largest[failures:]) < 1.0, "though every child took all that it could"


@given(rates_of_children, st.data())
def test_a_fill_stores_no_spare_byte(rates: Sequence[float], data: st.DataObject) -> None:
    failures = data.draw(st.integers(0, len(rates) - 1))
    overhead = data.draw(st.just(inf) | st.floats(1.0, 3.0))
    if overhead < least_overhead(len(rates), failures):
        with pytest.raises(ValueError, match="store at least"):
            compute_bounded_fill(1.0, rates, failures, overhead)
        return
    fill = sorted(compute_bounded_fill(1.0, rates, failures, overhead), reverse=True)
    assert sum(fill[failures:]) == pytest.approx(1.0), "what is left after any loss is the object, and no more"
    assert not failures or fill[: failures + 1] == pytest.approx([fill[failures]] * (failures + 1))
    assert sum(fill) <= overhead * (1 + 1e-9)


@given(rates_of_children, st.data())
def test_a_split_survives_any_failures(rates: Sequence[float], data: st.DataObject) -> None:
    failures = data.draw(st.integers(0, len(rates) - 1))
    minimum = least_overhead(len(rates), failures)
    overhead = data.draw(st.just(inf) | st.floats(minimum, minimum + 2))
    split = throughput_split(rates, failures, overhead)
    assert survives_any(split, failures)
    assert sum(split.counts) <= overhead * split.data * (1 + 1e-6)
    quickest_s = fill_time_s(compute_bounded_fill(1.0, rates, failures, overhead), rates)
    assert placement_cost(split, 1, rates).time_s >= quickest_s * (1 - 1e-9)


def test_a_child_without_a_rate_holds_nothing() -> None:
    split = throughput_split([100.0, 0.0, 50.0, 50.0], 1)
    assert split.counts[1] == 0
    assert survives_any(split, 1)


@pytest.mark.parametrize(
    ("rates", "failures", "message"),
    [
        ([1.0, 1.0], 2, "any 2 of 2 children"),
        ([1.0, 0.0], 1, "any 1 of 1 children"),
        ([1.0, -1.0], 0, "0 or more"),
        ([1.0, float("nan")], 0, "0 or more"),
        ([], 0, "any 0 of 0"),
    ],
)
def test_impossible_rates_are_refused(rates: list[float], failures: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        throughput_split(rates, failures)


# --- the placement ---

SEGMENT_BYTES = 4_000_000


def test_shares_are_equal_before_all_rates_and_for_small_segments() -> None:
    rates: list[float | None] = [3.0, None, 1.0]
    placement = Throughput(2, 3, lambda: rates)
    assert placement.split(SEGMENT_BYTES) == Split(2, (1, 1, 1))
    rates[1] = 1.0
    split = placement.split(SEGMENT_BYTES)
    assert split.counts == (1, 1, 1), "the fastest may not hold more than the second"
    rates[:] = [4.0, 4.0, 1.0]
    split = placement.split(SEGMENT_BYTES)
    assert split.counts[0] == split.counts[1] > split.counts[2]
    assert placement.split(1000) == Split(2, (1, 1, 1))


def test_a_split_stays_while_rates_change_little() -> None:
    rates: list[float | None] = list(RATES)
    placement = Throughput(5, 6, lambda: rates)
    first = placement.split(SEGMENT_BYTES)
    rates[:] = [rate * 10 * (1 + (child % 2) * 0.02) for child, rate in enumerate(RATES)]
    assert placement.split(SEGMENT_BYTES) is first
    rates[:] = [*reversed(RATES)]
    other = placement.split(SEGMENT_BYTES)
    assert other.counts == tuple(reversed(first.counts))


def test_a_split_suits_if_it_survives_and_is_nearly_as_quick() -> None:
    placement = Throughput(5, 6, lambda: list(RATES))
    best = placement.split(SEGMENT_BYTES)
    assert placement.suits(best, SEGMENT_BYTES)
    assert placement.suits(throughput_split(RATES, 1, most_shares=32), SEGMENT_BYTES)
    assert not placement.suits(Equal(5, 6).split(SEGMENT_BYTES), SEGMENT_BYTES), "it takes six times as long"
    assert not placement.suits(throughput_split(RATES, 0), SEGMENT_BYTES), "none may fail"
    assert not placement.suits(Split(5, (1,) * 7), SEGMENT_BYTES), "there are six children"
    assert placement.suits(Equal(5, 6).split(1000), 1000)


def test_an_impossible_overhead_is_refused() -> None:
    with pytest.raises(ValueError, match=r"store at least 1.5"):
        Throughput(4, 6, lambda: [None] * 6, overhead_at_most=1.2)


@pytest.mark.parametrize(("data", "children"), [(60, 70), (65, 130)])
def test_many_children_and_little_overhead_have_a_split(data: int, children: int) -> None:
    rates = [1.0 + child % 7 for child in range(children)]
    split = Throughput(data, children, lambda: rates, overhead_at_most=children / data).split(SEGMENT_BYTES)
    assert sum(sorted(split.counts)[:data]) >= split.data, "whichever children fail"
    assert sum(split.counts) / split.data <= children / data * (1 + 1e-9)
