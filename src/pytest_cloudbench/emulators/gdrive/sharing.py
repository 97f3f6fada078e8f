"""``permissions`` of the API, and the public address (``drive.google.com/uc``) of files that anyone may read."""

from __future__ import annotations

import re
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import (
    DriveError,
    answer_no_content,
    answer_page,
    file_not_found,
    parse_time,
)
from pytest_cloudbench.emulators.gdrive.files import answer_content
from pytest_cloudbench.emulators.gdrive.metadata import FileView
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_selected,
    find_named_node,
    query_params,
    read_flag,
    read_json_body,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection
from pytest_cloudbench.emulators.gdrive.state import DriveState, drive_meta, random_digits
from pytest_cloudbench.emulators.nodes import Node
from pytest_cloudbench.emulators.skin import Answer, Call

_ROLES = ("owner", "organizer", "fileOrganizer", "writer", "commenter", "reader")
_WRITING_ROLES = frozenset({"organizer", "fileOrganizer", "writer"})
_TRASHING_ROLES, _DELETING_ROLES = frozenset({"organizer", "fileOrganizer"}), frozenset({"organizer"})
"""Roles that may trash, and roles that may delete ("Roles and permissions"). In My Drive only the owner may."""
READS_BODY = frozenset({"files.update", "permissions.create", "permissions.update"})
"""Functions that another account may call only with certain bodies, see ``check_member``."""
_FILE_IN_PATH = re.compile(r"/files/([^/]+)")
_PERMISSION_FIELDS: Selection = {"kind": None, "id": None, "type": None, "role": None}
_PUBLIC_PERMISSION_FIELDS: Selection = {**_PERMISSION_FIELDS, "allowFileDiscovery": None}
_LIST_FIELDS: Selection = {"kind": None, "nextPageToken": None, "permissions": _PERMISSION_FIELDS}


def _find_permission(state: DriveState, call: Call) -> tuple[Node, dict[str, Any]]:
    node = find_named_node(state, call)
    permission = drive_meta(node).permissions.get(call.parameters["permission"])
    if permission is None:
        message = f"Permission not found: {call.parameters['permission']}."
        raise DriveError(404, "notFound", message, "permissionId")
    return node, permission


def _answer_permission(call: Call, permission: dict[str, Any]) -> Answer:
    default = _PUBLIC_PERMISSION_FIELDS if permission["type"] == "anyone" else _PERMISSION_FIELDS
    return answer_selected(permission, query_params(call), default)


def _read_role(body: dict[str, Any]) -> str:
    role = body.get("role")
    if role not in _ROLES:
        raise DriveError(
            400, "required" if role is None else "invalid", "The permission role field is required.", "permission.role"
        )
    return str(role)


def create_permission(state: DriveState, call: Call) -> Answer:
    """Answer ``permissions.create``. A user who has a permission already gets the new role."""
    node, body = find_named_node(state, call), read_json_body(call)
    role, kind = _read_role(body), body.get("type")
    permission: dict[str, Any] = {"kind": "drive#permission", "id": "", "type": kind, "role": role}
    if kind == "anyone":
        is_discoverable = bool(body.get("allowFileDiscovery", False))
        permission |= {"id": "anyone" if is_discoverable else "anyoneWithLink", "allowFileDiscovery": is_discoverable}
    elif kind == "domain":
        if not body.get("domain"):
            raise DriveError(400, "required", "The domain field is required.", "permission.domain")
        permission |= {
            "id": f"{random_digits(state.tokens, 20)}k",
            "domain": body["domain"],
            "displayName": body["domain"],
        }
        permission["allowFileDiscovery"] = bool(body.get("allowFileDiscovery", False))
    elif kind in ("user", "group"):
        address = body.get("emailAddress")
        if not isinstance(address, str) or "@" not in address:
            message = "The specified emailAddress is invalid or not applicable for the given permission type."
            raise DriveError(400, "invalidSharingRequest", message, "permission.emailAddress")
        existing = [entry for entry in drive_meta(node).permissions.values() if entry.get("emailAddress") == address]
        permission["id"] = existing[0]["id"] if existing else random_digits(state.tokens, 20)
        permission |= {"emailAddress": address, "displayName": address.partition("@")[0], "deleted": False}
        permission["pendingOwner"] = False
    else:
        raise DriveError(
            400, "required" if kind is None else "invalid", "The permission type field is required.", "permission.type"
        )
    _set_expiry(permission, body)
    _check_acknowledged(call, role)
    drive_meta(node).permissions[permission["id"]] = permission
    state.log_change(node, call.now_s)
    return _answer_permission(call, permission)


def _check_acknowledged(call: Call, role: str) -> None:
    if role == "owner" and not read_flag(query_params(call), "transferOwnership"):
        message = "The transferOwnership parameter must be enabled when the permission role is 'owner'."
        raise DriveError(403, "forbidden", message, "transferOwnership")


def _set_expiry(permission: dict[str, Any], body: dict[str, Any]) -> None:
    if body.get("expirationTime") is not None:
        parse_time(body["expirationTime"], "permission.expirationTime")
        permission["expirationTime"] = body["expirationTime"]


def list_permissions(state: DriveState, call: Call) -> Answer:
    """Answer ``permissions.list``."""
    node = find_named_node(state, call)
    value = {"kind": "drive#permissionList", "permissions": list(drive_meta(node).permissions.values())}
    return answer_selected(value, query_params(call), _LIST_FIELDS)


def get_permission(state: DriveState, call: Call) -> Answer:
    """Answer ``permissions.get``."""
    return _answer_permission(call, _find_permission(state, call)[1])


def update_permission(state: DriveState, call: Call) -> Answer:
    """Answer ``permissions.update``, which changes the role or the time of expiry."""
    (node, permission), body = _find_permission(state, call), read_json_body(call)
    if body.keys() - {"role", "expirationTime", "view", "pendingOwner", "kind", "id", "inheritedPermissionsDisabled"}:
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")
    if "role" in body:
        _check_acknowledged(call, _read_role(body))
    permission = drive_meta(node).permissions[permission["id"]] = dict(permission)
    if "role" in body:
        permission["role"] = _read_role(body)
    if read_flag(query_params(call), "removeExpiration"):
        permission.pop("expirationTime", None)
    _set_expiry(permission, body)
    state.log_change(node, call.now_s)
    return _answer_permission(call, permission)


def delete_permission(state: DriveState, call: Call) -> Answer:
    """Answer ``permissions.delete``."""
    node, permission = _find_permission(state, call)
    if permission["role"] == "owner":
        message = "The owner of a file cannot be removed."
        raise DriveError(403, "insufficientFilePermissions", message, "permissionId")
    del drive_meta(node).permissions[permission["id"]]
    state.log_change(node, call.now_s)
    return answer_no_content()


def find_role(state: DriveState, path: str, address: str, now_s: float) -> str:
    """Return the role that an account has on the file of a path, from the file or a folder above it. Empty if none."""
    match = _FILE_IN_PATH.search(path)
    node = state.store.by_id(match[1]) if match is not None else None
    while node is not None and node.deleted_s is None:
        for permission in drive_meta(node).permissions.values():
            is_theirs = permission.get("emailAddress") == address and permission["role"] != "owner"
            ends = permission.get("expirationTime")
            if is_theirs and (ends is None or parse_time(ends, "permission.expirationTime") > now_s):
                return str(permission["role"])
        node = state.parent_of(node)
    return ""


def refuse_member(state: DriveState, call: Call, address: str) -> Answer | None:
    """Return the refusal of a request of another account, or None if its role on the file allows it."""
    role = find_role(state, call.path, address, call.now_s)
    if not role:
        return file_not_found((_FILE_IN_PATH.search(call.path) or ("", ""))[1]).answer()
    if call.method == "GET":
        return None
    is_deletion = call.route.name == "files.delete"
    action = "delete" if is_deletion else "share" if call.route.name.startswith("permissions.") else "write"
    roles = _DELETING_ROLES if is_deletion else _WRITING_ROLES
    return None if state.account.lets_member(action, by_role=role in roles) else _insufficient_permissions().answer()


def check_member(state: DriveState, call: Call, address: str) -> None:
    """Raise DriveError if the body of another account's call asks for what a writing role does not allow.

    That is to trash or restore a file, and to give or change ownership, which only the owner may.
    """
    body = read_json_body(call)
    if call.route.name == "files.update":
        role = find_role(state, call.path, address, call.now_s)
        is_refused = "trashed" in body and role not in _TRASHING_ROLES
    else:
        is_owners = call.route.name == "permissions.update" and _find_permission(state, call)[1]["role"] == "owner"
        is_refused = is_owners or body.get("role") == "owner"
    if is_refused:
        raise _insufficient_permissions()


def _insufficient_permissions() -> DriveError:
    message = "The user does not have sufficient permissions for this file."
    return DriveError(403, "insufficientFilePermissions", message)


def get_public_content(state: DriveState, call: Call) -> Answer:
    """Answer with the content of a file that anyone may read. The request needs no token."""
    try:
        view = FileView(state, state.find_node(query_params(call).get("id", ""), call.now_s), call.now_s)
        node: Node | None = view.node
        while node is not None:
            if any(permission["type"] == "anyone" for permission in drive_meta(node).permissions.values()):
                return answer_content(view, call)
            node = state.parent_of(node)
    except DriveError:
        return answer_page(404, "The requested URL was not found on this server.")
    return answer_page(403, "You need access. Ask for access, or switch to an account with access.")
