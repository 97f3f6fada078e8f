"""Counts of sockets, before and after, into what connections carried: pure functions.

What may live here: which counts belong to one connection, and when they say nothing. Of a connection to a service of
the run, a byte counts if one end sent it and the other end received it: both ends must be seen, and a count that is too
large or was lost is noticed. Of a connection to elsewhere only the client's end is seen: what it sent counts when it is
acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pytest_cloudbench.net.sockets.diag import LEFT, LISTENING, OPEN_STATES, Place, TcpSocket, is_loopback

_OPENING = _CLOSING = 1
"""The start of a connection counts as one acknowledged byte, its end as one that was received."""


@dataclass(frozen=True, slots=True)
class Carried:
    """What TCP connections carried meanwhile, in both directions, each byte once.

    Attributes:
        bytes: of TCP's payload; None if they are not known.
        connections: how many were opened meanwhile.
        why: why nothing is known, or an empty text.
    """

    bytes: int | None = None
    connections: int = 0
    why: str = ""


class Places:
    """Where services listen. At a loopback address, all addresses of the loopback count as one."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._places = {(_known(address), port) for address, port in places}
        self.ports = frozenset(port for _, port in self._places)

    def __contains__(self, place: Place) -> bool:
        return place[1] in self.ports and (_known(place[0]), place[1]) in self._places


@dataclass(slots=True)
class _End:
    """The sockets at one end of a connection; more than one if its ports were used again."""

    sent_bytes: int = 0
    received_bytes: int = 0
    cookies: list[int] = field(default_factory=list)
    was_reset: bool = False

    @property
    def has_carried(self) -> bool:
        return self.sent_bytes > 0 or self.received_bytes > _CLOSING * len(self.cookies)


def carried(
    places: Places, before: Mapping[int, TcpSocket], after: Mapping[int, TcpSocket], *,
    closed: Collection[int] = (), aside: Collection[int] = (),
) -> Carried:  # fmt: skip
    """Returns what the connections to these places carried.

    Args:
        places: where the services listen.
        before: the sockets at the start, by cookie.
        after: the last that is known of every socket that was there at any time.
        closed: the cookies of those that are gone.
        aside: cookies of clients whose connections do not count.
    """
    before = {cookie: each for cookie, each in before.items() if _connection(places, each) is not None}
    over = _closing(places, before)
    if before.keys() - after.keys() - over:
        return Carried(why="a connection vanished, and the kernel did not tell what it had carried")
    ends: dict[tuple[Place, Place], tuple[_End, _End]] = {}
    for cookie, each in after.items():
        if cookie in over or (key := _connection(places, each)) is None:
            continue
        then = before.get(cookie)
        sent, received = each.sent_bytes, each.received_bytes
        end = ends.setdefault(key, (_End(), _End()))[key[1] == each.local]
        end.was_reset |= cookie in closed and not sent and not received
        if then is not None:
            sent, received = sent - then.sent_bytes, received - then.received_bytes
        if sent < 0 or received < 0:
            return Carried(why="a connection was reset, and its counts with it")
        end.sent_bytes += sent
        end.received_bytes += received
        end.cookies.append(cookie)
    return _summed(ends.values(), before, aside)


def carried_by(
    owned: Collection[int], before: Mapping[int, TcpSocket], after: Mapping[int, TcpSocket],
    gone: Mapping[int, TcpSocket], *, aside: Collection[int] = (),
) -> Carried:  # fmt: skip
    """Returns what some processes' connections to others carried.

    Nobody owns a socket that is closed. So if one is closed that was not there before, or was theirs, nothing is known.

    Args:
        owned: inodes of the processes' sockets, at the start or at the end.
        before: all sockets at the start, by cookie.
        after: all sockets at the end.
        gone: those that were destroyed meanwhile.
        aside: cookies of the processes' sockets that do not count.
    """
    serving = {each.local[1] for each in after.values() if each.state == LISTENING}  # no client has their ports
    orphans = {cookie: each for cookie, each in after.items() if not each.inode}  # closed, and not gone yet
    gone = {**gone, **orphans}
    after = {cookie: each for cookie, each in after.items() if cookie not in gone}
    for cookie, each in gone.items():
        then = before.get(cookie)
        is_others = (then is not None and then.inode not in owned) or each.local[1] in serving
        if not (is_others or cookie in aside) and (each.sent_bytes or each.received_bytes > _CLOSING):
            return Carried(why="a connection ended meanwhile that may have been one of this run's")
    if any(each.inode in owned and each.cookie not in after for each in before.values()):
        return Carried(why="a connection of this run's vanished, and the kernel did not tell what it had carried")
    own = [each for each in after.values() if each.inode in owned]
    inside = {each.local for each in own}
    found = opened = 0
    for each in own:
        if each.cookie in aside or each.remote in inside or each.local[1] in serving:
            continue  # between these processes, or from someone who looks at one of them
        then = before.get(each.cookie)
        opened += then is None
        sent = each.sent_bytes - (then.sent_bytes if then else 0)
        acked = each.acked_bytes - (then.acked_bytes if then else _OPENING)
        received = each.received_bytes - (then.received_bytes if then else 0)
        if not each.is_flying and sent != acked:
            return Carried(why="the kernel's counts of what was sent and of what was acknowledged differ")
        is_closed = each.state == LEFT and (then is None or then.state != LEFT)
        found += sent + received - _CLOSING * is_closed
    return Carried(found, opened) if found else Carried(why="no connection of this run's own processes was seen")


def _summed(ends: Iterable[tuple[_End, _End]], before: Collection[int], aside: Collection[int]) -> Carried:
    found = opened = half = 0
    for client, server in ends:
        others = [cookie for cookie in client.cookies if cookie not in aside]
        if len(others) < len(client.cookies):
            if others:
                return Carried(why="a port was used again by a connection that does not count")
            continue
        if (client.was_reset and server.has_carried) or (server.was_reset and client.has_carried):
            return Carried(why="a connection was reset, and its counts with it")
        if not client.cookies or not server.cookies:
            half += client.has_carried or server.has_carried
        up = min(client.sent_bytes, server.received_bytes)
        found += up + min(server.sent_bytes, client.received_bytes)
        opened += sum(cookie not in before for cookie in client.cookies)
    if half:
        return Carried(why=f"only one end of {half} connections was seen: the other one was reset, or it is on another "
                           "host or in another network namespace")  # fmt: skip
    return Carried(found, opened)


def _closing(places: Places, sockets: Mapping[int, TcpSocket]) -> set[int]:
    """Returns the cookies at both ends of connections that at least one end has closed: nothing of them counts."""
    ended = {_connection(places, each) for each in sockets.values() if each.state not in OPEN_STATES}
    return {cookie for cookie, each in sockets.items() if _connection(places, each) in ended}


def _connection(places: Places, each: TcpSocket) -> tuple[Place, Place] | None:
    """Returns client and server of a socket's connection; None if it leads to none of the places."""
    if not each.remote[1]:  # it listens
        return None
    if each.remote in places:
        return each.local, each.remote
    return (each.remote, each.local) if each.local in places else None


def _known(address: bytes) -> bytes:
    return b"loopback" if is_loopback(address) else address
