"""The forwarder: moves packets between two file descriptors and delays, drops and paces them as a bad network does.

What may live here: the two directions, their queues and clocks, and interruptions. Runs in the holder's process, on
one thread; every packet costs a few microseconds, so the loops are written out. Nothing here knows how the
descriptors were made: TUN devices hand over bare IP packets, packet sockets put a link header before them.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pytest_cloudbench.net.link.packets import ACK, RST, SYN, Segment, cut, is_unicast, reset, segment

_READ_BYTES = 2048  # our devices have an MTU of 1500 and no offloads
_BATCH = 64
_BACKLOG_BYTES = 256 * 1024 * 1024
_WRAP, _HALF = 1 << 32, 1 << 31


@dataclass(slots=True)
class Counts:
    """Packets of one direction, by what happened to them."""

    taken: int = 0
    delivered: int = 0
    lost: int = 0
    """Drawn by ``loss``."""
    overflowed: int = 0
    """The queue before the rate limit was full."""
    interrupted: int = 0
    """An interruption took them."""
    refused: int = 0
    """The receiving device refused them."""
    missed: int = 0
    """The forwarder was too late to read them, so they are not in ``taken``: the link was not as asked."""


class Direction:
    """One direction: packets from ``source`` leave at ``sink`` delayed, with losses, at a limited rate.

    Order is kept: jitter never lets a packet overtake another.
    """

    def __init__(self, source: int, sink: int, header_bytes: int, settings: dict[str, Any], seed: str) -> None:
        self.source, self.sink, self.header_bytes = source, sink, header_bytes
        self.delay_s, self.jitter_s = settings["delay_ms"] / 1000, settings["jitter_ms"] / 1000
        self.loss: float = settings["loss"]
        self.bytes_per_s: float = (settings["rate_bit_per_s"] or 0) / 8
        self.queue_s = settings["queue_bytes"] / self.bytes_per_s if self.bytes_per_s else 0.0
        self.counts = Counts()
        self.judge: Callable[[Direction, bytes, float], bytes | None] | None = None
        self._random = random.Random(seed)
        self._queue: deque[tuple[float, bytes]] = deque()
        self._queued_bytes = 0
        self._free_s = self._last_s = 0.0
        self._is_plain = not (self.delay_s or self.jitter_s or self.loss or self.bytes_per_s)

    def take(self) -> None:
        """Read what has arrived, at most one batch."""
        if self._is_plain and self.judge is None and not self._queue:
            self._pass_on()
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
            if self.judge is not None:
                kept = self.judge(self, data, now_s)
                if kept is None:
                    counts.interrupted += 1
                    continue
                data = kept
            self.push(data, now_s)

    def _pass_on(self) -> None:
        """The fast path, when packets pass unchanged."""
        source, sink, header_bytes, read, write = self.source, self.sink, self.header_bytes, os.read, os.write
        taken = 0
        try:
            for _ in range(_BATCH):
                data = read(source, _READ_BYTES)
                if is_unicast(data, header_bytes):
                    taken += 1
                    write(sink, data)
        except BlockingIOError:
            pass  # all read; a sink that is full is counted by its own device
        except OSError:
            self.counts.refused += 1
            taken -= 1
        self.counts.taken += taken
        self.counts.delivered += taken

    def push(self, data: bytes, now_s: float) -> None:
        """Put a packet into the queue, due when a link of that rate and delay would hand it over."""
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

    def release(self) -> float | None:
        """Write what is due; returns the monotonic time in seconds of the next packet, None when none waits."""
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
    """One interruption: what was asked, and what happened. Times are ``time.monotonic_ns``."""

    how: str
    at_byte: int | None
    at_s: float | None
    duration_s: float | None
    armed_ns: int
    happened_ns: int = 0
    passed_bytes: int = 0
    """Payload bytes that clients sent and that passed, between arming and happening."""
    flows: int = 0
    """Connections that were cut."""


@dataclass(slots=True)
class TrackedConnection:
    """One connection as the forwarder has seen it since the first interruption was armed."""

    source: bytes
    target: bytes
    source_port: bytes
    target_port: bytes
    sent: int | None = None
    """The sequence number that the client sends next."""
    returned: int | None = None
    """The sequence number that the server sends next."""
    verdict: str = ""
    """``reset`` or ``drop`` once it is cut."""


class Interrupter:
    """Cuts connections at a byte or a time. Looks at every TCP packet of both directions while one is armed.

    Bytes are payload from client to server, of all connections together, retransmissions counted once. The packet in
    which byte N lies is cut so that exactly N bytes pass; fewer if an earlier packet was lost and not yet sent again.
    """

    def __init__(self, up: Direction, down: Direction, link_headers: dict[int, bytes]) -> None:
        """``link_headers`` has the header that packets carry, by the length of their addresses (4, 16)."""
        self.up, self.down, self._link_headers = up, down, link_headers
        self.done: list[Interruption] = []
        self.armed: Interruption | None = None
        self._connections: dict[bytes, TrackedConnection] = {}
        self._hole_until_s = 0.0
        self._verdict_on_old = ""

    def arm(self, how: str, at_byte: int | None, at_s: float | None, duration_s: float | None) -> None:
        """Prepare an interruption; ``at_s`` counts from now. It replaces one that has not happened yet."""
        self.armed = Interruption(how, at_byte, at_s, duration_s, time.monotonic_ns())
        self.up.judge = self.down.judge = self.judge

    def due_s(self) -> float | None:
        """The monotonic time in seconds of the next action, None when there is none."""
        armed = self.armed
        return None if armed is None or armed.at_s is None else armed.armed_ns / 1e9 + armed.at_s

    def tick(self) -> None:
        """Let an interruption happen if its time has come."""
        due_s = self.due_s()
        if due_s is not None and time.monotonic() >= due_s:
            self._happen(list(self._connections.values()), time.monotonic())

    def records(self) -> list[dict[str, Any]]:
        """All that were armed, as plain data; ``happened_ns`` is 0 for one still pending."""
        return [asdict(one) for one in [*self.done, *([self.armed] if self.armed else [])]]

    def judge(self, direction: Direction, data: bytes, now_s: float) -> bytes | None:
        """The packet, or the part of it that passes; None if nothing passes."""
        if now_s < self._hole_until_s:
            return None
        found = segment(data, direction.header_bytes)
        if found is None:
            return data
        connection = self._connection(direction, found)
        if connection.verdict == "drop":
            return None
        if connection.verdict == "reset":
            self._refuse(direction, found, now_s)
            return None
        if direction is self.down:
            return data
        return self._count(connection, found, data, now_s)

    def _connection(self, direction: Direction, found: Segment) -> TrackedConnection:
        is_up = direction is self.up
        near = (
            found
            if is_up
            else found._replace(
                source=found.target, target=found.source, source_port=found.target_port, target_port=found.source_port
            )
        )
        key = near.source + near.source_port + near.target + near.target_port
        connection = self._connections.get(key)
        is_first = found.flags & (SYN | ACK) == SYN
        if connection is None or (is_up and is_first):  # the same ports again are another connection
            connection = TrackedConnection(near.source, near.target, near.source_port, near.target_port)
            connection.verdict = "" if is_first else self._verdict_on_old
            self._connections[key] = connection
        if is_up and connection.returned is None and found.flags & ACK:
            connection.returned = found.ack
        elif not is_up:
            if connection.sent is None and found.flags & ACK:
                connection.sent = found.ack
            if connection.returned is None or (found.end - connection.returned) % _WRAP < _HALF:
                connection.returned = found.end
        return connection

    def _count(self, connection: TrackedConnection, found: Segment, data: bytes, now_s: float) -> bytes | None:
        """Count what is new in a client's packet, and let the interruption happen in the middle of it."""
        before = found.seq if connection.sent is None else connection.sent
        new_bytes = (found.end - before) % _WRAP
        if new_bytes >= _HALF:  # before the end of what has been seen: sent again
            return data
        armed = self.armed
        # This includes what was lost earlier and comes later: otherwise more than N could pass.
        new_payload = max(0, new_bytes - (found.flags >> 1 & 1) - (found.flags & 1))
        if armed is not None and armed.at_byte is not None and armed.passed_bytes + new_payload >= armed.at_byte:
            left = armed.at_byte - armed.passed_bytes
            keep_bytes = found.payload_bytes - new_payload + left
            connection.sent = (found.seq + keep_bytes) % _WRAP
            armed.passed_bytes = armed.at_byte
            header_bytes = self.up.header_bytes
            if keep_bytes > 0:
                self.up.push(cut(data, header_bytes, found, keep_bytes), now_s)
            self._happen([connection], now_s)
            return None
        connection.sent = found.end
        if armed is not None:
            armed.passed_bytes += new_payload
        return data

    def _happen(self, connections: list[TrackedConnection], now_s: float) -> None:
        armed = self.armed
        assert armed is not None
        self.armed = None
        armed.happened_ns = int(now_s * 1e9)
        self.done.append(armed)
        if armed.how == "black_hole":
            self._hole_until_s = max(self._hole_until_s, now_s + (armed.duration_s or 0.0))
            return
        if armed.at_byte is None:
            self._verdict_on_old = armed.how  # connections that were idle while it was armed were not seen
        for connection in connections:
            if connection.verdict:
                continue
            connection.verdict = armed.how
            armed.flows += 1
            if armed.how == "reset":
                self._reset_both(connection, now_s)

    def _reset_both(self, connection: TrackedConnection, now_s: float) -> None:
        """Send resets to both ends, after the packets already on their way."""
        ports, back = connection.source_port + connection.target_port, connection.target_port + connection.source_port
        sent, returned, header = connection.sent, connection.returned, self._link_headers[len(connection.source)]
        if sent is not None:
            self.up.push(reset(header, connection.source, connection.target, ports, sent, returned or 0), now_s)
        if returned is not None:
            self.down.push(reset(header, connection.target, connection.source, back, returned, sent or 0), now_s)

    def _refuse(self, direction: Direction, found: Segment, now_s: float) -> None:
        """Answer a packet of a reset connection with a reset: its ``ack`` is what the sender expects next.

        This is what cuts an end that did not take the first reset because a packet before it was lost.
        """
        if found.flags & RST:
            return
        other = self.down if direction is self.up else self.up
        ports, header = found.target_port + found.source_port, self._link_headers[len(found.source)]
        other.push(reset(header, found.target, found.source, ports, found.ack, found.end), now_s)
