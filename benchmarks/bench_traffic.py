"""Measure how fast captures are read by the command that a user types: ``cloudbench analyze FILE --json``.

Beside it stand ``tcptrace -n -l`` and tshark with the fields that ours has, on the same files of seven unlike kinds.
All are whole processes, start and output included. dpkt and pyshark are libraries, so a small program reads with each,
whose start counts as well.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    ROOT,
    Figure,
    Usage,
    alternating,
    cloudbench,
    environment,
    measure_growth,
    median,
    python,
    run_tree,
    scratch,
)
from benchmarks.traffic_captures import KINDS, write_capture

__all__ = ["measure"]

_PACKETS, _PYSHARK_PACKETS = 500_000, 1_500
_MANY_PACKETS = 2_000_000  # of about 1 kB: 2 GB
_TIMES = "times as many packets / CPU-second of the whole process"
_FIELDS = (
    "frame.time_epoch ip.src ip.dst tcp.srcport tcp.dstport ip.len frame.len tcp.len tcp.seq tcp.ack tcp.flags.syn "
    "tcp.stream tcp.analysis.retransmission tcp.analysis.ack_rtt tls.handshake.extensions_server_name"
).split()
_BOUNDS = {"tcptrace": 1.0, "tshark": 15.0, "dpkt": 1.0, "pyshark": 100.0}


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``traffic_KIND_over_OTHER`` of each kind of capture, and ``traffic_2gb_rss_mb``."""
    figures = []
    with scratch() as folder:
        path = folder / "capture"
        for kind in KINDS:
            others = [name.rpartition("_")[2] for name in names if name.startswith(f"traffic_{kind}_over_")]
            if others:
                payload_bytes = write_capture(kind, path, _PACKETS)
                _check_payload(path, payload_bytes)
                growth = measure_growth("packets", _PACKETS // 100, partial(_cost_of, kind, folder))
                figures += [_compare(kind, path, other, runs, growth) for other in others]
    return [*figures, _measure_memory()] if "traffic_2gb_rss_mb" in names else figures


def _cost_of(kind: str, folder: Path, packets: int) -> float:
    path = folder / "grown"
    write_capture(kind, path, packets)
    return _run(_analyze(path)).cpu_s


def _compare(kind: str, path: Path, other: str, runs: int, growth: Any) -> Figure:
    """Return the ratio of one capture. It is unknown, and its bound is not met, if the other is not installed."""
    name, bound = f"traffic_{kind}_over_{other}", _BOUNDS[other]
    if missing := _describe_missing(other):
        return Figure(name, float("nan"), _TIMES, bound, "at least", {"unknown": missing}, growth=growth)
    packets = _PYSHARK_PACKETS if other == "pyshark" else _PACKETS

    def rate(command: Sequence[str], count: int) -> Callable[[], float]:
        return lambda: count / _run(command).cpu_s

    blocks = alternating(rate(_analyze(path), _PACKETS), rate(_command(other, path), packets), runs)
    absolute = {"packets / CPU-second": median(blocks.ours), f"of {other}": median(blocks.reference)}
    details = {**blocks.details(), "packets": packets}
    return Figure(name, blocks.ratio, _TIMES, bound, "at least", details, absolute, growth)


def _describe_missing(other: str) -> str:
    program = {"tcptrace": "tcptrace", "tshark": "tshark", "pyshark": "tshark"}.get(other)
    installed = program is None or shutil.which(program) is not None
    return "" if installed else f"{program} is not installed: cloudbench testbed install {program}"


def _analyze(path: Path) -> list[str]:
    return cloudbench("analyze", str(path), "--json")


def _command(other: str, path: Path) -> list[str]:
    if other == "tcptrace":
        return ["tcptrace", "-n", "-l", str(path)]
    if other == "tshark":
        fields = [word for field in _FIELDS for word in ("-e", field)]
        return ["tshark", "-n", "-r", str(path), "-T", "fields", *fields]
    return python(str(ROOT / "benchmarks" / "traffic_reader.py"), other, str(path), str(_PYSHARK_PACKETS))


def _run(command: Sequence[str], *, sampled: bool = False) -> Usage:
    return run_tree(command, ROOT, environment(), sampled=sampled).require()


def _check_payload(path: Path, payload_bytes: int) -> Usage:
    """Raise RuntimeError unless all bytes of payload were seen. Return what it used, sampled."""
    usage = _run(_analyze(path), sampled=True)
    summary = json.loads(usage.output)
    seen_bytes = summary["payload_up_bytes"] + summary["payload_down_bytes"]
    if seen_bytes != payload_bytes:
        raise RuntimeError(f"{seen_bytes} bytes of payload instead of {payload_bytes}")
    return usage


def _measure_memory() -> Figure:
    """The memory for one upload of 2 GB: the hardest, since it cannot be parted by flow."""
    with scratch() as folder:
        path = folder / "large.pcap"
        usage = _check_payload(path, write_capture("long", path, _MANY_PACKETS))
        size_bytes = path.stat().st_size
    details = {"file_gb": round(size_bytes / 1e9, 2), "packets": _MANY_PACKETS}
    absolute = {"packets / CPU-second": round(_MANY_PACKETS / usage.cpu_s)}
    return Figure("traffic_2gb_rss_mb", round(usage.rss_bytes / 1e6), "MB", 300, "below", details, absolute)
