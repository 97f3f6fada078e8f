"""Detection that a sync client is done from the end of its traffic, without help from the client."""

from __future__ import annotations

QUIET_BYTES = 20_000
"""Default of the ``quiet_bytes`` option. Fewer bytes are background traffic of other programs."""


class QuietWatch:
    """A judge of byte counts. Traffic has ended once at most ``quiet_bytes`` are carried in ``quiet_s``.

    Before any traffic, quiet means nothing, because a client that has not noticed a change is quiet as well.

    Attributes:
        was_busy: whether there was traffic of more than ``quiet_bytes``.
    """

    def __init__(self, quiet_s: float, quiet_bytes: float, carried_bytes: int, now_s: float) -> None:
        self._quiet_s, self._quiet_bytes = quiet_s, quiet_bytes
        self._last_bytes, self._since_s = carried_bytes, now_s
        self.was_busy = False

    def is_quiet(self, carried_bytes: int, now_s: float) -> bool:
        """Take the total of bytes carried so far, and return whether the traffic has ended."""
        if carried_bytes - self._last_bytes > self._quiet_bytes:
            self.was_busy = True
        elif now_s - self._since_s < self._quiet_s:
            return False
        elif self.was_busy:
            return True
        self._last_bytes, self._since_s = carried_bytes, now_s
        return False
