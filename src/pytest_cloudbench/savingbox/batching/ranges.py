"""The bytes written to a file, as disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MOST_RANGES = 4096


class ByteRange(NamedTuple):
    """Bytes from ``begin`` to ``end`` (exclusive)."""

    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return self.end - self.begin


class ByteRanges:
    """The bytes written to one file since a copy of it was equal.

    Ranges ascend and do not touch each other. They may cover more than was written, never less: replaying an unchanged
    byte does no harm. So their number can be limited: the ranges with the smallest gaps between them are joined.

    Args:
        ranges: the initial ranges.
        most: the most ranges to keep separate, at least 1.
    """

    def __init__(self, ranges: Iterable[tuple[int, int]] = (), *, most: int = _MOST_RANGES) -> None:
        """Raises ValueError if ``most`` is below 1."""
        if most < 1:
            raise ValueError(f"most is {most}; expected at least 1")
        self._most = most
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in ranges:
            self.add(begin, end - begin)

    def __iter__(self) -> Iterator[ByteRange]:
        return map(ByteRange, self._begins, self._ends)

    def __len__(self) -> int:
        return len(self._begins)

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __repr__(self) -> str:
        return f"ByteRanges({[tuple(byte_range) for byte_range in self]})"

    def add(self, offset: int, size_bytes: int) -> None:
        """Note that ``size_bytes`` were written at ``offset``. Raises ValueError for a negative number."""
        if offset < 0 or size_bytes < 0:
            raise ValueError(f"{size_bytes} bytes at {offset}; expected 0 or more")
        if not size_bytes:
            return
        begin, end = offset, offset + size_bytes
        if self._ends and begin == self._ends[-1]:  # continues the last write
            self._ends[-1] = end
            return
        first = bisect_left(self._ends, begin)  # the first range that ends here or later
        last = bisect_right(self._begins, end)  # the first range that begins beyond
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last], self._ends[first:last] = [begin], [end]
        if len(self._begins) > self._most:
            self._join_nearest()

    def split(self, size_bytes: int) -> ByteRanges:
        """Keep the ranges below ``size_bytes`` and return those above."""
        upper = ByteRanges(((max(begin, size_bytes), end) for begin, end in self if end > size_bytes), most=self._most)
        count = bisect_left(self._begins, size_bytes)
        del self._begins[count:], self._ends[count:]
        if self._ends and self._ends[-1] > size_bytes:
            self._ends[-1] = size_bytes
        return upper

    def copy(self) -> ByteRanges:
        """Return an independent copy."""
        duplicate = ByteRanges(most=self._most)
        duplicate._begins, duplicate._ends = self._begins[:], self._ends[:]
        return duplicate

    def _join_nearest(self) -> None:
        """Halve the number of ranges, so that this is rarely needed."""
        gaps = [after - before for before, after in zip(self._ends, self._begins[1:], strict=False)]
        nearest = sorted(range(len(gaps)), key=gaps.__getitem__)[: len(self) - max(1, self._most // 2)]
        for index in sorted(nearest, reverse=True):
            del self._begins[index + 1], self._ends[index]
