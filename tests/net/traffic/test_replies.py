"""Round trips, turns and handshakes of many flows at once: equal to those found by stepping through each flow."""

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


def packets_of(found: Analysis, flow: Flow) -> list[tuple[int, bool, int, int, int, int]]:
    """(time, whether the client sent it, sequence number, acknowledgement, flags, payload) in the file's order."""
    table, rows = found.table, found.table.rows(flow)
    columns = (
        table.packets.time_ns,
        table.up,
        table.packets.seq,
        table.packets.ack,
        table.packets.flags,
        table.packets.payload,
    )
    return list(zip(*(column[rows].tolist() for column in columns), strict=True))


def unwrapped(numbers: list[int]) -> list[int]:
    """Distances from the first one."""
    found = [0] * bool(numbers)
    for before, now in pairwise(numbers):
        found.append(found[-1] + ((now - before + 2**31) % 2**32 - 2**31))
    return found


def stepped(packets: list[tuple[int, bool, int, int, int, int]], *, up: bool) -> dict[str, Any] | None:
    """Round trips, one segment after the other: Karn's rule in plain Python."""
    sent = [(now, seq, size) for now, way, seq, _, _, size in packets if way == up and size]
    acks = [(now, ack) for now, way, _, ack, flags, _ in packets if way != up and flags & 16]
    if not sent or not acks:
        return None
    starts = unwrapped([seq for _, seq, _ in sent])
    ends = [start + size for start, (_, _, size) in zip(starts, sent, strict=True)]
    heard = unwrapped([sent[0][1], *(ack for _, ack in acks)])[1:]
    times = []
    for place, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if any(start < ends[n] and starts[n] < end for n in range(len(sent)) if n != place):
            continue
        first = next((n for n in range(len(heard)) if heard[n] >= end), None)
        if first is not None and heard[first] == end and acks[first][0] >= sent[place][0]:
            times.append(acks[first][0] - sent[place][0])
    if not times:
        return None
    found = {"min": min(times), "median": median(times), "max": max(times)}
    return {"count": len(times)} | {name: float(value) / 1e9 for name, value in found.items()}


def assert_as_stepped(found: Analysis) -> None:
    for flow, told in zip(found.table.flows, found.flows(), strict=True):
        packets = packets_of(found, flow) if flow.is_tcp else []
        for up, key in ((True, "rtt_up_s"), (False, "rtt_down_s")):
            assert told[key] == stepped(packets, up=up) == measure_round_trips(found.table, flow, up=up), (flow, key)
        assert told["turns"] == metrics.turns(found.table, flow)
        speakers = [way for _, way, _, _, _, size in packets if size]
        if flow.is_tcp:
            assert told["turns"] == sum(a and not b for a, b in pairwise(speakers))


@pytest.mark.parametrize("seed", range(8))
def test_random_connections_equal_a_stepwise_count(seed: int) -> None:
    assert_as_stepped(analyze(paths.capture(1000 + seed, 25)))


def test_overlapping_short_flows_are_kept_apart() -> None:
    draw = random.Random(5)
    segments = []
    for port in range(20_000, 20_300):
        start_ns, isn = START_NS + draw.randrange(10**8), draw.getrandbits(32)
        segments += craft.connection(b"d" * draw.randrange(4000), port=port, start_ns=start_ns, isn=isn)
    found = analyze(craft.pcap(sorted(craft.records(segments))))
    assert_as_stepped(found)
    assert {flow.initial_rtt_ns for flow in found.table.flows} == {2_000_000}


def test_garbage_sequence_numbers_are_survived() -> None:
    """Numbers that leave no room to place one flow after the other."""
    draw = random.Random(6)
    segments = []
    for n in range(2000):
        seq, ack, data = draw.getrandbits(32), draw.getrandbits(32), b"x" * draw.randrange(9)
        segments.append(Segment(START_NS + n, draw.random() < 0.5, seq, ack, 16, data, client_port=20_000 + n % 7))
    ahead = [Segment(START_NS + n, True, n * 0x7FFFFFFF, 1, 16, b"x", client_port=30_000) for n in range(5000)]
    answers = [Segment(START_NS + n, False, 1, n * 0x7FFFFFFF + 1, 16, client_port=30_000) for n in range(500)]
    found = analyze(craft.pcap(craft.records([*segments, *ahead, *answers])))
    assert len(found.table.flows) == 8
    for flow in found.table.flows[:7]:
        assert measure_round_trips(found.table, flow, up=True) == stepped(packets_of(found, flow), up=True)


def test_a_selection_equals_the_same_flows_among_all() -> None:
    found = analyze(paths.capture(77, 30))
    every = {told["number"]: told for told in found.flows()}
    for most in (1, 3, 7):
        assert [every[told["number"]] for told in found.flows(most)] == list(found.flows(most))


def test_a_long_flow_is_measured_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cloudbench.net.traffic import replies

    found = analyze(craft.pcap(craft.records(craft.connection(b"d" * 300_000))))
    whole = list(found.flows())
    monkeypatch.setattr(replies, "_PART_ROWS", 64)
    assert list(found.flows()) == whole
