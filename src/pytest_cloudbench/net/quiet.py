"""The sign that a sync client is done which needs nothing of the client: its traffic has ended."""

from __future__ import annotations

QUIET_BYTES = 20_000
"""Less than this is chatter of others, unless the user knows better."""


class QuietWatch:
    """Judges counts of carried bytes: quiet is, after some traffic, less than ``quiet_bytes`` for ``quiet_s``.

    Before any traffic, quiet is no sign: a client that has not noticed a change is quiet as well.

    Attributes:
        was_busy: whether there was traffic that stands out.
    """

    def __init__(self, quiet_s: float, quiet_bytes: float, carried_bytes: int, now_s: float) -> None:
        self._quiet_s, self._quiet_bytes = quiet_s, quiet_bytes
        self._last_bytes, self._since_s = carried_bytes, now_s
        self.was_busy = False

    def is_quiet(self, carried_bytes: int, now_s: float) -> bool:
        """Take the bytes that were carried until now, and return whether the traffic has ended."""
        if carried_bytes - self._last_bytes > self._quiet_bytes:
            self.was_busy = True
        elif now_s - self._since_s < self._quiet_s:
            return False
        elif self.was_busy:
            return True
        self._last_bytes, self._since_s = carried_bytes, now_s
        return False
