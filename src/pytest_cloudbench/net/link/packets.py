"""IP packets with TCP inside, as bytes: look at one, cut one short, make a reset.

What may live here: pure functions over the bytes of one packet. No socket, no state.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SYN, RST, ACK = 0x02, 0x04, 0x10
"""Bits of TCP's flags."""
_TCP = 6
_WRAP = 1 << 32


class Segment(NamedTuple):
    """What one packet says about its TCP connection; ports and addresses are kept as they are on the wire."""

    source: bytes
    target: bytes
    source_port: bytes
    target_port: bytes
    seq: int
    ack: int
    flags: int
    payload_start: int
    payload_bytes: int

    @property
    def end(self) -> int:
        """The sequence number after this segment; SYN and FIN count as one each."""
        return (self.seq + self.payload_bytes + (self.flags >> 1 & 1) + (self.flags & 1)) % _WRAP


def is_unicast(data: bytes, header_bytes: int) -> bool:
    """Whether an IP packet behind ``header_bytes`` of link header is for one host (not multicast, broadcast or ARP)."""
    if len(data) < header_bytes + 20:
        return False
    version = data[header_bytes] >> 4
    return data[header_bytes + 16] < 224 if version == 4 else version == 6 and data[header_bytes + 24] != 255


def segment(data: bytes, header_bytes: int) -> Segment | None:
    """The TCP segment in a packet; None if there is none (another protocol, a fragment, extension headers)."""
    start = header_bytes
    if data[start] >> 4 == 4:
        tcp, end = start + (data[start] & 15) * 4, start + int.from_bytes(data[start + 2 : start + 4])
        is_fragment = int.from_bytes(data[start + 6 : start + 8]) & 0x3FFF
        if data[start + 9] != _TCP or is_fragment:
            return None
        source, target = data[start + 12 : start + 16], data[start + 16 : start + 20]
    else:
        tcp, end = start + 40, start + 40 + int.from_bytes(data[start + 4 : start + 6])
        if data[start + 6] != _TCP:
            return None
        source, target = data[start + 8 : start + 24], data[start + 24 : start + 40]
    if len(data) < tcp + 20:
        return None
    seq, ack, words, flags = struct.unpack_from("!IIBB", data, tcp + 4)
    payload_start = tcp + (words >> 4) * 4
    return Segment(
        source,
        target,
        data[tcp : tcp + 2],
        data[tcp + 2 : tcp + 4],
        seq,
        ack,
        flags,
        payload_start,
        end - payload_start,
    )


def _checksum(data: bytes) -> int:
    """RFC 1071. 2**16 is 1 modulo 65535, so one division gives the ones' complement sum of the words."""
    return ~(int.from_bytes(data + b"\0" * (len(data) % 2)) % 0xFFFF) & 0xFFFF


def _sealed(ip: bytes, tcp: bytes, source: bytes, target: bytes) -> bytes:
    """``ip`` + ``tcp`` with lengths and checksums that fit."""
    blank = tcp[:16] + b"\0\0" + tcp[18:]
    pseudo = source + target + struct.pack("!II", len(tcp), _TCP)
    tcp = blank[:16] + struct.pack("!H", _checksum(pseudo + blank)) + blank[18:]
    if ip[0] >> 4 == 6:
        return ip[:4] + struct.pack("!H", len(tcp)) + ip[6:] + tcp
    ip = ip[:2] + struct.pack("!H", len(ip) + len(tcp)) + ip[4:10] + b"\0\0" + ip[12:]
    return ip[:10] + struct.pack("!H", _checksum(ip)) + ip[12:] + tcp


def cut(data: bytes, header_bytes: int, found: Segment, keep_bytes: int) -> bytes:
    """The same packet with the first ``keep_bytes`` of its payload only, and without FIN."""
    ip_bytes = (data[header_bytes] & 15) * 4 if data[header_bytes] >> 4 == 4 else 40
    tcp_at = header_bytes + ip_bytes
    tcp = bytearray(data[tcp_at : found.payload_start + keep_bytes])
    tcp[13] &= 0xFE
    return data[:header_bytes] + _sealed(data[header_bytes:tcp_at], bytes(tcp), found.source, found.target)


def reset(link_header: bytes, source: bytes, target: bytes, ports: bytes, seq: int, ack: int) -> bytes:
    """A TCP reset from ``source`` to ``target``; ``ports`` is the sender's and the receiver's.

    A receiver takes it only if ``seq`` is exactly what it expects next (RFC 5961 section 3.2).
    """
    tcp = ports + struct.pack("!IIBBHHH", seq, ack, 5 << 4, RST | ACK, 0, 0, 0)
    if len(source) == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, _TCP, 0) + source + target
    else:
        ip = struct.pack("!IHBB", 6 << 28, 0, _TCP, 64) + source + target
    return link_header + _sealed(ip, tcp, source, target)
