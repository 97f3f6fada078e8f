"""Read a capture with a library, as a small program does: ``python traffic_reader.py LIBRARY FILE PACKETS``.

Prints the bytes of TCP payload of each flow.
"""

from __future__ import annotations

import sys
from collections import Counter


def read_with_dpkt(path: str, most_packets: int) -> Counter[object]:
    import dpkt

    flows = Counter[object]()
    with open(path, "rb") as file:
        for _, frame in dpkt.pcap.Reader(file):
            packet = dpkt.ethernet.Ethernet(frame).data
            segment = packet.data
            key = (packet.src, packet.dst, segment.sport, segment.dport)
            flows[key] += packet.len - packet.hl * 4 - segment.off * 4
    return flows


def read_with_pyshark(path: str, most_packets: int) -> Counter[object]:
    import pyshark

    flows = Counter[object]()
    capture = pyshark.FileCapture(path, use_json=True, keep_packets=False)
    for number, packet in enumerate(capture, 1):
        flows[packet.tcp.stream] += int(packet.tcp.len)
        if number >= most_packets:
            break
    capture.close()
    return flows


if __name__ == "__main__":
    read = {"dpkt": read_with_dpkt, "pyshark": read_with_pyshark}[sys.argv[1]]
    print(*read(sys.argv[2], int(sys.argv[3])).values(), sep="\n")
