"""The analysis of one capture: flows with names and roles, totals, and whether the numbers can be trusted.

What may live here: combining the other modules' answers, and saying which numbers are known.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.traffic import lines, metrics, streams
from pytest_cloudbench.net.traffic.facts import CaptureFacts, FlowFacts, find_facts
from pytest_cloudbench.net.traffic.flows import group
from pytest_cloudbench.net.traffic.headers import SENTINEL
from pytest_cloudbench.net.traffic.owners import Sorted, Whose
from pytest_cloudbench.net.traffic.packets import SYN, Address, Aside, Collector
from pytest_cloudbench.net.traffic.records import Reader
from pytest_cloudbench.net.traffic.roles import Rule
from pytest_cloudbench.net.traffic.table import Flow, FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Buffer

SCHEMA = 1
"""Of ``Analysis.as_dict``. 1: the first."""

_USUAL_MSS_BYTES = 1460
_MANY_NAMES = 8
_PART_ROWS = 1 << 17
_AT_ONCE_NS, _FEW_TWICE, _MUCH_TWICE = 1_000_000, 8, 0.1


@dataclass(frozen=True, slots=True)
class Validity:
    """Whether the numbers can be trusted.

    Attributes:
        verdict: ``valid``; ``invalid`` if the capture is known to lack something; ``unknown`` if the file does not say.
        reasons: why it is not valid.
        sizes_known: packet counts, wire bytes and retransmissions are those on the wire. False if segments above the
            MSS show that packets were captured before the network card split them (segmentation offload).
        size_reasons: why not.
        drops: packets that the capture lost; None if that is not recorded.
    """

    verdict: str
    reasons: tuple[str, ...]
    sizes_known: bool
    size_reasons: tuple[str, ...]
    drops: int | None


@dataclass(frozen=True, slots=True)
class Canary:
    """Whether a text was sent unencrypted: ``yes``, ``no``, or ``unknown`` if the file lacks some of the payload."""

    verdict: str
    found: tuple[streams.Found, ...]


@dataclass(slots=True)
class Analysis:
    """The results for one capture.

    Attributes:
        source: the capture's name.
        reader: what is known of the file: format, interfaces, comments, whether it is complete.
        table: packets and flows; functions of ``metrics`` take it.
        known: what is known of flows, by flow number; ``facts`` has the same as objects.
        aside: counts of packets that are in no flow.
        records, wire_bytes: of everything in the file except our own sentinels.
        sentinels: packets that were sent to mark the ends of the capture. They are counted nowhere else.
        cut: packets that the snap length truncated.
        first_ns, last_ns: when the first and the last packet was seen.
        validity: whether the numbers can be trusted.
        canary: the result of the search for ``canary``, if it was given.
        sorted: flows by owner, if ``whose`` was given; ``table`` and ``facts`` then have only the client's.
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

    @property
    def facts(self) -> list[FlowFacts]:
        """One for each flow, in the order of ``table.flows``."""
        return self.known.of(self.table.numbers)

    def of(self, *roles: str) -> list[Flow]:
        """The flows with one of these roles."""
        numbers = self.table.numbers
        return self.table.some(numbers[[each in roles for each in self.known.roles_of(numbers)]])

    @property
    def duration_s(self) -> float | None:
        """From the first to the last packet; None if there are no packets."""
        if self.first_ns is None or self.last_ns is None:
            return None
        return (self.last_ns - self.first_ns) / 1e9

    def as_dict(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Everything as JSON types: ``summary`` and ``flows``. A hundred thousand flows take half a gigabyte."""
        with _uncollected():
            return self.summary(changed_bytes=changed_bytes, changed_ns=changed_ns) | {"flows": list(self.flows())}

    def flows(self, most: int | None = None) -> Iterator[dict[str, Any]]:
        """Flows as JSON types, one at a time: all, or those with the most wire bytes."""
        numbers = self.table.numbers
        if most is not None:
            numbers = lines.largest(self.table, numbers, most)
        return lines.flow_lines(self.table, self.known, numbers)

    def summary(self, *, changed_bytes: int | None = None, changed_ns: int | None = None) -> dict[str, Any]:
        """Everything except the flows, as JSON types.

        Args:
            changed_bytes: what the user changed; gives TUE and overhead.
            changed_ns: when; gives the start-up time.
        """
        storage, sized = self.of("storage"), changed_bytes is not None and self.validity.sizes_known
        cloud = self.of("storage", "control", "notification") if sized else []
        return {
            "schema": SCHEMA,
            "file": self.source,
            "format": self.reader.format,
            "packets": self.records,
            "sentinels": self.sentinels,
            **lines.totals(self.table, self.table.numbers, "flow_packets"),
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
            "foreign_flows": len(self.table.foreign_numbers),
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
        import numpy as np

        by_role: dict[str, list[int]] = {}
        for number, role in zip(self.table.numbers.tolist(), self.known.roles_of(self.table.numbers), strict=True):
            by_role.setdefault(role, []).append(number)
        return {name: {"flows": len(own), **lines.totals(self.table, np.array(own))} for name, own in by_role.items()}

    def _canary(self) -> dict[str, Any] | None:
        if self.canary is None:
            return None
        places = [{"flow": each.flow, "up": each.up, "offset_bytes": each.offset_bytes} for each in self.canary.found]
        return {"verdict": self.canary.verdict, "found": places}


def _header_bytes(table: FlowTable) -> int:
    """Bytes on the wire other than payload: headers, acknowledgements, padding."""
    sums = lines.totals(table, table.numbers)
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
    """Analyze a capture. Raises UsageError, and nothing else, if it is not a capture or has no packet of the client.

    Args:
        buffer: the whole file: bytes, or a memory map.
        source: what errors and results call it.
        client: the client's address or addresses; without it, the client is whoever opened the connection.
        whose: which flows of these addresses are the client's, if other programs use the same addresses.
        rules: how to determine roles; see ``roles.parse_rules``.
        canary: a text to search for in unencrypted payload.
        drops: packets that the capturing program reported as lost, if the file itself does not say.
        release: called with a place in the file before which nothing is needed for now.
    """
    with _uncollected():
        return _analyze(buffer, source, _addresses(client), whose, rules, canary, drops, release)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable the cyclic garbage collector while very many objects are made, none of them in a cycle."""
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
    import numpy as np

    reader, collector = Reader(buffer, source, release), Collector(buffer)
    for batch in reader:
        collector.add(batch)
    packets = collector.make_packets()
    table = group(packets, collector.make_pairs(), addresses)
    if addresses and whose is None and not len(table.numbers) and len(table.foreign_numbers):
        seen = sorted({str(flow.client) for flow in table.foreign})
        some = ", ".join(seen[:_MANY_NAMES]) + (", ..." if len(seen) > _MANY_NAMES else "")
        raise UsageError(
            f"{source}: no packet is from or to {' or '.join(map(str, addresses))}; clients in it are: {some}"
        )
    known, queries = find_facts(table, buffer, rules, release)
    owners = None
    if whose is not None:
        owners = whose.sort(known.of(table.numbers))
        own = np.array([flow.number for flow in owners.own], np.int64)
        table = replace(
            table, numbers=own, foreign_numbers=np.append(np.setdiff1d(table.numbers, own), table.foreign_numbers)
        )
        queries = {name: count for name, count in queries.items() if whose.has_name(name)}
    validity = _validity(reader, collector, table, drops, _offload(table, buffer, release))
    found = Analysis(
        source, reader, table, known, collector.aside, collector.records, collector.wire_bytes, collector.cut,
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
    lacking = sum(int(lines.ways(table, name, table.numbers).sum()) for name in ("missing_bytes", "unseen_bytes"))
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
    """The token of one of our captures that lacks its end. Packets truncated by a snap length say nothing."""
    seen = [text.removeprefix(SENTINEL).decode("ascii", "replace").split() for text in sentinels]
    for comment in reader.comments:
        with suppress(ValueError, TypeError, KeyError):
            about = json.loads(comment)
            token = str(about["sentinel"]["token"]) if "cloudbench_capture" in about else ""
            if token and [token, "end"] not in seen and all(len(words) > 1 for words in seen):
                return token
    return None


def _named(counts: Counter[str]) -> str:
    """The names, most frequent first."""
    most = counts.most_common()
    rest = len(most) - _MANY_NAMES
    return ", ".join(f"{count:,} {name}" for name, count in most[:_MANY_NAMES]) + (
        f" and {rest} kinds" if rest > 0 else ""
    )


def _seen_twice(table: FlowTable) -> int:
    """The TCP packets whose payload is repeated within a millisecond, if there are many.

    A sender retransmits after a round trip at the earliest, but a mirror port, or the interface "any", shows each
    packet twice.
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
    """Returns why sizes are not those on the wire, if they are not. Also fills in each side's ``mss_bytes``."""
    import numpy as np

    packets = table.packets
    places = np.flatnonzero((packets.flags[table.order] & SYN) > 0)  # in the order of flows
    owners = np.searchsorted(table.starts, places, "right") - 1
    rows = table.order[places]
    said = streams.segment_limits(buffer, packets.offset[rows], packets.header[rows], release)
    is_own = np.zeros(len(table.starts) - 1, bool)
    is_own[table.numbers] = True
    chosen = (said >= 0) & is_own[owners]
    # What one end accepts limits what the other sends.
    table.limit(table.up[rows[chosen]].astype(np.int64), owners[chosen], said[chosen])
    own = table.numbers[table.who.is_tcp[table.numbers]]
    limits, largest = lines.ways(table, "mss_bytes", own), lines.ways(table, "largest_payload_bytes", own)
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
