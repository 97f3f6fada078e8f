"""A small JPEG encoder: baseline grey images of any size in bytes, with random pixels.

In its Huffman table every coefficient takes exactly one byte, so any block can be located without reading the blocks
before it.

A coefficient of s bits gets a code of 8 - s bits (0, 10, 110, ... for s = 7, 6, 5, ...). Then every byte below 0xFE is
one coefficient, no byte needs stuffing, and a block of 8 x 8 pixels is 64 bytes: a DC difference, which is always 0,
and 63 random bytes. As in a photograph, almost none of that can be compressed further.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from pytest_cloudbench.model import Content
from pytest_cloudbench.workload.payload.contents import Literal, Piece, Pieces

_BLOCK_BYTES = 64
_MAX_BLOCKS = 65500 // 8  # the format allows 65,535 pixels a side, but libjpeg reads only 65,500
_COMMENT_BYTES = 65537  # the longest segment, with its marker
_TO_COEFFICIENTS = bytes(range(254)) + b"\x55\xaa"


def _make_segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


_JFIF = b"\xff\xd8" + _make_segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
_END_OF_IMAGE = b"\xff\xd9"


def head(width: int, height: int) -> bytes:
    """Return all segments before the coefficients except comments, for a frame of ``width`` x ``height`` pixels."""
    frame = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\1\1\x11\0"
    dc_codes = bytes([0, 0, 0, 0, 0, 0, 0, 1, *[0] * 8]) + b"\0"
    ac_codes = bytes([*[1] * 7, *[0] * 9]) + bytes(range(7, 0, -1))
    tables = _make_segment(0xDB, b"\0" + b"\1" * 64) + _make_segment(0xC0, frame)
    codes = _make_segment(0xC4, b"\0" + dc_codes) + _make_segment(0xC4, b"\x10" + ac_codes)
    return _JFIF + tables + codes + _make_segment(0xDA, b"\1\1\0\0\x3f\0")


MIN_BYTES = len(head(8, 8)) + _BLOCK_BYTES + len(_END_OF_IMAGE)
"""Size of an image of one block, the smallest possible."""


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """Random bytes, each of which encodes one coefficient."""

    base: Content

    @property
    def size_bytes(self) -> int:
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(self.base.read(offset, length).translate(_TO_COEFFICIENTS))
        first = -offset % _BLOCK_BYTES
        data[first::_BLOCK_BYTES] = bytes(len(range(first, len(data), _BLOCK_BYTES)))
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Comments:
    """Comment segments that pad a rectangular image to the exact size. Fewer than four bytes become fill bytes."""

    base: Content

    @property
    def size_bytes(self) -> int:
        return self.base.size_bytes

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size_bytes)
        data = bytearray(self.base.read(offset, length))
        for start in range(offset // _COMMENT_BYTES * _COMMENT_BYTES, end, _COMMENT_BYTES):
            segment_bytes = min(_COMMENT_BYTES, self.size_bytes - start)
            header = (
                b"\xff" * segment_bytes if segment_bytes < 4 else b"\xff\xfe" + (segment_bytes - 2).to_bytes(2, "big")
            )
            for position, value in enumerate(header, start):  # the format allows fill bytes before any marker
                if offset <= position < end:
                    data[position - offset] = value
        return bytes(data)


def image(base: Content) -> Content:
    """Return a JPEG image as long as ``base``, at least ``MIN_BYTES``, with pixels made from its bytes."""
    variable_bytes = base.size_bytes - MIN_BYTES + _BLOCK_BYTES
    blocks = variable_bytes // _BLOCK_BYTES
    width = min(isqrt(blocks), _MAX_BLOCKS)
    height = min(blocks // width, _MAX_BLOCKS)
    pixel_bytes = width * height * _BLOCK_BYTES
    comment_bytes = variable_bytes - pixel_bytes
    headers = head(width * 8, height * 8)
    parts: list[Content] = [
        Literal(headers[: len(_JFIF)]),
        _Comments(Pieces.join([Piece(base, 0, comment_bytes)])),
        Literal(headers[len(_JFIF) :]),
        _Coefficients(Pieces.join([Piece(base, comment_bytes, pixel_bytes)])),
        Literal(_END_OF_IMAGE),
    ]
    return Pieces.join(Piece(part, 0, part.size_bytes) for part in parts)
