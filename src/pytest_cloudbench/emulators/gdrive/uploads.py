"""Uploads: simple, multipart and resumable, for new files and new content.

What may live here: ``/upload/drive/v3/files``. A resumable session takes pieces as they arrive. Of a piece that is cut
off it keeps whole units of 256 KiB, and a client can ask how much it has.

==================================  ==========================================================
a piece                             answer
==================================  ==========================================================
is the last                         200, the file
begins where the session ends       308 with ``Range``, once something is stored
begins before that                  the same; what is there already is skipped
begins after that                   400
is not the last and under 256 KiB   400
``bytes */SIZE``                    308 with ``Range``, or 200 and the file if it is complete
==================================  ==========================================================
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, PieceWriter, hashed
from pytest_cloudbench.emulators.gdrive.answers import DriveError, refused_by_store
from pytest_cloudbench.emulators.gdrive.files import change, make
from pytest_cloudbench.emulators.gdrive.multipart import MultipartReader
from pytest_cloudbench.emulators.gdrive.requests import about_file, body_of, checked, params_of
from pytest_cloudbench.emulators.gdrive.state import DriveState, is_document, meta_of
from pytest_cloudbench.emulators.nodes import File, Node, StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Sink

UNIT_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


@dataclass(slots=True)
class DriveSession:
    """A resumable upload. ``node`` is the file whose content it replaces; None for a new one."""

    given: dict[str, Any]
    params: Mapping[str, str]
    mime: str
    node: Node | None
    done: Node | None = None
    units: BlobWriter = field(default_factory=lambda: BlobWriter(_md5()))
    """Whole units of 256 KiB: they count as soon as they have arrived."""

    tail: bytearray = field(default_factory=bytearray)
    """What has arrived after the last whole unit; it counts only if the piece arrives completely."""

    piece: object = None
    """The piece that is arriving, or the last one that did."""

    @property
    def kept_bytes(self) -> int:
        """How many bytes count: of a piece that has not arrived completely, only whole units."""
        return self.units.size_bytes

    @property
    def size_bytes(self) -> int:
        """How many bytes have arrived."""
        return self.units.size_bytes + len(self.tail)

    def add(self, data: memoryview) -> None:
        """Add bytes at the end."""
        self.tail += data
        while len(self.tail) >= UNIT_BYTES:
            self.units.feed(bytes(self.tail[:UNIT_BYTES]))
            del self.tail[:UNIT_BYTES]

    def settle(self) -> None:
        """Drop what does not count; a piece that is still arriving no longer counts."""
        self.piece = None
        self.tail.clear()

    def finish(self) -> Blob:
        """Returns all that has arrived; the session holds nothing afterwards."""
        self.units.feed(bytes(self.tail))
        blob, self.units = self.units.finish(), BlobWriter(_md5())
        self.tail.clear()
        return blob


class _Piece:
    """The sink of one piece: writes into the session while it arrives. It skips what the session has already."""

    def __init__(self, session: DriveSession, skipped_bytes: int) -> None:
        self._session, self._skipped_bytes = session, skipped_bytes
        self._start_bytes = session.kept_bytes
        session.piece = self

    @property
    def new_bytes(self) -> int:
        """How many bytes of the piece are new."""
        return self._session.size_bytes - self._start_bytes

    def feed(self, data: bytes) -> None:
        if self._skipped_bytes >= len(data):
            self._skipped_bytes -= len(data)
        elif self._session.done is None and self._session.piece is self:
            self._session.add(memoryview(data)[self._skipped_bytes :])
            self._skipped_bytes = 0

    def finish(self) -> _Piece:
        return self


class _Refused:
    """The sink of a piece that is refused."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def feed(self, data: bytes) -> None:
        return

    def finish(self) -> Answer:
        return self._answer


def sink_for(state: DriveState) -> Callable[[Call], Sink]:
    """Returns what makes the sink of an upload, by its type."""

    def sink(call: Call) -> Sink:
        params = params_of(call)
        if "upload_id" in params:
            return _piece(state, call, params["upload_id"])
        if params.get("uploadType") == "multipart":
            return MultipartReader(call.headers.get(b"content-type", b""))
        return BlobWriter(_md5())

    return sink


def _content_range(call: Call) -> tuple[int | None, int | None, int | None]:
    """Returns first byte, last byte and whole size of a piece, as far as they are known. Raises ValueError."""
    header = call.headers.get(b"content-range", b"").decode("latin-1").strip()
    if not header:
        return 0, None, None
    found = _RANGE.fullmatch(header)
    if found is None:
        raise ValueError(header)
    first, last, size = (int(each) if each and each != "*" else None for each in found.groups())
    return first, last, size


def _piece(state: DriveState, call: Call, upload_id: str) -> Sink:
    session: DriveSession | None = state.sessions.get(upload_id)
    if session is None:
        return _Refused(Answer(404, _TEXT, b"Not Found"))
    try:
        first, _, _ = _content_range(call)
    except ValueError:
        return _Refused(_said("Failed to parse Content-Range header."))
    if first is None:
        return PieceWriter()  # a question, not a piece
    session.settle()
    if first > session.kept_bytes and session.done is None:
        return _Refused(
            _said(
                f"Invalid request.  According to the Content-Range header, the upload offset is {first} byte(s), "
                f"which exceeds already uploaded size of {session.kept_bytes} byte(s)."
            )
        )
    return _Piece(session, session.kept_bytes - first)


def _said(text: str) -> Answer:
    return Answer(400, _TEXT, text.encode())


# ---------------------------------------------------------------- requests


def create(state: DriveState, call: Call) -> Answer:
    """A new file, or a piece of one."""
    return _upload(state, call, None)


def update(state: DriveState, call: Call) -> Answer:
    """New content of a file, or a piece of it."""
    return _upload(state, call, call.parameters["id"])


def cancel(state: DriveState, call: Call) -> Answer:
    """End a session without making a file."""
    state.sessions.pop(params_of(call).get("upload_id", ""), None)
    return Answer(499, [], b"")


def _upload(state: DriveState, call: Call, file_id: str | None) -> Answer:
    params = params_of(call)
    if "upload_id" in params:
        return _take(state, call, params["upload_id"])
    node = None if file_id is None else state.find(file_id, call.now_s)
    kind = params.get("uploadType", "")
    if kind == "resumable":
        return _begin(state, call, params, node)
    if kind == "media":
        mime = call.headers.get(b"content-type", b"").decode("latin-1")
        return about_file(state, _stored(state, call, params, {}, call.body, mime, node), call, params)
    if kind == "multipart":
        given, blob, mime = _parts(call)
        made = _stored(state, call, params, given, blob, mime, node)
        return about_file(state, made, call, params)
    if call.method == "POST" and not kind:
        raise DriveError(400, "badRequest", "Bad Request", "uploadType")
    raise DriveError(400, "invalidParameter", f"Invalid upload type {kind}", "uploadType")


def _stored(
    state: DriveState,
    call: Call,
    params: Mapping[str, str],
    given: dict[str, Any],
    blob: Blob,
    mime: str,
    node: Node | None,
) -> Node:
    """Store content that has arrived, in a new or an existing file; returns the file."""
    if call.damage is not None:  # a fault of the profile: what is stored is not what came
        blob = hashed(blob.flipped(call.damage), _md5())
    if node is None:
        return make(state, given, blob, mime, call.now_s)
    meta = meta_of(node)
    if not isinstance(node, File):
        raise DriveError(403, "fileNotDownloadable", "A folder has no content.", "fileId")
    if given or "addParents" in params:
        change(state, node, given, params, call.now_s)
    if not given.get("modifiedTime"):
        meta.modified_s = call.now_s
    if mime and not given.get("mimeType") and not is_document(meta.mime):
        meta.mime = mime
    state.write(node, blob, call.now_s)
    meta.version += 1
    return node


def _begin(state: DriveState, call: Call, params: Mapping[str, str], node: Node | None) -> Answer:
    """Open a session. What cannot be stored is refused here."""
    size = call.headers.get(b"x-upload-content-length", b"")
    given = body_of(call)
    if node is None:
        parents = given.get("parents") or ["root"]
        state.folder(str(parents[0]) if isinstance(parents, list) else "", call.now_s)
    try:
        state.store.require_space(int(size) if size.isdigit() else 0)
    except StoreError as error:
        raise refused_by_store(error) from None
    upload_id = state.tokens.next("AE", 62)
    mime = call.headers.get(b"x-upload-content-type", b"").decode("latin-1")
    state.sessions[upload_id] = DriveSession(given, params, mime, node)
    host = call.headers.get(b"host", b"www.googleapis.com").decode("latin-1")
    place = f"https://{host}{call.path}?uploadType=resumable&upload_id={upload_id}"
    headers = [(b"location", place.encode("ascii", "replace")), (b"x-guploader-uploadid", upload_id.encode())]
    return Answer(200, headers, b"")


def _take(state: DriveState, call: Call, upload_id: str) -> Answer:
    """One piece of a session has arrived, or a question."""
    if isinstance(call.body, Answer):
        return call.body
    session: DriveSession = state.sessions[upload_id]
    if session.done is not None:
        return about_file(state, session.done, call, session.params)
    piece = call.body if isinstance(call.body, _Piece) else None
    if piece is not None and session.piece is not piece:
        return _incomplete(session, call)  # another piece came while this one was still arriving
    _, _, size = _content_range(call)
    if piece is None:
        if size is None or session.kept_bytes < size:
            return _incomplete(session, call)
        session.settle()
    elif size is not None and session.size_bytes > size:
        session.settle()
        return _said(f"Invalid request.  More bytes were uploaded than the {size} that the Content-Range names.")
    elif b"content-range" in call.headers and (size is None or session.size_bytes < size):
        new_bytes = piece.new_bytes
        session.settle()
        return _incomplete(session, call) if new_bytes >= UNIT_BYTES else _too_short(new_bytes)
    session.done = _stored(state, call, session.params, session.given, session.finish(), session.mime, session.node)
    return about_file(state, session.done, call, session.params)


def _incomplete(session: DriveSession, call: Call) -> Answer:
    """Status 308, or what replaces it for a client whose HTTP library would take that for a redirect."""
    headers = [(b"range", b"bytes=0-%d" % (session.kept_bytes - 1))] if session.kept_bytes else []
    if call.headers.get(b"x-guploader-no-308", b"").lower() == b"yes":
        return Answer(200, [*headers, (b"x-http-status-code-override", b"308")], b"")
    return Answer(308, headers, b"")


def _too_short(new_bytes: int) -> Answer:
    return _said(
        "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except "
        "for the final request (it's recommended to be the exact multiple of 262144).  The received request "
        f"contained {new_bytes} bytes, which does not meet this requirement."
    )


def _parts(call: Call) -> tuple[dict[str, Any], Blob, str]:
    """Returns metadata, content and content type of a multipart body. Raises DriveError."""
    label, body = call.headers.get(b"content-type", b"").decode("latin-1"), call.body
    if not label.lower().startswith("multipart/") or "boundary=" not in label.lower():
        raise DriveError(400, "badContent", "Unsupported content with type: " + label.partition(";")[0])
    assert isinstance(body, MultipartReader)
    blob = body.blob
    try:
        if body.headers.get("content-transfer-encoding", "").lower() == "base64" and blob is not None:
            blob = hashed(base64.b64decode(blob.data), _md5())
    except ValueError:
        blob = None
    if blob is None:
        raise DriveError(400, "badContent", "Malformed multipart body.")
    return checked(body.metadata), blob, body.headers.get("content-type", "")
