"""Interfaces of a capture file, and the options of pcapng blocks that describe them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

_LARGEST_OFFSET_S = (1 << 32) - 1
"""Any time stamp plus this many seconds fits into 64 bits of nanoseconds."""


@dataclass(slots=True)
class Interface:
    """An interface with its capture statistics, which are None if the file has none.

    Attributes:
        link_type: LINKTYPE_ value of its packets.
        snaplen: the most bytes kept of a packet, or 0 for no limit.
        ticks_per_s: resolution of its time stamps.
        offset_s: added to every time stamp.
        name: the system's name for it.
        received, dropped, os_dropped: ``isb_ifrecv``, ``isb_ifdrop``, ``isb_osdrop`` from the last statistics block.
    """

    link_type: int
    snaplen: int = 0
    ticks_per_s: int = 1_000_000
    offset_s: int = 0
    name: str = ""
    received: int | None = None
    dropped: int | None = None
    os_dropped: int | None = None

    @property
    def drops(self) -> int | None:
        """Number of packets that the capture lost, or None if unknown."""
        if self.dropped is None and self.os_dropped is None:
            return None
        return (self.dropped or 0) + (self.os_dropped or 0)


def parse_options(body: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Yield (code, value) up to the end mark, or up to an option that extends beyond its block."""
    position = 0
    while position + 4 <= len(body):
        code, length = struct.unpack(order + "HH", body[position : position + 4])
        if code == 0 or position + 4 + length > len(body):
            return
        yield code, body[position + 4 : position + 4 + length]
        position += 4 + length + -length % 4


def decode_text(value: bytes) -> str:
    """Decode the text of an option."""
    return value.decode("utf-8", "replace").rstrip("\0")


def decode_texts(values: Sequence[bytes]) -> list[str]:
    """Decode many texts, all at once unless one of them is unusual."""
    joined = b"\0".join(values)
    if joined.count(b"\0") == len(values) - 1:
        with suppress(UnicodeDecodeError):
            return joined.decode().split("\0")
    return [decode_text(value) for value in values]


def parse_interface(body: bytes, order: str) -> Interface:
    """Parse the body of an interface description block."""
    link_type, _, snaplen = struct.unpack(order + "HHI", body[:8])
    interface = Interface(link_type, snaplen)
    for code, value in parse_options(body[8:], order):
        if code == 2:
            interface.name = decode_text(value)
        elif code == 9 and value:
            power = value[0] & 0x7F
            interface.ticks_per_s = 2 ** min(power, 63) if value[0] & 0x80 else 10 ** min(power, 19)
        elif code == 14 and len(value) == 8:
            interface.offset_s = max(-_LARGEST_OFFSET_S, min(_LARGEST_OFFSET_S, struct.unpack(order + "q", value)[0]))
    return interface


def read_statistics(interface: Interface, body: bytes, order: str) -> None:
    """Set the counts of an interface from the options of its statistics block."""
    for code, value in parse_options(body, order):
        if code in (4, 5, 7) and len(value) == 8:
            count = struct.unpack(order + "Q", value)[0]
            setattr(interface, {4: "received", 5: "dropped", 7: "os_dropped"}[code], count)
