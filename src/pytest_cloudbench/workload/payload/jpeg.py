"""A small JPEG encoder: baseline, grey, with random pixels, of any asked size.

What may live here: the format's segments and one ``Content``. The trick is a Huffman table in which every coefficient
takes exactly one byte, so the place of each block is known without those before it.

A coefficient of s bits gets a code of 8 - s bits (0, 10, 110, ... for s = 7, 6, 5, ...). Then every byte below 0xFE is
one coefficient, no byte needs stuffing, and a block of 8 x 8 pixels is 64 bytes: one for the DC difference, always 0,
and 63 random ones. Next to nothing of that can be compressed further, as in a photograph.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from pytest_cloudbench.model import Content
from pytest_cloudbench.workload.payload.contents import Literal, Piece, Pieces

_BLOCK_BYTES = 64
_MAX_BLOCKS = 65500 // 8  # the format allows 65,535 pixels, of which libjpeg reads this many
_COMMENT_BYTES = 65537  # the longest segment, with its marker
_NOT_A_COEFFICIENT = bytes(range(254)) + b"\x55\xaa"


def _segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


_JFIF = b"\xff\xd8" + _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
_END = b"\xff\xd9"


def head(width: int, height: int) -> bytes:
    """All before the coefficients, but for comments: tables that are flat, a frame of ``width`` x ``height`` pixels."""
    frame = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\1\1\x11\0"
    dc_codes = bytes([0, 0, 0, 0, 0, 0, 0, 1, *[0] * 8]) + b"\0"
    ac_codes = bytes([*[1] * 7, *[0] * 9]) + bytes(range(7, 0, -1))
    tables = _segment(0xDB, b"\0" + b"\1" * 64) + _segment(0xC0, frame)
    codes = _segment(0xC4, b"\0" + dc_codes) + _segment(0xC4, b"\x10" + ac_codes)
    return _JFIF + tables + codes + _segment(0xDA, b"\1\1\0\0\x3f\0")


MIN_BYTES = len(head(8, 8)) + _BLOCK_BYTES + len(_END)
"""An image of one block."""


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """Random bytes, each a coefficient."""

    base: Content

    @property
    def size_bytes(self) -> int:
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(self.base.read(offset, length).translate(_NOT_A_COEFFICIENT))
        first = -offset % _BLOCK_BYTES
        data[first::_BLOCK_BYTES] = bytes(len(range(first, len(data), _BLOCK_BYTES)))
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Comments:
    """Comment segments: what is left over when an image is a rectangle. At least four bytes, or fill bytes."""

    base: Content

    @property
    def size_bytes(self) -> int:
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size_bytes)
        data = bytearray(self.base.read(offset, length))
        for start in range(offset // _COMMENT_BYTES * _COMMENT_BYTES, end, _COMMENT_BYTES):
            left = min(_COMMENT_BYTES, self.size_bytes - start)
            mark = b"\xff" * left if left < 4 else b"\xff\xfe" + (left - 2).to_bytes(2, "big")
            for at, value in enumerate(mark, start):  # fill bytes may stand before any marker
                if offset <= at < end:
                    data[at - offset] = value
        return bytes(data)


def image(base: Content) -> Content:
    """A JPEG image of exactly as many bytes as ``base`` has, at least ``MIN_BYTES``, with pixels made from it."""
    spare = base.size_bytes - MIN_BYTES + _BLOCK_BYTES
    blocks = spare // _BLOCK_BYTES
    width = min(isqrt(blocks), _MAX_BLOCKS)
    height = min(blocks // width, _MAX_BLOCKS)
    pixels = width * height * _BLOCK_BYTES
    comments = spare - pixels
    start = head(width * 8, height * 8)
    parts: list[Content] = [
        Literal(start[: len(_JFIF)]),
        _Comments(Pieces.join([Piece(base, 0, comments)])),
        Literal(start[len(_JFIF) :]),
        _Coefficients(Pieces.join([Piece(base, comments, pixels)])),
        Literal(_END),
    ]
    return Pieces.join(Piece(part, 0, part.size_bytes) for part in parts)
