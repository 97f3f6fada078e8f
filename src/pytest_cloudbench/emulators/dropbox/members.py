"""Members of shared folders: other accounts of the same service, which read and write by ``ns:ID/path``.

A member mounts the folder first, as the API requires. It does not appear in the member's own tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_cloudbench.emulators.accounts import display_name_of
from pytest_cloudbench.emulators.dropbox.account import person_id
from pytest_cloudbench.emulators.dropbox.answers import ApiError
from pytest_cloudbench.emulators.dropbox.args import array, boolean, integer, optional, string, struct, union
from pytest_cloudbench.emulators.dropbox.shared_folders import (
    accept_any,
    check_shared_id,
    describe_folder,
    find_shared,
)
from pytest_cloudbench.emulators.dropbox.state import FolderMember, Function, SharedFolder, State
from pytest_cloudbench.emulators.nodes import Folder
from pytest_cloudbench.emulators.skin import Call, Kind

_LEVELS = dict.fromkeys(("owner", "editor", "viewer", "viewer_no_comment", "traverse", "no_access", "other"))
_GRANTABLE = ("editor", "viewer", "viewer_no_comment")
_level = union(**_LEVELS)
_selector = union(dropbox_id=string(minimum=1), email=string(maximum=255), other=None)
_addition = struct(member=_selector, access_level=(_level, ("viewer", None)))
_add = struct(
    shared_folder_id=check_shared_id, members=array(_addition), quiet=(boolean, False),
    custom_message=(optional(string(minimum=1)), None),
)  # fmt: skip
_update = struct(shared_folder_id=check_shared_id, member=_selector, access_level=_level)
_remove = struct(shared_folder_id=check_shared_id, member=_selector, leave_a_copy=boolean)
_list = struct(
    shared_folder_id=check_shared_id, actions=(optional(array(accept_any)), None), limit=(integer(1, 1000), 1000),
    path=(optional(string()), None),
)  # fmt: skip
_mount = struct(shared_folder_id=check_shared_id)
_poll = struct(async_job_id=string(minimum=1))
_WRITES = {"files/upload": "write", "files/delete_v2": "delete"}
_BY_NAMESPACE = frozenset({"files/download", "files/get_metadata", *_WRITES})


def lead_to_owner(state: State, function: str, arg: dict[str, Any]) -> tuple[State, dict[str, Any]]:
    """Return the account whose tree a call is for, and the argument with the path in that tree.

    A member names a folder of another account by ``ns:ID``. Raises ApiError if the member may not do this there.
    """
    if function not in _BY_NAMESPACE or not arg["path"].startswith("ns:"):  # nearly always, so that it costs nothing
        return state, arg
    folder_id, slash, remainder = arg["path"].removeprefix("ns:").partition("/")
    if folder_id == state.tree.namespace:
        return state, arg
    action, subject = _WRITES.get(function, ""), "path_write" if function == "files/delete_v2" else "path"
    owner = _find_owner(state, folder_id)
    member = owner.shared_folders[folder_id].members.get(state.address) if owner is not None else None
    if owner is None or member is None or not member.is_mounted:
        raise _refuse_writing(state, subject) if action else ApiError("path", "not_found")
    owner.jobs.advance(owner.clock.now_s())
    if state.address not in owner.shared_folders[folder_id].members:
        raise _refuse_writing(state, subject) if action else ApiError("path", "not_found")
    if action and not owner.account.lets_member(action, by_role=member.level == "editor"):
        raise _refuse_writing(state, subject)
    _, node = find_shared(owner, folder_id, "path")
    return owner, {**arg, "path": owner.tree.paths.path(node) + slash + remainder}


def _refuse_writing(state: State, subject: str) -> ApiError:
    failure = ApiError(subject, "no_write_permission")
    if subject == "path_write":
        return failure
    session_id = state.tree.token("pid_upload_session:", 64)
    failure.error = {".tag": "path", "reason": failure.error["path"], "upload_session_id": session_id}
    return failure


def _find_owner(state: State, folder_id: str) -> State | None:
    """Return the other account that shares a folder with this one, or None."""
    for peer in state.peers():
        shared = peer.shared_folders.get(folder_id)
        if peer is not state and shared is not None and state.address in shared.members:
            return peer
    return None


def _read_address(state: State, selector: tuple[str, Any]) -> str:
    """Return the address of the account that a selector names. Raises ApiError."""
    kind, value = selector
    if kind == "email":
        return str(value)
    for peer in state.peers():
        if kind == "dropbox_id" and person_id(peer) == value:
            return peer.address
    raise ApiError("member_error", "invalid_dropbox_id")


def _read_level(selector: tuple[str, Any]) -> str:
    if selector[0] not in _GRANTABLE:
        raise ApiError("no_permission")
    return selector[0]


def _find_member(state: State, arg: dict[str, Any]) -> tuple[SharedFolder, str]:
    shared, _ = find_shared(state, arg["shared_folder_id"], "access_error")
    address = _read_address(state, arg["member"])
    if address == state.address:
        raise ApiError("folder_owner")
    if address not in shared.members:
        raise ApiError("member_error", "not_a_member")
    return shared, address


def _run_add(state: State, arg: dict[str, Any], call: Call) -> None:
    shared, _ = find_shared(_find_inviting(state, arg["shared_folder_id"]), arg["shared_folder_id"], "access_error")
    for addition in arg["members"]:
        address, level = _read_address(state, addition["member"]), _read_level(addition["access_level"])
        shared.members.setdefault(address, FolderMember(level)).level = level


def _find_inviting(state: State, folder_id: str) -> State:
    """Return the owner of a shared folder, which is this account or lets it invite others. Raises ApiError."""
    owner = _find_owner(state, folder_id)
    if owner is None:
        return state
    shared = owner.shared_folders[folder_id]
    is_allowed = shared.members[state.address].level == "editor" and _who_invites(shared) == "editors"
    if not owner.account.lets_member("share", by_role=is_allowed):
        raise ApiError("no_permission")
    return owner


def _who_invites(shared: SharedFolder) -> str:
    return dict(shared.policies).get("acl_update_policy", "editors")


def _run_update(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    shared, address = _find_member(state, arg)
    shared.members[address].level = _read_level(arg["access_level"])
    return {"access_level": {".tag": shared.members[address].level}}


def _run_remove(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    shared, address = _find_member(state, arg)

    def step(_now_s: float) -> None:
        shared.members.pop(address, None)

    return state.start_job("remove_member", [step], call.now_s)


def _run_remove_status(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    job = state.jobs.find(arg["async_job_id"], "remove_member")
    if job is None:
        raise ApiError("invalid_async_job_id")
    return {".tag": "complete" if job.is_complete else "in_progress"}


def _run_list(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    shared, _ = find_shared(state, arg["shared_folder_id"])
    people = {peer.address: peer for peer in state.peers()}
    levels = {state.address: "owner", **{address: member.level for address, member in shared.members.items()}}
    shows_removal = "remove" in map(_read_tag, arg["actions"] or ())
    return {
        "users": [
            {"access_type": {".tag": level}, "is_inherited": False, "user": _describe_person(people[address])}
            | ({"permissions": [_describe_removal(address == state.address)]} if shows_removal else {})
            for address, level in levels.items() if address in people
        ],
        "groups": [],
        "invitees": [
            {"access_type": {".tag": level}, "is_inherited": False, "invitee": {".tag": "email", "email": address}}
            for address, level in levels.items() if address not in people
        ],
    }  # fmt: skip


def _describe_person(person: State) -> dict[str, Any]:
    name = {"email": person.address, "display_name": display_name_of(person.address)}
    return {"account_id": person_id(person), **name, "same_team": person.account.type == "business"}


def _describe_removal(is_self: bool) -> dict[str, Any]:
    reason = {"reason": {".tag": "target_is_self"}} if is_self else {}
    return {"action": {".tag": "remove"}, "allow": not is_self, **reason}


def _read_tag(action: Any) -> Any:
    return action.get(".tag") if isinstance(action, dict) else action


def _run_mount(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    folder_id = arg["shared_folder_id"]
    owner = _find_owner(state, folder_id)
    if owner is None:
        raise ApiError("access_error", "invalid_id")
    shared, node = find_shared(owner, folder_id, "access_error")
    member = shared.members[state.address]
    if member.is_mounted:
        raise ApiError("already_mounted")
    member.is_mounted = True
    return _describe_mount(owner, folder_id, shared, node) | {"access_type": {".tag": member.level}}


def _describe_mount(owner: State, folder_id: str, shared: SharedFolder, node: Folder) -> dict[str, Any]:
    paths = {"path_display": f"/{node.name}", "path_lower": f"/{node.name.lower()}"}
    return describe_folder(owner, folder_id, shared, node) | paths


FUNCTIONS: Mapping[str, Function] = {
    "sharing/add_folder_member": Function(Kind.WRITE, "rpc", _add, _run_add),
    "sharing/update_folder_member": Function(Kind.WRITE, "rpc", _update, _run_update),
    "sharing/remove_folder_member": Function(Kind.WRITE, "rpc", _remove, _run_remove),
    "sharing/check_remove_member_job_status": Function(Kind.META, "rpc", _poll, _run_remove_status),
    "sharing/list_folder_members": Function(Kind.META, "rpc", _list, _run_list),
    "sharing/mount_folder": Function(Kind.WRITE, "rpc", _mount, _run_mount),
}
