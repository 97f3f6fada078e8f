"""The forwarder on pipes instead of devices: order, loss, rate and the byte at which it interrupts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.net.link.forward import Direction, Interrupter
from pytest_cloudbench.net.link.packets import ACK, RST, SYN, Segment, parse_segment
from pytest_cloudbench.support.clock import now_ns
from tests.net.link.test_packets import V4, packet

PLAIN: dict[str, Any] = {"delay_ms": 0.0, "jitter_ms": 0.0, "loss": 0.0, "rate_bit_per_s": None, "queue_bytes": 1 << 20}


class Wire:
    """A direction between two pairs of sockets that preserve packet boundaries, as devices do."""

    def __init__(self, **settings: Any) -> None:
        self.near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sink, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets = [self.near, source, sink, self.far]
        for one in self._sockets:
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.direction = Direction(source.fileno(), sink.fileno(), 0, {**PLAIN, **settings}, "seed")

    def send(self, data: bytes) -> None:
        self.near.send(data)
        self.direction.read_packets()

    def arrived(self) -> list[bytes]:
        self.direction.write_due_packets()
        found = []
        while True:
            try:
                found.append(os.read(self.far.fileno(), 65536))
            except BlockingIOError:
                return found

    def segments(self) -> list[Segment]:
        return [found for data in self.arrived() if (found := parse_segment(data, 0))]

    def close(self) -> None:
        for one in self._sockets:
            one.close()


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    up, down = Wire(), Wire()
    yield up, down
    up.close()
    down.close()


def numbered(count: int) -> list[bytes]:
    return [packet(V4, b"%06d" % number, seq=number) for number in range(count)]


def through(wire: Wire, packets: list[bytes]) -> list[bytes]:
    found = []
    try:
        for data in packets:
            wire.send(data)
            found += wire.arrived()
        while wire.direction.write_due_packets() is not None:
            found += wire.arrived()
        return found + wire.arrived()
    finally:
        wire.close()


def test_packets_pass_unchanged_by_default() -> None:
    packets = numbered(500)
    assert through(Wire(), packets) == packets


def test_jitter_keeps_the_order() -> None:
    packets = numbered(300)
    assert through(Wire(delay_ms=3.0, jitter_ms=3.0), packets) == packets


def test_the_same_seed_loses_the_same_packets() -> None:
    packets = numbered(2000)
    first, again = through(Wire(loss=0.05), packets), through(Wire(loss=0.05), packets)
    assert first == again
    assert abs(2000 - len(first) - 100) <= 33  # 3.3 standard deviations of a binomial with 2000 and 0.05


def test_a_full_queue_drops_the_rest() -> None:
    wire = Wire(rate_bit_per_s=8e6, queue_bytes=5000)
    begun_ns = now_ns()
    for _ in range(20):
        wire.send(packet(V4, b"x" * 960))  # 1000 bytes each, 1 ms each; five wait and one is on its way
    sent_ms = (now_ns() - begun_ns) / 1e6
    counts = wire.direction.counts
    wire.close()
    assert counts.taken == 20
    assert 5 <= 20 - counts.overflowed <= 7 + sent_ms  # while the test was paused, the link went on


def client(payload: bytes, seq: int, flags: int = ACK) -> bytes:
    return packet(V4, payload, seq=seq, flags=flags)


def interrupter(wires: tuple[Wire, Wire], how: str, at_byte: int | None, at_s: float | None = None) -> Interrupter:
    made = Interrupter(wires[0].direction, wires[1].direction, {4: b"", 16: b""})
    made.arm(how, at_byte, at_s, 5.0 if how == "black_hole" else None)
    return made


def test_the_packet_with_the_byte_is_cut_and_both_ends_are_reset(wires: tuple[Wire, Wire]) -> None:
    up, down = wires
    made = interrupter(wires, "reset", 1500)
    up.send(client(b"", 99, SYN))
    up.send(client(b"a" * 1000, 100))
    up.send(client(b"a" * 1000, 100))  # sent again: not counted
    up.send(client(b"b" * 1000, 1100))
    *before, cut_one, to_server = up.segments()
    (to_client,) = down.segments()
    assert [one.payload_bytes for one in before] == [0, 1000, 1000]
    assert cut_one.payload_bytes == 500
    assert (to_server.flags & RST, to_server.seq, to_server.source) == (RST, 1600, V4[0])
    assert (to_client.flags & RST, to_client.seq, to_client.source) == (RST, 77, V4[1])
    assert [(one["passed_bytes"], one["flows"]) for one in made.records()] == [(1500, 1)]
    up.send(client(b"c" * 10, 2100))
    assert up.segments() == []
    assert [one.flags & RST for one in down.segments()] == [RST]  # an end that still sends gets another reset


def test_skipped_bytes_count_towards_the_interruption(wires: tuple[Wire, Wire]) -> None:
    made = interrupter(wires, "drop", 3000)
    for seq in (0, 2000, 1000):  # the second was lost and comes late
        wires[0].send(client(b"a" * 1000, seq))
    assert made.records()[0]["passed_bytes"] == 3000
    assert made.records()[0]["happened_ns"] > 0
    assert sum(one.payload_bytes for one in wires[0].segments()) == 2000  # what comes after byte 3000 is too late


def test_a_lost_byte_still_interrupts(wires: tuple[Wire, Wire]) -> None:
    made = interrupter(wires, "drop", 1500)
    wires[0].send(client(b"a" * 1000, 0))
    wires[0].send(client(b"c" * 1000, 2000))
    assert made.records()[0]["passed_bytes"] == 1500
    assert [one.seq for one in wires[0].segments()] == [0]


def test_sequence_numbers_wrap(wires: tuple[Wire, Wire]) -> None:
    made = interrupter(wires, "drop", 1500)
    wires[0].send(client(b"a" * 1000, 2**32 - 500))
    assert made.records()[0]["happened_ns"] == 0
    wires[0].send(client(b"b" * 1000, 500))
    assert made.records()[0]["passed_bytes"] == 1500
    assert [one.payload_bytes for one in wires[0].segments()] == [1000, 500]


def test_one_byte_before_the_limit_does_not_interrupt(wires: tuple[Wire, Wire]) -> None:
    made = interrupter(wires, "reset", 1001)
    wires[0].send(client(b"a" * 1000, 0))
    assert made.records()[0]["happened_ns"] == 0
    assert [one.payload_bytes for one in wires[0].segments()] == [1000]


def test_a_timed_reset_ends_existing_connections_only(wires: tuple[Wire, Wire]) -> None:
    up, down = wires
    made = interrupter(wires, "reset", None, at_s=0.0)
    up.send(client(b"a", 5))
    made.start_if_due()
    assert [one.flags & RST for one in up.segments()] == [0, RST]
    assert [one.flags & RST for one in down.segments()] == [RST]
    idle = bytearray(client(b"b", 5))
    idle[20:22] = b"\x11\x11"  # another port: a connection that nobody saw before
    up.send(bytes(idle))
    assert up.segments() == []
    assert [one.flags & RST for one in down.segments()] == [RST]
    up.send(client(b"", 9, SYN))
    up.send(client(b"c", 10))
    assert [one.payload_bytes for one in up.segments()] == [0, 1]


def test_a_black_hole_drops_all_protocols(wires: tuple[Wire, Wire]) -> None:
    interrupter(wires, "black_hole", 1)
    udp = bytearray(client(b"x", 0))
    udp[9] = 17
    wires[0].send(bytes(udp))
    wires[0].send(client(b"ab", 0))
    wires[0].send(bytes(udp))
    wires[1].send(bytes(udp))
    assert [len(data) for data in wires[0].arrived()] == [41, 41]
    assert wires[1].arrived() == []
    assert wires[0].direction.counts.interrupted == 2


def test_a_short_black_hole_does_not_shorten_a_long_one(wires: tuple[Wire, Wire]) -> None:
    cutter = interrupter(wires, "black_hole", 1)
    wires[0].send(client(b"ab", 0))
    assert len(wires[0].arrived()) == 1  # the packet with the byte, cut
    cutter.arm("black_hole", None, 0.0, 1e-6)
    cutter.start_if_due()
    wires[0].send(client(b"c", 2))
    assert wires[0].arrived() == []
    assert [one["how"] for one in cutter.records()] == ["black_hole"] * 2
