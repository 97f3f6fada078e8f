"""The time that a change may wait for the next one, within the bound that the user sets.

The rules of UDS (``batcher``) push once nothing has changed for t. Changes with longer gaps gain nothing: 1,024
appends, one every 10 s, are 1,024 pushes. A known rhythm tells whether it pays to wait longer.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from pytest_cloudbench.savingbox.batching.batcher import Batcher, BatchRules, PushBatch

_KEPT_GAPS = 8
_NEEDED_GAPS = 2
_MOST_PATHS = 10_000


@dataclass(slots=True)
class _Rhythm:
    """The last change, the latest gaps longer than the quiet time, and the number of shorter gaps since those."""

    last_ns: int
    gaps_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT_GAPS))
    quick_gaps: int = 0

    @property
    def is_known(self) -> bool:
        return self.quick_gaps >= _NEEDED_GAPS or len(self.gaps_ns) >= _NEEDED_GAPS


class Deferral:
    """The rhythms of files, and until when a change of each may wait.

    A file's rhythm is its last eight gaps of ``quiet_ns`` or more. The next change is expected if at least half of
    them, and at least two, are short enough for it to come before the bound. Then the file waits for it: 1.25 times
    the longest of those gaps. If no change is expected, for instance because a rhythm has stopped, the file is due
    after ``quiet_ns`` without a change. A file that changes faster than that also has a rhythm, and waits until its
    changes pause. A file without a rhythm uses its folder's: new files may come as regularly as changes to one.

    Args:
        quiet_ns: UDS's t.
        bound_ns: no change waits longer than this, at least ``quiet_ns``.
        most_paths: the number of rhythms to remember. The one that changed longest ago is forgotten first.
    """

    def __init__(self, quiet_ns: int, bound_ns: int, *, most_paths: int = _MOST_PATHS) -> None:
        """Raises ValueError unless 0 < ``quiet_ns`` <= ``bound_ns``."""
        if not 0 < quiet_ns <= bound_ns:
            raise ValueError(f"quiet_ns is {quiet_ns} and bound_ns {bound_ns}; expected 0 < quiet_ns <= bound_ns")
        self.quiet_ns, self.bound_ns = quiet_ns, bound_ns
        self._most_paths = most_paths
        self._rhythms: OrderedDict[str, _Rhythm] = OrderedDict()

    def add_change(self, path: str, now_ns: int) -> None:
        """Add a change of the file. ``now_ns`` never goes back."""
        self._add_gap(path, now_ns)
        self._add_gap(_folder_key(path), now_ns)

    def due_ns(self, path: str, first_ns: int) -> int | None:
        """Return until when the file may wait, or None if it has no rhythm.

        Args:
            path: one that has changed.
            first_ns: the time of its oldest waiting change.
        """
        rhythm = self._rhythms.get(path)
        if rhythm is None or not rhythm.is_known:
            rhythm = self._rhythms.get(_folder_key(path))
        if rhythm is None or not rhythm.is_known:
            return None
        bound_ns = first_ns + self.bound_ns
        short = [gap_ns for gap_ns in rhythm.gaps_ns if rhythm.last_ns + gap_ns < bound_ns]
        is_expected = len(short) >= _NEEDED_GAPS and 2 * len(short) >= len(rhythm.gaps_ns)
        return min(bound_ns, rhythm.last_ns + (max(short) * 5 // 4 if is_expected else self.quiet_ns))

    def _add_gap(self, name: str, now_ns: int) -> None:
        rhythm = self._rhythms.get(name)
        if rhythm is None:
            self._rhythms[name] = _Rhythm(now_ns)
            if len(self._rhythms) > self._most_paths:
                self._rhythms.popitem(last=False)
            return
        gap_ns = now_ns - rhythm.last_ns
        if gap_ns >= self.quiet_ns:
            rhythm.gaps_ns.append(gap_ns)
            rhythm.quick_gaps = 0
        else:
            rhythm.quick_gaps += 1
        rhythm.last_ns = now_ns
        self._rhythms.move_to_end(name)


class AdaptiveBatcher(Batcher):
    """UDS's rules for files without a rhythm, and a longer wait for the next change for files with one.

    A push takes everything that waits, so the first due file decides. A file without a rhythm is never later than with
    UDS, whatever the others do.

    Args:
        rules: UDS's own.
        bound_ns: the longest time that any change waits, at least the rules' ``quiet_ns``. If it is shorter than their
            fail-safe, it replaces that.
    """

    def __init__(self, rules: BatchRules, bound_ns: int) -> None:
        """Raises ValueError for a bound below ``quiet_ns``."""
        super().__init__(BatchRules(rules.limit_bytes, rules.quiet_ns, bound_ns))
        self._fail_safe_ns = min(rules.at_most_ns, bound_ns)
        self._deferral = Deferral(rules.quiet_ns, bound_ns)
        self._dues: list[tuple[int, str]] = []
        self._without_rhythm: dict[str, int] = {}

    @property
    def fail_safe_ns(self) -> int:
        """The longest time that a file without a rhythm waits."""
        return self._fail_safe_ns

    def quiet_ns(self, path: str, now_ns: int) -> int:
        """Return the time from now until the first waiting file is due."""
        self._deferral.add_change(path, now_ns)
        was = self.get_waiting(path)
        first_ns = was.first_ns if was else now_ns
        due_ns = self._deferral.due_ns(path, first_ns)
        if due_ns is None:
            self._without_rhythm.setdefault(path, first_ns)
        else:
            self._without_rhythm.pop(path, None)
            heapq.heappush(self._dues, (due_ns, path))
        dues = [self._first_rhythmic_due_ns()]
        if self._without_rhythm:  # in the order of their first changes
            dues.append(
                min(now_ns + self.rules.quiet_ns, next(iter(self._without_rhythm.values())) + self._fail_safe_ns)
            )
        return max(0, min(due_ns for due_ns in dues if due_ns is not None) - now_ns)

    def take_batch(self, now_ns: int) -> PushBatch:
        """Take out all waiting changes, see ``Batcher.take_batch``."""
        self._dues.clear()
        self._without_rhythm.clear()
        return super().take_batch(now_ns)

    def forget(self, path: str) -> None:
        """Drop a path: nothing of it waits any more."""
        self._without_rhythm.pop(path, None)
        super().forget(path)

    def _first_rhythmic_due_ns(self) -> int | None:
        """Return when the first file with a rhythm is due.

        Due times only grow, so a stale one is replaced by a later one.
        """
        while self._dues:
            due_ns, path = self._dues[0]
            waiting = self.get_waiting(path)
            now_due_ns = None if waiting is None else self._deferral.due_ns(path, waiting.first_ns)
            if now_due_ns is not None and now_due_ns <= due_ns:
                return due_ns
            heapq.heappop(self._dues)
            if now_due_ns is not None:
                heapq.heappush(self._dues, (now_due_ns, path))
        return None


def _folder_key(path: str) -> str:
    """Return the key of a file's folder in ``_rhythms``. It ends in a slash, unlike any file's."""
    return f"{path.rpartition('/')[0]}/"
