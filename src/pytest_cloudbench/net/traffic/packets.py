"""Collection of the packets of flows from batches of records, as columns.

``plain`` and ``headers`` decode each batch. ``fragments`` and ``endpoints`` hold the state that carries over to the
next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.datagrams import Datagrams, RepeatedDatagrams
from pytest_cloudbench.net.traffic.endpoints import TCP, UDP, Address, Names, Pairs
from pytest_cloudbench.net.traffic.fragments import Fragments
from pytest_cloudbench.net.traffic.headers import KINDS, Aside, Headers
from pytest_cloudbench.net.traffic.plain import Plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pytest_cloudbench.net.traffic.records import Batch, Buffer, Ints

__all__ = ["ACK", "FIN", "RST", "SYN", "TCP", "UDP", "Address", "Aside", "Collector", "Packets", "Pairs"]

FIN, SYN, RST, ACK = 1, 2, 4, 16


@dataclass(frozen=True, slots=True)
class Packets:
    """TCP and UDP packets in the order of the file, as columns of equal length.

    Attributes:
        number: number of the record, from 1, like tshark's ``frame.number``.
        time_ns: nanoseconds since 1970.
        pair: number of the pair of endpoints.
        from_high: whether the pair's ``high`` endpoint sent it.
        wire: size of the whole frame on the wire.
        payload: size of the TCP or UDP payload on the wire.
        offset: file offset of the payload, or the end of a truncated header.
        kept: number of payload bytes in the file.
        header: number of bytes of the TCP or UDP header in the file, before ``offset``.
        flags, seq, ack, window: TCP fields, 0 for UDP.
    """

    number: NDArray[np.uint32]
    time_ns: Ints
    pair: NDArray[np.int32]
    from_high: NDArray[np.bool_]
    wire: NDArray[np.uint32]
    payload: NDArray[np.uint32]
    offset: Ints
    kept: NDArray[np.uint32]
    header: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    seq: NDArray[np.uint32]
    ack: NDArray[np.uint32]
    window: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.number)


class _Column:
    """A column that grows by large blocks.

    Small arrays would be scattered among the temporary memory of batches, and would keep it from being freed.
    """

    _ROWS = 1 << 19

    def __init__(self, kind: str) -> None:
        self._kind, self._blocks, self._free = kind, list[Any](), 0

    def add(self, values: Any) -> None:
        import numpy as np

        while len(values):
            if not self._free:
                self._blocks.append(np.empty(self._ROWS, self._kind))
                self._free = self._ROWS
            part, start = values[: self._free], self._ROWS - self._free
            self._blocks[-1][start : start + len(part)] = part
            self._free, values = self._free - len(part), values[len(part) :]

    def join_blocks(self) -> Any:
        """Return the whole column, and leave it empty."""
        import numpy as np

        blocks, self._blocks = self._blocks, []
        if not blocks:
            return np.zeros(0, self._kind)
        blocks[-1] = blocks[-1][: self._ROWS - self._free]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _join_parts(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of all parts in file order."""
    import numpy as np

    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part["number"] for part in parts]), kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[order] for name in KINDS}


@dataclass(slots=True)
class Collector:
    """A collector of batches that returns the packets once all have been added.

    Attributes:
        keeps_datagrams: whether ``make_packets`` returns all UDP packets, or else few of each flow.
        datagrams: counts of all UDP packets, unless all are kept.
        repeats: counts of UDP packets that repeat the previous one.
        aside: counts of packets outside flows.
        sentinels: contents of the sentinels that mark the ends of a capture, which are counted nowhere else.
        records, wire_bytes: totals of all other packets.
        cut: number of packets that are not completely in the file.
        first_ns, last_ns: the earliest and latest time, or None without packets.
    """

    buffer: Buffer
    keeps_datagrams: bool = True
    datagrams: Datagrams | None = None
    repeats: RepeatedDatagrams = field(default_factory=RepeatedDatagrams)
    aside: Aside = field(default_factory=Aside)
    sentinels: list[bytes] = field(default_factory=list)
    records: int = 0
    wire_bytes: int = 0
    cut: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    _columns: dict[str, _Column] = field(default_factory=dict)
    _names: Names | None = None
    _plain: Plain | None = None
    _fragments: Fragments = field(default_factory=Fragments)

    def add(self, batch: Batch) -> None:
        """Decode the headers of a batch."""
        import numpy as np

        if not len(batch.offset):
            return
        if self._names is None or self._plain is None:
            self._names = Names()
            self._plain = Plain(self.buffer, self._names)
            self.datagrams = None if self.keeps_datagrams else Datagrams(self._names)
        is_left, decoded, is_mixed = np.ones(len(batch.offset), bool), list[dict[str, Any]](), False
        for rows, columns in self._plain.columns(batch):
            is_left[rows] = False
            decoded.append(columns)
        captured, wire, time_ns = batch.captured, batch.wire, batch.time_ns
        if is_left.any():
            left_rows = np.flatnonzero(is_left)
            headers = Headers(self.buffer, batch.select(left_rows), self.aside, self._names, self._fragments)
            columns = headers.columns()
            is_mixed = bool(decoded)
            columns["number"] = (left_rows[columns["number"] - batch.first] + batch.first).astype(np.uint32)
            decoded.append(columns)
            if headers.sentinels:
                self.sentinels += headers.sentinels.values()
                sentinel_rows = left_rows[[*headers.sentinels]]
                captured, wire, time_ns = (np.delete(column, sentinel_rows) for column in (captured, wire, time_ns))
        self._add_columns(decoded, is_mixed=is_mixed)
        if not len(wire):
            return
        self.records += len(wire)
        self.wire_bytes += int(wire.sum())
        self.cut += int((captured < wire).sum())
        first_ns, last_ns = int(time_ns.min()), int(time_ns.max())
        self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)

    def _add_columns(self, parts: list[dict[str, Any]], *, is_mixed: bool) -> None:
        """Add the columns of one batch in file order.

        Unless ``is_mixed``, all packets of one pair of endpoints are in the same part. UDP packets are then counted
        before the parts are joined, because few of them are kept.
        """
        if not is_mixed:
            parts = [self._drop_datagrams(part) for part in parts]
        columns = _join_parts([part for part in parts if len(part["number"])] or parts[:1])
        if is_mixed:
            columns = self._drop_datagrams(columns)
        for name, kind in KINDS.items():
            self._columns.setdefault(name, _Column(kind)).add(columns[name])

    def _drop_datagrams(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Count the UDP packets, and return the columns without those that need not be kept."""
        self.repeats.count_batch(columns, self.buffer)
        is_kept = None if self.datagrams is None else self.datagrams.count_batch(columns)
        if is_kept is None or is_kept.all():
            return columns
        rows = is_kept.nonzero()[0]
        return {name: column[rows] for name, column in columns.items()}

    def make_packets(self) -> Packets:
        """Return all packets, and leave the collector empty."""
        import numpy as np

        if not self._columns:
            empty = {name: np.zeros(0, kind) for name, kind in KINDS.items()}
            return Packets(**empty)
        joined = {}
        for column in fields(Packets):  # one at a time, so that memory does not hold everything twice
            joined[column.name] = self._columns.pop(column.name).join_blocks()
        return Packets(**joined)

    def make_pairs(self) -> Pairs:
        """Return the pairs of endpoints that ``Packets.pair`` refers to."""
        return (self._names or Names()).make_pairs()
