"""Which of several providers is best at one metric, if the difference is more than noise.

What may live here: how a run's own spread is told from its records, and the rule. Pure functions, and conservative:
operations of one run are not independent, so a run is cut into a few consecutive groups, and each counts as one value.
docs/method/versus.md states the rule; the numbers in it are those of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from math import expm1, inf, log, sqrt
from statistics import fmean, variance
from typing import Literal

from pytest_cloudbench.judge.metrics import METRICS
from pytest_cloudbench.judge.records import OUTCOMES, OpTable
from pytest_cloudbench.judge.significance import kruskal_wallis, t_isf
from pytest_cloudbench.judge.stats import percentile, rows_in_order
from pytest_cloudbench.model import Outcome

_LEAST, _MOST = 5, 10
"""Values per provider: fewer than five cannot be told apart at 1 %; more groups are less independent."""

_PER_GROUP = 5
FEWEST_OPS = _LEAST * _PER_GROUP
"""Operations that a run needs so that its spread says anything."""

_ALPHA = 0.01
"""Probability of such a difference by chance, shared among all comparisons with the best."""

_FACTOR, _FACTOR_OF_RUNS, _FACTOR_BUSY = 1.25, 1.1, 2.0
"""Values closer than this are not told apart: one run each, five or more runs each, or a machine that was busy."""

_POINT = 0.01
"""The same for fractions: one percentage point."""

_MOMENT_S = 0.001
"""The same for times: what threads and timers of one machine do."""

_SORTED_OPS = 100_000
"""For runs of more operations, no spread is computed where that would take another sort."""

_COUNTED: Mapping[str, frozenset[Outcome]] = {
    "ok_rate": frozenset({Outcome.OK}),
    "loss_rate": frozenset(Outcome) - {Outcome.OK},
    "throttled_rate": frozenset({Outcome.THROTTLED}),
    "failed_rate": frozenset({Outcome.FAILED}),
    "corrupt_rate": frozenset({Outcome.CORRUPT}),
}
"""Metrics that are shares of operations, and what they count."""


def grouped(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> list[float]:
    """Return one number for each of at most ten consecutive groups of values; nothing for fewer than 25 values."""
    count = min(_MOST, len(values) // _PER_GROUP)
    if count < _LEAST:
        return []
    ends = [len(values) * place // count for place in range(count + 1)]
    return [of(values[begin:end]) for begin, end in pairwise(ends)]


def spread_of(table: OpTable, response_s: Sequence[float]) -> dict[str, list[float]]:
    """Return the values of a run's consecutive groups for each metric that has a spread.

    Args:
        table: all records, their outcomes corrected by the provider's listing.
        response_s: response times of operations that succeeded, in the order they were due.
    """

    def at(share: float) -> list[float]:
        return grouped(response_s, lambda some: percentile(sorted(some), share))

    found = {"response_p50": at(0.5), "response_p99": at(0.99)}
    outcomes, ok = table.codes("outcome"), OUTCOMES.index(Outcome.OK)
    if len(table) <= _SORTED_OPS and any(code != ok for code in outcomes):
        due = [outcomes[row] for row in rows_in_order(table.column("scheduled_ns"))]
    else:
        due = list(outcomes) if len(table) <= _SORTED_OPS else []
    for name, counted in _COUNTED.items():
        found[name] = grouped([float(OUTCOMES[code] in counted) for code in due], fmean)
    found["first_byte_p50"] = grouped(_first_byte_s(table), lambda some: percentile(sorted(some), 0.5))
    found["throughput"] = _rates(table, bytearray(code == ok for code in outcomes))
    return {name: values for name, values in found.items() if values}


def _first_byte_s(table: OpTable) -> list[float]:
    """Seconds to the first byte of operations that succeeded, in the order they were due, where it is known."""
    first_ns, start_ns, outcomes = table.column("first_byte_ns"), table.column("start_ns"), table.codes("outcome")
    if len(table) > _SORTED_OPS or not any(first_ns):
        return []
    ok = OUTCOMES.index(Outcome.OK)
    rows = rows_in_order(table.column("scheduled_ns"))
    return [(first_ns[row] - start_ns[row]) / 1e9 for row in rows if first_ns[row] and outcomes[row] == ok]


def _rates(table: OpTable, is_ok: bytearray) -> list[float]:
    """Bytes per second of consecutive groups of operations, by their ends."""
    if not 0 < len(table) <= _SORTED_OPS:
        return []
    sizes, ends = table.column("size_bytes"), table.column("end_ns")
    done = sorted(zip(compress(ends, is_ok), compress(sizes, is_ok), strict=True))
    count = min(_MOST, len(done) // _PER_GROUP)
    if count < _LEAST:
        return []
    rates, last_ns = [], min(table.column("scheduled_ns"))
    for place in range(count):
        some = done[len(done) * place // count : len(done) * (place + 1) // count]
        lasted_ns, last_ns = some[-1][0] - last_ns, some[-1][0]
        if lasted_ns <= 0:
            return []
        rates.append(sum(size for _, size in some) / lasted_ns * 1e9)
    return rates


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one provider has shown of one metric.

    Attributes:
        value: the metric; None if it is not known.
        samples: one value per run if there are five or more, or per group of one run, or per round of a conclusion.
        is_of_runs: whether the samples are of different runs.
        is_busy: whether the machine was busy meanwhile.
        margin: a smaller difference is that of the load generator.
        out: why the provider is not compared, or an empty text.
    """

    value: float | None
    samples: Sequence[float] = ()
    is_of_runs: bool = False
    is_busy: bool = False
    margin: float = 0.0
    out: str = ""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Who is best at one metric.

    Attributes:
        verdict: ``best`` (one leader), ``among the best`` (several, and others that are worse), ``close`` (none is
            far enough from the best) or ``not judged``.
        leaders: the best provider first, and those that are not marked as worse.
        why: why it is not judged, or what is known of those that are close.
    """

    verdict: Literal["best", "among the best", "close", "not judged"]
    leaders: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one provider is from another at a metric, with its 95 % interval.

    Of a fraction in percentage points, of anything else the change as a share of the other's value (0.1: a tenth more).
    """

    value: float
    low: float
    high: float
    is_points: bool


def distance(metric: str, one: Candidate, other: Candidate) -> Distance | None:
    """Tell how far ``one`` is from ``other``; None where either has too few samples, or a ratio to nothing.

    Welch's t over the samples: their logarithms where the metric is not a fraction. Samples of one run tell how sure
    the difference is within that run, not what another day gives.
    """
    samples = [list(each.samples) for each in (one, other)]
    if one.out or other.out or any(len(each) < _LEAST for each in samples):
        return None
    is_points = METRICS[metric].unit == "fraction"
    if not is_points:
        if any(value <= 0 for each in samples for value in each):
            return None
        samples = [[log(value) for value in each] for each in samples]
    errors = [variance(each) / len(each) for each in samples]
    centre = fmean(samples[0]) - fmean(samples[1])
    if not sum(errors):
        half = 0.0
    else:
        parts = sum(error**2 / (len(each) - 1) for error, each in zip(errors, samples, strict=True))
        half = t_isf(0.025, max(1, int(sum(errors) ** 2 / parts))) * sqrt(sum(errors))
    value, low, high = (each if is_points else expm1(each) for each in (centre, centre - half, centre + half))
    return Distance(value, low, high, is_points)


def rank(metric: str, candidates: Mapping[str, Candidate]) -> Ranking:
    """Tell which provider is best at a metric: none, if one that is compared has no spread and so may be better."""
    if metric not in METRICS:
        return Ranking("not judged", why="no direction is better")
    taking_part = {name: each for name, each in candidates.items() if not each.out and each.value is not None}
    if len(taking_part) < 2:
        outs = sorted({each.out for each in candidates.values() if each.out})
        return Ranking("not judged", why=outs[0] if outs else "only one value is known")
    if any(len(each.samples) < _LEAST for each in taking_part.values()):
        return Ranking("not judged", why="too few repeats")
    sign = 1 if METRICS[metric].better == "lower" else -1
    order = sorted(taking_part, key=lambda name: sign * (taking_part[name].value or 0.0))
    best = taking_part[order[0]]
    alpha = _ALPHA / (len(order) - 1)
    leaders = [name for name in order[1:] if not _is_better(metric, best, taking_part[name], sign, alpha)]
    if len(leaders) == len(order) - 1:
        return Ranking(
            "close", tuple(order), _explain_closeness(metric, best, [taking_part[name] for name in order[1:]])
        )
    return Ranking("among the best" if leaders else "best", (order[0], *leaders))


def _is_better(metric: str, best: Candidate, other: Candidate, sign: int, alpha: float) -> bool:
    """Return whether a difference is both large enough to matter and too large for chance."""
    if _bound_above(metric, best, other) or sign * (fmean(other.samples) - fmean(best.samples)) <= 0:
        return False
    return kruskal_wallis([best.samples, other.samples]).p_value <= alpha


def _bound_above(metric: str, best: Candidate, other: Candidate) -> str:
    """Return the bound that a difference is below, in words. It is empty for one that is large enough to matter."""
    values = sorted((best.value or 0.0, other.value or 0.0))
    apart = values[1] - values[0]
    if METRICS[metric].unit == "fraction":
        return "" if apart >= _POINT else f"{100 * _POINT:g} point"
    factor = _FACTOR_OF_RUNS if best.is_of_runs and other.is_of_runs else _FACTOR
    if METRICS[metric].time_like and (best.is_busy or other.is_busy):
        factor = _FACTOR_BUSY
    margin = max(best.margin, other.margin, _MOMENT_S if METRICS[metric].unit == "s" else 0.0)
    ratio = values[1] / values[0] if values[0] > 0 else inf
    if ratio < factor:
        return f"{factor - 1:.0%}".replace("%", " %")
    return "" if apart > margin else f"{1000 * margin:.3g} ms, which this machine adds"


def _explain_closeness(metric: str, best: Candidate, others: Sequence[Candidate]) -> str:
    """Return what is known of providers that are close to the best, by the same intervals as the report shows."""
    ranges = [(other, distance(metric, other, best)) for other in others]
    apart = [other for other, interval in ranges if interval is not None and (interval.low > 0 or interval.high < 0)]
    if not apart:
        return "no difference found"
    bounds = [_bound_above(metric, best, other) for other in apart]
    return f"differs by less than {max(bounds, key=len)}" if all(bounds) else "differs, but not certain enough to mark"
