"""Who waited for whom, for many flows at once: round trips and turns.

What may live here: what ``sequence`` says of packets, summed up for each flow. Flow after flow would cost more in calls
than in work: most captures have many short ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.traffic import sequence
from pytest_cloudbench.traffic.flows import Flow, FlowTable, in_one

if TYPE_CHECKING:
    from pytest_cloudbench.traffic.records import Ints

__all__ = ["Answers", "RoundTrips", "answers", "round_trips"]

_TOGETHER_ROWS, _PART_ROWS = 1 << 15, 1 << 17
"""Packets of several flows, and of a long one, that are looked at together."""
_AROUND_ROWS = 1 << 14
"""Packets around a part of a long flow, in which the acknowledgement or the same bytes again are looked for."""

RoundTrips = dict[str, float]
"""``count``, and ``min``, ``median`` and ``max`` in seconds, seen from where the capture was made."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one flow.

    Attributes:
        up, down: round trips of what the client and the server sent; None where none could be seen.
        turns: how often the client spoke and the server then answered, in payload.
    """

    up: RoundTrips | None
    down: RoundTrips | None
    turns: int


def answers(table: FlowTable, flows: Sequence[Flow]) -> Iterator[Answers]:
    """Of each of these flows, in their order."""
    for part in _parts(table, flows):
        rows, group = _rows(table, part)
        packets = table.packets
        payload, up = packets.payload[rows], table.up[rows]
        turns = _turns(payload, up, group, len(part))
        if len(part) == 1:
            yield Answers(round_trips(table, part[0], up=True), round_trips(table, part[0], up=False), turns[0])
            continue
        columns = (packets.time_ns[rows], up, packets.seq[rows], packets.ack[rows], packets.flags[rows], payload)
        ways = [_summary(*sequence.round_trips_ns(group, *columns, of=up), len(part)) for up in (True, False)]
        yield from map(Answers, *ways, turns)


def round_trips(table: FlowTable, flow: Flow, *, up: bool) -> RoundTrips | None:
    """Of what one side of a flow sent."""
    import numpy as np

    packets, rows = table.packets, table.rows(flow)
    parts = []
    for begin in range(0, len(rows), _PART_ROWS):  # a long flow takes too much memory at once
        first = max(0, begin - _AROUND_ROWS)
        part = in_one(rows[first : begin + _PART_ROWS + _AROUND_ROWS])
        only = slice(begin - first, begin - first + _PART_ROWS)
        _, times = sequence.round_trips_ns(
            np.zeros(len(packets.time_ns[part]), np.int64), packets.time_ns[part], table.up[part], packets.seq[part],
            packets.ack[part], packets.flags[part], packets.payload[part], of=up, only=only,
        )  # fmt: skip
        parts.append(times)
    times = np.concatenate([np.zeros(0, np.int64), *parts])
    return _summary(np.zeros(len(times), np.int64), times, 1)[0]


def _parts(table: FlowTable, flows: Sequence[Flow]) -> Iterator[Sequence[Flow]]:
    """Some flows after the others, with not too many packets together."""
    begin = rows = 0
    for place, flow in enumerate(flows):
        own = table.starts[flow.number + 1] - table.starts[flow.number]
        if rows and rows + own > _TOGETHER_ROWS:
            yield flows[begin:place]
            begin, rows = place, 0
        rows += own
    if begin < len(flows):
        yield flows[begin:]


def _rows(table: FlowTable, flows: Sequence[Flow]) -> tuple[Any, Ints]:
    """The rows of several flows, flow after flow, and the place in ``flows`` of each."""
    import numpy as np

    numbers = [flow.number for flow in flows]
    sizes = [table.starts[number + 1] - table.starts[number] for number in numbers]
    group = np.repeat(np.arange(len(numbers)), sizes)
    if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        rows = table.order[table.starts[numbers[0]] : table.starts[numbers[-1] + 1]]
    else:
        rows = np.concatenate([table.rows(flow) for flow in flows])
    return rows.astype(np.int64), group  # else each column would convert them


def _turns(payload: Any, up: Any, group: Ints, count: int) -> list[int]:
    import numpy as np

    has = np.flatnonzero(payload)
    speaker, group = up[has], group[has]
    turn = speaker[:-1] & ~speaker[1:] & (group[:-1] == group[1:])
    return list(np.bincount(group[:-1][turn], minlength=count).tolist())


def _summary(group: Ints, times_ns: Ints, count: int) -> list[RoundTrips | None]:
    """Sums up the times, which are not negative, of each group; groups ascend."""
    import numpy as np

    apart = int(times_ns.max(initial=0)) + 1
    if count == 1:
        times_ns = np.sort(times_ns)
    elif count * apart < 1 << 62:  # groups one behind the other: one sort of plain numbers
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
