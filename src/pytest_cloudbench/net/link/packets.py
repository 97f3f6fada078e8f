"""Pure functions on the bytes of one TCP/IP packet: parse it, cut it short, or make a reset."""

from __future__ import annotations

import struct
from typing import NamedTuple

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
"""TCP flag bits."""
_TCP = 6
_SEQ_RANGE = 1 << 32


class Segment(NamedTuple):
    """The TCP fields of one packet. Ports and addresses stay in network byte order."""

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
        """The sequence number after this segment, where SYN and FIN count as one each."""
        return (self.seq + self.payload_bytes + (self.flags >> 1 & 1) + (self.flags & 1)) % _SEQ_RANGE


def is_unicast(data: bytes, header_bytes: int) -> bool:
    """Return whether a packet is unicast IP: not multicast, broadcast or ARP.

    ``header_bytes`` is the size of the link header.
    """
    if len(data) < header_bytes + 20:
        return False
    version = data[header_bytes] >> 4
    return data[header_bytes + 16] < 224 if version == 4 else version == 6 and data[header_bytes + 24] != 255


def parse_segment(data: bytes, header_bytes: int) -> Segment | None:
    """Return the TCP segment of a packet, or None for another protocol, a fragment or IPv6 extension headers."""
    start = header_bytes
    if data[start] >> 4 == 4:
        tcp_start, packet_end = start + (data[start] & 15) * 4, start + int.from_bytes(data[start + 2 : start + 4])
        is_fragment = int.from_bytes(data[start + 6 : start + 8]) & 0x3FFF
        if data[start + 9] != _TCP or is_fragment:
            return None
        source, target = data[start + 12 : start + 16], data[start + 16 : start + 20]
    else:
        tcp_start, packet_end = start + 40, start + 40 + int.from_bytes(data[start + 4 : start + 6])
        if data[start + 6] != _TCP:
            return None
        source, target = data[start + 8 : start + 24], data[start + 24 : start + 40]
    if len(data) < tcp_start + 20:
        return None
    seq, ack, offset_byte, flags = struct.unpack_from("!IIBB", data, tcp_start + 4)
    payload_start = tcp_start + (offset_byte >> 4) * 4
    return Segment(
        source,
        target,
        data[tcp_start : tcp_start + 2],
        data[tcp_start + 2 : tcp_start + 4],
        seq,
        ack,
        flags,
        payload_start,
        packet_end - payload_start,
    )


def _compute_checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071).

    2**16 is 1 modulo 65535, so a single division gives the ones' complement sum of all 16-bit words.
    """
    return ~(int.from_bytes(data + b"\0" * (len(data) % 2)) % 0xFFFF) & 0xFFFF


def _join_headers(ip: bytes, tcp: bytes, source: bytes, target: bytes) -> bytes:
    """Return ``ip`` + ``tcp`` with matching lengths and checksums."""
    unsummed_tcp = tcp[:16] + b"\0\0" + tcp[18:]
    pseudo = source + target + struct.pack("!II", len(tcp), _TCP)
    tcp = unsummed_tcp[:16] + struct.pack("!H", _compute_checksum(pseudo + unsummed_tcp)) + unsummed_tcp[18:]
    if ip[0] >> 4 == 6:
        return ip[:4] + struct.pack("!H", len(tcp)) + ip[6:] + tcp
    ip = ip[:2] + struct.pack("!H", len(ip) + len(tcp)) + ip[4:10] + b"\0\0" + ip[12:]
    return ip[:10] + struct.pack("!H", _compute_checksum(ip)) + ip[12:] + tcp


def cut_payload(data: bytes, header_bytes: int, segment: Segment, keep_bytes: int) -> bytes:
    """Return the packet with only the first ``keep_bytes`` of its payload, and without FIN."""
    ip_bytes = (data[header_bytes] & 15) * 4 if data[header_bytes] >> 4 == 4 else 40
    tcp_start = header_bytes + ip_bytes
    tcp = bytearray(data[tcp_start : segment.payload_start + keep_bytes])
    tcp[13] &= 0xFE
    return data[:header_bytes] + _join_headers(data[header_bytes:tcp_start], bytes(tcp), segment.source, segment.target)


def make_reset(link_header: bytes, source: bytes, target: bytes, ports: bytes, seq: int, ack: int) -> bytes:
    """Return a TCP reset from ``source`` to ``target``. ``ports`` holds the sender's port, then the receiver's.

    A receiver accepts it only if ``seq`` is exactly what it expects next (RFC 5961 section 3.2).
    """
    tcp = ports + struct.pack("!IIBBHHH", seq, ack, 5 << 4, RST | ACK, 0, 0, 0)
    if len(source) == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, _TCP, 0) + source + target
    else:
        ip = struct.pack("!IHBB", 6 << 28, 0, _TCP, 64) + source + target
    return link_header + _join_headers(ip, tcp, source, target)
