"""How fast captures are read: ours, tshark, tcptrace, dpkt and pyshark on the same file; and memory for 2 GB."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import ROOT, Figure, Usage, environment, median, python, run_tree, scratch

__all__ = ["measure"]

_PACKETS = 300_000
_PYSHARK_PACKETS = 1500
_MANY_PACKETS = 2_000_000  # of about 1 kB: 2 GB
_FIELDS = (
    "frame.time_epoch ip.src ip.dst tcp.srcport tcp.dstport ip.len frame.len tcp.len tcp.seq tcp.ack tcp.flags.syn "
    "tcp.stream tcp.analysis.retransmission tcp.analysis.ack_rtt tls.handshake.extensions_server_name"
).split()


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``traffic_packets_per_cpu_s``, and its ratios and memory; all are measured together."""
    with scratch() as folder:
        small, large = folder / "small.pcap", folder / "large.pcap"
        payload = write(small, _PACKETS)
        found = {how: [_read(how, small, payload) for _ in range(runs)] for how in ("ours", "dpkt")}
        found["pyshark"] = [_read("pyshark", small, None)]
        options = [word for field in _FIELDS for word in ("-e", field)]
        if shutil.which("tshark"):
            found["tshark"] = [_rate(["tshark", "-n", "-r", str(small), "-T", "fields", *options], folder)]
        if shutil.which("tcptrace"):
            found["tcptrace"] = [_rate(["tcptrace", "-l", str(small)], folder) for _ in range(runs)]
        whole = _rate(python("-m", "pytest_cloudbench.cli", "analyze", str(small), "--json"), folder)
        rates = {how: median(each) for how, each in found.items()}
        payload = write(large, _MANY_PACKETS, flows=1)  # one upload: the hardest, since it cannot be parted by flow
        size = large.stat().st_size
        used = _run(python("-m", "pytest_cloudbench.cli", "analyze", str(large), "--json"), folder, sampled=True)
        facts = json.loads(used.output)
        if facts["payload_up_bytes"] != payload or facts["validity"]["reasons"][:-1]:
            raise RuntimeError(f"wrong answer: {facts['payload_up_bytes']} of {payload}, {facts['validity']}")
    details: dict[str, Any] = {how: [round(rate) for rate in each] for how, each in found.items()}
    details |= {"packets": _PACKETS, "cloudbench analyze with its start": round(whole)}
    big = {
        "file_gb": round(size / 1e9, 2),
        "packets": _MANY_PACKETS,
        "packets_per_cpu_s": round(_MANY_PACKETS / used.cpu_s),
    }
    figures = [
        Figure("traffic_packets_per_cpu_s", round(rates["ours"]), "packets / CPU-second", 350_000, "at least", details),
        _ratio("traffic_over_dpkt", rates, "dpkt", 1),
        _ratio("traffic_over_pyshark", rates, "pyshark", 100),
        Figure("traffic_2gb_rss_mb", round(used.rss_bytes / 1e6), "MB", 300, "below", big),
    ]
    if "tshark" in rates:
        figures.insert(1, _ratio("traffic_over_tshark", rates, "tshark", 10))
    return figures


def _ratio(name: str, rates: dict[str, float], other: str, bound: float) -> Figure:
    details = {"ours": round(rates["ours"]), other: round(rates[other])}
    return Figure(
        name, round(rates["ours"] / rates[other], 1), "times as many packets / CPU-second", bound, "at least", details
    )


def _run(command: list[str], folder: Path, *, sampled: bool = False) -> Usage:
    return run_tree(command, folder, environment(PYTHONPATH=str(ROOT / "src")), sampled=sampled).require()


def _rate(command: list[str], folder: Path) -> float:
    """Packets per CPU-second of a whole process."""
    return _PACKETS / _run(command, folder).cpu_s


def _read(how: str, path: Path, payload: int | None) -> float:
    """Packets per CPU-second of the reading alone."""
    script = str(ROOT / "benchmarks" / "traffic_reader.py")
    said = json.loads(_run(python(script, how, str(path), str(_PYSHARK_PACKETS)), path.parent).output.splitlines()[-1])
    if payload is not None and said["payload_bytes"] != payload:
        raise RuntimeError(f"{how} counted {said['payload_bytes']} bytes of {payload}")
    return float(said["packets"] / said["cpu_s"])


# --- a capture: uploads of several flows, acknowledgements, now and then a segment twice ---


def write(path: Path, count: int, flows: int = 4) -> int:
    """Write a pcap file of so many packets. Returns its bytes of TCP payload."""
    with path.open("wb") as file:
        file.write(np.array([0xA1B2C3D4, 0x00040002, 0, 0, 262144, 1], "<u4").tobytes())
        sent = np.zeros(flows, np.int64)
        total, done = 0, 0
        while done < count:
            step = min(50_000, count - done)
            data, payload = _packets(done, step, flows, sent)
            file.write(data)
            total, done = total + payload, done + step
    return total


def _packets(first: int, count: int, flows: int, sent: Any) -> tuple[bytes, int]:
    """Two segments and one acknowledgement in turn, flow after flow in bursts; each 5,000th packet repeats the last."""
    number = np.arange(first, first + count)
    flow = number // 300 % flows
    is_ack = number % 3 == 2
    size = np.where(is_ack, 0, 1448)
    again = (number % 5000 == 4999) & ~is_ack & (np.roll(flow, 1) == flow) & (np.roll(size, 1) > 0)
    begin, fresh = np.zeros(count, np.int64), np.where(again, 0, size)
    for each in range(flows):
        mine = flow == each
        advance = np.cumsum(fresh[mine])
        begin[mine] = sent[each] + advance - fresh[mine]
        sent[each] += int(advance[-1]) if len(advance) else 0
    begin -= np.where(again, 1448, 0)
    head = np.zeros((count, 16 + 14 + 20 + 32), np.uint8)

    def put(place: int, values: Any, kind: str) -> None:
        values = np.broadcast_to(np.asarray(values), (count,)).astype(kind)
        head[:, place : place + values.itemsize] = values.view(np.uint8).reshape(count, -1)

    put(0, 1_700_000_000 + number // 20_000, "<u4")
    put(4, number % 20_000 * 50, "<u4")
    put(8, 66 + size, "<u4")
    put(12, 66 + size, "<u4")
    put(28, 0x0800, ">u2")
    put(30, 0x4500, ">u2")
    put(32, 52 + size, ">u2")
    put(38, 0x4006, ">u2")
    put(42, np.where(is_ack, 0x0A000002, 0x0A000001), ">u4")
    put(46, np.where(is_ack, 0x0A000001, 0x0A000002), ">u4")
    put(50, np.where(is_ack, 9000, 40_000 + flow), ">u2")
    put(52, np.where(is_ack, 40_000 + flow, 9000), ">u2")
    put(54, np.where(is_ack, 5000, 1000 + begin) % 2**32, ">u4")
    put(58, np.where(is_ack, 1000 + begin, 5000) % 2**32, ">u4")
    put(62, 0x8010, ">u2")
    put(64, 500, ">u2")
    head[:, 70:82] = np.frombuffer(b"\x01\x01\x08\x0a\0\0\0\1\0\0\0\1", np.uint8)
    body = np.random.default_rng(1).bytes(1448)
    parts = [bytes(row) + body[:length] for row, length in zip(head, size.tolist(), strict=True)]
    return b"".join(parts), int(size.sum())
