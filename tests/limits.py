"""The time that a test waits for something before it reports a hang."""

from __future__ import annotations

__all__ = ["HANG_S"]

HANG_S = 500.0
"""Far above any duration on a slow and busy machine, and below the limit of ``make test`` (``ENDED_AFTER_S``)."""
