"""How fast payloads are made, on one core."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Figure, alternating, median
from pytest_cloudbench.model import KIB, MIB, Content
from pytest_cloudbench.workload.payload import Payloads

__all__ = ["measure"]

_BYTES = 1024 * MIB
_BLOCK_BYTES = 128 * MIB
_BLOCKS = 5


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``payload_over_aes``: random payloads are AES in counter mode, so AES alone is the lower bound of their cost."""
    payloads = Payloads("benchmark")
    content = payloads.random(_BYTES).content(0, 0)
    blocks = alternating(lambda: _gb_per_s(content, MIB, _BLOCK_BYTES), _aes_gb_per_s, _BLOCKS * runs)
    details: dict[str, Any] = {**blocks.details(), "read_bytes": MIB}
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
    absolute = {"payloads, GB / CPU-second": median(blocks.ours), "AES-CTR, GB / CPU-second": median(blocks.reference)}
    return [Figure("payload_over_aes", blocks.ratio, "GB / GB of AES-CTR alone", 0.6, "at least", details, absolute)]


def _aes_gb_per_s() -> float:
    """Speed of the cipher itself, into an existing buffer."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    cipher = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor()
    source, target = bytes(MIB), bytearray(MIB + 16)
    start_ns = time.thread_time_ns()
    for _ in range(_BLOCK_BYTES // MIB):
        cipher.update_into(source, target)
    return _BLOCK_BYTES / (time.thread_time_ns() - start_ns)


def _gb_per_s(content: Content, read_bytes: int, total_bytes: int) -> float:
    """Per second of one thread's CPU time, so that other work on the machine does not count."""
    start_ns = time.thread_time_ns()
    for offset in range(0, total_bytes, read_bytes):
        content.read(offset, read_bytes)
    return total_bytes / (time.thread_time_ns() - start_ns)
