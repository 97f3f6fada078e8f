"""An update of an older copy of a file with only the bytes written since, which shows that these are enough."""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

from pytest_cloudbench.model import MIB
from pytest_cloudbench.savingbox.batching.ranges import ByteRanges

_PIECE_BYTES = MIB


class Readable(Protocol):
    """A file to read from, at any offset."""

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        """Return ``size_bytes`` bytes, or fewer at the end of the file."""
        ...


class Patchable(Protocol):
    """A file to change in place."""

    def resize(self, size_bytes: int) -> None:
        """Truncate the file, or extend it with zeros."""
        ...

    def write_at(self, offset: int, data: bytes) -> None:
        """Overwrite these bytes, or append them."""
        ...


def replay(ranges: ByteRanges, source: Readable, size_bytes: int, copy: Patchable) -> int:
    """Make a copy, an older version of the source, equal to it. Returns the number of copied bytes.

    Args:
        ranges: the bytes written to the source since the copy was equal.
        source: as it is now.
        size_bytes: its size. If the source shrinks meanwhile, the missing bytes are skipped.
        copy: changed in place.
    """
    copy.resize(size_bytes)
    carried_bytes = 0
    for begin, end in ranges:
        edges = [*range(begin, min(end, size_bytes), _PIECE_BYTES), min(end, size_bytes)]
        for first, last in pairwise(edges):
            data = source.read_at(first, last - first)
            copy.write_at(first, data)
            carried_bytes += len(data)
    return carried_bytes
