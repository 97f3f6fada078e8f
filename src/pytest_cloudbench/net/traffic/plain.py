"""A fast path for plain packets, which are nearly all packets of most captures: Ethernet, IP and TCP.

``headers`` is the reference and gets every packet that may be different: other wrappings, fragments, options,
inconsistent lengths and truncated headers.
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
    """Layout of the headers of plain packets, and the values that identify them.

    Attributes:
        version: the IP version.
        ip_bytes: length of the IP header.
        counted: number of its bytes that are included in its length field.
        opening, opening_mask: value and mask of EtherType, version, and (in IPv4) header length.
        fields: type and offset of fields, from the beginning of the IP header. ``ends`` is the number of words with
            addresses.
        still, still_mask: value and mask of the word with fragment offset and protocol.
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
        """Size of a frame up to the end of its TCP header without options."""
        return _LINK_BYTES + self.ip_bytes + _TCP_BYTES

    def dtype(self, width: int) -> Any:
        """Return the layout of the first ``width`` bytes of a frame."""
        import numpy as np

        tcp = self.ip_bytes
        fields = self.fields | {
            "source_port": (">u2", tcp), "target_port": (">u2", tcp + 2), "ports": ("u4", tcp), "seq": (">u4", tcp + 4),
            "ack": (">u4", tcp + 8), "header": ("u1", tcp + 12), "flags": ("u1", tcp + 13), "window": (">u2", tcp + 14),
        }  # fmt: skip
        formats, offsets = zip(*fields.values(), strict=True)
        offsets = tuple(_LINK_BYTES + field_offset for field_offset in offsets)
        return np.dtype({"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": width})


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
    """A decoder of plain packets, batch after batch."""

    def __init__(self, buffer: Buffer, names: Names) -> None:
        self._buffer, self._names = buffer, names
        self._recent = {layout.version: Recent(layout.ends + 1) for layout in _LAYOUTS}

    def columns(self, batch: Batch) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the rows of plain packets and their values in the columns of ``Packets``, for each IP version."""
        import numpy as np

        rows = _rows_where((batch.link_type == _ETHERNET) & (batch.captured >= _LAYOUTS[0].size))
        offset = batch.offset[rows]
        if not len(offset):
            return
        width = min(_LAYOUTS[-1].size, len(self._buffer) - int(offset[-1]))  # the last frame of the file may be short
        view: Any = np.ndarray((len(self._buffer) - width + 1,), f"V{width}", self._buffer, strides=(1,))
        frames = view[offset]
        opening = frames.view(np.dtype({"names": ["it"], "formats": [">u4"], "offsets": [12], "itemsize": width}))["it"]
        opening = opening.astype(np.uint32)
        for layout in _LAYOUTS:
            is_layout = opening & np.uint32(layout.opening_mask) == layout.opening
            if width >= layout.size and is_layout.any():
                if (batch.captured[rows] < layout.size).any():
                    is_layout &= batch.captured[rows] >= layout.size
                chosen = _rows_where(is_layout)
                frame_heads = frames[chosen].view(layout.dtype(width))
                decoded = self._decode_rows(layout, batch, _select_rows(rows, chosen), frame_heads)
                if decoded is not None:
                    yield decoded

    def _decode_rows(self, layout: _Layout, batch: Batch, rows: Any, head: Any) -> tuple[Any, dict[str, Any]] | None:
        """Decode the plain packets among these rows, whose first bytes are ``head``."""
        import numpy as np

        fixed_bytes = _LINK_BYTES + layout.ip_bytes
        captured, offset, wire = batch.captured[rows], batch.offset[rows], batch.wire[rows]
        header = head["header"] >> 2 & np.uint8(0x3C)
        counted = head["size"].astype(np.int32)
        payload = counted - layout.counted
        payload -= header
        is_plain = head["still"] & np.dtype(head.dtype["still"]).type(layout.still_mask) == layout.still
        is_plain &= (header >= _TCP_BYTES) & (payload >= 0)
        is_plain &= counted <= wire - (fixed_bytes - layout.counted)
        if not is_plain.all():
            rows = _select_rows(rows, np.flatnonzero(is_plain))
            head, header, payload, captured, offset, wire = (
                column[is_plain] for column in (head, header, payload, captured, offset, wire)
            )
        if not len(head):
            return None
        header_end = np.minimum(
            header.astype(np.int64) + fixed_bytes, captured
        )  # a header may be cut within its options
        ends = self._number_ends(layout, head)
        kept_bytes = np.minimum(captured - header_end, payload)
        number = np.arange(len(batch.offset), dtype=np.uint32)[rows] + np.uint32(batch.first)
        return rows, {
            "number": number, "time_ns": batch.time_ns[rows], "pair": ends >> 1, "from_high": (ends & 1).astype(bool),
            "wire": wire.astype(np.uint32), "payload": payload.astype(np.uint32), "offset": offset + header_end,
            "kept": kept_bytes.astype(np.uint32), "header": (header_end - fixed_bytes).astype(np.uint8),
            "flags": head["flags"].copy(),
            "seq": head["seq"].astype(np.uint32), "ack": head["ack"].astype(np.uint32),
            "window": head["window"].astype(np.uint16),
        }  # fmt: skip

    def _number_ends(self, layout: _Layout, head: Any) -> Any:
        """Return twice the number of the pair of endpoints, plus one if the high endpoint sent."""
        words = [head[f"end{number}"].astype("u8") for number in range(layout.ends)]
        words.append(head["ports"].astype("u8"))

        def look_up(rows: Any) -> Any:
            part, names = head[rows], self._names
            if layout.version == 4:
                source, target = part["source"].astype("u8"), part["target"].astype("u8")
            else:
                source = names.number_ipv6(part["source"].astype("u8"), part["source_low"].astype("u8"))
                target = names.number_ipv6(part["target"].astype("u8"), part["target_low"].astype("u8"))
            between, low_first = names.number_address_pairs(source, target, layout.version)
            ports = (part["source_port"].astype("i8"), part["target_port"].astype("i8"))
            pair, from_high = names.number_endpoint_pairs(between, low_first, *ports, 1)
            return pair * 2 + from_high

        return self._recent[layout.version].assign_numbers(words, look_up)


def _rows_where(condition: Any) -> Any:
    """Return the rows where the condition holds, or a slice if it holds for all, so that nothing is copied."""
    return slice(None) if condition.all() else condition.nonzero()[0]


def _select_rows(rows: Any, chosen: Any) -> Any:
    """Return the chosen ones of these rows."""
    return chosen if isinstance(rows, slice) else rows[chosen]
