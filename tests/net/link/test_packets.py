"""Parsing, cutting and resetting of hand-made packets, checked against the kernel's rules and arithmetic."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.net.link.packets import ACK, RST, SYN, cut_payload, is_unicast, make_reset, parse_segment

V4 = (ipaddress.ip_address("198.18.0.1").packed, ipaddress.ip_address("198.18.0.2").packed)
V6 = (ipaddress.ip_address("2001:2::1").packed, ipaddress.ip_address("2001:2::2").packed)
PORTS = struct.pack("!HH", 40000, 443)


def ones_sum(data: bytes) -> int:
    """Add up the words of some bytes as RFC 1071 says."""
    total = 0
    for (word,) in struct.iter_unpack("!H", data + b"\0" * (len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packet(
    ends: tuple[bytes, bytes], payload: bytes, *, seq: int = 1000, ack: int = 77, flags: int = ACK,
    options: bytes = b"", ports: bytes = PORTS,
) -> bytes:  # fmt: skip
    tcp = ports + struct.pack("!IIBBHHH", seq, ack, (5 + len(options) // 4) << 4, flags, 512, 0, 0) + options + payload
    if len(ends[0]) == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0x4000, 64, 6, 0) + b"".join(ends)
    else:
        ip = struct.pack("!IHBB", 6 << 28, len(tcp), 6, 64) + b"".join(ends)
    return ip + tcp


def assert_sound(data: bytes, ends: tuple[bytes, bytes]) -> None:
    """Check lengths and checksums as a receiver does."""
    ip_bytes = 20 if len(ends[0]) == 4 else 40
    tcp = data[ip_bytes:]
    if ip_bytes == 20:
        assert int.from_bytes(data[2:4]) == len(data)
        assert ones_sum(data[:20]) == 0xFFFF
    else:
        assert int.from_bytes(data[4:6]) == len(tcp)
    assert ones_sum(b"".join(ends) + struct.pack("!II", len(tcp), 6) + tcp) == 0xFFFF


@pytest.mark.parametrize("ends", [V4, V6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("header", [b"", b"\1" * 14], ids=["tun", "packet"])
def test_parsed_fields_equal_the_packets_fields(ends: tuple[bytes, bytes], header: bytes) -> None:
    segment = parse_segment(header + packet(ends, b"hello", flags=ACK | SYN, options=b"\1" * 8), len(header))
    assert segment is not None
    assert (segment.source, segment.target, segment.source_port + segment.target_port) == (*ends, PORTS)
    assert (segment.seq, segment.ack, segment.payload_bytes, segment.end) == (1000, 77, 5, 1006)


def test_padding_does_not_count_as_payload() -> None:
    segment = parse_segment(packet(V4, b"") + b"\0" * 6, 0)
    assert segment is not None
    assert segment.payload_bytes == 0


def test_other_protocols_and_fragments_have_no_segment() -> None:
    udp = bytearray(packet(V4, b"x"))
    udp[9] = 17
    fragment = bytearray(packet(V4, b"x"))
    fragment[6:8] = struct.pack("!H", 0x2000)
    assert parse_segment(bytes(udp), 0) is None
    assert parse_segment(bytes(fragment), 0) is None


@given(st.binary(max_size=1460), st.data(), st.sampled_from([V4, V6]), st.integers(0, 2**32 - 1))
def test_a_cut_packet_is_valid_and_has_the_first_bytes(
    payload: bytes, data: st.DataObject, ends: tuple[bytes, bytes], seq: int
) -> None:
    frame = b"\2" * 14 + packet(ends, payload, seq=seq, flags=ACK | 1, options=b"\1" * 12)
    keep = data.draw(st.integers(0, len(payload)))
    segment = parse_segment(frame, 14)
    assert segment is not None
    cut_frame = cut_payload(frame, 14, segment, keep)
    cut_segment = parse_segment(cut_frame, 14)
    assert cut_segment is not None
    assert cut_frame[:14] == frame[:14]
    assert cut_frame[cut_segment.payload_start :] == payload[:keep]
    assert (cut_segment.seq, cut_segment.end) == (seq, (seq + keep) % 2**32)  # FIN is cut off with the last bytes
    assert_sound(cut_frame[14:], ends)


@given(st.sampled_from([V4, V6]), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_reset_is_valid(ends: tuple[bytes, bytes], seq: int, ack: int) -> None:
    data = make_reset(b"", *ends, PORTS, seq, ack)
    segment = parse_segment(data, 0)
    assert segment is not None
    assert (segment.source, segment.target, segment.seq, segment.ack, segment.flags) == (*ends, seq, ack, RST | ACK)
    assert_sound(data, ends)


@pytest.mark.parametrize(
    ("target", "expected"),
    [("198.18.0.2", True), ("233.252.0.9", False), ("255.255.255.255", False), ("2001:2::2", True), ("ff02::1", False)],
)
def test_only_packets_for_one_host_are_forwarded(target: str, expected: bool) -> None:
    address = ipaddress.ip_address(target)
    source = V4[0] if address.version == 4 else V6[0]
    assert is_unicast(packet((source, address.packed), b""), 0) is expected
    assert not is_unicast(b"\0" * 13, 14)
