"""What the permissions that a user agreed to let an application do ("Microsoft Graph permissions reference").

What may live here: names of scopes, and what they allow. No state and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class DriveReach(IntEnum):
    """How far a token reaches into the drive."""

    NOTHING = 0
    APP_FOLDER = 1
    """Everything in the application's own folder, nothing elsewhere."""
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
"""Scopes that every application may have; they do not reach into the drive."""


def _names(scope: str) -> set[str]:
    return {name.lower().rpartition("/")[2] for name in scope.split()}


def reach_of(scope: str) -> DriveReach:
    """Returns how far a token with these scopes, separated by spaces, reaches."""
    return max((_REACHES.get(name, DriveReach.NOTHING) for name in _names(scope)), default=DriveReach.NOTHING)


def covers(granted: str, wanted: str) -> bool:
    """Returns whether the user has agreed to what is wanted now."""
    fine = all(name in _names(granted) | _ABOUT_THE_USER or name in _REACHES for name in _names(wanted))
    return fine and reach_of(wanted) <= reach_of(granted)
