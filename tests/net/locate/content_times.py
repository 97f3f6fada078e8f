"""The layer that a server must be given, by the times at which its content came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.truths import Truths

NEAR_MS = 2.0


def expected_layer(rows: Sequence[dict[str, Any]], truths: Truths) -> str:
    """Return the layer of a storage: ``unknown``, and left out as a truth, if this machine was slow to wake a process.

    Round trips on one machine take microseconds, while a process that waits may be woken only milliseconds later.
    """
    behind_ms = min(row["first_ms"] for row in rows) - min(row["rtt_ms"] for row in rows)
    is_near = behind_ms <= NEAR_MS
    truths.count([] if is_near else [f"the first byte came {behind_ms:.1f} ms later than a round trip"])
    return "storage" if is_near else "unknown"
