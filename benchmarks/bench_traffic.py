"""How fast captures are read: ours, tshark, tcptrace, dpkt and pyshark on the same files; and memory for 2 GB.

Three captures are compared with tcptrace and tshark: many short flows, one long flow, small IPv6 packets. Ours is
CPU time of ``analyze`` with every flow's JSON value, without the start of Python (0.1 s), which is in the details;
theirs is of the whole process: ``tcptrace -l``, and tshark with the fields that ours has.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure, Usage, environment, median, python, run_tree, scratch
from benchmarks.traffic_captures import write_short_flows, write_small_ipv6, write_uploads

__all__ = ["measure"]

_PACKETS = 300_000
_PYSHARK_PACKETS = 1500
_FLOWS = 20_000
_TIMES = "times as many packets / CPU-second"
_MANY_PACKETS = 2_000_000  # of about 1 kB: 2 GB
_FIELDS = (
    "frame.time_epoch ip.src ip.dst tcp.srcport tcp.dstport ip.len frame.len tcp.len tcp.seq tcp.ack tcp.flags.syn "
    "tcp.stream tcp.analysis.retransmission tcp.analysis.ack_rtt tls.handshake.extensions_server_name"
).split()


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``traffic_packets_per_cpu_s``, and its ratios and memory; all are measured together."""
    with scratch() as folder:
        small, large = folder / "small.pcap", folder / "large.pcap"
        payload = write_uploads(small, _PACKETS)
        found = {how: [_read(how, small, payload) for _ in range(runs)] for how in ("ours", "dpkt")}
        found["pyshark"] = [_read("pyshark", small, None)] if shutil.which("tshark") else []
        whole = _rate(python("-m", "pytest_cloudbench.commands.cli", "analyze", str(small), "--json"), folder)
        rates = {how: median(each) for how, each in found.items() if each}
        payload = write_uploads(
            large, _MANY_PACKETS, flows=1
        )  # one upload: the hardest, since it cannot be parted by flow
        size = large.stat().st_size
        used = _run(
            python("-m", "pytest_cloudbench.commands.cli", "analyze", str(large), "--json"), folder, sampled=True
        )
        summary = json.loads(used.output)
        if summary["payload_up_bytes"] != payload or summary["validity"]["reasons"][:-1]:
            raise RuntimeError(f"wrong answer: {summary['payload_up_bytes']} of {payload}, {summary['validity']}")
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
    return [*figures, *_compared(runs)]


def _compared(runs: int) -> list[Figure]:
    """Ours over tcptrace and tshark, for captures of three kinds."""
    with scratch() as folder:
        path = folder / "compared.pcap"
        figures = _against("short", path, 12 * _FLOWS, write_short_flows(path, _FLOWS), runs)
        figures += _against("long", path, _PACKETS, write_uploads(path, _PACKETS, flows=1), runs)
        return figures + _against("ipv6", path, _PACKETS, write_small_ipv6(path, _PACKETS), runs)


def _against(name: str, path: Path, packets: int, payload: int, runs: int) -> list[Figure]:
    """The ratios of one capture. If a tool is not installed, its ratio is unknown, and its bound is not met."""
    options = [word for field in _FIELDS for word in ("-e", field)]
    tcptrace = ["tcptrace", "-l", str(path)]
    tshark = ["tshark", "-n", "-r", str(path), "-T", "fields", *options]
    rates: dict[str, list[float]] = {"ours": [], "tcptrace": [], "tshark": []}
    for _ in range(runs):  # in turn: a machine's speed changes
        rates["ours"].append(_read("ours", path, payload))
        if shutil.which("tcptrace"):
            rates["tcptrace"].append(packets / _run(tcptrace, path.parent).cpu_s)
    if shutil.which("tshark"):
        rates["tshark"].append(packets / _run(tshark, path.parent).cpu_s)
    whole = _run(python("-m", "pytest_cloudbench.commands.cli", "analyze", str(path), "--json"), path.parent)
    details: dict[str, Any] = {how: [round(rate) for rate in each] for how, each in rates.items()}
    details |= {"packets": packets, "cloudbench analyze --json with its start": round(packets / whole.cpu_s)}
    figures = []
    for other, bound in (("tcptrace", 1.0), ("tshark", 10.0)):
        value = median(rates["ours"]) / median(rates[other]) if rates[other] else float("nan")
        unknown = {} if rates[other] else {"unknown": f"{other} is not installed: tools/testbed install {other}"}
        figures.append(Figure(f"traffic_{name}_over_{other}", value, _TIMES, bound, "at least", details | unknown))
    return figures


def _ratio(name: str, rates: dict[str, float], other: str, bound: float) -> Figure:
    if other not in rates:
        unknown = f"{other} needs tshark, which is not installed: tools/testbed install tshark"
        return Figure(name, float("nan"), _TIMES, bound, "at least", {"unknown": unknown})
    details = {"ours": round(rates["ours"]), other: round(rates[other])}
    return Figure(name, round(rates["ours"] / rates[other], 1), _TIMES, bound, "at least", details)


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
