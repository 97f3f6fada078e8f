"""The names of the Box SDK that the driver uses, without the rest of the SDK."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cloudbench.drivers.sdk_import import import_parts

# The SDK's package imports all of its 500 modules; these are the ones that the driver uses.
_LAZY = ("box", "managers", "parameters", "schemas")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "box.ccg_auth": ("BoxCCGAuth", "CCGConfig"),
    "box.developer_token_auth": ("BoxDeveloperTokenAuth",),
    "box.errors": ("BoxAPIError", "BoxSDKError"),
    "internal.null_value": ("null",),
    "managers.chunked_uploads": ("ChunkedUploadsManager",),
    "managers.downloads": ("DownloadsManager",),
    "managers.files": (
        "CopyFileParent", "FilesManager", "UpdateFileByIdParent", "UpdateFileByIdSharedLink",
    ),
    "managers.folders": (
        "CopyFolderParent", "CreateFolderParent", "FoldersManager", "UpdateFolderByIdParent",
        "UpdateFolderByIdSharedLink",
    ),
    "managers.list_collaborations": ("ListCollaborationsManager",),
    "managers.shared_links_files": ("SharedLinksFilesManager",),
    "managers.trashed_items": ("TrashedItemsManager",),
    "managers.uploads": (
        "PreflightFileUploadCheckParent", "UploadFileAttributes", "UploadFileAttributesParentField",
        "UploadFileVersionAttributes", "UploadsManager",
    ),
    "managers.user_collaborations": (
        "CreateCollaborationAccessibleBy", "CreateCollaborationAccessibleByTypeField", "CreateCollaborationItem",
        "CreateCollaborationItemTypeField", "CreateCollaborationRole", "UpdateCollaborationByIdRole",
        "UserCollaborationsManager",
    ),
    "managers.users": ("UsersManager",),
    "networking.base_urls": ("BaseUrls",),
    "networking.box_network_client": ("BoxNetworkClient",),
    "networking.network": ("NetworkSession",),
    "networking.retries": ("BoxRetryStrategy",),
    "networking.timeout_config": ("TimeoutConfig",),
}  # fmt: skip

sdk = import_parts("box_sdk_gen", _LAZY, _PARTS)
"""The names, as attributes."""
