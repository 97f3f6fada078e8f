"""The papers' quantities, on traffic whose truth is known by construction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.net.traffic import Analysis, analyze, metrics, parse_rules
from pytest_cloudbench.net.traffic.metrics import Interval
from tests.net.traffic import craft
from tests.net.traffic.craft import SECOND, START_NS, Segment

RULES = parse_rules('[[rules]]\nrole = "storage"\nports = [443]\n[[rules]]\nrole = "control"')


def read(*groups: list[Segment]) -> Analysis:
    segments = sorted((each for group in groups for each in group), key=lambda each: each.at_ns)
    return analyze(craft.pcapng(craft.records(segments)), rules=RULES)


def control(at_s: float, size: int) -> list[Segment]:
    return [Segment(START_NS + round(at_s * SECOND), True, 1, data=bytes(size), server_port=80, client_port=50_000)]


def uploads(sizes: list[int], gap_s: float, *, answer: bool = True) -> list[Segment]:
    """Objects sent one after the other, each answered by 50 bytes after half the gap, then the gap's other half."""
    now, sent, heard = START_NS + SECOND, 1, 1
    found = []
    for size in sizes:
        for begin in range(0, size, 1000):
            part = min(1000, size - begin)
            found.append(Segment(now, True, sent, heard, data=bytes(part)))
            sent += part
            now += SECOND // 10_000
        now += round(gap_s / 2 * SECOND)
        found.append(Segment(now, False, heard, sent, data=bytes(50 if answer else 0)))
        heard += 50 if answer else 0
        now += round(gap_s / 2 * SECOND)
    return found


def test_start_up_and_completion_are_exact() -> None:
    found = read(uploads([5000, 5000], 0.4), control(0.1, 300), control(9, 300))
    storage = found.of("storage")
    assert metrics.start_up_s(found.table, storage, START_NS) == 1.0
    assert metrics.start_up_s(found.table, storage, START_NS + 90 * SECOND) is None
    assert metrics.completion_s(found.table, storage) == pytest.approx(0.4 + 0.001 + 0.2, abs=1e-9)
    assert metrics.completion_s(found.table, []) is None
    told = found.as_dict(changed_ns=START_NS, changed_bytes=10_000)
    assert told["start_up_s"] == 1.0
    wire = sum(each.up.wire_bytes + each.down.wire_bytes for each in found.table.flows)
    assert told["tue"] == wire / 10_000
    assert told["overhead"] == pytest.approx(wire / 10_000 - 1)
    assert metrics.tue(found.table.flows, 10_000, idle_bytes=wire // 2) == pytest.approx(wire / 20_000, rel=1e-3)
    assert metrics.tue(found.table.flows, 0) is None


@pytest.mark.parametrize(
    ("sizes", "expected"), [([4000] * 5, [4000] * 5), ([4000, 100, 9999], [4000, 100, 9999]), ([20_000], [20_000])]
)
def test_chunks_bursts_pauses_and_turns_are_found(sizes: list[int], expected: list[int]) -> None:
    found = read(uploads(sizes, 0.2))
    (flow,) = found.table.flows
    assert metrics.chunks(found.table, flow) == expected
    bursts = metrics.bursts(found.table, [flow], 0.05)
    assert [each.payload_bytes for each in bursts] == expected
    assert [each.packets for each in bursts] == [-(-size // 1000) for size in sizes]
    assert metrics.turns(found.table, flow) == len(sizes)
    said = [0, *[50] * len(sizes)]
    assert metrics.rounds(found.table, flow) == list(zip(said, [*expected, 0], strict=True))
    pauses = metrics.pauses(found.table, [flow], 0.1)
    assert len(pauses) == len(sizes) - 1
    assert all(each.length_s == pytest.approx(0.2, abs=1e-3) for each in pauses)


def test_a_gap_without_an_answer_is_not_a_boundary() -> None:
    found = read(uploads([4000] * 5, 0.2, answer=False))
    assert metrics.chunks(found.table, found.table.flows[0]) == [20_000]
    assert len(metrics.bursts(found.table, found.table.flows, 0.05)) == 5
    assert metrics.turns(found.table, found.table.flows[0]) == 0


def test_an_answer_before_the_acknowledgement_is_not_a_boundary() -> None:
    early = [replace(each, ack=2000) if not each.up else each for each in uploads([4000] * 3, 0.2)]
    found = read(early)
    assert metrics.chunks(found.table, found.table.flows[0]) == [12_000]


def test_resumption_times_are_measured() -> None:
    found = read(uploads([4000, 900, 4000, 4000], 0.2))
    assert metrics.pieces(found.table, found.table.flows[0]).resumptions_s(1000) == [pytest.approx(0.1)] * 2
    assert metrics.pieces(found.table, found.table.flows[0]).resumptions_s(5000) == []


@pytest.mark.parametrize(("waits", "expected"), [(False, (3, 150)), (True, (0, 0))])
def test_answers_in_the_middle_of_a_piece_are_counted(waits: bool, expected: tuple[int, int]) -> None:
    """Five parts, answered one by one while the next is under way: those to the first and the last are at the edges."""
    segments = uploads([4000] * 5, 0.2)
    if not waits:
        late = SECOND // 5
        segments = [each if each.up else replace(each, at_ns=each.at_ns + late, ack=each.ack - 1) for each in segments]
    found = read(segments)
    assert metrics.pieces(found.table, found.table.flows[0]).asides(3500) == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.data())
def test_chunks_survive_retransmissions(sizes: list[int], data: st.DataObject) -> None:
    segments = uploads(sizes, 0.2)
    again = data.draw(st.lists(st.sampled_from([each for each in segments if each.up]), max_size=4))
    found = read(segments, [replace(each, at_ns=each.at_ns + 10) for each in again])
    (flow,) = found.table.flows
    assert metrics.chunks(found.table, flow) == sizes
    assert flow.up.unique_bytes == sum(sizes)
    assert flow.up.payload_bytes == sum(sizes) + sum(len(each.data) for each in again)


def test_idle_traffic_is_split_into_intervals() -> None:
    found = read(control(0.5, 100), control(1.5, 100), control(1.6, 100), control(3.2, 100))
    frame = 54 + 100
    intervals = metrics.idle_traffic(found.table, found.table.flows, 1, START_NS, START_NS + 4 * SECOND)
    assert intervals == [
        Interval(START_NS + number * SECOND, size, 0) for number, size in enumerate((frame, 2 * frame, 0, frame))
    ]
    assert metrics.idle_traffic(found.table, found.table.flows, 1, START_NS, START_NS) == []


def test_connection_attempts_have_times() -> None:
    found = read(*(craft.connection(b"x" * 9, port=50_000 + n, start_ns=START_NS + n * SECOND) for n in range(5)))
    assert metrics.syn_times_ns(found.table, found.table.flows) == [START_NS + n * SECOND for n in range(5)]
    told = found.as_dict()
    assert (told["syns"], told["syn_acks"], told["fins"], len(told["flows"])) == (5, 5, 10, 5)


def test_round_trips_are_exact() -> None:
    found = read(craft.connection(b"x" * 4000))
    told = found.as_dict()["flows"][0]
    assert told["initial_rtt_s"] == pytest.approx(0.002)
    assert told["rtt_up_s"] == {"count": 4, "min": 0.001, "median": 0.001, "max": 0.001}
    assert told["rtt_down_s"] is None
    segments = craft.connection(b"x" * 4000)
    found = read(segments, [replace(segments[3], at_ns=segments[3].at_ns + 500_000)])
    repeated = found.as_dict()["flows"][0]["rtt_up_s"]
    assert repeated["count"] == 3, "sent twice: which one was acknowledged is not known"
