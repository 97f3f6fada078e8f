"""The rights of other accounts to items that an account shares with them, by the roles of their collaborations.

An invitation is accepted when the invited account first asks for the item, which is Box's default.
"""

from __future__ import annotations

import re
from typing import Any

from pytest_cloudbench.emulators.box.answers import BoxError
from pytest_cloudbench.emulators.box.downloads import is_signed
from pytest_cloudbench.emulators.box.state import BoxState, describe_user
from pytest_cloudbench.emulators.nodes import Node
from pytest_cloudbench.emulators.skin import Answer, Call

_ITEM_IN_PATH = re.compile(r"/2\.0/(?:files|folders)/(\d+)")
_READERS = frozenset({"viewer", "viewer uploader", "editor", "co-owner"})
_VIEWERS = _READERS | {"previewer", "previewer uploader"}
_WRITERS = frozenset({"editor", "co-owner"})
"""Roles that may write, delete and invite others."""


def admits(state: BoxState, path: str, address: str) -> bool:
    """Return whether a path is that of an item that another account may use, or of a download signed by this one."""
    return bool(_find_role(state, path, address)) or any(
        is_signed(state, part) for part in path.split("/") if part.count(".") == 3
    )


def refuse_member(state: BoxState, call: Call, address: str) -> Answer | None:
    """Return the refusal of a request of another account, or None if its role allows it."""
    role = _find_role(state, call.path, address)
    if not role:
        return BoxError(404, "not_found").answer()
    roles = _WRITERS if call.method != "GET" else _READERS if call.route.name == "download" else _VIEWERS
    action = "delete" if call.method == "DELETE" else "write"
    is_allowed = state.account.lets_member(action, by_role=role in roles, may_read=role in _READERS)
    return None if is_allowed else BoxError(403, "access_denied_insufficient_permissions").answer()


def find_inviting(state: BoxState, item: dict[str, Any]) -> BoxState:
    """Return the account that owns an item to which this one invites others: itself, or one that lets it invite.

    Raises BoxError if a role on the item does not let it.
    """
    path = f"/2.0/{item.get('type')}s/{item.get('id')}"
    for peer in state.peers():
        if peer is not state and (role := _find_role(peer, path, state.address)):
            if not peer.account.lets_member("share", by_role=role in _WRITERS):
                raise BoxError(403, "access_denied_insufficient_permissions")
            peer.current_bounds = state.current_bounds  # the token is still the inviting account's
            return peer
    return state


def _find_role(state: BoxState, path: str, address: str) -> str:
    """Return the role that an account has on the item of a path. Empty if none."""
    return find_role(state, find_item(state, path), address)


def find_item(state: BoxState, path: str) -> Node | None:
    """Return the item of a path, or None."""
    match = _ITEM_IN_PATH.search(path)
    return None if match is None else state.store.by_id(match[1])


def find_role(state: BoxState, node: Node | None, address: str) -> str:
    """Return the role that an account has on an item, from the item or a folder above it. Empty if none."""
    while node is not None and node.deleted_s is None:
        for collaboration in state.collaborations.values():
            if collaboration["item"]["id"] == node.id and _is_invited(collaboration, address):
                return str(collaboration["role"])
        node = node.parent
    return ""


def _is_invited(collaboration: dict[str, Any], address: str) -> bool:
    """Return whether a collaboration is with an account. A pending invitation is accepted."""
    if collaboration["invite_email"] == address:
        grantee = {**describe_user(address), "is_active": True}
        collaboration |= {"status": "accepted", "accessible_by": grantee, "invite_email": None}
        collaboration["acknowledged_at"] = collaboration["created_at"]
    grantee = collaboration["accessible_by"] or {}
    return grantee.get("login") == address
