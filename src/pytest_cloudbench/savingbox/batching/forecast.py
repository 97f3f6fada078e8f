"""The pushes, traffic and waiting that a load of changes would cost behind a batching folder, in virtual time.

Traffic is an estimate by the paper's own numbers. A client's real traffic is measured elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules, Change, pushes
from pytest_cloudbench.savingbox.batching.deferral import AdaptiveBatcher

SESSION_BYTES = 36_300
"""The traffic of one push besides its content: Dropbox's traffic for a file of one byte (UDS, Table 1)."""
CONTENT_SHARE = 1.13
"""Traffic per byte of content: that of a file of 100 MB (the same table)."""
_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Forecast:
    """The pushes, traffic and waiting that some rules make of a load.

    Attributes:
        bound_s: the longest allowed wait, or None for UDS's rules.
        pushes: the number of pushes.
        content_bytes: of all changes together.
        mean_wait_s: mean over all changes of the time from the change to its push.
        longest_wait_s: the longest such time.
    """

    bound_s: float | None
    pushes: int
    content_bytes: int
    mean_wait_s: float
    longest_wait_s: float

    @property
    def traffic_bytes(self) -> float:
        """An estimate: the cost of one session for each push, plus the content."""
        return self.pushes * SESSION_BYTES + CONTENT_SHARE * self.content_bytes

    @property
    def tue(self) -> float:
        """Traffic over content."""
        return self.traffic_bytes / self.content_bytes


def forecast_batching(changes: Iterable[Change], rules: BatchRules, bound_s: float | None = None) -> Forecast:
    """Return the pushes, traffic and waiting that some rules make of a load.

    Args:
        changes: at least one, in the order of their times.
        rules: UDS's.
        bound_s: for the adaptive wait.
    """
    changes = list(changes)
    batcher = Batcher(rules) if bound_s is None else AdaptiveBatcher(rules, round(bound_s * _S))
    count, waits_ns, longest_ns = 0, 0, 0
    waiting = deque[Change]()

    def note_waiting() -> Iterator[Change]:
        for change in changes:
            waiting.append(change)
            yield change

    for batch in pushes(batcher, note_waiting()):
        count += 1
        longest_ns = max(longest_ns, batch.waited_ns)
        # The last change has filled the batch, or it came when the batch was due, and belongs to the next one.
        while waiting and (batch.why == "bytes" or waiting[0].at_ns < batch.taken_ns):
            waits_ns += batch.taken_ns - waiting.popleft().at_ns
    content_bytes = sum(change.added_bytes for change in changes)
    return Forecast(bound_s, count, content_bytes, waits_ns / max(1, len(changes)) / _S, longest_ns / _S)


def curve(changes: Iterable[Change], rules: BatchRules, bounds_s: Sequence[float]) -> list[Forecast]:
    """Return traffic against delay: by UDS's rules, and by the adaptive wait with each bound."""
    changes = list(changes)
    return [forecast_batching(changes, rules, bound_s) for bound_s in (None, *bounds_s)]
