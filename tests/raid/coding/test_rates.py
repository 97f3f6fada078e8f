"""Observed rates against constant and changing true rates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.raid.coding.rates import ChildRates, ObservedRate


@given(st.floats(1.0, 1e9), st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1000)), min_size=1, max_size=30))
def test_a_constant_rate_is_found_exactly(bytes_per_s: float, transfers: list[tuple[int, float]]) -> None:
    rate, at_s = ObservedRate(), 0.0
    for moved_bytes, pause_s in transfers:
        at_s += moved_bytes / bytes_per_s + pause_s
        rate.observe(moved_bytes, moved_bytes / bytes_per_s, at_s)
    assert rate.bytes_per_s == pytest.approx(bytes_per_s)


def test_transfers_that_share_a_line_do_not_make_it_look_slower() -> None:
    rate = ObservedRate()
    for second in range(0, 20, 2):  # two at a time, each of which waits for the other: 1,000 bytes/s in all
        rate.observe(1000, 1.0, second + 1.0)
        rate.observe(1000, 2.0, second + 2.0)
    assert rate.bytes_per_s == pytest.approx(1000)
    concurrent = ObservedRate()
    for second in range(0, 20, 2):  # two at a time, at the same time
        concurrent.observe(1000, 2.0, second + 2.0)
        concurrent.observe(1000, 2.0, second + 2.0)
    assert concurrent.bytes_per_s == pytest.approx(1000)


def test_a_change_is_followed_within_a_few_half_lives() -> None:
    rate = ObservedRate(half_life_s=10.0)
    for at_s in range(1, 200):
        rate.observe(1000, 1.0, float(at_s))
    for at_s in range(200, 210):
        rate.observe(100, 1.0, float(at_s))
    assert rate.bytes_per_s == pytest.approx(550, rel=0.05), "halfway after one half-life"
    for at_s in range(210, 300):
        rate.observe(100, 1.0, float(at_s))
    assert rate.bytes_per_s == pytest.approx(100, rel=0.05)


def test_transfers_are_weighted_by_bytes() -> None:
    rate = ObservedRate()
    rate.observe(1_000_000, 1.0, 1.0)
    for number in range(1, 11):
        rate.observe(10, 0.01, 1 + number / 100)  # 1,000 bytes/s, since it mostly waits
    assert rate.bytes_per_s == pytest.approx(1_000_100 / 1.1, rel=1e-3)


def test_no_valid_observation_gives_no_rate() -> None:
    rate = ObservedRate()
    for moved_bytes, taken_s in ((0, 1.0), (1, 0.0), (-1, 1.0), (1, float("nan")), (1, float("inf"))):
        rate.observe(moved_bytes, taken_s, 1.0)
    assert rate.bytes_per_s is None


def test_a_child_without_an_observation_has_no_rate() -> None:
    rates = ChildRates(4)
    assert list(rates.observed_rates()) == [None] * 4
    for child, moved_bytes in ((0, 100), (1, 300), (2, 200)):
        rates.observe(child, moved_bytes, 1.0, 1.0)
    assert list(rates.observed_rates()) == [100, 300, 200, None]


def test_a_restored_rate_continues() -> None:
    first, restored = ObservedRate(), ObservedRate()
    first.observe(1000, 2.0, 5.0)
    restored.restore(first.plain())
    for rate in (first, restored):
        rate.observe(10, 1.0, 400.0)
    assert restored.bytes_per_s == first.bytes_per_s


@pytest.mark.parametrize(
    "plain", [{}, {"at_s": "x", "moved_bytes": 1, "taken_s": 1}, {"at_s": 0, "moved_bytes": -1, "taken_s": 1}]
)
def test_an_impossible_state_is_ignored(plain: dict[str, object]) -> None:
    rate = ObservedRate()
    rate.restore(plain)
    assert rate.bytes_per_s is None


def test_a_clock_that_is_set_back_discards_nothing() -> None:
    rate = ObservedRate(half_life_s=1.0)
    rate.observe(100, 1.0, 1000.0)
    rate.observe(300, 1.0, 0.0)
    rate.observe(500, 1.0, 2.0)
    assert rate.bytes_per_s is not None
    assert 200 <= rate.bytes_per_s <= 900, "neither forgotten nor infinite"


def test_a_half_life_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        ObservedRate(0.0)
