"""Captures for the benchmark of readers, made in columns: uploads, many short flows, small IPv6 packets.

What may live here: writing pcap files. The payload of each is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_short_flows", "write_small_ipv6", "write_uploads"]

_SEGMENTS = (  # from the client, flags, payload: a request with two answers
    (True, 2, 0), (False, 18, 0), (True, 16, 0), (True, 24, 400), (False, 16, 0), (False, 24, 1000), (True, 16, 0),
    (False, 24, 300), (True, 16, 0), (True, 17, 0), (False, 17, 0), (True, 16, 0),
)  # fmt: skip
_TIMESTAMPS = np.frombuffer(b"\x01\x01\x08\x0a\0\0\0\1\0\0\0\1", np.uint8)
_FLOWS_AT_ONCE = 40


def write_uploads(path: Path, count: int, flows: int = 4) -> int:
    """Write so many packets of a few long uploads: two segments and an acknowledgement in turn, some segments twice.

    Returns the bytes of TCP payload, as the others do.
    """
    with path.open("wb") as file:
        file.write(_file_header())
        sent = np.zeros(flows, np.int64)
        total, done = 0, 0
        while done < count:
            step = min(50_000, count - done)
            data, payload = _uploads(done, step, flows, sent)
            file.write(data)
            total, done = total + payload, done + step
    return total


def write_short_flows(path: Path, flows: int) -> int:
    """Write flows of twelve packets each, of which some overlap, from one client to fifty servers."""
    up, flags, size = (np.array(column) for column in zip(*_SEGMENTS, strict=True))
    following = {True: 0, False: 0}
    seqs, acks = [], []
    for is_up, flag, payload in _SEGMENTS:
        seqs.append(following[is_up])
        acks.append(following[not is_up] if flag & 16 else 0)
        following[is_up] += payload + (flag & 3 > 0)
    flow, step = np.repeat(np.arange(flows), 12), np.tile(np.arange(12), flows)
    order = np.argsort(flow * 12 // _FLOWS_AT_ONCE + step, kind="stable")
    flow, step = flow[order], step[order]
    first = np.random.default_rng(2).integers(0, 2**32, (2, flows))
    is_client = up[step]
    mine = np.where(is_client, first[0][flow], first[1][flow])
    theirs = np.where(is_client, first[1][flow], first[0][flow])
    acked = np.where(flags[step] & 16, np.array(acks)[step] + theirs, 0)
    columns = (np.array(seqs)[step] + mine, acked, 0x8000 | flags[step], size[step])
    ends = (0x0A000001, 10_000 + flow % 50_000, 0x0A010001 + flow % 50, 443)
    path.write_bytes(_file_header() + _packets(0, is_client, ends, *columns))
    return int(size.sum()) * flows


def write_small_ipv6(path: Path, count: int, flows: int = 200) -> int:
    """Write so many packets of up to 120 bytes of payload over IPv6, both ways, with all flows at the same time."""
    draw = np.random.default_rng(3)
    flow, is_up = draw.integers(0, flows, count), draw.integers(0, 2, count) > 0
    size = draw.integers(0, 120, count) * (draw.random(count) < 0.6)
    sent = np.zeros((2, count), np.int64)
    order = np.argsort(flow, kind="stable")
    for way in (0, 1):
        own = np.where(is_up == (way == 0), size, 0)[order]
        before = np.cumsum(own) - own
        sent[way, order] = before - before[np.searchsorted(flow[order], flow[order])]
    seq, ack = np.where(is_up, sent[0], sent[1]), np.where(is_up, sent[1], sent[0])
    ends = (1, 30_000 + flow, 0x100 + flow % 16, 443)
    path.write_bytes(_file_header() + _packets(0, is_up, ends, seq + 1000, ack + 1000, 0x8018, size, six=True))
    return int(size.sum())


def _file_header() -> bytes:
    return np.array([0xA1B2C3D4, 0x00040002, 0, 0, 262144, 1], "<u4").tobytes()


def _uploads(first: int, count: int, flows: int, sent: Any) -> tuple[bytes, int]:
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
    begin = 1000 + begin - np.where(again, 1448, 0)
    ends = (0x0A000001, 40_000 + flow, 0x0A000002, 9000)
    data = _packets(first, ~is_ack, ends, np.where(is_ack, 5000, begin), np.where(is_ack, begin, 5000), 0x8010, size)
    return data, int(size.sum())


def _packets(
    first: int, up: Any, ends: tuple[Any, ...], seq: Any, ack: Any, flags: Any, size: Any, *, six: bool = False
) -> bytes:
    """Records of TCP segments, 50 microseconds apart. ``ends``: client, its port, server, its port."""
    count, network = len(up), 40 if six else 20
    number = np.arange(first, first + count)
    head = np.zeros((count, 16 + 14 + network + 32), np.uint8)

    def put(place: int, values: Any, kind: str) -> None:
        values = np.broadcast_to(np.asarray(values), (count,)).astype(kind)
        head[:, place : place + values.itemsize] = values.view(np.uint8).reshape(count, -1)

    client, client_port, server, server_port = ends
    length = 14 + network + 32 + size
    for place, values in ((0, 1_700_000_000 + number // 20_000), (4, number % 20_000 * 50), (8, length), (12, length)):
        put(place, values, "<u4")
    put(28, 0x86DD if six else 0x0800, ">u2")
    if six:
        put(30, 0x60000000, ">u4")
        put(34, 32 + size, ">u2")
        put(36, 0x0640, ">u2")
    else:
        put(30, 0x4500, ">u2")
        put(32, 52 + size, ">u2")
        put(38, 0x4006, ">u2")
    for at, low, high in ((0, client, server), (1, server, client)):
        if six:
            put(38 + 16 * at, 0x20010DB800000000, ">u8")
            put(46 + 16 * at, np.where(up, low, high), ">u8")
        else:
            put(42 + 4 * at, np.where(up, low, high), ">u4")
    tcp = 30 + network
    put(tcp, np.where(up, client_port, server_port), ">u2")
    put(tcp + 2, np.where(up, server_port, client_port), ">u2")
    put(tcp + 4, seq % 2**32, ">u4")
    put(tcp + 8, ack % 2**32, ">u4")
    put(tcp + 12, flags, ">u2")
    put(tcp + 14, 500, ">u2")
    head[:, tcp + 20 : tcp + 32] = _TIMESTAMPS
    body = np.random.default_rng(1).bytes(1448)
    return b"".join(bytes(row) + body[:length] for row, length in zip(head, np.asarray(size).tolist(), strict=True))
