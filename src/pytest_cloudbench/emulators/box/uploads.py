"""Uploads in one request: the check before an upload, new files and new versions.

What may live here: ``files/content`` with its multipart body, which is hashed while it arrives. The part ``attributes``
comes before the content, which is any part that has a file name. Only a new version can do without it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, hash_blob
from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, json_body, origin, read_time
from pytest_cloudbench.emulators.box.items import chosen, conflict, file_item, query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.nodes import File, Folder
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_GB = 1024**3
MAX_UPLOAD_BYTES = {
    "personal": 250 * 1024**2,
    "starter": 2 * _GB,
    "business": 5 * _GB,
    "business_plus": 15 * _GB,
    "enterprise": 50 * _GB,
    "enterprise_plus": 150 * _GB,
}
"""Largest file by type of account (developer.box.com, "Direct uploads")."""

_BOUNDARY = re.compile(rb'boundary="?([^";,]+)"?', re.IGNORECASE)
_NAME = re.compile(rb'\bname="([^"]*)"')
_MAX_HEAD_BYTES = 64 * 1024


def sha1() -> Any:
    """The hash that Box lists."""
    return hashlib.sha1(usedforsecurity=False)


@dataclass(slots=True)
class _Form:
    """A multipart body: small parts by name, and the content; ``problem`` is an error code, if the body is wrong."""

    parts: dict[str, bytes] = field(default_factory=dict)
    blob: Blob | None = None
    problem: str = ""


class _FormReader:
    """Takes a multipart body apart while it arrives; content is never searched twice."""

    __slots__ = ("_content", "_form", "_held", "_line", "_state")

    def __init__(self, content_type: bytes) -> None:
        found = _BOUNDARY.search(content_type)
        self._form = _Form(problem="" if found else "bad_request")
        self._line = b"\r\n--" + (found[1] if found else b"")
        self._held = b"\r\n"
        self._state = "head" if found else "end"
        self._content: BlobWriter | None = None

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        data = self._held + piece if self._held else piece
        while data:
            if self._state == "end":
                data = b""
            elif self._state == "content":
                data, is_waiting = self._read_content(data)
                if is_waiting:
                    break
            else:
                data, is_waiting = self._read_part(data)
                if is_waiting:
                    break
        self._held = data

    def _read_content(self, data: bytes) -> tuple[bytes, bool]:
        """Returns what is left, and whether that has to wait for more."""
        assert self._content is not None
        end = data.find(self._line)
        if end >= 0:
            self._content.feed(data[:end])
            self._form.blob, self._content, self._state = self._content.finish(), None, "head"
            return data[end:], False
        keep = len(self._line) - 1
        if len(data) > keep:
            self._content.feed(data[:-keep])
            data = data[-keep:]
        return data, True

    def _read_part(self, data: bytes) -> tuple[bytes, bool]:
        """Read a part's headers, and all of a small part. Returns what is left, and whether that has to wait."""
        begin = data.find(self._line)
        if begin < 0:
            return data, self._is_too_long(data)
        after = begin + len(self._line)
        if data[after : after + 2] == b"--":
            self._state = "end"
            return b"", False
        body = data.find(b"\r\n\r\n", after)
        if body < 0:
            return data, self._is_too_long(data)
        head = data[after:body]
        name = _NAME.search(head)
        if b"filename" in head:
            self._content, self._state = BlobWriter(sha1()), "content"
            return data[body + 4 :], False
        end = data.find(self._line, body + 4)
        if end < 0:
            return data, self._is_too_long(data)
        part = name[1].decode("utf-8", "replace") if name else ""
        if part == "attributes" and self._form.blob is not None:
            self._form.problem = "metadata_after_file_contents"
        self._form.parts[part] = data[body + 4 : end]
        return data[end:], False

    def _is_too_long(self, data: bytes) -> bool:
        if len(data) > _MAX_HEAD_BYTES:
            self._form.problem, self._state = "bad_request", "end"
            return False
        return True

    def finish(self) -> _Form:
        """Returns the form."""
        if self._state != "end":
            self._form.problem = self._form.problem or "bad_request"
        return self._form


def _reader(call: Call) -> _FormReader:
    return _FormReader(call.headers.get(b"content-type", b""))


def check_size(state: BoxState, size_bytes: int) -> None:
    """Refuse a size that the account cannot take. Raises BoxError."""
    if size_bytes > MAX_UPLOAD_BYTES[state.account.type]:
        raise BoxError(403, "file_size_limit_exceeded")


def precondition(state: BoxState, call: Call, node: File | Folder) -> None:
    """Refuse a change if the item has changed since the client last saw it. Raises BoxError."""
    wanted = call.headers.get(b"if-match", b"").decode("latin-1").strip('" ')
    if wanted and wanted != "*" and wanted != str(state.meta(node).etag):
        raise BoxError(412, "precondition_failed")


def damaged(blob: Blob, bit: int | None) -> Blob:
    """Returns what is stored: a fault of the profile may flip a bit."""
    return blob if bit is None else hash_blob(blob.flipped(bit), sha1())


def _form(call: Call, *, needs_attributes: bool) -> tuple[dict[str, Any], Blob]:
    """Returns an upload's attributes and content. Raises BoxError."""
    form: _Form = call.body
    if form.problem == "metadata_after_file_contents":
        raise BoxError(400, form.problem)
    if form.problem or form.blob is None:
        raise bad_parameter("file", "'file' is required")
    if needs_attributes and "attributes" not in form.parts:
        raise BoxError(400, "metadata_after_file_contents")
    try:
        attributes = json.loads(form.parts.get("attributes", b"{}").decode())
    except (ValueError, RecursionError):
        attributes = None
    if not isinstance(attributes, dict):
        raise bad_parameter("attributes", "'attributes' is required")
    given = call.headers.get(b"content-md5")
    if given is not None and given.decode("latin-1").lower() != form.blob.hash_hex:
        raise BoxError(400, "bad_digest")
    return attributes, form.blob


def _times(attributes: dict[str, Any], now_s: float) -> tuple[float, float]:
    """Returns when the content was made and changed, as the client says."""
    made, changed = attributes.get("content_created_at"), attributes.get("content_modified_at")
    return (
        now_s if made is None else read_time(made, "content_created_at"),
        now_s if changed is None else read_time(changed, "content_modified_at"),
    )


def _answer(state: BoxState, file: File, call: Call, status: int, names: Sequence[str] | None) -> Answer:
    return answer_json({"total_count": 1, "entries": [file_item(state, file, None, names)]}, status)


def _upload(state: BoxState, call: Call) -> Answer:
    attributes, blob = _form(call, needs_attributes=True)
    folder, name = state.parent_of(attributes), state.checked_name(attributes.get("name"))
    taken = state.taken(folder, name)
    if taken is not None:
        raise conflict(state, taken, as_list=False)
    check_size(state, blob.size_bytes)
    created_s, modified_s = _times(attributes, call.now_s)
    file = state.add_file(folder, name, damaged(blob, call.damage), call.now_s, created_s, modified_s)
    return _answer(state, file, call, 201, chosen(query_of(call)))


def _upload_version(state: BoxState, call: Call) -> Answer:
    attributes, blob = _form(call, needs_attributes=False)
    file = state.file(call.parameters["id"])
    precondition(state, call, file)
    name = state.checked_name(attributes["name"]) if attributes.get("name") is not None else file.name
    assert file.parent is not None
    taken = state.taken(file.parent, name)
    if taken is not None and taken is not file:
        raise conflict(state, taken, as_list=False)
    check_size(state, blob.size_bytes)
    _, modified_s = _times(attributes, call.now_s)
    state.add_version(file, damaged(blob, call.damage), call.now_s, modified_s)
    if name != file.name:
        state.move(file, file.parent, name, call.now_s)
    return _answer(state, file, call, 200, chosen(query_of(call)))


def _ready(state: BoxState, call: Call, place: str) -> Answer:
    url = f"{origin(call, 'upload.box.com')}/api/2.0/files/{place}?upload_session_id={state.number()}"
    return answer_json({"upload_url": url, "upload_token": state.token("", 64)})


def _check_new(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    folder, name = state.parent_of(body), state.checked_name(body.get("name"))
    taken = state.taken(folder, name) or next(state.store.fading(folder, call.now_s, name), None)
    if taken is not None:
        raise conflict(state, taken, as_list=False)
    _check_space(state, body, 0)
    return _ready(state, call, "content")


def _check_version(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    file = state.file(call.parameters["id"])
    folder = state.parent_of(body) if body.get("parent") else file.parent
    assert folder is not None
    taken = state.taken(folder, state.checked_name(body["name"])) if body.get("name") else None
    if taken is not None and taken is not file:
        raise conflict(state, taken, as_list=False)
    _check_space(state, body, file.versions[-1].blob.size_bytes)
    return _ready(state, call, f"{file.id}/content")


def _check_space(state: BoxState, body: dict[str, Any], former_bytes: int) -> None:
    size = body.get("size")
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad_parameter("size", f"Invalid value '{size}'.")
    check_size(state, size)
    if state.store.quota_bytes and state.store.used_bytes + size - former_bytes > state.store.quota_bytes:
        raise BoxError(403, "storage_limit_exceeded")


FUNCTIONS = (
    BoxFunction("POST", "/2.0/files/content", "upload", Kind.WRITE, _upload, _reader),
    BoxFunction("OPTIONS", "/2.0/files/content", "preflight", Kind.META, _check_new),
    BoxFunction("POST", "/2.0/files/{id}/content", "upload_version", Kind.WRITE, _upload_version, _reader),
    BoxFunction("OPTIONS", "/2.0/files/{id}/content", "preflight_version", Kind.META, _check_version),
)
