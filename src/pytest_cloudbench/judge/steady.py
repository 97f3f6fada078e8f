"""When a metric has been steady for long enough to end a run, and whether it drifted.

What may live here: the rule and its judgement as pure functions of what operations took, in the order of their ends.
docs/method/steady.md says how often the rule errs.

Operations that follow each other are not independent, so the rule looks at blocks of them (batch means). It looks at
the second half of the run (a rolling window, as fio's steady state and warp's autoterm have), in ten equal blocks:

- **known well enough**: the 95 % interval of the blocks' mean is within ``within`` of the mean, and
- **no drift**: a straight line through the blocks changes by at most ``within`` from the first block to the last.

It must say so twice in a row, the second time with a tenth more operations. Blocks grow with the run, so that noise
averages out in time, and a drift does not.

A **drift** is judged of every run, after its end: a straight line through ten blocks of all of it explains nine tenths
of how they differ, and changes by more than matters. A step, a slow first block and one disturbance in the middle are
no line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import copysign, inf, sqrt
from statistics import fmean, stdev
from types import MappingProxyType
from typing import cast

from pytest_cloudbench.judge.stats import PERCENTILES, percentile
from pytest_cloudbench.model import UsageError, did_you_mean

_BLOCKS = 10
_MIDDLE = (_BLOCKS - 1) / 2
_SQUARES = sum((at - _MIDDLE) ** 2 for at in range(_BLOCKS))
_T_OF_MEAN = 2.262
"""Student's t for an interval of 95 %, 9 degrees of freedom."""
_STEEP = 9.0
"""Student's t of the slope from which a line is a drift: it explains nine tenths of how blocks differ. Blocks are like
those before them, so no table says how rare that is; benchmarks/bench_drift.py does."""
DRIFT_MATTERS = 0.10
"""How far a metric may move during a run, if nobody says how steady it is to be: the gate's margin of a median."""
_LEAST_BLOCK = 20
"""The fewest operations in a block for a drift of a median; noise in short blocks hides a drift, and makes none."""
_LOOK_AGAIN, _LOOKS = 1.1, 2
"""A run is looked at each time it has grown by a tenth: a rule that is asked at every operation says yes by chance."""

LEAST_OPS: Mapping[str, int] = MappingProxyType({
    **{f"{times}_{label}": _BLOCKS * max(100, round(3 / (1 - share)))
       for times in ("response", "service") for label, share in PERCENTILES.items() if share < 1},
    "ops_per_s": _BLOCKS * 100,
    "throughput": _BLOCKS * 100,
})  # fmt: skip
"""Metrics that can be steady, and the fewest operations to tell: a block needs some beyond its percentile."""
_TIMES = frozenset(name for name in LEAST_OPS if name.startswith(("response_", "service_")))


@dataclass(frozen=True, slots=True)
class Stable:
    """A run ends when this metric has been steady.

    Attributes:
        metric: a key of ``LEAST_OPS``.
        within: how steady, a fraction: 0.02 is 2 % of the metric to either side.
        min_ops: successful operations after the warm-up, before which the run does not end. There is a least number
            for each metric, below which nothing is judged.

    Raises UsageError for another metric, or a number out of range.
    """

    metric: str
    within: float = 0.02
    min_ops: int = 0

    def __post_init__(self) -> None:
        if self.metric not in LEAST_OPS:
            expected = f"expected one of {', '.join(LEAST_OPS)}"
            raise UsageError(f"Stable: metric {self.metric!r}: {expected}{did_you_mean(self.metric, LEAST_OPS)}")
        within, least = cast("object", self.within), cast("object", self.min_ops)
        if not isinstance(within, (int, float)) or isinstance(within, bool) or not 0 < within <= 1:
            raise UsageError(f"Stable: within={self.within!r}: expected a fraction above 0 and up to 1, such as 0.02")
        if not isinstance(least, int) or isinstance(least, bool) or least < 0:
            raise UsageError(f"Stable: min_ops={self.min_ops!r}: expected a whole number of operations, 0 or more")

    @property
    def least_ops(self) -> int:
        """The number of successful operations before which the run does not end."""
        return max(self.min_ops, LEAST_OPS[self.metric])


@dataclass(frozen=True, slots=True)
class Steadiness:
    """What the blocks of some operations show of a metric.

    Attributes:
        ops: operations in the blocks.
        value: the mean of the blocks, in the metric's unit.
        error: half of the 95 % interval of that mean, relative to it.
        change: how much a line through the blocks changes from the first block to the last, relative to the mean.
        t: how many times its standard error, if blocks are independent, that line is steep.
    """

    ops: int
    value: float
    error: float
    change: float
    t: float

    def is_within(self, within: float) -> bool:
        """Whether the metric was steady: known that well, and not on its way elsewhere."""
        return self.error <= within and abs(self.change) <= within


class Lookout:
    """Watches a run while it lasts. Operations may come a little out of order, as agents report them."""

    def __init__(self, stable: Stable) -> None:
        self._stable, self._ends_ns, self._amounts = stable, array("q"), array("q")
        self._look, self._yes = stable.least_ops, 0

    def add(self, ends_ns: Sequence[int], amounts: Sequence[int]) -> bool:
        """Take further operations (see ``steadiness``). Returns whether the run may end."""
        self._ends_ns.extend(ends_ns)
        self._amounts.extend(amounts)
        if len(self._amounts) >= self._look:
            found = steadiness(self._stable, self._ends_ns, self._amounts)
            self._yes = self._yes + 1 if found is not None and found.is_within(self._stable.within) else 0
            self._look = int(len(self._amounts) * _LOOK_AGAIN) + 1
        return self._yes >= _LOOKS


def drift(
    metric: str, ends_ns: Sequence[int], amounts: Sequence[float], elapsed: float, within: float = DRIFT_MATTERS
) -> str:  # fmt: skip
    """Return how a metric rose or fell steadily during a whole run by more than ``within``, in words; or nothing.

    Args:
        metric: a key of ``LEAST_OPS``.
        ends_ns: when each successful operation ended, in order; only for rates.
        amounts: what the metric is made of (``amount_of``): for times in the order in which operations were due, since
            in the order of their ends the slow ones come last.
        elapsed: how long the run took, in the unit of ``amounts``; for rates it does not matter.
        within: a fraction.
    """
    size = len(amounts) // _BLOCKS
    if size < _least_block(metric):
        return ""
    values = _blocks(metric, ends_ns, amounts, size)
    whole = _judged(size * _BLOCKS, values)
    if whole is None or abs(whole.change) <= within or abs(whole.t) < _STEEP:
        return ""
    if metric in _TIMES and elapsed < _BLOCKS * whole.value * 1e9:
        return ""  # all were due at about the same time: each waited for those before it
    return f"{metric} drifted during the run ({whole.change:+.1%})"


def unsettled(stable: Stable, ends_ns: Sequence[int], amounts: Sequence[int]) -> str:
    """Return by how much the number of a whole run is off from that of its second half, in words, if by too much.

    Operations are those of ``steadiness``.
    """
    if len(amounts) < stable.least_ops:
        return ""
    value_of, half = _value_of(stable.metric), len(amounts) // 2
    later = value_of(amounts[half:], ends_ns[-1] - ends_ns[half - 1])
    off = value_of(amounts, ends_ns[-1] - ends_ns[0]) / later - 1 if 0 < later < inf else 0.0
    if abs(off) > stable.within:
        side = "above" if off > 0 else "below"
        return f"{stable.metric} is {abs(off):.1%} {side} that of the run's second half: it was still settling"
    return ""


def amount_of(metric: str, scheduled_ns: int, start_ns: int, end_ns: int, size_bytes: int) -> int:
    """Return what a metric that can be steady is made of, for one operation."""
    if metric == "throughput":
        return size_bytes
    return end_ns - (start_ns if metric.startswith("service_") else scheduled_ns)


def steadiness(stable: Stable, ends_ns: Sequence[int], amounts: Sequence[int]) -> Steadiness | None:
    """Judge the second half of successful operations, which are in the order of their ends.

    None if there are too few, or the clock stands still.

    Args:
        stable: what is to be steady.
        ends_ns: when each ended.
        amounts: what the metric is made of: nanoseconds that each took, or bytes that each moved.
    """
    count = len(amounts)
    if count < stable.least_ops:
        return None
    size = max(LEAST_OPS[stable.metric], count // 2) // _BLOCKS
    return _judged(size * _BLOCKS, _blocks(stable.metric, ends_ns, amounts, size))


def _least_block(metric: str) -> int:
    """Return the fewest operations in a block of which a drift can be told: a percentile needs some beyond it."""
    share = PERCENTILES.get(metric.partition("_")[2], 0.0)
    return max(_LEAST_BLOCK, round(3 / (1 - share)))


def _blocks(metric: str, ends_ns: Sequence[int], amounts: Sequence[float], size: int) -> list[float]:
    """Return a metric of each of the last blocks of that many operations."""
    count, value_of, found = len(amounts), _value_of(metric), []
    for begin in range(count - size * _BLOCKS, count, size):
        block_ns = 0
        if metric not in _TIMES:
            former_ns = max(ends_ns[max(0, begin - size) : begin], default=ends_ns[begin])
            block_ns = max(ends_ns[begin : begin + size]) - former_ns
        found.append(value_of(amounts[begin : begin + size], block_ns))
    return found


def _judged(ops: int, found: Sequence[float]) -> Steadiness | None:
    mean = fmean(found)
    if not 0 < mean < inf:
        return None
    spread = stdev(found)
    slope = sum((at - _MIDDLE) * value for at, value in enumerate(found)) / _SQUARES
    rest = sum((value - mean - slope * (at - _MIDDLE)) ** 2 for at, value in enumerate(found))
    slope_error = sqrt(rest / (_BLOCKS - 2) / _SQUARES)
    return Steadiness(
        ops, mean, _T_OF_MEAN * spread / sqrt(_BLOCKS) / mean, slope * (_BLOCKS - 1) / mean,
        slope / slope_error if slope_error > 1e-12 * mean else copysign(inf, slope) if slope else 0.0,
    )  # fmt: skip


def _value_of(metric: str) -> Callable[[Sequence[float], int], float]:
    """Return what computes the metric of one block from its amounts and the time that the block took."""
    if metric == "throughput":
        return lambda amounts, block_ns: sum(amounts) / block_ns * 1e9 if block_ns > 0 else inf
    if metric == "ops_per_s":
        return lambda amounts, block_ns: len(amounts) / block_ns * 1e9 if block_ns > 0 else inf
    share = PERCENTILES[metric.partition("_")[2]]
    return lambda amounts, block_ns: percentile(sorted(amounts), share) / 1e9
