"""The ``File`` resource: each property is a function, so that an answer computes only the selected ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import hash_blob
from pytest_cloudbench.emulators.gdrive.answers import DriveError, format_time
from pytest_cloudbench.emulators.gdrive.selection import Selection, pick_selected
from pytest_cloudbench.emulators.gdrive.state import (
    APP_DATA,
    APPS,
    SHORTCUT,
    DriveMeta,
    DriveState,
    drive_meta,
    is_document,
)
from pytest_cloudbench.emulators.nodes import File, Folder, Node, Version

_OFFICE, _OPEN = "application/vnd.openxmlformats-officedocument.", "application/vnd.oasis.opendocument."
_INDEXED_BYTES = 128 * 1024
"""A search finds only text in the first 128 KB of a file (developers.google.com/drive, "Indexable text")."""
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
"""The export formats of Google's own types, each with its name in export links."""

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
"""The types that can be converted to Google's own."""

EXPORT_PATHS: Mapping[str, str] = {
    "document": "/feeds/download/documents/export/Export",
    "spreadsheet": "/spreadsheets/export",
    "presentation": "/feeds/download/presentations/Export",
    "drawing": "/feeds/download/drawings/Export",
}
"""The paths of export links on ``docs.google.com``. Types that are missing here use the path of documents."""

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
    """A view of one file for answers and searches."""

    __slots__ = ("meta", "node", "now_s", "state", "version")

    def __init__(self, state: DriveState, node: Node, now_s: float, *, is_listed: bool = False) -> None:
        self.state, self.node, self.now_s = state, node, now_s
        self.meta: DriveMeta = drive_meta(node)
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
            return f"{self.node.name}\n{self.meta.client_properties.get('description', '')}\n{self._indexed_text()}"
        if name == "shortcutDetails.targetId":
            return str(self.meta.client_properties.get("shortcutDetails", {}).get("targetId", ""))
        is_public = any(permission["type"] == "anyone" for permission in self.meta.permissions.values())
        return "anyoneWithLink" if is_public else "limited"

    def _indexed_text(self) -> str:
        if self.version is None or not self.meta.mime.startswith("text/"):
            return ""
        return self.version.blob.part(0, _INDEXED_BYTES).data.decode(errors="replace")

    def flag(self, name: str) -> bool:
        """See ``query.View``."""
        if name == "trashed":
            return self.state.is_trashed(self.node, self.now_s)
        return bool(self.meta.client_properties.get("starred")) if name == "starred" else False

    def time_s(self, name: str) -> float:
        """See ``query.View``."""
        return self.meta.created_s if name == "createdTime" else self.meta.modified_s

    def names(self, name: str) -> Collection[str]:
        """See ``query.View``."""
        if name == "parents":
            parent = self.state.parent_of(self.node)
            if parent is None:
                return ()
            names = {self.state.root.id: "root", self.state.app_data.id: APP_DATA}
            return (parent.id, names[parent.id]) if parent.id in names else (parent.id,)
        roles = {"owners": ("owner",), "writers": ("owner", "writer")}.get(
            name, ("owner", "writer", "commenter", "reader")
        )
        addresses = {
            permission.get("emailAddress", "")
            for permission in self.meta.permissions.values()
            if permission["role"] in roles
        }
        return addresses | {"me"} if self.state.address in addresses else addresses

    def pairs(self, name: str) -> Mapping[str, str]:
        """See ``query.View``."""
        properties: Mapping[str, str] = self.meta.client_properties.get(name, {})
        return properties

    # ---------------------------------------------------------------- for answers

    @property
    def blob_version(self) -> Version | None:
        """The content that reads see, or None if the file has no content of its own."""
        return None if self.meta.mime.startswith(APPS) else self.version

    @property
    def trashed_s(self) -> float | None:
        """When the file itself went to the trash, or None."""
        return self.state.trashed_s(self.node, self.now_s)

    @property
    def is_shared(self) -> bool:
        """True if anybody but the owner may see the file."""
        return len(self.meta.permissions) > 1


_Property = Callable[[FileView], Any]


def _client_property(name: str, default: Any = None) -> _Property:
    return lambda view: view.meta.client_properties.get(name, default)


def _file_extension(view: FileView) -> str | None:
    if view.blob_version is None:
        return None
    _, dot, ending = view.node.name.rpartition(".")
    return ending if dot else ""


def _content_hash(name: str) -> _Property:
    return lambda view: (
        None if view.blob_version is None else hash_blob(view.blob_version.blob, hashlib.new(name)).hash_hex
    )


def _content_size(view: FileView) -> str | None:
    if view.version is None or view.meta.mime == SHORTCUT:
        return None
    return str(view.version.blob.size_bytes or (1 if is_document(view.meta.mime) else 0))


def _parent_ids(view: FileView) -> list[str] | None:
    parent = view.state.parent_of(view.node)
    return None if parent is None else [parent.id]


def _web_view_link(view: FileView) -> str:
    kind = view.meta.mime.removeprefix(APPS)
    if isinstance(view.node, Folder):
        return f"https://drive.google.com/drive/folders/{view.node.id}"
    if kind in _EDITORS:
        return f"https://docs.google.com/{_EDITORS[kind]}/d/{view.node.id}/edit?usp=drivesdk"
    return f"https://drive.google.com/file/d/{view.node.id}/view?usp=drivesdk"


def _web_content_link(view: FileView) -> str | None:
    return None if view.blob_version is None else f"https://drive.google.com/uc?id={view.node.id}&export=download"


def _thumbnail_link(view: FileView) -> str | None:
    return f"https://docs.google.com/feeds/vt?gd=true&id={view.node.id}&v=1" if is_document(view.meta.mime) else None


def _export_links(view: FileView) -> dict[str, str] | None:
    kinds = EXPORTS.get(view.meta.mime)
    if kinds is None:
        return None
    path = EXPORT_PATHS.get(view.meta.mime.removeprefix(APPS), EXPORT_PATHS["document"])
    link = f"https://docs.google.com{path}?id={view.node.id}&exportFormat="
    return {kind: link + ending for kind, ending in kinds.items()}


def _capabilities(view: FileView) -> dict[str, bool]:
    is_folder = isinstance(view.node, Folder)
    is_trashed = view.state.is_trashed(view.node, view.now_s)
    can = {name: name not in _NEVER and (is_folder or name not in _CHILDREN) for name in _CAN}
    return can | {"canDownload": view.blob_version is not None, "canUntrash": is_trashed, "canCopy": not is_folder}


def _in_shared_drive(is_in_drive: bool, value: _Property) -> _Property:
    """Restrict a property to files in a shared drive, or to all other files."""
    return lambda view: value(view) if bool(view.state.drive_id_of(view.node)) is is_in_drive else None


_PROPERTIES: Mapping[str, _Property] = {
    "kind": lambda view: "drive#file",
    "id": lambda view: view.node.id,
    "name": lambda view: view.node.name,
    "mimeType": lambda view: view.meta.mime,
    "description": _client_property("description"),
    "starred": _client_property("starred", False),
    "trashed": lambda view: view.state.is_trashed(view.node, view.now_s),
    "explicitlyTrashed": lambda view: view.trashed_s is not None,
    "trashedTime": lambda view: None if view.trashed_s is None else format_time(view.trashed_s),
    "trashingUser": _in_shared_drive(True, lambda view: None if view.trashed_s is None else view.state.user),
    "parents": _parent_ids,
    "properties": _client_property("properties"),
    "appProperties": _client_property("appProperties"),
    "spaces": lambda view: [view.state.space_of(view.node)],
    "version": lambda view: str(view.meta.version),
    "webContentLink": _web_content_link,
    "webViewLink": _web_view_link,
    "iconLink": lambda view: f"https://drive-thirdparty.googleusercontent.com/16/type/{view.meta.mime}",
    "hasThumbnail": lambda view: is_document(view.meta.mime),
    "thumbnailLink": _thumbnail_link,
    "thumbnailVersion": lambda view: "1" if is_document(view.meta.mime) else "0",
    "viewedByMe": lambda view: True,
    "viewedByMeTime": lambda view: view.meta.client_properties.get("viewedByMeTime", format_time(view.meta.modified_s)),
    "createdTime": lambda view: format_time(view.meta.created_s),
    "modifiedTime": lambda view: format_time(view.meta.modified_s),
    "modifiedByMeTime": lambda view: format_time(view.meta.modified_s),
    "modifiedByMe": lambda view: True,
    "sharedWithMeTime": lambda view: None,
    "sharingUser": lambda view: None,
    "owners": _in_shared_drive(False, lambda view: [view.state.user]),
    "teamDriveId": lambda view: view.state.drive_id_of(view.node) or None,
    "driveId": lambda view: view.state.drive_id_of(view.node) or None,
    "lastModifyingUser": lambda view: view.state.user,
    "shared": lambda view: view.is_shared,
    "ownedByMe": _in_shared_drive(False, lambda view: True),
    "capabilities": _capabilities,
    "viewersCanCopyContent": lambda view: not view.meta.client_properties.get("copyRequiresWriterPermission", False),
    "copyRequiresWriterPermission": _client_property("copyRequiresWriterPermission", False),
    "writersCanShare": _in_shared_drive(False, _client_property("writersCanShare", True)),
    "permissions": lambda view: list(view.meta.permissions.values()),
    "permissionIds": lambda view: list(view.meta.permissions),
    "hasAugmentedPermissions": _in_shared_drive(True, lambda view: False),
    "folderColorRgb": lambda view: (
        view.meta.client_properties.get("folderColorRgb", "#8f8f8f") if isinstance(view.node, Folder) else None
    ),
    "originalFilename": lambda view: (
        None if view.blob_version is None else view.meta.client_properties.get("originalFilename", view.node.name)
    ),
    "fullFileExtension": _file_extension,
    "fileExtension": _file_extension,
    "md5Checksum": lambda view: None if view.blob_version is None else view.blob_version.blob.hash_hex,
    "sha1Checksum": _content_hash("sha1"),
    "sha256Checksum": _content_hash("sha256"),
    "size": _content_size,
    "quotaBytesUsed": lambda view: _content_size(view) or "0",
    "headRevisionId": lambda view: None if view.blob_version is None else view.blob_version.rev,
    "contentHints": lambda view: None,
    "imageMediaMetadata": lambda view: None,
    "videoMediaMetadata": lambda view: None,
    "isAppAuthorized": lambda view: True,
    "exportLinks": _export_links,
    "shortcutDetails": _client_property("shortcutDetails"),
    "contentRestrictions": _client_property("contentRestrictions"),
    "labelInfo": lambda view: None,
    "resourceKey": lambda view: None,
    "linkShareMetadata": lambda view: {"securityUpdateEligible": False, "securityUpdateEnabled": True},
    "inheritedPermissionsDisabled": _client_property("inheritedPermissionsDisabled", False),
    "downloadRestrictions": lambda view: {
        "itemDownloadRestriction": {"restrictedForReaders": False, "restrictedForWriters": False},
        "effectiveDownloadRestrictionWithContext": {"restrictedForReaders": False, "restrictedForWriters": False},
    },
    "clientEncryptionDetails": lambda view: None,
}
FILE_DEFAULT: Selection = {"kind": None, "id": None, "name": None, "mimeType": None}
"""The properties of a file in an answer if the request selects none."""


def describe_file(view: FileView, tree: Selection | None) -> dict[str, Any]:
    """Return the selected properties of a file, all if ``tree`` is None. Raises DriveError for an unknown property."""
    properties = {}
    if tree is None or "*" in tree:
        for name, value_of in _PROPERTIES.items():
            if (value := value_of(view)) is not None:
                properties[name] = value
        selected: dict[str, Any] = pick_selected(properties, tree)
        return selected
    for name, inner in tree.items():
        value_of_name = _PROPERTIES.get(name)
        if value_of_name is None:
            raise DriveError(400, "invalidParameter", f"Invalid field selection {name}", "fields")
        if (value := value_of_name(view)) is not None:
            properties[name] = value if inner is None else pick_selected(value, inner)
    return properties
