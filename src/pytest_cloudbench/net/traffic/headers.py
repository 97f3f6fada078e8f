"""The headers of a batch of records, from the link layer inwards to TCP and UDP, as columns.

What may live here: headers below the payload, and what is wrapped around them: tags, labels, tunnels. Lengths come from
the IP header, never from what was kept of a packet: a capture with a short snap length counts the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_cloudbench.net.traffic import tunnels, wrappings
from pytest_cloudbench.net.traffic.endpoints import TCP, UDP, Names
from pytest_cloudbench.net.traffic.fragments import Fragment, Fragments, Whole
from pytest_cloudbench.net.traffic.tunnels import BRIDGED, DONE, ERSPAN2, ERSPAN3, IPV4, IPV6

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Batch, Buffer, Ints

SENTINEL, SENTINEL_ADDRESS = b"cloudbench-sentinel ", int(IPv4Address("233.252.0.9"))
"""What ``net.capture.guard`` sends before and after a measurement, and to where. Repeated here: it cannot be
imported."""

KINDS = {
    "number": "u4", "time_ns": "i8", "pair": "i4", "from_high": "?", "wire": "u4", "payload": "u4", "offset": "i8",
    "kept": "u4", "header": "u1", "flags": "u1", "seq": "u4", "ack": "u4", "window": "u2",
}  # fmt: skip
"""The columns, and their types."""
_OF_TCP = ("flags", "seq", "ack", "window")

# What comes next in a packet: an EtherType, or one of these. A value below 1,536 is a length, and LLC follows (802.3).
_PPP, _BY_VERSION = 0x10000, 0x10001
_PPPOE = 0x8864
_VLAN, _MPLS, _LLC_BELOW = (0x8100, 0x88A8, 0x9100), (0x8847, 0x8848), 0x600
_MOST_WRAPPINGS = 16
_MOST_SENTINEL = 128
_MOST_TUNNELS = 8

# Link types: bytes before the next header, and the place of its EtherType; or what it is.
_LINKS = {1: (14, 12), 113: (16, 14), 276: (20, 0), 104: (4, 2)}  # Ethernet, Linux cooked 1 and 2, Cisco HDLC
_FIXED = {
    0: (4, _BY_VERSION), 108: (4, _BY_VERSION),  # BSD null and loopback
    12: (0, _BY_VERSION), 14: (0, _BY_VERSION), 101: (0, _BY_VERSION), 228: (0, _BY_VERSION), 229: (0, _BY_VERSION),
    9: (0, _PPP), 50: (0, _PPP), 51: (0, _PPPOE),
}  # fmt: skip

_EXTENSIONS = (0, 43, 60, 140)  # hop-by-hop, routing, destination, shim6: length in 8 bytes
_FRAGMENT, _AUTHENTICATION = 44, 51
_GRE_CONTROL = (0, 0xFE)  # keep-alives, OSI routing
_MOST_HEADER = 60
_IP_IN_IP, _IPV6_IN_IP, _GRE = 4, 41, 47


@dataclass(slots=True)
class Aside:
    """Packets that belong to no flow, and why; each is counted once.

    Attributes:
        not_ip: a protocol other than IP (ARP, ...).
        other_ip: IP with something other than TCP and UDP in it.
        fragments: pieces of IP packets of which others are missing.
        joined: pieces of IP packets that are counted as one packet with their last piece.
        short: cut by the snap length before the end of their headers.
        malformed: headers that contradict themselves.
        not_understood: of a link type or in a wrapping that is not known here.
        wire_bytes: bytes on the wire of all of them except the joined ones, which count in their flow.
        hidden: names of the wrappings that were not looked into: those of ``not_understood``, and tunnels in UDP, whose
            packets count in the flow that carries them.
    """

    COUNTS: ClassVar = (
        "not_ip", "other_ip", "fragments", "joined", "short", "malformed", "not_understood", "wire_bytes",
    )  # fmt: skip

    not_ip: int = 0
    other_ip: int = 0
    fragments: int = 0
    joined: int = 0
    short: int = 0
    malformed: int = 0
    not_understood: int = 0
    wire_bytes: int = 0
    hidden: Counter[str] = field(default_factory=Counter)


class Headers:
    """The headers of one batch, from the outside in. Packets that cannot be decoded further are counted in
    ``aside``.
    """

    def __init__(self, buffer: Buffer, batch: Batch, aside: Aside, names: Names, fragments: Fragments) -> None:
        import numpy as np

        self.buffer, self.batch, self.aside, self.names, self.fragments = buffer, batch, aside, names, fragments
        count = len(batch.offset)
        self.place = batch.offset.copy()
        self.kind = np.full(count, DONE, np.int64)  # of the header at ``place``
        self.end = batch.offset + batch.captured  # of what was kept
        self.until = batch.offset + batch.wire  # where the packet would end if everything had been kept
        self.wire = batch.wire
        self.protocol, self.transport = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.room = np.zeros(count, np.int64)  # bytes of IP payload on the wire
        self.address_low_first = np.zeros(count, np.int8)
        self.between = np.zeros(count, np.int64)  # number of the pair of addresses
        self.sentinels: dict[int, bytes] = {}  # row to its content, if nothing was cut
        self.split: dict[int, Whole] = {}  # row to its packet, if the first piece may end within the TCP header

    def columns(self) -> dict[str, Any]:
        """Each of ``Packets``' columns, with a value for every packet that belongs to a flow."""
        import numpy as np

        self._link()
        for _ in range(_MOST_TUNNELS):
            self._unwrap()
            rows4, rows6 = np.flatnonzero(self.kind == IPV4), np.flatnonzero(self.kind == IPV6)
            if len(rows4) + len(rows6) < len(self.kind):
                known = (self.kind == IPV4) | (self.kind == IPV6) | (self.kind == DONE)
                self._no_ip(np.flatnonzero(~known))
            self.kind[:] = DONE  # each tunnel sets again what is inside
            self._ipv4(rows4)
            self._ipv6(rows6)
            if (self.kind == DONE).all():
                break
        self._hide(np.flatnonzero(self.kind != DONE), f"more than {_MOST_TUNNELS} tunnels")
        return self._transport()

    def _put_aside(self, why: str, rows: Ints) -> None:
        if len(rows):
            setattr(self.aside, why, getattr(self.aside, why) + len(rows))
            self.aside.wire_bytes += int(self.wire[rows].sum())
            self.kind[rows] = DONE

    def _hide(self, rows: Ints, name: str) -> None:
        """Count aside packets that may hold flows which are not looked for."""
        if len(rows):
            self.aside.hidden[name] += len(rows)
            self._put_aside("not_understood", rows)

    def _hide_each(self, rows: Ints, numbers: Ints, name: Callable[[int], str]) -> None:
        """The same for several kinds at once, each with a number."""
        import numpy as np

        for number in np.unique(numbers).tolist():
            self._hide(rows[numbers == number], name(number))

    def _no_ip(self, rows: Ints) -> None:
        """Count rows aside whose kind is known and is not IP."""
        import numpy as np

        kinds = self.kind[rows]
        control = np.isin(kinds, [*wrappings.CONTROL_ETHERTYPES])
        self._put_aside("not_ip", rows[control])
        self._hide_each(rows[~control], kinds[~control], wrappings.ethertype)

    def _fitting(self, rows: Ints, size: int) -> Ints:
        """The rows that have this many kept bytes at their place; the others are counted aside."""
        fits = self.place[rows] + size <= self.end[rows]
        if fits.all():
            return rows
        self._put_aside("short", rows[~fits])
        return rows[fits]

    def _u16(self, places: Ints) -> Ints:
        """The 16-bit number at each place. Places must be inside the file."""
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
        """Find the header behind the link layer's: where it begins, and what it is."""
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
                self._hide(rows, wrappings.link_type(link))
                continue
            self.place[rows] += length

    def _unwrap(self) -> None:
        """Skip tags, labels and other wrappings, even nested ones."""
        import numpy as np

        for _ in range(_MOST_WRAPPINGS):
            kind = self.kind
            if not ((kind != IPV4) & (kind != IPV6) & (kind != DONE)).any():
                return
            stuck = True
            for wanted, length, step in (
                (np.isin(kind, _VLAN), 4, self._tag), (np.isin(kind, _MPLS), 4, self._label),
                (kind == _PPPOE, 6, self._pppoe), (kind == _PPP, 4, self._ppp),
                (kind == BRIDGED, 14, self._bridged), (kind == _BY_VERSION, 1, self._version),
                (kind == ERSPAN2, 8, self._erspan2), (kind == ERSPAN3, 12, self._erspan3),
                ((kind >= 0) & (kind < _LLC_BELOW), 3, self._llc),
            ):  # fmt: skip
                if wanted.any():
                    stuck = False
                    rows = self._fitting(np.flatnonzero(wanted), length)
                    step(rows, self.place[rows])
            if stuck:
                break
        rows = np.flatnonzero(np.isin(self.kind, (*_VLAN, *_MPLS)))
        self._hide_each(rows, self.kind[rows], wrappings.ethertype)

    def _tag(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._u16(at + 2)
        self.place[rows] += 4

    def _label(self, rows: Ints, at: Ints) -> None:
        """MPLS: behind the last label comes IP, v4 or v6 by its version; a pseudowire is not looked into."""
        import numpy as np

        last = self._bytes(at + 2, 1)[:, 0] & 1 > 0
        self.place[rows] += 4
        inner = self._fitting(rows[last], 1)
        version = self._bytes(self.place[inner], 1)[:, 0] >> 4
        self.kind[inner] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
        self._hide(inner[self.kind[inner] == DONE], "MPLS pseudowire")

    def _pppoe(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = _PPP
        self.place[rows] += 6

    def _ppp(self, rows: Ints, at: Ints) -> None:
        """Address and control may be omitted, and the first byte of the protocol too (RFC 1661)."""
        import numpy as np

        start = self._bytes(at, 4).astype(np.int64)
        framed = (start[:, 0] == 0xFF) & (start[:, 1] == 3)
        first = np.where(framed, start[:, 2], start[:, 0])
        compressed = first & 1 > 0
        protocol = np.where(compressed, first, first << 8 | np.where(framed, start[:, 3], start[:, 1]))
        self.place[rows] += np.where(framed, 2, 0) + np.where(compressed, 1, 2)
        known = {0x21: IPV4, 0x57: IPV6, 0x281: _MPLS[0]}
        self.kind[rows] = np.select([protocol == key for key in known], list(known.values()), _LLC_BELOW)
        others = self.kind[rows] == _LLC_BELOW
        for number in np.unique(protocol[others]).tolist():
            if (name := wrappings.ppp(number)) is not None:
                self._hide(rows[protocol == number], name)

    def _erspan2(self, rows: Ints, at: Ints) -> None:
        """A mirrored Ethernet frame behind ERSPAN's header, types I (without one) and II."""
        version = self._bytes(at, 1)[:, 0] >> 4
        self.kind[rows] = BRIDGED
        self.place[rows] += 8
        self._hide(rows[version != 1], wrappings.ethertype(0x88BE))

    def _erspan3(self, rows: Ints, at: Ints) -> None:
        """The same for type III, whose header may be longer, and may stand before IP."""
        import numpy as np

        head = self._bytes(at, 12).astype(np.int64)
        mirrored = head[:, 10] >> 2 & 31
        self.kind[rows] = np.select([mirrored == 0, mirrored == 2], [BRIDGED, _BY_VERSION], DONE)
        self.place[rows] += np.where(head[:, 11] & 1 > 0, 20, 12)
        self._hide(rows[(head[:, 0] >> 4 != 2) | (self.kind[rows] == DONE)], wrappings.ethertype(0x22EB))

    def _bridged(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._u16(at + 12)
        self.place[rows] += 14

    def _version(self, rows: Ints, at: Ints) -> None:
        """IPv4 or IPv6, which only the version tells."""
        import numpy as np

        version = self._bytes(at, 1)[:, 0] >> 4
        self.kind[rows] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
        unknown = self.kind[rows] == DONE
        self._hide_each(rows[unknown], version[unknown], lambda number: f"neither IPv4 nor IPv6 ({number})")

    def _llc(self, rows: Ints, at: Ints) -> None:
        """IEEE 802.2, with SNAP or without."""
        import numpy as np

        start = self._bytes(at, 3)
        snap = (start == (0xAA, 0xAA, 3)).all(1)
        bare = (start == (6, 6, 3)).all(1)
        self.kind[rows] = np.where(bare, IPV4, _LLC_BELOW)
        self.place[rows[bare]] += 3
        other = ~snap & ~bare & ~np.isin(start[:, 0], [*wrappings.CONTROL_SAPS])
        self._hide_each(rows[other], start[other, 0], lambda number: f"LLC 0x{number:02x}")
        inner = self._fitting(rows[snap], 8)
        head = self._bytes(self.place[inner], 8).astype(np.int64)
        organisation, protocol = head[:, 3] << 16 | head[:, 4] << 8 | head[:, 5], head[:, 6] << 8 | head[:, 7]
        self.kind[inner] = np.maximum(protocol, _LLC_BELOW)
        self.place[inner] += 8
        owned = np.flatnonzero(
            (organisation != 0) & (organisation != 0x0000F8) & ~np.isin(protocol, (IPV4, IPV6, *_VLAN))
        )
        for place in owned.tolist():
            number, own = int(organisation[place]), int(protocol[place])
            if wrappings.snap_is_control(number, own):
                self.kind[inner[place]] = _LLC_BELOW
            else:
                self._hide(inner[place : place + 1], f"SNAP {number:06x} 0x{own:04x}")

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
        protocol = protocol.astype(np.int64)
        signed = np.flatnonzero((protocol == _AUTHENTICATION) & (inner + 8 <= self.end[rows]) & (room >= 8))
        if len(signed):
            head = self._bytes(inner[signed], 2).astype(np.int64)
            size = (head[:, 1] + 2) * 4
            protocol[signed] = np.where(size <= room[signed], head[:, 0], _AUTHENTICATION)
            inner[signed], room[signed] = inner[signed] + size, room[signed] - size
        self._remember(rows, source, target, inner, protocol, room, 4)

    def _ipv6(self, rows: Ints) -> None:
        import numpy as np

        rows = self._fitting(rows, 40)
        if not len(rows):
            return
        at = self.place[rows]
        raw = self._bytes(at, 40)
        sane = raw[:, 0] >> 4 == 6
        if not sane.all():
            self._put_aside("malformed", rows[~sane])
            rows, at, raw = rows[sane], at[sane], raw[sane]
        on_wire = self.until[rows] - at - 40
        room = raw.view(">u2")[:, 2].astype(np.int64)
        room = np.where(room == 0, on_wire, np.minimum(room, on_wire))  # 0: a jumbogram, or segmentation offload
        rows, raw, inner, protocol, room = self._extensions(rows, raw, at + 40, raw[:, 6].astype(np.int64), room)
        sane = room >= 0
        if not sane.all():
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
            if ((protocol == TCP) | (protocol == UDP)).all():
                break
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
        """Add these fragments. Returns which rows completed a packet, and puts that packet in their place."""
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
                Fragment(
                    int(begin[place]), size, bool(last[place]), at, end, int(self.wire[row]), int(protocol[place])
                ),
            )  # fmt: skip
            if whole is not None:
                self.aside.fragments -= len(whole.pieces)
                self.aside.joined += len(whole.pieces) - 1
                self.aside.wire_bytes -= whole.wire_bytes
                self.wire[row], self.end[row] = whole.wire_bytes, whole.first.end
                if whole.first.size < _MOST_HEADER:
                    self.split[row] = whole
                inner[place], room[place], protocol[place] = whole.first.place, whole.size, whole.first.protocol
                done[place] = True
        return done

    def _remember(
        self, rows: Ints, source: Any, target: Any, inner: Ints, protocol: Ints, room: Ints, version: int
    ) -> None:
        """Keep what TCP and UDP need of these packets."""
        flow = protocol == TCP
        if not flow.all():
            flow |= protocol == UDP
            flow &= ~self._tunnels(rows, inner, protocol, room)
            if version == 4:
                flow &= ~self._sentinels(rows, target, inner, protocol, room)
            rows, source, target, inner, protocol, room = (
                part[flow] for part in (rows, source, target, inner, protocol, room)
            )
        if not len(rows):
            return
        self.protocol[rows], self.transport[rows], self.room[rows] = protocol, inner, room
        self.between[rows], self.address_low_first[rows] = self.names.between(source, target, version)

    # --- tunnels ---

    def _sentinels(self, rows: Ints, target: Any, inner: Ints, protocol: Ints, room: Ints) -> Any:
        """Which rows are ours: packets sent only to mark the ends of a capture, which do not count as traffic."""
        import numpy as np

        found = (protocol == UDP) & (target == SENTINEL_ADDRESS) & (inner + 8 <= self.end[rows])
        for place in np.flatnonzero(found).tolist():
            at, end = int(inner[place]) + 8, int(self.end[rows[place]])
            kept = bytes(self.buffer[at : min(end, at + _MOST_SENTINEL)])
            found[place] = kept.startswith(SENTINEL) or SENTINEL.startswith(kept)
            if found[place]:
                self.sentinels[int(rows[place])] = kept if len(kept) == room[place] - 8 else b""
        return found

    def _tunnels(self, rows: Ints, inner: Ints, protocol: Ints, room: Ints) -> Any:
        """Continue inside tunnels, and count packets outside flows separately. Returns which rows were tunnels."""
        import numpy as np

        ahead, kind = np.zeros(len(rows), np.int64), np.full(len(rows), DONE)
        kind[protocol == _IP_IN_IP], kind[protocol == _IPV6_IN_IP] = IPV4, IPV6
        end = np.minimum(self.end[rows], inner + room)
        chosen = np.flatnonzero((protocol == _GRE) & (inner + 4 <= end))
        if len(chosen):
            kind[chosen], ahead[chosen] = tunnels.gre(self._bytes(inner[chosen], 4).astype(np.int64))
        chosen = np.flatnonzero((protocol == UDP) & (inner + 8 <= end))
        if len(chosen):
            udp = tunnels.in_udp(self._bytes, inner[chosen], end[chosen], (inner + room)[chosen])
            kind[chosen], ahead[chosen] = udp.kind, udp.ahead
            self.aside.hidden.update({name: len(own) for name, own in udp.hidden})
        tunnel = kind != DONE
        others = ~tunnel & (protocol != TCP) & (protocol != UDP)
        keepalive = (protocol == _GRE) & np.isin(kind, _GRE_CONTROL)
        control = (others & np.isin(protocol, [*wrappings.CONTROL_PROTOCOLS])) | keepalive
        self._put_aside("other_ip", rows[control])
        self._hide(rows[others & (protocol == _GRE)], "GRE")
        others &= ~control & (protocol != _GRE)
        self._hide_each(rows[others], protocol[others], wrappings.ip_protocol)
        chosen = rows[tunnel & ~keepalive]
        self.kind[chosen], self.place[chosen] = kind[tunnel & ~keepalive], (inner + ahead)[tunnel & ~keepalive]
        self.until[chosen] = (inner + room)[tunnel & ~keepalive]
        return tunnel

    # --- TCP and UDP ---

    def _transport(self) -> dict[str, Any]:
        import numpy as np

        protocol, at, room, batch = self.protocol, self.transport, self.room, self.batch
        rows = np.flatnonzero(protocol)
        least = np.where(protocol[rows] == TCP, 20, 8)
        split = self._split_headers()
        short = (at[rows] + least > self.end[rows]) & ~np.isin(rows, [*split])
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
        whole = np.isin(rows[chosen], [*split], invert=True) if split else True
        raw = self._bytes(np.where(whole, at[chosen], 0), 20)
        for place in np.flatnonzero(~whole).tolist() if split else ():
            raw[place] = np.frombuffer(split[int(rows[chosen][place])][1], np.uint8)
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
        if wrong.any():  # before endpoints are numbered, so that each number has a packet
            self._put_aside("malformed", rows[wrong])
            result = {name: column[~wrong] for name, column in result.items()}
            rows, at, header, payload, ports, tcp = (part[~wrong] for part in (rows, at, header, payload, ports, tcp))
        ports = ports.astype(np.int64)
        between = (self.between[rows], self.address_low_first[rows])
        pair, from_high = self.names.directed(*between, ports[:, 0], ports[:, 1], tcp.astype(np.int64))
        result |= {"pair": pair.astype(np.int32), "from_high": from_high}
        end = self.end[rows]
        offset = np.minimum(at + header, end)  # a header may be truncated within its options
        said, header = header, offset - at
        for place in np.flatnonzero(np.isin(rows, [*split])).tolist() if split else ():
            offset[place], end[place] = split[int(rows[place])][0].locate(int(said[place]))
            header[place] = 20  # options are not looked for
        kept = np.clip(end - offset, 0, payload)
        numbers = (rows + batch.first).astype(np.uint32)
        result |= {"number": numbers, "time_ns": batch.time_ns[rows], "wire": self.wire[rows].astype(np.uint32)}
        result |= {"payload": payload.astype(np.uint32), "offset": offset, "kept": kept.astype(np.uint32)}
        result["header"] = header.astype(np.uint8)
        return result

    def _split_headers(self) -> dict[int, tuple[Whole, bytes]]:
        """TCP headers that lie in several pieces, by row: the packet, and the header's first 20 bytes."""
        found = {}
        for row, whole in self.split.items():
            if self.protocol[row] == TCP and self.transport[row] == whole.first.place:
                head = whole.head(self.buffer, 20)
                if head is not None:
                    found[row] = (whole, head)
        return found
