"""Which children a read asks first, and when it asks one more (J. Dean and L. A. Barroso, "The tail at scale", 2013).

What may live here: decisions that depend only on reported events, in the caller's time. The caller has the clock, the
children and the lock.

A read needs answers from some of the n children, and asks just that many: the usually quickest ones. A child that takes
longer than most of its own answers (a percentile of them) is *late*: another child is asked, too, and the first answers
count. These extra requests are paid from a budget, a share of all requests, so that uniformly slow children are not
asked twice as often. Without budget a child is late only when the caller's patience ends, but then always: a child that
hangs must not hang reads. Children that failed or were given up recently are asked last for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log

_WINDOW = 128
_FEW = 8
"""A percentile of fewer answers than this says nothing."""

_SMALL_BYTES = 1 << 16

_MARGIN = 1.1
"""A child is late when it takes 10 % longer than its percentile. Without this margin, answers that all take about as
long would count as late."""

_OFTEN = 3
"""After this many late requests in a row without an answer, a child counts as failed."""

_LATEST = 8
"""The number of answers that tell how quick a child usually is now."""

_LONGEST_PAUSE_S = 60.0
"""After this time, a child's recorded speed is discarded and must be measured again."""


@dataclass(frozen=True, slots=True)
class HedgingRule:
    """When to ask another child.

    Attributes:
        patience_s: how long a child may take if its speed is not known, or there is no budget.
        percentile: a child is late when it takes longer than this share of its latest answers; 1 or more: never.
        budget: extra requests per request, over time.
        burst: the most extra requests in a row.
        least_s: no child is late before this time: a tail as short as this is not worth a request.
    """

    patience_s: float = 2.0
    percentile: float = 0.95
    budget: float = 0.1
    burst: float = 4.0
    least_s: float = 0.005

    def __post_init__(self) -> None:
        if not (self.percentile > 0 and self.budget >= 0 and self.burst >= 0 and self.patience_s > 0):
            raise ValueError(f"percentile and patience_s must be above 0, budget and burst not negative: {self}")


class _Known:
    """What is known about one child: its latest answers by size, and until when to leave it alone."""

    __slots__ = ("answers", "failed_in_a_row", "paused_until_s", "seen_s", "unanswered_in_a_row")

    def __init__(self) -> None:
        self.answers: dict[int, deque[float]] = {}
        self.seen_s: dict[int, float] = {}
        self.failed_in_a_row = self.unanswered_in_a_row = 0
        self.paused_until_s = -inf

    def took(self, size_bytes: int, taken_s: float, at_s: float) -> None:
        size_class = _class_of(size_bytes)
        self.answers.setdefault(size_class, deque(maxlen=_WINDOW)).append(taken_s)
        self.seen_s[size_class] = at_s

    def usual_s(self, size_class: int, at_s: float) -> float:
        """How long it has taken lately; 0 if that is not known, so that it is asked and measured."""
        answers = self.answers.get(size_class, ())
        if len(answers) < _LATEST or at_s > self.seen_s[size_class] + _LONGEST_PAUSE_S:
            return 0.0
        return _percentile([*answers][-_LATEST:], 0.5)


class Hedging:
    """The shared state of all reads from some children: their latest answers, and the budget.

    Attributes:
        requests: the number of requests that reads began with.
        extra: the number of further requests because a child was late.
    """

    def __init__(self, children: int, rule: HedgingRule | None = None) -> None:
        self.rule = rule or HedgingRule()
        self.requests = self.extra = 0
        self._known = [_Known() for _ in range(children)]
        self._tokens = self.rule.burst

    def order(self, candidates: Sequence[int], needed: int, size_bytes: int, at_s: float) -> list[int]:
        """A read begins. Returns the children in the order in which it should ask them.

        Args:
            candidates: those that could answer; of equally good ones, those named first are asked first.
            needed: how many of them it asks to begin with.
            size_bytes: roughly how much each is asked for.
            at_s: now.
        """
        self.requests += needed
        self._tokens = min(self.rule.burst, self._tokens + self.rule.budget * needed)

        def key(child: int) -> tuple[float, float]:
            known = self._known[child]
            usual_s = known.usual_s(_class_of(size_bytes), at_s)
            return (known.paused_until_s, usual_s) if known.paused_until_s > at_s else (-inf, _rough(usual_s))

        return sorted(candidates, key=key)

    def late_after_s(self, child: int, size_bytes: int) -> float:
        """Return how long a child may take for an answer of this size before another child is asked, too."""
        rule = self.rule
        if self._tokens < 1 or rule.percentile >= 1:
            return rule.patience_s
        size_class = _class_of(size_bytes)
        seen = [*self._known[child].answers.get(size_class, ())]
        if len(seen) < _FEW:
            seen = [taken_s for each in self._known for taken_s in each.answers.get(size_class, ())]
        if len(seen) < _FEW:
            return rule.patience_s
        return min(rule.patience_s, max(rule.least_s, _MARGIN * _percentile(seen, rule.percentile)))

    def asked_beside(self) -> None:
        """A read asked one more child because another was late."""
        self.extra += 1
        self._tokens -= 1

    def answered(self, child: int, size_bytes: int, taken_s: float, at_s: float) -> None:
        """A child has answered."""
        known = self._known[child]
        known.took(size_bytes, taken_s, at_s)
        known.failed_in_a_row = known.unanswered_in_a_row = 0
        known.paused_until_s = -inf

    def given_up(self, child: int, size_bytes: int, waited_s: float, at_s: float) -> None:
        """A read waited this long for a late child and no longer needs its answer.

        The answer would have taken longer, nobody knows how much: it is counted as twice as long. A child counts as
        failed after the whole patience, or when it was late several times in a row.
        """
        known = self._known[child]
        known.took(size_bytes, 2 * waited_s, at_s)
        known.unanswered_in_a_row += 1
        if waited_s >= self.rule.patience_s or known.unanswered_in_a_row >= _OFTEN:
            self.failed(child, at_s)

    def failed(self, child: int, at_s: float) -> None:
        """A child did not answer: it is asked last for a second, and twice as long each time that it fails again."""
        known = self._known[child]
        known.failed_in_a_row += 1
        known.paused_until_s = at_s + min(_LONGEST_PAUSE_S, 0.5 * 2.0 ** min(known.failed_in_a_row, 16))


def _class_of(size_bytes: int) -> int:
    """Sizes within a factor of four are alike, and all that are so small that waiting takes most of the time."""
    return max(size_bytes, _SMALL_BYTES).bit_length() // 2


def _rough(seconds: float) -> float:
    """A time in steps of a quarter, so that children which are about equal keep the order in which they are named."""
    return round(log(seconds) / log(1.25)) if seconds > 0 else -inf


def _percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
