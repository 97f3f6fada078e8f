"""Facts about flows besides their counts: names, protocols and roles, from hellos and DNS answers.

In a capture with very many flows, most have no known facts but their endpoints. So only the others have objects, unless
one is requested.
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
    """Facts about a flow besides its counts. None and empty values mean unknown.

    Attributes:
        number: number of the flow.
        sni: the name in the TLS hello. With ``has_ech`` it may hide another name.
        alpn: protocols that the client offered.
        tls_version, cipher: TLS version and cipher suite that the server chose.
        quic_version: ``1``, ``2`` or ``draft-N``.
        dns_names: names of the server's address in DNS answers of the same capture.
        role: one of ``roles.ROLES``.
        address: the server's address as text.
    """

    table: FlowTable = field(repr=False, compare=False)
    number: int
    address: str
    sni: str | None = None
    has_ech: bool = False
    alpn: tuple[str, ...] = ()
    tls_version: str | None = None
    cipher: str | None = None
    quic_version: str | None = None
    dns_names: tuple[str, ...] = ()
    role: str = "other"

    @property
    def flow(self) -> Flow:
        """The flow with its counts."""
        return self.table.flow(self.number)

    @property
    def names(self) -> tuple[str, ...]:
        """The server's names, best first: SNI, DNS names, address."""
        return (*([self.sni] if self.sni else []), *self.dns_names, self.address)

    @property
    def names_for_role(self) -> tuple[str, ...]:
        """The names that rules for roles look at: SNI, else DNS names, else the address.

        Other servers may share the address, so DNS names do not count beside a known SNI. One that may hide another
        name counts together with them.
        """
        if self.sni and not self.has_ech:
            return (self.sni,)
        return self.names[:-1] or (self.address,)

    @property
    def is_plain_tls(self) -> bool:
        """True if it is TLS that encrypts nothing."""
        return self.tls_version is not None and handshake.is_null_cipher(self.cipher)

    @property
    def protocol(self) -> str:
        """``tls``, ``tcp``, ``quic`` or ``udp``."""
        if self.table.who.is_tcp[self.number]:
            return "tls" if self.sni or self.tls_version or self.alpn else "tcp"
        return "quic" if self.quic_version else "udp"


class CaptureFacts:
    """Facts about all flows of a table, by flow number.

    Attributes:
        texts: the addresses in ``FlowTable.who``, as text.
        roles: the role of each flow without known facts. Other flows have theirs in their facts.
    """

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._facts_of: dict[int, FlowFacts] = {}
        self.texts = table.who.addresses.make_texts()
        self.roles = ["other"] * table.who.is_tcp.size

    def get(self, number: int) -> FlowFacts:
        """Return the facts of a flow, always the same object."""
        facts = self._facts_of.get(number)
        if facts is None:
            address = self.texts[self._table.who.server[number]]
            facts = self._facts_of[number] = FlowFacts(self._table, number, address, role=self.roles[number])
        return facts

    def find_known(self, numbers: Sequence[int]) -> list[tuple[int, FlowFacts]]:
        """Return (index in ``numbers``, facts) of the flows that have facts."""
        facts_of = self._facts_of
        return (
            [(index, facts_of[number]) for index, number in enumerate(numbers) if number in facts_of]
            if facts_of
            else []
        )

    def get_all(self, numbers: Ints) -> list[FlowFacts]:
        """Return the facts of these flows."""
        return [self.get(number) for number in numbers.tolist()]

    def get_roles(self, numbers: Ints) -> list[str]:
        """Return the roles of these flows."""
        selected = numbers.tolist()
        roles = [self.roles[number] for number in selected]
        for index, facts in self.find_known(selected):
            roles[index] = facts.role
        return roles

    def make_columns(self, numbers: Ints) -> dict[str, list[Any]]:
        """Return the attributes of these flows' ``FlowFacts`` as columns of JSON types."""
        who, selected, count = self._table.who, numbers.tolist(), len(numbers)
        columns: dict[str, list[Any]] = {
            "protocol": ["tcp" if is_tcp else "udp" for is_tcp in who.is_tcp[numbers].tolist()],
            "name": [self.texts[index] for index in who.server[numbers].tolist()],
            "sni": [None] * count, "has_ech": [False] * count, "dns_names": [[] for _ in selected],
            "alpn": [[] for _ in selected], "tls_version": [None] * count, "cipher": [None] * count,
            "quic_version": [None] * count, "role": [self.roles[number] for number in selected],
        }  # fmt: skip
        for index, facts in self.find_known(selected):
            for name in ("protocol", "sni", "has_ech", "tls_version", "cipher", "quic_version", "role"):
                columns[name][index] = getattr(facts, name)
            columns["name"][index] = facts.names[0]
            columns["dns_names"][index], columns["alpn"][index] = list(facts.dns_names), list(facts.alpn)
        return columns


def find_facts(
    table: FlowTable, buffer: Buffer, rules: Sequence[Rule], release: Callable[[int], None]
) -> tuple[CaptureFacts, dict[str, int]]:
    """Return facts about flows from hellos and DNS, and how often each name was queried."""
    facts = CaptureFacts(table)
    resolved, queries = _read_dns(table, buffer, release)
    if resolved:
        names = [tuple(resolved.get(address, ())) for address in table.who.addresses]
        for number, server in zip(table.numbers.tolist(), table.who.server[table.numbers].tolist(), strict=True):
            if names[server]:
                facts.get(number).dns_names = names[server]
    for touched, number in enumerate(sorted(streams.find_flows_with_hellos(table, buffer, release)), 1):
        if not touched % _TOUCHED_FLOWS:
            release(len(buffer))
        if table.who.is_tcp[number]:
            _read_hellos(facts, table, buffer, number)
        elif version := handshake.parse_quic_version(
            next(streams.read_datagrams(table, buffer, number, up=True, max_rows=1), b"")
        ):
            facts.get(number).quic_version = version
    if rules:
        _assign_roles(facts, table, Roles(rules))
    return facts, queries


def _read_dns(
    table: FlowTable, buffer: Buffer, release: Callable[[int], None]
) -> tuple[Mapping[Address, dict[str, None]], dict[str, int]]:
    """Return the names of each address in DNS answers, and how often each name was queried."""
    names: dict[Address, dict[str, None]] = {}
    queries: dict[str, int] = {}
    is_dns = ~table.who.is_tcp & (table.who.server_port == _DNS_PORT)
    for datagrams in streams.read_all_datagrams(table, buffer, table.numbers[is_dns[table.numbers]], release):
        for message, count in handshake.count_dns_messages(datagrams):
            if not message.is_answer:
                queries[message.name] = queries.get(message.name, 0) + count
            for address in message.addresses:
                names.setdefault(address, {})[message.name] = None
    return names, queries


def _read_hellos(facts: CaptureFacts, table: FlowTable, buffer: Buffer, number: int) -> None:
    if streams.read_beginning(table, buffer, number, up=True, limit=1) != b"\x16":
        return
    flow_facts = facts.get(number)
    hello = handshake.parse_client_hello(streams.read_beginning(table, buffer, number, up=True))
    if hello is not None:
        flow_facts.sni, flow_facts.alpn, flow_facts.has_ech = hello.sni, hello.alpn, hello.has_ech
    if answer := handshake.parse_server_hello(streams.read_beginning(table, buffer, number, up=False)):
        flow_facts.tls_version, flow_facts.cipher = answer.version, answer.cipher


def _assign_roles(facts: CaptureFacts, table: FlowTable, roles: Roles) -> None:
    who, numbers = table.who, table.numbers
    by_address = [(text,) for text in facts.texts]
    names = [by_address[index] for index in who.server[numbers].tolist()]
    kinds = ["tcp" if is_tcp else "udp" for is_tcp in who.is_tcp[numbers].tolist()]
    known_facts = facts.find_known(numbers.tolist())
    for index, flow_facts in known_facts:
        names[index] = flow_facts.names_for_role
        kinds[index] = "quic" if flow_facts.quic_version else kinds[index]
    up, down = (column[numbers].tolist() for column in table.sums["payload_bytes"])
    ports = who.server_port[numbers].tolist()
    answers = list(map(roles.find_role_of, names, kinds, ports, up, down))
    for number, role in zip(numbers.tolist(), answers, strict=True):
        facts.roles[number] = role
    for index, flow_facts in known_facts:
        flow_facts.role = answers[index]
