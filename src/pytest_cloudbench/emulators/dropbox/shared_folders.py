"""Shared folders: sharing a folder, listing shared folders, and unsharing one.

Their members are in ``members``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import ApiError, timestamp
from pytest_cloudbench.emulators.dropbox.args import (
    ArgError,
    array,
    boolean,
    integer,
    optional,
    string,
    struct,
    union,
    write_path,
)
from pytest_cloudbench.emulators.dropbox.state import Function, SharedFolder, State
from pytest_cloudbench.emulators.nodes import Folder, Node, StoreError
from pytest_cloudbench.emulators.skin import Call, Kind

_FIRST_ID = 84_528_192_421
_ID = re.compile(r"[-_0-9a-zA-Z:]+")
_DEFAULT_LIMIT = 1000


def check_shared_id(value: Any) -> str:
    """Check the id of a shared folder."""
    text: str = string()(value)
    if not _ID.fullmatch(text):
        raise ArgError(f"{text!r} did not match pattern '[-_0-9a-zA-Z:]+'")
    return text


def accept_any(value: Any) -> Any:
    """Return any value unchanged, as a check that accepts everything."""
    return value


_actions = optional(array(accept_any))
_policies: dict[str, Any] = {
    "acl_update_policy": (optional(union(owner=None, editors=None, other=None)), None),
    "member_policy": (optional(union(team=None, anyone=None, team_and_approved=None, other=None)), None),
    "shared_link_policy": (optional(union(anyone=None, team=None, members=None, other=None)), None),
    "viewer_info_policy": (optional(union(enabled=None, disabled=None, other=None)), None),
}
_share = struct(
    path=write_path,
    force_async=(boolean, False),
    access_inheritance=(union(inherit=None, no_inherit=None, other=None), ("inherit", None)),
    actions=(_actions, None),
    link_settings=(optional(accept_any), None),
    **_policies,
)
_list = struct(limit=(integer(1, 1000), _DEFAULT_LIMIT), actions=(_actions, None))
_continue = struct(cursor=string())
_unshare = struct(shared_folder_id=check_shared_id, leave_a_copy=(boolean, False))
_get = struct(shared_folder_id=check_shared_id, actions=(_actions, None))
_poll = struct(async_job_id=string(minimum=1))


def _list_shared(state: State) -> Iterator[tuple[str, SharedFolder, Folder]]:
    """Yield id, share and folder of each shared folder that still exists."""
    for folder_id, shared in state.shared_folders.items():
        node = state.tree.store.by_id(shared.node_id)
        if isinstance(node, Folder) and node.deleted_s is None:
            yield folder_id, shared, node


def describe_folder(state: State, folder_id: str, shared: SharedFolder, node: Node) -> dict[str, Any]:
    """Return the description of a shared folder, as its owner sees it."""
    path, is_team = state.tree.paths.path(node), state.account.type == "business"
    policies = {name: {".tag": tag} for name, tag in shared.policies}
    policy: dict[str, Any] = {
        "acl_update_policy": policies.get("acl_update_policy", {".tag": "editors"}),
        "shared_link_policy": policies.get("shared_link_policy", {".tag": "anyone"}),
        "viewer_info_policy": policies.get("viewer_info_policy", {".tag": "enabled"}),
    }
    if is_team:
        policy["member_policy"] = policy["resolved_member_policy"] = policies.get("member_policy", {".tag": "anyone"})
    return {
        "access_type": {".tag": "owner"},
        "is_inside_team_folder": False,
        "is_team_folder": False,
        "path_display": path,
        "path_lower": path.lower(),
        "name": node.name,
        "policy": policy,
        "preview_url": f"https://www.dropbox.com/scl/fo/{shared.token}/h?dl=0",
        "shared_folder_id": folder_id,
        "time_invited": timestamp(shared.since_s),
        "access_inheritance": {".tag": shared.inheritance},
    }


def _share_folder(state: State, arg: dict[str, Any], now_s: float) -> dict[str, Any]:
    """Share a folder, creating it if necessary, and return its description. Raises ApiError."""
    try:
        node: Node = state.tree.get(arg["path"], now_s).node
    except StoreError as error:
        if error.reason != "not_found" or arg["path"].startswith("id:"):
            raise ApiError("bad_path", "invalid_path") from error
        try:
            node = state.tree.create_folder(arg["path"], now_s).node
        except StoreError as creation_error:
            raise ApiError("bad_path", "invalid_path") from creation_error
    if not isinstance(node, Folder):
        raise ApiError("bad_path", "is_file")
    if node.parent is None:
        raise ApiError("bad_path", "invalid_path")
    for folder_id, shared, other in _list_shared(state):
        if other is node:
            raise ApiError("bad_path", "already_shared", inside=describe_folder(state, folder_id, shared, node))
        if state.tree.store.holds(other, node):
            raise ApiError("bad_path", "inside_shared_folder")
        if state.tree.store.holds(node, other):
            raise ApiError("bad_path", "contains_shared_folder")
    policies = tuple((name, arg[name][0]) for name in _policies if arg[name] is not None)
    token = state.tree.token("", 21).lower()
    shared = SharedFolder(node.id, now_s, token, arg["access_inheritance"][0], policies)
    folder_id = str(_FIRST_ID + len(state.shared_folders) + int(state.tree.namespace))
    state.shared_folders[folder_id] = shared
    return describe_folder(state, folder_id, shared, node)


def _run_share(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    if not arg["force_async"]:
        return {".tag": "complete", **_share_folder(state, arg, call.now_s)}

    def step(now_s: float) -> dict[str, Any]:
        try:
            return {".tag": "complete", **_share_folder(state, arg, now_s)}
        except ApiError as error:
            return {".tag": "failed", "failed": error.error}

    return state.start_job("share_folder", [step], call.now_s)


def _list_page(state: State, start: int, limit: int) -> dict[str, Any]:
    shared_folders = sorted(_list_shared(state), key=lambda item: item[2].name.lower())
    result: dict[str, Any] = {
        "entries": [describe_folder(state, *item) for item in shared_folders[start : start + limit]]
    }
    if start + limit < len(shared_folders):
        result["cursor"] = f"{start + limit}-{limit}"
    return result


def _run_list(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return _list_page(state, 0, arg["limit"])


def _run_continue(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    position = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,4})", arg["cursor"])
    if position is None or not 1 <= int(position[2]) <= _DEFAULT_LIMIT:
        raise ApiError("invalid_cursor")
    return _list_page(state, int(position[1]), int(position[2]))


def find_shared(state: State, folder_id: str, *tags: str) -> tuple[SharedFolder, Folder]:
    """Return a shared folder of this account by its id. Raises ApiError with these tags."""
    for known_id, shared, node in _list_shared(state):
        if known_id == folder_id:
            return shared, node
    raise ApiError(*tags, "invalid_id")


def _run_get(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return describe_folder(state, arg["shared_folder_id"], *find_shared(state, arg["shared_folder_id"]))


def _run_unshare(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Unshare a folder. Its members lose it."""
    find_shared(state, arg["shared_folder_id"], "access_error")

    def step(_now_s: float) -> None:
        # The entry stays, so that the id is never assigned again.
        state.shared_folders[arg["shared_folder_id"]] = SharedFolder("", 0.0, "", "inherit", ())

    return state.start_job("unshare_folder", [step], call.now_s)


def _run_share_status(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    job = state.jobs.find(arg["async_job_id"], "share_folder")
    if job is None:
        raise ApiError("invalid_async_job_id")
    result: dict[str, Any] = job.results[0] if job.is_complete else {".tag": "in_progress"}
    return result


def _run_status(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    job = state.jobs.find(arg["async_job_id"], "unshare_folder")
    if job is None:
        raise ApiError("invalid_async_job_id")
    return {".tag": "complete" if job.is_complete else "in_progress"}


FUNCTIONS: Mapping[str, Function] = {
    "sharing/share_folder": Function(Kind.WRITE, "rpc", _share, _run_share),
    "sharing/check_share_job_status": Function(Kind.META, "rpc", _poll, _run_share_status),
    "sharing/list_folders": Function(Kind.META, "rpc", _list, _run_list),
    "sharing/list_folders/continue": Function(Kind.META, "rpc", _continue, _run_continue),
    "sharing/get_folder_metadata": Function(Kind.META, "rpc", _get, _run_get),
    "sharing/unshare_folder": Function(Kind.WRITE, "rpc", _unshare, _run_unshare),
    "sharing/check_job_status": Function(Kind.META, "rpc", _poll, _run_status),
}
