"""What a token may do that is not the account's own: one that was made smaller, or whose scopes a user agreed to.

What may live here: the names of Box's scopes, what they allow, and the item that a token is bound to
(developer.box.com, "Scopes" and "Downscope a token").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pytest_cloudbench.emulators.nodes import Node

_READS = frozenset(
    {"file_get", "folder_get", "folder_items", "versions", "version_get", "search", "user_me", "shared_item"}
)
_UPLOADS = frozenset({
    "upload", "preflight", "upload_version", "preflight_version", "upload_session", "upload_session_version",
    "upload_part", "upload_session_get", "upload_session_abort", "upload_session_parts", "upload_session_commit",
    "folder_create",
})  # fmt: skip
_CHANGES = frozenset({"file_update", "folder_update"})
_REMOVALS = frozenset({"file_delete", "folder_delete", "version_delete", "file_purge", "folder_purge"})
_DOWNLOADS = frozenset({"download"})
SCOPES: Mapping[str, frozenset[str] | None] = {
    "root_readonly": _READS | _DOWNLOADS,
    "root_readwrite": None,
    "base_explorer": _READS,
    "base_picker": _READS,
    "base_preview": _READS,
    "base_sidebar": _READS,
    "base_upload": _READS | _UPLOADS,
    "annotation_edit": _READS,
    "annotation_view_all": _READS,
    "annotation_view_self": _READS,
    "item_read": _READS,
    "item_preview": _READS,
    "item_download": _READS | _DOWNLOADS,
    "item_upload": _READS | _UPLOADS,
    "item_rename": _READS | _CHANGES,
    "item_share": _READS | _CHANGES,
    "item_delete": _READS | _REMOVALS,
}
"""Scopes to the names of the functions that they allow; None: all of them."""

_RESOURCE = re.compile(r"https://[^/]+/2\.0/(files|folders)/(\d+)/?")


class Bounds(NamedTuple):
    """What a token is limited to: its scopes, and an item with all that is below it; None: every item."""

    scopes: frozenset[str]
    node: Node | None = None

    def allows(self, function: str) -> bool:
        """Returns whether one of the scopes is enough for a function, by its name."""
        allowed = [SCOPES.get(scope, frozenset()) for scope in self.scopes]
        return any(names is None or function in names for names in allowed)

    def reaches(self, node: Node) -> bool:
        """Returns whether an item is the bounds' own, or below it."""
        above: Node | None = node
        while above is not None and above is not self.node:
            above = above.parent
        return self.node is None or above is self.node

    def within(self, scopes: frozenset[str], node: Node | None) -> Bounds | None:
        """Returns smaller bounds; None if they would not be smaller."""
        if not ("root_readwrite" in self.scopes or scopes <= self.scopes) or (
            node is not None and not self.reaches(node)
        ):
            return None
        return Bounds(scopes, node or self.node)


def resource_of(address: str) -> tuple[str, str]:
    """Returns what an address names: ``files`` or ``folders``, and an id; both are empty if it names neither."""
    found = _RESOURCE.fullmatch(address)
    return (found[1], found[2]) if found else ("", "")
