"""Simple, multipart and resumable uploads (``/upload/drive/v3/files``), for new files and new content.

A resumable session stores pieces while they arrive. If a piece is cut off, its whole units of 256 KiB stay. A client
can ask how much is stored.

==================================  ==========================================================
a piece                             answer
==================================  ==========================================================
is the last                         200, the file
begins where the session ends       308 with ``Range``, once something is stored
begins before that                  the same, after skipping the stored bytes
begins after that                   400
is not the last and under 256 KiB   400
is the last, into a deleted file    404
``bytes */SIZE``                    308 with ``Range``, or 200 and the file if it is complete
==================================  ==========================================================
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, PieceWriter, hash_blob
from pytest_cloudbench.emulators.gdrive.answers import DriveError, file_not_found
from pytest_cloudbench.emulators.gdrive.files import change_file, make_file
from pytest_cloudbench.emulators.gdrive.multipart import MultipartReader
from pytest_cloudbench.emulators.gdrive.requests import (
    GZIP_BITS,
    answer_file,
    is_gzip,
    parse_json_object,
    query_params,
    read_json_body,
)
from pytest_cloudbench.emulators.gdrive.state import DriveState, drive_meta, is_document
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Sink

UNIT_BYTES = 256 * 1024
_NO_BASE64 = re.compile(rb"[^A-Za-z0-9+/=]")
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


@dataclass(slots=True)
class DriveSession:
    """A resumable upload. ``node`` is the file whose content it replaces, or None for a new file."""

    metadata: dict[str, Any]
    params: Mapping[str, str]
    mime: str
    node: Node | None
    stored_node: Node | None = None
    units: BlobWriter = field(default_factory=lambda: BlobWriter(_md5()))
    """Whole units of 256 KiB, which count as soon as they have arrived."""

    tail: bytearray = field(default_factory=bytearray)
    """The bytes after the last whole unit, which count only once their piece is complete."""

    piece: object = None
    """The sink of the piece that is arriving, or of the last piece that has arrived."""

    @property
    def counted_bytes(self) -> int:
        """The number of bytes that count. An incomplete piece counts with its whole units only."""
        return self.units.size_bytes

    @property
    def size_bytes(self) -> int:
        """The number of bytes that have arrived."""
        return self.units.size_bytes + len(self.tail)

    def add(self, data: memoryview) -> None:
        """Add bytes at the end."""
        self.tail += data
        while len(self.tail) >= UNIT_BYTES:
            self.units.feed(bytes(self.tail[:UNIT_BYTES]))
            del self.tail[:UNIT_BYTES]

    def drop_unfinished(self) -> None:
        """Drop the bytes that do not count, and ignore the rest of a piece that is still arriving."""
        self.piece = None
        self.tail.clear()

    def finish(self) -> Blob:
        """Return all bytes that have arrived, and empty the session."""
        self.units.feed(bytes(self.tail))
        blob, self.units = self.units.finish(), BlobWriter(_md5())
        self.tail.clear()
        return blob


class _Piece:
    """The sink of one piece. It writes new bytes into the session, and skips those that the session has already."""

    def __init__(self, session: DriveSession, skipped_bytes: int) -> None:
        self._session, self._skipped_bytes = session, skipped_bytes
        self.received_bytes = 0
        session.piece = self

    def feed(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self._skipped_bytes >= len(data):
            self._skipped_bytes -= len(data)
        elif self._session.stored_node is None and self._session.piece is self:
            self._session.add(memoryview(data)[self._skipped_bytes :])
            self._skipped_bytes = 0

    def finish(self) -> _Piece:
        return self


class _RefusedPiece:
    """The sink of a piece that is refused."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def feed(self, data: bytes) -> None:
        return

    def finish(self) -> Answer:
        return self._answer


class _Unzipped:
    """A sink that decompresses a body, which Google's library for Java compresses with gzip, for another sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._decompressor, self._is_broken = sink, zlib.decompressobj(GZIP_BITS), False

    def feed(self, data: bytes) -> None:
        try:
            self._sink.feed(self._decompressor.decompress(data))
        except zlib.error:
            self._is_broken = True

    def finish(self) -> Any:
        if self._is_broken or not self._decompressor.eof:
            return Answer(400, _TEXT, b"The body is not in the format of gzip.")
        return self._sink.finish()


def sink_factory(state: DriveState) -> Callable[[Call], Sink]:
    """Return the function that makes the sink for the body of an upload."""

    def sink(call: Call) -> Sink:
        return _Unzipped(content_sink(call)) if is_gzip(call) else content_sink(call)

    def content_sink(call: Call) -> Sink:
        params = query_params(call)
        if "upload_id" in params:
            return _piece_sink(state, call, params["upload_id"])
        if params.get("uploadType") == "multipart":
            return MultipartReader(call.headers.get(b"content-type", b""))
        return BlobWriter(_md5())

    return sink


def _parse_content_range(call: Call) -> tuple[int | None, int | None, int | None]:
    """Return the first byte, the last byte and the whole size, each None if unknown. Raises ValueError."""
    header = call.headers.get(b"content-range", b"").decode("latin-1").strip()
    if not header:
        return 0, None, None
    match = _RANGE.fullmatch(header)
    if match is None:
        raise ValueError(header)
    first, last, size = (int(number) if number and number != "*" else None for number in match.groups())
    return first, last, size


def _piece_sink(state: DriveState, call: Call, upload_id: str) -> Sink:
    session: DriveSession | None = state.sessions.get(upload_id)
    if session is None:
        return _RefusedPiece(Answer(404, _TEXT, b"Not Found"))
    try:
        first, _, _ = _parse_content_range(call)
    except ValueError:
        return _RefusedPiece(_plain_refusal("Failed to parse Content-Range header."))
    if first is None:
        return PieceWriter()  # the client only asks how much has been stored
    session.drop_unfinished()
    if first > session.counted_bytes and session.stored_node is None:
        return _RefusedPiece(
            _plain_refusal(
                f"Invalid request.  According to the Content-Range header, the upload offset is {first} byte(s), "
                f"which exceeds already uploaded size of {session.counted_bytes} byte(s)."
            )
        )
    return _Piece(session, session.counted_bytes - first)


def _plain_refusal(message: str) -> Answer:
    return Answer(400, _TEXT, message.encode())


# ---------------------------------------------------------------- requests


def upload_new_file(state: DriveState, call: Call) -> Answer:
    """Upload a new file, or a piece of one."""
    return _handle_upload(state, call, None)


def upload_content(state: DriveState, call: Call) -> Answer:
    """Upload new content of a file, or a piece of it."""
    return _handle_upload(state, call, call.parameters["id"])


def cancel_upload(state: DriveState, call: Call) -> Answer:
    """End a session without making a file."""
    state.sessions.pop(query_params(call).get("upload_id", ""), None)
    return Answer(499, [], b"")


def _handle_upload(state: DriveState, call: Call, file_id: str | None) -> Answer:
    """Answer an upload of any type: whole, with its metadata, or the begin or a piece of a session."""
    params = query_params(call)
    if isinstance(call.body, Answer):
        return call.body
    if "upload_id" in params:
        return _receive_piece(state, call, params["upload_id"])
    node = None if file_id is None else state.find_node(file_id, inf)  # writes see at once what was written
    kind = params.get("uploadType", "")
    if kind == "resumable":
        return _begin_session(state, call, params, node)
    if kind == "media":
        mime = call.headers.get(b"content-type", b"").decode("latin-1")
        return answer_file(state, _store_content(state, call, params, {}, call.body, mime, node), call, params)
    if kind == "multipart":
        metadata, blob, mime = _read_multipart(call)
        stored = _store_content(state, call, params, metadata, blob, mime, node)
        return answer_file(state, stored, call, params)
    if call.method == "POST" and not kind:
        raise DriveError(400, "badRequest", "Bad Request", "uploadType")
    raise DriveError(400, "invalidParameter", f"Invalid upload type {kind}", "uploadType")


def _store_content(
    state: DriveState,
    call: Call,
    params: Mapping[str, str],
    metadata: dict[str, Any],
    blob: Blob,
    mime: str,
    node: Node | None,
) -> Node:
    """Store content in a new or an existing file, and return the file."""
    if call.damage is not None:  # an injected fault corrupts the stored content
        blob = hash_blob(blob.flip_bit(call.damage), _md5())
    if node is None:
        return make_file(state, metadata, blob, mime, call.now_s)
    meta = drive_meta(node)
    if not isinstance(node, File):
        raise DriveError(403, "fileNotDownloadable", "A folder has no content.", "fileId")
    state.require_space(blob.size_bytes, node)
    if metadata or "addParents" in params:
        change_file(state, node, metadata, params, call.now_s)
    if not metadata.get("modifiedTime"):
        meta.modified_s = call.now_s
    if mime and not metadata.get("mimeType") and not is_document(meta.mime):
        meta.mime = mime
    state.add_version(node, blob, call.now_s)
    meta.version += 1
    return node


def _begin_session(state: DriveState, call: Call, params: Mapping[str, str], node: Node | None) -> Answer:
    """Begin a session. Raises DriveError if the file could not be stored in the end."""
    size = call.headers.get(b"x-upload-content-length", b"")
    metadata = read_json_body(call)
    if node is None:
        parents = metadata.get("parents") or ["root"]
        state.find_folder(str(parents[0]) if isinstance(parents, list) else "", call.now_s)
    state.require_space(int(size) if size.isdigit() else 0, node)
    upload_id = state.tokens.next("AE", 62)
    mime = call.headers.get(b"x-upload-content-type", b"").decode("latin-1")
    state.sessions[upload_id] = DriveSession(metadata, params, mime, node)
    host = call.headers.get(b"host", b"www.googleapis.com").decode("latin-1")
    address = f"https://{host}{call.path}?uploadType=resumable&upload_id={upload_id}"
    headers = [(b"location", address.encode("ascii", "replace")), (b"x-guploader-uploadid", upload_id.encode())]
    return Answer(200, headers, b"")


def _receive_piece(state: DriveState, call: Call, upload_id: str) -> Answer:
    """Answer a piece of a session, or a question about the session."""
    session: DriveSession = state.sessions[upload_id]
    if session.stored_node is not None:
        return answer_file(state, session.stored_node, call, session.params)
    piece = call.body if isinstance(call.body, _Piece) else None
    if piece is not None and session.piece is not piece:
        return _answer_incomplete(session, call)  # a later piece began while this one was still arriving
    _, _, size = _parse_content_range(call)
    if piece is None:
        if size is None or session.counted_bytes < size:
            return _answer_incomplete(session, call)
        session.drop_unfinished()
    elif size is not None and session.size_bytes > size:
        session.drop_unfinished()
        return _plain_refusal(
            f"Invalid request.  More bytes were uploaded than the {size} that the Content-Range names."
        )
    elif b"content-range" in call.headers and (size is None or session.size_bytes < size):
        session.drop_unfinished()
        if piece.received_bytes < UNIT_BYTES:
            return _answer_too_short(piece.received_bytes)
        return _answer_incomplete(session, call)
    if session.node is not None and session.node.deleted_s is not None:
        del state.sessions[upload_id]
        raise file_not_found(session.node.id)
    session.stored_node = _store_content(
        state, call, session.params, session.metadata, session.finish(), session.mime, session.node
    )
    return answer_file(state, session.stored_node, call, session.params)


def _answer_incomplete(session: DriveSession, call: Call) -> Answer:
    """Answer with status 308, or with its substitute if the HTTP library of the client would follow a redirect."""
    headers = [(b"range", b"bytes=0-%d" % (session.counted_bytes - 1))] if session.counted_bytes else []
    if call.headers.get(b"x-guploader-no-308", b"").lower() == b"yes":
        return Answer(200, [*headers, (b"x-http-status-code-override", b"308")], b"")
    return Answer(308, headers, b"")


def _answer_too_short(received_bytes: int) -> Answer:
    return _plain_refusal(
        "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except "
        "for the final request (it's recommended to be the exact multiple of 262144).  The received request "
        f"contained {received_bytes} bytes, which does not meet this requirement."
    )


def _decode_base64(content: Blob) -> Blob:
    """Return the bytes of a text in Base64. Raises ValueError."""
    writer, unread = BlobWriter(_md5()), b""
    for chunk in content.chunks():
        unread += _NO_BASE64.sub(b"", chunk)
        whole_bytes = len(unread) // 4 * 4
        writer.feed(base64.b64decode(unread[:whole_bytes]))
        unread = unread[whole_bytes:]
    writer.feed(base64.b64decode(unread))
    return writer.finish()


def _read_multipart(call: Call) -> tuple[dict[str, Any], Blob, str]:
    """Return the metadata, the content and its type from a multipart body. Raises DriveError."""
    label, body = call.headers.get(b"content-type", b"").decode("latin-1"), call.body
    lower_label = label.lower()
    if not lower_label.startswith("multipart/") or "boundary=" not in lower_label:
        raise DriveError(400, "badContent", "Unsupported content with type: " + label.partition(";")[0])
    assert isinstance(body, MultipartReader)
    blob = body.blob
    try:
        if body.headers.get("content-transfer-encoding", "").lower() == "base64" and blob is not None:
            blob = _decode_base64(blob)
    except ValueError:
        blob = None
    if blob is None:
        raise DriveError(400, "badContent", "Malformed multipart body.")
    return parse_json_object(body.metadata), blob, body.headers.get("content-type", "")
