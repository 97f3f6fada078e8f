"""What the API says of one file: each property as a function, so that an answer computes only what was asked for.

What may live here: the ``File`` resource, and the view that searches have of a file. No routes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import hashed
from pytest_cloudbench.emulators.gdrive.answers import DriveError, timestamp
from pytest_cloudbench.emulators.gdrive.selection import Chosen, pick
from pytest_cloudbench.emulators.gdrive.state import (
    APP_DATA,
    APPS,
    SHORTCUT,
    USER,
    DriveMeta,
    DriveState,
    is_document,
    meta_of,
)
from pytest_cloudbench.emulators.nodes import File, Folder, Node, Version

_OFFICE, _OPEN = "application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument."
_INDEXED_BYTES = 128 * 1024
"""So much of a text is found by a search (developers.google.com/drive, "Indexable text": 128 KB)."""
_PDF = {"application/pdf": "pdf"}
_TEXT = {"text/plain": "txt"}
_ZIP = {"application/zip": "zip"}
_PICTURES = {"image/jpeg": "jpeg", "image/png": "png", "image/svg+xml": "svg"}
EXPORTS: Mapping[str, Mapping[str, str]] = {
    f"{APPS}document": {
        f"{_OFFICE}wordprocessingml.document": "docx", f"{_OPEN}text": "odt", "application/rtf": "rtf", **_PDF, **_TEXT,
        "text/html": "html", **_ZIP, "application/epub+zip": "epub", "text/markdown": "md",
    },
    f"{APPS}spreadsheet": {
        f"{_OFFICE}spreadsheetml.sheet": "xlsx", f"{_OPEN}spreadsheet": "ods", **_PDF, **_ZIP, "text/csv": "csv",
        "text/tab-separated-values": "tsv",
    },
    f"{APPS}presentation": {
        f"{_OFFICE}presentationml.presentation": "pptx", f"{_OPEN}presentation": "odp", **_PDF, **_TEXT, **_PICTURES,
    },
    f"{APPS}drawing": {**_PDF, **_PICTURES},
    f"{APPS}script": {"application/vnd.google-apps.script+json": "json"},
    f"{APPS}jam": _PDF,
    f"{APPS}form": _ZIP,
    f"{APPS}site": _TEXT,
    f"{APPS}mail-layout": _TEXT,
    f"{APPS}vid": {"video/mp4": "mp4"},
}  # fmt: skip
"""Google's own types, what their files can be exported as, and how links to exports name that."""

IMPORTS: Mapping[str, list[str]] = {
    **{
        kind: [f"{APPS}document"]
        for kind in (
            f"{_OFFICE}wordprocessingml.document", "application/msword", f"{_OPEN}text", "application/rtf",
            "text/html", "text/plain", "text/markdown", "application/pdf", "image/jpeg", "image/png", "image/gif",
            "image/bmp",
        )
    },
    **{
        kind: [f"{APPS}spreadsheet"]
        for kind in (
            f"{_OFFICE}spreadsheetml.sheet", "application/vnd.ms-excel", f"{_OPEN}spreadsheet", "text/csv",
            "text/tab-separated-values",
        )
    },
    **{
        kind: [f"{APPS}presentation"]
        for kind in (
            f"{_OFFICE}presentationml.presentation", "application/vnd.ms-powerpoint", f"{_OPEN}presentation",
        )
    },
    "application/vnd.google-apps.script+json": [f"{APPS}script"],
}  # fmt: skip
"""What Google's own types can be made of."""

EXPORT_PATHS: Mapping[str, str] = {
    "document": "/feeds/download/documents/export/Export",
    "spreadsheet": "/spreadsheets/export",
    "presentation": "/feeds/download/presentations/Export",
    "drawing": "/feeds/download/drawings/Export",
}
"""Where links to exports lead, on ``docs.google.com``; those of other types lead where documents' do."""

_EDITORS = {"document": "document", "spreadsheet": "spreadsheets", "presentation": "presentation"}
_CAN = (
    "canAcceptOwnership canAccessViaGenAi canAddChildren canAddFolderFromAnotherDrive canAddMyDriveParent "
    "canChangeCopyRequiresWriterPermission canChangeItemDownloadRestriction canChangeSecurityUpdateEnabled "
    "canChangeViewersCanCopyContent canComment canCopy canDelete canDeleteChildren canDisableInheritedPermissions "
    "canDownload canEdit canEnableInheritedPermissions canListChildren canModifyContent "
    "canModifyContentRestriction canModifyEditorContentRestriction canModifyOwnerContentRestriction "
    "canModifyLabels canMoveChildrenOutOfDrive canMoveChildrenOutOfTeamDrive canMoveChildrenWithinDrive "
    "canMoveChildrenWithinTeamDrive canMoveItemIntoTeamDrive canMoveItemOutOfDrive canMoveItemOutOfTeamDrive "
    "canMoveItemWithinDrive canMoveItemWithinTeamDrive canMoveTeamDriveItem canReadDrive canReadLabels "
    "canReadRevisions canReadTeamDrive canRemoveChildren canRemoveContentRestriction canRemoveMyDriveParent "
    "canRename canShare canStartApproval canTrash canTrashChildren canUntrash"
).split()
_NEVER = frozenset({"canAcceptOwnership", "canAddFolderFromAnotherDrive", "canEnableInheritedPermissions"})
_CHILDREN = frozenset(name for name in _CAN if "Children" in name)


class FileView:
    """One file as answers and searches see it."""

    __slots__ = ("meta", "node", "now_s", "state", "version")

    def __init__(self, state: DriveState, node: Node, now_s: float, *, is_listed: bool = False) -> None:
        self.state, self.node, self.now_s = state, node, now_s
        self.meta: DriveMeta = meta_of(node)
        self.version: Version | None = None
        if isinstance(node, File):
            self.version = node.listed(now_s) if is_listed else node.seen(now_s)

    # ---------------------------------------------------------------- for searches

    def text(self, name: str) -> str:
        """See ``query.View``."""
        if name in ("name", "title"):
            return self.node.name
        if name == "mimeType":
            return self.meta.mime
        if name == "id":
            return self.node.id
        if name == "fullText":
            return f"{self.node.name}\n{self.meta.given.get('description', '')}\n{self._indexed_text()}"
        if name == "shortcutDetails.targetId":
            return str(self.meta.given.get("shortcutDetails", {}).get("targetId", ""))
        is_open = any(each["type"] == "anyone" for each in self.meta.permissions.values())
        return "anyoneWithLink" if is_open else "limited"

    def _indexed_text(self) -> str:
        if self.version is None or not self.meta.mime.startswith("text/"):
            return ""
        return self.version.blob.part(0, _INDEXED_BYTES).data.decode(errors="replace")

    def flag(self, name: str) -> bool:
        """See ``query.View``."""
        if name == "trashed":
            return self.state.is_trashed(self.node, self.now_s)
        return bool(self.meta.given.get("starred")) if name == "starred" else False

    def time_s(self, name: str) -> float:
        """See ``query.View``."""
        return self.meta.created_s if name == "createdTime" else self.meta.modified_s

    def names(self, name: str) -> Collection[str]:
        """See ``query.View``."""
        if name == "parents":
            parent = self.state.parent(self.node)
            if parent is None:
                return ()
            names = {self.state.root.id: "root", self.state.app_data.id: APP_DATA}
            return (parent.id, names[parent.id]) if parent.id in names else (parent.id,)
        roles = {"owners": ("owner",), "writers": ("owner", "writer")}.get(
            name, ("owner", "writer", "commenter", "reader")
        )
        found = {each.get("emailAddress", "") for each in self.meta.permissions.values() if each["role"] in roles}
        return found | {"me"} if USER["emailAddress"] in found else found

    def pairs(self, name: str) -> Mapping[str, str]:
        """See ``query.View``."""
        found: Mapping[str, str] = self.meta.given.get(name, {})
        return found

    # ---------------------------------------------------------------- for answers

    @property
    def blob_version(self) -> Version | None:
        """The content that reads see; None if the file has no content of its own."""
        return None if self.meta.mime.startswith(APPS) else self.version

    @property
    def is_shared(self) -> bool:
        """Whether anybody else may see it."""
        return len(self.meta.permissions) > 1


_Property = Callable[[FileView], Any]


def _given(name: str, default: Any = None) -> _Property:
    return lambda view: view.meta.given.get(name, default)


def _ending(view: FileView) -> str | None:
    if view.blob_version is None:
        return None
    _, dot, ending = view.node.name.rpartition(".")
    return ending if dot else ""


def _hash(name: str) -> _Property:
    return lambda view: (
        None if view.blob_version is None else hashed(view.blob_version.blob, hashlib.new(name)).hash_hex
    )


def _size(view: FileView) -> str | None:
    if view.version is None or view.meta.mime == SHORTCUT:
        return None
    return str(view.version.blob.size_bytes or (1 if is_document(view.meta.mime) else 0))


def _parents(view: FileView) -> list[str] | None:
    parent = view.state.parent(view.node)
    return None if parent is None else [parent.id]


def _web_view(view: FileView) -> str:
    kind = view.meta.mime.removeprefix(APPS)
    if isinstance(view.node, Folder):
        return f"https://drive.google.com/drive/folders/{view.node.id}"
    if kind in _EDITORS:
        return f"https://docs.google.com/{_EDITORS[kind]}/d/{view.node.id}/edit?usp=drivesdk"
    return f"https://drive.google.com/file/d/{view.node.id}/view?usp=drivesdk"


def _web_content(view: FileView) -> str | None:
    return None if view.blob_version is None else f"https://drive.google.com/uc?id={view.node.id}&export=download"


def _thumbnail(view: FileView) -> str | None:
    return f"https://docs.google.com/feeds/vt?gd=true&id={view.node.id}&v=1" if is_document(view.meta.mime) else None


def _exports(view: FileView) -> dict[str, str] | None:
    kinds = EXPORTS.get(view.meta.mime)
    path = EXPORT_PATHS.get(view.meta.mime.removeprefix(APPS), EXPORT_PATHS["document"])
    link = f"https://docs.google.com{path}?id={view.node.id}&exportFormat="
    return None if kinds is None else {kind: link + ending for kind, ending in kinds.items()}


def _capabilities(view: FileView) -> dict[str, bool]:
    is_folder = isinstance(view.node, Folder)
    is_trashed = view.state.is_trashed(view.node, view.now_s)
    can = {name: name not in _NEVER and (is_folder or name not in _CHILDREN) for name in _CAN}
    return can | {"canDownload": view.blob_version is not None, "canUntrash": is_trashed, "canCopy": not is_folder}


def _of_drive(wanted: bool, value: _Property) -> _Property:
    """A property that only files in a shared drive have, or only the others."""
    return lambda view: value(view) if bool(view.state.drive_id(view.node)) is wanted else None


_PROPERTIES: Mapping[str, _Property] = {
    "kind": lambda view: "drive#file",
    "id": lambda view: view.node.id,
    "name": lambda view: view.node.name,
    "mimeType": lambda view: view.meta.mime,
    "description": _given("description"),
    "starred": _given("starred", False),
    "trashed": lambda view: view.state.is_trashed(view.node, view.now_s),
    "explicitlyTrashed": lambda view: view.meta.trashed_s is not None,
    "trashedTime": lambda view: None if view.meta.trashed_s is None else timestamp(view.meta.trashed_s),
    "trashingUser": _of_drive(True, lambda view: None if view.meta.trashed_s is None else USER),
    "parents": _parents,
    "properties": _given("properties"),
    "appProperties": _given("appProperties"),
    "spaces": lambda view: [view.state.space(view.node)],
    "version": lambda view: str(view.meta.version),
    "webContentLink": _web_content,
    "webViewLink": _web_view,
    "iconLink": lambda view: f"https://drive-thirdparty.googleusercontent.com/16/type/{view.meta.mime}",
    "hasThumbnail": lambda view: is_document(view.meta.mime),
    "thumbnailLink": _thumbnail,
    "thumbnailVersion": lambda view: "1" if is_document(view.meta.mime) else "0",
    "viewedByMe": lambda view: True,
    "viewedByMeTime": lambda view: view.meta.given.get("viewedByMeTime", timestamp(view.meta.modified_s)),
    "createdTime": lambda view: timestamp(view.meta.created_s),
    "modifiedTime": lambda view: timestamp(view.meta.modified_s),
    "modifiedByMeTime": lambda view: timestamp(view.meta.modified_s),
    "modifiedByMe": lambda view: True,
    "sharedWithMeTime": lambda view: None,
    "sharingUser": lambda view: None,
    "owners": _of_drive(False, lambda view: [USER]),
    "teamDriveId": lambda view: view.state.drive_id(view.node) or None,
    "driveId": lambda view: view.state.drive_id(view.node) or None,
    "lastModifyingUser": lambda view: USER,
    "shared": lambda view: view.is_shared,
    "ownedByMe": _of_drive(False, lambda view: True),
    "capabilities": _capabilities,
    "viewersCanCopyContent": lambda view: not view.meta.given.get("copyRequiresWriterPermission", False),
    "copyRequiresWriterPermission": _given("copyRequiresWriterPermission", False),
    "writersCanShare": _of_drive(False, _given("writersCanShare", True)),
    "permissions": lambda view: list(view.meta.permissions.values()),
    "permissionIds": lambda view: list(view.meta.permissions),
    "hasAugmentedPermissions": _of_drive(True, lambda view: False),
    "folderColorRgb": lambda view: view.meta.given.get("folderColorRgb", "#8f8f8f") if view.version is None else None,
    "originalFilename": lambda view: (
        None if view.blob_version is None else view.meta.given.get("originalFilename", view.node.name)
    ),
    "fullFileExtension": _ending,
    "fileExtension": _ending,
    "md5Checksum": lambda view: None if view.blob_version is None else view.blob_version.blob.hash_hex,
    "sha1Checksum": _hash("sha1"),
    "sha256Checksum": _hash("sha256"),
    "size": _size,
    "quotaBytesUsed": lambda view: _size(view) or "0",
    "headRevisionId": lambda view: None if view.blob_version is None else view.blob_version.rev,
    "contentHints": lambda view: None,
    "imageMediaMetadata": lambda view: None,
    "videoMediaMetadata": lambda view: None,
    "isAppAuthorized": lambda view: True,
    "exportLinks": _exports,
    "shortcutDetails": _given("shortcutDetails"),
    "contentRestrictions": _given("contentRestrictions"),
    "labelInfo": lambda view: None,
    "resourceKey": lambda view: None,
    "linkShareMetadata": lambda view: {"securityUpdateEligible": False, "securityUpdateEnabled": True},
    "inheritedPermissionsDisabled": _given("inheritedPermissionsDisabled", False),
    "downloadRestrictions": lambda view: {
        "itemDownloadRestriction": {"restrictedForReaders": False, "restrictedForWriters": False},
        "effectiveDownloadRestrictionWithContext": {"restrictedForReaders": False, "restrictedForWriters": False},
    },
    "clientEncryptionDetails": lambda view: None,
}
FILE_DEFAULT: Chosen = {"kind": None, "id": None, "name": None, "mimeType": None}
"""What an answer says of a file if the request does not choose."""


def file_resource(view: FileView, tree: Chosen | None) -> dict[str, Any]:
    """Returns the chosen properties of a file; None: all. Raises DriveError for a property that does not exist."""
    found = {}
    if tree is None or "*" in tree:
        for name, value_of in _PROPERTIES.items():
            if (value := value_of(view)) is not None:
                found[name] = value
        chosen: dict[str, Any] = pick(found, tree)
        return chosen
    for name, inner in tree.items():
        value_of_name = _PROPERTIES.get(name)
        if value_of_name is None:
            raise DriveError(400, "invalidParameter", f"Invalid field selection {name}", "fields")
        if (value := value_of_name(view)) is not None:
            found[name] = value if inner is None else pick(value, inner)
    return found
