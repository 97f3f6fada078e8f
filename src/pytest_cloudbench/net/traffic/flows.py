"""Grouping of packets into flows: which end is the client, and where one connection ends and the next begins.

A flow is a pair of UDP endpoints or one TCP connection. Flows are kept as columns, because a capture may have very many
flows of which few are ever looked at individually.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.counts import COUNTED, count_all, judge_late_packets
from pytest_cloudbench.net.traffic.datagrams import Datagrams
from pytest_cloudbench.net.traffic.endpoints import find_distinct
from pytest_cloudbench.net.traffic.packets import ACK, FIN, RST, SYN, Address, Packets, Pairs
from pytest_cloudbench.net.traffic.table import BY, FlowTable, Times, Who

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_DATAGRAM_COUNTS = (
    "packets", "wire_bytes", "payload_bytes", "largest_payload_bytes", "first_payload_ns", "last_payload_ns",
)  # fmt: skip


def group_flows(
    packets: Packets, pairs: Pairs, clients: Collection[Address] = (), datagrams: Datagrams | None = None
) -> FlowTable:
    """Group packets into a table of flows, and count them.

    Args:
        packets: all packets.
        pairs: the pairs of endpoints that ``packets.pair`` refers to.
        clients: the client's addresses, if known. Its direction is up, and flows without it are foreign.
        datagrams: counts of UDP packets, if ``packets`` does not have all of them.
    """
    import numpy as np

    flow_number, late_rows, late_flows = _number_connections(packets)
    count = int(flow_number.max()) + 1 if len(flow_number) else 0
    first_row = _find_first_rows(flow_number, count)
    ends = pairs.select(packets.pair[first_row])
    is_client = np.ones(len(pairs.addresses), bool)
    if clients:
        is_client[:] = [address in clients for address in pairs.addresses]
    high_is_client, evidence = _find_clients(packets, ends, flow_number, first_row, is_client if clients else None)
    is_own = is_client[ends.low] | is_client[ends.high]
    new_order = np.lexsort((first_row, ~is_own))  # own flows first, each kind in the order of first packets
    if (new_order[1:] < new_order[:-1]).any():
        renumbered: Any = np.empty(count, np.int32)
        renumbered[new_order] = np.arange(count)
        flow_number, late_flows = renumbered[flow_number], renumbered[late_flows]
        ends = ends.select(new_order)
        high_is_client = high_is_client[new_order]
        evidence = evidence[new_order]
    order, starts = _sort_by_flow(flow_number, count)
    up = packets.from_high == high_is_client[flow_number]
    who = Who(
        ends.is_tcp,
        np.where(high_is_client, ends.high, ends.low), np.where(high_is_client, ends.high_port, ends.low_port),
        np.where(high_is_client, ends.low, ends.high), np.where(high_is_client, ends.low_port, ends.high_port),
        evidence, pairs.addresses,
    )  # fmt: skip
    sums = {name: np.zeros((2, count), np.int64) for name in COUNTED} | {"mss_bytes": np.full((2, count), -1)}
    numbers, own_count, verdicts = np.arange(count), int(is_own.sum()), np.zeros(len(packets), np.uint8)
    table = FlowTable(
        packets, who, Times(count), sums, order, starts.tolist(), up, verdicts, numbers[:own_count], numbers[own_count:]
    )
    count_all(table)
    if len(late_rows):
        judge_late_packets(table, late_rows, flow_number[late_rows], late_flows)
    if datagrams is not None and count:
        _count_datagrams(table, datagrams)
    return table


def _find_first_rows(number: Any, count: int) -> Any:
    """Return the first row of each of ``count`` numbers."""
    import numpy as np

    first_row = np.zeros(count, np.int64)
    first_row[number[::-1]] = np.arange(len(number))[::-1]  # the last assignment stays
    return first_row


def _sort_by_flow(number: Any, count: int) -> tuple[Any, Any]:
    """Return rows grouped by flow, each group in file order, and the start of each group."""
    import numpy as np

    keys = number.astype(np.uint16) if count <= 1 << 16 else number  # numpy sorts 16 bits by radix sort
    order = np.arange(len(number)) if count == 1 else np.argsort(keys, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(number, minlength=count), out=starts[1:])
    return order.astype(np.uint32), starts


def _count_datagrams(table: FlowTable, datagrams: Datagrams) -> None:
    """Replace the counts of UDP flows by those of all their packets, because the table has only a few of them."""
    import numpy as np

    flows = np.flatnonzero(~table.who.is_tcp)
    first_rows = table.order[np.asarray(table.starts)[flows]]
    client_is_high = table.up[first_rows] == table.packets.from_high[first_rows]
    low = table.packets.pair[first_rows].astype(np.int64) * 2
    senders = np.stack((low + client_is_high, low + ~client_is_high))
    for name in _DATAGRAM_COUNTS:
        table.sums[name][:, flows] = datagrams.get_counts(name, senders)
    table.sums["unique_bytes"][:, flows] = datagrams.get_counts("payload_bytes", senders)
    table.times.first_ns[flows] = datagrams.get_counts("first_ns", senders).min(0)
    table.times.last_ns[flows] = datagrams.get_counts("last_ns", senders).max(0)
    table.udp_turns = np.zeros(len(table.who.is_tcp), np.int64)
    table.udp_turns[flows] = datagrams.get_counts("turns", senders[0])


# --- one connection or two ---


def _number_connections(packets: Packets) -> tuple[Any, Ints, Any]:
    """Return the flow number of each packet. A SYN may begin a new connection of the same pair.

    As in tshark 4.0, it does so if its sequence number differs from its sender's initial one. With the same number, it
    is a repeated SYN, even after FIN or RST. Unlike in tshark, late packets belong to the connection before: their rows
    are returned, and the flow in whose time each of them came.
    """
    import numpy as np

    flow_number, nothing = packets.pair.copy(), np.zeros(0, np.int64)
    syns = np.flatnonzero((packets.flags & (SYN | ACK)) == SYN)
    if not len(syns):
        return flow_number, nothing, nothing
    first = _find_first_rows(flow_number, int(flow_number.max()) + 1)
    reused = find_distinct(flow_number[syns[syns != first[flow_number[syns]]]])
    if not len(reused):
        return flow_number, nothing, nothing
    next_number, late_rows, late_flows = len(first), [nothing], [nothing]
    order, starts = _sort_by_flow(flow_number, next_number)
    for pair in reused.tolist():
        rows = order[starts[pair] : starts[pair + 1]]
        columns = (packets.flags, packets.seq, packets.ack, packets.payload, packets.from_high)
        begins, late = _find_connection_starts(*(column[rows].tolist() for column in columns))
        later = np.searchsorted(begins, np.arange(len(rows)), "right")  # number of connections begun after the first
        if late:
            late_rows.append(rows[late].astype(np.int64))
            late_flows.append(next_number - 1 + later[late])
            later[late] -= 1
        flow_number[rows] = np.where(later > 0, next_number - 1 + later, pair)
        next_number += len(begins)
    used = np.zeros(next_number, np.int64)
    used[flow_number] = 1
    numbers = np.cumsum(used) - 1
    return numbers[flow_number].astype(np.int32), np.concatenate(late_rows), numbers[np.concatenate(late_flows)]


class _Connection:
    """The sequence numbers of one connection, of both sides: the initial one, and the next after all packets so far."""

    __slots__ = ("first", "following")

    def __init__(self) -> None:
        self.first: list[int | None] = [None, None]
        self.following = [0, 0]

    def add(self, side: bool, flags: int, seq: int, ack: int, size: int) -> None:
        """Add a packet. ``size`` is the number of sequence numbers that it takes."""
        first = seq if flags & SYN else (seq - 1) & 0xFFFFFFFF
        if self.first[side] is None or (flags & SYN and self.first[side] != first):
            self.first[side] = self.following[side] = first
        if self.first[not side] is None and flags & ACK:
            self.first[not side] = self.following[not side] = (ack - 1) & 0xFFFFFFFF
        for number, is_other in ((seq + size, side), *(((ack, not side),) if flags & ACK else ())):
            if (number - self.following[is_other]) & 0xFFFFFFFF < 1 << 31:
                self.following[is_other] = number & 0xFFFFFFFF

    def fits(self, side: bool, flags: int, seq: int, ack: int) -> bool:
        """Return whether a packet has a sequence number and an acknowledgement of this connection, or opens a side."""
        is_opening = flags & SYN and self.first[side] is None
        return (is_opening or self._covers(seq, side)) and (not flags & ACK or self._covers(ack, not side))

    def _covers(self, number: int, side: bool) -> bool:
        first = self.first[side]
        return first is not None and (number - first) & 0xFFFFFFFF <= (self.following[side] - first) & 0xFFFFFFFF


def _find_connection_starts(
    flags: list[int], seq: list[int], ack: list[int], payload: list[int], side: list[bool]
) -> tuple[list[int], list[int]]:
    """Return the rows where new connections begin, without the first, and those of late packets of the one before.

    Late packets are repetitions, and the answer of a server that still holds the connection of a restarted client.
    """
    begins, late = list[int](), list[int]()
    before, current = _Connection(), _Connection()
    for row, (flag, number, acked, size, sender) in enumerate(zip(flags, seq, ack, payload, side, strict=True)):
        following = current.following
        if number == following[sender] and acked == following[not sender] and not flag & (SYN | FIN | RST):
            following[sender] = (number + size) & 0xFFFFFFFF  # an ordinary packet, as nearly all are
            continue
        opening = flag & (SYN | ACK)
        if opening == SYN and current.first[sender] not in (None, number):
            begins.append(row)
            before, current = current, _Connection()
        ends = (sender, flag, number, acked)
        if opening != SYN and begins and before.fits(*ends) and not current.fits(*ends):
            late.append(row)
            continue
        current.add(*ends, size + bool(flag & SYN) + bool(flag & FIN))
    return begins, late


# --- who is the client ---


def _find_clients(packets: Packets, pairs: Pairs, flow_number: Any, first_row: Any, is_client: Any) -> tuple[Any, Any]:
    """Return for each flow whether the high endpoint is the client, and the evidence as an index into ``BY``.

    ``is_client`` tells for each address whether it is one of the chosen client's, and is None without a chosen client.
    """
    import numpy as np

    count = len(pairs.low)
    is_high_client, is_opened = np.zeros(count, bool), np.zeros(count, bool)
    opening = packets.flags & (SYN | ACK)
    for flags, sender_is_client in ((SYN | ACK, False), (SYN, True)):  # a SYN is better evidence, so it overwrites
        rows = np.flatnonzero(opening == flags)[::-1]
        flows = flow_number[rows]
        is_high_client[flows] = packets.from_high[rows] == sender_is_client
        is_opened[flows] = True
    # Without a SYN, a well-known port is the server's. Otherwise the client is the end with more connections opened
    # elsewhere, or the sender of the first packet.
    connections = np.bincount(
        np.where(is_high_client, pairs.high, pairs.low)[is_opened], minlength=len(pairs.addresses)
    )
    low_known, high_known = pairs.low_port < 1024, pairs.high_port < 1024
    busy_low, busy_high = connections[pairs.low], connections[pairs.high]
    conditions = [is_opened, low_known != high_known, busy_low != busy_high]
    answers = [is_high_client, low_known, busy_high > busy_low]
    evidence = np.select(
        conditions, [BY.index(name) for name in ("syn", "port", "other flows")], BY.index("first packet")
    )
    is_high_client = np.select(conditions, answers, packets.from_high[first_row])
    if is_client is not None:
        is_decided = is_client[pairs.low] != is_client[pairs.high]
        is_high_client[is_decided], evidence[is_decided] = is_client[pairs.high][is_decided], BY.index("option")
    return is_high_client, evidence
