"""What is known of flows besides their counts: names, protocols, roles.

What may live here: what hellos and DNS answers say of flows, kept apart from their counts. In a capture with very many
flows, nothing but the endpoints is known of most, so there are objects only for the others, and for all on request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import handshake, streams
from pytest_cloudbench.net.traffic.packets import Address
from pytest_cloudbench.net.traffic.roles import Roles, Rule
from pytest_cloudbench.net.traffic.table import Flow, FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer, Ints

_TOUCHED_FLOWS = streams.TOUCHED_PACKETS // 16
_DNS_PORT = 53


@dataclass(slots=True)
class FlowFacts:
    """What is known of a flow besides its counts. None and empty mean "not known".

    Attributes:
        number: of the flow.
        sni: the name in the TLS hello; ``has_ech`` says that another name may be hidden in it.
        alpn: protocols that the client offered.
        tls_version: what the server chose.
        quic_version: ``1``, ``2`` or ``draft-N``.
        dns_names: names that DNS answers in the same capture gave the server's address.
        role: one of ``roles.ROLES``.
        address: the server's, as text.
    """

    table: FlowTable = field(repr=False, compare=False)
    number: int
    address: str
    sni: str | None = None
    has_ech: bool = False
    alpn: tuple[str, ...] = ()
    tls_version: str | None = None
    quic_version: str | None = None
    dns_names: tuple[str, ...] = ()
    role: str = "other"

    @property
    def flow(self) -> Flow:
        """Its counts."""
        return self.table.flow(self.number)

    @property
    def names(self) -> tuple[str, ...]:
        """What the server is called, best first: by SNI, by DNS, its address."""
        return (*([self.sni] if self.sni else []), *self.dns_names, self.address)

    @property
    def protocol(self) -> str:
        """``tls``, ``tcp``, ``quic`` or ``udp``."""
        if self.table.who.is_tcp[self.number]:
            return "tls" if self.sni or self.tls_version or self.alpn else "tcp"
        return "quic" if self.quic_version else "udp"


class CaptureFacts:
    """What is known of all flows of a table, by their numbers.

    Attributes:
        texts: the addresses in ``FlowTable.who``, as text.
        roles: the role of each flow about which nothing else is known; other flows have theirs in their facts.
    """

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._known: dict[int, FlowFacts] = {}
        self.texts = [str(address) for address in table.who.addresses]
        self.roles = ["other"] * table.who.is_tcp.size

    def get(self, number: int) -> FlowFacts:
        """The facts of a flow; the same object every time."""
        facts = self._known.get(number)
        if facts is None:
            address = self.texts[self._table.who.server[number]]
            facts = self._known[number] = FlowFacts(self._table, number, address, role=self.roles[number])
        return facts

    def known(self, numbers: Sequence[int]) -> list[tuple[int, FlowFacts]]:
        """(index in ``numbers``, facts) of the flows that have facts."""
        known = self._known
        return [(place, known[number]) for place, number in enumerate(numbers) if number in known] if known else []

    def of(self, numbers: Ints) -> list[FlowFacts]:
        """The facts of these flows."""
        return [self.get(number) for number in numbers.tolist()]

    def roles_of(self, numbers: Ints) -> list[str]:
        """The roles of these flows."""
        wanted = numbers.tolist()
        found = [self.roles[number] for number in wanted]
        for place, facts in self.known(wanted):
            found[place] = facts.role
        return found

    def columns(self, numbers: Ints) -> dict[str, list[Any]]:
        """The attributes of these flows' ``FlowFacts``, as columns of JSON types."""
        who, wanted, count = self._table.who, numbers.tolist(), len(numbers)
        columns: dict[str, list[Any]] = {
            "protocol": ["tcp" if each else "udp" for each in who.is_tcp[numbers].tolist()],
            "name": [self.texts[place] for place in who.server[numbers].tolist()],
            "sni": [None] * count, "has_ech": [False] * count, "dns_names": [[] for _ in wanted],
            "alpn": [[] for _ in wanted], "tls_version": [None] * count, "quic_version": [None] * count,
            "role": [self.roles[number] for number in wanted],
        }  # fmt: skip
        for place, facts in self.known(wanted):
            for name in ("protocol", "sni", "has_ech", "tls_version", "quic_version", "role"):
                columns[name][place] = getattr(facts, name)
            columns["name"][place] = facts.names[0]
            columns["dns_names"][place], columns["alpn"][place] = list(facts.dns_names), list(facts.alpn)
        return columns


def find_facts(
    table: FlowTable, buffer: Buffer, rules: Sequence[Rule], release: Callable[[int], None]
) -> tuple[CaptureFacts, dict[str, int]]:
    """Returns what hellos and DNS say of each flow, and how often each name was queried."""
    found = CaptureFacts(table)
    resolved, queries = _dns(table, buffer)
    if resolved:
        names = [tuple(resolved.get(address, ())) for address in table.who.addresses]
        for number, server in zip(table.numbers.tolist(), table.who.server[table.numbers].tolist(), strict=True):
            if names[server]:
                found.get(number).dns_names = names[server]
    for touched, number in enumerate(sorted(streams.tellers(table, buffer, release)), 1):
        if not touched % _TOUCHED_FLOWS:
            release(len(buffer))
        if table.who.is_tcp[number]:
            _hellos(found, table, buffer, number)
        elif version := handshake.quic_version(next(streams.datagrams(table, buffer, number, up=True, most=1), b"")):
            found.get(number).quic_version = version
    if rules:
        _find_roles(found, table, Roles(rules))
    return found, queries


def _dns(table: FlowTable, buffer: Buffer) -> tuple[Mapping[Address, dict[str, None]], dict[str, int]]:
    """(names of each address in DNS answers, how often each name was queried)."""
    names: dict[Address, dict[str, None]] = {}
    queries: dict[str, int] = {}
    asked = ~table.who.is_tcp & (table.who.server_port == _DNS_PORT)
    for number in table.numbers[asked[table.numbers]].tolist():
        for way in (True, False):
            for datagram in streams.datagrams(table, buffer, number, up=way):
                message = handshake.dns_message(datagram)
                if message is None:
                    continue
                if not message.is_answer:
                    queries[message.name] = queries.get(message.name, 0) + 1
                for address in message.addresses:
                    names.setdefault(address, {})[message.name] = None
    return names, queries


def _hellos(found: CaptureFacts, table: FlowTable, buffer: Buffer, number: int) -> None:
    if streams.beginning(table, buffer, number, up=True, limit=1) != b"\x16":
        return
    facts, hello = found.get(number), handshake.client_hello(streams.beginning(table, buffer, number, up=True))
    if hello is not None:
        facts.sni, facts.alpn, facts.has_ech = hello.sni, hello.alpn, hello.has_ech
    facts.tls_version = handshake.server_version(streams.beginning(table, buffer, number, up=False))


def _find_roles(found: CaptureFacts, table: FlowTable, roles: Roles) -> None:
    who, numbers = table.who, table.numbers
    by_address = [(text,) for text in found.texts]
    names = [by_address[place] for place in who.server[numbers].tolist()]
    kinds = ["tcp" if each else "udp" for each in who.is_tcp[numbers].tolist()]
    known = found.known(numbers.tolist())
    for place, facts in known:
        names[place] = facts.names
        kinds[place] = "quic" if facts.quic_version else kinds[place]
    up, down = (column[numbers].tolist() for column in table.sums["payload_bytes"])
    ports = who.server_port[numbers].tolist()
    answers = list(map(roles.find, names, kinds, ports, up, down))
    for number, role in zip(numbers.tolist(), answers, strict=True):
        found.roles[number] = role
    for place, facts in known:
        facts.role = answers[place]
