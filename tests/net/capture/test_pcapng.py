"""The walk through pcapng blocks, on complete and truncated files of either byte order."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.net.capture.pcapng import read_comment, walk


def option(order: str, code: int, value: bytes) -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def block(order: str, kind: int, body: bytes) -> bytes:
    length = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + length + body + length


def pcapng(order: str, packets: list[tuple[bytes, int]], counts: tuple[int, int] | None, comment: str = "") -> bytes:
    options = option(order, 1, comment.encode()) + option(order, 0, b"") if comment else b""
    data = block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1) + options)
    data += block(order, 1, struct.pack(order + "HHI", 101, 0, 0))
    for content, cut_bytes in packets:
        head = struct.pack(order + "IIIII", 0, 0, 0, len(content), len(content) + cut_bytes)
        data += block(order, 6, head + content + b"\0" * (-len(content) % 4))
    if counts is not None:
        received, dropped = (struct.pack(order + "Q", number) for number in counts)
        numbers = option(order, 4, received) + option(order, 5, dropped) + option(order, 0, b"")
        data += block(order, 5, struct.pack(order + "III", 0, 0, 0) + numbers)
    return data


ORDERS = st.sampled_from(["<", ">"])
PACKETS = st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 3)), max_size=8)


@given(ORDERS, PACKETS, st.one_of(st.none(), st.tuples(st.integers(0, 2**40), st.integers(0, 2**40))))
def test_written_packets_are_counted(
    order: str, packets: list[tuple[bytes, int]], counts: tuple[int, int] | None
) -> None:
    result = walk(pcapng(order, packets, counts, '{"cloudbench_capture": 1, "run": "r"}'))
    assert result.is_whole
    assert result.packets == len(packets)
    assert result.cut_packets == sum(cut_bytes > 0 for _, cut_bytes in packets)
    assert (result.received, result.dropped) == (counts or (None, None))
    assert read_comment(result.comments)["run"] == "r"


@given(ORDERS, PACKETS, st.data())
def test_a_file_cut_within_a_block_is_incomplete(
    order: str, packets: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    content = pcapng(order, packets, (1, 0))
    result = walk(content[: data.draw(st.integers(0, len(content) - 1))])
    assert not (result.is_whole and result.dropped is not None)


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    assert walk(data).packets <= len(data) // 32


def test_statistics_of_several_interfaces_add_up() -> None:
    second = pcapng("<", [], (5, 2))
    assert walk(pcapng("<", [], (10, 1)) + second).dropped == 3


@pytest.mark.parametrize("comments", [[], ["words"], ["[1]"], ['{"other": 1}']])
def test_comments_of_other_programs_are_ignored(comments: list[str]) -> None:
    assert read_comment(comments) == {}
