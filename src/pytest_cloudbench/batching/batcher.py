"""The rules of update-batched delayed synchronization (UDS, Middleware 2013, section 5.1), in virtual time.

What may live here: which changes wait, since when, and when all of them are due. Ask and tell: the caller tells about
each change, asks when a push is due, takes the batch, pushes it, and puts back what it could not push.

A push is due at the first of three times:

=============  ====================================================================================================
``quiet``      ``quiet_ns`` after the last change of any file (the paper's timer t, reset by every change)
``bytes``      at once when the bytes that wait reach ``limit_bytes`` (the paper's counter c; compressed bytes)
``at most``    ``at_most_ns`` after the first change that waits (the paper's fail-safe)
=============  ====================================================================================================

What the paper leaves open is decided so: a file's newer difference replaces its older one in the counter, since it
holds both; deletions and renames reset the timer and count no bytes; the fail-safe begins with the first change that
waits, not on a grid. A change at the very time of a push comes after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["BatchRules", "Batcher", "Change", "PushBatch", "Reason", "Waiting", "pushes"]

Reason = Literal["quiet", "bytes", "at most", "asked"]
"""Which rule made a push due; ``asked``: none did, the caller wanted it."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """When to push.

    Attributes:
        limit_bytes: the paper's c, in compressed bytes: as many push at once.
        quiet_ns: the paper's t: so long without a change pushes.
        at_most_ns: the fail-safe: nothing waits for longer.

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
    """What one path has that is not pushed: when it first changed, and its compressed bytes."""

    first_ns: int
    unpushed_bytes: int


@dataclass(frozen=True, slots=True)
class PushBatch:
    """What is to be pushed together.

    Attributes:
        paths: what waits, each with its first change and its bytes; the longest-waiting one first.
        why: which rule made it due; ``asked``: none did, the caller wanted it.
        taken_ns: when it was taken.
    """

    paths: dict[str, Waiting]
    why: Reason
    taken_ns: int

    @property
    def unpushed_bytes(self) -> int:
        """The compressed bytes of all paths."""
        return sum(each.unpushed_bytes for each in self.paths.values())

    @property
    def waited_ns(self) -> int:
        """For how long the first change waited."""
        return self.taken_ns - next(iter(self.paths.values())).first_ns if self.paths else 0


class Batcher:
    """What waits, and when it is due. All times come from the caller and never go backwards.

    A mode that waits differently derives from this and says another ``quiet_ns``: it is asked at each change.
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
    def fail_safe_ns(self) -> int:
        """How long a file waits at most."""
        return self.rules.at_most_ns

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, path: object) -> bool:
        return path in self._waiting

    def waiting(self, path: str) -> Waiting | None:
        """What a path has that is not pushed; None: nothing."""
        return self._waiting.get(path)

    def quiet_ns(self, path: str, now_ns: int) -> int:
        """For how long nothing must change after this change of ``path`` before it is pushed."""
        return self.rules.quiet_ns

    def changed(self, path: str, unpushed_bytes: int, now_ns: int) -> None:
        """A file was created or modified: ``unpushed_bytes`` is all that differs from what was pushed, compressed."""
        was = self._waiting.get(path)
        self._bytes += unpushed_bytes - (was.unpushed_bytes if was else 0)
        self._waiting[path] = Waiting(was.first_ns if was else now_ns, unpushed_bytes)  # at its old place, if any
        self._quiet_due_ns = now_ns + self.quiet_ns(path, now_ns)

    def measured(self, path: str, unpushed_bytes: int) -> None:
        """The bytes of a path that waits are known better now; nothing has changed."""
        was = self._waiting.get(path)
        if was is not None:
            self._bytes += unpushed_bytes - was.unpushed_bytes
            self._waiting[path] = was._replace(unpushed_bytes=unpushed_bytes)

    def removed(self, path: str, now_ns: int) -> None:
        """A file is gone: its bytes need not be pushed, its deletion does."""
        self.changed(path, 0, now_ns)

    def renamed(self, old: str, new: str, now_ns: int) -> None:
        """A file has another name: its bytes go with it, and since when they wait."""
        was = self._waiting.get(old)
        self.changed(new, was.unpushed_bytes if was else 0, now_ns)
        if was is not None and was.first_ns < self._waiting[new].first_ns:
            self._waiting[new] = self._waiting[new]._replace(first_ns=was.first_ns)
            self._sort()
        self.changed(old, 0, now_ns)

    def forget(self, path: str) -> None:
        """Nothing of this path waits after all: it is again what was pushed."""
        was = self._waiting.pop(path, None)
        self._bytes -= was.unpushed_bytes if was else 0

    def due_ns(self) -> int | None:
        """When all that waits is to be pushed; may be in the past. None: nothing waits."""
        if not self._waiting:
            return None
        return min(self._rules_due_ns())

    def take(self, now_ns: int) -> PushBatch:
        """All that waits, which then waits no longer. To be pushed now, or put back."""
        quiet_ns, bytes_ns, at_most_ns = self._rules_due_ns() if self._waiting else (now_ns + 1,) * 3
        why: Reason = "asked"
        if bytes_ns <= now_ns:
            why = "bytes"
        elif min(quiet_ns, at_most_ns) <= now_ns:
            why = "quiet" if quiet_ns <= at_most_ns else "at most"
        batch = PushBatch(dict(self._waiting), why, now_ns)
        self._waiting.clear()
        self._bytes = 0
        return batch

    def put_back(self, paths: dict[str, Waiting]) -> None:
        """These could not be pushed: they wait again since their first change.

        What has changed meanwhile keeps its newer bytes.
        """
        for path, was in paths.items():
            newer = self._waiting.get(path)
            self._bytes += was.unpushed_bytes if newer is None else 0
            self._waiting[path] = was if newer is None else newer._replace(first_ns=min(was.first_ns, newer.first_ns))
        self._sort()

    def _rules_due_ns(self) -> tuple[int, int, int]:
        first_ns = next(iter(self._waiting.values())).first_ns
        at_most_ns = first_ns + self.rules.at_most_ns
        return self._quiet_due_ns, first_ns if self._bytes >= self.rules.limit_bytes else at_most_ns + 1, at_most_ns

    def _sort(self) -> None:
        self._waiting = OrderedDict(sorted(self._waiting.items(), key=lambda item: item[1].first_ns))


class Change(NamedTuple):
    """One change of a load: when, of which path, and how many compressed bytes it adds to what waits of that path."""

    at_ns: int
    path: str
    added_bytes: int


def pushes(rules: BatchRules, changes: Iterable[Change], batcher: Batcher | None = None) -> Iterator[PushBatch]:
    """The batches that a load gives when pushing takes no time: what is expected of a real one.

    Args:
        rules: when to push.
        changes: in the order of their times.
        batcher: another one than ``Batcher(rules)``, for other rules.
    """
    batcher = Batcher(rules) if batcher is None else batcher
    added: dict[str, int] = {}
    for change in changes:
        while (due_ns := batcher.due_ns()) is not None and due_ns <= change.at_ns:
            yield batcher.take(due_ns)
            added.clear()
        added[change.path] = added.get(change.path, 0) + change.added_bytes
        batcher.changed(change.path, added[change.path], change.at_ns)
        if batcher.unpushed_bytes >= batcher.rules.limit_bytes:
            yield batcher.take(change.at_ns)
            added.clear()
    if (due_ns := batcher.due_ns()) is not None:
        yield batcher.take(due_ns)
