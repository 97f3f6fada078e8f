"""Driver for WebDAV servers, such as ownCloud and Nextcloud, with webdav4 on httpx.

What may live here: everything that is specific to WebDAV as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

What the library does on its own, and how this driver handles it:

- It repeats a request after 423, 429, 500, 502, 503, 504 and 509, three times: off (``retry=False``).
- Its ``open`` asks what a path is before it reads, and opens a broken download again in the middle: ``get`` sends one
  GET through the same HTTP client instead.
- Its ``get_props`` sends no ``Depth``, which means a whole tree: ``stat`` sends ``Depth: 0``.
- It takes a path that contains ``%41`` as encoded already, and would write another file: paths are encoded here.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from importlib.metadata import version
from typing import Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

from pytest_cloudbench import redact
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    detail_of,
    kind_of_status,
    timeout_of,
    usable_credentials,
    walk,
)
from pytest_cloudbench.drivers.keys import as_file
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Conflict,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)

__all__ = ["WebdavDriver"]

# --- capabilities ---------------------------------------------------------------------------------

_VERBS = frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY, Verb.MOVE})

_CAPABILITIES = Capabilities(
    digest=None,
    verbs=_VERBS,
    ranges=True,
    conflicts=frozenset(Conflict) - {Conflict.GET_FOLDER, Conflict.SHARE_AGAIN},
    copies_folders=True,
    moves_folders=True,
    server_side_copy=True,
    # A put into a folder that does not exist sends more, and a list one for each folder.
    requests=dict.fromkeys(_VERBS, 1) | {Verb.COPY: 2, Verb.MOVE: 2},
    via="webdav4 on httpx; retries off",
)

_CONNECTIONS = 256
_PIECE_BYTES = MIB

# --- error table ----------------------------------------------------------------------------------

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    405: ErrorKind.CONFLICT,  # a put or a mkdir where a folder is
    409: ErrorKind.CONFLICT,  # the parent is not a folder, or does not exist
    423: ErrorKind.CONFLICT,
    509: ErrorKind.THROTTLED,
}
_NO_PARENT = (404, 409)
_UNSPOKEN = frozenset({"Digest", "Negotiate", "NTLM"})
_WORDS = re.compile(r"<s:message[^>]*>([^<]+)</s:message>")
_FAILED_PART = re.compile(rb"HTTP/1\.\d ([45]\d\d)")


class _Last(LastResponse):
    """Also what it says of a refusal."""

    def refusal(self) -> tuple[int, str]:
        """The last status, or that of the part that failed, and the server's words."""
        if self.response is None:
            return 0, ""
        try:
            body = self.response.content
        except RuntimeError:  # it was not read, or not to its end
            body = b""
        status = int(self.response.status_code)
        if status == 207 and (found := _FAILED_PART.search(body)):
            status = int(found[1])
        said = _WORDS.search(body.decode(errors="replace"))
        wanted = str(self.response.headers.get("www-authenticate", "")).partition(" ")[0]
        more = f"; the server wants {wanted}, which this driver does not speak" if wanted in _UNSPOKEN else ""
        return status, f"{status} {said[1] if said else self.response.reason_phrase}{more}"


# --- connect --------------------------------------------------------------------------------------


class WebdavDriver:
    """One client with a pool of kept-alive connections, shared by all threads; it keeps no cookie."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("user", "password"), public=("user",), free=("user", "password")),
        CredentialSet(("token",)),
    )

    def __init__(self, url: str, endpoint: Endpoint | None, secrets: Mapping[str, str], timeout_s: float) -> None:
        import httpx
        from webdav4.client import Client, ClientError
        from webdav4.http import Client as HttpClient

        parts = urlsplit(url)
        self._base = unquote(parts.path).rstrip("/")
        self._last = _Last()
        verify: ssl.SSLContext | bool = True
        if endpoint is not None and endpoint.ca_file:
            verify = ssl.create_default_context(cafile=endpoint.ca_file)
        auth = (secrets["user"], secrets["password"]) if "user" in secrets else None
        headers = {"user-agent": "pytest-cloudbench", "accept-encoding": "identity"}
        if "token" in secrets:
            headers["authorization"] = f"Bearer {secrets['token']}"
        self._site = site = f"{parts.scheme}://{parts.netloc}"
        self._http = HttpClient(
            base_url=site, auth=auth, headers=headers, verify=verify, trust_env=endpoint is None, timeout=timeout_s,
            limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            event_hooks={"request": [self._last.count], "response": [self._last.note]},
        )  # fmt: skip
        self._client = Client(site, http_client=self._http, retry=False, chunk_size=_PIECE_BYTES)
        self._unsendable = (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, UnicodeError)
        self._failed = (httpx.HTTPError, httpx.StreamError, ssl.SSLError, OSError)
        self._refused = ClientError

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> WebdavDriver:
        """Returns the driver for ``webdav://HOST/PATH``. Nothing is sent before the first operation.

        ``?tls=0`` means plain HTTP. A full URL works, too: ``webdav:https://HOST:PORT/PATH``.
        """
        check_params(spec, {"timeout_s", "tls", "token_env"})
        url = endpoint.url if endpoint else _url_of(spec)
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        return cls(url, endpoint, secrets, timeout_of(spec))

    @property
    def clock_url(self) -> str:
        """An address whose answers are dated."""
        return self._site

    def versions(self) -> Mapping[str, str]:
        """Returns the libraries, and what is switched off in them."""
        names = ("webdav4", "httpx", "httpcore", "h11")
        return {name: version(name) for name in names} | {"openssl": ssl.OPENSSL_VERSION, "webdav4.retries": "off"}

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def requests(self) -> int:
        """Returns how many requests this thread has sent so far."""
        return self._last.requests

    def _remote(self, verb: str, path: str) -> str:
        """Returns the encoded path on the server; never one outside the folder that the spec names."""
        parts = path.split("/")
        if not path.startswith("/") or "." in parts or ".." in parts or "\0" in path:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="expected /NAME/... without '.' and '..'")
        try:
            return quote("/".join([self._base, *filter(None, parts)])) or "/"
        except UnicodeEncodeError as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail="not a file name") from error

    @contextmanager
    def _calling(self, verb: str, path: str) -> Iterator[None]:
        """Turns every error into CloudError."""
        self._last.response = None
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            kind, detail = self._why(error)
            retry_after_s = self._last.retry_after_s()
            redact.clean_error(error)
            detail = detail_of(detail, path)
            raise CloudError(kind, verb, path, retry_after_s=retry_after_s, detail=detail) from error

    def _why(self, error: Exception) -> tuple[ErrorKind, str]:
        status, words = self._last.refusal()
        if isinstance(error, self._unsendable):
            return ErrorKind.INVALID, str(error)
        if isinstance(error, self._refused) or getattr(error, "response", None) is not None:
            return kind_of_status(status, _STATUS_KINDS), words
        if isinstance(error, self._failed):
            return ErrorKind.NETWORK, str(error) or type(error).__name__
        if status:  # an answer, but neither the library nor this file can read it
            return ErrorKind.SERVER, "the answer cannot be read"
        raise error

    def _found(self, verb: str, path: str, depth: int) -> list[Entry]:
        """Returns what a path is, and at depth 1 what is directly below it."""
        remote = self._remote(verb, path)
        with self._calling(verb, path):
            answers = self._client.propfind(remote, headers={"Depth": str(depth)}).responses.values()
            return [self._entry(answer) for answer in answers]

    def _entry(self, answer: Any) -> Entry:
        on_server = str(answer.path).rstrip("/")
        if f"{on_server}/"[: len(self._base) + 1] != f"{self._base}/":
            raise ValueError(f"{on_server} is not below {self._base}")
        path = on_server[len(self._base) :] or "/"
        if answer.properties.collection:
            return Entry(path, is_folder=True)
        return Entry(path, size_bytes=int(answer.properties.content_length))

    def _one(self, verb: str, path: str) -> Entry:
        found = self._found(verb, path, 0)
        if not found:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer says nothing of it")
        return found[0]

    def _make(self, verb: str, path: str) -> None:
        """Create a folder and those above it, trying the innermost first, since the others usually exist."""
        try:
            self._make_one(verb, path)
        except CloudError:
            parent = path.rstrip("/").rpartition("/")[0]
            if not self._lacks_parent(verb, parent):
                raise
            self._make(verb, parent)
            self._make_one(verb, path)

    def _lacks_parent(self, verb: str, parent: str) -> bool:
        """Returns whether the last refusal may mean that the folder above does not exist, and it may be made.

        The folder that the spec names is not made, since a mistyped one would stay for good: NOT_FOUND.
        """
        if self._last.refusal()[0] not in _NO_PARENT:
            return False
        if not parent:
            self._one(verb, "/")
        return bool(parent)

    def _make_one(self, verb: str, path: str) -> None:
        remote = self._remote(verb, path)
        try:
            with self._calling(verb, path):
                self._client.mkdir(remote)
        except CloudError:
            if self._last.refusal()[0] != 405 or not self._one(verb, path).is_folder:
                raise

    def _placed(self, verb: str, path: str, action: Any, source: str = "") -> None:
        """Do something that may need the folder above ``path``; if that is missing, create it and repeat.

        If a source does not exist, no folder is left behind.
        """
        try:
            with self._calling(verb, path):
                action()
        except CloudError:
            parent = path.rpartition("/")[0]
            if not self._lacks_parent(verb, parent):
                raise
            if source:
                self._one(verb, source)
            self._make(verb, parent)
            with self._calling(verb, path):
                action()

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request; if that is refused because the folder is missing, once more after creating it."""
        remote, size_bytes = self._remote("put", path), content.size_bytes

        def upload() -> None:
            self._client.upload_fileobj(as_file(content), remote, overwrite=True, size=size_bytes)

        self._placed("put", path, upload)
        return Entry(path, size_bytes=size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the file's bytes from ``offset``; sends the request when the first piece is asked for."""
        headers = {"Range": f"bytes={offset}-"} if offset else None
        remote = self._remote("get", path)
        with self._calling("get", path):
            request = self._http.build_request("GET", self._client.join_url(remote), headers=headers)
            response = self._http.send(request, stream=True)
            try:
                if not response.is_success:
                    response.read()
                    response.raise_for_status()
                if offset and response.status_code != 206:
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                yield from response.iter_raw()
            finally:
                response.close()

    def stat(self, path: str) -> Entry:
        """Returns what the server knows about one path."""
        return self._one("stat", path)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yields everything below ``folder``, one request for each folder: many servers refuse ``Depth: infinity``."""
        return walk(folder, self._children)

    def _children(self, folder: str) -> Iterator[tuple[Entry, str]]:
        own = "/" + "/".join(part for part in folder.split("/") if part)
        return ((entry, entry.path) for entry in self._found("list", folder, 1) if entry.path != own)

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all its contents. The folder that the spec names stays."""
        remote = self._remote("delete", path)
        if not path.strip("/"):
            raise CloudError(ErrorKind.INVALID, "delete", path, detail="the root cannot be deleted")
        with self._calling("delete", path):
            self._client.remove(remote)

    def mkdir(self, path: str) -> None:
        """Create a folder and its parents; no error if it exists."""
        if path.strip("/"):
            self._make("mkdir", path)

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy a file or folder; an existing target is a conflict."""
        return self._transfer("copy", self._client.copy, source, target)

    def move(self, source: str, target: str) -> Entry:
        """Rename a file or folder; an existing target is a conflict."""
        return self._transfer("move", self._client.move, source, target)

    def _transfer(self, verb: str, transfer: Any, source: str, target: str) -> Entry:
        old, new = self._remote(verb, source), self._remote(verb, target)
        self._placed(verb, target, lambda: transfer(old, new, overwrite=False), source)
        return self._one(verb, target)


def _url_of(spec: ProviderSpec) -> str:
    tls = spec.params.get("tls", "1")
    if tls not in {"0", "1"}:
        raise SpecError(f"provider {spec.text!r}: tls is 0 or 1, not {tls!r}")
    is_whole = spec.target.startswith(("http://", "https://"))
    if is_whole and "tls" in spec.params:
        raise SpecError(f"provider {spec.text!r}: the URL says already whether it is TLS; leave tls out")
    url = spec.target if is_whole else f"{'https' if tls == '1' else 'http'}://{spec.target}"
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and parts.port != 0 and "#" not in url
    except ValueError:
        is_usable = False
    if not is_usable or parts.username is not None:
        expected = "webdav://HOST/PATH, without user and password: these are credentials"
        raise SpecError(f"provider {redact.clean(spec.text)!r}: expected {expected}")
    return url
