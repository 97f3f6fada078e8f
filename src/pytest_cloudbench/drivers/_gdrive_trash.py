"""The part of the Google Drive driver that looks into the trash, where others than this driver put what they delete."""

from __future__ import annotations

import hashlib

from pytest_cloudbench.drivers._gdrive_search import SearchesDrive, escape_name


class FindsInDriveTrash(SearchesDrive):
    """Finds deleted files."""

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return ``in the trash`` if a file with this name and the content's hash is there. Otherwise empty."""
        digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
        query = f"name = '{escape_name(path.rpartition('/')[2])}' and trashed = true"
        with self._cloud_errors("list trash", path):
            is_there = any(file.get("md5Checksum") == digest for file in self._search(query, "md5Checksum"))
        return "in the trash" if is_there else ""
