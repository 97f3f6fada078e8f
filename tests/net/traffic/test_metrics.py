"""Metrics of the papers, on traffic with a truth that is known by construction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.net.traffic import Analysis, analyze, counts, metrics, parse_rules
from pytest_cloudbench.net.traffic.metrics import Interval
from tests.limits import scale_examples
from tests.net.traffic import craft
from tests.net.traffic.craft import SECOND, START_NS, Segment

RULES = parse_rules('[[rules]]\nrole = "storage"\nports = [443]\n[[rules]]\nrole = "control"')


def analyze_segments(*groups: list[Segment]) -> Analysis:
    segments = sorted((segment for group in groups for segment in group), key=lambda segment: segment.at_ns)
    return analyze(craft.pcapng(craft.records(segments)), rules=RULES)


def make_control(at_s: float, size: int) -> list[Segment]:
    return [Segment(START_NS + round(at_s * SECOND), True, 1, data=bytes(size), server_port=80, client_port=50_000)]


def uploads(sizes: list[int], gap_s: float, *, answer: bool = True) -> list[Segment]:
    """Return objects sent one after the other. Each is answered by 50 bytes in the middle of the gap after it."""
    now, up_seq, down_seq = START_NS + SECOND, 1, 1
    segments = []
    for size in sizes:
        for begin in range(0, size, 1000):
            part = min(1000, size - begin)
            segments.append(Segment(now, True, up_seq, down_seq, data=bytes(part)))
            up_seq += part
            now += SECOND // 10_000
        now += round(gap_s / 2 * SECOND)
        segments.append(Segment(now, False, down_seq, up_seq, data=bytes(50 if answer else 0)))
        down_seq += 50 if answer else 0
        now += round(gap_s / 2 * SECOND)
    return segments


def test_start_up_and_completion_are_exact() -> None:
    analysis = analyze_segments(uploads([5000, 5000], 0.4), make_control(0.1, 300), make_control(9, 300))
    storage = analysis.of("storage")
    assert metrics.start_up_s(analysis.table, storage, START_NS) == 1.0
    assert metrics.start_up_s(analysis.table, storage, START_NS + 90 * SECOND) is None
    assert metrics.completion_s(analysis.table, storage) == pytest.approx(0.4 + 0.001 + 0.2, abs=1e-9)
    assert metrics.completion_s(analysis.table, []) is None
    summary = analysis.as_dict(changed_ns=START_NS, changed_bytes=10_000)
    assert summary["start_up_s"] == 1.0
    wire = sum(flow.up.wire_bytes + flow.down.wire_bytes for flow in analysis.table.flows)
    assert summary["tue"] == wire / 10_000
    assert summary["overhead"] == pytest.approx(wire / 10_000 - 1)
    assert metrics.tue(analysis.table.flows, 0) is None


def test_the_overuse_of_unknown_flows_is_unknown() -> None:
    """No rule says which flows are the client's, so none of their bytes would count."""
    summary = analyze(craft.pcapng(craft.records(craft.connection(b"x" * 500)))).summary(changed_bytes=500)
    assert set(summary["roles"]) == {"other"}
    assert (summary["tue"], summary["overhead"]) == (None, None)


@pytest.mark.parametrize(
    ("sizes", "expected"), [([4000] * 5, [4000] * 5), ([4000, 100, 9999], [4000, 100, 9999]), ([20_000], [20_000])]
)
def test_chunks_bursts_pauses_and_turns_are_found(sizes: list[int], expected: list[int]) -> None:
    analysis = analyze_segments(uploads(sizes, 0.2))
    (flow,) = analysis.table.flows
    assert metrics.chunks(analysis.table, flow) == expected
    bursts = metrics.bursts(analysis.table, [flow], 0.05)
    assert [burst.payload_bytes for burst in bursts] == expected
    assert [burst.packets for burst in bursts] == [-(-size // 1000) for size in sizes]
    assert metrics.turns(analysis.table, flow) == len(sizes)
    answers = [0, *[50] * len(sizes)]
    assert metrics.rounds(analysis.table, flow) == list(zip(answers, [*expected, 0], strict=True))
    pauses = metrics.pauses(analysis.table, [flow], 0.1)
    assert len(pauses) == len(sizes) - 1
    assert all(pause.length_s == pytest.approx(0.2, abs=1e-3) for pause in pauses)


def list_times(segments: list[Segment]) -> tuple[object, ...]:
    """Return all that depends on when payload was sent."""
    analysis = analyze_segments(segments)
    (line,) = analysis.as_dict()["flows"]
    (flow,), table = analysis.table.flows, analysis.table
    keys = [key for key in line if "payload" in key and key.endswith("_s")]
    times = [[getattr(side, name) for name in ("first_payload_ns", "last_payload_ns")] for side in (flow.up, flow.down)]
    return (
        times, [line[key] for key in (*keys, "turns")], metrics.completion_s(table, [flow]),
        metrics.start_up_s(table, [flow], START_NS), metrics.completion_s(table, [flow], START_NS),
        metrics.bursts(table, [flow], 0.5), metrics.turns(table, flow), metrics.rounds(table, flow),
        metrics.chunks(table, flow),
    )  # fmt: skip


@pytest.mark.parametrize("part_rows", [1 << 15, 3])
@pytest.mark.parametrize("is_up", [True, False])
def test_the_byte_of_a_keep_alive_is_no_payload(is_up: bool, part_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows sends the last byte before a silence again, in browsers every 45 s."""
    for name in ("_CHUNK_ROWS", "_PART_ROWS"):
        monkeypatch.setattr(counts, name, part_rows)
    segments = uploads([3000, 3000], 0.4)

    def stay_alive(before: Segment, wait_s: float, data: bytes) -> list[Segment]:
        """Return a keep-alive and its answer, some time after a segment of the server."""
        ends = (before.ack, before.seq + len(before.data))
        own, other = ends if is_up else ends[::-1]
        at_ns = before.at_ns + round(wait_s * SECOND)
        return [Segment(at_ns, is_up, own - 1, other, data=data), Segment(at_ns + 1000, not is_up, other, own)]

    def list_times_with(data: bytes) -> tuple[object, ...]:
        return list_times([*segments, *stay_alive(segments[3], 0.1, data), *stay_alive(segments[-1], 90, data)])

    assert list_times_with(b"x") == list_times_with(b"")


def test_a_gap_without_an_answer_is_not_a_boundary() -> None:
    analysis = analyze_segments(uploads([4000] * 5, 0.2, answer=False))
    assert metrics.chunks(analysis.table, analysis.table.flows[0]) == [20_000]
    assert len(metrics.bursts(analysis.table, analysis.table.flows, 0.05)) == 5
    assert metrics.turns(analysis.table, analysis.table.flows[0]) == 0


def test_an_answer_before_the_acknowledgement_is_not_a_boundary() -> None:
    early = [replace(segment, ack=2000) if not segment.up else segment for segment in uploads([4000] * 3, 0.2)]
    analysis = analyze_segments(early)
    assert metrics.chunks(analysis.table, analysis.table.flows[0]) == [12_000]


def test_resumption_times_are_measured() -> None:
    analysis = analyze_segments(uploads([4000, 900, 4000, 4000], 0.2))
    assert metrics.pieces(analysis.table, analysis.table.flows[0]).resumptions_s(1000) == [pytest.approx(0.1)] * 2
    assert metrics.pieces(analysis.table, analysis.table.flows[0]).resumptions_s(5000) == []


@pytest.mark.parametrize(("waits", "expected"), [(False, (3, 150)), (True, (0, 0))])
def test_answers_in_the_middle_of_a_piece_are_counted(waits: bool, expected: tuple[int, int]) -> None:
    """Each of five parts is answered while the next is sent. Answers to the first and last are at the edges."""
    segments = uploads([4000] * 5, 0.2)
    if not waits:
        delay_ns = SECOND // 5
        segments = [
            segment if segment.up else replace(segment, at_ns=segment.at_ns + delay_ns, ack=segment.ack - 1)
            for segment in segments
        ]
    analysis = analyze_segments(segments)
    assert metrics.pieces(analysis.table, analysis.table.flows[0]).asides(3500) == expected


@settings(deadline=None, max_examples=scale_examples(40))
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.data())
def test_chunks_survive_retransmissions(sizes: list[int], data: st.DataObject) -> None:
    segments = uploads(sizes, 0.2)
    repeated = data.draw(st.lists(st.sampled_from([segment for segment in segments if segment.up]), max_size=4))
    analysis = analyze_segments(segments, [replace(segment, at_ns=segment.at_ns + 10) for segment in repeated])
    (flow,) = analysis.table.flows
    assert metrics.chunks(analysis.table, flow) == sizes
    assert flow.up.unique_bytes == sum(sizes)
    assert flow.up.payload_bytes == sum(sizes) + sum(len(segment.data) for segment in repeated)


def test_idle_traffic_is_split_into_intervals() -> None:
    analysis = analyze_segments(
        make_control(0.5, 100), make_control(1.5, 100), make_control(1.6, 100), make_control(3.2, 100)
    )
    frame = 54 + 100
    intervals = metrics.idle_traffic(analysis.table, analysis.table.flows, 1, START_NS, START_NS + 4 * SECOND)
    assert intervals == [
        Interval(START_NS + number * SECOND, size, 0) for number, size in enumerate((frame, 2 * frame, 0, frame))
    ]
    assert metrics.idle_traffic(analysis.table, analysis.table.flows, 1, START_NS, START_NS) == []


def test_connection_attempts_have_times() -> None:
    analysis = analyze_segments(
        *(craft.connection(b"x" * 9, port=50_000 + n, start_ns=START_NS + n * SECOND) for n in range(5))
    )
    assert metrics.syn_times_ns(analysis.table, analysis.table.flows) == [START_NS + n * SECOND for n in range(5)]
    summary = analysis.as_dict()
    assert (summary["syns"], summary["syn_acks"], summary["fins"], len(summary["flows"])) == (5, 5, 10, 5)


def test_round_trips_are_exact() -> None:
    analysis = analyze_segments(craft.connection(b"x" * 4000))
    flow = analysis.as_dict()["flows"][0]
    assert flow["initial_rtt_s"] == pytest.approx(0.002)
    assert flow["rtt_up_s"] == {"count": 4, "min": 0.001, "median": 0.001, "max": 0.001}
    assert flow["rtt_down_s"] is None
    segments = craft.connection(b"x" * 4000)
    analysis = analyze_segments(segments, [replace(segments[3], at_ns=segments[3].at_ns + 500_000)])
    repeated = analysis.as_dict()["flows"][0]["rtt_up_s"]
    assert repeated["count"] == 3, "sent twice: which one was acknowledged is not known"
