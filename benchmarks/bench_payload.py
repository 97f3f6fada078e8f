"""Measure how fast payloads are made, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.harness import Figure, alternating, measure_growth, median
from pytest_cloudbench.model import KIB, MIB, Content
from pytest_cloudbench.workload.payload import Generator, Payloads

__all__ = ["measure"]

_BYTES = 1024 * MIB
_BLOCK_BYTES = 128 * MIB
_BLOCKS = 5

_KINDS: Mapping[str, tuple[Callable[[Payloads], Generator], float]] = {
    "payload_random_over_aes": (lambda payloads: payloads.random(_BYTES), 0.6),
    "payload_delta_over_aes": (lambda payloads: payloads.delta(_BYTES, 0.5, "spread"), 0.2),
    "payload_compressible_over_aes": (lambda payloads: payloads.compressible(_BYTES, 0.5), 0.35),
    "payload_duplicated_over_aes": (lambda payloads: payloads.duplicated(_BYTES, 0.5), 0.27),
    "payload_jpeg_over_aes": (lambda payloads: payloads.jpeg(_BYTES), 0.1),
    "payload_sparse_over_aes": (lambda payloads: payloads.sparse(_BYTES), 0.5),
    "payload_text_over_aes": (lambda payloads: payloads.text(_BYTES), 0.04),
}
"""The generator of each figure, and its bound."""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``payload_KIND_over_aes``. Random payloads are AES in counter mode, so AES alone is the least they can cost."""
    return [_measure_kind(name, *_KINDS[name], runs) for name in names]


def _measure_kind(name: str, make: Callable[[Payloads], Generator], bound: float, runs: int) -> Figure:
    content = make(Payloads("benchmark")).content(0, 0)
    total_bytes = _BLOCK_BYTES if bound > 0.1 else _BLOCK_BYTES // 8
    blocks = alternating(lambda: _gb_per_s(content, MIB, total_bytes), _aes_gb_per_s, _BLOCKS * runs)
    details: dict[str, Any] = {**blocks.details(), "read_bytes": MIB}
    for read_bytes in (64 * KIB, 256 * KIB, 4 * MIB):
        details[f"reads_of_{read_bytes // KIB}_kib"] = round(_gb_per_s(content, read_bytes, total_bytes), 2)
    growth = measure_growth("bytes", MIB, lambda size: size / _gb_per_s(content, MIB, size) / 1e9)
    absolute = {"payloads, GB / CPU-second": median(blocks.ours), "AES-CTR, GB / CPU-second": median(blocks.reference)}
    return Figure(name, blocks.ratio, "GB / GB of AES-CTR alone", bound, "at least", details, absolute, growth)


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
