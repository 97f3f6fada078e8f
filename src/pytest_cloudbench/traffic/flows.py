"""Groups packets into flows: which end is the client, and where one connection ends and the next begins.

What may live here: grouping, and flows as objects. A flow is a pair of endpoints; for TCP it is one connection between
them. What is known of flows is kept in columns: a capture may have very many flows, and most are never looked at one by
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic.counts import COUNTED, NEVER, InOrder, Side, count_all
from pytest_cloudbench.traffic.packets import ACK, SYN, TCP, UDP, Address, Packets, Pairs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

__all__ = ["BY", "Flow", "FlowTable", "Side", "Times", "Who", "group", "listed"]


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


def group(packets: Packets, pairs: Pairs, clients: Collection[Address] = ()) -> FlowTable:
    """Find the flows.

    Args:
        packets: all packets.
        pairs: what ``packets.pair`` points to.
        clients: the client's addresses, if known. The client sends up, and flows without it are foreign.
    """
    import numpy as np

    number: Any = _incarnations(packets)
    count = int(number.max()) + 1 if len(number) else 0
    pair_of = np.zeros(count, np.int64)
    pair_of[number] = packets.pair
    order, starts = _sorted(number, count)
    first_row, ends = order[starts[:-1]], pairs.some(pair_of)
    is_client = np.array([not clients or each in clients for each in pairs.addresses], bool)
    high_is_client, why = _clients(packets, ends, number, first_row, is_client if clients else None)
    own = is_client[ends.low] | is_client[ends.high]
    place = np.lexsort((first_row, ~own))  # own flows first, each kind in the order of its first packet
    if (place[1:] < place[:-1]).any():
        renumbered: Any = np.empty(count, np.int32)
        renumbered[place] = np.arange(count)
        number, ends, high_is_client, why = renumbered[number], ends.some(place), high_is_client[place], why[place]
        order, starts = _sorted(number, count)
    up = packets.from_high == high_is_client[number]
    who = Who(
        ends.is_tcp,
        np.where(high_is_client, ends.high, ends.low), np.where(high_is_client, ends.high_port, ends.low_port),
        np.where(high_is_client, ends.low, ends.high), np.where(high_is_client, ends.low_port, ends.high_port),
        why, pairs.addresses,
    )  # fmt: skip
    sums = {name: np.zeros((2, count), np.int64) for name in COUNTED} | {"mss_bytes": np.full((2, count), -1)}
    numbers, owned, verdicts = np.arange(count), int(own.sum()), np.zeros(len(packets), np.uint8)
    table = FlowTable(
        packets, who, Times(count), sums, order, starts.tolist(), up, verdicts, numbers[:owned], numbers[owned:]
    )
    count_all(table)
    return table


def _sorted(number: Any, count: int) -> tuple[Any, Any]:
    """Rows grouped by flow in the order of the file, and where each flow begins among them."""
    import numpy as np

    keys = number.astype(np.uint16) if count <= 1 << 16 else number  # numpy sorts 16 bits by radix
    order = np.arange(len(number)) if count == 1 else np.argsort(keys, kind="stable")
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(number, minlength=count), out=starts[1:])
    return order.astype(np.uint32), starts


# --- one connection or two ---


def _incarnations(packets: Packets) -> Any:
    """The flow number of each packet: its pair's, unless a later SYN began a new connection of the same pair.

    As in tshark 4.0, a SYN begins a new connection if its sequence number differs from the one its sender began with.
    With the same number it is a repeated SYN, even after FIN or RST.
    """
    import numpy as np

    number = packets.pair.copy()
    syns = np.flatnonzero((packets.flags & (SYN | ACK)) == SYN)
    if not len(syns):
        return number
    first = np.full(int(number.max()) + 1, -1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    again = np.unique(number[syns[syns != first[number[syns]]]])
    if not len(again):
        return number
    following = len(first)
    order, starts = _sorted(number, following)
    for pair in again.tolist():
        rows = order[starts[pair] : starts[pair + 1]]
        columns = (packets.flags, packets.seq, packets.ack, packets.from_high)
        begins = _begins(*(column[rows].tolist() for column in columns))
        later = np.searchsorted(begins, np.arange(len(rows)), "right")  # connections that began since the first
        number[rows] = np.where(later > 0, following - 1 + later, pair)
        following += len(begins)
    used = np.zeros(following, np.int64)
    used[number] = 1
    return (np.cumsum(used) - 1)[number].astype(np.int32)


def _begins(flags: list[int], seq: list[int], ack: list[int], side: list[bool]) -> list[int]:
    """Where, after the first packet, new connections begin."""
    found = []
    base: list[int | None] = [None, None]
    for row, (flag, here, acked, which) in enumerate(zip(flags, seq, ack, side, strict=True)):
        if flag & (SYN | ACK) == SYN and base[which] is not None and here != base[which]:
            found.append(row)
            base = [None, None]
        elif flag & (SYN | ACK) == SYN | ACK and base[which] is not None:
            base[which] = here
        if base[which] is None:
            base[which] = here if flag & SYN else (here - 1) & 0xFFFFFFFF
        if base[not which] is None and flag & ACK:
            base[not which] = (acked - 1) & 0xFFFFFFFF
    return found


# --- who is the client ---


BY = ("syn", "option", "port", "other flows", "first packet")
"""How it is known which end is the client."""


def _clients(packets: Packets, ends: Pairs, number: Any, first_row: Any, is_client: Any) -> tuple[Any, Any]:
    """For each flow, whether the high endpoint is the client, and how that is known, as an index into ``BY``.

    ``is_client`` says of each address whether it was chosen as a client's.
    """
    import numpy as np

    count = len(ends.low)
    high, opened = np.zeros(count, bool), np.zeros(count, bool)
    opening = packets.flags & (SYN | ACK)
    for flags, sender_is_client in ((SYN | ACK, False), (SYN, True)):  # a SYN is better evidence, so it comes last
        rows = np.flatnonzero(opening == flags)[::-1]
        flows = number[rows]
        high[flows] = packets.from_high[rows] == sender_is_client
        opened[flows] = True
    # Without a SYN: a well-known port is the server's; else the client is the end that is one elsewhere, or was first.
    busy = np.bincount(np.where(high, ends.high, ends.low)[opened], minlength=len(ends.addresses))
    low_known, high_known = ends.low_port < 1024, ends.high_port < 1024
    busy_low, busy_high = busy[ends.low], busy[ends.high]
    conditions = [opened, low_known != high_known, busy_low != busy_high]
    answers = [high, low_known, busy_high > busy_low]
    why = np.select(conditions, [BY.index(each) for each in ("syn", "port", "other flows")], BY.index("first packet"))
    high = np.select(conditions, answers, packets.from_high[first_row])
    if is_client is not None:
        chosen = is_client[ends.low] != is_client[ends.high]
        high[chosen], why[chosen] = is_client[ends.high][chosen], BY.index("option")
    return high, why
