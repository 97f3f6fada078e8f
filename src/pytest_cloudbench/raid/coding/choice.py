"""Which children an object should go to, by price, throughput and availability.

What may live here: pure functions of a table of offers. Every set of children and every number of failures to survive
is examined, so the answer is the best one, and "there is none" is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Literal

from pytest_cloudbench.raid.coding.availability import fewer_than
from pytest_cloudbench.raid.coding.placement import bounded_fill

MOST_OFFERS = 12
"""More offers would make more than 4,000 sets of children, which take too long."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The price, throughput and availability of one child.

    Attributes:
        name: the user's name for it.
        price: for storing a byte, in a unit that is the same for all offers, such as USD per month.
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
        failures_at_least: any this many children may be lost.
        price_at_most: for a byte of the object, overhead included.
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
        price: for a byte of the object.
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
    """Return the best set of children within the bounds; of equally good ones, the one with the fewest children.

    Raises ValueError if there is none; the message gives the best value that any set reaches for each missed bound.
    """
    if not 0 < len(offers) <= MOST_OFFERS:
        raise ValueError(f"expected 1 to {MOST_OFFERS} children to choose from, got {len(offers)}")
    found = list(_all(offers, wish))
    if not found:
        raise ValueError(
            f"no set of these {len(offers)} children can lose any {wish.failures_at_least} and still be readable"
        )
    within = [choice for choice in found if _is_within(choice, wish)]
    if not within:
        raise ValueError(_nearest(found, wish))
    aims = {"price": "price", "time": "time_s", "availability": "unavailability"}
    others = [name for aim, name in aims.items() if aim != wish.aim]

    def key(choice: Choice) -> tuple[object, ...]:
        best = [float(f"{getattr(choice, name):.9g}") for name in (aims[wish.aim], *others)]
        return best[0], len(choice.children), *best[1:], choice.children

    return min(within, key=key)


def _all(offers: Sequence[Offer], wish: Wish) -> Iterator[Choice]:
    for count in range(wish.failures_at_least + 1, len(offers) + 1):
        for children in combinations(range(len(offers)), count):
            members = [offers[child] for child in children]
            if any(offer.bytes_per_s <= 0 for offer in members):
                continue
            operators = Counter(offer.operator for offer in members if offer.operator)
            crowded = max(operators.values(), default=0)
            for failures in range(max(wish.failures_at_least, crowded), count):
                yield _priced(children, members, failures, wish)


def _priced(children: tuple[int, ...], members: Sequence[Offer], failures: int, wish: Wish) -> Choice:
    rates = [offer.bytes_per_s for offer in members]
    if wish.split == "equal":
        fill = [wish.size_bytes / (len(members) - failures)] * len(members)
    else:
        fill = bounded_fill(wish.size_bytes, rates, failures)
    return Choice(
        children,
        failures,
        price=sum(held * offer.price for held, offer in zip(fill, members, strict=True)) / wish.size_bytes,
        time_s=max(held / rate for held, rate in zip(fill, rates, strict=True)),
        unavailability=fewer_than(len(members) - failures, [offer.failure for offer in members]),
        overhead=sum(fill) / wish.size_bytes,
    )


def _is_within(choice: Choice, wish: Wish) -> bool:
    return (
        choice.price <= wish.price_at_most
        and choice.time_s <= wish.time_at_most_s
        and choice.unavailability <= wish.unavailability_at_most
    )


def _nearest(found: Sequence[Choice], wish: Wish) -> str:
    told = []
    for name, bound, unit in (
        ("price", wish.price_at_most, ""),
        ("time_s", wish.time_at_most_s, " s"),
        ("unavailability", wish.unavailability_at_most, ""),
    ):
        least = min(getattr(choice, name) for choice in found)
        if least > bound:
            told.append(f"the least {name.removesuffix('_s')} is {least:.3g}{unit}, above {bound:.3g}{unit}")
    return "no set of children meets all bounds: " + ("; ".join(told) or "each can be met alone, but not all together")
