"""Reader of pcap and pcapng files: the position, time and length of each packet.

It is pure: the caller passes in bytes, possibly a memory-mapped file. ``packets`` decodes the contents. Each record can
only be found from the one before, so hundreds of parts of the file are walked side by side (see ``_walk_records``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.model import MIB, UsageError
from pytest_cloudbench.net.traffic.interfaces import (
    Interface,
    decode_text,
    decode_texts,
    parse_interface,
    parse_options,
    read_statistics,
)

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Buffer = bytes | mmap

WINDOW_BYTES = 64 * MIB
"""Size of the windows in which the file is read, so that earlier pages of a mapped file can be released."""
BATCH_RECORDS = 16384
"""Number of records in a batch, small enough for their headers to stay in the processor's cache."""

_SECOND_NS = 1_000_000_000
_PIECE_BYTES, _MIN_PIECE_BYTES, _SAMPLED_RECORDS = 128 * 1024, 8 * 1024, 64
_STEPS = 8
_LARGEST_RECORD = 262144  # libpcap's MAXIMUM_SNAPLEN
_LARGEST_BLOCK = 128 * MIB + 131072  # as in Wireshark
_PCAP_MAGICS = {  # byte order, nanoseconds of a tick, bytes before each packet: 24 as patched by Alexey Kuznetzov
    b"\xd4\xc3\xb2\xa1": ("<", 1000, 16), b"\xa1\xb2\xc3\xd4": (">", 1000, 16),
    b"\x4d\x3c\xb2\xa1": ("<", 1, 16), b"\xa1\xb2\x3c\x4d": (">", 1, 16),
    b"\x34\xcd\xb2\xa1": ("<", 1000, 24), b"\xa1\xb2\xcd\x34": (">", 1000, 24),
}  # fmt: skip
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
_COMPRESSED = {b"\x1f\x8b": "gzip", b"(\xb5": "zstd", b"\x04\x22": "lz4"}


class Batch(NamedTuple):
    """Consecutive records as columns.

    Attributes:
        first: number of the first record in the file, counted from 1.
        offset: file offset of the packet's first byte.
        captured: number of the packet's bytes in the file.
        wire: number of its bytes on the wire.
        time_ns: nanoseconds since 1970.
        link_type: LINKTYPE_ value of each record.
    """

    first: int
    offset: Ints
    captured: Ints
    wire: Ints
    time_ns: Ints
    link_type: Ints

    def select(self, rows: Ints) -> Batch:
        """Return a batch of only these rows. ``first`` stays the same."""
        columns = (self.offset, self.captured, self.wire, self.time_ns, self.link_type)
        return Batch(self.first, *(column[rows] for column in columns))


@dataclass(slots=True)
class Reader:
    """A single iteration over a capture file's records, after which all other attributes are complete.

    Raises UsageError if the bytes are not a capture file. Garbage after a good start ends the iteration: the readable
    records are kept, and ``reason`` explains the problem.

    Attributes:
        buffer: the whole file.
        source: the file's name in errors.
        release: called with a file offset before which nothing will be read any more.
        format: ``pcap`` or ``pcapng``.
        interfaces: the interfaces of all sections. A pcap file has one.
        comments: comments of sections and packets, in file order.
        reason: the reason why the file is incomplete, or None.
        records: number of records.
        untimed: number of records without a time stamp (simple packet blocks).
        longer: number of records with more bytes in the file than the stated length of the packet.
        packet_drops: sum of the drop counts that packets carry.
        programs: for each section, the name of the program that wrote it, and the number of its first interface.
    """

    buffer: Buffer
    source: str = "capture"
    release: Callable[[int], None] = lambda offset: None
    format: str = ""
    interfaces: list[Interface] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    reason: str | None = None
    records: int = 0
    untimed: int = 0
    longer: int = 0
    packet_drops: int = 0
    programs: list[tuple[str, int]] = field(default_factory=list)

    @property
    def lacks_statistics(self) -> bool:
        """True if dumpcap wrote a section without its final statistics, because it was killed.

        Files of ring buffers lack them too, as do files that editcap and tshark derived under dumpcap's name.
        """
        ends = [first for _, first in self.programs[1:]] + [len(self.interfaces)]
        for (program, first), end in zip(self.programs, ends, strict=False):  # pcap has no sections
            interfaces = self.interfaces[first:end]
            if program.startswith("Dumpcap") and all(
                interface.received is None and interface.drops is None for interface in interfaces
            ):
                return True
        return False

    @property
    def is_complete(self) -> bool:
        """True if the file ends at the end of a record."""
        return self.reason is None

    def __iter__(self) -> Iterator[Batch]:
        head = bytes(self.buffer[:4])
        if head in _PCAP_MAGICS:
            self.format = "pcap"
            return self._read_pcap(*_PCAP_MAGICS[head])
        if head == b"\n\r\r\n":
            self.format = "pcapng"
            return self._read_pcapng()
        kind = _COMPRESSED.get(head[:2])
        hint = f"it is compressed ({kind}), unpack it first" if kind else "expected a pcap or pcapng file"
        raise UsageError(f"{self.source}: {'it is empty: ' if not head else ''}{hint}")

    # --- pcap: a header of 24 bytes, then 16 bytes or more before each packet ---

    def _read_pcap(self, order: str, fraction_ns: int, header_bytes: int) -> Iterator[Batch]:
        import numpy as np

        if len(self.buffer) < 24:
            raise UsageError(f"{self.source}: it ends within the file's header: expected a pcap or pcapng file")
        snaplen, link = struct.unpack(order + "II", self.buffer[16:24])
        link_type = link & 0xFFFF
        self.interfaces.append(Interface(link_type, snaplen, 1_000_000_000 // fraction_ns))
        size, position = len(self.buffer), 24
        words = _word_view(self.buffer, order)
        largest = max(_LARGEST_RECORD, min(snaplen, _LARGEST_BLOCK))
        sync = _make_pcap_sync(self.buffer, order, 1_000_000_000 // fraction_ns, header_bytes)
        while position < size:
            starts, position = _walk_records(words, position, min(position + WINDOW_BYTES, size), 8, header_bytes, sync)
            for begin in range(0, len(starts), BATCH_RECORDS):
                offsets = starts[begin : begin + BATCH_RECORDS]
                offsets = offsets[: _count_leading_true(offsets + header_bytes <= size)]
                header_words = _gather_bytes(self.buffer, offsets, 16).view(order + "u4").reshape(-1, 4)
                captured = header_words[:, 2].astype(np.int64)
                valid_count = _count_leading_true((captured <= largest) & (offsets + header_bytes + captured <= size))
                if valid_count < len(starts[begin : begin + BATCH_RECORDS]):
                    bad_position = int(starts[begin + valid_count])
                    is_readable = valid_count < len(offsets) and captured[valid_count] > largest
                    self._stop_reading(
                        valid_count,
                        bad_position,
                        f"a length of {int(captured[valid_count]):,} bytes" if is_readable else None,
                    )
                    offsets = offsets[:valid_count]
                    header_words = header_words[:valid_count]
                    captured = captured[:valid_count]
                    position = size
                time_ns = (
                    header_words[:, 0].astype(np.int64) * 1_000_000_000
                    + header_words[:, 1].astype(np.int64) * fraction_ns
                )
                wire = header_words[:, 3].astype(np.int64)
                yield self._make_batch(
                    offsets + header_bytes, captured, wire, time_ns, np.broadcast_to(np.int64(link_type), len(offsets))
                )
                if self.reason:
                    return
            self.release(min(position, size))

    def _make_batch(self, offset: Ints, captured: Ints, wire: Ints, time_ns: Ints, link_type: Ints) -> Batch:
        import numpy as np

        first = self.records + 1
        self.records += len(offset)
        too_long = captured > wire
        if too_long.any():  # a packet was at least as long as its bytes in the file
            self.longer += int(too_long.sum())
            wire = np.maximum(captured, wire)
        return Batch(first, offset, captured, wire, time_ns, link_type)

    def _stop_reading(self, valid_count: int, position: int, problem: str | None) -> None:
        number = self.records + valid_count + 1
        if problem is None:
            self.reason = f"the file ends within record {number:,}"
        else:
            self.reason = (
                f"record {number:,} at byte {position:,} has {problem}, which is impossible: the rest is skipped"
            )

    # --- pcapng: blocks, of which some hold a packet ---

    def _read_pcapng(self) -> Iterator[Batch]:
        position, size = 0, len(self.buffer)
        while position < size and self.reason is None:
            position = yield from self._read_section(position)

    def _read_section(self, start: int) -> Generator[Batch, None, int]:
        """Yield the batches of one section, and return the position of the next section."""
        import numpy as np

        size = len(self.buffer)
        magic = bytes(self.buffer[start + 8 : start + 12])
        order = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}.get(magic)
        if order is None or size < start + 28:
            if not start:
                raise UsageError(f"{self.source}: its section header is unreadable: expected a pcap or pcapng file")
            self.reason = f"the section at byte {start:,} has no readable header: the rest is skipped"
            return size
        major = struct.unpack(order + "H", self.buffer[start + 12 : start + 14])[0]
        if major != 1:
            problem = f"the section at byte {start:,} has the unknown pcapng version {major}"
            if not start:
                raise UsageError(f"{self.source}: {problem}")
            self.reason = f"{problem}: the rest is skipped"
            return size
        words, base, position = _word_view(self.buffer, order), len(self.interfaces), start
        sync = _make_pcapng_sync(self.buffer, order)
        while position < size:
            blocks, position = _walk_records(words, position, min(position + WINDOW_BYTES, size), 4, 0, sync)
            starts = blocks[: _count_leading_true(blocks + 12 <= size)]
            heads = self._read_block_heads(starts, words, order)
            types, lengths = heads[:, 1].astype(np.int64), heads[:, 2].astype(np.int64)
            fits = (lengths >= 12) & (lengths & 3 == 0) & (lengths <= _LARGEST_BLOCK) & (starts + lengths <= size)
            count = _count_leading_true(fits)
            last_end = (starts + lengths)[:count][-1:]
            trailers = np.append(heads[1:count, 0], words[last_end - 4])  # each is before the next block
            count = _count_leading_true(trailers == lengths[:count])
            # A section's length is in its own byte order, so it may look wrong. Its type is the same in both orders.
            section_rows = np.flatnonzero((types[: count + 1] == _SECTION) & (starts[: count + 1] > start))
            if len(section_rows):
                count = int(section_rows[0])
                position = int(starts[count])
            blocks_good, types, lengths = starts[:count], types[:count], lengths[:count]
            self._read_notes(blocks_good, types, lengths, order, base)
            yield from self._read_packets(blocks_good, types, lengths, heads, words, order, base)
            if len(section_rows):
                return position
            if count < len(blocks):
                bad_position = int(blocks[count])
                is_cut_off = bad_position + 12 > size or (
                    fits[:count].all() and lengths.size == count and self._is_cut_off(bad_position, order)
                )
                self._stop_reading(0, bad_position, None if is_cut_off else "a block length")
                return size
            self.release(min(position, size))
        return size

    def _read_block_heads(self, starts: Ints, words: Any, order: str) -> Any:
        """Return the word before each block, and its first seven. At the ends of the file only three are correct."""
        import numpy as np

        buffer = self.buffer if len(self.buffer) >= 32 else self.buffer[:].ljust(32)
        before = (starts - 4).clip(0, len(buffer) - 32)
        heads = _gather_bytes(buffer, before, 32).view(order + "u4").reshape(-1, 8)
        for row in (before != starts - 4).nonzero()[0]:
            heads[row, :3] = words[np.maximum(starts[row] + [-4, 0, 4], 0)]
        return heads

    def _is_cut_off(self, position: int, order: str) -> bool:
        """Return whether a block has a possible length but extends beyond the end of the file."""
        length = struct.unpack(order + "I", self.buffer[position + 4 : position + 8])[0]
        return bool(12 <= length <= _LARGEST_BLOCK and length % 4 == 0 and position + length > len(self.buffer))

    def _read_notes(self, blocks: Ints, types: Ints, lengths: Ints, order: str, base: int) -> None:
        """Read interfaces, statistics and comments. All other blocks (names, secrets, ...) are skipped."""
        import numpy as np

        for row in np.flatnonzero((types == _SECTION) | (types == _INTERFACE) | (types == _STATISTICS)):
            position, length = int(blocks[row]), int(lengths[row])
            body = bytes(self.buffer[position + 8 : position + length - 4])
            kind = int(types[row])
            if kind == _SECTION:
                options = list(parse_options(body[16:], order))
                self.comments += [decode_text(value) for code, value in options if code == 1]
                program = next((decode_text(value) for code, value in options if code == 4), "")
                self.programs.append((program, len(self.interfaces)))
            elif kind == _INTERFACE and len(body) >= 8:
                self.interfaces.append(parse_interface(body, order))
            elif kind == _STATISTICS and len(body) >= 12:
                number = base + struct.unpack(order + "I", body[:4])[0]
                if number < len(self.interfaces):
                    read_statistics(self.interfaces[number], body[12:], order)

    def _read_packets(
        self, blocks: Ints, types: Ints, lengths: Ints, heads: Any, words: Any, order: str, base: int
    ) -> Iterator[Batch]:
        import numpy as np

        rows = np.flatnonzero((types == _PACKET) | (types == _OLD_PACKET) | (types == _SIMPLE))
        for begin in range(0, len(rows), BATCH_RECORDS):
            row = rows[begin : begin + BATCH_RECORDS]
            starts, kind, length = blocks[row], types[row], lengths[row]
            simple = kind == _SIMPLE
            header_words = heads.take(row, axis=0)[:, 1:]
            number = header_words[:, 2].astype(np.int64)
            old = kind == _OLD_PACKET
            if old.any():
                offsets = starts[old] + 8
                number[old] = _gather_bytes(self.buffer, offsets, 2).view(order + "u2").astype(np.int64)
            captured, wire = header_words[:, 5].astype(np.int64), header_words[:, 6].astype(np.int64)
            ticks = (header_words[:, 3].astype(np.uint64) << np.uint64(32)) | header_words[:, 4].astype(np.uint64)
            offset, space = starts + 28, length - 32
            if simple.any():
                number[simple], ticks[simple] = 0, 0
                wire[simple] = words[starts[simple] + 8]
                offset[simple], space[simple] = starts[simple] + 12, length[simple] - 16
                snap = self.interfaces[base].snaplen if base < len(self.interfaces) else 0
                captured[simple] = np.minimum(wire[simple], snap or _LARGEST_RECORD)
                self.untimed += int(simple.sum())
            is_valid = (number < len(self.interfaces) - base) & (space >= 0) & (captured <= space)
            valid_count = _count_leading_true(is_valid)
            if valid_count < len(row):
                unknown = number[valid_count] >= len(self.interfaces) - base
                problem = "an interface that was not described" if unknown else "a packet longer than its block"
                self._stop_reading(valid_count, int(starts[valid_count]), problem)
            keep = slice(0, valid_count)
            number, offset, captured, space = number[keep], offset[keep], captured[keep], space[keep]
            self._read_packet_options(kind[keep], offset, captured, space, words, order)
            link_type, time_ns = self._look_up_times(number + base, ticks[keep])
            yield self._make_batch(offset, captured, wire[keep], time_ns, link_type)
            if self.reason:
                return

    def _look_up_times(self, number: Ints, ticks: Any) -> tuple[Ints, Ints]:
        """Return link types and times of packets, given the numbers of their interfaces."""
        import numpy as np

        if len(number) and (number[0] == number).all():
            interface = self.interfaces[int(number[0])]
            link_type = np.broadcast_to(np.int64(interface.link_type), len(number))
            return link_type, _to_nanoseconds(ticks, interface.ticks_per_s) + interface.offset_s * _SECOND_NS
        link_types = np.array([interface.link_type for interface in self.interfaces], np.int64)
        offsets_ns = np.array([interface.offset_s * _SECOND_NS for interface in self.interfaces], np.int64)
        ticks_per_s = [interface.ticks_per_s for interface in self.interfaces]
        if all(_SECOND_NS % per_s == 0 for per_s in ticks_per_s):
            factors = np.array([_SECOND_NS // per_s for per_s in ticks_per_s], np.uint64)
            time_ns = (ticks * factors[number]).astype(np.int64)
        else:
            time_ns = np.empty(len(number), np.int64)
            for interface_number in sorted(set(number.tolist())):
                rows = number == interface_number
                time_ns[rows] = _to_nanoseconds(ticks[rows], ticks_per_s[interface_number])
        return link_types[number], time_ns + offsets_ns[number]

    def _read_packet_options(
        self, kind: Ints, offset: Ints, captured: Ints, space: Ints, words: Any, order: str
    ) -> None:
        """Read comments and drop counts of packets, stepping through the options of all packets side by side."""
        import numpy as np

        padded = (captured + 3) & ~3  # numpy divides slowly
        positions, end = offset + padded, offset + space
        has_options = (kind == _PACKET) & (positions + 4 <= end)
        positions, end = positions.compress(has_options), end.compress(has_options)
        while len(positions):
            pair = _gather_bytes(self.buffer, positions, 4).view(order + "u2").reshape(-1, 2).astype(np.int64)
            code, size = pair[:, 0], pair[:, 1]
            fits = (code != 0) & (positions + 4 + size <= end)
            is_comment = fits & (code == 1)
            starts = positions.compress(is_comment) + 4
            self.comments += decode_texts(read_spans(self.buffer, starts, size.compress(is_comment)))
            for position in positions[fits & (code == 4) & (size == 8)]:
                self.packet_drops += struct.unpack(order + "Q", self.buffer[int(position) + 4 : int(position) + 12])[0]
            positions += 4 + (size + 3 & ~3)
            is_next = fits & (positions + 4 <= end)
            positions, end = positions.compress(is_next), end.compress(is_next)


# --- bytes by position ---


def _word_view(buffer: Buffer, order: str) -> Any:
    """Return a view whose element *i* is the 32-bit word at byte *i*, aligned or not."""
    import numpy as np

    return np.ndarray((max(0, len(buffer) - 3),), order + "u4", buffer, strides=(1,))


def _gather_bytes(buffer: Buffer, offsets: Ints, width: int) -> Any:
    """Return ``width`` bytes at each of these offsets, joined. All must lie inside the buffer."""
    import numpy as np

    if not len(offsets):
        return np.zeros(0, np.uint8)
    view: Any = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return view[offsets].view(np.uint8)


def read_spans(buffer: Buffer, starts: Ints, sizes: Any) -> list[bytes]:
    """Return the bytes at each start. Those of the same size are read together, which takes a third of the time."""
    import numpy as np

    contents = np.empty(len(starts), object)
    for size in set(sizes.tolist()):
        rows = (sizes == size).nonzero()[0]
        view: Any = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, strides=(1,))
        contents[rows] = view[starts[rows]].tolist() if size else b""
    return list(contents.tolist())


def _count_leading_true(condition: Any) -> int:
    """Return the number of true values before the first false one."""
    return len(condition) if condition.all() else int(condition.argmin())


# --- from record to record ---


def _walk_records(
    words: Any, start: int, stop: int, length_at: int, extra: int, sync: Callable[[int, int], int | None]
) -> tuple[Ints, int]:
    """Return the positions of all records that begin from ``start`` to ``stop``, and the position after the last one.

    Each record can only be found from the one before. To walk faster than one at a time, ``sync`` guesses a record in
    each piece of the file, and all pieces are walked at once. A piece counts only if the one before it ends exactly
    where it began. Otherwise it is walked again, one record at a time. So a wrong guess costs time, but never changes
    the result.

    Args:
        words: the 32-bit word at each byte.
        start: the position of a record.
        stop: the position at which to stop. Records that begin here or later are left for later.
        length_at: offset of the length within a record.
        extra: bytes to add to that length to get to the next record.
        sync: returns the first likely record from one position to another.
    """
    import numpy as np

    begins, piece_bytes = [start], _choose_piece_bytes(words, start, stop, length_at, extra)
    for target in range(start + piece_bytes, stop - piece_bytes // 2, piece_bytes):
        if target > begins[-1] and (candidate := sync(target, min(stop, target + _LARGEST_RECORD))) is not None:
            begins.append(candidate)
    if len(begins) == 1:
        return _walk_singly(words, start, stop, length_at, extra)
    limits, positions = np.array([*begins[1:], stop], np.int64), np.array(begins, np.int64)
    lengths, octets = words[length_at:], np.frombuffer(words.base, np.uint8)[length_at:]
    last, steps = len(lengths) - 1, [positions]
    while (positions < limits).any():
        for _ in range(_STEPS):  # walking beyond the limit is harmless
            here_or_last = np.minimum(positions, last)
            octets.take(here_or_last)  # touch the memory first, because waits overlap here but not for unaligned words
            ahead = lengths[here_or_last]
            if extra < 12:
                ahead[ahead < 12] = 0xFFFFFFFF  # no progress, so this is not a record
            positions = positions + ahead + extra
            steps.append(positions)
    all_positions = np.stack(steps, axis=1)
    is_in_piece = all_positions < limits[:, None]
    counts = is_in_piece.sum(1)
    ends = all_positions[np.arange(len(begins)), counts]
    if (ends[:-1] == limits[:-1]).all():
        return all_positions[is_in_piece], int(ends[-1])
    pieces, expected = [], start
    for row, limit in enumerate(limits.tolist()):
        if expected == begins[row]:
            piece, expected = all_positions[row, : counts[row]], int(ends[row])
        elif expected < limit:
            piece, expected = _walk_singly(words, expected, limit, length_at, extra)
        else:
            continue
        pieces.append(piece)
    return np.concatenate(pieces), expected


def _choose_piece_bytes(words: Any, start: int, stop: int, length_at: int, extra: int) -> int:
    """Return the size of pieces. One step of all pieces costs about twice as much as finding the start of one."""
    position, sampled = start, 0
    while sampled < _SAMPLED_RECORDS and position + length_at < len(words) and position < stop:
        position, sampled = position + int(words[position + length_at]) + extra, sampled + 1
    mean_bytes = max(12, (min(position, stop) - start) // max(1, sampled))
    return min(_PIECE_BYTES, max(_MIN_PIECE_BYTES, isqrt(mean_bytes * (stop - start) // 2)))


def _walk_singly(words: Any, start: int, stop: int, length_at: int, extra: int) -> tuple[Ints, int]:
    """Return the starts of records in one piece, and where the next one is expected. Reads one record at a time."""
    import numpy as np

    unpack = struct.Struct(words.dtype.str[0].replace("|", "<") + "I").unpack_from
    buffer, last = memoryview(words.base), len(words) - 1
    starts, position = [], start
    while position < stop:
        starts.append(position)
        if position + length_at > last:
            position = stop + (1 << 40)
            break
        ahead = unpack(buffer, position + length_at)[0] + extra
        if ahead < 12:
            position = stop + (1 << 40)
            break
        position += ahead
    return np.array(starts, np.int64), position


def _make_pcap_sync(buffer: Buffer, order: str, ticks_per_s: int, head: int) -> Callable[[int, int], int | None]:
    """Return a function that finds a likely pcap record.

    It looks for two records in a row with possible lengths and the high half of the first record's time.
    """
    header = struct.Struct(order + "IIII").unpack_from
    if len(buffer) < 24 + head:
        return lambda start, stop: None
    reference = header(buffer, 24)[0]
    pattern = bytes(buffer[26:28]) if order == "<" else bytes(buffer[24:26])
    shift, size = (2 if order == "<" else 0), len(buffer)

    def find_record_end(position: int) -> int | None:
        """Return the end of the record at a position, or None if it is not a likely one."""
        if position + head > size:
            return None
        seconds, fraction, captured, wire = header(buffer, position)
        near = -3600 < seconds - reference < 86400 and fraction < ticks_per_s
        return (
            position + head + captured if near and captured <= _LARGEST_RECORD and captured <= wire < 1 << 20 else None
        )

    def sync(start: int, stop: int) -> int | None:
        position = start
        for _ in range(64):
            position = buffer.find(pattern, position, stop)
            if position < 0:
                return None
            record_end = find_record_end(position - shift)
            if record_end is not None and (record_end >= size or find_record_end(record_end) is not None):
                return position - shift
            position += 1
        return None

    return sync


def _make_pcapng_sync(buffer: Buffer, order: str) -> Callable[[int, int], int | None]:
    """Return a function that finds a likely packet block, with its type and the same length at both ends."""
    pattern, word, size = struct.pack(order + "I", _PACKET), struct.Struct(order + "I").unpack_from, len(buffer)

    def sync(start: int, stop: int) -> int | None:
        position = start
        for _ in range(64):
            position = buffer.find(pattern, position, stop)
            if position < 0:
                return None
            if position % 4 == 0 and position + 8 <= size:
                length = word(buffer, position + 4)[0]
                end = position + length
                if 32 <= length < _LARGEST_RECORD and end <= size and word(buffer, end - 4)[0] == length:
                    return position
            position += 1
        return None

    return sync


def _to_nanoseconds(ticks: Any, ticks_per_s: int) -> Ints:
    """Convert time stamps of any resolution. Those whose result does not fit into 64 bits are garbage."""
    import numpy as np

    if 1_000_000_000 % ticks_per_s == 0:
        return np.asarray((ticks * np.uint64(1_000_000_000 // ticks_per_s)).astype(np.int64))
    if ticks_per_s < 1 << 33:
        seconds, remainder = np.divmod(ticks, np.uint64(ticks_per_s))
        scaled = seconds * np.uint64(1_000_000_000) + remainder * np.uint64(1_000_000_000) // np.uint64(ticks_per_s)
        return np.asarray(scaled.astype(np.int64))
    values = [int(tick) * 1_000_000_000 // ticks_per_s for tick in ticks]
    return np.array([min(value, (1 << 62)) for value in values], np.int64)
