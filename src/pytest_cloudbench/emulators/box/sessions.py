"""Uploads in parts: upload sessions, whose part size the service dictates.

A part is never replaced. The commit checks the digest of the whole file, and is answered by 202 while the service still
works on the parts (``jobs`` of the profile).
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BlobWriter, BytePieces, hash_blob
from pytest_cloudbench.emulators.box.answers import (
    BoxError,
    answer_json,
    bad_parameter,
    empty_answer,
    host_url,
    json_body,
    read_time,
    timestamp,
)
from pytest_cloudbench.emulators.box.items import file_item, name_conflict, read_number, read_query
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, PartsSession
from pytest_cloudbench.emulators.box.uploads import (
    check_precondition,
    check_size,
    check_space,
    flip_damaged_bit,
    new_sha1,
)
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

MIN_SESSION_BYTES = 20_000_000
"""The smallest file for an upload in parts (developer.box.com, "Chunked uploads": 20 MB)."""

_LIFE_S = 7 * 86_400
"""Sessions are valid for seven days (the same page)."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def _read_size(state: BoxState, body: dict[str, Any], former_bytes: int = 0) -> int:
    """Return the size of the file that a session is for, which replaces ``former_bytes``. Raises BoxError."""
    size = body.get("file_size")
    if size is None:
        raise bad_parameter("file_size", "'file_size' is required", code="missing_file_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad_parameter("file_size", f"Invalid value '{size}'.", code="invalid_file_size")
    if size < MIN_SESSION_BYTES:
        raise BoxError(400, "file_size_too_small")
    check_size(state, size)
    check_space(state, size - former_bytes)
    return size


def _start_session(
    state: BoxState, call: Call, folder_id: str, name: str, file_id: str | None, size_bytes: int
) -> Answer:
    session_id = state.random_token("", 32).upper()
    part_bytes = state.part_bytes(size_bytes)
    expires_s = call.now_s + _LIFE_S
    session = PartsSession(session_id, folder_id, name, file_id, size_bytes, part_bytes, expires_s)
    state.sessions[session_id] = session
    return answer_json(_session_item(state, call, session), 201)


def _create_session(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    if "folder_id" not in body:
        raise bad_parameter("folder_id", "'folder_id' is required", code="missing_destination")
    if not body.get("file_name"):
        raise bad_parameter("file_name", "'file_name' is required", code="missing_file_name")
    name, size_bytes = state.check_name(body["file_name"]), _read_size(state, body)
    folder_id = str(body["folder_id"])
    if not folder_id.isdigit():
        raise bad_parameter("folder_id", f"Invalid value '{folder_id}'.", code="invalid_folder_id")
    folder = state.find_folder(folder_id)
    existing = state.find_by_name(folder, name)
    if existing is not None:
        raise name_conflict(state, existing, as_list=False)
    return _start_session(state, call, folder.id, name, None, size_bytes)


def _create_version_session(state: BoxState, call: Call) -> Answer:
    body, file = json_body(call), state.find_file(call.parameters["id"])
    name = state.check_name(body["file_name"]) if body.get("file_name") else file.name
    assert file.parent is not None
    existing = state.find_by_name(file.parent, name)
    if existing is not None and existing is not file:
        raise name_conflict(state, existing, as_list=False)
    size_bytes = _read_size(state, body, file.versions[-1].blob.size_bytes)
    return _start_session(state, call, file.parent.id, name, file.id, size_bytes)


def _find_session(state: BoxState, call: Call) -> PartsSession:
    session_id = call.parameters["session"]
    if not session_id.isalnum():
        raise BoxError(400, "invalid_upload_session_id")
    session = state.sessions.get(session_id)
    if session is None:
        raise BoxError(404, "not_found")
    if call.now_s >= session.expires_s:
        raise BoxError(410, "session_expired")
    return session


def _session_item(state: BoxState, call: Call, session: PartsSession) -> dict[str, Any]:
    home = f"{host_url(call, 'upload.box.com')}/api/2.0/files/upload_sessions/{session.id}"
    is_processed = call.now_s >= session.processed_s
    return {
        "total_parts": -(-session.size_bytes // session.part_bytes),
        "part_size": session.part_bytes,
        "session_endpoints": {
            "list_parts": f"{home}/parts",
            "commit": f"{home}/commit",
            "log_event": f"{home}/log",
            "upload_part": home,
            "status": home,
            "abort": home,
        },
        "session_expires_at": timestamp(session.expires_s),
        "id": session.id,
        "type": "upload_session",
        "num_parts_processed": len(session.parts) if is_processed else max(0, len(session.parts) - 1),
    }


def _get_session(state: BoxState, call: Call) -> Answer:
    return answer_json(_session_item(state, call, _find_session(state, call)))


def _abort_session(state: BoxState, call: Call) -> Answer:
    if call.parameters["session"] not in state.committed:  # aborting after the commit is not an error
        del state.sessions[_find_session(state, call).id]
    return empty_answer()


def _part_item(offset: int, part_id: str, blob: Blob) -> dict[str, Any]:
    return {"part_id": part_id, "offset": offset, "size": blob.size_bytes, "sha1": blob.hash_hex}


def _matches_digest(header: str, blob: Blob) -> bool:
    """Return whether content has the digest of a header, which is ``sha=`` or ``sha-512=`` in base64."""
    name, _, value = header.partition("=")
    if name.strip().lower() == "sha-512":
        return base64.b64encode(bytes.fromhex(hash_blob(blob, hashlib.sha512()).hash_hex)).decode() == value.strip()
    return name.strip().lower() == "sha" and _base64_hash(blob) == value.strip()


def _base64_hash(blob: Blob) -> str:
    return base64.b64encode(bytes.fromhex(blob.hash_hex)).decode()


def _put_part(state: BoxState, call: Call) -> Answer:
    """Answer with a part of an upload session that is stored now. Raises BoxError."""
    session, blob = _find_session(state, call), call.body
    content_range = _RANGE.fullmatch(call.headers.get(b"content-range", b"").decode("latin-1").strip())
    digest = call.headers.get(b"digest", b"").decode("latin-1")
    if content_range is None:
        raise bad_parameter("content-range", "'content-range' is required")
    if not digest:
        raise bad_parameter("digest", "'digest' is required")
    first, last, total = (int(number) for number in content_range.groups())
    expected_bytes = min(session.part_bytes, session.size_bytes - first)
    starts_a_part = total == session.size_bytes and first < total and first % session.part_bytes == 0
    if not starts_a_part or last - first + 1 != expected_bytes or blob.size_bytes != expected_bytes:
        raise BoxError(416, "invalid_content_range", message="The content range does not match the session")
    if not _matches_digest(digest, blob):
        raise BoxError(412, "digest_mismatch", message=f"Part digest was incorrect. Actual: {_base64_hash(blob)}")
    if first in session.parts:
        raise BoxError(409, "range_overlaps_existing_range", message="The range overlaps a part that is there")
    part_id = state.random_token("", 8).upper()
    session.parts[first] = part_id, blob
    session.processed_s = call.now_s + state.job_times.start_s
    return answer_json({"part": _part_item(first, part_id, blob)})


def _list_parts(state: BoxState, call: Call) -> Answer:
    session, query = _find_session(state, call), read_query(call)
    offset, limit = read_number(query, "offset", 0), min(read_number(query, "limit", 1000), 1000)
    parts = [_part_item(part_offset, *session.parts[part_offset]) for part_offset in sorted(session.parts)]
    page = {"entries": parts[offset : offset + limit], "offset": offset, "limit": limit, "total_count": len(parts)}
    return answer_json(page | {"order": [{"by": "offset", "direction": "ASC"}]})


def _join_named_parts(session: PartsSession, body: dict[str, Any]) -> BytePieces:
    """Return the content that a commit names, if it is complete. Raises BoxError."""
    parts = body.get("parts")
    if not isinstance(parts, list):
        raise bad_parameter("parts", "'parts' is required")
    named_parts = {
        (part.get("part_id"), part.get("offset"), part.get("size")) for part in parts if isinstance(part, dict)
    }
    stored_parts = {(part_id, offset, blob.size_bytes) for offset, (part_id, blob) in session.parts.items()}
    if named_parts != stored_parts or sum(blob.size_bytes for _, blob in session.parts.values()) != session.size_bytes:
        raise BoxError(400, "parts_mismatch", message="List of parts doesn't match the parts that were uploaded")
    return BytePieces.join(session.parts[offset][1] for offset in sorted(session.parts))


def _commit_session(state: BoxState, call: Call) -> Answer:
    """Answer with the file made of a session's parts, or with status 202 while they are being processed."""
    session, body = _find_session(state, call), json_body(call)
    digest = call.headers.get(b"digest", b"").decode("latin-1")
    if not digest:
        raise bad_parameter("digest", "'digest' is required")
    if len(session.parts) and call.now_s < session.processed_s:
        wait = b"%d" % math.ceil(session.processed_s - call.now_s)
        return Answer(202, [(b"content-type", b"application/json"), (b"retry-after", wait)], b"")
    blob = hash_blob(_join_named_parts(session, body), new_sha1())
    if not _matches_digest(digest, blob):
        message = f"File digest was incorrect. Actual: {_base64_hash(blob)} Expected: {digest.partition('=')[2]}"
        raise BoxError(400, "digest_mismatch", message=message)
    given_attributes = body.get("attributes")
    attributes: dict[str, Any] = given_attributes if isinstance(given_attributes, dict) else {}
    modified, created = attributes.get("content_modified_at"), attributes.get("content_created_at")
    modified_s = call.now_s if modified is None else read_time(modified, "content_modified_at")
    created_s = call.now_s if created is None else read_time(created, "content_created_at")
    blob = flip_damaged_bit(blob, call.damage)
    if session.file_id is not None:
        file = state.find_file(session.file_id)
        check_precondition(state, call, file)
        state.add_version(file, blob, call.now_s, modified_s)
        if (
            session.name != file.name
            and file.parent is not None
            and state.find_by_name(file.parent, session.name) in (None, file)
        ):
            state.move(file, file.parent, session.name, call.now_s)
    else:
        folder = state.find_folder(session.folder_id)
        existing = state.find_by_name(folder, session.name)
        if existing is not None:
            raise name_conflict(state, existing, as_list=False)
        file = state.add_file(folder, session.name, blob, call.now_s, created_s, modified_s)
    if isinstance(attributes.get("description"), str):
        state.meta(file).description = attributes["description"]
    del state.sessions[session.id]
    state.committed.add(session.id)
    return answer_json({"total_count": 1, "entries": [file_item(state, file, None)]}, 201)


def _make_part_writer(_call: Call) -> BlobWriter:
    return BlobWriter(new_sha1())


_HOME = "/2.0/files/upload_sessions"
FUNCTIONS = (
    BoxFunction("POST", _HOME, "upload_session", Kind.META, _create_session),
    BoxFunction(
        "POST", "/2.0/files/{id}/upload_sessions", "upload_session_version", Kind.META, _create_version_session
    ),
    BoxFunction("PUT", f"{_HOME}/{{session}}", "upload_part", Kind.READ, _put_part, _make_part_writer),
    BoxFunction("GET", f"{_HOME}/{{session}}", "upload_session_get", Kind.META, _get_session),
    BoxFunction("DELETE", f"{_HOME}/{{session}}", "upload_session_abort", Kind.META, _abort_session),
    BoxFunction("GET", f"{_HOME}/{{session}}/parts", "upload_session_parts", Kind.META, _list_parts),
    BoxFunction("POST", f"{_HOME}/{{session}}/commit", "upload_session_commit", Kind.WRITE, _commit_session),
)
