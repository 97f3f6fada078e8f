"""quickXorHash, a checksum of 160 bits that some providers list for every file.

What may live here: the hash, as a pure function of bytes. Published description: "QuickXorHash algorithm", a code
snippet in Microsoft's documents (learn.microsoft.com/onedrive/developer/code-snippets/quickxorhash).

Byte *i* is combined by exclusive or into a ring of 160 bits, from bit ``11 * i`` on; at the end, the length is combined
into the last 64 bits. 160 steps of 11 bits come back to the first bit, so rows of 160 bytes may be combined first. In a
row, every eighth byte has the same place within a byte of the ring: each of these eight groups is put in the order of
the ring and combined at once. All of it is done on integers, which costs a few passes over the bytes.
"""

from __future__ import annotations

from operator import itemgetter

_ROW_BYTES = 160
_RING_BYTES = 20
_RING_BITS = 160
_GROUPS = 8
_IN_ORDER = [next(place for place in range(20) if 11 * place % 20 == byte) for byte in range(20)]
_grouped = itemgetter(*[group + _GROUPS * place for group in range(_GROUPS) for place in _IN_ORDER])


class QuickXor:
    """The hash of pieces in order, with the interface of ``hashlib``'s hashes."""

    __slots__ = ("_row", "_size_bytes")

    def __init__(self) -> None:
        self._row = 0
        self._size_bytes = 0

    def update(self, piece: bytes | memoryview, /) -> None:
        """Add the next piece."""
        size, first = len(piece), self._size_bytes % _ROW_BYTES
        rows = 1 + (size // _ROW_BYTES >> 4)  # sixteen slices, however long the piece is
        step, value = rows * _ROW_BYTES, 0
        for start in range(0, size, step):
            value ^= int.from_bytes(piece[start : start + step], "little")
        if first:
            value <<= 8 * first
            rows += 1
        while rows > 1:  # the upper half of the rows onto the lower one
            rows = (rows + 1) // 2
            bits = 8 * _ROW_BYTES * rows
            value = (value >> bits) ^ (value & ((1 << bits) - 1))
        self._row ^= value
        self._size_bytes += size

    def digest(self) -> bytes:
        """Returns the hash of all pieces: 20 bytes."""
        row = bytes(_grouped(self._row.to_bytes(_ROW_BYTES, "little")))
        ring = self._size_bytes << (_RING_BITS - 64)
        for group in range(_GROUPS):
            start = group * _RING_BYTES
            ring ^= int.from_bytes(row[start : start + _RING_BYTES], "little") << 11 * group
        return ((ring ^ (ring >> _RING_BITS)) & ((1 << _RING_BITS) - 1)).to_bytes(_RING_BYTES, "little")

    def hexdigest(self) -> str:
        """Returns the hash of all pieces in hex."""
        return self.digest().hex()
