"""Captures made in memory, with a truth that is known by construction."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import trustme

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True)
class Segment:
    """A TCP segment on Ethernet. ``up`` says that the client sends it."""

    at_ns: int
    up: bool
    seq: int
    ack: int = 0
    flags: int = 16
    data: bytes = b""
    window: int = 1000
    client: str = CLIENT
    server: str = SERVER
    client_port: int = 40_000
    server_port: int = 443
    options: bytes = b""

    def frame(self) -> bytes:
        ports = (self.client_port, self.server_port)
        options = self.options + bytes(-len(self.options) % 4)
        head = struct.pack(
            ">HHIIBBHHH", *(ports if self.up else ports[::-1]), self.seq & 0xFFFFFFFF, self.ack & 0xFFFFFFFF,
            (20 + len(options)) << 2, self.flags, self.window, 0, 0,
        )  # fmt: skip
        ends = (self.client, self.server)
        return ethernet(*(ends if self.up else ends[::-1]), 6, head + options + self.data)


def ip(
    source: str, target: str, protocol: int, body: bytes, *, extensions: bytes = b"", first: int | None = None
) -> bytes:
    source_address, target_address = ip_address(source), ip_address(target)
    if isinstance(source_address, IPv6Address):
        head = struct.pack(">IHBB", 0x60000000, len(extensions) + len(body), protocol if first is None else first, 64)
        return head + source_address.packed + target_address.packed + extensions + body
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0x4000, 64, protocol, 0)
    return head + source_address.packed + target_address.packed + body


def ethernet(source: str, target: str, protocol: int, body: bytes, tags: bytes = b"") -> bytes:
    kind = b"\x86\xdd" if ":" in source else b"\x08\x00"
    return bytes(12) + tags + kind + ip(source, target, protocol, body)


def udp(source: str, source_port: int, target: str, target_port: int, data: bytes) -> bytes:
    head = struct.pack(">HHHH", source_port, target_port, 8 + len(data), 0)
    return ethernet(source, target, 17, head + data)


Record = tuple[int, bytes]
"""(time in nanoseconds, frame)."""


def records(segments: Sequence[Segment]) -> list[Record]:
    return [(segment.at_ns, segment.frame()) for segment in segments]


def pcap(
    packets: Sequence[Record], *, order: str = "<", nano: bool = False, link: int = 1, snaplen: int = 262144
) -> bytes:
    magic, unit = (0xA1B23C4D, 1) if nano else (0xA1B2C3D4, 1000)
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    for at_ns, frame in packets:
        stored = frame[:snaplen]
        parts.append(
            struct.pack(order + "IIII", at_ns // SECOND, at_ns % SECOND // unit, len(stored), len(frame)) + stored
        )
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    body += bytes(-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def section(order: str = "<", *, comment: str = "") -> bytes:
    options = option(1, comment.encode(), order) + option(0, b"", order) if comment else b""
    return block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options, order)


def interface(
    order: str = "<", *, link: int = 1, snaplen: int = 0, resolution: int | None = None, offset: int = 0
) -> bytes:
    options = b"" if resolution is None else option(9, bytes([resolution]), order)
    options += option(14, struct.pack(order + "q", offset), order) if offset else b""
    return block(1, struct.pack(order + "HHI", link, 0, snaplen) + options, order)


def packet(
    ticks: int, frame: bytes, order: str = "<", *, number: int = 0, wire: int | None = None, options: bytes = b""
) -> bytes:
    """Return an enhanced packet block. ``ticks`` is its time in units of the interface."""
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), wire or len(frame))
    return block(6, head + frame + bytes(-len(frame) % 4) + options, order)


def old_packet(ticks: int, frame: bytes, order: str = "<", *, number: int = 0) -> bytes:
    head = struct.pack(order + "HHIIII", number, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(2, head + frame, order)


def simple_packet(frame: bytes, order: str = "<", *, wire: int | None = None) -> bytes:
    return block(3, struct.pack(order + "I", wire or len(frame)) + frame, order)


def statistics(order: str = "<", *, number: int = 0, received: int = 0, dropped: int = 0, os_dropped: int = 0) -> bytes:
    body = struct.pack(order + "III", number, 0, 0)
    for code, value in ((4, received), (5, dropped), (7, os_dropped)):
        body += option(code, struct.pack(order + "Q", value), order)
    return block(5, body, order)


def pcapng(packets: Sequence[Record], *, dropped: int = 0) -> bytes:
    body = b"".join(packet(at_ns, frame) for at_ns, frame in packets)
    return section() + interface(resolution=9) + body + statistics(received=len(packets), dropped=dropped)


def connection(
    data: bytes = b"", *, mss: int = 1000, port: int = 40_000, start_ns: int = START_NS, isn: int = 1000
) -> list[Segment]:
    """Return a TCP connection that sends ``data`` up in segments of at most ``mss``, one packet each millisecond."""
    now = start_ns
    segments: list[Segment] = []

    def add(up: bool, seq: int, ack: int, flags: int, body: bytes = b"", options: bytes = b"") -> None:
        nonlocal now
        segments.append(Segment(now, up, seq, ack, flags, body, client_port=port, options=options))
        now += SECOND // 1000

    option_mss = b"\x02\x04" + mss.to_bytes(2, "big")
    add(True, isn, 0, 2, options=option_mss)
    add(False, 5000, isn + 1, 18, options=option_mss)
    add(True, isn + 1, 5001, 16)
    for begin in range(0, len(data), mss):
        add(True, isn + 1 + begin, 5001, 24, data[begin : begin + mss])
        add(False, 5001, isn + 1 + min(len(data), begin + mss), 16)
    end = isn + 1 + len(data)
    add(True, end, 5001, 17)
    add(False, 5001, end + 1, 17)
    add(True, end + 1, 5002, 16)
    return segments


def tls(ciphers: str, text: bytes) -> tuple[bytes, bytes]:
    """Return what a client and a server send in TLS 1.2, with a text from the client."""
    authority = trustme.CA()
    server, client = (ssl.SSLContext(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    authority.issue_cert("files.example.com").configure_cert(server)
    authority.configure_trust(client)
    for context in (server, client):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="files.example.com"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    up = down = b""
    for end in ends * 3:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
        sent_up, sent_down = to_server.read(), to_client.read()
        up, down = up + sent_up, down + sent_down
        to_server.write(sent_up)
        to_client.write(sent_down)
    ends[0].write(text)
    return up + to_server.read(), down
