"""How long a change may wait for the next one: until it is expected, and within the bound that the user sets.

What may live here: rhythms of changes, and a due time derived from them; ask and tell, in virtual time. UDS's own rules
are in ``batcher``.

UDS pushes once nothing has changed for t. Changes whose gaps are longer gain nothing: 1,024 appends, one every 10 s,
are 1,024 pushes. A rhythm that was seen before says whether it pays to wait longer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

__all__ = ["Deferral"]

_KEPT_GAPS = 8
_NEEDED_GAPS = 2
_PATIENCE = 1.25
_MOST_PATHS = 10_000


@dataclass(slots=True)
class _Rhythm:
    """When something changed last, and the latest gaps that were longer than the quiet time."""

    last_s: float
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_GAPS))


class Deferral:
    """Says until when a file's change waits.

    A file's rhythm is its last eight gaps without a change that were longer than ``quiet_s``. The next change is
    expected if at least half of them, and two, are short enough for it to come before the bound. Then the file waits
    for it: the longest of those gaps and a quarter more. If none is expected, waiting gains nothing, and the file is
    due after ``quiet_s`` as with UDS. So it is after a rhythm has stopped. A file that has no rhythm yet takes that of
    its folder: new files may come as regularly as changes to one.

    Args:
        quiet_s: UDS's t, in seconds.
        at_most_s: no change waits longer than this, at least ``quiet_s``.
        most_paths: rhythms that are remembered; the one that changed longest ago is forgotten first.
    """

    def __init__(self, quiet_s: float, at_most_s: float, *, most_paths: int = _MOST_PATHS) -> None:
        """Raises ValueError for times that leave no room."""
        if not 0 < quiet_s <= at_most_s:
            raise ValueError(f"quiet_s is {quiet_s:g} and at_most_s {at_most_s:g}; expected 0 < quiet_s <= at_most_s")
        self.quiet_s, self.at_most_s = quiet_s, at_most_s
        self._most_paths = most_paths
        self._rhythms: OrderedDict[str, _Rhythm] = OrderedDict()

    def tell(self, path: str, now_s: float) -> None:
        """The file changed; ``now_s`` never goes back."""
        self._tell(path, now_s)
        self._tell(_folder(path), now_s)

    def due_s(self, path: str, first_s: float) -> float:
        """Until when the file may wait.

        Args:
            path: one that has changed.
            first_s: when the oldest of its changes that wait now was made.
        """
        bound_s = first_s + self.at_most_s
        rhythm = self._rhythms.get(path)
        if rhythm is None or len(rhythm.gaps_s) < _NEEDED_GAPS:
            rhythm = self._rhythms.get(_folder(path), rhythm)
        if rhythm is None:  # forgotten: there were too many others
            return min(bound_s, first_s + self.quiet_s)
        short = [gap_s for gap_s in rhythm.gaps_s if rhythm.last_s + gap_s < bound_s]
        is_expected = len(short) >= _NEEDED_GAPS and 2 * len(short) >= len(rhythm.gaps_s)
        return min(bound_s, rhythm.last_s + (_PATIENCE * max(short) if is_expected else self.quiet_s))

    def forget(self, path: str) -> None:
        """The file is gone."""
        self._rhythms.pop(path, None)

    def _tell(self, name: str, now_s: float) -> None:
        rhythm = self._rhythms.get(name)
        if rhythm is None:
            self._rhythms[name] = _Rhythm(now_s)
            if len(self._rhythms) > self._most_paths:
                self._rhythms.popitem(last=False)
            return
        if now_s - rhythm.last_s > self.quiet_s:
            rhythm.gaps_s.append(now_s - rhythm.last_s)
        rhythm.last_s = now_s
        self._rhythms.move_to_end(name)


def _folder(path: str) -> str:
    """The name of a file's folder here; it ends in a slash, which no file's does."""
    return f"{path.rpartition('/')[0]}/"
