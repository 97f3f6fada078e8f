"""Reassembly of fragmented IP packets.

It finds the fragments of each packet, whether the packet is complete, and the file offsets of its bytes. The bytes stay
in the file, so only the TCP header and the fragment where the payload begins can be read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer

_MOST_PIECES = 1 << 16
"""The most fragments to keep of incomplete packets. The oldest packet is given up first."""


class Fragment(NamedTuple):
    """One fragment of an IP packet.

    Attributes:
        begin: position in the packet's payload.
        size: number of its bytes on the wire.
        is_last: whether it is the last fragment of the packet.
        offset, end: file offsets of its first byte and after its last one.
        wire_bytes: size of its frame.
        protocol: IP protocol of the packet's payload.
    """

    begin: int
    size: int
    is_last: bool
    offset: int
    end: int
    wire_bytes: int
    protocol: int


class JoinedPacket(NamedTuple):
    """A packet whose fragments have all arrived.

    Attributes:
        pieces: the fragments by position, then by arrival. Where two overlap, the one that begins first counts.
        size: size of the payload.
        wire_bytes: total size of all frames.
    """

    pieces: tuple[Fragment, ...]
    size: int
    wire_bytes: int

    @property
    def first(self) -> Fragment:
        """The fragment with the first byte."""
        return next(piece for piece in self.pieces if piece.size)

    def _list_spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (start in the payload, start in the file, end in the file) of the bytes to use of each fragment."""
        position = 0
        for piece in self.pieces:
            if piece.begin + piece.size > position:
                yield position, piece.offset + position - piece.begin, piece.end
                position = piece.begin + piece.size

    def read_start(self, buffer: Buffer, size: int) -> bytes | None:
        """Return the first ``size`` bytes of the payload, or None if some are not in the file."""
        data = bytearray()
        for position, offset, end in self._list_spans():
            if position != len(data) or len(data) >= size:
                break
            data += buffer[offset : min(end, offset + size - position)]
        return bytes(data) if len(data) == size else None

    def locate(self, position: int) -> tuple[int, int]:
        """Return the file offset of a byte of the payload, and the end of its fragment in the file."""
        offset, end = self.first.end, self.first.end
        for begin, start, stop in self._list_spans():
            if begin <= position:
                offset, end = start + position - begin, stop
        return offset, end


@dataclass(slots=True)
class _IncompletePacket:
    pieces: list[Fragment] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Received ranges (begin, end), sorted and apart from each other."""
    total: int | None = None

    def add(self, piece: Fragment) -> None:
        self.pieces.append(piece)
        begin, end = piece.begin, piece.begin + piece.size
        if piece.is_last and self.total is None:
            self.total = end
        if not piece.size:
            return
        first = bisect_left(self.ranges, begin, key=itemgetter(1))
        last = bisect_right(self.ranges, end, key=itemgetter(0))
        if first < last:
            begin, end = min(begin, self.ranges[first][0]), max(end, self.ranges[last - 1][1])
        self.ranges[first:last] = [(begin, end)]

    @property
    def is_complete(self) -> bool:
        return bool(self.total and self.ranges and self.ranges[0][0] == 0 and self.ranges[0][1] >= self.total)


class Fragments:
    """A collector of fragments that returns each packet once it is complete. Fragments may overlap or repeat."""

    def __init__(self) -> None:
        self._incomplete: dict[bytes, _IncompletePacket] = {}
        self._count = 0

    def add(self, packet: bytes, piece: Fragment) -> JoinedPacket | None:
        """Add a fragment, and return its packet if that is now complete. ``packet`` is the key of the packet."""
        waiting = self._incomplete.setdefault(packet, _IncompletePacket())
        waiting.add(piece)
        self._count += 1
        if waiting.is_complete:
            self._drop_packet(packet)
            pieces = tuple(sorted(waiting.pieces, key=attrgetter("begin")))
            return JoinedPacket(pieces, waiting.total or 0, sum(fragment.wire_bytes for fragment in pieces))
        while self._count > _MOST_PIECES:
            self._drop_packet(next(iter(self._incomplete)))
        return None

    def _drop_packet(self, packet: bytes) -> None:
        self._count -= len(self._incomplete.pop(packet).pieces)
