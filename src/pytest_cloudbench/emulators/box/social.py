"""Search, comments and collaborations.

Other users write no comments. An invitation by mail stays pending until the account with that login asks for the item.
"""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.box.answers import (
    BoxError,
    answer_json,
    bad_parameter,
    empty_answer,
    json_body,
    timestamp,
)
from pytest_cloudbench.emulators.box.items import (
    mini_item,
    read_number,
    read_query,
    requested_fields,
    standard_item,
)
from pytest_cloudbench.emulators.box.members import find_inviting
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_ROLES = ("editor", "viewer", "previewer", "uploader", "previewer uploader", "viewer uploader", "co-owner", "owner")


def _pick_fields(item: dict[str, Any], call: Call) -> dict[str, Any]:
    names = requested_fields(read_query(call))
    return item if names is None else {key: item[key] for key in ("type", "id", *names) if key in item}


# -------------------------------------------------------------------- search


def _search_items(state: BoxState, call: Call) -> Answer:
    """Answer with a page of the items that match all criteria of a search."""
    query = read_query(call)
    words = query.get("query", "").strip('" ').lower()
    if not words and not query.get("mdfilters"):
        raise bad_parameter("query", "'query' is required")
    offset, limit = read_number(query, "offset", 0), min(read_number(query, "limit", 30), 200)
    item_type, extensions = query.get("type", ""), query.get("file_extensions", "").lower().split(",")
    ancestors = [
        state.find_folder(folder_id) for folder_id in query.get("ancestor_folder_ids", "").split(",") if folder_id
    ]
    matches = [
        node
        for node in (state.trash if query.get("trash_content") == "trashed_only" else state.store.root).below()
        if words in node.name.lower() or words in state.meta(node).description.lower()
        if item_type in ("", "folder" if isinstance(node, Folder) else "file")
        if extensions == [""] or (isinstance(node, File) and node.name.lower().rpartition(".")[2] in extensions)
        if not ancestors or any(_is_below(node, folder) for folder in ancestors)
        if node.is_seen(call.now_s)
        if state.is_in_bounds(node)
    ]
    entries = [
        standard_item(state, node, call.now_s, requested_fields(query)) for node in matches[offset : offset + limit]
    ]
    page = {"total_count": len(matches), "entries": entries, "limit": limit, "offset": offset}
    return answer_json(page | {"type": "search_results_items"})


def _is_below(node: Node, folder: Folder) -> bool:
    ancestor = node.parent
    while ancestor is not None and ancestor is not folder:
        ancestor = ancestor.parent
    return ancestor is not None


# -------------------------------------------------------------------- comments


def _find_comment(state: BoxState, call: Call) -> dict[str, Any]:
    comment: dict[str, Any] | None = state.comments.get(call.parameters["id"])
    if comment is None:
        raise BoxError(404, "not_found")
    return comment


def _create_comment(state: BoxState, call: Call) -> Answer:
    """Answer with a new comment on a file or on another comment."""
    body = json_body(call)
    item, message = body.get("item"), body.get("message") or body.get("tagged_message")
    if not isinstance(item, dict) or not item.get("id"):
        raise bad_parameter("item", "'item' is required")
    if not isinstance(message, str):
        raise bad_parameter("message", "'message' is required")
    is_reply = item.get("type") == "comment"
    if is_reply and str(item["id"]) not in state.comments:
        raise BoxError(404, "not_found")
    target = (
        {"id": str(item["id"]), "type": "comment"}
        if is_reply
        else {"id": state.find_file(str(item["id"])).id, "type": "file"}
    )
    time = timestamp(call.now_s)
    comment: dict[str, Any] = {
        "type": "comment", "id": state.next_id(), "is_reply_comment": is_reply, "message": message,
        "created_by": state.user, "created_at": time, "modified_at": time, "item": target,
    }  # fmt: skip
    if body.get("tagged_message"):
        comment["tagged_message"] = body["tagged_message"]
    state.comments[comment["id"]] = comment
    return answer_json(_pick_fields(comment, call), 201)


def _get_comment(state: BoxState, call: Call) -> Answer:
    return answer_json(_pick_fields(_find_comment(state, call), call))


def _update_comment(state: BoxState, call: Call) -> Answer:
    comment, body = _find_comment(state, call), json_body(call)
    if isinstance(body.get("message"), str):
        comment["message"] = body["message"]
        comment["modified_at"] = timestamp(call.now_s)
    return answer_json(_pick_fields(comment, call))


def _delete_comment(state: BoxState, call: Call) -> Answer:
    del state.comments[_find_comment(state, call)["id"]]
    return empty_answer()


def _list_file_comments(state: BoxState, call: Call) -> Answer:
    file, query = state.find_file(call.parameters["id"]), read_query(call)
    comments = [_pick_fields(comment, call) for comment in state.comments.values() if comment["item"]["id"] == file.id]
    return answer_json(_offset_page(comments, query, {}))


def _offset_page(entries: list[Any], query: dict[str, str], other_keys: dict[str, Any]) -> dict[str, Any]:
    offset, limit = read_number(query, "offset", 0), min(read_number(query, "limit", 100), 1000)
    return {
        "total_count": len(entries),
        "entries": entries[offset : offset + limit],
        "offset": offset,
        "limit": limit,
    } | other_keys


# -------------------------------------------------------------------- collaborations


def _create_collaboration(state: BoxState, call: Call) -> Answer:
    """Answer with a new collaboration of a person on a file or folder. Raises BoxError."""
    body = json_body(call)
    item, person, role = body.get("item"), body.get("accessible_by"), body.get("role")
    if not isinstance(item, dict) or not isinstance(person, dict) or role not in _ROLES:
        name = "item" if not isinstance(item, dict) else "role" if isinstance(person, dict) else "accessible_by"
        raise bad_parameter(name, f"'{name}' is required")
    inviter, state = state.user, find_inviting(state, item)
    node = (
        state.find_folder(str(item.get("id"))) if item.get("type") == "folder" else state.find_file(str(item.get("id")))
    )
    if node.parent is None:
        raise BoxError(400, "collaborations_not_available_on_root_folder", message="Root folder cannot be collaborated")
    time = timestamp(call.now_s)
    # A user with an id is in the same company and counts as having accepted. An invitation by mail stays pending.
    login, is_colleague = str(person.get("login", "")), bool(person.get("id"))
    colleague = _find_colleague(state, str(person.get("id")), login)
    grantee = {**colleague, "is_active": True}
    collaboration = {
        "type": "collaboration", "id": state.next_id(), "created_by": inviter, "created_at": time, "modified_at": time,
        "expires_at": None, "status": "accepted" if is_colleague else "pending",
        "accessible_by": grantee if is_colleague else None, "invite_email": None if is_colleague else login,
        "role": role, "acknowledged_at": time if is_colleague else None, "item": mini_item(state, node),
        "is_access_only": False, "app_item": None,
    }  # fmt: skip
    if any(_has_same_person(other, collaboration) for other in state.collaborations.values()):
        raise BoxError(400, "user_already_collaborator", message="User is already a collaborator")
    state.collaborations[collaboration["id"]] = collaboration
    return answer_json(_pick_fields(collaboration, call), 201)


def _find_colleague(state: BoxState, user_id: str, login: str) -> dict[str, str]:
    """Return the user with an id, who need not have an account of this service."""
    accounts = (peer.user for peer in state.peers() if peer.user["id"] == user_id)
    return next(accounts, {"type": "user", "id": user_id, "name": login, "login": login})


def _has_same_person(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether two collaborations are with one person on one item."""
    people = []
    for collaboration in (first, second):
        grantee = collaboration["accessible_by"] or {}
        people.append(collaboration["invite_email"] or grantee.get("login") or grantee.get("id"))
    return first["item"]["id"] == second["item"]["id"] and people[0] == people[1]


def _find_collaboration(state: BoxState, call: Call) -> dict[str, Any]:
    collaboration: dict[str, Any] | None = state.collaborations.get(call.parameters["id"])
    if collaboration is None:
        raise BoxError(404, "not_found")
    return collaboration


def _get_collaboration(state: BoxState, call: Call) -> Answer:
    return answer_json(_pick_fields(_find_collaboration(state, call), call))


def _update_collaboration(state: BoxState, call: Call) -> Answer:
    collaboration, body = _find_collaboration(state, call), json_body(call)
    if body.get("role") is not None and body["role"] not in _ROLES:
        raise bad_parameter("role", f"Invalid value '{body['role']}'.")
    collaboration |= {key: body[key] for key in ("role", "expires_at") if body.get(key) is not None}
    collaboration["modified_at"] = timestamp(call.now_s)
    return answer_json(_pick_fields(collaboration, call))


def _delete_collaboration(state: BoxState, call: Call) -> Answer:
    del state.collaborations[_find_collaboration(state, call)["id"]]
    return empty_answer()


def _list_pending(state: BoxState, call: Call) -> Answer:
    query = read_query(call)
    if query.get("status") != "pending":
        raise bad_parameter("status", "'status' is required")
    # No invitation waits for this user's answer, since those that the user made wait for others.
    return answer_json(_offset_page([], query, {}))


def _list_item_collaborations(state: BoxState, call: Call) -> Answer:
    is_folder = call.path.removeprefix("/api").startswith("/2.0/folders/")
    node = state.find_folder(call.parameters["id"]) if is_folder else state.find_file(call.parameters["id"])
    collaborations = [
        _pick_fields(collaboration, call)
        for collaboration in state.collaborations.values()
        if collaboration["item"]["id"] == node.id
    ]
    return answer_json({"total_count": len(collaborations), "entries": collaborations})


FUNCTIONS = (
    BoxFunction("GET", "/2.0/search", "search", Kind.META, _search_items),
    BoxFunction("POST", "/2.0/comments", "comment_create", Kind.META, _create_comment),
    BoxFunction("GET", "/2.0/comments/{id}", "comment_get", Kind.META, _get_comment),
    BoxFunction("PUT", "/2.0/comments/{id}", "comment_update", Kind.META, _update_comment),
    BoxFunction("DELETE", "/2.0/comments/{id}", "comment_delete", Kind.META, _delete_comment),
    BoxFunction("GET", "/2.0/files/{id}/comments", "comments", Kind.META, _list_file_comments),
    BoxFunction("GET", "/2.0/collaborations", "collaborations_pending", Kind.META, _list_pending),
    BoxFunction("POST", "/2.0/collaborations", "collaboration_create", Kind.META, _create_collaboration),
    BoxFunction("GET", "/2.0/collaborations/{id}", "collaboration_get", Kind.META, _get_collaboration),
    BoxFunction("PUT", "/2.0/collaborations/{id}", "collaboration_update", Kind.META, _update_collaboration),
    BoxFunction("DELETE", "/2.0/collaborations/{id}", "collaboration_delete", Kind.META, _delete_collaboration),
    BoxFunction("GET", "/2.0/files/{id}/collaborations", "file_collaborations", Kind.META, _list_item_collaborations),
    BoxFunction(
        "GET", "/2.0/folders/{id}/collaborations", "folder_collaborations", Kind.META, _list_item_collaborations
    ),
)
