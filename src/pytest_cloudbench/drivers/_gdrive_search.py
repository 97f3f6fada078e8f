"""The part of the Google Drive driver that searches: how it asks, and how it reads answers of several pages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import SdkDriver

PAGE_ENTRIES = 1000


class SearchesDrive(SdkDriver):
    """Searches for files, for a driver that has the library's functions for files."""

    _files: Any

    @abstractmethod
    def _send(self, request: Any) -> Any:
        """Send one of the library's requests, once."""

    def _search(self, query: str, fields: str, page_entries: int = PAGE_ENTRIES) -> Iterator[dict[str, Any]]:
        """Yield what a search finds, page by page: a page may be empty although others follow."""
        request = self._files.list(
            q=query, fields=f"nextPageToken,files({fields})", pageSize=page_entries, supportsAllDrives=True,
            includeItemsFromAllDrives=True,
        )  # fmt: skip
        tokens = PageTokens("list", "/")
        while request is not None:
            page = self._send(request)
            yield from page["files"]
            tokens.use(page.get("nextPageToken"))
            request = self._files.list_next(request, page)


def escape_name(name: str) -> str:
    """Return a name as it stands between quotation marks in a search."""
    return name.replace("\\", "\\\\").replace("'", "\\'")
