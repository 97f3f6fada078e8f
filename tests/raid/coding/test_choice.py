"""Offers whose best set is known, and bounds that no set meets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_cloudbench.raid.coding.choice import MOST_OFFERS, Offer, Wish, choose

MB = 1_000_000
OFFERS = (
    Offer("cheap", 1.0, 1 * MB, 0.01),
    Offer("slow", 1.0, 0.1 * MB, 0.01),
    Offer("fast", 10.0, 10 * MB, 0.01),
    Offer("quick", 10.0, 10 * MB, 0.02),
    Offer("sure", 5.0, 1 * MB, 1e-4),
)
WISH = Wish("price", 10 * MB)


def names(wish: Wish, offers: tuple[Offer, ...] = OFFERS) -> set[str]:
    return {offers[child].name for child in choose(offers, wish).children}


def test_cheapest_and_fastest() -> None:
    assert names(WISH) == {"cheap", "slow"}
    assert names(replace(WISH, aim="time")) == {"fast", "quick"}
    found = choose(OFFERS, replace(WISH, aim="time"))
    assert (found.failures, found.time_s, found.price, found.overhead) == (1, 1.0, 20.0, 2.0)


def test_throughput_uses_the_slow_ones_too() -> None:
    found = choose(OFFERS, replace(WISH, aim="time", split="throughput"))
    assert found.children == (0, 1, 2, 3, 4)
    assert found.time_s == pytest.approx(10 * MB / (12.1 * MB))


def test_a_bound_on_time_costs_money() -> None:
    found = choose(OFFERS, replace(WISH, time_at_most_s=5.0))
    assert found.time_s <= 5.0 < choose(OFFERS, WISH).time_s
    assert found.price > choose(OFFERS, WISH).price


def test_most_available_survives_most() -> None:
    found = choose(OFFERS, replace(WISH, aim="availability"))
    assert (len(found.children), found.failures) == (5, 4), "a copy with everyone"
    assert found.unavailability == pytest.approx(0.01 * 0.01 * 0.01 * 0.02 * 1e-4)


def test_one_operator_never_holds_more_than_may_be_lost() -> None:
    same = tuple(replace(offer, operator="one") if offer.name in {"cheap", "slow"} else offer for offer in OFFERS)
    assert names(WISH, same) != {"cheap", "slow"}
    found = choose(same, WISH)
    assert sum(same[child].operator == "one" for child in found.children) <= found.failures


def test_no_set_is_an_answer_too() -> None:
    with pytest.raises(ValueError, match=r"the least time is 1 s, above 0.5 s"):
        choose(OFFERS, replace(WISH, time_at_most_s=0.5))
    with pytest.raises(ValueError, match="each can be met alone"):
        choose(OFFERS, replace(WISH, time_at_most_s=1.0, price_at_most=5.0))
    with pytest.raises(ValueError, match="can lose any 5"):
        choose(OFFERS, replace(WISH, failures_at_least=5))
    with pytest.raises(ValueError, match=f"1 to {MOST_OFFERS} children"):
        choose((), WISH)
