"""Observations, made by cutting a capture by time.

This module chooses the packets of one phase and counts them. ``traffic`` defines the quantities, and the detectors
interpret them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.lab.detect.values import Observation
from pytest_cloudbench.net.traffic import Analysis, Flow, FlowTable, metrics, sequence, streams
from pytest_cloudbench.net.traffic.handshake import HTTP2_PREFACE
from pytest_cloudbench.net.traffic.owners import nameless_doubt
from pytest_cloudbench.net.traffic.replies import measure_round_trips

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LEAST_GAP_S = 0.005
_MOST_ROUNDS = 2000
_LEAST_FILE_BYTES = 400_000
"""The size that bytes of unknown flows are compared with in a phase without a file. Other steps have at least 1 MB."""
_EDGE_BYTES = 64 << 10
_LARGE_SHARE = 0.1
_LATE = 0.25
"""Handshakes, logins and lists of requested files come before this share of a connection's upload."""


def cut_window(table: FlowTable, first_ns: int, last_ns: int) -> FlowTable:
    """Return the same flows with only the packets from ``first_ns`` until before ``last_ns``.

    Functions of ``net.traffic.metrics`` take it. The counts that the flows carry are still those of the whole capture.
    """
    import numpy as np

    times = table.packets.time_ns[table.order]
    is_inside = (times >= first_ns) & (times < last_ns)
    before = np.concatenate(([0], np.cumsum(is_inside)))
    starts = before[np.asarray(table.starts, np.int64)].tolist()
    return replace(table, order=table.order[is_inside], starts=starts)


def observe(
    analysis: Analysis, about: Observation, first_ns: int, last_ns: int, *, round_trip_s: float | None
) -> Observation:  # fmt: skip
    """Return the observation of the time from ``first_ns`` until before ``last_ns`` (nanoseconds since 1970).

    Args:
        analysis: of the whole capture.
        about: an observation of the step of that time, whose counts are filled in.
        first_ns: when the change began.
        last_ns: when the client was in sync and quiet.
        round_trip_s: to the servers, or None if unknown. Bursts are separated by more than half of it. That of a server
            that receives much may be shorter, and then counts.
    """
    table = cut_window(analysis.table, first_ns, last_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    is_whole = analysis.validity.sizes_known
    gap_s = max(0.6 * (round_trip_s or 0.0), _LEAST_GAP_S)
    pieces = [metrics.pieces(table, flow) for flow in flows]
    asides = [flow_pieces.asides(_EDGE_BYTES) for flow_pieces in pieces]
    late = [_count_late(table, flow) for flow in flows]
    resume_s, spread_s = _median_and_spread(
        [time_s for flow_pieces in pieces for time_s in flow_pieces.resumptions_s(_EDGE_BYTES)]
    )
    up = {flow.number: _unique_bytes(table, flow, up=True) for flow in flows}
    busy = [flow for flow in flows if up[flow.number]]
    rounds = metrics.rounds(table, max(busy, key=lambda flow: up[flow.number])) if busy else []
    http2_numbers = find_http2(analysis)
    up_bytes, nameless = sum(up.values()), nameless_bytes(analysis, table)
    reasons = [] if analysis.validity.verdict == "valid" else [*analysis.validity.reasons]
    # Ratios are relative to the file's size: nameless bytes too few to change one raise no doubt, even if the client
    # sent fewer.
    reasons += nameless_doubt(nameless, max(_LEAST_FILE_BYTES, about.size_bytes, up_bytes))
    return replace(
        about,
        up_bytes=up_bytes,
        down_bytes=sum(_unique_bytes(table, flow, up=False) for flow in flows),
        udp_up_bytes=sum(up[flow.number] for flow in flows if not flow.is_tcp),
        wire_bytes=sum(int(table.packets.wire[table.rows(flow)].sum()) for flow in flows) if is_whole else None,
        syns=len(metrics.syn_times_ns(table, flows)),
        bursts=len(metrics.bursts(table, flows, gap_s)),
        turns=sum(metrics.turns(table, flow) for flow in flows),
        exchanges=sum(max(0, len(flow_pieces.ends) - 1) for flow_pieces in pieces),
        answers=_count_packets(table, flows, up=False),
        late=sum(packets for packets, _ in late),
        late_bytes=sum(size for _, size in late),
        asides=sum(packets for packets, _ in asides),
        aside_bytes=sum(size for _, size in asides),
        chunks_bytes=tuple(size for flow_pieces in pieces for size in flow_pieces.sizes_bytes()),
        rounds_bytes=tuple(rounds) if len(rounds) <= _MOST_ROUNDS else (),
        resume_s=resume_s,
        resume_spread_s=spread_s,
        offers_h2=any(flow.number in http2_numbers for flow in busy),
        duration_s=(last_ns - first_ns) / 1e9,
        start_up_s=metrics.start_up_s(table, busy, first_ns),
        completion_s=metrics.completion_s(table, busy, first_ns),
        round_trip_s=_find_shortest_trip_s(table, up, round_trip_s),
        nameless_bytes=nameless,
        reasons=(*about.reasons, *reasons),
    )


def _find_shortest_trip_s(table: FlowTable, up: Mapping[int, int], usual_s: float | None) -> float | None:
    """Return the shortest round trip to a server that receives much in a window, or the usual one if that is shorter.

    ``up`` has the bytes of each flow. A proxy, or one of several servers, may be nearer than the others.
    """
    least_bytes = max(1, _LARGE_SHARE * sum(up.values()))
    numbers = [number for number, size_bytes in up.items() if size_bytes >= least_bytes]
    summaries = [measure_round_trips(table, table.flow(number), up=True) for number in numbers]
    trips_s = [summary["min"] for summary in summaries if summary is not None]
    return min([*trips_s, *([] if usual_s is None else [usual_s])], default=None)


def find_http2(analysis: Analysis) -> set[int]:
    """Return the numbers of flows that offered HTTP/2 in TLS, or begin with it."""
    numbers = analysis.table.numbers.tolist()
    beginnings = streams.read_beginnings(analysis.table, analysis.buffer, numbers, len(HTTP2_PREFACE))
    plain = {number for number, (up, _) in zip(numbers, beginnings, strict=True) if up == HTTP2_PREFACE}
    return plain | {facts.number for facts in analysis.facts if "h2" in facts.alpn}


def nameless_bytes(analysis: Analysis, table: FlowTable) -> int:
    """Return the wire bytes, within a window, of flows that may or may not be the client's."""
    flows = analysis.sorted.nameless if analysis.sorted is not None else ()
    return sum(int(table.packets.wire[table.rows(flow)].sum()) for flow in flows)


def _median_and_spread(values_s: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the median, and the distance between the lower and the upper quarter."""
    import numpy as np

    if not values_s:
        return None, None
    low, middle, high = np.quantile(values_s, (0.25, 0.5, 0.75))
    return round(float(middle), 6), round(float(high - low), 6)


def _count_packets(table: FlowTable, flows: Sequence[Flow], *, up: bool) -> int:
    """Return the number of packets with payload in one direction."""
    total = 0
    for flow in flows:
        rows = table.rows(flow)
        total += int((table.has_data(rows) & (table.up[rows] == up)).sum())
    return total


def _count_late(table: FlowTable, flow: Flow) -> tuple[int, int]:
    """Return packets and payload bytes from the server once the client had sent a good part of its own."""
    import numpy as np

    rows: Any = table.rows(flow)
    rows = rows[table.has_data(rows)]
    up, payload = table.up[rows], table.packets.payload[rows].astype(np.int64)
    sent = np.cumsum(np.where(up, payload, 0))
    is_late = ~up & (sent >= _LATE * sent[-1]) if len(rows) else up
    return int(is_late.sum()), int(payload[is_late].sum())


def _unique_bytes(table: FlowTable, flow: Flow, *, up: bool) -> int:
    """Return the payload of one direction, in which bytes that were sent twice count once."""
    import numpy as np

    rows: Any = table.rows(flow)
    rows = rows[table.has_data(rows) & (table.up[rows] == up)]
    payload = table.packets.payload[rows].astype(np.int64)
    if not flow.is_tcp or not len(rows):
        return int(payload.sum())
    first = np.zeros(len(rows), bool)
    first[0] = True
    start = sequence.unwrap(table.packets.seq[rows], first)
    return int(sequence.measure_coverage(np.zeros(len(rows), np.int64), first, start, payload)[0][0])
