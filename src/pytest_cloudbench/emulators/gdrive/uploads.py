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
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, flip_bit, hashed
from pytest_cloudbench.emulators.gdrive.answers import DriveError, refused_by_store
from pytest_cloudbench.emulators.gdrive.files import change, make
from pytest_cloudbench.emulators.gdrive.requests import about_file, body_of, checked, params_of
from pytest_cloudbench.emulators.gdrive.state import DriveState, is_document, meta_of
from pytest_cloudbench.emulators.nodes import File, Node, StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Sink

__all__ = ["UNIT_BYTES", "DriveSession", "cancel", "create", "sink_for", "update"]

UNIT_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]+)"|([^;\s]+))""", re.IGNORECASE)
_GAP = re.compile(rb"\r?\n\r?\n")
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
    data: bytearray = field(default_factory=bytearray)
    stored: int = 0
    """How many bytes are certain; ``data`` may hold more while a piece arrives."""

    writer: object = None
    """The piece that is arriving, or the last one that did."""

    @property
    def kept(self) -> int:
        """How many bytes count: of a piece that has not arrived completely, only whole units."""
        return self.stored + (len(self.data) - self.stored) // UNIT_BYTES * UNIT_BYTES

    def settle(self) -> None:
        """Drop what does not count; a piece that is still arriving no longer counts."""
        self.stored, self.writer = self.kept, None
        del self.data[self.stored :]


class _Piece:
    """The sink of one piece: writes into the session while it arrives."""

    def __init__(self, session: DriveSession, skip: int) -> None:
        self._session, self._skip = session, skip
        session.writer = self

    def feed(self, piece: bytes) -> None:
        if self._skip >= len(piece):
            self._skip -= len(piece)
        elif self._session.done is None and self._session.writer is self:
            self._session.data += memoryview(piece)[self._skip :]
            self._skip = 0

    def finish(self) -> object:
        return self


class _Refused:
    """The sink of a piece that is refused."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def feed(self, piece: bytes) -> None:
        return

    def finish(self) -> Answer:
        return self._answer


class _Raw:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def finish(self) -> bytes:
        return b"".join(self._pieces)


def sink_for(state: DriveState) -> Callable[[Call], Sink]:
    """Returns what makes the sink of an upload, by its type."""

    def sink(call: Call) -> Sink:
        params = params_of(call)
        if "upload_id" in params:
            return _piece(state, call, params["upload_id"])
        return BlobWriter(_md5()) if params.get("uploadType") == "media" else _Raw()

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
        return _Raw()  # a question, not a piece
    session.settle()
    if first > session.stored and session.done is None:
        return _Refused(
            _said(
                f"Invalid request.  According to the Content-Range header, the upload offset is {first} byte(s), "
                f"which exceeds already uploaded size of {session.stored} byte(s)."
            )
        )
    return _Piece(session, session.stored - first)


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
        given, data, mime = _parts(call)
        made = _stored(state, call, params, given, hashed(data, _md5()), mime, node)
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
        blob = hashed(flip_bit(blob.data, call.damage), _md5())
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
    if isinstance(call.body, _Piece) and session.writer is not call.body:
        return _incomplete(session)  # another piece came while this one was still arriving
    first, _, size = _content_range(call)
    if first is None and (size is None or session.kept < size):
        return _incomplete(session)
    more = len(session.data) - session.stored
    if b"content-range" in call.headers and (size is None or len(session.data) < size):
        if more >= UNIT_BYTES:
            session.settle()
            return _incomplete(session)
        del session.data[session.stored :]
        return _said(
            "Invalid request.  The number of bytes uploaded is required to be equal or greater than 262144, except "
            "for the final request (it's recommended to be the exact multiple of 262144).  The received request "
            f"contained {more} bytes, which does not meet this requirement."
        )
    blob = hashed(bytes(session.data), _md5())
    session.data.clear()
    session.done = _stored(state, call, session.params, session.given, blob, session.mime, session.node)
    return about_file(state, session.done, call, session.params)


def _incomplete(session: DriveSession) -> Answer:
    headers = [(b"range", b"bytes=0-%d" % (session.kept - 1))] if session.kept else []
    return Answer(308, headers, b"")


# ---------------------------------------------------------------- multipart


def _parts(call: Call) -> tuple[dict[str, Any], bytes, str]:
    """Returns metadata, content and content type of a multipart body, however it is labelled. Raises DriveError."""
    label = call.headers.get(b"content-type", b"").decode("latin-1")
    found = _BOUNDARY.search(label)
    if not label.lower().startswith("multipart/") or found is None:
        raise DriveError(400, "badContent", "Unsupported content with type: " + label.partition(";")[0])
    mark = b"--" + (found[1] or found[2]).encode("latin-1")
    body: bytes = call.body
    places: list[int] = []
    at = body.find(mark) if not body.startswith(mark) else 0
    while at >= 0 and len(places) < 4:
        places.append(at)
        at = body.find(b"\n" + mark, at + len(mark))
        at = at + 1 if at >= 0 else at
    parts = [_part(body[start + len(mark) : end]) for start, end in pairwise(places)]
    if len(parts) != 2:
        raise DriveError(400, "badContent", "Malformed multipart body.")
    (_, metadata), (headers, data) = parts
    if headers.get("content-transfer-encoding", "").lower() == "base64":
        try:
            data = base64.b64decode(data)
        except ValueError:
            raise DriveError(400, "badContent", "Malformed multipart body.") from None
    return checked(metadata), data, headers.get("content-type", "")


def _part(text: bytes) -> tuple[Mapping[str, str], bytes]:
    """Returns headers and content of one part, without the line end that belongs to the next boundary.

    That is the client's own, as it stands after the boundary: Google's client for Python ends lines by a line feed,
    and content that ends with a carriage return keeps it.
    """
    text = text.lstrip(b" \t")
    end = b"\r\n" if text.startswith(b"\r\n") else b"\n"
    text = text[len(end) :]
    if text.startswith((b"\r\n", b"\n")):
        head, rest = b"", text[2:] if text.startswith(b"\r\n") else text[1:]
    else:
        gap = _GAP.search(text)
        if gap is None:
            raise DriveError(400, "badContent", "Malformed multipart body.")
        head, rest = text[: gap.start()], text[gap.end() :]
    return _headers(head), rest.removesuffix(end)


@lru_cache(maxsize=64)
def _headers(head: bytes) -> Mapping[str, str]:
    """Returns the headers of a part, which clients repeat word for word."""
    lines = [line.partition(":") for line in head.decode("latin-1").replace("\r", "").split("\n")]
    return MappingProxyType({name.strip().lower(): value.strip() for name, _, value in lines})
