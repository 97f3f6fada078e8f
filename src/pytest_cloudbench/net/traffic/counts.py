"""Counts of each flow: packets, bytes, holes, retransmissions and times of both directions.

They fill the columns of a table of flows. Short flows are counted many at a time, and long ones in parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic import resent, sequence, verdicts
from pytest_cloudbench.net.traffic.endpoints import find_distinct
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN
from pytest_cloudbench.net.traffic.table import NEVER, FlowTable, Side, as_slice

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_CHUNK_ROWS, _PART_ROWS = 1 << 15, 1 << 15
"""Packets counted at a time, of several flows and of a long one, few enough for the processor's cache."""
_HANDSHAKE_ROWS = 64


COUNTED = tuple(column.name for column in fields(Side) if column.name != "mss_bytes")
"""Columns counted here for each direction. Times are meaningless without payload."""


def count_all(table: FlowTable) -> None:
    """Fill in ``sums``, ``verdicts`` and the times of all flows."""
    for begin, end in _group_flows(table.starts):
        if table.starts[end] - table.starts[begin] > 2 * _CHUNK_ROWS:
            for number in range(begin, end):
                _count_long_flow(table, number)
        else:
            _count_flows(table, begin, end)


def _group_flows(starts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first flow, end) of groups of flows with a limited number of packets."""
    begin = 0
    for flow in range(1, len(starts)):
        if starts[flow] - starts[begin] > _CHUNK_ROWS and flow - 1 > begin:
            yield begin, flow - 1
            begin = flow - 1
    if len(starts) > 1:
        yield begin, len(starts) - 1


# --- many flows at once ---


def _count_flows(table: FlowTable, first_flow: int, end_flow: int) -> None:
    """Count the flows from ``first_flow`` up to ``end_flow``."""
    import numpy as np

    starts = table.starts
    group = np.repeat(np.arange(first_flow, end_flow), np.diff(starts[first_flow : end_flow + 1]))
    time_ns, seq, ack, payload, wire, flags, up = table.in_order.get_range(starts[first_flow], starts[end_flow])
    sent_up, sent_down = up.nonzero()[0], (~up).nonzero()[0]
    up_then_down = np.concatenate((sent_up, sent_down))
    columns_by_packet = (group, time_ns, seq, ack, payload, wire, flags)
    columns = _Columns(len(sent_up), *(column.take(up_then_down) for column in columns_by_packet))
    doubtful = _count_directions(table, columns)
    if not table.who.is_tcp[first_flow:end_flow].any():
        return
    # The number of earlier packets of the other side also identifies the last of them.
    before_up, before_down = sent_up - np.arange(len(sent_up)), sent_down - np.arange(len(sent_down))
    latest_rows = np.concatenate((np.where(before_up > 0, before_up + len(sent_up), 0), before_down)) - 1
    acknowledged_rows = sequence.find_acknowledged(
        columns.group, latest_rows, columns.seq, columns.ack, columns.payload
    )
    numbers = find_distinct(np.concatenate((doubtful, columns.group[acknowledged_rows])))
    numbers = numbers[table.who.is_tcp[numbers]]
    if len(numbers):
        _judge_flows(table, first_flow, end_flow, numbers)
    if (columns.flags & SYN).any():
        with_handshake, initial_ns = sequence.measure_handshakes_ns(group, time_ns, flags)
        table.times.initial_rtt_ns[with_handshake] = initial_ns


class _Columns(NamedTuple):
    """Packets of many flows: first the ``ups`` packets that were sent up, flow after flow, then those sent down."""

    ups: int
    group: Ints
    time_ns: Ints
    seq: Any
    ack: Any
    payload: Any
    wire: Any
    flags: Any


class _Directions(NamedTuple):
    """The directions that have packets, each with its flow, its direction (0 is up) and its first row.

    ``reach`` is how far its sequence numbers reach from its first packet, and ``has_sent`` whether it has payload, SYN
    or FIN.
    """

    flows: Ints
    direction: Ints
    begins: Ints
    reach: Ints
    has_sent: Any


def _count_directions(table: FlowTable, packets: _Columns) -> Ints:
    """Count both directions, and return the flows with packets that look like repetitions in their direction."""
    import numpy as np

    group, flags, time_ns = packets.group, packets.flags, packets.time_ns
    first = sequence.mark_beginnings(group)
    first[packets.ups : packets.ups + 1] = True  # the first packet down may belong to the same flow as the last one up
    begins = first.nonzero()[0]
    counts = np.diff(begins, append=len(group))
    flows = group[begins]
    direction = (begins >= packets.ups).astype(np.int64)
    is_tcp = table.who.is_tcp[flows]
    size, marks = packets.payload.astype(np.int64), ((flags >> 1) | flags) & 1
    start = sequence.unwrap(packets.seq, first)
    next_seq, opened = start + size + marks, start + (flags >> 1 & 1)  # payload begins after a SYN
    sums = {"packets": counts, "wire_bytes": np.add.reduceat(packets.wire, begins, dtype=np.int64)}
    sums |= _count_marks(begins, flags)
    sums |= _count_payload(begins, size, opened, time_ns, is_tcp)
    reach = np.maximum.reduceat(next_seq, begins)
    doubtful = np.zeros(0, np.int64)
    is_leap = start[1:] != next_seq[:-1]
    is_leap[begins[1:] - 1] = False
    if is_leap.any():  # a packet is late, repeated or missing
        is_odd = np.logical_or.reduceat(np.append(False, is_leap), begins) & is_tcp
        rows = np.repeat(is_odd, counts).nonzero()[0]
        group_index, data = np.repeat(np.arange(len(begins)), counts)[rows], (size[rows] > 0) | (marks[rows] > 0)
        doubtful = group[rows[sequence.find_behind(group_index, start[rows], next_seq[rows], size[rows], data)]]
        if len(rows):
            covered = sequence.measure_coverage(*_make_ranges(group_index, opened[rows], size[rows], flags[rows]))
            sums["unique_bytes"][is_odd], sums["missing_bytes"][is_odd] = covered
            # The number of a bare acknowledgement does not show that what the sender sent before it was captured.
            odd_begins = sequence.mark_beginnings(group_index).nonzero()[0]
            reach[is_odd] = np.maximum.reduceat(np.where(data, next_seq[rows], 0), odd_begins)
    has_sent = sums["payload_bytes"] + sums["syns"] + sums["syn_acks"] + sums["fins"] > 0
    _count_unseen(table, _Directions(flows, direction, begins, reach, has_sent), packets)
    for name, column in sums.items():
        table.sums[name][direction, flows] = column
    np.minimum.at(table.times.first_ns, flows, np.minimum.reduceat(time_ns, begins))
    np.maximum.at(table.times.last_ns, flows, np.maximum.reduceat(time_ns, begins))
    return doubtful


def _count_marks(begins: Ints, flags: Any) -> dict[str, Any]:
    """Count the segments of each direction that opened and closed a connection."""
    import numpy as np

    rows = (flags & (SYN | FIN | RST)).nonzero()[0]  # these are few, so the rest is faster
    owner, flags = np.searchsorted(begins, rows, "right") - 1, flags[rows]
    opening = flags & (SYN | ACK)
    kinds = (opening == SYN, opening == SYN | ACK, flags & FIN > 0, flags & RST > 0)
    counts = (np.bincount(owner[is_kind], minlength=len(begins)) for is_kind in kinds)
    return dict(zip(("syns", "syn_acks", "fins", "resets"), counts, strict=True))


def _count_payload(begins: Ints, size: Ints, opened: Ints, time_ns: Ints, is_tcp: Any) -> dict[str, Any]:
    """Count the payload of each direction and its times. Holes are correct only if all bytes came in order."""
    import numpy as np

    total = np.add.reduceat(size, begins)
    span, first_ns, last_ns = total.copy(), np.zeros_like(total), np.zeros_like(total)
    rows = size.nonzero()[0]
    if len(rows):
        edges = np.searchsorted(rows, np.append(begins, len(size)))
        has_data = edges[1:] > edges[:-1]
        first, last, times = edges[:-1][has_data], rows[edges[1:][has_data] - 1], time_ns[rows]
        first_ns[has_data], last_ns[has_data] = np.minimum.reduceat(times, first), np.maximum.reduceat(times, first)
        span[has_data] = opened[last] + size[last] - opened[rows[first]]
    return {
        "payload_bytes": total, "unique_bytes": total.copy(), "missing_bytes": np.where(is_tcp, span - total, 0),
        "largest_payload_bytes": np.maximum.reduceat(size, begins), "first_payload_ns": first_ns,
        "last_payload_ns": last_ns,
    }  # fmt: skip


def _count_unseen(table: FlowTable, directions: _Directions, packets: _Columns) -> None:
    """Count the bytes beyond the reach of each direction that the other side acknowledged."""
    import numpy as np

    flows, direction, begins, reach, has_sent = directions
    ack_rows = ((packets.flags & (ACK | RST)) == ACK).nonzero()[0]
    edges = np.searchsorted(ack_rows, np.append(begins, len(packets.flags)))
    ackers = (edges[1:] > edges[:-1]).nonzero()[0]
    if not len(ackers):
        return
    index_of = np.full((2, int(flows.max() - flows.min()) + 1), -1)
    index_of[direction, flows - flows.min()] = np.arange(len(flows))
    acked_index = index_of[1 - direction[ackers], flows[ackers] - flows.min()]  # the direction that each acknowledges
    acked, parts = packets.ack[ack_rows], edges[ackers]
    first = np.zeros(len(ack_rows), bool)
    first[parts] = True
    advance = np.maximum.reduceat(sequence.unwrap(acked, first), parts)
    ahead = (acked[parts] - packets.seq[begins[acked_index]]).view(np.int32).astype(np.int64)
    is_captured = acked_index >= 0
    beyond = np.where(is_captured, np.maximum(0, ahead + advance - reach[acked_index]), advance)
    is_silent = ~is_captured | ~has_sent[acked_index]
    beyond[is_silent & (beyond == 1)] = 0  # see sequence.Reach
    table.sums["unseen_bytes"][1 - direction[ackers], flows[ackers]] = beyond


def _make_ranges(group_index: Ints, opened: Ints, size: Ints, flags: Any) -> tuple[Any, Any, Any, Any]:
    """Return the ranges of payload, and empty ones where SYN and FIN show that it begins and ends.

    A group without any gets an empty range, so that each group has one. SYN and FIN before the last SYN do not count: a
    server that answers a repeated SYN may choose another number, and a FIN before it ends the connection before.
    """
    import numpy as np

    begins = sequence.mark_beginnings(group_index).nonzero()[0]
    marks, last_syn = (flags & (SYN | FIN)).nonzero()[0], np.zeros(int(group_index[-1]) + 1, np.int64)
    syns = (flags & SYN).nonzero()[0]
    last_syn[group_index[syns]] = syns  # the last assignment stays
    is_range = size > 0
    is_range[marks[marks >= last_syn[group_index[marks]]]] = True
    is_empty = ~np.logical_or.reduceat(is_range, begins)
    is_range[begins[is_empty]] = True
    rows = is_range.nonzero()[0]
    kept_groups = group_index[rows]
    return kept_groups, sequence.mark_beginnings(kept_groups), opened[rows], size[rows]


# --- a long flow ---


def _count_long_flow(table: FlowTable, number: int) -> None:
    """Count one flow with many packets in parts, because columns of all its packets take too much memory."""
    import numpy as np

    packets, rows = table.packets, table.order[table.starts[number] : table.starts[number + 1]]
    is_tcp, sides = bool(table.who.is_tcp[number]), {True: Side(), False: Side()}
    reaches = {True: sequence.Reach(), False: sequence.Reach()}
    firsts, lasts = [], []
    for begin in range(0, len(rows), _PART_ROWS):
        part = rows[begin : begin + _PART_ROWS]
        selected, up = as_slice(part), table.up[as_slice(part)]
        time_ns, flags, payload = packets.time_ns[selected], packets.flags[selected], packets.payload[selected]
        seq, ack, wire = packets.seq[selected], packets.ack[selected], packets.wire[selected]
        firsts.append(int(time_ns.min()))
        lasts.append(int(time_ns.max()))
        for is_up, side in sides.items():
            side_rows = np.flatnonzero(up == is_up)
            sizes = payload[side_rows].astype(np.int64)
            _add_packets(side, flags[side_rows], sizes, wire[side_rows], time_ns[side_rows])
            if is_tcp:
                reaches[is_up].add(seq[side_rows], flags[side_rows], sizes)
        for is_up in (True, False) if is_tcp else ():
            reaches[is_up].add_acks(ack[(up != is_up) & ((flags & (ACK | RST)) == ACK)])
    table.times.first_ns[number], table.times.last_ns[number] = min(firsts), max(lasts)
    for is_up, side in sides.items():
        reach = reaches[is_up]
        side.unique_bytes = reach.unique_bytes if is_tcp else side.payload_bytes
        side.missing_bytes, side.unseen_bytes = reach.missing_bytes, reach.unseen_bytes
        for name in COUNTED:
            table.sums[name][0 if is_up else 1, number] = getattr(side, name) or 0
    if is_tcp:
        _judge_flow(table, number)
        if table.sums["keep_alives"][:, number].any():
            _correct_payload_times(table, number)
        first_rows = rows[:_HANDSHAKE_ROWS]
        _, initial = sequence.measure_handshakes_ns(
            np.zeros(len(first_rows), np.int64), packets.time_ns[first_rows], packets.flags[first_rows]
        )
        table.times.initial_rtt_ns[number] = initial[0] if len(initial) else NEVER


def _add_packets(side: Side, flags: Any, payload: Ints, wire: Any, time_ns: Ints) -> None:
    """Add packets to one direction."""
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


def _split_segments(table: FlowTable, rows: Any) -> Iterator[resent.Segments]:
    """Yield these packets in parts."""
    packets = table.packets
    for begin in range(0, len(rows), _PART_ROWS):
        part = as_slice(rows[begin : begin + _PART_ROWS])
        yield resent.Segments(
            packets.time_ns[part], ~table.up[part], packets.seq[part], packets.ack[part], packets.flags[part],
            packets.window[part], packets.payload[part],
        )  # fmt: skip


def _judge_flows(table: FlowTable, first_flow: int, end_flow: int, numbers: Ints) -> None:
    """Judge the packets of the flows that may contain retransmissions: these ``numbers`` within a range, ascending."""
    import numpy as np

    begin, end = table.starts[first_flow], table.starts[end_flow]
    sizes, is_chosen = np.diff(table.starts[first_flow : end_flow + 1]), np.zeros(end_flow - first_flow, bool)
    is_chosen[numbers - first_flow] = True
    group, is_chosen_row = np.arange(len(numbers)).repeat(sizes[is_chosen]), is_chosen.repeat(sizes)
    columns = (column.compress(is_chosen_row) for column in table.in_order.get_range(begin, end))
    time_ns, seq, ack, payload, _, flags, up = columns
    rows = table.order[begin:end].compress(is_chosen_row).astype(np.int64)
    window = table.packets.window.take(rows)
    segments = verdicts.Connections(group, time_ns, up, seq, ack, flags, window, payload)
    judged, undecided = verdicts.judge_connections(segments)
    table.verdicts[rows] = judged
    _sum_verdicts(table, numbers, group, up, judged)
    for number in numbers[undecided].tolist():
        _judge_flow(table, number)
    has_alive_byte = (table.verdicts[rows] == resent.KEEP_ALIVE) & (payload > 0)
    for number in numbers[find_distinct(group[has_alive_byte])].tolist():
        _correct_payload_times(table, number)


def _judge_flow(table: FlowTable, number: int) -> None:
    """Judge the packets of a flow that may contain retransmissions, one by one where necessary."""
    import numpy as np

    rows = table.rows(number)
    judged = resent.judge_packets(_split_segments(table, rows))
    selected = as_slice(rows)
    table.verdicts[selected] = judged
    _sum_verdicts(table, np.array([number]), np.zeros(len(judged), np.int64), table.up[selected], judged)


def judge_late_packets(table: FlowTable, rows: Ints, flows: Any, next_flows: Any) -> None:
    """Judge late packets as tshark does: as packets of the connection in whose time they came.

    Args:
        table: flows that are counted already.
        rows: the late packets.
        flows: the number of the flow of each.
        next_flows: the number of the flow in whose time each of them came.
    """
    import numpy as np

    numbers, packets = find_distinct(np.concatenate((flows, next_flows))).tolist(), table.packets
    judged_rows = np.concatenate([table.rows(number) for number in numbers]).astype(np.int64)
    streams = np.repeat(numbers, [len(table.rows(number)) for number in numbers])
    order = np.argsort(judged_rows)
    judged_rows, streams = judged_rows[order], streams[order]
    streams[np.searchsorted(judged_rows, rows)] = next_flows
    for number in numbers:
        part = judged_rows[streams == number]
        segments = resent.Segments(
            packets.time_ns[part], packets.from_high[part], packets.seq[part], packets.ack[part], packets.flags[part],
            packets.window[part], packets.payload[part],
        )  # fmt: skip
        table.verdicts[part] = resent.judge_packets([segments])
    for number in numbers:
        own_rows = table.rows(number)
        group = np.zeros(len(own_rows), np.int64)
        _sum_verdicts(table, np.array([number]), group, table.up[own_rows], table.verdicts[own_rows])


def _correct_payload_times(table: FlowTable, number: int) -> None:
    """Leave the payload of keep-alives out of the times of a flow."""
    rows = table.rows(number)
    times_ns, has_data, up = table.packets.time_ns[rows], table.has_data(rows), table.up[rows]
    for direction, is_side in enumerate((up, ~up)):
        data_ns = times_ns[has_data & is_side]
        table.sums["first_payload_ns"][direction, number] = data_ns.min() if len(data_ns) else NEVER
        table.sums["last_payload_ns"][direction, number] = data_ns.max() if len(data_ns) else NEVER


def _sum_verdicts(table: FlowTable, numbers: Ints, group: Ints, up: Any, judged: Any) -> None:
    """Count the verdicts on packets of flows. ``group`` is each packet's index in ``numbers``."""
    import numpy as np

    index = (group * 2 + ~up) * 6 + judged
    counts = np.bincount(index, minlength=len(numbers) * 12).reshape(-1, 2, 6).transpose(1, 0, 2)
    table.sums["retransmissions"][:, numbers] = counts[:, :, 1:4].sum(2)
    for kind, name in enumerate(("fast", "spurious", "out_of_order", "keep_alives"), 2):
        table.sums[name][:, numbers] = counts[:, :, kind]
