"""A table of flows as columns, which grouping creates and counting fills in, with flows as objects on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic.endpoints import Addresses
from pytest_cloudbench.net.traffic.packets import TCP, UDP, Address, Packets
from pytest_cloudbench.net.traffic.resent import KEEP_ALIVE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

NEVER = -(1 << 63)
"""The value of a missing time."""

_GATHERED_ROWS = 1 << 19


@dataclass(slots=True)
class Side:
    """One direction of a flow. Times are nanoseconds since 1970, or None if there was no such packet.

    Attributes:
        packets, wire_bytes: number and total size of all frames.
        payload_bytes: TCP or UDP payload, with retransmissions.
        unique_bytes: size of the union of sequence number ranges, or of the payload for UDP.
        missing_bytes: holes in that union, and between it and SYN or FIN: bytes that were sent but not captured.
        unseen_bytes: acknowledged bytes beyond the union, even of a direction without any packet.
        syns: segments with SYN and without ACK.
        syn_acks: segments with SYN and ACK.
        fins, resets: segments with FIN, and with RST.
        retransmissions: tshark's ``tcp.analysis.retransmission``, including fast and spurious ones.
        fast, spurious: fast and spurious ones among the retransmissions.
        out_of_order, keep_alives: segments of these kinds, which do not count as retransmissions.
        largest_payload_bytes: the largest payload of one packet.
        mss_bytes: the largest payload that the *other* side accepts, from its SYN.
        first_payload_ns, last_payload_ns: times of the first and the last packet with payload that is no keep-alive.
    """

    packets: int = 0
    wire_bytes: int = 0
    payload_bytes: int = 0
    unique_bytes: int = 0
    missing_bytes: int = 0
    unseen_bytes: int = 0
    syns: int = 0
    syn_acks: int = 0
    fins: int = 0
    resets: int = 0
    retransmissions: int = 0
    fast: int = 0
    spurious: int = 0
    out_of_order: int = 0
    keep_alives: int = 0
    largest_payload_bytes: int = 0
    mss_bytes: int | None = None
    first_payload_ns: int | None = None
    last_payload_ns: int | None = None


def as_slice(rows: Any) -> Any:
    """Return rows as a slice if they are consecutive, so that columns need not be copied."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # they ascend
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


class InOrder:
    """Packet columns in the order of flows, gathered for one range of flows after another.

    Packets of one flow lie far apart in a file. Columns are therefore gathered one at a time for many flows, because
    the processor's cache can hold one column but not all of them.
    """

    def __init__(self, order: Any, columns: Sequence[Any]) -> None:
        self._order, self._columns = order, columns
        self._first = self._end = 0
        self._gathered: list[Any] = []

    def get_range(self, first: int, end: int) -> list[Any]:
        """Return the columns from one position in the order up to another."""
        if first < self._first or end > self._end:
            self._gather_columns(first, max(end, min(first + _GATHERED_ROWS, len(self._order))))
        return [column[first - self._first : end - self._first] for column in self._gathered]

    def get_rows(self, rows: Any) -> list[Any]:
        """Return the columns of these packets."""
        return [column[rows] for column in self._columns]

    def _gather_columns(self, first: int, end: int) -> None:
        import numpy as np

        self._gathered.clear()
        self._first, self._end = first, end
        if (np.diff(self._order[first:end]) == 1).all():  # a single flow, whose columns need not be copied
            rows = as_slice(self._order[first:end])
            self._gathered += [column[rows] for column in self._columns]
            return
        rows, start = self._order[first:end].astype(np.int64), 0  # converted once, not by each column
        # One allocation for all columns, because large memory comes in huge pages, which is faster.
        memory = np.empty(len(rows) * sum(column.itemsize for column in self._columns), np.uint8)
        for column in self._columns:
            size = len(rows) * column.itemsize
            gathered = memory[start : start + size].view(column.dtype)
            self._gathered.append(column.take(rows, out=gathered, mode="clip"))
            start += size


@dataclass(slots=True)
class Flow:
    """One TCP connection or one pair of UDP endpoints. ``up`` is the direction from the client.

    Attributes:
        number: from 0, in the order of the first packet.
        protocol: 6 is TCP, 17 is UDP.
        client, client_port, server, server_port: the two ends.
        client_by: the evidence for which end is the client, one of ``BY``.
        first_ns, last_ns: times of the first and the last packet.
        up, down: counts of what client and server sent.
        initial_rtt_ns: time from the SYN to the end of the handshake.
    """

    number: int
    protocol: int
    client: Address
    client_port: int
    server: Address
    server_port: int
    client_by: str
    first_ns: int
    last_ns: int
    up: Side = field(default_factory=Side)
    down: Side = field(default_factory=Side)
    initial_rtt_ns: int | None = None

    @property
    def is_tcp(self) -> bool:
        """True if the flow is TCP and not UDP."""
        return self.protocol == TCP


class Who(NamedTuple):
    """The two ends of each flow, as columns. Addresses are indices into ``addresses``, which has each one once.

    ``client_by`` is the evidence for which end is the client, as an index into ``BY``.
    """

    is_tcp: Any
    client: Ints
    client_port: Ints
    server: Ints
    server_port: Ints
    client_by: Ints
    addresses: Addresses


class Times:
    """Times of each flow, as columns in nanoseconds. An unknown ``initial_rtt_ns`` is ``NEVER``."""

    def __init__(self, count: int) -> None:
        import numpy as np

        limits = np.iinfo(np.int64)
        self.first_ns, self.last_ns = np.full(count, limits.max), np.full(count, limits.min)
        self.initial_rtt_ns = np.full(count, NEVER)


@dataclass(slots=True)
class FlowTable:
    """Flows and their packets. Flows are numbered from 0 in the order of their first packet.

    Attributes:
        packets: packet columns in file order.
        who, times: columns by flow number.
        sums: columns of counts by name. [0, number] counts what the client of a flow sent, and [1, number] the server.
            An unknown MSS is -1. Times of payload are meaningless if there was none, and ``NEVER`` if it was only that
            of keep-alives.
        order: rows of ``packets``, grouped by flow number, each group in file order.
        starts: the index in ``order`` at which each flow begins, followed by the number of packets.
        up: for each row of ``packets``, whether the client sent it.
        verdicts: for each row, the result of ``resent.judge_packets``.
        numbers: numbers of the flows in ``flows``.
        foreign_numbers: numbers of the flows in ``foreign``.
        udp_turns: turns of each UDP flow, or None if ``packets`` has all UDP packets, from which they can be counted.
    """

    packets: Packets
    who: Who
    times: Times
    sums: Mapping[str, Ints]
    order: NDArray[np.uint32]
    starts: list[int]
    up: NDArray[np.bool_]
    verdicts: NDArray[np.uint8]
    numbers: Ints
    foreign_numbers: Ints
    udp_turns: Ints | None = None
    _flows: dict[int, Flow] = field(default_factory=dict)
    _in_order: InOrder | None = field(init=False, default=None)

    @property
    def in_order(self) -> InOrder:
        """Times, sequence numbers, acknowledgements, payload, wire bytes, flags and ``up`` of packets, in ``order``."""
        if self._in_order is None:
            packets = self.packets
            columns = (packets.time_ns, packets.seq, packets.ack, packets.payload, packets.wire, packets.flags, self.up)
            self._in_order = InOrder(self.order, columns)
        return self._in_order

    @property
    def flows(self) -> list[Flow]:
        """All flows in the order of their first packet."""
        return self.select(self.numbers)

    @property
    def foreign(self) -> list[Flow]:
        """Flows that do not involve the chosen client."""
        return self.select(self.foreign_numbers)

    def rows(self, flow: Flow | int) -> NDArray[np.uint32]:
        """Return the rows of a flow's packets in file order."""
        number = flow if isinstance(flow, int) else flow.number
        return self.order[self.starts[number] : self.starts[number + 1]]

    def flow(self, number: int) -> Flow:
        """Return the flow with this number, always the same object."""
        if number not in self._flows:
            self._flows.update(zip([number], self._make_flows([number]), strict=True))
        return self._flows[number]

    def select(self, numbers: Ints) -> list[Flow]:
        """Return the flows with these numbers."""
        flows, selected = self._flows, numbers.tolist()
        missing = [number for number in selected if number not in flows]
        if missing:
            flows.update(zip(missing, self._make_flows(missing), strict=True))
        return [flows[number] for number in selected]

    def _make_flows(self, numbers: list[int]) -> Iterator[Flow]:
        import numpy as np

        who, times, selected = self.who, self.times, np.asarray(numbers)
        addresses = who.addresses
        initial_ns = times.initial_rtt_ns[selected]
        columns = (
            [TCP if is_tcp else UDP for is_tcp in who.is_tcp[selected].tolist()],
            [addresses[index] for index in who.client[selected].tolist()], who.client_port[selected].tolist(),
            [addresses[index] for index in who.server[selected].tolist()], who.server_port[selected].tolist(),
            [BY[index] for index in who.client_by[selected].tolist()],
            times.first_ns[selected].tolist(), times.last_ns[selected].tolist(),
            self._make_sides(selected, 0), self._make_sides(selected, 1),
            to_list(initial_ns, initial_ns != NEVER),
        )  # fmt: skip
        return map(Flow, numbers, *columns)

    def _make_sides(self, numbers: Ints, direction: int) -> Iterator[Side]:
        """Yield one direction of each flow."""
        columns = {column.name: self.sums[column.name][direction][numbers] for column in fields(Side)}
        is_present = {"mss_bytes": columns["mss_bytes"] >= 0}
        is_present |= dict.fromkeys(("first_payload_ns", "last_payload_ns"), self.has_payload_times(numbers, direction))
        lists = (
            to_list(column, is_present[name]) if name in is_present else column.tolist()
            for name, column in columns.items()
        )
        return map(Side, *lists)

    def has_payload_times(self, numbers: Ints, direction: int) -> Any:
        """Return which of these flows have times of payload in a direction."""
        sums = {name: self.sums[name][direction][numbers] for name in ("payload_bytes", "first_payload_ns")}
        return (sums["payload_bytes"] > 0) & (sums["first_payload_ns"] != NEVER)

    def has_data(self, rows: Any) -> Any:
        """Return which of these packets have payload. The byte that some keep-alives carry is none."""
        return (self.packets.payload[rows] > 0) & (self.verdicts[rows] != KEEP_ALIVE)

    def set_mss(self, directions: Ints, numbers: Ints, mss_bytes: Ints) -> None:
        """Record the MSS of directions of these flows, where 0 is the direction from the client.

        If a direction occurs twice, its last value counts.
        """
        limits = self.sums["mss_bytes"]
        limits[directions, numbers] = mss_bytes
        for number, flow in self._flows.items():
            for side, mss in zip((flow.up, flow.down), limits[:, number].tolist(), strict=True):
                side.mss_bytes = mss if mss >= 0 else None


def to_list(column: Any, is_present: Any) -> list[Any]:
    """Return a column as Python values, with None for missing ones."""
    values: list[Any] = column.tolist()
    for index in (~is_present).nonzero()[0].tolist():
        values[index] = None
    return values


BY = ("syn", "option", "port", "other flows", "first packet")
"""Kinds of evidence for which end is the client."""
