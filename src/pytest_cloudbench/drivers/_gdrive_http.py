"""The transport of the Google Drive driver's requests: httplib2, with one client and one request count per thread.

What may live here: connections, tokens, switching off redirects and retries, and reading a body piece by piece.
``httplib2`` is the library's own transport; each of its clients is for one thread.

What httplib2 does on its own, and how this module handles it:

- It sends a request a second time if the connection breaks before an answer, even an upload: off, one call is one
request. A kept-alive connection is reused only after a look at whether the server has closed it.
- It follows redirects, and takes the token along: off, a redirect is an error. Requests go to the API's hosts only.
- It reads a whole answer before it returns: downloads are read from its connection instead.
"""

from __future__ import annotations

import base64
import json
import os
import select
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPSConnection
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

from pytest_cloudbench.drivers.base import RequestCount
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.drivers.google_home import TokenAnswer, renewed_once
from pytest_cloudbench.drivers.sdk import read_pieces
from pytest_cloudbench.model import CredentialsError, ProviderSpec, UsageError
from pytest_cloudbench.support import opening, redact

SCOPES = ("https://www.googleapis.com/auth/drive",)
"""What a token must allow."""


class Refused(Exception):
    """An unsuccessful answer to a request that the library did not build: a download, or a new token."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers, self.content = status, headers, content


class Misled(Exception):
    """An answer that asked for a request to another host."""


class Transport:
    """The clients of all threads.

    Args:
        egress: how requests leave this machine.
        hosts: the hosts, with ports if they have any, to which requests may go.
        token: gives access tokens.
        timeout_s: for each single step: connecting, sending a piece, waiting for the next bytes of an answer.

    Attributes:
        sent: counts the requests of each thread.
    """

    def __init__(self, egress: Egress, hosts: frozenset[str], token: Token, timeout_s: float) -> None:
        import httplib2

        self._http: Any = _http_class()
        self._library: Any = httplib2
        self.egress, self.hosts, self.token = egress, hosts, token
        if any(egress.proxy_for(f"https://{host}").startswith("https:") for host in hosts):
            raise UsageError(
                "gdrive: its library for HTTP asks a proxy only by http://: set HTTPS_PROXY to http://HOST:PORT"
            )
        self.timeout_s, self.trusts_folder = timeout_s, os.path.isdir(egress.trusted)
        self.sent = _PerThread()
        self._all = WeakSet[Any]()  # a client ends with its thread
        self._lock = Lock()

    @property
    def http(self) -> Any:
        """The calling thread's client, whose requests carry a token."""
        if self.sent.http is None:
            self.sent.http = self._http(self, self.timeout_s, self.egress.trusted or None)
            with self._lock:
                self._all.add(self.sent.http)
        return self.sent.http

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for http in [*self._all]:
                http.close()

    @contextmanager
    def stream(self, uri: str, headers: Mapping[str, str], accept: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Send a GET, and yield status and body pieces. Raises Refused for other statuses than 200 and ``accept``.

        Until the body is read, the thread cannot reuse the connection: another request opens a new one.
        """
        http = self.http
        conn = http.borrow_connection(uri)
        is_whole = False
        try:
            response = self.send_once(conn, "GET", http.path_and_query(uri), None, http.add_token(uri, headers))
            if response.status not in (200, accept):
                raise Refused(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
            yield response.status, _read_pieces(response)
            is_whole = response.isclosed()
        finally:
            if is_whole:
                http.return_connection(uri, conn)
            else:
                conn.close()

    def send_once(self, conn: Any, method: str, uri: str, body: Any, headers: Mapping[str, str]) -> Any:
        """Send one request once, and return its answer with the body unread."""
        if conn.sock is not None and _is_readable(conn.sock):
            conn.close()  # the server has closed it
        try:
            if conn.sock is None:
                conn.connect()
            self.sent.count()
            conn.request(method, uri, body, headers)
            return conn.getresponse()
        except BaseException:
            conn.close()
            raise


class _PerThread(RequestCount):
    """The number of requests that a thread has sent, and the thread's client."""

    http: Any = None


def _read_pieces(response: Any) -> Iterator[bytes]:
    yield from read_pieces(response.read)
    if response.length:  # http.client does not report a body that ends early if it is read in pieces
        raise ConnectionError(f"{response.length} bytes of the answer are missing")


def _is_readable(sock: Any) -> bool:
    """Return whether an idle connection has something to read, which means that the server has closed it."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _http_class() -> type[Any]:
    """Return a subclass of httplib2's client that works as the module's docstring says. Imports it late."""
    import httplib2

    class Http(httplib2.Http):  # type: ignore[misc]  # httplib2 has no types
        """One thread's client."""

        def __init__(self, transport: Transport, timeout_s: float, ca_file: str | None) -> None:
            super().__init__(timeout=timeout_s, ca_certs=ca_file, proxy_info=None)
            self.transport, self.follow_redirects = transport, False

        def __del__(self) -> None:
            self.close()

        def add_token(self, uri: str, headers: Mapping[str, str]) -> dict[str, str]:
            """Return the headers with a valid token. Raises Misled for an address on another host."""
            if urlsplit(uri).netloc not in self.transport.hosts:
                raise Misled(f"the answer leads to another host: {urlsplit(uri).netloc}")
            return {**headers, "authorization": self.transport.token.header(self.request_without_token)}

        def request(self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **more: Any) -> Any:
            """Send one request with the token."""
            more["connection_type"] = self.connection_class_for(uri)
            return super().request(uri, method, body=body, headers=self.add_token(uri, headers or {}), **more)

        def request_without_token(self, uri: str, method: str, body: Any, headers: Mapping[str, str]) -> Any:
            """Send one request without a token."""
            kind = self.connection_class_for(uri)
            return super().request(uri, method, body=body, headers=dict(headers), connection_type=kind)

        def connection_class_for(self, uri: str) -> Any:
            """Return the class of connections to an address: httplib2's, or one for the user's proxy or authorities."""
            scheme, proxy = urlsplit(uri).scheme, self.transport.egress.proxy_for(uri)
            if proxy or (self.transport.trusts_folder and scheme == "https"):
                return _own_class(proxy, self.transport.egress)
            return httplib2.SCHEME_TO_CONNECTION[scheme]

        def _conn_request(self, conn: Any, uri: str, method: str, body: Any, headers: Any) -> Any:
            """Send one request once, in place of httplib2's method, which may send it twice."""
            response = self.transport.send_once(conn, method, uri, body, headers)
            try:
                content = response.read()
            except BaseException:
                conn.close()
                raise
            answer = httplib2.Response(response)
            coding = answer.get("content-encoding", "")
            if coding in ("gzip", "deflate"):
                try:
                    # 32 accepts the heads of both formats, zlib's and gzip's.
                    content = zlib.decompress(content, zlib.MAX_WBITS | 32) if content else content
                except zlib.error as error:
                    raise ValueError(f"no {coding}: {error}") from error
                answer["content-length"] = str(len(content))
            return answer, content

        def borrow_connection(self, uri: str) -> Any:
            """Return a connection that nobody else uses until it is given back."""
            parts = urlsplit(uri)
            idle = self.connections.pop(f"{parts.scheme}:{parts.netloc}", None)
            if idle is not None:
                return idle
            connection_class = self.connection_class_for(uri)
            options = {"ca_certs": self.ca_certs} if parts.scheme == "https" else {}
            return connection_class(parts.netloc, timeout=self.timeout, **options)

        def return_connection(self, uri: str, conn: Any) -> None:
            """Keep a connection whose answer was read to its end."""
            parts = urlsplit(uri)
            if self.connections.setdefault(f"{parts.scheme}:{parts.netloc}", conn) is not conn:
                conn.close()

        @staticmethod
        def path_and_query(uri: str) -> str:
            """Return path and query of an address."""
            parts = urlsplit(uri)
            return f"{parts.path}?{parts.query}" if parts.query else parts.path

    return Http


def _own_class(proxy: str, egress: Egress) -> type[HTTPSConnection]:
    """Return a class of connections through a proxy, if there is one, to hosts that a file or a folder trusts.

    httplib2's own need another library for a proxy, and go direct without it. They take no folder.
    """
    parts = urlsplit(proxy)
    user_info, _, proxy_host = parts.netloc.rpartition("@")
    login = base64.b64encode(unquote(user_info).encode()).decode("ascii")
    headers = {"Proxy-Authorization": f"Basic {login}"} if user_info else {}

    class Connection(HTTPSConnection):
        """A connection to a host."""

        def __init__(self, netloc: str, timeout: float | None = None, **_more: Any) -> None:
            context = egress.context()
            trusted = ssl.create_default_context() if isinstance(context, bool) else context
            if not proxy:
                super().__init__(netloc, timeout=timeout, context=trusted)
                return
            super().__init__(proxy_host, None if parts.port else 80, timeout=timeout, context=trusted)
            self.set_tunnel(netloc, headers=headers)

    return Connection


Send = Callable[[str, str, Any, Mapping[str, str]], Any]


class Token:
    """A fixed access token, or google-auth's credentials, renewed once for all threads before they end.

    google-auth repeats a refused renewal, and looks up the account's location in a thread of its own. Neither happens
    here: any unsuccessful answer ends the renewal, and nothing but the renewal itself is called.
    """

    def __init__(self, access_token: str = "", credentials: Any = None) -> None:
        self._valid_token = renewed_once(credentials) if credentials else lambda _send: access_token

    def header(self, send: Send) -> str:
        """Return the value of ``Authorization``."""

        def send_once(url: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any) -> TokenAnswer:
            response, content = send(url, method, body, headers or {})
            if response.status != 200:
                raise Refused(response.status, dict(response), content)
            return TokenAnswer(response.status, dict(response), content)

        return f"Bearer {self._valid_token(send_once)}"


def new_token(spec: ProviderSpec, secrets: Mapping[str, str], url: str, *, is_emulated: bool) -> Token:
    """Return the source of access tokens for these credentials. Raises CredentialsError."""
    if "access_token" in secrets:
        return Token(secrets["access_token"])
    if "refresh_token" in secrets:
        credentials = import_module("google.oauth2.credentials").Credentials(
            None, refresh_token=secrets["refresh_token"], token_uri=url, client_id=secrets["client_id"],
            client_secret=secrets["client_secret"],
        )  # fmt: skip
        return Token(credentials=credentials)
    key_file = secrets["service_account_file"]
    try:
        info = json.loads(opening.read_file(Path(key_file)))
        if is_emulated:
            info = {**info, "token_uri": url}
        redact.learn([info["private_key"]])
        module = import_module("google.oauth2.service_account")
        credentials = module.Credentials.from_service_account_info(info, scopes=SCOPES, subject=secrets.get("subject"))
    except OSError as error:
        raise CredentialsError(f"{spec.scheme}: service_account_file cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CredentialsError(f"{spec.scheme}: service_account_file is not a service account's key") from None
    return Token(credentials=credentials)
