"""Tunnels within IP and UDP: what is inside of each packet, and how far away.

What may live here: headers of tunnels, as columns. A tunnel that is recognised but cannot be decoded has a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

IPV4, IPV6, BRIDGED = 0x0800, 0x86DD, 0x6558
DONE, ERSPAN2, ERSPAN3 = -1, 0x10002, 0x10003
"""What comes next if not an EtherType: nothing, or ERSPAN's headers before an Ethernet frame."""

Read = Callable[["Ints", int], Any]
"""Maps (places, width) to that many bytes at each place; all must be in the file."""

_MOST_EXTENSIONS = 8


@dataclass(slots=True)
class Inside:
    """Of some packets: what is inside of each (``DONE``: no tunnel), how many bytes before it, and what stays hidden.

    Attributes:
        kind: an EtherType, or one of the above.
        ahead: bytes from the header's place to what is inside.
        hidden: names of wrappings that are not looked into, each with the rows that have it.
    """

    kind: Ints
    ahead: Ints
    hidden: list[tuple[str, Any]]


def gre(head: Ints) -> tuple[Ints, Ints]:
    """Generic routing encapsulation (RFC 2784, 2890): (what is inside, bytes before it). ``head``: its first four."""
    import numpy as np

    flags = head[:, 0]  # checksum, key and sequence number take four bytes each
    has_sequence = flags >> 4 & 1
    optional = ((flags >> 7 & 1) + (flags >> 5 & 1) + has_sequence) * 4
    plain = (head[:, 1] & 7 == 0) & (flags & 0x40 == 0)
    kind = head[:, 2] << 8 | head[:, 3]
    kind = np.where(
        kind == 0x88BE, np.where(has_sequence > 0, ERSPAN2, BRIDGED), np.where(kind == 0x22EB, ERSPAN3, kind)
    )
    # Values below 0x600 are no EtherTypes: 0 is a keep-alive, 0xFE is OSI.
    return np.where(plain & ((kind >= 0x600) | (kind == 0) | (kind == 0xFE)), kind, DONE), 4 + optional


def in_udp(read: Read, at: Ints, end: Ints, until: Ints) -> Inside:
    """What is in UDP packets whose headers are at these places.

    Args:
        read: gives bytes of the file.
        at: where each UDP header begins; all of it was kept.
        end: where the kept part of the packet or its payload ends, whichever comes first.
        until: where its payload ends on the wire.
    """
    import numpy as np

    found = Inside(np.full(len(at), DONE, np.int64), np.zeros(len(at), np.int64), [])
    ports = read(at, 4).view(">u2").astype(np.int64)
    tunnels = np.array([*_INSIDE, *_HIDDEN])
    is_tunnel = np.isin(ports, tunnels)
    if not is_tunnel.any():
        return found
    port = np.where(is_tunnel[:, 1], ports[:, 1], ports[:, 0])
    other = np.where(is_tunnel[:, 1], ports[:, 0], ports[:, 1])  # such as DNS, whose client happens to have that port
    rows = np.flatnonzero(is_tunnel.any(1) & (other >= 1024) & (end - at >= 8 + 8))
    for number in np.unique(port[rows]).tolist():
        own = rows[port[rows] == number]
        body = at[own] + 8
        if number in _HIDDEN:
            name, is_one = _HIDDEN[number]
            head = read(body, 8).astype(np.int64)
            found.hidden.append((name, own[is_one(head)]))
            continue
        name, look = _INSIDE[number]
        claimed, kind, ahead = look(read, body, end[own], until[own])
        found.kind[own], found.ahead[own] = kind, ahead + 8
        found.hidden.append((name, own[claimed & (kind == DONE)]))
    found.hidden = [(name, each) for name, each in found.hidden if len(each)]
    return found


def _versions(read: Read, at: Ints, end: Ints, chosen: Any) -> Ints:
    """IPv4 or IPv6 at each chosen place, or neither."""
    import numpy as np

    kind = np.full(len(at), DONE, np.int64)
    rows = np.flatnonzero(chosen & (at >= 0) & (at < end))
    version = read(at[rows], 1)[:, 0] >> 4
    kind[rows] = np.select([version == 4, version == 6], [IPV4, IPV6], DONE)
    return kind


def _fitting(read: Read, at: Ints, end: Ints, until: Ints, chosen: Any) -> Ints:
    """The same if its length is that of the rest, which another use of the port seldom matches."""
    import numpy as np

    kind = _versions(read, at, end, chosen & (at + 6 <= end))
    rows = np.flatnonzero(kind != DONE)
    head = read(at[rows], 6).view(">u2").astype(np.int64)
    size = np.where(kind[rows] == IPV4, head[:, 1], head[:, 2] + 40)
    kind[rows[size != (until - at)[rows]]] = DONE
    return kind


def _ethernet(read: Read, at: Ints, end: Ints, chosen: Any) -> Ints:
    """An Ethernet frame at each chosen place where its header was kept."""
    import numpy as np

    return np.where(chosen & (at + 14 <= end), BRIDGED, DONE)


def _vxlan(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """VXLAN (RFC 7348), also with a group policy. Its reserved bytes are zero; otherwise the port has another use."""
    import numpy as np

    head = read(at, 8)
    plain = (head[:, 0] == 8) & (head[:, (1, 2, 3, 7)] == 0).all(1)
    policy = (head[:, 0] == 0x88) & (head[:, 1] & 0xB7 == 0) & (head[:, 7] == 0)
    return plain | policy, _ethernet(read, at + 8, end, plain | policy), np.full(len(at), 8)


def _vxlan_gpe(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """VXLAN with a next protocol (draft-ietf-nvo3-vxlan-gpe)."""
    import numpy as np

    head = read(at, 8)
    claimed = (head[:, 0] & 0xF0 == 0) & (head[:, 0] & 0x0C > 0) & (head[:, (1, 2, 7)] == 0).all(1)
    inside = np.select([head[:, 3] == 1, head[:, 3] == 2, head[:, 3] == 3], [IPV4, IPV6, BRIDGED], DONE)
    return claimed, np.where(claimed, inside, DONE), np.full(len(at), 8)


def _geneve(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """Geneve (RFC 8926), with options."""
    import numpy as np

    head = read(at, 8).astype(np.int64)
    claimed = (head[:, 0] >> 6 == 0) & (head[:, 1] & 0x3F == 0) & (head[:, 7] == 0)
    ahead = 8 + (head[:, 0] & 0x3F) * 4
    protocol = head[:, 2] << 8 | head[:, 3]
    known = np.isin(protocol, (IPV4, IPV6, BRIDGED)) & claimed & (at + ahead < end)
    return claimed, np.where(known, protocol, DONE), ahead


def _gtp(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """GTP-U, version 1 (3GPP TS 29.281): user data only, with extension headers."""
    import numpy as np

    head = read(at, 8).astype(np.int64)
    claimed = (head[:, 0] & 0xF0 == 0x30) & (head[:, 1] == 255)
    place = at + np.where(head[:, 0] & 7 > 0, 12, 8)
    more = claimed & (head[:, 0] & 4 > 0)
    lost = more & (place > end)
    following = np.zeros(len(at), np.int64)
    rows = np.flatnonzero(more & ~lost)
    following[rows] = read(place[rows] - 1, 1)[:, 0]
    for _ in range(_MOST_EXTENSIONS):
        rows = np.flatnonzero((following > 0) & ~lost)
        if not len(rows):
            break
        lost[rows] |= place[rows] >= end[rows]
        rows = rows[~lost[rows]]
        size = read(place[rows], 1)[:, 0].astype(np.int64) * 4
        place[rows] += size
        lost[rows] |= (size == 0) | (place[rows] > end[rows])
        rows = rows[~lost[rows]]
        following[rows] = read(place[rows] - 1, 1)[:, 0]
    return claimed, _versions(read, place, end, claimed & ~lost & (following == 0)), place - at


def _teredo(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """Teredo: IPv6 behind NATs (RFC 4380), with or without an origin indication. Not with authentication."""
    import numpy as np

    head = read(at, 2)
    origin, authenticated = (head == (0, 0)).all(1), (head == (0, 1)).all(1)
    place = at + np.where(origin, 8, 0)
    kind = _fitting(read, place, end, until, ~authenticated)
    kind[kind == IPV4] = DONE
    return authenticated | (kind == IPV6), kind, place - at


def _lisp(read: Read, at: Ints, end: Ints, until: Ints) -> tuple[Any, Ints, Ints]:
    """LISP's data packets (RFC 9300)."""
    import numpy as np

    kind = _fitting(read, at + 8, end, until, np.ones(len(at), bool))
    return kind != DONE, kind, np.full(len(at), 8)


_INSIDE: dict[int, tuple[str, Callable[[Read, Ints, Ints, Ints], tuple[Any, Ints, Ints]]]] = {
    2152: ("GTP", _gtp), 3544: ("Teredo", _teredo), 4341: ("LISP", _lisp), 4789: ("VXLAN", _vxlan),
    4790: ("VXLAN-GPE", _vxlan_gpe), 6081: ("Geneve", _geneve),
}  # fmt: skip
"""By UDP port: name, and a function that returns which packets are such, what is inside, and how many bytes before."""
_HIDDEN: dict[int, tuple[str, Callable[[Ints], Any]]] = {
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
"""By UDP port: name, and which packets are such, by their first eight bytes. Their UDP payload counts."""
