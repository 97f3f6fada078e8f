"""Pure functions that check a pcapng file for completeness, comments and drops. Other modules read its traffic.

Format: the IETF draft "PCAP Now Generic Dump File Format" (draft-ietf-opsawg-pcapng), whose section numbers are given
below.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any

_SECTION, _INTERFACE, _PACKET, _STATISTICS = 0x0A0D0D0A, 1, 6, 5
_BIG_ENDIAN_MAGIC = b"\x1a\x2b\x3c\x4d"
_OPT_COMMENT, _ISB_RECEIVED, _ISB_DROPPED = 1, 4, 5


@dataclass(slots=True)
class Walk:
    """The result of a pass through a file."""

    packets: int = 0
    cut_packets: int = 0
    """Packets truncated in the file."""
    received: int | None = None
    """Packets received according to the statistics of all interfaces. None without statistics."""
    dropped: int | None = None
    comments: list[str] = field(default_factory=list)
    """Comments of the section."""
    is_whole: bool = False
    """True if there is at least one block, and all blocks are complete."""


def _read_options(data: bytes, order: str) -> list[tuple[int, bytes]]:
    """Return codes and values of a block's options (section 3.5), which are padded to four bytes."""
    options, position = [], 0
    while position + 4 <= len(data):
        code, size = struct.unpack_from(order + "HH", data, position)
        if code == 0:
            break
        options.append((code, data[position + 4 : position + 4 + size]))
        position += 4 + (size + 3) // 4 * 4
    return options


def walk(data: Any) -> Walk:
    """Walk through the blocks of a file, given as bytes or a memory map. It never raises, whatever the file holds."""
    result, position, size, order = Walk(), 0, len(data), "<"
    while position + 12 <= size:
        kind, length = struct.unpack_from(order + "II", data, position)
        if kind == _SECTION:  # this number is a palindrome, so it is readable before the byte order is known
            order = ">" if bytes(data[position + 8 : position + 12]) == _BIG_ENDIAN_MAGIC else "<"
            length = struct.unpack_from(order + "I", data, position + 4)[0]
        end = position + length
        if length < 12 or length % 4 or end > size or struct.unpack_from(order + "I", data, end - 4)[0] != length:
            return result
        if kind == _PACKET and length >= 32:
            captured, original = struct.unpack_from(order + "II", data, position + 20)
            result.packets += 1
            result.cut_packets += captured < original
        elif kind == _SECTION:
            options = _read_options(bytes(data[position + 24 : end - 4]), order)
            result.comments += [value.decode(errors="replace") for code, value in options if code == _OPT_COMMENT]
        elif kind == _STATISTICS:
            counts = {
                code: struct.unpack(order + "Q", value)[0]
                for code, value in _read_options(bytes(data[position + 20 : end - 4]), order)
                if code in (_ISB_RECEIVED, _ISB_DROPPED) and len(value) == 8
            }
            if _ISB_RECEIVED in counts:
                result.received = (result.received or 0) + counts[_ISB_RECEIVED]
            if _ISB_DROPPED in counts:
                result.dropped = (result.dropped or 0) + counts[_ISB_DROPPED]
        position = end
    result.is_whole = size > 0 and position == size
    return result


def read_comment(comments: list[str]) -> dict[str, Any]:
    """Return the metadata that ``Capture`` wrote, from a section's comments. It is empty for files of other origin."""
    for text in comments:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict) and "cloudbench_capture" in value:
            return value
    return {}
