"""Pure functions that turn the counts of sockets, before and after, into the bytes that connections carried.

For a connection to a service of the run, both ends must be visible. A byte counts if one end sent it and the other end
received it, so lost or inflated counts are noticed. For a connection to other hosts, only the client's end is visible,
and its sent bytes count once they are acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_cloudbench.net.sockets.diag import CLOSE_WAIT, LISTENING, OPEN_STATES, SocketAddress, TcpSocket, is_loopback
from pytest_cloudbench.support.wording import format_count

_SYN_BYTES = _FIN_BYTES = 1
"""The kernel counts opening as one acknowledged byte, and closing as one received byte."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The payload that TCP connections carried during the count, in both directions.

    Attributes:
        bytes: TCP payload, each byte once, or None if unknown.
        connections: number of connections opened during the count.
        why: the reason why the bytes are unknown, or an empty text.
    """

    bytes: int | None = None
    connections: int = 0
    why: str = ""


class ServiceAddresses:
    """The addresses where services listen. All loopback addresses count as one."""

    def __init__(self, addresses: Iterable[SocketAddress]) -> None:
        self._addresses = {(_merge_loopback(address), port) for address, port in addresses}
        self.ports = frozenset(port for _, port in self._addresses)

    def __contains__(self, address: SocketAddress) -> bool:
        return address[1] in self.ports and (_merge_loopback(address[0]), address[1]) in self._addresses


@dataclass(slots=True)
class _End:
    """The sockets at one end of a connection, more than one if its ports were reused."""

    sent_bytes: int = 0
    received_bytes: int = 0
    cookies: list[int] = field(default_factory=list)
    was_reset: bool = False

    @property
    def has_carried(self) -> bool:
        return self.sent_bytes > 0 or self.received_bytes > _FIN_BYTES * len(self.cookies)


def sum_service_bytes(
    services: ServiceAddresses, before: Mapping[int, TcpSocket], after: Mapping[int, TcpSocket], *,
    closed: Collection[int] = (), excluded: Collection[int] = (),
) -> Carried:  # fmt: skip
    """Return the bytes that the connections to services carried.

    Args:
        services: the addresses of the services.
        before: the sockets at the start, by cookie.
        after: the last known state of every socket that was present at any time.
        closed: the cookies of sockets that are gone.
        excluded: cookies of clients whose connections do not count.
    """
    before = {cookie: sock for cookie, sock in before.items() if _identify_connection(services, sock) is not None}
    closing = _find_closing(services, before)
    if before.keys() - after.keys() - closing:
        return Carried(why="a connection vanished, and the kernel did not report its bytes")
    ends: dict[tuple[SocketAddress, SocketAddress], tuple[_End, _End]] = {}
    for cookie, sock in after.items():
        if cookie in closing or (key := _identify_connection(services, sock)) is None:
            continue
        earlier = before.get(cookie)
        sent, received = sock.sent_bytes, sock.received_bytes
        connection_end = ends.setdefault(key, (_End(), _End()))[key[1] == sock.local]
        connection_end.was_reset |= cookie in closed and not sent and not received
        if earlier is not None:
            sent, received = sent - earlier.sent_bytes, received - earlier.received_bytes
        if sent < 0 or received < 0:
            return Carried(why="a connection was reset, which cleared its counts")
        connection_end.sent_bytes += sent
        connection_end.received_bytes += received
        connection_end.cookies.append(cookie)
    return _sum_connections(ends.values(), before, excluded)


def sum_own_bytes(
    owned: Collection[int], before: Mapping[int, TcpSocket], after: Mapping[int, TcpSocket],
    closed: Mapping[int, TcpSocket], *, excluded: Collection[int] = (),
) -> Carried:  # fmt: skip
    """Return the bytes that some processes' connections to others carried.

    A closed socket has no owner any more. Therefore the bytes are unknown if a closed socket is new, or belonged to
    these processes.

    Args:
        owned: inodes of the processes' sockets, at the start or at the end.
        before: all sockets at the start, by cookie.
        after: all sockets at the end.
        closed: the sockets destroyed since the start.
        excluded: cookies of the processes' sockets that do not count.
    """
    served_ports = {sock.local[1] for sock in after.values() if sock.state == LISTENING}  # no client uses these ports
    orphans = {cookie: sock for cookie, sock in after.items() if not sock.inode}  # closed but not destroyed yet
    closed = {**closed, **orphans}
    after = {cookie: sock for cookie, sock in after.items() if cookie not in closed}
    for cookie, sock in closed.items():
        earlier = before.get(cookie)
        is_foreign = (earlier is not None and earlier.inode not in owned) or sock.local[1] in served_ports
        if not (is_foreign or cookie in excluded) and (sock.sent_bytes or sock.received_bytes > _FIN_BYTES):
            return Carried(why="a connection that may belong to this run ended meanwhile")
    if any(sock.inode in owned and sock.cookie not in after for sock in before.values()):
        return Carried(why="a connection of this run vanished, and the kernel did not report its bytes")
    own = [sock for sock in after.values() if sock.inode in owned]
    own_addresses = {sock.local for sock in own}
    total_bytes = opened = 0
    for sock in own:
        if sock.cookie in excluded or sock.remote in own_addresses or sock.local[1] in served_ports:
            continue  # between these processes, or from a client of one of them
        earlier = before.get(sock.cookie)
        opened += earlier is None
        sent = sock.sent_bytes - (earlier.sent_bytes if earlier else 0)
        acked = sock.acked_bytes - (earlier.acked_bytes if earlier else _SYN_BYTES)
        received = sock.received_bytes - (earlier.received_bytes if earlier else 0)
        if not sock.has_unacked and sent != acked:
            return Carried(why="the kernel's counts of sent and of acknowledged bytes differ")
        is_closed = sock.state == CLOSE_WAIT and (earlier is None or earlier.state != CLOSE_WAIT)
        total_bytes += sent + received - _FIN_BYTES * is_closed
    return (
        Carried(total_bytes, opened)
        if total_bytes
        else Carried(why="no connection of this run's own processes was seen")
    )


def _sum_connections(ends: Iterable[tuple[_End, _End]], before: Collection[int], excluded: Collection[int]) -> Carried:
    total_bytes = opened = half_seen = 0
    for client, server in ends:
        counted = [cookie for cookie in client.cookies if cookie not in excluded]
        if len(counted) < len(client.cookies):
            if counted:
                return Carried(why="a port was reused by a connection that does not count")
            continue
        if (client.was_reset and server.has_carried) or (server.was_reset and client.has_carried):
            return Carried(why="a connection was reset, which cleared its counts")
        if not client.cookies or not server.cookies:
            half_seen += client.has_carried or server.has_carried
        up = min(client.sent_bytes, server.received_bytes)
        total_bytes += up + min(server.sent_bytes, client.received_bytes)
        opened += sum(cookie not in before for cookie in client.cookies)
    if half_seen:
        connections = format_count(half_seen, "connection")
        return Carried(why=f"only one end of {connections} was seen: the other one was reset, or it is on another host "
                           "or in another network namespace")  # fmt: skip
    return Carried(total_bytes, opened)


def _find_closing(services: ServiceAddresses, sockets: Mapping[int, TcpSocket]) -> set[int]:
    """Return the cookies at both ends of connections that at least one end has closed, which do not count."""
    ended = {_identify_connection(services, sock) for sock in sockets.values() if sock.state not in OPEN_STATES}
    return {cookie for cookie, sock in sockets.items() if _identify_connection(services, sock) in ended}


def _identify_connection(services: ServiceAddresses, sock: TcpSocket) -> tuple[SocketAddress, SocketAddress] | None:
    """Return client and server of a socket's connection, or None if it leads to none of the services."""
    if not sock.remote[1]:  # a listening socket
        return None
    if sock.remote in services:
        return sock.local, sock.remote
    return (sock.remote, sock.local) if sock.local in services else None


def _merge_loopback(address: bytes) -> bytes:
    return b"loopback" if is_loopback(address) else address
