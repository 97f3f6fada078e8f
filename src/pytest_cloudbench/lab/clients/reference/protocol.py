"""The protocol between the two halves of the reference client: HTTP/1.1 with small bodies of our own.

Both halves read and write messages here. Nothing is decided here.

====================  =====================================  ====================================================
request               body                                   answer
====================  =====================================  ====================================================
``GET /list``                                                JSON: path to SHA-256 of all files
``GET /poll``                                                JSON: how many changes the server has seen
``GET /news``                                                JSON: the same, and path to SHA-256 (null: deleted) of
                                                             what changed after the first ``since`` changes
``POST /content``     JSON: path, SHA-256, offset            content from the offset on, at most ``PIECE_BYTES``, or
                                                             nothing if the file is no longer that version
``POST /have``        SHA-256 digests, 32 bytes each         a byte for each: 1 where the server has the content
``POST /signatures``  JSON: paths                            one ``delta.Signature`` after another
``POST /chunk``       content, maybe deflated                JSON: null. ``session``, ``at``, ``encoding`` in the URL
``POST /files``       an ``UploadEntry`` for each file, and  JSON: for each file null, or why it was not taken
                      the content that it announces
====================  =====================================  ====================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import IO

from pytest_cloudbench.lab.clients.reference.delta import DeltaSegment

PIECE_BYTES = 1 << 18
"""Content is read and written in pieces of this size, whatever the size of a file."""
_LINE_BYTES = 8192
_HEADERS = 100
_LENGTH = struct.Struct("!I")


class WireError(Exception):
    """The other side ended in the middle of a message, or did not speak this protocol."""


class Part:
    """Some bytes of a body that can be produced more than once.

    Args:
        length_bytes: their number.
        pieces: yields them, piece by piece.
    """

    def __init__(self, length_bytes: int, pieces: Callable[[], Iterable[bytes]]) -> None:
        self.length_bytes, self.pieces = length_bytes, pieces

    @classmethod
    def from_bytes(cls, data: bytes) -> Part:
        """Return a part of bytes that are in memory."""
        return cls(len(data), lambda: (data,))


class Limited:
    """The next ``length_bytes`` of a stream, and no more."""

    def __init__(self, file: IO[bytes], length_bytes: int) -> None:
        self._file, self.left_bytes = file, length_bytes

    def read(self, length_bytes: int) -> bytes:
        """Return exactly that many bytes, fewer only at the limit. Raises WireError if the stream ends earlier."""
        allowed_bytes = min(length_bytes, self.left_bytes)
        data = self._file.read(allowed_bytes) if allowed_bytes else b""
        if len(data) < allowed_bytes:
            raise WireError("the other side ended in the middle of a body")
        self.left_bytes -= allowed_bytes
        return data

    def pieces(self, length_bytes: int) -> Iterator[bytes]:
        """Yield exactly that many bytes, in pieces."""
        while length_bytes > 0:
            data = self.read(min(length_bytes, PIECE_BYTES))
            if not data:
                raise WireError("a body is shorter than what it announces")
            length_bytes -= len(data)
            yield data

    def drain(self) -> None:
        """Read the remaining bytes."""
        for _ in self.pieces(self.left_bytes):
            pass


@dataclass(frozen=True, slots=True)
class UploadEntry:
    """One file of a ``/files`` request, or its deletion.

    Attributes:
        path: below the folder, with ``/``.
        sha256: of the whole new content, which the server checks. Empty for a deleted file.
        size_bytes: of the new content.
        segments: the parts that the new content is assembled from.
        base: SHA-256 of the version that ``base`` segments refer to, or empty if there are none.
        session: names the earlier chunks, or empty if there are none.
        at_bytes: the bytes of content that came in these chunks.
        wire_bytes: the number of bytes that follow the entry.
        encoding: of these bytes: ``deflate``, or empty.
    """

    path: str
    sha256: str = ""
    size_bytes: int = 0
    segments: list[DeltaSegment] = field(default_factory=list)
    base: str = ""
    session: str = ""
    at_bytes: int = 0
    wire_bytes: int = 0
    encoding: str = ""

    def pack(self) -> bytes:
        """Return the entry as it goes over the wire, without the content and without empty values."""
        text = json.dumps({key: value for key, value in asdict(self).items() if value}, separators=(",", ":"))
        return _LENGTH.pack(len(text)) + text.encode("ascii")

    @classmethod
    def read(cls, body: Limited) -> UploadEntry:
        """Return the next entry. Raises WireError."""
        try:
            (length,) = _LENGTH.unpack(body.read(_LENGTH.size))
            values = json.loads(body.read(length))
            segments = [DeltaSegment(*row) for row in values.pop("segments", ())]
            return cls(**values, segments=segments)
        except (ValueError, TypeError, struct.error) as error:
            raise WireError(f"an entry cannot be understood: {error}") from error


def format_request_head(method: str, target: str, host: str, token: str, body_bytes: int) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {token}"]
    if method != "GET":
        lines.append(f"Content-Length: {body_bytes}")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def format_answer(status: HTTPStatus, body: bytes) -> bytes:
    """Return a whole answer."""
    return f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def read_head(file: IO[bytes]) -> tuple[str, dict[str, str], int] | None:
    """Return the first line, headers by lower-case name, and length of the body, or None if the stream has ended.

    Raises WireError.
    """
    first = _read_line(file)
    if first is None:
        return None
    headers: dict[str, str] = {}
    while line := _read_line(file):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
        if len(headers) > _HEADERS:
            raise WireError("too many headers")
    if line is None:
        raise WireError("the other side ended in the middle of a head")
    if "transfer-encoding" in headers:
        raise WireError("bodies without a length are not understood")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdecimal():
        raise WireError(f"a body of length {length!r}")
    return first, headers, int(length)


def read_answer(file: IO[bytes]) -> tuple[int, bytes]:
    """Return status and body of an answer. Raises WireError."""
    head = read_head(file)
    if head is None:
        raise WireError("the server closed the connection")
    words = head[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdecimal():
        raise WireError(f"an answer that begins {head[0][:40]!r}")
    return int(words[1]), Limited(file, head[2]).read(head[2])


def _read_line(file: IO[bytes]) -> str | None:
    line = file.readline(_LINE_BYTES + 2)
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise WireError("a line without an end")
    return line.rstrip(b"\r\n").decode("latin-1")
