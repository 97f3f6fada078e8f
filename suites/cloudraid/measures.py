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


def median_time_s(result: Result) -> float | None:
    """Return the median time of the operations that succeeded, or None if none did."""
    return median(result.ok_s) if result.ok_s else None


def list_durations(result: Result, name: str) -> tuple[list[float], str]:
    """Return durations for an entry's statistics, and what they are of: operations, or the run if none succeeded."""
    if result.ok_s:
        return result.ok_s, f"time of {name}"
    return [result["elapsed"] or 0.0], "elapsed time: no operation succeeded"


def note_failures(runs: Mapping[str, Result]) -> list[str]:
    """Return a note for each run, by name, of which no operation succeeded, so that its time is not known."""
    return [
        f"{name}: not known, since all {run['ops']} operations failed" for name, run in runs.items() if not run.ok_s
    ]


def doubt_missing_objects(up: Result) -> list[str]:
    """Return a doubt if not all objects were uploaded: reads of the others fail, whatever happens to children."""
    missing = up["ops"] - up["ok"]
    return [f"{missing} of {up['ops']} objects could not be uploaded, so they could not be read"] if missing else []


def compare_with_children(together: Result, alone: Mapping[str, Result]) -> dict[str, Any]:
    """Return the time of an array beside those of its children by name. None is unknown: no operation succeeded."""
    array_s, size_bytes = median_time_s(together), together.info["size_bytes"]
    children_s = {name: median_time_s(result) for name, result in alone.items()}
    known_s = [(taken_s, name) for name, taken_s in children_s.items() if taken_s is not None]
    best_s, best = min(known_s, default=(None, None))
    return {
        "array_s": array_s, "best_s": best_s, "best_child": best, "children_s": children_s,
        "times_the_best": array_s / best_s if array_s is not None and best_s else None,
        "mb_per_s": size_bytes / 1e6 / array_s if array_s else None,
    }  # fmt: skip


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
    """Measure the bytes that children hold for each byte of content, according to their own listings.

    They are unknown, None, if a child does not answer or lacks packages, which would pass for an array that needs less.
    """
    from pytest_cloudbench import survey_array

    has_settled = array.settle(30.0)
    survey = survey_array(array.array)
    held_bytes, content_bytes = None, survey.content_bytes
    if has_settled and survey.is_healthy:
        held_bytes = sum(child.held_bytes for child in survey.children)
    return {
        "stored_bytes": held_bytes, "content_bytes": content_bytes,
        "stored_per_byte": None if held_bytes is None or not content_bytes else held_bytes / content_bytes,
    }  # fmt: skip


def note_stored_bytes(costs: Mapping[str, Any]) -> list[str]:
    """Return a note if the stored bytes are not known."""
    if costs["stored_bytes"] is not None:
        return []
    return ["bytes stored: not known, since not every child answers and has all that it should have"]


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
        equal = _upload_objects(experiment, payloads, array, EqualPlacement(k, children), LEARNING_BYTES, 1)
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
    return {
        **compare_with_bound(result, least_time_s(nominal, children - k)),
        "equal_s": median_time_s(equal), "equal_least_s": equal_bound_s, "equal_bytes": LEARNING_BYTES,
        "stored_per_byte": sum(split.counts) / split.data,
        "counts": f"{split.data} of {'+'.join(map(str, split.counts))}",
        "rates_bytes_per_s": rates, "nominal_bytes_per_s": nominal, "failures": children - k,
        "object_bytes": PLACED_BYTES, "durations": list_durations(result, "an upload by throughput"),
        "is_busy": any(note.startswith("this machine was busy") for note in result.notes),
    }  # fmt: skip


def least_time_s(rates: Sequence[float], failures: int) -> float | None:
    """Return the least time of an upload in which so many children may fail. None if too few have a known rate."""
    is_known = sum(rate > 0 for rate in rates) > failures
    return least_placement_time_s(PLACED_BYTES, rates, failures) if is_known else None


def compare_with_bound(result: Result, least_s: float | None) -> dict[str, Any]:
    """Return the times of uploads beside the least time. The excess is unknown, None, unless all uploads succeeded."""
    throughput_s = median_time_s(result)
    has_all = result["ok"] == result["ops"]
    return {
        "throughput_s": throughput_s, "least_s": least_s, "rounds_s": result.ok_s,
        "over_the_bound": throughput_s / least_s - 1 if has_all and throughput_s and least_s else None,
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


def judge_excess(excess: float | None, at_most: float, *, is_busy: bool) -> tuple[float | None, list[str]]:
    """Return the share by which the least time was exceeded, or None and a note if it cannot be judged.

    Any disturbance adds to the least time, so a share below ``at_most`` is certain even on a busy machine.
    """
    if excess is None:
        return None, ["the time over the bound is not known, since not all uploads succeeded"]
    if excess > at_most and is_busy:
        return None, [f"too busy to tell: {excess:.1%} over the bound, and at most {at_most:.0%} is wanted"]
    return excess, []
