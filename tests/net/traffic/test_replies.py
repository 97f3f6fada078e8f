"""Round trips, turns and handshakes of many flows at once, compared with a step-by-step count of each flow."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from pytest_cloudbench.net.traffic import Analysis, Flow, analyze, metrics
from pytest_cloudbench.net.traffic.replies import measure_round_trips
from tests.net.traffic import craft, paths
from tests.net.traffic.craft import START_NS, Segment


def list_packets(analysis: Analysis, flow: Flow) -> list[tuple[int, bool, int, int, int, int]]:
    """Return (time, is from the client, sequence number, acknowledgement, flags, payload) in the file's order."""
    table, rows = analysis.table, analysis.table.rows(flow)
    columns = (
        table.packets.time_ns,
        table.up,
        table.packets.seq,
        table.packets.ack,
        table.packets.flags,
        table.packets.payload,
    )
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def unwrap_numbers(numbers: list[int]) -> list[int]:
    """Return the distances from the first number."""
    distances = [0] * bool(numbers)
    for before, now in pairwise(numbers):
        distances.append(distances[-1] + ((now - before + 2**31) % 2**32 - 2**31))
    return distances


def measure_stepwise(packets: list[tuple[int, bool, int, int, int, int]], *, up: bool) -> dict[str, Any] | None:
    """Measure round trips one segment after the other, with Karn's rule in plain Python."""
    segments = [(now, seq, size) for now, way, seq, _, _, size in packets if way == up and size]
    acks = [(now, ack) for now, way, _, ack, flags, _ in packets if way != up and flags & 16]
    if not segments or not acks:
        return None
    starts = unwrap_numbers([seq for _, seq, _ in segments])
    ends = [start + size for start, (_, _, size) in zip(starts, segments, strict=True)]
    acked = unwrap_numbers([segments[0][1], *(ack for _, ack in acks)])[1:]
    times = []
    for index, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if any(start < ends[n] and starts[n] < end for n in range(len(segments)) if n != index):
            continue
        first = next((n for n in range(len(acked)) if acked[n] >= end), None)
        if first is not None and acked[first] == end and acks[first][0] >= segments[index][0]:
            times.append(acks[first][0] - segments[index][0])
    if not times:
        return None
    statistics = {"min": min(times), "median": median(times), "max": max(times)}
    return {"count": len(times)} | {name: float(value) / 1e9 for name, value in statistics.items()}


def assert_equals_stepwise(analysis: Analysis) -> None:
    for flow, record in zip(analysis.table.flows, analysis.flows(), strict=True):
        packets = list_packets(analysis, flow) if flow.is_tcp else []
        for up, key in ((True, "rtt_up_s"), (False, "rtt_down_s")):
            assert (
                record[key] == measure_stepwise(packets, up=up) == measure_round_trips(analysis.table, flow, up=up)
            ), (flow, key)
        assert record["turns"] == metrics.turns(analysis.table, flow)
        speakers = [way for _, way, _, _, _, size in packets if size]
        if flow.is_tcp:
            assert record["turns"] == sum(a and not b for a, b in pairwise(speakers))


@pytest.mark.parametrize("seed", range(8))
def test_random_connections_equal_a_stepwise_count(seed: int) -> None:
    assert_equals_stepwise(analyze(paths.capture(1000 + seed, 25)))


def test_overlapping_short_flows_are_kept_apart() -> None:
    draw = random.Random(5)
    segments = []
    for port in range(20_000, 20_300):
        start_ns, isn = START_NS + draw.randrange(10**8), draw.getrandbits(32)
        segments += craft.connection(b"d" * draw.randrange(4000), port=port, start_ns=start_ns, isn=isn)
    analysis = analyze(craft.pcap(sorted(craft.records(segments))))
    assert_equals_stepwise(analysis)
    assert {flow.initial_rtt_ns for flow in analysis.table.flows} == {2_000_000}


def test_garbage_sequence_numbers_are_survived() -> None:
    """The numbers leave no room to place one flow after the other."""
    draw = random.Random(6)
    segments = []
    for n in range(2000):
        seq, ack, data = draw.getrandbits(32), draw.getrandbits(32), b"x" * draw.randrange(9)
        segments.append(Segment(START_NS + n, draw.random() < 0.5, seq, ack, 16, data, client_port=20_000 + n % 7))
    ahead = [Segment(START_NS + n, True, n * 0x7FFFFFFF, 1, 16, b"x", client_port=30_000) for n in range(5000)]
    answers = [Segment(START_NS + n, False, 1, n * 0x7FFFFFFF + 1, 16, client_port=30_000) for n in range(500)]
    analysis = analyze(craft.pcap(craft.records([*segments, *ahead, *answers])))
    assert len(analysis.table.flows) == 8
    for flow in analysis.table.flows[:7]:
        assert measure_round_trips(analysis.table, flow, up=True) == measure_stepwise(
            list_packets(analysis, flow), up=True
        )


def test_a_selection_equals_the_same_flows_among_all() -> None:
    analysis = analyze(paths.capture(77, 30))
    records = {record["number"]: record for record in analysis.flows()}
    for limit in (1, 3, 7):
        assert [records[record["number"]] for record in analysis.flows(limit)] == list(analysis.flows(limit))


def test_a_long_flow_is_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cloudbench.net.traffic import replies

    analysis = analyze(craft.pcap(craft.records(craft.connection(b"d" * 300_000))))
    flows = list(analysis.flows())
    monkeypatch.setattr(replies, "_PART_ROWS", 64)
    assert list(analysis.flows()) == flows
