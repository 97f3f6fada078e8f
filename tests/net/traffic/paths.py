"""Random connections over a bad path, with packets in many kinds of wrappings."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

from tests.net.traffic import craft
from tests.net.traffic.craft import Record, Segment

MSS = 1400
ETHER = bytes(12)


class Connection:
    """Segments of one connection, with a clock. Sequence numbers are the sender's and the receiver's next ones."""

    def __init__(self, draw: random.Random, port: int, start_ns: int) -> None:
        self.draw, self.port, self.now = draw, port, start_ns
        self.round_trip = draw.choice([100_000, 1_000_000, 20_000_000, 200_000_000])
        self.up = draw.choice([1, 1000, 0xFFFFFFFF, 0xFFFFF000, draw.getrandbits(32)])
        self.down = draw.getrandbits(32)
        self.segments: list[Segment] = []

    def add(self, up: bool, seq: int, flags: int = 16, data: bytes = b"", ack: int | None = None) -> None:
        window = self.draw.choice([500] * 60 + [0, 1000])
        acked = (self.down if up else self.up) if ack is None else ack
        self.segments.append(Segment(self.now, up, seq, acked, flags, data, window, client_port=self.port))

    def open(self) -> None:
        """Add a handshake, with repeated SYNs, data in them, or SYNs from both sides at once."""
        early, is_simultaneous = b"early" * (self.draw.random() < 0.1), self.draw.random() < 0.1
        for _ in range(self.draw.choice([1, 1, 1, 2, 3])):
            self.add(True, self.up, 2, early, ack=0)
            self.now += self.round_trip
        if is_simultaneous:
            self.add(False, self.down, 2, ack=0)
            self.add(True, self.up, 18, ack=self.down + 1)
        for _ in range(self.draw.choice([1, 1, 1, 2])):
            self.add(False, self.down, 18, ack=self.up + 1)
            self.now += self.round_trip // 3
        self.up, self.down = self.up + 1, self.down + 1
        self.add(True, self.up)

    def add_window(self) -> None:
        """Add a few segments. Some are lost behind the capture, so acknowledgements and segments are repeated."""
        lost: list[tuple[int, int]] = []
        first = self.up
        for _ in range(self.draw.randrange(1, 8)):
            size = self.draw.choice([MSS] * 5 + [1, 7, MSS // 2])
            self.add(True, self.up, 24, b"d" * size)
            lost += [(self.up, size)] if self.draw.random() < 0.15 else []
            self.up += size
            self.now += self.draw.choice([1000, 10_000, 100_000, 3_100_000])
        self.now += self.round_trip // 2
        for _ in range(self.draw.choice([1, 1, 2, 4])):
            self.add(False, self.down, ack=lost[0][0] if lost else self.draw.choice([self.up, self.up, first]))
            self.now += 1000
        if lost:
            self.now += self.draw.choice([1000, 500_000, 2_000_000, 25_000_000, self.round_trip, 10 * self.round_trip])
        for seq, size in lost:
            for begin, end in self.draw.choice([[(0, size)], [(0, size // 2), (size // 2, size)], [(0, size)] * 2]):
                self.add(True, seq + begin, 24, b"d" * (end - begin))
            self.now += 1000

    def add_event(self) -> None:
        """Add an occasional event: an answer, a keep-alive, or a probe of a closed window."""
        kind = self.draw.randrange(4)
        if kind == 0:
            self.add(False, self.down, 24, b"r" * 50)
            self.down += 50
        elif kind == 1:
            self.now += craft.SECOND
            self.add(True, self.up - 1, 16, b"x" * self.draw.randrange(2))
            self.add(False, self.down)
        elif kind == 2:
            self.add(False, self.down)
            self.segments[-1] = replace(self.segments[-1], window=0)
            self.now += craft.SECOND // 10
            self.add(True, self.up, 16, b"p")

    def close(self) -> None:
        if self.draw.random() < 0.2:
            self.add(True, self.up, 20, b"bye" * self.draw.randrange(2))
            self.add(False, self.down, 4)
            self.add(True, self.up, 24, b"late")
            return
        for _ in range(self.draw.choice([1, 1, 2])):
            self.add(True, self.up, 17, b"z" * self.draw.choice([0, 0, 3]))
            self.now += self.round_trip
        self.add(False, self.down, 17, ack=self.up + 1)
        self.add(True, self.up + 1, ack=self.down + 1)


def connection(draw: random.Random, port: int, start_ns: int) -> list[Segment]:
    """Return a complete connection, one that began before the capture, or only one of its directions."""
    traffic = Connection(draw, port, start_ns)
    if draw.random() < 0.8:
        traffic.open()
    for _ in range(draw.choice([0, 1, 5, 20])):
        traffic.add_window()
        traffic.add_event()
    traffic.close()
    one_way = draw.random() < 0.1
    is_ipv6 = draw.random() < 0.3
    client, server = ("2001:db8::1", "2001:db8::2") if is_ipv6 else (craft.CLIENT, craft.SERVER)
    return [replace(segment, client=client, server=server) for segment in traffic.segments if segment.up or not one_way]


def _kind(frame: bytes) -> bytes:
    return frame[12:14]


def _wrap_in_ip(protocol: int, body: bytes) -> bytes:
    return craft.ethernet("192.0.2.1", "192.0.2.2", protocol, body)


def _ppp(frame: bytes) -> bytes:
    return b"\0\x21" if _kind(frame) == b"\x08\0" else b"\0\x57"


WRAPPINGS: list[Callable[[bytes], bytes]] = [
    lambda frame: frame,
    lambda frame: frame.ljust(60, b"\0"),
    lambda frame: ETHER + b"\x81\0\0\x07" * 2 + frame[12:],
    lambda frame: ETHER + b"\x88\x47\0\1\1\x40" + frame[14:],
    lambda frame: ETHER + b"\x88\x64\x11\0\0\1" + struct.pack(">H", len(frame) - 12) + _ppp(frame) + frame[14:],
    lambda frame: ETHER + struct.pack(">H", len(frame) - 6) + b"\xaa\xaa\3\0\0\0" + frame[12:],
    lambda frame: _wrap_in_ip(4 if _kind(frame) == b"\x08\0" else 41, frame[14:]),
    lambda frame: _wrap_in_ip(47, b"\0\0" + frame[12:]),
    lambda frame: craft.udp("192.0.2.1", 5555, "192.0.2.2", 4789, b"\x08\0\0\0\0\0\1\0" + frame),
]


def split_frame(frame: bytes, identity: int, size: int = 600) -> list[bytes]:
    """Return the fragments of a plain IPv4 frame, or any other frame unchanged."""
    body = frame[34:]
    if _kind(frame) != b"\x08\0" or len(body) <= size:
        return [frame]
    head, frames = bytearray(frame[:34]), []
    for begin in range(0, len(body), size):
        part = body[begin : begin + size]
        more = 0x2000 if begin + size < len(body) else 0
        head[16:22] = struct.pack(">HHH", 20 + len(part), identity & 0xFFFF, more | begin // 8)
        frames.append(bytes(head) + part)
    return frames


def capture(seed: int, connections: int = 40) -> bytes:
    """Return a pcap or pcapng file. The seed decides which packets are out of order, repeated or in fragments."""
    draw = random.Random(seed)
    packets: list[Record] = []
    apart_ns = draw.choice([1_000_000, 1000 * craft.SECOND])
    for port in range(20_000, 20_000 + connections):
        wrap, fragmented, repeated_share = draw.choice(WRAPPINGS), draw.random() < 0.1, draw.choice([0, 0, 0.1, 1])
        for number, segment in enumerate(connection(draw, port, craft.START_NS + (port - 20_000) * apart_ns)):
            frames = split_frame(segment.frame(), port * 300 + number) if fragmented else [wrap(segment.frame())]
            copies = 1 if fragmented or draw.random() >= repeated_share else 2
            packets += [(segment.at_ns, frame) for frame in frames] * copies
    disorder = draw.choice(["none", "by time", "by time", "clocks", "swapped"])
    if disorder == "by time":
        packets.sort(key=lambda record: record[0])
    elif disorder == "clocks":
        packets = [(at_ns + draw.randrange(-(10**7), 10**7), frame) for at_ns, frame in packets]
    elif disorder == "swapped":
        for index in range(1, len(packets)):
            if draw.random() < 0.1:
                packets[index - 1], packets[index] = packets[index], packets[index - 1]
    return craft.pcap(packets, nano=True, order=draw.choice("<>")) if draw.random() < 0.5 else craft.pcapng(packets)
