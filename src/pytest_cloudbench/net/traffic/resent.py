"""Retransmissions, by the rules of tshark 4.0 (``tcp.analysis.*``; docs/traffic.md has them in words).

What may live here: these rules. They depend on state that changes with each packet. But while a connection proceeds in
order, its state follows from whole columns, so only the packets around something unusual are stepped through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints
    from pytest_cloudbench.net.traffic.sequence import Mask

RETRANSMITTED, FAST, SPURIOUS, OUT_OF_ORDER, KEEP_ALIVE = 1, 2, 3, 4, 5
"""What a packet was judged to be; 0 is an ordinary one. 1 to 3 are retransmissions."""

_FAST_WITHIN_NS = 20_000_000
_OUT_OF_ORDER_WITHIN_NS = 3_000_000
_UNSIGNED = 1 << 64
_FEW = 64


@dataclass(frozen=True, slots=True)
class Segments:
    """The packets of one connection, as columns in the order of the capture. ``side`` says which end sent each."""

    time_ns: Ints
    side: Mask
    seq: Any
    ack: Any
    flags: Any
    window: Any
    payload: Any


def judge(blocks: Iterable[Segments], *, stepwise: bool = False) -> NDArray[np.uint8]:
    """What each packet of one connection is.

    Equal to ``tcp.analysis.retransmission`` (1 to 3), ``fast_retransmission`` (2), ``spurious_retransmission`` (3),
    ``out_of_order`` (4) and ``keep_alive`` (5) of tshark 4.0.

    Args:
        blocks: the connection, in one or more parts: a long one need not be in memory at once.
        stepwise: take no shortcut; the result is the same.
    """
    import numpy as np

    machine = _Machine()
    found = [_judge_block(segments, machine, stepwise=stepwise) for segments in blocks if len(segments.seq)]
    return np.concatenate(found) if found else np.zeros(0, np.uint8)


def _judge_block(segments: Segments, machine: _Machine, *, stepwise: bool) -> NDArray[np.uint8]:
    """Judge the next packets. Leaves the machine in the state after the last of them."""
    import numpy as np

    found = np.zeros(len(segments.seq), np.uint8)
    if len(found) <= _FEW:  # looking for a shortcut would take longer
        columns = [getattr(segments, each.name).tolist() for each in fields(Segments)]
        found[:] = [machine.step(*line) for line in zip(*columns, strict=True)]
        return found
    course = _Course(segments, machine)
    course.unusual[0] |= not machine.is_calm
    rows = list(range(len(found))) if stepwise else np.flatnonzero(course.unusual).tolist()
    following = done = 0
    while following < len(rows):
        begin = rows[following]
        if begin > done:
            course.restore(machine, begin)
        for row, line in course.lines(begin):
            found[row] = machine.step(*line)
            done = row + 1
            while following < len(rows) and rows[following] <= row:
                following += 1
            if (following == len(rows) or rows[following] > done) and course.agrees(machine, done):
                break
    if done < len(found):
        course.restore(machine, len(found))
    return found


class _Side:
    """What has been seen of one direction. Names are those of tshark's analysis."""

    __slots__ = (
        "duplicate_acks", "is_keep_alive", "last_ack", "last_ack_ns", "next_seq", "next_seq_ns",
        "to_be_acked", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_seq = self.next_seq_ns = self.last_ack = self.last_ack_ns = 0
        self.duplicate_acks = self.to_be_acked = 0
        self.window = 0xFFFFFFFF  # not known
        self.is_keep_alive = False

    def state(self) -> tuple[int, ...]:
        return (
            self.next_seq, self.next_seq_ns, self.last_ack, self.last_ack_ns, self.duplicate_acks, self.window,
            self.to_be_acked, self.is_keep_alive,
        )  # fmt: skip


def _before(left: int, right: int) -> bool:
    """left < right on the circle of 32-bit numbers."""
    return ((left - right) & 0xFFFFFFFF) >= 0x80000000


class _Machine:
    """tshark's ``tcp_analyze_sequence_number``, for one connection."""

    @property
    def is_calm(self) -> bool:
        """Whether the course of ordinary packets determines its next states."""
        return all(
            side.to_be_acked == side.next_seq and not side.is_keep_alive and side.duplicate_acks >= 0
            for side in self.sides
        )

    def __init__(self) -> None:
        self.sides = (_Side(), _Side())
        self.syn_ns: int | None = None
        self.round_trip_ns = 0

    def step(self, now: int, which: bool, here: int, acked: int, flag: int, room: int, size: int) -> int:
        """What the next packet is."""
        own, other = self.sides[which], self.sides[not which]
        marks = flag & (SYN | FIN)
        bare = not flag & (SYN | FIN | RST)
        if flag & (SYN | ACK) == SYN and own.next_seq:
            own.next_seq = own.to_be_acked  # the same SYN again
        probe = size == 1 and here == own.next_seq and other.window == 0
        keep_alive = not probe and size <= 1 and bare and here == (own.next_seq - 1) & 0xFFFFFFFF
        # The same acknowledgement again; an answer to a keep-alive does not count as one.
        same = not probe and not size and bare and room and room == own.window and not other.is_keep_alive
        if same and here == own.next_seq and acked == own.last_ack:
            own.duplicate_acks = 1 if own.duplicate_acks == -1 else own.duplicate_acks + 1
        if acked != own.last_ack:
            own.duplicate_acks = 0
        if other.to_be_acked and flag & ACK and _before(other.to_be_acked, acked):  # of bytes not captured
            if _before(other.to_be_acked, other.next_seq):
                other.to_be_acked = other.next_seq
            else:
                other.duplicate_acks = -1
        kind = KEEP_ALIVE if keep_alive else self._kind(own, other, now, here, size, marks) if size or marks else 0
        self._advance(own, now, here, size, marks, probe)
        own.window, own.last_ack, own.last_ack_ns, own.is_keep_alive = room, acked, now, keep_alive
        if flag & (SYN | ACK) == SYN:
            self.syn_ns = now
        elif flag & (SYN | ACK) == ACK and self.syn_ns is not None and not self.round_trip_ns:
            self.round_trip_ns = now - self.syn_ns
        return kind

    def _kind(self, own: _Side, other: _Side, now: int, here: int, size: int, marks: int) -> int:
        """What a segment with payload, SYN or FIN is."""
        is_behind = bool(own.next_seq) and _before(here, own.next_seq)
        if size > 1 and (own.next_seq - 1) & 0xFFFFFFFF == here:
            is_behind = False  # after a zero-window probe of one byte
        if size and other.last_ack and not _before(other.last_ack, (here + size) & 0xFFFFFFFF):
            return SPURIOUS
        if not is_behind:
            return 0
        # -1 counts as many, because it is unsigned in tshark.
        repeated = other.duplicate_acks >= 2 or other.duplicate_acks == -1
        if repeated and other.last_ack == here and 0 <= now - other.last_ack_ns < _FAST_WITHIN_NS:
            return FAST
        # Both are unsigned in tshark: if time runs backwards they are huge.
        if (now - own.next_seq_ns) % _UNSIGNED < (self.round_trip_ns or _OUT_OF_ORDER_WITHIN_NS) % _UNSIGNED:
            end = (here + size + (1 if marks else 0)) & 0xFFFFFFFF
            if end != own.next_seq:
                return OUT_OF_ORDER
        return RETRANSMITTED

    @staticmethod
    def _advance(own: _Side, now: int, here: int, size: int, marks: int, probe: bool) -> None:
        """Advance the highest sequence number."""
        following = (here + size + (1 if marks else 0)) & 0xFFFFFFFF
        if probe:
            return
        if not own.next_seq or _before(own.next_seq, following):
            own.next_seq, own.next_seq_ns = following, now
        if not own.to_be_acked or here == own.to_be_acked:
            own.to_be_acked = own.next_seq


class _Course:
    """The course of a connection while nothing unusual happens: the machine's state before each packet, from columns.

    For each side there is a column of states: first the one that the machine is in now, then the one after each of
    its packets.
    """

    def __init__(self, segments: Segments, machine: _Machine) -> None:
        import numpy as np

        self.segments = segments
        self.unusual = np.zeros(len(segments.seq), bool)
        self.sent, self.states = list[Any](), list[Any]()
        for number, side in enumerate(machine.sides):
            mine = segments.side == bool(number)
            self.sent.append(np.concatenate(([0], np.cumsum(mine, dtype=np.int32))))  # packets of this side before each
            self.states.append(self._side(np.flatnonzero(mine), side))
        for which in (0, 1):
            self._against_the_other(which)
        self._round_trip(machine)

    def _side(self, rows: Ints, now: _Side) -> dict[str, Any]:
        """What depends on one direction alone."""
        import numpy as np

        segments, is_new = self.segments, not now.next_seq
        seq, flags, room, acked = (
            column[rows] for column in (segments.seq, segments.flags, segments.window, segments.ack)
        )
        size, time_ns = segments.payload[rows].astype(np.int64), segments.time_ns[rows]
        state = {
            "window": np.concatenate(([now.window], room)).astype(np.uint32),
            "last_ack": np.concatenate(([now.last_ack], acked)).astype(np.uint32),
            "last_ack_ns": np.concatenate(([now.last_ack_ns], time_ns)),
        }
        marks = (((flags >> 1) | flags) & 1).astype(np.int64)
        bare = flags & (SYN | FIN | RST) == 0
        # Sequence numbers as distances from the next one that is expected now, or else from the first.
        origin = int(seq[0]) if is_new and len(seq) else now.next_seq
        chained = np.concatenate(([origin], seq)).astype(np.uint32)
        start = sequence.unwrap(chained, np.arange(len(chained)) == 0)[1:]
        end = start + size + marks
        reach = np.maximum.accumulate(np.concatenate(([0], end)))
        before = reach[:-1]
        advanced = end > before
        if is_new:
            advanced[:1] = True
            reach[1:] = np.maximum.accumulate(end)
        state["next_seq"] = (reach + origin).astype(np.uint64).astype(np.uint32)
        if is_new:
            state["next_seq"][0] = 0
        place = np.maximum.accumulate(np.concatenate(([0], np.where(advanced, np.arange(1, len(seq) + 1), 0))))
        state["next_seq_ns"] = np.concatenate(([now.next_seq_ns], time_ns))[place]
        again = (size == 0) & bare & (room != 0) & (start == before)
        again &= (room == state["window"][:-1]) & (acked == state["last_ack"][:-1])
        if is_new:
            again[:1] = False
        total = max(0, now.duplicate_acks) + np.concatenate(([0], np.cumsum(again)))
        reset = np.concatenate(([False], acked != state["last_ack"][:-1]))
        state["duplicate_acks"] = total - np.maximum.accumulate(np.where(reset, total, 0))
        odd = ((size > 0) | (marks > 0)) & (start < before)
        odd |= start > before
        odd |= (size <= 1) & bare & (start == before - 1)
        odd |= flags & (SYN | ACK) == SYN
        # tshark treats the number 0 as unknown.
        odd |= (state["next_seq"][1:] == 0) | (state["next_seq"][:-1] == 0)
        self.unusual[rows] |= odd
        return state

    def _against_the_other(self, which: int) -> None:
        """What depends on the other direction's last packet."""
        import numpy as np

        segments, other = self.segments, self.states[1 - which]
        rows = np.flatnonzero(segments.side == bool(which))
        latest = self.sent[1 - which][rows]
        acked, size = other["last_ack"][latest], segments.payload[rows].astype(np.uint32)
        odd = (size > 0) & (acked != 0) & ((acked - (segments.seq[rows] + size)).view(np.int32) >= 0)
        odd |= (size == 1) & (other["window"][latest] == 0)
        next_seq = other["next_seq"][latest]
        beyond = (next_seq != 0) & ((segments.ack[rows] - next_seq).view(np.int32) > 0)
        odd |= (segments.flags[rows] & ACK > 0) & beyond
        self.unusual[rows] |= odd

    def _round_trip(self, machine: _Machine) -> None:
        """The packets that the length of the handshake depends on."""
        import numpy as np

        opening = self.segments.flags & (SYN | ACK)
        syns = np.flatnonzero(opening == SYN)
        if machine.round_trip_ns or (machine.syn_ns is None and not len(syns)):
            return
        for row in np.flatnonzero(opening == ACK):
            earlier = np.searchsorted(syns, row)
            syn_ns = self.segments.time_ns[syns[earlier - 1]] if earlier else machine.syn_ns
            if syn_ns is not None:
                self.unusual[row] = True
                if self.segments.time_ns[row] != syn_ns:
                    return

    def lines(self, begin: int) -> Any:
        """(row, the packet) from a row on; few at first, since most often few are needed."""
        size = 64
        while begin < len(self.segments.seq):
            columns = [getattr(self.segments, each.name)[begin : begin + size].tolist() for each in fields(Segments)]
            yield from enumerate(zip(*columns, strict=True), begin)
            begin += size
            size = min(size * 2, 8192)

    def _state(self, row: int, which: int) -> tuple[int, ...]:
        """One side's state before a packet."""
        place, state = self.sent[which][row], self.states[which]
        names = ("next_seq", "next_seq_ns", "last_ack", "last_ack_ns", "duplicate_acks", "window", "next_seq")
        return (*(int(state[name][place]) for name in names), False)

    def agrees(self, machine: _Machine, row: int) -> bool:
        """Returns whether the machine's state equals the course's before a packet, so that the course can advance
        it.
        """
        return all(machine.sides[which].state() == self._state(row, which) for which in (0, 1))

    def restore(self, machine: _Machine, row: int) -> None:
        """Set the machine to the state before a packet."""
        for which, side in enumerate(machine.sides):
            (
                side.next_seq, side.next_seq_ns, side.last_ack, side.last_ack_ns, side.duplicate_acks, side.window,
                side.to_be_acked, _,
            ) = self._state(row, which)  # fmt: skip
            side.is_keep_alive = False
