"""Reassembly of payload in the order of sequence numbers: the beginning of a stream, and a search for a text.

No other module reads payload bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.model import MIB
from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.records import read_spans
from pytest_cloudbench.net.traffic.table import FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer, Ints

TOUCHED_PACKETS = 512
"""Number of packets read before a mapped file's pages are released. Each may bring in 64 KiB around it."""
_FEW_ROWS = 64
_HEAD_ROWS, _HEADS_AT_ONCE = 512, 1024
_PART_ROWS, _FLOWS_AT_ONCE, _DATAGRAMS_AT_ONCE = 1 << 15, 1024, 1 << 15
_PIECE_BYTES = MIB


class Occurrence(NamedTuple):
    """An occurrence of a text.

    Attributes:
        flow: number of the flow.
        up: whether the client sent it.
        offset_bytes: offset in the stream, or in the datagram for UDP. None for an encoded text.
        form: ``raw``, or the encodings around the text, outermost first.
    """

    flow: int
    up: bool
    offset_bytes: int | None
    form: str = "raw"


def _payload_rows(table: FlowTable, number: int, *, up: bool, max_rows: int | None = None) -> Any:
    """Return rows of one direction with payload, at most the first ``max_rows``."""
    import numpy as np

    rows = table.rows(number)
    for size in (max_rows * 4, len(rows)) if max_rows else (len(rows),):
        first_rows = rows[:size]
        selected = first_rows[(table.up[first_rows] == up) & (table.packets.payload[first_rows] > 0)]
        if max_rows is None or len(selected) >= max_rows or size >= len(rows):
            break
    return np.asarray(selected if max_rows is None else selected[:max_rows])


def _list_first_rows(table: FlowTable, begins: Ints, ends: Ints, most_rows: int) -> tuple[Ints, Any]:
    """Return the first rows of each flow, preceded by the index of each row's flow.

    ``begins`` and ``ends`` are the positions of the flows in ``table.order``.
    """
    import numpy as np

    sizes = np.minimum(ends - begins, most_rows)
    flow = np.repeat(np.arange(len(sizes)), sizes)
    positions = np.arange(len(flow)) + np.repeat(begins - np.cumsum(sizes) + sizes, sizes)
    return flow, table.order.take(positions).astype(np.int64)  # converted once, not by each column


def find_flows_with_hellos(table: FlowTable, buffer: Buffer, release: Callable[[int], None]) -> set[int]:
    """Return the numbers of all flows whose client may have begun with a TLS hello or QUIC header, and some others."""
    import numpy as np

    packets, numbers = table.packets, set[int]()
    is_tcp = table.who.is_tcp
    is_selected = np.zeros(len(is_tcp), bool)
    is_selected[table.numbers] = True
    starts = np.asarray(table.starts)
    sizes = np.minimum(np.diff(starts), _HEAD_ROWS)
    for begin in range(0, len(sizes), _HEADS_AT_ONCE):
        sizes_in_group = sizes[begin : begin + _HEADS_AT_ONCE]
        edges = starts[begin : begin + len(sizes_in_group) + 1]
        group, rows = _list_first_rows(table, edges[:-1], edges[1:], _HEAD_ROWS)
        group += begin
        with_payload = table.up.take(rows) & (packets.payload.take(rows) > 0) & is_selected.take(group)
        rows, group = rows.compress(with_payload), group.compress(with_payload)
        payload_counts = np.bincount(group, minlength=begin + len(sizes_in_group))[begin:]
        is_unsure = (
            (payload_counts < _FEW_ROWS)
            & (sizes_in_group == _HEAD_ROWS)
            & is_selected[begin : begin + len(sizes_in_group)]
        )  # the decisive packet may come later
        numbers.update((np.flatnonzero(is_unsure) + begin).tolist())
        first = sequence.mark_beginnings(group)
        start = packets.seq.take(rows) + (packets.flags.take(rows) >> 1 & 1)
        origin = np.repeat(start[first], np.diff(np.flatnonzero(first), append=len(first)))
        # The stream begins with the first packet, or with a later one that has a lower sequence number.
        is_early = first | (is_tcp.take(group) & ((start - origin).view(np.int32) < 0))
        rows, group = rows.compress(is_early), group.compress(is_early)
        has_bytes = packets.kept[rows] > 0
        rows, group = rows[has_bytes], group[has_bytes]
        first_byte = _read_bytes_at(buffer, packets.offset[rows], release)
        numbers.update(group[np.where(is_tcp[group], first_byte == 0x16, first_byte >= 0xC0)].tolist())
    return numbers


def read_mss_options(buffer: Buffer, offset: Any, header: Any, release: Callable[[int], None]) -> Ints:
    """Return the MSS option of each SYN in bytes, or -1 if there is none.

    Args:
        buffer: the whole file.
        offset: file offset of the end of each SYN's header.
        header: number of bytes of the header.
        release: called with a file offset before which nothing is needed for now.
    """
    import numpy as np

    size = header.astype(np.int64) - 20
    max_option_bytes = int(size.max(initial=0))
    offsets = (offset - size)[:, None] + np.arange(max_option_bytes + 4)
    options = _read_bytes_at(buffer, offsets, release)
    options[np.arange(max_option_bytes + 4) >= size[:, None]] = 0
    limits = np.full(len(offset), -1)
    rows, positions = np.flatnonzero(size > 0), np.zeros(len(offset), np.int64)
    while len(rows):
        kind, length = options[rows, positions[rows]], options[rows, positions[rows] + 1].astype(np.int64)
        is_mss = (kind == 2) & (length == 4) & (positions[rows] + 4 <= size[rows])
        chosen = rows[is_mss]
        limits[chosen] = (
            options[chosen, positions[chosen] + 2].astype(np.int64) << 8 | options[chosen, positions[chosen] + 3]
        )
        positions[rows] += np.where(kind == 1, 1, length)
        rows = rows[~is_mss & (kind > 0) & ((kind == 1) | (length >= 2)) & (positions[rows] < size[rows])]
    return limits


def _read_bytes_at(buffer: Buffer, offsets: Any, release: Callable[[int], None]) -> Any:
    """Return the byte at each of these offsets, 0 beyond the end of the file.

    ``offsets`` has one offset or a row of them for each packet.
    """
    import numpy as np

    values = np.zeros(offsets.shape, np.uint8)
    view = np.frombuffer(buffer, np.uint8)
    for begin in range(0, len(offsets), TOUCHED_PACKETS):
        part = offsets[begin : begin + TOUCHED_PACKETS]
        values[begin : begin + TOUCHED_PACKETS] = np.where(part < len(view), view[np.minimum(part, len(view) - 1)], 0)
        if len(offsets) > TOUCHED_PACKETS:
            release(len(buffer))
    return values


def read_beginning(table: FlowTable, buffer: Buffer, number: int, *, up: bool, limit: int = 16384) -> bytes:
    """Return the first bytes of one direction of a flow, up to a missing byte or ``limit``.

    This is the true beginning only if the start of the flow was captured.
    """
    rows = _payload_rows(table, number, up=up, max_rows=_FEW_ROWS)
    if not len(rows):
        return b""
    data_so_far = bytearray()
    for start, data in _order_segments(table, buffer, rows):
        if start > len(data_so_far):
            break
        data_so_far += data[len(data_so_far) - start :]
        if len(data_so_far) >= limit:
            break
    return bytes(data_so_far[:limit])


def read_beginnings(
    table: FlowTable, buffer: Buffer, numbers: Sequence[int], limit: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield what ``read_beginning`` returns up and down for each flow, or for UDP the start of the first datagrams."""
    for begin in range(0, len(numbers), _FLOWS_AT_ONCE):
        yield from _read_beginnings_at_once(table, buffer, numbers[begin : begin + _FLOWS_AT_ONCE], limit)


def _read_beginnings_at_once(
    table: FlowTable, buffer: Buffer, numbers: Sequence[int], limit: int
) -> Iterator[tuple[bytes, bytes]]:
    import numpy as np

    packets, selected = table.packets, np.array(numbers, np.int64)
    begins, ends = np.asarray(table.starts)[[selected, selected + 1]]
    flow, rows = _list_first_rows(table, begins, ends, _FEW_ROWS * 4)
    with_payload = (packets.payload[rows] > 0).nonzero()[0]
    flow, rows = flow[with_payload], rows[with_payload]
    side = (flow * 2 + ~table.up[rows]).astype(np.uint16)  # numpy sorts 16 bits by radix sort
    order = np.argsort(side, kind="stable")
    side, rows = side[order].astype(np.int64), rows[order]
    counts = np.bincount(side, minlength=2 * len(numbers))
    most_rows = np.where(table.who.is_tcp[selected], _FEW_ROWS, 1).repeat(2)
    is_early = np.arange(len(side)) - np.repeat(np.cumsum(counts) - counts, counts) < most_rows[side]
    side, rows = side[is_early], rows[is_early]
    start = _count_from_lowest(table, rows, side)
    is_near = start < limit
    side, rows, start = side[is_near], rows[is_near], start[is_near]
    order = np.lexsort((start, side))
    side, rows, start = side[order], rows[order], start[order]
    end = start + np.minimum(packets.kept[rows], limit - start)
    reach = np.maximum.accumulate(side * (limit + 1) + end)
    is_new = sequence.mark_beginnings(side)
    is_new[1:] |= reach[1:] > reach[:-1]  # other segments only repeat what is read before them
    side, rows, start, end = side[is_new], rows[is_new], start[is_new], end[is_new]
    offset = packets.offset[rows]
    beginnings = [b""] * len(counts)
    columns = (side, start, offset, offset + end - start)
    for index, position, begin, end in zip(*(column.tolist() for column in columns), strict=True):
        read_bytes = len(beginnings[index])
        if position <= read_bytes:  # otherwise a byte before it is missing
            beginnings[index] += buffer[begin + read_bytes - position : end]
    # If the first rows have too few packets of a direction, read later ones, too.
    is_rare = (ends - begins > _FEW_ROWS * 4).repeat(2) & (counts < most_rows)
    is_rare &= (table.sums["payload_bytes"][:, selected] > 0).T.ravel()
    for index in is_rare.nonzero()[0].tolist():
        number, up = numbers[index // 2], index % 2 == 0
        if table.who.is_tcp[number]:
            beginnings[index] = read_beginning(table, buffer, number, up=up, limit=limit)
        else:
            beginnings[index] = next(read_datagrams(table, buffer, number, up=up, max_rows=1), b"")[:limit]
    return zip(beginnings[::2], beginnings[1::2], strict=True)


def read_datagrams(
    table: FlowTable, buffer: Buffer, number: int, *, up: bool, max_rows: int | None = None
) -> Iterator[bytes]:
    """Yield the kept payload of each UDP packet of one direction."""
    for row in _payload_rows(table, number, up=up, max_rows=max_rows).tolist():
        offset = int(table.packets.offset[row])
        yield bytes(buffer[offset : offset + int(table.packets.kept[row])])


def read_all_datagrams(
    table: FlowTable, buffer: Buffer, numbers: Ints, release: Callable[[int], None]
) -> Iterator[list[bytes]]:
    """Yield the kept payload of the UDP packets of many flows, thousands at a time.

    For each flow, the client's packets come before the server's.
    """
    import numpy as np

    packets, starts = table.packets, np.asarray(table.starts)
    group, rows = _list_first_rows(table, starts[numbers], starts[numbers + 1], len(packets))
    rows = rows[np.argsort(group * 2 + ~table.up[rows], kind="stable")]
    rows = rows[packets.payload[rows] > 0]
    for begin in range(0, len(rows), _DATAGRAMS_AT_ONCE):
        part = rows[begin : begin + _DATAGRAMS_AT_ONCE]
        in_file_order = np.argsort(packets.offset[part])  # so that each page is read once
        contents = list[bytes]()
        for touched in range(0, len(part), TOUCHED_PACKETS):
            if touched:
                release(len(buffer))
            touched_rows = part[in_file_order[touched : touched + TOUCHED_PACKETS]]
            contents += read_spans(buffer, packets.offset[touched_rows], packets.kept[touched_rows])
        yield [contents[index] for index in np.argsort(in_file_order).tolist()]


def _count_from_lowest(table: FlowTable, rows: Any, group: Ints) -> Ints:
    """Return where the payload of each segment begins, counted from the earliest one of its group."""
    import numpy as np

    packets, first = table.packets, sequence.mark_beginnings(group)
    start = sequence.unwrap(packets.seq[rows], first) + (packets.flags[rows] >> 1 & 1)
    begins = first.nonzero()[0]
    return np.asarray(start - np.repeat(np.minimum.reduceat(start, begins), np.diff(begins, append=len(rows))))


def _order_segments(table: FlowTable, buffer: Buffer, rows: Any) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in the stream, kept bytes) of segments in the order of offsets."""
    import numpy as np

    packets, start = table.packets, _count_from_lowest(table, rows, np.zeros(len(rows), np.int64))
    order = np.argsort(start, kind="stable") if (start[1:] < start[:-1]).any() else np.arange(len(start))
    for begin in range(0, len(order), _PART_ROWS):  # a list of all Python numbers would take eight times the memory
        part = order[begin : begin + _PART_ROWS]
        packet_rows = rows[part]
        columns = (start[part], packets.offset[packet_rows], packets.kept[packet_rows])
        for position, offset, size in zip(*(column.tolist() for column in columns), strict=True):
            yield position, bytes(buffer[offset : offset + size])


def join_pieces(table: FlowTable, buffer: Buffer, number: int, *, up: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of one TCP direction in order, each byte once, in pieces of about 1 MiB.

    Bytes are missing wherever a piece does not begin at the end of the one before.
    """
    rows = _payload_rows(table, number, up=up)
    if not len(rows):
        return
    begin, end, joined = 0, 0, list[bytes]()
    for start, data in _order_segments(table, buffer, rows):
        if start + len(data) <= end:
            continue
        if start > end or end - begin >= _PIECE_BYTES:
            if joined:
                yield begin, b"".join(joined)
            begin, joined = max(start, end), []
        joined.append(data[max(0, end - start) :] if start < end else data)
        end = start + len(data)
    if joined:
        yield begin, b"".join(joined)


def find_text(
    table: FlowTable, buffer: Buffer, text: bytes, release: Callable[[int], None] = lambda offset: None
) -> list[Occurrence]:
    """Return the first unencrypted occurrence of a text in each flow and direction that has one.

    TCP streams are reassembled first, since the text may span packets. Bytes that are not in the file cannot be
    searched. ``Analysis`` tells whether anything was truncated or lost.
    """
    if not text:
        return []
    occurrences, touched_packets = [], 0
    for number in table.numbers.tolist():
        touched_packets += table.starts[number + 1] - table.starts[number]
        if touched_packets > TOUCHED_PACKETS:
            release(len(buffer))
            touched_packets = 0
        for up in (True, False):
            offset_bytes = _find_in_flow(table, buffer, number, text, release, up=up)
            if offset_bytes is not None:
                occurrences.append(Occurrence(number, up, offset_bytes))
    return occurrences


def _find_in_flow(
    table: FlowTable, buffer: Buffer, number: int, text: bytes, release: Callable[[int], None], *, up: bool
) -> int | None:
    if not table.who.is_tcp[number]:
        released_bytes = 0
        for datagram in read_datagrams(table, buffer, number, up=up):
            if (index := datagram.find(text)) >= 0:
                return index
            released_bytes += len(datagram)
            if released_bytes > 32 * MIB:
                release(len(buffer))
                released_bytes = 0
        return None
    tail, end, released_bytes = b"", 0, 0
    for begin, data in join_pieces(table, buffer, number, up=up):
        tail = tail if begin == end else b""
        index = (tail + data).find(text)
        if index >= 0:
            return begin - len(tail) + index
        end = begin + len(data)
        if end - released_bytes > 32 * MIB:
            release(len(buffer))
            released_bytes = end
        tail = (tail + data)[-(len(text) - 1) :] if len(text) > 1 else b""
    return None
