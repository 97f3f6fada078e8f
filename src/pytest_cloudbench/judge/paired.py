"""Two sides measured in turns: which block is whose, and how far the sides are apart.

What may live here: the order of the blocks, pairs of blocks into a difference with its interval, and the answer. Pure
functions. The unit is the pair: operations of one block share its noise, two blocks that stand together share the
machine's. The interval is ``judge.anytime``'s, which may be looked at after every pair: with it, stopping as soon as
something is decided costs no false answers. docs/method/versus.md states the rule; its numbers are those of these two
modules.
"""

from __future__ import annotations

from array import array
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, inf, log, sqrt
from statistics import fmean, median
from typing import Literal

from pytest_cloudbench.judge import anytime
from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.metrics import METRICS, Metric
from pytest_cloudbench.judge.quiet import WaitSeries, quiet_rows, waits_of
from pytest_cloudbench.judge.records import OUTCOMES, OpTable
from pytest_cloudbench.judge.stats import percentile
from pytest_cloudbench.model import Outcome

Side = Literal["A", "B"]
Answer = Literal["A better", "B better", "no difference", "inconclusive"]
Pair = tuple["BlockValues", "BlockValues"]
"""The blocks of A and of B, whichever of them came first."""

DECIDING = ("quiet_p50", "service_p50", "service_p25")
"""What decides unless the user says otherwise: the first sees more, the second where a busy machine leaves few quiet
operations. The third varies least on a very busy one: a client that waits for a CPU delays quick operations last."""

LEAST_PAIRS = 4
"""Pairs before anything is decided: ABBA BAAB."""

_ALPHA = 0.01
"""How often two equal sides may differ in anything, however long one looks. Half of it is for what decides when to
stop, the other half is shared by all other metrics."""

_MARGIN, _MARGIN_TAIL, _MARGIN_POINTS = 0.10, 0.25, 0.005
"""Smaller differences are of no interest: of a metric, of its tail, of a share of operations."""

_FLOOR = 0.005
"""The least standard deviation of a pair's ratio: counts of requests or bytes may have none at all."""

_FEWEST: Mapping[str, int] = {"quiet_p50": 40, "quiet_p99": 300}
"""Quiet operations of one side that a percentile is taken of. Pairs are put together until there are this many."""

_SHARES: Mapping[str, float] = {"quiet_p50": 0.5, "quiet_p99": 0.99}
COMPARED: Mapping[str, Metric] = ChainMap(METRICS, dict.fromkeys(_SHARES, METRICS["service_p50"]))
"""Everything in which two sides are compared: all metrics, and percentiles of the service times of quiet operations."""

_TOLD_OF = ("quiet_p50", "response_p50", "elapsed")
_DRIFT = 0.25


@dataclass(frozen=True, slots=True)
class BlockValues:
    """What one block has shown of one experiment.

    Attributes:
        values: metrics by name; None is "not known".
        ops: operations that were tried.
        quiet_s: service times of its quiet operations that succeeded.
    """

    values: Mapping[str, float | None]
    ops: int = 0
    quiet_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """How far B is from A in one metric.

    Attributes:
        metric: its name.
        a, b: the median of each side's blocks.
        is_points: the change is a difference of shares (0.01 is one percentage point), no ratio.
        change: of B against A: 0.1 is 10 % more, or ten points more.
        low, high: the interval of the change; infinite while nothing can be said.
        pairs: how many values it comes from.
        margin: smaller changes are of no interest.
        answer: see ``Answer``.
        needed: if it is inconclusive, how many pairs would find a change as large as the margin in nine of ten cases;
            None if that is not known.
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
    """Return whose turn it is: ABBA BAAB BAAB ABBA..., so that a drift of the machine hits both sides alike."""
    pair, second = divmod(block, 2)
    return "B" if (pair.bit_count() + second) % 2 else "A"


def quiet_service_s(table: OpTable, beside: WaitSeries) -> array[float]:
    """Return the service times of a block's quiet operations that succeeded."""
    start_ns, end_ns, ok = table.column("start_ns"), table.column("end_ns"), OUTCOMES.index(Outcome.OK)
    waits_ns = waits_of(start_ns, end_ns, table.column("cpu_wait_ns"), beside)
    quiet = quiet_rows(table.column("scheduled_ns"), start_ns, end_ns, waits_ns)
    rows = zip(quiet, table.codes("outcome"), start_ns, end_ns, strict=True)
    return array("d", ((end - start) / 1e9 for is_quiet, code, start, end in rows if is_quiet and code == ok))


def margin_of(metric: str) -> float:
    """Return the smallest change of a metric that is of interest."""
    if COMPARED[metric].unit == "fraction":
        return _MARGIN_POINTS
    return _MARGIN_TAIL if metric.endswith(("_p95", "_p99", "_p999", "_max")) else _MARGIN


# --- one metric ---------------------------------------------------------------------------------------


def compare(
    pairs: Sequence[Pair], deciding: Sequence[str] = DECIDING, margin: Callable[[str], float] = margin_of
) -> dict[str, Difference]:
    """Compare two sides in every metric that both have in every pair, those that decide first.

    Args:
        pairs: the blocks without the warm-up.
        deciding: the metrics for which it is measured. Where there is none of them, all others decide together.
        margin: gives the smallest change of a metric that is of interest.
    """
    names = [name for name in COMPARED if name in _SHARES or _is_known(name, pairs)]
    first = [name for name in deciding if name in names]
    rest = [name for name in names if name not in first]
    alphas = {name: _ALPHA / 2 / len(first) for name in first}
    alphas |= {name: _ALPHA / (2 if first else 1) / len(rest) for name in rest}
    found = ((name, _difference(name, pairs, alphas[name], margin(name))) for name in (*first, *rest))
    return {name: each for name, each in found if each is not None}


def is_decided(differences: Mapping[str, Difference], deciding: Sequence[str]) -> bool:
    """Return whether one of the metrics that decide differs, or all that are awaited have an answer.

    Where there is none of them, all metrics decide.
    """
    names = [name for name in deciding if name in differences] or list(differences)
    is_different = any(differences[name].answer in ("A better", "B better") for name in names)
    return bool(names) and (is_different or all(differences[name].answer != "inconclusive" for name in awaited(names)))


def awaited(deciding: Sequence[str]) -> list[str]:
    """Return which of the metrics that decide must have an answer before there is "no difference".

    Beside the median the lower quartile need not: on a calm machine it says the same a little later.
    """
    return [name for name in deciding if name != "service_p25" or "service_p50" not in deciding]


def _is_known(name: str, pairs: Sequence[Pair]) -> bool:
    return bool(pairs) and all(is_finite(block.values.get(name)) for pair in pairs for block in pair)


def _difference(name: str, pairs: Sequence[Pair], alpha: float, margin: float) -> Difference | None:
    is_points = COMPARED[name].unit == "fraction"
    levels = list(_levels(name, pairs))
    if not levels:
        return _too_quiet(name, pairs, margin)
    if not is_points and any(a <= 0 or b <= 0 for a, b in levels):
        return None  # nothing is a share of nothing
    both = levels if is_points else [(log(a), log(b)) for a, b in levels]
    changes, least_sd = [b - a for a, b in both], _least_sd(levels, pairs) if is_points else _FLOOR
    found = anytime.interval(changes, alpha, least_sd, [a + b for a, b in both])
    if len(pairs) < LEAST_PAIRS:
        found = anytime.AnytimeInterval(found.change, -inf, inf)
    least, most = (-margin, margin) if is_points else (_log1p(-margin), _log1p(margin))
    a, b = (median(side) for side in zip(*levels, strict=True))
    answer, needed = _answer(COMPARED[name].better == "lower", found.low, found.high, least, most), None
    if answer == "inconclusive":
        count = anytime.values_needed(found, changes, alpha, least_sd, min(-least, most))
        needed = count and round(max(count, LEAST_PAIRS) * len(pairs) / len(levels) + 0.5)
    low, change, high = (each if is_points else _as_share(each) for each in (found.low, found.change, found.high))
    return Difference(name, a, b, is_points, change, low, high, len(levels), margin, answer, needed)


def _log1p(change: float) -> float:
    return log(1 + change) if change > -1 else -inf


def _as_share(change: float) -> float:
    return inf if change > 700 else expm1(change)


def _answer(is_lower_better: bool, low: float, high: float, least: float, most: float) -> Answer:
    if low > 0 or high < 0:
        return "A better" if (low > 0) == is_lower_better else "B better"
    return "no difference" if least < low and high < most else "inconclusive"


def _levels(name: str, pairs: Sequence[Pair]) -> Iterator[tuple[float, float]]:
    """Yield the metric of A and of B, for each pair or for as many together as a percentile needs."""
    if name not in _SHARES:
        for a, b in pairs:
            yield a.values[name] or 0.0, b.values[name] or 0.0
        return
    quiet_a, quiet_b = array("d"), array("d")
    for a, b in pairs:
        quiet_a.extend(a.quiet_s)
        quiet_b.extend(b.quiet_s)
        if min(len(quiet_a), len(quiet_b)) >= _FEWEST[name]:
            yield percentile(sorted(quiet_a), _SHARES[name]), percentile(sorted(quiet_b), _SHARES[name])
            quiet_a, quiet_b = array("d"), array("d")


def _too_quiet(name: str, pairs: Sequence[Pair], margin: float) -> Difference | None:
    """Return that a percentile of quiet operations is not known, if there were operations at all."""
    quiet = min((sum(len(each.quiet_s) for each in side) for side in zip(*pairs, strict=True)), default=0)
    if not any(block.ops for pair in pairs for block in pair):
        return None
    why = f"{quiet} quiet operations per side; at least {_FEWEST[name]} are needed"
    needed = round(len(pairs) * _FEWEST[name] * LEAST_PAIRS / quiet + 0.5) if quiet else None
    unknown = float("nan")
    return Difference(
        name, unknown, unknown, False, unknown, -inf, inf, 0, margin, "inconclusive", needed, why
    )  # fmt: skip


def _least_sd(levels: Sequence[tuple[float, float]], pairs: Sequence[Pair]) -> float:
    """Return the least by which a share's difference varies by chance, even if it was the same all the time."""
    counts = [(a.ops or 1, b.ops or 1) for a, b in pairs]
    events = sum(
        level * ops for each, of in zip(levels, counts, strict=True) for level, ops in zip(each, of, strict=True)
    )
    share = (events + 0.5) / (sum(map(sum, counts)) + 1)
    share = min(max(share, 0.0), 1.0)
    return sqrt(share * (1 - share) * fmean(1 / a + 1 / b for a, b in counts))


# --- what else the pairs tell ---------------------------------------------------------------------------


def remarks(pairs: Sequence[Pair], firsts: Sequence[Side]) -> list[str]:
    """Return what a reader should know of a comparison: a drift, and that the order within a pair matters.

    Args:
        pairs: the blocks without the warm-up.
        firsts: which side came first in each pair.
    """
    metric = next((name for name in _TOLD_OF if _is_known(name, pairs)), None)
    levels = [(a.values[metric] or 0.0, b.values[metric] or 0.0) for a, b in pairs] if metric else []
    if len(levels) < LEAST_PAIRS or any(a <= 0 or b <= 0 for a, b in levels):
        return []
    told, part = [], max(1, len(levels) // 3)
    both = [log(a * b) for a, b in levels]
    drift = expm1((median(both[-part:]) - median(both[:part])) / 2)
    if abs(drift) > _DRIFT:
        told.append(f"{metric} of both sides drifted by {drift:+.0%} meanwhile; the order of the blocks evens that out")
    seconds = [log(b / a) if first == "A" else log(a / b) for first, (a, b) in zip(firsts, levels, strict=True)]
    found = anytime.interval(seconds, _ALPHA, _FLOOR, both)
    if found.low > 0 or found.high < 0:
        change = f"{metric} is {expm1(found.change):+.0%} in the second block of a pair"
        told.append(f"{change}: the first one still has an effect")
    return told
