"""Multipart uploads: metadata and content in one body, taken apart while it arrives.

What may live here: reading ``multipart/related`` as clients write it, however it is labelled. Google's own client for
Python ends lines by a line feed alone.
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
        blob: the content; None as long as the body is not complete, or if it is malformed.
    """

    def __init__(self, content_type: bytes) -> None:
        found = _BOUNDARY.search(content_type)
        self._mark = b"--" + (found[1] or found[2]) if found else b""
        self._is_malformed = found is None or not content_type.lower().startswith(b"multipart/")
        self._held = b""
        self._line_end = b""
        self._writer: BlobWriter | None = None
        self.metadata = b""
        self.headers: Mapping[str, str] = {}
        self.blob: Blob | None = None

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        if self._is_malformed or self.blob is not None:
            return
        self._held += piece
        if self._writer is None:
            self._read_head()
        if self._writer is not None:
            self._read_content(self._writer)

    def finish(self) -> MultipartReader:
        """Returns this object, which holds what has been read."""
        return self

    def _read_head(self) -> None:
        """Read everything before the content, as soon as all of it has arrived."""
        held, mark = self._held, self._mark
        first = 0 if held.startswith(mark) else held.find(b"\n" + mark) + 1
        second = held.find(b"\n" + mark, first + len(mark)) + 1
        begin = second + len(mark)
        gap = _GAP.search(held, begin) if second else None
        if gap is None or (first == 0 and not held.startswith(mark)):
            self._is_malformed = len(held) > _MOST_HEAD_BYTES
            return
        self._line_end = b"\r\n" if held.startswith(b"\r\n", begin) else b"\n"
        part = _GAP.split(held[first + len(mark) : second], maxsplit=1)
        if len(part) < 2:
            self._is_malformed = True
            return
        self.metadata = part[1]
        self.headers = _headers(held[begin : gap.start()])
        self._writer = BlobWriter(hashlib.md5(usedforsecurity=False))
        self._held = held[gap.end() :]

    def _read_content(self, writer: BlobWriter) -> None:
        """Pass on what cannot belong to the closing boundary.

        The line end before that boundary is the client's own, as it stands after the boundaries: content that ends
        with a carriage return keeps it.
        """
        held, mark = self._held, self._mark
        is_empty = writer.size_bytes == 0 and held.startswith(mark)
        end = 0 if is_empty else held.find(b"\n" + mark) + 1
        if not end and not is_empty:
            certain = max(0, len(held) - len(mark) - len(b"\r\n"))
            writer.feed(held[:certain])
            self._held = held[certain:]
        elif len(held) >= end + len(mark) + len(b"--"):
            self._is_malformed = not held.startswith(b"--", end + len(mark))
            writer.feed(held[:end].removesuffix(self._line_end))
            self.blob = None if self._is_malformed else writer.finish()
            self._held = b""


@lru_cache(maxsize=64)
def _headers(head: bytes) -> Mapping[str, str]:
    """Returns the headers of a part, which clients repeat word for word."""
    lines = [line.partition(":") for line in head.decode("latin-1").replace("\r", "").split("\n")]
    return MappingProxyType({name.strip().lower(): value.strip() for name, colon, value in lines if colon})
