"""Finds the records in capture files: where each packet lies in the file, when it was seen and how long it was.

What may live here: the formats pcap and pcapng. What is inside a packet is ``packets``' business. Pure: bytes are
handed in, and may be a memory-mapped file. Finding the records is the one step that must go from each to the next, so
it is done for hundreds of places of the file side by side (see ``_walk``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import MIB, UsageError

if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Buffer = bytes | mmap

WINDOW_BYTES = 64 * MIB
"""The file is read in windows of this size, so that a mapped file's earlier pages can be given back."""
BATCH_RECORDS = 16384
"""How many records are handed on together: few enough for their headers to stay in the processor's cache."""

_PIECE_BYTES, _LEAST_PIECE_BYTES, _SAMPLED = 128 * 1024, 8 * 1024, 64
_STEPS, _NOWHERE = 8, 1 << 41
_LARGEST_RECORD = 262144  # libpcap's MAXIMUM_SNAPLEN
_LARGEST_BLOCK = 128 * MIB + 131072  # as in Wireshark
_PCAP_MAGICS = {  # byte order, nanoseconds of a tick, bytes before each packet: 24 as patched by Alexey Kuznetzov
    b"\xd4\xc3\xb2\xa1": ("<", 1000, 16), b"\xa1\xb2\xc3\xd4": (">", 1000, 16),
    b"\x4d\x3c\xb2\xa1": ("<", 1, 16), b"\xa1\xb2\x3c\x4d": (">", 1, 16),
    b"\x34\xcd\xb2\xa1": ("<", 1000, 24), b"\xa1\xb2\xcd\x34": (">", 1000, 24),
}  # fmt: skip
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE, _STATISTICS, _PACKET = 0x0A0D0D0A, 1, 2, 3, 5, 6
_COMPRESSED = {b"\x1f\x8b": "gzip", b"(\xb5": "zstd", b"\x04\x22": "lz4"}


@dataclass(slots=True)
class Interface:
    """Where packets were captured, and what its capture statistics say. None means "the file does not say".

    Attributes:
        link_type: LINKTYPE_ value of its packets.
        snaplen: most bytes kept of a packet; 0 for no limit.
        ticks_per_s: resolution of its time stamps.
        offset_s: added to every time stamp.
        name: as the system calls it.
        received, dropped, os_dropped: ``isb_ifrecv``, ``isb_ifdrop``, ``isb_osdrop`` of the last statistics block.
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
        """Packets that the capture lost; None when nothing was said about it."""
        if self.dropped is None and self.os_dropped is None:
            return None
        return (self.dropped or 0) + (self.os_dropped or 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some consecutive records, as columns.

    Attributes:
        first: the number of the first one in the file, from 1.
        offset: where the packet's bytes begin in the file.
        captured: how many of its bytes are in the file.
        wire: how many it had on the wire.
        time_ns: nanoseconds since 1970.
        link_type: of each record.
    """

    first: int
    offset: Ints
    captured: Ints
    wire: Ints
    time_ns: Ints
    link_type: Ints

    def some(self, rows: Ints) -> Batch:
        """These rows of it; ``first`` stays."""
        columns = (self.offset, self.captured, self.wire, self.time_ns, self.link_type)
        return Batch(self.first, *(column[rows] for column in columns))


@dataclass(slots=True)
class Reader:
    """Iterates once over a capture file's records. The other attributes are complete when the iteration has ended.

    Raises UsageError if the bytes are not a capture file. Garbage after a good start ends the iteration: what is
    readable is kept, and ``reason`` says what is wrong.

    Attributes:
        buffer: the whole file.
        source: what errors call it.
        release: called with a place in the file before which no more will be read.
        format: ``pcap`` or ``pcapng``.
        interfaces: of all sections; a pcap file has one.
        comments: of sections and packets, in the order of the file.
        reason: why the file is not complete, or None.
        records: how many there were.
        untimed: how many had no time stamp (simple packet blocks).
        longer: how many have more bytes in the file than the stated length of the packet.
        packet_drops: sum of the drop counts that packets carry.
        programs: for each section, the program that it names as its writer, and the number of its first interface.
    """

    buffer: Buffer
    source: str = "capture"
    release: Callable[[int], None] = lambda place: None
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
        """Whether dumpcap wrote a section without the statistics with which it ends one, because it was killed.

        Ring buffers lack them too, and so do files that editcap and tshark derived under dumpcap's name.
        """
        ends = [first for _, first in self.programs[1:]] + [len(self.interfaces)]
        for (program, first), end in zip(self.programs, ends, strict=False):  # pcap has no sections
            own = self.interfaces[first:end]
            if program.startswith("Dumpcap") and all(each.received is None and each.drops is None for each in own):
                return True
        return False

    @property
    def is_complete(self) -> bool:
        """Whether the file ends where a record ends."""
        return self.reason is None

    def __iter__(self) -> Iterator[Batch]:
        head = bytes(self.buffer[:4])
        if head in _PCAP_MAGICS:
            self.format = "pcap"
            return self._pcap(*_PCAP_MAGICS[head])
        if head == b"\n\r\r\n":
            self.format = "pcapng"
            return self._pcapng()
        kind = _COMPRESSED.get(head[:2])
        hint = f"it is compressed ({kind}): unpack it first" if kind else "expected a pcap or pcapng file"
        raise UsageError(f"{self.source}: {'it is empty: ' if not head else ''}{hint}")

    # --- pcap: a header of 24 bytes, then 16 bytes or more before each packet ---

    def _pcap(self, order: str, fraction_ns: int, head: int) -> Iterator[Batch]:
        import numpy as np

        if len(self.buffer) < 24:
            raise UsageError(f"{self.source}: it ends within the file's header: expected a pcap or pcapng file")
        snaplen, link = struct.unpack(order + "II", self.buffer[16:24])
        link_type = link & 0xFFFF
        self.interfaces.append(Interface(link_type, snaplen, 1_000_000_000 // fraction_ns))
        size, place = len(self.buffer), 24
        words = _words(self.buffer, order)
        largest = max(_LARGEST_RECORD, min(snaplen, _LARGEST_BLOCK))
        sync = _pcap_sync(self.buffer, order, 1_000_000_000 // fraction_ns, head)
        while place < size:
            found, place = _walk(words, place, min(place + WINDOW_BYTES, size), 8, head, sync)
            for begin in range(0, len(found), BATCH_RECORDS):
                at = found[begin : begin + BATCH_RECORDS]
                at = at[: _good(at + head <= size)]
                raw = _take(self.buffer, at, 16).view(order + "u4").reshape(-1, 4)
                captured = raw[:, 2].astype(np.int64)
                wrong = _good((captured <= largest) & (at + head + captured <= size))
                if wrong < len(found[begin : begin + BATCH_RECORDS]):
                    cut = int(found[begin + wrong])
                    whole = wrong < len(at) and captured[wrong] > largest
                    self._stop(wrong, cut, f"a length of {int(captured[wrong]):,} bytes" if whole else None)
                    at, raw, captured = at[:wrong], raw[:wrong], captured[:wrong]
                    place = size
                time_ns = raw[:, 0].astype(np.int64) * 1_000_000_000 + raw[:, 1].astype(np.int64) * fraction_ns
                wire = raw[:, 3].astype(np.int64)
                yield self._batch(at + head, captured, wire, time_ns, np.broadcast_to(np.int64(link_type), len(at)))
                if self.reason:
                    return
            self.release(min(place, size))

    def _batch(self, offset: Ints, captured: Ints, wire: Ints, time_ns: Ints, link_type: Ints) -> Batch:
        import numpy as np

        first = self.records + 1
        self.records += len(offset)
        too_long = captured > wire
        if too_long.any():  # a packet cannot have been shorter than what was kept of it
            self.longer += int(too_long.sum())
            wire = np.maximum(captured, wire)
        return Batch(first, offset, captured, wire, time_ns, link_type)

    def _stop(self, good: int, place: int, what: str | None) -> None:
        number = self.records + good + 1
        if what is None:
            self.reason = f"the file ends within record {number:,}"
        else:
            self.reason = f"record {number:,} at byte {place:,} has {what}, which cannot be: the rest is left out"

    # --- pcapng: blocks, of which some hold a packet ---

    def _pcapng(self) -> Iterator[Batch]:
        place, size = 0, len(self.buffer)
        while place < size and self.reason is None:
            place = yield from self._section(place)

    def _section(self, start: int) -> Generator[Batch, None, int]:
        """One section. Returns where the next one begins."""
        import numpy as np

        size = len(self.buffer)
        magic = bytes(self.buffer[start + 8 : start + 12])
        order = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}.get(magic)
        if order is None or size < start + 28:
            if not start:
                raise UsageError(f"{self.source}: its section header cannot be read: expected a pcap or pcapng file")
            self.reason = f"the section at byte {start:,} has no readable header: the rest is left out"
            return size
        major = struct.unpack(order + "H", self.buffer[start + 12 : start + 14])[0]
        if major != 1:
            what = f"the section at byte {start:,} is of pcapng version {major}, which is not known"
            if not start:
                raise UsageError(f"{self.source}: {what}")
            self.reason = f"{what}: the rest is left out"
            return size
        words, base, place = _words(self.buffer, order), len(self.interfaces), start
        sync = _pcapng_sync(self.buffer, order)
        while place < size:
            blocks, place = _walk(words, place, min(place + WINDOW_BYTES, size), 4, 0, sync)
            inside = blocks[: _good(blocks + 12 <= size)]
            types, lengths = words[inside].astype(np.int64), words[inside + 4].astype(np.int64)
            fits = (lengths >= 12) & (lengths % 4 == 0) & (lengths <= _LARGEST_BLOCK) & (inside + lengths <= size)
            count = _good(fits)
            trailer = words[inside[:count] + lengths[:count] - 4]
            count = _good(trailer == lengths[:count])
            # A section's length is in its own byte order, so it may look wrong; its type reads the same in both.
            following = np.flatnonzero((types[: count + 1] == _SECTION) & (inside[: count + 1] > start))
            if len(following):
                count = int(following[0])
                place = int(inside[count])
            blocks_good, types, lengths = inside[:count], types[:count], lengths[:count]
            self._notes(blocks_good, types, lengths, order, base)
            yield from self._packets(blocks_good, types, lengths, words, order, base)
            if len(following):
                return place
            if count < len(blocks):
                cut = int(blocks[count])
                ends = cut + 12 > size or (fits[:count].all() and lengths.size == count and self._runs_out(cut, order))
                self._stop(0, cut, None if ends else "a block length")
                return size
            self.release(min(place, size))
        return size

    def _runs_out(self, place: int, order: str) -> bool:
        """Whether a block is of a possible length, and the file ends before it does."""
        length = struct.unpack(order + "I", self.buffer[place + 4 : place + 8])[0]
        return bool(12 <= length <= _LARGEST_BLOCK and length % 4 == 0 and place + length > len(self.buffer))

    def _notes(self, blocks: Ints, types: Ints, lengths: Ints, order: str, base: int) -> None:
        """Interfaces, statistics and comments; all other blocks (names, secrets, ...) are skipped."""
        import numpy as np

        for row in np.flatnonzero((types == _SECTION) | (types == _INTERFACE) | (types == _STATISTICS)):
            place, length = int(blocks[row]), int(lengths[row])
            body = bytes(self.buffer[place + 8 : place + length - 4])
            kind = int(types[row])
            if kind == _SECTION:
                options = list(_options(body[16:], order))
                self.comments += [_text(value) for code, value in options if code == 1]
                program = next((_text(value) for code, value in options if code == 4), "")
                self.programs.append((program, len(self.interfaces)))
            elif kind == _INTERFACE and len(body) >= 8:
                self.interfaces.append(_interface(body, order))
            elif kind == _STATISTICS and len(body) >= 12:
                number = base + struct.unpack(order + "I", body[:4])[0]
                if number < len(self.interfaces):
                    _statistics(self.interfaces[number], body[12:], order)

    def _packets(self, blocks: Ints, types: Ints, lengths: Ints, words: Any, order: str, base: int) -> Iterator[Batch]:
        import numpy as np

        rows = np.flatnonzero((types == _PACKET) | (types == _OLD_PACKET) | (types == _SIMPLE))
        for begin in range(0, len(rows), BATCH_RECORDS):
            row = rows[begin : begin + BATCH_RECORDS]
            at, kind, length = blocks[row], types[row], lengths[row]
            simple = kind == _SIMPLE
            head = (
                _take(self.buffer, np.minimum(at, max(0, len(self.buffer) - 28)), 28).view(order + "u4").reshape(-1, 7)
            )
            number = head[:, 2].astype(np.int64)
            old = kind == _OLD_PACKET
            if old.any():
                place = at[old] + 8
                number[old] = _take(self.buffer, place, 2).view(order + "u2").astype(np.int64)
            captured, wire = head[:, 5].astype(np.int64), head[:, 6].astype(np.int64)
            ticks = (head[:, 3].astype(np.uint64) << np.uint64(32)) | head[:, 4].astype(np.uint64)
            offset, room = at + 28, length - 32
            if simple.any():
                number[simple], ticks[simple] = 0, 0
                wire[simple] = words[at[simple] + 8]
                offset[simple], room[simple] = at[simple] + 12, length[simple] - 16
                snap = self.interfaces[base].snaplen if base < len(self.interfaces) else 0
                captured[simple] = np.minimum(wire[simple], snap or _LARGEST_RECORD)
                self.untimed += int(simple.sum())
            known = (number < len(self.interfaces) - base) & (room >= 0) & (captured <= room)
            good = _good(known)
            if good < len(row):
                unknown = number[good] >= len(self.interfaces) - base
                what = "an interface that was not described" if unknown else "a packet longer than its block"
                self._stop(good, int(at[good]), what)
            keep = slice(0, good)
            number, offset, captured, room = number[keep], offset[keep], captured[keep], room[keep]
            self._packet_options(kind[keep], offset, captured, room, words, order)
            link_type, time_ns = self._timed(number + base, ticks[keep])
            yield self._batch(offset, captured, wire[keep], time_ns, link_type)
            if self.reason:
                return

    def _timed(self, number: Ints, ticks: Any) -> tuple[Ints, Ints]:
        """Link types and times of packets of these interfaces."""
        import numpy as np

        link_type, time_ns = np.zeros(len(number), np.int64), np.zeros(len(number), np.int64)
        for each in [int(number[0])] if len(number) and (number == number[0]).all() else np.unique(number):
            interface = self.interfaces[each]
            rows: Any = slice(None) if len(number) and (number == each).all() else number == each
            link_type[rows] = interface.link_type
            time_ns[rows] = _nanoseconds(ticks[rows], interface.ticks_per_s) + interface.offset_s * 1_000_000_000
        return link_type, time_ns

    def _packet_options(self, kind: Ints, offset: Ints, captured: Ints, room: Ints, words: Any, order: str) -> None:
        """Comments and drop counts of packets that have any, stepping through all of them side by side."""
        import numpy as np

        padded = captured + (-captured % 4)
        place, end = offset + padded, offset + room
        place, end = (part[(kind == _PACKET) & (place + 4 <= end)] for part in (place, end))
        while len(place):
            pair = _take(self.buffer, place, 4).view(order + "u2").reshape(-1, 2).astype(np.int64)
            code, size = pair[:, 0], pair[:, 1]
            fits = (code != 0) & (place + 4 + size <= end)
            for at, length in zip(place[fits & (code == 1)], size[fits & (code == 1)], strict=True):
                self.comments.append(_text(bytes(self.buffer[int(at) + 4 : int(at) + 4 + int(length)])))
            for at in place[fits & (code == 4) & (size == 8)]:
                self.packet_drops += struct.unpack(order + "Q", self.buffer[int(at) + 4 : int(at) + 12])[0]
            place, end = (place + 4 + size + (-size % 4))[fits], end[fits]
            place, end = place[place + 4 <= end], end[place + 4 <= end]


# --- bytes by place ---


def _words(buffer: Buffer, order: str) -> Any:
    """A view in which element *i* is the 32-bit word at byte *i*, aligned or not."""
    import numpy as np

    return np.ndarray((max(0, len(buffer) - 3),), order + "u4", buffer, strides=(1,))


def _take(buffer: Buffer, places: Ints, width: int) -> Any:
    """``width`` bytes at each of these places, joined. Places must lie inside the buffer."""
    import numpy as np

    if not len(places):
        return np.zeros(0, np.uint8)
    view: Any = np.ndarray((len(buffer) - width + 1,), f"V{width}", buffer, strides=(1,))
    return view[places].view(np.uint8)


def _good(condition: Any) -> int:
    """How many values at the beginning are true."""
    return len(condition) if condition.all() else int(condition.argmin())


# --- from record to record ---


def _walk(
    words: Any, start: int, stop: int, length_at: int, extra: int, sync: Callable[[int, int], int | None]
) -> tuple[Ints, int]:
    """The places of all records that begin in ``start`` to ``stop``, and the place after the last of them.

    The next record is known only from the one before. To go faster than one at a time, a likely record is looked up
    (``sync``) in each piece of the file, and all pieces are walked at once. A piece counts only if the one before it
    ends exactly where it began; else it is walked again, one record at a time. So a wrong guess costs time, and
    never changes the result.

    Args:
        words: the 32-bit word at each byte.
        start: where a record is known to begin.
        stop: records that begin here or later are left for later.
        length_at: where a record holds its length.
        extra: what is added to that length to get to the next record.
        sync: (from, to) to the first likely record in between.
    """
    import numpy as np

    begins, apart = [start], _piece_bytes(words, start, stop, length_at, extra)
    for target in range(start + apart, stop - apart // 2, apart):
        if target > begins[-1] and (found := sync(target, min(stop, target + _LARGEST_RECORD))) is not None:
            begins.append(found)
    if len(begins) == 1:
        return _walk_one(words, start, stop, length_at, extra)
    limits, here = np.array([*begins[1:], stop], np.int64), np.array(begins, np.int64)
    lengths, octets = words[length_at:], np.frombuffer(words.base, np.uint8)[length_at:]
    last, steps = len(lengths) - 1, [here]
    while (here < limits).any():
        for _ in range(_STEPS):  # walking on beyond the limit does no harm
            here_or_last = np.minimum(here, last)
            octets.take(here_or_last)  # waits for memory overlap here, which they would not for unaligned words
            ahead = lengths[here_or_last]
            if extra < 12:
                ahead = np.where(ahead < 12, 0xFFFFFFFF, ahead)  # no progress: not a record
            here = np.minimum(here + ahead + extra, _NOWHERE)
            steps.append(here)
    table = np.stack(steps, axis=1)
    own = table < limits[:, None]
    counts = own.sum(1)
    ends = table[np.arange(len(begins)), counts]
    if (ends[:-1] == limits[:-1]).all():
        return table[own], int(ends[-1])
    pieces, expected = [], start
    for row, limit in enumerate(limits.tolist()):
        if expected == begins[row]:
            piece, expected = table[row, : counts[row]], int(ends[row])
        elif expected < limit:
            piece, expected = _walk_one(words, expected, limit, length_at, extra)
        else:
            continue
        pieces.append(piece)
    return np.concatenate(pieces), expected


def _piece_bytes(words: Any, start: int, stop: int, length_at: int, extra: int) -> int:
    """The distance between pieces: one step of all pieces costs about twice as much as finding the start of one."""
    place, seen = start, 0
    while seen < _SAMPLED and place + length_at < len(words) and place < stop:
        place, seen = place + int(words[place + length_at]) + extra, seen + 1
    mean_bytes = max(12, (min(place, stop) - start) // max(1, seen))
    return min(_PIECE_BYTES, max(_LEAST_PIECE_BYTES, isqrt(mean_bytes * (stop - start) // 2)))


def _walk_one(words: Any, start: int, stop: int, length_at: int, extra: int) -> tuple[Ints, int]:
    """The same for one piece, one record at a time."""
    import numpy as np

    unpack = struct.Struct(words.dtype.str[0].replace("|", "<") + "I").unpack_from
    buffer, last = memoryview(words.base), len(words) - 1
    found, place = [], start
    while place < stop:
        found.append(place)
        if place + length_at > last:
            place = stop + (1 << 40)
            break
        ahead = unpack(buffer, place + length_at)[0] + extra
        if ahead < 12:
            place = stop + (1 << 40)
            break
        place += ahead
    return np.array(found, np.int64), place


def _pcap_sync(buffer: Buffer, order: str, ticks_per_s: int, head: int) -> Callable[[int, int], int | None]:
    """A likely pcap record: two in a row with the high half of the first record's time, and possible lengths."""
    header = struct.Struct(order + "IIII").unpack_from
    if len(buffer) < 24 + head:
        return lambda start, stop: None
    reference = header(buffer, 24)[0]
    pattern = bytes(buffer[26:28]) if order == "<" else bytes(buffer[24:26])
    shift, size = (2 if order == "<" else 0), len(buffer)

    def likely(place: int) -> int | None:
        """Where the record ends, or None."""
        if place + head > size:
            return None
        seconds, fraction, captured, wire = header(buffer, place)
        near = -3600 < seconds - reference < 86400 and fraction < ticks_per_s
        return place + head + captured if near and captured <= _LARGEST_RECORD and captured <= wire < 1 << 20 else None

    def sync(start: int, stop: int) -> int | None:
        place = start
        for _ in range(64):
            place = buffer.find(pattern, place, stop)
            if place < 0:
                return None
            following = likely(place - shift)
            if following is not None and (following >= size or likely(following) is not None):
                return place - shift
            place += 1
        return None

    return sync


def _pcapng_sync(buffer: Buffer, order: str) -> Callable[[int, int], int | None]:
    """A likely packet block: its type, and the same length at both of its ends."""
    pattern, word, size = struct.pack(order + "I", _PACKET), struct.Struct(order + "I").unpack_from, len(buffer)

    def sync(start: int, stop: int) -> int | None:
        place = start
        for _ in range(64):
            place = buffer.find(pattern, place, stop)
            if place < 0:
                return None
            if place % 4 == 0 and place + 8 <= size:
                length = word(buffer, place + 4)[0]
                end = place + length
                if 32 <= length < _LARGEST_RECORD and end <= size and word(buffer, end - 4)[0] == length:
                    return place
            place += 1
        return None

    return sync


# --- options of pcapng blocks ---


def _options(body: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """(code, value) up to the end mark; an option that runs out of its block ends them."""
    place = 0
    while place + 4 <= len(body):
        code, length = struct.unpack(order + "HH", body[place : place + 4])
        if code == 0 or place + 4 + length > len(body):
            return
        yield code, body[place + 4 : place + 4 + length]
        place += 4 + length + -length % 4


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").rstrip("\0")


def _interface(body: bytes, order: str) -> Interface:
    link_type, _, snaplen = struct.unpack(order + "HHI", body[:8])
    interface = Interface(link_type, snaplen)
    for code, value in _options(body[8:], order):
        if code == 2:
            interface.name = _text(value)
        elif code == 9 and value:
            power = value[0] & 0x7F
            interface.ticks_per_s = 2 ** min(power, 63) if value[0] & 0x80 else 10 ** min(power, 19)
        elif code == 14 and len(value) == 8:
            interface.offset_s = max(-(10**9), min(10**9, struct.unpack(order + "q", value)[0]))
    return interface


def _statistics(interface: Interface, body: bytes, order: str) -> None:
    for code, value in _options(body, order):
        if code in (4, 5, 7) and len(value) == 8:
            count = struct.unpack(order + "Q", value)[0]
            setattr(interface, {4: "received", 5: "dropped", 7: "os_dropped"}[code], count)


def _nanoseconds(ticks: Any, ticks_per_s: int) -> Ints:
    """Converts time stamps of any resolution. If 64 bits cannot hold the result, the time stamp was garbage."""
    import numpy as np

    if 1_000_000_000 % ticks_per_s == 0:
        return np.asarray((ticks * np.uint64(1_000_000_000 // ticks_per_s)).astype(np.int64))
    if ticks_per_s < 1 << 33:
        whole, rest = np.divmod(ticks, np.uint64(ticks_per_s))
        scaled = whole * np.uint64(1_000_000_000) + rest * np.uint64(1_000_000_000) // np.uint64(ticks_per_s)
        return np.asarray(scaled.astype(np.int64))
    values = [int(tick) * 1_000_000_000 // ticks_per_s for tick in ticks]
    return np.array([min(value, (1 << 62)) for value in values], np.int64)
