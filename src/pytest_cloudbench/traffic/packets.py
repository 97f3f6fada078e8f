"""Records into the packets of flows: link layer, VLAN, IPv4, IPv6 with its extension headers, TCP and UDP, as columns.

What may live here: headers below the payload. Who talks to whom is numbered here too, since that needs the addresses
and is all that is needed of them. Lengths come from the IP header, never from what was kept of a packet: a capture with
a short snap length counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Batch, Buffer, Ints

__all__ = ["ACK", "FIN", "RST", "SYN", "TCP", "UDP", "Address", "Aside", "Collector", "Packets", "Pair"]

TCP, UDP = 6, 17
FIN, SYN, RST, ACK = 1, 2, 4, 16

_ETHERNET, _NULL, _LOOP, _SLL, _SLL2 = 1, 0, 108, 113, 276
_RAW = (12, 14, 101, 228, 229)
_VLAN = (0x8100, 0x88A8, 0x9100)
_IPV4, _IPV6 = 0x0800, 0x86DD
_EXTENSIONS = (0, 43, 60, 135, 139, 140)  # hop-by-hop, routing, destination, mobility, HIP, shim6: length in 8 bytes
_FRAGMENT, _AUTHENTICATION = 44, 51

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Pair:
    """Two endpoints and their protocol. ``low`` has the smaller address, or the same and the smaller port."""

    protocol: int
    low: Address
    low_port: int
    high: Address
    high_port: int


@dataclass(frozen=True, slots=True)
class Packets:
    """TCP and UDP packets in the order of the file, as columns of equal length.

    Attributes:
        number: of the record, from 1, as tshark's ``frame.number``.
        time_ns: nanoseconds since 1970.
        pair: index of its pair of endpoints.
        from_high: whether the pair's ``high`` endpoint sent it.
        wire: bytes of the whole frame on the wire.
        payload: bytes of TCP or UDP payload on the wire.
        offset: where the payload begins in the file.
        kept: how many bytes of the payload are in the file.
        header: bytes of the TCP or UDP header, which ends at ``offset``.
        flags, seq, ack, window: of TCP; 0 for UDP.
    """

    number: NDArray[np.uint32]
    time_ns: Ints
    pair: NDArray[np.int32]
    from_high: NDArray[np.bool_]
    wire: NDArray[np.uint32]
    payload: NDArray[np.uint32]
    offset: Ints
    kept: NDArray[np.uint32]
    header: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    seq: NDArray[np.uint32]
    ack: NDArray[np.uint32]
    window: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.number)


@dataclass(slots=True)
class Aside:
    """Packets that belong to no flow, and why; each is counted once.

    Attributes:
        not_ip: another protocol than IP (ARP, ...).
        other_ip: IP with something else than TCP and UDP in it.
        fragments: pieces of fragmented IP packets.
        short: cut by the snap length before the end of their headers.
        malformed: headers that contradict themselves.
        not_understood: of a link type that is not known here.
        wire_bytes: bytes on the wire of all of them.
    """

    not_ip: int = 0
    other_ip: int = 0
    fragments: int = 0
    short: int = 0
    malformed: int = 0
    not_understood: int = 0
    wire_bytes: int = 0


@dataclass(slots=True)
class Collector:
    """Takes batches of records, and gives the packets when all have been added.

    Attributes:
        aside: counts of what is in no flow.
        records, wire_bytes: of everything.
        cut: packets of which not everything was kept.
        first_ns, last_ns: the earliest and latest time; None without packets.
    """

    buffer: Buffer
    aside: Aside = field(default_factory=Aside)
    records: int = 0
    wire_bytes: int = 0
    cut: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    _columns: dict[str, list[Any]] = field(default_factory=dict)
    _names: _Names | None = None

    def add(self, batch: Batch) -> None:
        """Understand the headers of some records."""
        if not len(batch.offset):
            return
        self.records += len(batch.offset)
        self.wire_bytes += int(batch.wire.sum())
        self.cut += int((batch.captured < batch.wire).sum())
        low, high = int(batch.time_ns.min()), int(batch.time_ns.max())
        self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
        self.last_ns = high if self.last_ns is None else max(self.last_ns, high)
        if self._names is None:
            self._names = _Names()
        headers = _Headers(self.buffer, batch, self.aside, self._names)
        for name, column in headers.columns().items():
            self._columns.setdefault(name, []).append(column)

    def packets(self) -> Packets:
        """All packets. The collector is empty afterwards."""
        import numpy as np

        if not self._columns:
            empty = {name: np.zeros(0, kind) for name, kind in _KINDS.items()}
            return Packets(**empty)
        joined = {}
        for each in fields(Packets):  # one column at a time, or memory would hold everything twice
            joined[each.name] = np.concatenate(self._columns.pop(each.name))
        return Packets(**joined)

    def pairs(self) -> list[Pair]:
        """The pairs of endpoints that ``Packets.pair`` points to."""
        return self._names.pairs() if self._names else []


_KINDS = {
    "number": "u4", "time_ns": "i8", "pair": "i4", "from_high": "?", "wire": "u4", "payload": "u4", "offset": "i8",
    "kept": "u4", "header": "u1", "flags": "u1", "seq": "u4", "ack": "u4", "window": "u2",
}  # fmt: skip


class _Headers:
    """The headers of one batch, from the outside in. What cannot go further is counted in ``aside``."""

    def __init__(self, buffer: Buffer, batch: Batch, aside: Aside, names: _Names) -> None:
        self.buffer, self.batch, self.aside, self.names = buffer, batch, aside, names
        self.end = batch.offset + batch.captured

    def columns(self) -> dict[str, Any]:
        """A value of each of ``Packets``' columns for every packet that belongs to a flow."""
        import numpy as np

        count = len(self.batch.offset)
        place = self.batch.offset.copy()
        ethertype = np.zeros(count, np.int64)
        self._link(place, ethertype)
        self.protocol = np.zeros(count, np.int64)
        self.transport = np.zeros(count, np.int64)
        self.room = np.zeros(count, np.int64)  # bytes of IP payload on the wire
        self.key = np.zeros(count, np.uint64)
        self.address_low_first = np.zeros(count, np.int8)
        self.source, self.target = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
        rows4, rows6 = np.flatnonzero(ethertype == _IPV4), np.flatnonzero(ethertype == _IPV6)
        self._put_aside("not_ip", np.flatnonzero((ethertype != _IPV4) & (ethertype != _IPV6) & (ethertype >= 0)))
        self.pair_of_addresses = np.zeros(count, np.int64)
        self._ipv4(rows4, place)
        self._ipv6(rows6, place)
        return self._transport()

    def _put_aside(self, why: str, rows: Ints) -> None:
        if len(rows):
            setattr(self.aside, why, getattr(self.aside, why) + len(rows))
            self.aside.wire_bytes += int(self.batch.wire[rows].sum())

    def _u16(self, places: Ints) -> Ints:
        """The 16-bit number at each place. Places must be inside of the file."""
        import numpy as np

        view = np.ndarray((len(self.buffer) - 1,), ">u2", self.buffer, strides=(1,))
        return np.asarray(view[places].astype(np.int64))

    def _bytes(self, places: Ints, width: int) -> Any:
        import numpy as np

        if not len(places):
            return np.zeros((0, width), np.uint8)
        view: Any = np.ndarray((len(self.buffer) - width + 1,), f"V{width}", self.buffer, strides=(1,))
        return view[places].view(np.uint8).reshape(-1, width)

    # --- below IP ---

    def _link(self, place: Ints, ethertype: Ints) -> None:
        """Where the IP header begins, and what it is; -1 for packets that have been counted aside."""
        import numpy as np

        kinds = self.batch.link_type
        for kind in [int(kinds[0])] if (kinds == kinds[0]).all() else np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == kind)
            known = {_ETHERNET: (14, 12), _SLL: (16, 14), _SLL2: (20, 0), _NULL: (4, None), _LOOP: (4, None)}
            if kind not in known and kind not in _RAW:
                self._put_aside("not_understood", rows)
                ethertype[rows] = -1
                continue
            length, type_at = known.get(kind, (0, None))
            fits = place[rows] + length + (type_at is None) <= self.end[rows]
            self._put_aside("short", rows[~fits])
            ethertype[rows[~fits]] = -1
            rows = rows[fits] if not fits.all() else rows
            if type_at is None:
                version = self._bytes(place[rows] + length, 1)[:, 0] >> 4
                ethertype[rows] = np.where(version == 4, _IPV4, np.where(version == 6, _IPV6, 0))
            else:
                ethertype[rows] = self._u16(place[rows] + type_at)
            place[rows] += length
        self._vlan(place, ethertype)

    def _vlan(self, place: Ints, ethertype: Ints) -> None:
        """Skip VLAN tags, also one within another."""
        import numpy as np

        for _ in range(4):
            rows = np.flatnonzero((ethertype == _VLAN[0]) | (ethertype == _VLAN[1]) | (ethertype == _VLAN[2]))
            if not len(rows):
                return
            fits = place[rows] + 4 <= self.end[rows]
            self._put_aside("short", rows[~fits])
            ethertype[rows[~fits]] = -1
            rows = rows[fits]
            ethertype[rows] = self._u16(place[rows] + 2)
            place[rows] += 4

    # --- IP ---

    def _ipv4(self, rows: Ints, place: Ints) -> None:
        import numpy as np

        fits = place[rows] + 20 <= self.end[rows]
        if not fits.all():
            self._put_aside("short", rows[~fits])
            rows = rows[fits]
        if not len(rows):
            return
        at = place[rows]
        raw = self._bytes(at, 20)
        words, halves = raw.view(">u4"), raw.view(">u2")
        header = (raw[:, 0] & 15).astype(np.int64) * 4
        on_wire = self.batch.wire[rows] - (at - self.batch.offset[rows])
        total = halves[:, 1].astype(np.int64)
        total = np.where(
            total == 0, on_wire, np.minimum(total, on_wire)
        )  # 0: longer than 64 kB, by segmentation offload
        sane = (raw[:, 0] >> 4 == 4) & (header >= 20) & (total >= header)
        whole = halves[:, 3] & 0x3FFF == 0
        if not (sane & whole).all():
            self._put_aside("malformed", rows[~sane])
            self._put_aside("fragments", rows[sane & ~whole])
            keep = sane & whole
            rows, at, raw, words, header, total = (part[keep] for part in (rows, at, raw, words, header, total))
        source, target = words[:, 3].astype(np.uint64), words[:, 4].astype(np.uint64)
        self._remember(rows, source, target, at + header, raw[:, 9].astype(np.int64), total - header, 4)

    def _ipv6(self, rows: Ints, place: Ints) -> None:
        import numpy as np

        fits = place[rows] + 40 <= self.end[rows]
        self._put_aside("short", rows[~fits])
        rows = rows[fits]
        if not len(rows):
            return
        at = place[rows]
        raw = self._bytes(at, 40)
        sane = raw[:, 0] >> 4 == 6
        self._put_aside("malformed", rows[~sane])
        rows, at, raw = rows[sane], at[sane], raw[sane]
        on_wire = self.batch.wire[rows] - (at - self.batch.offset[rows]) - 40
        room = raw.view(">u2")[:, 2].astype(np.int64)
        room = np.where(room == 0, on_wire, np.minimum(room, on_wire))  # 0: a jumbogram, or segmentation offload
        protocol, inner = raw[:, 6].astype(np.int64), at + 40
        for _ in range(8):
            more = np.isin(protocol, (*_EXTENSIONS, _AUTHENTICATION, _FRAGMENT))
            if not more.any():
                break
            fragment = protocol == _FRAGMENT
            short = more & ~fragment & ((inner + 8 > self.end[rows]) | (room < 8))
            self._put_aside("fragments", rows[fragment])
            self._put_aside("short", rows[short])
            keep = ~(fragment | short)
            rows, raw, protocol, inner, room, more = (part[keep] for part in (rows, raw, protocol, inner, room, more))
            pair = self._bytes(inner[more], 2).astype(np.int64)
            ahead = np.where(protocol[more] == _AUTHENTICATION, (pair[:, 1] + 2) * 4, (pair[:, 1] + 1) * 8)
            protocol[more] = pair[:, 0]
            inner[more] += ahead
            room[more] -= ahead
        sane = room >= 0
        self._put_aside("malformed", rows[~sane])
        rows, raw, protocol, inner, room = (part[sane] for part in (rows, raw, protocol, inner, room))
        halves = np.ascontiguousarray(raw[:, 8:40]).view(">u8").reshape(-1, 4).astype(np.uint64)
        source = self.names.address6(halves[:, 0], halves[:, 1])
        target = self.names.address6(halves[:, 2], halves[:, 3])
        self._remember(rows, source, target, inner, protocol, room, 6)

    def _remember(
        self, rows: Ints, source: Any, target: Any, inner: Ints, protocol: Ints, room: Ints, version: int
    ) -> None:
        """Keep what TCP and UDP need of these packets."""
        import numpy as np

        flow = (protocol == TCP) | (protocol == UDP)
        if not flow.all():
            self._put_aside("other_ip", rows[~flow])
            rows, source, target, inner, protocol, room = (
                part[flow] for part in (rows, source, target, inner, protocol, room)
            )
        if not len(rows):
            return
        order = np.less(source, target).astype(np.int8) - np.greater(source, target).astype(np.int8)
        self.protocol[rows], self.transport[rows], self.room[rows] = protocol, inner, room
        self.address_low_first[rows] = order
        self.pair_of_addresses[rows] = self.names.addresses(
            np.minimum(source, target), np.maximum(source, target), version
        )

    # --- TCP and UDP ---

    def _transport(self) -> dict[str, Any]:
        import numpy as np

        protocol, at, room, batch = self.protocol, self.transport, self.room, self.batch
        rows = np.flatnonzero(protocol)
        least = np.where(protocol[rows] == TCP, 20, 8)
        short = at[rows] + least > self.end[rows]
        small = room[rows] < least
        if (short | small).any():
            self._put_aside("malformed", rows[small])
            self._put_aside("short", rows[short & ~small])
            rows = rows[~(short | small)]
        count = len(rows)
        at, room, protocol = at[rows], room[rows], protocol[rows]
        tcp = protocol == TCP
        every = bool(tcp.all())
        chosen: Any = slice(None) if every else np.flatnonzero(tcp)
        raw = self._bytes(at[chosen], 20)
        words, halves = raw.view(">u4"), raw.view(">u2")
        header = np.full(count, 8, np.int64)
        header[chosen] = (raw[:, 12] >> 4).astype(np.int64) * 4
        result = {name: np.zeros(count, kind) for name, kind in _KINDS.items() if name in _OF_TCP}
        result["seq"][chosen], result["ack"][chosen] = words[:, 1], words[:, 2]
        result["flags"][chosen], result["window"][chosen] = raw[:, 13], halves[:, 7]
        ports = np.zeros((count, 2), np.uint16)
        ports[chosen] = halves[:, :2]
        payload = room - header
        if not every:
            others = np.flatnonzero(~tcp)
            udp = self._bytes(at[others], 8).view(">u2")
            ports[others] = udp[:, :2]
            said = udp[:, 2].astype(np.int64)  # 0: a jumbogram, or segmentation offload
            payload[others] = np.where(said < 8, room[others], np.minimum(said, room[others])) - 8
        wrong = (header < np.where(tcp, 20, 8)) | (payload < 0)
        result |= self._pairs(rows, ports[:, 0].astype(np.int64), ports[:, 1].astype(np.int64), tcp)
        offset = at + header
        kept = np.clip(self.end[rows] - offset, 0, payload)
        numbers = (rows + batch.first).astype(np.uint32)
        result |= {"number": numbers, "time_ns": batch.time_ns[rows], "wire": batch.wire[rows].astype(np.uint32)}
        result |= {"payload": payload.astype(np.uint32), "offset": offset, "kept": kept.astype(np.uint32)}
        result["header"] = header.astype(np.uint8)
        if wrong.any():
            self._put_aside("malformed", rows[wrong])
            result = {name: column[~wrong] for name, column in result.items()}
        return result

    def _pairs(self, rows: Ints, source: Ints, target: Ints, tcp: Any) -> dict[str, Any]:
        """Number the pairs of endpoints."""
        import numpy as np

        order = self.address_low_first[rows]
        from_high = (order < 0) | ((order == 0) & (source > target))
        low, high = np.where(from_high, target, source), np.where(from_high, source, target)
        key = (self.pair_of_addresses[rows] << 33) | (tcp.astype(np.int64) << 32) | (low << 16) | high
        return {"pair": self.names.endpoints(key.astype(np.uint64)).astype(np.int32), "from_high": from_high}


_OF_TCP = ("flags", "seq", "ack", "window")


class _Numbers:
    """Gives each distinct 64-bit key a number, from 0 in the order of first appearance. Exact, not a hash."""

    _BITS = 16

    def __init__(self) -> None:
        import numpy as np

        self.keys: list[int] = []
        self._known: dict[int, int] = {}
        # The key that was last seen in each slot: most packets are found here, without a look at the dictionary.
        self._slot_key = np.zeros(1 << self._BITS, np.uint64)
        self._slot_number = np.full(1 << self._BITS, -1, np.int64)

    def number(self, keys: Any) -> Ints:
        import numpy as np

        slot = ((keys * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - self._BITS)).astype(np.int64)
        numbers = self._slot_number[slot]
        missed = (self._slot_key[slot] != keys) | (numbers < 0)
        if missed.any():
            rows = np.flatnonzero(missed)
            wanted = keys[rows]
            runs = np.concatenate(([0], np.flatnonzero(wanted[1:] != wanted[:-1]) + 1))  # packets come in runs
            values, first = np.unique(wanted[runs], return_index=True)
            found = np.empty(len(values), np.int64)
            for index in np.argsort(first):
                value = int(values[index])
                number = self._known.get(value)
                if number is None:
                    number = self._known[value] = len(self.keys)
                    self.keys.append(value)
                found[index] = number
            numbers[rows] = found[np.searchsorted(values, wanted)]
            self._slot_key[slot[rows]], self._slot_number[slot[rows]] = keys[rows], numbers[rows]
        return np.asarray(numbers)


class _Names:
    """Numbers for addresses, pairs of addresses and pairs of endpoints, over all batches."""

    def __init__(self) -> None:
        self._upper, self._lower, self._six = _Numbers(), _Numbers(), _Numbers()
        self._both = {4: _Numbers(), 6: _Numbers()}
        self._endpoints = _Numbers()

    def address6(self, upper: Any, lower: Any) -> Any:
        """A number for each IPv6 address, given as two halves."""
        import numpy as np

        key = (self._upper.number(upper) << 32) | self._lower.number(lower)
        return self._six.number(key.astype(np.uint64)).astype(np.uint64)

    def addresses(self, low: Any, high: Any, version: int) -> Ints:
        """A number for each pair of addresses; even ones are IPv4, odd ones IPv6."""
        import numpy as np

        key = (low << np.uint64(32)) | high
        return np.asarray(self._both[version].number(key) * 2 + (version == 6))

    def endpoints(self, key: Any) -> Ints:
        """A number for each pair of endpoints: pair of addresses, protocol, ports."""
        return self._endpoints.number(key)

    def pairs(self) -> list[Pair]:
        """Back from numbers to what they stand for."""
        found = []
        for key in self._endpoints.keys:
            number, is_tcp, ports = key >> 33, key >> 32 & 1, key & 0xFFFFFFFF
            both = self._both[6 if number & 1 else 4].keys[number >> 1]
            low, high = (self._address(part, number & 1) for part in (both >> 32, both & 0xFFFFFFFF))
            found.append(Pair(TCP if is_tcp else UDP, low, ports >> 16, high, ports & 0xFFFF))
        return found

    def _address(self, value: int, is_six: int) -> Address:
        if not is_six:
            return IPv4Address(value)
        key = self._six.keys[value]
        return IPv6Address(self._upper.keys[key >> 32] << 64 | self._lower.keys[key & 0xFFFFFFFF])
