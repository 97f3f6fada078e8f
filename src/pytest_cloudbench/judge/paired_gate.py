"""What a gate says of two sides measured in turns: is B worse than A by more than a margin.

What may live here: differences of ``judge.paired`` and the user's margins into met, broken, inconclusive. Pure
functions. docs/method/versus.md states the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_cloudbench.judge.gate import Answer
from pytest_cloudbench.judge.paired import COMPARED, Difference, awaited
from pytest_cloudbench.judge.watched import Margins, watched_pairs


@dataclass(frozen=True, slots=True)
class PairedRuling:
    """The answer about one experiment.

    Attributes:
        answer: the gate's.
        answers: that of each metric that is watched.
        giving: the metrics that gave the answer.
    """

    answer: Answer
    answers: Mapping[str, Answer]
    giving: Sequence[str]


def judge_pairs(differences: Mapping[str, Difference], deciding: Sequence[str], margins: Margins) -> PairedRuling:
    """Judge one experiment. Any metric that is watched can break it, and those that decide and are awaited must be met.

    Any other delays the answer only while its measured change is beyond its margin but may be chance.

    Args:
        differences: of ``paired.compare``, with the margins of the gate.
        deciding: the metrics for which it is measured.
        margins: the user's.
    """
    watched = watched_pairs(differences, deciding, margins)
    answers = {name: _answer(differences[name]) for name in watched}
    decide = awaited([name for name in deciding if name in answers] or watched)
    if broken := [name for name in watched if answers[name] == "broken"]:
        return PairedRuling("broken", answers, broken)
    unknown = [name for name in watched if answers[name] == "inconclusive"]
    open_ = [name for name in unknown if name in decide or _worse(differences[name])[0] > differences[name].margin]
    if open_ or not watched:
        return PairedRuling("inconclusive", answers, open_)
    return PairedRuling("met", answers, decide)


def _answer(difference: Difference) -> Answer:
    """Broken: the whole interval says worse, and the measured change is beyond the margin.

    Met: the whole interval is below the margin, so B may also be better.
    """
    change, low, high = _worse(difference)
    if low > 0 and change > difference.margin:
        return "broken"
    return "met" if high < difference.margin else "inconclusive"


def _worse(difference: Difference) -> tuple[float, float, float]:
    """Return by how much B is worse, and the interval of that; below zero it is better."""
    change, low, high = difference.change, difference.low, difference.high
    return (-change, -high, -low) if COMPARED[difference.metric].better == "higher" else (change, low, high)
