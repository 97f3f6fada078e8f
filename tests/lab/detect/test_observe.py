"""Counts of each phase of a capture, with every packet in exactly one phase."""

from __future__ import annotations

import pytest

from pytest_cloudbench.lab.detect import Observation, observe
from pytest_cloudbench.lab.detect.observe import cut_window
from pytest_cloudbench.lab.detect.waits import explain_short_trips
from pytest_cloudbench.net.traffic import Analysis, analyze
from pytest_cloudbench.net.traffic.handshake import HTTP2_PREFACE
from tests.net.traffic.craft import CLIENT, SECOND, START_NS, Record, Segment, pcapng, records, udp

MS = SECOND // 1000
ROUND_TRIP_S = 0.02


class Talk:
    """One connection. The client sends, and the server acknowledges the data and answers on request."""

    def __init__(self, port: int = 40_000, start_ns: int = START_NS) -> None:
        self.now, self.port = start_ns, port
        self.seq, self.ack = 1000, 5000
        self.segments: list[Segment] = []
        self.add(True, flags=2)
        self.seq += 1
        self.add(False, flags=18)
        self.ack += 1

    def add(self, up: bool, data: bytes = b"", flags: int = 24, seq: int | None = None) -> None:
        own, other = (self.seq, self.ack) if up else (self.ack, self.seq)
        first_seq = own if seq is None else seq
        self.segments.append(Segment(self.now, up, first_seq, other, flags, data, client_port=self.port))
        self.now += MS

    def send(self, size: int, answer: int = 0) -> None:
        while size > 0:
            self.add(True, bytes(min(size, 1000)))
            self.seq += min(size, 1000)
            size -= 1000
        self.add(False, flags=16)
        if answer:
            self.add(False, bytes(answer))
            self.ack += answer

    def pause(self, seconds: float) -> int:
        self.now += round(seconds * SECOND)
        return self.now


def analyze_talks(*talks: Talk, extra_records: list[Record] | None = None, dropped: int = 0) -> Analysis:
    all_records = [record for talk in talks for record in records(talk.segments)] + (extra_records or [])
    return analyze(pcapng(sorted(all_records), dropped=dropped), client=CLIENT)


def observe_phase(analysis: Analysis, first_ns: int, last_ns: int, kind: str = "new") -> Observation:
    return observe(analysis, Observation(kind, 1, 1), first_ns, last_ns, round_trip_s=ROUND_TRIP_S)


def test_each_phase_has_its_own_packets() -> None:
    talk = Talk()
    talk.send(3_000, answer=100)
    middle = talk.pause(1)
    talk.send(5_000, answer=70)
    end = talk.pause(1)
    analysis = analyze_talks(talk)
    first, second = observe_phase(analysis, START_NS, middle), observe_phase(analysis, middle, end)
    assert (first.up_bytes, first.down_bytes, first.syns, first.answers) == (3_000, 100, 1, 1)
    assert (second.up_bytes, second.down_bytes, second.syns, second.answers) == (5_000, 70, 0, 1)
    assert first.wire_bytes is not None
    assert second.wire_bytes is not None
    assert first.wire_bytes + second.wire_bytes == analysis.wire_bytes
    assert second.duration_s == (end - middle) / 1e9
    assert observe_phase(analysis, end, end + SECOND).up_bytes == 0


def test_a_window_has_the_packets_of_its_time_and_no_others() -> None:
    talks = [Talk(40_000), Talk(40_001, START_NS + 300)]
    for talk in talks:
        talk.send(10_000, answer=10)
    analysis = analyze_talks(*talks)
    times = analysis.table.packets.time_ns
    middle = int(times[len(times) // 2])
    parts = [cut_window(analysis.table, START_NS, middle), cut_window(analysis.table, middle, int(times[-1]) + 1)]
    for flow in analysis.table.flows:
        rows = [row for part in parts for row in part.rows(flow).tolist()]
        assert rows == analysis.table.rows(flow).tolist()
        assert all(times[row] < middle for row in parts[0].rows(flow).tolist())


def test_retransmitted_bytes_count_once() -> None:
    talk = Talk()
    talk.send(4_000)
    talk.add(True, bytes(1_000), seq=talk.seq - 2_000)
    assert observe_phase(analyze_talks(talk), START_NS, talk.now).up_bytes == 4_000


def test_chunks_and_exchanges_follow_answers() -> None:
    talk = Talk()
    for _ in range(4):
        talk.send(20_000, answer=60)
        talk.pause(0.05)
    answered = observe_phase(analyze_talks(talk), START_NS, talk.now)
    assert answered.chunks_bytes == (20_000,) * 4
    assert (answered.exchanges, answered.turns, answered.bursts) == (3, 4, 4)
    silent = Talk()
    for _ in range(4):
        silent.send(20_000)
        silent.pause(0.05)
    assert observe_phase(analyze_talks(silent), START_NS, silent.now).chunks_bytes == (80_000,)


def test_the_nearest_server_that_receives_much_decides_the_round_trip() -> None:
    """Others make no difference, and a server that is farther away than usual does not hide a near one."""
    near, far = Talk(40_000), Talk(40_001)
    for talk, size in ((near, 1_000), (far, 50_000)):
        talk.add(True, bytes(1_000))
        talk.seq += 1_000
        talk.pause(0.002 if talk is near else 0.5)
        talk.add(False, flags=16)
        for _ in range(size // 1_000 - 1):
            talk.add(True, bytes(1_000))
            talk.seq += 1_000
    together = analyze_talks(near, far)
    assert observe_phase(together, START_NS, far.now).round_trip_s == ROUND_TRIP_S
    alone = analyze_talks(near)
    assert observe_phase(alone, START_NS, far.now).round_trip_s == pytest.approx(0.003)
    assert explain_short_trips([observe_phase(alone, START_NS, far.now)])


@pytest.mark.parametrize(("beginning", "is_http2"), [(HTTP2_PREFACE, True), (b"PUT /file HTTP/1.1\r\n\r\n", False)])
def test_http_2_without_tls_is_http_2(beginning: bytes, is_http2: bool) -> None:
    talk = Talk()
    talk.add(True, beginning[:10])
    talk.seq += 10
    talk.add(True, beginning[10:])
    talk.seq += len(beginning) - 10
    talk.send(5_000, answer=40)
    assert observe_phase(analyze_talks(talk), START_NS, talk.now).offers_h2 is is_http2


def test_multicast_is_not_the_client_s_upload_and_udp_is_told_apart() -> None:
    talk = Talk()
    talk.send(1_000)
    extra_records = [
        (START_NS + 5, udp(CLIENT, 5000, "233.252.0.9", 9, bytes(90))),
        (START_NS + 6, udp(CLIENT, 5001, "10.0.0.2", 443, bytes(400))),
    ]
    observation = observe_phase(analyze_talks(talk, extra_records=extra_records), START_NS, talk.now)
    assert (observation.up_bytes, observation.udp_up_bytes) == (1_400, 400)


def test_a_capture_that_dropped_packets_gives_no_observation() -> None:
    talk = Talk()
    talk.send(1_000)
    observation = observe_phase(analyze_talks(talk, dropped=3), START_NS, talk.now)
    assert not observation.is_valid
    assert "3" in observation.reasons[0]
