"""Which scope each function of the API needs (the ``scope`` of its route in the published specification), and which
functions are not offered.

What may live here: names of scopes and of functions.
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
    """Returns the scope that a function needs; empty if it needs none."""
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
    "sharing/": "members of shared files and folders",
}
"""The beginning of a function's name, and what it belongs to; see the table of docs/reference/emulator.md."""


def not_offered(function: str) -> str:
    """Returns what a function belongs to that the API has and this emulator does not offer; empty if there is none."""
    return next((what for start, what in _NOT_OFFERED.items() if function.startswith(start)), "")
