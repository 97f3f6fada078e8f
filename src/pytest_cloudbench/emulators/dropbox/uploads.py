"""``files/upload`` and the upload sessions.

Sessions keep their parts by offset, so that concurrent sessions (4 MiB pieces in any order) and sequential ones finish
the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from pytest_cloudbench.emulators.dropbox.blocks import BLOCK_BYTES, BlockBlob
from pytest_cloudbench.emulators.dropbox.state import Function, Session, State
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Call, Kind

_MAX_REQUEST_BYTES = 150 * 1024 * 1024
_LIFE_S = 7 * 86_400.0
"""Sessions are valid for seven days, according to the specification."""
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
commit_arg = struct(**_commit_fields)
finish_arg = struct(cursor=_cursor, commit=commit_arg, content_hash=(_hash, None))
_start_batch = struct(session_type=(_session_type, None), num_sessions=integer(1, 1000))


def store_content(
    state: State, info: dict[str, Any], blob: BlockBlob, now_s: float, damage: int | None
) -> dict[str, Any]:
    """Commit content under a path, and return the file's metadata. Raises StoreError."""
    if damage is not None:
        blob = BlockBlob.from_content(blob.flip_bit(damage))
    mode, update_rev = info["mode"]
    path, node, version, _ = state.tree.put(
        info["path"],
        blob,
        now_s,
        mode=mode,
        update_rev=update_rev or "",
        autorename=info["autorename"],
        strict=info["strict_conflict"],
        client_s=info["client_modified"],
    )
    assert version is not None
    return file_metadata(path, node.id, version)


def _read_content(call: Call, arg: dict[str, Any]) -> BlockBlob:
    """Return the request's content, if it matches its hash. Raises ApiError."""
    blob: BlockBlob = call.body
    if arg.get("content_hash") not in (None, blob.hash_hex):
        raise ApiError("content_hash_mismatch")
    if blob.size_bytes > _MAX_REQUEST_BYTES:
        raise ApiError("payload_too_large")
    return blob


def _run_upload(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    blob = _read_content(call, arg)
    try:
        return store_content(state, arg, blob, call.now_s, call.damage)
    except StoreError as error:
        tags = write_tags(error)
        session_id = _new_session(state, Session(call.now_s + _LIFE_S, False, True, {0: blob}, blob.size_bytes))
        failure = ApiError("path", *tags)
        reason = failure.error["path"]
        failure.error = {".tag": "path", "reason": reason, "upload_session_id": session_id}
        raise failure from error


def _new_session(state: State, session: Session) -> str:
    session_id = state.tree.token("pid_upload_session:", 64)
    state.sessions[session_id] = session
    return session_id


def _find_session(state: State, session_id: str, now_s: float) -> Session | None:
    session = state.sessions.get(session_id)
    if session is not None and session.ends_s <= now_s:
        del state.sessions[session_id]
        return None
    return session


def _run_start(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    blob = _read_content(call, arg)
    concurrent = arg["session_type"] is not None and arg["session_type"][0] == "concurrent"
    if concurrent and blob.size_bytes:
        raise ApiError("concurrent_session_data_not_allowed")
    if concurrent and arg["close"]:
        raise ApiError("concurrent_session_close_not_allowed")
    parts = {0: blob} if blob.size_bytes else {}
    session = Session(call.now_s + _LIFE_S, concurrent, arg["close"], parts, blob.size_bytes)
    return {"session_id": _new_session(state, session)}


def _run_start_batch(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    concurrent = arg["session_type"] is not None and arg["session_type"][0] == "concurrent"
    ends_s = call.now_s + _LIFE_S
    return {"session_ids": [_new_session(state, Session(ends_s, concurrent)) for _ in range(arg["num_sessions"])]}


def _add_part(session: Session, offset: int, blob: BlockBlob) -> None:
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
        if session.parts:
            blob.move_to_disk()  # many short parts make large content, too
        session.parts[offset] = blob
    session.size_bytes = max(session.size_bytes, offset + blob.size_bytes)


def _run_append_v2(state: State, arg: dict[str, Any], call: Call) -> None:
    blob = _read_content(call, arg)
    session = _find_session(state, arg["cursor"]["session_id"], call.now_s)
    if session is None:
        raise ApiError("not_found")
    _add_part(session, arg["cursor"]["offset"], blob)
    session.closed = arg["close"]


def _run_append(state: State, arg: dict[str, Any], call: Call) -> None:
    _run_append_v2(state, {"cursor": arg, "close": False}, call)


def _join_parts(session: Session) -> BlockBlob:
    """Return all content of a session. Raises ApiError if a concurrent session has a gap."""
    offset = 0
    for start in sorted(session.parts):
        if start != offset:
            raise ApiError("concurrent_session_missing_data")
        offset += session.parts[start].size_bytes
    return BlockBlob.concatenate(session.parts[start] for start in sorted(session.parts))


def commit_session(
    state: State, arg: dict[str, Any], last: BlockBlob, now_s: float, damage: int | None
) -> dict[str, Any]:
    """Finish one session, and return the file's metadata. Raises ApiError with the tags of UploadSessionFinishError."""
    session_id, offset = arg["cursor"]["session_id"], arg["cursor"]["offset"]
    session = _find_session(state, session_id, now_s)
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
            _add_part(session, offset, last)
        except ApiError as error:
            raise ApiError("lookup_failed", error.summary) from error
    try:
        result = store_content(state, arg["commit"], _join_parts(session), now_s, damage)
    except StoreError as error:
        raise ApiError("path", *write_tags(error)) from error
    del state.sessions[session_id]
    return result


def _run_finish(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return commit_session(state, arg, _read_content(call, arg), call.now_s, call.damage)


FUNCTIONS: Mapping[str, Function] = {
    "files/upload": Function(Kind.WRITE, "upload", _upload, _run_upload),
    "files/upload_session/start": Function(Kind.READ, "upload", _start, _run_start),
    "files/upload_session/start_batch": Function(Kind.META, "rpc", _start_batch, _run_start_batch),
    "files/upload_session/append": Function(Kind.READ, "upload", _cursor, _run_append),
    "files/upload_session/append_v2": Function(Kind.READ, "upload", _append, _run_append_v2),
    "files/upload_session/finish": Function(Kind.WRITE, "upload", finish_arg, _run_finish),
}
