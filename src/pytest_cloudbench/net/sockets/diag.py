"""The kernel's messages about TCP sockets (``sock_diag(7)``), as values: pure functions of bytes.

What may live here: building requests and reading answers. The numbers are those of ``linux/netlink.h``,
``linux/sock_diag.h``, ``linux/inet_diag.h``, ``linux/tcp.h`` and ``linux/filter.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

Place = tuple[bytes, int]
"""An IPv6 address, or an IPv4 address as IPv6 writes it, and a port."""

SOCKET, FAILED, DONE = 20, 2, 3
"""Types of messages: SOCK_DIAG_BY_FAMILY, NLMSG_ERROR, NLMSG_DONE."""

DESTROYED = 1 << 0 | 1 << 2
"""The groups that tell of destroyed TCP sockets: SKNLGRP_INET_TCP_DESTROY and SKNLGRP_INET6_TCP_DESTROY."""

LISTENING, LEFT = 10, 8
"""States: one waits for connections and carries nothing; the other end of one has closed (CLOSE_WAIT)."""

OPEN_STATES = frozenset({1, 2, 3})
"""Neither end has closed: ESTABLISHED, SYN_SENT, SYN_RECV."""

_HEADER = struct.Struct("=IHHII")
_SOCKET = struct.Struct("=BB2x2s2s16s16s4xII16xI")
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST = struct.Struct("=BBBxI48x")
_FILTER = struct.Struct("=HBBI")
_TCP, _INET, _INFO = 6, 2, 2
_DUMPED = 0xFFF & ~(1 << 6 | 1 << 7)  # not TIME_WAIT and CLOSE, which have no counts
_FLYING_AT, _ACKED_AT, _SENT_AT, _COUNTED = 24, 120, 200, 216  # in struct tcp_info; bytes_sent: since Linux 4.19
_MAPPED = bytes(10) + b"\xff\xff"
_LOAD, _IS_EQUAL, _RETURN = 0x28, 0x15, 0x06
_LOCAL_PORT, _REMOTE_PORT = _HEADER.size + 4, _HEADER.size + 6


class UncountedError(Exception):
    """The kernel does not count what is needed; the text says why."""


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """One socket, and what it has carried so far.

    Attributes:
        cookie: the kernel's number for it, which no other socket gets.
        state: of TCP; 1 is an established connection.
        local, remote: its ends.
        sent_bytes: each byte once, however often it was sent.
        received_bytes: each byte once, and one more if the other end has closed.
        acked_bytes: what the other end has acknowledged, and one more if this end has opened the connection.
        is_flying: whether something that was sent is not acknowledged yet.
        inode: by which its owners know it; 0 if it has none.
    """

    cookie: int
    state: int
    local: Place
    remote: Place
    sent_bytes: int
    received_bytes: int
    acked_bytes: int = 0
    is_flying: bool = False
    inode: int = 0


def dump_request(family: int) -> bytes:
    """Returns the request for all TCP sockets of an address family, with their counts."""
    body = _REQUEST.pack(family, _TCP, 1 << (_INFO - 1), _DUMPED)
    return _HEADER.pack(_HEADER.size + len(body), SOCKET, 0x301, 1, 0) + body  # NLM_F_REQUEST, NLM_F_DUMP


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Returns type and body of each message in what was received at once. Raises UncountedError for anything else."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise UncountedError("the kernel's answer is cut off")
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if not _HEADER.size <= length <= len(data) - at:
            raise UncountedError("the kernel's answer is cut off")
        yield kind, data[at + _HEADER.size : at + length]
        at += length + 3 & ~3


def errno_of(body: bytes) -> int:
    """Returns the error number of a ``FAILED`` message; 0 if it only confirms."""
    return -int(struct.unpack_from("=i", body)[0]) if len(body) >= 4 else 0


def read_socket(body: bytes) -> TcpSocket | None:
    """Returns what a ``SOCKET`` message says; None for what is left of a connection that was closed.

    Raises UncountedError if the kernel is too old to count what was sent.
    """
    if len(body) < _SOCKET.size:
        raise UncountedError("the kernel's answer is cut off")
    family, state, here, there, local, remote, low, high, inode = _SOCKET.unpack_from(body)
    info = _attribute(body, _INFO)
    if info is None:
        return None
    if len(info) < _COUNTED:
        raise UncountedError("this kernel does not count what sockets send (Linux 4.19 does)")
    sent, again = struct.unpack_from("=QQ", info, _SENT_AT)
    acked, received = struct.unpack_from("=QQ", info, _ACKED_AT)
    (flying,) = struct.unpack_from("=I", info, _FLYING_AT)
    return TcpSocket(
        low | high << 32, state, (_address(family, local), int.from_bytes(here, "big")),
        (_address(family, remote), int.from_bytes(there, "big")), sent - again, received, acked, flying > 0, inode,
    )  # fmt: skip


def _attribute(body: bytes, wanted: int) -> bytes | None:
    at = _SOCKET.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if kind == wanted:
            return body[at + _ATTRIBUTE.size : at + length]
        at += max(length + 3 & ~3, _ATTRIBUTE.size)
    return None


def _address(family: int, field: bytes) -> bytes:
    return _MAPPED + field[:4] if family == _INET else field


def address_of(packed: bytes) -> bytes:
    """Returns a packed IPv4 or IPv6 address as a ``Place`` has it."""
    return _MAPPED + packed if len(packed) == 4 else packed


def is_loopback(address: bytes) -> bool:
    """Returns whether an address, as a ``Place`` has it, is of this host alone."""
    return address == bytes(15) + b"\x01" or address[:13] == _MAPPED + b"\x7f"


def filter_program(ports: Collection[int]) -> bytes:
    """Returns a filter in the kernel's classic BPF that lets only sockets with one of these ports at either end pass.

    Sockets that were never connected pass as well: their remote port is 0.
    """
    tests = [(_REMOTE_PORT, (0, *sorted(ports))), (_LOCAL_PORT, tuple(sorted(ports)))]
    length = sum(1 + len(wanted) for _, wanted in tests)
    found = []
    for at, wanted in tests:
        found.append(_FILTER.pack(_LOAD, 0, 0, at))
        for port in wanted:
            found.append(_FILTER.pack(_IS_EQUAL, length - len(found), 0, port))
    return b"".join([*found, _FILTER.pack(_RETURN, 0, 0, 0), _FILTER.pack(_RETURN, 0, 0, 0xFFFFFFFF)])
