"""Which flows are the client's on an interface that many programs use: its own, another program's, or unknown.

What may live here: sorting flows by their servers' names and addresses. Nothing is guessed: flows without a name are
kept apart and counted, so that a note can state how much they carried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING

from pytest_cloudbench.net.traffic.table import Flow

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.facts import FlowFacts
    from pytest_cloudbench.net.traffic.packets import Address

_NAMELESS_SHARE = 0.05
"""More bytes without a name than this share of the client's own make a number doubtful."""

_DNS_PORTS = (53, 853, 5353)
_Connection = tuple[int, "Address", int, "Address", int]


@dataclass(slots=True)
class Sorted:
    """Flows of one capture by owner. Multicast and name resolution belong to nobody, and are in none of these.

    Attributes:
        own: the client's.
        by: maps the number of a flow of the client to how that is known: ``server address``, ``SNI``, ``earlier
            capture``, ``DNS`` or ``other connections to its server``.
        nameless: may be the client's: no name is known, or their server has names both of the client and of others.
        others: other programs'.
        names: maps the number of a flow to its server's name.
    """

    own: list[Flow] = field(default_factory=list)
    by: dict[int, str] = field(default_factory=dict)
    nameless: list[Flow] = field(default_factory=list)
    others: list[Flow] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Whose:
    """Decides which flows are a client's. Names seen in a capture are remembered for later captures of the same
    session.

    Attributes:
        names: patterns (``*.example.com``) of its servers' names.
        servers: networks of all its servers. If given, they decide when no name is seen, so no flow is nameless.
    """

    names: tuple[str, ...] = ()
    servers: tuple[IPv4Network | IPv6Network, ...] = ()
    _connections: dict[_Connection, str] = field(default_factory=dict, repr=False)
    _servers: dict[tuple[Address, int], set[str]] = field(default_factory=dict, repr=False)
    _resolved: dict[Address, set[str]] = field(default_factory=dict, repr=False)

    def has_name(self, name: str) -> bool:
        """Returns whether a name matches a pattern; ``*.example.com`` does not match ``example.com``."""
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.names)

    def sort(self, facts: Sequence[FlowFacts]) -> Sorted:
        """Sort the flows of a capture."""
        for each in facts:
            self._learn(each)
        found = Sorted()
        for each in facts:
            flow = each.flow
            if flow.server.is_multicast or flow.server_port in _DNS_PORTS or _is_broadcast(flow):
                continue
            is_own, how = self._judge(each)
            found.names[flow.number] = self._called(each)
            if is_own:
                found.own.append(flow)
                found.by[flow.number] = how
            else:
                (found.nameless if is_own is None else found.others).append(flow)
        return found

    def _called(self, facts: FlowFacts) -> str:
        """Its server's name, even if only an earlier capture or other connections to the same server show it."""
        flow = facts.flow
        known = facts.sni or self._connections.get(_connection(flow))
        seen = sorted(self._servers.get((flow.server, flow.server_port), ()))
        return known or (seen[0] if len(seen) == 1 else facts.names[0])

    def _learn(self, facts: FlowFacts) -> None:
        flow = facts.flow
        if facts.sni:
            self._connections[_connection(flow)] = facts.sni
            self._servers.setdefault((flow.server, flow.server_port), set()).add(facts.sni)
        elif flow.up.syns:  # another connection with the same ports: what was known of the former says nothing about it
            self._connections.pop(_connection(flow), None)
        if facts.dns_names:
            self._resolved.setdefault(flow.server, set()).update(facts.dns_names)

    def _judge(self, facts: FlowFacts) -> tuple[bool | None, str]:
        """Whether a flow is the client's (None: unknown), and how that is known."""
        flow = facts.flow
        known = facts.sni or self._connections.get(_connection(flow), "")
        if self.names and known and (self.has_name(known) or not facts.has_ech):
            return self.has_name(known), "SNI" if facts.sni else "earlier capture"
        if self.servers:
            return any(flow.server in network for network in self.servers), "server address"
        # Without a hello of its own, or with one that hides the name: use what is known of the server, if that agrees.
        resolved, called = self._resolved.get(flow.server, ()), self._servers.get((flow.server, flow.server_port), ())
        names = {*resolved, *called} - {known}  # the outer name of an encrypted hello says nothing
        return _agreed(self.has_name(name) for name in names), "DNS" if resolved else "other connections to its server"


def nameless_doubt(nameless_bytes: int, of_bytes: float) -> list[str]:
    """Why a number may be wrong, given this many wire bytes without a name; empty if they are few.

    Args:
        nameless_bytes: of flows that may be the client's.
        of_bytes: the bytes that the number is computed from, or that would change it.
    """
    if nameless_bytes <= _NAMELESS_SHARE * of_bytes:
        return []
    fix = "say which servers are the client's (servers=...), or restart it meanwhile, so that names are seen"
    return [f"{nameless_bytes:,} bytes were in flows without a name, which may or may not be the client's: {fix}"]


def _agreed(answers: Iterable[bool]) -> bool | None:
    """The answer that all agree on; None if they differ, or if there are none."""
    seen = set(answers)
    return seen.pop() if len(seen) == 1 else None


def _connection(flow: Flow) -> _Connection:
    return flow.protocol, flow.client, flow.client_port, flow.server, flow.server_port


def _is_broadcast(flow: Flow) -> bool:
    return not flow.is_tcp and (
        flow.server.packed == b"\xff\xff\xff\xff" or {flow.client_port, flow.server_port} <= {67, 68}
    )
