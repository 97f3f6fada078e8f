"""The blocks of a pcapng file: enough to say whether it is complete, what it says about itself, and what was dropped.

What may live here: pure functions over the bytes of a file. Traffic is read elsewhere. Format: the IETF draft "PCAP Now
Generic Dump File Format" (draft-ietf-opsawg-pcapng), whose section numbers are given below.
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
    """What a pass through a file found."""

    packets: int = 0
    cut_packets: int = 0
    """Packets truncated in the file."""
    received: int | None = None
    """By the interface statistics, summed over interfaces; None if there are no statistics."""
    dropped: int | None = None
    comments: list[str] = field(default_factory=list)
    """Of the section."""
    is_whole: bool = False
    """Every block is complete, and there is at least one."""


def _options(data: bytes, order: str) -> list[tuple[int, bytes]]:
    """Options of a block (section 3.5): code, length, value, padding to four."""
    found, at = [], 0
    while at + 4 <= len(data):
        code, size = struct.unpack_from(order + "HH", data, at)
        if code == 0:
            break
        found.append((code, data[at + 4 : at + 4 + size]))
        at += 4 + (size + 3) // 4 * 4
    return found


def walk(data: Any) -> Walk:
    """Go through a file (bytes, or a memory map of it) block by block. Never raises, whatever the file holds."""
    result, at, size, order = Walk(), 0, len(data), "<"
    while at + 12 <= size:
        kind, length = struct.unpack_from(order + "II", data, at)
        if kind == _SECTION:  # the number reads the same in both byte orders, so the order can be found out here
            order = ">" if bytes(data[at + 8 : at + 12]) == _BIG_ENDIAN_MAGIC else "<"
            length = struct.unpack_from(order + "I", data, at + 4)[0]
        end = at + length
        if length < 12 or length % 4 or end > size or struct.unpack_from(order + "I", data, end - 4)[0] != length:
            return result
        if kind == _PACKET and length >= 32:
            captured, original = struct.unpack_from(order + "II", data, at + 20)
            result.packets += 1
            result.cut_packets += captured < original
        elif kind == _SECTION:
            options = _options(bytes(data[at + 24 : end - 4]), order)
            result.comments += [value.decode(errors="replace") for code, value in options if code == _OPT_COMMENT]
        elif kind == _STATISTICS:
            counts = {
                code: struct.unpack(order + "Q", value)[0]
                for code, value in _options(bytes(data[at + 20 : end - 4]), order)
                if code in (_ISB_RECEIVED, _ISB_DROPPED) and len(value) == 8
            }
            if _ISB_RECEIVED in counts:
                result.received = (result.received or 0) + counts[_ISB_RECEIVED]
            if _ISB_DROPPED in counts:
                result.dropped = (result.dropped or 0) + counts[_ISB_DROPPED]
        at = end
    result.is_whole = size > 0 and at == size
    return result


def read_comment(comments: list[str]) -> dict[str, Any]:
    """What ``Capture`` wrote about a capture, from the comments of its section; empty for a file of another origin."""
    for text in comments:
        try:
            value = json.loads(text)
        except ValueError:
            continue
        if isinstance(value, dict) and "cloudbench_capture" in value:
            return value
    return {}
