"""The routers on the way to a server, found by UDP packets with a small TTL.

Linux reports to any user which router dropped a packet.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import sys
import time
from typing import NamedTuple

_IP_RECVERR = 11
"""``IP_RECVERR`` of linux/in.h, which Python's socket module lacks. See ip(7)."""
_FIRST_PORT = 33434
_MOST_HOPS = 30
_PROBES = 2
_MOST_SILENT = 4
"""Number of silent hops in a row that end a trace, because a firewall is in the way."""
_WAIT_S = 1.0
_EXTENDED_ERROR = struct.Struct("=IBBBBII")
_BY_ICMP = 2
_TIME_EXCEEDED = 11


class Hop(NamedTuple):
    """A router on the way.

    Attributes:
        ttl: how many hops away, from 1.
        address: the address by which it answers.
        rtt_ms: the round trip to it. Answers may take different ways back, so the difference between the round trips of
            two routers bounds nothing.
    """

    ttl: int
    address: str
    rtt_ms: float


def trace_route(address: str) -> list[Hop]:
    """Return the routers that answer on the way to an IPv4 address. Empty on other systems than Linux, and for IPv6."""
    if sys.platform != "linux" or ":" in address:
        return []
    hops, silent = list[Hop](), 0
    for ttl in range(1, _MOST_HOPS + 1):
        answer = next(filter(None, (_probe(address, ttl) for _ in range(_PROBES))), None)
        if answer is None:
            silent += 1
            if silent == _MOST_SILENT:
                break
            continue
        silent = 0
        hop, is_router = answer
        if not is_router:
            break
        hops.append(hop)
    return hops


def _probe(address: str, ttl: int) -> tuple[Hop, bool] | None:
    """Send one packet, and return who answered, and whether that was a router, or None if nobody answered."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)
        probe.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        waiter = select.poll()
        waiter.register(probe, select.POLLERR)
        began_ns = time.perf_counter_ns()
        try:
            probe.connect((address, _FIRST_PORT + ttl))
            probe.send(b"cloudbench")
            if not waiter.poll(_WAIT_S * 1000):
                return None
            took_ms = (time.perf_counter_ns() - began_ns) / 1e6
            _, answers, _, _ = probe.recvmsg(512, 512, socket.MSG_ERRQUEUE)
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EPERM, errno.EACCES, errno.EAGAIN):
                return None
            raise
    for level, kind, data in answers:
        if (level, kind) == (socket.IPPROTO_IP, _IP_RECVERR) and len(data) >= _EXTENDED_ERROR.size + 8:
            _, origin, icmp_type, _, _, _, _ = _EXTENDED_ERROR.unpack_from(data)
            sender = socket.inet_ntoa(data[_EXTENDED_ERROR.size + 4 : _EXTENDED_ERROR.size + 8])
            if origin == _BY_ICMP:
                return Hop(ttl, sender, took_ms), icmp_type == _TIME_EXCEEDED
    return None
