"""The parts of HTTP that several skins read and write: queries, forms, byte ranges and JSON."""

from __future__ import annotations

import json.encoder
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl


def parse_form(text: bytes) -> dict[str, str]:
    """Return the fields of a query or a form. If a name is repeated, the last value counts."""
    return dict(parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True))


def json_writer(comma: str = ",", colon: str = ":") -> Callable[[Any], bytes]:
    """Return a function that writes values as JSON with these separators.

    ``JSONEncoder`` makes a new encoder in C for each value, which takes a third of the time for a short one. Here one
    encoder serves all values. Where the interpreter has no such encoder, ``JSONEncoder`` does the work.
    """
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        encode = json.JSONEncoder(separators=(comma, colon), check_circular=False).encode
        return lambda value: encode(value).encode()
    text: Any = json.encoder.encode_basestring_ascii
    write = make(None, None, text, None, colon, comma, False, False, True)
    return lambda value: "".join(write(value, 0)).encode()


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
