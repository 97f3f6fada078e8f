"""Tunnels within IP and UDP: the kind of the inner packet, and its distance. Undecodable tunnels are only named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.endpoints import find_distinct

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

IPV4, IPV6, BRIDGED = 0x0800, 0x86DD, 0x6558
DONE, ERSPAN2, ERSPAN3 = -1, 0x10002, 0x10003
"""Kinds of the next header that are not EtherTypes: none, and ERSPAN's headers before an Ethernet frame."""

Read = Callable[["Ints", int], Any]
"""Maps (offsets, width) to that many bytes at each offset. All must be in the file."""

_MAX_EXTENSIONS = 8


@dataclass(slots=True)
class Inside:
    """The contents of tunnels in some packets.

    Attributes:
        kind: an EtherType, or one of the values above. ``DONE`` if there is no tunnel.
        ahead: bytes from the header's position to the inner packet.
        hidden: names of undecoded wrappings, each with its rows.
    """

    kind: Ints
    ahead: Ints
    hidden: list[tuple[str, Any]]


def parse_gre(head: Ints) -> tuple[Ints, Ints]:
    """Return the kind of the inner packet and its distance, from the first four bytes of GRE (RFC 2784, 2890)."""
    import numpy as np

    flags = head[:, 0]  # checksum, key and sequence number take four bytes each
    has_sequence = flags >> 4 & 1
    optional = ((flags >> 7 & 1) + (flags >> 5 & 1) + has_sequence) * 4
    plain = (head[:, 1] & 7 == 0) & (flags & 0x40 == 0)
    kind = head[:, 2] << 8 | head[:, 3]
    kind = np.where(
        kind == 0x88BE, np.where(has_sequence > 0, ERSPAN2, BRIDGED), np.where(kind == 0x22EB, ERSPAN3, kind)
    )
    # Values below 0x600 are not EtherTypes: 0 is a keep-alive, and 0xFE is OSI.
    return np.where(plain & ((kind >= 0x600) | (kind == 0) | (kind == 0xFE)), kind, DONE), 4 + optional


def find_in_udp(read: Read, at: Ints, end: Ints, wire_end: Ints) -> Inside:
    """Return the contents of tunnels in UDP packets.

    Args:
        read: returns bytes of the file.
        at: offset of each UDP header, which was kept completely.
        end: end of the kept part of the packet or of its payload, whichever comes first.
        wire_end: end of its payload if all bytes had been kept.
    """
    import numpy as np

    result = Inside(np.full(len(at), DONE, np.int64), np.zeros(len(at), np.int64), [])
    ports = read(at, 4).view(">u2").astype(np.int64)
    tunnels = np.array([*_DECODED_PORTS, *_HIDDEN_PORTS])
    is_tunnel = np.isin(ports, tunnels, kind="table")
    if not is_tunnel.any():
        return result
    port = np.where(is_tunnel[:, 1], ports[:, 1], ports[:, 0])
    # A well-known other port is a service such as DNS, whose client merely happens to use a port of tunnels.
    other_port = np.where(is_tunnel[:, 1], ports[:, 0], ports[:, 1])
    rows = np.flatnonzero(is_tunnel.any(1) & (other_port >= 1024) & (end - at >= 8 + 8))
    for number in find_distinct(port[rows]).tolist():
        tunnel_rows = rows[port[rows] == number]
        body = at[tunnel_rows] + 8
        if number in _HIDDEN_PORTS:
            name, find_matches = _HIDDEN_PORTS[number]
            head = read(body, 8).astype(np.int64)
            result.hidden.append((name, tunnel_rows[find_matches(head)]))
            continue
        name, parse = _DECODED_PORTS[number]
        claimed, kind, ahead = parse(read, body, end[tunnel_rows], wire_end[tunnel_rows])
        result.kind[tunnel_rows], result.ahead[tunnel_rows] = kind, ahead + 8
        result.hidden.append((name, tunnel_rows[claimed & (kind == DONE)]))
    result.hidden = [(name, hidden_rows) for name, hidden_rows in result.hidden if len(hidden_rows)]
    return result


def _find_ip(read: Read, at: Ints, end: Ints, chosen: Any) -> Ints:
    """Return IPv4, IPv6 or DONE for each chosen offset, by the version field."""
    import numpy as np

    kind = np.full(len(at), DONE, np.int64)
    rows = np.flatnonzero(chosen & (at >= 0) & (at < end))
    version = read(at[rows], 1)[:, 0] >> 4
    kind[rows] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
    return kind


def _find_fitting_ip(read: Read, at: Ints, end: Ints, wire_end: Ints, chosen: Any) -> Ints:
    """Do the same as ``_find_ip``, but require a matching length, which other uses of the port rarely have."""
    import numpy as np

    kind = _find_ip(read, at, end, chosen & (at + 6 <= end))
    rows = np.flatnonzero(kind != DONE)
    head = read(at[rows], 6).view(">u2").astype(np.int64)
    size = np.where(kind[rows] == IPV4, head[:, 1], head[:, 2] + 40)
    kind[rows[size != (wire_end - at)[rows]]] = DONE
    return kind


def _find_ethernet(read: Read, at: Ints, end: Ints, chosen: Any) -> Ints:
    """Return BRIDGED for each chosen offset whose Ethernet header was kept."""
    import numpy as np

    return np.where(chosen & (at + 14 <= end), BRIDGED, DONE)


def _parse_vxlan(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse VXLAN (RFC 7348), also with a group policy. Nonzero reserved bytes mean another use of the port."""
    import numpy as np

    head = read(at, 8)
    plain = (head[:, 0] == 8) & (head[:, (1, 2, 3, 7)] == 0).all(1)
    policy = (head[:, 0] == 0x88) & (head[:, 1] & 0xB7 == 0) & (head[:, 7] == 0)
    return plain | policy, _find_ethernet(read, at + 8, end, plain | policy), np.full(len(at), 8)


def _parse_vxlan_gpe(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse VXLAN with a next protocol (draft-ietf-nvo3-vxlan-gpe)."""
    import numpy as np

    head = read(at, 8)
    claimed = (head[:, 0] & 0xF0 == 0) & (head[:, 0] & 0x0C > 0) & (head[:, (1, 2, 7)] == 0).all(1)
    inside = np.select([head[:, 3] == 1, head[:, 3] == 2, head[:, 3] == 3], [IPV4, IPV6, BRIDGED], DONE)
    return claimed, np.where(claimed, inside, DONE), np.full(len(at), 8)


def _parse_geneve(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse Geneve (RFC 8926), with options."""
    import numpy as np

    head = read(at, 8).astype(np.int64)
    claimed = (head[:, 0] >> 6 == 0) & (head[:, 1] & 0x3F == 0) & (head[:, 7] == 0)
    ahead = 8 + (head[:, 0] & 0x3F) * 4
    protocol = head[:, 2] << 8 | head[:, 3]
    is_known = np.isin(protocol, (IPV4, IPV6, BRIDGED)) & claimed & (at + ahead < end)
    return claimed, np.where(is_known, protocol, DONE), ahead


def _parse_gtp(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse GTP-U version 1 (3GPP TS 29.281), only user data, with extension headers."""
    import numpy as np

    head = read(at, 8).astype(np.int64)
    claimed = (head[:, 0] & 0xF0 == 0x30) & (head[:, 1] == 255)
    position = at + np.where(head[:, 0] & 7 > 0, 12, 8)
    has_extensions = claimed & (head[:, 0] & 4 > 0)
    is_truncated = has_extensions & (position > end)
    next_extension = np.zeros(len(at), np.int64)
    rows = np.flatnonzero(has_extensions & ~is_truncated)
    next_extension[rows] = read(position[rows] - 1, 1)[:, 0]
    for _ in range(_MAX_EXTENSIONS):
        rows = np.flatnonzero((next_extension > 0) & ~is_truncated)
        if not len(rows):
            break
        is_truncated[rows] |= position[rows] >= end[rows]
        rows = rows[~is_truncated[rows]]
        size = read(position[rows], 1)[:, 0].astype(np.int64) * 4
        position[rows] += size
        is_truncated[rows] |= (size == 0) | (position[rows] > end[rows])
        rows = rows[~is_truncated[rows]]
        next_extension[rows] = read(position[rows] - 1, 1)[:, 0]
    return claimed, _find_ip(read, position, end, claimed & ~is_truncated & (next_extension == 0)), position - at


def _parse_teredo(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse Teredo, IPv6 behind NATs (RFC 4380), with or without an origin indication but not authentication."""
    import numpy as np

    head = read(at, 2)
    origin, authenticated = (head == (0, 0)).all(1), (head == (0, 1)).all(1)
    position = at + np.where(origin, 8, 0)
    kind = _find_fitting_ip(read, position, end, wire_end, ~authenticated)
    kind[kind == IPV4] = DONE
    return authenticated | (kind == IPV6), kind, position - at


def _parse_lisp(read: Read, at: Ints, end: Ints, wire_end: Ints) -> tuple[Any, Ints, Ints]:
    """Parse LISP's data packets (RFC 9300)."""
    import numpy as np

    kind = _find_fitting_ip(read, at + 8, end, wire_end, np.ones(len(at), bool))
    return kind != DONE, kind, np.full(len(at), 8)


_DECODED_PORTS: dict[int, tuple[str, Callable[[Read, Ints, Ints, Ints], tuple[Any, Ints, Ints]]]] = {
    2152: ("GTP", _parse_gtp), 3544: ("Teredo", _parse_teredo), 4341: ("LISP", _parse_lisp),
    4789: ("VXLAN", _parse_vxlan), 4790: ("VXLAN-GPE", _parse_vxlan_gpe), 6081: ("Geneve", _parse_geneve),
}  # fmt: skip
"""By UDP port: name, and a function that returns which packets match, and kinds and distances of inner packets."""
_HIDDEN_PORTS: dict[int, tuple[str, Callable[[Ints], Any]]] = {
    1701: ("L2TP", lambda head: (head[:, 0] & 0x80 == 0) & (head[:, 1] & 15 == 2)),
    3386: ("GTP", lambda head: (head[:, 0] & 0xE0 == 0) & (head[:, 1] == 255)),
    4500: ("ESP in UDP", lambda head: head[:, :4].any(1)),
    4754: ("GRE in UDP", lambda head: head[:, 0] & 0x4F == 0),
    5247: ("CAPWAP", lambda head: head[:, 0] <= 1),
    6080: ("GUE", lambda head: head[:, 0] & 0x20 == 0),
    6635: ("MPLS in UDP", lambda head: head[:, 3] > 0),
    37008: ("TZSP", lambda head: (head[:, 0] == 1) & (head[:, 1] <= 5) & (head[:, 2] == 0)),
    51820: ("WireGuard", lambda head: (head[:, 0] == 4) & ~head[:, 1:4].any(1)),
}
"""By UDP port: name, and a function from the first eight bytes to matching packets. Their UDP payload counts."""
PORTS = frozenset((*_DECODED_PORTS, *_HIDDEN_PORTS))
"""The UDP ports at which tunnels are looked for."""
