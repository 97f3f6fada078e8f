"""Pure functions that build and parse the kernel's messages about TCP sockets (``sock_diag(7)``).

The numbers are from ``linux/netlink.h``, ``linux/sock_diag.h``, ``linux/inet_diag.h``, ``linux/tcp.h`` and
``linux/filter.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

SocketAddress = tuple[bytes, int]
"""A port, and an IPv6 or IPv4-mapped address."""

SOCKET, FAILED, DONE = 20, 2, 3
"""Message types SOCK_DIAG_BY_FAMILY, NLMSG_ERROR and NLMSG_DONE."""

DESTROYED = 1 << 0 | 1 << 2
"""Groups that announce destroyed TCP sockets: SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY."""

LISTENING, CLOSE_WAIT = 10, 8
"""TCP states. A listening socket carries nothing. In CLOSE_WAIT, the remote end has closed."""

OPEN_STATES = frozenset({1, 2, 3})
"""States in which neither end has closed: ESTABLISHED, SYN_SENT and SYN_RECV."""

_HEADER = struct.Struct("=IHHII")
_SOCKET = struct.Struct("=BB2x2s2s16s16s4xII16xI")
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST = struct.Struct("=BBBxI48x")
_INSTRUCTION = struct.Struct("=HBBI")
_TCP, _INET, _INFO = 6, 2, 2
_DUMPED_STATES = 0xFFF & ~(1 << 6 | 1 << 7)  # all but TIME_WAIT and CLOSE, which have no counts
_UNACKED_AT, _ACKED_AT, _SENT_AT, _INFO_BYTES = (
    24,
    120,
    200,
    216,
)  # in struct tcp_info, with bytes_sent since Linux 4.19
_MAPPED = bytes(10) + b"\xff\xff"
_LOAD_HALF_WORD, _JUMP_IF_EQUAL, _RETURN = 0x28, 0x15, 0x06
_LOCAL_PORT, _REMOTE_PORT = _HEADER.size + 4, _HEADER.size + 6


class UncountedError(Exception):
    """The kernel does not count the bytes needed. The text says why."""


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One socket with the bytes it has carried so far.

    Attributes:
        cookie: the kernel's unique number for it.
        state: the TCP state, 1 for an established connection.
        local, remote: addresses of both ends.
        sent_bytes: bytes sent, without retransmissions.
        received_bytes: bytes received without duplicates, plus one if the other end has closed.
        acked_bytes: bytes acknowledged by the other end, plus one if this end has opened the connection.
        has_unacked: whether some sent data is not acknowledged yet.
        inode: number of the socket in the file tables of its owners, 0 if it has none.
    """

    cookie: int
    state: int
    local: SocketAddress
    remote: SocketAddress
    sent_bytes: int
    received_bytes: int
    acked_bytes: int = 0
    has_unacked: bool = False
    inode: int = 0


def make_dump_request(family: int) -> bytes:
    """Return the request for all TCP sockets of an address family, with their counts."""
    body = _REQUEST.pack(family, _TCP, 1 << (_INFO - 1), _DUMPED_STATES)
    return _HEADER.pack(_HEADER.size + len(body), SOCKET, 0x301, 1, 0) + body  # NLM_F_REQUEST, NLM_F_DUMP


def split_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and body of each message in a received packet. Raises UncountedError if it is malformed."""
    position = 0
    while position < len(data):
        if len(data) - position < _HEADER.size:
            raise UncountedError("the kernel's answer is cut off")
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if not _HEADER.size <= length <= len(data) - position:
            raise UncountedError("the kernel's answer is cut off")
        yield kind, data[position + _HEADER.size : position + length]
        position += length + 3 & ~3


def read_errno(body: bytes) -> int:
    """Return the error number of a ``FAILED`` message, or 0 for a plain acknowledgement."""
    return -int(struct.unpack_from("=i", body)[0]) if len(body) >= 4 else 0


def read_socket(body: bytes) -> TcpSocket | None:
    """Return the socket of a ``SOCKET`` message, or None for the remains of a closed connection.

    Raises UncountedError if the kernel is too old to count sent bytes.
    """
    if len(body) < _SOCKET.size:
        raise UncountedError("the kernel's answer is cut off")
    family, state, local_port, remote_port, local, remote, cookie_low, cookie_high, inode = _SOCKET.unpack_from(body)
    info = _find_attribute(body, _INFO)
    if info is None:
        return None
    if len(info) < _INFO_BYTES:
        raise UncountedError("this kernel does not count the bytes that sockets send (Linux 4.19 does)")
    sent, resent = struct.unpack_from("=QQ", info, _SENT_AT)
    acked, received = struct.unpack_from("=QQ", info, _ACKED_AT)
    (unacked,) = struct.unpack_from("=I", info, _UNACKED_AT)
    return TcpSocket(
        cookie_low | cookie_high << 32, state, (_widen_address(family, local), int.from_bytes(local_port, "big")),
        (_widen_address(family, remote), int.from_bytes(remote_port, "big")), sent - resent, received, acked,
        unacked > 0, inode,
    )  # fmt: skip


def _find_attribute(body: bytes, attribute: int) -> bytes | None:
    position = _SOCKET.size
    while position + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, position)
        if kind == attribute:
            return body[position + _ATTRIBUTE.size : position + length]
        position += max(length + 3 & ~3, _ATTRIBUTE.size)
    return None


def _widen_address(family: int, field: bytes) -> bytes:
    return _MAPPED + field[:4] if family == _INET else field


def address_of(packed: bytes) -> bytes:
    """Return a packed IPv4 or IPv6 address in the form of a ``SocketAddress``."""
    return _MAPPED + packed if len(packed) == 4 else packed


def is_loopback(address: bytes) -> bool:
    """Return whether the address of a ``SocketAddress`` is a loopback address."""
    return address == bytes(15) + b"\x01" or address[:13] == _MAPPED + b"\x7f"


def make_port_filter(ports: Collection[int]) -> bytes:
    """Return a classic BPF filter that passes only sockets with one of these ports at either end.

    Sockets that were never connected also pass, because their remote port is 0.
    """
    tests = [(_REMOTE_PORT, (0, *sorted(ports))), (_LOCAL_PORT, tuple(sorted(ports)))]
    length = sum(1 + len(accepted) for _, accepted in tests)
    instructions = []
    for field_offset, accepted in tests:
        instructions.append(_INSTRUCTION.pack(_LOAD_HALF_WORD, 0, 0, field_offset))
        for port in accepted:
            instructions.append(_INSTRUCTION.pack(_JUMP_IF_EQUAL, length - len(instructions), 0, port))
    return b"".join([*instructions, _INSTRUCTION.pack(_RETURN, 0, 0, 0), _INSTRUCTION.pack(_RETURN, 0, 0, 0xFFFFFFFF)])
