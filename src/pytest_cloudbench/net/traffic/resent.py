"""Detection of retransmissions by the rules of tshark 4.0 (``tcp.analysis.*``), which docs/method/traffic.md explains.

The rules depend on state that changes with each packet. While a connection proceeds in order, its state can be computed
from whole columns, so only the packets around something unusual are processed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints
    from pytest_cloudbench.net.traffic.sequence import Mask

RETRANSMITTED, FAST, SPURIOUS, OUT_OF_ORDER, KEEP_ALIVE = 1, 2, 3, 4, 5
"""Verdicts on packets. 0 is an ordinary packet, and 1 to 3 are retransmissions."""

FAST_WITHIN_NS = 20_000_000
OUT_OF_ORDER_WITHIN_NS = 3_000_000
_UNSIGNED = 1 << 64
_FEW = 64


class Segments(NamedTuple):
    """The packets of one connection, as columns in capture order. ``side`` is the end that sent each."""

    time_ns: Ints
    side: Mask
    seq: Any
    ack: Any
    flags: Any
    window: Any
    payload: Any


def judge_packets(blocks: Iterable[Segments], *, stepwise: bool = False) -> NDArray[np.uint8]:
    """Return the verdict on each packet of one connection.

    The verdicts equal ``tcp.analysis.retransmission`` (1 to 3), ``fast_retransmission`` (2),
    ``spurious_retransmission`` (3), ``out_of_order`` (4) and ``keep_alive`` (5) of tshark 4.0.

    Args:
        blocks: the connection in one or more parts, so that a long one need not be in memory at once.
        stepwise: whether to process all packets one by one, with the same result.
    """
    import numpy as np

    machine = _Machine()
    verdicts = [_judge_block(segments, machine, stepwise=stepwise) for segments in blocks if len(segments.seq)]
    return np.concatenate(verdicts) if verdicts else np.zeros(0, np.uint8)


def _judge_block(segments: Segments, machine: _Machine, *, stepwise: bool) -> NDArray[np.uint8]:
    """Judge the next packets, and leave the machine in the state after the last one."""
    import numpy as np

    verdicts = np.zeros(len(segments.seq), np.uint8)
    if len(verdicts) <= _FEW:  # a prediction would take longer
        columns = [column.tolist() for column in segments]
        verdicts[:] = [machine.step(*packet) for packet in zip(*columns, strict=True)]
        return verdicts
    prediction = _Prediction(segments, machine)
    prediction.unusual[0] |= not machine.is_calm
    rows = list(range(len(verdicts))) if stepwise else np.flatnonzero(prediction.unusual).tolist()
    next_row = done_rows = 0
    while next_row < len(rows):
        begin = rows[next_row]
        if begin > done_rows:
            prediction.restore_machine(machine, begin)
        for row, packet in prediction.iterate_packets(begin):
            verdicts[row] = machine.step(*packet)
            done_rows = row + 1
            while next_row < len(rows) and rows[next_row] <= row:
                next_row += 1
            if (next_row == len(rows) or rows[next_row] > done_rows) and prediction.matches(machine, done_rows):
                break
    if done_rows < len(verdicts):
        prediction.restore_machine(machine, len(verdicts))
    return verdicts


class _Side:
    """The state of one direction, with the names of tshark's analysis."""

    __slots__ = (
        "duplicate_acks", "is_keep_alive", "last_ack", "last_ack_ns", "next_seq", "next_seq_ns",
        "to_be_acked", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_seq = self.next_seq_ns = self.last_ack = self.last_ack_ns = 0
        self.duplicate_acks = self.to_be_acked = 0
        self.window = 0xFFFFFFFF  # unknown
        self.is_keep_alive = False

    def get_state(self) -> tuple[int, ...]:
        return (
            self.next_seq, self.next_seq_ns, self.last_ack, self.last_ack_ns, self.duplicate_acks, self.window,
            self.to_be_acked, self.is_keep_alive,
        )  # fmt: skip


def _is_before(earlier: int, later: int) -> bool:
    """Return whether one 32-bit sequence number is before another, with wrap-around."""
    return ((earlier - later) & 0xFFFFFFFF) >= 0x80000000


class _Machine:
    """The state machine of tshark's ``tcp_analyze_sequence_number`` for one connection."""

    @property
    def is_calm(self) -> bool:
        """True if its next states can be computed from columns of ordinary packets."""
        return all(
            side.to_be_acked == side.next_seq and not side.is_keep_alive and side.duplicate_acks >= 0
            for side in self.sides
        )

    def __init__(self) -> None:
        self.sides = (_Side(), _Side())
        self.syn_ns: int | None = None
        self.round_trip_ns = 0

    def step(
        self, now_ns: int, side_number: bool, seq: int, ack: int, flags: int, window: int, payload_bytes: int
    ) -> int:
        """Process the next packet and return its verdict."""
        sender, receiver = self.sides[side_number], self.sides[not side_number]
        marks = flags & (SYN | FIN)
        is_bare = not flags & (SYN | FIN | RST)
        if flags & (SYN | ACK) == SYN and sender.next_seq:
            sender.next_seq = sender.to_be_acked  # a repeated SYN
        is_probe = payload_bytes == 1 and seq == sender.next_seq and receiver.window == 0
        is_keep_alive = not is_probe and payload_bytes <= 1 and is_bare and seq == (sender.next_seq - 1) & 0xFFFFFFFF
        # An answer to a keep-alive does not count as a duplicate acknowledgement.
        is_same_ack = (
            not is_probe
            and not payload_bytes
            and is_bare
            and window
            and window == sender.window
            and not receiver.is_keep_alive
        )
        if is_same_ack and seq == sender.next_seq and ack == sender.last_ack:
            sender.duplicate_acks = 1 if sender.duplicate_acks == -1 else sender.duplicate_acks + 1
        if ack != sender.last_ack:
            sender.duplicate_acks = 0
        if (
            receiver.to_be_acked and flags & ACK and _is_before(receiver.to_be_acked, ack)
        ):  # for bytes that were not captured
            if _is_before(receiver.to_be_acked, receiver.next_seq):
                receiver.to_be_acked = receiver.next_seq
            else:
                receiver.duplicate_acks = -1
        kind = (
            KEEP_ALIVE
            if is_keep_alive
            else self._classify(sender, receiver, now_ns, seq, payload_bytes, marks)
            if payload_bytes or marks
            else 0
        )
        self._advance_next_seq(sender, now_ns, seq, payload_bytes, marks, is_probe)
        sender.window, sender.last_ack, sender.last_ack_ns, sender.is_keep_alive = window, ack, now_ns, is_keep_alive
        if flags & (SYN | ACK) == SYN:
            self.syn_ns = now_ns
        elif flags & (SYN | ACK) == ACK and self.syn_ns is not None and not self.round_trip_ns:
            self.round_trip_ns = now_ns - self.syn_ns
        return kind

    def _classify(self, sender: _Side, receiver: _Side, now_ns: int, seq: int, payload_bytes: int, marks: int) -> int:
        """Return the verdict on a segment with payload, SYN or FIN."""
        is_behind = bool(sender.next_seq) and _is_before(seq, sender.next_seq)
        if payload_bytes > 1 and (sender.next_seq - 1) & 0xFFFFFFFF == seq:
            is_behind = False  # after a zero-window probe of one byte
        if (
            payload_bytes
            and receiver.last_ack
            and not _is_before(receiver.last_ack, (seq + payload_bytes) & 0xFFFFFFFF)
        ):
            return SPURIOUS
        if not is_behind:
            return 0
        # -1 counts as many, because the field is unsigned in tshark.
        is_repeated = receiver.duplicate_acks >= 2 or receiver.duplicate_acks == -1
        if is_repeated and receiver.last_ack == seq and 0 <= now_ns - receiver.last_ack_ns < FAST_WITHIN_NS:
            return FAST
        # Both are unsigned in tshark, so they are huge if time runs backwards.
        if (now_ns - sender.next_seq_ns) % _UNSIGNED < (self.round_trip_ns or OUT_OF_ORDER_WITHIN_NS) % _UNSIGNED:
            end = (seq + payload_bytes + (1 if marks else 0)) & 0xFFFFFFFF
            if end != sender.next_seq:
                return OUT_OF_ORDER
        return RETRANSMITTED

    @staticmethod
    def _advance_next_seq(sender: _Side, now_ns: int, seq: int, payload_bytes: int, marks: int, is_probe: bool) -> None:
        """Advance the highest sequence number."""
        next_seq = (seq + payload_bytes + (1 if marks else 0)) & 0xFFFFFFFF
        if is_probe:
            return
        if not sender.next_seq or _is_before(sender.next_seq, next_seq):
            sender.next_seq, sender.next_seq_ns = next_seq, now_ns
        if not sender.to_be_acked or seq == sender.to_be_acked:
            sender.to_be_acked = sender.next_seq


class _Prediction:
    """The predicted states of the machine before each packet, from columns, as long as nothing unusual happens.

    Each side has a column of states: first the current one of the machine, then the one after each of its packets.
    """

    def __init__(self, segments: Segments, machine: _Machine) -> None:
        import numpy as np

        self.segments = segments
        self.unusual = np.zeros(len(segments.seq), bool)
        self.sent, self.states = list[Any](), list[Any]()
        for number, side in enumerate(machine.sides):
            is_side = segments.side == bool(number)
            self.sent.append(
                np.concatenate(([0], np.cumsum(is_side, dtype=np.int32)))
            )  # number of this side's earlier packets
            self.states.append(self._predict_side(np.flatnonzero(is_side), side))
        for side_number in (0, 1):
            self._check_against_other_side(side_number)
        self._mark_handshake(machine)

    def _predict_side(self, rows: Ints, side_state: _Side) -> dict[str, Any]:
        """Predict the states that depend on one direction alone, and mark its unusual packets."""
        import numpy as np

        segments, is_new = self.segments, not side_state.next_seq
        seq, flags, window, ack = (
            column[rows] for column in (segments.seq, segments.flags, segments.window, segments.ack)
        )
        size, time_ns = segments.payload[rows].astype(np.int64), segments.time_ns[rows]
        states = {
            "window": np.concatenate(([side_state.window], window)).astype(np.uint32),
            "last_ack": np.concatenate(([side_state.last_ack], ack)).astype(np.uint32),
            "last_ack_ns": np.concatenate(([side_state.last_ack_ns], time_ns)),
        }
        marks = (((flags >> 1) | flags) & 1).astype(np.int64)
        is_bare = flags & (SYN | FIN | RST) == 0
        # Sequence numbers as distances from the next expected one, or else from the first.
        origin = int(seq[0]) if is_new and len(seq) else side_state.next_seq
        chained = np.concatenate(([origin], seq)).astype(np.uint32)
        start = sequence.unwrap(chained, np.arange(len(chained)) == 0)[1:]
        end = start + size + marks
        reach = np.maximum.accumulate(np.concatenate(([0], end)))
        before = reach[:-1]
        advanced = end > before
        if is_new:
            advanced[:1] = True
            reach[1:] = np.maximum.accumulate(end)
        states["next_seq"] = (reach + origin).astype(np.uint64).astype(np.uint32)
        if is_new:
            states["next_seq"][0] = 0
        latest = np.maximum.accumulate(np.concatenate(([0], np.where(advanced, np.arange(1, len(seq) + 1), 0))))
        states["next_seq_ns"] = np.concatenate(([side_state.next_seq_ns], time_ns))[latest]
        is_duplicate_ack = (size == 0) & is_bare & (window != 0) & (start == before)
        is_duplicate_ack &= (window == states["window"][:-1]) & (ack == states["last_ack"][:-1])
        if is_new:
            is_duplicate_ack[:1] = False
        total = max(0, side_state.duplicate_acks) + np.concatenate(([0], np.cumsum(is_duplicate_ack)))
        reset = np.concatenate(([False], ack != states["last_ack"][:-1]))
        states["duplicate_acks"] = total - np.maximum.accumulate(np.where(reset, total, 0))
        is_odd = ((size > 0) | (marks > 0)) & (start < before)
        is_odd |= start > before
        is_odd |= (size <= 1) & is_bare & (start == before - 1)
        is_odd |= flags & (SYN | ACK) == SYN
        # tshark treats the number 0 as unknown.
        is_odd |= (states["next_seq"][1:] == 0) | (states["next_seq"][:-1] == 0)
        self.unusual[rows] |= is_odd
        return states

    def _check_against_other_side(self, side_number: int) -> None:
        """Mark packets that are unusual given the other direction's last packet."""
        import numpy as np

        segments, other = self.segments, self.states[1 - side_number]
        rows = np.flatnonzero(segments.side == bool(side_number))
        latest = self.sent[1 - side_number][rows]
        last_ack, size = other["last_ack"][latest], segments.payload[rows].astype(np.uint32)
        is_odd = (size > 0) & (last_ack != 0) & ((last_ack - (segments.seq[rows] + size)).view(np.int32) >= 0)
        is_odd |= (size == 1) & (other["window"][latest] == 0)
        next_seq = other["next_seq"][latest]
        is_beyond = (next_seq != 0) & ((segments.ack[rows] - next_seq).view(np.int32) > 0)
        is_odd |= (segments.flags[rows] & ACK > 0) & is_beyond
        self.unusual[rows] |= is_odd

    def _mark_handshake(self, machine: _Machine) -> None:
        """Mark the packets that determine the duration of the handshake."""
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

    def iterate_packets(self, begin: int) -> Any:
        """Yield (row, packet) from a row on, in blocks that start small because few rows are usually needed."""
        size = 2
        while begin < len(self.segments.seq):
            columns = [column[begin : begin + size].tolist() for column in self.segments]
            yield from enumerate(zip(*columns, strict=True), begin)
            begin += size
            size = min(size * 2, 8192)

    def _get_state(self, row: int, side_number: int) -> tuple[int, ...]:
        """Return one side's predicted state before a packet."""
        index, states = self.sent[side_number].item(row), self.states[side_number]
        next_seq = states["next_seq"].item(index)
        return (
            next_seq, states["next_seq_ns"].item(index), states["last_ack"].item(index),
            states["last_ack_ns"].item(index), states["duplicate_acks"].item(index), states["window"].item(index),
            next_seq, False,
        )  # fmt: skip

    def matches(self, machine: _Machine, row: int) -> bool:
        """Return whether the machine is in the predicted state before a packet, so that columns can continue."""
        first, second = machine.sides
        return first.get_state() == self._get_state(row, 0) and second.get_state() == self._get_state(row, 1)

    def restore_machine(self, machine: _Machine, row: int) -> None:
        """Set the machine to the predicted state before a packet."""
        for side_number, side in enumerate(machine.sides):
            (
                side.next_seq, side.next_seq_ns, side.last_ack, side.last_ack_ns, side.duplicate_acks, side.window,
                side.to_be_acked, _,
            ) = self._get_state(row, side_number)  # fmt: skip
            side.is_keep_alive = False
