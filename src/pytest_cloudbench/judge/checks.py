"""The input of the regression gate: one metric of one experiment, with its former runs, this run and its repetitions.

These are values only. ``judge.watched`` makes them of stored numbers, and ``judge.gate`` has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pytest_cloudbench.judge.drift import SeriesDrift
from pytest_cloudbench.judge.noise import LEAST_SPREAD

Kind = Literal["level", "rate", "exact", "fact", "yes"]
"""How a metric is judged: a level by logarithms, a rate by counts, an exact number, a fact that must never happen, or a
capability (yes)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of one metric in one run.

    Attributes:
        value: the metric. None if unknown.
        count, of: for a rate or a fact, the operations that count and all operations.
        error: standard error of the value's logarithm by sampling alone, if known.
        ops: operations that the value was computed from.
        run: the name of the run, if known.
        starved: the share of the operations' time that threads waited for a CPU. None if unknown.
        usual: for an exact number, that of the median operation. None if unknown.
        is_barred: whether the run is no baseline, but followed for a slow rise.
        was_broken: whether the gate has called its run broken, in this metric or another.
    """

    value: float | None
    count: int = 0
    of: int = 0
    error: float | None = None
    ops: int = 0
    run: str = ""
    starved: float | None = None
    usual: float | None = None
    is_barred: bool = False
    was_broken: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of one experiment, with its baseline.

    Attributes:
        experiment, metric: what is judged.
        kind: how it is judged.
        margin: the smallest change that matters: a share, and for a rate an amount (0.01 is one point).
        baseline: its former runs, the oldest first.
        now: this run.
        again: the runs that measured a suspect again.
        why: why it cannot be judged, or an empty text.
        decides: whether it can make the experiment inconclusive; other checks can only break it.
        higher: whether higher is better.
        cluster_ops: for a rate, the most operations that one cause can affect at a time.
        since: the first run after the last lasting improvement, with which the baseline begins; empty if there is none.
        improved: the change by that improvement, a share (-0.3 is 30 % less).
        is_before: whether the baseline has the runs before that improvement, because there are too few since.
        bound: of a fact, the share that the user allows, by a margin or by accepting a run that had it.
        drift: its former runs since the last accepted state; None if they are not followed.
        tolerance: of an exact metric, the share by which it may be worse: the user's margin, or hardly any.
    """

    experiment: str
    metric: str
    kind: Kind
    margin: float
    baseline: tuple[Reading, ...]
    now: Reading
    again: tuple[Reading, ...] = ()
    why: str = ""
    decides: bool = True
    higher: bool = False
    cluster_ops: int = 1
    since: str = ""
    improved: float | None = None
    is_before: bool = False
    bound: float = 0.0
    drift: SeriesDrift | None = field(default=None, compare=False)
    tolerance: float = LEAST_SPREAD
