"""The forwarder: moves packets between two file descriptors and delays, drops and paces them like a bad network.

It runs in the holder's process on one thread. Every packet may cost only a few microseconds, so the loops avoid calls.
The forwarder does not know the kind of its descriptors: TUN devices carry bare IP packets, and packet sockets carry a
link header before them.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_cloudbench.net.link.packets import (
    ACK,
    FIN,
    RST,
    SYN,
    Segment,
    cut_payload,
    is_unicast,
    make_reset,
    parse_segment,
)

_READ_BYTES = 2048  # our devices have an MTU of 1500 and no offloads
_BATCH = 64
_BACKLOG_BYTES = 256 * 1024 * 1024
_SEQ_RANGE, _HALF_SEQ_RANGE = 1 << 32, 1 << 31


@dataclass(slots=True)
class Counts:
    """Packet counts of one direction, by fate."""

    taken: int = 0
    delivered: int = 0
    lost: int = 0
    """Dropped at random by ``loss``."""
    overflowed: int = 0
    """Dropped because the queue before the rate limit was full."""
    interrupted: int = 0
    """Dropped by an interruption."""
    refused: int = 0
    """Refused by the receiving device."""
    missed: int = 0
    """Lost because the forwarder read too late. They are not in ``taken``, and the link was not as requested."""


class Direction:
    """One direction, which moves packets from ``source`` to ``sink`` with delay, loss and a limited rate.

    Packets keep their order: jitter never lets one overtake another.
    """

    def __init__(self, source: int, sink: int, header_bytes: int, settings: dict[str, Any], seed: str) -> None:
        self.source, self.sink, self.header_bytes = source, sink, header_bytes
        self.delay_s, self.jitter_s = settings["delay_ms"] / 1000, settings["jitter_ms"] / 1000
        self.loss: float = settings["loss"]
        self.bytes_per_s: float = (settings["rate_bit_per_s"] or 0) / 8
        self.queue_s = settings["queue_bytes"] / self.bytes_per_s if self.bytes_per_s else 0.0
        self.counts = Counts()
        self.filter_packet: Callable[[Direction, bytes, float], bytes | None] | None = None
        self._random = random.Random(seed)
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._free_s = self._last_s = 0.0
        self._is_transparent = not (self.delay_s or self.jitter_s or self.loss or self.bytes_per_s)

    def read_packets(self) -> None:
        """Read the packets that have arrived, at most one batch."""
        if self._is_transparent and self.filter_packet is None and not self._queue:
            self._forward_unchanged()
            return
        now_s, source, draw, loss, counts = time.monotonic(), self.source, self._random.random, self.loss, self.counts
        for _ in range(_BATCH):
            try:
                data = os.read(source, _READ_BYTES)
            except BlockingIOError:
                return
            if not is_unicast(data, self.header_bytes):
                continue
            counts.taken += 1
            if loss and draw() < loss:
                counts.lost += 1
                continue
            if self.filter_packet is not None:
                passed_data = self.filter_packet(self, data, now_s)
                if passed_data is None:
                    counts.interrupted += 1
                    continue
                data = passed_data
            self.enqueue(data, now_s)

    def _forward_unchanged(self) -> None:
        """Forward one batch directly, the fast path for a link that changes nothing."""
        source, sink, header_bytes, read, write = self.source, self.sink, self.header_bytes, os.read, os.write
        passed_packets = 0
        try:
            for _ in range(_BATCH):
                data = read(source, _READ_BYTES)
                if is_unicast(data, header_bytes):
                    passed_packets += 1
                    write(sink, data)
        except BlockingIOError:
            pass  # all packets are read, or the sink is full and its device counts the drop
        except OSError:
            self.counts.refused += 1
            passed_packets -= 1
        self.counts.taken += passed_packets
        self.counts.delivered += passed_packets

    def enqueue(self, data: bytes, now_s: float) -> None:
        """Queue a packet until a link of this rate and delay would deliver it."""
        if self.bytes_per_s:
            start_s = self._free_s if self._free_s > now_s else now_s
            if start_s - now_s > self.queue_s:
                self.counts.overflowed += 1
                return
            self._free_s = start_s + (len(data) - self.header_bytes) / self.bytes_per_s
            due_s = self._free_s + self.delay_s
        else:
            due_s = now_s + self.delay_s
        if self._queued_bytes > _BACKLOG_BYTES:
            self.counts.overflowed += 1
            return
        if self.jitter_s:
            due_s += self.jitter_s * (2 * self._random.random() - 1)
        due_s = max(due_s, self._last_s)
        self._last_s = due_s
        self._queued_bytes += len(data)
        self._queue.append((due_s, data))

    def write_due_packets(self) -> float | None:
        """Write all due packets and return the monotonic time in seconds of the next one, or None."""
        queue = self._queue
        if not queue:
            return None
        now_s, sink, write = time.monotonic(), self.sink, os.write
        while queue and queue[0][0] <= now_s:
            data = queue.popleft()[1]
            self._queued_bytes -= len(data)
            try:
                write(sink, data)
                self.counts.delivered += 1
            except OSError:
                self.counts.refused += 1
        return queue[0][0] if queue else None


@dataclass(slots=True)
class Interruption:
    """A requested interruption and its outcome. Times are from ``time.monotonic_ns``."""

    how: str
    at_byte: int | None
    at_s: float | None
    duration_s: float | None
    armed_ns: int
    happened_ns: int = 0
    passed_bytes: int = 0
    """Payload bytes from clients that passed between arming and interruption."""
    flows: int = 0
    """Number of connections cut."""


@dataclass(slots=True)
class TrackedConnection:
    """The state of one connection, tracked since the first interruption was armed."""

    source: bytes
    target: bytes
    source_port: bytes
    target_port: bytes
    sent: int | None = None
    """The client's next sequence number."""
    returned: int | None = None
    """The server's next sequence number."""
    verdict: str = ""
    """``reset`` or ``drop`` once the connection is cut."""
    is_ended: bool = False
    """Whether a reset has passed, or both ends have acknowledged that the other closed the connection."""
    fin_ends: dict[bool, int] = field(default_factory=dict)
    """The sequence number after the FIN of the client (True) and of the server (False)."""
    closed: set[bool] = field(default_factory=set)
    """Whose FIN was acknowledged."""

    def note_end(self, segment: Segment, *, is_up: bool) -> None:
        """Note what a segment says about the end of the connection."""
        if segment.flags & FIN:
            self.fin_ends[is_up] = segment.end
        if segment.flags & ACK and self.fin_ends.get(not is_up) == segment.ack:
            self.closed.add(not is_up)
        self.is_ended |= bool(segment.flags & RST) or len(self.closed) == 2


class Interrupter:
    """Interrupts connections at a byte or a time, by checking every TCP packet once an interruption is armed.

    Bytes are payload from client to server over all connections, with retransmissions counted once. The packet with
    byte N is cut so that exactly N bytes pass, or fewer if an earlier packet was lost and not yet retransmitted.
    """

    def __init__(self, up: Direction, down: Direction, link_headers: dict[int, bytes]) -> None:
        """Watch both directions. ``link_headers`` holds the link header by the length of an IP address (4, 16)."""
        self.up, self.down, self._link_headers = up, down, link_headers
        self.past: list[Interruption] = []
        self.armed: Interruption | None = None
        self._connections: dict[bytes, TrackedConnection] = {}
        self._black_hole_end_s = 0.0
        self._unseen_verdict = ""

    def arm(self, how: str, at_byte: int | None, at_s: float | None, duration_s: float | None) -> None:
        """Schedule an interruption, with ``at_s`` counted from now. It replaces a pending one."""
        self.armed = Interruption(how, at_byte, at_s, duration_s, time.monotonic_ns())
        self.up.filter_packet = self.down.filter_packet = self.filter_packet

    def due_s(self) -> float | None:
        """Return the monotonic time in seconds of the armed interruption, or None if it has no time."""
        armed = self.armed
        return None if armed is None or armed.at_s is None else armed.armed_ns / 1e9 + armed.at_s

    def start_if_due(self) -> None:
        """Start a scheduled interruption that is due."""
        due_s = self.due_s()
        if due_s is not None and time.monotonic() >= due_s:
            connections = [connection for connection in self._connections.values() if not connection.is_ended]
            self._interrupt(connections, time.monotonic())

    def records(self) -> list[dict[str, Any]]:
        """Return all interruptions as plain data. ``happened_ns`` is 0 for a pending one."""
        return [asdict(interruption) for interruption in [*self.past, *([self.armed] if self.armed else [])]]

    def filter_packet(self, direction: Direction, data: bytes, now_s: float) -> bytes | None:
        """Return the packet or the part of it that passes, or None if nothing passes."""
        if now_s < self._black_hole_end_s:
            return None
        segment = parse_segment(data, direction.header_bytes)
        if segment is None:
            return data
        connection = self._track_connection(direction, segment)
        if connection.verdict == "drop":
            return None
        if connection.verdict == "reset":
            self._answer_with_reset(direction, segment, now_s)
            return None
        if direction is self.down:
            return data
        return self._count_payload(connection, segment, data, now_s)

    def _track_connection(self, direction: Direction, segment: Segment) -> TrackedConnection:
        is_up = direction is self.up
        from_client = (
            segment
            if is_up
            else segment._replace(
                source=segment.target,
                target=segment.source,
                source_port=segment.target_port,
                target_port=segment.source_port,
            )
        )
        key = from_client.source + from_client.source_port + from_client.target + from_client.target_port
        connection = self._connections.get(key)
        is_first = segment.flags & (SYN | ACK) == SYN
        # A SYN on the same ports begins a new connection.
        if connection is None or (is_first and (is_up or connection.is_ended)):
            connection = TrackedConnection(
                from_client.source, from_client.target, from_client.source_port, from_client.target_port
            )
            connection.verdict = "" if is_first else self._unseen_verdict
            self._connections[key] = connection
        if is_up and connection.returned is None and segment.flags & ACK:
            connection.returned = segment.ack
        elif not is_up:
            if connection.sent is None and segment.flags & ACK:
                connection.sent = segment.ack
            if connection.returned is None or (segment.end - connection.returned) % _SEQ_RANGE < _HALF_SEQ_RANGE:
                connection.returned = segment.end
        connection.note_end(segment, is_up=is_up)
        return connection

    def _count_payload(
        self, connection: TrackedConnection, segment: Segment, data: bytes, now_s: float
    ) -> bytes | None:
        """Count the new payload of a client's packet, and cut the packet if the interruption is due within it."""
        next_seq = segment.seq if connection.sent is None else connection.sent
        new_bytes = (segment.end - next_seq) % _SEQ_RANGE
        if new_bytes >= _HALF_SEQ_RANGE:  # it ends before the next sequence number, so it is a retransmission
            return data
        armed = self.armed
        # This includes earlier bytes that were lost and will come later, because otherwise more than N could pass.
        new_payload = max(0, new_bytes - (segment.flags >> 1 & 1) - (segment.flags & 1))
        if armed is not None and armed.at_byte is not None and armed.passed_bytes + new_payload >= armed.at_byte:
            missing_bytes = armed.at_byte - armed.passed_bytes
            keep_bytes = segment.payload_bytes - new_payload + missing_bytes
            connection.sent = (segment.seq + keep_bytes) % _SEQ_RANGE
            armed.passed_bytes = armed.at_byte
            header_bytes = self.up.header_bytes
            if keep_bytes > 0:
                self.up.enqueue(cut_payload(data, header_bytes, segment, keep_bytes), now_s)
            self._interrupt([connection], now_s)
            return None
        connection.sent = segment.end
        if armed is not None:
            armed.passed_bytes += new_payload
        return data

    def _interrupt(self, connections: list[TrackedConnection], now_s: float) -> None:
        armed = self.armed
        assert armed is not None
        self.armed = None
        armed.happened_ns = int(now_s * 1e9)
        self.past.append(armed)
        if armed.how == "black_hole":
            self._black_hole_end_s = max(self._black_hole_end_s, now_s + (armed.duration_s or 0.0))
            return
        if armed.at_byte is None:
            self._unseen_verdict = armed.how  # for connections that were idle while it was armed
        for connection in connections:
            if connection.verdict:
                continue
            connection.verdict = armed.how
            armed.flows += 1
            if armed.how == "reset":
                self._reset_both_ends(connection, now_s)

    def _reset_both_ends(self, connection: TrackedConnection, now_s: float) -> None:
        """Send resets to both ends, behind the packets that are already queued."""
        ports = connection.source_port + connection.target_port
        reply_ports = connection.target_port + connection.source_port
        sent, returned, header = connection.sent, connection.returned, self._link_headers[len(connection.source)]
        if sent is not None:
            self.up.enqueue(make_reset(header, connection.source, connection.target, ports, sent, returned or 0), now_s)
        if returned is not None:
            self.down.enqueue(
                make_reset(header, connection.target, connection.source, reply_ports, returned, sent or 0), now_s
            )

    def _answer_with_reset(self, direction: Direction, segment: Segment, now_s: float) -> None:
        """Answer a packet of a reset connection with another reset, with the sequence number that the sender expects.

        This resets an end that ignored the first reset because an earlier packet had been lost.
        """
        if segment.flags & RST:
            return
        other = self.down if direction is self.up else self.up
        ports, header = segment.target_port + segment.source_port, self._link_headers[len(segment.source)]
        other.enqueue(make_reset(header, segment.target, segment.source, ports, segment.ack, segment.end), now_s)
