"""The parts of HTTP that several skins read and write: queries, forms, tokens, byte ranges, and long lists."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import parse_qsl

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.skin import Answer, Call

_BATCH_ITEMS = 64


def parse_form(text: bytes) -> dict[str, str]:
    """Return the fields of a query or a form. If a name is repeated, the last value counts."""
    return dict(parse_qsl(text.decode("utf-8", "replace"), keep_blank_values=True))


def encode_base64url(data: bytes) -> str:
    """Return data in base64 for URLs, without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Return what a text in base64 for URLs stands for, with or without padding. Raises ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


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


def answer_range(call: Call, headers: list[tuple[bytes, bytes]], content: BytePieces) -> Answer:
    """Return the answer with a file's content, or with the range of it that the request asks for.

    Its status is 200, 206 for a range, or 416 for one that begins after the end. A client that has the beginning of
    another content, which it names in ``If-Range``, gets the whole.
    """
    size_bytes = content.size_bytes
    bounds = byte_range(call.headers.get(b"range", b""), size_bytes)
    known_etag = call.headers.get(b"if-range")
    if bounds is None or (known_etag is not None and (b"etag", known_etag) not in headers):
        return Answer(200, headers, content)
    start, end = bounds
    if start >= end:
        return Answer(416, [(b"content-range", b"bytes */%d" % size_bytes)], b"")
    ranged_headers = [*headers, (b"content-range", b"bytes %d-%d/%d" % (start, end - 1, size_bytes))]
    return Answer(206, ranged_headers, content.part(start, end))


class ListWriter:
    """A writer of a body with a long list, whose items are JSON text already. ``head`` is what comes before the first.

    The body is in pieces, because a page of a thousand items would take and give back megabytes of memory on its way to
    the client, which takes a fifth of the time of its answer.
    """

    __slots__ = ("_items", "_pieces", "_separator")

    def __init__(self, head: str) -> None:
        self._pieces, self._separator = [head.encode()], ""
        self._items: list[str] = []

    def add(self, item: str) -> None:
        """Add the next item."""
        self._items.append(item)
        if len(self._items) == _BATCH_ITEMS:
            self._write_items()

    def finish(self, tail: str) -> BytePieces:
        """Return the body, which ends with ``tail``."""
        self._write_items()
        return BytePieces([*self._pieces, tail.encode()])

    def _write_items(self) -> None:
        if self._items:
            self._pieces.append(f"{self._separator}{', '.join(self._items)}".encode())
            self._items, self._separator = [], ", "
