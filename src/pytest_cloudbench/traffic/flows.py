"""Packets into flows: who is the client, where one connection ends and the next begins, and what each flow carried.

What may live here: grouping and counting. A flow is a pair of endpoints; for TCP also one incarnation of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic import resent, sequence
from pytest_cloudbench.traffic.packets import ACK, FIN, RST, SYN, TCP, Address, Packets, Pair

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.traffic.records import Ints

__all__ = ["Flow", "FlowTable", "Side", "group", "in_one"]

_CHUNK_ROWS, _PART_ROWS = 1 << 15, 1 << 15
"""Packets of several flows, and of a long one, that are worked out together: few enough for the processor's cache."""
_HANDSHAKE_ROWS = 64


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
        sums: the sides' counts by their names, as columns: [0, number] is what the client of a flow sent.
    """

    packets: Packets
    flows: list[Flow]
    foreign: list[Flow]
    order: NDArray[np.uint32]
    starts: list[int]
    up: NDArray[np.bool_]
    verdicts: NDArray[np.uint8]
    sums: Mapping[str, Ints]

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
    if not count:
        return FlowTable(packets, [], [], number.astype(np.uint32), [0], packets.from_high, number.astype(np.uint8), {})
    pair_of = np.zeros(count, np.int64)
    pair_of[number] = packets.pair
    order, starts = _sorted(number, count)
    first_row = order[starts[:-1]]
    ends = [pairs[pair] for pair in pair_of.tolist()]
    high_is_client, why = _clients(packets, ends, number, first_row, clients)
    own = np.array([not clients or each.low in clients or each.high in clients for each in ends], bool)
    place = np.lexsort((first_row, ~own))  # own flows first, each kind in the order of its first packet
    if (place[1:] < place[:-1]).any():
        renumbered: Any = np.empty(count, np.int32)
        renumbered[place] = np.arange(count)
        number = renumbered[number]
        order, starts = _sorted(number, count)
    up = packets.from_high == high_is_client[place][number]
    verdicts = np.zeros(len(packets), np.uint8)
    sums = {name: np.zeros((2, count), np.int64) for name in _SUMS}
    table = FlowTable(packets, [], [], order, starts.tolist(), up, verdicts, sums)
    times = _Times(count)
    is_tcp = np.array([ends[old].protocol == TCP for old in place.tolist()], bool)
    for begin, end in _chunks(table.starts):
        if table.starts[end] - table.starts[begin] > 2 * _CHUNK_ROWS:
            for flow in range(begin, end):
                _count_long(table, flow, times, is_tcp=bool(is_tcp[flow]))
        else:
            _count(table, begin, end, times, is_tcp)
    columns = (
        place.tolist(),
        times.first.tolist(),
        times.last.tolist(),
        _sides(sums, 0),
        _sides(sums, 1),
        times.initial,
    )
    flows = [
        Flow(
            number, *_who(ends[old], is_high=bool(high_is_client[old])), why[old], first, last, up_side, down_side, rtt
        )
        for number, (old, first, last, up_side, down_side, rtt) in enumerate(zip(*columns, strict=True))
    ]
    owned = int(own.sum())
    table.flows += flows[:owned]
    table.foreign += flows[owned:]
    return table


def _who(pair: Pair, *, is_high: bool) -> tuple[int, Address, int, Address, int]:
    """Protocol, client and server."""
    protocol, low, low_port, high, high_port = pair
    return (protocol, high, high_port, low, low_port) if is_high else pair


class _Times:
    """Of each flow by its number."""

    def __init__(self, count: int) -> None:
        import numpy as np

        self.first, self.last = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.initial: list[int | None] = [None] * count


_SUMS = tuple(each.name for each in fields(Side) if each.name != "mss_bytes")


def _sides(sums: Mapping[str, Ints], way: int) -> list[Side]:
    """One direction of each flow."""
    import numpy as np

    columns: dict[str, list[int | None]] = {name: sums[name][way].tolist() for name in _SUMS}
    columns["mss_bytes"] = [None] * len(columns["packets"])
    for silent in np.flatnonzero(sums["payload_bytes"][way] == 0).tolist():
        columns["first_payload_ns"][silent] = columns["last_payload_ns"][silent] = None
    in_order: list[Any] = [columns[each.name] for each in fields(Side)]
    return list(map(Side, *in_order))


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
    packets: Packets, pairs: Sequence[Pair], number: Any, first_row: Any, clients: Collection[Address]
) -> tuple[Any, list[str]]:
    """For each flow whether the high endpoint is the client, and how that is known."""
    import numpy as np

    count = len(pairs)
    high, opened = np.zeros(count, bool), np.zeros(count, bool)
    opening = packets.flags & (SYN | ACK)
    for flags, sender_is_client in ((SYN | ACK, False), (SYN, True)):  # a SYN says more, so it comes last
        rows = np.flatnonzero(opening == flags)[::-1]
        flows = number[rows]
        high[flows] = packets.from_high[rows] == sender_is_client
        opened[flows] = True
    why, by_syn = ["syn" if each else "" for each in opened.tolist()], high.copy()
    if clients:
        for flow, pair in enumerate(pairs):
            if (pair.low in clients) != (pair.high in clients):
                high[flow], why[flow] = pair.high in clients, "option"
    unsure = [flow for flow, each in enumerate(why) if not each]
    if unsure:
        known = np.flatnonzero(opened).tolist()
        busy = Counter(pairs[flow].high if by_syn[flow] else pairs[flow].low for flow in known)
        first_from_high = packets.from_high[first_row]
        for flow in unsure:
            high[flow], why[flow] = _guess(pairs[flow], busy, first_from_high=bool(first_from_high[flow]))
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


def in_one(rows: Any) -> Any:
    """The same rows, as a slice where one follows the other: columns need not be copied then."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1:  # they ascend
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _chunks(starts: list[int]) -> Iterator[tuple[int, int]]:
    """(first flow, flow after the last) of groups of flows with not too many packets together."""
    begin = 0
    for flow in range(1, len(starts)):
        if starts[flow] - starts[begin] > _CHUNK_ROWS and flow - 1 > begin:
            yield begin, flow - 1
            begin = flow - 1
    if len(starts) > 1:
        yield begin, len(starts) - 1


def _count(table: FlowTable, begin: int, end: int, times: _Times, is_tcp: Any) -> None:
    """Work out what the flows ``begin`` to ``end`` carried."""
    import numpy as np

    packets, starts, sums = table.packets, table.starts, table.sums
    rows: Any = table.order[starts[begin] : starts[end]].astype(np.int64)  # else each column would convert them
    if len(rows) == len(packets) and len(starts) == 2:
        rows = slice(None)  # one flow: nothing to pick
    edges = np.asarray(starts[begin : end + 1]) - starts[begin]
    group = np.repeat(np.arange(begin, end), np.diff(edges))
    side = ~table.up[rows]
    seq, ack, flags = packets.seq[rows], packets.ack[rows], packets.flags[rows]
    payload, time_ns, wire = packets.payload[rows].astype(np.int64), packets.time_ns[rows], packets.wire[rows]
    times.first[begin:end] = np.minimum.reduceat(time_ns, edges[:-1])
    times.last[begin:end] = np.maximum.reduceat(time_ns, edges[:-1])
    marks = ((flags >> 1) | flags) & 1
    tcp = is_tcp[begin:end]
    data = (payload > 0) | (marks > 0)
    doubtful = sequence.acknowledged(group, side, seq, ack, payload)
    for which in (0, 1):
        mine = np.flatnonzero(side == bool(which))
        if not len(mine):
            continue
        own, own_seq, own_flags, size = group[mine], seq[mine], flags[mine], payload[mine]
        first = sequence.begins(own)
        begins = np.flatnonzero(first)
        start = sequence.unwrap(own_seq, first)
        next_seq = start + size + marks[mine]
        flows = own[begins]
        for name, column in _sums(begins, size, wire[mine], own_flags, time_ns[mine]):
            sums[name][which, flows] = column
        union, holes = sequence.covered(*_ranges(own, begins, start + (own_flags >> 1 & 1), size))
        by_numbers = is_tcp[flows]
        sums["unique_bytes"][which, flows] = np.where(by_numbers, union, sums["payload_bytes"][which, flows])
        sums["missing_bytes"][which, flows] = np.where(by_numbers, holes, 0)
        heard = np.flatnonzero((side != bool(which)) & ((flags & (ACK | RST)) == ACK))
        reach = np.maximum.reduceat(next_seq, begins)
        place, acked = _acknowledged(group[heard], ack[heard], flows, own_seq[begins])
        sums["unseen_bytes"][which, flows[place]] = np.maximum(0, acked - reach[place])
        doubtful[mine] |= sequence.behind(own, start, next_seq, size, data[mine])
    if not tcp.any():
        return
    for flow in np.unique(group[doubtful]).tolist():
        if is_tcp[flow]:
            _judge(table, flow)
    for flow, initial_ns in zip(
        *(part.tolist() for part in sequence.handshakes_ns(group, time_ns, flags)), strict=True
    ):
        times.initial[flow] = initial_ns


def _count_long(table: FlowTable, number: int, times: _Times, *, is_tcp: bool) -> None:
    """The same for one flow with many packets, part after part: columns of all of them would take too much memory."""
    import numpy as np

    packets, rows = table.packets, table.order[table.starts[number] : table.starts[number + 1]]
    sides = {True: Side(), False: Side()}
    reaches = {True: sequence.Reach(), False: sequence.Reach()}
    firsts, lasts = [], []
    for begin in range(0, len(rows), _PART_ROWS):
        part = rows[begin : begin + _PART_ROWS]
        own, up = in_one(part), table.up[in_one(part)]
        time_ns, flags, payload = packets.time_ns[own], packets.flags[own], packets.payload[own]
        seq, ack, wire = packets.seq[own], packets.ack[own], packets.wire[own]
        firsts.append(int(time_ns.min()))
        lasts.append(int(time_ns.max()))
        for way, side in sides.items():
            mine = np.flatnonzero(up == way)
            sizes = payload[mine].astype(np.int64)
            _add(side, flags[mine], sizes, wire[mine], time_ns[mine])
            if is_tcp:
                reaches[way].add(seq[mine], flags[mine], sizes)
        for way in (True, False) if is_tcp else ():
            reaches[way].acknowledged(ack[(up != way) & ((flags & (ACK | RST)) == ACK)])
    times.first[number], times.last[number] = min(firsts), max(lasts)
    for way, side in sides.items():
        reach = reaches[way]
        side.unique_bytes = reach.unique_bytes if is_tcp else side.payload_bytes
        side.missing_bytes, side.unseen_bytes = reach.missing_bytes, reach.unseen_bytes
        for name, column in table.sums.items():
            column[0 if way else 1, number] = getattr(side, name) or 0
    if is_tcp:
        _judge(table, number)
        head = rows[:_HANDSHAKE_ROWS]
        _, initial = sequence.handshakes_ns(np.zeros(len(head), np.int64), packets.time_ns[head], packets.flags[head])
        times.initial[number] = int(initial[0]) if len(initial) else None


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


def _acknowledged(own: Ints, ack: Any, flows: Ints, base: Any) -> tuple[Ints, Ints]:
    """(place in ``flows``, how far acknowledgements reach from its base) of each flow that has some, and a base."""
    import numpy as np

    if not len(own):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = sequence.begins(own)
    begins = np.flatnonzero(first)
    furthest = np.maximum.reduceat(sequence.unwrap(ack, first), begins)
    place = np.minimum(np.searchsorted(flows, own[begins]), len(flows) - 1)
    known = flows[place] == own[begins]
    ahead = (ack[begins] - base[place]).view(np.int32).astype(np.int64) + furthest
    return place[known], ahead[known]


def _ranges(own: Ints, begins: Ints, start: Ints, payload: Ints) -> tuple[Any, Any, Any, Any]:
    """The ranges of payload, with an empty one for groups without any, so that each group has its place."""
    import numpy as np

    has = payload > 0
    bare = ~np.logical_or.reduceat(has, begins)
    has[begins[bare]] = True
    rows = np.flatnonzero(has)
    kept = own[rows]
    return kept, sequence.begins(kept), start[rows], payload[rows]


def _sums(begins: Ints, payload: Ints, wire: Any, flags: Any, time_ns: Ints) -> Iterator[tuple[str, Any]]:
    """Counts of one direction for several flows, by the names that ``Side`` gives them."""
    import numpy as np

    def count(column: Any) -> Any:
        return np.add.reduceat(column, begins, dtype=np.int64)

    yield "packets", np.diff(begins, append=len(payload))
    yield "wire_bytes", count(wire)
    yield "payload_bytes", count(payload)
    opening = flags & (SYN | ACK)
    yield "syns", count(opening == SYN)
    yield "syn_acks", count(opening == SYN | ACK)
    yield "fins", count(flags & FIN)
    yield "resets", count(flags >> 2 & 1)
    yield "largest_payload_bytes", np.maximum.reduceat(payload, begins)
    has = payload > 0
    far = np.iinfo(np.int64)
    yield "first_payload_ns", np.minimum.reduceat(np.where(has, time_ns, far.max), begins)
    yield "last_payload_ns", np.maximum.reduceat(np.where(has, time_ns, far.min), begins)


def _segments(table: FlowTable, rows: Any) -> Iterator[resent.Segments]:
    """These packets, in parts."""
    packets = table.packets
    for begin in range(0, len(rows), _PART_ROWS):
        part = in_one(rows[begin : begin + _PART_ROWS])
        yield resent.Segments(
            packets.time_ns[part], ~table.up[part], packets.seq[part], packets.ack[part], packets.flags[part],
            packets.window[part], packets.payload[part],
        )  # fmt: skip


def _judge(table: FlowTable, number: int) -> None:
    """Step through a flow in which something may have been sent twice."""
    import numpy as np

    rows = table.order[table.starts[number] : table.starts[number + 1]]
    verdicts = resent.judge(_segments(table, rows))
    own = in_one(rows)
    table.verdicts[own] = verdicts
    up = table.up[own]
    for way, mine in enumerate((up, ~up)):
        counts = np.bincount(verdicts[mine], minlength=6)
        table.sums["retransmissions"][way, number] = counts[1:4].sum()
        for name, count in zip(("fast", "spurious", "out_of_order", "keep_alives"), counts[2:6].tolist(), strict=True):
            table.sums[name][way, number] = count
