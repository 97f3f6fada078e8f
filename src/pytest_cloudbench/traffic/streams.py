"""Payload put together again: the beginning of a stream, and a text anywhere in it.

What may live here: bytes of payload by flow and direction, in the order of sequence numbers. Bytes are looked at
here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import MIB
from pytest_cloudbench.traffic import sequence
from pytest_cloudbench.traffic.flows import Flow, FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Buffer

__all__ = ["TOUCHED_PACKETS", "Found", "beginning", "datagrams", "find", "pieces"]

TOUCHED_PACKETS = 512
"""So many are looked into before a mapped file's pages are given back: each may bring in 64 KiB around it."""
_FEW = 64
_PART_ROWS = 1 << 15
_JOINED_BYTES = MIB


@dataclass(frozen=True, slots=True)
class Found:
    """Where a text occurs.

    Attributes:
        flow: number of the flow. up: whether the client sent it.
        offset_bytes: in its stream; for UDP in its datagram.
    """

    flow: int
    up: bool
    offset_bytes: int


def _rows(table: FlowTable, flow: Flow, *, up: bool, most: int | None = None) -> Any:
    """Rows of one direction with payload: of a flow's first packets only, where ``most`` is given."""
    import numpy as np

    rows = table.rows(flow)
    for size in (most * 4, len(rows)) if most else (len(rows),):
        head = rows[:size]
        mine = head[(table.up[head] == up) & (table.packets.payload[head] > 0)]
        if most is None or len(mine) >= most or size >= len(rows):
            break
    return np.asarray(mine if most is None else mine[:most])


def beginning(table: FlowTable, buffer: Buffer, flow: Flow, *, up: bool, limit: int = 16384) -> bytes:
    """The first bytes of a direction, up to the first that is missing, at most ``limit``.

    Only from a flow whose beginning was captured is it the beginning.
    """
    rows = _rows(table, flow, up=up, most=_FEW)
    if not len(rows):
        return b""
    found = bytearray()
    for start, data in _in_order(table, buffer, rows):
        if start > len(found):
            break
        found += data[len(found) - start :]
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def datagrams(table: FlowTable, buffer: Buffer, flow: Flow, *, up: bool, most: int | None = None) -> Iterator[bytes]:
    """The payload of each UDP packet of one direction, as far as it was kept."""
    for row in _rows(table, flow, up=up, most=most).tolist():
        offset = int(table.packets.offset[row])
        yield bytes(buffer[offset : offset + int(table.packets.kept[row])])


def _in_order(table: FlowTable, buffer: Buffer, rows: Any) -> Iterator[tuple[int, bytes]]:
    """(offset in the stream, kept bytes) in the order of offsets."""
    import numpy as np

    packets = table.packets
    first = np.zeros(len(rows), bool)
    first[0] = True
    start = sequence.unwrap(packets.seq[rows], first) + (packets.flags[rows] >> 1 & 1)
    start -= start.min()
    order = np.argsort(start, kind="stable") if (start[1:] < start[:-1]).any() else np.arange(len(start))
    for begin in range(0, len(order), _PART_ROWS):  # lists of Python's numbers take eight times the memory
        part = order[begin : begin + _PART_ROWS]
        own = rows[part]
        columns = (start[part], packets.offset[own], packets.kept[own])
        for at, offset, size in zip(*(column.tolist() for column in columns), strict=True):
            yield at, bytes(buffer[offset : offset + size])


def pieces(table: FlowTable, buffer: Buffer, flow: Flow, *, up: bool) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a TCP direction's unbroken stretches in order, each byte once, in pieces of about a MiB.

    Where a piece does not begin at the end of the one before, bytes are missing.
    """
    rows = _rows(table, flow, up=up)
    if not len(rows):
        return
    begin, end, joined = 0, 0, list[bytes]()
    for start, data in _in_order(table, buffer, rows):
        if start + len(data) <= end:
            continue
        if start > end or end - begin >= _JOINED_BYTES:
            if joined:
                yield begin, b"".join(joined)
            begin, joined = max(start, end), []
        joined.append(data[max(0, end - start) :] if start < end else data)
        end = start + len(data)
    if joined:
        yield begin, b"".join(joined)


def find(
    table: FlowTable, buffer: Buffer, text: bytes, release: Callable[[int], None] = lambda place: None
) -> list[Found]:
    """Each flow and direction in which a text occurs unencrypted, with its first place there.

    TCP streams are put together first, since the text may lie across packets. Ask ``Analysis`` whether nothing was
    cut or lost: in what is not in the file nothing is found.
    """
    if not text:
        return []
    found, touched = [], 0
    for flow in table.flows:
        touched += flow.up.packets + flow.down.packets
        if touched > TOUCHED_PACKETS:
            release(len(buffer))
            touched = 0
        for up in (True, False):
            place = _first(table, buffer, flow, text, release, up=up)
            if place is not None:
                found.append(Found(flow.number, up, place))
    return found


def _first(
    table: FlowTable, buffer: Buffer, flow: Flow, text: bytes, release: Callable[[int], None], *, up: bool
) -> int | None:
    if not flow.is_tcp:
        seen = 0
        for datagram in datagrams(table, buffer, flow, up=up):
            if (place := datagram.find(text)) >= 0:
                return place
            seen += len(datagram)
            if seen > 32 * MIB:
                release(len(buffer))
                seen = 0
        return None
    tail, end, seen = b"", 0, 0
    for begin, data in pieces(table, buffer, flow, up=up):
        tail = tail if begin == end else b""
        place = (tail + data).find(text)
        if place >= 0:
            return begin - len(tail) + place
        end = begin + len(data)
        if end - seen > 32 * MIB:
            release(len(buffer))
            seen = end
        tail = (tail + data)[-(len(text) - 1) :] if len(text) > 1 else b""
    return None
