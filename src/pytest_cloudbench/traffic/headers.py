"""The headers of a batch of records, from the link layer inwards to TCP and UDP, as columns.

What may live here: headers below the payload, and what is wrapped around them: tags, labels, tunnels. Lengths come from
the IP header, never from what was kept of a packet: a capture with a short snap length counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic.endpoints import TCP, UDP, Names
from pytest_cloudbench.traffic.fragments import Fragments, Piece

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Batch, Buffer, Ints

__all__ = ["KINDS", "Aside", "Headers"]

KINDS = {
    "number": "u4", "time_ns": "i8", "pair": "i4", "from_high": "?", "wire": "u4", "payload": "u4", "offset": "i8",
    "kept": "u4", "header": "u1", "flags": "u1", "seq": "u4", "ack": "u4", "window": "u2",
}  # fmt: skip
"""The columns, and their types."""
_OF_TCP = ("flags", "seq", "ack", "window")

# What comes next in a packet: an EtherType, or one of these. Below 1,536 it is a length, and LLC follows (802.3).
_DONE, _PPP, _BY_VERSION = -1, 0x10000, 0x10001
_IPV4, _IPV6, _PPPOE, _BRIDGED = 0x0800, 0x86DD, 0x8864, 0x6558
_VLAN, _MPLS, _LLC_BELOW = (0x8100, 0x88A8, 0x9100), (0x8847, 0x8848), 0x600
_HIDDEN = (0x88E5, 0x88E7, 0x22F3, 0x894F)  # MACsec, provider backbone bridges, TRILL, NSH: not looked into
_MOST_WRAPPINGS = 16
_MOST_TUNNELS = 8

# Link types: bytes before the next header, and where its EtherType stands; or what it is.
_LINKS = {1: (14, 12), 113: (16, 14), 276: (20, 0), 104: (4, 2)}  # Ethernet, Linux cooked 1 and 2, Cisco HDLC
_FIXED = {
    0: (4, _BY_VERSION), 108: (4, _BY_VERSION),  # BSD null and loopback
    12: (0, _BY_VERSION), 14: (0, _BY_VERSION), 101: (0, _BY_VERSION), 228: (0, _BY_VERSION), 229: (0, _BY_VERSION),
    9: (0, _PPP), 50: (0, _PPP), 51: (0, _PPPOE),
}  # fmt: skip

_EXTENSIONS = (0, 43, 60, 140)  # hop-by-hop, routing, destination, shim6: length in 8 bytes
_FRAGMENT, _AUTHENTICATION = 44, 51
_IP_IN_IP, _IPV6_IN_IP, _GRE = 4, 41, 47
_VXLAN, _GENEVE = 4789, 6081
_INSIDE = (_IPV4, _IPV6, 0x0806, *_VLAN)
"""What an Ethernet frame within UDP may hold: else it is no tunnel, but another use of the port."""


@dataclass(slots=True)
class Aside:
    """Packets that belong to no flow, and why; each is counted once.

    Attributes:
        not_ip: another protocol than IP (ARP, ...).
        other_ip: IP with something else than TCP and UDP in it.
        fragments: pieces of IP packets of which others are missing.
        joined: pieces of IP packets that are counted, as a whole, with their last piece.
        short: cut by the snap length before the end of their headers.
        malformed: headers that contradict themselves.
        not_understood: of a link type or in a wrapping that is not known here.
        wire_bytes: bytes on the wire of all of them, but for the joined ones, which are in their flow.
    """

    not_ip: int = 0
    other_ip: int = 0
    fragments: int = 0
    joined: int = 0
    short: int = 0
    malformed: int = 0
    not_understood: int = 0
    wire_bytes: int = 0


class Headers:
    """The headers of one batch, from the outside in. What cannot go further is counted in ``aside``."""

    def __init__(self, buffer: Buffer, batch: Batch, aside: Aside, names: Names, fragments: Fragments) -> None:
        import numpy as np

        self.buffer, self.batch, self.aside, self.names, self.fragments = buffer, batch, aside, names, fragments
        count = len(batch.offset)
        self.place = batch.offset.copy()
        self.kind = np.full(count, _DONE, np.int64)  # of the header at ``place``
        self.end = batch.offset + batch.captured  # of what was kept
        self.until = batch.offset + batch.wire  # where the packet would end if everything had been kept
        self.wire = batch.wire
        self.protocol, self.transport = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.room = np.zeros(count, np.int64)  # bytes of IP payload on the wire
        self.address_low_first = np.zeros(count, np.int8)
        self.pair_of_addresses = np.zeros(count, np.int64)

    def columns(self) -> dict[str, Any]:
        """A value of each of ``Packets``' columns for every packet that belongs to a flow."""
        import numpy as np

        self._link()
        for _ in range(_MOST_TUNNELS):
            self._unwrap()
            rows4, rows6 = np.flatnonzero(self.kind == _IPV4), np.flatnonzero(self.kind == _IPV6)
            if len(rows4) + len(rows6) < len(self.kind):
                known = (self.kind == _IPV4) | (self.kind == _IPV6) | (self.kind == _DONE)
                self._put_aside("not_ip", np.flatnonzero(~known))
            self.kind[:] = _DONE  # tunnels say again what is in them
            self._ipv4(rows4)
            self._ipv6(rows6)
            if (self.kind == _DONE).all():
                break
        self._put_aside("not_understood", np.flatnonzero(self.kind != _DONE))
        return self._transport()

    def _put_aside(self, why: str, rows: Ints) -> None:
        if len(rows):
            setattr(self.aside, why, getattr(self.aside, why) + len(rows))
            self.aside.wire_bytes += int(self.wire[rows].sum())
            self.kind[rows] = _DONE

    def _fitting(self, rows: Ints, size: int) -> Ints:
        """Those of the rows of which so many bytes at their place were kept; the others are counted aside."""
        fits = self.place[rows] + size <= self.end[rows]
        if fits.all():
            return rows
        self._put_aside("short", rows[~fits])
        return rows[fits]

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

    def _link(self) -> None:
        """Where the header behind the link layer's begins, and what it is."""
        import numpy as np

        kinds = self.batch.link_type
        for link in [int(kinds[0])] if (kinds == kinds[0]).all() else np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == link)
            if link in _LINKS:
                length, type_at = _LINKS[link]
                rows = self._fitting(rows, length)
                self.kind[rows] = self._u16(self.place[rows] + type_at)
            elif link in _FIXED:
                length, self.kind[rows] = _FIXED[link]
                rows = self._fitting(rows, length)
            else:
                self._put_aside("not_understood", rows)
                continue
            self.place[rows] += length

    def _unwrap(self) -> None:
        """Skip tags, labels and other wrappings, also one within another."""
        import numpy as np

        for _ in range(_MOST_WRAPPINGS):
            kind = self.kind
            if not ((kind != _IPV4) & (kind != _IPV6) & (kind != _DONE)).any():
                return
            stuck = True
            for wanted, length, step in (
                (np.isin(kind, _VLAN), 4, self._tag), (np.isin(kind, _MPLS), 4, self._label),
                (kind == _PPPOE, 6, self._pppoe), (kind == _PPP, 4, self._ppp),
                (kind == _BRIDGED, 14, self._bridged), (kind == _BY_VERSION, 1, self._version),
                ((kind >= 0) & (kind < _LLC_BELOW), 3, self._llc),
            ):  # fmt: skip
                if wanted.any():
                    stuck = False
                    rows = self._fitting(np.flatnonzero(wanted), length)
                    step(rows, self.place[rows])
            if stuck:
                break
        self._put_aside("not_understood", np.flatnonzero(np.isin(self.kind, (*_HIDDEN, *_VLAN, *_MPLS))))

    def _tag(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._u16(at + 2)
        self.place[rows] += 4

    def _label(self, rows: Ints, at: Ints) -> None:
        """MPLS: behind the last label comes IP, whose version tells which; a pseudowire is not looked into."""
        import numpy as np

        last = self._bytes(at + 2, 1)[:, 0] & 1 > 0
        self.place[rows] += 4
        inner = self._fitting(rows[last], 1)
        self._version(inner, self.place[inner])
        self._put_aside("not_understood", inner[np.isin(self.kind[inner], (_IPV4, _IPV6), invert=True)])

    def _pppoe(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = _PPP
        self.place[rows] += 6

    def _ppp(self, rows: Ints, at: Ints) -> None:
        """Address and control may be left out, and the first byte of the protocol too (RFC 1661)."""
        import numpy as np

        start = self._bytes(at, 4).astype(np.int64)
        framed = (start[:, 0] == 0xFF) & (start[:, 1] == 3)
        first = np.where(framed, start[:, 2], start[:, 0])
        compressed = first & 1 > 0
        protocol = np.where(compressed, first, first << 8 | np.where(framed, start[:, 3], start[:, 1]))
        self.place[rows] += np.where(framed, 2, 0) + np.where(compressed, 1, 2)
        known = {0x21: _IPV4, 0x57: _IPV6, 0x281: _MPLS[0]}
        self.kind[rows] = np.select([protocol == key for key in known], list(known.values()), _LLC_BELOW)

    def _bridged(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._u16(at + 12)
        self.place[rows] += 14

    def _version(self, rows: Ints, at: Ints) -> None:
        """Nothing but the version tells what it is."""
        import numpy as np

        version = self._bytes(at, 1)[:, 0] >> 4
        self.kind[rows] = np.select([version == 4, version == 6], [_IPV4, _IPV6], _LLC_BELOW)

    def _llc(self, rows: Ints, at: Ints) -> None:
        """IEEE 802.2, with SNAP or without."""
        import numpy as np

        start = self._bytes(at, 3)
        snap = (start == (0xAA, 0xAA, 3)).all(1)
        bare = (start == (6, 6, 3)).all(1)
        self.kind[rows] = np.where(bare, _IPV4, _LLC_BELOW)
        self.place[rows[bare]] += 3
        inner = self._fitting(rows[snap], 8)
        self.kind[inner] = np.maximum(self._u16(self.place[inner] + 6), _LLC_BELOW)
        self.place[inner] += 8

    # --- IP ---

    def _ipv4(self, rows: Ints) -> None:
        import numpy as np

        rows = self._fitting(rows, 20)
        if not len(rows):
            return
        at = self.place[rows]
        raw = self._bytes(at, 20)
        words, halves = raw.view(">u4"), raw.view(">u2")
        header = (raw[:, 0] & 15).astype(np.int64) * 4
        on_wire = self.until[rows] - at
        total = halves[:, 1].astype(np.int64)
        # 0: longer than 64 kB, by segmentation offload
        total = np.where(total == 0, on_wire, np.minimum(total, on_wire))
        sane = (raw[:, 0] >> 4 == 4) & (header >= 20) & (total >= header)
        whole = halves[:, 3] & 0x3FFF == 0
        source, target, protocol = words[:, 3].astype(np.uint64), words[:, 4].astype(np.uint64), raw[:, 9]
        inner, room = at + header, total - header
        if not (sane & whole).all():
            self._put_aside("malformed", rows[~sane])
            piece = sane & ~whole
            rows = rows.copy()
            begin, last = (halves[:, 3] & 0x1FFF).astype(np.int64) * 8, halves[:, 3] & 0x2000 == 0
            keys = raw[:, [4, 5, 9, *range(12, 20)]]
            done = self._join(rows, piece, keys, begin, last, inner, room, protocol)
            keep = sane & whole | done
            rows, source, target, inner, protocol, room = (
                part[keep] for part in (rows, source, target, inner, protocol, room)
            )
        self._remember(rows, source, target, inner, protocol.astype(np.int64), room, 4)

    def _ipv6(self, rows: Ints) -> None:
        import numpy as np

        rows = self._fitting(rows, 40)
        if not len(rows):
            return
        at = self.place[rows]
        raw = self._bytes(at, 40)
        sane = raw[:, 0] >> 4 == 6
        self._put_aside("malformed", rows[~sane])
        rows, at, raw = rows[sane], at[sane], raw[sane]
        on_wire = self.until[rows] - at - 40
        room = raw.view(">u2")[:, 2].astype(np.int64)
        room = np.where(room == 0, on_wire, np.minimum(room, on_wire))  # 0: a jumbogram, or segmentation offload
        rows, raw, inner, protocol, room = self._extensions(rows, raw, at + 40, raw[:, 6].astype(np.int64), room)
        sane = room >= 0
        self._put_aside("malformed", rows[~sane])
        rows, raw, protocol, inner, room = (part[sane] for part in (rows, raw, protocol, inner, room))
        halves = np.ascontiguousarray(raw[:, 8:40]).view(">u8").reshape(-1, 4).astype(np.uint64)
        source = self.names.address6(halves[:, 0], halves[:, 1])
        target = self.names.address6(halves[:, 2], halves[:, 3])
        self._remember(rows, source, target, inner, protocol, room, 6)

    def _extensions(self, rows: Ints, raw: Any, inner: Ints, protocol: Ints, room: Ints) -> tuple[Any, ...]:
        """Skip IPv6's extension headers, and join fragments."""
        import numpy as np

        for _ in range(_MOST_WRAPPINGS):
            more: Any = np.isin(protocol, (*_EXTENSIONS, _AUTHENTICATION, _FRAGMENT))
            if not more.any():
                break
            short = more & ((inner + 8 > self.end[rows]) | (room < 8))
            self._put_aside("short", rows[short])
            rows, raw, protocol, inner, room, more = (part[~short] for part in (rows, raw, protocol, inner, room, more))
            head = np.zeros((len(rows), 8), np.int64)
            head[more] = self._bytes(inner[more], 8)
            where = head[:, 2] << 8 | head[:, 3]
            piece = (protocol == _FRAGMENT) & (where & 0xFFF9 > 0)
            units = np.where(protocol == _AUTHENTICATION, head[:, 1] + 2, (head[:, 1] + 1) * 2)
            ahead = np.where(protocol == _FRAGMENT, 8, units * 4) * more
            inner, room, protocol = inner + ahead, room - ahead, np.where(more, head[:, 0], protocol)
            if piece.any():
                keys = np.concatenate((raw[:, 8:40], head[:, 4:].astype(np.uint8)), 1)
                done = self._join(rows, piece, keys, where & 0xFFF8, where & 1 == 0, inner, room, protocol)
                keep = ~piece | done
                rows, raw, protocol, inner, room = (part[keep] for part in (rows, raw, protocol, inner, room))
        return rows, raw, inner, protocol, room

    def _join(
        self, rows: Ints, piece: Any, keys: Any, begin: Ints, last: Any, inner: Ints, room: Ints, protocol: Any
    ) -> Any:
        """Hand these pieces on. Says which rows completed a packet, and puts that packet in their place."""
        import numpy as np

        done = np.zeros(len(rows), bool)
        self._put_aside("fragments", rows[piece])
        if self.wire is self.batch.wire:
            self.wire = self.wire.copy()
        for place in np.flatnonzero(piece).tolist():
            row, at, size = int(rows[place]), int(inner[place]), int(room[place])
            end = min(int(self.end[row]), at + size)
            whole = self.fragments.add(
                keys[place].tobytes(),
                Piece(
                    int(begin[place]), size, bool(last[place]), at, end, int(self.wire[row]), int(protocol[place])
                ),
            )  # fmt: skip
            if whole is not None:
                self.aside.fragments -= whole.pieces
                self.aside.joined += whole.pieces - 1
                self.aside.wire_bytes -= whole.wire_bytes
                self.wire[row], self.end[row] = whole.wire_bytes, whole.first.end
                inner[place], room[place], protocol[place] = whole.first.place, whole.size, whole.first.protocol
                done[place] = True
        return done

    def _remember(
        self, rows: Ints, source: Any, target: Any, inner: Ints, protocol: Ints, room: Ints, version: int
    ) -> None:
        """Keep what TCP and UDP need of these packets."""
        import numpy as np

        flow = protocol == TCP
        if not flow.all():
            flow |= protocol == UDP
            flow &= ~self._tunnels(rows, inner, protocol, room)
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

    # --- tunnels ---

    def _tunnels(self, rows: Ints, inner: Ints, protocol: Ints, room: Ints) -> Any:
        """Go on inside of tunnels, and count aside what is no flow. Says which rows were a tunnel."""
        import numpy as np

        ahead, kind = np.zeros(len(rows), np.int64), np.full(len(rows), _DONE)
        kind[protocol == _IP_IN_IP], kind[protocol == _IPV6_IN_IP] = _IPV4, _IPV6
        for wanted, size, step in (
            (protocol == _GRE, 4, self._gre), ((protocol == UDP) & (room >= 30), 30, self._ethernet_in_udp),
        ):  # fmt: skip
            chosen = np.flatnonzero(wanted & (inner + size <= self.end[rows]))
            if len(chosen):
                kind[chosen], ahead[chosen] = step(self._bytes(inner[chosen], size).astype(np.int64))
        tunnel = kind != _DONE
        self._put_aside("not_understood", rows[~tunnel & (protocol == _GRE)])
        self._put_aside("other_ip", rows[~tunnel & (protocol != TCP) & (protocol != UDP) & (protocol != _GRE)])
        chosen = rows[tunnel]
        self.kind[chosen], self.place[chosen] = kind[tunnel], (inner + ahead)[tunnel]
        self.until[chosen] = (inner + room)[tunnel]
        return tunnel

    @staticmethod
    def _gre(head: Ints) -> tuple[Ints, Ints]:
        """Generic routing encapsulation (RFC 2784, 2890): (what is inside, bytes before it)."""
        import numpy as np

        flags = head[:, 0]  # checksum, key and sequence number take four bytes each
        optional = ((flags >> 7 & 1) + (flags >> 5 & 1) + (flags >> 4 & 1)) * 4
        plain = (head[:, 1] & 7 == 0) & (flags & 0x40 == 0)
        inside = np.maximum(head[:, 2] << 8 | head[:, 3], _LLC_BELOW)
        return np.where(plain, inside, _DONE), 4 + optional

    @staticmethod
    def _ethernet_in_udp(head: Ints) -> tuple[Ints, Ints]:
        """VXLAN (RFC 7348) and Geneve (RFC 8926) without options: (what is inside, bytes before it)."""
        import numpy as np

        port = head[:, 2] << 8 | head[:, 3]
        vxlan = (port == _VXLAN) & (head[:, 8] == 8)
        geneve = (port == _GENEVE) & (head[:, 8] == 0) & (head[:, 10] << 8 | head[:, 11] == _BRIDGED)
        inside = np.isin(head[:, 28] << 8 | head[:, 29], _INSIDE)
        return np.where((vxlan | geneve) & inside, _BRIDGED, _DONE), np.full(len(head), 16)

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
        header: Any = np.full(count, 8, np.int64)
        header[chosen] = (raw[:, 12] >> 4).astype(np.int64) * 4
        result = {name: np.zeros(count, kind) for name, kind in KINDS.items() if name in _OF_TCP}
        result["seq"][chosen], result["ack"][chosen] = words[:, 1], words[:, 2]
        result["flags"][chosen], result["window"][chosen] = raw[:, 13], halves[:, 7]
        ports: Any = np.zeros((count, 2), np.uint16)
        ports[chosen] = halves[:, :2]
        payload: Any = room - header
        if not every:
            others = np.flatnonzero(~tcp)
            udp = self._bytes(at[others], 8).view(">u2")
            ports[others] = udp[:, :2]
            said = udp[:, 2].astype(np.int64)  # 0: a jumbogram, or segmentation offload
            payload[others] = np.where(said == 0, room[others], np.minimum(said, room[others])) - 8
        wrong = (header < np.where(tcp, 20, 8)) | (payload < 0)
        if wrong.any():  # before endpoints are numbered: each number has a packet
            self._put_aside("malformed", rows[wrong])
            result = {name: column[~wrong] for name, column in result.items()}
            rows, at, header, payload, ports, tcp = (part[~wrong] for part in (rows, at, header, payload, ports, tcp))
        result |= self._pairs(rows, ports[:, 0].astype(np.int64), ports[:, 1].astype(np.int64), tcp)
        offset = at + header
        kept = np.clip(self.end[rows] - offset, 0, payload)
        numbers = (rows + batch.first).astype(np.uint32)
        result |= {"number": numbers, "time_ns": batch.time_ns[rows], "wire": self.wire[rows].astype(np.uint32)}
        result |= {"payload": payload.astype(np.uint32), "offset": offset, "kept": kept.astype(np.uint32)}
        result["header"] = header.astype(np.uint8)
        return result

    def _pairs(self, rows: Ints, source: Ints, target: Ints, tcp: Any) -> dict[str, Any]:
        """Number the pairs of endpoints."""
        import numpy as np

        order = self.address_low_first[rows]
        from_high = (order < 0) | ((order == 0) & (source > target))
        low, high = np.where(from_high, target, source), np.where(from_high, source, target)
        key = (self.pair_of_addresses[rows] << 33) | (tcp.astype(np.int64) << 32) | (low << 16) | high
        return {"pair": self.names.endpoints(key.astype(np.uint64)).astype(np.int32), "from_high": from_high}
