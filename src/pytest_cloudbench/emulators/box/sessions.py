"""Uploads in parts: upload sessions, whose part size the service dictates.

What may live here: ``upload_sessions``. A part is never replaced. The commit checks the digest of the whole, and is
answered by 202 while the service still works on the parts (``jobs`` of the profile).
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
    json_body,
    nothing,
    origin,
    read_time,
    timestamp,
)
from pytest_cloudbench.emulators.box.items import conflict, file_item, number_of, query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, PartsSession
from pytest_cloudbench.emulators.box.uploads import check_size, damaged, precondition, sha1
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

MIN_SESSION_BYTES = 20_000_000
"""The smallest file for an upload in parts (developer.box.com, "Chunked uploads": 20 MB)."""

_LIFE_S = 7 * 86_400
"""Sessions live for seven days (the same page)."""

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def _size(state: BoxState, body: dict[str, Any]) -> int:
    size = body.get("file_size")
    if size is None:
        raise bad_parameter("file_size", "'file_size' is required", code="missing_file_size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise bad_parameter("file_size", f"Invalid value '{size}'.", code="invalid_file_size")
    if size < MIN_SESSION_BYTES:
        raise BoxError(400, "file_size_too_small")
    check_size(state, size)
    if state.store.quota_bytes and state.store.used_bytes + size > state.store.quota_bytes:
        raise BoxError(403, "storage_limit_exceeded")
    return size


def _start(state: BoxState, call: Call, folder_id: str, name: str, file_id: str | None, size_bytes: int) -> Answer:
    session_id = state.token("", 32).upper()
    part_bytes = state.part_bytes(size_bytes)
    expires_s = call.now_s + _LIFE_S
    session = PartsSession(session_id, folder_id, name, file_id, size_bytes, part_bytes, expires_s)
    state.sessions[session_id] = session
    return answer_json(_described(state, call, session), 201)


def _create(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    if "folder_id" not in body:
        raise bad_parameter("folder_id", "'folder_id' is required", code="missing_destination")
    if not body.get("file_name"):
        raise bad_parameter("file_name", "'file_name' is required", code="missing_file_name")
    name, size_bytes = state.checked_name(body["file_name"]), _size(state, body)
    folder_id = str(body["folder_id"])
    if not folder_id.isdigit():
        raise bad_parameter("folder_id", f"Invalid value '{folder_id}'.", code="invalid_folder_id")
    folder = state.folder(folder_id)
    taken = state.taken(folder, name)
    if taken is not None:
        raise conflict(state, taken, as_list=False)
    return _start(state, call, folder.id, name, None, size_bytes)


def _create_version(state: BoxState, call: Call) -> Answer:
    body, file = json_body(call), state.file(call.parameters["id"])
    name = state.checked_name(body["file_name"]) if body.get("file_name") else file.name
    assert file.parent is not None
    taken = state.taken(file.parent, name)
    if taken is not None and taken is not file:
        raise conflict(state, taken, as_list=False)
    return _start(state, call, file.parent.id, name, file.id, _size(state, body))


def _session(state: BoxState, call: Call) -> PartsSession:
    session_id = call.parameters["session"]
    if not session_id.isalnum():
        raise BoxError(400, "invalid_upload_session_id")
    session = state.sessions.get(session_id)
    if session is None:
        raise BoxError(404, "not_found")
    if call.now_s >= session.expires_s:
        raise BoxError(410, "session_expired")
    return session


def _described(state: BoxState, call: Call, session: PartsSession) -> dict[str, Any]:
    home = f"{origin(call, 'upload.box.com')}/api/2.0/files/upload_sessions/{session.id}"
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


def _get(state: BoxState, call: Call) -> Answer:
    return answer_json(_described(state, call, _session(state, call)))


def _abort(state: BoxState, call: Call) -> Answer:
    if call.parameters["session"] not in state.committed:  # whoever ends a session after its commit has what they want
        del state.sessions[_session(state, call).id]
    return nothing()


def _part(offset: int, part_id: str, blob: Blob) -> dict[str, Any]:
    return {"part_id": part_id, "offset": offset, "size": blob.size_bytes, "sha1": blob.hash_hex}


def _matches(header: str, blob: Blob) -> bool:
    """Returns whether content has the digest of a header: ``sha=`` or ``sha-512=``, in base64."""
    name, _, value = header.partition("=")
    if name.strip().lower() == "sha-512":
        return base64.b64encode(bytes.fromhex(hash_blob(blob, hashlib.sha512()).hash_hex)).decode() == value.strip()
    return name.strip().lower() == "sha" and _base64_of(blob) == value.strip()


def _base64_of(blob: Blob) -> str:
    return base64.b64encode(bytes.fromhex(blob.hash_hex)).decode()


def _put_part(state: BoxState, call: Call) -> Answer:
    session, blob = _session(state, call), call.body
    found = _RANGE.fullmatch(call.headers.get(b"content-range", b"").decode("latin-1").strip())
    digest = call.headers.get(b"digest", b"").decode("latin-1")
    if found is None:
        raise bad_parameter("content-range", "'content-range' is required")
    if not digest:
        raise bad_parameter("digest", "'digest' is required")
    first, last, total = (int(number) for number in found.groups())
    wanted = min(session.part_bytes, session.size_bytes - first)
    is_in_place = total == session.size_bytes and first < total and first % session.part_bytes == 0
    if not is_in_place or last - first + 1 != wanted or blob.size_bytes != wanted:
        raise BoxError(416, "invalid_content_range", message="The content range does not match the session")
    if not _matches(digest, blob):
        raise BoxError(412, "digest_mismatch", message=f"Part digest was incorrect. Actual: {_base64_of(blob)}")
    if first in session.parts:
        raise BoxError(409, "range_overlaps_existing_range", message="The range overlaps a part that is there")
    part_id = state.token("", 8).upper()
    session.parts[first] = part_id, blob
    session.processed_s = call.now_s + state.job_times.start_s
    return answer_json({"part": _part(first, part_id, blob)})


def _list_parts(state: BoxState, call: Call) -> Answer:
    session, query = _session(state, call), query_of(call)
    offset, limit = number_of(query, "offset", 0), min(number_of(query, "limit", 1000), 1000)
    parts = [_part(at, *session.parts[at]) for at in sorted(session.parts)]
    found = {"entries": parts[offset : offset + limit], "offset": offset, "limit": limit, "total_count": len(parts)}
    return answer_json(found | {"order": [{"by": "offset", "direction": "ASC"}]})


def _named_parts(session: PartsSession, body: dict[str, Any]) -> BytePieces:
    """Returns the content that a commit names, if it is complete. Raises BoxError."""
    parts = body.get("parts")
    if not isinstance(parts, list):
        raise bad_parameter("parts", "'parts' is required")
    named = {(part.get("part_id"), part.get("offset"), part.get("size")) for part in parts if isinstance(part, dict)}
    stored = {(part_id, at, blob.size_bytes) for at, (part_id, blob) in session.parts.items()}
    if named != stored or sum(blob.size_bytes for _, blob in session.parts.values()) != session.size_bytes:
        raise BoxError(400, "parts_mismatch", message="List of parts doesn't match the parts that were uploaded")
    return BytePieces.join(session.parts[at][1] for at in sorted(session.parts))


def _commit(state: BoxState, call: Call) -> Answer:
    session, body = _session(state, call), json_body(call)
    digest = call.headers.get(b"digest", b"").decode("latin-1")
    if not digest:
        raise bad_parameter("digest", "'digest' is required")
    if len(session.parts) and call.now_s < session.processed_s:
        wait = b"%d" % math.ceil(session.processed_s - call.now_s)
        return Answer(202, [(b"content-type", b"application/json"), (b"retry-after", wait)], b"")
    blob = hash_blob(_named_parts(session, body), sha1())
    if not _matches(digest, blob):
        told = f"File digest was incorrect. Actual: {_base64_of(blob)} Expected: {digest.partition('=')[2]}"
        raise BoxError(400, "digest_mismatch", message=told)
    given = body.get("attributes") if isinstance(body.get("attributes"), dict) else {}
    assert isinstance(given, dict)
    changed, made = given.get("content_modified_at"), given.get("content_created_at")
    changed_s = call.now_s if changed is None else read_time(changed, "content_modified_at")
    made_s = call.now_s if made is None else read_time(made, "content_created_at")
    blob = damaged(blob, call.damage)
    if session.file_id is not None:
        file = state.file(session.file_id)
        precondition(state, call, file)
        state.add_version(file, blob, call.now_s, changed_s)
        if (
            session.name != file.name
            and file.parent is not None
            and state.taken(file.parent, session.name) in (None, file)
        ):
            state.move(file, file.parent, session.name, call.now_s)
    else:
        folder = state.folder(session.folder_id)
        taken = state.taken(folder, session.name)
        if taken is not None:
            raise conflict(state, taken, as_list=False)
        file = state.add_file(folder, session.name, blob, call.now_s, made_s, changed_s)
    if isinstance(given.get("description"), str):
        state.meta(file).description = given["description"]
    del state.sessions[session.id]
    state.committed.add(session.id)
    return answer_json({"total_count": 1, "entries": [file_item(state, file, None)]}, 201)


def _writer(_call: Call) -> BlobWriter:
    return BlobWriter(sha1())


_HOME = "/2.0/files/upload_sessions"
FUNCTIONS = (
    BoxFunction("POST", _HOME, "upload_session", Kind.META, _create),
    BoxFunction("POST", "/2.0/files/{id}/upload_sessions", "upload_session_version", Kind.META, _create_version),
    BoxFunction("PUT", f"{_HOME}/{{session}}", "upload_part", Kind.READ, _put_part, _writer),
    BoxFunction("GET", f"{_HOME}/{{session}}", "upload_session_get", Kind.META, _get),
    BoxFunction("DELETE", f"{_HOME}/{{session}}", "upload_session_abort", Kind.META, _abort),
    BoxFunction("GET", f"{_HOME}/{{session}}/parts", "upload_session_parts", Kind.META, _list_parts),
    BoxFunction("POST", f"{_HOME}/{{session}}/commit", "upload_session_commit", Kind.WRITE, _commit),
)
