"""Numbers and names of protocols around IP, and which of them never hold a flow.

A packet of any other protocol may hold unseen flows, so it makes a capture's verdict unknown.
"""

from __future__ import annotations

CONTROL_ETHERTYPES = frozenset((
    0x0600, 0x0601, 0x0806, 0x0842, 0x0BAD, 0x2000, 0x2001, 0x2004, 0x22EA, 0x22F0, 0x22F4, *range(0x6000, 0x6008),
    0x8035, 0x809B, 0x80F3, 0x8137, 0x8138, 0x8204, 0x8808, 0x8809, 0x8863, 0x886D, 0x886F, 0x8870, 0x8874, 0x887B,
    0x888E, 0x8892, 0x8899, 0x889A, 0x88A2, 0x88A4, 0x88AB, 0x88B8, 0x88B9, 0x88BA, 0x88BF, 0x88C0, 0x88C7, 0x88CA,
    0x88CC, 0x88CD, 0x88D8, 0x88D9, 0x88DC, 0x88E1, 0x88E3, 0x88F5, 0x88F6, 0x88F7, 0x88F8, 0x88FB, 0x8902, 0x8906,
    0x890D, 0x8911, 0x8912, 0x8914, 0x8915, 0x892F, 0x893A, 0x8940, 0x8946, 0x894C, 0x9000, 0x9003, 0xCAFE, 0xFCFC,
))  # fmt: skip
"""ARP, spanning trees' kin, LLDP, EAPOL, pause, LACP, PTP, CFM, PPPoE discovery, IPX, AppleTalk, DECnet, FCoE, AoE,
RoCE, fieldbuses and the like."""

CONTROL_SAPS = frozenset((
    0x00, 0x02, 0x03, 0x04, 0x05, 0x08, 0x0C, 0x0E, 0x10, 0x42, 0x4E, 0x7E, 0x80, 0x8E, 0x98, 0xBC, 0xD4, 0xDC, 0xE0,
    0xF0, 0xF4, 0xF5, 0xF8, 0xFC, 0xFE, 0xFF,
))  # fmt: skip
"""LLC service access points: spanning tree (0x42), IPX (0xE0, 0xFF), NetBIOS (0xF0), OSI with IS-IS (0xFE), SNA,
management."""

_SNAP_CONTROL = frozenset((
    *((0x00000C, pid) for pid in (0x0102, 0x0104, 0x0105, 0x010B, 0x010C, 0x0111, 0x0112, 0x0115, 0x0116, 0x2000,
                                  0x2003, 0x2004, 0x2005)),
    (0x0080C2, 0x000E), (0x0080C2, 0x000F), (0x080007, 0x809B), (0x00E02B, 0x00BB), (0x000081, 0x01A2), (0x0019A7, 0),
    (0x00000C, 0x0000),
))  # fmt: skip

CONTROL_PROTOCOLS = frozenset((
    1, 2, 3, 5, 7, 8, 9, 20, 27, 28, 33, 45, 46, 48, 54, 58, 59, 81, 83, 85, 86, 88, 89, 100, 101, 102, 103, 104, 111,
    112, 113, 118, 119, 121, 123, 124, 127, 132, 133, 134, 135, 138, 139, 140,
))  # fmt: skip
"""IP protocols: ICMP, IGMP, routing (EGP, IGRP, EIGRP, OSPF, PIM, IS-IS, ...), RSVP, VRRP and CARP, and transports
that are not TCP or UDP (SCTP, DCCP, PGM, ...). None of them contains another IP packet."""

_ETHERTYPES = {
    0x22EB: "ERSPAN", 0x22F3: "TRILL", 0x4305: "batman-adv", 0x880B: "PPP", 0x883E: "WCCP", 0x8847: "MPLS",
    0x8848: "MPLS", 0x88A8: "VLAN", 0x88BE: "ERSPAN", 0x88E5: "MACsec", 0x88E7: "provider backbone bridge",
    0x8100: "VLAN", 0x8903: "FabricPath", 0x8909: "Cisco metadata", 0x8926: "VN-Tag", 0x893F: "E-Tag", 0x894F: "NSH",
    0x9100: "VLAN", 0xF1C1: "802.1CB R-TAG",
}  # fmt: skip
_PROTOCOLS = {
    4: "IP in IP", 41: "IPv6 in IP", 43: "IPv6 routing header", 50: "ESP", 51: "AH", 55: "IP mobility", 94: "IP in IP",
    97: "EtherIP", 98: "IP encapsulation", 108: "IPComp", 115: "L2TP", 137: "MPLS in IP", 142: "ROHC", 143: "Ethernet",
}  # fmt: skip
_LINKS = {
    6: "token ring", 7: "ARCNET", 10: "FDDI", 11: "ATM", 105: "802.11", 107: "frame relay", 119: "802.11 with Prism",
    127: "802.11 with radiotap", 163: "802.11 with AVS", 189: "USB", 192: "PPI", 195: "802.15.4", 201: "Bluetooth",
    220: "USB", 225: "InfiniBand", 227: "CAN", 239: "nflog", 249: "USB", 252: "Wireshark upper PDU", 253: "netlink",
}  # fmt: skip


def is_snap_control(organisation: int, protocol: int) -> bool:
    """Return whether a SNAP protocol never holds a flow: CDP, VTP, DTP, PVST, UDLD, AppleTalk, EDP, ..."""
    return (organisation, protocol) in _SNAP_CONTROL


def ethertype_name(number: int) -> str:
    """Return the name of an EtherType."""
    return _ETHERTYPES.get(number, f"EtherType 0x{number:04x}")


def ip_protocol_name(number: int) -> str:
    """Return the name of an IP protocol."""
    return _PROTOCOLS.get(number, f"IP protocol {number}")


def link_type_name(number: int) -> str:
    """Return the name of a link type."""
    return _LINKS.get(number, f"link type {number}")


def ppp_name(number: int) -> str | None:
    """Return the name of a PPP protocol, or None if it never holds a flow (control, and networks other than IP)."""
    if number >= 0x4000 or number in (0x23, 0x25, 0x27, 0x29, 0x2B, 0x35, 0x3F):
        return None
    names = {0x2D: "compressed TCP", 0x2F: "compressed TCP", 0x3D: "multilink", 0x53: "encryption", 0xFD: "compression"}
    return f"PPP with {names.get(number, f'protocol 0x{number:04x}')}"
