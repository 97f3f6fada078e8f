"""quickXorHash, a checksum of 160 bits that some providers list for every file.

Published description: "QuickXorHash algorithm", a code snippet in Microsoft's documents
(learn.microsoft.com/onedrive/developer/code-snippets/quickxorhash).

Byte *i* is XORed into a ring of 160 bits, starting at bit ``11 * i``. At the end, the length is XORed into the last 64
bits. After 160 steps of 11 bits the position is back at the first bit, so rows of 160 bytes can be XORed together
first. Within a row, every eighth byte has the same bit position within a byte of the ring. In each of these eight
groups of twenty bytes, byte *j* goes to byte ``11 * j % 20`` of the ring: an even one stays, and an odd one goes ten
bytes further, which is half a row. With the odd ones moved, each group is XORed in one step. All this works on big
integers, in a few passes over the bytes.
"""

from __future__ import annotations

_ROW_BYTES = 160
_BLOCK_ROWS = 16
_BLOCK_BYTES = _BLOCK_ROWS * _ROW_BYTES
_BLOCK_BITS = 8 * _BLOCK_BYTES
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
_FOLDS = [(8 * _ROW_BYTES * rows, (1 << 8 * _ROW_BYTES * rows) - 1) for rows in (8, 4, 2, 1)]
"""The steps that XOR the upper half of a block's rows onto the lower half, until one row is left."""
_RING_BYTES = 20
_RING_BITS = 160
_GROUPS = 8
_HALF_ROW_BITS = 8 * _ROW_BYTES // 2
_LOWER_HALF = (1 << _HALF_ROW_BITS) - 1
_ODD = int.from_bytes((bytes(_GROUPS) + b"\xff" * _GROUPS) * (_RING_BYTES // 2), "little")
_RING_MASK = (1 << _RING_BITS) - 1
_GROUP_SLICES = [(slice(group, None, _GROUPS), 11 * group) for group in range(_GROUPS)]


class QuickXor:
    """A quickXorHash with the interface of ``hashlib``'s hashes."""

    __slots__ = ("_row", "_size_bytes")

    def __init__(self) -> None:
        self._row = 0
        self._size_bytes = 0

    def update(self, piece: bytes | memoryview, /) -> None:
        """Add the next bytes to the hash."""
        size, first = len(piece), self._size_bytes % _ROW_BYTES
        value = 0
        for start in range(0, size, _BLOCK_BYTES):
            value ^= int.from_bytes(piece[start : start + _BLOCK_BYTES], "little")
        if first:
            value <<= 8 * first
            value = (value >> _BLOCK_BITS) ^ (value & _BLOCK_MASK)
        for bits, mask in _FOLDS:
            value = (value >> bits) ^ (value & mask)
        self._row ^= value
        self._size_bytes += size

    def digest(self) -> bytes:
        """Return the 20 bytes of the hash of all pieces."""
        odd = self._row & _ODD
        row = self._row ^ odd ^ (odd >> _HALF_ROW_BITS) ^ ((odd & _LOWER_HALF) << _HALF_ROW_BITS)
        row_bytes = row.to_bytes(_ROW_BYTES, "little")
        ring = self._size_bytes << (_RING_BITS - 64)
        for group, shift in _GROUP_SLICES:
            ring ^= int.from_bytes(row_bytes[group], "little") << shift
        return ((ring ^ (ring >> _RING_BITS)) & _RING_MASK).to_bytes(_RING_BYTES, "little")

    def hexdigest(self) -> str:
        """Return the hash of all pieces in hexadecimal."""
        return self.digest().hex()
