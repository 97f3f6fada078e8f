"""Sorting of flows on a shared interface into the client's own, those of other programs, and unknown ones.

Flows are sorted by their servers' names and addresses. Nothing is guessed: flows without a name are kept apart and
counted, so that a note can state how much they carried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network
from typing import TYPE_CHECKING

from pytest_cloudbench.net.traffic.table import Flow
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.facts import FlowFacts
    from pytest_cloudbench.net.traffic.packets import Address

_NAMELESS_SHARE = 0.05
"""Share of the client's own bytes above which bytes without a name make a number doubtful."""

_DNS_PORTS = (53, 853, 5353)
_Connection = tuple[int, "Address", int, "Address", int]


@dataclass(slots=True)
class Sorted:
    """Flows of one capture by owner, without multicast and name resolution, which have no owner.

    Attributes:
        own: the client's flows.
        by: maps the number of each of these to the evidence: ``server address``, ``SNI``, ``earlier
            capture``, ``DNS`` or ``other connections to its server``.
        nameless: flows that may be the client's, because no name is known, or their server has names both of the client
            and of others.
        others: flows of other programs.
        names: maps the number of a flow to its server's name.
    """

    own: list[Flow] = field(default_factory=list)
    by: dict[int, str] = field(default_factory=dict)
    nameless: list[Flow] = field(default_factory=list)
    others: list[Flow] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Whose:
    """A sorter of flows that remembers names from one capture for later captures of the same session.

    Attributes:
        names: patterns (``*.example.com``) of the names of the client's servers.
        servers: networks of all its servers. If given, they decide if no name is seen, so no flow is nameless.
    """

    names: tuple[str, ...] = ()
    servers: tuple[IPv4Network | IPv6Network, ...] = ()
    _connections: dict[_Connection, str] = field(default_factory=dict, repr=False)
    _servers: dict[tuple[Address, int], set[str]] = field(default_factory=dict, repr=False)
    _resolved: dict[Address, set[str]] = field(default_factory=dict, repr=False)

    def has_name(self, name: str) -> bool:
        """Return whether a name matches a pattern. ``*.example.com`` does not match ``example.com``."""
        return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in self.names)

    def sort(self, facts: Sequence[FlowFacts]) -> Sorted:
        """Sort the flows of a capture."""
        for flow_facts in facts:
            self._remember_names(flow_facts)
        result = Sorted()
        for flow_facts in facts:
            flow = flow_facts.flow
            if not leads_to_server(flow):
                continue
            is_own, evidence = self._judge_flow(flow_facts)
            result.names[flow.number] = self._find_name(flow_facts)
            if is_own:
                result.own.append(flow)
                result.by[flow.number] = evidence
            else:
                (result.nameless if is_own is None else result.others).append(flow)
        return result

    def _find_name(self, facts: FlowFacts) -> str:
        """Return the server's name, even if only an earlier capture or other connections to the server show it."""
        flow = facts.flow
        name = facts.sni or self._connections.get(_make_connection_key(flow))
        server_names = sorted(self._servers.get((flow.server, flow.server_port), ()))
        return name or (server_names[0] if len(server_names) == 1 else facts.names[0])

    def _remember_names(self, facts: FlowFacts) -> None:
        flow = facts.flow
        if facts.sni and self._is_meant(facts.sni, facts):
            self._connections[_make_connection_key(flow)] = facts.sni
            self._servers.setdefault((flow.server, flow.server_port), set()).add(facts.sni)
        elif facts.sni or flow.up.syns:  # a new connection with the same ports may be to another name
            self._connections.pop(_make_connection_key(flow), None)
        if facts.dns_names:
            self._resolved.setdefault(flow.server, set()).update(facts.dns_names)

    def _is_meant(self, name: str, facts: FlowFacts) -> bool:
        """Return whether a hello's name is the server's: the outer name of an encrypted hello may hide another."""
        return self.has_name(name) or not facts.has_ech

    def _judge_flow(self, facts: FlowFacts) -> tuple[bool | None, str]:
        """Return whether a flow is the client's, or None if unknown, and the evidence."""
        flow = facts.flow
        name = facts.sni or self._connections.get(_make_connection_key(flow), "")
        if self.names and name and self._is_meant(name, facts):
            return self.has_name(name), "SNI" if facts.sni else "earlier capture"
        if self.servers:
            return any(flow.server in network for network in self.servers), "server address"
        # Without a hello, or with one that hides the name, use the server's known names if they agree.
        resolved = self._resolved.get(flow.server, ())
        server_names = self._servers.get((flow.server, flow.server_port), ())
        names = {*resolved, *server_names} - {name}  # the outer name of an encrypted hello is meaningless
        return _find_common_answer(
            self.has_name(name) for name in names
        ), "DNS" if resolved else "other connections to its server"


def nameless_doubt(nameless_bytes: int, of_bytes: float) -> list[str]:
    """Return a reason why a number may be wrong, given wire bytes without a name, or nothing if they are few.

    Args:
        nameless_bytes: bytes of flows that may be the client's.
        of_bytes: bytes that the number is computed from, or that would change it.
    """
    if nameless_bytes <= _NAMELESS_SHARE * of_bytes:
        return []
    fix = "say which servers are the client's (servers=...), or restart it meanwhile, so that names are seen"
    sent = format_count(nameless_bytes, "byte was", "bytes were")
    return [f"{sent} in flows without a name, which may or may not be the client's: {fix}"]


def _find_common_answer(answers: Iterable[bool]) -> bool | None:
    """Return the common answer, or None if they differ or there are none."""
    distinct = set(answers)
    return distinct.pop() if len(distinct) == 1 else None


def _make_connection_key(flow: Flow) -> _Connection:
    return flow.protocol, flow.client, flow.client_port, flow.server, flow.server_port


def leads_to_server(flow: Flow) -> bool:
    """Return whether a flow leads to a server: no multicast, no broadcast and no name resolution."""
    return not (flow.server.is_multicast or flow.server_port in _DNS_PORTS or _is_broadcast(flow))


def _is_broadcast(flow: Flow) -> bool:
    return not flow.is_tcp and (
        flow.server.packed == b"\xff\xff\xff\xff" or {flow.client_port, flow.server_port} <= {67, 68}
    )
