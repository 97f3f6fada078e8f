"""Decide which of several providers is best at one metric, if the difference is more than noise.

The rule is conservative: operations of one run are not independent, so a run is cut into a few consecutive groups, and
each counts as one value. docs/method/versus.md states the rule. Its numbers are those of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from math import inf, log, sqrt
from statistics import fmean, variance
from typing import Literal, TypeVar

from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.noise import clip_points, share_of_log
from pytest_cloudbench.judge.records import OUTCOMES, OpTable
from pytest_cloudbench.judge.significance import kruskal_wallis, t_isf
from pytest_cloudbench.judge.stats import percentile, rows_in_order
from pytest_cloudbench.model import Outcome

_T = TypeVar("_T")

_MIN_VALUES, _MAX_VALUES = 5, 10
"""Values per provider. Fewer than five cannot differ significantly at 1 %, and more groups are less independent."""

_PER_GROUP = 5
FEWEST_OPS = _MIN_VALUES * _PER_GROUP
"""The fewest operations of a run that has a spread."""

_ALPHA = 0.01
"""Probability of such a difference by chance, shared among all comparisons with the best."""

_FACTOR, _FACTOR_OF_RUNS, _FACTOR_BUSY = 1.25, 1.1, 2.0
"""The smallest ratio that counts as a difference: for one run each, five or more runs each, or on a busy machine."""

_POINT = 0.01
"""The smallest difference that counts between fractions: one percentage point."""

_MOMENT_S = 0.001
"""The smallest difference that counts between times, because of the threads and timers of one machine."""

_SORTED_OPS = 100_000
"""The most operations of a run that are sorted again just to compute a spread."""

_COUNTED: Mapping[str, frozenset[Outcome]] = {
    "ok_rate": frozenset({Outcome.OK}),
    "loss_rate": frozenset(Outcome) - {Outcome.OK},
    "throttled_rate": frozenset({Outcome.THROTTLED}),
    "failed_rate": frozenset({Outcome.FAILED}),
    "corrupt_rate": frozenset({Outcome.CORRUPT}),
}
"""Metrics that are shares of operations, with the outcomes that they count."""


def group_values(values: Sequence[float], reduce: Callable[[Sequence[float]], _T]) -> list[_T]:
    """Reduce each of at most ten consecutive groups of values. Empty for fewer than 25 values."""
    count = min(_MAX_VALUES, len(values) // _PER_GROUP)
    if count < _MIN_VALUES:
        return []
    ends = [len(values) * index // count for index in range(count + 1)]
    return [reduce(values[begin:end]) for begin, end in pairwise(ends)]


def spread_of(table: OpTable, response_s: Sequence[float]) -> dict[str, list[float]]:
    """Return the values of each metric with a spread in consecutive groups of the run's operations.

    Args:
        table: all records, their outcomes corrected by the provider's listing.
        response_s: response times of operations that succeeded, in the order they were due.
    """

    def take_percentiles(group: Sequence[float]) -> tuple[float, float]:
        ordered = sorted(group)
        return percentile(ordered, 0.5), percentile(ordered, 0.99)

    percentiles = group_values(response_s, take_percentiles)
    spreads = {"response_p50": [p50 for p50, _ in percentiles], "response_p99": [p99 for _, p99 in percentiles]}
    if len(table) <= _SORTED_OPS:
        spreads |= _spreads_in_order(table)
    return {name: values for name, values in spreads.items() if values}


def _spreads_in_order(table: OpTable) -> dict[str, list[float]]:
    """Return the spreads of metrics that need the records in order."""
    spreads = dict[str, list[float]]()
    outcomes, ok = table.codes("outcome"), OUTCOMES.index(Outcome.OK)
    due_outcomes = list(outcomes)
    if any(code != ok for code in outcomes):
        due_outcomes = [outcomes[row] for row in rows_in_order(table.column("scheduled_ns"))]
    for name, counted in _COUNTED.items():
        spreads[name] = group_values([float(OUTCOMES[code] in counted) for code in due_outcomes], fmean)
    spreads["first_byte_p50"] = group_values(_first_byte_s(table), lambda group: percentile(sorted(group), 0.5))
    spreads["throughput"] = _rates(table, bytearray(code == ok for code in outcomes))
    return spreads


def _first_byte_s(table: OpTable) -> list[float]:
    """Return the known seconds to the first byte of operations that succeeded, in the order they were due."""
    first_ns, start_ns, outcomes = table.column("first_byte_ns"), table.column("start_ns"), table.codes("outcome")
    if not any(first_ns):
        return []
    ok = OUTCOMES.index(Outcome.OK)
    rows = rows_in_order(table.column("scheduled_ns"))
    return [(first_ns[row] - start_ns[row]) / 1e9 for row in rows if first_ns[row] and outcomes[row] == ok]


def _rates(table: OpTable, is_ok: bytearray) -> list[float]:
    """Return the bytes per second of consecutive groups of operations, in the order of their ends."""
    if not table:
        return []
    sizes, ends = table.column("size_bytes"), table.column("end_ns")
    finished = sorted(zip(compress(ends, is_ok), compress(sizes, is_ok), strict=True))
    count = min(_MAX_VALUES, len(finished) // _PER_GROUP)
    if count < _MIN_VALUES:
        return []
    rates, group_start_ns = [], min(table.column("scheduled_ns"))
    for index in range(count):
        group = finished[len(finished) * index // count : len(finished) * (index + 1) // count]
        duration_ns, group_start_ns = group[-1][0] - group_start_ns, group[-1][0]
        if duration_ns <= 0:
            return []
        rates.append(sum(size for _, size in group) / duration_ns * 1e9)
    return rates


@dataclass(frozen=True, slots=True)
class Candidate:
    """The values of one provider for one metric.

    Attributes:
        value: the metric. None if unknown.
        samples: one value per run if there are five or more, or per group of one run, or per round of a conclusion.
        is_of_runs: whether the samples are from different runs.
        is_busy: whether the machine was busy during the measurement.
        margin: smaller differences may come from the load generator.
        exclusion: why the provider is not compared, or an empty text.
    """

    value: float | None
    samples: Sequence[float] = ()
    is_of_runs: bool = False
    is_busy: bool = False
    margin: float = 0.0
    exclusion: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best providers at one metric.

    Attributes:
        verdict: ``best`` (one leader), ``among the best`` (several leaders, and others that are worse), ``close``
            (none is far enough from the best) or ``not judged``.
        leaders: the best provider, then those that are not measurably worse.
        why: why it is not judged, or what is known about close providers.
    """

    verdict: Literal["best", "among the best", "close", "not judged"]
    leaders: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Distance:
    """The difference between two providers at a metric, with its 95 % interval.

    It is in percentage points for a fraction, and otherwise a share of the other provider's value (0.1: a tenth more).
    """

    value: float
    low: float
    high: float
    is_points: bool


def distance(metric: str, one: Candidate, other: Candidate) -> Distance | None:
    """Return how far ``one`` is from ``other``. None if either has too few samples, or the other's value is zero.

    By Welch's t over the samples, or over their logarithms if the metric is not a fraction. Samples of one run show the
    precision of the difference within that run, not how it varies between days.
    """
    samples = [list(candidate.samples) for candidate in (one, other)]
    if one.exclusion or other.exclusion or any(len(values) < _MIN_VALUES for values in samples):
        return None
    is_points = METRICS[metric].unit == "fraction"
    if not is_points:
        if any(value <= 0 for values in samples for value in values):
            return None
        samples = [[log(value) for value in values] for values in samples]
    errors = [variance(values) / len(values) for values in samples]
    centre = fmean(samples[0]) - fmean(samples[1])
    if not sum(errors):
        half = 0.0
    else:
        parts = sum(error**2 / (len(values) - 1) for error, values in zip(errors, samples, strict=True))
        half = t_isf(0.025, max(1, int(sum(errors) ** 2 / parts))) * sqrt(sum(errors))
    limits = (centre, centre - half, centre + half)
    value, low, high = (clip_points(limit) if is_points else share_of_log(limit) for limit in limits)
    return Distance(value, low, high, is_points)


def rank(metric: str, candidates: Mapping[str, Candidate]) -> Ranking:
    """Return which provider is best at a metric. If any has too few samples, none is best, since it may be better."""
    if metric not in METRICS:
        return Ranking("not judged", why="no direction is better")
    compared = {
        name: candidate
        for name, candidate in candidates.items()
        if not candidate.exclusion and candidate.value is not None
    }
    if len(compared) < 2:
        exclusions = sorted({candidate.exclusion for candidate in candidates.values() if candidate.exclusion})
        return Ranking("not judged", why=exclusions[0] if exclusions else "only one value is known")
    if any(len(candidate.samples) < _MIN_VALUES for candidate in compared.values()):
        return Ranking("not judged", why="too few repeats")
    sign = 1 if METRICS[metric].better == "lower" else -1
    order = sorted(compared, key=lambda name: sign * (compared[name].value or 0.0))
    best = compared[order[0]]
    alpha = _ALPHA / (len(order) - 1)
    leaders = [name for name in order[1:] if not _is_better(metric, best, compared[name], sign, alpha)]
    if len(leaders) == len(order) - 1:
        return Ranking("close", tuple(order), _explain_closeness(metric, best, [compared[name] for name in order[1:]]))
    return Ranking("among the best" if leaders else "best", (order[0], *leaders))


def _is_better(metric: str, best: Candidate, other: Candidate, sign: int, alpha: float) -> bool:
    """Return whether a difference is both large enough to matter and too large for chance."""
    if _bound_above(metric, best, other) or sign * (fmean(other.samples) - fmean(best.samples)) <= 0:
        return False
    return kruskal_wallis([best.samples, other.samples]).p_value <= alpha


def _bound_above(metric: str, best: Candidate, other: Candidate) -> str:
    """Return in words the bound that a difference is below. Empty for one that is large enough to matter."""
    values = sorted((best.value or 0.0, other.value or 0.0))
    difference = values[1] - values[0]
    if METRICS[metric].unit == "fraction":
        return "" if difference >= _POINT else f"{100 * _POINT:g} point"
    factor = _FACTOR_OF_RUNS if best.is_of_runs and other.is_of_runs else _FACTOR
    if METRICS[metric].time_like and (best.is_busy or other.is_busy):
        factor = _FACTOR_BUSY
    margin = max(best.margin, other.margin, _MOMENT_S if METRICS[metric].unit == "s" else 0.0)
    ratio = values[1] / values[0] if values[0] > 0 else inf
    if ratio < factor:
        return f"{factor - 1:.0%}".replace("%", " %")
    return "" if difference > margin else f"{1000 * margin:.3g} ms, which this machine adds"


def _explain_closeness(metric: str, best: Candidate, others: Sequence[Candidate]) -> str:
    """Return what is known of providers close to the best, by the same intervals as the report shows.

    Args:
        metric: the metric in which they are close.
        best: the best provider.
        others: all others, the farthest last.
    """
    ranges = [(other, distance(metric, other, best)) for other in others]
    different = [
        other for other, interval in ranges if interval is not None and (interval.low > 0 or interval.high < 0)
    ]
    if not different:
        return "no difference found"
    bounds = [_bound_above(metric, best, other) for other in different]
    return f"differs by less than {bounds[-1]}" if all(bounds) else "differs, but not certain enough to mark"
