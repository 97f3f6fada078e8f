"""Upload sessions: ``createUploadSession``, and the fragments that follow.

The protocol is "Upload large files with an upload session" in Graph's documents. Clients send fragments in order to an
address that needs no token. Each but the last is a multiple of 320 KiB, and none is larger than 60 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, BytePieces, hash_blob
from pytest_cloudbench.emulators.nodes import Folder, StoreError
from pytest_cloudbench.emulators.onedrive.answers import (
    GRAPH,
    GraphError,
    answer_json,
    format_precise_time,
    store_refusal,
)
from pytest_cloudbench.emulators.onedrive.files import (
    parse_behavior,
    parse_client_times,
    set_client_times,
    store_content,
)
from pytest_cloudbench.emulators.onedrive.items import describe_item
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest, GraphState, UploadSession
from pytest_cloudbench.emulators.skin import Answer, Call, Kind
from pytest_cloudbench.model import KIB, MIB
from pytest_cloudbench.workload.payload.quickxor import QuickXor

_UNIT_BYTES = 320 * KIB
_MAX_FRAGMENT_BYTES = 60 * MIB
_LIFE_S = 7 * 86_400.0
"""Chosen freely, since the documents say that a session expires, but not when."""
_RANGE = re.compile(rb"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})$")


def _create_session(request: GraphRequest) -> Answer:
    """Answer with the address of a new upload session. Raises GraphError and StoreError."""
    body = request.read_json_body()
    given_item = body.get("item")
    properties: dict[str, Any] = given_item if isinstance(given_item, dict) else {}
    is_named = isinstance(properties.get("name"), str) and bool(request.address.path)
    given_name = request.tree.check_name(properties["name"]) if is_named else ""
    times = parse_client_times(properties.get("fileSystemInfo"))
    # The documented default is "fail". But rclone sends no behavior when it overwrites, and the service replaces.
    behavior = parse_behavior(
        properties.get("@microsoft.graph.conflictBehavior") or properties.get("@name.conflictBehavior"), "replace"
    )
    size = properties.get("fileSize")
    size_bytes = size if isinstance(size, int) and not isinstance(size, bool) else 0
    folder, missing_names, name = request.find_target()
    name = given_name or name
    existing = None if missing_names else request.tree.find_child(folder, name)
    if existing is not None:
        request.require_match(existing)
        if behavior == "fail" or isinstance(existing, Folder):
            raise StoreError("taken")
    former_bytes = request.tree.size_of(existing) if existing is not None and behavior == "replace" else 0
    request.tree.store.require_space(size_bytes - former_bytes)
    state = request.state
    guid = state.tree.random_guid()
    session = UploadSession(
        folder, missing_names, name, behavior, request.now_s + _LIFE_S, times, QuickXor(),
        is_deferred=body.get("deferCommit") is True, address=request.address,
    )  # fmt: skip
    state.sessions[guid] = session
    path = f"/_api/v2.0/drives/{state.drive_id}/items/{folder.id}/uploadSession"
    url = f"{request.files_origin}{path}?guid='{guid}'&overwrite={behavior == 'replace'}&rename={behavior == 'rename'}&tempauth={state.sign_text(guid)}"  # noqa: E501  # an address is one line
    value = {
        "@odata.context": f"{GRAPH}microsoft.graph.uploadSession",
        "expirationDateTime": format_precise_time(session.expires_s),
        "nextExpectedRanges": ["0-"],
        "uploadUrl": url,
    }
    return answer_json(value, 200, (b"location", request.origin.encode("latin-1")))


def handle_fragment(state: GraphState, call: Call, guid: str) -> Answer:
    """Answer a request to a session: PUT adds a fragment, GET asks for progress, POST commits and DELETE ends it.

    Raises GraphError.
    """
    session = state.sessions.get(guid)
    if session is None or session.expires_s < call.now_s:
        state.sessions.pop(guid, None)
        raise GraphError(404, "itemNotFound", "The upload session was not found", "uploadSessionNotFound")
    if call.method == "DELETE":
        del state.sessions[guid]
        return Answer(204, [], b"")
    if call.method == "GET":
        return _answer_progress(session, 200)
    if call.method == "POST":
        if session.total_bytes is None or session.received_bytes < session.total_bytes:
            raise GraphError(400, "invalidRequest", "The upload session is not complete", "uploadSessionIncomplete")
        return _commit_session(state, call, guid, session)
    _add_fragment(session, call)
    if session.received_bytes == session.total_bytes and not session.is_deferred:
        return _commit_session(state, call, guid, session)
    return _answer_progress(session, 202)


def _add_fragment(session: UploadSession, call: Call) -> None:
    """Add the next fragment of a session's content. Raises GraphError unless it continues those before it."""
    body: BytePieces = call.body
    match = _RANGE.match(call.headers.get(b"content-range", b"").strip())
    if match is None:
        raise GraphError(400, "invalidRequest", "The Content-Range header is missing or malformed.")
    first, last, total = (int(number) for number in match.groups())
    if session.total_bytes not in (None, total) or last >= total or first > last:
        raise GraphError(400, "invalidRequest", "The Content-Range header does not fit the upload session.")
    if last - first + 1 != len(body):
        message = "The Content-Range header length does not match the provided number of bytes."
        raise GraphError(400, "invalidRequest", message, "fragmentLengthMismatch")
    if first < session.received_bytes:
        message = "The uploaded fragment overlaps with data that has already been received."
        raise GraphError(416, "invalidRange", message, "fragmentOverlap")
    if first > session.received_bytes:
        raise GraphError(416, "invalidRange", "Uploaded fragment is out of order.", "fragmentOutOfOrder")
    if len(body) > _MAX_FRAGMENT_BYTES:
        message = "The fragment is larger than 60 MiB."
        raise GraphError(413, "requestEntityTooLarge", message, "maxFragmentLengthExceeded")
    if last + 1 < total and len(body) % _UNIT_BYTES:
        raise GraphError(400, "invalidRequest", "A fragment's size must be a multiple of 327680 bytes.")
    session.total_bytes = total
    session.parts.append(body)
    for piece in body.pieces:
        session.hash.update(piece)
    session.received_bytes += len(body)


def _answer_progress(session: UploadSession, status: int) -> Answer:
    is_complete = session.received_bytes == session.total_bytes
    value = {
        "@odata.context": f"{GRAPH}microsoft.graph.uploadSession",
        "expirationDateTime": format_precise_time(session.expires_s),
        "nextExpectedRanges": [] if is_complete else [f"{session.received_bytes}-"],
    }
    return answer_json(value, status)


def _commit_session(state: GraphState, call: Call, guid: str, session: UploadSession) -> Answer:
    blob = Blob(BytePieces.join(session.parts).pieces, session.hash.hexdigest())
    if call.damage is not None:
        blob = hash_blob(blob.flip_bit(call.damage), QuickXor())
    request = GraphRequest(state, call, session.address)
    if not state.tree.is_in_drive(session.folder):
        raise store_refusal(StoreError("not_found"))
    try:
        folder = state.tree.ensure_folder(session.folder, session.missing_names, call.now_s, blob.size_bytes)
        file, is_new = store_content(request, folder, session.name, blob, session.behavior)
    except StoreError as error:
        raise store_refusal(error) from error
    del state.sessions[guid]
    set_client_times(file, session.client_times)
    value = {"@odata.context": f"{GRAPH}drives('{state.drive_id}')/items/$entity", **describe_item(request, file)}
    return answer_json(value, 201 if is_new else 200)


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    ("POST", "createUploadSession"): GraphFunction(Kind.WRITE, _create_session),
    ("POST", "createSession"): GraphFunction(Kind.WRITE, _create_session),
}
