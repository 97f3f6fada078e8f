"""Round trips and turns of many flows at once: which side waited for the other.

What may live here: what ``sequence`` says of packets, summarized for each flow. Most captures have many short flows, so
one at a time would cost more in calls than in work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.counts import in_one
from pytest_cloudbench.net.traffic.packets import ACK
from pytest_cloudbench.net.traffic.table import Flow, FlowTable

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_TOGETHER_ROWS, _PART_ROWS = 1 << 15, 1 << 17
"""How many packets are looked at together, of several flows and of a long one."""
_AROUND_ROWS = 1 << 14
"""Packets around a part of a long flow in which acknowledgements and repetitions are looked for."""

RoundTrips = dict[str, float]
"""``count``, and ``min``, ``median`` and ``max`` in seconds, seen from where the capture was made."""


def answers(table: FlowTable, numbers: Sequence[int]) -> dict[str, list[Any]]:
    """Returns columns for the flows with these numbers, in the same order.

    ``rtt_up_s`` and ``rtt_down_s``: round trips of what the client and the server sent; None if none could be seen.
    ``turns``: how often the client spoke and the server then answered, in payload.
    """
    import numpy as np

    found: dict[str, list[Any]] = {"rtt_up_s": [], "rtt_down_s": [], "turns": []}
    packets = table.packets
    for part in _parts(table, numbers):
        if len(part) == 1:
            number = part[0]
            found["rtt_up_s"].append(_long_round_trips(table, number, up=True))
            found["rtt_down_s"].append(_long_round_trips(table, number, up=False))
            rows = in_one(table.rows(number))
            has = packets.payload[rows] > 0
            found["turns"] += _turns(table.up[rows], has, np.zeros(len(has), np.int64), 1)
            continue
        sizes = [table.starts[number + 1] - table.starts[number] for number in part]
        group = np.repeat(np.arange(len(part)), sizes)
        if part[-1] - part[0] == len(part) - 1:  # they ascend
            picked = table.in_order.part(table.starts[part[0]], table.starts[part[-1] + 1])
        else:
            picked = table.in_order.of(np.concatenate([table.rows(number) for number in part]))
        _answer(found, group, len(part), *picked)
    return found


def _answer(
    found: dict[str, list[Any]], group: Ints, count: int, time_ns: Ints, seq: Any, ack: Any, payload: Any, wire: Any,
    flags: Any, up: Any,
) -> None:  # fmt: skip
    """Add the results of these flows."""
    has, acks = payload > 0, (flags & ACK) > 0
    found["turns"] += _turns(up, has, group, count)
    for name, mine in (("rtt_up_s", up), ("rtt_down_s", ~up)):
        sent, heard = (mine & has).nonzero()[0], (~mine & acks).nonzero()[0]
        times = sequence.round_trips_ns(
            sequence.Sent(group[sent], time_ns[sent], seq[sent], payload[sent]),
            sequence.Heard(group[heard], time_ns[heard], ack[heard]),
        )
        found[name] += _summary(*times, count)


def round_trips(table: FlowTable, flow: Flow, *, up: bool) -> RoundTrips | None:
    """Of what one side of a flow sent."""
    return _long_round_trips(table, flow.number, up=up)


def _long_round_trips(table: FlowTable, number: int, *, up: bool) -> RoundTrips | None:
    import numpy as np

    packets, rows = table.packets, table.rows(number)
    parts = []
    for begin in range(0, len(rows), _PART_ROWS):  # a whole long flow would take too much memory
        first = max(0, begin - _AROUND_ROWS)
        part = rows[first : begin + _PART_ROWS + _AROUND_ROWS]
        mine = table.up[in_one(part)] == up
        sent = (mine & (packets.payload[in_one(part)] > 0)).nonzero()[0]
        heard = (~mine & ((packets.flags[in_one(part)] & ACK) > 0)).nonzero()[0]
        _, times = sequence.round_trips_ns(
            sequence.Sent(
                np.zeros(len(sent), np.int64),
                packets.time_ns[part[sent]],
                packets.seq[part[sent]],
                packets.payload[part[sent]],
            ),
            sequence.Heard(np.zeros(len(heard), np.int64), packets.time_ns[part[heard]], packets.ack[part[heard]]),
            only=(sent >= begin - first) & (sent < begin - first + _PART_ROWS),
        )
        parts.append(times)
    times = np.concatenate([np.zeros(0, np.int64), *parts])
    return _summary(np.zeros(len(times), np.int64), times, 1)[0]


def _parts(table: FlowTable, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Splits flows into consecutive groups that do not have too many packets together."""
    begin = rows = 0
    for place, number in enumerate(numbers):
        own = table.starts[number + 1] - table.starts[number]
        if rows and rows + own > _TOGETHER_ROWS:
            yield numbers[begin:place]
            begin, rows = place, 0
        rows += own
    if begin < len(numbers):
        yield numbers[begin:]


def _turns(up: Any, has: Any, group: Ints, count: int) -> list[int]:
    import numpy as np

    rows = has.nonzero()[0]
    speaker, group = up[rows], group[rows]
    turn = (speaker[:-1] > speaker[1:]).nonzero()[0]
    own = group[turn]
    return list(np.bincount(own[own == group[turn + 1]], minlength=count).tolist())


def _summary(group: Ints, times_ns: Ints, count: int) -> list[RoundTrips | None]:
    """Summarizes the times of each group. Times are not negative; groups are in ascending order."""
    import numpy as np

    apart = int(times_ns.max(initial=0)) + 1
    if count == 1:
        times_ns = np.sort(times_ns)
    elif count * apart < 1 << 62:  # groups one after another on one line: a single sort of plain numbers
        times_ns = np.sort(group * apart + times_ns) - group * apart
    else:
        times_ns = times_ns[np.lexsort((times_ns, group))]
    begins = np.flatnonzero(sequence.begins(group))
    sizes = np.diff(begins, append=len(group))
    ordered = times_ns.astype(np.float64)
    last, middle = begins + sizes - 1, begins + sizes // 2
    median = (ordered[begins + (sizes - 1) // 2] + ordered[middle]) / 2
    found: list[RoundTrips | None] = [None] * count
    columns = (group[begins], sizes, ordered[begins] / 1e9, median / 1e9, ordered[last] / 1e9)
    for place, size, least, median_s, most in zip(*(column.tolist() for column in columns), strict=True):
        found[place] = {"count": size, "min": least, "median": median_s, "max": most}
    return found
