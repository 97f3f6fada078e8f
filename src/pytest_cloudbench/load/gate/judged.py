"""What the regression gate of one session judges: entries against their former runs, and comparisons of two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.judge.checks import Check
from pytest_cloudbench.judge.gate import Answer, Ruling
from pytest_cloudbench.judge.metrics import FACTS
from pytest_cloudbench.judge.watched import FormerNumbers, Margins, Numbers, checks_of
from pytest_cloudbench.load.gate.text import change_text


@dataclass(slots=True)
class GatedEntry:
    """One entry that the gate judges.

    Attributes:
        fullname, nodeid: of the entry and of its test.
        info: the entry's extra_info, into which the answer is written.
        columns, margins, runs: see ``watched.checks_of``.
        former: former runs, which are read once for all judgements. ``commit`` is that of the last one, if known.
        remark: the reason why other stored runs cannot be a baseline, or an empty text.
        why, why_times: the reason if the entry, or only its times, cannot be judged, or an empty text.
        offer: a line about runs of another test, or of this one elsewhere, if the entry has too few.
        again: numbers of the repetitions that count.
        left_out: the doubts of the repetitions that do not count, each a text.
        is_over: True if its test failed, so that there is nothing to judge.
        has_passed: True if its test has ended and passed. Otherwise only a broken metric is an answer.
        rulings, answer: of the last judgement.
    """

    fullname: str
    nodeid: str
    info: dict[str, Any]
    columns: Sequence[str]
    margins: Margins
    runs: int
    former: FormerNumbers = field(default_factory=lambda: FormerNumbers(()))
    commit: str = ""
    remark: str = ""
    why: str = ""
    why_times: str = ""
    offer: str = ""
    again: list[Numbers] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    is_over: bool = False
    has_passed: bool = False
    rulings: list[Ruling] = field(default_factory=list)
    answer: Answer | None = None

    def list_checks(self) -> list[Check]:
        """Return the checks of all its metrics."""
        return checks_of(
            self.fullname, self.info, self.columns, self.former, self.margins, self.again, self.why, self.runs,
            self.why_times,
        )  # fmt: skip

    @property
    def is_judged(self) -> bool:
        """True unless the gate judges none of its metrics. A test that failed needs no judgement."""
        return self.is_over or bool(self.decisive_rulings or self.answer)

    @property
    def decisive_rulings(self) -> list[Ruling]:
        """The rulings, or none if they say only that nothing was lost: that is no judgement of a conclusion."""
        says_more = any(ruling.check.metric not in FACTS or ruling.answer != "met" for ruling in self.rulings)
        return self.rulings if says_more else []

    @property
    def metric_texts(self) -> dict[str, str]:
        """By metric, its answer in one word, and its change if known."""
        return {ruling.check.metric: f"{ruling.answer} {change_text(ruling)}".strip() for ruling in self.rulings}


@dataclass(frozen=True, slots=True)
class GatedPairs:
    """One comparison of two sides that the gate judges (``load.versus.contest``).

    Attributes:
        fullname, nodeid: of the entry and of its test.
        answer: the gate's answer.
        lines: the explanation of the answer.
        metric_texts: by metric, its answer, change and interval.
    """

    fullname: str
    nodeid: str
    answer: Answer
    lines: Sequence[str]
    metric_texts: Mapping[str, str]
