"""Packets into flows: who is the client, where one connection ends and the next begins, and what each flow carried.

What may live here: grouping and counting. A flow is a pair of endpoints; for TCP also one incarnation of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic import resent, sequence
from pytest_cloudbench.traffic.packets import ACK, FIN, RST, SYN, TCP, Address, Packets, Pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

__all__ = ["Flow", "FlowTable", "Side", "group"]

_CHUNK_ROWS = 1 << 17
"""Packets whose sequence numbers are worked out together: few enough for the processor's cache."""


@dataclass(slots=True)
class Side:
    """One direction of a flow. Times are nanoseconds since 1970; None means that there was none.

    Attributes:
        packets, wire_bytes: all packets, as whole frames.
        payload_bytes: of TCP or UDP, whatever was sent twice counted twice.
        unique_bytes: the union of the ranges of sequence numbers; for UDP the payload.
        missing_bytes: holes in that union: bytes that were sent and are not in the capture.
        unseen_bytes: bytes beyond it that the other side acknowledged all the same.
        syns: segments with SYN and without ACK. syn_acks: with both.
        fins, resets: segments with FIN, with RST.
        retransmissions: tshark's ``tcp.analysis.retransmission``: with fast and spurious ones.
        fast, spurious, out_of_order, keep_alives: parts of it, and what is none.
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


@dataclass(slots=True)
class Flow:
    """One connection, or one pair of UDP endpoints. ``up`` is what the client sent.

    Attributes:
        number: from 0, in the order of the first packet.
        protocol: 6 is TCP, 17 is UDP.
        client, client_port, server, server_port: the two ends.
        client_by: how it is known which end is the client: ``option``, ``syn``, ``port`` or ``first packet``.
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
        """Whether it is TCP; else it is UDP."""
        return self.protocol == TCP


@dataclass(slots=True)
class FlowTable:
    """Flows, and which packets they have.

    Attributes:
        packets: columns in the order of the file.
        flows: in the order of their first packet.
        foreign: flows that the chosen client has no part in; their numbers follow those of ``flows``.
        order: rows of ``packets``, grouped by flow number, in the order of the file.
        starts: where in ``order`` each flow begins, and at the end the number of packets.
        up: for each row of ``packets``, whether the client sent it.
        verdicts: for each row what ``resent.judge`` says.
    """

    packets: Packets
    flows: list[Flow]
    foreign: list[Flow]
    order: NDArray[np.uint32]
    starts: list[int]
    up: NDArray[np.bool_]
    verdicts: NDArray[np.uint8]

    def rows(self, flow: Flow) -> NDArray[np.uint32]:
        """The rows of a flow's packets, in the order of the file."""
        return self.order[self.starts[flow.number] : self.starts[flow.number + 1]]


def group(packets: Packets, pairs: list[Pair], clients: Collection[Address] = ()) -> FlowTable:
    """Find the flows.

    Args:
        packets: all packets.
        pairs: what ``packets.pair`` points to.
        clients: the client's addresses, where they are known: it sends up, and flows without it are foreign.
    """
    import numpy as np

    number: Any = _incarnations(packets)
    count = int(number.max()) + 1 if len(number) else 0
    pair_of = np.zeros(count, np.int64)
    pair_of[number] = packets.pair
    order, starts = _sorted(number, count)
    high_is_client, why = _clients(packets, [pairs[pair] for pair in pair_of], number, order, starts, clients)
    own = np.array([not clients or pairs[p].low in clients or pairs[p].high in clients for p in pair_of], bool)
    first_row = order[starts[:-1]] if count else np.zeros(0, np.int64)
    place = np.lexsort((first_row, ~own))  # own flows first, each kind in the order of its first packet
    renumbered: Any = np.empty(count, np.int32)
    renumbered[place] = np.arange(count)
    number = renumbered[number] if count else np.asarray(number)
    up = packets.from_high == high_is_client[place][number] if count else np.zeros(0, bool)
    order, starts = _sorted(number, count)
    flows = []
    for new, old in enumerate(place.tolist()):
        pair = pairs[int(pair_of[old])]
        ends = [(pair.low, pair.low_port), (pair.high, pair.high_port)]
        mine, theirs = ends[::-1] if high_is_client[old] else ends
        times = packets.time_ns[order[starts[new] : starts[new + 1]]]
        flows.append(Flow(new, pair.protocol, *mine, *theirs, why[old], int(times.min()), int(times.max())))
    owned = int(own.sum())
    verdicts = np.zeros(len(packets), np.uint8)
    table = FlowTable(packets, flows[:owned], flows[owned:], order, starts.tolist(), up, verdicts)
    for begin, end in _chunks(table.starts):
        if table.starts[end] - table.starts[begin] > 2 * _CHUNK_ROWS:
            for flow in flows[begin:end]:
                _count_long(table, flow)
        else:
            _count(table, flows, begin, end)
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
    """A flow's number for each packet: its pair's, unless a later SYN began a new connection of the same pair.

    As tshark 4.0 has it: a SYN begins a new connection when its sequence number is not the one that its sender began
    with. With the same number it is the same SYN again, also after FIN or RST.
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


def _clients(
    packets: Packets, pairs: list[Pair], number: Any, order: Any, starts: Any, clients: Collection[Address]
) -> tuple[Any, list[str]]:
    """For each flow whether the high endpoint is the client, and how that is known."""
    import numpy as np

    count = len(pairs)
    high, why = np.zeros(count, bool), [""] * count
    for flags, sender_is_client in ((SYN | ACK, False), (SYN, True)):  # a SYN says more, so it comes last
        rows = np.flatnonzero((packets.flags & (SYN | ACK)) == flags)[::-1]
        flows = number[rows]
        high[flows] = packets.from_high[rows] == sender_is_client
        for flow in np.unique(flows).tolist():
            why[flow] = "syn"
    busy = Counter(pair.high if high[flow] else pair.low for flow, pair in enumerate(pairs) if why[flow])
    for flow, pair in enumerate(pairs):
        if (pair.low in clients) != (pair.high in clients):
            high[flow], why[flow] = pair.high in clients, "option"
        elif not why[flow]:
            high[flow], why[flow] = _guess(pair, busy, first_from_high=bool(packets.from_high[order[starts[flow]]]))
    return high, why


def _guess(pair: Pair, busy: Counter[Address], *, first_from_high: bool) -> tuple[bool, str]:
    """Without a SYN: the end with a well-known port is the server; else who is a client elsewhere, or spoke first."""
    low_known, high_known = pair.low_port < 1024, pair.high_port < 1024
    if low_known != high_known:
        return low_known, "port"
    if busy[pair.low] != busy[pair.high] and pair.low != pair.high:
        return busy[pair.high] > busy[pair.low], "other flows"
    return first_from_high, "first packet"


# --- what each flow carried ---


def _chunks(starts: list[int]) -> Iterator[tuple[int, int]]:
    """(first flow, flow after the last) of groups of flows with not too many packets together."""
    begin = 0
    for flow in range(1, len(starts)):
        if starts[flow] - starts[begin] > _CHUNK_ROWS and flow - 1 > begin:
            yield begin, flow - 1
            begin = flow - 1
    if len(starts) > 1:
        yield begin, len(starts) - 1


def _count(table: FlowTable, flows: list[Flow], begin: int, end: int) -> None:
    """Fill in what the flows ``begin`` to ``end`` carried."""
    import numpy as np

    packets, starts = table.packets, table.starts
    rows: Any = table.order[starts[begin] : starts[end]]
    if len(rows) == len(packets) and len(flows) == 1:
        rows = slice(None)  # one flow: nothing to pick
    group = np.repeat(np.arange(begin, end), np.diff(starts[begin : end + 1]))
    side = ~table.up[rows]
    seq, ack, flags = packets.seq[rows], packets.ack[rows], packets.flags[rows]
    payload, time_ns, wire = packets.payload[rows].astype(np.int64), packets.time_ns[rows], packets.wire[rows]
    marks = ((flags >> 1) | flags) & 1
    tcp = np.array([flow.is_tcp for flow in flows[begin:end]])
    data = (payload > 0) | (marks > 0)
    start, next_seq = np.zeros(len(group), np.int64), np.zeros(len(group), np.int64)
    for which in (False, True):
        mine = np.flatnonzero(side == which)
        if not len(mine):
            continue
        own = group[mine]
        first = np.ones(len(mine), bool)
        first[1:] = own[1:] != own[:-1]
        begins = np.flatnonzero(first)
        start[mine] = sequence.unwrap(seq[mine], first)
        next_seq[mine] = start[mine] + payload[mine] + marks[mine]
        sums = _Sums(own, begins, payload[mine], wire[mine], flags[mine], time_ns[mine])
        union, holes = sequence.covered(*_ranges(own, start[mine] + (flags[mine] >> 1 & 1), payload[mine]))
        sums.write(flows, tcp, begin, union, holes, is_down=which)
        reach = dict(zip(own[begins].tolist(), np.maximum.reduceat(next_seq[mine], begins).tolist(), strict=True))
        heard = np.flatnonzero((side != which) & ((flags & (ACK | RST)) == ACK))
        for flow, acked in _acknowledged(group[heard], ack[heard], own[begins], seq[mine][begins]):
            (flows[flow].down if which else flows[flow].up).unseen_bytes = max(0, acked - reach[flow])
    if not tcp.any():
        return
    doubtful = sequence.suspicious(group, side, start, next_seq, payload, seq, ack, data=data)
    for flow in np.unique(group[doubtful]).tolist():
        if flows[flow].is_tcp:
            _judge(table, flows[flow])
    _handshakes(table, flows[begin:end])


def _count_long(table: FlowTable, flow: Flow) -> None:
    """The same for one flow with many packets, part after part: columns of all of them would take too much memory."""
    packets, rows = table.packets, table.rows(flow)
    reaches = {True: sequence.Reach(), False: sequence.Reach()}
    for begin in range(0, len(rows), _CHUNK_ROWS):
        part = rows[begin : begin + _CHUNK_ROWS]
        for way, side in ((True, flow.up), (False, flow.down)):
            mine = part[table.up[part] == way]
            flags, payload = packets.flags[mine], packets.payload[mine].astype("int64")
            _add(side, flags, payload, packets.wire[mine], packets.time_ns[mine])
            if flow.is_tcp:
                reaches[way].add(packets.seq[mine], flags, payload)
        for way in (True, False) if flow.is_tcp else ():
            theirs = part[(table.up[part] != way) & ((packets.flags[part] & (ACK | RST)) == ACK)]
            reaches[way].acknowledged(packets.ack[theirs])
    for way, side in ((True, flow.up), (False, flow.down)):
        reach = reaches[way]
        side.unique_bytes = reach.unique_bytes if flow.is_tcp else side.payload_bytes
        side.missing_bytes, side.unseen_bytes = reach.missing_bytes, reach.unseen_bytes
    if flow.is_tcp:
        _judge(table, flow)
        _handshakes(table, [flow])


def _add(side: Side, flags: Any, payload: Ints, wire: Any, time_ns: Ints) -> None:
    """Some more packets of one direction."""
    import numpy as np

    side.packets += len(flags)
    side.wire_bytes += int(wire.sum(dtype=np.int64))
    side.payload_bytes += int(payload.sum())
    opening = flags & (SYN | ACK)
    side.syns += int((opening == SYN).sum())
    side.syn_acks += int((opening == SYN | ACK).sum())
    side.fins += int((flags & FIN > 0).sum())
    side.resets += int((flags & RST > 0).sum())
    times = time_ns[payload > 0]
    if len(times):
        first, last = int(times.min()), int(times.max())
        side.largest_payload_bytes = max(side.largest_payload_bytes, int(payload.max()))
        side.first_payload_ns = first if side.first_payload_ns is None else min(side.first_payload_ns, first)
        side.last_payload_ns = last if side.last_payload_ns is None else max(side.last_payload_ns, last)


def _acknowledged(own: Ints, ack: Any, flows: Ints, base: Any) -> Iterator[tuple[int, int]]:
    """(flow, how far acknowledgements reach from its base) of each flow that has some, and a base."""
    import numpy as np

    if not len(own):
        return
    first = np.ones(len(own), bool)
    first[1:] = own[1:] != own[:-1]
    begins = np.flatnonzero(first)
    furthest = np.maximum.reduceat(sequence.unwrap(ack, first), begins)
    place = np.searchsorted(flows, own[begins])
    place = np.minimum(place, len(flows) - 1)
    known = flows[place] == own[begins]
    ahead = (ack[begins] - base[place]).view(np.int32).astype(np.int64) + furthest
    yield from zip(own[begins][known].tolist(), ahead[known].tolist(), strict=True)


def _ranges(own: Ints, start: Ints, payload: Ints) -> tuple[Any, Any, Any, Any]:
    """The ranges of payload, with an empty one for groups without any, so that each group has its place."""
    import numpy as np

    has = payload > 0
    first = np.ones(len(own), bool)
    first[1:] = own[1:] != own[:-1]
    begins = np.flatnonzero(first)
    bare = np.add.reduceat(has, begins) == 0
    has[begins[bare]] = True
    kept = own[has]
    first = np.ones(len(kept), bool)
    first[1:] = kept[1:] != kept[:-1]
    return kept, first, start[has], payload[has]


class _Sums:
    """Counts of one direction for several flows."""

    def __init__(self, own: Ints, begins: Ints, payload: Ints, wire: Any, flags: Any, time_ns: Ints) -> None:
        import numpy as np

        self.flows = own[begins]
        add: Any = np.add.reduceat
        self.packets = np.diff(np.append(begins, len(own)))
        self.wire_bytes = add(wire.astype(np.int64), begins)
        self.payload_bytes = add(payload, begins)
        opening = flags & (SYN | ACK)
        self.syns = add((opening == SYN).astype(np.int64), begins)
        self.syn_acks = add((opening == SYN | ACK).astype(np.int64), begins)
        self.fins = add((flags & FIN).astype(np.int64), begins)
        self.resets = add((flags >> 2 & 1).astype(np.int64), begins)
        self.largest_payload_bytes = np.maximum.reduceat(payload, begins)
        has = payload > 0
        far = np.iinfo(np.int64)
        self.first_payload_ns = np.minimum.reduceat(np.where(has, time_ns, far.max), begins)
        self.last_payload_ns = np.maximum.reduceat(np.where(has, time_ns, far.min), begins)

    def write(self, flows: list[Flow], tcp: Any, begin: int, union: Ints, holes: Ints, *, is_down: bool) -> None:
        """Into the flows' sides."""
        names = [name for name in self.__dict__ if name != "flows"]
        columns = {name: getattr(self, name).tolist() for name in names}
        for place, flow in enumerate(self.flows.tolist()):
            side = flows[flow].down if is_down else flows[flow].up
            for name in names:
                setattr(side, name, columns[name][place])
            if not side.payload_bytes:
                side.first_payload_ns = side.last_payload_ns = None
            is_tcp = bool(tcp[flow - begin])
            side.unique_bytes = int(union[place]) if is_tcp else side.payload_bytes
            side.missing_bytes = int(holes[place]) if is_tcp else 0


def _segments(table: FlowTable, rows: Any) -> Iterator[resent.Segments]:
    """These packets, in parts."""
    packets = table.packets
    for begin in range(0, len(rows), _CHUNK_ROWS):
        part = rows[begin : begin + _CHUNK_ROWS]
        yield resent.Segments(
            packets.time_ns[part], ~table.up[part], packets.seq[part], packets.ack[part], packets.flags[part],
            packets.window[part], packets.payload[part],
        )  # fmt: skip


def _judge(table: FlowTable, flow: Flow) -> None:
    """Step through a flow in which something may have been sent twice."""
    import numpy as np

    rows = table.rows(flow)
    verdicts = resent.judge(_segments(table, rows))
    table.verdicts[rows] = verdicts
    up = table.up[rows]
    for side, mine in ((flow.up, up), (flow.down, ~up)):
        counts = np.bincount(verdicts[mine], minlength=6).tolist()
        side.retransmissions = sum(counts[1:4])
        side.fast, side.spurious, side.out_of_order, side.keep_alives = counts[2:6]


def _handshakes(table: FlowTable, flows: list[Flow]) -> None:
    """Times of handshakes."""
    packets = table.packets
    for flow in flows:
        if flow.is_tcp and (flow.up.syns or flow.down.syns):
            rows = table.rows(flow)[:64]
            flow.initial_rtt_ns = sequence.initial_round_trip_ns(
                packets.time_ns[rows].tolist(), packets.flags[rows].tolist()
            )
