"""What there is besides files: revisions, comments and replies, shared drives.

What may live here: ``revisions``, ``comments``, ``replies`` and ``drives`` of the API.
"""

from __future__ import annotations

from html import escape
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, no_content, timestamp
from pytest_cloudbench.emulators.gdrive.requests import about_value, body_of, flag, page_size, page_token, params_of
from pytest_cloudbench.emulators.gdrive.selection import Chosen
from pytest_cloudbench.emulators.gdrive.state import APPS, USER, DriveState, SharedDrive, is_document, meta_of
from pytest_cloudbench.emulators.nodes import File, Version
from pytest_cloudbench.emulators.skin import Answer, Call

_REVISION: Chosen = {"kind": None, "id": None, "mimeType": None, "modifiedTime": None}
_REVISIONS: Chosen = {"kind": None, "nextPageToken": None, "revisions": _REVISION}
_DRIVE: Chosen = {"kind": None, "id": None, "name": None}
_DRIVES: Chosen = {"kind": None, "nextPageToken": None, "drives": _DRIVE}
_AUTHOR = {name: USER[name] for name in ("kind", "displayName", "me", "photoLink")}


def _page(call: Call, name: str, found: list[dict[str, Any]], kind: str, default: Chosen | None) -> Answer:
    """Returns one page of a list."""
    params = params_of(call)
    start, size = page_token(params), page_size(params, 100, 1000)
    value: dict[str, Any] = {"kind": kind, name: found[start : start + size]}
    if len(found) > start + size:
        value["nextPageToken"] = f"~!!~{start + size}"
    return about_value(value, params, default)


def _require_fields(call: Call) -> None:
    if not params_of(call).get("fields"):
        raise DriveError(400, "required", "The 'fields' parameter is required for this method.", "fields")


# ---------------------------------------------------------------- revisions


def _versions(state: DriveState, call: Call) -> tuple[File, list[tuple[str, Version]]]:
    """Returns a file and its revisions by id; those of Google's own documents are numbered."""
    node = state.find(call.parameters["id"], call.now_s)
    if not isinstance(node, File):
        raise DriveError(403, "revisionsNotSupported", "The file does not support revisions.")
    seen = [version for version in node.versions if version.visible_s <= call.now_s]
    if is_document(meta_of(node).mime):
        return node, [(str(number), version) for number, version in enumerate(seen, 1)]
    return node, [(version.rev, version) for version in seen]


def _revision(state: DriveState, call: Call) -> tuple[File, str, Version]:
    node, versions = _versions(state, call)
    wanted = call.parameters["revision"]
    for revision_id, version in versions:
        if wanted in (revision_id, "head") and (wanted != "head" or version is versions[-1][1]):
            return node, revision_id, version
    raise DriveError(404, "notFound", f"Revision not found: {wanted}.", "revisionId")


def _revision_value(node: File, revision_id: str, version: Version) -> dict[str, Any]:
    meta = meta_of(node)
    value: dict[str, Any] = {
        "kind": "drive#revision", "id": revision_id, "mimeType": meta.mime, "modifiedTime": timestamp(version.client_s),
        "keepForever": revision_id in meta.kept, "published": False, "lastModifyingUser": USER,
    }  # fmt: skip
    if not meta.mime.startswith(APPS):
        value |= {"size": str(version.blob.size_bytes), "md5Checksum": version.blob.hash_hex}
        value["originalFilename"] = meta.given.get("originalFilename", node.name)
    return value


def list_revisions(state: DriveState, call: Call) -> Answer:
    """``revisions.list``: oldest first."""
    node, versions = _versions(state, call)
    found = [_revision_value(node, revision_id, version) for revision_id, version in versions]
    return _page(call, "revisions", found, "drive#revisionList", _REVISIONS)


def get_revision(state: DriveState, call: Call) -> Answer:
    """``revisions.get``: what is known of a revision, or its content."""
    node, revision_id, version = _revision(state, call)
    params = params_of(call)
    if params.get("alt") == "media":
        if meta_of(node).mime.startswith(APPS):
            raise DriveError(403, "fileNotDownloadable", "Only files with binary content can be downloaded.", "alt")
        return Answer(200, [(b"content-type", meta_of(node).mime.encode("latin-1", "replace"))], version.blob)
    return about_value(_revision_value(node, revision_id, version), params, _REVISION)


def update_revision(state: DriveState, call: Call) -> Answer:
    """``revisions.update``: keep it forever."""
    node, revision_id, version = _revision(state, call)
    if body_of(call).get("keepForever"):
        meta_of(node).kept.add(revision_id)
    else:
        meta_of(node).kept.discard(revision_id)
    return about_value(_revision_value(node, revision_id, version), params_of(call), _REVISION)


def delete_revision(state: DriveState, call: Call) -> Answer:
    """``revisions.delete``; the last one stays."""
    node, _, version = _revision(state, call)
    if len(node.versions) == 1 or is_document(meta_of(node).mime):
        raise DriveError(403, "cannotDeleteOnlyRevision", "The revision cannot be deleted.", "revisionId")
    if version is node.versions[-1]:
        state.store.used_bytes += node.versions[-2].blob.size_bytes - version.blob.size_bytes
    node.versions.remove(version)
    state.changed(node, call.now_s)
    return no_content()


# ---------------------------------------------------------------- comments and replies


def _new_note(state: DriveState, call: Call, kind: str) -> dict[str, Any]:
    """Returns a new comment or reply."""
    given, now = body_of(call), timestamp(call.now_s)
    content = given.get("content")
    if not isinstance(content, str) and not given.get("action"):
        raise DriveError(400, "required", "The content field is required.", f"{kind}.content")
    note: dict[str, Any] = {
        "kind": f"drive#{kind}", "id": state.tokens.next("AAAA", 9), "createdTime": now, "modifiedTime": now,
        "author": _AUTHOR, "deleted": False,
    }  # fmt: skip
    if isinstance(content, str):
        note |= {"content": content, "htmlContent": escape(content, quote=False)}
    return note | {name: given[name] for name in ("anchor", "quotedFileContent", "action") if name in given}


def _change_note(note: dict[str, Any], call: Call) -> None:
    content = body_of(call).get("content")
    if isinstance(content, str):
        note |= {"content": content, "htmlContent": escape(content, quote=False)}
    note["modifiedTime"] = timestamp(call.now_s)


def _remove_note(note: dict[str, Any], call: Call) -> None:
    note |= {"deleted": True, "modifiedTime": timestamp(call.now_s)}
    for name in ("content", "htmlContent", "author"):
        note.pop(name, None)


def _comment(state: DriveState, call: Call, *, deleted_too: bool = False) -> dict[str, Any]:
    node, wanted = state.find(call.parameters["id"], call.now_s), call.parameters["comment"]
    comment = meta_of(node).comments.get(wanted)
    if comment is None or (comment["deleted"] and not deleted_too):
        raise DriveError(404, "notFound", f"Comment not found: {wanted}.", "commentId")
    return comment


def list_comments(state: DriveState, call: Call) -> Answer:
    """``comments.list``: newest first."""
    _require_fields(call)
    notes = meta_of(state.find(call.parameters["id"], call.now_s)).comments.values()
    deleted_too = flag(params_of(call), "includeDeleted")
    found = [note for note in reversed(notes) if deleted_too or not note["deleted"]]
    return _page(call, "comments", found, "drive#commentList", None)


def create_comment(state: DriveState, call: Call) -> Answer:
    """``comments.create``."""
    _require_fields(call)
    node = state.find(call.parameters["id"], call.now_s)
    note = _new_note(state, call, "comment") | {"replies": []}
    meta_of(node).comments[note["id"]] = note
    return about_value(note, params_of(call), None)


def get_comment(state: DriveState, call: Call) -> Answer:
    """``comments.get``."""
    _require_fields(call)
    deleted_too = flag(params_of(call), "includeDeleted")
    return about_value(_comment(state, call, deleted_too=deleted_too), params_of(call), None)


def update_comment(state: DriveState, call: Call) -> Answer:
    """``comments.update``."""
    _require_fields(call)
    note = _comment(state, call)
    _change_note(note, call)
    return about_value(note, params_of(call), None)


def delete_comment(state: DriveState, call: Call) -> Answer:
    """``comments.delete``."""
    _remove_note(_comment(state, call), call)
    return no_content()


def _reply(state: DriveState, call: Call) -> dict[str, Any]:
    wanted = call.parameters["reply"]
    for reply in _comment(state, call)["replies"]:
        if reply["id"] == wanted and not reply["deleted"]:
            found: dict[str, Any] = reply
            return found
    raise DriveError(404, "notFound", f"Reply not found: {wanted}.", "replyId")


def list_replies(state: DriveState, call: Call) -> Answer:
    """``replies.list``."""
    _require_fields(call)
    found = [reply for reply in _comment(state, call)["replies"] if not reply["deleted"]]
    return _page(call, "replies", found, "drive#replyList", None)


def create_reply(state: DriveState, call: Call) -> Answer:
    """``replies.create``; it can resolve and reopen a comment."""
    _require_fields(call)
    comment, reply = _comment(state, call), _new_note(state, call, "reply")
    if reply.get("action") in ("resolve", "reopen"):
        comment["resolved"] = reply["action"] == "resolve"
    comment["replies"].append(reply)
    return about_value(reply, params_of(call), None)


def get_reply(state: DriveState, call: Call) -> Answer:
    """``replies.get``."""
    _require_fields(call)
    return about_value(_reply(state, call), params_of(call), None)


def update_reply(state: DriveState, call: Call) -> Answer:
    """``replies.update``."""
    _require_fields(call)
    reply = _reply(state, call)
    _change_note(reply, call)
    return about_value(reply, params_of(call), None)


def delete_reply(state: DriveState, call: Call) -> Answer:
    """``replies.delete``."""
    _remove_note(_reply(state, call), call)
    return no_content()


# ---------------------------------------------------------------- shared drives


def _drive(state: DriveState, call: Call) -> SharedDrive:
    wanted = call.parameters["drive"]
    if wanted not in state.drives:
        raise DriveError(404, "notFound", f"Shared drive not found: {wanted}", "driveId")
    return state.drives[wanted]


def _drive_value(drive: SharedDrive) -> dict[str, Any]:
    more = {"createdTime": timestamp(drive.created_s), "hidden": False, "colorRgb": "#ea6100"}
    return {"kind": "drive#drive", "id": drive.root.id, "name": drive.root.name, **more, **drive.given}


def list_drives(state: DriveState, call: Call) -> Answer:
    """``drives.list``."""
    params = params_of(call)
    start, size = page_token(params), page_size(params, 10, 100)
    found = [_drive_value(drive) for drive in state.drives.values()]
    value: dict[str, Any] = {"kind": "drive#driveList", "drives": found[start : start + size]}
    if len(found) > start + size:
        value["nextPageToken"] = f"~!!~{start + size}"
    return about_value(value, params, _DRIVES)


def create_drive(state: DriveState, call: Call) -> Answer:
    """``drives.create``; because of the request's id, repeating a request makes no second drive."""
    given, request_id = body_of(call), params_of(call).get("requestId", "")
    if not request_id:
        raise DriveError(400, "required", "Required parameter: requestId", "requestId")
    if not isinstance(given.get("name"), str) or not given["name"]:
        raise DriveError(400, "required", "The shared drive name field is required.", "drive.name")
    for known in state.drives.values():
        if known.request_id == request_id:
            raise DriveError(409, "duplicate", "A shared drive with this request id exists already.", "requestId")
    drive = state.add_drive(_drive_given(given), request_id, call.now_s)
    return about_value(_drive_value(drive), params_of(call), _DRIVE)


def _drive_given(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("name", "colorRgb", "hidden", "themeId", "restrictions") if name in given}


def get_drive(state: DriveState, call: Call) -> Answer:
    """``drives.get``."""
    return about_value(_drive_value(_drive(state, call)), params_of(call), _DRIVE)


def update_drive(state: DriveState, call: Call) -> Answer:
    """``drives.update``."""
    drive = _drive(state, call)
    drive.given |= _drive_given(body_of(call))
    assert drive.root.parent is not None
    state.store.move(drive.root, drive.root.parent, drive.given["name"], call.now_s)
    return get_drive(state, call)


def hide_drive(state: DriveState, call: Call) -> Answer:
    """``drives.hide``."""
    _drive(state, call).given["hidden"] = True
    return get_drive(state, call)


def unhide_drive(state: DriveState, call: Call) -> Answer:
    """``drives.unhide``."""
    _drive(state, call).given["hidden"] = False
    return get_drive(state, call)


def delete_drive(state: DriveState, call: Call) -> Answer:
    """``drives.delete``; only an empty drive can be deleted."""
    drive = _drive(state, call)
    if drive.root.children and not flag(params_of(call), "allowItemDeletion"):
        raise DriveError(403, "teamDriveNotEmpty", "The shared drive is not empty.", "driveId")
    state.remove(drive.root, call.now_s)
    del state.drives[drive.root.id]
    return no_content()
