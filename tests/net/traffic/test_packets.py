"""Headers into columns: addresses, tags, extension headers, fragments, offloaded lengths."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.traffic import Analysis, analyze, counts, fragments
from tests.limits import scale_examples
from tests.net.traffic import craft
from tests.net.traffic.craft import CLIENT, SERVER, START_NS, Segment

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "captures"
SIX = ("2001:db8::1", "2001:db8::2")
DATA = Segment(START_NS, True, 1, data=b"x" * 100)


def analyze_frames(*frames: bytes, link: int = 1, snaplen: int = 262144) -> Analysis:
    records = [(START_NS + number * 1000, frame) for number, frame in enumerate(frames)]
    return analyze(craft.pcap(records, link=link, snaplen=snaplen))


def payload_sizes(analysis: Analysis) -> list[int]:
    return [int(size) for size in analysis.table.packets.payload]


def tcp_bytes() -> bytes:
    return DATA.frame()[34:]


@pytest.mark.parametrize(
    ("link", "head"),
    [
        (0, b"\x02\0\0\0"), (0, b"\0\0\0\x02"), (108, b"\0\0\0\x02"), (101, b""), (12, b""), (14, b""), (228, b""),
        (113, bytes(14) + b"\x08\x00"), (276, b"\x08\x00" + bytes(18)), (1, bytes(12) + b"\x08\x00"),
        (1, bytes(12) + b"\x81\x00\x00\x07\x08\x00"), (1, bytes(12) + b"\x88\xa8\x00\x09\x81\x00\x00\x07\x08\x00"),
        (1, bytes(12) + b"\x91\x00\x00\x09\x81\x00\x00\x07\x08\x00"),
    ],
)  # fmt: skip
def test_supported_link_types_are_read(link: int, head: bytes) -> None:
    analysis = analyze_frames(head + DATA.frame()[14:], link=link)
    assert payload_sizes(analysis) == [100]
    (flow,) = analysis.table.flows
    assert (str(flow.client), flow.client_port, str(flow.server), flow.server_port) == (CLIENT, 40_000, SERVER, 443)
    assert flow.up.wire_bytes == len(head) + len(DATA.frame()) - 14


IP4 = DATA.frame()[14:]
ETHER = bytes(12)


def in_ip(protocol: int, body: bytes) -> bytes:
    return craft.ethernet("192.0.2.1", "192.0.2.2", protocol, body)


def in_udp(port: int, body: bytes) -> bytes:
    return craft.udp("192.0.2.1", 5555, "192.0.2.2", port, body)


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (1, ETHER + b"\x81\0\0\7" * 7 + b"\x08\0" + IP4),  # seven VLAN tags
        (1, ETHER + b"\x88\x47\0\1\0\x40\0\2\1\x40" + IP4),  # two MPLS labels
        (1, ETHER + b"\x88\x48\0\1\1\x40" + DATA.frame()[14:]),
        (1, ETHER + b"\x88\x64\x11\0\0\1\0\x8e\0\x21" + IP4 + bytes(9)),  # PPPoE
        (1, ETHER + b"\x81\0\0\7\x88\x64\x11\0\0\1\0\x8e\0\x21" + IP4),
        (1, ETHER + b"\0\x94\xaa\xaa\3\0\0\0\x08\0" + IP4),  # 802.3 with SNAP
        (1, ETHER + b"\0\x8f\6\6\3" + IP4),  # 802.3 with IP alone
        (9, b"\xff\3\0\x21" + IP4), (9, b"\0\x21" + IP4), (50, b"\xff\3\x21" + IP4),  # PPP
        (51, b"\x11\0\0\1\0\x8e\0\x21" + IP4), (104, b"\x0f\0\x08\0" + IP4),  # PPPoE and Cisco HDLC as link types
        (113, bytes(14) + b"\x81\0\0\7\x08\0" + IP4),
        (1, in_ip(4, IP4)), (1, in_ip(4, in_ip(4, IP4)[14:])),  # IP in IP
        (1, craft.ethernet("2001:db8::9", "2001:db8::8", 4, IP4)),
        (1, in_ip(47, b"\0\0\x08\0" + IP4)), (1, in_ip(47, b"\xb0\0\x08\0" + bytes(12) + IP4)),  # GRE
        (1, in_ip(47, b"\0\0\x65\x58" + DATA.frame())),
        (1, in_udp(4789, b"\x08\0\0\0\0\0\1\0" + DATA.frame())),  # VXLAN
        (1, in_udp(6081, b"\0\0\x65\x58\0\0\1\0" + DATA.frame())),  # Geneve
    ],
)  # fmt: skip
def test_wrappings_and_tunnels_are_skipped(link: int, frame: bytes) -> None:
    """The inner flow counts, as in tshark's fields of TCP, but the wire bytes are those of the whole frame."""
    analysis = analyze_frames(frame, link=link)
    (flow,) = analysis.table.flows
    assert (flow.protocol, str(flow.client), flow.client_port) == (6, CLIENT, 40_000)
    assert (flow.up.payload_bytes, flow.up.wire_bytes) == (100, len(frame))
    assert analysis.aside.wire_bytes == 0


def test_ipv6_in_tunnels_is_read() -> None:
    inner = ipv6_frame(b"", 6)[14:]
    tunnels = [in_ip(41, inner), in_ip(47, b"\0\0\x86\xdd" + inner), ETHER + b"\x88\x47\0\0\x21\x40" + inner]
    tunnels.append(ETHER + b"\x88\x64\x11\0\0\1\0\xa2\0\x57" + inner)
    analysis = analyze_frames(*tunnels)
    (flow,) = analysis.table.flows
    assert (str(flow.client), flow.up.payload_bytes, flow.up.packets) == (SIX[0], 400, 4)


@pytest.mark.parametrize(
    "frame",
    [
        ETHER + b"\x88\x47\0\1\1\x40" + bytes(60),  # a pseudowire behind an MPLS label
        ETHER + b"\x88\xe7\0\0\0\1" + DATA.frame(), in_ip(47, b"\x20\1\x88\x0b" + bytes(60)),
        ETHER + b"\x81\0\0\7" * 40 + b"\x08\0" + IP4,
    ],
)  # fmt: skip
def test_an_unknown_wrapping_is_always_counted(frame: bytes) -> None:
    analysis = analyze_frames(frame)
    assert (analysis.aside.not_understood, analysis.aside.wire_bytes, analysis.table.flows) == (1, len(frame), [])
    assert "1 packet may hold flows inside undecoded protocols: 1 " in analysis.validity.reasons[-1]


def test_undecoded_packets_make_the_canary_unknown() -> None:
    plain = craft.pcapng([(START_NS, DATA.frame())])
    hidden = craft.pcapng([(START_NS, DATA.frame()), (START_NS, ETHER + b"\x88\xe7\0\0\0\1" + b"my canary")])
    verdicts = [
        analysis.canary.verdict for data in (plain, hidden) if (analysis := analyze(data, canary=b"my canary")).canary
    ]
    assert verdicts == ["no", "unknown"]


def test_another_use_of_a_tunnels_port_is_udp() -> None:
    analysis = analyze_frames(in_udp(4789, b"hello" * 9), in_udp(6081, bytes(60)))
    assert [flow.up.payload_bytes for flow in analysis.table.flows] == [45, 60]


def test_an_icmp_error_that_quotes_tcp_is_not_tcp() -> None:
    analysis = analyze_frames(in_ip(1, b"\3\1" + bytes(6) + IP4), DATA.frame())
    assert (analysis.aside.other_ip, payload_sizes(analysis)) == (1, [100])


def test_an_unknown_link_type_is_counted() -> None:
    analysis = analyze_frames(DATA.frame(), link=147)
    assert (analysis.aside.not_understood, analysis.table.flows) == (1, [])
    assert "1 link type 147" in analysis.validity.reasons[-1]


def ipv6_frame(extensions: bytes, first: int, body: bytes | None = None) -> bytes:
    frame = Segment(START_NS, True, 1, data=b"x" * 100, client=SIX[0], server=SIX[1]).frame()
    body = frame[54:] if body is None else body
    return bytes(12) + b"\x86\xdd" + craft.ip(SIX[0], SIX[1], 6, body, extensions=extensions, first=first)


@pytest.mark.parametrize(
    ("extensions", "first"),
    [
        (b"", 6),
        (b"\x06\x00" + bytes(6), 0),
        (b"\x2b\x00" + bytes(6) + b"\x3c\x01" + bytes(14) + b"\x06\x00" + bytes(6), 0),
        (b"\x06\x04" + bytes(22), 51),
    ],
)
def test_ipv6_extension_headers_are_skipped(extensions: bytes, first: int) -> None:
    analysis = analyze_frames(ipv6_frame(extensions, first))
    assert payload_sizes(analysis) == [100]
    assert str(analysis.table.flows[0].client) == SIX[0]


def fragments4(size: int, identity: int = 7) -> list[bytes]:
    """Return the IPv4 packet of DATA in fragments of this size."""
    head, body = bytearray(IP4[:20]), IP4[20:]
    frames = []
    for begin in range(0, len(body), size):
        part = body[begin : begin + size]
        more = 0x2000 if begin + size < len(body) else 0
        head[2:8] = struct.pack(">HHH", 20 + len(part), identity, more | begin // 8)
        frames.append(ETHER + b"\x08\0" + bytes(head) + part)
    return frames


def fragments6(size: int) -> list[bytes]:
    body = ipv6_frame(b"", 6)[54:]
    return [
        ipv6_frame(struct.pack(">BBHI", 6, 0, begin | (begin + size < len(body)), 9), 44, body[begin : begin + size])
        for begin in range(0, len(body), size)
    ]


@pytest.mark.parametrize("frames", [fragments4(64), fragments4(24), fragments6(64), fragments6(24)])
@pytest.mark.parametrize("order", [1, -1])
def test_fragments_are_joined(frames: list[bytes], order: int) -> None:
    analysis = analyze_frames(*frames[::order])
    (flow,) = analysis.table.flows
    assert (flow.up.packets, flow.up.payload_bytes) == (1, 100)
    assert flow.up.wire_bytes == analysis.wire_bytes == sum(map(len, frames))
    aside = analysis.aside
    assert (aside.joined, aside.fragments, aside.wire_bytes) == (len(frames) - 1, 0, 0)


def test_incomplete_fragments_are_set_aside() -> None:
    frames = fragments4(64)
    analysis = analyze_frames(frames[0], *fragments4(24, 8)[1:], *fragments6(24)[:2], DATA.frame())
    assert (analysis.aside.fragments, analysis.aside.joined, payload_sizes(analysis)) == (7, 0, [100])
    assert analysis.validity.verdict == "unknown"
    assert "7 fragments of incomplete IP packets" in analysis.validity.reasons[-1]
    repeated = analyze_frames(frames[0], frames[0], *frames)
    assert (repeated.aside.fragments, repeated.aside.joined, payload_sizes(repeated)) == (0, 3, [100])


def test_an_atomic_ipv6_fragment_is_a_packet() -> None:
    analysis = analyze_frames(ipv6_frame(b"\6\0\0\0" + bytes(4), 44))
    assert (payload_sizes(analysis), analysis.aside.joined) == ([100], 0)


def test_waiting_fragments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "_MOST_PIECES", 10)
    waiting = [fragments4(64, identity)[0] for identity in range(30)]
    analysis = analyze_frames(*waiting, fragments4(64, 0)[1], fragments4(64, 29)[1])
    assert (payload_sizes(analysis), analysis.aside.fragments) == ([100], 30)


def test_padding_is_not_payload() -> None:
    bare = Segment(START_NS, True, 1)
    assert payload_sizes(analyze_frames(bare.frame() + bytes(6), DATA.frame())) == [0, 100]


def test_a_short_snap_length_changes_no_size() -> None:
    full, cut = analyze_frames(DATA.frame()), analyze_frames(DATA.frame(), snaplen=60)
    assert payload_sizes(full) == payload_sizes(cut) == [100]
    assert cut.table.packets.kept.tolist() == [6]
    assert full.table.flows[0].up.wire_bytes == cut.table.flows[0].up.wire_bytes
    assert (full.cut, cut.cut) == (0, 1)
    assert analyze_frames(DATA.frame(), snaplen=50).aside.short == 1


def test_a_length_of_zero_is_segmentation_offload() -> None:
    frame = bytearray(DATA.frame())
    frame[16:18] = bytes(2)
    assert payload_sizes(analyze_frames(bytes(frame))) == [100]
    long = ipv6_frame(b"", 6)
    assert payload_sizes(analyze_frames(long[:18] + bytes(2) + long[20:])) == [100]


def test_udp_payload_and_ports_are_read() -> None:
    frame = craft.udp(CLIENT, 5000, SERVER, 6000, b"y" * 30)
    offloaded = frame[:38] + bytes(2) + frame[40:]
    analysis = analyze_frames(frame, offloaded, craft.udp(SERVER, 6000, CLIENT, 5000, b"z"))
    (flow,) = analysis.table.flows
    assert (flow.up.payload_bytes, flow.down.payload_bytes, flow.up.unique_bytes) == (60, 1, 60)
    assert flow.client_by == "first packet"


@pytest.mark.parametrize(
    ("offset", "value", "counter"),
    [(14, 0x42, "malformed"), (14, 0x65, "malformed"), (16, 0x00, None), (46, 0x10, "malformed"), (23, 1, "other_ip")],
)
def test_contradictory_headers_are_set_aside(offset: int, value: int, counter: str | None) -> None:
    frame = bytearray(DATA.frame())
    frame[offset] = value
    analysis = analyze_frames(bytes(frame))
    assert counter is None or getattr(analysis.aside, counter) == 1
    assert len(analysis.table.packets) + analysis.aside.malformed + analysis.aside.other_ip + analysis.aside.short == 1


def test_a_malformed_packet_leaves_no_flow_without_packets() -> None:
    """The analysis of later packets once failed because the endpoints were numbered too early."""
    broken = bytearray(DATA.frame())
    broken[46] = 0x10
    analysis = analyze_frames(bytes(broken), Segment(START_NS, True, 1, data=b"y", client_port=7).frame())
    assert [(flow.number, flow.client_port, flow.up.payload_bytes) for flow in analysis.table.flows] == [(0, 7, 1)]
    assert analysis.validity.reasons[-1] == "1 packet has contradictory headers"


def test_every_packet_is_in_a_flow_or_aside() -> None:
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    icmp = craft.ethernet(CLIENT, SERVER, 1, bytes(8))
    analysis = analyze_frames(arp, icmp, DATA.frame(), DATA.frame()[:20])
    aside = analysis.aside
    assert (aside.not_ip, aside.other_ip, aside.short, len(analysis.table.packets), analysis.records) == (1, 1, 1, 1, 4)
    assert aside.wire_bytes + sum(flow.up.wire_bytes for flow in analysis.table.flows) == analysis.wire_bytes


# --- flows ---


def test_the_sender_of_the_syn_is_the_client() -> None:
    syn = Segment(START_NS, False, 1, flags=2)
    (flow,) = analyze_frames(syn.frame(), DATA.frame()).table.flows
    assert (str(flow.client), flow.client_by) == (SERVER, "syn")
    (flow,) = analyze_frames(Segment(START_NS, False, 1, flags=18).frame()).table.flows
    assert (str(flow.client), flow.client_by) == (CLIENT, "syn")
    (flow,) = analyze_frames(Segment(START_NS, False, 1).frame()).table.flows
    assert (str(flow.client), flow.client_by) == (CLIENT, "port")


def test_flows_of_others_are_foreign() -> None:
    other = Segment(START_NS, True, 1, data=b"z" * 7, client="10.0.0.9")
    data = craft.pcap(craft.records([other, DATA]))
    analysis = analyze(data, client=CLIENT)
    assert [flow.up.payload_bytes for flow in analysis.table.flows] == [100]
    assert [flow.up.payload_bytes for flow in analysis.table.foreign] == [7]
    assert analysis.as_dict()["payload_up_bytes"] == 100
    with pytest.raises(UsageError, match=r"10\.0\.0\.77.*its clients are: 10\.0\.0\.1, 10\.0\.0\.9"):
        analyze(data, client="10.0.0.77")
    with pytest.raises(UsageError, match="expected an IPv4 or IPv6 address"):
        analyze(data, client="me")
    assert len(analyze(data, client=f"::ffff:{CLIENT}").table.flows) == 1


def test_client_addresses_match_in_any_spelling() -> None:
    data = craft.pcap([(START_NS, ipv6_frame(b"", 6))])
    for spelling in (SIX[0], "2001:DB8:0:0::0001", "2001:db8::1%eth0"):
        (flow,) = analyze(data, client=spelling).table.flows
        assert (str(flow.client), flow.up.payload_bytes, flow.client_by) == (SIX[0], 100, "option")


@pytest.mark.parametrize(("isn", "flows", "retransmissions"), [(1000, 1, 3), (9000, 2, 0)])
def test_a_repeated_syn_after_the_end_is_the_same_flow(isn: int, flows: int, retransmissions: int) -> None:
    """As in tshark 4.0, a capture with all packets twice does not have twice as many unique bytes."""
    second = craft.connection(b"x" * 500, start_ns=START_NS + craft.SECOND, isn=isn)
    summary = analyze(craft.pcap(craft.records([*craft.connection(b"x" * 500), *second]))).as_dict()
    assert len(summary["flows"]) == flows
    assert summary["unique_up_bytes"] == 500 * flows
    assert summary["retransmissions_up"] == retransmissions
    assert summary["syns"] == 2


def test_reused_ports_are_separate_flows() -> None:
    """Each SYN has a new number, as from a load generator with a fixed port."""
    segments: list[Segment] = []
    for number in range(300):
        segments += craft.connection(b"x" * number, isn=1 + 100_000 * number, start_ns=START_NS + number * craft.SECOND)
    summary = analyze(craft.pcap(craft.records(segments))).as_dict()
    assert [flow["unique_up_bytes"] for flow in summary["flows"]] == list(range(300))
    assert summary["retransmissions"] == 0


@pytest.mark.parametrize(("first", "hellos"), [(b"x", 0), (b"\x16", 1976)])
def test_pages_are_released_for_many_flows(first: bytes, hellos: int) -> None:
    """Names and options are searched in the whole file, so all of a mapped file would stay in memory."""
    segments = [Segment(START_NS, True, 1, flags=flags, data=first * (flags == 24), client_port=port)
                for flags in (2, 24) for port in range(1024, 3000)]  # fmt: skip
    data = craft.pcap(craft.records(segments))
    offsets: list[int] = []
    analyze(data, release=offsets.append)
    assert offsets.count(len(data)) >= hellos // 32 + 2 * (1976 // 512)


def test_garbage_sequence_numbers_leave_other_flows_alone() -> None:
    """One flow leaps by nearly 2 GiB with each segment, beyond 4 TiB in all. The next flow lacks 1,000 bytes."""
    garbage = [Segment(START_NS + row, True, row * (2**31 - 1), data=b"x", client_port=7) for row in range(2500)]
    holed = [Segment(START_NS + row, True, at, data=bytes(10), client_port=8) for row, at in enumerate((1, 1011, 1021))]
    (_, flow) = analyze(craft.pcap(craft.records([*garbage, *holed]))).table.flows
    assert (flow.up.payload_bytes, flow.up.unique_bytes, flow.up.missing_bytes) == (30, 30, 1000)


def test_flows_and_facts_are_the_same_objects_every_time() -> None:
    segments = [Segment(START_NS + port, True, 1, data=b"x", client_port=port) for port in range(5)]
    analysis = analyze(craft.pcap(craft.records(segments)))
    third = analysis.table.flow(2)
    assert [flow.number for flow in analysis.table.flows] == list(range(5))
    assert third is analysis.table.flows[2] is analysis.facts[2].flow
    assert analysis.facts[2] is analysis.facts[2]


def test_changed_facts_show_in_the_json() -> None:
    """``dissect`` learns names of QUIC flows later."""
    segments = [Segment(START_NS + port, True, 1, data=b"x", client_port=port) for port in range(5)]
    analysis = analyze(craft.pcap(craft.records(segments)))
    analysis.facts[3].sni, analysis.facts[3].role = "late.example.com", "control"
    flows = analysis.as_dict()["flows"]
    assert [flow["name"] for flow in flows] == ["10.0.0.2"] * 3 + ["late.example.com", "10.0.0.2"]
    assert (analysis.as_dict()["roles"]["control"]["flows"], [flow.number for flow in analysis.of("control")]) == (
        1,
        [3],
    )


def test_many_flows_stay_separate() -> None:
    segments = [
        Segment(START_NS + row, True, 1 + row, data=b"x" * (port % 50), client_port=port)
        for row in range(3) for port in range(1024, 5000)
    ]  # fmt: skip
    analysis = analyze(craft.pcap(craft.records(segments)))
    assert [flow.client_port for flow in analysis.table.flows] == list(range(1024, 5000))
    assert all(flow.up.payload_bytes == 3 * (flow.client_port % 50) for flow in analysis.table.flows)


def test_unique_bytes_survive_wrap_around() -> None:
    base = 2**32 - 1500
    segments = [Segment(START_NS + n, True, base + n * 1000, data=bytes(1000)) for n in (0, 2, 1, 3, 1)]
    (flow,) = analyze(craft.pcap(craft.records(segments))).table.flows
    assert (flow.up.payload_bytes, flow.up.unique_bytes, flow.up.missing_bytes) == (5000, 4000, 0)


def test_acknowledged_but_uncaptured_bytes_make_invalid() -> None:
    segments = craft.connection(b"x" * 5000)
    assert analyze(craft.pcapng(craft.records(segments))).validity.verdict == "valid"
    hole = analyze(craft.pcapng(craft.records([segment for number, segment in enumerate(segments) if number != 5])))
    assert (hole.table.flows[0].up.missing_bytes, hole.validity.verdict) == (1000, "invalid")
    tail = analyze(
        craft.pcapng(craft.records([segment for segment in segments if not (segment.up and segment.seq >= 5001)]))
    )
    assert tail.table.flows[0].up.unseen_bytes > 0
    assert tail.validity.verdict == "invalid"


def test_drops_make_invalid_and_no_statistics_unknown() -> None:
    records = craft.records(craft.connection(b"x" * 5000))
    assert analyze(craft.pcapng(records, dropped=2)).validity.verdict == "invalid"
    assert "lost 2 packets" in analyze(craft.pcapng(records, dropped=2)).validity.reasons[0]
    assert analyze(craft.pcap(records)).validity.verdict == "unknown"
    assert analyze(craft.pcap(records), drops=0).validity.verdict == "valid"
    assert analyze(craft.pcap(records), drops=1).validity.verdict == "invalid"


def test_segments_above_the_mss_make_the_overhead_unknown() -> None:
    offloaded = craft.connection(b"x" * 5000)
    offloaded[3:5] = [Segment(offloaded[3].at_ns, True, 1001, 5001, data=b"x" * 5000)]
    analysis = analyze(craft.pcapng(craft.records(offloaded[:4])))
    summary = analysis.as_dict(changed_bytes=5000)
    assert (summary["tue"], summary["overhead"], summary["header_bytes"]) == (None, None, None)
    assert "above the MSS" in summary["validity"]["size_reasons"][0]
    normal = analyze(craft.pcapng(craft.records(craft.connection(b"x" * 5000)))).as_dict(changed_bytes=5000)
    assert normal["validity"]["sizes_known"]
    assert normal["header_bytes"] == normal["wire_bytes"] - 5000


@pytest.mark.parametrize("keeps_datagrams", [True, False])
@pytest.mark.parametrize(
    ("first", "sizes", "directions"),
    [(0xC3, (1200, 1472), 0), (0xC3, (1200, 12_000), 1), (0xC3, (1473, 1473), 2), (0x17, (12_000, 12_000), 0)],
)
def test_quic_datagrams_above_a_packet_make_the_overhead_unknown(
    first: int, sizes: tuple[int, int], directions: int, keeps_datagrams: bool
) -> None:
    """Other datagrams may be fragmented, so a large one is no sign of offload."""
    initial = bytes([first]) + struct.pack(">I", 1) + b"\x08"
    ends = (CLIENT, 40_000, SERVER, 443)
    hellos = [craft.udp(*ends, initial.ljust(1200, b"x")), craft.udp(*ends[2:], *ends[:2], initial.ljust(1200, b"x"))]
    frames = [*hellos, craft.udp(*ends, bytes(sizes[0])), craft.udp(*ends[2:], *ends[:2], bytes(sizes[1]))]
    analysis = analyze(craft.pcapng(list(enumerate(frames, START_NS))), keeps_datagrams=keeps_datagrams)
    noun = "direction" if directions == 1 else "directions"
    reason = f"datagrams above 1472 bytes in {directions} {noun} of QUIC flows: segmentation offload was on"
    assert analysis.validity.size_reasons == ((reason,) if directions else ())
    assert analysis.validity.sizes_known == (not directions)
    assert analysis.validity.verdict == "valid"


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.pcap*")))
def test_long_flows_are_counted_in_parts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (FOLDER / file).read_bytes()
    at_once = analyze(data).as_dict()
    monkeypatch.setattr(counts, "_CHUNK_ROWS", 7)
    monkeypatch.setattr(counts, "_PART_ROWS", 7)
    assert analyze(data).as_dict() == at_once


@settings(deadline=None, max_examples=scale_examples(50))
@given(
    st.lists(st.tuples(st.integers(-300, 3000), st.integers(0, 200)), min_size=1, max_size=40),
    st.sampled_from([0, 2**32 - 900]),
)
def test_unique_bytes_are_the_union_of_ranges(ranges: list[tuple[int, int]], base: int) -> None:
    segments = [
        Segment(START_NS + n, True, base + begin, data=bytes(size)) for n, (begin, size) in enumerate(ranges)
    ]  # fmt: skip
    union = {byte for begin, size in ranges for byte in range(begin, begin + size)}
    data = craft.pcap(craft.records(segments))
    for rows in (1 << 17, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(counts, "_CHUNK_ROWS", rows)
            patch.setattr(counts, "_PART_ROWS", rows)
            side = analyze(data).table.flows[0].up
        assert side.unique_bytes == len(union)
        assert side.missing_bytes == (max(union) - min(union) + 1 - len(union) if union else 0)
