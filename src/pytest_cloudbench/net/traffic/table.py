"""A table of flows: columns that grouping makes and counting fills in, and flows as objects for those who ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.packets import TCP, UDP, Address, Packets

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Ints

NEVER = -(1 << 63)
"""Stands for a time that does not exist."""

_PICKED_ROWS = 1 << 19


@dataclass(slots=True)
class Side:
    """One direction of a flow. Times are nanoseconds since 1970; None means that there was none.

    Attributes:
        packets, wire_bytes: all packets, as whole frames.
        payload_bytes: of TCP or UDP; what was sent twice counts twice.
        unique_bytes: the union of the ranges of sequence numbers; for UDP the payload.
        missing_bytes: holes in that union: bytes that were sent and are not in the capture.
        unseen_bytes: bytes beyond the union that the other side nevertheless acknowledged.
        syns: segments with SYN and without ACK.
        syn_acks: segments with both.
        fins, resets: segments with FIN, with RST.
        retransmissions: tshark's ``tcp.analysis.retransmission``, including fast and spurious ones.
        fast, spurious: those among the retransmissions.
        out_of_order, keep_alives: not counted as retransmissions.
        largest_payload_bytes: of one packet.
        mss_bytes: the most that the *other* side accepts, from its SYN.
        first_payload_ns, last_payload_ns: the first and last packet with payload.
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


class InOrder:
    """Columns in the order of flows, one stretch of flows after another.

    Packets of one flow lie far apart in a file. So columns are gathered one at a time for many flows: the processor's
    cache can hold one column, but not all of them.
    """

    def __init__(self, order: Any, columns: Sequence[Any]) -> None:
        self._order, self._columns = order, columns
        self._first = self._end = 0
        self._picked: list[Any] = []

    def part(self, first: int, end: int) -> list[Any]:
        """The columns from one place in the order up to another."""
        if first < self._first or end > self._end:
            self._pick(first, max(end, min(first + _PICKED_ROWS, len(self._order))))
        return [column[first - self._first : end - self._first] for column in self._picked]

    def of(self, rows: Any) -> list[Any]:
        """The columns of these packets."""
        return [column[rows] for column in self._columns]

    def _pick(self, first: int, end: int) -> None:
        import numpy as np

        self._picked.clear()
        self._first, self._end = first, end
        rows, place = self._order[first:end].astype(np.int64), 0  # else each column would convert them
        # One allocation for all: large memory comes in huge pages, and faster.
        memory = np.empty(len(rows) * sum(column.itemsize for column in self._columns), np.uint8)
        for column in self._columns:
            size = len(rows) * column.itemsize
            picked = memory[place : place + size].view(column.dtype)
            self._picked.append(column.take(rows, out=picked, mode="clip"))
            place += size


@dataclass(slots=True)
class Flow:
    """One connection, or one pair of UDP endpoints. ``up`` is what the client sent.

    Attributes:
        number: from 0, in the order of the first packet.
        protocol: 6 is TCP, 17 is UDP.
        client, client_port, server, server_port: the two ends.
        client_by: how it is known which end is the client: one of ``BY``.
        first_ns, last_ns: times of the first and the last packet.
        up, down: what client and server sent.
        initial_rtt_ns: from the SYN to the end of the handshake.
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
        """Whether the flow is TCP; otherwise it is UDP."""
        return self.protocol == TCP


@dataclass(frozen=True, slots=True)
class Who:
    """The two ends of each flow, as columns. Addresses are indices into ``addresses``, which has each one once.

    ``client_by`` says how it is known which end is the client, as an index into ``BY``.
    """

    is_tcp: Any
    client: Ints
    client_port: Ints
    server: Ints
    server_port: Ints
    client_by: Ints
    addresses: Sequence[Address]


class Times:
    """When each flow was seen, as columns in nanoseconds. An ``initial_rtt_ns`` of ``NEVER`` means "not known"."""

    def __init__(self, count: int) -> None:
        import numpy as np

        far = np.iinfo(np.int64)
        self.first_ns, self.last_ns = np.full(count, far.max), np.full(count, far.min)
        self.initial_rtt_ns = np.full(count, NEVER)


@dataclass(slots=True)
class FlowTable:
    """Flows and their packets. Flows are numbered from 0, in the order of their first packet.

    Attributes:
        packets: columns in the order of the file.
        who, times: columns by the flows' numbers.
        sums: the counts of both sides by name, as columns: [0, number] is for what the client of a flow sent. An
            unknown MSS is -1. Times of payload are meaningless if there was none.
        order: rows of ``packets``, grouped by flow number, in the order of the file.
        starts: where in ``order`` each flow begins, and at the end the number of packets.
        up: for each row of ``packets``, whether the client sent it.
        verdicts: for each row, what ``resent.judge`` returned.
        numbers: of the flows in ``flows``.
        foreign_numbers: of the flows in ``foreign``.
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
    _made: dict[int, Flow] = field(default_factory=dict)
    _in_order: InOrder | None = field(init=False, default=None)

    @property
    def in_order(self) -> InOrder:
        """Times, numbers, acknowledgements, payload, wire bytes, flags and ``up`` of packets, in ``order``."""
        if self._in_order is None:
            each = self.packets
            columns = (each.time_ns, each.seq, each.ack, each.payload, each.wire, each.flags, self.up)
            self._in_order = InOrder(self.order, columns)
        return self._in_order

    @property
    def flows(self) -> list[Flow]:
        """In the order of their first packet."""
        return self.some(self.numbers)

    @property
    def foreign(self) -> list[Flow]:
        """Flows in which the chosen client takes no part."""
        return self.some(self.foreign_numbers)

    def rows(self, flow: Flow | int) -> NDArray[np.uint32]:
        """The rows of a flow's packets, in the order of the file."""
        number = flow if isinstance(flow, int) else flow.number
        return self.order[self.starts[number] : self.starts[number + 1]]

    def flow(self, number: int) -> Flow:
        """The flow with this number; the same object every time."""
        if number not in self._made:
            self._made.update(zip([number], self._make([number]), strict=True))
        return self._made[number]

    def some(self, numbers: Ints) -> list[Flow]:
        """The flows with these numbers."""
        made, wanted = self._made, numbers.tolist()
        missing = [number for number in wanted if number not in made]
        if missing:
            made.update(zip(missing, self._make(missing), strict=True))
        return [made[number] for number in wanted]

    def _make(self, numbers: list[int]) -> Iterator[Flow]:
        import numpy as np

        who, times, own = self.who, self.times, np.asarray(numbers)
        addresses = who.addresses
        initial = times.initial_rtt_ns[own]
        columns = (
            [TCP if each else UDP for each in who.is_tcp[own].tolist()],
            [addresses[place] for place in who.client[own].tolist()], who.client_port[own].tolist(),
            [addresses[place] for place in who.server[own].tolist()], who.server_port[own].tolist(),
            [BY[place] for place in who.client_by[own].tolist()],
            times.first_ns[own].tolist(), times.last_ns[own].tolist(), self._sides(own, 0), self._sides(own, 1),
            listed(initial, initial != NEVER),
        )  # fmt: skip
        return map(Flow, numbers, *columns)

    def _sides(self, numbers: Ints, way: int) -> Iterator[Side]:
        """One direction of each flow."""
        columns = {each.name: self.sums[each.name][way][numbers] for each in fields(Side)}
        said = {"mss_bytes": columns["mss_bytes"] >= 0}
        said["first_payload_ns"] = said["last_payload_ns"] = columns["payload_bytes"] > 0
        lists = (listed(column, said[name]) if name in said else column.tolist() for name, column in columns.items())
        return map(Side, *lists)

    def limit(self, way: Ints, numbers: Ints, mss_bytes: Ints) -> None:
        """Record the MSS of directions (0: what the client sends) of these flows. If one occurs twice, the last value
        counts.
        """
        limits = self.sums["mss_bytes"]
        limits[way, numbers] = mss_bytes
        for number, flow in self._made.items():
            for side, most in zip((flow.up, flow.down), limits[:, number].tolist(), strict=True):
                side.mss_bytes = most if most >= 0 else None


def listed(column: Any, said: Any) -> list[Any]:
    """A column's values as Python values, with None for missing ones."""
    found: list[Any] = column.tolist()
    for place in (~said).nonzero()[0].tolist():
        found[place] = None
    return found


BY = ("syn", "option", "port", "other flows", "first packet")
"""How it is known which end is the client."""
