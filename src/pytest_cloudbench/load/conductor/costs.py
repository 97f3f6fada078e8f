"""The estimate of a run on a real account, announced before it starts: operations, bytes, time and money.

What may live here: the estimate and its line, the bound on money, and the question whether to go on. Prices are data
(``data/prices.toml``). An unknown price is reported as such and never counted as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import floor, log10
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.load.messages import UNKNOWN_LOAD, LoadShape, Start
from pytest_cloudbench.model import ProviderSpec, UsageError, Verb
from pytest_cloudbench.support.wording import format_count

_MOVES_FILES = frozenset({Verb.PUT, Verb.GET})
_GB = 1e9


@dataclass(frozen=True, slots=True)
class Price:
    """The prices of one provider.

    Attributes:
        source: where the price is published.
        date: when the price was read.
        requests: US dollars per request, by verb. Other verbs cost nothing.
        down_gb: US dollars per GB that leaves the provider.
        flat: the reason if there is no price per request or byte, or an empty text.
        hosts: suffixes of the provider's own host names, if others offer services of the same API.
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
    """Return a provider's prices, None if they are unknown. ``X+fast`` is another client of X.

    A price is the provider's own, and not that of other services to which the spec's ``endpoint`` leads.
    """
    parsed = ProviderSpec.parse(spec)
    price, host = _prices().get(parsed.scheme.partition("+")[0]), _endpoint_host(parsed)
    is_own = price is None or host is None or any(f".{host}".endswith(f".{own}") for own in price.hosts)
    return price if is_own else None


def _endpoint_host(spec: ProviderSpec) -> str | None:
    """Return the host of a spec's endpoint, None if it names none."""
    if "endpoint" not in spec.params:
        return None
    try:
        return urlsplit(spec.params["endpoint"]).hostname or ""
    except ValueError:
        return ""


def _account_name(spec: str) -> str:
    """Return the name of an account in messages: its scheme, and the host of its endpoint."""
    parsed = ProviderSpec.parse(spec)
    host = _endpoint_host(parsed)
    return parsed.scheme if host is None else f"{parsed.scheme} at {host}"


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a run at a provider: the number of operations of each verb, and the bytes that they move."""

    ops: Mapping[Verb, int]
    up_bytes: int = 0
    down_bytes: int = 0

    def __add__(self, other: Work) -> Work:
        """Return the work of both."""
        verbs = dict.fromkeys([*self.ops, *other.ops])
        ops = {verb: self.ops.get(verb, 0) + other.ops.get(verb, 0) for verb in verbs}
        return Work(ops, self.up_bytes + other.up_bytes, self.down_bytes + other.down_bytes)

    def requests(self, requests: Mapping[Verb, int]) -> int:
        """Return the least number of requests of a driver for this work.

        ``requests`` has those of one operation by verb.
        """
        return sum(count * requests.get(verb, 1) for verb, count in self.ops.items())


def load_work(load: LoadShape) -> Work:
    """Return the work of a load: its operations, the uploads before them, and the listing after them."""
    around = Work({Verb.PUT: load.prepared, Verb.LIST: 1})
    down_bytes = load.bytes if load.operation is Verb.GET else load.down_bytes
    return Work(load.counts or {load.operation: load.ops}, down_bytes=down_bytes) + around


def estimate_usd(price: Price, work: Work, requests: Mapping[Verb, int]) -> float:
    """Return the cost of work in US dollars: its requests, and the bytes that leave the provider.

    Args:
        price: the provider's prices.
        work: the work to do.
        requests: the least number of requests of one operation by verb.
    """
    cost = sum(ops * requests.get(verb, 1) * price.requests.get(verb.value, 0.0) for verb, ops in work.ops.items())
    return cost + work.down_bytes / _GB * price.down_gb


Accounts = Sequence[tuple[str, Mapping[Verb, int]]]
"""Each account that a provider uses: its spec, and the requests that its verbs send. Two of them may be equal."""


def describe_cost(accounts: Accounts, work: Work) -> str:
    """Return the cost of work on all accounts together as a text, which names unknown prices."""
    prices = {spec: price_of(spec) for spec, _ in accounts}
    cost_usd = sum(estimate_usd(price, work, requests) for spec, requests in accounts if (price := prices[spec]))
    return _price_text(prices, cost_usd, sorted(_account_name(spec) for spec, price in prices.items() if price is None))


def announce_run(request: Start, money: str = "") -> str:
    """Return the line that announces a run on a real service."""
    load = request.load
    more = f" ({format_count(load.prepared, 'upload')} before)" if load.prepared else ""
    moved = f", {format_count(load.bytes - load.down_bytes, 'byte')} {'down' if load.operation is Verb.GET else 'up'}"
    if load.down_bytes:
        moved += f", {load.down_bytes:,} down"
    if request.load.operation not in _MOVES_FILES and not more:
        moved = f" ({request.load.operation.value})"
    took = f", at least {request.planned_s:.0f} s" if request.planned_s >= 1 else ""
    if load.ends_by_time:
        took = f", in {request.planned_s:.0f} s"
    if load == UNKNOWN_LOAD:
        return f"{request.subject.shown_provider}: as many operations as it takes{money and f', {money}'}"
    count = f"{'at most' if load.ends_by_time else 'about'} {format_count(load.ops, 'operation')}"
    return f"{request.subject.shown_provider}: {count}{moved}{more}{took}{money and f', {money}'}"


class Spending:
    """The money that a session spends on accounts, and the user's consent.

    Args:
        most_usd: the bound, None if there is none.
        is_agreed: whether the user has agreed beforehand.
        asker: returns a function that shows a question and returns whether the user agrees. It returns None if there is
            no user to ask.

    Attributes:
        is_agreed: as above.
    """

    def __init__(
        self, most_usd: float | None, is_agreed: bool, asker: Callable[[], Callable[[str], bool] | None]
    ) -> None:
        self._most_usd, self.is_agreed, self._asker = most_usd, is_agreed, asker
        self._spent_usd, self._agreed, self._declined = 0.0, set[str](), set[str]()

    def check(self, accounts: Iterable[str]) -> None:
        """Raise UsageError if the user has not agreed to use real accounts, and cannot be asked."""
        if not self.is_agreed and self._asker() is None:
            names = ", ".join(dict.fromkeys(map(_account_name, accounts)))
            raise UsageError(
                f"{names}: a real account is used only if you agree: add --cloudbench-yes, or run it in a terminal, "
                "which asks"
            )

    def begin(self, request: Start, accounts: Accounts) -> str:
        """Return the line that announces a run on real accounts, after the bound was checked and the user agreed.

        Args:
            request: the run.
            accounts: those that the provider uses.

        Raises UsageError if the run would exceed the bound, or its cost cannot be estimated, or the user says no.
        """
        prices = {spec: price_of(spec) for spec, _ in accounts}
        unknown = sorted(_account_name(spec) for spec, price in prices.items() if price is None)
        work = load_work(request.load)
        run_usd = sum(estimate_usd(price, work, requests) for spec, requests in accounts if (price := prices[spec]))
        has_estimate = request.load != UNKNOWN_LOAD or all(price is None or price.flat for price in prices.values())
        money = _price_text(prices, run_usd, unknown) if has_estimate else "cost not estimated"
        line = announce_run(request, money)
        if self._most_usd is not None:
            if unknown:
                raise UsageError(
                    f"cloudbench_max_cost {self._most_usd:g}: the price of {', '.join(unknown)} is unknown; "
                    "leave the option out, and bound the run with --max-ops and --max-bytes"
                )
            if not has_estimate:
                raise UsageError(
                    f"cloudbench_max_cost {self._most_usd:g}: nobody knows before how many operations this takes; "
                    "leave the option out, and bound the run with --max-ops and --max-bytes"
                )
            if self._spent_usd + run_usd > self._most_usd:
                raise UsageError(
                    f"cloudbench_max_cost {self._most_usd:g}: this experiment costs about {_format_usd(run_usd)}, "
                    f"after {_format_usd(self._spent_usd)} for those before: not started; raise the bound, or lower "
                    "--max-ops"
                )
        provider = request.subject.provider
        if not self.is_agreed and provider not in self._agreed:
            ask = None if line in self._declined else self._asker()  # nobody is asked the same twice
            if ask is None or not ask(f"{line}. Go on? [y/N] "):
                self._declined.add(line)
                raise UsageError(f"provider {request.subject.shown_provider}: you did not agree; nothing was written")
            self._agreed.add(provider)
        self._spent_usd += run_usd
        return line


def _price_text(prices: Mapping[str, Price | None], cost_usd: float, unknown: list[str]) -> str:
    if unknown:
        return "price unknown"
    if all(price is not None and price.flat for price in prices.values()):
        return "no price per request (" + ", ".join(sorted({price.flat for price in prices.values() if price})) + ")"
    dates = ", ".join(sorted({price.date for price in prices.values() if price and not price.flat}))
    return f"about {_format_usd(cost_usd)} without storage (prices of {dates})"


def _format_usd(usd: float) -> str:
    """Format an amount to the cent, and a smaller one with two significant digits."""
    digits = max(2, 1 - floor(log10(usd))) if usd > 0 else 2
    return f"${usd:.{digits}f}"
