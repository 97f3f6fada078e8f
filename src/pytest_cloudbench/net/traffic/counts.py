"""What each flow carried: packets and bytes of both directions, holes, repetitions, and when.

What may live here: filling in the columns of a table of flows. Short flows are counted many at a time, a long one in
parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic import resent, sequence
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN
from pytest_cloudbench.net.traffic.table import NEVER, FlowTable, Side

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_CHUNK_ROWS, _PART_ROWS = 1 << 15, 1 << 15
"""How many packets are counted together, of several flows and of a long one: few enough for the processor's cache."""
_HANDSHAKE_ROWS = 64


COUNTED = tuple(each.name for each in fields(Side) if each.name != "mss_bytes")
"""The columns counted here for each direction. Times mean nothing if there is no payload."""


def in_one(rows: Any) -> Any:
    """The same rows, as a slice if they are consecutive: then columns need not be copied."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # they ascend
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def count_all(table: FlowTable) -> None:
    """Fill in ``sums``, ``verdicts`` and the times of all flows."""
    for begin, end in _chunks(table.starts):
        if table.starts[end] - table.starts[begin] > 2 * _CHUNK_ROWS:
            for number in range(begin, end):
                _count_long(table, number)
        else:
            _count(table, begin, end)


def _chunks(starts: list[int]) -> Iterator[tuple[int, int]]:
    """(first flow, flow after the last) of groups of flows that do not have too many packets together."""
    begin = 0
    for flow in range(1, len(starts)):
        if starts[flow] - starts[begin] > _CHUNK_ROWS and flow - 1 > begin:
            yield begin, flow - 1
            begin = flow - 1
    if len(starts) > 1:
        yield begin, len(starts) - 1


# --- many flows at once ---


def _count(table: FlowTable, begin: int, end: int) -> None:
    """Count what the flows ``begin`` to ``end`` carried."""
    import numpy as np

    starts = table.starts
    group = np.repeat(np.arange(begin, end), np.diff(starts[begin : end + 1]))
    time_ns, seq, ack, payload, wire, flags, up = table.in_order.part(starts[begin], starts[end])
    sent_up, sent_down = up.nonzero()[0], (~up).nonzero()[0]
    apart = np.concatenate((sent_up, sent_down))
    picked = (group, time_ns, seq, ack, payload, wire, flags)
    columns = _Columns(len(sent_up), *(column[apart] for column in picked))
    doubtful = _count_ways(table, columns)
    if not table.who.is_tcp[begin:end].any():
        return
    # So many packets of the other side came before each packet; that number also identifies the last of them.
    before_up, before_down = sent_up - np.arange(len(sent_up)), sent_down - np.arange(len(sent_down))
    latest = np.concatenate((np.where(before_up > 0, before_up + len(sent_up), 0), before_down)) - 1
    again = sequence.acknowledged(columns.group, latest, columns.seq, columns.ack, columns.payload)
    for number in np.unique(np.concatenate((doubtful, columns.group[again]))).tolist():
        if table.who.is_tcp[number]:
            _judge(table, number)
    if (columns.flags & SYN).any():
        with_handshake, initial_ns = sequence.handshakes_ns(group, time_ns, flags)
        table.times.initial_rtt_ns[with_handshake] = initial_ns


class _Columns(NamedTuple):
    """Packets of many flows: first the ``ups`` packets that were sent up, flow after flow, and then all others."""

    ups: int
    group: Ints
    time_ns: Ints
    seq: Any
    ack: Any
    payload: Any
    wire: Any
    flags: Any


def _count_ways(table: FlowTable, packets: _Columns) -> Ints:
    """Count both directions. Returns the flows of packets that may, judged by their own direction, be repetitions."""
    import numpy as np

    group, flags, time_ns = packets.group, packets.flags, packets.time_ns
    first = sequence.begins(group)
    first[packets.ups : packets.ups + 1] = True  # the first packet down may be of the same flow as the last one up
    begins = first.nonzero()[0]
    counts, flows, way = np.diff(begins, append=len(group)), group[begins], (begins >= packets.ups).astype(np.int64)
    is_tcp = table.who.is_tcp[flows]
    size, marks = packets.payload.astype(np.int64), ((flags >> 1) | flags) & 1
    start = sequence.unwrap(packets.seq, first)
    next_seq, opened = start + size + marks, start + (flags >> 1 & 1)  # payload begins behind a SYN
    sums = {"packets": counts, "wire_bytes": np.add.reduceat(packets.wire, begins, dtype=np.int64)}
    sums |= _marks(begins, flags)
    sums |= _payload(begins, size, opened, time_ns, is_tcp)
    reach = np.maximum.reduceat(next_seq, begins)
    sums["unseen_bytes"] = _unseen(flows, way, begins, packets, reach)
    doubtful = np.zeros(0, np.int64)
    leaps = start[1:] != next_seq[:-1]
    leaps[begins[1:] - 1] = False
    if leaps.any():  # something came late, again or not at all
        odd = np.logical_or.reduceat(np.append(False, leaps), begins) & is_tcp
        rows = np.repeat(odd, counts).nonzero()[0]
        own, data = np.repeat(np.arange(len(begins)), counts)[rows], (size[rows] > 0) | (marks[rows] > 0)
        doubtful = group[rows[sequence.behind(own, start[rows], next_seq[rows], size[rows], data)]]
        if len(rows):
            covered = sequence.covered(*_ranges(own, opened[rows], size[rows]))
            sums["unique_bytes"][odd], sums["missing_bytes"][odd] = covered
    for name, column in sums.items():
        table.sums[name][way, flows] = column
    np.minimum.at(table.times.first_ns, flows, np.minimum.reduceat(time_ns, begins))
    np.maximum.at(table.times.last_ns, flows, np.maximum.reduceat(time_ns, begins))
    return doubtful


def _marks(begins: Ints, flags: Any) -> dict[str, Any]:
    """Count the segments of each direction that opened and closed a connection."""
    import numpy as np

    rows = (flags & (SYN | FIN | RST)).nonzero()[0]  # few rows: the others need not be looked at again
    owner, flags = np.searchsorted(begins, rows, "right") - 1, flags[rows]
    opening = flags & (SYN | ACK)
    kinds = (opening == SYN, opening == SYN | ACK, flags & FIN > 0, flags & RST > 0)
    counts = (np.bincount(owner[those], minlength=len(begins)) for those in kinds)
    return dict(zip(("syns", "syn_acks", "fins", "resets"), counts, strict=True))


def _payload(begins: Ints, size: Ints, opened: Ints, time_ns: Ints, is_tcp: Any) -> dict[str, Any]:
    """Payload of each direction, and when it came. Holes are correct only if all bytes came in order."""
    import numpy as np

    total = np.add.reduceat(size, begins)
    span, first_ns, last_ns = total.copy(), np.zeros_like(total), np.zeros_like(total)
    rows = size.nonzero()[0]
    if len(rows):
        edges = np.searchsorted(rows, np.append(begins, len(size)))
        spoke = edges[1:] > edges[:-1]
        first, last, times = edges[:-1][spoke], rows[edges[1:][spoke] - 1], time_ns[rows]
        first_ns[spoke], last_ns[spoke] = np.minimum.reduceat(times, first), np.maximum.reduceat(times, first)
        span[spoke] = opened[last] + size[last] - opened[rows[first]]
    return {
        "payload_bytes": total, "unique_bytes": total.copy(), "missing_bytes": np.where(is_tcp, span - total, 0),
        "largest_payload_bytes": np.maximum.reduceat(size, begins), "first_payload_ns": first_ns,
        "last_payload_ns": last_ns,
    }  # fmt: skip


def _unseen(flows: Ints, way: Ints, begins: Ints, packets: _Columns, reach: Ints) -> Ints:
    """How far the other side of each direction acknowledged beyond its ``reach``."""
    import numpy as np

    found = np.zeros(len(flows), np.int64)
    heard = ((packets.flags & (ACK | RST)) == ACK).nonzero()[0]
    edges = np.searchsorted(heard, np.append(begins, len(packets.flags)))
    place = np.full((2, int(flows.max() - flows.min()) + 1), -1)
    place[way, flows - flows.min()] = np.arange(len(flows))
    of = place[1 - way, flows - flows.min()]  # the direction that each packet acknowledges
    hearer = ((edges[1:] > edges[:-1]) & (of >= 0)).nonzero()[0]
    if not len(hearer):
        return found
    acked, parts = packets.ack[heard], edges[:-1][edges[1:] > edges[:-1]]
    first = np.zeros(len(heard), bool)
    first[parts] = True
    furthest = np.zeros(len(flows), np.int64)
    furthest[edges[1:] > edges[:-1]] = np.maximum.reduceat(sequence.unwrap(acked, first), parts)
    of = of[hearer]
    ahead = (acked[edges[hearer]] - packets.seq[begins[of]]).view(np.int32).astype(np.int64) + furthest[hearer]
    found[of] = np.maximum(0, ahead - reach[of])
    return found


def _ranges(own: Ints, start: Ints, payload: Ints) -> tuple[Any, Any, Any, Any]:
    """The ranges of payload. Groups without payload get an empty range, so that each group has an entry."""
    import numpy as np

    begins = sequence.begins(own).nonzero()[0]
    has = payload > 0
    bare = ~np.logical_or.reduceat(has, begins)
    has[begins[bare]] = True
    rows = has.nonzero()[0]
    kept = own[rows]
    return kept, sequence.begins(kept), start[rows], payload[rows]


# --- a long flow ---


def _count_long(table: FlowTable, number: int) -> None:
    """The same for one flow with many packets, in parts: columns of all its packets would take too much memory."""
    import numpy as np

    packets, rows = table.packets, table.order[table.starts[number] : table.starts[number + 1]]
    is_tcp, sides = bool(table.who.is_tcp[number]), {True: Side(), False: Side()}
    reaches = {True: sequence.Reach(), False: sequence.Reach()}
    firsts, lasts = [], []
    for begin in range(0, len(rows), _PART_ROWS):
        part = rows[begin : begin + _PART_ROWS]
        own, up = in_one(part), table.up[in_one(part)]
        time_ns, flags, payload = packets.time_ns[own], packets.flags[own], packets.payload[own]
        seq, ack, wire = packets.seq[own], packets.ack[own], packets.wire[own]
        firsts.append(int(time_ns.min()))
        lasts.append(int(time_ns.max()))
        for way, side in sides.items():
            mine = np.flatnonzero(up == way)
            sizes = payload[mine].astype(np.int64)
            _add(side, flags[mine], sizes, wire[mine], time_ns[mine])
            if is_tcp:
                reaches[way].add(seq[mine], flags[mine], sizes)
        for way in (True, False) if is_tcp else ():
            reaches[way].acknowledged(ack[(up != way) & ((flags & (ACK | RST)) == ACK)])
    table.times.first_ns[number], table.times.last_ns[number] = min(firsts), max(lasts)
    for way, side in sides.items():
        reach = reaches[way]
        side.unique_bytes = reach.unique_bytes if is_tcp else side.payload_bytes
        side.missing_bytes, side.unseen_bytes = reach.missing_bytes, reach.unseen_bytes
        for name in COUNTED:
            table.sums[name][0 if way else 1, number] = getattr(side, name) or 0
    if is_tcp:
        _judge(table, number)
        head = rows[:_HANDSHAKE_ROWS]
        _, initial = sequence.handshakes_ns(np.zeros(len(head), np.int64), packets.time_ns[head], packets.flags[head])
        table.times.initial_rtt_ns[number] = initial[0] if len(initial) else NEVER


def _add(side: Side, flags: Any, payload: Ints, wire: Any, time_ns: Ints) -> None:
    """Add more packets of one direction."""
    import numpy as np

    side.packets += len(flags)
    side.wire_bytes += int(wire.sum(dtype=np.int64))
    side.payload_bytes += int(payload.sum())
    opening = flags & (SYN | ACK)
    side.syns += int((opening == SYN).sum())
    side.syn_acks += int((opening == SYN | ACK).sum())
    side.fins += int((flags & FIN > 0).sum())
    side.resets += int((flags & RST > 0).sum())
    times = time_ns[payload > 0]
    if len(times):
        first, last = int(times.min()), int(times.max())
        side.largest_payload_bytes = max(side.largest_payload_bytes, int(payload.max()))
        side.first_payload_ns = first if side.first_payload_ns is None else min(side.first_payload_ns, first)
        side.last_payload_ns = last if side.last_payload_ns is None else max(side.last_payload_ns, last)


def _segments(table: FlowTable, rows: Any) -> Iterator[resent.Segments]:
    """Yields these packets in parts."""
    packets = table.packets
    for begin in range(0, len(rows), _PART_ROWS):
        part = in_one(rows[begin : begin + _PART_ROWS])
        yield resent.Segments(
            packets.time_ns[part], ~table.up[part], packets.seq[part], packets.ack[part], packets.flags[part],
            packets.window[part], packets.payload[part],
        )  # fmt: skip


def _judge(table: FlowTable, number: int) -> None:
    """Go packet by packet through a flow in which something may have been sent twice."""
    import numpy as np

    rows = table.order[table.starts[number] : table.starts[number + 1]]
    verdicts = resent.judge(_segments(table, rows))
    own = in_one(rows)
    table.verdicts[own] = verdicts
    up = table.up[own]
    for way, mine in enumerate((up, ~up)):
        counts = np.bincount(verdicts[mine], minlength=6)
        table.sums["retransmissions"][way, number] = counts[1:4].sum()
        for name, count in zip(("fast", "spurious", "out_of_order", "keep_alives"), counts[2:6].tolist(), strict=True):
            table.sums[name][way, number] = count
