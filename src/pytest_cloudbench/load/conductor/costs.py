"""What a run on a real account will take: operations, bytes, time and money, said before it starts.

What may live here: the estimate and its line, the bound on money, and the question whether to go on. Prices are data
(``data/prices.toml``); an unknown price is reported as such, never counted as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import floor, log10
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.load.messages import Start
from pytest_cloudbench.model import ProviderSpec, UsageError, Verb

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
        hosts: ends of the names of its own hosts, where others offer services of the same API.
    """

    source: str
    date: str
    requests: Mapping[str, float] = field(default_factory=dict)
    down_gb: float = 0.0
    flat: str = ""
    hosts: Sequence[str] = ()


def read_prices(table: Mapping[str, Any]) -> Mapping[str, Price]:
    """Return the prices of a parsed table, by the scheme of the driver. Raises TypeError for an unknown key."""
    return {scheme: Price(**row) for scheme, row in table.items()}


@cache
def _prices() -> Mapping[str, Price]:
    import tomllib

    from pytest_cloudbench import data

    return read_prices(tomllib.loads(data.read_prices()))


def price_of(spec: str) -> Price | None:
    """Return what a provider charges; None if that is unknown. ``X+fast`` is another client of X.

    A price is the provider's own, and not that of other services to which the spec's ``endpoint`` leads.
    """
    parsed = ProviderSpec.parse(spec)
    price, host = _prices().get(parsed.scheme.partition("+")[0]), _endpoint_host(parsed)
    is_own = price is None or host is None or any(f".{host}".endswith(f".{own}") for own in price.hosts)
    return price if is_own else None


def _endpoint_host(spec: ProviderSpec) -> str | None:
    """Return the host to which a spec's endpoint leads; None if it names none."""
    if "endpoint" not in spec.params:
        return None
    try:
        return urlsplit(spec.params["endpoint"]).hostname or ""
    except ValueError:
        return ""


def _name(spec: str) -> str:
    """Return what messages call an account: its scheme, and the host of its endpoint."""
    parsed = ProviderSpec.parse(spec)
    host = _endpoint_host(parsed)
    return parsed.scheme if host is None else f"{parsed.scheme} at {host}"


def estimate_usd(price: Price, asked: Start, requests: Mapping[Verb, int]) -> float:
    """Return what a run costs, in US dollars: its operations, what is prepared before, the listing after, and bytes.

    Args:
        price: what the provider charges.
        asked: what is going to be done.
        requests: how many requests a verb sends, at least.
    """

    def cost(verb: Verb, ops: int) -> float:
        return ops * requests.get(verb, 1) * price.requests.get(verb.value, 0.0)

    load = asked.load
    down_bytes = load.bytes if asked.load.operation is Verb.GET else 0
    total = cost(asked.load.operation, load.ops) + cost(Verb.PUT, load.prepared) + cost(Verb.LIST, 1)
    return total + down_bytes / _GB * price.down_gb


def announcement(asked: Start, money: str = "") -> str:
    """Return the line that announces what is about to be done to a real service."""
    load = asked.load
    more = f" ({load.prepared} uploads before)" if load.prepared else ""
    moved = f", {load.bytes:,} bytes {'down' if asked.load.operation is Verb.GET else 'up'}"
    if asked.load.operation not in _MOVES_FILES and not more:
        moved = f" ({asked.load.operation.value})"
    took = f", at least {asked.planned_s:.0f} s" if asked.planned_s >= 1 else ""
    if load.ends_by_time:
        took = f", in {asked.planned_s:.0f} s"
    if not load.ops:
        return f"{asked.subject.provider}: as many operations as it takes{money and f', {money}'}"
    count = f"{'at most' if load.ends_by_time else 'about'} {load.ops:,} operations"
    return f"{asked.subject.provider}: {count}{moved}{more}{took}{money and f', {money}'}"


class Spending:
    """What a session spends on accounts, and who agreed to it.

    Args:
        most_usd: the bound; None if there is none.
        is_agreed: whether the user has agreed beforehand.
        asker: returns a function that shows a question and returns whether the user agrees; None if there is no
            user to ask.

    Attributes:
        is_agreed: see above.
    """

    def __init__(
        self, most_usd: float | None, is_agreed: bool, asker: Callable[[], Callable[[str], bool] | None]
    ) -> None:
        self._most_usd, self.is_agreed, self._asker = most_usd, is_agreed, asker
        self._spent_usd, self._agreed = 0.0, set[str]()

    def check(self, accounts: Iterable[str]) -> None:
        """Raise UsageError if the user has not agreed to use real accounts, and cannot be asked."""
        if not self.is_agreed and self._asker() is None:
            names = ", ".join(dict.fromkeys(map(_name, accounts)))
            raise UsageError(
                f"{names}: a real account is used only if you agree: add --cloudbench-yes, or run it in a terminal, "
                "which asks"
            )

    def begin(self, asked: Start, accounts: Sequence[tuple[str, Mapping[Verb, int]]]) -> str:
        """Return the line that announces a run on real accounts, after the bound was checked and the user agreed.

        Args:
            asked: what is going to be done.
            accounts: each account that the provider uses: its spec, and the requests that its verbs send. Two of them
                may be equal.

        Raises UsageError if the run would exceed the bound or has no known price, or the user says no.
        """
        known = {spec: price_of(spec) for spec, _ in accounts}
        unknown = sorted(_name(spec) for spec, price in known.items() if price is None)
        cost_usd = sum(estimate_usd(price, asked, requests) for spec, requests in accounts if (price := known[spec]))
        line = announcement(asked, _told(known, cost_usd, unknown))
        if self._most_usd is not None:
            if unknown:
                raise UsageError(
                    f"cloudbench_max_cost {self._most_usd:g}: the price of {', '.join(unknown)} is unknown; "
                    "leave the option out, and bound the run with --max-ops and --max-bytes"
                )
            if self._spent_usd + cost_usd > self._most_usd:
                raise UsageError(
                    f"cloudbench_max_cost {self._most_usd:g}: this experiment costs about {_money(cost_usd)}, after "
                    f"{_money(self._spent_usd)} for those before: not started; raise the bound, or lower --max-ops"
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
    return f"about {_money(cost_usd)} without storage (prices of {dates})"


def _money(usd: float) -> str:
    """Return an amount to the cent; a smaller one with two significant digits."""
    digits = max(2, 1 - floor(log10(usd))) if usd > 0 else 2
    return f"${usd:.{digits}f}"
