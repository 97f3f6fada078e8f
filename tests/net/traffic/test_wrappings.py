"""Wrappings around flows: opened as in tshark, or named as a doubt. Protocols without flows are no doubt."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from pytest_cloudbench.net.traffic import Analysis, analyze
from tests.limits import HANG_S
from tests.net.traffic import craft
from tests.net.traffic.craft import CLIENT, SERVER, START_NS, Segment

ETHER = bytes(12)
DATA = Segment(START_NS, True, 1, 1, 24, b"x" * 100)
SIX = Segment(START_NS, True, 1, 1, 24, b"y" * 70, client="2001:db8::1", server="2001:db8::2")
FRAME, IP4, IP6 = DATA.frame(), DATA.frame()[14:], SIX.frame()[14:]


def analyze_frames(*frames: bytes) -> Analysis:
    return analyze(craft.pcapng([(START_NS + number, frame) for number, frame in enumerate(frames)]))


def in_ip(protocol: int, body: bytes) -> bytes:
    return craft.ethernet("192.0.2.1", "192.0.2.2", protocol, body)


def udp(port: int, body: bytes, source_port: int = 40_000) -> bytes:
    return craft.udp("192.0.2.1", source_port, "192.0.2.2", port, body)


def erspan(*, version: int, body: bytes = FRAME, tail: bytes = b"", kind: int = 0) -> bytes:
    """Return ERSPAN in GRE, of type I, II or III by the version. The body is a frame or IP."""
    if version == 0:
        return in_ip(47, b"\0\0\x88\xbe" + body)
    if version == 1:
        return in_ip(47, b"\x10\0\x88\xbe\0\0\0\1" + b"\x10\x64\x10\1\0\0\0\0" + body)
    head = bytes([0x20, 100, 0x10, 1]) + bytes(4) + struct.pack(">HH", 0, kind << 10 | (1 if tail else 0))
    return in_ip(47, b"\x10\0\x22\xeb\0\0\0\1" + head + tail + body)


def gtp(body: bytes, flags: int = 0x30, options: bytes = b"", kind: int = 255) -> bytes:
    return udp(2152, struct.pack(">BBHI", flags, kind, len(options) + len(body), 7) + options + body, 2152)


LOOKED_INTO = {
    "ERSPAN I": erspan(version=0),
    "ERSPAN II": erspan(version=1),
    "ERSPAN II, tagged": erspan(version=1, body=ETHER + b"\x81\0\0\7" + FRAME[12:]),
    "ERSPAN III": erspan(version=2),
    "ERSPAN III with a longer header": erspan(version=2, tail=bytes(8)),
    "GTP": gtp(IP4),
    "GTP, IPv6 inside": gtp(IP6),
    "GTP with a sequence number": gtp(IP4, 0x32, bytes(4)),
    "GTP with an extension": gtp(IP4, 0x34, b"\0\0\0\x85" + b"\1\0\1\0"),
    "GTP with two extensions": gtp(IP6, 0x34, b"\0\0\0\x85" + b"\1\0\1\xc0" + b"\1\0\1\0"),
    "Teredo": udp(3544, IP6),
    "Teredo with an origin": udp(3544, bytes(8) + IP6),
    "AH": in_ip(51, b"\6\4\0\0" + bytes(20) + IP4[20:]),
    "AH around IP": in_ip(51, b"\4\4\0\0" + bytes(20) + IP4),
    "VXLAN": udp(4789, b"\x08\0\0\0\0\0\1\0" + FRAME),
    "VXLAN-GPE, IPv4 inside": udp(4790, b"\x0c\0\0\1\0\0\1\0" + IP4),
    "VXLAN-GPE, a frame inside": udp(4790, b"\x0c\0\0\3\0\0\1\0" + FRAME),
    "Geneve": udp(6081, b"\0\0\x65\x58\0\0\1\0" + FRAME),
    "Geneve with options": udp(6081, b"\2\0\x65\x58\0\0\1\0" + b"\1\2\x80\1\0\0\0\0" + FRAME),
    "Geneve around IPv6": udp(6081, b"\0\0\x86\xdd\0\0\1\0" + IP6),
    "LISP": udp(4341, bytes(8) + IP4),
}


@pytest.mark.parametrize("name", LOOKED_INTO)
def test_the_inner_flow_counts(name: str) -> None:
    analysis = analyze_frames(LOOKED_INTO[name])
    (flow,) = analysis.table.flows
    assert flow.up.payload_bytes == (70 if flow.client.version == 6 else 100)
    behind_ah = name == "AH"  # AH comes after the IP header and not around it
    assert str(flow.client) == (SIX.client if flow.client.version == 6 else "192.0.2.1" if behind_ah else CLIENT)
    assert (analysis.validity.verdict, analysis.aside.hidden) == ("valid", {})


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_wrappings_are_read_like_tshark(tmp_path: Path) -> None:
    path = tmp_path / "wrapped.pcapng"
    path.write_bytes(craft.pcapng([(START_NS + number, frame) for number, frame in enumerate(LOOKED_INTO.values())]))
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", "-e", "tcp.len", "-e", "tcp.seq_raw"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout.splitlines()
    expected = [
        f"{70 if analysis.table.flows[0].client.version == 6 else 100}\t1"
        for analysis in map(analyze_frames, LOOKED_INTO.values())
    ]
    assert dict(zip(LOOKED_INTO, lines, strict=True)) == dict(zip(LOOKED_INTO, expected, strict=True))


HIDDEN = {
    "ERSPAN": erspan(version=2, kind=5),
    "MACsec": ETHER + b"\x88\xe5\0\0\0\0\0\1" + bytes(60),
    "provider backbone bridge": ETHER + b"\x88\xe7\0\0\0\1" + FRAME,
    "FabricPath": ETHER + b"\x89\x03\0\1" + FRAME,
    "TRILL": ETHER + b"\x22\xf3\0\0\0\1\0\2" + FRAME,
    "NSH": ETHER + b"\x89\x4f\x0f\xc6\1\3" + bytes(20) + FRAME,
    "Cisco metadata": ETHER + b"\x89\x09\1\1\0\1\0\1" + FRAME[12:],
    "MPLS pseudowire": ETHER + b"\x88\x47\0\1\1\x40" + bytes(4) + FRAME,
    "EtherType 0x5555": ETHER + b"\x55\x55" + FRAME,
    "GRE": in_ip(47, b"\x20\1\x88\x0b" + bytes(60)),
    "WCCP": in_ip(47, b"\0\0\x88\x3e\0\0\0\0" + IP4),
    "EtherType 0xb7ea": in_ip(47, b"\0\0\xb7\xea" + bytes(60)),
    "ESP": in_ip(50, bytes(60)),
    "IPComp": in_ip(108, bytes(60)),
    "L2TP": in_ip(115, bytes(60)),
    "EtherIP": in_ip(97, b"\x30\0" + FRAME),
    "IP protocol 253": in_ip(253, IP4),
    "LLC 0x6a": ETHER + struct.pack(">H", 60) + b"\x6a\x6a\3" + bytes(57),
    "SNAP 0080c2 0x0007": ETHER + struct.pack(">H", 60) + b"\xaa\xaa\3\0\x80\xc2\0\7" + FRAME,
    "PPP with multilink": ETHER + b"\x88\x64\x11\0\0\1\0\x40\0\x3d" + bytes(60),
    "VXLAN-GPE": udp(4790, b"\x0c\0\0\4\0\0\1\0" + bytes(60)),
    "Geneve": udp(6081, b"\0\0\x88\x48\0\0\1\0" + bytes(60)),
    "GTP": gtp(bytes(60)),
    "ESP in UDP": udp(4500, b"\0\0\1\1" + bytes(60), 4500),
    "CAPWAP": udp(5247, b"\0\x20\3\x20" + bytes(60)),
    "L2TP ": udp(1701, b"\0\2\0\1\0\1\xff\3\0\x21" + IP4, 1701),
    "WireGuard": udp(51_820, b"\4\0\0\0" + bytes(60), 51_820),
    "Teredo": udp(3544, b"\0\1\0\0" + bytes(9) + IP6),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_undecoded_wrappings_make_the_verdict_unknown(name: str) -> None:
    analysis = analyze_frames(FRAME, HIDDEN[name], HIDDEN[name])
    assert analysis.aside.hidden == {name.strip(): 2}
    assert analysis.summary()["not_looked_into"] == {name.strip(): 2}
    assert analysis.validity.verdict == "unknown"
    assert analysis.validity.reasons == (f"2 packets may hold flows inside undecoded protocols: 2 {name.strip()}",)
    counted = sum(flow.up.packets for flow in analysis.table.flows) + analysis.aside.not_understood
    assert counted == 3, "each is in a flow or aside"


@pytest.mark.parametrize(
    ("link", "name"), [(105, "802.11"), (127, "802.11 with radiotap"), (201, "Bluetooth"), (147, "link type 147")]
)
def test_undecoded_link_types_make_the_verdict_unknown(link: int, name: str) -> None:
    analysis = analyze(craft.pcap([(START_NS, FRAME)] * 3, link=link))
    assert (analysis.aside.hidden, analysis.aside.not_understood, analysis.table.flows) == ({name: 3}, 3, [])
    assert analysis.validity.reasons[-1] == f"3 packets may hold flows inside undecoded protocols: 3 {name}"


def llc(body: bytes) -> bytes:
    return ETHER + struct.pack(">H", len(body)) + body.ljust(46, b"\0")


HOLDS_NONE = {
    "ARP": ETHER + b"\x08\x06" + bytes(46), "RARP": ETHER + b"\x80\x35" + bytes(46),
    "LLDP": ETHER + b"\x88\xcc" + bytes(46), "EAPOL": ETHER + b"\x88\x8e" + bytes(46),
    "LACP": ETHER + b"\x88\x09\1" + bytes(60), "pause": ETHER + b"\x88\x08\0\1" + bytes(46),
    "PPPoE discovery": ETHER + b"\x88\x63\x11\x09" + bytes(46), "loopback test": ETHER + b"\x90\0" + bytes(46),
    "PTP": ETHER + b"\x88\xf7" + bytes(46), "IPX": ETHER + b"\x81\x37" + bytes(46),
    "wake on LAN": ETHER + b"\x08\x42" + bytes(46), "STP": llc(b"\x42\x42\3" + bytes(35)),
    "IS-IS": llc(b"\xfe\xfe\3\x83" + bytes(30)), "NetBIOS": llc(b"\xf0\xf0\3" + bytes(30)),
    "IPX, raw": llc(b"\xff\xff" + bytes(40)), "CDP": llc(b"\xaa\xaa\3\0\0\x0c\x20\0" + bytes(30)),
    "PVST": llc(b"\xaa\xaa\3\0\0\x0c\1\x0b" + bytes(30)), "AppleTalk": llc(b"\xaa\xaa\3\x08\0\7\x80\x9b" + bytes(30)),
    "LCP": ETHER + b"\x88\x64\x11\0\0\1\0\x10\xc0\x21" + bytes(20), "ICMP": in_ip(1, b"\x08\0" + bytes(60)),
    "IGMP": in_ip(2, bytes(8)), "OSPF": in_ip(89, bytes(44)), "EIGRP": in_ip(88, bytes(40)),
    "PIM": in_ip(103, bytes(20)), "VRRP": in_ip(112, bytes(20)), "SCTP": in_ip(132, bytes(40)),
    "RSVP": in_ip(46, bytes(40)), "GRE keep-alive": in_ip(47, bytes(4)),
    "ICMPv6": craft.ethernet("fe80::1", "ff02::1", 58, b"\x86\0" + bytes(20)),
    "no next header": craft.ethernet("fe80::1", "ff02::1", 59, b""),
    "ARP in VXLAN": udp(4789, b"\x08\0\0\0\0\0\1\0" + ETHER + b"\x08\x06" + bytes(46)),
    "STP in VXLAN": udp(4789, b"\x08\0\0\0\0\0\1\0" + llc(b"\x42\x42\3" + bytes(35))),
}  # fmt: skip


@pytest.mark.parametrize("name", HOLDS_NONE)
def test_protocols_without_flows_keep_the_verdict_valid(name: str) -> None:
    analysis = analyze_frames(FRAME, HOLDS_NONE[name])
    assert (analysis.validity.verdict, analysis.validity.reasons, len(analysis.table.flows)) == ("valid", (), 1)
    assert analysis.aside.not_ip + analysis.aside.other_ip == 1


@pytest.mark.parametrize("port", [1701, 2152, 3544, 4341, 4500, 4789, 4790, 5247, 6081, 51_820])
def test_a_port_alone_is_not_a_tunnel(port: int) -> None:
    """One packet is an answer to a client whose port happens to be a tunnel's. The other is a tunnel's own message."""
    answer = craft.udp(SERVER, 53, CLIENT, port, b"\x61\x34\x81\x80\0\1\0\1\0\0\0\0" + bytes(60))
    control = {1701: b"\xc8\2" + bytes(60), 2152: b"\x32\1" + bytes(60), 4500: bytes(4) + bytes(60), 5247: b"\x20" * 60}
    analysis = analyze_frames(answer, udp(port, control.get(port, b"\xff" * 60)))
    assert (analysis.validity.verdict, analysis.aside.hidden, len(analysis.table.flows)) == ("valid", {}, 2)


@pytest.mark.parametrize("seed", range(6))
def test_damaged_wrappings_are_each_counted_once(seed: int) -> None:
    draw, frames = random.Random(seed), [*LOOKED_INTO.values(), *HIDDEN.values(), *HOLDS_NONE.values()]
    records = []
    for number in range(400):
        frame = bytearray(draw.choice(frames))
        for _ in range(draw.randrange(6)):
            frame[draw.randrange(12, min(len(frame), 90))] = draw.choice([0, 1, 4, 6, 255, draw.getrandbits(8)])
        size = draw.choice([len(frame), len(frame), draw.randrange(10, len(frame))])
        records.append((START_NS + number, bytes(frame[:size])))
    analysis = analyze(craft.pcap(records, snaplen=draw.choice([262_144, 100, 60, 48])))
    summary = analysis.summary()
    aside = {name: count for name, count in summary["not_in_flows"].items() if name != "wire_bytes"}
    assert summary["flow_packets"] + sum(aside.values()) == summary["packets"] == 400
    assert aside["not_understood"] <= sum(summary["not_looked_into"].values())
