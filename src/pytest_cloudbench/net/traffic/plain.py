"""A fast path for plain packets, which are nearly all packets of most captures: Ethernet, IP, and TCP or UDP.

``headers`` is the reference and gets every packet that may be different: other wrappings, fragments, options,
inconsistent lengths, truncated headers, tunnels and sentinels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cloudbench.net.traffic.endpoints import TCP, UDP, Names, Recent
from pytest_cloudbench.net.traffic.headers import KINDS, SENTINEL_ADDRESS
from pytest_cloudbench.net.traffic.tunnels import PORTS

if TYPE_CHECKING:
    from pytest_cloudbench.net.traffic.records import Batch, Buffer

_ETHERNET, _LINK_BYTES = 1, 14
_HEADER_BYTES = {TCP: 20, UDP: 8}
"""The shortest header of each transport."""
_TCP_COLUMNS = {name: KINDS[name] for name in ("flags", "seq", "ack", "window")}


class _Layout(NamedTuple):
    """Layout of the headers of plain packets, and the values that identify them.

    Attributes:
        version: the IP version.
        transport: the protocol after IP, TCP or UDP.
        ip_bytes: length of the IP header.
        counted: number of its bytes that are included in its length field.
        opening, opening_mask: value and mask of EtherType, version, and (in IPv4) header length.
        fields: type and offset of fields, from the beginning of the IP header. ``ends`` is the number of words with
            addresses.
        still, still_mask: value and mask of the word with fragment offset and protocol.
    """

    version: int
    transport: int
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
        """Size of a frame up to the end of its TCP header without options, or of its UDP header."""
        return _LINK_BYTES + self.ip_bytes + _HEADER_BYTES[self.transport]

    def dtype(self, width: int) -> Any:
        """Return the layout of the first ``width`` bytes of a frame."""
        import numpy as np

        at = self.ip_bytes
        fields = self.fields | {"source_port": (">u2", at), "target_port": (">u2", at + 2), "ports": ("u4", at)}
        if self.transport == TCP:
            fields |= {
                "seq": (">u4", at + 4), "ack": (">u4", at + 8), "header": ("u1", at + 12), "flags": ("u1", at + 13),
                "window": (">u2", at + 14),
            }  # fmt: skip
        else:
            fields |= {"stated": (">u2", at + 4)}
        formats, offsets = zip(*fields.values(), strict=True)
        offsets = tuple(_LINK_BYTES + field_offset for field_offset in offsets)
        return np.dtype({"names": [*fields], "formats": formats, "offsets": offsets, "itemsize": width})


_IPV4_FIELDS = {
    "size": (">u2", 2), "still": (">u4", 6), "source": (">u4", 12), "target": (">u4", 16), "end0": ("u8", 12),
}  # fmt: skip
_IPV6_FIELDS = {
    "size": (">u2", 4), "still": (">u2", 6), "end0": ("u8", 8), "end1": ("u8", 16), "end2": ("u8", 24),
    "end3": ("u8", 32), "source": (">u8", 8), "source_low": (">u8", 16), "target": (">u8", 24),
    "target_low": (">u8", 32),
}  # fmt: skip
_LAYOUTS = (
    _Layout(4, TCP, 20, 20, 0x08004500, 0xFFFFFF00, TCP, 0x3FFF00FF, _IPV4_FIELDS, 1),
    _Layout(4, UDP, 20, 20, 0x08004500, 0xFFFFFF00, UDP, 0x3FFF00FF, _IPV4_FIELDS, 1),
    _Layout(6, TCP, 40, 0, 0x86DD6000, 0xFFFFF000, TCP << 8, 0xFF00, _IPV6_FIELDS, 4),
    _Layout(6, UDP, 40, 0, 0x86DD6000, 0xFFFFF000, UDP << 8, 0xFF00, _IPV6_FIELDS, 4),
)
_SHORTEST, _WIDEST = min(layout.size for layout in _LAYOUTS), max(layout.size for layout in _LAYOUTS)


class Plain:
    """A decoder of plain packets, batch after batch."""

    def __init__(self, buffer: Buffer, names: Names) -> None:
        import numpy as np

        self._buffer, self._names = buffer, names
        self._recent: dict[tuple[int, int], Recent] = {}
        self._is_tunnel_port = np.zeros(1 << 16, bool)
        self._is_tunnel_port[list(PORTS)] = True

    def columns(self, batch: Batch) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Yield the rows of plain packets and their values in the columns of ``Packets``, for each IP version."""
        import numpy as np

        is_long = batch.captured >= _SHORTEST
        # Without this, one short frame at the end of the file would narrow the view of all frames.
        is_long &= batch.offset <= len(self._buffer) - _LAYOUTS[0].size
        rows = _rows_where((batch.link_type == _ETHERNET) & is_long)
        offset = batch.offset[rows]
        if not len(offset):
            return
        width = min(_WIDEST, len(self._buffer) - int(offset[-1]))  # the last frame of the file may be short
        view: Any = np.ndarray((len(self._buffer) - width + 1,), f"V{width}", self._buffer, strides=(1,))
        frames, captured = view[offset], batch.captured[rows]
        opening = frames.view(np.dtype({"names": ["it"], "formats": [">u4"], "offsets": [12], "itemsize": width}))["it"]
        opening = opening.astype(np.uint32)
        for layout in _LAYOUTS:
            is_layout = opening & np.uint32(layout.opening_mask) == layout.opening
            if width < layout.size or not is_layout.any():
                continue
            head = frames.view(layout.dtype(width))
            still = head["still"] & np.dtype(head.dtype["still"]).type(layout.still_mask)
            is_layout &= (still == layout.still) & (captured >= layout.size)
            chosen = _rows_where(is_layout)
            if is_layout.any():
                decoded = self._decode_rows(layout, batch, _select_rows(rows, chosen), _take(head, chosen))
                if decoded is not None:
                    yield decoded

    def _decode_rows(self, layout: _Layout, batch: Batch, rows: Any, head: Any) -> tuple[Any, dict[str, Any]] | None:
        """Decode the plain packets among these rows, whose first bytes are ``head``."""
        import numpy as np

        fixed_bytes = _LINK_BYTES + layout.ip_bytes
        captured, offset, wire = batch.captured[rows], batch.offset[rows], batch.wire[rows]
        counted = head["size"].astype(np.int32)
        room = counted - layout.counted
        header, payload, is_plain = (_measure_tcp if layout.transport == TCP else self._measure_udp)(head, room)
        is_plain &= counted <= wire - (fixed_bytes - layout.counted)
        if not is_plain.all():
            chosen = is_plain.nonzero()[0]
            rows, head = _select_rows(rows, chosen), _take(head, chosen)
            header, payload, captured, offset, wire = (
                column.take(chosen) for column in (header, payload, captured, offset, wire)
            )
        if not len(head):
            return None
        header_end = np.minimum(
            header.astype(np.int64) + fixed_bytes, captured
        )  # a header may be cut within its options
        ends = self._number_ends(layout, head)
        kept_bytes = np.minimum(captured - header_end, payload)
        number = np.arange(len(batch.offset), dtype=np.uint32)[rows] + np.uint32(batch.first)
        columns = {
            "number": number, "time_ns": batch.time_ns[rows], "pair": ends >> 1, "from_high": (ends & 1).astype(bool),
            "wire": wire.astype(np.uint32), "payload": payload.astype(np.uint32), "offset": offset + header_end,
            "kept": kept_bytes.astype(np.uint32), "header": (header_end - fixed_bytes).astype(np.uint8),
        }  # fmt: skip
        for name, kind in _TCP_COLUMNS.items():
            columns[name] = head[name].astype(kind) if layout.transport == TCP else np.zeros(len(head), kind)
        return rows, columns

    def _measure_udp(self, head: Any, room: Any) -> tuple[Any, Any, Any]:
        """Return the sizes of headers and payload, and which rows are plain. Tunnels and sentinels are not."""
        import numpy as np

        stated = head["stated"].astype(np.int32)
        is_plain = (stated >= _HEADER_BYTES[UDP]) & (stated <= room)
        is_plain &= ~(self._is_tunnel_port[head["source_port"]] | self._is_tunnel_port[head["target_port"]])
        is_plain &= head["target"] != SENTINEL_ADDRESS  # an IPv6 address with the same upper half is just slow
        return np.full(len(head), _HEADER_BYTES[UDP], np.uint8), stated - _HEADER_BYTES[UDP], is_plain

    def _number_ends(self, layout: _Layout, head: Any) -> Any:
        """Return twice the number of the pair of endpoints, plus one if the high endpoint sent."""
        words = [head[f"end{number}"].astype("u8") for number in range(layout.ends)]
        words.append(head["ports"].astype("u8"))

        def look_up(rows: Any) -> Any:
            part, names = _take(head, rows), self._names
            if layout.version == 4:
                source, target = part["source"].astype("u8"), part["target"].astype("u8")
            else:
                source = names.number_ipv6(part["source"].astype("u8"), part["source_low"].astype("u8"))
                target = names.number_ipv6(part["target"].astype("u8"), part["target_low"].astype("u8"))
            between, low_first = names.number_address_pairs(source, target, layout.version)
            ports = (part["source_port"].astype("i8"), part["target_port"].astype("i8"))
            pair, from_high = names.number_endpoint_pairs(between, low_first, *ports, int(layout.transport == TCP))
            return pair * 2 + from_high

        kind = (layout.version, layout.transport)
        if kind not in self._recent:  # created on demand, because that takes as long as a thousand packets
            self._recent[kind] = Recent(len(words))
        return self._recent[kind].assign_numbers(words, look_up)


def _measure_tcp(head: Any, room: Any) -> tuple[Any, Any, Any]:
    """Return the sizes of headers and payload, and which rows are plain."""
    import numpy as np

    header = head["header"] >> 2 & np.uint8(0x3C)
    payload = room - header
    return header, payload, (header >= _HEADER_BYTES[TCP]) & (payload >= 0)


def _take(head: Any, rows: Any) -> Any:
    """Return these rows of a structured array, as plain bytes since numpy would copy field by field."""
    return head.view(f"V{head.itemsize}")[rows].view(head.dtype)


def _rows_where(condition: Any) -> Any:
    """Return the rows where the condition holds, or a slice if it holds for all, so that nothing is copied."""
    return slice(None) if condition.all() else condition.nonzero()[0]


def _select_rows(rows: Any, chosen: Any) -> Any:
    """Return the chosen ones of these rows."""
    return chosen if isinstance(rows, slice) else rows[chosen]
