"""Who may see a file: permissions, and the public address of a file that anyone may read.

What may live here: ``permissions`` of the API, and ``drive.google.com/uc``.
"""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_page, no_content, read_time
from pytest_cloudbench.emulators.gdrive.files import content_answer
from pytest_cloudbench.emulators.gdrive.metadata import FileView
from pytest_cloudbench.emulators.gdrive.requests import about_value, body_of, flag, params_of
from pytest_cloudbench.emulators.gdrive.selection import Chosen
from pytest_cloudbench.emulators.gdrive.state import DriveState, digits, meta_of
from pytest_cloudbench.emulators.nodes import Node
from pytest_cloudbench.emulators.skin import Answer, Call

_ROLES = frozenset({"owner", "organizer", "fileOrganizer", "writer", "commenter", "reader"})
_ONE: Chosen = {"kind": None, "id": None, "type": None, "role": None}
_OPEN: Chosen = {**_ONE, "allowFileDiscovery": None}
_ALL: Chosen = {"kind": None, "nextPageToken": None, "permissions": _ONE}


def _found(state: DriveState, call: Call) -> tuple[Node, dict[str, Any]]:
    node = state.find(call.parameters["id"], call.now_s)
    permission = meta_of(node).permissions.get(call.parameters["permission"])
    if permission is None:
        words = f"Permission not found: {call.parameters['permission']}."
        raise DriveError(404, "notFound", words, "permissionId")
    return node, permission


def _answer(call: Call, permission: dict[str, Any]) -> Answer:
    return about_value(permission, params_of(call), _OPEN if permission["type"] == "anyone" else _ONE)


def _role(given: dict[str, Any]) -> str:
    role = given.get("role")
    if role not in _ROLES:
        raise DriveError(
            400, "required" if role is None else "invalid", "The permission role field is required.", "permission.role"
        )
    return str(role)


def create(state: DriveState, call: Call) -> Answer:
    """``permissions.create``; whoever has a permission already gets the new role."""
    node, given = state.find(call.parameters["id"], call.now_s), body_of(call)
    role, kind = _role(given), given.get("type")
    permission: dict[str, Any] = {"kind": "drive#permission", "id": "", "type": kind, "role": role}
    if kind == "anyone":
        is_found = bool(given.get("allowFileDiscovery", False))
        permission |= {"id": "anyone" if is_found else "anyoneWithLink", "allowFileDiscovery": is_found}
    elif kind == "domain":
        if not given.get("domain"):
            raise DriveError(400, "required", "The domain field is required.", "permission.domain")
        permission |= {"id": f"{digits(state.tokens, 20)}k", "domain": given["domain"], "displayName": given["domain"]}
        permission["allowFileDiscovery"] = bool(given.get("allowFileDiscovery", False))
    elif kind in ("user", "group"):
        address = given.get("emailAddress")
        if not isinstance(address, str) or "@" not in address:
            words = "The specified emailAddress is invalid or not applicable for the given permission type."
            raise DriveError(400, "invalidSharingRequest", words, "permission.emailAddress")
        known = [each for each in meta_of(node).permissions.values() if each.get("emailAddress") == address]
        permission["id"] = known[0]["id"] if known else digits(state.tokens, 20)
        permission |= {"emailAddress": address, "displayName": address.partition("@")[0], "deleted": False}
        permission["pendingOwner"] = False
    else:
        raise DriveError(
            400, "required" if kind is None else "invalid", "The permission type field is required.", "permission.type"
        )
    _expire(permission, given)
    if role == "owner" and not flag(params_of(call), "transferOwnership"):
        words = "The transferOwnership parameter must be enabled when the permission role is 'owner'."
        raise DriveError(403, "forbidden", words, "transferOwnership")
    meta_of(node).permissions[permission["id"]] = permission
    state.changed(node, call.now_s)
    return _answer(call, permission)


def _expire(permission: dict[str, Any], given: dict[str, Any]) -> None:
    if given.get("expirationTime") is not None:
        read_time(given["expirationTime"], "permission.expirationTime")
        permission["expirationTime"] = given["expirationTime"]


def list_permissions(state: DriveState, call: Call) -> Answer:
    """``permissions.list``."""
    node = state.find(call.parameters["id"], call.now_s)
    value = {"kind": "drive#permissionList", "permissions": list(meta_of(node).permissions.values())}
    return about_value(value, params_of(call), _ALL)


def get(state: DriveState, call: Call) -> Answer:
    """``permissions.get``."""
    return _answer(call, _found(state, call)[1])


def update(state: DriveState, call: Call) -> Answer:
    """``permissions.update``: another role."""
    (node, permission), given = _found(state, call), body_of(call)
    if given.keys() - {"role", "expirationTime", "view", "pendingOwner", "kind", "id", "inheritedPermissionsDisabled"}:
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")
    permission = meta_of(node).permissions[permission["id"]] = dict(permission)
    if "role" in given:
        permission["role"] = _role(given)
    if flag(params_of(call), "removeExpiration"):
        permission.pop("expirationTime", None)
    _expire(permission, given)
    state.changed(node, call.now_s)
    return _answer(call, permission)


def delete(state: DriveState, call: Call) -> Answer:
    """``permissions.delete``."""
    node, permission = _found(state, call)
    if permission["role"] == "owner":
        words = "The owner of a file cannot be removed."
        raise DriveError(403, "insufficientFilePermissions", words, "permissionId")
    del meta_of(node).permissions[permission["id"]]
    state.changed(node, call.now_s)
    return no_content()


def public(state: DriveState, call: Call) -> Answer:
    """The content of a file that anyone may read, without a token."""
    try:
        view = FileView(state, state.find(params_of(call).get("id", ""), call.now_s), call.now_s)
        above: Node | None = view.node
        while above is not None:
            if any(each["type"] == "anyone" for each in meta_of(above).permissions.values()):
                return content_answer(view, call)
            above = state.parent(above)
    except DriveError:
        return answer_page(404, "The requested URL was not found on this server.")
    return answer_page(403, "You need access. Ask for access, or switch to an account with access.")
