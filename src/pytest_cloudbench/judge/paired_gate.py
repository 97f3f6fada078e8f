"""Judge two sides measured in turns: is B worse than A by more than a margin, and has B lost or changed anything?

Differences of ``judge.paired`` and the user's margins become met, broken or inconclusive. docs/method/versus.md states
the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from pytest_cloudbench.judge.baseline import is_finite
from pytest_cloudbench.judge.gate import Answer
from pytest_cloudbench.judge.metrics import FACTS
from pytest_cloudbench.judge.paired import COMPARED, BlockValues, Difference, metrics_to_await
from pytest_cloudbench.judge.watched import Margins, watched_pairs


@dataclass(frozen=True, slots=True)
class PairedRuling:
    """The gate's answer about one experiment.

    Attributes:
        answer: the answer about the experiment.
        answers: the answer about each watched metric.
        giving: the metrics that decided the answer.
        losses: the share of B's operations that were lost or changed, by the metric that has broken it.
    """

    answer: Answer
    answers: Mapping[str, Answer]
    giving: Sequence[str]
    losses: Mapping[str, float] = field(default_factory=dict)


def judge_pairs(
    differences: Mapping[str, Difference], deciding: Sequence[str], margins: Margins, blocks: Sequence[BlockValues]
) -> PairedRuling:
    """Judge one experiment. Any watched metric can break it. Deciding metrics that are awaited must be met.

    A fact of B beyond its margin breaks it, however many pairs there are, and even if A has as much. Any other metric
    delays the answer only while its measured change is beyond its margin but may be chance, and a fact while it is not
    known.

    Args:
        differences: the result of ``paired.compare`` with the margins of the gate.
        deciding: the metrics that decide when to stop.
        margins: the user's margins.
        blocks: all blocks of B, in which facts are looked for, even in those that are not compared.
    """
    watched = watched_pairs(differences, deciding, margins)
    answers = {name: _answer(differences[name]) for name in watched}
    losses = {
        name: share for name in watched
        if name in FACTS and (share := _share_of(name, blocks)) > differences[name].margin
    }  # fmt: skip
    answers |= dict.fromkeys(losses, "broken")
    awaited = metrics_to_await([name for name in deciding if name in answers] or watched)
    if broken := [name for name in watched if answers[name] == "broken"]:
        return PairedRuling("broken", answers, broken, losses)
    inconclusive = [name for name in watched if answers[name] == "inconclusive"]
    delaying = [
        name
        for name in inconclusive
        if name in awaited
        or _worse(differences[name])[0] > differences[name].margin
        or (name in FACTS and not isfinite(differences[name].change))
    ]
    if delaying or not watched:
        return PairedRuling("inconclusive", answers, delaying)
    return PairedRuling("met", answers, awaited)


def _answer(difference: Difference) -> Answer:
    """Return the answer about one metric.

    Broken: the whole interval is worse, and the measured change is beyond the margin. Met: the whole interval is below
    the margin, so that B may also be better. No interval ends below a margin of nothing, so there the measured change
    counts: B has no more than A.
    """
    change, low, high = _worse(difference)
    if low > 0 and change > difference.margin:
        return "broken"
    is_no_worse = not difference.margin and change <= 0 and isfinite(high)
    return "met" if high < difference.margin or is_no_worse else "inconclusive"


def _share_of(fact: str, blocks: Sequence[BlockValues]) -> float:
    """Return the share of operations to which a fact has happened, of the blocks in which that is known."""
    shares = [(block.values.get(fact), block.ops or 1) for block in blocks]
    known = [(share, ops) for share, ops in shares if share is not None and is_finite(share)]
    return sum(share * ops for share, ops in known) / (sum(ops for _, ops in known) or 1)


def _worse(difference: Difference) -> tuple[float, float, float]:
    """Return how much worse B is, and the interval of that. Negative numbers are better."""
    change, low, high = difference.change, difference.low, difference.high
    return (-change, -high, -low) if COMPARED[difference.metric].better == "higher" else (change, low, high)
