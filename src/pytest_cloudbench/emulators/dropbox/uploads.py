"""files/upload and the upload sessions.

What may live here: taking content in. Sessions keep their parts by offset, so that concurrent ones (4 MiB
pieces in any order) and sequential ones end the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import BLOCK_BYTES, Blob
from pytest_cloudbench.emulators.dropbox.answers import ApiError, file_metadata, write_tags
from pytest_cloudbench.emulators.dropbox.args import (
    array,
    boolean,
    integer,
    optional,
    rev,
    string,
    struct,
    timestamp,
    union,
    write_path,
)
from pytest_cloudbench.emulators.dropbox.state import Function, Session, State
from pytest_cloudbench.emulators.nodes import TreeError
from pytest_cloudbench.emulators.skin import Call, Kind

__all__ = ["FUNCTIONS"]

_MAX_REQUEST_BYTES = 150 * 1024 * 1024
_UINT64 = 2**64 - 1

_mode = union(add=None, overwrite=None, update=rev)
_hash = optional(string(minimum=64, maximum=64))
_property_groups = optional(array(lambda value: value))
_commit_fields: dict[str, Any] = {
    "path": write_path,
    "mode": (_mode, ("add", None)),
    "autorename": (boolean, False),
    "client_modified": (optional(timestamp), None),
    "mute": (boolean, False),
    "property_groups": (_property_groups, None),
    "strict_conflict": (boolean, False),
}
_upload = struct(**_commit_fields, content_hash=(_hash, None))
_cursor = struct(session_id=string(), offset=integer(0, _UINT64))
_session_type = optional(union(sequential=None, concurrent=None))
_start = struct(close=(boolean, False), session_type=(_session_type, None), content_hash=(_hash, None))
_append = struct(cursor=_cursor, close=(boolean, False), content_hash=(_hash, None))
_finish = struct(cursor=_cursor, commit=struct(**_commit_fields), content_hash=(_hash, None))
_finish_batch = struct(entries=array(_finish, maximum=1000))
_start_batch = struct(session_type=(_session_type, None), num_sessions=integer(1, 1000))
_poll = struct(async_job_id=string(minimum=1))


def _store(state: State, commit: dict[str, Any], blob: Blob, call: Call) -> dict[str, Any]:
    """Commit content under a path. Raises TreeError."""
    if call.damage is not None:
        blob = blob.flipped(call.damage)
    mode, update_rev = commit["mode"]
    file, version = state.tree.put(
        commit["path"],
        blob,
        call.now_s,
        mode=mode,
        update_rev=update_rev or "",
        autorename=commit["autorename"],
        strict=commit["strict_conflict"],
        client_s=commit["client_modified"],
    )
    return file_metadata(file, version)


def _content(call: Call, arg: dict[str, Any]) -> Blob:
    """The request's content, if it is what its hash says."""
    blob = call.blob or Blob.of(b"")
    if arg.get("content_hash") not in (None, blob.hash_hex):
        raise ApiError("content_hash_mismatch")
    if blob.size_bytes > _MAX_REQUEST_BYTES:
        raise ApiError("payload_too_large")
    return blob


def _run_upload(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    blob = _content(call, arg)
    try:
        return _store(state, arg, blob, call)
    except TreeError as error:
        tags = write_tags(error)
        session_id = _new_session(state, Session(False, True, {0: blob}, blob.size_bytes))
        failure = ApiError("path", *tags)
        reason = failure.error["path"]
        failure.error = {".tag": "path", "reason": reason, "upload_session_id": session_id}
        raise failure from error


def _new_session(state: State, session: Session) -> str:
    session_id = state.tree.token("pid_upload_session:", 64)
    state.sessions[session_id] = session
    return session_id


def _run_start(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    blob = _content(call, arg)
    concurrent = arg["session_type"] is not None and arg["session_type"][0] == "concurrent"
    if concurrent and blob.size_bytes:
        raise ApiError("concurrent_session_data_not_allowed")
    if concurrent and arg["close"]:
        raise ApiError("concurrent_session_close_not_allowed")
    session = Session(concurrent, arg["close"], {0: blob} if blob.size_bytes else {}, blob.size_bytes)
    return {"session_id": _new_session(state, session)}


def _run_start_batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    concurrent = arg["session_type"] is not None and arg["session_type"][0] == "concurrent"
    return {"session_ids": [_new_session(state, Session(concurrent)) for _ in range(arg["num_sessions"])]}


def _add(session: Session, offset: int, blob: Blob) -> None:
    """Append to a session. Raises ApiError with the tags that append and lookup share."""
    if session.closed:
        raise ApiError("closed")
    if session.concurrent:
        if offset % BLOCK_BYTES:
            raise ApiError("concurrent_session_invalid_offset")
        if blob.size_bytes % BLOCK_BYTES and offset + blob.size_bytes < session.size_bytes:
            raise ApiError("concurrent_session_invalid_data_size")
    elif offset != session.size_bytes:
        raise ApiError("incorrect_offset", inside={"correct_offset": session.size_bytes})
    if blob.size_bytes:
        session.parts[offset] = blob
    session.size_bytes = max(session.size_bytes, offset + blob.size_bytes)


def _run_append_v2(state: State, arg: dict[str, Any], call: Call) -> None:
    blob = _content(call, arg)
    session = state.sessions.get(arg["cursor"]["session_id"])
    if session is None:
        raise ApiError("not_found")
    _add(session, arg["cursor"]["offset"], blob)
    session.closed = arg["close"]


def _run_append(state: State, arg: dict[str, Any], call: Call) -> None:
    _run_append_v2(state, {"cursor": arg, "close": False}, call)


def _joined(session: Session) -> Blob:
    """All content of a session. Raises ApiError when a concurrent one has a gap."""
    offset = 0
    for start in sorted(session.parts):
        if start != offset:
            raise ApiError("concurrent_session_missing_data")
        offset += session.parts[start].size_bytes
    return Blob.join(session.parts[start] for start in sorted(session.parts))


def _commit(state: State, arg: dict[str, Any], call: Call, last: Blob) -> dict[str, Any]:
    """Finish one session. Raises ApiError with the tags of UploadSessionFinishError."""
    session_id, offset = arg["cursor"]["session_id"], arg["cursor"]["offset"]
    session = state.sessions.get(session_id)
    if session is None:
        raise ApiError("lookup_failed", "not_found")
    if session.concurrent and not session.closed:
        if last.size_bytes:
            raise ApiError("concurrent_session_data_not_allowed")
        raise ApiError("concurrent_session_not_closed")
    if offset != session.size_bytes:
        raise ApiError("lookup_failed", "incorrect_offset", inside={"correct_offset": session.size_bytes})
    if last.size_bytes:
        try:
            _add(session, offset, last)
        except ApiError as error:
            raise ApiError("lookup_failed", error.summary) from error
    try:
        result = _store(state, arg["commit"], _joined(session), call)
    except TreeError as error:
        raise ApiError("path", *write_tags(error)) from error
    del state.sessions[session_id]
    return result


def _run_finish(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return _commit(state, arg, call, _content(call, arg))


def _batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for entry in arg["entries"]:
        try:
            entries.append({".tag": "success", **_commit(state, entry, call, Blob.of(b""))})
        except ApiError as error:
            entries.append({".tag": "failure", "failure": error.error})
    return {"entries": entries}


def _run_finish_batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return state.start_job("finish_batch", _batch(state, arg, call))


def _run_check(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    job = state.jobs.get(arg["async_job_id"])
    if job is None or job.kind != "finish_batch":
        raise ApiError("invalid_async_job_id")
    return {".tag": "complete", **job.result}


FUNCTIONS: Mapping[str, Function] = {
    "files/upload": Function(Kind.WRITE, "upload", _upload, _run_upload),
    "files/upload_session/start": Function(Kind.READ, "upload", _start, _run_start),
    "files/upload_session/start_batch": Function(Kind.META, "rpc", _start_batch, _run_start_batch),
    "files/upload_session/append": Function(Kind.READ, "upload", _cursor, _run_append),
    "files/upload_session/append_v2": Function(Kind.READ, "upload", _append, _run_append_v2),
    "files/upload_session/finish": Function(Kind.WRITE, "upload", _finish, _run_finish),
    "files/upload_session/finish_batch": Function(Kind.WRITE, "rpc", _finish_batch, _run_finish_batch),
    "files/upload_session/finish_batch_v2": Function(Kind.WRITE, "rpc", _finish_batch, _batch),
    "files/upload_session/finish_batch/check": Function(Kind.META, "rpc", _poll, _run_check),
}
