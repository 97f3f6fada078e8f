"""Decide when a metric has been steady for long enough to end a run, and whether it drifted.

The rule is a pure function of what operations took, in the order of their ends. docs/method/steady.md has its error
rates.

Successive operations are not independent, so the rule works on blocks of them (batch means). It looks at the second
half of the run (a rolling window, like fio's steady state and warp's autoterm), in ten equal blocks:

- **precision**: the 95 % interval of the blocks' mean is within ``within`` of the mean, and
- **no drift**: a straight line through the blocks changes by at most ``within`` from the first block to the last.

Both must hold twice in a row, the second time with a tenth more operations. Blocks grow with the run, so that noise
averages out in time, and a drift does not.

A **drift** is judged after the end of every run: a straight line through ten blocks of all operations explains nine
tenths of the differences between blocks, and changes by more than matters. A step, a slow first block and one
disturbance in the middle are no line.
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
"""Student's t for an interval of 95 % with 9 degrees of freedom."""
_DRIFT_T = 9.0
"""Student's t of the slope from which a line is a drift: it explains nine tenths of the differences between blocks.
Successive blocks are correlated, so no table has its probability. benchmarks/bench_drift.py measures it."""
DRIFT_MATTERS = 0.10
"""How far a metric may move during a run without ``until``: the gate's margin of a median."""
_MIN_BLOCK_OPS = 20
"""The fewest operations in a block for a drift of a median. Noise in shorter blocks would hide a drift."""
_GROWTH_BETWEEN_LOOKS, _LOOKS = 1.1, 2
"""A run is judged each time it has grown by a tenth. A rule applied at each operation would soon hold by chance."""

LEAST_OPS: Mapping[str, int] = MappingProxyType({
    **{f"{times}_{label}": _BLOCKS * max(100, round(3 / (1 - share)))
       for times in ("response", "service") for label, share in PERCENTILES.items() if share < 1},
    "ops_per_s": _BLOCKS * 100,
    "throughput": _BLOCKS * 100,
})  # fmt: skip
"""Metrics that can be steady, with the fewest operations to judge them: a block needs some beyond its percentile."""
_TIMES = frozenset(name for name in LEAST_OPS if name.startswith(("response_", "service_")))


@dataclass(frozen=True, slots=True)
class Stable:
    """The condition that a metric has been steady, which ends a run.

    Attributes:
        metric: a key of ``LEAST_OPS``.
        within: how steady, a fraction: 0.02 is 2 % of the metric to either side.
        min_ops: successful operations after the warm-up, before which the run does not end. Each metric also has a
            minimum of its own, below which nothing is judged.

    Raises UsageError for an unknown metric, or a number out of range.
    """

    metric: str
    within: float = 0.02
    min_ops: int = 0

    def __post_init__(self) -> None:
        if self.metric not in LEAST_OPS:
            expected = f"expected one of {', '.join(LEAST_OPS)}"
            raise UsageError(f"Stable: metric {self.metric!r}: {expected}{did_you_mean(self.metric, LEAST_OPS)}")
        within, min_ops = cast("object", self.within), cast("object", self.min_ops)
        if not isinstance(within, (int, float)) or isinstance(within, bool) or not 0 < within <= 1:
            raise UsageError(f"Stable: within={self.within!r}: expected a fraction above 0 and up to 1, such as 0.02")
        if not isinstance(min_ops, int) or isinstance(min_ops, bool) or min_ops < 0:
            raise UsageError(f"Stable: min_ops={self.min_ops!r}: expected a whole number of operations, 0 or more")

    @property
    def least_ops(self) -> int:
        """The number of successful operations before which the run does not end."""
        return max(self.min_ops, LEAST_OPS[self.metric])


@dataclass(frozen=True, slots=True)
class Steadiness:
    """The statistics of a metric over blocks of operations.

    Attributes:
        ops: operations in the blocks.
        value: the mean of the blocks, in the metric's unit.
        error: half of the 95 % interval of that mean, relative to it.
        change: how much a line through the blocks changes from the first block to the last, relative to the mean.
        t: the slope of that line over its standard error, if blocks were independent.
    """

    ops: int
    value: float
    error: float
    change: float
    t: float

    def is_within(self, within: float) -> bool:
        """Return whether the metric was steady: precise enough, and without a drift."""
        return self.error <= within and abs(self.change) <= within


class SteadinessWatch:
    """Watches a run until it is steady. Operations may come a little out of order, as agents report them."""

    def __init__(self, stable: Stable) -> None:
        self._stable, self._ends_ns, self._amounts = stable, array("q"), array("q")
        self._next_look, self._steady_looks = stable.least_ops, 0

    def add(self, ends_ns: Sequence[int], amounts: Sequence[int]) -> bool:
        """Take further operations (see ``steadiness``). Return whether the run may end."""
        self._ends_ns.extend(ends_ns)
        self._amounts.extend(amounts)
        if len(self._amounts) >= self._next_look:
            result = steadiness(self._stable, self._ends_ns, self._amounts)
            is_steady = result is not None and result.is_within(self._stable.within)
            self._steady_looks = self._steady_looks + 1 if is_steady else 0
            self._next_look = int(len(self._amounts) * _GROWTH_BETWEEN_LOOKS) + 1
        return self._steady_looks >= _LOOKS


def drift(
    metric: str, ends_ns: Sequence[int], amounts: Sequence[float], elapsed: float, within: float = DRIFT_MATTERS
) -> str:  # fmt: skip
    """Return in words how a metric rose or fell steadily during a run by more than ``within``. Empty if it did not.

    Args:
        metric: a key of ``LEAST_OPS``.
        ends_ns: when each successful operation ended, in order. Only for rates.
        amounts: the amounts that the metric is computed from (``amount_of``). Times are in the order in which
            operations were due, because in the order of their ends the slow ones come last.
        elapsed: how long the run took, in the unit of ``amounts``. Ignored for rates.
        within: a fraction.
    """
    size = len(amounts) // _BLOCKS
    if size < _min_block_ops(metric):
        return ""
    values = _block_values(metric, ends_ns, amounts, size)
    steadiness_of_run = _measure_steadiness(size * _BLOCKS, values)
    if steadiness_of_run is None or abs(steadiness_of_run.change) <= within or abs(steadiness_of_run.t) < _DRIFT_T:
        return ""
    if metric in _TIMES and elapsed < _BLOCKS * steadiness_of_run.value * 1e9:
        return ""  # all were due at about the same time, so each waited for those before it
    return f"{metric} drifted during the run ({steadiness_of_run.change:+.1%})"


def describe_settling(stable: Stable, ends_ns: Sequence[int], amounts: Sequence[int]) -> str:
    """Return in words how far the metric of a run is from that of its second half. Empty if it is close enough.

    The operations are those of ``steadiness``.
    """
    if len(amounts) < stable.least_ops:
        return ""
    metric_of, half = _block_metric(stable.metric), len(amounts) // 2
    second_half = metric_of(amounts[half:], ends_ns[-1] - ends_ns[half - 1])
    off = metric_of(amounts, ends_ns[-1] - ends_ns[0]) / second_half - 1 if 0 < second_half < inf else 0.0
    if abs(off) > stable.within:
        side = "above" if off > 0 else "below"
        return f"{stable.metric} is {abs(off):.1%} {side} that of the run's second half: it was still settling"
    return ""


def amount_of(metric: str, scheduled_ns: int, start_ns: int, end_ns: int, size_bytes: int) -> int:
    """Return the amount of one operation that a steady metric is computed from: nanoseconds or bytes."""
    if metric == "throughput":
        return size_bytes
    return end_ns - (start_ns if metric.startswith("service_") else scheduled_ns)


def steadiness(stable: Stable, ends_ns: Sequence[int], amounts: Sequence[int]) -> Steadiness | None:
    """Measure the second half of successful operations, which are in the order of their ends.

    Returns None if there are too few, or the clock stands still.

    Args:
        stable: the condition.
        ends_ns: when each operation ended.
        amounts: the nanoseconds that each operation took, or the bytes that it moved.
    """
    count = len(amounts)
    if count < stable.least_ops:
        return None
    size = max(LEAST_OPS[stable.metric], count // 2) // _BLOCKS
    return _measure_steadiness(size * _BLOCKS, _block_values(stable.metric, ends_ns, amounts, size))


def _min_block_ops(metric: str) -> int:
    """Return the fewest operations in a block that can show a drift. A percentile needs some beyond it."""
    share = PERCENTILES.get(metric.partition("_")[2], 0.0)
    return max(_MIN_BLOCK_OPS, round(3 / (1 - share)))


def _block_values(metric: str, ends_ns: Sequence[int], amounts: Sequence[float], size: int) -> list[float]:
    """Return a metric in each of the last ``_BLOCKS`` blocks of ``size`` operations."""
    count, metric_of, values = len(amounts), _block_metric(metric), []
    for begin in range(count - size * _BLOCKS, count, size):
        block_ns = 0
        if metric not in _TIMES:
            former_ns = max(ends_ns[max(0, begin - size) : begin], default=ends_ns[begin])
            block_ns = max(ends_ns[begin : begin + size]) - former_ns
        values.append(metric_of(amounts[begin : begin + size], block_ns))
    return values


def _measure_steadiness(ops: int, values: Sequence[float]) -> Steadiness | None:
    mean = fmean(values)
    if not 0 < mean < inf:
        return None
    spread = stdev(values)
    slope = sum((at - _MIDDLE) * value for at, value in enumerate(values)) / _SQUARES
    residual_squares = sum((value - mean - slope * (at - _MIDDLE)) ** 2 for at, value in enumerate(values))
    slope_error = sqrt(residual_squares / (_BLOCKS - 2) / _SQUARES)
    return Steadiness(
        ops, mean, _T_OF_MEAN * spread / sqrt(_BLOCKS) / mean, slope * (_BLOCKS - 1) / mean,
        slope / slope_error if slope_error > 1e-12 * mean else copysign(inf, slope) if slope else 0.0,
    )  # fmt: skip


def _block_metric(metric: str) -> Callable[[Sequence[float], int], float]:
    """Return the function that computes the metric of a block from its amounts and duration."""
    if metric == "throughput":
        return lambda amounts, block_ns: sum(amounts) / block_ns * 1e9 if block_ns > 0 else inf
    if metric == "ops_per_s":
        return lambda amounts, block_ns: len(amounts) / block_ns * 1e9 if block_ns > 0 else inf
    share = PERCENTILES[metric.partition("_")[2]]
    return lambda amounts, block_ns: percentile(sorted(amounts), share) / 1e9
