"""Round trips to servers by TCP connects, which need no rights: the shortest of several, from wherever this runs.

This file runs on any host that has Python, so it imports only the standard library. A closed port serves as well as an
open one, because its refusal travels the same way.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

CONTROL_ADDRESSES = {4: "192.0.2.1", 6: "2001:db8::1"}
"""An address of each family that belongs to nobody (RFC 5737, RFC 3849). Anything that answers for it is a proxy, which
also answers in place of servers."""


def connect_ms(address: str, port: int, timeout_s: float) -> float | None:
    """Return the milliseconds until a server accepts or refuses a connection, or None if neither happens in time."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        endpoint = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return None  # a kernel without IPv6 reaches none of its addresses
    with endpoint as connection, selectors.DefaultSelector() as selector:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_WRITE)
        begin_ns = time.perf_counter_ns()
        status = connection.connect_ex((address, port))
        if status in (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EAGAIN):
            if not selector.select(timeout_s):
                return None
            end_ns = time.perf_counter_ns()
            status = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        else:
            end_ns = time.perf_counter_ns()
    return (end_ns - begin_ns) / 1e6 if status in (0, errno.ECONNREFUSED) else None


def measure_tick_ms(read_ns: Callable[[], int] = time.perf_counter_ns) -> float:
    """Return the smallest step of a clock in milliseconds. A measured time can be too short by one step.

    The step is observed, because some systems state a step of one ns although their clock stands still for 15 ms.
    """
    steps = []
    for _ in range(_TICKS):
        before_ns = read_ns()
        while (now_ns := read_ns()) == before_ns:
            pass
        steps.append(now_ns - before_ns)
    return min(steps) / 1e6


_TICKS = 5


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Return the round trips to each address, and whether something answers for an address of nobody.

    The request has ``addresses``, ``port``, ``connects`` to each, the ``gap_s`` between two, ``timeout_s``, and the
    ``controls``, a list of addresses of nobody, which may be empty. Each address is tried in turn, so that none gets a
    burst. A tick of the clock is added to each time, so that none is shorter than the truth.
    """
    port, timeout_s, tick_ms = request["port"], request["timeout_s"], measure_tick_ms()
    rtts: dict[str, list[float]] = {address: [] for address in request["addresses"]}
    silent = set[str]()
    for _ in range(request["connects"]):
        for address, values in rtts.items():
            if address in silent:
                continue
            value = connect_ms(address, port, timeout_s)
            if value is not None:
                values.append(value + tick_ms)
            elif not values:
                silent.add(address)  # nothing answers, although TCP has repeated its SYN within the time limit
            time.sleep(request["gap_s"])  # a server gets few connections a second
    controls = request["controls"]
    has_proxy = any(connect_ms(control, port, timeout_s) is not None for control in controls) if controls else None
    return {"rtts": rtts, "has_proxy": has_proxy, "python": sys.version.split()[0]}


def main() -> None:
    """Read one request as a line from standard input, and write the answer as a line to standard output."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        line += piece
    os.write(1, json.dumps(measure(json.loads(line))).encode() + b"\n")
