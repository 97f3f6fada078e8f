"""The part of the Box driver that looks into the trash, where whatever is deleted stays for some weeks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import SdkDriver

_FIELDS = ["name", "size", "sha1"]
_PAGE_ENTRIES = 1000


class FindsInBoxTrash(SdkDriver):
    """Finds deleted files, for a driver that has the SDK's manager of the trash."""

    _trash: Any

    def find_deleted(self, path: str, content: bytes) -> str:
        """Return ``in the trash`` if a file with this name and the content's hash is there. Otherwise empty."""
        digest, name = hashlib.sha1(content, usedforsecurity=False).hexdigest(), path.rpartition("/")[2]
        is_there = any(item.type == "file" and (item.name, item.sha_1) == (name, digest) for item in self._list_trash())
        return "in the trash" if is_there else ""

    def _list_trash(self) -> Iterator[Any]:
        marker, tokens = None, PageTokens("list trash", "/")
        while True:
            with self._cloud_errors("list trash", "/"):
                page = self._trash.get_trashed_items(fields=_FIELDS, usemarker=True, marker=marker, limit=_PAGE_ENTRIES)
            yield from page.entries or ()
            marker = page.next_marker
            if not marker:
                return
            tokens.use(marker)
