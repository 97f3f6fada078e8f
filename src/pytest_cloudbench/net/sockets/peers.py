"""The addresses that this process is connected to by TCP, as Linux lists them in ``/proc``."""

from __future__ import annotations

import os
import socket
import struct
import sys
from ipaddress import IPv6Address, ip_address

from pytest_cloudbench.net.sockets.owners import find_socket_inodes

_ESTABLISHED = "01"


def list_peers() -> list[tuple[str, int]]:
    """Return address and port of the other end of each connection, each once. Empty where the system cannot tell."""
    if sys.platform != "linux":
        return []
    inodes = find_socket_inodes([os.getpid()])
    peers = dict[tuple[str, int], None]()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{name}", encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:  # no IPv6
            continue
        for row in rows:
            if row[3] == _ESTABLISHED and int(row[9]) in inodes:
                address, _, port = row[2].partition(":")
                peers[parse_address(address), int(port, 16)] = None
    return [*peers]


def parse_address(text: str) -> str:
    """Return an address that ``/proc/net/tcp`` shows as words of the machine's byte order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    if len(words) == 1:
        return socket.inet_ntoa(packed)
    mapped = IPv6Address(packed).ipv4_mapped
    return str(mapped or ip_address(packed))
