"""The analysis of one capture: flows with names and roles, totals, and whether the numbers can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.model import MIB, UsageError
from pytest_cloudbench.net.traffic import lines, metrics, streams
from pytest_cloudbench.net.traffic.datagrams import REPEAT_WITHIN_NS, RepeatedDatagrams
from pytest_cloudbench.net.traffic.facts import CaptureFacts, FlowFacts, find_facts
from pytest_cloudbench.net.traffic.flows import group_flows
from pytest_cloudbench.net.traffic.headers import SENTINEL
from pytest_cloudbench.net.traffic.owners import Sorted, Whose
from pytest_cloudbench.net.traffic.packets import ACK, SYN, Address, Aside, Collector
from pytest_cloudbench.net.traffic.protection import judge_protection
from pytest_cloudbench.net.traffic.records import Reader
from pytest_cloudbench.net.traffic.roles import Rule
from pytest_cloudbench.net.traffic.table import Flow, FlowTable
from pytest_cloudbench.support.collector import without_collector
from pytest_cloudbench.support.wording import format_count

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer

SCHEMA = 1
"""Schema number of ``Analysis.as_dict``. 1 is the first."""

_USUAL_MSS_BYTES, _USUAL_DATAGRAM_BYTES = 1460, 1472
_MAX_NAMES = 8
_PART_ROWS = 1 << 17
LEAST_ENCODED_BYTES = 8
_MIN_REPEATED, _MIN_REPEATED_SHARE = 8, 0.1
_TWINS_WITHIN_NS = 1_000_000_000
"""The longest time that a packet takes through an address translation."""
_QUIC_OPENING_BYTES = 26
"""The bytes of QUIC's first packet up to the end of the longest connection ID."""


class Validity(NamedTuple):
    """A verdict on whether the numbers of a capture can be trusted.

    Attributes:
        verdict: ``valid``, ``invalid`` if the capture is known to be incomplete, or ``unknown`` if the file does not
            tell.
        reasons: the reasons if it is not valid.
        sizes_known: whether packet counts, wire bytes and retransmissions are those on the wire. They are not if
            segments above the MSS or large datagrams of QUIC show that packets were captured before the network card
            split them (segmentation offload).
        size_reasons: the reasons if they are not.
        drops: number of packets that the capture lost, or None if that is not recorded.
    """

    verdict: str
    reasons: tuple[str, ...]
    sizes_known: bool
    size_reasons: tuple[str, ...]
    drops: int | None


class Canary(NamedTuple):
    """The verdict on whether a text was sent unencrypted: ``yes``, ``no``, or ``unknown`` if payload is missing."""

    verdict: str
    found: tuple[streams.Occurrence, ...]


@dataclass(slots=True)
class Analysis:
    """The results for one capture.

    Attributes:
        source: the capture's name.
        reader: format, interfaces, comments and completeness of the file.
        table: packets and flows, which functions of ``metrics`` take.
        known: facts about flows by flow number. ``facts`` has the same as objects.
        aside: counts of packets outside flows.
        records, wire_bytes: totals of all packets in the file except sentinels.
        sentinels: number of packets that mark the ends of the capture. They are counted nowhere else.
        cut: number of packets truncated by the snap length.
        first_ns, last_ns: times of the first and the last packet.
        validity: whether the numbers can be trusted.
        canary: the result of the search for ``canary``, if one was given.
        buffer: the whole file, for ``read_content``.
        sorted: flows by owner, if ``whose`` was given. ``table`` and ``facts`` then have only the client's.
    """

    source: str
    reader: Reader
    table: FlowTable
    known: CaptureFacts
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
    buffer: Buffer = field(default=b"", repr=False)

    def read_content(self, number: int, *, up: bool, limit_bytes: int = 64 * MIB) -> tuple[bytes, bool]:
        """Return the payload of one direction of a flow, and whether none of its bytes is missing.

        Only while the capture's file is open. At most ``limit_bytes`` are returned, and the rest counts as missing.
        """
        is_tcp, parts, read_bytes = self.table.who.is_tcp[number], list[bytes](), 0
        joined = (data for _, data in streams.join_pieces(self.table, self.buffer, number, up=up))
        for data in joined if is_tcp else streams.read_datagrams(self.table, self.buffer, number, up=up):
            parts.append(data[: limit_bytes - read_bytes])
            read_bytes += len(parts[-1])
            if read_bytes >= limit_bytes:
                break
        counts = ("unique_bytes", "missing_bytes", "unseen_bytes")
        sent_bytes = sum(int(self.table.sums[name][0 if up else 1, number]) for name in counts)
        return b"".join(parts), read_bytes == sent_bytes

    @property
    def facts(self) -> list[FlowFacts]:
        """Facts about each flow, in the order of ``table.flows``."""
        return self.known.get_all(self.table.numbers)

    def of(self, *roles: str) -> list[Flow]:
        """Return the flows with one of these roles."""
        numbers = self.table.numbers
        return self.table.select(numbers[[role in roles for role in self.known.get_roles(numbers)]])

    @property
    def duration_s(self) -> float | None:
        """Seconds from the first to the last packet, or None without packets."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return (self.last_ns - self.first_ns) / 1e9

    def as_dict(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Return ``summary`` and ``flows`` as JSON types. A hundred thousand flows take half a gigabyte."""
        with without_collector():
            return self.summary(changed_bytes=changed_bytes, changed_ns=changed_ns) | {"flows": list(self.flows())}

    def flows(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """Return an iterator of flows as JSON types: all, or the ``most`` largest by wire bytes."""
        numbers = self.table.numbers
        if most is not None:
            numbers = lines.select_largest(self.table, numbers, most)
        return lines.make_flow_lines(self.table, self.known, numbers)

    def flow_columns(self) -> Iterator[dict[str, list[Any]]]:
        """Return an iterator of all flows as columns of JSON types, some thousands of flows at a time."""
        return lines.make_flow_columns(self.table, self.known, self.table.numbers)

    def summary(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Return everything except the flows as JSON types.

        Args:
            changed_bytes: number of bytes the user changed, for TUE and overhead.
            changed_ns: time of the change, for the start-up time.
        """
        storage, has_sizes = self.of("storage"), changed_bytes is not None and self.validity.sizes_known
        cloud = self.of("storage", "control", "notification") if has_sizes else []
        return {
            "schema": SCHEMA,
            "file": self.source,
            "format": self.reader.format,
            "packets": self.records,
            "sentinels": self.sentinels,
            **lines.sum_counts(self.table, self.table.numbers, "flow_packets"),
            "wire_bytes": self.wire_bytes,
            "first_s": _to_seconds(self.first_ns),
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
            "foreign_flows": len(self.table.foreign_numbers),
            "cut_packets": self.cut,
            "header_bytes": _count_header_bytes(self.table) if self.validity.sizes_known else None,
            "start_up_s": metrics.start_up_s(self.table, storage, changed_ns) if changed_ns is not None else None,
            "completion_s": metrics.completion_s(self.table, storage, changed_ns),
            "changed_bytes": changed_bytes,
            "tue": metrics.tue(cloud, changed_bytes or 0) if has_sizes else None,
            "overhead": metrics.overhead(cloud, changed_bytes or 0) if has_sizes else None,
            "roles": self._sum_by_role(),
            "dns_queries": self.dns_queries,
            "encryption": judge_protection(
                self.table, self.known, self.buffer, is_whole=self.validity.verdict == "valid"
            ),
            "canary": self._make_canary_result(),
            "interfaces": [
                {
                    "name": interface.name, "link_type": interface.link_type, "snaplen": interface.snaplen,
                    "received": interface.received, "dropped": interface.dropped, "os_dropped": interface.os_dropped,
                }
                for interface in self.reader.interfaces
            ],
            "comments": list(self.reader.comments),
        }  # fmt: skip

    def _sum_by_role(self) -> dict[str, dict[str, int]]:
        roles = self.known.get_roles(self.table.numbers)
        by_role = {name: self.table.numbers[[role == name for role in roles]] for name in dict.fromkeys(roles)}
        return {
            name: {"flows": len(numbers), **lines.sum_counts(self.table, numbers)} for name, numbers in by_role.items()
        }

    def _make_canary_result(self) -> dict[str, Any] | None:
        if self.canary is None:
            return None
        places = [
            {
                "flow": occurrence.flow,
                "up": occurrence.up,
                "offset_bytes": occurrence.offset_bytes,
                "form": occurrence.form,
            }
            for occurrence in self.canary.found
        ]
        return {"verdict": self.canary.verdict, "found": places}


def _count_header_bytes(table: FlowTable) -> int:
    """Return the bytes on the wire other than payload: headers, acknowledgements and padding."""
    sums = lines.sum_counts(table, table.numbers)
    return sum(sums[f"wire_{way}_bytes"] - sums[f"payload_{way}_bytes"] for way in ("up", "down"))


def _to_seconds(time_ns: int | None) -> float | None:
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
    keeps_datagrams: bool = True,
    release: Callable[[int], None] = lambda offset: None,
) -> Analysis:
    """Analyze a capture. Raises only UsageError, if it is not a capture or has no packet of the client.

    Args:
        buffer: the whole file as bytes or a memory map.
        source: the capture's name in errors and results.
        client: the client's address or addresses. By default, the client of each flow is the end that opened it.
        whose: tells the client's flows from those of other programs with the same addresses.
        rules: rules for roles, see ``roles.parse_rules``.
        canary: a text to search for in unencrypted payload.
        drops: number of packets that the capturing program reported as lost, if the file does not record it.
        keeps_datagrams: whether ``table.packets`` has all UDP packets. Otherwise memory depends on the number of UDP
            flows and DNS messages, and ``changed_ns`` and functions of ``metrics`` that take the table may be wrong.
        release: called with a file offset before which nothing is needed for now.
    """
    addresses, keeps_datagrams = _parse_addresses(client), keeps_datagrams or canary is not None
    with without_collector():
        return _analyze(buffer, source, addresses, whose, rules, canary, drops, keeps_datagrams, release)


def _analyze(
    buffer: Buffer, source: str, addresses: tuple[Address, ...], whose: Whose | None, rules: Sequence[Rule],
    canary: bytes | None, drops: int | None, keeps_datagrams: bool, release: Callable[[int], None],
) -> Analysis:  # fmt: skip
    import numpy as np

    reader, collector = Reader(buffer, source, release), Collector(buffer, keeps_datagrams)
    for batch in reader:
        collector.add(batch)
    packets = collector.make_packets()
    table = group_flows(packets, collector.make_pairs(), addresses, collector.datagrams)
    if addresses and whose is None and not len(table.numbers) and len(table.foreign_numbers):
        clients = sorted({str(flow.client) for flow in table.foreign})
        shown_clients = ", ".join(clients[:_MAX_NAMES]) + (", ..." if len(clients) > _MAX_NAMES else "")
        raise UsageError(
            f"{source}: no packet is from or to {' or '.join(map(str, addresses))}; its clients are: {shown_clients}"
        )
    facts, queries = find_facts(table, buffer, rules, release)
    owners = None
    if whose is not None:
        owners = whose.sort(facts.get_all(table.numbers))
        own_numbers = np.array([flow.number for flow in owners.own], np.int64)
        table = replace(
            table,
            numbers=own_numbers,
            foreign_numbers=np.append(np.setdiff1d(table.numbers, own_numbers), table.foreign_numbers),
        )
        queries = {name: count for name, count in queries.items() if whose.has_name(name)}
    twins = _count_twins(table) + _count_quic_twins(table, facts, buffer, release)
    validity = _judge_validity(reader, collector, table, drops, _find_offload(table, facts, buffer, release), twins)
    analysis = Analysis(
        source, reader, table, facts, collector.aside, collector.records, collector.wire_bytes, collector.cut,
        collector.first_ns, collector.last_ns, validity, None, owners, queries, len(collector.sentinels), buffer,
    )  # fmt: skip
    if canary is not None:
        occurrences = streams.find_text(table, buffer, canary, release)
        encoded, is_searched = _find_encoded(analysis, canary, {(item.flow, item.up) for item in occurrences})
        occurrences += encoded
        aside = collector.aside
        unsearched = collector.cut + aside.fragments + aside.joined + aside.malformed + aside.hidden.total()
        is_whole = analysis.validity.verdict != "invalid" and not unsearched and is_searched
        analysis.canary = Canary("yes" if occurrences else "no" if is_whole else "unknown", tuple(occurrences))
    release(len(buffer))
    return analysis


def _find_encoded(
    analysis: Analysis, canary: bytes, raw_directions: Collection[tuple[int, bool]]
) -> tuple[list[streams.Occurrence], bool]:
    """Return the occurrences of a text in encoded form, and whether all streams were searched.

    Encrypted flows with TLS or QUIC are skipped, because encryption hides the text. A short text is not searched for,
    because its encodings would occur by chance.
    """
    if len(canary) < LEAST_ENCODED_BYTES:
        return [], False
    from pytest_cloudbench.net.needles import Needle, search_needles

    needle, occurrences, is_searched = Needle("canary", canary), [], True
    known = {facts.number: facts for _, facts in analysis.known.find_known(analysis.table.numbers.tolist())}
    for number in analysis.table.numbers.tolist():
        facts = known.get(number)
        if facts is not None and (facts.tls_version or facts.quic_version) and not facts.is_plain_tls:
            continue
        for up in (True, False):
            if (number, up) not in raw_directions:
                content, is_whole = analysis.read_content(number, up=up)
                search = search_needles(content, [needle])
                occurrences += [streams.Occurrence(number, up, None, sighting.form) for sighting in search.sightings]
                is_searched &= (is_whole and search.is_whole) or bool(search.sightings)
    return occurrences, is_searched


def _parse_addresses(client: str | Collection[str] | None) -> tuple[Address, ...]:
    addresses: list[Address] = []
    for text in (client,) if isinstance(client, str) else client or ():
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError as error:
            raise UsageError(f"client {text!r}: expected an IPv4 or IPv6 address") from error
        addresses.append(getattr(address, "ipv4_mapped", None) or address)
    return tuple(addresses)


# --- whether the numbers can be trusted ---


def _judge_validity(
    reader: Reader, collector: Collector, table: FlowTable, drops: int | None, size_reasons: tuple[str, ...],
    twins: int,
) -> Validity:  # fmt: skip
    problems, doubts = [], []
    if reader.reason:
        problems.append(reader.reason)
    if token := _find_unended_capture(reader, collector.sentinels):
        problems.append(f"its last sentinel ({token}) is not in it: the capture was killed")
    if reader.lacks_statistics:
        problems.append(
            "it lacks the statistics with which dumpcap ends a capture: dumpcap was killed, or this is part of a ring "
            "buffer, or a program such as editcap rewrote it"
        )
    reported_drops = [interface.drops for interface in reader.interfaces]
    known_drops = [interface_drops for interface_drops in reported_drops if interface_drops is not None]
    if drops is None and known_drops and len(known_drops) == len(reported_drops):
        drops = sum(known_drops)
    if reader.packet_drops or sum(known_drops):
        drops = max(drops or 0, reader.packet_drops, sum(known_drops))
    if drops:
        problems.append(f"the capture lost {format_count(drops, 'packet')}")
    elif drops is None:
        doubts.append("the file does not say how many packets the capture lost")
    missing_bytes = sum(
        int(lines.get_counts(table, name, table.numbers).sum()) for name in ("missing_bytes", "unseen_bytes")
    )
    if missing_bytes:
        missing = format_count(missing_bytes, "byte that was sent is", "bytes that were sent are")
        problems.append(f"{missing} not in the capture")
    aside = collector.aside
    hidden = f"may hold flows inside undecoded protocols: {_join_names(aside.hidden)}"
    for count, noun, plural, problem in (
        (aside.fragments, "fragment", "fragments", "of incomplete IP packets, whose payload is not counted"),
        (aside.hidden.total(), "packet", "packets", hidden),
        (aside.short, "packet was", "packets were", "cut within their headers"),
        (reader.untimed, "packet has", "packets have", "no time stamp"),
        (reader.longer, "packet has", "packets have", "more bytes in the file than their stated length"),
        (aside.malformed, "packet has", "packets have", "contradictory headers"),
        (_count_repeated(table, collector.repeats), "packet repeats", "packets repeat",
         "the previous one: the capture may hold packets twice"),
        (twins, "connection is", "connections are", "in it twice, with other addresses (NAT)"),
    ):  # fmt: skip
        if count:
            doubts.append(f"{format_count(count, noun, plural)} {problem}")
    verdict = "invalid" if problems else "unknown" if doubts else "valid"
    return Validity(verdict, (*problems, *doubts), not size_reasons, size_reasons, drops)


def _find_unended_capture(reader: Reader, sentinels: Iterable[bytes]) -> str | None:
    """Return the token of a capture without its last sentinel, unless a snap length truncated sentinels."""
    sentinel_words = [text.removeprefix(SENTINEL).decode("ascii", "replace").split() for text in sentinels]
    for comment in reader.comments:
        if "cloudbench_capture" not in comment and "\\" not in comment:  # parsing all comments of packets is slow
            continue
        import json

        with suppress(ValueError, TypeError, KeyError):
            metadata = json.loads(comment)
            token = str(metadata["sentinel"]["token"]) if "cloudbench_capture" in metadata else ""
            if token and [token, "end"] not in sentinel_words and all(len(words) > 1 for words in sentinel_words):
                return token
    return None


def _join_names(counts: Counter[str]) -> str:
    """Return the names as text, most frequent first."""
    by_count = counts.most_common()
    unshown = len(by_count) - _MAX_NAMES
    return ", ".join(f"{count:,} {name}" for name, count in by_count[:_MAX_NAMES]) + (
        f" and {format_count(unshown, 'kind')}" if unshown > 0 else ""
    )


def _count_repeated(table: FlowTable, datagrams: RepeatedDatagrams) -> int:
    """Return the number of packets with payload that repeat within a millisecond, or 0 if there are few.

    A sender retransmits after a round trip at the earliest, but a mirror port or the interface "any" shows each packet
    twice.
    """
    import numpy as np

    repeated_packets, total = datagrams.repeated, datagrams.packets
    for first in range(0, len(table.order), _PART_ROWS):
        end = min(first + _PART_ROWS, len(table.order))
        time_ns, seq, ack, payload, _, flags, up = table.in_order.get_range(first, end)
        rows = ((payload > 0) & (flags > 0)).nonzero()[0]
        seq = seq.take(rows)
        repeated = (seq[1:] == seq[:-1]).nonzero()[0]
        earlier, later = rows[repeated], rows[repeated + 1]
        is_same = np.abs(time_ns[later] - time_ns[earlier]) < REPEAT_WITHIN_NS
        for column in (ack, payload, flags, up):
            is_same &= column[earlier] == column[later]
        repeated_packets, total = repeated_packets + int(is_same.sum()), total + len(rows)
    return repeated_packets if repeated_packets >= max(_MIN_REPEATED, _MIN_REPEATED_SHARE * total) else 0


def _count_twins(table: FlowTable) -> int:
    """Return the number of TCP connections that are in it once more, before and behind an address translation.

    Both ends choose their initial numbers at random, and a translation does not change them.
    """
    import numpy as np

    numbers = table.numbers[table.who.is_tcp[table.numbers]]
    rows, owners = _find_syns(table)
    is_answer = (table.packets.flags[rows] & ACK) > 0
    initial = np.full((2, len(table.starts) - 1), -1)
    for side, is_side in enumerate((~is_answer, is_answer)):
        initial[side, owners[is_side]] = table.packets.seq[rows[is_side]]
    numbers = numbers[(initial[:, numbers] >= 0).all(0)]
    ordered = numbers[np.lexsort((table.times.first_ns[numbers], *initial[:, numbers]))]
    is_twin = (np.diff(initial[:, ordered]) == 0).all(0)
    is_twin &= np.diff(table.times.first_ns[ordered]) < _TWINS_WITHIN_NS
    is_twin &= (np.diff(table.who.client[ordered]) != 0) | (np.diff(table.who.server[ordered]) != 0)
    return int(is_twin.sum())


def _count_quic_twins(table: FlowTable, facts: CaptureFacts, buffer: Buffer, release: Callable[[int], None]) -> int:
    """Return the same for QUIC, whose first packet begins with a random connection ID."""
    numbers = [known.number for _, known in facts.find_known(table.numbers.tolist()) if known.quic_version]
    openings = list[bytes]()
    for index, number in enumerate(numbers):
        if not index % streams.TOUCHED_PACKETS:
            release(len(buffer))
        openings.append(next(streams.read_datagrams(table, buffer, number, up=True, max_rows=1))[:_QUIC_OPENING_BYTES])
    known_openings = [opening for opening in openings if len(opening) == _QUIC_OPENING_BYTES]
    return len(known_openings) - len(set(known_openings))


def _find_syns(table: FlowTable) -> tuple[Any, Any]:
    """Return the rows of packets with SYN, in the order of flows, and the number of the flow of each."""
    import numpy as np

    positions = (table.packets.flags.take(table.order) & SYN).nonzero()[0]
    return table.order[positions], np.searchsorted(table.starts, positions, "right") - 1


def _find_offload(
    table: FlowTable, facts: CaptureFacts, buffer: Buffer, release: Callable[[int], None]
) -> tuple[str, ...]:
    """Return the reasons why sizes are not those on the wire, and fill in each side's ``mss_bytes``."""
    import numpy as np

    packets = table.packets
    rows, owners = _find_syns(table)
    mss_bytes = streams.read_mss_options(buffer, packets.offset[rows], packets.header[rows], release)
    is_own = np.zeros(len(table.starts) - 1, bool)
    is_own[table.numbers] = True
    is_chosen = (mss_bytes >= 0) & is_own[owners]
    # The MSS that one end accepts limits the segments of the other end.
    table.set_mss(table.up[rows[is_chosen]].astype(np.int64), owners[is_chosen], mss_bytes[is_chosen])
    tcp_numbers = table.numbers[table.who.is_tcp[table.numbers]]
    limits = lines.get_counts(table, "mss_bytes", tcp_numbers)
    largest = lines.get_counts(table, "largest_payload_bytes", tcp_numbers)
    above_mss = int(((limits >= 0) & (largest > limits)).sum())
    unknown = int(((limits < 0) & (largest > _USUAL_MSS_BYTES)).sum())
    # QUIC forbids fragments, and other datagrams may be joined from some.
    quic_numbers = [known.number for _, known in facts.find_known(table.numbers.tolist()) if known.quic_version]
    above_datagram = int((table.sums["largest_payload_bytes"][:, quic_numbers] > _USUAL_DATAGRAM_BYTES).sum())
    reasons = []
    if above_mss:
        directions = format_count(above_mss, "direction")
        reasons.append(f"segments above the MSS in {directions} of flows: segmentation offload was on")
    if unknown:
        directions = format_count(unknown, "direction")
        reasons.append(f"segments above {_USUAL_MSS_BYTES} bytes in {directions} of flows whose MSS is unknown")
    if above_datagram:
        directions = format_count(above_datagram, "direction")
        reasons.append(
            f"datagrams above {_USUAL_DATAGRAM_BYTES} bytes in {directions} of QUIC flows: segmentation offload was on"
        )
    return tuple(reasons)
