"""The number of shares for each child, so that the transfer ends early and any f children may still fail.

What may live here: pure functions of rates and sizes, and the placement by observed rates.

Cloud-RAID (Figure 1b) gives each child bytes in proportion to its throughput, so that all transfers end together. Then
the fastest child holds most of an object, and losing it loses the object. Bounded, with D bytes, rates r and any f
children that may fail:

- Within a time T, child i can take r_i T. After the f children with most bytes are lost, D or more must be left, so
  T >= D / (sum of the rates without the f fastest). The bound is reached if every child takes r_i T.
- A child that takes more than the (f+1)th fastest adds nothing to the bytes left after the losses. So
  w_i = min(r_i T, r_(f+1) T): this reaches T with the fewest bytes, D + f w_max in all.

**From bytes to shares.** An erasure code makes equal shares, so a child that takes more bytes holds more shares of one
code (``Split.counts``). The code is k of sum(counts), and an object can be read after any f failures exactly if the
n - f smallest counts add up to k or more: any k shares will do, whichever children hold them. More shares follow the
rates more closely but cost a parity row each, so the code is the one with the fewest shares that comes near the bound:
for Cloud-RAID's six clouds with f = 1, 20 of 31 shares are within 7 % of it.

The alternative is to combine several plain codes: one code over all children, another over those that take more bytes,
and so on. It needs only f parity rows, but eight or more segments per object to follow the rates as closely, which
small objects do not have. Each child would then end early in some segments and late in others. With one code per
segment, all children end together in every segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from pytest_cloudbench.raid.coding.policies import Equal, Split

_NEAR_BOUND = 0.03
"""A code is accepted if it comes within 3 % of the bound."""

_MOST_SHARES = 64
"""Shares in one code: with more, encoding costs more than following the rates gains."""

_RESPLIT_GAIN = 0.03
"""A split stays in use while it takes at most this much longer than a new one would."""

_MOVE_GAIN = 0.2
"""An object whose split takes more than a fifth longer than necessary is worth moving."""

_LEAST_BYTES = 1 << 18
"""Smaller segments are spread equally: their time depends on how fast children answer, not on throughput."""


# --- bytes, exactly -----------------------------------------------------------------------------------


def least_placement_time_s(size_bytes: float, rates: Sequence[float], failures: int) -> float:
    """Return the least time to move an object so that any ``failures`` children may fail afterwards.

    With no failures to survive, it is the time of Figure 1b, in proportion to the rates.

    Args:
        size_bytes: the object's size.
        rates: of each child, bytes per second; one with 0 takes nothing.
        failures: how many children may fail, fewer than those that have a rate.

    Raises:
        ValueError: impossible rates or failures.
    """
    return size_bytes / sum(_check_and_sort_rates(rates, failures)[failures:])


def least_overhead(children: int, failures: int) -> float:
    """Return the least bytes to store per byte of the object: those of equal shares."""
    return children / (children - failures)


def compute_bounded_fill(
    size_bytes: float, rates: Sequence[float], failures: int, overhead_at_most: float = inf
) -> list[float]:
    """Return how many bytes each child takes so that the last transfer ends as early as possible, see the module.

    Args:
        size_bytes: the object's size.
        rates: of each child, bytes per second; one with 0 takes nothing.
        failures: how many children may be lost, whichever they are.
        overhead_at_most: bytes stored per byte of the object. The bound costs time: no child may take more than
            D (overhead - 1) / f, and the others have to take the rest.

    Raises:
        ValueError: too few children with a rate, or less overhead than equal shares have.
    """
    ordered = _check_and_sort_rates(rates, failures)
    time_s = size_bytes / sum(ordered[failures:])
    most_bytes = ordered[failures] * time_s if failures else inf
    _check_overhead(sum(rate > 0 for rate in ordered), failures, overhead_at_most)
    if failures and (allowed_bytes := size_bytes * (overhead_at_most - 1) / failures) < most_bytes:
        time_s, most_bytes = _time_with_cap_s(size_bytes, ordered, failures, allowed_bytes), allowed_bytes
    return [min(rate * time_s, most_bytes) for rate in rates]


def _time_with_cap_s(size_bytes: float, ordered: Sequence[float], failures: int, most_bytes: float) -> float:
    """Return the time until the children other than the f fastest hold the object, none more than ``most_bytes``.

    The fastest children reach the bound first. With j of them at the bound, the others take what is left, in proportion
    to their rates. The j is right if the next child is not at its bound by then.
    """
    for capped in range(failures + 1, len(ordered)):  # the j of the docstring
        left_bytes, rate = size_bytes - (capped - failures) * most_bytes, sum(ordered[capped:])
        if rate and ordered[capped] * left_bytes <= most_bytes * rate:
            return max(left_bytes / rate, most_bytes / ordered[capped - 1])
    return most_bytes / min(rate for rate in ordered if rate)


def _check_and_sort_rates(rates: Sequence[float], failures: int) -> list[float]:
    if not all(isfinite(rate) and rate >= 0 for rate in rates):
        raise ValueError(f"rates must be bytes per second, 0 or more, not {list(rates)}")
    children = sum(rate > 0 for rate in rates)
    if not 0 <= failures < children:
        raise ValueError(f"any {failures} of {children} children cannot be lost: expected more children than that")
    return sorted(rates, reverse=True)


def _check_overhead(children: int, failures: int, overhead_at_most: float) -> None:
    if overhead_at_most < (minimum := least_overhead(children, failures)) * (1 - 1e-9):
        raise ValueError(
            f"{children} children of which any {failures} may fail store at least {minimum:.4g} bytes per byte, more "
            f"than {overhead_at_most:g}"
        )


# --- whole shares -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a split.

    Attributes:
        time_s: how long the slowest transfer takes.
        least_time_s: the least time of any split that survives as many failures.
        overhead: bytes stored per byte of the object.
        price: the price of the object, in the unit of the given prices.
        failures: how many children may be lost, whichever they are.
    """

    time_s: float
    least_time_s: float
    overhead: float
    price: float
    failures: int


def placement_cost(split: Split, size_bytes: int, rates: Sequence[float], prices: Sequence[float] = ()) -> Cost:
    """Return the costs of a split of an object.

    Args:
        split: who holds how many shares.
        size_bytes: the object's size.
        rates: of each child, bytes per second.
        prices: of each child, for a byte; none: free.
    """
    share_bytes = size_bytes / split.data
    held = sorted(split.counts)
    failures = max(lost for lost in range(len(held)) if sum(held[: len(held) - lost]) >= split.data)
    usable = sum(rate > 0 for rate in rates)
    return Cost(
        share_bytes * max(_transfer_time(count, rate) for count, rate in zip(split.counts, rates, strict=True)),
        least_placement_time_s(size_bytes, rates, failures) if failures < usable else inf,
        sum(split.counts) / split.data,
        share_bytes * sum(count * price for count, price in zip(split.counts, prices, strict=False)),
        failures,
    )


def throughput_split(
    rates: Sequence[float], failures: int, overhead_at_most: float = inf, most_shares: int = _MOST_SHARES
) -> Split:
    """Return the split with which transfers end most nearly together while any ``failures`` children may be lost.

    Of all codes with at most ``most_shares`` shares, it is the one with the fewest shares that comes within 3 % of the
    least time, or the quickest one if none does.

    Args:
        rates: of each child, bytes per second; one with 0 holds nothing.
        failures: see ``compute_bounded_fill``.
        overhead_at_most: see ``compute_bounded_fill``. The overhead of equal shares is always possible.
        most_shares: the most shares in all, at least as many as there are children.

    Raises:
        ValueError: see ``compute_bounded_fill``.
    """
    bound_s = max(_transfer_time(size, rate) for size, rate in zip(
        compute_bounded_fill(1.0, rates, failures, overhead_at_most), rates, strict=True))  # fmt: skip
    candidates: list[tuple[float, int, Split]] = []
    for data in range(1, most_shares + 1):
        most_each = (
            data if not failures or overhead_at_most == inf else int(data * (overhead_at_most - 1) / failures + 1e-9)
        )
        counts = _deal_shares(data, rates, failures, most_each)
        if counts is None or sum(counts) > most_shares or sum(counts) > overhead_at_most * data * (1 + 1e-9):
            continue
        time_s = max(_transfer_time(count, rate) for count, rate in zip(counts, rates, strict=True)) / data
        candidates.append((time_s, sum(counts), Split(data, counts)))
        if time_s <= bound_s * (1 + _NEAR_BOUND):
            return candidates[-1][2]
    return min(candidates, key=lambda candidate: candidate[:2])[2]


def _deal_shares(data: int, rates: Sequence[float], failures: int, most_each: int) -> tuple[int, ...] | None:
    """Return how many shares each child gets, at most ``most_each``, so that ``data`` are left after any failures.

    Shares are dealt in the order in which children would finish them, until enough would be left. Returns None if the
    children cannot take enough.
    """
    counts, children = [0] * len(rates), range(len(rates))
    while _left_after(counts, failures) < data:
        takers = [child for child in children if counts[child] < most_each and rates[child] > 0]
        if not takers:
            return None
        counts[min(takers, key=lambda child: ((counts[child] + 1) / rates[child], child))] += 1
    useful = sorted(counts, reverse=True)[failures]  # a child's shares beyond this are never of use
    return tuple(min(count, useful) for count in counts) if failures else tuple(counts)


def _left_after(counts: Sequence[int], failures: int) -> int:
    return sum(sorted(counts)[: len(counts) - failures])


def _transfer_time(amount: float, rate: float) -> float:
    return amount / rate if rate else (inf if amount else 0.0)


class Throughput:
    """The placement by observed rates. Safe for many threads.

    Until every child has been observed, shares are equal.

    Args:
        data: k of the equal shares; any n - k failures are always survived.
        rates: returns bytes per second of each child, None where nothing was observed.
        overhead_at_most: see ``compute_bounded_fill``.
        least_bytes: smaller segments are spread equally.
    """

    def __init__(
        self, data: int, children: int, rates: Callable[[], Sequence[float | None]],
        *, overhead_at_most: float = inf, least_bytes: int = _LEAST_BYTES,
    ) -> None:  # fmt: skip
        _check_overhead(children, children - data, overhead_at_most)
        self._equal, self._failures = Equal(data, children), children - data
        self._rates, self._overhead, self._least_bytes = rates, overhead_at_most, least_bytes
        self._latest: tuple[tuple[float, ...], Split] | None = None

    def split(self, size_bytes: int) -> Split:
        """Return the split of a segment among the children."""
        rates = [rate for rate in self._rates() if rate]
        if size_bytes < self._least_bytes or len(rates) < self._equal.children:
            return self._equal.split(size_bytes)
        scale = sum(rates)
        shares = tuple(rate / scale for rate in rates)  # only their ratios matter
        latest = self._latest
        if latest is None or self._is_resplit_worthwhile(latest, shares):
            most_shares = max(_MOST_SHARES, len(shares))
            latest = self._latest = (shares, throughput_split(shares, self._failures, self._overhead, most_shares))
        return latest[1]

    def suits(self, split: Split, size_bytes: int) -> bool:
        """Return whether a split survives as many failures, and takes at most a fifth longer than necessary."""
        rates = [rate for rate in self._rates() if rate]
        if size_bytes < self._least_bytes or len(rates) < self._equal.children:
            return self._equal.suits(split, size_bytes)
        if len(split.counts) != len(rates) or sum(split.counts) > self._overhead * split.data * (1 + 1e-9):
            return False
        cost = placement_cost(split, size_bytes, rates)
        best = compute_bounded_fill(size_bytes, rates, self._failures, self._overhead)
        best_s = max(_transfer_time(held, rate) for held, rate in zip(best, rates, strict=True))
        return cost.failures >= self._failures and cost.time_s <= best_s * (1 + _MOVE_GAIN)

    def _is_resplit_worthwhile(self, latest: tuple[tuple[float, ...], Split], shares: Sequence[float]) -> bool:
        """Return whether another split could be noticeably quicker."""
        old_shares, split = latest
        if max(abs(now - before) / before for now, before in zip(shares, old_shares, strict=True)) < _RESPLIT_GAIN / 3:
            return False
        best = compute_bounded_fill(1.0, shares, self._failures, self._overhead)
        best_s = max(_transfer_time(held, rate) for held, rate in zip(best, shares, strict=True))
        return placement_cost(split, 1, shares).time_s > best_s * (1 + _NEAR_BOUND + _RESPLIT_GAIN)
