"""A person without an account: fetches what a shared link leads to, with no credentials and no cookies.

Drivers know how the links of their provider lead to content (``SharesLinks``), and this sends the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from http.client import HTTPException
from typing import Any, Protocol, runtime_checkable
from urllib.error import HTTPError
from urllib.request import BaseHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from pytest_cloudbench.drivers.base import detail_of, kind_of_status
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.model import CloudError, Endpoint, ErrorKind
from pytest_cloudbench.support import redact

_TIMEOUT_S = 30.0
_MOST_BYTES = 64 * 1024 * 1024


class Stranger:
    """An HTTP client that knows nothing but links.

    Args:
        endpoint: the service that stands in for the provider, whose proxy leads its real host names to it. None for a
            real provider, which is reached as drivers reach it.
    """

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self._egress, self._proxy = egress_of(endpoint), endpoint.proxy if endpoint is not None else ""

    def send(
        self, url: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a GET, or a POST with content, follow redirects, and return status and body. Raises CloudError."""
        proxy = self._proxy or self._egress.proxy_for(url)
        context = self._egress.context()
        handlers: list[BaseHandler] = [
            ProxyHandler({"https": proxy, "http": proxy} if proxy else {}),
            HTTPSHandler(context=None if isinstance(context, bool) else context),
        ]
        request = Request(url, content, {"user-agent": "pytest-cloudbench", **(headers or {})})
        try:
            try:
                with build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
                    return int(answer.status), _read_body(answer)
            except HTTPError as error:
                with error:
                    return error.code, _read_body(error)
        except (OSError, HTTPException, ValueError) as error:
            redact.clean_error(error)
            raise CloudError(ErrorKind.NETWORK, "open", url, detail=detail_of(str(error), url)) from error

    def read(self, url: str) -> bytes:
        """Return the body of the answer to a GET. Raises CloudError for every status but 2xx."""
        status, body = self.send(url)
        if not 200 <= status < 300:
            raise CloudError(kind_of_status(status), "open", url, detail=f"status {status}")
        return body


def _read_body(answer: Any) -> bytes:
    body = bytes(answer.read(_MOST_BYTES))
    if answer.length and len(body) < _MOST_BYTES:  # http.client reports no missing end if it is told how much to read
        raise ConnectionError(f"{answer.length} bytes of the answer are missing")
    return body


@runtime_checkable
class SharesUntil(Protocol):
    """A driver whose links can end by themselves."""

    def share_until(self, path: str, ends_at: datetime) -> str:
        """Return the URL of a new public link to a file that has none. It ends at ``ends_at``, a whole second in UTC.

        Raises CloudError, for example if the account's plan has no such links.
        """
        ...


@runtime_checkable
class SharesLinks(Protocol):
    """A driver whose links can be opened without an account."""

    @staticmethod
    def open_link(url: str, stranger: Stranger) -> bytes:
        """Return what a link from ``share`` gives to a person who has only the link: the file, if it leads there.

        A page about the file is not the file, so callers compare the content. Raises CloudError: NOT_FOUND or AUTH if
        the link does not open.
        """
        ...
