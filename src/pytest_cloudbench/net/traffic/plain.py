"""Plain packets, which are nearly all packets of most captures: Ethernet, then IP, with nothing between IP and TCP.

What may live here: a fast path for these. ``headers`` is the reference, and gets every packet that may be different:
other wrappings, fragments, options, inconsistent lengths, truncated headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.net.traffic.endpoints import Names, Recent

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Batch, Buffer

_ETHERNET, _LINK_BYTES, _TCP_BYTES = 1, 14, 20


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions in the headers of IP and TCP, and what identifies plain ones.

    Attributes:
        version: of IP.
        ip_bytes: length of its header.
        counted: how much of the header is included in the length that it states.
        opening, opening_mask: EtherType, version, and length of the header in IPv4.
        fields: places from the beginning of the IP header; ``ends`` are the words with addresses and ports.
        still, still_mask: the word with fragment and protocol, and its mask.
    """

    version: int
    ip_bytes: int
    counted: int
    opening: int
    opening_mask: int
    still: int
    still_mask: int
    fields: dict[str, tuple[str, int]]
    ends: int

    @property
    def size(self) -> int:
        """Bytes of a frame up to the end of its TCP header without options."""
        return _LINK_BYTES + self.ip_bytes + _TCP_BYTES

    def dtype(self, width: int) -> Any:
        """The layout of that many bytes of a frame."""
        import numpy as np

        tcp = self.ip_bytes
        fields = self.fields | {
            "source_port": (">u2", tcp), "target_port": (">u2", tcp + 2), "ports": ("u4", tcp), "seq": (">u4", tcp + 4),
            "ack": (">u4", tcp + 8), "header": ("u1", tcp + 12), "flags": ("u1", tcp + 13), "window": (">u2", tcp + 14),
        }  # fmt: skip
        kinds, places = zip(*fields.values(), strict=True)
        places = tuple(_LINK_BYTES + place for place in places)
        return np.dtype({"names": [*fields], "formats": kinds, "offsets": places, "itemsize": width})


_LAYOUTS = (
    _Layout(
        4, 20, 20, 0x08004500, 0xFFFFFF00, 0x00000006, 0x3FFF00FF,
        {"size": (">u2", 2), "still": (">u4", 6), "source": (">u4", 12), "target": (">u4", 16), "end0": ("u8", 12)}, 1,
    ),
    _Layout(
        6, 40, 0, 0x86DD6000, 0xFFFFF000, 0x0600, 0xFF00,
        {
            "size": (">u2", 4), "still": (">u2", 6), "end0": ("u8", 8), "end1": ("u8", 16), "end2": ("u8", 24),
            "end3": ("u8", 32), "source": (">u8", 8), "source_low": (">u8", 16), "target": (">u8", 24),
            "target_low": (">u8", 32),
        }, 4,
    ),
)  # fmt: skip


class Plain:
    """Columns of plain packets, batch after batch."""

    def __init__(self, buffer: Buffer, names: Names) -> None:
        self._buffer, self._names = buffer, names
        self._recent = {layout.version: Recent(layout.ends + 1) for layout in _LAYOUTS}

    def columns(self, batch: Batch) -> Iterator[tuple[Any, dict[str, Any]]]:
        """(rows of the batch, their values in each of ``Packets``' columns) of plain packets, for each IP version."""
        import numpy as np

        rows = _those((batch.link_type == _ETHERNET) & (batch.captured >= _LAYOUTS[0].size))
        offset = batch.offset[rows]
        if not len(offset):
            return
        width = min(_LAYOUTS[-1].size, len(self._buffer) - int(offset[-1]))  # the last frame of the file may be short
        view: Any = np.ndarray((len(self._buffer) - width + 1,), f"V{width}", self._buffer, strides=(1,))
        heads = view[offset]
        opening = heads.view(np.dtype({"names": ["it"], "formats": [">u4"], "offsets": [12], "itemsize": width}))["it"]
        opening = opening.astype(np.uint32)
        for layout in _LAYOUTS:
            mine = opening & np.uint32(layout.opening_mask) == layout.opening
            if width >= layout.size and mine.any():
                if (batch.captured[rows] < layout.size).any():
                    mine &= batch.captured[rows] >= layout.size
                chosen = _those(mine)
                head = heads[chosen].view(layout.dtype(width))
                found = self._of(layout, batch, _within(rows, chosen), head)
                if found is not None:
                    yield found

    def _of(self, layout: _Layout, batch: Batch, rows: Any, head: Any) -> tuple[Any, dict[str, Any]] | None:
        """The plain ones among these rows, whose first bytes are ``head``."""
        import numpy as np

        before = _LINK_BYTES + layout.ip_bytes
        captured, offset, wire = batch.captured[rows], batch.offset[rows], batch.wire[rows]
        header = head["header"] >> 2 & np.uint8(0x3C)
        counted = head["size"].astype(np.int32)
        payload = counted - layout.counted
        payload -= header
        sure = head["still"] & np.dtype(head.dtype["still"]).type(layout.still_mask) == layout.still
        sure &= (header >= _TCP_BYTES) & (payload >= 0)
        sure &= counted <= wire - (before - layout.counted)
        if not sure.all():
            rows = _within(rows, np.flatnonzero(sure))
            head, header, payload, captured, offset, wire = (
                column[sure] for column in (head, header, payload, captured, offset, wire)
            )
        if not len(head):
            return None
        ahead = np.minimum(header.astype(np.int64) + before, captured)  # a header may be truncated within its options
        ends = self._ends(layout, head)
        kept = np.minimum(captured - ahead, payload)
        number = np.arange(len(batch.offset), dtype=np.uint32)[rows] + np.uint32(batch.first)
        return rows, {
            "number": number, "time_ns": batch.time_ns[rows], "pair": ends >> 1, "from_high": (ends & 1).astype(bool),
            "wire": wire.astype(np.uint32), "payload": payload.astype(np.uint32), "offset": offset + ahead,
            "kept": kept.astype(np.uint32), "header": (ahead - before).astype(np.uint8), "flags": head["flags"].copy(),
            "seq": head["seq"].astype(np.uint32), "ack": head["ack"].astype(np.uint32),
            "window": head["window"].astype(np.uint16),
        }  # fmt: skip

    def _ends(self, layout: _Layout, head: Any) -> Any:
        """Twice the number of the pair of endpoints, plus one if the high endpoint sent."""
        words = [head[f"end{number}"].astype("u8") for number in range(layout.ends)]
        words.append(head["ports"].astype("u8"))

        def look_up(rows: Any) -> Any:
            part, names = head[rows], self._names
            if layout.version == 4:
                source, target = part["source"].astype("u8"), part["target"].astype("u8")
            else:
                source = names.address6(part["source"].astype("u8"), part["source_low"].astype("u8"))
                target = names.address6(part["target"].astype("u8"), part["target_low"].astype("u8"))
            between, low_first = names.between(source, target, layout.version)
            ports = (part["source_port"].astype("i8"), part["target_port"].astype("i8"))
            pair, from_high = names.directed(between, low_first, *ports, 1)
            return pair * 2 + from_high

        return self._recent[layout.version].number(words, look_up)


def _those(condition: Any) -> Any:
    """The rows for which the condition holds; a slice if it holds for all, so that nothing is copied."""
    return slice(None) if condition.all() else condition.nonzero()[0]


def _within(rows: Any, chosen: Any) -> Any:
    """These of the rows."""
    return chosen if isinstance(rows, slice) else rows[chosen]
