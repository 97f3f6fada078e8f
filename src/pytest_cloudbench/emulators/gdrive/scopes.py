"""The functions of the API that each scope allows, and those that this emulator does not offer.

Names of scopes and functions are those of Google's discovery document. ``drive.file`` allows the same as ``drive``
here, while Google hides the files of other applications from it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from pytest_cloudbench.emulators.gdrive.answers import DriveError
from pytest_cloudbench.emulators.gdrive.state import APP_DATA
from pytest_cloudbench.emulators.skin import Kind

_PREFIX = "https://www.googleapis.com/auth/"
_WRITE = frozenset(f"{_PREFIX}{name}" for name in ("drive", "drive.file", "drive.appdata"))
_READ = _WRITE | {f"{_PREFIX}drive.readonly", f"{_PREFIX}drive.meet.readonly"}
_CHANGE_METADATA = _WRITE | {f"{_PREFIX}drive.metadata", f"{_PREFIX}drive.scripts"}
_READ_METADATA = _READ | _CHANGE_METADATA | {f"{_PREFIX}drive.metadata.readonly", f"{_PREFIX}drive.photos.readonly"}
_CHALLENGE = (
    b"www-authenticate", b'Bearer realm="https://accounts.google.com/", error="insufficient_scope"'
)  # fmt: skip


def is_scope(word: str) -> bool:
    """Return whether a word is one of Google's scopes."""
    return word.startswith("https://") or word in ("openid", "email", "profile")


def check_scopes(function: str, kind: Kind, scopes: Collection[str], spaces: Collection[str]) -> None:
    """Raise DriveError if the scopes do not allow a function, or give no access to a space."""
    allowing = {Kind.WRITE: _WRITE, Kind.READ: _READ}.get(kind, _READ_METADATA)
    if function.startswith("upload"):
        allowing = _WRITE
    elif function == "files.update":
        allowing = _CHANGE_METADATA
    if allowing.isdisjoint(scopes):
        message = "Request had insufficient authentication scopes."
        raise DriveError(403, "insufficientPermissions", message, headers=[_CHALLENGE])
    only_app_data = _READ_METADATA.isdisjoint(set(scopes) - {f"{_PREFIX}drive.appdata"})
    if (APP_DATA in spaces and f"{_PREFIX}drive.appdata" not in scopes) or ("drive" in spaces and only_app_data):
        message = "The granted scopes do not give access to all of the requested spaces."
        raise DriveError(403, "insufficientScopes", message, "spaces")


_NOT_OFFERED = {
    r"(/upload)?/drive/v[12](/.*)?": "versions of the API before v3",
    r"/batch(/.*)?": "batches",
    r"/drive/v3/(files/[^/]+|changes)/watch": "push notifications",
    r"/drive/v3/channels/.*": "push notifications",
    r"/drive/v3/files/[^/]+/(labels|listLabels|modifyLabels)": "labels",
    r"/drive/v3/files/[^/]+/approvals.*": "approvals",
    r"/drive/v3/files/[^/]+/accessproposals.*": "access proposals",
    r"/drive/v3/files/[^/]+/download": "downloads as long operations",
    r"/drive/v3/operations.*": "downloads as long operations",
    r"/drive/v3/files/generateCseToken": "encryption by the client",
    r"/drive/v3/apps.*": "other applications",
    r"/drive/v3/teamdrives.*": "team drives, which shared drives have replaced",
}
"""Patterns of paths with the feature that they belong to. docs/reference/emulator.md lists them for users."""


def find_missing_feature(path: str) -> str:
    """Return the feature of a path that the API has and this emulator does not offer, or an empty text."""
    return next((feature for pattern, feature in _NOT_OFFERED.items() if re.fullmatch(pattern, path)), "")
