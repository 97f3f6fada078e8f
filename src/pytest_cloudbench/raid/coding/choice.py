"""The choice of children for an object, by price, throughput and availability.

What may live here: pure functions of a table of offers. Every set of children and every number of failures to survive
is examined, so the answer is the best one, and a refusal means that there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Literal

from pytest_cloudbench.raid.coding.availability import chance_of_fewer_than
from pytest_cloudbench.raid.coding.placement import compute_bounded_fill

MOST_OFFERS = 12
"""More offers would make more than 4,000 sets of children, which would take too long to examine."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The price, throughput and availability of one child.

    Attributes:
        name: the user's name for it.
        price: for storing some amount, in a unit that is the same for all offers, such as USD a month per GiB.
        bytes_per_s: its throughput.
        failure: the probability that it does not answer, 0 to 1.
        operator: who runs it. Children of one operator may fail together, so a set never has more children of one
            operator than it can lose. Empty: it shares its operator with no other child.
    """

    name: str
    price: float
    bytes_per_s: float
    failure: float
    operator: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """A user's requirements for a set of children.

    Attributes:
        aim: the quantity to optimize, among all sets within the bounds.
        size_bytes: the size of the object that times refer to.
        failures_at_least: how many children may be lost, whichever they are.
        price_at_most: for the same amount of the object, overhead included.
        time_at_most_s: for moving the object.
        unavailability_at_most: the probability that the object cannot be read.
        split: ``equal`` shares, or ``throughput``: as much as each child can take, see ``placement``.
    """

    aim: Literal["price", "time", "availability"]
    size_bytes: int
    failures_at_least: int = 1
    price_at_most: float = inf
    time_at_most_s: float = inf
    unavailability_at_most: float = 1.0
    split: Literal["equal", "throughput"] = "equal"


@dataclass(frozen=True, slots=True)
class Choice:
    """A set of children, and its properties.

    Attributes:
        children: their numbers in the table, ascending.
        failures: how many of them, whichever they are, may be lost.
        price: for the same amount of the object as in the offers.
        time_s: for moving the object.
        unavailability: the probability that the object cannot be read, if children fail independently.
        overhead: bytes stored per byte of the object.
    """

    children: tuple[int, ...]
    failures: int
    price: float
    time_s: float
    unavailability: float
    overhead: float


def choose(offers: Sequence[Offer], wish: Wish) -> Choice:
    """Return the best set of children within the bounds. Of equally good ones, it is the one with the fewest children.

    Raises ValueError if there is none. The message gives the best value that any set reaches for each missed bound.
    """
    if not 0 < len(offers) <= MOST_OFFERS:
        raise ValueError(f"expected 1 to {MOST_OFFERS} children to choose from, got {len(offers)}")
    choices = list(_enumerate_choices(offers, wish))
    if not choices:
        raise ValueError(
            f"no set of these {len(offers)} children can lose any {wish.failures_at_least}"
            f"{' or all of one operator' if any(offer.operator for offer in offers) else ''} and still be readable"
        )
    allowed = [choice for choice in choices if _is_within(choice, wish)]
    if not allowed:
        raise ValueError(_describe_missed_bounds(choices, wish))
    aims = {"price": "price", "time": "time_s", "availability": "unavailability"}
    others = [name for aim, name in aims.items() if aim != wish.aim]

    def sort_key(choice: Choice) -> tuple[object, ...]:
        # Rounded, so that choices that are equal except for rounding errors count as equal.
        values = [float(f"{getattr(choice, name):.9g}") for name in (aims[wish.aim], *others)]
        return values[0], len(choice.children), *values[1:], choice.children

    return min(allowed, key=sort_key)


def _enumerate_choices(offers: Sequence[Offer], wish: Wish) -> Iterator[Choice]:
    for count in range(wish.failures_at_least + 1, len(offers) + 1):
        for children in combinations(range(len(offers)), count):
            members = [offers[child] for child in children]
            if any(offer.bytes_per_s <= 0 for offer in members):
                continue
            operators = Counter(offer.operator for offer in members if offer.operator)
            most_of_one_operator = max(operators.values(), default=0)
            for failures in range(max(wish.failures_at_least, most_of_one_operator), count):
                yield _evaluate_choice(children, members, failures, wish)


def _evaluate_choice(children: tuple[int, ...], members: Sequence[Offer], failures: int, wish: Wish) -> Choice:
    rates = [offer.bytes_per_s for offer in members]
    if wish.split == "equal":
        stored_bytes = [wish.size_bytes / (len(members) - failures)] * len(members)
    else:
        stored_bytes = compute_bounded_fill(wish.size_bytes, rates, failures)
    price = sum(size_bytes * offer.price for size_bytes, offer in zip(stored_bytes, members, strict=True))
    return Choice(
        children,
        failures,
        price=price / wish.size_bytes,
        time_s=max(size_bytes / rate for size_bytes, rate in zip(stored_bytes, rates, strict=True)),
        unavailability=chance_of_fewer_than(len(members) - failures, [offer.failure for offer in members]),
        overhead=sum(stored_bytes) / wish.size_bytes,
    )


def _is_within(choice: Choice, wish: Wish) -> bool:
    return (
        choice.price <= wish.price_at_most
        and choice.time_s <= wish.time_at_most_s
        and choice.unavailability <= wish.unavailability_at_most
    )


def _describe_missed_bounds(choices: Sequence[Choice], wish: Wish) -> str:
    reasons = []
    for name, bound, unit in (
        ("price", wish.price_at_most, ""),
        ("time_s", wish.time_at_most_s, " s"),
        ("unavailability", wish.unavailability_at_most, ""),
    ):
        best = min(getattr(choice, name) for choice in choices)
        if best > bound:
            reasons.append(f"the least {name.removesuffix('_s')} is {best:.3g}{unit}, above {bound:.3g}{unit}")
    return "no set of children meets all bounds: " + (
        "; ".join(reasons) or "each can be met alone, but not all together"
    )
