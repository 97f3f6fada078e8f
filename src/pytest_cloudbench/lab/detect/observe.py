"""A capture, cut by time, into observations.

What may live here: choosing the packets of one phase and counting them. ``traffic`` defines the quantities,
the detectors interpret them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.lab.detect.values import Observation
from pytest_cloudbench.net.traffic import Analysis, Flow, FlowTable, metrics, sequence
from pytest_cloudbench.net.traffic.owners import nameless_doubt

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEAST_GAP_S = 0.005
_MOST_ROUNDS = 2000
_LEAST_FILE_BYTES = 400_000
"""A step sends at least 1 MB, and most send more; an idle phase is compared with those."""
_EDGE_BYTES = 64 << 10
_LATE = 0.25
"""Share of what the client sends on a connection; before it come handshakes, logins and lists of what is wanted."""


def window(table: FlowTable, first_ns: int, last_ns: int) -> FlowTable:
    """The same flows with only the packets from ``first_ns`` until before ``last_ns``.

    Functions of ``net.traffic.metrics`` take it. The counts that the flows carry are still those of the whole capture.
    """
    import numpy as np

    times = table.packets.time_ns[table.order]
    kept = (times >= first_ns) & (times < last_ns)
    before = np.concatenate(([0], np.cumsum(kept)))
    starts = before[np.asarray(table.starts, np.int64)].tolist()
    return replace(table, order=table.order[kept], starts=starts)


def observe(
    analysis: Analysis, about: Observation, first_ns: int, last_ns: int, *, round_trip_s: float | None
) -> Observation:  # fmt: skip
    """What the capture shows of the time from ``first_ns`` until before ``last_ns`` (nanoseconds since 1970).

    Args:
        analysis: of the whole capture.
        about: what was done in that time; its counts are filled in.
        first_ns: when the change began.
        last_ns: when the client was in sync and quiet.
        round_trip_s: to the server; bursts are separated by more than half of it. None: not known.
    """
    table = window(analysis.table, first_ns, last_ns)
    flows = [flow for flow in table.flows if len(table.rows(flow)) and not flow.server.is_multicast]
    is_whole = analysis.validity.sizes_known
    gap_s = max(0.6 * (round_trip_s or 0.0), _LEAST_GAP_S)
    pieces = [metrics.pieces(table, flow) for flow in flows]
    asides = [each.asides(_EDGE_BYTES) for each in pieces]
    late = [_late(table, flow) for flow in flows]
    resume_s, spread_s = _quarters([time_s for each in pieces for time_s in each.resumptions_s(_EDGE_BYTES)])
    up = {flow.number: _unique_bytes(table, flow, up=True) for flow in flows}
    busy = [flow for flow in flows if up[flow.number]]
    rounds = metrics.rounds(table, max(busy, key=lambda flow: up[flow.number])) if busy else []
    offers = {facts.flow.number for facts in analysis.facts if "h2" in facts.alpn}
    up_bytes, nameless = sum(up.values()), nameless_bytes(analysis, table)
    reasons = [] if analysis.validity.verdict == "valid" else [*analysis.validity.reasons]
    # Ratios are relative to the file's size: too few bytes to change them raise no doubt, even if more than were sent.
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
        exchanges=sum(max(0, len(each.ends) - 1) for each in pieces),
        answers=_packets(table, flows, up=False),
        late=sum(packets for packets, _ in late),
        late_bytes=sum(size for _, size in late),
        asides=sum(packets for packets, _ in asides),
        aside_bytes=sum(size for _, size in asides),
        chunks_bytes=tuple(size for each in pieces for size in each.sizes_bytes()),
        rounds_bytes=tuple(rounds) if len(rounds) <= _MOST_ROUNDS else (),
        resume_s=resume_s,
        resume_spread_s=spread_s,
        offers_h2=any(flow.number in offers for flow in busy),
        duration_s=(last_ns - first_ns) / 1e9,
        start_up_s=metrics.start_up_s(table, busy, first_ns),
        completion_s=metrics.completion_s(table, busy, first_ns),
        round_trip_s=round_trip_s,
        nameless_bytes=nameless,
        reasons=(*about.reasons, *reasons),
    )


def nameless_bytes(analysis: Analysis, table: FlowTable) -> int:
    """Wire bytes, within a window, of flows that may or may not be the client's."""
    flows = analysis.sorted.nameless if analysis.sorted is not None else ()
    return sum(int(table.packets.wire[table.rows(flow)].sum()) for flow in flows)


def _quarters(values_s: Sequence[float]) -> tuple[float | None, float | None]:
    """The median, and the distance between the lower and the upper quarter."""
    import numpy as np

    if not values_s:
        return None, None
    low, middle, high = np.quantile(values_s, (0.25, 0.5, 0.75))
    return round(float(middle), 6), round(float(high - low), 6)


def _packets(table: FlowTable, flows: Sequence[Flow], *, up: bool) -> int:
    """How many packets had payload, in one direction."""
    total = 0
    for flow in flows:
        rows = table.rows(flow)
        total += int(((table.packets.payload[rows] > 0) & (table.up[rows] == up)).sum())
    return total


def _late(table: FlowTable, flow: Flow) -> tuple[int, int]:
    """(packets, payload in bytes) from the server once the client had sent a good part of what it sends there."""
    import numpy as np

    rows: Any = table.rows(flow)
    rows = rows[table.packets.payload[rows] > 0]
    up, payload = table.up[rows], table.packets.payload[rows].astype(np.int64)
    sent = np.cumsum(np.where(up, payload, 0))
    is_late = ~up & (sent >= _LATE * sent[-1]) if len(rows) else up
    return int(is_late.sum()), int(payload[is_late].sum())


def _unique_bytes(table: FlowTable, flow: Flow, *, up: bool) -> int:
    """Payload of one direction; what was sent twice counts once."""
    import numpy as np

    rows: Any = table.rows(flow)
    rows = rows[(table.packets.payload[rows] > 0) & (table.up[rows] == up)]
    payload = table.packets.payload[rows].astype(np.int64)
    if not flow.is_tcp or not len(rows):
        return int(payload.sum())
    first = np.zeros(len(rows), bool)
    first[0] = True
    start = sequence.unwrap(table.packets.seq[rows], first)
    return int(sequence.measure_coverage(np.zeros(len(rows), np.int64), first, start, payload)[0][0])
