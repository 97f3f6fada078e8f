"""Hedged reads: the order in which a read asks children, and when it asks one more.

What may live here: decisions that depend only on reported events, in the caller's time. The caller has the clock, the
children and the lock.

A read needs answers from some of the n children, and asks just that many: those that are usually quickest. A child that
takes longer than most of its own answers (a percentile of them) is *late*: another child is asked as well, and the
first answers count. These extra requests are paid from a budget, a share of all requests, so that uniformly slow
children are not asked twice as often. Without budget, a child is late only when the caller's patience ends, but then
always, because a child that hangs must not hang reads. Children that failed or were given up recently are asked last
for a while. Source: J. Dean and L. A. Barroso, "The tail at scale", 2013.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log

_KEPT_ANSWERS = 128
_LEAST_ANSWERS = 8
"""A percentile of fewer answers than this says nothing."""

_SMALL_BYTES = 1 << 16

_MARGIN = 1.1
"""A child is late when it takes 10 % longer than its percentile. Without this margin, a child whose answers all take
about as long would often count as late."""

_MOST_UNANSWERED = 3
"""After this many late requests in a row without an answer, a child counts as failed."""

_RECENT_ANSWERS = 8
"""The number of answers that tell how quick a child usually is now."""

_LONGEST_PAUSE_S = 60.0
"""The longest time that a failed child is asked last. A recorded speed of this age is discarded and measured again."""


@dataclass(frozen=True, slots=True)
class HedgingRule:
    """The conditions under which a read asks another child.

    Attributes:
        patience_s: how long a child may take if its speed is not known, or there is no budget.
        percentile: a child is late when it takes longer than this share of its latest answers. 1 or more: never.
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


class _ChildHistory:
    """The history of one child: its latest answers by size, and until when to leave it alone."""

    __slots__ = ("answers", "failed_in_a_row", "latest_at_s", "paused_until_s", "unanswered_in_a_row")

    def __init__(self) -> None:
        self.answers: dict[int, deque[float]] = {}
        self.latest_at_s: dict[int, float] = {}
        self.failed_in_a_row = self.unanswered_in_a_row = 0
        self.paused_until_s = -inf

    def add_answer(self, size_bytes: int, taken_s: float, at_s: float) -> None:
        size_class = _size_class(size_bytes)
        self.answers.setdefault(size_class, deque(maxlen=_KEPT_ANSWERS)).append(taken_s)
        self.latest_at_s[size_class] = at_s

    def usual_s(self, size_class: int, at_s: float) -> float:
        """Return the child's latest usual time, or 0 if that is unknown, so that the child is asked and measured."""
        answers = self.answers.get(size_class, ())
        if len(answers) < _RECENT_ANSWERS or at_s > self.latest_at_s[size_class] + _LONGEST_PAUSE_S:
            return 0.0
        return _percentile([*answers][-_RECENT_ANSWERS:], 0.5)


class Hedging:
    """The shared state of all reads from some children: their latest answers, and the budget.

    Attributes:
        requests: the number of requests that reads began with.
        extra: the number of further requests because a child was late.
    """

    def __init__(self, children: int, rule: HedgingRule | None = None) -> None:
        self.rule = rule or HedgingRule()
        self.requests = self.extra = 0
        self._histories = [_ChildHistory() for _ in range(children)]
        self._tokens = self.rule.burst

    def order(self, candidates: Sequence[int], needed: int, size_bytes: int, at_s: float) -> list[int]:
        """Begin a read: return the children in the order in which it should ask them.

        Args:
            candidates: those that could answer; of equally good ones, those named first are asked first.
            needed: how many of them it asks to begin with.
            size_bytes: roughly how much each is asked for.
            at_s: now.
        """
        self.requests += needed
        self._tokens = min(self.rule.burst, self._tokens + self.rule.budget * needed)

        def sort_key(child: int) -> tuple[float, float]:
            history = self._histories[child]
            usual_s = history.usual_s(_size_class(size_bytes), at_s)
            return (history.paused_until_s, usual_s) if history.paused_until_s > at_s else (-inf, _round_time(usual_s))

        return sorted(candidates, key=sort_key)

    def late_after_s(self, child: int, size_bytes: int) -> float:
        """Return how long a child may take for an answer of this size before another child is asked, too."""
        rule = self.rule
        if self._tokens < 1 or rule.percentile >= 1:
            return rule.patience_s
        size_class = _size_class(size_bytes)
        answers_s = [*self._histories[child].answers.get(size_class, ())]
        if len(answers_s) < _LEAST_ANSWERS:
            answers_s = [taken_s for history in self._histories for taken_s in history.answers.get(size_class, ())]
        if len(answers_s) < _LEAST_ANSWERS:
            return rule.patience_s
        return min(rule.patience_s, max(rule.least_s, _MARGIN * _percentile(answers_s, rule.percentile)))

    def note_extra_request(self) -> None:
        """Note that a read asked one more child because another was late."""
        self.extra += 1
        self._tokens -= 1

    def note_answer(self, child: int, size_bytes: int, taken_s: float, at_s: float) -> None:
        """Note that a child has answered."""
        history = self._histories[child]
        history.add_answer(size_bytes, taken_s, at_s)
        history.failed_in_a_row = history.unanswered_in_a_row = 0
        history.paused_until_s = -inf

    def note_unanswered(self, child: int, size_bytes: int, waited_s: float, at_s: float) -> None:
        """Note that a read waited this long for a late child and no longer needs its answer.

        The answer would have taken longer, by an unknown time, so it is counted as twice as long. A child counts as
        failed after the whole patience, or when it was late several times in a row.
        """
        history = self._histories[child]
        history.add_answer(size_bytes, 2 * waited_s, at_s)
        history.unanswered_in_a_row += 1
        if waited_s >= self.rule.patience_s or history.unanswered_in_a_row >= _MOST_UNANSWERED:
            self.note_failure(child, at_s)

    def note_failure(self, child: int, at_s: float) -> None:
        """Ask a child that failed last for a second, and for twice as long each time that it fails again."""
        history = self._histories[child]
        history.failed_in_a_row += 1
        history.paused_until_s = at_s + min(_LONGEST_PAUSE_S, 0.5 * 2.0 ** min(history.failed_in_a_row, 16))


def _size_class(size_bytes: int) -> int:
    """Return the class of a size: sizes within a factor of four, or all sizes so small that latency dominates."""
    return max(size_bytes, _SMALL_BYTES).bit_length() // 2


def _round_time(seconds: float) -> float:
    """Round a time to a power of 1.25, so that children that are about equal keep the order in which they are named."""
    return round(log(seconds) / log(1.25)) if seconds > 0 else -inf


def _percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
