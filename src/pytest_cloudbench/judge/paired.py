"""Compare two sides that are measured in turns: the order of their blocks, and how far the sides are apart.

The unit is the pair: operations of one block share its noise, and two successive blocks share the machine's. The
interval is ``judge.anytime``'s, which stays valid however often one looks: so stopping as soon as something is decided
costs no false answers. docs/method/versus.md states the rule. Its numbers are those of these two modules.
"""

from __future__ import annotations

from array import array
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, log, sqrt
from statistics import fmean, median
from typing import Literal

from pytest_cloudbench.judge import anytime
from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import FACTS, METRICS, Metric
from pytest_cloudbench.judge.noise import clip_points, share_of_log
from pytest_cloudbench.judge.quiet import WaitSeries, quiet_rows, waits_of
from pytest_cloudbench.judge.records import OUTCOMES, OpTable
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.model import Outcome

Side = Literal["A", "B"]
Answer = Literal["A better", "B better", "no difference", "inconclusive"]
Pair = tuple["BlockValues", "BlockValues"]
"""The blocks of A and of B, whichever came first."""

DECIDING = ("quiet_p50", "service_p50", "service_p25")
"""The metrics that decide by default. The first one detects smaller changes, the second one is for a busy machine with
few quiet operations. The third one varies least on a very busy machine, where waiting for a CPU delays quick operations
last."""

LEAST_PAIRS = 4
"""The fewest pairs for a decision: ABBA BAAB."""

_ALPHA = 0.01
"""The probability that two equal sides ever differ in any metric. Half of it is for the metrics that decide when to
stop, the other half is shared by all other metrics."""

_MARGIN, _MARGIN_TAIL, _MARGIN_POINTS = 0.10, 0.25, 0.005
"""The smallest differences of interest: of a metric, of its tail, of a share of operations."""

_MIN_SD = 0.005
"""The smallest assumed standard deviation of a pair's ratio: counts of requests or bytes may not vary at all."""

_MIN_QUIET_OPS: Mapping[str, int] = {"quiet_p50": 40, "quiet_p99": 300}
"""The fewest quiet operations of one side for a percentile. Pairs are joined until they have this many."""

_QUIET_PERCENTILES: Mapping[str, float] = {"quiet_p50": 0.5, "quiet_p99": 0.99}
COMPARED: Mapping[str, Metric] = ChainMap(METRICS, dict.fromkeys(_QUIET_PERCENTILES, METRICS["service_p50"]))
"""The metrics in which two sides are compared: all, and percentiles of the service times of quiet operations."""

_REMARK_METRICS = ("quiet_p50", "response_p50", "elapsed")
_DRIFT_LIMIT = 0.25


@dataclass(frozen=True, slots=True)
class BlockValues:
    """The results of one block of one experiment.

    Attributes:
        values: metrics by name. None is unknown.
        ops: operations that were tried.
        quiet_s: service times of its quiet operations that succeeded.
    """

    values: Mapping[str, float | None]
    ops: int = 0
    quiet_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of B from A in one metric.

    Attributes:
        metric: the name of the metric.
        a, b: the median of each side's blocks.
        is_points: whether the change is a difference of shares (0.01 is one percentage point), not a ratio.
        change: the change from A to B: 0.1 is 10 % more, or ten points more.
        low, high: the interval of the change. Infinite while nothing is certain.
        pairs: the number of values that it is computed from.
        margin: smaller changes are of no interest.
        answer: see ``Answer``.
        needed: if it is inconclusive, how many pairs would find a change as large as the margin in nine of ten cases.
            None if unknown.
        why: if it is inconclusive for another reason than too few pairs, the reason.
    """

    metric: str
    a: float
    b: float
    is_points: bool
    change: float
    low: float
    high: float
    pairs: int
    margin: float
    answer: Answer
    needed: int | None = None
    why: str = ""


def side_of(block: int) -> Side:
    """Return the side of a block: ABBA BAAB BAAB ABBA..., so that a drift of the machine affects both sides equally."""
    pair, is_second = divmod(block, 2)
    return "B" if (pair.bit_count() + is_second) % 2 else "A"


def quiet_service_s(table: OpTable, other_waits: WaitSeries) -> array[float]:
    """Return the service times of a block's quiet operations that succeeded."""
    start_ns, end_ns, ok = table.column("start_ns"), table.column("end_ns"), OUTCOMES.index(Outcome.OK)
    waits_ns = waits_of(start_ns, end_ns, table.column("cpu_wait_ns"), other_waits)
    quiet = quiet_rows(table.column("scheduled_ns"), start_ns, end_ns, waits_ns)
    rows = zip(quiet, table.codes("outcome"), start_ns, end_ns, strict=True)
    return array("d", ((end - start) / 1e9 for is_quiet, code, start, end in rows if is_quiet and code == ok))


def margin_of(metric: str) -> float:
    """Return the smallest change of a metric that is of interest."""
    if COMPARED[metric].unit == "fraction":
        return _MARGIN_POINTS
    return _MARGIN_TAIL if metric.endswith(("_p95", "_p99", "_p99.9", "_max")) else _MARGIN


# --- one metric ---------------------------------------------------------------------------------------


def compare(
    pairs: Sequence[Pair], deciding: Sequence[str] = DECIDING, margin: Callable[[str], float] = margin_of
) -> dict[str, Difference]:
    """Compare two sides in every metric that both have in every pair, deciding metrics first.

    A deciding metric that only some blocks have is inconclusive, and so is a fact, unless B is known to have none.

    Args:
        pairs: the blocks without the warm-up.
        deciding: the metrics that decide when to stop. If none of them was measured, all others decide together.
        margin: returns the smallest change of a metric that is of interest.
    """
    names = [name for name in COMPARED if name in _QUIET_PERCENTILES or _count_known(name, pairs)]
    deciding_names = [name for name in deciding if name in names]
    other_names = [name for name in names if name not in deciding_names]
    alphas = {name: _ALPHA / 2 / len(deciding_names) for name in deciding_names}
    alphas |= {name: _ALPHA / (2 if deciding_names else 1) / len(other_names) for name in other_names}
    differences = {
        name: difference for name in (*deciding_names, *other_names)
        if (difference := _difference(name, pairs, alphas[name], margin(name))) is not None
    }  # fmt: skip
    decisive = [name for name in deciding if name in differences] or list(differences)
    return {
        name: difference for name, difference in differences.items()
        if difference.pairs or name in decisive or name in _QUIET_PERCENTILES
        or (name in FACTS and any(b.values.get(name) != 0 for _, b in pairs))
    }  # fmt: skip


def is_decided(differences: Mapping[str, Difference], deciding: Sequence[str]) -> bool:
    """Return whether a deciding metric differs, or all deciding metrics that must be awaited have an answer.

    If none of the deciding metrics was measured, all metrics decide.
    """
    names = [name for name in deciding if name in differences] or list(differences)
    is_different = any(differences[name].answer in ("A better", "B better") for name in names)
    return bool(names) and (
        is_different or all(differences[name].answer != "inconclusive" for name in metrics_to_await(names))
    )


def metrics_to_await(deciding: Sequence[str]) -> list[str]:
    """Return the deciding metrics that must have an answer before there is "no difference".

    The lower quartile need not if there is the median: on a calm machine it gives the same answer a little later.
    """
    return [name for name in deciding if name != "service_p25" or "service_p50" not in deciding]


def _count_known(name: str, pairs: Sequence[Pair]) -> int:
    """Return how many blocks have a metric."""
    return sum(is_finite(block.values.get(name)) for pair in pairs for block in pair)


def _difference(name: str, pairs: Sequence[Pair], alpha: float, margin: float) -> Difference | None:
    """Return the difference of two sides in one metric, or None if it has no value that can be compared."""
    is_points = COMPARED[name].unit == "fraction"
    blocks = 2 * len(pairs)
    if name not in _QUIET_PERCENTILES and (known_blocks := _count_known(name, pairs)) < blocks:
        return _unknown_difference(name, margin, f"known in {known_blocks} of {blocks} blocks")
    levels = list(_levels(name, pairs))
    if not levels:
        return _difference_without_values(name, pairs, margin)
    if not is_points and any(a <= 0 or b <= 0 for a, b in levels):
        is_any = any(a or b for a, b in levels)
        return _unknown_difference(name, margin, "0 in some blocks, to which there is no ratio") if is_any else None
    logs = levels if is_points else [(log(a), log(b)) for a, b in levels]
    changes, least_sd = [b - a for a, b in logs], _least_sd(levels, pairs) if is_points else _MIN_SD
    interval = anytime.interval(changes, alpha, least_sd, [a + b for a, b in logs])
    if len(pairs) < LEAST_PAIRS:
        interval = anytime.AnytimeInterval(interval.change, -inf, inf)
    low_margin, high_margin = (-margin, margin) if is_points else (_log1p(-margin), _log1p(margin))
    a, b = (median(side) for side in zip(*levels, strict=True))
    answer = _answer(COMPARED[name].better == "lower", interval.low, interval.high, low_margin, high_margin)
    if not margin and not any(changes) and isfinite(interval.low):  # no interval is within a margin of nothing
        answer = "no difference"
    needed = None
    if answer == "inconclusive":
        count = anytime.values_needed(interval, changes, alpha, least_sd, min(-low_margin, high_margin))
        needed = count and round(max(count, LEAST_PAIRS) * len(pairs) / len(levels) + 0.5)
    low, change, high = (
        clip_points(value) if is_points else share_of_log(value)
        for value in (interval.low, interval.change, interval.high)
    )
    return Difference(name, a, b, is_points, change, low, high, len(levels), margin, answer, needed)


def _log1p(change: float) -> float:
    return log(1 + change) if change > -1 else -inf


def _answer(is_lower_better: bool, low: float, high: float, low_margin: float, high_margin: float) -> Answer:
    if low > 0 or high < 0:
        return "A better" if (low > 0) == is_lower_better else "B better"
    return "no difference" if low_margin < low and high < high_margin else "inconclusive"


def _levels(name: str, pairs: Sequence[Pair]) -> Iterator[tuple[float, float]]:
    """Yield the metric of A and of B for each pair, or for as many pairs as a percentile needs."""
    if name not in _QUIET_PERCENTILES:
        for a, b in pairs:
            yield a.values[name] or 0.0, b.values[name] or 0.0
        return
    quiet_a, quiet_b = array("d"), array("d")
    for a, b in pairs:
        quiet_a.extend(a.quiet_s)
        quiet_b.extend(b.quiet_s)
        if min(len(quiet_a), len(quiet_b)) >= _MIN_QUIET_OPS[name]:
            yield (
                percentile(sorted(quiet_a), _QUIET_PERCENTILES[name]),
                percentile(sorted(quiet_b), _QUIET_PERCENTILES[name]),
            )
            quiet_a, quiet_b = array("d"), array("d")


def _difference_without_values(name: str, pairs: Sequence[Pair], margin: float) -> Difference | None:
    """Return an inconclusive difference of a percentile of too few quiet operations. None if no operation was tried."""
    quiet_count = min((sum(len(block.quiet_s) for block in side) for side in zip(*pairs, strict=True)), default=0)
    if not any(block.ops for pair in pairs for block in pair):
        return None
    reason = f"{quiet_count} quiet operations per side; at least {_MIN_QUIET_OPS[name]} are needed"
    needed = round(len(pairs) * _MIN_QUIET_OPS[name] * LEAST_PAIRS / quiet_count + 0.5) if quiet_count else None
    return _unknown_difference(name, margin, reason, needed)


def _unknown_difference(name: str, margin: float, why: str, needed: int | None = None) -> Difference:
    is_points, unknown = COMPARED[name].unit == "fraction", float("nan")
    return Difference(name, unknown, unknown, is_points, unknown, -inf, inf, 0, margin, "inconclusive", needed, why)


def _least_sd(levels: Sequence[tuple[float, float]], pairs: Sequence[Pair]) -> float:
    """Return the standard deviation that a share's difference has by chance, even if the true share never changed."""
    counts = [(a.ops or 1, b.ops or 1) for a, b in pairs]
    events = sum(
        level * ops
        for pair_levels, pair_counts in zip(levels, counts, strict=True)
        for level, ops in zip(pair_levels, pair_counts, strict=True)
    )
    share = (events + 0.5) / (sum(map(sum, counts)) + 1)
    share = min(max(share, 0.0), 1.0)
    return sqrt(share * (1 - share) * fmean(1 / a + 1 / b for a, b in counts))


# --- remarks on a comparison ---------------------------------------------------------------------------


def remarks(pairs: Sequence[Pair], firsts: Sequence[Side]) -> list[str]:
    """Return remarks on a comparison: a drift of both sides, or an effect of the order within a pair.

    Args:
        pairs: the blocks without the warm-up.
        firsts: the side that came first in each pair.
    """
    metric = next((name for name in _REMARK_METRICS if pairs and _count_known(name, pairs) == 2 * len(pairs)), None)
    levels = [(a.values[metric] or 0.0, b.values[metric] or 0.0) for a, b in pairs] if metric else []
    if len(levels) < LEAST_PAIRS or any(a <= 0 or b <= 0 for a, b in levels):
        return []
    lines, third = [], max(1, len(levels) // 3)
    log_products = [log(a * b) for a, b in levels]
    drift = share_of_log((median(log_products[-third:]) - median(log_products[:third])) / 2)
    if abs(drift) > _DRIFT_LIMIT:
        lines.append(
            f"{metric} of both sides drifted by {drift:+.0%} meanwhile; the order of the blocks evens that out"
        )
    second_changes = [log(b / a) if first == "A" else log(a / b) for first, (a, b) in zip(firsts, levels, strict=True)]
    order_effect = anytime.interval(second_changes, _ALPHA, _MIN_SD, log_products)
    if order_effect.low > 0 or order_effect.high < 0:
        change = f"{metric} is {share_of_log(order_effect.change):+.0%} in the second block of a pair"
        lines.append(f"{change}: the first one still has an effect")
    return lines
