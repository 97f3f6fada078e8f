"""Pieces of fragmented IP packets, put together.

What may live here: which pieces belong to one packet, and when it is whole. Their bytes stay where they are in the
file, so of a whole packet only the first piece can be looked into.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fragments", "Piece", "Whole"]

_MOST_PIECES = 1 << 16
"""Pieces that wait for others; the packet that waits longest is given up first."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One fragment.

    Attributes:
        begin: where in the packet's payload it belongs.
        size: how much it is, on the wire.
        is_last: whether no other follows.
        place, end: where its bytes begin and end in the file.
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
    """A packet of which every piece has come: its first piece, and the sums of all."""

    first: Piece
    pieces: int
    size: int
    wire_bytes: int


@dataclass(slots=True)
class _Waiting:
    pieces: dict[int, Piece]
    known: int = 0
    total: int | None = None


class Fragments:
    """Takes pieces, and gives each packet when its last one has come. One that comes again takes the former's place."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, _Waiting] = {}
        self._count = 0

    def add(self, packet: bytes, piece: Piece) -> Whole | None:
        """The next piece of a packet, which has the same key for all of its pieces."""
        waiting = self._waiting.setdefault(packet, _Waiting({}))
        former = waiting.pieces.get(piece.begin)
        waiting.pieces[piece.begin] = piece
        waiting.known += piece.size - (former.size if former else 0)
        self._count += former is None
        if piece.is_last:
            waiting.total = piece.begin + piece.size
        if waiting.known == waiting.total and (whole := _whole(waiting.pieces, waiting.total)) is not None:
            self._forget(packet)
            return whole
        while self._count > _MOST_PIECES:
            self._forget(next(iter(self._waiting)))
        return None

    def _forget(self, packet: bytes) -> None:
        self._count -= len(self._waiting.pop(packet).pieces)


def _whole(pieces: dict[int, Piece], total: int) -> Whole | None:
    """The packet, if each piece begins where another ends."""
    at = count = 0
    while at < total and at in pieces and pieces[at].size:
        at, count = at + pieces[at].size, count + 1
    if at != total or count != len(pieces) or not count:
        return None
    return Whole(pieces[0], count, total, sum(piece.wire_bytes for piece in pieces.values()))
