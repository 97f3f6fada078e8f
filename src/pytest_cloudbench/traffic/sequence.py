"""TCP sequence numbers: unique bytes, retransmissions, round trips.

What may live here: arithmetic on sequence and acknowledgement numbers. Retransmissions follow the rules of tshark 4.0
(``tcp.analysis.*``; docs/traffic.md has them in words). Most connections never send a byte twice; that is seen
on whole columns, and only the others are stepped through packet by packet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic.packets import ACK, FIN, RST, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

    Mask = NDArray[np.bool_]
    Verdicts = NDArray[np.uint8]

__all__ = [
    "FAST",
    "KEEP_ALIVE",
    "OUT_OF_ORDER",
    "RETRANSMITTED",
    "SPURIOUS",
    "covered",
    "initial_round_trip_ns",
    "judge",
    "round_trips_ns",
    "suspicious",
    "unwrap",
]

RETRANSMITTED, FAST, SPURIOUS, OUT_OF_ORDER, KEEP_ALIVE = 1, 2, 3, 4, 5
"""What a packet was judged to be; 0 is an ordinary one. 1 to 3 are retransmissions."""

_FAR = 1 << 42


def unwrap(seq: Any, first: Mask) -> Ints:
    """Sequence numbers as distances from the first one of each group, beyond 4 GiB too.

    Args:
        seq: 32-bit numbers, group after group.
        first: where a group begins.
    """
    import numpy as np

    steps = np.empty(len(seq), np.int64)
    steps[:1] = 0
    steps[1:] = (seq[1:] - seq[:-1]).view(np.int32)
    steps[first] = 0
    total = np.cumsum(steps)
    begins = np.flatnonzero(first)
    return np.asarray(total - np.repeat(total[begins], np.diff(np.append(begins, len(seq)))))


def covered(group: Ints, first: Mask, start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """(bytes in the union of the ranges, bytes in holes between them) of each group, in the order of groups.

    Args:
        group: a number for each range, ascending.
        first: where a group begins.
        start, size: the ranges; those of size 0 do not count.
    """
    import numpy as np

    base = group * _FAR + start
    end = base + size
    reach = np.maximum.accumulate(end)
    begins = np.flatnonzero(first)
    before = np.empty_like(reach)
    before[1:] = reach[:-1]
    before[begins] = base[begins]
    if (base < before).any():  # something came twice or late: sort, then the same again
        order = np.argsort(base, kind="stable")
        base, end, size = base[order], end[order], size[order]
        reach = np.maximum.accumulate(end)
        before[1:] = reach[:-1]
        before[begins] = base[begins]
    fresh = np.maximum(end - np.maximum(base, before), 0)
    union = np.add.reduceat(fresh, begins)
    last = np.append(begins[1:], len(base)) - 1
    return union, reach[last] - base[begins] - union


def suspicious(
    group: Ints, side: Mask, start: Ints, next_seq: Ints, payload: Ints, seq: Any, ack: Any, *, data: Mask
) -> Mask:
    """Packets that may be retransmissions or out of order: all that ``judge`` could say anything of, and some more.

    Args:
        group: number of the connection of each packet, ascending.
        side: which end sent it.
        start, next_seq: its range of sequence numbers, unwrapped for its side.
        payload, seq, ack: of the packet.
        data: packets with payload, SYN or FIN.
    """
    import numpy as np

    found = np.zeros(len(group), bool)
    for which in (False, True):
        rows = np.flatnonzero(side == which)
        if not len(rows):
            continue
        base = group[rows] * _FAR
        reach = np.maximum.accumulate(base + next_seq[rows])
        found[rows[1:]] = data[rows[1:]] & (base[1:] + start[rows[1:]] < reach[:-1])
        # The other side's latest acknowledgement already covers it.
        others = np.where(side == which, -1, np.arange(len(group)))
        latest = np.maximum.accumulate(others)[rows]
        known = (latest >= 0) & (group[latest] == group[rows]) & (payload[rows] > 0)
        acked = ack[latest]
        behind = (acked - (seq[rows] + payload[rows].astype(np.uint32))).view(np.int32) >= 0
        found[rows] |= known & (acked != 0) & behind
    return found


class _Side:
    """What has been seen of one direction; names as in tshark's analysis."""

    __slots__ = (
        "duplicate_acks", "is_keep_alive", "last_ack", "last_ack_ns", "last_length", "next_seq", "next_seq_ns",
        "to_be_acked", "was_probe", "window",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next_seq = self.next_seq_ns = self.last_ack = self.last_ack_ns = 0
        self.duplicate_acks = self.window = self.to_be_acked = self.last_length = 0
        self.is_keep_alive = self.was_probe = False


def _before(left: int, right: int) -> bool:
    """left < right on the circle of 32-bit numbers."""
    return ((left - right) & 0xFFFFFFFF) >= 0x80000000


def judge(
    time_ns: Sequence[int],
    side: Sequence[bool],
    seq: Sequence[int],
    ack: Sequence[int],
    flags: Sequence[int],
    window: Sequence[int],
    payload: Sequence[int],
) -> list[int]:
    """What each packet of one connection is, one after the other, by tshark's rules.

    Equal to ``tcp.analysis.retransmission`` (1 to 3), ``fast_retransmission`` (2), ``spurious_retransmission`` (3),
    ``out_of_order`` (4) and ``keep_alive`` (5) of tshark 4.0.
    """
    sides = (_Side(), _Side())
    syn_ns: int | None = None
    round_trip_ns = 0
    result = []
    for now, which, here, acked, flag, room, size in zip(time_ns, side, seq, ack, flags, window, payload, strict=True):
        own, other = (sides[1], sides[0]) if which else sides
        marks = flag & (SYN | FIN)
        bare = not flag & (SYN | FIN | RST)
        if flag & (SYN | ACK) == SYN and own.next_seq:
            own.next_seq = own.to_be_acked  # the same SYN again
        probe = size == 1 and here == own.next_seq and other.window == 0
        keep_alive = not probe and size <= 1 and bare and here == (own.next_seq - 1) & 0xFFFFFFFF
        if not probe:
            _count_duplicate_ack(own, other, here, acked, room, size, bare=bare)
        if acked != own.last_ack:
            own.duplicate_acks = 0
        if other.to_be_acked and flag & ACK and _before(other.to_be_acked, acked):  # acknowledges what was not captured
            if _before(other.to_be_acked, other.next_seq):
                other.to_be_acked = other.next_seq
            else:
                other.duplicate_acks = -1
        result.append(
            KEEP_ALIVE if keep_alive
            else _kind(own, other, now, here, size, marks, round_trip_ns) if size or marks
            else 0
        )  # fmt: skip
        _advance(own, now, here, size, marks, probe=probe)
        own.window, own.last_ack, own.last_ack_ns = room, acked, now
        own.is_keep_alive, own.was_probe = keep_alive, probe
        if flag & (SYN | ACK) == SYN:
            syn_ns = now
        elif flag & (SYN | ACK) == ACK and syn_ns is not None and not round_trip_ns:
            round_trip_ns = now - syn_ns
    return result


def _count_duplicate_ack(own: _Side, other: _Side, here: int, acked: int, room: int, size: int, *, bare: bool) -> None:
    same = not size and bare and room == own.window and here == own.next_seq and acked == own.last_ack
    if same and room and not other.is_keep_alive:  # an answer to a keep-alive is none
        own.duplicate_acks = 1 if own.duplicate_acks == -1 else own.duplicate_acks + 1


def _kind(own: _Side, other: _Side, now: int, here: int, size: int, marks: int, round_trip_ns: int) -> int:
    """What a segment with payload, SYN or FIN is."""
    is_behind = bool(own.next_seq) and _before(here, own.next_seq)
    if size > 1 and (own.next_seq - 1) & 0xFFFFFFFF == here:
        is_behind = False  # after a zero-window probe of one byte
    if size and other.last_ack and not _before(other.last_ack, (here + size) & 0xFFFFFFFF):
        return SPURIOUS
    if not is_behind:
        return 0
    if other.duplicate_acks >= 2 and other.last_ack == here and now - other.last_ack_ns < 20_000_000:
        return FAST
    if now - own.next_seq_ns < (round_trip_ns or 3_000_000):
        end = (here + size + (1 if marks else 0)) & 0xFFFFFFFF
        if end != own.next_seq or own.last_length == 0:
            return OUT_OF_ORDER
    return RETRANSMITTED


def _advance(own: _Side, now: int, here: int, size: int, marks: int, *, probe: bool) -> None:
    """Move the highest sequence number on."""
    following = (here + size + (1 if marks else 0)) & 0xFFFFFFFF
    if not own.next_seq or _before((own.next_seq + (1 if marks else 0)) & 0xFFFFFFFF, following):
        own.last_length = size
    if probe:
        return
    if not own.next_seq or _before(own.next_seq, following):
        own.next_seq, own.next_seq_ns = following, now
    if not own.to_be_acked or here == own.to_be_acked:
        own.to_be_acked = own.next_seq


def initial_round_trip_ns(time_ns: Sequence[int], flags: Sequence[int]) -> int | None:
    """From the last SYN to the first segment that only acknowledges (tshark's ``tcp.analysis.initial_rtt``).

    It covers the whole way, wherever between the two ends the capture was made. None without a whole handshake.
    """
    syn_ns: int | None = None
    for now, flag in zip(time_ns, flags, strict=True):
        if flag & (SYN | ACK) == SYN:
            syn_ns = now
        elif flag & (SYN | ACK) == ACK and syn_ns is not None:
            return now - syn_ns
    return None


def round_trips_ns(time_ns: Ints, side: Mask, seq: Any, ack: Any, flags: Any, payload: Ints, *, of: bool) -> Ints:
    """How long after each segment of one side the other side acknowledged exactly its end.

    Segments of which any byte was sent more than once are left out (Karn's algorithm, RFC 6298 section 3): their
    acknowledgement may answer either. At the capture point: seen from the sender it is the whole round trip.

    Args:
        time_ns, side, seq, ack, flags, payload: the packets of one connection.
        of: the side whose segments are timed.
    """
    import numpy as np

    sent = np.flatnonzero((side == of) & (payload > 0))
    acks = np.flatnonzero((side != of) & ((flags & ACK) > 0))
    if not len(sent) or not len(acks):
        return np.zeros(0, np.int64)
    first = np.zeros(len(sent), bool)
    first[0] = True
    start = unwrap(seq[sent], first)
    end = start + payload[sent]
    reach = np.maximum.accumulate(end)
    again = np.zeros(len(sent), bool)
    again[1:] = start[1:] < reach[:-1]
    if again.any():
        order = np.argsort(start, kind="stable")
        touched = np.maximum.accumulate(end[order])
        overlaps = np.zeros(len(sent), bool)
        overlaps[1:] = start[order][1:] < touched[:-1]
        overlaps[:-1] |= end[order][:-1] > start[order][1:]
        again[order] |= overlaps
    chained = np.concatenate(([seq[sent[0]]], ack[acks])).astype(np.uint32)
    begin = np.zeros(len(chained), bool)
    begin[0] = True
    heard = np.maximum.accumulate(unwrap(chained, begin)[1:])
    clean = np.flatnonzero(~again)
    place = np.searchsorted(heard, end[clean])
    inside = place < len(heard)
    clean, place = clean[inside], place[inside]
    exact = heard[place] == end[clean]
    times = time_ns[acks[place[exact]]] - time_ns[sent[clean[exact]]]
    return np.asarray(times[times >= 0])
