"""``revisions``, ``comments``, ``replies`` and ``drives`` (shared drives) of the API."""

from __future__ import annotations

from html import escape
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_no_content, format_time
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_selected,
    query_params,
    read_flag,
    read_json_body,
    read_page_size,
    read_page_start,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection
from pytest_cloudbench.emulators.gdrive.state import APPS, USER, DriveState, SharedDrive, drive_meta, is_document
from pytest_cloudbench.emulators.nodes import File, Version
from pytest_cloudbench.emulators.skin import Answer, Call

_REVISION: Selection = {"kind": None, "id": None, "mimeType": None, "modifiedTime": None}
_REVISIONS: Selection = {"kind": None, "nextPageToken": None, "revisions": _REVISION}
_DRIVE: Selection = {"kind": None, "id": None, "name": None}
_DRIVES: Selection = {"kind": None, "nextPageToken": None, "drives": _DRIVE}
_AUTHOR = {name: USER[name] for name in ("kind", "displayName", "me", "photoLink")}


def _answer_list_page(
    call: Call, name: str, items: list[dict[str, Any]], kind: str, default: Selection | None
) -> Answer:
    """Answer with one page of a list."""
    params = query_params(call)
    start, size = read_page_start(params), read_page_size(params, 100, 1000)
    value: dict[str, Any] = {"kind": kind, name: items[start : start + size]}
    if len(items) > start + size:
        value["nextPageToken"] = f"~!!~{start + size}"
    return answer_selected(value, params, default)


def _require_fields(call: Call) -> None:
    if not query_params(call).get("fields"):
        raise DriveError(400, "required", "The 'fields' parameter is required for this method.", "fields")


# ---------------------------------------------------------------- revisions


def _list_visible_revisions(state: DriveState, call: Call) -> tuple[File, list[tuple[str, Version]]]:
    """Return a file and its visible revisions with their ids, which are numbers for Google's own documents."""
    node = state.find_node(call.parameters["id"], call.now_s)
    if not isinstance(node, File):
        raise DriveError(403, "revisionsNotSupported", "The file does not support revisions.")
    visible = [version for version in node.versions if version.visible_s <= call.now_s]
    if is_document(drive_meta(node).mime):
        return node, [(str(number), version) for number, version in enumerate(visible, 1)]
    return node, [(version.rev, version) for version in visible]


def _find_revision(state: DriveState, call: Call) -> tuple[File, str, Version]:
    node, versions = _list_visible_revisions(state, call)
    requested_id = call.parameters["revision"]
    for revision_id, version in versions:
        if requested_id in (revision_id, "head") and (requested_id != "head" or version is versions[-1][1]):
            return node, revision_id, version
    raise DriveError(404, "notFound", f"Revision not found: {requested_id}.", "revisionId")


def _describe_revision(node: File, revision_id: str, version: Version) -> dict[str, Any]:
    meta = drive_meta(node)
    value: dict[str, Any] = {
        "kind": "drive#revision", "id": revision_id, "mimeType": meta.mime,
        "modifiedTime": format_time(version.client_s), "keepForever": revision_id in meta.kept_revisions,
        "published": False, "lastModifyingUser": USER,
    }  # fmt: skip
    if not meta.mime.startswith(APPS):
        value |= {"size": str(version.blob.size_bytes), "md5Checksum": version.blob.hash_hex}
        value["originalFilename"] = meta.client_properties.get("originalFilename", node.name)
    return value


def list_revisions(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.list``, the oldest first."""
    node, versions = _list_visible_revisions(state, call)
    items = [_describe_revision(node, revision_id, version) for revision_id, version in versions]
    return _answer_list_page(call, "revisions", items, "drive#revisionList", _REVISIONS)


def get_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.get`` with the metadata of a revision, or with its content."""
    node, revision_id, version = _find_revision(state, call)
    params = query_params(call)
    if params.get("alt") == "media":
        if drive_meta(node).mime.startswith(APPS):
            raise DriveError(403, "fileNotDownloadable", "Only files with binary content can be downloaded.", "alt")
        return Answer(200, [(b"content-type", drive_meta(node).mime.encode("latin-1", "replace"))], version.blob)
    return answer_selected(_describe_revision(node, revision_id, version), params, _REVISION)


def update_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.update``, which can keep a revision forever."""
    node, revision_id, version = _find_revision(state, call)
    if read_json_body(call).get("keepForever"):
        drive_meta(node).kept_revisions.add(revision_id)
    else:
        drive_meta(node).kept_revisions.discard(revision_id)
    return answer_selected(_describe_revision(node, revision_id, version), query_params(call), _REVISION)


def delete_revision(state: DriveState, call: Call) -> Answer:
    """Answer ``revisions.delete``. The only revision of a file cannot be deleted."""
    node, _, version = _find_revision(state, call)
    if len(node.versions) == 1 or is_document(drive_meta(node).mime):
        raise DriveError(403, "cannotDeleteOnlyRevision", "The revision cannot be deleted.", "revisionId")
    if version is node.versions[-1]:
        state.store.used_bytes += node.versions[-2].blob.size_bytes - version.blob.size_bytes
    node.versions.remove(version)
    state.log_change(node, call.now_s)
    return answer_no_content()


# ---------------------------------------------------------------- comments and replies


def _new_note(state: DriveState, call: Call, kind: str) -> dict[str, Any]:
    """Return a new comment or reply."""
    body, now = read_json_body(call), format_time(call.now_s)
    content = body.get("content")
    if not isinstance(content, str) and not body.get("action"):
        raise DriveError(400, "required", "The content field is required.", f"{kind}.content")
    note: dict[str, Any] = {
        "kind": f"drive#{kind}", "id": state.tokens.next("AAAA", 9), "createdTime": now, "modifiedTime": now,
        "author": _AUTHOR, "deleted": False,
    }  # fmt: skip
    if isinstance(content, str):
        note |= {"content": content, "htmlContent": escape(content, quote=False)}
    return note | {name: body[name] for name in ("anchor", "quotedFileContent", "action") if name in body}


def _change_note(note: dict[str, Any], call: Call) -> None:
    content = read_json_body(call).get("content")
    if isinstance(content, str):
        note |= {"content": content, "htmlContent": escape(content, quote=False)}
    note["modifiedTime"] = format_time(call.now_s)


def _remove_note(note: dict[str, Any], call: Call) -> None:
    note |= {"deleted": True, "modifiedTime": format_time(call.now_s)}
    for name in ("content", "htmlContent", "author"):
        note.pop(name, None)


def _find_comment(state: DriveState, call: Call, *, includes_deleted: bool = False) -> dict[str, Any]:
    node, comment_id = state.find_node(call.parameters["id"], call.now_s), call.parameters["comment"]
    comment = drive_meta(node).comments.get(comment_id)
    if comment is None or (comment["deleted"] and not includes_deleted):
        raise DriveError(404, "notFound", f"Comment not found: {comment_id}.", "commentId")
    return comment


def list_comments(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.list``, the newest first."""
    _require_fields(call)
    notes = drive_meta(state.find_node(call.parameters["id"], call.now_s)).comments.values()
    includes_deleted = read_flag(query_params(call), "includeDeleted")
    items = [note for note in reversed(notes) if includes_deleted or not note["deleted"]]
    return _answer_list_page(call, "comments", items, "drive#commentList", None)


def create_comment(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.create``."""
    _require_fields(call)
    node = state.find_node(call.parameters["id"], call.now_s)
    note = _new_note(state, call, "comment") | {"replies": []}
    drive_meta(node).comments[note["id"]] = note
    return answer_selected(note, query_params(call), None)


def get_comment(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.get``."""
    _require_fields(call)
    includes_deleted = read_flag(query_params(call), "includeDeleted")
    return answer_selected(_find_comment(state, call, includes_deleted=includes_deleted), query_params(call), None)


def update_comment(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.update``."""
    _require_fields(call)
    note = _find_comment(state, call)
    _change_note(note, call)
    return answer_selected(note, query_params(call), None)


def delete_comment(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.delete``."""
    _remove_note(_find_comment(state, call), call)
    return answer_no_content()


def _find_reply(state: DriveState, call: Call) -> dict[str, Any]:
    reply_id = call.parameters["reply"]
    for reply in _find_comment(state, call)["replies"]:
        if reply["id"] == reply_id and not reply["deleted"]:
            match: dict[str, Any] = reply
            return match
    raise DriveError(404, "notFound", f"Reply not found: {reply_id}.", "replyId")


def list_replies(state: DriveState, call: Call) -> Answer:
    """Answer ``replies.list``."""
    _require_fields(call)
    items = [reply for reply in _find_comment(state, call)["replies"] if not reply["deleted"]]
    return _answer_list_page(call, "replies", items, "drive#replyList", None)


def create_reply(state: DriveState, call: Call) -> Answer:
    """Answer ``replies.create``, which can also resolve or reopen a comment."""
    _require_fields(call)
    comment, reply = _find_comment(state, call), _new_note(state, call, "reply")
    if reply.get("action") in ("resolve", "reopen"):
        comment["resolved"] = reply["action"] == "resolve"
    comment["replies"].append(reply)
    return answer_selected(reply, query_params(call), None)


def get_reply(state: DriveState, call: Call) -> Answer:
    """Answer ``replies.get``."""
    _require_fields(call)
    return answer_selected(_find_reply(state, call), query_params(call), None)


def update_reply(state: DriveState, call: Call) -> Answer:
    """Answer ``replies.update``."""
    _require_fields(call)
    reply = _find_reply(state, call)
    _change_note(reply, call)
    return answer_selected(reply, query_params(call), None)


def delete_reply(state: DriveState, call: Call) -> Answer:
    """Answer ``replies.delete``."""
    _remove_note(_find_reply(state, call), call)
    return answer_no_content()


# ---------------------------------------------------------------- shared drives


def _find_drive(state: DriveState, call: Call) -> SharedDrive:
    drive_id = call.parameters["drive"]
    if drive_id not in state.drives:
        raise DriveError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
    return state.drives[drive_id]


def _describe_drive(drive: SharedDrive) -> dict[str, Any]:
    details = {"createdTime": format_time(drive.created_s), "hidden": False, "colorRgb": "#ea6100"}
    return {"kind": "drive#drive", "id": drive.root.id, "name": drive.root.name, **details, **drive.properties}


def list_drives(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.list``."""
    params = query_params(call)
    start, size = read_page_start(params), read_page_size(params, 10, 100)
    items = [_describe_drive(drive) for drive in state.drives.values()]
    value: dict[str, Any] = {"kind": "drive#driveList", "drives": items[start : start + size]}
    if len(items) > start + size:
        value["nextPageToken"] = f"~!!~{start + size}"
    return answer_selected(value, params, _DRIVES)


def create_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.create``. A repeated request has the same id, and is refused instead of making a second drive."""
    body, request_id = read_json_body(call), query_params(call).get("requestId", "")
    if not request_id:
        raise DriveError(400, "required", "Required parameter: requestId", "requestId")
    if not isinstance(body.get("name"), str) or not body["name"]:
        raise DriveError(400, "required", "The shared drive name field is required.", "drive.name")
    for drive in state.drives.values():
        if drive.request_id == request_id:
            raise DriveError(409, "duplicate", "A shared drive with this request id exists already.", "requestId")
    drive = state.add_drive(_pick_drive_properties(body), request_id, call.now_s)
    return answer_selected(_describe_drive(drive), query_params(call), _DRIVE)


def _pick_drive_properties(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("name", "colorRgb", "hidden", "themeId", "restrictions") if name in body}


def get_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.get``."""
    return answer_selected(_describe_drive(_find_drive(state, call)), query_params(call), _DRIVE)


def update_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.update``."""
    drive = _find_drive(state, call)
    drive.properties |= _pick_drive_properties(read_json_body(call))
    assert drive.root.parent is not None
    state.store.move(drive.root, drive.root.parent, drive.properties["name"], call.now_s)
    return get_drive(state, call)


def hide_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.hide``."""
    _find_drive(state, call).properties["hidden"] = True
    return get_drive(state, call)


def unhide_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.unhide``."""
    _find_drive(state, call).properties["hidden"] = False
    return get_drive(state, call)


def delete_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.delete``. A drive that is not empty is deleted only if the request allows it."""
    drive = _find_drive(state, call)
    if drive.root.children and not read_flag(query_params(call), "allowItemDeletion"):
        raise DriveError(403, "teamDriveNotEmpty", "The shared drive is not empty.", "driveId")
    state.remove_node(drive.root, call.now_s)
    del state.drives[drive.root.id]
    return answer_no_content()
