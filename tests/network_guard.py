"""A guard against requests to other hosts: a test that asks for one fails and names it.

Processes that a test starts get a proxy where nothing listens. The few that install packages get ``with_index()``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from errno import EHOSTUNREACH
from ipaddress import ip_address, ip_network
from typing import Any

__all__ = ["GUARD", "NOWHERE", "Guard", "with_index"]

NOWHERE = ("127.0.0.1", 4)
"""An address where nothing listens: the proxy of everything that does not go to loopback."""

_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY")
_LOCAL_NAMES = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost", socket.gethostname().lower()})
# Loopback, and the networks that the package makes for itself (pytest_cloudbench.net.link).
_NETWORKS = tuple(map(ip_network, ("127.0.0.0/8", "0.0.0.0/32", "::/127", "198.18.0.0/15", "2001:2::/48")))


class Guard:
    """Records the other hosts that this process asks for, and refuses them like a network without a route."""

    def __init__(self) -> None:
        self._requested: list[str] = []
        self._connect, self._connect_ex = socket.socket.connect, socket.socket.connect_ex
        self._getaddrinfo = socket.getaddrinfo

    def install(self) -> None:
        """Guard this process from now on, and send the requests of processes that it starts to ``NOWHERE``."""
        connect, connect_ex, getaddrinfo = self._connect, self._connect_ex, self._getaddrinfo

        def guarded_connect(sock: socket.socket, address: Any, /) -> None:
            self._refuse_outside(sock, address)
            connect(sock, address)

        def guarded_connect_ex(sock: socket.socket, address: Any, /) -> int:
            self._refuse_outside(sock, address)
            return connect_ex(sock, address)

        def guarded_getaddrinfo(host: Any, *args: Any, **options: Any) -> Any:
            if not _is_loopback(host) and not _is_address(host):  # an address needs no name resolution
                self._requested.append(str(host))
                raise socket.gaierror(socket.EAI_NONAME, f"a test asks for {host}")
            return getaddrinfo(host, *args, **options)

        socket.socket.connect = guarded_connect  # type: ignore[assignment,method-assign]  # all clients pass it
        socket.socket.connect_ex = guarded_connect_ex  # type: ignore[assignment,method-assign]  # so do these
        socket.getaddrinfo = guarded_getaddrinfo
        proxy = "http://{}:{}".format(*NOWHERE)
        os.environ.update(dict.fromkeys(_VARIABLES, proxy), NO_PROXY="127.0.0.1,localhost,::1,198.18.0.1,198.18.0.2")

    def _refuse_outside(self, sock: socket.socket, address: Any) -> None:
        if sock.family in {socket.AF_INET, socket.AF_INET6} and (
            not _is_loopback(address[0]) or address[:2] == NOWHERE
        ):
            self._requested.append("a host behind the proxy" if address[:2] == NOWHERE else str(address[0]))
            raise OSError(EHOSTUNREACH, f"a test connects to {self._requested[-1]}")

    def take_requests(self) -> list[str]:
        """Return the hosts that were asked for since the last call."""
        hosts, self._requested[:] = [*self._requested], []
        return hosts


GUARD = Guard()


def with_index(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a process that installs packages, which alone may ask an index."""
    return {name: value for name, value in environment.items() if name not in {*_VARIABLES, "NO_PROXY"}}


def _is_address(host: Any) -> bool:
    try:
        ip_address(_host_text(host).partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(host: Any) -> bool:
    text = _host_text(host)
    if text == "127.0.0.1" or text in _LOCAL_NAMES:
        return True
    return _is_address(text) and any(ip_address(text.partition("%")[0]) in network for network in _NETWORKS)


def _host_text(host: Any) -> str:
    return host.decode("ascii", "replace").lower() if isinstance(host, bytes) else str(host or "").lower()
