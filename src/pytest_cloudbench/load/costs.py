"""What a run on a real account will take: operations, bytes, time and money, said before it starts.

What may live here: the estimate and its line, the bound on money, and the question whether to go on. Prices are data
(``data/prices.toml``); an unknown price is said and never taken for 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pytest_cloudbench.load.messages import Start
from pytest_cloudbench.model import UsageError, Verb

__all__ = ["Price", "Spending", "announcement", "estimate_usd", "price_of", "read_prices"]

_MOVES_FILES = frozenset({Verb.PUT, Verb.GET})
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Price:
    """What one provider charges.

    Attributes:
        source: where the price is published.
        date: when the price was read.
        requests: US dollars per request, by verb; 0 for others.
        down_gb: US dollars per GB that leaves the provider.
        flat: why there is no price per request or byte; empty if there is one.
    """

    source: str
    date: str
    requests: Mapping[str, float] = field(default_factory=dict)
    down_gb: float = 0.0
    flat: str = ""


def read_prices(table: Mapping[str, Any]) -> Mapping[str, Price]:
    """Returns the prices of a parsed table, by the scheme of the driver. Raises TypeError for an unknown key."""
    return {scheme: Price(**row) for scheme, row in table.items()}


@cache
def _prices() -> Mapping[str, Price]:
    import tomllib

    from pytest_cloudbench import data

    return read_prices(tomllib.loads(data.read_prices()))


def price_of(scheme: str) -> Price | None:
    """Returns what a provider charges; None if that is unknown. ``X+fast`` is another client of X."""
    return _prices().get(scheme.partition("+")[0])


def estimate_usd(price: Price, asked: Start, requests: Mapping[Verb, int]) -> float:
    """Returns what a run costs, in US dollars: its operations, what is prepared before, the listing after, and bytes.

    Args:
        price: what the provider charges.
        asked: what is going to be done.
        requests: how many requests a verb sends, at least.
    """

    def cost(verb: Verb, ops: int) -> float:
        return ops * requests.get(verb, 1) * price.requests.get(verb.value, 0.0)

    load = asked.load
    down_bytes = load.bytes if asked.operation is Verb.GET else 0
    total = cost(asked.operation, load.ops) + cost(Verb.PUT, load.prepared) + cost(Verb.LIST, 1)
    return total + down_bytes / _GB * price.down_gb


def announcement(asked: Start, money: str = "") -> str:
    """Returns the line that announces what is about to be done to a real service."""
    load = asked.load
    more = f" ({load.prepared} uploads before)" if load.prepared else ""
    moved = f", {load.bytes:,} bytes {'down' if asked.operation is Verb.GET else 'up'}"
    if asked.operation not in _MOVES_FILES and not more:
        moved = f" ({asked.operation.value})"
    took = f", at least {asked.planned_s:.0f} s" if asked.planned_s >= 1 else ""
    if not load.ops:
        return f"{asked.subject.provider}: as many operations as it takes{money and f', {money}'}"
    return f"{asked.subject.provider}: about {load.ops} operations{moved}{more}{took}{money and f', {money}'}"


class Spending:
    """What a session spends on accounts, and who agreed to it.

    Args:
        most_usd: the bound; None if there is none.
        is_agreed: whether the user has agreed beforehand.
        asker: returns a function that shows a question and returns whether the user agrees; None if nobody can be
            asked.

    Attributes:
        is_agreed: see above.
    """

    def __init__(
        self, most_usd: float | None, is_agreed: bool, asker: Callable[[], Callable[[str], bool] | None]
    ) -> None:
        self._most_usd, self.is_agreed, self._asker = most_usd, is_agreed, asker
        self._spent_usd, self._agreed = 0.0, set[str]()

    def check(self, accounts: Collection[str]) -> None:
        """Raise UsageError if nobody agreed to use real accounts, and nobody can be asked."""
        if not self.is_agreed and self._asker() is None:
            raise UsageError(
                f"{', '.join(accounts)}: a real account is used only if you agree: add --cloudbench-yes, "
                "or run it in a terminal, which asks"
            )

    def begin(self, asked: Start, accounts: Mapping[str, Mapping[Verb, int]]) -> str:
        """Returns the line that announces a run on real accounts, after the bound was checked and the user agreed.

        Args:
            asked: what is going to be done.
            accounts: scheme of each account that the provider uses, to the requests that its verbs send.

        Raises UsageError if the run would exceed the bound or has no known price, or the user says no.
        """
        known = {scheme: price_of(scheme) for scheme in accounts}
        unknown = sorted(scheme for scheme, price in known.items() if price is None)
        cost_usd = sum(estimate_usd(price, asked, accounts[scheme]) for scheme, price in known.items() if price)
        line = announcement(asked, _told(known, cost_usd, unknown))
        if self._most_usd is not None:
            if unknown:
                raise UsageError(
                    f"--cloudbench-max-cost {self._most_usd:g}: the price of {', '.join(unknown)} is unknown; "
                    "leave the option out, and bound the run with --max-ops and --max-bytes"
                )
            if self._spent_usd + cost_usd > self._most_usd:
                raise UsageError(
                    f"--cloudbench-max-cost {self._most_usd:g}: this experiment costs about ${cost_usd:.4f}, after "
                    f"${self._spent_usd:.4f} for those before: not started; raise the bound, or lower --max-ops"
                )
        provider = asked.subject.provider
        if not self.is_agreed and provider not in self._agreed:
            ask = self._asker()
            if ask is None or not ask(f"{line}. Go on? [y/N] "):
                raise UsageError(f"provider {provider}: you did not agree; nothing was written")
            self._agreed.add(provider)
        self._spent_usd += cost_usd
        return line


def _told(known: Mapping[str, Price | None], cost_usd: float, unknown: list[str]) -> str:
    if unknown:
        return "price unknown"
    if all(price is not None and price.flat for price in known.values()):
        return "no price per request (" + ", ".join(sorted({price.flat for price in known.values() if price})) + ")"
    dates = ", ".join(sorted({price.date for price in known.values() if price and not price.flat}))
    return f"about ${cost_usd:.4f} without storage (prices of {dates})"
