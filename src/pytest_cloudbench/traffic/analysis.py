"""One capture, understood: flows with names and roles, totals, and whether the numbers can be trusted.

What may live here: putting the other modules' answers together, and saying which numbers are known.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import nlargest
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.traffic import handshake, metrics, streams
from pytest_cloudbench.traffic.answers import Answers, answers
from pytest_cloudbench.traffic.flows import Flow, FlowTable, group
from pytest_cloudbench.traffic.headers import SENTINEL
from pytest_cloudbench.traffic.owners import Sorted, Whose
from pytest_cloudbench.traffic.packets import SYN, Address, Aside, Collector
from pytest_cloudbench.traffic.records import Reader
from pytest_cloudbench.traffic.roles import Roles, Rule

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Buffer

__all__ = ["SCHEMA", "Analysis", "Canary", "FlowFacts", "Validity", "analyze"]

SCHEMA = 1
"""Of ``Analysis.as_dict``. 1: the first."""

_USUAL_MSS_BYTES = 1460
_MANY_NAMES = 8
_TOUCHED_FLOWS = streams.TOUCHED_PACKETS // 16
_PART_ROWS = 1 << 17
_FLOWS_AT_ONCE = 1024
_AT_ONCE_NS, _FEW_TWICE, _MUCH_TWICE = 1_000_000, 8, 0.1


@dataclass(slots=True)
class FlowFacts:
    """What is known of a flow beside its counts. None and empty mean "not known".

    Attributes:
        flow: its counts.
        sni: the name in the TLS hello; ``has_ech`` says that another may be hidden in it.
        alpn: protocols that the client offered.
        tls_version: what the server chose.
        quic_version: ``1``, ``2`` or ``draft-N``.
        dns_names: names that DNS answers in the same capture gave the server's address.
        role: one of ``roles.ROLES``.
        address: the server's, as text.
    """

    flow: Flow
    sni: str | None = None
    has_ech: bool = False
    alpn: tuple[str, ...] = ()
    tls_version: str | None = None
    quic_version: str | None = None
    dns_names: tuple[str, ...] = ()
    role: str = "other"
    address: str = ""

    def __post_init__(self) -> None:
        self.address = self.address or str(self.flow.server)

    @property
    def names(self) -> tuple[str, ...]:
        """What the server is called, best first: by SNI, by DNS, its address."""
        return (*([self.sni] if self.sni else []), *self.dns_names, self.address)

    @property
    def protocol(self) -> str:
        """``tls``, ``tcp``, ``quic`` or ``udp``."""
        if self.flow.is_tcp:
            return "tls" if self.sni or self.tls_version or self.alpn else "tcp"
        return "quic" if self.quic_version else "udp"


@dataclass(frozen=True, slots=True)
class Validity:
    """Whether the numbers can be trusted.

    Attributes:
        verdict: ``valid``; ``invalid``: the capture is known to lack something; ``unknown``: it does not say.
        reasons: why it is not valid.
        sizes_known: packet counts, wire bytes and retransmissions are those of the wire; False where segments above
            the MSS show that the capture saw packets before they were cut (segmentation offload).
        size_reasons: why not.
        drops: packets that the capture lost; None when nothing says so.
    """

    verdict: str
    reasons: tuple[str, ...]
    sizes_known: bool
    size_reasons: tuple[str, ...]
    drops: int | None


@dataclass(frozen=True, slots=True)
class Canary:
    """Whether a text was sent unencrypted: ``yes``, ``no``, or ``unknown`` where not all payload is in the file."""

    verdict: str
    found: tuple[streams.Found, ...]


@dataclass(slots=True)
class Analysis:
    """A capture's answers.

    Attributes:
        source: what the capture is called.
        reader: facts of the file: format, interfaces, comments, whether it is complete.
        table: packets and flows; functions of ``metrics`` take it.
        facts: one for each flow, in the order of ``table.flows``.
        aside: packets that are in no flow.
        records, wire_bytes: of everything in the file but our own sentinels.
        sentinels: packets that were sent to mark the ends of the capture. They are counted nowhere else.
        cut: packets of which the snap length kept only a part.
        first_ns, last_ns: when the first and the last packet was seen.
        validity: whether the numbers can be trusted.
        canary: the answer to ``canary``, where it was asked.
        sorted: whose flows they are, where ``whose`` was asked; ``table`` and ``facts`` have the client's only then.
    """

    source: str
    reader: Reader
    table: FlowTable
    facts: list[FlowFacts]
    aside: Aside
    records: int
    wire_bytes: int
    cut: int
    first_ns: int | None
    last_ns: int | None
    validity: Validity
    canary: Canary | None = None
    sorted: Sorted | None = None
    dns_queries: dict[str, int] = field(default_factory=dict)
    sentinels: int = 0

    def of(self, *roles: str) -> list[Flow]:
        """The flows with one of these roles."""
        return [each.flow for each in self.facts if each.role in roles]

    @property
    def duration_s(self) -> float | None:
        """From the first to the last packet; None without packets."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return (self.last_ns - self.first_ns) / 1e9

    def as_dict(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Everything as JSON types: ``summary``, and ``flows``. A hundred thousand flows take half a gigabyte."""
        with _uncollected():
            return self.summary(changed_bytes=changed_bytes, changed_ns=changed_ns) | {"flows": list(self.flows())}

    def flows(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """Flows as JSON types, one at a time: all, or those with the most wire bytes."""
        chosen = self.facts
        if most is not None:
            largest = nlargest(most, chosen, key=lambda each: each.flow.up.wire_bytes + each.flow.down.wire_bytes)
            chosen = sorted(largest, key=lambda each: each.flow.number)
        text = _Texts()
        flows = [each.flow for each in chosen]
        for facts, answered, counts in zip(chosen, answers(self.table, flows), _counts(self.table, flows), strict=True):
            yield self._flow(facts, answered, counts, text(facts.flow.client))

    def summary(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Everything but the flows as JSON types.

        Args:
            changed_bytes: what the user changed; gives TUE and overhead.
            changed_ns: when; gives the start-up time.
        """
        storage, cloud = self.of("storage"), self.of("storage", "control", "notification")
        sized = changed_bytes is not None and self.validity.sizes_known
        return {
            "schema": SCHEMA,
            "file": self.source,
            "format": self.reader.format,
            "packets": self.records,
            "sentinels": self.sentinels,
            **_totals(self.table, self.table.flows, "flow_packets"),
            "wire_bytes": self.wire_bytes,
            "first_s": _seconds(self.first_ns),
            "duration_s": self.duration_s,
            "validity": {
                "verdict": self.validity.verdict,
                "reasons": list(self.validity.reasons),
                "is_complete": self.reader.is_complete,
                "drops": self.validity.drops,
                "sizes_known": self.validity.sizes_known,
                "size_reasons": list(self.validity.size_reasons),
            },
            "not_in_flows": {name: getattr(self.aside, name) for name in Aside.COUNTS},
            "not_looked_into": dict(self.aside.hidden.most_common()),
            "foreign_flows": len(self.table.foreign),
            "cut_packets": self.cut,
            "header_bytes": _header_bytes(self.table) if self.validity.sizes_known else None,
            "start_up_s": metrics.start_up_s(self.table, storage, changed_ns) if changed_ns is not None else None,
            "completion_s": metrics.completion_s(self.table, storage, changed_ns),
            "changed_bytes": changed_bytes,
            "tue": metrics.tue(cloud, changed_bytes or 0) if sized else None,
            "overhead": metrics.overhead(cloud, changed_bytes or 0) if sized else None,
            "roles": self._roles(),
            "dns_queries": self.dns_queries,
            "canary": self._canary(),
            "interfaces": [
                {
                    "name": each.name, "link_type": each.link_type, "snaplen": each.snaplen,
                    "received": each.received, "dropped": each.dropped, "os_dropped": each.os_dropped,
                }
                for each in self.reader.interfaces
            ],
            "comments": list(self.reader.comments),
        }  # fmt: skip

    def _roles(self) -> dict[str, dict[str, int]]:
        roles = {name: self.of(name) for name in dict.fromkeys(each.role for each in self.facts)}
        return {name: {"flows": len(flows), **_totals(self.table, flows)} for name, flows in roles.items()}

    def _canary(self) -> dict[str, Any] | None:
        if self.canary is None:
            return None
        places = [{"flow": each.flow, "up": each.up, "offset_bytes": each.offset_bytes} for each in self.canary.found]
        return {"verdict": self.canary.verdict, "found": places}

    def _flow(self, facts: FlowFacts, answered: Answers, counts: dict[str, int], client: str) -> dict[str, Any]:
        flow, names = facts.flow, facts.names
        return {
            "number": flow.number,
            "protocol": facts.protocol,
            "client": client,
            "client_port": flow.client_port,
            "server": facts.address,
            "server_port": flow.server_port,
            "client_by": flow.client_by,
            "name": names[0],
            "sni": facts.sni,
            "has_ech": facts.has_ech,
            "dns_names": list(facts.dns_names),
            "alpn_offered": list(facts.alpn),
            "tls_version": facts.tls_version,
            "quic_version": facts.quic_version,
            "role": facts.role,
            "first_s": _seconds(flow.first_ns),
            "duration_s": (flow.last_ns - flow.first_ns) / 1e9,
            **counts,
            "first_payload_up_s": _seconds(flow.up.first_payload_ns),
            "last_payload_up_s": _seconds(flow.up.last_payload_ns),
            "first_payload_down_s": _seconds(flow.down.first_payload_ns),
            "last_payload_down_s": _seconds(flow.down.last_payload_ns),
            "initial_rtt_s": flow.initial_rtt_ns / 1e9 if flow.initial_rtt_ns is not None else None,
            "rtt_up_s": answered.up,
            "rtt_down_s": answered.down,
            "turns": answered.turns,
            "chunks_bytes": metrics.chunks(self.table, flow) if facts.role == "storage" else None,
        }


_SUMS = ("payload_bytes", "unique_bytes", "wire_bytes", "missing_bytes", "unseen_bytes", "retransmissions")
_MARKS = {
    "syns": "syns", "syn_acks": "syn_acks", "fins": "fins", "resets": "resets", "retransmissions": "retransmissions",
    "fast_retransmissions": "fast", "spurious_retransmissions": "spurious", "out_of_order": "out_of_order",
    "keep_alives": "keep_alives",
}  # fmt: skip
"""JSON keys and the names of the counts: some by direction, some of both together."""


def _by_way(name: str) -> tuple[str, str]:
    stem, _, unit = name.partition("_")
    return (f"{stem}_up_{unit}", f"{stem}_down_{unit}") if unit else (f"{stem}_up", f"{stem}_down")


_KEYS = {name: _by_way(name) for name in _SUMS}


def _totals(table: FlowTable, flows: Sequence[Flow], packets: str = "packets") -> dict[str, int]:
    """Sums over flows, by direction and together. ``packets``: the key of their number."""
    import numpy as np

    numbers = np.fromiter((flow.number for flow in flows), np.int64, len(flows))

    def ways(name: str) -> list[int]:
        return list(_ways(table, name, numbers).sum(1).tolist())

    sums = {packets: sum(ways("packets"))}
    for name, keys in _KEYS.items():
        sums |= zip(keys, ways(name), strict=True)
    return sums | {key: sum(ways(name)) for key, name in _MARKS.items()}


def _counts(table: FlowTable, flows: Sequence[Flow]) -> Iterator[dict[str, int]]:
    """What ``_totals`` has, of each flow."""
    import numpy as np

    for begin in range(0, len(flows), _FLOWS_AT_ONCE):
        numbers = np.array([flow.number for flow in flows[begin : begin + _FLOWS_AT_ONCE]])
        columns: dict[str, Any] = {"packets": _ways(table, "packets", numbers).sum(0)}
        for name, keys in _KEYS.items():
            columns |= zip(keys, _ways(table, name, numbers), strict=True)
        columns |= {key: _ways(table, name, numbers).sum(0) for key, name in _MARKS.items()}
        for line in zip(*(column.tolist() for column in columns.values()), strict=True):
            yield dict(zip(columns, line, strict=True))


def _ways(table: FlowTable, name: str, numbers: Any) -> Any:
    """One of the sides' counts of these flows, up and down."""
    import numpy as np

    return table.sums[name][:, numbers] if len(numbers) else np.zeros((2, 0), np.int64)


def _header_bytes(table: FlowTable) -> int:
    """What went over the wire beside payload: headers, acknowledgements, padding."""
    sums = _totals(table, table.flows)
    return sum(sums[f"wire_{way}_bytes"] - sums[f"payload_{way}_bytes"] for way in ("up", "down"))


def _seconds(time_ns: int | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


def analyze(
    buffer: Buffer,
    *,
    source: str = "capture",
    client: str | Collection[str] | None = None,
    whose: Whose | None = None,
    rules: Sequence[Rule] = (),
    canary: bytes | None = None,
    drops: int | None = None,
    release: Callable[[int], None] = lambda place: None,
) -> Analysis:
    """Understand a capture. Raises UsageError when it is no capture, or the client has no part in it; nothing else.

    Args:
        buffer: the whole file: bytes, or a memory map.
        source: what errors and results call it.
        client: address of the client, or all of them; without it, who opened a connection is its client.
        whose: which flows of these addresses are the client's, where other programs have the same ones.
        rules: what tells roles; see ``roles.parse_rules``.
        canary: a text whose plain occurrence is looked for.
        drops: packets that the capturing program said it lost, where the file does not say so itself.
        release: called with a place in the file before which nothing is needed for now.
    """
    with _uncollected():
        return _analyze(buffer, source, _addresses(client), whose, rules, canary, drops, release)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep the collector of cycles away while very many objects are made, none of them in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _analyze(
    buffer: Buffer, source: str, addresses: tuple[Address, ...], whose: Whose | None, rules: Sequence[Rule],
    canary: bytes | None, drops: int | None, release: Callable[[int], None],
) -> Analysis:  # fmt: skip
    reader, collector = Reader(buffer, source, release), Collector(buffer)
    for batch in reader:
        collector.add(batch)
    packets = collector.packets()
    table = group(packets, collector.pairs(), addresses)
    if addresses and whose is None and not table.flows and table.foreign:
        seen = sorted({str(flow.client) for flow in table.foreign})
        some = ", ".join(seen[:_MANY_NAMES]) + (", ..." if len(seen) > _MANY_NAMES else "")
        raise UsageError(
            f"{source}: no packet is from or to {' or '.join(map(str, addresses))}; clients in it are: {some}"
        )
    facts, queries = _facts(table, buffer, rules, release)
    owners = None
    if whose is not None:
        owners = whose.sort(facts)
        strangers = [each.flow for each in facts if each.flow.number not in owners.by]
        table = replace(table, flows=owners.own, foreign=[*strangers, *table.foreign])
        facts = [each for each in facts if each.flow.number in owners.by]
        queries = {name: count for name, count in queries.items() if whose.has_name(name)}
    validity = _validity(reader, collector, table, drops, _offload(table, buffer, release))
    found = Analysis(
        source, reader, table, facts, collector.aside, collector.records, collector.wire_bytes, collector.cut,
        collector.first_ns, collector.last_ns, validity, None, owners, queries, len(collector.sentinels),
    )  # fmt: skip
    if canary is not None:
        places = streams.find(table, buffer, canary, release)
        aside = collector.aside
        unread = collector.cut + aside.fragments + aside.joined + aside.malformed + aside.hidden.total()
        is_whole = found.validity.verdict != "invalid" and not unread
        found.canary = Canary("yes" if places else "no" if is_whole else "unknown", tuple(places))
    release(len(buffer))
    return found


def _addresses(client: str | Collection[str] | None) -> tuple[Address, ...]:
    found: list[Address] = []
    for each in (client,) if isinstance(client, str) else client or ():
        try:
            address = ip_address(each.partition("%")[0])
        except ValueError as error:
            raise UsageError(f"client {each!r}: expected an IPv4 or IPv6 address") from error
        found.append(getattr(address, "ipv4_mapped", None) or address)
    return tuple(found)


# --- names and roles ---


def _facts(
    table: FlowTable, buffer: Buffer, rules: Sequence[Rule], release: Callable[[int], None]
) -> tuple[list[FlowFacts], dict[str, int]]:
    """What hellos and DNS say of each flow, and how often each name was asked for."""
    names: dict[Address, dict[str, None]] = {}
    queries: dict[str, int] = {}
    for flow in table.flows:
        if not flow.is_tcp and flow.server_port == 53:
            for way in (True, False):
                for datagram in streams.datagrams(table, buffer, flow, up=way):
                    message = handshake.dns_message(datagram)
                    if message is None:
                        continue
                    if not message.is_answer:
                        queries[message.name] = queries.get(message.name, 0) + 1
                    for address in message.addresses:
                        names.setdefault(address, {})[message.name] = None
    text, roles, found, touched = _Texts(), Roles(rules), list[FlowFacts](), 0
    tellers = streams.tellers(table, buffer, release)
    for flow in table.flows:
        server = flow.server
        facts = FlowFacts(flow, dns_names=tuple(names.get(server, ())) if names else (), address=text(server))
        if flow.number in tellers:
            touched += 1
            if not touched % _TOUCHED_FLOWS:
                release(len(buffer))
            if flow.is_tcp:
                _hellos(facts, table, buffer)
            else:
                first = next(streams.datagrams(table, buffer, flow, up=True, most=1), b"")
                facts.quic_version = handshake.quic_version(first)
        facts.role = roles.of(flow, facts.names, is_quic=facts.quic_version is not None)
        found.append(facts)
    return found, queries


class _Texts:
    """Addresses as text. A capture's flows have the same object for the same address, so that each is written once."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, address: Address) -> str:
        text = self._known.get(id(address))
        if text is None:
            text = self._known[id(address)] = str(address)
        return text


def _hellos(facts: FlowFacts, table: FlowTable, buffer: Buffer) -> None:
    flow = facts.flow
    if streams.beginning(table, buffer, flow, up=True, limit=1) != b"\x16":
        return
    hello = handshake.client_hello(streams.beginning(table, buffer, flow, up=True))
    if hello is not None:
        facts.sni, facts.alpn, facts.has_ech = hello.sni, hello.alpn, hello.has_ech
    facts.tls_version = handshake.server_version(streams.beginning(table, buffer, flow, up=False))


# --- whether the numbers can be trusted ---


def _validity(
    reader: Reader, collector: Collector, table: FlowTable, drops: int | None, size_reasons: tuple[str, ...]
) -> Validity:
    wrong, unsure = [], []
    if reader.reason:
        wrong.append(reader.reason)
    if token := _unended(reader, collector.sentinels):
        wrong.append(f"its last sentinel ({token}) is not in it: the capture was killed")
    if reader.lacks_statistics:
        wrong.append(
            "it lacks the statistics with which dumpcap ends a capture: dumpcap was killed, or this is part of a ring "
            "buffer, or a program such as editcap wrote it anew"
        )
    said = [each.drops for each in reader.interfaces]
    known = [each for each in said if each is not None]
    if drops is None and known and len(known) == len(said):
        drops = sum(known)
    if reader.packet_drops or sum(known):
        drops = max(drops or 0, reader.packet_drops, sum(known))
    if drops:
        wrong.append(f"the capture lost {drops:,} packets")
    elif drops is None:
        unsure.append("the file does not say how many packets the capture lost")
    lacking = sum(side.missing_bytes + side.unseen_bytes for flow in table.flows for side in (flow.up, flow.down))
    if lacking:
        wrong.append(f"{lacking:,} bytes that were sent are not in the capture")
    aside = collector.aside
    for count, what in (
        (aside.fragments, "fragments of IP packets without the others, whose payload is not counted"),
        (aside.hidden.total(), f"packets may hold flows that were not looked for: {_named(aside.hidden)}"),
        (aside.short, "packets were cut within their headers"),
        (reader.untimed, "packets have no time"),
        (reader.longer, "packets have more bytes in the file than their stated length"),
        (aside.malformed, "packets with headers that contradict themselves"),
    ):
        if count:
            unsure.append(f"{count:,} {what}")
    if again := _seen_twice(table):
        unsure.append(f"{again:,} packets repeat the one just before: the capture may hold packets twice")
    verdict = "invalid" if wrong else "unknown" if unsure else "valid"
    return Validity(verdict, (*wrong, *unsure), not size_reasons, size_reasons, drops)


def _unended(reader: Reader, sentinels: Iterable[bytes]) -> str | None:
    """The token of a capture of ours that lacks its end. What was cut by a snap length says nothing."""
    seen = [text.removeprefix(SENTINEL).decode("ascii", "replace").split() for text in sentinels]
    for comment in reader.comments:
        with suppress(ValueError, TypeError, KeyError):
            about = json.loads(comment)
            token = str(about["sentinel"]["token"]) if "cloudbench_capture" in about else ""
            if token and [token, "end"] not in seen and all(len(words) > 1 for words in seen):
                return token
    return None


def _named(counts: Counter[str]) -> str:
    """What there was, most first."""
    most = counts.most_common()
    rest = len(most) - _MANY_NAMES
    return ", ".join(f"{count:,} {name}" for name, count in most[:_MANY_NAMES]) + (
        f" and {rest} kinds" if rest > 0 else ""
    )


def _seen_twice(table: FlowTable) -> int:
    """Packets of TCP whose payload comes again within a millisecond, if they are many.

    A sender needs a round trip to repeat itself, but a mirror port, or the interface "any", shows each packet twice.
    """
    import numpy as np

    packets, again, total = table.packets, 0, 0
    for first in range(0, len(table.order), _PART_ROWS):
        rows: Any = table.order[first : first + _PART_ROWS].astype(np.int64)
        rows = rows.compress((packets.payload[rows] > 0) & (packets.flags[rows] > 0))
        seq = packets.seq[rows]
        repeated = np.flatnonzero(seq[1:] == seq[:-1])
        one, other = rows[repeated], rows[repeated + 1]
        same = np.abs(packets.time_ns[other] - packets.time_ns[one]) < _AT_ONCE_NS
        for each in (packets.ack, packets.payload, packets.flags, table.up):
            same &= each[one] == each[other]
        again, total = again + int(same.sum()), total + len(rows)
    return again if again >= max(_FEW_TWICE, _MUCH_TWICE * total) else 0


def _offload(table: FlowTable, buffer: Buffer, release: Callable[[int], None]) -> tuple[str, ...]:
    """Why sizes are not those of the wire, if so. Also fills in each side's ``mss_bytes``."""
    import numpy as np

    packets = table.packets
    places = np.flatnonzero((packets.flags[table.order] & SYN) > 0)  # in the order of flows
    owners = np.searchsorted(table.starts, places, "right") - 1
    rows = table.order[places]
    said = streams.segment_limits(buffer, packets.offset[rows], packets.header[rows], release)
    flows = {flow.number: flow for flow in table.flows}
    columns = (part[said >= 0].tolist() for part in (owners, table.up[rows], said))
    limits = np.full((2, len(table.starts) - 1), -1)
    for number, is_up, mss_bytes in zip(*columns, strict=True):
        if (flow := flows.get(number)) is not None:  # it says what its sender accepts: it bounds the other way
            (flow.down if is_up else flow.up).mss_bytes = mss_bytes
            limits[int(is_up), number] = mss_bytes
    own = np.array([flow.number for flow in table.flows if flow.is_tcp], np.int64)
    limits, largest = limits[:, own], _ways(table, "largest_payload_bytes", own)
    above = int(((limits >= 0) & (largest > limits)).sum())
    unknown = int(((limits < 0) & (largest > _USUAL_MSS_BYTES)).sum())
    reasons = []
    if above:
        reasons.append(f"segments above the MSS in {above} directions of flows: segmentation offload was on")
    if unknown:
        reasons.append(
            f"segments above {_USUAL_MSS_BYTES} bytes in {unknown} directions of flows whose MSS is not known"
        )
    return tuple(reasons)
