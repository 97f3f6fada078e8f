"""IP fragments that overlap, repeat or split a TCP header: packets are joined as in tshark."""

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
from tests.net.traffic.craft import START_NS, Segment

ETHER = bytes(12)
OPTIONS = b"\x02\x04\x05\xb4\x01\x01\x08\x0a" + bytes(8)
DATA = Segment(START_NS, True, 77, 99, 24, bytes(range(200)), options=OPTIONS)
SIX = Segment(
    START_NS, True, 77, 99, 24, bytes(range(200)), client="2001:db8::1", server="2001:db8::2", options=OPTIONS
)
BODY, BODY6 = DATA.frame()[34:], SIX.frame()[54:]

Cut = tuple[int, int]
"""(first byte, byte after the last) of the IP payload; the first byte is a multiple of 8."""


def fragment4(cut: Cut, identity: int = 7) -> bytes:
    begin, end = cut
    head = bytearray(DATA.frame()[14:34])
    head[2:8] = struct.pack(">HHH", 20 + end - begin, identity, (0x2000 if end < len(BODY) else 0) | begin // 8)
    return ETHER + b"\x08\0" + bytes(head) + BODY[begin:end]


def fragment6(cut: Cut, identity: int = 7) -> bytes:
    begin, end = cut
    extension = struct.pack(">BBHI", 6, 0, begin | (end < len(BODY6)), identity)
    return ETHER + b"\x86\xdd" + craft.ip(SIX.client, SIX.server, 6, BODY6[begin:end], extensions=extension, first=44)


LAST = len(BODY)
CUTS: dict[str, list[Cut]] = {
    "header in two": [(0, 8), (8, LAST)],
    "header in three": [(0, 8), (8, 16), (16, LAST)],
    "header in five, backwards": [(32, LAST), (24, 32), (16, 24), (8, 16), (0, 8)],
    "options in the next": [(0, 24), (24, LAST)],
    "first twice": [(0, 104), (0, 104), (104, LAST)],
    "last twice": [(104, LAST), (104, LAST), (0, 104)],
    "overlap in the middle": [(0, 80), (40, 160), (120, LAST)],
    "one within another": [(0, 160), (40, 80), (160, LAST)],
    "overlap, backwards": [(120, LAST), (40, 160), (0, 80)],
    "all again and again": [(0, 160), (8, 160), (16, 160), (24, LAST)],
    "header overlaps": [(0, 16), (8, 48), (40, LAST)],
}


def analyze_frames(frames: list[bytes]) -> Analysis:
    return analyze(craft.pcapng([(START_NS + number, frame) for number, frame in enumerate(frames)]))


@pytest.mark.parametrize("make", [fragment4, fragment6])
@pytest.mark.parametrize("name", CUTS)
def test_fragments_become_one_packet(name: str, make: object) -> None:
    assert callable(make)
    frames = [make(cut) for cut in CUTS[name]]
    analysis = analyze_frames(frames)
    (flow,) = analysis.table.flows
    assert (flow.up.packets, flow.up.payload_bytes, flow.client_port, flow.server_port) == (1, 200, 40_000, 443)
    assert flow.up.wire_bytes == sum(map(len, frames))
    packets = analysis.table.packets
    assert (packets.seq.tolist(), packets.ack.tolist(), packets.flags.tolist()) == ([77], [99], [24])
    assert (analysis.aside.joined, analysis.aside.fragments, analysis.validity.verdict) == (len(frames) - 1, 0, "valid")


@pytest.mark.parametrize("make", [fragment4, fragment6])
def test_payload_offset_is_in_the_right_fragment(make: object) -> None:
    """The payload is read up to the end of the fragment in which it begins."""
    assert callable(make)
    (packets,) = [analyze_frames([make(cut) for cut in CUTS["header in three"]]).table.packets]
    data = craft.pcapng([(START_NS + number, make(cut)) for number, cut in enumerate(CUTS["header in three"])])
    offset, size = int(packets.offset[0]), int(packets.kept[0])
    assert data[offset : offset + size] == bytes(range(200))


@pytest.mark.parametrize(
    "cuts",
    [[(0, 8), (16, LAST)], [(8, 160), (40, LAST)], [(0, 80), (40, 160)], [(0, 80), (88, LAST)]],
)
def test_missing_fragments_leave_no_flow(cuts: list[Cut]) -> None:
    analysis = analyze_frames([fragment4(cut) for cut in cuts])
    assert (analysis.table.flows, analysis.aside.fragments, analysis.validity.verdict) == ([], len(cuts), "unknown")


def test_a_truncated_split_header_is_short() -> None:
    records = [(START_NS, fragment4((0, 8))), (START_NS + 1, fragment4((8, LAST)))]
    analysis = analyze(craft.pcap(records, snaplen=36))
    assert (analysis.table.flows, analysis.aside.short, analysis.validity.verdict) == ([], 1, "unknown")


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_joined_like_tshark(tmp_path: Path) -> None:
    draw = random.Random(3)
    frames, chosen = [], []
    for identity in range(120):
        make = draw.choice([fragment4, fragment6])
        cuts = list(draw.choice(list(CUTS.values())))
        if draw.random() < 0.5:
            begins = sorted({0, *(draw.randrange(0, LAST, 8) for _ in range(draw.randrange(1, 6)))})
            cuts = [
                (begin, min(LAST, end + draw.choice([0, 0, 8, 40])))
                for begin, end in zip(begins, [*begins[1:], LAST], strict=True)
            ]
            draw.shuffle(cuts)
        chosen.append(cuts)
        frames += [make(cut, identity + 1) for cut in cuts]
    path = tmp_path / "pieces.pcapng"
    path.write_bytes(craft.pcapng([(START_NS + number, frame) for number, frame in enumerate(frames)]))
    command = ["tshark", "-n", "-r", str(path), "-Y", "tcp", "-T", "fields", "-e", "frame.number", "-e", "tcp.len"]
    output = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True).stdout.split()
    packets = analyze(path.read_bytes()).table.packets
    values = [
        str(value) for pair in zip(packets.number.tolist(), packets.payload.tolist(), strict=True) for value in pair
    ]
    assert values == output
    assert len(packets) == 120


def test_many_repeated_fragments_are_counted() -> None:
    """The same fragments come again and again. A search of all fragments for each new one took minutes."""
    frames = [fragment4((8 * (n % 24) + 8, 8 * (n % 24) + 16)) for n in range(20_000)]
    assert analyze_frames(frames).aside.fragments == 20_000
