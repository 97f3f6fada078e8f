"""``comments`` and ``replies`` of the API."""

from __future__ import annotations

from html import escape
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_no_content, format_time
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_list,
    answer_selected,
    find_named_node,
    query_params,
    read_flag,
    read_json_body,
)
from pytest_cloudbench.emulators.gdrive.state import DriveState, drive_meta
from pytest_cloudbench.emulators.skin import Answer, Call

_AUTHOR_FIELDS = ("kind", "displayName", "me", "photoLink")


def _require_fields(call: Call) -> None:
    if not query_params(call).get("fields"):
        raise DriveError(400, "required", "The 'fields' parameter is required for this method.", "fields")


def _new_note(state: DriveState, call: Call, kind: str) -> dict[str, Any]:
    """Return a new comment or reply."""
    body, now = read_json_body(call), format_time(call.now_s)
    content = body.get("content")
    if not isinstance(content, str) and not body.get("action"):
        raise DriveError(400, "required", "The content field is required.", f"{kind}.content")
    note: dict[str, Any] = {
        "kind": f"drive#{kind}", "id": state.tokens.next("AAAA", 9), "createdTime": now, "modifiedTime": now,
        "author": {name: state.user[name] for name in _AUTHOR_FIELDS}, "deleted": False,
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
    node, comment_id = find_named_node(state, call), call.parameters["comment"]
    comment = drive_meta(node).comments.get(comment_id)
    if comment is None or (comment["deleted"] and not includes_deleted):
        raise DriveError(404, "notFound", f"Comment not found: {comment_id}.", "commentId")
    return comment


def list_comments(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.list``, the newest first."""
    _require_fields(call)
    notes = drive_meta(find_named_node(state, call)).comments.values()
    includes_deleted = read_flag(query_params(call), "includeDeleted")
    items = [note for note in reversed(notes) if includes_deleted or not note["deleted"]]
    return answer_list(call, "comments", items, "drive#commentList", None)


def create_comment(state: DriveState, call: Call) -> Answer:
    """Answer ``comments.create``."""
    _require_fields(call)
    node = find_named_node(state, call)
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
    return answer_list(call, "replies", items, "drive#replyList", None)


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
