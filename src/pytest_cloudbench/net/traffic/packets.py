"""Turns records into the packets of flows, as columns.

What may live here: the columns, and adding batch after batch to them. ``plain`` and ``headers`` decode each batch;
``fragments`` and ``endpoints`` hold what carries over to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

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
        number: of the record, from 1, as tshark's ``frame.number``.
        time_ns: nanoseconds since 1970.
        pair: index of its pair of endpoints.
        from_high: whether the pair's ``high`` endpoint sent it.
        wire: bytes of the whole frame on the wire.
        payload: bytes of TCP or UDP payload on the wire.
        offset: where the payload begins in the file; for a truncated header, where that ends.
        kept: how many bytes of the payload are in the file.
        header: bytes of the TCP or UDP header that are in the file; it ends at ``offset``.
        flags, seq, ack, window: of TCP; 0 for UDP.
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
    """A column that grows by large blocks. Small arrays would lie between the memory that each batch needs briefly, and
    keep it from going back to the system.
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
            part, begin = values[: self._free], self._ROWS - self._free
            self._blocks[-1][begin : begin + len(part)] = part
            self._free, values = self._free - len(part), values[len(part) :]

    def whole(self) -> Any:
        """The whole column, which is empty afterwards."""
        import numpy as np

        blocks, self._blocks = self._blocks, []
        if not blocks:
            return np.zeros(0, self._kind)
        blocks[-1] = blocks[-1][: self._ROWS - self._free]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


@dataclass(slots=True)
class Collector:
    """Takes batches of records, and returns the packets once all have been added.

    Attributes:
        aside: counts of what is in no flow.
        sentinels: contents of the packets with which ``capture`` marks its ends; they count nowhere else.
        records, wire_bytes: of everything.
        cut: packets of which not everything was kept.
        first_ns, last_ns: the earliest and latest time; None without packets.
    """

    buffer: Buffer
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
        """Decode the headers of some records."""
        import numpy as np

        if not len(batch.offset):
            return
        if self._names is None or self._plain is None:
            self._names = Names()
            self._plain = Plain(self.buffer, self._names)
        left, parts = np.ones(len(batch.offset), bool), list[dict[str, Any]]()
        for rows, columns in self._plain.columns(batch):
            left[rows] = False
            parts.append(columns)
        captured, wire, time_ns = batch.captured, batch.wire, batch.time_ns
        if left.any():
            rest = np.flatnonzero(left)
            headers = Headers(self.buffer, batch.some(rest), self.aside, self._names, self._fragments)
            columns = headers.columns()
            columns["number"] = (rest[columns["number"] - batch.first] + batch.first).astype(np.uint32)
            parts.append(columns)
            if headers.sentinels:
                self.sentinels += headers.sentinels.values()
                ours = rest[[*headers.sentinels]]
                captured, wire, time_ns = (np.delete(column, ours) for column in (captured, wire, time_ns))
        self._keep(parts)
        if not len(wire):
            return
        self.records += len(wire)
        self.wire_bytes += int(wire.sum())
        self.cut += int((captured < wire).sum())
        low, high = int(time_ns.min()), int(time_ns.max())
        self.first_ns = low if self.first_ns is None else min(self.first_ns, low)
        self.last_ns = high if self.last_ns is None else max(self.last_ns, high)

    def _keep(self, parts: list[dict[str, Any]]) -> None:
        """Take the columns of one batch, in the order of the file."""
        import numpy as np

        order: Any = None
        if len(parts) > 1:
            order = np.argsort(np.concatenate([part["number"] for part in parts]), kind="stable")
        for name in KINDS:
            column = parts[0][name] if order is None else np.concatenate([part[name] for part in parts])[order]
            self._columns.setdefault(name, _Column(KINDS[name])).add(column)

    def packets(self) -> Packets:
        """All packets. The collector is empty afterwards."""
        import numpy as np

        if not self._columns:
            empty = {name: np.zeros(0, kind) for name, kind in KINDS.items()}
            return Packets(**empty)
        joined = {}
        for each in fields(Packets):  # one column at a time, since otherwise memory would hold everything twice
            joined[each.name] = self._columns.pop(each.name).whole()
        return Packets(**joined)

    def pairs(self) -> Pairs:
        """The pairs of endpoints that ``Packets.pair`` points to."""
        return (self._names or Names()).pairs()
