"""TCP sequence numbers: unique bytes, round trips, and packets that may have been sent twice.

What may live here: arithmetic on columns of sequence and acknowledgement numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic.packets import ACK, SYN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

    Mask = NDArray[np.bool_]

_NEAR = 1 << 30
_LARGEST = 1 << 62


def unwrap(seq: Any, first: Mask) -> Ints:
    """Sequence numbers as distances from the first one of each group, beyond 4 GiB too.

    Args:
        seq: 32-bit numbers, group after group.
        first: where a group begins.
    """
    import numpy as np

    begins = first.nonzero()[0]
    counts = np.diff(begins, append=len(seq))
    ahead = (seq - (seq[0] if len(begins) == 1 else np.repeat(seq[begins], counts))).view(np.int32)
    if ahead.min(initial=0) > -_NEAR and ahead.max(initial=0) < _NEAR:  # no step can have wrapped around
        return np.asarray(ahead.astype(np.int64))
    steps = np.empty(len(seq), np.int64)
    steps[1:] = (seq[1:] - seq[:-1]).view(np.int32)
    steps[begins] = 0
    total = np.cumsum(steps)
    return np.asarray(total - np.repeat(total[begins], counts))


def _in_line(group: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The same ranges on one line of numbers for all groups: each group lies after the whole of the one before."""
    apart = int(end.max(initial=0)) - int(start.min(initial=0)) + 1
    return group * apart + start, group * apart + end


def covered(group: Ints, first: Mask, start: Ints, size: Ints) -> tuple[Ints, Ints]:
    """(bytes in the union of the ranges, bytes in holes between them) of each group, in the order of groups.

    Args:
        group: a number from 0 for each range, ascending.
        first: where a group begins.
        start: where each range begins.
        size: how long it is; one of size 0 does not count.
    """
    import numpy as np

    base, end = _in_line(group, start, start + size)
    reach = np.maximum.accumulate(end)
    begins = np.flatnonzero(first)
    before = np.empty_like(reach)
    before[1:] = reach[:-1]
    before[begins] = base[begins]
    if (base < before).any():  # something came twice or late: sort, then do the same again
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
    """What ``covered`` returns, for one direction of a connection that comes in parts; and how far it was acknowledged.

    Attributes:
        unique_bytes: bytes in the union of all ranges so far.
        missing_bytes: bytes in holes between them.
        unseen_bytes: bytes after the last range that were acknowledged all the same.
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
        """The missing bytes from ``begin`` to ``end`` have arrived. Holes are in order, and none touches another."""
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
        group: number from 0 of the connection of each packet, ascending.
        start: its sequence number, unwrapped.
        next_seq: the one that follows, SYN and FIN counted.
        payload: its bytes.
        data: packets with payload, SYN or FIN.
    """
    import numpy as np

    start, next_seq = _in_line(group, start, next_seq)
    reach = np.maximum.accumulate(next_seq)
    found = np.zeros(len(group), bool)
    apart = start[1:] - reach[:-1]
    before = apart < 0
    if before.any():
        found[1:] = (data[1:] & before) | ((apart == -1) & (payload[1:] <= 1))
    return found


def acknowledged(group: Ints, latest: Ints, seq: Any, ack: Any, payload: Any) -> Ints:
    """Rows of packets whose payload the other side's latest packet acknowledges already.

    Args:
        group: number of the connection of each packet.
        latest: the row of the last packet that the other side sent before; -1, or a row of another group, for none.
        seq: sequence number of each packet.
        ack: its acknowledgement number.
        payload: its bytes.
    """
    acked = ack[latest]
    covers = (acked - (seq + payload)).view("i4") >= 0
    covers &= (payload > 0) & (acked != 0)
    found: Ints = covers.nonzero()[0]
    before = latest[found]
    same: Mask = (before >= 0) & (group[before] == group[found])
    return found.compress(same)


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
        most: how many packets of a connection are looked at.
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


class Sent(NamedTuple):
    """Segments with payload of one side, as columns. ``group``: number of the connection of each, ascending."""

    group: Ints
    time_ns: Ints
    seq: Any
    payload: Any


class Heard(NamedTuple):
    """Acknowledgements of the other side, as columns. ``group``: number of the connection of each, ascending."""

    group: Ints
    time_ns: Ints
    ack: Any


def round_trips_ns(sent: Sent, heard: Heard, *, only: Mask | None = None) -> tuple[Ints, Ints]:
    """(group, how long after each segment of one side the other side acknowledged exactly its end).

    Segments of which any byte was sent more than once are omitted (Karn's algorithm, RFC 6298 section 3): their
    acknowledgement may answer either. Times are those at the capture point; captured at the sender, they are whole
    round trips.

    Args:
        sent: the segments with payload of one side.
        heard: the acknowledgements of the other.
        only: which segments to time; the others only say what was sent twice.
    """
    import numpy as np

    sender, hearer = sent.group, heard.group
    if not len(sender) or not len(hearer):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first, fresh = begins(sender), begins(hearer)
    start = unwrap(sent.seq, first)
    end = start + sent.payload
    # How far was acknowledged, counted from the sequence number of the connection's first segment.
    opened, answers = first.nonzero()[0], fresh.nonzero()[0]
    anchor = np.minimum(np.searchsorted(sender[opened], hearer[answers]), len(opened) - 1)
    ahead = (heard.ack[answers] - sent.seq[opened[anchor]]).view(np.int32)
    acked = unwrap(heard.ack, fresh)
    acked += np.repeat(ahead, np.diff(answers, append=len(hearer)))
    # One line of numbers for all connections: each lies after the whole of the one before.
    least = min(int(start.min()), int(acked.min()))
    apart = max(int(end.max()), int(acked.max())) - least + 1
    if max(int(sender[-1]), int(hearer[-1])) * apart >= _LARGEST:
        return _one_by_one(sent, heard)
    own = sender * apart - least
    start += own
    end += own
    acked += hearer * apart - least
    np.maximum.accumulate(acked, out=acked)
    timed = np.ones(len(sender), bool) if only is None else only
    if (start[1:] < end[:-1]).any():  # otherwise each segment begins where the one before ends, or later
        timed &= ~_repeated(start, end)
    rows: Any = slice(None) if timed.all() else timed.nonzero()[0]
    sender, end = sender[rows], end[rows]
    place = np.searchsorted(acked, end)
    place[place == len(acked)] = 0  # stands for none: this one cannot be its own
    times = heard.time_ns[place] - sent.time_ns[rows]
    good = (acked[place] == end) & (times >= 0)
    return sender[good], times[good]


def _repeated(start: Ints, end: Ints) -> Mask:
    """Ranges that begin before the end of an earlier one, and those that overlap another one."""
    import numpy as np

    found = np.zeros(len(start), bool)
    found[1:] = start[1:] < np.maximum.accumulate(end)[:-1]
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    overlaps = np.zeros(len(start), bool)
    overlaps[1:] = start[1:] < np.maximum.accumulate(end)[:-1]
    overlaps[:-1] |= end[:-1] > start[1:]
    found[order] |= overlaps
    return found


def _one_by_one(sent: Sent, heard: Heard) -> tuple[Ints, Ints]:
    """The same, if garbage in sequence numbers leaves no room for all connections on one line."""
    import numpy as np

    owners, times = list[Ints](), list[Ints]()
    for number in np.intersect1d(sent.group, heard.group).tolist():
        own, their = sent.group == number, heard.group == number
        one, other = Sent(*(column[own] for column in sent)), Heard(*(column[their] for column in heard))
        one.group[:] = other.group[:] = 0
        _, found = round_trips_ns(one, other)
        owners.append(np.full(len(found), number))
        times.append(found)
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *owners]), np.concatenate([none, *times])
