"""A thin HTTP client, for drivers whose provider has no usable SDK, or to compare with a provider's SDK.

What may live here: one request as one attempt on pooled connections, its errors as CloudError, and OAuth's refresh.
httpx follows no redirects here, keeps no cookies and does not retry. ``WebDriver`` is the common part of drivers that
use it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Any

from pytest_cloudbench.drivers.base import RequestCount, detail_of, kind_of_status
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.drivers.waits import requested_wait_s
from pytest_cloudbench.model import CloudError, ErrorKind
from pytest_cloudbench.support import redact

if TYPE_CHECKING:
    import httpx

_EARLY_S = 60.0

Reason = Callable[[int, bytes], tuple[ErrorKind | None, str]]
"""Maps a refusal's status and body to its kind, if the words tell it (None: the status decides), and to the words."""


class WebClient:
    """Kept-alive connections, shared by all threads.

    Args:
        egress: how requests leave this machine.
        reason: reads the provider's own words.
        timeout_s: how long each single step may take, see ``timeout_of``.
    """

    def __init__(self, egress: Egress, reason: Reason, timeout_s: float) -> None:
        import httpx

        self._reason, self._count, self._egress = reason, RequestCount(), egress
        self._client = httpx.Client(
            transport=egress.transport(), trust_env=False, timeout=timeout_s,
            event_hooks={"request": [self._count.count]}, headers={"user-agent": "pytest-cloudbench"},
        )  # fmt: skip
        self._unsendable = (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError)
        self._failed = (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError)

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        names = ("httpx", "httpcore", "h11")
        return {name: version(name) for name in names} | {
            "openssl": ssl.OPENSSL_VERSION,
            "httpx.redirects": "off",
            "httpx.retries": "off",
            **self._egress.remarks,
        }

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def requests(self) -> int:
        """Return how many requests the calling thread has sent."""
        return self._count.requests

    @contextmanager
    def stream(
        self,
        verb: str,
        path: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        accept: Iterable[int] = (),
    ) -> Iterator[httpx.Response]:
        """Send one request, and yield its answer with the body unread.

        Args:
            verb: the operation, for errors.
            path: what it is about, for errors.
            method: the HTTP method.
            url: the full URL.
            headers: in addition to httpx's own.
            content: the body; if it comes in pieces, a ``content-length`` header must give its length.
            accept: statuses besides 2xx that are not refusals.

        Raises CloudError, and nothing else, also while the caller reads.
        """
        with self.parsing(verb, path):
            request = self._client.build_request(method, url, headers=headers, content=content)
            response = self._client.send(request, stream=True)
            try:
                if not response.is_success and response.status_code not in accept:
                    raise self._refusal(verb, path, response)
                yield response
            finally:
                response.close()

    def send(self, verb: str, path: str, method: str, url: str, **options: Any) -> httpx.Response:
        """Send one request, and return its answer with the body read. For arguments and errors see ``stream``."""
        with self.stream(verb, path, method, url, **options) as response:
            response.read()
            return response

    def send_json(self, verb: str, path: str, method: str, url: str, **options: Any) -> Any:
        """Send one request, and return what its answer's JSON says. For arguments and errors see ``stream``."""
        response = self.send(verb, path, method, url, **options)
        with self.parsing(verb, path):
            return response.json()

    @contextmanager
    def parsing(self, verb: str, path: str) -> Iterator[None]:
        """Raise CloudError for the HTTP library's errors inside, and for an answer that lacks a value.

        For code that makes values of an answer's JSON: a missing name or a wrong type is the server's fault.
        """
        try:
            yield
        except CloudError:
            raise
        except self._unsendable as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail=detail_of(str(error), path)) from error
        except self._failed as error:
            detail = detail_of(str(error), path) or type(error).__name__
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error

    def _refusal(self, verb: str, path: str, response: httpx.Response) -> CloudError:
        response.read()
        status = response.status_code
        try:
            kind, words = self._reason(status, response.content)
        except (ValueError, TypeError, KeyError, AttributeError):
            kind, words = None, response.content.decode(errors="replace")
        if kind is None:
            kind = kind_of_status(status)
        detail = detail_of(f"{status} {words}", path)
        error = CloudError(kind, verb, path, retry_after_s=requested_wait_s(response.headers), detail=detail)
        error.__cause__ = Unsuccessful(status, detail_of(words, ""))
        return error


class WebDriver:
    """The common part of drivers that send their requests by one ``WebClient``."""

    imports = ("httpcore", "httpx")

    def __init__(self, client: WebClient) -> None:
        self._client = client

    def versions(self) -> Mapping[str, str]:
        """Return the libraries, and what is switched off in them."""
        return self._client.versions()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def requests(self) -> int:
        """Return how many requests this thread has sent so far."""
        return self._client.requests()


def unusable_answer(verb: str, path: str, detail: str, kind: ErrorKind = ErrorKind.SERVER) -> CloudError:
    """Return the error for a successful answer that a driver cannot use, with a cause that says the same."""
    error = CloudError(kind, verb, path, detail=redact.clean(detail))
    error.__cause__ = _Unusable(error.detail)
    return error


class _Unusable(Exception):
    """A successful answer that a driver cannot use."""


class Unsuccessful(Exception):
    """An unsuccessful answer, by its status and the provider's words: the cause of the CloudError that is raised."""


class Bearer:
    """An access token, or one that is refreshed (OAuth 2.0, RFC 6749, section 6) before it ends.

    Args:
        client: sends the refresh.
        secrets: ``access_token``, or ``refresh_token`` and what the provider's token route wants with it.
        url: the token route.
        form: returns the body of the refresh.
    """

    def __init__(self, client: WebClient, secrets: Mapping[str, str], url: str, form: Callable[[], bytes]) -> None:
        self._client, self._url, self._form = client, url, form
        self._lock = Lock()
        self._token, self._until_s = secrets.get("access_token", ""), float("inf")
        if "refresh_token" in secrets:
            self._until_s = float("-inf")

    def header(self) -> str:
        """Return the value of ``Authorization``. Refreshes the token first if it is about to end.

        Raises CloudError.
        """
        if time.monotonic() >= self._until_s:
            with self._lock:
                if time.monotonic() >= self._until_s:  # another thread may have refreshed it
                    self._refresh_token()
        return f"Bearer {self._token}"

    def _refresh_token(self) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer = self._client.send_json("connect", "/", "POST", self._url, headers=headers, content=self._form())
        try:
            token, lifetime_s = str(answer["access_token"]), float(answer.get("expires_in", 3600))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise CloudError(ErrorKind.AUTH, "connect", "/", detail="the answer has no access token") from error
        redact.learn([token])
        self._token, self._until_s = token, time.monotonic() + max(1.0, lifetime_s - _EARLY_S)
