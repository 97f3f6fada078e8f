"""Captures for the benchmark of readers: seven unlike kinds of traffic, each of any number of packets.

What may live here: writing capture files. The payload of each is known.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

__all__ = ["KINDS", "write_capture"]

_START_S = 1_700_000_000
_SYN, _ACK, _PUSH, _FIN = 2, 16, 8, 1
_CLIENT, _SERVER = bytes((10, 0, 0, 1)), bytes((10, 9, 0, 1))
_QUERY = struct.pack("!HHHHH", 0x100, 1, 0, 0, 0) + b"\3www\7example\3com\0\0\1\0\1"

Packet = tuple[float, bytes, int]
"""Seconds since the start, the frame, and its bytes of payload."""


def write_capture(kind: str, path: Path, packets: int) -> int:
    """Write a capture of one of ``KINDS`` and return its bytes of payload."""
    payload_bytes = 0
    with path.open("wb", 1 << 20) as file:
        write_packet = (_start_pcapng if kind == "interfaces" else _start_pcap)(file.write)
        for number, (at_s, frame, segment_bytes) in zip(range(packets), KINDS[kind](random.Random(5)), strict=False):
            write_packet(number, at_s, frame)
            payload_bytes += segment_bytes
    return payload_bytes


def _start_pcap(write: Callable[[bytes], object]) -> Callable[[int, float, bytes], None]:
    write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1))

    def write_packet(number: int, at_s: float, frame: bytes) -> None:
        write(struct.pack("<IIII", _START_S + int(at_s), int(at_s % 1 * 1e6), len(frame), len(frame)) + frame)

    return write_packet


def _start_pcapng(write: Callable[[bytes], object]) -> Callable[[int, float, bytes], None]:
    """Three interfaces, the second with nanoseconds, and a comment on every seventh packet."""

    def option(code: int, value: bytes) -> bytes:
        return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)

    def write_block(kind: int, body: bytes) -> None:
        length = struct.pack("<I", 12 + len(body))
        write(struct.pack("<I", kind) + length + body + length)

    def write_packet(number: int, at_s: float, frame: bytes) -> None:
        interface = number % 3
        time = int((_START_S + at_s) * (10**9 if interface == 1 else 10**6))
        comment = option(1, b"comment %d" % number) + option(0, b"") if number % 7 == 0 else b""
        head = struct.pack("<IIIII", interface, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
        write_block(6, head + frame + bytes(-len(frame) % 4) + comment)

    write_block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    for interface in range(3):
        resolution = option(9, bytes([9 if interface == 1 else 6]))
        write_block(1, struct.pack("<HHI", 1, 0, 262144) + resolution + option(0, b""))
    return write_packet


def _tcp4(
    ends: tuple[bytes, bytes, int, int], seq: int, ack: int, flags: int, size_bytes: int, options: bytes = b""
) -> bytes:
    source, target, source_port, target_port = ends
    length = 40 + len(options) + size_bytes
    return struct.pack(
        f"!12sHBBHHHBBH4s4sHHIIBBHHH{len(options)}s{size_bytes}s",
        b"\2" * 6 + b"\4" * 6, 0x0800,
        0x45, 0, length, 1, 0x4000, 64, 6, 0, source, target,
        source_port, target_port, seq % 2**32, ack % 2**32, (5 + len(options) // 4) << 4, flags, 65000, 0, 0,
        options, b"x" * size_bytes,
    )  # fmt: skip


def _tcp6(ends: tuple[bytes, bytes, int, int], seq: int, ack: int, flags: int, size_bytes: int) -> bytes:
    source, target, source_port, target_port = ends
    return struct.pack(
        f"!12sHIHBB16s16sHHIIBBHHH{size_bytes}s",
        b"\2" * 6 + b"\4" * 6, 0x86DD,
        0x60000000, 20 + size_bytes, 6, 64, source, target,
        source_port, target_port, seq % 2**32, ack % 2**32, 5 << 4, flags, 65000, 0, 0, b"y" * size_bytes,
    )  # fmt: skip


def _udp4(ends: tuple[bytes, bytes, int, int], body: bytes) -> bytes:
    source, target, source_port, target_port = ends
    return struct.pack(
        f"!12sHBBHHHBBH4s4sHHHH{len(body)}s",
        b"\2" * 6 + b"\4" * 6, 0x0800, 0x45, 0, 28 + len(body), 1, 0x4000, 64, 17, 0, source, target,
        source_port, target_port, 8 + len(body), 0, body,
    )  # fmt: skip


def _make_long(draw: random.Random) -> Iterator[Packet]:
    """One upload: two segments and an acknowledgement in turn, one segment in 200 sent twice."""
    up, down = (_CLIENT, _SERVER, 40000, 443), (_SERVER, _CLIENT, 443, 40000)
    yield 0.0, _tcp4(up, 999, 0, _SYN, 0), 0
    yield 0.01, _tcp4(down, 499, 1000, _SYN | _ACK, 0), 0
    seq, at_s = 1000, 0.01
    while True:
        for repeats in (1, 1 + (draw.random() < 0.01)):
            for _ in range(repeats):
                at_s += 0.0001
                yield at_s, _tcp4(up, seq, 500, _ACK | _PUSH, 1448), 1448
            seq += 1448
        at_s += 0.0001
        yield at_s, _tcp4(down, 500, seq, _ACK, 0), 0


def _make_short(draw: random.Random) -> Iterator[Packet]:
    """Flows of twelve packets from many clients to fifty servers, a fifth of them with repeats and wrong order."""
    flow, pending = 0, list[Packet]()
    while True:
        for _ in range(40):
            pending += _make_short_flow(draw, flow)
            flow += 1
        pending.sort(key=lambda packet: packet[0])
        ready_s = flow / 400
        yield from (packet for packet in pending if packet[0] < ready_s)
        pending = [packet for packet in pending if packet[0] >= ready_s]


def _make_short_flow(draw: random.Random, flow: int) -> list[Packet]:
    client, server = bytes((10, 1, flow >> 8 & 255, flow & 255)), bytes((10, 9, 0, 1 + flow % 50))
    port, seq, ack = 1024 + flow % 60000, draw.randrange(2**32), draw.randrange(2**32)
    segments = [(True, seq, 0, _SYN, 0), (False, ack, seq + 1, _SYN | _ACK, 0), (True, seq + 1, ack + 1, _ACK, 0)]
    seq, ack, is_lossy = seq + 1, ack + 1, draw.random() < 0.2
    for number in range(7):
        size_bytes, is_up = draw.randrange(1, 1400), number % 2 == 0
        segments.append((is_up, *((seq, ack) if is_up else (ack, seq)), _ACK | _PUSH, size_bytes))
        seq, ack = (seq + size_bytes, ack) if is_up else (seq, ack + size_bytes)
        if is_lossy and number == 2:
            segments.append(segments[-1])
    if is_lossy:
        late = draw.randrange(3, len(segments) - 1)
        segments[late], segments[late + 1] = segments[late + 1], segments[late]
    segments += [(True, seq, ack, _FIN | _ACK, 0), (False, ack, seq + 1, _FIN | _ACK, 0)]
    at_s, packets = flow / 400, list[Packet]()
    for is_up, first, second, flags, size_bytes in segments[:12]:
        at_s += draw.random() * 0.03
        ends = (client, server, port, 443) if is_up else (server, client, 443, port)
        packets.append((at_s, _tcp4(ends, first, second, flags, size_bytes), size_bytes))
    return packets


def _make_lossy(draw: random.Random) -> Iterator[Packet]:
    """200 parallel uploads with heavy loss, wrong order, and selective acknowledgements."""
    seqs, at_s = [draw.randrange(2**32) for _ in range(200)], 0.0
    holes: list[list[int]] = [[] for _ in seqs]
    while True:
        flow = draw.randrange(len(seqs))
        client, port, missing = bytes((10, 2, 0, flow)), 30000 + flow, holes[flow]
        up, at_s, chance = (client, _SERVER, port, 443), at_s + 0.00005, draw.random()
        if chance < 0.05:
            missing.append(seqs[flow])
            seqs[flow] += 1400
        if chance < 0.12 and missing:
            yield at_s, _tcp4(up, missing.pop(draw.randrange(len(missing))), 1, _ACK | _PUSH, 1400), 1400
        elif chance < 0.17:
            yield at_s, _tcp4(up, seqs[flow] - 2100, 1, _ACK | _PUSH, 1400), 1400
        elif chance < 0.6:
            yield at_s, _tcp4(up, seqs[flow], 1, _ACK | _PUSH, 1400), 1400
            seqs[flow] += 1400
        else:
            down, acked = (_SERVER, client, 443, port), missing[0] if missing else seqs[flow]
            edges = (edge % 2**32 for edge in (acked + 1400, seqs[flow]))
            yield (
                at_s,
                _tcp4(down, 1, acked, _ACK, 0, b"\1\1\5\x0a" + struct.pack("!II", *edges) if missing else b""),
                0,
            )


def _make_ipv6(draw: random.Random) -> Iterator[Packet]:
    """500 flows of tiny segments, both ways."""
    client, at_s = b"\x20\x01" + bytes(13) + b"\1", 0.0
    sent = [[1, 1] for _ in range(500)]
    while True:
        flow, way, size_bytes = draw.randrange(500), draw.randrange(2), draw.randrange(90)
        server = b"\x20\x01\x0d\xb8" + bytes(10) + bytes((1, flow % 16))
        ends = (client, server, 20000 + flow, 443) if way == 0 else (server, client, 443, 20000 + flow)
        at_s += 0.00002
        yield at_s, _tcp6(ends, sent[flow][way], sent[flow][1 - way], _ACK | _PUSH, size_bytes), size_bytes
        sent[flow][way] += size_bytes


def _make_uploads(draw: random.Random) -> Iterator[Packet]:
    """60 uploads side by side."""
    seqs, at_s = [1] * 60, 0.0
    while True:
        flow = draw.randrange(60)
        client, at_s = bytes((10, 3, 0, flow)), at_s + 0.00005
        yield at_s, _tcp4((client, _SERVER, 30000 + flow, 443), seqs[flow], 1, _ACK | _PUSH, 900), 900
        seqs[flow] += 900
        if draw.random() < 1 / 3:
            yield at_s, _tcp4((_SERVER, client, 443, 30000 + flow), 1, seqs[flow], _ACK, 0), 0


def _make_quic(draw: random.Random) -> Iterator[Packet]:
    """3,000 QUIC connections, DNS queries, and some segments of TCP."""
    at_s, body, number = 0.0, draw.randbytes(1200), 0
    while True:
        flow, chance, number = draw.randrange(3000), draw.random(), number + 1
        client, at_s = bytes((10, 4, flow >> 8, flow & 255)), at_s + 0.00003
        if chance < 0.85:
            datagram = bytes([0x40 | draw.randrange(64)]) + body[: draw.choice((40, 300, 1200))]
            port = 40000 + flow % 20000
            ends = (client, _SERVER, port, 443) if draw.random() < 0.3 else (_SERVER, client, 443, port)
            yield at_s, _udp4(ends, datagram), len(datagram)
        elif chance < 0.95:
            query = struct.pack("!H", number % 2**16) + _QUERY
            yield at_s, _udp4((client, _SERVER, 50000 + flow % 10000, 53), query), len(query)
        else:
            yield at_s, _tcp4((client, _SERVER, 33000 + flow % 10000, 443), flow, 1, _ACK | _PUSH, 100), 100


KINDS: Mapping[str, Callable[[random.Random], Iterator[Packet]]] = {
    "short": _make_short,
    "lossy": _make_lossy,
    "long": _make_long,
    "ipv6": _make_ipv6,
    "interfaces": _make_uploads,
    "quic": _make_quic,
    "parallel": _make_uploads,
}
"""Endless traffic by name. ``interfaces`` is pcapng with three interfaces and comments, all others are pcap."""
