"""Numbers of an array: the costs of its operations, its stored bytes, and a placement's distance from its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_cloudbench import (
    KIB,
    EqualPlacement,
    Provider,
    RaidCosts,
    RaidObserver,
    Split,
    Threads,
    ThroughputPlacement,
    binomial_sf,
    least_placement_time_s,
    placement_cost,
)

if TYPE_CHECKING:
    from pytest_cloudbench import Experiment, Payloads, Placement, RaidDriver, Result

PHASES = ("seal", "code", "hash", "metadata", "transfer")
PLACED_BYTES = 10_000_000
"""The object size for Table II's rates: that of the rows in use."""

LEARNING_BYTES = 512 * KIB
LEARNING, MEASURED = 2, {"quick": 3, "paper": 10}


def times_of(up: Result, down: Result) -> tuple[float, float]:
    """Median times of successful operations; 0 if none succeeded."""
    return median(up.ok_s or [0.0]), median(down.ok_s or [0.0])


def child_of(provider: Provider, array: RaidDriver, number: int) -> Provider:
    """One child of an array as a provider by itself."""
    member = array.array.file.children[number]
    # Without a profile it would count as permanent; but the array's own services are removed with the run.
    return Provider(member.spec, array.array.children.drivers[number], None if provider.is_kept else "its array's")


def delta(before: Mapping[str, RaidCosts], after: Mapping[str, RaidCosts]) -> dict[str, RaidCosts]:
    """The costs in between, by verb."""
    found = {}
    for verb, costs in after.items():
        known = before.get(verb, RaidCosts())
        found[verb] = RaidCosts(
            **{each.name: getattr(costs, each.name) - getattr(known, each.name) for each in fields(RaidCosts)}
        )
    return found


def phases(spent: Mapping[str, RaidCosts]) -> dict[str, Any]:
    """Where the time goes: seconds of each phase per operation, by direction."""
    return {
        f"{verb}_phases_s": {name: getattr(costs, f"{name}_ns") / 1e9 / costs.operations for name in PHASES}
        for verb, costs in spent.items()
        if verb in ("put", "get") and costs.operations
    }


def stored_bytes(array: RaidDriver) -> dict[str, Any]:
    """The bytes that children hold per byte of content, as they list them."""
    from pytest_cloudbench import survey_array

    array.settle(30.0)
    found = survey_array(array.array)
    held = sum(child.held_bytes for child in found.children)
    return {
        "stored_bytes": held, "content_bytes": found.content_bytes,
        "overhead": held / found.content_bytes if found.content_bytes else None,
    }  # fmt: skip


# --- losses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slower:
    """How many times as long reads take with children lost as without.

    Attributes:
        lost: how many are lost.
        ratio: median of what each turn showed.
        low: with ``high``, bounds of that median, right in 95 of 100 cases; infinite if there are too few turns.
        high: see ``low``.
    """

    lost: int
    ratio: float
    low: float
    high: float


def slower_of(turns: Sequence[Sequence[Sequence[float]]]) -> list[Slower]:
    """Returns what is known for each number of lost children, from one on.

    ``turns`` has, by turn and by number of lost children, the times of reads. The ratio is taken within each turn,
    whose reads follow one another closely: a machine that is slower for a while is so for both.
    """
    found = []
    for lost, _ in enumerate(turns[0][1:], 1):
        ratios = [median(turn[lost]) / median(turn[0]) for turn in turns if turn[lost] and turn[0]]
        if ratios:
            found.append(Slower(lost, median(ratios), *median_interval(ratios)))
    return found


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns bounds of the median in 95 of 100 cases, whatever the distribution: two of the values, by their rank.

    Fewer than six values give no bounds.
    """
    ordered, count = sorted(values), len(values)
    rank = next(rank for rank in range(count // 2 + 1) if 2 * binomial_sf(count - rank, count, 0.5) > 0.05)
    return (ordered[rank - 1], ordered[-rank]) if rank else (-inf, inf)


def judged_slower(found: Sequence[Slower], at_most: float) -> tuple[float | None, list[str]]:
    """Returns the largest ratio, if all that is known lies on one side of the bound; otherwise None, and a note why."""
    if not found:
        return None, []
    worst = max(found, key=lambda each: each.ratio)
    if all(each.high <= at_most for each in found) or any(each.low > at_most for each in found):
        return worst.ratio, []
    unclear = max(found, key=lambda each: each.high)
    return None, [
        f"too noisy to tell: with {unclear.lost} lost, reads took {unclear.low:.3g} to {unclear.high:.3g} times as "
        f"long, and at most {at_most:g} is wanted; more --cloudraid-objects narrow that down"
    ]


# --- placement ----------------------------------------------------------------------------------------


def placement_of(experiment: Experiment, payloads: Payloads, array: RaidDriver, grid: str) -> dict[str, Any]:
    """Upload with equal shares, then by throughput until the rates are learned, then measure."""
    before = array.array
    k, children = before.file.k, len(before.children)
    try:
        small = _times_s(_uploaded(experiment, payloads, array, EqualPlacement(k, children), LEARNING_BYTES, 1))
        known = [rate or 0.0 for rate in _observer(array).write_rates()]
        equal_bound_s = placement_cost(Split(k, (1,) * children), LEARNING_BYTES, _nominal(array, known)).time_s
        placement = ThroughputPlacement(
            k, children, _observer(array).write_rates, overhead_at_most=before.file.overhead_at_most
        )
        _uploaded(experiment, payloads, array, placement, PLACED_BYTES, LEARNING)
        measured = _uploaded(experiment, payloads, array, placement, PLACED_BYTES, MEASURED[grid])
        split = placement.split(PLACED_BYTES)
    finally:
        array.array = before
    rates = [rate or 0.0 for rate in _observer(array).write_rates()]
    nominal = _nominal(array, rates)
    least_s, rounds_s = least_placement_time_s(PLACED_BYTES, nominal, children - k), _times_s(measured)
    throughput_s = median(rounds_s)
    return {
        "throughput_s": throughput_s, "least_s": least_s, "over_the_bound": throughput_s / least_s - 1,
        "equal_s": median(small), "equal_least_s": equal_bound_s, "equal_bytes": LEARNING_BYTES,
        "overhead": sum(split.counts) / split.data, "counts": f"{split.data} of {'+'.join(map(str, split.counts))}",
        "rates_bytes_per_s": rates, "nominal_bytes_per_s": nominal, "failures": children - k, "rounds_s": rounds_s,
        "object_bytes": PLACED_BYTES,
        "is_busy": any(note.startswith("this machine was busy") for note in measured.notes),
    }  # fmt: skip


def _observer(array: RaidDriver) -> RaidObserver:
    observer = array.array.children.rates
    assert isinstance(observer, RaidObserver)
    return observer


def _nominal(array: RaidDriver, observed: Sequence[float]) -> list[float]:
    """The true rates: of emulated children by their profiles, of others as observed."""
    from pytest_cloudbench import ProviderSpec, find_profile

    found = []
    for member, rate in zip(array.array.file.children, observed, strict=True):
        spec = ProviderSpec.parse(member.spec)
        profile = find_profile(spec.target) if spec.is_emulated and "profile" not in spec.params else None
        found.append(profile.bandwidth.up_bytes_per_s if profile and profile.bandwidth.up_bytes_per_s else rate)
    return found


def _uploaded(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, placement: Placement, size_bytes: int, count: int
) -> Result:
    array.array = replace(array.array, placement=placement)
    return experiment.run(
        payloads.random(size_bytes), arrival=Threads(1), files=count, store=False, detail=True, verify=False
    )  # fmt: skip


def _times_s(result: Result) -> list[float]:
    return list(result.ok_s) or [0.0]


def judged_over(over: float, at_most: float, *, is_busy: bool) -> tuple[float | None, list[str]]:
    """Returns by how much the least time was exceeded; None if only a busy machine may have done so, and a note why.

    The bound is the least time: what disturbs only adds to it. So what is below ``at_most`` is certain.
    """
    if over > at_most and is_busy:
        return None, [f"too busy to tell: {over:.1%} over the bound, and at most {at_most:.0%} is wanted"]
    return over, []
