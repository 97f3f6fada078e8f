"""Decoding of a batch's headers, from the link layer to TCP and UDP, through tags, labels and tunnels, into columns.

Lengths come from the IP header and never from the kept bytes, so that a capture with a short snap length counts the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_cloudbench.net.traffic import tunnels, wrappings
from pytest_cloudbench.net.traffic.endpoints import TCP, UDP, Names, find_distinct
from pytest_cloudbench.net.traffic.fragments import Fragment, Fragments, JoinedPacket
from pytest_cloudbench.net.traffic.tunnels import BRIDGED, DONE, ERSPAN2, ERSPAN3, IPV4, IPV6

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Batch, Buffer, Ints

SENTINEL, SENTINEL_ADDRESS = b"cloudbench-sentinel ", int(IPv4Address("233.252.0.9"))
"""Payload and address of the packets that ``net.capture.guard`` sends. Repeated here, because pure code must not import
it."""

KINDS = {
    "number": "u4", "time_ns": "i8", "pair": "i4", "from_high": "?", "wire": "u4", "payload": "u4", "offset": "i8",
    "kept": "u4", "header": "u1", "flags": "u1", "seq": "u4", "ack": "u4", "window": "u2",
}  # fmt: skip
"""The columns with their types."""
_TCP_COLUMNS = ("flags", "seq", "ack", "window")

# Kind of the next header: an EtherType, or one of these. A value below 1,536 is a length before LLC (802.3).
_PPP, _BY_VERSION = 0x10000, 0x10001
_PPPOE = 0x8864
_VLAN, _MPLS, _LLC_BELOW = (0x8100, 0x88A8, 0x9100), (0x8847, 0x8848), 0x600
_MAX_WRAPPINGS = 16
_MAX_SENTINEL_BYTES = 128
_MAX_TUNNELS = 8

# By link type: bytes before the next header, and the offset of its EtherType (or, if fixed, the kind of header).
_LINKS = {1: (14, 12), 113: (16, 14), 276: (20, 0), 104: (4, 2)}  # Ethernet, Linux cooked 1 and 2, Cisco HDLC
_FIXED = {
    0: (4, _BY_VERSION), 108: (4, _BY_VERSION),  # BSD null and loopback
    12: (0, _BY_VERSION), 14: (0, _BY_VERSION), 101: (0, _BY_VERSION), 228: (0, _BY_VERSION), 229: (0, _BY_VERSION),
    9: (0, _PPP), 50: (0, _PPP), 51: (0, _PPPOE),
}  # fmt: skip

_EXTENSIONS = (0, 43, 60, 140)  # hop-by-hop, routing, destination, shim6, with lengths in units of 8 bytes
_FRAGMENT, _AUTHENTICATION = 44, 51
_GRE_CONTROL = (0, 0xFE)  # keep-alives, OSI routing
_MAX_HEADER_BYTES = 60
_IP_IN_IP, _IPV6_IN_IP, _GRE = 4, 41, 47


@dataclass(slots=True)
class Aside:
    """Counts of packets outside flows by reason, each packet counted once.

    Attributes:
        not_ip: packets of protocols other than IP (ARP, ...).
        other_ip: IP packets without TCP or UDP.
        fragments: fragments of incomplete IP packets.
        joined: fragments of complete packets, except the last one, which counts as the packet.
        short: packets cut by the snap length before the end of their headers.
        malformed: packets with contradictory headers.
        not_understood: packets with an unknown link type or wrapping.
        wire_bytes: wire bytes of all of these except ``joined``, which count in their flow.
        hidden: counts of undecoded wrappings by name: those of ``not_understood``, and tunnels in UDP, whose packets
            count in the flow that carries them.
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
    """The headers of one batch, decoded from the outside in. Undecodable packets are counted in ``aside``."""

    def __init__(self, buffer: Buffer, batch: Batch, aside: Aside, names: Names, fragments: Fragments) -> None:
        import numpy as np

        self.buffer, self.batch, self.aside, self.names, self.fragments = buffer, batch, aside, names, fragments
        count = len(batch.offset)
        self.position = batch.offset.copy()
        self.kind = np.full(count, DONE, np.int64)  # kind of the header at ``position``
        self.end = batch.offset + batch.captured  # end of the kept bytes
        self.wire_end = batch.offset + batch.wire  # end of the packet if all its bytes had been kept
        self.wire = batch.wire
        self.protocol, self.transport = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.room = np.zeros(count, np.int64)  # bytes of IP payload on the wire
        self.address_low_first = np.zeros(count, np.int8)
        self.between = np.zeros(count, np.int64)  # number of the pair of addresses
        self.sentinels: dict[int, bytes] = {}  # content by row, empty if it was cut
        self.split: dict[int, JoinedPacket] = {}  # packets by row whose first fragment may end within the TCP header

    def columns(self) -> dict[str, Any]:
        """Return the columns of ``Packets``, with a value for every packet that belongs to a flow."""
        import numpy as np

        self._skip_link_layer()
        for _ in range(_MAX_TUNNELS):
            self._unwrap()
            rows4, rows6 = np.flatnonzero(self.kind == IPV4), np.flatnonzero(self.kind == IPV6)
            if len(rows4) + len(rows6) < len(self.kind):
                is_expected = (self.kind == IPV4) | (self.kind == IPV6) | (self.kind == DONE)
                self._set_aside_not_ip(np.flatnonzero(~is_expected))
            self.kind[:] = DONE  # tunnels set it again below
            self._read_ipv4(rows4)
            self._read_ipv6(rows6)
            if (self.kind == DONE).all():
                break
        self._set_aside_hidden(np.flatnonzero(self.kind != DONE), f"more than {_MAX_TUNNELS} tunnels")
        return self._read_transport()

    def _set_aside(self, why: str, rows: Ints) -> None:
        if len(rows):
            setattr(self.aside, why, getattr(self.aside, why) + len(rows))
            self.aside.wire_bytes += int(self.wire[rows].sum())
            self.kind[rows] = DONE

    def _set_aside_hidden(self, rows: Ints, name: str) -> None:
        """Set aside packets that may hold flows inside an undecoded wrapping."""
        if len(rows):
            self.aside.hidden[name] += len(rows)
            self._set_aside("not_understood", rows)

    def _set_aside_each(self, rows: Ints, numbers: Ints, name: Callable[[int], str]) -> None:
        """Set aside packets of several numbered kinds, each by its own name."""
        for number in find_distinct(numbers).tolist():
            self._set_aside_hidden(rows[numbers == number], name(number))

    def _set_aside_not_ip(self, rows: Ints) -> None:
        """Set aside rows of a kind other than IP."""
        import numpy as np

        kinds = self.kind[rows]
        control = np.isin(kinds, [*wrappings.CONTROL_ETHERTYPES], kind="table")
        self._set_aside("not_ip", rows[control])
        self._set_aside_each(rows[~control], kinds[~control], wrappings.ethertype_name)

    def _require_bytes(self, rows: Ints, size: int) -> Ints:
        """Return the rows with at least ``size`` kept bytes at their position, and set the others aside."""
        fits = self.position[rows] + size <= self.end[rows]
        if fits.all():
            return rows
        self._set_aside("short", rows[~fits])
        return rows[fits]

    def _read_u16(self, offsets: Ints) -> Ints:
        """Return the 16-bit number at each offset. All must be inside the file."""
        import numpy as np

        view = np.ndarray((len(self.buffer) - 1,), ">u2", self.buffer, strides=(1,))
        return np.asarray(view[offsets].astype(np.int64))

    def _read_bytes(self, offsets: Ints, width: int) -> Any:
        import numpy as np

        if not len(offsets):
            return np.zeros((0, width), np.uint8)
        view: Any = np.ndarray((len(self.buffer) - width + 1,), f"V{width}", self.buffer, strides=(1,))
        return view[offsets].view(np.uint8).reshape(-1, width)

    # --- below IP ---

    def _skip_link_layer(self) -> None:
        """Move to the header after the link layer's, and note its kind."""
        import numpy as np

        kinds = self.batch.link_type
        for link in [int(kinds[0])] if (kinds == kinds[0]).all() else find_distinct(kinds).tolist():
            rows = np.flatnonzero(kinds == link)
            if link in _LINKS:
                length, type_at = _LINKS[link]
                rows = self._require_bytes(rows, length)
                self.kind[rows] = self._read_u16(self.position[rows] + type_at)
            elif link in _FIXED:
                length, self.kind[rows] = _FIXED[link]
                rows = self._require_bytes(rows, length)
            else:
                self._set_aside_hidden(rows, wrappings.link_type_name(link))
                continue
            self.position[rows] += length

    def _unwrap(self) -> None:
        """Skip tags, labels and other wrappings, even nested ones."""
        import numpy as np

        for _ in range(_MAX_WRAPPINGS):
            kind = self.kind
            if not ((kind != IPV4) & (kind != IPV6) & (kind != DONE)).any():
                return
            stuck = True
            for selected, length, step in (
                (np.isin(kind, _VLAN), 4, self._skip_vlan_tag), (np.isin(kind, _MPLS), 4, self._skip_mpls_label),
                (kind == _PPPOE, 6, self._skip_pppoe), (kind == _PPP, 4, self._skip_ppp),
                (kind == BRIDGED, 14, self._skip_ethernet), (kind == _BY_VERSION, 1, self._read_ip_version),
                (kind == ERSPAN2, 8, self._skip_erspan2), (kind == ERSPAN3, 12, self._skip_erspan3),
                ((kind >= 0) & (kind < _LLC_BELOW), 3, self._skip_llc),
            ):  # fmt: skip
                if selected.any():
                    stuck = False
                    rows = self._require_bytes(np.flatnonzero(selected), length)
                    step(rows, self.position[rows])
            if stuck:
                break
        rows = np.flatnonzero(np.isin(self.kind, (*_VLAN, *_MPLS)))
        self._set_aside_each(rows, self.kind[rows], wrappings.ethertype_name)

    def _skip_vlan_tag(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._read_u16(at + 2)
        self.position[rows] += 4

    def _skip_mpls_label(self, rows: Ints, at: Ints) -> None:
        """Skip an MPLS label. The last one is followed by IPv4 or IPv6, or by a pseudowire, which is not decoded."""
        import numpy as np

        last = self._read_bytes(at + 2, 1)[:, 0] & 1 > 0
        self.position[rows] += 4
        inner = self._require_bytes(rows[last], 1)
        version = self._read_bytes(self.position[inner], 1)[:, 0] >> 4
        self.kind[inner] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
        self._set_aside_hidden(inner[self.kind[inner] == DONE], "MPLS pseudowire")

    def _skip_pppoe(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = _PPP
        self.position[rows] += 6

    def _skip_ppp(self, rows: Ints, at: Ints) -> None:
        """Skip PPP, which may omit address, control and the first byte of the protocol (RFC 1661)."""
        import numpy as np

        start = self._read_bytes(at, 4).astype(np.int64)
        framed = (start[:, 0] == 0xFF) & (start[:, 1] == 3)
        first = np.where(framed, start[:, 2], start[:, 0])
        compressed = first & 1 > 0
        protocol = np.where(compressed, first, first << 8 | np.where(framed, start[:, 3], start[:, 1]))
        self.position[rows] += np.where(framed, 2, 0) + np.where(compressed, 1, 2)
        kinds = {0x21: IPV4, 0x57: IPV6, 0x281: _MPLS[0]}
        self.kind[rows] = np.select([protocol == key for key in kinds], list(kinds.values()), _LLC_BELOW)
        others = self.kind[rows] == _LLC_BELOW
        for number in find_distinct(protocol[others]).tolist():
            if (name := wrappings.ppp_name(number)) is not None:
                self._set_aside_hidden(rows[protocol == number], name)

    def _skip_erspan2(self, rows: Ints, at: Ints) -> None:
        """Skip the header of ERSPAN II before a mirrored Ethernet frame."""
        version = self._read_bytes(at, 1)[:, 0] >> 4
        self.kind[rows] = BRIDGED
        self.position[rows] += 8
        self._set_aside_hidden(rows[version != 1], wrappings.ethertype_name(0x88BE))

    def _skip_erspan3(self, rows: Ints, at: Ints) -> None:
        """Skip the header of ERSPAN III, which may be longer, and may be followed by IP."""
        import numpy as np

        head = self._read_bytes(at, 12).astype(np.int64)
        mirrored = head[:, 10] >> 2 & 31
        self.kind[rows] = np.select([mirrored == 0, mirrored == 2], [BRIDGED, _BY_VERSION], DONE)
        self.position[rows] += np.where(head[:, 11] & 1 > 0, 20, 12)
        self._set_aside_hidden(
            rows[(head[:, 0] >> 4 != 2) | (self.kind[rows] == DONE)], wrappings.ethertype_name(0x22EB)
        )

    def _skip_ethernet(self, rows: Ints, at: Ints) -> None:
        self.kind[rows] = self._read_u16(at + 12)
        self.position[rows] += 14

    def _read_ip_version(self, rows: Ints, at: Ints) -> None:
        """Tell IPv4 from IPv6 by the version field."""
        import numpy as np

        version = self._read_bytes(at, 1)[:, 0] >> 4
        self.kind[rows] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
        unknown = self.kind[rows] == DONE
        self._set_aside_each(rows[unknown], version[unknown], lambda number: f"neither IPv4 nor IPv6 ({number})")

    def _skip_llc(self, rows: Ints, at: Ints) -> None:
        """Skip IEEE 802.2, with or without SNAP."""
        import numpy as np

        start = self._read_bytes(at, 3)
        snap = (start == (0xAA, 0xAA, 3)).all(1)
        bare = (start == (6, 6, 3)).all(1)
        self.kind[rows] = np.where(bare, IPV4, _LLC_BELOW)
        self.position[rows[bare]] += 3
        is_unknown = ~snap & ~bare & ~np.isin(start[:, 0], [*wrappings.CONTROL_SAPS], kind="table")
        self._set_aside_each(rows[is_unknown], start[is_unknown, 0], lambda number: f"LLC 0x{number:02x}")
        inner = self._require_bytes(rows[snap], 8)
        snap_header = self._read_bytes(self.position[inner], 8).astype(np.int64)
        organisation = snap_header[:, 3] << 16 | snap_header[:, 4] << 8 | snap_header[:, 5]
        protocol = snap_header[:, 6] << 8 | snap_header[:, 7]
        self.kind[inner] = np.maximum(protocol, _LLC_BELOW)
        self.position[inner] += 8
        private_rows = np.flatnonzero(
            (organisation != 0) & (organisation != 0x0000F8) & ~np.isin(protocol, (IPV4, IPV6, *_VLAN))
        )
        for index in private_rows.tolist():
            number, ethertype = int(organisation[index]), int(protocol[index])
            if wrappings.is_snap_control(number, ethertype):
                self.kind[inner[index]] = _LLC_BELOW
            else:
                self._set_aside_hidden(inner[index : index + 1], f"SNAP {number:06x} 0x{ethertype:04x}")

    # --- IP ---

    def _read_ipv4(self, rows: Ints) -> None:
        import numpy as np

        rows = self._require_bytes(rows, 20)
        if not len(rows):
            return
        at = self.position[rows]
        raw = self._read_bytes(at, 20)
        words, halves = raw.view(">u4"), raw.view(">u2")
        header = (raw[:, 0] & 15).astype(np.int64) * 4
        wire_bytes = self.wire_end[rows] - at
        total = halves[:, 1].astype(np.int64)
        # A length of 0 is more than 64 kB, from segmentation offload.
        total = np.where(total == 0, wire_bytes, np.minimum(total, wire_bytes))
        is_sane = (raw[:, 0] >> 4 == 4) & (header >= 20) & (total >= header)
        is_unfragmented = halves[:, 3] & 0x3FFF == 0
        source, target, protocol = words[:, 3].astype(np.uint64), words[:, 4].astype(np.uint64), raw[:, 9]
        inner, room = at + header, total - header
        if not (is_sane & is_unfragmented).all():
            self._set_aside("malformed", rows[~is_sane])
            piece = is_sane & ~is_unfragmented
            rows = rows.copy()
            begin, last = (halves[:, 3] & 0x1FFF).astype(np.int64) * 8, halves[:, 3] & 0x2000 == 0
            keys = raw[:, [4, 5, 9, *range(12, 20)]]
            is_joined = self._join_fragments(rows, piece, keys, begin, last, inner, room, protocol)
            is_kept = is_sane & is_unfragmented | is_joined
            rows, source, target, inner, protocol, room = (
                part[is_kept] for part in (rows, source, target, inner, protocol, room)
            )
        protocol = protocol.astype(np.int64)
        signed = np.flatnonzero((protocol == _AUTHENTICATION) & (inner + 8 <= self.end[rows]) & (room >= 8))
        if len(signed):
            head = self._read_bytes(inner[signed], 2).astype(np.int64)
            size = (head[:, 1] + 2) * 4
            protocol[signed] = np.where(size <= room[signed], head[:, 0], _AUTHENTICATION)
            inner[signed], room[signed] = inner[signed] + size, room[signed] - size
        self._keep_packets(rows, source, target, inner, protocol, room, 4)

    def _read_ipv6(self, rows: Ints) -> None:
        import numpy as np

        rows = self._require_bytes(rows, 40)
        if not len(rows):
            return
        at = self.position[rows]
        raw = self._read_bytes(at, 40)
        is_sane = raw[:, 0] >> 4 == 6
        if not is_sane.all():
            self._set_aside("malformed", rows[~is_sane])
            rows, at, raw = rows[is_sane], at[is_sane], raw[is_sane]
        wire_bytes = self.wire_end[rows] - at - 40
        room = raw.view(">u2")[:, 2].astype(np.int64)
        room = np.where(
            room == 0, wire_bytes, np.minimum(room, wire_bytes)
        )  # 0 is a jumbogram, or segmentation offload
        rows, raw, inner, protocol, room = self._skip_extensions(rows, raw, at + 40, raw[:, 6].astype(np.int64), room)
        is_sane = room >= 0
        if not is_sane.all():
            self._set_aside("malformed", rows[~is_sane])
            rows, raw, protocol, inner, room = (part[is_sane] for part in (rows, raw, protocol, inner, room))
        halves = np.ascontiguousarray(raw[:, 8:40]).view(">u8").reshape(-1, 4).astype(np.uint64)
        source = self.names.number_ipv6(halves[:, 0], halves[:, 1])
        target = self.names.number_ipv6(halves[:, 2], halves[:, 3])
        self._keep_packets(rows, source, target, inner, protocol, room, 6)

    def _skip_extensions(self, rows: Ints, raw: Any, inner: Ints, protocol: Ints, room: Ints) -> tuple[Any, ...]:
        """Skip IPv6's extension headers and join fragments."""
        import numpy as np

        for _ in range(_MAX_WRAPPINGS):
            if ((protocol == TCP) | (protocol == UDP)).all():
                break
            is_extension: Any = np.isin(protocol, (*_EXTENSIONS, _AUTHENTICATION, _FRAGMENT))
            if not is_extension.any():
                break
            short = is_extension & ((inner + 8 > self.end[rows]) | (room < 8))
            self._set_aside("short", rows[short])
            rows, raw, protocol, inner, room, is_extension = (
                part[~short] for part in (rows, raw, protocol, inner, room, is_extension)
            )
            head = np.zeros((len(rows), 8), np.int64)
            head[is_extension] = self._read_bytes(inner[is_extension], 8)
            fragment_field = head[:, 2] << 8 | head[:, 3]
            piece = (protocol == _FRAGMENT) & (fragment_field & 0xFFF9 > 0)
            units = np.where(protocol == _AUTHENTICATION, head[:, 1] + 2, (head[:, 1] + 1) * 2)
            ahead = np.where(protocol == _FRAGMENT, 8, units * 4) * is_extension
            inner, room, protocol = inner + ahead, room - ahead, np.where(is_extension, head[:, 0], protocol)
            if piece.any():
                keys = np.concatenate((raw[:, 8:40], head[:, 4:].astype(np.uint8)), 1)
                is_joined = self._join_fragments(
                    rows, piece, keys, fragment_field & 0xFFF8, fragment_field & 1 == 0, inner, room, protocol
                )
                is_kept = ~piece | is_joined
                rows, raw, protocol, inner, room = (part[is_kept] for part in (rows, raw, protocol, inner, room))
        return rows, raw, inner, protocol, room

    def _join_fragments(
        self, rows: Ints, piece: Any, keys: Any, begin: Ints, last: Any, inner: Ints, room: Ints, protocol: Any
    ) -> Any:
        """Add these fragments. Returns which rows completed a packet, and replaces them by that packet."""
        import numpy as np

        is_joined = np.zeros(len(rows), bool)
        self._set_aside("fragments", rows[piece])
        if self.wire is self.batch.wire:
            self.wire = self.wire.copy()
        for index in np.flatnonzero(piece).tolist():
            row, at, size = int(rows[index]), int(inner[index]), int(room[index])
            end = min(int(self.end[row]), at + size)
            joined_packet = self.fragments.add(
                keys[index].tobytes(),
                Fragment(
                    int(begin[index]), size, bool(last[index]), at, end, int(self.wire[row]), int(protocol[index])
                ),
            )  # fmt: skip
            if joined_packet is not None:
                self.aside.fragments -= len(joined_packet.pieces)
                self.aside.joined += len(joined_packet.pieces) - 1
                self.aside.wire_bytes -= joined_packet.wire_bytes
                self.wire[row], self.end[row] = joined_packet.wire_bytes, joined_packet.first.end
                if joined_packet.first.size < _MAX_HEADER_BYTES:
                    self.split[row] = joined_packet
                inner[index], room[index] = joined_packet.first.offset, joined_packet.size
                protocol[index] = joined_packet.first.protocol
                is_joined[index] = True
        return is_joined

    def _keep_packets(
        self, rows: Ints, source: Any, target: Any, inner: Ints, protocol: Ints, room: Ints, version: int
    ) -> None:
        """Store the fields of these packets that decoding of TCP and UDP needs."""
        flow = protocol == TCP
        if not flow.all():
            flow |= protocol == UDP
            flow &= ~self._enter_tunnels(rows, inner, protocol, room)
            if version == 4:
                flow &= ~self._find_sentinels(rows, target, inner, protocol, room)
            rows, source, target, inner, protocol, room = (
                part[flow] for part in (rows, source, target, inner, protocol, room)
            )
        if not len(rows):
            return
        self.protocol[rows], self.transport[rows], self.room[rows] = protocol, inner, room
        self.between[rows], self.address_low_first[rows] = self.names.number_address_pairs(source, target, version)

    # --- tunnels ---

    def _find_sentinels(self, rows: Ints, target: Any, inner: Ints, protocol: Ints, room: Ints) -> Any:
        """Return which rows are sentinels, which mark the ends of a capture and do not count as traffic."""
        import numpy as np

        is_sentinel = (protocol == UDP) & (target == SENTINEL_ADDRESS) & (inner + 8 <= self.end[rows])
        for index in np.flatnonzero(is_sentinel).tolist():
            at, end = int(inner[index]) + 8, int(self.end[rows[index]])
            content = bytes(self.buffer[at : min(end, at + _MAX_SENTINEL_BYTES)])
            is_sentinel[index] = content.startswith(SENTINEL) or SENTINEL.startswith(content)
            if is_sentinel[index]:
                self.sentinels[int(rows[index])] = content if len(content) == room[index] - 8 else b""
        return is_sentinel

    def _enter_tunnels(self, rows: Ints, inner: Ints, protocol: Ints, room: Ints) -> Any:
        """Move inside tunnels, and set aside packets of no flow. Returns which rows were tunnels."""
        import numpy as np

        ahead, kind = np.zeros(len(rows), np.int64), np.full(len(rows), DONE)
        kind[protocol == _IP_IN_IP], kind[protocol == _IPV6_IN_IP] = IPV4, IPV6
        end = np.minimum(self.end[rows], inner + room)
        chosen = np.flatnonzero((protocol == _GRE) & (inner + 4 <= end))
        if len(chosen):
            kind[chosen], ahead[chosen] = tunnels.parse_gre(self._read_bytes(inner[chosen], 4).astype(np.int64))
        chosen = np.flatnonzero((protocol == UDP) & (inner + 8 <= end))
        if len(chosen):
            udp = tunnels.find_in_udp(self._read_bytes, inner[chosen], end[chosen], (inner + room)[chosen])
            kind[chosen], ahead[chosen] = udp.kind, udp.ahead
            self.aside.hidden.update({name: len(tunnel_rows) for name, tunnel_rows in udp.hidden})
        is_tunnel = kind != DONE
        is_other = ~is_tunnel & (protocol != TCP) & (protocol != UDP)
        keepalive = (protocol == _GRE) & np.isin(kind, _GRE_CONTROL)
        is_control = (is_other & np.isin(protocol, [*wrappings.CONTROL_PROTOCOLS], kind="table")) | keepalive
        self._set_aside("other_ip", rows[is_control])
        self._set_aside_hidden(rows[is_other & (protocol == _GRE)], "GRE")
        is_other &= ~is_control & (protocol != _GRE)
        self._set_aside_each(rows[is_other], protocol[is_other], wrappings.ip_protocol_name)
        chosen = rows[is_tunnel & ~keepalive]
        self.kind[chosen], self.position[chosen] = kind[is_tunnel & ~keepalive], (inner + ahead)[is_tunnel & ~keepalive]
        self.wire_end[chosen] = (inner + room)[is_tunnel & ~keepalive]
        return is_tunnel

    # --- TCP and UDP ---

    def _read_transport(self) -> dict[str, Any]:
        import numpy as np

        protocol, at, room, batch = self.protocol, self.transport, self.room, self.batch
        rows = np.flatnonzero(protocol)
        min_bytes = np.where(protocol[rows] == TCP, 20, 8)
        split = self._read_split_headers()
        short = at[rows] + min_bytes > self.end[rows]
        if split:
            short &= ~np.isin(rows, [*split])
        small = room[rows] < min_bytes
        if (short | small).any():
            self._set_aside("malformed", rows[small])
            self._set_aside("short", rows[short & ~small])
            rows = rows[~(short | small)]
        count = len(rows)
        at, room, protocol = at[rows], room[rows], protocol[rows]
        tcp = protocol == TCP
        is_all_tcp = bool(tcp.all())
        chosen: Any = slice(None) if is_all_tcp else np.flatnonzero(tcp)
        is_unsplit = np.isin(rows[chosen], [*split], invert=True) if split else True
        raw = self._read_bytes(np.where(is_unsplit, at[chosen], 0), 20)
        for index in np.flatnonzero(~is_unsplit).tolist() if split else ():
            raw[index] = np.frombuffer(split[int(rows[chosen][index])][1], np.uint8)
        words, halves = raw.view(">u4"), raw.view(">u2")
        header: Any = np.full(count, 8, np.int64)
        header[chosen] = (raw[:, 12] >> 4).astype(np.int64) * 4
        result = {name: np.zeros(count, kind) for name, kind in KINDS.items() if name in _TCP_COLUMNS}
        result["seq"][chosen], result["ack"][chosen] = words[:, 1], words[:, 2]
        result["flags"][chosen], result["window"][chosen] = raw[:, 13], halves[:, 7]
        ports: Any = np.zeros((count, 2), np.uint16)
        ports[chosen] = halves[:, :2]
        payload: Any = room - header
        if not is_all_tcp:
            others = np.flatnonzero(~tcp)
            udp = self._read_bytes(at[others], 8).view(">u2")
            ports[others] = udp[:, :2]
            stated_bytes = udp[:, 2].astype(np.int64)  # 0 is a jumbogram, or segmentation offload
            payload[others] = np.where(stated_bytes == 0, room[others], np.minimum(stated_bytes, room[others])) - 8
        wrong = (header < np.where(tcp, 20, 8)) | (payload < 0)
        if wrong.any():  # before numbering endpoints, so that each number has a packet
            self._set_aside("malformed", rows[wrong])
            result = {name: column[~wrong] for name, column in result.items()}
            rows, at, header, payload, ports, tcp = (part[~wrong] for part in (rows, at, header, payload, ports, tcp))
        ports = ports.astype(np.int64)
        between = (self.between[rows], self.address_low_first[rows])
        pair, from_high = self.names.number_endpoint_pairs(*between, ports[:, 0], ports[:, 1], tcp.astype(np.int64))
        result |= {"pair": pair.astype(np.int32), "from_high": from_high}
        end = self.end[rows]
        offset = np.minimum(at + header, end)  # a header may be cut within its options
        stated_header_bytes, header = header, offset - at
        for index in np.flatnonzero(np.isin(rows, [*split])).tolist() if split else ():
            offset[index], end[index] = split[int(rows[index])][0].locate(int(stated_header_bytes[index]))
            header[index] = 20  # its options are not read
        kept_bytes = np.clip(end - offset, 0, payload)
        numbers = (rows + batch.first).astype(np.uint32)
        result |= {"number": numbers, "time_ns": batch.time_ns[rows], "wire": self.wire[rows].astype(np.uint32)}
        result |= {"payload": payload.astype(np.uint32), "offset": offset, "kept": kept_bytes.astype(np.uint32)}
        result["header"] = header.astype(np.uint8)
        return result

    def _read_split_headers(self) -> dict[int, tuple[JoinedPacket, bytes]]:
        """Return TCP headers split over fragments, by row: the packet and the header's first 20 bytes."""
        headers = {}
        for row, joined_packet in self.split.items():
            if self.protocol[row] == TCP and self.transport[row] == joined_packet.first.offset:
                start = joined_packet.read_start(self.buffer, 20)
                if start is not None:
                    headers[row] = (joined_packet, start)
        return headers
