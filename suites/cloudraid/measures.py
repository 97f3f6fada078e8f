"""Measures of an array: costs of operations, stored bytes, and the excess of a placement over its bound."""

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
"""The object size of the rows of Table II from which the rates are taken."""

LEARNING_BYTES = 512 * KIB
LEARNING, MEASURED = 2, {"quick": 3, "paper": 10}


def median_times(up: Result, down: Result) -> tuple[float, float]:
    """Return the median times of successful operations, or 0 if none succeeded."""
    return median(up.ok_s or [0.0]), median(down.ok_s or [0.0])


def open_child(provider: Provider, array: RaidDriver, number: int) -> Provider:
    """Return one child of an array as a provider of its own."""
    member = array.array.file.children[number]
    # Without a profile the child would count as permanent, but services of the array are removed with the run.
    return Provider(member.spec, array.array.children.drivers[number], None if provider.is_kept else "its array's")


def subtract_costs(before: Mapping[str, RaidCosts], after: Mapping[str, RaidCosts]) -> dict[str, RaidCosts]:
    """Return the costs between two totals, by verb."""
    spent = {}
    for verb, costs in after.items():
        earlier = before.get(verb, RaidCosts())
        spent[verb] = RaidCosts(
            **{field.name: getattr(costs, field.name) - getattr(earlier, field.name) for field in fields(RaidCosts)}
        )
    return spent


def phases_per_operation(spent: Mapping[str, RaidCosts]) -> dict[str, Any]:
    """Return the seconds of each phase per operation, for uploads and downloads."""
    return {
        f"{verb}_phases_s": {name: getattr(costs, f"{name}_ns") / 1e9 / costs.operations for name in PHASES}
        for verb, costs in spent.items()
        if verb in ("put", "get") and costs.operations
    }


def measure_stored_bytes(array: RaidDriver) -> dict[str, Any]:
    """Measure the bytes that children hold for each byte of content, according to their own listings."""
    from pytest_cloudbench import survey_array

    array.settle(30.0)
    survey = survey_array(array.array)
    held_bytes = sum(child.held_bytes for child in survey.children)
    return {
        "stored_bytes": held_bytes, "content_bytes": survey.content_bytes,
        "overhead": held_bytes / survey.content_bytes if survey.content_bytes else None,
    }  # fmt: skip


# --- losses -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The slowdown of reads when children are lost.

    Attributes:
        lost: the number of lost children.
        ratio: the time with losses over that without, the median of all turns.
        low: the lower end of the 95 % confidence interval of that median, infinite if there are too few turns.
        high: the upper end of that interval.
    """

    lost: int
    ratio: float
    low: float
    high: float


def compare_losses(turns: Sequence[Sequence[Sequence[float]]]) -> list[Slowdown]:
    """Compare reads with each number of lost children with reads without losses.

    ``turns`` holds the times of reads, by turn and by number of lost children. The ratio is taken within each turn,
    whose reads follow one another closely, so that a machine that is slower for a while slows both sides.
    """
    slowdowns = []
    for lost, _ in enumerate(turns[0][1:], 1):
        ratios = [median(turn[lost]) / median(turn[0]) for turn in turns if turn[lost] and turn[0]]
        if ratios:
            slowdowns.append(Slowdown(lost, median(ratios), *median_interval(ratios)))
    return slowdowns


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median, for any distribution: two of the values, chosen by rank.

    With fewer than six values the interval is infinite.
    """
    ordered, count = sorted(values), len(values)
    rank = next(rank for rank in range(count // 2 + 1) if 2 * binomial_sf(count - rank, count, 0.5) > 0.05)
    return (ordered[rank - 1], ordered[-rank]) if rank else (-inf, inf)


def judge_slowdown(slowdowns: Sequence[Slowdown], at_most: float) -> tuple[float | None, list[str]]:
    """Return the largest ratio if its intervals decide about the bound, and otherwise None and a note that says why."""
    if not slowdowns:
        return None, []
    worst = max(slowdowns, key=lambda slowdown: slowdown.ratio)
    if all(slowdown.high <= at_most for slowdown in slowdowns) or any(slowdown.low > at_most for slowdown in slowdowns):
        return worst.ratio, []
    unclear = max(slowdowns, key=lambda slowdown: slowdown.high)
    return None, [
        f"too noisy to tell: with {unclear.lost} lost, reads took {unclear.low:.3g} to {unclear.high:.3g} times as "
        f"long, and at most {at_most:g} is wanted; more --cloudraid-objects narrow that down"
    ]


# --- placement ----------------------------------------------------------------------------------------


def measure_placement(experiment: Experiment, payloads: Payloads, array: RaidDriver, grid: str) -> dict[str, Any]:
    """Measure uploads with equal shares, and uploads by throughput once the rates are learned."""
    original = array.array
    k, children = original.file.k, len(original.children)
    try:
        equal_times_s = _times_s(
            _upload_objects(experiment, payloads, array, EqualPlacement(k, children), LEARNING_BYTES, 1)
        )
        learned_rates = [rate or 0.0 for rate in _find_observer(array).write_rates()]
        equal_bound_s = placement_cost(
            Split(k, (1,) * children), LEARNING_BYTES, _nominal_rates(array, learned_rates)
        ).time_s
        placement = ThroughputPlacement(
            k, children, _find_observer(array).write_rates, overhead_at_most=original.file.overhead_at_most
        )
        _upload_objects(experiment, payloads, array, placement, PLACED_BYTES, LEARNING)
        result = _upload_objects(experiment, payloads, array, placement, PLACED_BYTES, MEASURED[grid])
        split = placement.split(PLACED_BYTES)
    finally:
        array.array = original
    rates = [rate or 0.0 for rate in _find_observer(array).write_rates()]
    nominal = _nominal_rates(array, rates)
    least_s, rounds_s = least_placement_time_s(PLACED_BYTES, nominal, children - k), _times_s(result)
    throughput_s = median(rounds_s)
    return {
        "throughput_s": throughput_s, "least_s": least_s, "over_the_bound": throughput_s / least_s - 1,
        "equal_s": median(equal_times_s), "equal_least_s": equal_bound_s, "equal_bytes": LEARNING_BYTES,
        "overhead": sum(split.counts) / split.data, "counts": f"{split.data} of {'+'.join(map(str, split.counts))}",
        "rates_bytes_per_s": rates, "nominal_bytes_per_s": nominal, "failures": children - k, "rounds_s": rounds_s,
        "object_bytes": PLACED_BYTES,
        "is_busy": any(note.startswith("this machine was busy") for note in result.notes),
    }  # fmt: skip


def _find_observer(array: RaidDriver) -> RaidObserver:
    observer = array.array.children.rates
    assert isinstance(observer, RaidObserver)
    return observer


def _nominal_rates(array: RaidDriver, observed: Sequence[float]) -> list[float]:
    """Return the true rates, which are those of the profile for emulated children and the observed ones for others."""
    from pytest_cloudbench import ProviderSpec, find_profile

    rates = []
    for member, rate in zip(array.array.file.children, observed, strict=True):
        spec = ProviderSpec.parse(member.spec)
        profile = find_profile(spec.target) if spec.is_emulated and "profile" not in spec.params else None
        rates.append(profile.bandwidth.up_bytes_per_s if profile and profile.bandwidth.up_bytes_per_s else rate)
    return rates


def _upload_objects(
    experiment: Experiment, payloads: Payloads, array: RaidDriver, placement: Placement, size_bytes: int, count: int
) -> Result:
    array.array = replace(array.array, placement=placement)
    return experiment.run(
        payloads.random(size_bytes), arrival=Threads(1), files=count, store=False, detail=True, verify=False
    )  # fmt: skip


def _times_s(result: Result) -> list[float]:
    return list(result.ok_s) or [0.0]


def judge_excess(excess: float, at_most: float, *, is_busy: bool) -> tuple[float | None, list[str]]:
    """Return the share by which the least time was exceeded, or None and a note if the machine was too busy to judge.

    Any disturbance adds to the least time, so a share below ``at_most`` is certain even on a busy machine.
    """
    if excess > at_most and is_busy:
        return None, [f"too busy to tell: {excess:.1%} over the bound, and at most {at_most:.0%} is wanted"]
    return excess, []
