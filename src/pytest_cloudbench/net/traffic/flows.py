"""Groups packets into flows: which end is the client, and where one connection ends and the next begins.

What may live here: grouping, and flows as objects. A flow is a pair of endpoints; for TCP it is one connection between
them. What is known of flows is kept in columns: a capture may have very many flows, and most are never looked at one by
one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.counts import COUNTED, count_all
from pytest_cloudbench.net.traffic.packets import ACK, SYN, Address, Packets, Pairs
from pytest_cloudbench.net.traffic.table import BY, FlowTable, Times, Who

if TYPE_CHECKING:
    pass


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
    first_row, ends = order[starts[:-1]], pairs.select(pair_of)
    is_client = np.array([not clients or each in clients for each in pairs.addresses], bool)
    high_is_client, why = _clients(packets, ends, number, first_row, is_client if clients else None)
    own = is_client[ends.low] | is_client[ends.high]
    place = np.lexsort((first_row, ~own))  # own flows first, each kind in the order of its first packet
    if (place[1:] < place[:-1]).any():
        renumbered: Any = np.empty(count, np.int32)
        renumbered[place] = np.arange(count)
        number, ends, high_is_client, why = renumbered[number], ends.select(place), high_is_client[place], why[place]
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
