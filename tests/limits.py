"""How long a test waits for something to happen before it reports a hang."""

from __future__ import annotations

__all__ = ["HANG_S"]

HANG_S = 500.0
"""Far above what anything takes on a slow and busy machine, and below that of ``make test`` (``ENDED_AFTER_S``)."""
