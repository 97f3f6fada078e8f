"""How fast payloads are made, on one core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Figure, median
from pytest_cloudbench.model import KIB, MIB, Content
from pytest_cloudbench.payload import Payloads

__all__ = ["measure"]

_BYTES = 1024 * MIB


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``payload_random_gb_per_s``."""
    if "payload_random_gb_per_s" not in names:
        return []
    payloads = Payloads("benchmark")
    content = payloads.random(_BYTES).content(0, 0)
    _gb_per_s(content, MIB, 64 * MIB)  # imports, warm caches
    rates = [_gb_per_s(content, MIB, _BYTES) for _ in range(runs)]
    details: dict[str, Any] = {"runs": [round(rate, 2) for rate in rates], "read_bytes": MIB}
    for read_bytes in (64 * KIB, 256 * KIB, 4 * MIB):
        details[f"reads_of_{read_bytes // KIB}_kib"] = round(_gb_per_s(content, read_bytes, _BYTES // 4), 2)
    others = {
        "delta_spread": payloads.delta(_BYTES, 0.5, "spread"),
        "compressible": payloads.compressible(_BYTES, 0.5),
        "duplicated": payloads.duplicated(_BYTES, 0.5),
        "jpeg": payloads.jpeg(_BYTES),
        "sparse": payloads.sparse(_BYTES),
        "text": payloads.text(_BYTES),
    }
    for name, payload in others.items():
        details[name] = round(_gb_per_s(payload.content(0, 0), MIB, 32 * MIB), 3)
    return [Figure("payload_random_gb_per_s", round(median(rates), 2), "GB / CPU-second", 4, "at least", details)]


def _gb_per_s(content: Content, read_bytes: int, total_bytes: int) -> float:
    """Of one thread's processor time, so that other work on the machine does not count."""
    start_ns = time.thread_time_ns()
    for offset in range(0, total_bytes, read_bytes):
        content.read(offset, read_bytes)
    return total_bytes / (time.thread_time_ns() - start_ns)
