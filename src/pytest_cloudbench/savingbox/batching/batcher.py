"""The rules of update-batched delayed synchronization (UDS, Middleware 2013, section 5.1), in virtual time.

The caller reports each change and asks when a push is due. It then takes the batch, pushes it, and puts back what it
could not push.

A push is due at the first of three times:

=============  ====================================================================================================
``quiet``      ``quiet_ns`` after the last change of any file (the paper's timer t, reset by every change)
``bytes``      as soon as the waiting bytes reach ``limit_bytes`` (the paper's counter c, in compressed bytes)
``at most``    ``at_most_ns`` after the first waiting change (the paper's fail-safe)
=============  ====================================================================================================

The paper leaves some rules open. Here, a file's newer difference replaces its older one in the counter, because it
contains both. Deletions and renames reset the timer and count no bytes. The fail-safe starts with the first waiting
change, not on a fixed grid. A change at exactly the time of a push comes after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Reason = Literal["quiet", "bytes", "at most", "asked"]
"""The rule that made a push due, or ``asked`` if none did and the caller asked for it."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The limits at which a push is due.

    Attributes:
        limit_bytes: the paper's c, in compressed bytes: a push is due as soon as this many wait.
        quiet_ns: the paper's t: a push is due after this long without a change.
        at_most_ns: the fail-safe: no change waits longer.

    Raises ValueError for limits below 1 byte, or times below 1 ns.
    """

    limit_bytes: int = 250 * 1024
    quiet_ns: int = 5_000_000_000
    at_most_ns: int = 30_000_000_000

    def __post_init__(self) -> None:
        """Check the limits."""
        if self.limit_bytes < 1 or self.quiet_ns < 1 or self.at_most_ns < 1:
            raise ValueError(f"{self}: expected at least 1 byte and times of at least 1 ns")


class Waiting(NamedTuple):
    """The unpushed changes of one path: the time of the first, and their compressed bytes."""

    first_ns: int
    unpushed_bytes: int


@dataclass(frozen=True, slots=True)
class PushBatch:
    """Changes to be pushed together.

    Attributes:
        paths: the waiting paths, each with its first change and its bytes, the longest-waiting one first.
        why: the rule that made it due, or ``asked`` if the caller asked for it.
        taken_ns: when it was taken.
    """

    paths: dict[str, Waiting]
    why: Reason
    taken_ns: int

    @property
    def unpushed_bytes(self) -> int:
        """The compressed bytes of all paths."""
        return sum(waiting.unpushed_bytes for waiting in self.paths.values())

    @property
    def waited_ns(self) -> int:
        """The time that the first change waited."""
        return self.taken_ns - next(iter(self.paths.values())).first_ns if self.paths else 0


class Batcher:
    """The waiting changes, and when they are due. All times come from the caller and never go backwards.

    A mode that waits differently is a subclass that overrides ``quiet_ns``, which is called at each change.
    """

    def __init__(self, rules: BatchRules) -> None:
        self.rules = rules
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()  # in the order of their first changes
        self._bytes = 0
        self._quiet_due_ns = 0

    @property
    def unpushed_bytes(self) -> int:
        """Compressed bytes that wait."""
        return self._bytes

    @property
    def is_full(self) -> bool:
        """True if the waiting bytes reach the limit, so that a push is due."""
        return self._bytes >= self.rules.limit_bytes

    @property
    def fail_safe_ns(self) -> int:
        """The longest time that a file waits."""
        return self.rules.at_most_ns

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, path: object) -> bool:
        return path in self._waiting

    def get_waiting(self, path: str) -> Waiting | None:
        """Return the unpushed changes of a path, or None if there are none."""
        return self._waiting.get(path)

    def quiet_ns(self, path: str, now_ns: int) -> int:
        """Return how long nothing may change after this change of ``path`` before a push is due."""
        return self.rules.quiet_ns

    def add_change(self, path: str, unpushed_bytes: int, now_ns: int) -> None:
        """Add the creation or modification of a file.

        ``unpushed_bytes`` is its whole difference since the last push, compressed.
        """
        was = self._waiting.get(path)
        self._bytes += unpushed_bytes - (was.unpushed_bytes if was else 0)
        # A path that waits already keeps its position in the order.
        self._waiting[path] = Waiting(was.first_ns if was else now_ns, unpushed_bytes)
        self._quiet_due_ns = now_ns + self.quiet_ns(path, now_ns)

    def correct_bytes(self, path: str, unpushed_bytes: int) -> None:
        """Correct the bytes of a waiting path whose file has not changed."""
        was = self._waiting.get(path)
        if was is not None:
            self._bytes += unpushed_bytes - was.unpushed_bytes
            self._waiting[path] = was._replace(unpushed_bytes=unpushed_bytes)

    def add_removal(self, path: str, now_ns: int) -> None:
        """Add the deletion of a file: its bytes need no push, but the deletion does."""
        self.add_change(path, 0, now_ns)

    def forget(self, path: str) -> None:
        """Drop a path that is back at its pushed content, so that nothing of it waits."""
        was = self._waiting.pop(path, None)
        self._bytes -= was.unpushed_bytes if was else 0

    def due_ns(self) -> int | None:
        """Return when the waiting changes are to be pushed, perhaps in the past, or None if nothing waits."""
        if not self._waiting:
            return None
        return min(due_ns for due_ns in self._rules_due_ns() if due_ns is not None)

    def take_batch(self, now_ns: int) -> PushBatch:
        """Take out all waiting changes, which the caller now pushes or puts back."""
        batch = PushBatch(dict(self._waiting), self._find_reason(now_ns), now_ns)
        self._waiting.clear()
        self._bytes = 0
        return batch

    def put_back(self, paths: dict[str, Waiting]) -> None:
        """Let changes that could not be pushed wait again, counted from their first change.

        A path that has changed meanwhile keeps its newer bytes.
        """
        for path, was in paths.items():
            newer = self._waiting.get(path)
            self._bytes += was.unpushed_bytes if newer is None else 0
            self._waiting[path] = was if newer is None else newer._replace(first_ns=min(was.first_ns, newer.first_ns))
        self._sort_by_first_change()

    def _find_reason(self, now_ns: int) -> Reason:
        if not self._waiting:
            return "asked"
        quiet_ns, bytes_ns, at_most_ns = self._rules_due_ns()
        if bytes_ns is not None and bytes_ns <= now_ns:
            return "bytes"
        if min(quiet_ns, at_most_ns) > now_ns:
            return "asked"
        return "quiet" if quiet_ns <= at_most_ns else "at most"

    def _rules_due_ns(self) -> tuple[int, int | None, int]:
        """Return when each rule makes a push due, in the order of the table above.

        The counter's time is None while the counter is low.
        """
        first_ns = next(iter(self._waiting.values())).first_ns
        bytes_ns = first_ns if self.is_full else None
        return self._quiet_due_ns, bytes_ns, first_ns + self.rules.at_most_ns

    def _sort_by_first_change(self) -> None:
        self._waiting = OrderedDict(sorted(self._waiting.items(), key=lambda item: item[1].first_ns))


class Change(NamedTuple):
    """One change of a load: its time, its path, and the compressed bytes it adds to those that wait for that path."""

    at_ns: int
    path: str
    added_bytes: int


def pushes(batcher: Batcher, changes: Iterable[Change]) -> Iterator[PushBatch]:
    """Yield the batches in which ``batcher`` pushes a load, if a push takes no time. ``changes`` are in time order."""
    added: dict[str, int] = {}
    for change in changes:
        while (due_ns := batcher.due_ns()) is not None and due_ns <= change.at_ns:
            yield batcher.take_batch(due_ns)
            added.clear()
        added[change.path] = added.get(change.path, 0) + change.added_bytes
        batcher.add_change(change.path, added[change.path], change.at_ns)
        if batcher.is_full:
            yield batcher.take_batch(change.at_ns)
            added.clear()
    if (due_ns := batcher.due_ns()) is not None:
        yield batcher.take_batch(due_ns)
