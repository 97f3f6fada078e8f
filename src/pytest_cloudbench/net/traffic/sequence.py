"""Arithmetic on columns of TCP sequence numbers: unique bytes, round trips, and possible retransmissions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic.packets import ACK, FIN, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

    Mask = NDArray[np.bool_]

_HALF_RANGE = 1 << 30
_LARGEST = 1 << 62


def unwrap(seq: Any, first: Mask) -> Ints:
    """Return sequence numbers as distances from the first one of each group, even beyond 4 GiB.

    Args:
        seq: 32-bit numbers, group after group.
        first: whether a row is the first of its group.
    """
    import numpy as np

    begins = first.nonzero()[0]
    counts = len(seq) if len(begins) == 1 else np.diff(begins, append=len(seq))
    ahead = (seq - (seq[begins] if len(begins) == 1 else np.repeat(seq[begins], counts))).view(np.int32)
    if ahead.min(initial=0) > -_HALF_RANGE and ahead.max(initial=0) < _HALF_RANGE:  # no number has wrapped around
        return np.asarray(ahead.astype(np.int64))
    steps = np.empty(len(seq), np.int64)
    steps[1:] = (seq[1:] - seq[:-1]).view(np.int32)
    steps[begins] = 0
    total = np.cumsum(steps)
    return np.asarray(total - np.repeat(total[begins], counts))


def _spread_groups(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Shift all ranges so that each group lies after all ranges of the group before."""
    span = int(end.max(initial=0)) - int(start.min(initial=0)) + 1
    return group * span + start, group * span + end


def measure_coverage(group: Ints, first: Mask, start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """Return the bytes in the union of the ranges, and in holes between them, for each group in order.

    Args:
        group: number of each range's group, from 0, ascending.
        first: whether a range is the first of its group.
        start: start of each range.
        size: size of each range. Those of size 0 do not count.
    """
    import numpy as np

    base, end = _spread_groups(group, start, start + size)
    reach = np.maximum.accumulate(end)
    begins = np.flatnonzero(first)
    before = np.empty_like(reach)
    before[1:] = reach[:-1]
    before[begins] = base[begins]
    if (base < before).any():  # a range repeats or is late, so sort and compute again
        order = np.argsort(base, kind="stable")
        base, end, size = base[order], end[order], size[order]
        reach = np.maximum.accumulate(end)
        before[1:] = reach[:-1]
        before[begins] = base[begins]
    new_bytes = np.maximum(end - np.maximum(base, before), 0)
    union = np.add.reduceat(new_bytes, begins)
    last = np.append(begins[1:], len(base)) - 1
    return union, reach[last] - base[begins] - union


class Reach:
    """The coverage of one direction of a long connection that is added in parts, and how far it was acknowledged.

    Attributes:
        unique_bytes: bytes in the union of all ranges so far.
        missing_bytes: bytes in holes between them, and between them and the last SYN and FIN.
        unseen_bytes: acknowledged bytes after the last range. A single one does not count if no payload, SYN or FIN
            was captured: the direction had only keep-alives, which begin one byte earlier, or its FIN is not captured.
    """

    def __init__(self) -> None:
        self._first_seq = self._first_ack = 0
        self._last_seq: tuple[int, int] | None = None  # (sequence number, distance from the first)
        self._last_ack: tuple[int, int] | None = None
        self._furthest_ack = self._next_seq = 0
        self._has_sent = False
        self._marks: list[int] = []  # where the last SYN and the FINs after it are: the lowest and the highest
        self._begin: int | None = None
        self._end = 0
        self._holes: list[tuple[int, int]] = []

    def _distance(self, seq: Any, last: tuple[int, int]) -> Ints:
        import numpy as np

        chained = np.concatenate(([last[0]], seq)).astype(np.uint32)
        return unwrap(chained, np.arange(len(chained)) == 0)[1:] + last[1]

    def add(self, seq: Any, flags: Any, payload: Ints) -> None:
        """Add the next packets of this direction."""
        import numpy as np

        if not len(seq):
            return
        if self._last_seq is None:
            self._first_seq = int(seq[0])
        distances = self._distance(seq, self._last_seq or (self._first_seq, 0))
        self._last_seq = (int(seq[-1]), int(distances[-1]))
        self._add_marks(distances, flags, payload)
        has_payload = payload > 0
        start = distances[has_payload] + (flags[has_payload] >> 1 & 1)
        end = start + payload[has_payload]
        if not len(start):
            return
        self._has_sent, self._next_seq = True, max(self._next_seq, int(end.max()))
        if self._begin is None:
            self._begin = self._end = int(start[0])
        reach = np.maximum.accumulate(np.concatenate(([self._end], end)))
        breaks = np.flatnonzero(start != reach[:-1])
        for begin, until, so_far in zip(
            start[breaks].tolist(), end[breaks].tolist(), reach[breaks].tolist(), strict=True
        ):
            if begin > so_far:
                self._holes.append((so_far, begin))
            else:
                self._fill_holes(begin, until)
        self._end = int(reach[-1])

    def _add_marks(self, distances: Ints, flags: Any, payload: Ints) -> None:
        """Add the SYNs and FINs among these packets."""
        rows = (flags & (SYN | FIN)).nonzero()[0]
        if not len(rows):
            return
        self._has_sent = True
        self._next_seq = max(self._next_seq, int((distances[rows] + payload[rows]).max()) + 1)
        is_syn = (flags[rows] & SYN) > 0
        positions = distances[rows] + is_syn
        if is_syn.any():
            self._marks, positions = [], positions[is_syn.nonzero()[0][-1] :]
        positions_so_far = [*self._marks, int(positions.min()), int(positions.max())]
        self._marks = [min(positions_so_far), max(positions_so_far)]

    def _fill_holes(self, begin: int, end: int) -> None:
        """Remove the bytes from ``begin`` to ``end`` from the holes, which are sorted and apart from each other."""
        if self._begin is not None and begin < self._begin:
            self._holes.insert(0, (begin, self._begin))
            self._begin = begin
        first = bisect_right(self._holes, begin, key=itemgetter(1))
        last = bisect_left(self._holes, end, key=itemgetter(0))
        if first < last:
            (hole_begin, _), (_, hole_end) = self._holes[first], self._holes[last - 1]
            self._holes[first:last] = [part for part in ((hole_begin, begin), (end, hole_end)) if part[0] < part[1]]

    def add_acks(self, ack: Any) -> None:
        """Add the next acknowledgements by the other side."""
        if len(ack):
            if self._last_ack is None:
                self._first_ack = int(ack[0])
            distances = self._distance(ack, self._last_ack or (self._first_ack, 0))
            self._last_ack = (int(ack[-1]), int(distances[-1]))
            self._furthest_ack = max(self._furthest_ack, int(distances.max()))

    @property
    def missing_bytes(self) -> int:
        limits = [*self._marks, *((self._begin, self._end) if self._begin is not None else ())]
        return max(limits) - min(limits) - self.unique_bytes if limits else 0

    @property
    def unique_bytes(self) -> int:
        return self._end - self._begin - sum(b - a for a, b in self._holes) if self._begin is not None else 0

    @property
    def unseen_bytes(self) -> int:
        beyond = self._furthest_ack
        if self._last_seq is not None and self._last_ack is not None:
            ahead = (self._first_ack - self._first_seq + (1 << 31)) % (1 << 32) - (1 << 31)
            beyond = max(0, ahead + beyond - self._next_seq)
        return 0 if beyond == 1 and not self._has_sent else beyond


def find_behind(group: Ints, start: Ints, next_seq: Ints, payload: Ints, data: Mask) -> Mask:
    """Return which packets of one direction begin before the next expected sequence number.

    They are retransmissions, late packets or keep-alives. Together with ``find_acknowledged`` these include all packets
    that ``resent.judge_packets`` could mark.

    Args:
        group: number of each packet's connection, from 0, ascending.
        start: unwrapped sequence number of each packet.
        next_seq: the sequence number after it, counting SYN and FIN.
        payload: number of its payload bytes.
        data: whether it has payload, SYN or FIN.
    """
    import numpy as np

    start, next_seq = _spread_groups(group, start, next_seq)
    reach = np.maximum.accumulate(next_seq)
    is_behind = np.zeros(len(group), bool)
    distance = start[1:] - reach[:-1]
    before = distance < 0
    if before.any():
        is_behind[1:] = (data[1:] & before) | ((distance == -1) & (payload[1:] <= 1))
    return is_behind


def find_acknowledged(group: Ints, latest: Ints, seq: Any, ack: Any, payload: Any) -> Ints:
    """Return the rows of packets whose payload the other side's latest packet already acknowledges.

    Args:
        group: number of each packet's connection.
        latest: row of the other side's last packet before it. -1, or a row of another group, for none.
        seq: sequence number of each packet.
        ack: its acknowledgement number.
        payload: number of its payload bytes.
    """
    acked = ack[latest]
    covers = (acked - (seq + payload)).view("i4") >= 0
    covers &= (payload > 0) & (acked != 0)
    rows: Ints = covers.nonzero()[0]
    earlier = latest[rows]
    same: Mask = (earlier >= 0) & (group[earlier] == group[rows])
    return rows.compress(same)


def mark_beginnings(group: Ints) -> Mask:
    """Return which rows are the first of their group. ``group`` has an ascending number for each row."""
    import numpy as np

    first = np.ones(len(group), bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    return first


def measure_handshakes_ns(group: Ints, time_ns: Ints, flags: Any, max_packets: int = 64) -> tuple[Ints, Ints]:
    """Return the groups with a handshake, and the nanoseconds from its last SYN to the first pure acknowledgement.

    This is tshark's ``tcp.analysis.initial_rtt``. It covers the full round trip, wherever between the two ends the
    capture was made.

    Args:
        group: number of each packet's connection, ascending.
        time_ns: time of each packet.
        flags: its TCP flags.
        max_packets: number of packets of a connection to search.
    """
    import numpy as np

    opening = flags & (SYN | ACK)
    syns = np.flatnonzero(opening == SYN)
    acks = np.flatnonzero(opening == ACK)
    if not len(syns) or not len(acks):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = np.flatnonzero(mark_beginnings(group))
    first_of = first[np.searchsorted(first, acks, "right") - 1]
    index = np.searchsorted(syns, acks) - 1  # the last SYN before each acknowledgement
    last_syn = syns[index]
    acks, last_syn = (
        part[(index >= 0) & (last_syn >= first_of) & (acks - first_of < max_packets)] for part in (acks, last_syn)
    )
    owner = group[acks]
    chosen = mark_beginnings(owner)
    return owner[chosen], time_ns[acks[chosen]] - time_ns[last_syn[chosen]]


class Sent(NamedTuple):
    """Segments with payload of one side, as columns. ``group`` is the number of their connection, ascending."""

    group: Ints
    time_ns: Ints
    seq: Any
    payload: Any


class Heard(NamedTuple):
    """Acknowledgements of the other side, as columns. ``group`` is the number of their connection, ascending."""

    group: Ints
    time_ns: Ints
    ack: Any


def measure_round_trips_ns(sent: Sent, heard: Heard, *, only: Mask | None = None) -> tuple[Ints, Ints]:
    """Return the group of each timed segment, and the nanoseconds until its exact end was acknowledged.

    Segments with any byte that was sent more than once are omitted, because their acknowledgement may answer either
    transmission (Karn's algorithm, RFC 6298 section 3). Times are measured at the capture point. Captured at the
    sender, they are full round trips.

    Args:
        sent: segments with payload of one side.
        heard: acknowledgements of the other.
        only: which segments to time. The others only show what was sent twice.
    """
    import numpy as np

    sender, hearer = sent.group, heard.group
    if not len(sender) or not len(hearer):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first, fresh = mark_beginnings(sender), mark_beginnings(hearer)
    start = unwrap(sent.seq, first)
    end = start + sent.payload
    # Acknowledged bytes, counted from the sequence number of the connection's first segment.
    opened, answers = first.nonzero()[0], fresh.nonzero()[0]
    opened_index = np.minimum(np.searchsorted(sender[opened], hearer[answers]), len(opened) - 1)
    ahead = (heard.ack[answers] - sent.seq[opened[opened_index]]).view(np.int32)
    acked = unwrap(heard.ack, fresh)
    acked += np.repeat(ahead, np.diff(answers, append=len(hearer)))
    # Shift all numbers so that each connection lies after all of the one before.
    lowest = min(int(start.min()), int(acked.min()))
    span = max(int(end.max()), int(acked.max())) - lowest + 1
    if max(int(sender[-1]), int(hearer[-1])) * span >= _LARGEST:
        return _measure_one_by_one(sent, heard)
    shift = sender * span - lowest
    start += shift
    end += shift
    acked += hearer * span - lowest
    np.maximum.accumulate(acked, out=acked)
    is_timed = np.ones(len(sender), bool) if only is None else only
    if (start[1:] < end[:-1]).any():  # otherwise no segments overlap
        is_timed &= ~_find_repeated(start, end)
    rows: Any = slice(None) if is_timed.all() else is_timed.nonzero()[0]
    sender, end = sender[rows], end[rows]
    index = np.searchsorted(acked, end)
    np.minimum(index, len(acked) - 1, out=index)  # beyond the last one stands for none, and the last one cannot match
    times = heard.time_ns.take(index) - sent.time_ns[rows]
    is_exact = (acked.take(index) == end) & (times >= 0)
    return sender.compress(is_exact), times.compress(is_exact)


def _find_repeated(start: Ints, end: Ints) -> Mask:
    """Return which ranges begin before the end of an earlier one, or overlap another one."""
    import numpy as np

    is_repeated = np.zeros(len(start), bool)
    is_repeated[1:] = start[1:] < np.maximum.accumulate(end)[:-1]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    overlaps = np.zeros(len(start), bool)
    overlaps[1:] = start[1:] < np.maximum.accumulate(end)[:-1]
    overlaps[:-1] |= end[:-1] > start[1:]
    is_repeated[order] |= overlaps
    return is_repeated


def _measure_one_by_one(sent: Sent, heard: Heard) -> tuple[Ints, Ints]:
    """Measure round trips per connection, in case garbage in sequence numbers makes them too large to shift."""
    import numpy as np

    owners, times = list[Ints](), list[Ints]()
    for number in np.intersect1d(sent.group, heard.group).tolist():
        is_sent, is_heard = sent.group == number, heard.group == number
        own_sent = Sent(*(column[is_sent] for column in sent))
        own_heard = Heard(*(column[is_heard] for column in heard))
        own_sent.group[:] = own_heard.group[:] = 0
        _, times_ns = measure_round_trips_ns(own_sent, own_heard)
        owners.append(np.full(len(times_ns), number))
        times.append(times_ns)
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *owners]), np.concatenate([none, *times])
