"""Round trips and turns of flows, which show which side waited for the other.

Many flows are summarized at once. Most captures have many short flows, for which separate calls would cost more than
the work itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.packets import ACK
from pytest_cloudbench.net.traffic.table import Flow, FlowTable, as_slice

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_TOGETHER_ROWS, _PART_ROWS = 1 << 15, 1 << 17
"""Packets processed at a time, of several flows and of a long one."""
_AROUND_ROWS = 1 << 14
"""Packets around a part of a long flow to search for acknowledgements and repetitions."""

RoundTrips = dict[str, float]
"""``count``, and ``min``, ``median`` and ``max`` in seconds, as seen at the capture point."""


def summarize_replies(table: FlowTable, numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Return columns for the flows with these numbers, in the same order.

    ``rtt_up_s`` and ``rtt_down_s`` are round trips of the client's and the server's segments, or None if none were
    seen. ``turns`` counts how often the server answered after the client had sent payload.
    """
    import numpy as np

    columns: dict[str, list[Any]] = {"rtt_up_s": [], "rtt_down_s": [], "turns": []}
    for flow_numbers in _group_flows(table, numbers):
        if len(flow_numbers) == 1:
            number = flow_numbers[0]
            columns["rtt_up_s"].append(_measure_long_flow(table, number, up=True))
            columns["rtt_down_s"].append(_measure_long_flow(table, number, up=False))
            rows = as_slice(table.rows(number))
            has_data = table.has_data(rows)
            columns["turns"] += _count_turns(table.up[rows], has_data, np.zeros(len(has_data), np.int64), 1)
            continue
        sizes = [table.starts[number + 1] - table.starts[number] for number in flow_numbers]
        group = np.repeat(np.arange(len(flow_numbers)), sizes)
        if flow_numbers[-1] - flow_numbers[0] == len(flow_numbers) - 1:  # they ascend
            begin, end = table.starts[flow_numbers[0]], table.starts[flow_numbers[-1] + 1]
            rows, packet_columns = table.order[begin:end], table.in_order.get_range(begin, end)
        else:
            rows = np.concatenate([table.rows(number) for number in flow_numbers])
            packet_columns = table.in_order.get_rows(rows)
        _add_round_trips(columns, group, len(flow_numbers), *packet_columns)
        has_data = packet_columns[3] > 0
        if table.sums["keep_alives"][:, flow_numbers].any():
            has_data = table.has_data(rows)
        columns["turns"] += _count_turns(packet_columns[-1], has_data, group, len(flow_numbers))
    if table.udp_turns is not None:
        selected = np.asarray(numbers, np.int64)
        is_tcp = table.who.is_tcp[selected]
        columns["turns"] = np.where(is_tcp, columns["turns"], table.udp_turns[selected]).tolist()
    return columns


def _add_round_trips(
    columns: dict[str, list[Any]], group: Ints, count: int, time_ns: Ints, seq: Any, ack: Any, payload: Any, wire: Any,
    flags: Any, up: Any,
) -> None:  # fmt: skip
    """Append the round trips of these flows to the columns."""
    has_payload, has_ack = payload > 0, (flags & ACK) > 0
    for name, is_side in (("rtt_up_s", up), ("rtt_down_s", ~up)):
        sent_rows = (is_side & has_payload).nonzero()[0]
        if not len(sent_rows):
            columns[name] += [None] * count
            continue
        ack_rows = (~is_side & has_ack).nonzero()[0]
        times = sequence.measure_round_trips_ns(
            sequence.Sent(*(column.take(sent_rows) for column in (group, time_ns, seq, payload))),
            sequence.Heard(*(column.take(ack_rows) for column in (group, time_ns, ack))),
        )
        columns[name] += _summarize_times(*times, count)


def measure_round_trips(table: FlowTable, flow: Flow, *, up: bool) -> RoundTrips | None:
    """Return the round trips of one side's segments of a flow, or None if none were seen."""
    return _measure_long_flow(table, flow.number, up=up)


def _measure_long_flow(table: FlowTable, number: int, *, up: bool) -> RoundTrips | None:
    import numpy as np

    packets, rows = table.packets, table.rows(number)
    parts = []
    for begin in range(0, len(rows), _PART_ROWS):  # all of a long flow at once would take too much memory
        first = max(0, begin - _AROUND_ROWS)
        part = as_slice(rows[first : begin + _PART_ROWS + _AROUND_ROWS])
        time_ns, payload, is_side = packets.time_ns[part], packets.payload[part], table.up[part] == up
        sent_rows = (is_side & (payload > 0)).nonzero()[0]
        if not len(sent_rows):
            continue
        ack_rows = (~is_side & ((packets.flags[part] & ACK) > 0)).nonzero()[0]
        one_group = np.zeros(len(is_side), np.int64)
        _, times = sequence.measure_round_trips_ns(
            sequence.Sent(
                one_group[: len(sent_rows)],
                time_ns.take(sent_rows),
                packets.seq[part].take(sent_rows),
                payload.take(sent_rows),
            ),
            sequence.Heard(one_group[: len(ack_rows)], time_ns.take(ack_rows), packets.ack[part].take(ack_rows)),
            only=(sent_rows >= begin - first) & (sent_rows < begin - first + _PART_ROWS),
        )
        parts.append(times)
    times = np.concatenate([np.zeros(0, np.int64), *parts])
    return _summarize_times(np.zeros(len(times), np.int64), times, 1)[0]


def _group_flows(table: FlowTable, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield consecutive groups of flows with a limited number of packets."""
    begin = rows = 0
    for index, number in enumerate(numbers):
        flow_rows = table.starts[number + 1] - table.starts[number]
        if rows and rows + flow_rows > _TOGETHER_ROWS:
            yield numbers[begin:index]
            begin, rows = index, 0
        rows += flow_rows
    if begin < len(numbers):
        yield numbers[begin:]


def _count_turns(up: Any, has_payload: Any, group: Ints, count: int) -> list[int]:
    import numpy as np

    rows = has_payload.nonzero()[0]
    speaker, group = up[rows], group[rows]
    turn = (speaker[:-1] > speaker[1:]).nonzero()[0]
    turn_groups = group[turn]
    return list(np.bincount(turn_groups[turn_groups == group[turn + 1]], minlength=count).tolist())


def _summarize_times(group: Ints, times_ns: Ints, count: int) -> list[RoundTrips | None]:
    """Summarize the times of each group. Times are not negative, and groups are in ascending order."""
    import numpy as np

    span = int(times_ns.max(initial=0)) + 1
    if count == 1:
        times_ns = np.sort(times_ns)
    elif count * span < 1 << 62:  # shift groups apart, so that one sort of plain numbers is enough
        times_ns = np.sort(group * span + times_ns) - group * span
    else:
        times_ns = times_ns[np.lexsort((times_ns, group))]
    begins = np.flatnonzero(sequence.mark_beginnings(group))
    sizes = np.diff(begins, append=len(group))
    ordered = times_ns.astype(np.float64)
    last, middle = begins + sizes - 1, begins + sizes // 2
    median = (ordered[begins + (sizes - 1) // 2] + ordered[middle]) / 2
    summaries: list[RoundTrips | None] = [None] * count
    columns = (group[begins], sizes, ordered[begins] / 1e9, median / 1e9, ordered[last] / 1e9)
    for group_number, size, min_s, median_s, max_s in zip(*(column.tolist() for column in columns), strict=True):
        summaries[group_number] = {"count": size, "min": min_s, "median": median_s, "max": max_s}
    return summaries
