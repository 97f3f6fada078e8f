"""Records of capture files: every format, damaged files, and the walk from many positions at once."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.traffic import analyze, records
from pytest_cloudbench.net.traffic.interfaces import decode_text, decode_texts
from pytest_cloudbench.net.traffic.records import Reader
from tests.net.traffic import craft

FOLDER = Path(__file__).resolve().parents[3] / "fixtures" / "captures"
FRAME = craft.Segment(0, True, 1).frame()


def read_records(data: bytes) -> tuple[Reader, list[tuple[int, int, int, int]]]:
    """Return the reader, and (offset, captured, wire, time_ns) of each record."""
    reader = Reader(data)
    rows = []
    for batch in reader:
        columns = (batch.offset, batch.captured, batch.wire, batch.time_ns)
        rows += list(zip(*(column.tolist() for column in columns), strict=True))
    assert reader.records == len(rows)
    return reader, rows


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nano", [False, True])
def test_pcap_variants_are_read(order: str, nano: bool) -> None:
    packets = [(craft.START_NS + number * 1_001_000, bytes([number]) * (20 + number)) for number in range(50)]
    data = craft.pcap(packets, order=order, nano=nano, snaplen=40)
    reader, rows = read_records(data)
    assert (reader.format, reader.is_complete, reader.interfaces[0].snaplen) == ("pcap", True, 40)
    assert [(data[o : o + c], w, t) for o, c, w, t in rows] == [(f[:40], len(f), t) for t, f in packets]


@pytest.mark.parametrize("order", ["<", ">"])
def test_pcap_with_longer_headers_is_read(order: str) -> None:
    """Alexey Kuznetzov's patch of libpcap added eight bytes to the header of each packet."""
    packets = [(craft.START_NS + number * 1_001_000, bytes([number % 251]) * (20 + number)) for number in range(600)]
    data = struct.pack(order + "IHHiIII", 0xA1B2CD34, 2, 4, 0, 0, 65535, 1)
    for at_ns, frame in packets:
        head = (at_ns // craft.SECOND, at_ns % craft.SECOND // 1000, len(frame), len(frame) + 1)
        data += struct.pack(order + "IIIIIHBB", *head, 1, 8, 0, 0) + frame
    _, rows = read_records(data)
    assert [(data[o : o + c], w - 1, t) for o, c, w, t in rows] == [(f, len(f), t) for t, f in packets]


def test_more_kept_than_stated_is_corrected() -> None:
    """A packet cannot be shorter than its bytes in the file, so its length is in doubt."""
    data = craft.section() + craft.interface() + craft.packet(1, FRAME + b"x" * 30, wire=40) + craft.statistics()
    analysis = analyze(data)
    assert (analysis.wire_bytes, analysis.reader.longer) == (len(FRAME) + 30, 1)
    assert analysis.validity.verdict == "unknown"
    assert analysis.validity.reasons == ("1 packet has more bytes in the file than their stated length",)


def test_blocks_without_packets_may_be_long() -> None:
    data = craft.section() + craft.interface() + craft.block(0x777, bytes(17 << 20)) + craft.packet(5, FRAME)
    reader, rows = read_records(data)
    assert (len(rows), reader.is_complete) == (1, True)


def test_the_shortest_blocks_at_both_ends_of_a_file_are_read() -> None:
    reader, records = read_records(craft.section())
    assert (reader.is_complete, records) == (True, [])
    reader, records = read_records(craft.section() + craft.interface() + craft.simple_packet(b"") + craft.block(9, b""))
    assert (reader.is_complete, len(records)) == (True, 1)


def test_an_unknown_version_is_named() -> None:
    later = bytearray(craft.section())
    later[12] = 2
    with pytest.raises(UsageError, match="pcapng version 2"):
        read_records(bytes(later))
    reader, rows = read_records(craft.section() + craft.interface() + craft.packet(5, FRAME) + bytes(later))
    assert len(rows) == 1
    assert "pcapng version 2" in str(reader.reason)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("resolution", "ticks_per_s"),
    [(None, 10**6), (9, 10**9), (3, 1000), (0x80 | 20, 1 << 20), (0x80 | 40, 1 << 40), (12, 10**12)],
)
@pytest.mark.parametrize("offset", [7, 1_700_000_000, -900])
def test_pcapng_time_resolutions_are_converted(
    order: str, resolution: int | None, ticks_per_s: int, offset: int
) -> None:
    seconds = 1_000_000 if ticks_per_s < 1 << 40 else 1000
    data = craft.section(order) + craft.interface(order, resolution=resolution, offset=offset)
    data += craft.packet(seconds * ticks_per_s + ticks_per_s // 2, FRAME, order)
    _, rows = read_records(data)
    assert rows[0][3] == (seconds + offset) * craft.SECOND + craft.SECOND // 2


@pytest.mark.parametrize("resolutions", [(6, 9, 3), (9, 12, 0x80 | 20), (0, 6, 6)])
def test_each_packet_has_the_resolution_and_offset_of_its_interface(resolutions: tuple[int, ...]) -> None:
    data, seconds = craft.section(), [5, 9, 2, 7, 5, 1]
    for offset, resolution in enumerate(resolutions):
        data += craft.interface(link=(1, 101, 228)[offset], resolution=resolution, offset=offset)
    for at, number in zip(seconds, (0, 1, 2, 2, 1, 0), strict=True):
        resolution = resolutions[number]
        ticks_per_s = 1 << (resolution & 0x7F) if resolution & 0x80 else 10**resolution
        data += craft.packet(at * ticks_per_s, FRAME, number=number)
    (batch,) = Reader(data)
    assert batch.time_ns.tolist() == [second * craft.SECOND for second in (5, 10, 4, 9, 6, 1)]
    assert batch.link_type.tolist() == [1, 101, 228, 228, 101, 1]


def test_all_pcapng_blocks_are_read() -> None:
    comment = craft.option(1, b"look") + craft.option(4, (3).to_bytes(8, "little")) + craft.option(0, b"")
    data = craft.section(comment="first section") + craft.interface(link=1) + craft.interface(link=101, resolution=9)
    data += craft.packet(5, FRAME, options=comment) + craft.block(10, b"secrets!") + craft.block(0x0BAD, b"")
    data += craft.packet(7, FRAME[14:], number=1) + craft.old_packet(8, FRAME) + craft.simple_packet(FRAME)
    data += craft.statistics(number=1, received=9, dropped=2, os_dropped=1)
    data += craft.section(">") + craft.interface(">", link=276) + craft.packet(9, FRAME, ">", wire=2000)
    reader, rows = read_records(data)
    assert reader.is_complete
    assert [data[o : o + c] for o, c, _, _ in rows] == [FRAME, FRAME[14:], FRAME, FRAME, FRAME]
    assert [time for *_, time in rows] == [5000, 7, 8000, 0, 9000]
    assert rows[4][2] == 2000
    assert reader.comments == ["first section", "look"]
    assert (reader.packet_drops, reader.untimed) == (3, 1)
    assert [interface.link_type for interface in reader.interfaces] == [1, 101, 276]
    assert [(interface.received, interface.drops) for interface in reader.interfaces] == [
        (None, None),
        (9, 3),
        (None, None),
    ]


def test_link_types_of_interfaces_are_kept_apart() -> None:
    data = craft.section() + craft.interface(link=1) + craft.interface(link=101)
    data += craft.packet(1, FRAME) + craft.packet(2, FRAME[14:], number=1)
    summary = analyze(data).as_dict()
    assert summary["flow_packets"] == 2
    assert summary["wire_bytes"] == len(FRAME) * 2 - 14


@pytest.mark.parametrize(
    "data", [b"", b"x", b"garbage" * 9, b"\x1f\x8b" + bytes(50), b"\xd4\xc3\xb2\xa1", b"\n\r\r\n" + bytes(40)]
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"mine: .*(pcap|unpack|header)"):
        analyze(data, source="mine")


@pytest.mark.parametrize("make", [craft.pcap, craft.pcapng])
def test_a_cut_file_keeps_complete_records(make: object) -> None:
    packets = [(craft.START_NS + number * 1000, FRAME + bytes(number)) for number in range(9)]
    data = craft.pcap(packets) if make is craft.pcap else craft.pcapng(packets)
    counts = set()
    for size in range(60, len(data)):
        reader, rows = read_records(data[:size])
        counts.add(len(rows))
        assert all(offset + captured <= size for offset, captured, _, _ in rows)
        is_whole = size in {rows[-1][0] + rows[-1][1], 24} if rows and make is craft.pcap else None
        assert is_whole is None or reader.is_complete == is_whole
    assert counts >= set(range(9))


def test_garbage_in_the_middle_is_named() -> None:
    data = craft.pcap([(craft.START_NS, FRAME)] * 3)
    reader, rows = read_records(data + b"\xff" * 400)
    assert len(rows) == 3
    assert reader.reason is not None
    assert "record 4" in reader.reason
    assert "4,294,967,295" in reader.reason
    summary = analyze(data + b"\xff" * 400).as_dict()
    assert summary["validity"]["verdict"] == "invalid"
    assert summary["flow_packets"] == 3


# --- the walk ---


def make_packets(count: int, seed: int, *, nasty: bool) -> list[craft.Record]:
    """Return packets of many sizes. Nasty ones contain bytes that look like headers of other packets."""
    draw = random.Random(seed)
    packets = []
    for number in range(count):
        size = draw.choice((60, 66, 200, 1514, 1514))
        body = draw.randbytes(size)
        at_ns = craft.START_NS + number * 10_000_000
        if nasty and number % 3 == 0:
            body = (craft.pcap([(at_ns, bytes(20))] * 40)[24:] + craft.packet(at_ns, bytes(8)) * 20)[: max(size, 900)]
        packets.append((at_ns, body))
    return packets


@pytest.mark.parametrize("nasty", [False, True])
@pytest.mark.parametrize("kind", ["pcap", "pcap >", "pcapng"])
def test_parallel_and_single_walk_agree(kind: str, nasty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    packets = make_packets(3000, 5, nasty=nasty)
    data = craft.pcapng(packets) if kind == "pcapng" else craft.pcap(packets, order=">" if ">" in kind else "<")
    monkeypatch.setattr(records, "_PIECE_BYTES", 1 << 40)
    _, alone = read_records(data)
    monkeypatch.setattr(records, "_PIECE_BYTES", 4096)
    _, pieces = read_records(data)
    monkeypatch.setattr(records, "WINDOW_BYTES", 70_000)
    monkeypatch.setattr(records, "BATCH_RECORDS", 100)
    reader, windows = read_records(data)
    assert [frame for _, frame in packets] == [data[o : o + c] for o, c, _, _ in alone]
    assert [(t, len(f)) for t, f in packets] == [
        (time // (1 if kind == "pcapng" else 1000) * (1 if kind == "pcapng" else 1000), wire)
        for _, _, wire, time in alone
    ]
    assert pieces == alone
    assert windows == alone
    assert reader.is_complete


def test_pages_are_released_per_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "WINDOW_BYTES", 100_000)
    data = craft.pcap(make_packets(1000, 2, nasty=False))
    offsets: list[int] = []
    for _ in Reader(data, release=offsets.append):
        pass
    assert offsets == sorted(offsets)
    assert len(offsets) >= len(data) // 110_000
    assert offsets[-1] == len(data)


# --- no input makes a traceback ---

REAL = [(FOLDER / name).read_bytes() for name in ("names.pcapng", "snaplen.pcap", "reuse.pcapng", "keep-alive.pcapng")]


def assert_survives(data: bytes) -> None:
    message = ""
    try:
        summary = analyze(data, canary=b"CANARY").as_dict(changed_bytes=5, changed_ns=1)
    except UsageError as error:
        message = str(error)
    assert len(message.splitlines()) == 1 if message else summary["flow_packets"] <= summary["packets"]


@settings(deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from([b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", craft.section() + craft.interface(), b""]),
)
def test_random_bytes_raise_only_usage_errors(data: bytes, head: bytes) -> None:
    assert_survives(head + data)


@settings(deadline=None)
@given(
    st.sampled_from(REAL),
    st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 255)), max_size=40),
    st.integers(0, 30_000),
)
def test_damaged_captures_raise_only_usage_errors(data: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    broken = bytearray(data[: len(data) - cut % len(data)])
    for offset, value in changes:
        if offset < len(broken):
            broken[offset] = value
    assert_survives(bytes(broken))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_damage_at_any_position_is_survived(seed: int) -> None:
    draw = random.Random(seed)
    broken = bytearray(draw.choice(REAL))
    for _ in range(draw.choice((3, 30, 300))):
        offset = draw.randrange(24, len(broken))
        broken[offset : offset + draw.choice((0, 1, 4))] = draw.randbytes(draw.choice((0, 1, 4)))
    assert_survives(bytes(broken))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"one", b"", "z\u00fc".encode()],
        [b"ends\0\0", b"a\0b"],
        [b"\xc3", b"\xbc"],
        [b"\xff", b"fine"],
        [b"\0"],
    ],
)
def test_many_texts_are_decoded_like_each(values: list[bytes]) -> None:
    assert decode_texts(values) == [decode_text(value) for value in values]


def test_spans_are_read_in_their_order_whatever_their_sizes() -> None:
    content = bytes(range(100))
    starts, sizes = np.array([40, 0, 99, 100, 7, 93, 0]), np.array([3, 100, 1, 0, 3, 7, 0], np.uint32)
    spans = list(zip(starts.tolist(), sizes.tolist(), strict=True))
    assert [content[start : start + size] for start, size in spans] == records.read_spans(content, starts, sizes)
    assert records.read_spans(b"", starts[:0], sizes[:0]) == []
