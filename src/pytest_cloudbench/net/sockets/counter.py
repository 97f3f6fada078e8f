"""Counting what a run's clients exchange over TCP, from a start to an end.

What may live here: the kernel's answers at both ends of the time into one sum, or why there is none.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping

from pytest_cloudbench.net.sockets.diag import Place, TcpSocket, UncountedError, address_of
from pytest_cloudbench.net.sockets.kernel import SocketWatch
from pytest_cloudbench.net.sockets.owners import family_of, inodes_of
from pytest_cloudbench.net.sockets.sums import Carried, Places, carried, carried_by

_Sockets = Mapping[int, TcpSocket]


class TcpCounter(ABC):
    """Counts what some TCP connections carry from now on; ``stop`` or ``close`` must be called.

    It never raises: what cannot be known is said by ``stop``.
    """

    _most_gone = 100_000
    """Closed sockets that are remembered."""

    def __init__(self) -> None:
        self._why = ""
        self._watch: SocketWatch | None = None
        try:
            self._watch = SocketWatch(self._ports(), self._most_gone)
            there, gone = self._watch.look()
            self._begin(there, gone)
        except (UncountedError, OSError) as error:
            self._why = _told(error)

    def stop(self, aside: Collection[int] = ()) -> Carried:
        """Returns what was carried since the start; connections of sockets with the cookies ``aside`` do not count."""
        if self._watch is None or self._why:
            self.close()
            return Carried(why=self._why or "it was counted before")
        try:
            return self._sum(*self._watch.look(), aside)
        except (UncountedError, OSError) as error:
            return Carried(why=_told(error))
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening; safe to call again."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    @abstractmethod
    def _ports(self) -> Collection[int] | None:
        """Returns the ports of sockets that matter; None for all sockets. Raises UncountedError and OSError."""

    @abstractmethod
    def _begin(self, there: _Sockets, gone: _Sockets) -> None:
        """Remember the sockets of the start: those that are there, and those that are gone by now."""

    @abstractmethod
    def _sum(self, there: _Sockets, gone: _Sockets, aside: Collection[int]) -> Carried:
        """Returns what was carried, from the sockets at the end, and those that have gone since the start."""


class ServiceCounter(TcpCounter):
    """Counts what connections to services carry, whoever the clients are. Both must be in this network namespace.

    Args:
        addresses: host and port of each service; None if they are not all that is used.
    """

    def __init__(self, addresses: Iterable[tuple[str, int]] | None) -> None:
        self._addresses = None if addresses is None else tuple(addresses)
        super().__init__()

    def _ports(self) -> Collection[int]:
        if self._addresses is None:
            raise UncountedError("a part of the provider is no service of this run")
        self._places = Places(place for host, port in self._addresses for place in _resolved(host, port))
        return self._places.ports

    def _begin(self, there: _Sockets, gone: _Sockets) -> None:
        self._before = {**there, **gone}  # connections of which one end is gone by now were over before the start

    def _sum(self, there: _Sockets, gone: _Sockets, aside: Collection[int]) -> Carried:
        closed = gone.keys() - there.keys()
        return carried(self._places, self._before, {**gone, **there}, closed=closed, aside=aside)


class OwnCounter(TcpCounter):
    """Counts what this process and its descendants exchange with others, wherever these are.

    Args:
        clients: the ids of the processes that matter; each must be this one or descend from it.
    """

    _most_gone = 1_000  # of other programs, which this process should not spend its time on

    def __init__(self, clients: Iterable[int]) -> None:
        self._clients = frozenset(clients)
        super().__init__()

    def _ports(self) -> None:
        if not self._clients <= family_of(os.getpid()):
            raise UncountedError("some agents are on another host or in a container")

    def _begin(self, there: _Sockets, gone: _Sockets) -> None:
        self._before = {cookie: each for cookie, each in there.items() if cookie not in gone}
        self._owned = inodes_of(family_of(os.getpid()))

    def _sum(self, there: _Sockets, gone: _Sockets, aside: Collection[int]) -> Carried:
        owned = self._owned | inodes_of(family_of(os.getpid()))
        return carried_by(owned, self._before, there, gone, aside=aside)


def _resolved(host: str, port: int) -> list[Place]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(address_of(socket.inet_pton(family, str(where[0]))), port) for family, _, _, _, where in found]


def _told(error: Exception) -> str:
    if isinstance(error, UncountedError):
        return str(error)
    return f"the kernel does not tell what its sockets have carried: {getattr(error, 'strerror', None) or error}"
