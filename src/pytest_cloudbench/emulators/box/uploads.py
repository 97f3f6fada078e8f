"""Uploads in one request: the check before an upload, new files and new versions.

The multipart body of ``files/content`` is hashed while it arrives. Its part ``attributes`` comes before the content,
which is any part that has a file name. Only a new version can do without attributes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, hash_blob
from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, host_url, json_body, read_time
from pytest_cloudbench.emulators.box.items import file_item, name_conflict, read_query, requested_fields
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


def new_sha1() -> Any:
    """Return a new hash of the kind that Box lists."""
    return hashlib.sha1(usedforsecurity=False)


@dataclass(slots=True)
class _Form:
    """A multipart body: small parts by name, and the content. ``problem`` is the error code of an invalid one."""

    parts: dict[str, bytes] = field(default_factory=dict)
    blob: Blob | None = None
    problem: str = ""


class _FormReader:
    """A parser of a multipart body that works while the body arrives. It never searches content twice."""

    __slots__ = ("_boundary_line", "_content", "_form", "_state", "_unread")

    def __init__(self, content_type: bytes) -> None:
        boundary = _BOUNDARY.search(content_type)
        self._form = _Form(problem="" if boundary else "bad_request")
        self._boundary_line = b"\r\n--" + (boundary[1] if boundary else b"")
        self._unread = b"\r\n"
        self._state = "head" if boundary else "end"
        self._content: BlobWriter | None = None

    def feed(self, piece: bytes) -> None:
        """Add the next piece."""
        data = self._unread + piece if self._unread else piece
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
        self._unread = data

    def _read_content(self, data: bytes) -> tuple[bytes, bool]:
        """Read content. Return the unread bytes, and whether they have to wait for more."""
        assert self._content is not None
        end = data.find(self._boundary_line)
        if end >= 0:
            self._content.feed(data[:end])
            self._form.blob, self._content, self._state = self._content.finish(), None, "head"
            return data[end:], False
        kept_bytes = len(self._boundary_line) - 1
        if len(data) > kept_bytes:
            self._content.feed(data[:-kept_bytes])
            data = data[-kept_bytes:]
        return data, True

    def _read_part(self, data: bytes) -> tuple[bytes, bool]:
        """Read a part's headers, and all of a small part. Return the unread bytes, and whether they have to wait."""
        begin = data.find(self._boundary_line)
        if begin < 0:
            return data, self._is_too_long(data)
        head_start = begin + len(self._boundary_line)
        if data[head_start : head_start + 2] == b"--":
            self._state = "end"
            return b"", False
        head_end = data.find(b"\r\n\r\n", head_start)
        if head_end < 0:
            return data, self._is_too_long(data)
        header = data[head_start:head_end]
        name = _NAME.search(header)
        if b"filename" in header:
            self._content, self._state = BlobWriter(new_sha1()), "content"
            return data[head_end + 4 :], False
        end = data.find(self._boundary_line, head_end + 4)
        if end < 0:
            return data, self._is_too_long(data)
        part = name[1].decode("utf-8", "replace") if name else ""
        if part == "attributes" and self._form.blob is not None:
            self._form.problem = "metadata_after_file_contents"
        self._form.parts[part] = data[head_end + 4 : end]
        return data[end:], False

    def _is_too_long(self, data: bytes) -> bool:
        if len(data) > _MAX_HEAD_BYTES:
            self._form.problem, self._state = "bad_request", "end"
            return False
        return True

    def finish(self) -> _Form:
        """Return the form."""
        if self._state != "end":
            self._form.problem = self._form.problem or "bad_request"
        return self._form


def _make_form_reader(call: Call) -> _FormReader:
    return _FormReader(call.headers.get(b"content-type", b""))


def check_size(state: BoxState, size_bytes: int) -> None:
    """Raise BoxError if the account does not accept files of this size."""
    if size_bytes > MAX_UPLOAD_BYTES[state.account.type]:
        raise BoxError(403, "file_size_limit_exceeded")


def check_space(state: BoxState, more_bytes: int) -> None:
    """Raise BoxError if the account has no space for this many additional bytes."""
    if state.store.quota_bytes and state.store.used_bytes + more_bytes > state.store.quota_bytes:
        raise BoxError(403, "storage_limit_exceeded")


def check_precondition(state: BoxState, call: Call, node: File | Folder) -> None:
    """Raise BoxError if the item has changed since the client last saw it."""
    expected_etag = call.headers.get(b"if-match", b"").decode("latin-1").strip('" ')
    if expected_etag and expected_etag != "*" and expected_etag != str(state.meta(node).etag):
        raise BoxError(412, "precondition_failed")


def flip_damaged_bit(blob: Blob, bit: int | None) -> Blob:
    """Return the content to store, in which a fault of the profile may flip a bit."""
    return blob if bit is None else hash_blob(blob.flip_bit(bit), new_sha1())


def _read_form(call: Call, *, needs_attributes: bool) -> tuple[dict[str, Any], Blob]:
    """Return an upload's attributes and content. Raises BoxError."""
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
    md5 = call.headers.get(b"content-md5")
    if md5 is not None and md5.decode("latin-1").lower() != form.blob.hash_hex:
        raise BoxError(400, "bad_digest")
    return attributes, form.blob


def _read_times(attributes: dict[str, Any], now_s: float) -> tuple[float, float]:
    """Return when the content was created and modified, according to the client."""
    created, modified = attributes.get("content_created_at"), attributes.get("content_modified_at")
    return (
        now_s if created is None else read_time(created, "content_created_at"),
        now_s if modified is None else read_time(modified, "content_modified_at"),
    )


def _answer_file(state: BoxState, file: File, call: Call, status: int, names: Sequence[str] | None) -> Answer:
    return answer_json({"total_count": 1, "entries": [file_item(state, file, None, names)]}, status)


def _upload_file(state: BoxState, call: Call) -> Answer:
    attributes, blob = _read_form(call, needs_attributes=True)
    folder, name = state.find_parent(attributes), state.check_name(attributes.get("name"))
    existing = state.find_by_name(folder, name)
    if existing is not None:
        raise name_conflict(state, existing, as_list=False)
    check_size(state, blob.size_bytes)
    created_s, modified_s = _read_times(attributes, call.now_s)
    file = state.add_file(folder, name, flip_damaged_bit(blob, call.damage), call.now_s, created_s, modified_s)
    return _answer_file(state, file, call, 201, requested_fields(read_query(call)))


def _upload_version(state: BoxState, call: Call) -> Answer:
    attributes, blob = _read_form(call, needs_attributes=False)
    file = state.find_file(call.parameters["id"])
    check_precondition(state, call, file)
    name = state.check_name(attributes["name"]) if attributes.get("name") is not None else file.name
    assert file.parent is not None
    existing = state.find_by_name(file.parent, name)
    if existing is not None and existing is not file:
        raise name_conflict(state, existing, as_list=False)
    check_size(state, blob.size_bytes)
    _, modified_s = _read_times(attributes, call.now_s)
    state.add_version(file, flip_damaged_bit(blob, call.damage), call.now_s, modified_s)
    if name != file.name:
        state.move(file, file.parent, name, call.now_s)
    return _answer_file(state, file, call, 200, requested_fields(read_query(call)))


def _answer_preflight(state: BoxState, call: Call, path: str) -> Answer:
    url = f"{host_url(call, 'upload.box.com')}/api/2.0/files/{path}?upload_session_id={state.next_id()}"
    return answer_json({"upload_url": url, "upload_token": state.random_token("", 64)})


def _check_new_file(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    folder, name = state.find_parent(body), state.check_name(body.get("name"))
    existing = state.find_by_name(folder, name) or next(state.store.fading(folder, call.now_s, name), None)
    if existing is not None:
        raise name_conflict(state, existing, as_list=False)
    _check_size_and_space(state, body, 0)
    return _answer_preflight(state, call, "content")


def _check_new_version(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    file = state.find_file(call.parameters["id"])
    folder = state.find_parent(body) if body.get("parent") else file.parent
    assert folder is not None
    existing = state.find_by_name(folder, state.check_name(body["name"])) if body.get("name") else None
    if existing is not None and existing is not file:
        raise name_conflict(state, existing, as_list=False)
    _check_size_and_space(state, body, file.versions[-1].blob.size_bytes)
    return _answer_preflight(state, call, f"{file.id}/content")


def _check_size_and_space(state: BoxState, body: dict[str, Any], former_bytes: int) -> None:
    size = body.get("size")
    if size is None:
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad_parameter("size", f"Invalid value '{size}'.")
    check_size(state, size)
    check_space(state, size - former_bytes)


FUNCTIONS = (
    BoxFunction("POST", "/2.0/files/content", "upload", Kind.WRITE, _upload_file, _make_form_reader),
    BoxFunction("OPTIONS", "/2.0/files/content", "preflight", Kind.META, _check_new_file),
    BoxFunction("POST", "/2.0/files/{id}/content", "upload_version", Kind.WRITE, _upload_version, _make_form_reader),
    BoxFunction("OPTIONS", "/2.0/files/{id}/content", "preflight_version", Kind.META, _check_new_version),
)
