"""The parts of HTTP that several skins read and write: queries, forms and byte ranges."""

from __future__ import annotations

from urllib.parse import parse_qsl


def parse_form(text: bytes) -> dict[str, str]:
    """Return the fields of a query or a form. If a name is repeated, the last value counts."""
    return dict(parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True))


def byte_range(header: bytes, size_bytes: int) -> tuple[int, int] | None:
    """Return start and end of one byte range, or None if the header is invalid, which HTTP says to ignore.

    An empty range, which begins after the end of the content, has ``start >= end``: status 416.
    """
    unit, _, spec = header.partition(b"=")
    first, dash, last = spec.strip().partition(b"-")
    if unit.strip() != b"bytes" or not dash or b"," in spec:
        return None
    if not (first or last) or not all(part.isdigit() for part in (first, last) if part):
        return None
    if not first:
        return max(0, size_bytes - int(last)), size_bytes
    return int(first), min(size_bytes, int(last) + 1) if last else size_bytes
