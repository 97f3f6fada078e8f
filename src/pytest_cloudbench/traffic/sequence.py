"""TCP sequence numbers: unique bytes, round trips, and packets that may have been sent twice.

What may live here: arithmetic on columns of sequence and acknowledgement numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic.packets import ACK, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

    Mask = NDArray[np.bool_]

__all__ = [
    "Mask",
    "Reach",
    "acknowledged",
    "begins",
    "behind",
    "covered",
    "handshakes_ns",
    "round_trips_ns",
    "unwrap",
]

_FAR = 1 << 42
_LARGEST = 1 << 62


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
    if len(begins) == 1:
        return total
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


class Reach:
    """What ``covered`` says, for one direction of a connection that comes in parts; and how far it was acknowledged.

    Attributes:
        unique_bytes: bytes in the union of all ranges so far.
        missing_bytes: bytes in holes between them.
        unseen_bytes: bytes behind the last of them that were acknowledged all the same.
    """

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None  # (sequence number, distance from the first)
        self._heard: tuple[int, int] | None = None
        self._furthest = self._next = 0
        self._begin: int | None = None
        self._end = 0
        self._holes: list[tuple[int, int]] = []

    def _distance(self, seq: Any, last: tuple[int, int]) -> Ints:
        import numpy as np

        chained = np.concatenate(([last[0]], seq)).astype(np.uint32)
        return unwrap(chained, np.arange(len(chained)) == 0)[1:] + last[1]

    def add(self, seq: Any, flags: Any, payload: Ints) -> None:
        """The next packets of this direction."""
        import numpy as np

        if not len(seq):
            return
        first = (int(seq[0]), 0)
        at = self._distance(seq, self._last or first)
        self._last, self._heard = (int(seq[-1]), int(at[-1])), self._heard or first
        marks = ((flags >> 1) | flags) & 1
        self._next = max(self._next, int((at + payload + marks).max()))
        has = payload > 0
        start = at[has] + (flags[has] >> 1 & 1)
        end = start + payload[has]
        if not len(start):
            return
        if self._begin is None:
            self._begin = self._end = int(start[0])
        reach = np.maximum.accumulate(np.concatenate(([self._end], end)))
        odd = np.flatnonzero(start != reach[:-1])
        for begin, until, so_far in zip(start[odd].tolist(), end[odd].tolist(), reach[odd].tolist(), strict=True):
            if begin > so_far:
                self._holes.append((so_far, begin))
            else:
                self._fill(begin, until)
        self._end = int(reach[-1])

    def _fill(self, begin: int, end: int) -> None:
        """What was missing from ``begin`` to ``end`` has come. The holes are in order, and none touches another."""
        if self._begin is not None and begin < self._begin:
            self._holes.insert(0, (begin, self._begin))
            self._begin = begin
        first = bisect_right(self._holes, begin, key=itemgetter(1))
        last = bisect_left(self._holes, end, key=itemgetter(0))
        if first < last:
            (left, _), (_, right) = self._holes[first], self._holes[last - 1]
            self._holes[first:last] = [part for part in ((left, begin), (end, right)) if part[0] < part[1]]

    def acknowledged(self, ack: Any) -> None:
        """The next acknowledgements by the other side."""
        if self._heard is not None and len(ack):
            at = self._distance(ack, self._heard)
            self._heard = (int(ack[-1]), int(at[-1]))
            self._furthest = max(self._furthest, int(at.max()))

    @property
    def missing_bytes(self) -> int:
        return sum(b - a for a, b in self._holes)

    @property
    def unique_bytes(self) -> int:
        return self._end - (self._begin or 0) - self.missing_bytes if self._begin is not None else 0

    @property
    def unseen_bytes(self) -> int:
        return max(0, self._furthest - self._next)


def behind(group: Ints, start: Ints, next_seq: Ints, payload: Ints, data: Mask) -> Mask:
    """Packets of one direction that begin before the next sequence number: sent again, late, or to keep alive.

    Together with ``acknowledged`` these are all that ``resent.judge`` could mark, and some more.

    Args:
        group: number of the connection of each packet, ascending.
        start: its sequence number, unwrapped.
        next_seq: the one that follows, SYN and FIN counted.
        payload: its bytes.
        data: packets with payload, SYN or FIN.
    """
    import numpy as np

    base = group * _FAR
    reach = np.maximum.accumulate(base + next_seq)
    found = np.zeros(len(group), bool)
    apart = base[1:] + start[1:] - reach[:-1]
    before = apart < 0
    if before.any():
        found[1:] = (data[1:] & before) | ((apart == -1) & (payload[1:] <= 1))
    return found


def acknowledged(group: Ints, side: Mask, seq: Any, ack: Any, payload: Any) -> Mask:
    """Packets whose payload the other side's latest packet acknowledges already.

    Args:
        group: number of the connection of each packet, ascending.
        side: which end sent it.
        seq: its sequence number.
        ack: its acknowledgement number.
        payload: its bytes.
    """
    import numpy as np

    turns = np.append(0, np.flatnonzero(side[1:] != side[:-1]) + 1)  # where the other side begins to speak
    latest = np.repeat(turns - 1, np.diff(turns, append=len(side)))  # the last packet before; or one of another flow
    acked = ack[latest]
    covers: Mask = (acked - (seq + payload.astype(np.uint32))).view(np.int32) >= 0
    covers &= (payload > 0) & (acked != 0)
    found = np.flatnonzero(covers)
    covers[found] = (latest[found] >= 0) & (group[latest[found]] == group[found])
    return covers


def begins(group: Ints) -> Mask:
    """Where each group begins. ``group`` has a number for each row, ascending."""
    import numpy as np

    first = np.ones(len(group), bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    return first


def handshakes_ns(group: Ints, time_ns: Ints, flags: Any, most: int = 64) -> tuple[Ints, Ints]:
    """(group, nanoseconds) from the last SYN to the first segment that only acknowledges, where there are both.

    tshark's ``tcp.analysis.initial_rtt``. It covers the whole way, wherever between the two ends the capture was made.

    Args:
        group: number of the connection of each packet, ascending.
        time_ns: when each packet was seen.
        flags: its TCP flags.
        most: so many packets of a connection are looked at.
    """
    import numpy as np

    opening = flags & (SYN | ACK)
    syns = np.flatnonzero(opening == SYN)
    answers = np.flatnonzero(opening == ACK)
    if not len(syns) or not len(answers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = np.flatnonzero(begins(group))
    first_of = first[np.searchsorted(first, answers, "right") - 1]
    place = np.searchsorted(syns, answers) - 1  # the SYN before each
    latest = syns[place]
    answers, latest = (
        part[(place >= 0) & (latest >= first_of) & (answers - first_of < most)] for part in (answers, latest)
    )
    owner = group[answers]
    chosen = begins(owner)
    return owner[chosen], time_ns[answers[chosen]] - time_ns[latest[chosen]]


def round_trips_ns(
    group: Ints, time_ns: Ints, side: Mask, seq: Any, ack: Any, flags: Any, payload: Any, *, of: bool,
    only: slice = slice(None),
) -> tuple[Ints, Ints]:  # fmt: skip
    """(group, how long after each segment of one side the other side acknowledged exactly its end).

    Segments of which any byte was sent more than once are left out (Karn's algorithm, RFC 6298 section 3): their
    acknowledgement may answer either. At the capture point: seen from the sender it is the whole round trip.

    Args:
        group: number of the connection of each packet, ascending.
        time_ns: when each packet was seen.
        side: which end sent it.
        seq: its sequence number.
        ack: its acknowledgement number.
        flags: its TCP flags.
        payload: its bytes.
        of: the side whose segments are timed.
        only: time the segments among these packets; the others only say what was sent twice, or acknowledged.
    """
    import numpy as np

    mine = side if of else ~side
    sent = np.flatnonzero(mine & (payload > 0))
    acks = np.flatnonzero(~mine & ((flags & ACK) > 0))
    if not len(sent) or not len(acks):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sender, first = group[sent], begins(group[sent])
    start = unwrap(seq[sent], first)
    end = start + payload[sent]
    # How far was acknowledged, counted from the sequence number that its connection's first segment has.
    hearer, opened = group[acks], np.flatnonzero(first)
    fresh = begins(hearer)
    answers = np.flatnonzero(fresh)
    anchor = np.minimum(np.searchsorted(sender[opened], hearer[answers]), len(opened) - 1)
    ahead = (ack[acks[answers]] - seq[sent[opened[anchor]]]).view(np.int32)
    heard = unwrap(ack[acks], fresh) + np.repeat(ahead, np.diff(answers, append=len(acks)))
    # One line of numbers for all connections: each lies behind all of the one before.
    least = min(int(start.min()), int(heard.min()))
    apart = max(int(end.max()), int(heard.max())) - least + 1
    if int(group[-1]) * apart >= _LARGEST:
        return _one_by_one(group, time_ns, side, seq, ack, flags, payload, of=of)
    start += sender * apart - least
    end += sender * apart - least
    heard += hearer * apart - least
    np.maximum.accumulate(heard, out=heard)
    reach = np.maximum.accumulate(end)
    again = np.zeros(len(sent), bool)
    np.less(start[1:], reach[:-1], out=again[1:])
    if again.any():
        order = np.argsort(start, kind="stable")
        start, touched = start[order], np.maximum.accumulate(end[order])
        overlaps = np.zeros(len(sent), bool)
        overlaps[1:] = start[1:] < touched[:-1]
        overlaps[:-1] |= end[order][:-1] > start[1:]
        again[order] |= overlaps
    if only != slice(None):
        timed = np.ones(len(seq), bool)
        timed[only] = False
        again |= timed[sent]
    clean = np.flatnonzero(~again)
    place = np.searchsorted(heard, end[clean])
    place[place == len(heard)] = 0  # an acknowledgement that cannot be its own
    exact = heard[place] == end[clean]
    clean, place = clean[exact], place[exact]
    times = time_ns[acks[place]] - time_ns[sent[clean]]
    kept = times >= 0
    return sender[clean[kept]], times[kept]


def _one_by_one(group: Ints, *columns: Any, of: bool) -> tuple[Ints, Ints]:
    """The same, where garbage for sequence numbers leaves no room for all connections on one line."""
    import numpy as np

    found = []
    for rows in np.split(np.arange(len(group)), np.flatnonzero(begins(group))[1:]):
        _, times = round_trips_ns(np.zeros(len(rows), np.int64), *(each[rows] for each in columns), of=of)
        found.append((np.full(len(times), group[rows[0]]), times))
    return np.concatenate([owner for owner, _ in found]), np.concatenate([times for _, times in found])
