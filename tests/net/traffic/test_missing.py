"""Bytes that were sent but are not in the file: they make the capture invalid, wherever in a connection they were."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pytest_cloudbench.net.traffic import Analysis, analyze, counts
from pytest_cloudbench.net.traffic.table import Side
from tests.net.traffic import craft
from tests.net.traffic.craft import SECOND, START_NS, Segment

UPLOAD = craft.connection(b"x" * 5000)
FIRST_DATA, LAST_DATA = 3, 11


@pytest.fixture(params=[1 << 15, 3, 1], ids=["at once", "in parts", "one by one"], autouse=True)
def rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count flows at once and in parts, which must agree."""
    monkeypatch.setattr(counts, "_CHUNK_ROWS", request.param)
    monkeypatch.setattr(counts, "_PART_ROWS", request.param)


def analyze_segments(segments: Sequence[Segment], canary: bytes | None = None) -> Analysis:
    return analyze(craft.pcapng(craft.records(segments)), canary=canary)


def get_losses(side: Side) -> tuple[int, int, int]:
    return side.unique_bytes, side.missing_bytes, side.unseen_bytes


def leave_out(segments: Sequence[Segment], *positions: int) -> list[Segment]:
    return [segment for position, segment in enumerate(segments) if position not in positions]


@pytest.mark.parametrize(
    ("lost", "missing_bytes"),
    [([FIRST_DATA], 1000), ([LAST_DATA], 1000), ([FIRST_DATA, LAST_DATA], 2000), (range(3, 13, 2), 5000)],
)
def test_payload_missing_at_the_ends_of_a_connection_makes_invalid(lost: Sequence[int], missing_bytes: int) -> None:
    analysis = analyze_segments(leave_out(UPLOAD, *lost), canary=b"not in any packet")
    (flow,) = analysis.table.flows
    assert get_losses(flow.up) == (5000 - missing_bytes, missing_bytes, 0)
    assert get_losses(flow.down) == (0, 0, 0)
    assert analysis.validity.verdict == "invalid"
    assert analysis.validity.reasons == (f"{missing_bytes:,} bytes that were sent are not in the capture",)
    assert analysis.canary is not None
    assert analysis.canary.verdict == "unknown"


def test_a_later_acknowledgement_by_its_sender_does_not_hide_lost_payload() -> None:
    answered = [
        *UPLOAD[:3],
        Segment(START_NS + 4_000_000, False, 5001, 1501, 24, b"answer"),
        Segment(START_NS + 5_000_000, True, 1501, 5007),
    ]
    analysis = analyze_segments(answered)
    (flow,) = analysis.table.flows
    assert (get_losses(flow.up), get_losses(flow.down)) == ((0, 0, 500), (6, 0, 0))
    assert analysis.validity.verdict == "invalid"


def test_a_capture_that_begins_within_a_connection_is_valid() -> None:
    for begin in range(3, len(UPLOAD)):
        assert analyze_segments(UPLOAD[begin:]).validity.verdict == "valid"


def test_a_server_that_chooses_its_number_again_has_no_hole() -> None:
    """The first SYN with ACK was lost behind the capture, and the answer to the second SYN has another number."""
    for first_number in (700_000, 4000, 2_000_000_000):
        opening = Segment(START_NS - 1, False, first_number, 1001, 18)
        old_end = Segment(START_NS - 2, False, first_number - 500, 1001, 17)
        for early in ([opening], [old_end], [old_end, opening]):
            analysis = analyze_segments([UPLOAD[0], *early, *UPLOAD])
            (flow,) = analysis.table.flows
            assert (flow.up.missing_bytes, flow.down.missing_bytes) == (0, 0)
            assert analysis.validity.verdict == "valid"


OPEN = UPLOAD[:13]
ANSWER = Segment(0, False, 5001, 6001)
"""The answer of a server that still holds a connection whose client has restarted (RFC 9293, figure 9)."""
RESET = Segment(0, True, 6001, 0, 4)
RESENT = Segment(0, True, 1001, 5001, 24, b"x" * 1000)
LATE = {
    # the connection before, and what comes after the first SYN and after the handshake of the next one
    "restarted client": (OPEN, [ANSWER, RESET], []),
    "acknowledgement": (UPLOAD, [ANSWER], []),
    "resent data": (UPLOAD, [RESENT], [RESENT, ANSWER]),
    "resent FIN": (UPLOAD, [UPLOAD[-2]], [UPLOAD[-3], UPLOAD[-2]]),
    "reset": (UPLOAD, [replace(ANSWER, flags=20), RESET], [RESET]),
    "resent SYN with ACK": (UPLOAD, [UPLOAD[1]], []),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("isn", [10, 4500, 900_000, 2_000_000_000, 4_000_000_000])
def test_late_packets_of_a_connection_whose_ports_are_used_again_belong_to_it(isn: int, late: str) -> None:
    before, early, later = LATE[late]
    again = [
        replace(segment, seq=segment.seq + number * (not segment.up), ack=segment.ack + number * segment.up)
        for number in [0 if isn == 4500 else 700_000_000]
        for segment in craft.connection(b"y" * 3000, isn=isn)
    ]
    segments = [*before, again[0], *early, *again[:3], *later, *again[3:]]
    analysis = analyze_segments([replace(segment, at_ns=START_NS + at) for at, segment in enumerate(segments)])
    assert [get_losses(side) for flow in analysis.table.flows for side in (flow.up, flow.down)] == [
        (5000, 0, 0), (0, 0, 0), (3000, 0, 0), (0, 0, 0),
    ]  # fmt: skip
    assert [analysis.read_content(number, up=True) for number in (0, 1)] == [(b"x" * 5000, True), (b"y" * 3000, True)]
    assert analysis.validity.verdict == "valid"


def test_a_connection_with_nothing_but_keep_alives_is_valid() -> None:
    segments: list[Segment] = []
    for second in range(5):
        at_ns = START_NS + second * SECOND
        segments += [Segment(at_ns, True, 1999, 7000), Segment(at_ns + 1_000_000, False, 7000, 2000)]
    analysis = analyze_segments(segments)
    assert [get_losses(side) for flow in analysis.table.flows for side in (flow.up, flow.down)] == [(0, 0, 0)] * 2
    assert analysis.validity.verdict == "valid"


def test_acknowledged_payload_of_a_side_that_is_not_captured_makes_invalid() -> None:
    analysis = analyze_segments([segment for segment in UPLOAD if not segment.up])
    (flow,) = analysis.table.flows
    assert (flow.up.packets, flow.up.unseen_bytes, analysis.validity.verdict) == (0, 5001, "invalid")


def test_a_side_that_is_not_captured_may_have_ended_the_connection() -> None:
    without_data = craft.connection()
    for up in (True, False):
        assert analyze_segments([segment for segment in without_data if segment.up == up]).validity.verdict == "valid"
    assert analyze_segments([segment for segment in UPLOAD if segment.up]).validity.verdict == "valid"


def test_acknowledgements_before_the_first_packet_of_the_other_side_count() -> None:
    download = [Segment(START_NS + number, False, 7000, 2000 + 500 * number) for number in range(5)]
    late = Segment(START_NS + 9, True, 2000, 7000, 24, b"x" * 100)
    (flow,) = analyze_segments([*download, late]).table.flows
    assert get_losses(flow.up) == (100, 0, 1900)


@pytest.mark.parametrize("lost", [[], [FIRST_DATA], [5], [LAST_DATA], range(3, 13, 2)])
@pytest.mark.parametrize("up", [True, False])
def test_content_is_whole_only_without_lost_payload(lost: Sequence[int], up: bool) -> None:
    analysis = analyze_segments(leave_out(UPLOAD, *lost))
    assert analysis.read_content(0, up=up) == (b"x" * 1000 * (5 - len(lost)) * up, not (up and lost))


@pytest.mark.parametrize(("limit_bytes", "is_whole"), [(1000, False), (4999, False), (5000, True), (5001, True)])
def test_content_up_to_a_limit_is_whole_only_at_its_end(limit_bytes: int, is_whole: bool) -> None:
    datagrams = [(START_NS, craft.udp("10.0.0.1", 40_000, "10.0.0.2", 9999, b"x" * 1000))] * 5
    for packets in (craft.records(UPLOAD), datagrams):
        content = analyze(craft.pcapng(packets)).read_content(0, up=True, limit_bytes=limit_bytes)
        assert content == (b"x" * min(limit_bytes, 5000), is_whole)


def test_content_that_the_snap_length_cut_is_not_whole() -> None:
    datagrams = [(START_NS, craft.udp("10.0.0.1", 40_000, "10.0.0.2", 9999, b"x" * size)) for size in (10, 1000)]
    for packets in (craft.records(craft.connection(b"x" * 1000)), datagrams):
        analysis = analyze(craft.pcap(packets, snaplen=500), canary=b"not in any packet")
        content, is_whole = analysis.read_content(0, up=True)
        assert 0 < len(content) < 500
        assert not is_whole
        assert analysis.canary is not None
        assert analysis.canary.verdict == "unknown"


def test_an_encoded_canary_beyond_the_limit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    read_all = Analysis.read_content

    def read_less(analysis: Analysis, number: int, *, up: bool) -> tuple[bytes, bool]:
        return read_all(analysis, number, up=up, limit_bytes=1000)

    monkeypatch.setattr(Analysis, "read_content", read_less)
    canary = analyze_segments(UPLOAD, canary=b"not in any packet").canary
    assert canary is not None
    assert canary.verdict == "unknown"


WORDS = b"".join(b"line %d of %d\n" % (number, number * number) for number in range(70_000))


@pytest.mark.parametrize(
    ("sent", "verdict"),
    [
        (gzip.compress(WORDS[:1_000_000]), "no"),
        (gzip.compress(WORDS), "unknown"),
        (gzip.compress(WORDS[:200_000])[:-9], "unknown"),
        (Random(7).randbytes(300_000), "no"),
    ],
    ids=["whole", "beyond the limit", "cut", "random"],
)
def test_an_encoded_canary_in_a_stream_that_is_not_unpacked_to_its_end_is_unknown(sent: bytes, verdict: str) -> None:
    canary = analyze_segments(craft.connection(sent, mss=30_000), canary=b"not in any packet").canary
    assert canary is not None
    assert (canary.verdict, canary.found) == (verdict, ())


@pytest.mark.parametrize("canary", [b"x9k", b"secret", b"7 bytes"])
def test_a_short_canary_that_may_be_there_in_encoded_form_is_unknown(canary: bytes) -> None:
    """Encodings of a short text occur by chance, so nobody looked for them."""
    sent = b"Authorization: Basic " + base64.b64encode(b"user:" + canary)
    hidden, plain = (analyze_segments(craft.connection(data, mss=1400), canary).canary for data in (sent, canary))
    assert hidden is not None
    assert plain is not None
    assert (hidden.verdict, plain.verdict) == ("unknown", "yes")
