"""The scopes that a user grants to an application, and their reach ("Microsoft Graph permissions reference")."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class DriveReach(IntEnum):
    """The reach of a token into the drive."""

    NOTHING = 0
    APP_FOLDER = 1
    """Read and write in the application's own folder, and nothing elsewhere."""
    READ = 2
    WRITE = 3


_NAMES: Mapping[DriveReach, str] = {
    DriveReach.APP_FOLDER: "files.readwrite.appfolder onedrive.appfolder",
    DriveReach.READ: "files.read files.read.all files.read.selected sites.read.all onedrive.readonly wl.skydrive",
    DriveReach.WRITE: "files.readwrite files.readwrite.all files.readwrite.selected sites.readwrite.all "
    "sites.manage.all sites.fullcontrol.all onedrive.readwrite wl.skydrive_update .default",
}
_REACHES = {name: reach for reach, names in _NAMES.items() for name in names.split()}
_ABOUT_THE_USER = frozenset({"openid", "profile", "email", "offline_access", "user.read"})
"""Scopes that every application may have. They give no access to the drive."""


def _scope_names(scope: str) -> set[str]:
    return {name.lower().rpartition("/")[2] for name in scope.split()}


def drive_reach(scope: str) -> DriveReach:
    """Return the reach of a token with these scopes, which are separated by spaces."""
    return max((_REACHES.get(name, DriveReach.NOTHING) for name in _scope_names(scope)), default=DriveReach.NOTHING)


def scopes_cover(granted: str, requested: str) -> bool:
    """Return whether the scopes that the user granted cover those that are requested now."""
    known_names = _scope_names(granted) | _ABOUT_THE_USER | _REACHES.keys()
    are_known = _scope_names(requested) <= known_names
    return are_known and drive_reach(requested) <= drive_reach(granted)
