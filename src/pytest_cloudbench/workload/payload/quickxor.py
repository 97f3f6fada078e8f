"""quickXorHash, a checksum of 160 bits that some providers list for every file.

Published description: "QuickXorHash algorithm", a code snippet in Microsoft's documents
(learn.microsoft.com/onedrive/developer/code-snippets/quickxorhash).

Byte *i* is XORed into a ring of 160 bits, starting at bit ``11 * i``. At the end, the length is XORed into the last 64
bits. After 160 steps of 11 bits the position is back at the first bit, so rows of 160 bytes can be XORed together
first. Within a row, every eighth byte has the same bit position within a byte of the ring. Each of these eight groups
is sorted into ring order and XORed in one step. All this works on big integers, in a few passes over the bytes.
"""

from __future__ import annotations

from operator import itemgetter

_ROW_BYTES = 160
_RING_BYTES = 20
_RING_BITS = 160
_GROUPS = 8
_RING_ORDER = [next(index for index in range(20) if 11 * index % 20 == byte) for byte in range(20)]
_group_row = itemgetter(*[group + _GROUPS * index for group in range(_GROUPS) for index in _RING_ORDER])


class QuickXor:
    """A quickXorHash with the interface of ``hashlib``'s hashes."""

    __slots__ = ("_row", "_size_bytes")

    def __init__(self) -> None:
        self._row = 0
        self._size_bytes = 0

    def update(self, piece: bytes | memoryview, /) -> None:
        """Add the next bytes to the hash."""
        size, first = len(piece), self._size_bytes % _ROW_BYTES
        rows = 1 + (size // _ROW_BYTES >> 4)  # at most sixteen slices, however long the piece is
        step, value = rows * _ROW_BYTES, 0
        for start in range(0, size, step):
            value ^= int.from_bytes(piece[start : start + step], "little")
        if first:
            value <<= 8 * first
            rows += 1
        while rows > 1:  # XOR the upper half of the rows onto the lower half
            rows = (rows + 1) // 2
            bits = 8 * _ROW_BYTES * rows
            value = (value >> bits) ^ (value & ((1 << bits) - 1))
        self._row ^= value
        self._size_bytes += size

    def digest(self) -> bytes:
        """Return the 20 bytes of the hash of all pieces."""
        row = bytes(_group_row(self._row.to_bytes(_ROW_BYTES, "little")))
        ring = self._size_bytes << (_RING_BITS - 64)
        for group in range(_GROUPS):
            start = group * _RING_BYTES
            ring ^= int.from_bytes(row[start : start + _RING_BYTES], "little") << 11 * group
        return ((ring ^ (ring >> _RING_BITS)) & ((1 << _RING_BITS) - 1)).to_bytes(_RING_BYTES, "little")

    def hexdigest(self) -> str:
        """Return the hash of all pieces in hexadecimal."""
        return self.digest().hex()
