"""Detection of retransmissions in many connections at once, from columns.

The rules are those of ``resent``, which processes packets one by one. Here the state before each packet comes from
cumulative sums and maxima. Connections whose state depends on more, such as those with zero-window probes or with
acknowledgements of bytes that were not captured, are left to ``resent``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.endpoints import find_distinct
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN
from pytest_cloudbench.net.traffic.resent import (
    FAST,
    FAST_WITHIN_NS,
    KEEP_ALIVE,
    OUT_OF_ORDER,
    OUT_OF_ORDER_WITHIN_NS,
    RETRANSMITTED,
    SPURIOUS,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints
    from pytest_cloudbench.net.traffic.sequence import Mask

_HALF_RANGE = 1 << 31


class Connections(NamedTuple):
    """Packets of TCP connections, as columns: one connection after another, each in capture order.

    ``group`` is the number of the connection, from 0. ``up`` is the same for all packets of one end.
    """

    group: Any
    time_ns: Any
    up: Any
    seq: Any
    ack: Any
    flags: Any
    window: Any
    payload: Any


class _States(NamedTuple):
    """The state of the sender before each packet, and what follows from it."""

    start: Ints
    end: Ints
    expected: Ints  # the next expected sequence number before the packet, less than ``start`` for a first packet
    expected_ns: Ints
    next_seq: Any  # after the packet, as a 32-bit number
    is_keep_alive: Mask


def judge_connections(connections: Connections) -> tuple[NDArray[np.uint8], Ints]:
    """Return the verdict on each packet, and the connections whose verdicts only ``resent.judge_packets`` can tell."""
    import numpy as np

    up = connections.up
    sent_up, sent_down = up.nonzero()[0], (~up).nonzero()[0]
    order = np.concatenate((sent_up, sent_down))
    # The number of earlier packets of the other side also identifies the last of them.
    before_up, before_down = sent_up - np.arange(len(sent_up)), sent_down - np.arange(len(sent_down))
    latest = np.concatenate((np.where(before_up > 0, before_up + len(sent_up), 0), before_down)) - 1
    packets = Connections(*(column.take(order) for column in connections))
    has_latest = (latest >= 0) & (packets.group[latest] == packets.group)
    first = sequence.mark_beginnings(packets.group)
    first[len(sent_up) : len(sent_up) + 1] = True  # the first packet down may belong to the same flow as the last up
    states, unclear = _find_states(packets, first)
    # Probes of a zero window.
    unclear |= has_latest & (packets.payload == 1) & (states.start == states.expected) & (packets.window[latest] == 0)
    round_trips_ns = _spread_round_trips(connections)[order]
    verdicts = np.empty(len(order), np.uint8)
    verdicts[order], counting_rows = _classify(packets, states, latest, has_latest, first, round_trips_ns)
    is_beyond = _find_beyond(packets, states, latest, has_latest)
    if is_beyond.any():
        side = packets.group * 2 + (np.arange(len(order)) >= len(sent_up))
        unclear |= is_beyond & np.isin(side, side[counting_rows])
    return verdicts, find_distinct(packets.group[unclear])


def _find_states(packets: Connections, first: Mask) -> tuple[_States, Mask]:
    """Return the states, and which packets they may be wrong for."""
    import numpy as np

    flags, size = packets.flags, packets.payload.astype(np.int64)
    marks = ((flags >> 1) | flags) & 1
    begins = first.nonzero()[0]
    counts = np.diff(begins, append=len(first))
    start = sequence.unwrap(packets.seq, first)
    end = start + size + marks
    ranges = np.maximum.reduceat(end, begins) - np.minimum.reduceat(start, begins)
    # Such ranges are garbage, in which a number can be both before and after another.
    unclear = np.repeat(ranges >= _HALF_RANGE, counts)
    start[unclear], end[unclear] = 0, 0
    lowest = int(start.min())
    span = int(end.max()) - lowest + 2
    shift = np.repeat(np.arange(len(begins)) * span - lowest + 1, counts)  # each direction lies after all before it
    shifted_end = end + shift
    reach = np.maximum.accumulate(shifted_end)
    before = np.empty_like(reach)
    before[1:] = reach[:-1]
    before[begins] = 0  # stands for unknown
    is_new = shifted_end > before
    last_new = np.maximum.accumulate(np.where(is_new, np.arange(len(first)), 0))
    expected_ns = np.empty_like(reach)
    expected_ns[1:] = packets.time_ns[last_new[:-1]]
    expected_ns[begins] = 0
    origin = np.repeat(packets.seq[begins], counts)
    next_seq = (reach - shift).astype(np.uint32) + origin
    expected = before - shift
    is_bare = flags & (SYN | FIN | RST) == 0
    is_keep_alive = (size <= 1) & is_bare & (start == expected - 1)
    unclear |= next_seq == 0  # which stands for unknown
    # The unknown number is 0 in tshark, so these look like a keep-alive and a zero-window probe.
    unclear |= first & ((packets.seq == 0xFFFFFFFF) | ((packets.seq == 0) & (size == 1)))
    is_repeated_syn = (flags & (SYN | ACK) == SYN) & ~first
    if is_repeated_syn.any():  # tshark then returns to the state before a hole
        has_leap = np.logical_or.reduceat(is_new & (start != expected) & ~first, begins)
        unclear |= is_repeated_syn & np.repeat(has_leap, counts)
    return _States(start, end, expected, expected_ns, next_seq, is_keep_alive), unclear


def _find_beyond(packets: Connections, states: _States, latest: Ints, has_latest: Mask) -> Mask:
    """Return which packets acknowledge bytes that were not captured. tshark then miscounts duplicates."""
    is_beyond: Mask = has_latest & (packets.flags & ACK > 0)
    is_beyond &= (packets.ack - states.next_seq[latest]).view("i4") > 0
    return is_beyond


def _count_duplicate_acks(packets: Connections, states: _States, latest: Ints, has_latest: Mask, first: Mask) -> Ints:
    """Return the number of duplicate acknowledgements in a row up to each packet."""
    import numpy as np

    is_other_ack = np.ones(len(first), bool)
    np.not_equal(packets.ack[1:], packets.ack[:-1], out=is_other_ack[1:])
    is_other_ack |= first
    is_duplicate = ~is_other_ack & (packets.payload == 0) & (packets.flags & (SYN | FIN | RST) == 0)
    is_duplicate &= (packets.window != 0) & (states.start == states.expected)
    is_duplicate[1:] &= packets.window[1:] == packets.window[:-1]
    is_duplicate &= ~(has_latest & states.is_keep_alive[latest])  # an answer to a keep-alive
    total = np.cumsum(is_duplicate)
    return total - np.maximum.accumulate(np.where(is_other_ack, total, 0))


def _classify(
    packets: Connections, states: _States, latest: Ints, has_latest: Mask, first: Mask, round_trips_ns: Ints
) -> tuple[NDArray[np.uint8], Ints]:
    """Return the verdicts by the rules of ``resent``, and the rows whose verdict depends on duplicate acknowledgements.

    The first rule that applies counts.
    """
    import numpy as np

    verdicts = np.zeros(len(first), np.uint8)
    verdicts[states.is_keep_alive] = KEEP_ALIVE
    has_data = (packets.payload > 0) | (packets.flags & (SYN | FIN) > 0)
    acked = np.where(has_latest, packets.ack[latest], 0).astype(np.uint32)
    is_spurious = (packets.payload > 0) & (acked != 0)
    is_spurious &= (acked - (packets.seq + packets.payload)).view(np.int32) >= 0
    is_behind = has_data & (states.start < states.expected) & ~first
    is_behind &= (packets.payload <= 1) | (states.start != states.expected - 1)
    rows = ((is_spurious | is_behind) & ~states.is_keep_alive).nonzero()[0]
    if not len(rows):
        return verdicts, rows
    now_ns, other = packets.time_ns[rows], latest[rows]
    duplicates = _count_duplicate_acks(packets, states, latest, has_latest, first)
    since_ack_ns = now_ns - packets.time_ns[other]
    is_counting = has_latest[rows] & (acked[rows] == packets.seq[rows])
    is_counting &= (since_ack_ns >= 0) & (since_ack_ns < FAST_WITHIN_NS)
    is_fast = is_counting & (duplicates[other] >= 2)
    # Both times are unsigned in tshark, so they are huge if time runs backwards.
    limits_ns = np.where(round_trips_ns[rows] == 0, OUT_OF_ORDER_WITHIN_NS, round_trips_ns[rows])
    is_soon = (now_ns - states.expected_ns[rows]).view(np.uint64) < limits_ns.view(np.uint64)
    is_late = is_soon & (states.end[rows] != states.expected[rows])
    verdicts[rows] = np.select([is_spurious[rows], is_fast, is_late], [SPURIOUS, FAST, OUT_OF_ORDER], RETRANSMITTED)
    return verdicts, rows[is_counting]


def _spread_round_trips(connections: Connections) -> Ints:
    """Return for each packet the duration of the handshake of its connection, or 0 as long as it is unknown."""
    import numpy as np

    group, time_ns = connections.group, connections.time_ns
    round_trips_ns = np.zeros(len(group), np.int64)
    opening = connections.flags & (SYN | ACK)
    syns = (opening == SYN).nonzero()[0]
    acks = (opening == ACK).nonzero()[0]
    if not len(syns) or not len(acks):
        return round_trips_ns
    index = np.searchsorted(syns, acks) - 1  # the last SYN before each acknowledgement
    last_syn = syns[index]
    waits_ns = time_ns[acks] - time_ns[last_syn]
    chosen = (index >= 0) & (group[last_syn] == group[acks]) & (waits_ns != 0)
    acks, waits_ns = acks[chosen], waits_ns[chosen]
    earliest = sequence.mark_beginnings(group[acks])
    acks, waits_ns = acks[earliest], waits_ns[earliest]
    ends = np.searchsorted(group, group[acks], "right")
    for ack, end, wait_ns in zip(acks.tolist(), ends.tolist(), waits_ns.tolist(), strict=True):
        round_trips_ns[ack + 1 : end] = wait_ns
    return round_trips_ns
