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


def test_cheapest_and_fastest_sets_are_chosen() -> None:
    assert names(WISH) == {"cheap", "slow"}
    assert names(replace(WISH, aim="time")) == {"fast", "quick"}
    choice = choose(OFFERS, replace(WISH, aim="time"))
    assert (choice.failures, choice.time_s, choice.price, choice.overhead) == (1, 1.0, 20.0, 2.0)


def test_throughput_split_uses_slow_children_too() -> None:
    choice = choose(OFFERS, replace(WISH, aim="time", split="throughput"))
    assert choice.children == (0, 1, 2, 3, 4)
    assert choice.time_s == pytest.approx(10 * MB / (12.1 * MB))


def test_a_bound_on_time_raises_the_price() -> None:
    choice = choose(OFFERS, replace(WISH, time_at_most_s=5.0))
    assert choice.time_s <= 5.0 < choose(OFFERS, WISH).time_s
    assert choice.price > choose(OFFERS, WISH).price


def test_aim_availability_chooses_a_copy_on_every_child() -> None:
    choice = choose(OFFERS, replace(WISH, aim="availability"))
    assert (len(choice.children), choice.failures) == (5, 4), "a copy with everyone"
    assert choice.unavailability == pytest.approx(0.01 * 0.01 * 0.01 * 0.02 * 1e-4)


def test_children_of_one_operator_never_exceed_the_failures() -> None:
    offers = tuple(replace(offer, operator="one") if offer.name in {"cheap", "slow"} else offer for offer in OFFERS)
    assert names(WISH, offers) != {"cheap", "slow"}
    choice = choose(offers, WISH)
    assert sum(offers[child].operator == "one" for child in choice.children) <= choice.failures


def test_missed_bounds_are_named() -> None:
    with pytest.raises(ValueError, match=r"the least time is 1 s, above 0.5 s"):
        choose(OFFERS, replace(WISH, time_at_most_s=0.5))
    with pytest.raises(ValueError, match=r"the least price is 2, above 1\.5"):
        choose(OFFERS, replace(WISH, price_at_most=1.5))
    with pytest.raises(ValueError, match="each can be met alone"):
        choose(OFFERS, replace(WISH, time_at_most_s=1.0, price_at_most=5.0))
    with pytest.raises(ValueError, match="can lose any 5"):
        choose(OFFERS, replace(WISH, failures_at_least=5))
    of_one_operator = [replace(offer, operator="one") for offer in OFFERS[:3]]
    with pytest.raises(ValueError, match="can lose any 1 or all of one operator and still be readable"):
        choose(of_one_operator, replace(WISH, failures_at_least=1))
    with pytest.raises(ValueError, match=f"1 to {MOST_OFFERS} children"):
        choose((), WISH)
