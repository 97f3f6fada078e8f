"""Counters of the bytes that a run's clients exchange over TCP between a start and a stop."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

from pytest_cloudbench.net.sockets.diag import SocketAddress, TcpSocket, UncountedError, address_of
from pytest_cloudbench.net.sockets.kernel import SocketWatch
from pytest_cloudbench.net.sockets.owners import find_descendants, find_socket_inodes
from pytest_cloudbench.net.sockets.sums import Carried, ServiceAddresses, sum_own_bytes, sum_service_bytes
from pytest_cloudbench.support import opening

_Sockets = Mapping[int, TcpSocket]


class TcpCounter(ABC):
    """A counter of the bytes of some TCP connections from now until ``stop`` or ``close``, one of which must be called.

    It never raises: ``stop`` returns the reason if the bytes are unknown.
    """

    _max_closed = 100_000
    """Largest number of closed sockets to remember."""

    def __init__(self) -> None:
        self._failure = ""
        self._watch: SocketWatch | None = None
        try:
            self._watch = SocketWatch(self._watched_ports(), self._max_closed)
            present, gone = self._watch.read_sockets()
            self._record_start(present, gone)
        except (UncountedError, OSError) as error:
            self._failure = _describe_error(error)

    def stop(self, excluded: Collection[int] = ()) -> Carried:
        """Return the bytes carried since the start, without connections of sockets whose cookies are ``excluded``."""
        if self._watch is None or self._failure:
            self.close()
            return Carried(why=self._failure or "already stopped")
        try:
            return self._sum_bytes(*self._watch.read_sockets(), excluded)
        except (UncountedError, OSError) as error:
            return Carried(why=_describe_error(error))
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening. It is safe to call again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    @abstractmethod
    def _watched_ports(self) -> Collection[int] | None:
        """Return the ports of sockets to watch, or None for all sockets. Raises UncountedError and OSError."""

    @abstractmethod
    def _record_start(self, present: _Sockets, gone: _Sockets) -> None:
        """Remember the sockets at the start: those present, and those gone by now."""

    @abstractmethod
    def _sum_bytes(self, present: _Sockets, gone: _Sockets, excluded: Collection[int]) -> Carried:
        """Return the bytes carried, from the sockets present at the end and those gone since the start."""


class ServiceCounter(TcpCounter):
    """A counter of all connections to services, from any client. Both must be in this network namespace.

    Args:
        addresses: host and port of each service, or None if clients also use others.
    """

    def __init__(self, addresses: Iterable[tuple[str, int]] | None) -> None:
        self._addresses = None if addresses is None else tuple(addresses)
        super().__init__()

    def _watched_ports(self) -> Collection[int]:
        if self._addresses is None:
            raise UncountedError("part of the provider is not a service of this run")
        self._service_addresses = ServiceAddresses(
            address for host, port in self._addresses for address in _resolve_address(host, port)
        )
        return self._service_addresses.ports

    def _record_start(self, present: _Sockets, gone: _Sockets) -> None:
        self._before = {**present, **gone}  # a connection with one end gone was over before the start

    def _sum_bytes(self, present: _Sockets, gone: _Sockets, excluded: Collection[int]) -> Carried:
        closed = gone.keys() - present.keys()
        return sum_service_bytes(
            self._service_addresses, self._before, {**gone, **present}, closed=closed, excluded=excluded
        )


class OwnCounter(TcpCounter):
    """A counter of all connections between other hosts or processes and this process with its descendants.

    Args:
        clients: ids of the processes to count, each of which must be this one or a descendant of it.
    """

    _max_closed = 1_000  # few, because these are sockets of all programs on this machine

    def __init__(self, clients: Iterable[int]) -> None:
        self._clients = frozenset(clients)
        super().__init__()

    def _watched_ports(self) -> None:
        if not self._clients <= find_descendants(os.getpid()):
            raise UncountedError("some agents are on another host or in a container")

    def _record_start(self, present: _Sockets, gone: _Sockets) -> None:
        self._before = {cookie: sock for cookie, sock in present.items() if cookie not in gone}
        self._owned = find_socket_inodes(find_descendants(os.getpid()))

    def _sum_bytes(self, present: _Sockets, gone: _Sockets, excluded: Collection[int]) -> Carried:
        owned = self._owned | find_socket_inodes(find_descendants(os.getpid()))
        return sum_own_bytes(owned, self._before, present, gone, excluded=excluded)


def _resolve_address(host: str, port: int) -> list[SocketAddress]:
    results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [
        (address_of(socket.inet_pton(family, str(socket_address[0]))), port)
        for family, _, _, _, socket_address in results
    ]


def _describe_error(error: Exception) -> str:
    if isinstance(error, UncountedError):
        return str(error)
    return f"the kernel does not report the bytes of its sockets: {opening.explain_error(error)}"
