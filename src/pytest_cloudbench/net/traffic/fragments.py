"""Reassembles fragmented IP packets.

What may live here: which fragments belong to one packet, when it is complete, and where its bytes are. The bytes stay
in the file, so of a complete packet only the TCP header, and the fragment in which the payload begins, can be read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer

_MOST_PIECES = 1 << 16
"""The most pieces that wait for others; the packet that has waited longest is given up first."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment.

    Attributes:
        begin: where in the packet's payload it belongs.
        size: its bytes on the wire.
        is_last: whether no other fragment follows it in the packet.
        place, end: where its bytes start and end in the file.
        wire_bytes: of its frame.
        protocol: of what is inside.
    """

    begin: int
    size: int
    is_last: bool
    place: int
    end: int
    wire_bytes: int
    protocol: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A packet of which every byte has arrived.

    Attributes:
        pieces: in the order of their begin; of several with the same begin, the one that arrived first. If two overlap,
            the one that begins first counts.
        size: of its payload.
        wire_bytes: of all frames.
    """

    pieces: tuple[Fragment, ...]
    size: int
    wire_bytes: int

    @property
    def first(self) -> Fragment:
        """The piece with its beginning."""
        return next(piece for piece in self.pieces if piece.size)

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """(start in the payload, start in the file, end in the file) of the bytes that count of each fragment."""
        at = 0
        for piece in self.pieces:
            if piece.begin + piece.size > at:
                yield at, piece.place + at - piece.begin, piece.end
                at = piece.begin + piece.size

    def head(self, buffer: Buffer, size: int) -> bytes | None:
        """The first bytes, as many as asked for; None if not all of them were kept."""
        found = bytearray()
        for at, place, end in self._spans():
            if at != len(found) or len(found) >= size:
                break
            found += buffer[place : min(end, place + size - at)]
        return bytes(found) if len(found) == size else None

    def locate(self, at: int) -> tuple[int, int]:
        """Where a byte of the payload is in the file, and where the kept bytes of its fragment end."""
        place, end = self.first.end, self.first.end
        for begin, start, stop in self._spans():
            if begin <= at:
                place, end = start + at - begin, stop
        return place, end


@dataclass(slots=True)
class _Waiting:
    pieces: list[Fragment] = field(default_factory=list)
    runs: list[tuple[int, int]] = field(default_factory=list)
    """What has arrived: (begin, end) in order; none touches another."""
    total: int | None = None

    def take(self, piece: Fragment) -> None:
        self.pieces.append(piece)
        begin, end = piece.begin, piece.begin + piece.size
        if piece.is_last and self.total is None:
            self.total = end
        if not piece.size:
            return
        first = bisect_left(self.runs, begin, key=itemgetter(1))
        last = bisect_right(self.runs, end, key=itemgetter(0))
        if first < last:
            begin, end = min(begin, self.runs[first][0]), max(end, self.runs[last - 1][1])
        self.runs[first:last] = [(begin, end)]

    @property
    def is_whole(self) -> bool:
        return bool(self.total and self.runs and self.runs[0][0] == 0 and self.runs[0][1] >= self.total)


class Fragments:
    """Takes fragments, and returns each packet when its last one has arrived. They may overlap or be repeated."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, _Waiting] = {}
        self._count = 0

    def add(self, packet: bytes, piece: Fragment) -> Whole | None:
        """Add a fragment of a packet. All fragments of a packet have the same key."""
        waiting = self._waiting.setdefault(packet, _Waiting())
        waiting.take(piece)
        self._count += 1
        if waiting.is_whole:
            self._forget(packet)
            pieces = tuple(sorted(waiting.pieces, key=attrgetter("begin")))
            return Whole(pieces, waiting.total or 0, sum(each.wire_bytes for each in pieces))
        while self._count > _MOST_PIECES:
            self._forget(next(iter(self._waiting)))
        return None

    def _forget(self, packet: bytes) -> None:
        self._count -= len(self._waiting.pop(packet).pieces)
