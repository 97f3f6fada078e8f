"""The scopes that functions of the API need, and the functions that are not offered.

Scopes are from the field ``scope`` of the routes in the published specification.
"""

from __future__ import annotations

SCOPES = frozenset(
    "account_info.read account_info.write files.content.read files.content.write files.metadata.read "
    "files.metadata.write files.permanent_delete sharing.read sharing.write file_requests.read file_requests.write "
    "contacts.read contacts.write openid email profile".split()
)
"""The scopes that an application of one user can have."""

_READS_CONTENT = ("files/download", "files/get_temporary_link")
_WRITES_CONTENT = (
    "files/copy", "files/create_folder", "files/delete", "files/get_temporary_upload_link", "files/move",
    "files/restore", "files/save_url", "files/upload",
)  # fmt: skip
_READS_SHARING = ("sharing/get_", "sharing/list_")


def required_scope(function: str) -> str:
    """Return the scope that a function needs, which is empty if it needs none."""
    if function.startswith(("users/", "check/user")):
        return "account_info.read"
    if function.startswith("sharing/"):
        return "sharing.read" if function.startswith(_READS_SHARING) else "sharing.write"
    if function == "files/permanently_delete":
        return "files.permanent_delete"
    if function.startswith(_WRITES_CONTENT):
        return "files.content.write"
    if function.startswith(_READS_CONTENT):
        return "files.content.read"
    return "files.metadata.read" if function.startswith("files/") else ""


_NOT_OFFERED = {
    "files/get_thumbnail": "thumbnails",
    "files/get_preview": "previews",
    "files/export": "exports",
    "files/paper/": "Paper",
    "files/alpha/": "functions that are only drafts",
    "files/tags/": "tags",
    "files/lock_file": "locks of files",
    "files/unlock_file": "locks of files",
    "files/get_file_lock": "locks of files",
    "files/properties/": "properties",
    "file_properties/": "properties",
    "file_requests/": "file requests",
    "paper/": "Paper",
    "team": "teams",
    "contacts/": "contacts",
    "account/": "photos of the account",
    "openid/": "OpenID Connect",
    "riviera/": "descriptions of what files show",
    "cloud_docs/": "documents in the cloud",
    "sharing/": "members of shared files",
}
"""Maps the beginning of a function's name to its feature. docs/reference/emulator.md has a table of them."""


def missing_feature(function: str) -> str:
    """Return the feature that a function belongs to if this emulator does not offer it, or else an empty text."""
    return next((feature for start, feature in _NOT_OFFERED.items() if function.startswith(start)), "")
