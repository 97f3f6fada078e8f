"""The forwarder on pipes instead of devices: order, loss, rate and the byte at which it interrupts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cloudbench.net.link.forward import Direction, Interrupter
from pytest_cloudbench.net.link.packets import ACK, FIN, RST, SYN, Segment, parse_segment
from pytest_cloudbench.support.clock import now_ns
from tests.net.link.test_packets import V4, packet

PLAIN: dict[str, Any] = {"delay_ms": 0.0, "jitter_ms": 0.0, "loss": 0.0, "rate_bit_per_s": None, "queue_bytes": 1 << 20}


class Wire:
    """A direction between two pairs of sockets that preserve packet boundaries, as devices do."""

    def __init__(self, **settings: Any) -> None:
        self.near, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sink, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets = [self.near, source, sink, self.far]
        for endpoint in self._sockets:
            endpoint.setblocking(False)
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        self.direction = Direction(source.fileno(), sink.fileno(), 0, {**PLAIN, **settings}, "seed")

    def send(self, data: bytes) -> None:
        self.near.send(data)
        self.direction.read_packets()

    def receive(self) -> list[bytes]:
        self.direction.write_due_packets()
        packets = []
        while True:
            try:
                packets.append(os.read(self.far.fileno(), 65536))
            except BlockingIOError:
                return packets

    def segments(self) -> list[Segment]:
        return [segment for data in self.receive() if (segment := parse_segment(data, 0))]

    def close(self) -> None:
        for endpoint in self._sockets:
            endpoint.close()


@pytest.fixture
def wires() -> Iterator[tuple[Wire, Wire]]:
    up, down = Wire(), Wire()
    yield up, down
    up.close()
    down.close()


def make_packets(count: int) -> list[bytes]:
    return [packet(V4, b"%06d" % number, seq=number) for number in range(count)]


def pass_through(wire: Wire, packets: list[bytes]) -> list[bytes]:
    output = []
    try:
        for data in packets:
            wire.send(data)
            output += wire.receive()
        while wire.direction.write_due_packets() is not None:
            output += wire.receive()
        return output + wire.receive()
    finally:
        wire.close()


def test_packets_pass_unchanged_by_default() -> None:
    packets = make_packets(500)
    assert pass_through(Wire(), packets) == packets


def test_jitter_keeps_the_order() -> None:
    packets = make_packets(300)
    assert pass_through(Wire(delay_ms=3.0, jitter_ms=3.0), packets) == packets


def test_the_same_seed_loses_the_same_packets() -> None:
    packets = make_packets(2000)
    first, second = pass_through(Wire(loss=0.05), packets), pass_through(Wire(loss=0.05), packets)
    assert first == second
    assert abs(2000 - len(first) - 100) <= 33  # 3.3 standard deviations of a binomial with 2000 and 0.05


def test_a_full_queue_drops_the_rest() -> None:
    wire = Wire(rate_bit_per_s=8e6, queue_bytes=5000)
    start_ns = now_ns()
    for _ in range(20):
        wire.send(packet(V4, b"x" * 960))  # 1000 bytes each, 1 ms each; five wait and one is on its way
    elapsed_ms = (now_ns() - start_ns) / 1e6
    counts = wire.direction.counts
    wire.close()
    assert counts.taken == 20
    assert 5 <= 20 - counts.overflowed <= 7 + elapsed_ms  # the link goes on while the test is paused


def client_packet(payload: bytes, seq: int, flags: int = ACK) -> bytes:
    return packet(V4, payload, seq=seq, flags=flags)


def arm_interrupter(wires: tuple[Wire, Wire], how: str, at_byte: int | None, at_s: float | None = None) -> Interrupter:
    interrupter = Interrupter(wires[0].direction, wires[1].direction, {4: b"", 16: b""})
    interrupter.arm(how, at_byte, at_s, 5.0 if how == "black_hole" else None)
    return interrupter


def test_the_packet_with_the_byte_is_cut_and_both_ends_are_reset(wires: tuple[Wire, Wire]) -> None:
    up, down = wires
    interrupter = arm_interrupter(wires, "reset", 1500)
    up.send(client_packet(b"", 99, SYN))
    up.send(client_packet(b"a" * 1000, 100))
    up.send(client_packet(b"a" * 1000, 100))  # sent again, so not counted
    up.send(client_packet(b"b" * 1000, 1100))
    *earlier, cut_segment, to_server = up.segments()
    (to_client,) = down.segments()
    assert [segment.payload_bytes for segment in earlier] == [0, 1000, 1000]
    assert cut_segment.payload_bytes == 500
    assert (to_server.flags & RST, to_server.seq, to_server.source) == (RST, 1600, V4[0])
    assert (to_client.flags & RST, to_client.seq, to_client.source) == (RST, 77, V4[1])
    assert [(record["passed_bytes"], record["flows"]) for record in interrupter.records()] == [(1500, 1)]
    up.send(client_packet(b"c" * 10, 2100))
    assert up.segments() == []
    assert [segment.flags & RST for segment in down.segments()] == [RST]  # an end that still sends gets another reset


def test_skipped_bytes_count_towards_the_interruption(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "drop", 3000)
    for seq in (0, 2000, 1000):  # the second packet was lost and comes late
        wires[0].send(client_packet(b"a" * 1000, seq))
    assert interrupter.records()[0]["passed_bytes"] == 3000
    assert interrupter.records()[0]["happened_ns"] > 0
    # The late packet comes after byte 3000.
    assert sum(segment.payload_bytes for segment in wires[0].segments()) == 2000


def test_a_lost_byte_still_interrupts(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "drop", 1500)
    wires[0].send(client_packet(b"a" * 1000, 0))
    wires[0].send(client_packet(b"c" * 1000, 2000))
    assert interrupter.records()[0]["passed_bytes"] == 1500
    assert [segment.seq for segment in wires[0].segments()] == [0]


def test_sequence_numbers_wrap(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "drop", 1500)
    wires[0].send(client_packet(b"a" * 1000, 2**32 - 500))
    assert interrupter.records()[0]["happened_ns"] == 0
    wires[0].send(client_packet(b"b" * 1000, 500))
    assert interrupter.records()[0]["passed_bytes"] == 1500
    assert [segment.payload_bytes for segment in wires[0].segments()] == [1000, 500]


def test_one_byte_before_the_limit_does_not_interrupt(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "reset", 1001)
    wires[0].send(client_packet(b"a" * 1000, 0))
    assert interrupter.records()[0]["happened_ns"] == 0
    assert [segment.payload_bytes for segment in wires[0].segments()] == [1000]


def test_a_timed_reset_ends_existing_connections_only(wires: tuple[Wire, Wire]) -> None:
    up, down = wires
    interrupter = arm_interrupter(wires, "reset", None, at_s=0.0)
    up.send(client_packet(b"a", 5))
    interrupter.start_if_due()
    assert [segment.flags & RST for segment in up.segments()] == [0, RST]
    assert [segment.flags & RST for segment in down.segments()] == [RST]
    idle = bytearray(client_packet(b"b", 5))
    idle[20:22] = b"\x11\x11"  # another port, so a new connection
    up.send(bytes(idle))
    assert up.segments() == []
    assert [segment.flags & RST for segment in down.segments()] == [RST]
    up.send(client_packet(b"", 9, SYN))
    up.send(client_packet(b"c", 10))
    assert [segment.payload_bytes for segment in up.segments()] == [0, 1]


class Connection:
    """A connection from one port of the client, whose packets pass two wires."""

    def __init__(self, wires: tuple[Wire, Wire], port: int) -> None:
        self._wires, self._ports = wires, (port.to_bytes(2), (443).to_bytes(2))

    def send(self, *, up: bool, seq: int, ack: int, flags: int = ACK, payload: bytes = b"") -> list[Segment]:
        """Send a packet, and return what arrives at the other end."""
        ends, ports = (V4, self._ports) if up else (V4[::-1], self._ports[::-1])
        wire = self._wires[not up]
        wire.send(packet(ends, payload, seq=seq, ack=ack, flags=flags, ports=b"".join(ports)))
        return wire.segments()

    def open(self) -> None:
        self.send(up=True, seq=0, ack=0, flags=SYN)
        self.send(up=False, seq=100, ack=1, flags=SYN | ACK)
        self.send(up=True, seq=1, ack=101)


def test_a_timed_reset_leaves_ended_connections_alone(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "reset", None, at_s=0.0)
    closed, reset, refused, lost_fin, half_closed = (Connection(wires, port) for port in range(5000, 5005))
    for connection in (closed, reset, lost_fin, half_closed):
        connection.open()
    closed.send(up=True, seq=1, ack=101, flags=ACK | FIN)
    closed.send(up=False, seq=101, ack=2, flags=ACK | FIN)
    closed.send(up=True, seq=2, ack=102)
    reset.send(up=False, seq=101, ack=1, flags=ACK | RST)
    refused.send(up=True, seq=0, ack=0, flags=SYN)
    refused.send(up=False, seq=0, ack=1, flags=ACK | RST)
    lost_fin.send(up=True, seq=11, ack=101, flags=ACK | FIN)  # ten bytes before it were lost
    lost_fin.send(up=False, seq=101, ack=1, flags=ACK | FIN)
    lost_fin.send(up=True, seq=12, ack=102)
    half_closed.send(up=True, seq=1, ack=101, flags=ACK | FIN)
    half_closed.send(up=False, seq=101, ack=2)
    interrupter.start_if_due()
    assert interrupter.records()[0]["flows"] == 2
    for wire, port_field in zip(wires, ("source_port", "target_port"), strict=True):
        resets = wire.segments()
        assert [int.from_bytes(getattr(segment, port_field)) for segment in resets] == [5003, 5004]
        assert all(segment.flags & RST for segment in resets)
    assert [segment.ack for segment in closed.send(up=True, seq=2, ack=102)] == [102], "late packets pass"
    assert half_closed.send(up=False, seq=101, ack=2, payload=b"more") == []


def test_a_new_connection_on_the_ports_of_an_ended_one_is_reset(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "reset", None, at_s=0.0)
    for up in (True, False):
        connection = Connection(wires, 5000 + up)
        connection.open()
        connection.send(up=up, seq=1 if up else 101, ack=101 if up else 1, flags=ACK | RST)
        connection.send(up=up, seq=7000, ack=0, flags=SYN)
        connection.send(up=not up, seq=8000, ack=7001, flags=SYN | ACK)
    interrupter.start_if_due()
    assert interrupter.records()[0]["flows"] == 2


def test_a_black_hole_drops_all_protocols(wires: tuple[Wire, Wire]) -> None:
    arm_interrupter(wires, "black_hole", 1)
    udp = bytearray(client_packet(b"x", 0))
    udp[9] = 17
    wires[0].send(bytes(udp))
    wires[0].send(client_packet(b"ab", 0))
    wires[0].send(bytes(udp))
    wires[1].send(bytes(udp))
    assert [len(data) for data in wires[0].receive()] == [41, 41]
    assert wires[1].receive() == []
    assert wires[0].direction.counts.interrupted == 2


def test_a_short_black_hole_does_not_shorten_a_long_one(wires: tuple[Wire, Wire]) -> None:
    interrupter = arm_interrupter(wires, "black_hole", 1)
    wires[0].send(client_packet(b"ab", 0))
    assert len(wires[0].receive()) == 1  # the packet with the byte, cut
    interrupter.arm("black_hole", None, 0.0, 1e-6)
    interrupter.start_if_due()
    wires[0].send(client_packet(b"c", 2))
    assert wires[0].receive() == []
    assert [record["how"] for record in interrupter.records()] == ["black_hole"] * 2
