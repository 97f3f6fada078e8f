"""The papers' quantities, from flows and packets: start-up, completion, overhead, idle traffic, bursts and chunks.

Each is a pure function with its definition and source. None means unknown. Times are nanoseconds since 1970, as in the
capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic import sequence
from pytest_cloudbench.net.traffic.endpoints import find_distinct
from pytest_cloudbench.net.traffic.packets import ACK
from pytest_cloudbench.net.traffic.table import Flow, FlowTable, as_slice

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Ints

_GATHERED_ROWS = 1 << 19
"""Packets of the longest flow whose columns are gathered together with those of other flows."""


class Burst(NamedTuple):
    """A series of packets with payload that follow each other closely."""

    first_ns: int
    last_ns: int
    packets: int
    payload_bytes: int


class Interval(NamedTuple):
    """Bytes on the wire in one interval of time."""

    first_ns: int
    up_bytes: int
    down_bytes: int


class Pause(NamedTuple):
    """A time without payload, between two packets with payload."""

    first_ns: int
    last_ns: int

    @property
    def length_s(self) -> float:
        """Length of the pause in seconds."""
        return (self.last_ns - self.first_ns) / 1e9


def _rows_of_flows(table: FlowTable, flows: Sequence[Flow]) -> Any:
    """Return the rows of several flows in file order."""
    import numpy as np

    rows = [table.rows(flow) for flow in flows]
    return np.sort(np.concatenate(rows)) if rows else np.zeros(0, np.uint32)


def _payload_rows(table: FlowTable, flows: Sequence[Flow], *, up: bool | None) -> Any:
    """Return the rows with payload in the order of time, of one direction unless ``up`` is None."""
    import numpy as np

    rows = _rows_of_flows(table, flows)
    is_wanted = table.has_data(rows)
    if up is not None:
        is_wanted &= table.up[rows] == up
    rows = rows[is_wanted]
    return rows[np.argsort(table.packets.time_ns[rows], kind="stable")]


def start_up_s(table: FlowTable, storage: Sequence[Flow], changed_ns: int) -> float | None:
    """Return the seconds from the change of the files to the client's first payload in a storage flow.

    Paper 001, section 5.1: "from the moment files start being modified until the first storage flow is observed". This
    uses the first payload and not the SYN, because connections are kept open, and QUIC has no SYN.
    """
    times = table.packets.time_ns[_payload_rows(table, storage, up=True)]
    times = times[times >= changed_ns]
    return (int(times[0]) - changed_ns) / 1e9 if len(times) else None


def completion_s(table: FlowTable, storage: Sequence[Flow], changed_ns: int | None = None) -> float | None:
    """Return the seconds from the first to the last packet with payload in any storage flow.

    Paper 001, section 5.2, and 004: "tear-down delays, and control messages sent after the upload is complete" do not
    count.

    Args:
        table: all flows.
        storage: flows with the files' content.
        changed_ns: time before which packets do not count.
    """
    if changed_ns is None:
        sides = [side for flow in storage for side in (flow.up, flow.down)]
        first = [side.first_payload_ns for side in sides if side.first_payload_ns is not None]
        last = [side.last_payload_ns for side in sides if side.last_payload_ns is not None]
        return (max(last) - min(first)) / 1e9 if first else None
    times = table.packets.time_ns[_payload_rows(table, storage, up=None)]
    times = times[times >= changed_ns]
    return (int(times[-1]) - int(times[0])) / 1e9 if len(times) else None


def tue(flows: Sequence[Flow], changed_bytes: int) -> float | None:
    """Return wire bytes of control and storage flows, both ways, divided by the bytes the user changed.

    Papers 002 and 004 (alpha). None if nothing was changed, or if no flow is known to be one of these.
    """
    if changed_bytes <= 0 or not flows:
        return None
    return sum(flow.up.wire_bytes + flow.down.wire_bytes for flow in flows) / changed_bytes


def overhead(flows: Sequence[Flow], benchmark_bytes: int) -> float | None:
    """Return storage and control traffic divided by the benchmark's size, minus 1 (paper 001, section 5.3: "47 %")."""
    ratio = tue(flows, benchmark_bytes)
    return None if ratio is None else ratio - 1


def idle_traffic(
    table: FlowTable, flows: Sequence[Flow], interval_s: float, first_ns: int, last_ns: int
) -> list[Interval]:
    """Return wire bytes per interval from ``first_ns`` to ``last_ns`` (paper 001, figure 1).

    The last interval may be shorter.
    """
    import numpy as np

    step = max(1, round(interval_s * 1e9))
    count = max(0, -(-(last_ns - first_ns) // step))
    rows = _rows_of_flows(table, flows)
    times = table.packets.time_ns[rows]
    inside = (times >= first_ns) & (times < last_ns)
    rows, interval_number = rows[inside], (times[inside] - first_ns) // step
    wire, up = table.packets.wire[rows].astype(np.int64), table.up[rows]
    sums = [
        np.bincount(interval_number[up == is_up], wire[up == is_up], count).astype(np.int64) for is_up in (True, False)
    ]
    return [Interval(first_ns + number * step, int(sums[0][number]), int(sums[1][number])) for number in range(count)]


def bursts(table: FlowTable, flows: Sequence[Flow], gap_s: float, *, up: bool = True) -> list[Burst]:
    """Split the packets with payload of one direction at gaps longer than ``gap_s``.

    Paper 001, section 4.2: a client that waits for an answer to each file shows as many bursts as files.
    """
    import numpy as np

    rows = _payload_rows(table, flows, up=up)
    if not len(rows):
        return []
    times, sizes = table.packets.time_ns[rows], table.packets.payload[rows].astype(np.int64)
    begins = np.concatenate(([0], np.flatnonzero(np.diff(times) > gap_s * 1e9) + 1))
    ends = np.append(begins[1:], len(rows))
    sums = np.add.reduceat(sizes, begins)
    return [
        Burst(int(times[begin]), int(times[end - 1]), int(end - begin), int(size))
        for begin, end, size in zip(begins, ends, sums, strict=True)
    ]


def pauses(table: FlowTable, flows: Sequence[Flow], least_s: float, *, up: bool = True) -> list[Pause]:
    """Return pauses of at least ``least_s`` between packets with payload.

    Paper 001, section 4.1: "delimited by a pause".
    """
    import numpy as np

    times = table.packets.time_ns[_payload_rows(table, flows, up=up)]
    long_gaps = np.flatnonzero(np.diff(times) >= least_s * 1e9)
    return [Pause(int(times[index]), int(times[index + 1])) for index in long_gaps]


def turns(table: FlowTable, flow: Flow) -> int:
    """Return how often the server answered after the client had sent payload, the application's round trips."""
    import numpy as np

    if not flow.up.payload_bytes or not flow.down.payload_bytes:
        return 0
    rows = table.rows(flow)
    speaker = table.up[rows[table.has_data(rows)]]
    return int(np.count_nonzero(speaker[:-1] & ~speaker[1:]))


def rounds(table: FlowTable, flow: Flow) -> list[tuple[int, int]]:
    """Return pairs of payload bytes: those that the server sent, and those that the client sent next.

    The first pair begins with 0 if the client sent first, and the last pair ends with 0 if the server sent last.
    """
    import numpy as np

    rows = table.rows(flow)
    rows = rows[table.has_data(rows)]
    if not len(rows):
        return []
    up, payload = table.up[rows], table.packets.payload[rows].astype(np.int64)
    starts = np.flatnonzero(np.diff(up, prepend=not up[0]))
    sums = np.add.reduceat(payload, starts).tolist()
    if up[0]:
        sums.insert(0, 0)
    if len(sums) % 2:
        sums.append(0)
    return list(zip(sums[::2], sums[1::2], strict=True))


def syn_times_ns(table: FlowTable, flows: Sequence[Flow]) -> list[int]:
    """Return the times at which the client tried to open connections (paper 001, figure 3)."""
    rows = _rows_of_flows(table, flows)
    opening = (table.packets.flags[rows] & 18) == 2
    return sorted(table.packets.time_ns[rows[opening]].tolist())


def chunks(table: FlowTable, flow: Flow) -> list[int]:
    """Return the bytes of each piece that the client sent, handshakes and requests included. See ``pieces``."""
    sent = _find_boundaries(table, flow.number)
    ends = [] if sent is None else sent.ends.tolist()
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


class SentPieces(NamedTuple):
    """The pieces of a flow between boundaries. Positions count the bytes that the client sent.

    Attributes:
        ends: position of the end of each piece.
        resumed_ns: after each piece but the last, time from the server's last payload until the client continued.
        answered_at: position of the client at each of the server's packets with payload.
        answer_bytes: payload of those packets.
    """

    ends: Any
    resumed_ns: Any
    answered_at: Any
    answer_bytes: Any

    def sizes_bytes(self) -> list[int]:
        """Return the size of each piece."""
        import numpy as np

        return [int(size) for size in np.diff(self.ends, prepend=0)]

    def asides(self, margin_bytes: int) -> tuple[int, int]:
        """Count the packets with payload, and their bytes, that the server sent in the middle of a piece.

        In the middle means that the client had sent ``margin_bytes`` of the piece, with as many still to come. So
        answers to earlier pieces and to the whole piece do not count. Answers to parts for which the client does not
        wait do count, as do window updates of HTTP/2 and SSH.
        """
        import numpy as np

        ends, answered_at = self.ends, self.answered_at
        if not len(ends):
            return 0, 0
        piece = np.minimum(np.searchsorted(ends, answered_at, side="right"), len(ends) - 1)
        begins = np.concatenate(([0], ends[:-1]))
        is_amid = (answered_at - begins[piece] >= margin_bytes) & (ends[piece] - answered_at >= margin_bytes)
        return int(is_amid.sum()), int(self.answer_bytes[is_amid].sum())

    def resumptions_s(self, least_bytes: int) -> list[float]:
        """Return the seconds from the server's last payload until the client continued, after each large piece.

        Only pieces of at least ``least_bytes`` count. A client that waits for an answer continues after a steady time.
        One that pauses by a clock does not, whatever the server sends meanwhile.
        """
        import numpy as np

        is_large = np.diff(self.ends, prepend=0)[:-1] >= least_bytes
        return [float(resumed_ns) for resumed_ns in self.resumed_ns[is_large] / 1e9]


def pieces(table: FlowTable, flow: Flow) -> SentPieces:
    """Split the client's bytes at boundaries.

    At a boundary, all bytes of the client are acknowledged **and** the server has sent payload before the client
    continues. Gaps in time alone find 17 of 24 chunk sizes, and this rule finds all of them within 1 %. Beware that
    HTTP/2 with its default window of 64 KiB and a short round trip looks like chunks of about 65.5 kB. UDP has no
    visible acknowledgements, so its result is empty.
    """
    import numpy as np

    sent = _find_boundaries(table, flow.number)
    if sent is None:
        return SentPieces(*[np.zeros(0, np.int64)] * 4)
    packets, rows, last, reach = table.packets, table.rows(flow), sent.last, sent.reach
    times_ns = packets.time_ns[as_slice(rows)]
    last_answers = sent.answers[np.searchsorted(sent.answers, sent.rows[last + 1]) - 1]
    resumed_ns = times_ns[sent.rows[last + 1]] - times_ns[last_answers]
    answered_at = np.concatenate(([0], reach))[np.searchsorted(sent.rows, sent.answers)]
    answer_bytes = packets.payload[rows[sent.answers]].astype(np.int64)
    return SentPieces(sent.ends, resumed_ns, answered_at, answer_bytes)


class _Boundaries(NamedTuple):
    """The boundaries in what the client of a flow sent.

    Attributes:
        rows: the client's packets with payload, counted from the first packet of the flow.
        answers: the server's packets with payload.
        reach: the client's position after each of its packets.
        last: index in ``rows`` of the last packet before each boundary.
    """

    rows: Any
    answers: Any
    reach: Ints
    last: Ints

    @property
    def ends(self) -> Ints:
        """Position of the end of each piece."""
        import numpy as np

        return np.append(self.reach[self.last], self.reach[-1])


def _find_boundaries(table: FlowTable, number: int) -> _Boundaries | None:
    """Return the boundaries of a flow, or None if it is UDP or its client sent no payload."""
    import numpy as np

    if not table.who.is_tcp[number]:
        return None
    begin, end = table.starts[number : number + 2]
    if end - begin <= _GATHERED_ROWS:
        _, seq, ack, payload, _, flags, up = table.in_order.get_range(begin, end)
    else:  # fewer columns, which are not kept, because a long flow takes much memory
        packets, selected = table.packets, as_slice(table.rows(number))
        columns = (packets.seq, packets.ack, packets.payload, packets.flags, table.up)
        seq, ack, payload, flags, up = (column[selected] for column in columns)
    has_data = table.has_data(as_slice(table.rows(number)))
    sent_rows = (up & has_data).nonzero()[0].astype(np.int32)
    if not len(sent_rows):
        return None
    answers = (~up & has_data).nonzero()[0].astype(np.int32)
    reach = _unwrap_sequence(seq[sent_rows]) + payload[sent_rows]
    np.maximum.accumulate(reach, out=reach)
    # Only the client's first packet after an answer can follow a boundary.
    next_index = find_distinct(np.searchsorted(sent_rows, answers))
    last = next_index[(next_index > 0) & (next_index < len(sent_rows))] - 1
    last = last[reach[last + 1] > reach[last]]
    if len(last):
        acks = (~up & ((flags & ACK) > 0)).nonzero()[0].astype(np.int32)
        ack_numbers = np.concatenate((seq[sent_rows[:1]], ack[acks]))
        acked = np.maximum.accumulate(_unwrap_sequence(ack_numbers))  # acked[0] is the state before the first ACK
        last = last[acked[np.searchsorted(acks, sent_rows[last + 1])] >= reach[last]]
    return _Boundaries(sent_rows, answers, reach, last)


def _unwrap_sequence(seq: Any) -> Ints:
    import numpy as np

    first = np.zeros(len(seq), bool)
    first[0] = True
    return sequence.unwrap(seq, first)
