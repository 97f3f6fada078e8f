"""Replayed ranges: the copy equals the file after any writes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cloudbench.savingbox.batching.ranges import ByteRange, ByteRanges
from tests.savingbox.replaying import replay


class File:
    """A file in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        return bytes(self.data[offset : offset + size_bytes])

    def resize(self, size_bytes: int) -> None:
        del self.data[size_bytes:]
        self.data.extend(bytes(size_bytes - len(self.data)))

    def write_at(self, offset: int, data: bytes) -> None:
        self.resize(max(len(self.data), offset + len(data)))
        self.data[offset : offset + len(data)] = data


OFFSETS = st.integers(0, 300)
WRITES = st.lists(st.tuples(OFFSETS, st.binary(min_size=1, max_size=80)), max_size=25)


@given(st.binary(max_size=300), WRITES, st.integers(1, 6))
def test_replayed_ranges_equal_the_file(before: bytes, writes: list[tuple[int, bytes]], max_ranges: int) -> None:
    source, copy, ranges = File(before), File(before), ByteRanges(most=max_ranges)
    for offset, data in writes:
        source.write_at(offset, data)
        ranges.add(offset, len(data))
        assert len(ranges) <= max_ranges
    replay(ranges, source, len(source.data), copy)
    assert copy.data == source.data


@given(st.lists(st.tuples(OFFSETS, st.integers(1, 40)), max_size=40))
def test_ranges_hold_exactly_the_added_bytes(added: list[tuple[int, int]]) -> None:
    ranges = ByteRanges((begin, begin + size) for begin, size in added)
    offsets = {offset for begin, size in added for offset in range(begin, begin + size)}
    assert {offset for byte_range in ranges for offset in range(*byte_range)} == offsets
    assert sum(byte_range.size_bytes for byte_range in ranges) == len(offsets)
    listed = list(ranges)
    assert all(before.end < after.begin for before, after in pairwise(listed))


def test_adjacent_ranges_are_merged() -> None:
    ranges = ByteRanges([(10, 20), (30, 40)])
    ranges.add(20, 10)
    assert list(ranges) == [ByteRange(10, 40)]


def test_excess_ranges_are_joined_at_the_smallest_gaps() -> None:
    ranges = ByteRanges([(0, 1), (2, 3), (100, 101), (1000, 1001)], most=4)
    ranges.add(5000, 1)
    assert list(ranges) == [(0, 1001), (5000, 5001)]


def test_ranges_beyond_the_end_are_split_off() -> None:
    ranges = ByteRanges([(0, 10), (20, 30), (40, 50)])
    assert list(ranges.split(25)) == [(25, 30), (40, 50)]
    assert list(ranges) == [(0, 10), (20, 25)]
    assert list(ranges.split(25)) == []


def test_a_source_that_shrinks_meanwhile_is_no_error() -> None:
    copy = File(b"12345")
    assert replay(ByteRanges([(0, 10)]), File(b"abc"), 10, copy) == 3
    assert copy.data == b"abc45\0\0\0\0\0"


def test_a_copy_is_independent() -> None:
    ranges = ByteRanges([(0, 4)])
    ranges.copy().add(100, 1)
    assert (list(ranges), bool(ranges), bool(ByteRanges())) == ([(0, 4)], True, False)


def test_impossible_ranges_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes at 0"):
        ByteRanges().add(0, -1)
    with pytest.raises(ValueError, match="most is 0"):
        ByteRanges(most=0)
