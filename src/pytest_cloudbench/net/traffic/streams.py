"""Reassembles payload: the beginning of a stream, and the search for a text anywhere in it.

What may live here: bytes of payload by flow and direction, in the order of sequence numbers. Bytes are looked at
here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import MIB
from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.table import FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer, Ints

TOUCHED_PACKETS = 512
"""How many packets are read before a mapped file's pages are given back: each may bring in 64 KiB around it."""
_FEW = 64
_HEAD_ROWS, _HEADS_AT_ONCE = 512, 1024
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


def _rows(table: FlowTable, number: int, *, up: bool, most: int | None = None) -> Any:
    """Rows of one direction with payload; with ``most``, only the first that many."""
    import numpy as np

    rows = table.rows(number)
    for size in (most * 4, len(rows)) if most else (len(rows),):
        head = rows[:size]
        mine = head[(table.up[head] == up) & (table.packets.payload[head] > 0)]
        if most is None or len(mine) >= most or size >= len(rows):
            break
    return np.asarray(mine if most is None else mine[:most])


def tellers(table: FlowTable, buffer: Buffer, release: Callable[[int], None]) -> set[int]:
    """Numbers of the flows whose client may have begun with a TLS hello or a QUIC header, and of some others."""
    import numpy as np

    packets, found = table.packets, set[int]()
    is_tcp = table.who.is_tcp
    wanted = np.zeros(len(is_tcp), bool)
    wanted[table.numbers] = True
    starts = np.asarray(table.starts)
    sizes = np.minimum(np.diff(starts), _HEAD_ROWS)
    for begin in range(0, len(sizes), _HEADS_AT_ONCE):
        own = sizes[begin : begin + _HEADS_AT_ONCE]
        group = np.repeat(np.arange(begin, begin + len(own)), own)
        within = np.arange(len(group)) - np.repeat(np.cumsum(own) - own, own)
        rows = table.order[starts[group] + within]
        mine = np.flatnonzero(table.up[rows] & (packets.payload[rows] > 0) & wanted[group])
        rows, group = rows[mine], group[mine]
        seen = np.bincount(group, minlength=begin + len(own))[begin:]
        unsure = (seen < _FEW) & (own == _HEAD_ROWS) & wanted[begin : begin + len(own)]  # what counts may come later
        found.update((np.flatnonzero(unsure) + begin).tolist())
        first = sequence.begins(group)
        start = packets.seq[rows] + (packets.flags[rows] >> 1 & 1)
        origin = np.repeat(start[first], np.diff(np.flatnonzero(first), append=len(first)))
        # The first packet is the beginning of the stream, or a later packet that lies before it is.
        early = (first | (is_tcp[group] & ((start - origin).view(np.int32) < 0))) & (packets.kept[rows] > 0)
        rows, group = rows[early], group[early]
        spoken = _bytes_at(buffer, packets.offset[rows], release)
        found.update(group[np.where(is_tcp[group], spoken == 0x16, spoken >= 0xC0)].tolist())
    return found


def segment_limits(buffer: Buffer, offset: Any, header: Any, release: Callable[[int], None]) -> Ints:
    """What the MSS option of each SYN says, in bytes; -1 if there is none.

    Args:
        buffer: the whole file.
        offset: where each SYN's header ends.
        header: how many bytes it has.
        release: called with a place in the file before which nothing is needed for now.
    """
    import numpy as np

    size = header.astype(np.int64) - 20
    most = int(size.max(initial=0))
    places = (offset - size)[:, None] + np.arange(most + 4)
    options = _bytes_at(buffer, places, release)
    options[np.arange(most + 4) >= size[:, None]] = 0
    found = np.full(len(offset), -1)
    rows, place = np.flatnonzero(size > 0), np.zeros(len(offset), np.int64)
    while len(rows):
        kind, length = options[rows, place[rows]], options[rows, place[rows] + 1].astype(np.int64)
        wanted = (kind == 2) & (length == 4) & (place[rows] + 4 <= size[rows])
        chosen = rows[wanted]
        found[chosen] = options[chosen, place[chosen] + 2].astype(np.int64) << 8 | options[chosen, place[chosen] + 3]
        place[rows] += np.where(kind == 1, 1, length)
        rows = rows[~wanted & (kind > 0) & ((kind == 1) | (length >= 2)) & (place[rows] < size[rows])]
    return found


def _bytes_at(buffer: Buffer, places: Any, release: Callable[[int], None]) -> Any:
    """The bytes at each of these places, one place or one line of them for each packet; 0 beyond the file's end."""
    import numpy as np

    found = np.zeros(places.shape, np.uint8)
    view = np.frombuffer(buffer, np.uint8)
    for begin in range(0, len(places), TOUCHED_PACKETS):
        part = places[begin : begin + TOUCHED_PACKETS]
        found[begin : begin + TOUCHED_PACKETS] = np.where(part < len(view), view[np.minimum(part, len(view) - 1)], 0)
        if len(places) > TOUCHED_PACKETS:
            release(len(buffer))
    return found


def beginning(table: FlowTable, buffer: Buffer, number: int, *, up: bool, limit: int = 16384) -> bytes:
    """The first bytes of a direction of a flow, up to the first that is missing, at most ``limit``.

    It is the true beginning only if the start of the flow was captured.
    """
    rows = _rows(table, number, up=up, most=_FEW)
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


def datagrams(table: FlowTable, buffer: Buffer, number: int, *, up: bool, most: int | None = None) -> Iterator[bytes]:
    """The payload of each UDP packet of one direction, as far as it was kept."""
    for row in _rows(table, number, up=up, most=most).tolist():
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
    for begin in range(0, len(order), _PART_ROWS):  # lists of Python numbers would take eight times the memory
        part = order[begin : begin + _PART_ROWS]
        own = rows[part]
        columns = (start[part], packets.offset[own], packets.kept[own])
        for at, offset, size in zip(*(column.tolist() for column in columns), strict=True):
            yield at, bytes(buffer[offset : offset + size])


def pieces(table: FlowTable, buffer: Buffer, number: int, *, up: bool) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a TCP direction's unbroken stretches in order, each byte once, in pieces of about a MiB.

    If a piece does not begin at the end of the one before, bytes are missing.
    """
    rows = _rows(table, number, up=up)
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

    TCP streams are reassembled first, since the text may span packets. What is not in the file cannot be searched:
    ``Analysis`` says whether anything was truncated or lost.
    """
    if not text:
        return []
    found, touched = [], 0
    for number in table.numbers.tolist():
        touched += table.starts[number + 1] - table.starts[number]
        if touched > TOUCHED_PACKETS:
            release(len(buffer))
            touched = 0
        for up in (True, False):
            place = _first(table, buffer, number, text, release, up=up)
            if place is not None:
                found.append(Found(number, up, place))
    return found


def _first(
    table: FlowTable, buffer: Buffer, number: int, text: bytes, release: Callable[[int], None], *, up: bool
) -> int | None:
    if not table.who.is_tcp[number]:
        seen = 0
        for datagram in datagrams(table, buffer, number, up=up):
            if (place := datagram.find(text)) >= 0:
                return place
            seen += len(datagram)
            if seen > 32 * MIB:
                release(len(buffer))
                seen = 0
        return None
    tail, end, seen = b"", 0, 0
    for begin, data in pieces(table, buffer, number, up=up):
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
