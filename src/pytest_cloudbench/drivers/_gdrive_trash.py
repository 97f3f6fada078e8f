"""The part of the Google Drive driver that looks into the trash, where others than this driver put what they delete."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Any

from pytest_cloudbench.drivers.sdk import SdkDriver

_FIELDS = "nextPageToken,files(md5Checksum)"
_PAGE_ENTRIES = 1000


class FindsInDriveTrash(SdkDriver):
    """Finds deleted files, for a driver that has the library's functions for files."""

    _files: Any

    @abstractmethod
    def _send(self, request: Any) -> Any:
        """Send one of the library's requests, once."""

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return ``in the trash`` if a file with this name and the content's hash is there. Otherwise empty."""
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        request = self._files.list(
            q=f"name = '{escape_name(path.rpartition('/')[2])}' and trashed = true", fields=_FIELDS,
            pageSize=_PAGE_ENTRIES, supportsAllDrives=True, includeItemsFromAllDrives=True,
        )  # fmt: skip
        with self._cloud_errors("list trash", path):
            while request is not None:
                page = self._send(request)
                if any(file.get("md5Checksum") == digest for file in page["files"]):
                    return "in the trash"
                request = self._files.list_next(request, page)
        return ""


def escape_name(name: str) -> str:
    """Return a name as it stands between quotation marks in a search."""
    return name.replace("\\", "\\\\").replace("'", "\\'")
