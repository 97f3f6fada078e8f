"""Around the files: search, comments and collaborations.

What may live here: what people do with items besides storing them. There is one user: nobody else's comments
appear, and nobody accepts an invitation by mail.
"""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.box.answers import BoxError, answer_json, bad_parameter, json_body, nothing, timestamp
from pytest_cloudbench.emulators.box.items import USER, chosen, entry, mini, number_of, query_of
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState
from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

_ROLES = ("editor", "viewer", "previewer", "uploader", "previewer uploader", "viewer uploader", "co-owner", "owner")


def _picked(whole: dict[str, Any], call: Call) -> dict[str, Any]:
    names = chosen(query_of(call))
    return whole if names is None else {key: whole[key] for key in ("type", "id", *names) if key in whole}


# -------------------------------------------------------------------- search


def _search(state: BoxState, call: Call) -> Answer:
    query = query_of(call)
    words = query.get("query", "").strip('" ').lower()
    if not words and not query.get("mdfilters"):
        raise bad_parameter("query", "'query' is required")
    offset, limit = number_of(query, "offset", 0), min(number_of(query, "limit", 30), 200)
    kind, endings = query.get("type", ""), query.get("file_extensions", "").lower().split(",")
    above = [state.folder(each) for each in query.get("ancestor_folder_ids", "").split(",") if each]
    found = [
        node
        for node in (state.trash if query.get("trash_content") == "trashed_only" else state.store.root).below()
        if words in node.name.lower() or words in state.meta(node).description.lower()
        if kind in ("", "folder" if isinstance(node, Folder) else "file")
        if endings == [""] or (isinstance(node, File) and node.name.lower().rpartition(".")[2] in endings)
        if not above or any(_is_below(node, folder) for folder in above)
        if not isinstance(node, File) or node.seen(call.now_s) is not None
        if state.is_reached(node)
    ]
    entries = [entry(state, node, call.now_s, chosen(query)) for node in found[offset : offset + limit]]
    page = {"total_count": len(found), "entries": entries, "limit": limit, "offset": offset}
    return answer_json(page | {"type": "search_results_items"})


def _is_below(node: Node, folder: Folder) -> bool:
    above = node.parent
    while above is not None and above is not folder:
        above = above.parent
    return above is not None


# -------------------------------------------------------------------- comments


def _comment(state: BoxState, call: Call) -> dict[str, Any]:
    found: dict[str, Any] | None = state.comments.get(call.parameters["id"])
    if found is None:
        raise BoxError(404, "not_found")
    return found


def _create_comment(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    item, message = body.get("item"), body.get("message") or body.get("tagged_message")
    if not isinstance(item, dict) or not item.get("id"):
        raise bad_parameter("item", "'item' is required")
    if not isinstance(message, str):
        raise bad_parameter("message", "'message' is required")
    is_reply = item.get("type") == "comment"
    if is_reply and str(item["id"]) not in state.comments:
        raise BoxError(404, "not_found")
    about = (
        {"id": str(item["id"]), "type": "comment"}
        if is_reply
        else {"id": state.file(str(item["id"])).id, "type": "file"}
    )
    at = timestamp(call.now_s)
    comment: dict[str, Any] = {
        "type": "comment", "id": state.number(), "is_reply_comment": is_reply, "message": message, "created_by": USER,
        "created_at": at, "modified_at": at, "item": about,
    }  # fmt: skip
    if body.get("tagged_message"):
        comment["tagged_message"] = body["tagged_message"]
    state.comments[comment["id"]] = comment
    return answer_json(_picked(comment, call), 201)


def _get_comment(state: BoxState, call: Call) -> Answer:
    return answer_json(_picked(_comment(state, call), call))


def _update_comment(state: BoxState, call: Call) -> Answer:
    comment, body = _comment(state, call), json_body(call)
    if isinstance(body.get("message"), str):
        comment["message"] = body["message"]
        comment["modified_at"] = timestamp(call.now_s)
    return answer_json(_picked(comment, call))


def _delete_comment(state: BoxState, call: Call) -> Answer:
    del state.comments[_comment(state, call)["id"]]
    return nothing()


def _file_comments(state: BoxState, call: Call) -> Answer:
    file, query = state.file(call.parameters["id"]), query_of(call)
    found = [_picked(each, call) for each in state.comments.values() if each["item"]["id"] == file.id]
    return answer_json(_by_offset(found, query, {}))


def _by_offset(found: list[Any], query: dict[str, str], more: dict[str, Any]) -> dict[str, Any]:
    offset, limit = number_of(query, "offset", 0), min(number_of(query, "limit", 100), 1000)
    return {
        "total_count": len(found),
        "entries": found[offset : offset + limit],
        "offset": offset,
        "limit": limit,
    } | more


# -------------------------------------------------------------------- collaborations


def _create_collaboration(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    item, who, role = body.get("item"), body.get("accessible_by"), body.get("role")
    if not isinstance(item, dict) or not isinstance(who, dict) or role not in _ROLES:
        name = "item" if not isinstance(item, dict) else "accessible_by" if not isinstance(who, dict) else "role"
        raise bad_parameter(name, f"'{name}' is required")
    node = state.folder(str(item.get("id"))) if item.get("type") == "folder" else state.file(str(item.get("id")))
    if node.parent is None:
        raise BoxError(400, "collaborations_not_available_on_root_folder", message="Root folder cannot be collaborated")
    at = timestamp(call.now_s)
    # A user with an id is in the same company and counts as having accepted; an invitation by mail stays pending.
    person, is_known = str(who.get("login", "")), bool(who.get("id"))
    grantee = {"type": "user", "id": str(who.get("id")), "name": person, "login": person, "is_active": True}
    made = {
        "type": "collaboration", "id": state.number(), "created_by": USER, "created_at": at, "modified_at": at,
        "expires_at": None, "status": "accepted" if is_known else "pending",
        "accessible_by": grantee if is_known else None, "invite_email": None if is_known else person, "role": role,
        "acknowledged_at": at if is_known else None, "item": mini(state, node), "is_access_only": False,
        "app_item": None,
    }  # fmt: skip
    state.collaborations[made["id"]] = made
    return answer_json(_picked(made, call), 201)


def _collaboration(state: BoxState, call: Call) -> dict[str, Any]:
    found: dict[str, Any] | None = state.collaborations.get(call.parameters["id"])
    if found is None:
        raise BoxError(404, "not_found")
    return found


def _get_collaboration(state: BoxState, call: Call) -> Answer:
    return answer_json(_picked(_collaboration(state, call), call))


def _update_collaboration(state: BoxState, call: Call) -> Answer:
    found, body = _collaboration(state, call), json_body(call)
    if body.get("role") is not None and body["role"] not in _ROLES:
        raise bad_parameter("role", f"Invalid value '{body['role']}'.")
    found |= {key: body[key] for key in ("role", "expires_at") if body.get(key) is not None}
    found["modified_at"] = timestamp(call.now_s)
    return answer_json(_picked(found, call))


def _delete_collaboration(state: BoxState, call: Call) -> Answer:
    del state.collaborations[_collaboration(state, call)["id"]]
    return nothing()


def _pending(state: BoxState, call: Call) -> Answer:
    query = query_of(call)
    if query.get("status") != "pending":
        raise bad_parameter("status", "'status' is required")
    # Invitations that wait for this user's answer: none, since those that the user made wait for others.
    return answer_json(_by_offset([], query, {}))


def _of_item(state: BoxState, call: Call) -> Answer:
    is_folder = call.path.removeprefix("/api").startswith("/2.0/folders/")
    node = state.folder(call.parameters["id"]) if is_folder else state.file(call.parameters["id"])
    found = [_picked(each, call) for each in state.collaborations.values() if each["item"]["id"] == node.id]
    return answer_json({"total_count": len(found), "entries": found})


FUNCTIONS = (
    BoxFunction("GET", "/2.0/search", "search", Kind.META, _search),
    BoxFunction("POST", "/2.0/comments", "comment_create", Kind.META, _create_comment),
    BoxFunction("GET", "/2.0/comments/{id}", "comment_get", Kind.META, _get_comment),
    BoxFunction("PUT", "/2.0/comments/{id}", "comment_update", Kind.META, _update_comment),
    BoxFunction("DELETE", "/2.0/comments/{id}", "comment_delete", Kind.META, _delete_comment),
    BoxFunction("GET", "/2.0/files/{id}/comments", "comments", Kind.META, _file_comments),
    BoxFunction("GET", "/2.0/collaborations", "collaborations_pending", Kind.META, _pending),
    BoxFunction("POST", "/2.0/collaborations", "collaboration_create", Kind.META, _create_collaboration),
    BoxFunction("GET", "/2.0/collaborations/{id}", "collaboration_get", Kind.META, _get_collaboration),
    BoxFunction("PUT", "/2.0/collaborations/{id}", "collaboration_update", Kind.META, _update_collaboration),
    BoxFunction("DELETE", "/2.0/collaborations/{id}", "collaboration_delete", Kind.META, _delete_collaboration),
    BoxFunction("GET", "/2.0/files/{id}/collaborations", "file_collaborations", Kind.META, _of_item),
    BoxFunction("GET", "/2.0/folders/{id}/collaborations", "folder_collaborations", Kind.META, _of_item),
)
