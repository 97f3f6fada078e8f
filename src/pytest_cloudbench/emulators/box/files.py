"""Files and folders by id: reading, changing, copying, moving, versions and the trash.

What may live here: ``files/{id}`` and ``folders/{id}`` with what belongs to them, besides content.
"""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.box.answers import (
    BoxError,
    answer_json,
    bad_parameter,
    json_body,
    nothing,
    read_time,
)
from pytest_cloudbench.emulators.box.downloads import any_version_of, is_unchanged, version_of
from pytest_cloudbench.emulators.box.items import (
    children,
    chosen,
    conflict,
    entry,
    file_item,
    folder_item,
    number_of,
    page,
    query_of,
    version_item,
)
from pytest_cloudbench.emulators.box.sharing import set_link
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, FileLock
from pytest_cloudbench.emulators.box.uploads import precondition
from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

# -------------------------------------------------------------------- reading


def _get_file(state: BoxState, call: Call) -> Answer:
    file, version = state.read(call.parameters["id"], call.now_s)
    if is_unchanged(state, call, file):
        return nothing(304)
    return answer_json(file_item(state, file, version, chosen(query_of(call))))


def _get_folder(state: BoxState, call: Call) -> Answer:
    folder, query = state.folder(call.parameters["id"]), query_of(call)
    if folder.parent is not None and is_unchanged(state, call, folder):
        return nothing(304)
    return answer_json(folder_item(state, folder, call.now_s, chosen(query), contents=query))


def _get_items(state: BoxState, call: Call) -> Answer:
    folder, query = state.folder(call.parameters["id"]), query_of(call)
    return answer_json(page(state, children(state, folder, call.now_s), query, call.now_s, chosen(query)))


# -------------------------------------------------------------------- changing


def _apply(state: BoxState, node: File | Folder, body: dict[str, Any], now_s: float) -> None:
    """Change what a request names. Raises BoxError before anything has changed."""
    meta = state.meta(node)
    folder = state.parent_of(body) if body.get("parent") is not None else node.parent
    name = state.checked_name(body["name"]) if body.get("name") is not None else node.name
    is_moved = folder is not node.parent or name != node.name
    if is_moved:
        if node.parent is None:
            raise BoxError(403, "access_denied_insufficient_permissions")
        assert folder is not None
        taken = state.taken(folder, name)
        if taken is not None and taken is not node:
            raise conflict(state, taken, as_list=isinstance(node, Folder))
        if isinstance(node, Folder) and state.store.holds(node, folder):
            raise BoxError(400, "cyclical_folder_structure")
    times = {key: read_time(body[key], key) for key in ("content_created_at", "content_modified_at") if body.get(key)}
    lock = _new_lock(state, body["lock"], now_s) if "lock" in body and isinstance(node, File) else meta.lock
    if "shared_link" in body:
        set_link(state, node, body["shared_link"], now_s)
    if is_moved:
        assert folder is not None
        state.move(node, folder, name, now_s)
    meta.lock = lock
    if isinstance(body.get("description"), str):
        meta.description = body["description"]
    if isinstance(body.get("tags"), list):
        meta.tags = [str(tag) for tag in body["tags"]]
    meta.content_created_s = times.get("content_created_at", meta.content_created_s)
    meta.content_modified_s = times.get("content_modified_at", meta.content_modified_s)
    meta.changed(now_s)


def _new_lock(state: BoxState, wanted: object, now_s: float) -> FileLock | None:
    """Returns the lock that a request describes; None if it takes it away. Raises BoxError."""
    if wanted is None or (isinstance(wanted, dict) and wanted.get("type") == "unlock"):
        return None
    if not isinstance(wanted, dict) or (wanted.get("access") or wanted.get("type")) != "lock":
        raise bad_parameter("lock", f"Invalid value '{wanted}'.")
    until = wanted.get("expires_at")
    expires_s = None if until is None else read_time(until, "expires_at")
    if expires_s is not None and expires_s <= now_s:
        raise bad_parameter("expires_at", f"Invalid value '{until}'.")
    return FileLock(state.number(), now_s, expires_s, wanted.get("is_download_prevented") is True)


def _put_file(state: BoxState, call: Call) -> Answer:
    file, _ = state.seen(call.parameters["id"], call.now_s)
    precondition(state, call, file)
    _apply(state, file, json_body(call), call.now_s)
    return answer_json(file_item(state, file, file.seen(call.now_s), chosen(query_of(call))))


def _put_folder(state: BoxState, call: Call) -> Answer:
    folder, query = state.folder(call.parameters["id"]), query_of(call)
    precondition(state, call, folder)
    _apply(state, folder, json_body(call), call.now_s)
    return answer_json(folder_item(state, folder, call.now_s, chosen(query), contents={}))


def _create_folder(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    parent, name = state.parent_of(body), state.checked_name(body.get("name"))
    taken = state.taken(parent, name)
    if taken is not None:
        raise conflict(state, taken, as_list=True)
    made = state.add_folder(parent, name, call.now_s)
    if isinstance(body.get("description"), str):
        state.meta(made).description = body["description"]
    return answer_json(folder_item(state, made, call.now_s, chosen(query_of(call)), contents={}), 201)


def _copy(state: BoxState, node: File | Folder, call: Call) -> Node:
    body = json_body(call)
    folder = state.parent_of(body)
    name = state.checked_name(body["name"]) if body.get("name") is not None else node.name
    if isinstance(node, Folder) and state.store.holds(node, folder):
        raise BoxError(400, "cyclical_folder_structure")
    taken = state.taken(folder, name)
    if taken is not None:
        raise conflict(state, taken, as_list=isinstance(node, Folder))
    if isinstance(node, File) and body.get("version") is not None:
        version = version_of(state, node, str(body["version"]))
        meta = state.meta(node)
        return state.add_file(folder, name, version.blob, call.now_s, meta.content_created_s, version.client_s)
    return state.copy(node, folder, name, call.now_s)


def _copy_file(state: BoxState, call: Call) -> Answer:
    file, _ = state.seen(call.parameters["id"], call.now_s)
    twin = _copy(state, file, call)
    assert isinstance(twin, File)
    return answer_json(file_item(state, twin, None, chosen(query_of(call))), 201)


def _copy_folder(state: BoxState, call: Call) -> Answer:
    folder = state.folder(call.parameters["id"])
    if folder.parent is None:
        raise BoxError(500, "internal_server_error")
    twin = _copy(state, folder, call)
    assert isinstance(twin, Folder)
    return answer_json(folder_item(state, twin, call.now_s, chosen(query_of(call)), contents={}), 201)


def _delete_file(state: BoxState, call: Call) -> Answer:
    file, _ = state.seen(call.parameters["id"], call.now_s)
    precondition(state, call, file)
    state.throw_away(file, call.now_s)
    return nothing()


def _delete_folder(state: BoxState, call: Call) -> Answer:
    folder = state.folder(call.parameters["id"])
    if folder.parent is None:
        raise BoxError(403, "access_denied_insufficient_permissions")
    precondition(state, call, folder)
    if folder.children and query_of(call).get("recursive", "").lower() != "true":
        raise BoxError(400, "folder_not_empty")
    state.throw_away(folder, call.now_s)
    return nothing()


# -------------------------------------------------------------------- trash


def _trash_items(state: BoxState, call: Call) -> Answer:
    query = query_of(call)
    return answer_json(page(state, children(state, state.trash, call.now_s), query, call.now_s, chosen(query)))


def _get_trashed(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    return answer_json(entry(state, state.trashed(call.parameters["id"], kind), call.now_s, chosen(query_of(call))))


def _purge(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    state.purge(state.trashed(call.parameters["id"], kind), call.now_s)
    return nothing()


def _restore(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    node, body = state.trashed(call.parameters["id"], kind), json_body(call)
    former = state.meta(node).former
    if body.get("parent") is not None:
        folder = state.parent_of(body)
    elif former is None or former.deleted_s is not None or state.in_trash(former):
        raise BoxError(403, "access_denied_insufficient_permissions")
    else:
        folder = former
    name = state.checked_name(body["name"]) if body.get("name") is not None else node.name
    taken = state.taken(folder, name)
    if taken is not None:
        raise conflict(state, taken, as_list=isinstance(node, Folder))
    state.restore(node, folder, name, call.now_s)
    return answer_json(entry(state, node, call.now_s, chosen(query_of(call))), 201)


# -------------------------------------------------------------------- versions


def _list_versions(state: BoxState, call: Call) -> Answer:
    file, query = state.file(call.parameters["id"]), query_of(call)
    offset, limit = number_of(query, "offset", 0), min(number_of(query, "limit", 100), 1000)
    past = [version_item(state, file, each, chosen(query)) for each in reversed(file.versions[file.born : -1])]
    found = {"total_count": len(past), "entries": past[offset : offset + limit], "offset": offset, "limit": limit}
    return answer_json(found)


def _get_version(state: BoxState, call: Call) -> Answer:
    file = state.file(call.parameters["id"])
    version = any_version_of(file, call.parameters["version"])
    return answer_json(version_item(state, file, version, chosen(query_of(call))))


def _promote(state: BoxState, call: Call) -> Answer:
    file, body = state.file(call.parameters["id"]), json_body(call)
    if "id" not in body:
        raise bad_parameter("id", "'id' is required")
    former = version_of(state, file, str(body["id"]))
    version = state.add_version(file, former.blob, call.now_s, former.client_s)
    return answer_json(version_item(state, file, version, chosen(query_of(call))), 201)


def _delete_version(state: BoxState, call: Call) -> Answer:
    file = state.file(call.parameters["id"])
    version = version_of(state, file, call.parameters["version"])
    precondition(state, call, file)
    if version is file.versions[-1]:
        raise BoxError(403, "access_denied_insufficient_permissions")
    state.meta(file).trashed_versions[version.rev] = call.now_s
    return nothing()


def _restore_version(state: BoxState, call: Call) -> Answer:
    file, body = state.file(call.parameters["id"]), json_body(call)
    version = any_version_of(file, call.parameters["version"])
    if body.get("trashed_at", "") is not None:
        raise bad_parameter("trashed_at", "'trashed_at' is required")
    state.meta(file).trashed_versions.pop(version.rev, None)
    return answer_json(version_item(state, file, version, chosen(query_of(call))))


def _restored_file(state: BoxState, call: Call) -> Answer:
    return _restore(state, call, File)


def _restored_folder(state: BoxState, call: Call) -> Answer:
    return _restore(state, call, Folder)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/folders/{id}/items", "folder_items", Kind.META, _get_items),
    BoxFunction("GET", "/2.0/files/{id}", "file_get", Kind.META, _get_file),
    BoxFunction("PUT", "/2.0/files/{id}", "file_update", Kind.META, _put_file),
    BoxFunction("DELETE", "/2.0/files/{id}", "file_delete", Kind.META, _delete_file),
    BoxFunction("POST", "/2.0/files/{id}", "file_restore", Kind.META, _restored_file),
    BoxFunction("POST", "/2.0/files/{id}/copy", "file_copy", Kind.META, _copy_file),
    BoxFunction("POST", "/2.0/folders", "folder_create", Kind.META, _create_folder),
    BoxFunction("GET", "/2.0/folders/{id}", "folder_get", Kind.META, _get_folder),
    BoxFunction("PUT", "/2.0/folders/{id}", "folder_update", Kind.META, _put_folder),
    BoxFunction("DELETE", "/2.0/folders/{id}", "folder_delete", Kind.META, _delete_folder),
    BoxFunction("POST", "/2.0/folders/{id}", "folder_restore", Kind.META, _restored_folder),
    BoxFunction("POST", "/2.0/folders/{id}/copy", "folder_copy", Kind.META, _copy_folder),
    BoxFunction("GET", "/2.0/folders/trash/items", "trash_items", Kind.META, _trash_items),
    BoxFunction("GET", "/2.0/files/{id}/trash", "trashed_file", Kind.META, lambda s, c: _get_trashed(s, c, File)),
    BoxFunction("GET", "/2.0/folders/{id}/trash", "trashed_folder", Kind.META, lambda s, c: _get_trashed(s, c, Folder)),
    BoxFunction("DELETE", "/2.0/files/{id}/trash", "file_purge", Kind.META, lambda s, c: _purge(s, c, File)),
    BoxFunction("DELETE", "/2.0/folders/{id}/trash", "folder_purge", Kind.META, lambda s, c: _purge(s, c, Folder)),
    BoxFunction("GET", "/2.0/files/{id}/versions", "versions", Kind.META, _list_versions),
    BoxFunction("POST", "/2.0/files/{id}/versions/current", "version_promote", Kind.META, _promote),
    BoxFunction("GET", "/2.0/files/{id}/versions/{version}", "version_get", Kind.META, _get_version),
    BoxFunction("PUT", "/2.0/files/{id}/versions/{version}", "version_restore", Kind.META, _restore_version),
    BoxFunction("DELETE", "/2.0/files/{id}/versions/{version}", "version_delete", Kind.META, _delete_version),
)
