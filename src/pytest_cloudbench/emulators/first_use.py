"""What belongs together because it was first used together: an application and its secret, a token and its application.

What may live here: this one memory. Tests make up applications and tokens, so an emulator cannot know beforehand which
secret is right. A service refuses another one all the same, so the first that worked is the right one from then on.
"""

from __future__ import annotations

import hmac

__all__ = ["FirstUse"]


class FirstUse:
    """Remembers what each name was first used with."""

    def __init__(self) -> None:
        self._partners: dict[str, str] = {}

    def fits(self, name: str, partner: str) -> bool:
        """Returns whether a name was never used, or used with this partner."""
        return hmac.compare_digest(self._partners.get(name, partner).encode(), partner.encode())

    def keep(self, name: str, partner: str) -> None:
        """Remember the partner of a name that has none."""
        self._partners.setdefault(name, partner)
