"""A reader of multipart uploads (metadata and content in one body), which works while the body arrives.

It accepts ``multipart/related`` in all forms that clients write, and other multipart types. Google's own client
for Python ends lines with a line feed alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from pytest_cloudbench.emulators.blob import Blob, BlobWriter

_BOUNDARY = re.compile(rb"""boundary=(?:"([^"]+)"|([^;\s]+))""", re.IGNORECASE)
_GAP = re.compile(rb"\r?\n\r?\n")
_MOST_HEAD_BYTES = 1024 * 1024


class MultipartReader:
    """The sink of a multipart body, see ``skin.Sink``: one part of metadata, then one of content.

    Attributes:
        metadata: the first part.
        headers: the headers of the second part, by name in lower case.
        blob: the content, or None while the body is incomplete and if it is malformed.
    """

    def __init__(self, content_type: bytes) -> None:
        match = _BOUNDARY.search(content_type)
        self._delimiter = b"--" + (match[1] or match[2]) if match else b""
        self._line_start = b"\n" + self._delimiter
        self._is_malformed = match is None or not content_type.lower().startswith(b"multipart/")
        self._buffer, self._content_start = b"", 0
        self._line_end = b""
        self._writer: BlobWriter | None = None
        self.metadata = b""
        self.headers: Mapping[str, str] = {}
        self.blob: Blob | None = None

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        if self._is_malformed or self.blob is not None:
            return
        self._buffer += piece
        if self._writer is None:
            self._read_head()
        if self._writer is not None:
            self._read_content(self._writer)

    def finish(self) -> MultipartReader:
        """Return this object, which holds the parts of the body."""
        return self

    def _read_head(self) -> None:
        """Read everything before the content once all of it has arrived."""
        buffer, delimiter = self._buffer, self._delimiter
        first = 0 if buffer.startswith(delimiter) else buffer.find(self._line_start) + 1
        metadata_start = first + len(delimiter)
        second = buffer.find(self._line_start, metadata_start) + 1
        headers_start = second + len(delimiter)
        gap = _GAP.search(buffer, headers_start) if second else None
        if gap is None or (first == 0 and not buffer.startswith(delimiter)):
            self._is_malformed = len(buffer) > _MOST_HEAD_BYTES
            return
        self._line_end = b"\r\n" if buffer.startswith(b"\r\n", headers_start) else b"\n"
        metadata_gap = _GAP.search(buffer, metadata_start, second)
        if metadata_gap is None:
            self._is_malformed = True
            return
        self.metadata = buffer[metadata_gap.end() : second]
        self.headers = _parse_headers(buffer[headers_start : gap.start()])
        self._writer = BlobWriter(hashlib.md5(usedforsecurity=False))
        self._content_start = gap.end()

    def _read_content(self, writer: BlobWriter) -> None:
        """Write the bytes that cannot belong to the closing boundary.

        Only the kind of line end that the client writes after its boundaries is cut off before the closing one, so
        content that ends with a carriage return keeps it.
        """
        buffer, delimiter, start = self._buffer, self._delimiter, self._content_start
        is_empty = writer.size_bytes == 0 and buffer.startswith(delimiter, start)
        end = start if is_empty else buffer.find(self._line_start, start) + 1
        if not end and not is_empty:
            certain = max(start, len(buffer) - len(delimiter) - len(b"\r\n"))
            writer.feed(buffer[start:certain])
            self._buffer, self._content_start = buffer[certain:], 0
        elif len(buffer) >= end + len(delimiter) + len(b"--"):
            self._is_malformed = not buffer.startswith(b"--", end + len(delimiter))
            has_line_end = buffer.endswith(self._line_end, start, end)
            writer.feed(buffer[start : end - len(self._line_end) if has_line_end else end])
            self.blob = None if self._is_malformed else writer.finish()
            self._buffer = b""


@lru_cache(maxsize=64)
def _parse_headers(head: bytes) -> Mapping[str, str]:
    """Return the headers of a part. They are cached, since clients repeat them word for word."""
    lines = [line.partition(":") for line in head.decode("latin-1").replace("\r", "").split("\n")]
    return MappingProxyType({name.strip().lower(): value.strip() for name, colon, value in lines if colon})
