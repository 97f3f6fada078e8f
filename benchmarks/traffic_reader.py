"""One way to read a capture, in a process of its own: ``python traffic_reader.py HOW FILE [PACKETS]``.

Prints JSON: CPU seconds without imports, packets, bytes of TCP payload. All count the same payload, per flow.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path


def ours(path: Path, most: int) -> tuple[float, int, int]:
    import numpy as np

    from pytest_cloudbench.net import dissect
    from pytest_cloudbench.net.traffic import analyze

    np.zeros(1)
    began = time.process_time()
    with dissect.open_capture(path) as (buffer, release):
        summary = analyze(buffer, release=release).as_dict()
    return time.process_time() - began, summary["packets"], summary["payload_up_bytes"] + summary["payload_down_bytes"]


def with_dpkt(path: Path, most: int) -> tuple[float, int, int]:
    import dpkt

    began = time.process_time()
    flows: dict[tuple[bytes, bytes, int, int], int] = {}
    count = 0
    with path.open("rb") as file:
        for _, data in dpkt.pcap.Reader(file):
            count += 1
            packet = dpkt.ethernet.Ethernet(data).data
            segment = packet.data
            key = (packet.src, packet.dst, segment.sport, segment.dport)
            flows[key] = flows.get(key, 0) + packet.len - packet.hl * 4 - segment.off * 4
    return time.process_time() - began, count, sum(flows.values())


def with_pyshark(path: Path, most: int) -> tuple[float, int, int]:
    import pyshark

    began = time.process_time()
    count = payload = 0
    capture = pyshark.FileCapture(str(path), use_json=True, keep_packets=False)
    for packet in capture:
        count += 1
        payload += int(packet.tcp.len)
        if count >= most:
            break
    capture.close()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() - began + children.ru_utime + children.ru_stime, count, payload


if __name__ == "__main__":
    how = {"ours": ours, "dpkt": with_dpkt, "pyshark": with_pyshark}[sys.argv[1]]
    cpu_s, packets, payload_bytes = how(Path(sys.argv[2]), int((sys.argv[3:] or ["0"])[0]))
    print(json.dumps({"cpu_s": cpu_s, "packets": packets, "payload_bytes": payload_bytes}))
