"""TCP sequence numbers: unique bytes, round trips, and packets that may have been sent twice.

What may live here: arithmetic on columns of sequence and acknowledgement numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic.packets import ACK, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

    Mask = NDArray[np.bool_]

__all__ = [
    "Mask",
    "covered",
    "initial_round_trip_ns",
    "round_trips_ns",
    "suspicious",
    "unwrap",
]

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
        start: where each range begins.
        size: how long it is; one of size 0 does not count.
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
    """Packets that may be retransmissions or out of order: all that ``resent.judge`` could mark, and some more.

    Args:
        group: number of the connection of each packet, ascending.
        side: which end sent it.
        start: its sequence number, unwrapped for its side.
        next_seq: the one that follows, SYN and FIN counted.
        payload: its bytes.
        seq: its sequence number as it stands there.
        ack: its acknowledgement number.
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
        behind = base[1:] + start[rows[1:]] - reach[:-1]
        found[rows[1:]] = (data[rows[1:]] & (behind < 0)) | ((behind == -1) & (payload[rows[1:]] <= 1))
        # The other side's latest acknowledgement already covers it.
        others = np.where(side == which, -1, np.arange(len(group)))
        latest = np.maximum.accumulate(others)[rows]
        known = (latest >= 0) & (group[latest] == group[rows]) & (payload[rows] > 0)
        acked = ack[latest]
        covers = (acked - (seq[rows] + payload[rows].astype(np.uint32))).view(np.int32) >= 0
        found[rows] |= known & (acked != 0) & covers
    return found


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
        time_ns: when each packet of one connection was seen.
        side: which end sent it.
        seq: its sequence number.
        ack: its acknowledgement number.
        flags: its TCP flags.
        payload: its bytes.
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
