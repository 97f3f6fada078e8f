"""The limits of a token: what is left after downscoping, or the scopes to which a user agreed.

The names of Box's scopes and what they allow are from developer.box.com ("Scopes" and "Downscope a token").
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
"""Maps a scope to the names of the functions that it allows, or to None if it allows all of them."""

_RESOURCE = re.compile(r"https://[^/]+/2\.0/(files|folders)/(\d+)/?")


class Bounds(NamedTuple):
    """The limits of a token: its scopes, and an item with all that is below it, or None for every item."""

    scopes: frozenset[str]
    node: Node | None = None

    def allows(self, function: str) -> bool:
        """Return whether one of the scopes allows a function, by its name."""
        allowed = [SCOPES.get(scope, frozenset()) for scope in self.scopes]
        return any(names is None or function in names for names in allowed)

    def reaches(self, node: Node) -> bool:
        """Return whether an item is within the bounds: the item of the bounds, or one below it."""
        ancestor: Node | None = node
        while ancestor is not None and ancestor is not self.node:
            ancestor = ancestor.parent
        return self.node is None or ancestor is self.node

    def within(self, scopes: frozenset[str], node: Node | None) -> Bounds | None:
        """Return bounds with these scopes and this item, or None if they would allow more than the present ones."""
        if not ("root_readwrite" in self.scopes or scopes <= self.scopes) or (
            node is not None and not self.reaches(node)
        ):
            return None
        return Bounds(scopes, node or self.node)


def parse_resource(address: str) -> tuple[str, str]:
    """Return ``files`` or ``folders``, and the id that an address names. Both are empty if it names neither."""
    parts = _RESOURCE.fullmatch(address)
    return (parts[1], parts[2]) if parts else ("", "")
