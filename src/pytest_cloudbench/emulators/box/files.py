"""Files and folders by id: reading, changing, copying, moving, versions and the trash."""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.box.answers import (
    BoxError,
    answer_json,
    bad_parameter,
    empty_answer,
    json_body,
    read_time,
)
from pytest_cloudbench.emulators.box.downloads import find_any_version, find_version, is_unchanged
from pytest_cloudbench.emulators.box.items import (
    file_item,
    folder_item,
    list_page,
    name_conflict,
    read_number,
    read_query,
    requested_fields,
    standard_item,
    version_item,
)
from pytest_cloudbench.emulators.box.sharing import set_link
from pytest_cloudbench.emulators.box.state import BoxFunction, BoxState, FileLock
from pytest_cloudbench.emulators.box.uploads import check_precondition
from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

# -------------------------------------------------------------------- reading


def _get_file(state: BoxState, call: Call) -> Answer:
    file, version = state.find_readable_file(call.parameters["id"], call.now_s)
    if is_unchanged(state, call, file, version):
        return empty_answer(304)
    return answer_json(file_item(state, file, version, requested_fields(read_query(call))))


def _get_folder(state: BoxState, call: Call) -> Answer:
    folder, query = state.find_folder(call.parameters["id"]), read_query(call)
    if folder.parent is not None and is_unchanged(state, call, folder):
        return empty_answer(304)
    return answer_json(folder_item(state, folder, call.now_s, requested_fields(query), contents=query))


def _get_items(state: BoxState, call: Call) -> Answer:
    folder, query = state.find_folder(call.parameters["id"]), read_query(call)
    return answer_json(list_page(state, folder, query, call.now_s, requested_fields(query)))


# -------------------------------------------------------------------- changing


def _apply_changes(state: BoxState, node: File | Folder, body: dict[str, Any], now_s: float) -> None:
    """Change an item as a request describes. Raises BoxError before anything has changed."""
    meta = state.meta(node)
    folder = state.find_parent(body) if body.get("parent") is not None else node.parent
    name = state.check_name(body["name"]) if body.get("name") is not None else node.name
    is_moved = folder is not node.parent or name != node.name
    if is_moved:
        if node.parent is None:
            raise BoxError(403, "access_denied_insufficient_permissions")
        assert folder is not None
        existing = state.find_by_name(folder, name)
        if existing is not None and existing is not node:
            raise name_conflict(state, existing, as_list=isinstance(node, Folder))
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
    meta.mark_changed(now_s)


def _new_lock(state: BoxState, lock_request: object, now_s: float) -> FileLock | None:
    """Return the lock that a request describes, or None if it removes the lock. Raises BoxError."""
    if lock_request is None or (isinstance(lock_request, dict) and lock_request.get("type") == "unlock"):
        return None
    if not isinstance(lock_request, dict) or (lock_request.get("access") or lock_request.get("type")) != "lock":
        raise bad_parameter("lock", f"Invalid value '{lock_request}'.")
    expiry = lock_request.get("expires_at")
    expires_s = None if expiry is None else read_time(expiry, "expires_at")
    if expires_s is not None and expires_s <= now_s:
        raise bad_parameter("expires_at", f"Invalid value '{expiry}'.")
    return FileLock(state.next_id(), now_s, expires_s, lock_request.get("is_download_prevented") is True)


def _update_file(state: BoxState, call: Call) -> Answer:
    file = state.find_file(call.parameters["id"])
    check_precondition(state, call, file)
    _apply_changes(state, file, json_body(call), call.now_s)
    return answer_json(file_item(state, file, None, requested_fields(read_query(call))))


def _update_folder(state: BoxState, call: Call) -> Answer:
    folder, query = state.find_folder(call.parameters["id"]), read_query(call)
    check_precondition(state, call, folder)
    _apply_changes(state, folder, json_body(call), call.now_s)
    return answer_json(folder_item(state, folder, call.now_s, requested_fields(query), contents={}))


def _create_folder(state: BoxState, call: Call) -> Answer:
    body = json_body(call)
    parent, name = state.find_parent(body), state.check_name(body.get("name"))
    existing = state.find_by_name(parent, name)
    if existing is not None:
        raise name_conflict(state, existing, as_list=True)
    folder = state.add_folder(parent, name, call.now_s)
    if isinstance(body.get("description"), str):
        state.meta(folder).description = body["description"]
    return answer_json(folder_item(state, folder, call.now_s, requested_fields(read_query(call)), contents={}), 201)


def _copy_item(state: BoxState, node: File | Folder, call: Call) -> Node:
    body = json_body(call)
    folder = state.find_parent(body)
    name = state.check_name(body["name"]) if body.get("name") is not None else node.name
    if isinstance(node, Folder) and state.store.holds(node, folder):
        raise BoxError(400, "cyclical_folder_structure")
    existing = state.find_by_name(folder, name)
    if existing is not None:
        raise name_conflict(state, existing, as_list=isinstance(node, Folder))
    if isinstance(node, File) and body.get("version") is not None:
        version = find_version(state, node, str(body["version"]))
        meta = state.meta(node)
        return state.add_file(folder, name, version.blob, call.now_s, meta.content_created_s, version.client_s)
    return state.copy(node, folder, name, call.now_s)


def _copy_file(state: BoxState, call: Call) -> Answer:
    file = state.find_file(call.parameters["id"])
    twin = _copy_item(state, file, call)
    assert isinstance(twin, File)
    return answer_json(file_item(state, twin, None, requested_fields(read_query(call))), 201)


def _copy_folder(state: BoxState, call: Call) -> Answer:
    folder = state.find_folder(call.parameters["id"])
    if folder.parent is None:
        raise BoxError(500, "internal_server_error")
    twin = _copy_item(state, folder, call)
    assert isinstance(twin, Folder)
    return answer_json(folder_item(state, twin, call.now_s, requested_fields(read_query(call)), contents={}), 201)


def _delete_file(state: BoxState, call: Call) -> Answer:
    file = state.find_file(call.parameters["id"])
    check_precondition(state, call, file)
    state.move_to_trash(file, call.now_s)
    return empty_answer()


def _delete_folder(state: BoxState, call: Call) -> Answer:
    folder = state.find_folder(call.parameters["id"])
    if folder.parent is None:
        raise BoxError(403, "access_denied_insufficient_permissions")
    check_precondition(state, call, folder)
    if folder.children and read_query(call).get("recursive", "").lower() != "true":
        raise BoxError(400, "folder_not_empty")
    state.move_to_trash(folder, call.now_s)
    return empty_answer()


# -------------------------------------------------------------------- trash


def _list_trash(state: BoxState, call: Call) -> Answer:
    query = read_query(call)
    return answer_json(list_page(state, state.trash, query, call.now_s, requested_fields(query)))


def _get_trashed(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    return answer_json(
        standard_item(
            state, state.find_trashed(call.parameters["id"], kind), call.now_s, requested_fields(read_query(call))
        )
    )


def _purge_item(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    state.purge(state.find_trashed(call.parameters["id"], kind), call.now_s)
    return empty_answer()


def _restore_item(state: BoxState, call: Call, kind: type[Node]) -> Answer:
    node, body = state.find_trashed(call.parameters["id"], kind), json_body(call)
    folder = state.meta(node).former_parent
    if folder is None or folder.deleted_s is not None or state.is_in_trash(folder):
        if body.get("parent") is None:
            raise BoxError(403, "access_denied_insufficient_permissions")
        folder = state.find_parent(body)  # only used if the former folder no longer exists
    name = state.check_name(body["name"]) if body.get("name") is not None else node.name
    existing = state.find_by_name(folder, name)
    if existing is not None:
        raise name_conflict(state, existing, as_list=isinstance(node, Folder))
    state.restore(node, folder, name, call.now_s)
    return answer_json(standard_item(state, node, call.now_s, requested_fields(read_query(call))), 201)


# -------------------------------------------------------------------- versions


def _list_versions(state: BoxState, call: Call) -> Answer:
    (file, newest), query = state.find_visible_file(call.parameters["id"], call.now_s), read_query(call)
    offset, limit = read_number(query, "offset", 0), min(read_number(query, "limit", 100), 1000)
    items = [
        version_item(state, file, version, requested_fields(query))
        for version in reversed(file.versions[file.born : file.versions.index(newest)])
    ]
    page = {"total_count": len(items), "entries": items[offset : offset + limit], "offset": offset, "limit": limit}
    return answer_json(page)


def _get_version(state: BoxState, call: Call) -> Answer:
    file, _ = state.find_visible_file(call.parameters["id"], call.now_s)
    version = find_any_version(file, call.parameters["version"], call.now_s)
    return answer_json(version_item(state, file, version, requested_fields(read_query(call))))


def _promote_version(state: BoxState, call: Call) -> Answer:
    file, body = state.find_file(call.parameters["id"]), json_body(call)
    if "id" not in body:
        raise bad_parameter("id", "'id' is required")
    promoted = find_version(state, file, str(body["id"]))
    version = state.add_version(file, promoted.blob, call.now_s, promoted.client_s)
    return answer_json(version_item(state, file, version, requested_fields(read_query(call))), 201)


def _delete_version(state: BoxState, call: Call) -> Answer:
    file = state.find_file(call.parameters["id"])
    version = find_version(state, file, call.parameters["version"])
    check_precondition(state, call, file)
    if version is file.versions[-1]:
        raise BoxError(403, "access_denied_insufficient_permissions")
    state.meta(file).trashed_versions[version.rev] = call.now_s
    return empty_answer()


def _restore_version(state: BoxState, call: Call) -> Answer:
    file, body = state.find_file(call.parameters["id"]), json_body(call)
    version = find_any_version(file, call.parameters["version"])
    if body.get("trashed_at", "") is not None:
        raise bad_parameter("trashed_at", "'trashed_at' is required")
    state.meta(file).trashed_versions.pop(version.rev, None)
    return answer_json(version_item(state, file, version, requested_fields(read_query(call))))


def _restore_file(state: BoxState, call: Call) -> Answer:
    return _restore_item(state, call, File)


def _restore_folder(state: BoxState, call: Call) -> Answer:
    return _restore_item(state, call, Folder)


FUNCTIONS = (
    BoxFunction("GET", "/2.0/folders/{id}/items", "folder_items", Kind.META, _get_items),
    BoxFunction("GET", "/2.0/files/{id}", "file_get", Kind.META, _get_file),
    BoxFunction("PUT", "/2.0/files/{id}", "file_update", Kind.META, _update_file),
    BoxFunction("DELETE", "/2.0/files/{id}", "file_delete", Kind.META, _delete_file),
    BoxFunction("POST", "/2.0/files/{id}", "file_restore", Kind.META, _restore_file),
    BoxFunction("POST", "/2.0/files/{id}/copy", "file_copy", Kind.META, _copy_file),
    BoxFunction("POST", "/2.0/folders", "folder_create", Kind.META, _create_folder),
    BoxFunction("GET", "/2.0/folders/{id}", "folder_get", Kind.META, _get_folder),
    BoxFunction("PUT", "/2.0/folders/{id}", "folder_update", Kind.META, _update_folder),
    BoxFunction("DELETE", "/2.0/folders/{id}", "folder_delete", Kind.META, _delete_folder),
    BoxFunction("POST", "/2.0/folders/{id}", "folder_restore", Kind.META, _restore_folder),
    BoxFunction("POST", "/2.0/folders/{id}/copy", "folder_copy", Kind.META, _copy_folder),
    BoxFunction("GET", "/2.0/folders/trash/items", "trash_items", Kind.META, _list_trash),
    BoxFunction("GET", "/2.0/files/{id}/trash", "trashed_file", Kind.META, lambda s, c: _get_trashed(s, c, File)),
    BoxFunction("GET", "/2.0/folders/{id}/trash", "trashed_folder", Kind.META, lambda s, c: _get_trashed(s, c, Folder)),
    BoxFunction("DELETE", "/2.0/files/{id}/trash", "file_purge", Kind.META, lambda s, c: _purge_item(s, c, File)),
    BoxFunction("DELETE", "/2.0/folders/{id}/trash", "folder_purge", Kind.META, lambda s, c: _purge_item(s, c, Folder)),
    BoxFunction("GET", "/2.0/files/{id}/versions", "versions", Kind.META, _list_versions),
    BoxFunction("POST", "/2.0/files/{id}/versions/current", "version_promote", Kind.META, _promote_version),
    BoxFunction("GET", "/2.0/files/{id}/versions/{version}", "version_get", Kind.META, _get_version),
    BoxFunction("PUT", "/2.0/files/{id}/versions/{version}", "version_restore", Kind.META, _restore_version),
    BoxFunction("DELETE", "/2.0/files/{id}/versions/{version}", "version_delete", Kind.META, _delete_version),
)
