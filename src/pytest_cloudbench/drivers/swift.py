"""Driver for OpenStack Swift (Rackspace's and HP's API) with the official client library.

What may live here: everything that is special to Swift as a client, in this order: imports, capabilities, error table,
connect, required verbs, optional verbs.

What the library does on its own, and how this driver handles it:

- It retries five times, and logs in again after a 401: off. The driver logs in once for all threads, inside the first
  operation or before the measurement (``prepare``), and again in the operation after one that was refused with 401.
- A ``Connection`` is for one thread: each thread has its own.
- It follows redirects: off.

An object is one request of up to 5 GiB: there are no segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from threading import Lock
from typing import Any, ClassVar

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    detail_of,
    detail_of_error,
    is_web_address,
    kind_of_status,
    seconds_of,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import leaving
from pytest_cloudbench.drivers.keys import ContentFile, key_of, md5_of, path_of, prefix_of
from pytest_cloudbench.model import (
    KIB,
    MIB,
    Capabilities,
    CloudError,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = Capabilities(
    digest="md5",
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    server_side_copy=True,
    requests={Verb.PUT: 1, Verb.GET: 1, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 1, Verb.COPY: 2},
    via="python-swiftclient on requests; retries off",
)

_PARAMS = frozenset({"auth_url", "timeout_s", "token_env"})
_ONE_PIECE_BYTES = MIB
_READ_PIECE_BYTES = 64 * KIB
_PAGE_ENTRIES = 1000

# --- error table ----------------------------------------------------------------------------------

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    408: ErrorKind.NETWORK,  # the server waited for the rest of the request
    412: ErrorKind.INVALID,  # a name that holds NUL
    413: ErrorKind.QUOTA,
    422: ErrorKind.CORRUPT,  # the bytes differ from the ETag that was sent with them
    498: ErrorKind.THROTTLED,
    499: ErrorKind.NETWORK,
}


def _refusal(error: Any, verb: str, path: str) -> CloudError:
    status = int(error.http_status)
    kind = kind_of_status(status, _STATUS_KINDS)
    headers = error.http_response_headers or {}
    retry_after_s = seconds_of(headers.get("retry-after"))
    body = error.http_response_content
    words = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    told = f"{status} {error.http_reason or ''} {words}"
    redact.clean_error(error)
    return CloudError(kind, verb, path, retry_after_s=retry_after_s, detail=detail_of(told, path))


# --- connect --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Login:
    """Where the account is, and the token for it."""

    url: str
    token: str


class _Own(LastResponse):
    """Also a thread's connection, and the login that it was made with."""

    connection: Any = None
    login: _Login | None = None


class SwiftDriver:
    """A connection for each thread, with one login for all."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(
            ("auth_url", "user", "key", "project"),
            ("user_domain", "project_domain", "region"),
            public=("auth_url", "user", "project", "user_domain", "project_domain", "region"),
            free=("user", "key", "project", "user_domain", "project_domain"),
        ),
        CredentialSet(("auth_url", "user", "key"), public=("auth_url", "user")),
    )
    list_page_entries: int | None = None

    def __init__(self, secrets: Mapping[str, str], container: str, endpoint: Endpoint | None, timeout_s: float) -> None:
        import requests
        import swiftclient
        from urllib3.exceptions import HTTPError

        self._library, self._cut = swiftclient, HTTPError
        self._secrets, self._container, self._egress = secrets, container, leaving(endpoint, secrets["auth_url"])
        self._timeout_s = timeout_s
        self._own, self._lock = _Own(), Lock()
        self._login: _Login | None = None
        self._opened: list[Any] = []
        self._session = self._ours(requests.Session())

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> SwiftDriver:
        """Returns the driver for ``swift://CONTAINER``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        if not spec.target or "/" in spec.target:
            raise SpecError(f"provider {spec.text!r}: expected swift://CONTAINER")
        given = dict(endpoint.credentials if endpoint else credentials)
        if "auth_url" in spec.params:
            given["auth_url"] = spec.params["auth_url"]
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        if not is_web_address(secrets["auth_url"]):
            raise CredentialsError(f"{spec.scheme}: auth_url is a URL, such as https://HOST:5000/v3")
        return cls(secrets, spec.target, endpoint, timeout_of(spec))

    @property
    def clock_url(self) -> str:
        """An address whose answers are dated."""
        return self._secrets["auth_url"]

    def versions(self) -> Mapping[str, str]:
        """Returns the libraries, and what is switched off in them."""
        names = ("python-swiftclient", "requests", "urllib3")
        return {name: version(name) for name in names} | {"python-swiftclient.retries": "off", **self._egress.remarks}

    def close(self) -> None:
        """Close all connections."""
        self._session.close()
        for connection in self._opened:
            with suppress(Exception):  # it is no longer used, whatever the library says
                connection.close()

    def requests(self) -> int:
        """Returns how many requests this thread has sent so far."""
        return self._own.requests

    def prepare(self, folder: str) -> None:
        """Log in."""
        with self._calling("connect", folder):
            pass

    def _ours(self, session: Any) -> Any:
        """A ``requests`` session that follows no redirect, and whose requests are counted."""
        session.get_redirect_target = lambda _response: None
        self._egress.direct_session(session)
        for adapter in session.adapters.values():
            adapter.send = self._own.counted(adapter.send)
        return session

    @contextmanager
    def _calling(self, verb: str, path: str) -> Iterator[Any]:
        """Yields the thread's connection; turns every error of the library into CloudError."""
        try:
            yield self._connection()
        except self._library.ClientException as error:
            if error.http_status == 401:
                self._login = None
            if error.http_status:
                raise _refusal(error, verb, path) from error
            raise CloudError(ErrorKind.SERVER, verb, path, detail=detail_of_error(error, path)) from error
        except _Unreadable as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail=str(error)) from error
        except (self._cut, OSError) as error:  # whatever requests raises is an OSError
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail_of_error(error, path)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error

    def _connection(self) -> Any:
        with self._lock:
            login = self._login = self._login or self._log_in()
        own = self._own
        if own.login is not login:
            options = {"cacert": self._egress.trusted} if self._egress.trusted else {}
            own.connection = self._library.Connection(
                preauthurl=login.url, preauthtoken=login.token, retries=0, timeout=self._timeout_s, **options
            )
            own.connection.http_conn = own.connection.http_connection()
            self._ours(own.connection.http_conn[1].request_session)
            own.login = login
            self._opened.append(own.connection)
        return own.connection

    def _log_in(self) -> _Login:
        """One request, in Swift's own form (TempAuth, v1) or Keystone's (v3), where the library would need another."""
        secrets = self._secrets
        url = secrets["auth_url"].rstrip("/")
        options: dict[str, Any] = {"timeout": self._timeout_s, "verify": self._egress.trusted or True}
        if "project" not in secrets:
            headers = {"X-Auth-User": secrets["user"], "X-Auth-Key": secrets["key"]}
            answer = self._accepted(self._session.get(url, headers=headers, **options))
            login = _Login(answer.headers["X-Storage-Url"], answer.headers["X-Auth-Token"])
        else:
            url = url if url.endswith("/v3") else f"{url}/v3"
            answer = self._accepted(self._session.post(f"{url}/auth/tokens", json=_keystone(secrets), **options))
            found = _object_store(answer.json()["token"]["catalog"], secrets.get("region"))
            login = _Login(found, answer.headers["X-Subject-Token"])
        redact.learn([login.token])
        return login

    def _accepted(self, answer: Any) -> Any:
        if not 200 <= answer.status_code < 300:
            raise self._library.ClientException(
                "login", http_status=answer.status_code, http_reason=answer.reason,
                http_response_content=answer.content, http_response_headers=answer.headers,
            )  # fmt: skip
        return answer

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request."""
        name, size_bytes = key_of("put", path), content.size_bytes
        body = content.read(0, size_bytes) if size_bytes <= _ONE_PIECE_BYTES else ContentFile(content)
        with self._calling("put", path) as connection:
            etag = connection.put_object(self._container, name, contents=body, content_length=size_bytes)
            return Entry(path, size_bytes=size_bytes, digest=md5_of(etag))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the object's bytes from ``offset``; sends the request when the first piece is asked for."""
        name = key_of("get", path)
        more = {"headers": {"Range": f"bytes={offset}-"}} if offset else {}
        with self._calling("get", path) as connection:
            headers, body = connection.get_object(self._container, name, resp_chunk_size=_READ_PIECE_BYTES, **more)
            with closing(body):
                if offset and not headers.get("content-range", "").startswith(f"bytes {offset}-"):
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                left = int(headers["content-length"])
                for piece in body:
                    left -= len(piece)
                    yield piece
            if left:
                raise CloudError(ErrorKind.NETWORK, "get", path, detail=f"the answer lacks {left} bytes")

    def stat(self, path: str) -> Entry:
        """Returns what Swift knows about one object."""
        name = key_of("stat", path)
        with self._calling("stat", path) as connection:
            return self._entry(path, connection.head_object(self._container, name))

    def _entry(self, path: str, headers: Mapping[str, str]) -> Entry:
        return Entry(path, size_bytes=int(headers["content-length"]), digest=md5_of(headers.get("etag")))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yields all objects whose names begin with the folder's path, page by page."""
        for row in self._rows("list", folder):
            yield Entry(path_of(row["name"]), size_bytes=int(row["bytes"]), digest=md5_of(row["hash"]))

    def _rows(self, verb: str, path: str) -> Iterator[Mapping[str, Any]]:
        prefix, marker = prefix_of(verb, path), ""
        limit = self.list_page_entries or _PAGE_ENTRIES
        while True:
            with self._calling(verb, path) as connection:
                rows = connection.get_container(self._container, prefix=prefix, marker=marker, limit=limit)[1]
                marker = rows[-1]["name"] if rows else ""
            yield from rows
            if len(rows) < limit:
                return

    def delete(self, path: str) -> None:
        """Remove an object; or, where there is none, all whose names begin with the path and a slash."""
        if path != "/":
            with _missing_is_fine(), self._calling("delete", path) as connection:
                connection.delete_object(self._container, key_of("delete", path))
                return
        for row in [*self._rows("delete", path)]:
            with _missing_is_fine(), self._calling("delete", path) as connection:
                connection.delete_object(self._container, row["name"])

    def mkdir(self, path: str) -> None:
        """There are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the container; an existing target is replaced."""
        origin, name = key_of("copy", source), key_of("copy", target)
        with self._calling("copy", source) as connection:
            connection.copy_object(self._container, origin, destination=f"/{self._container}/{name}")
            return self._entry(target, connection.head_object(self._container, name))


class _Unreadable(Exception):
    """An answer of the service without what it should have."""


@contextmanager
def _missing_is_fine() -> Iterator[None]:
    try:
        yield
    except CloudError as error:
        if error.kind is not ErrorKind.NOT_FOUND:
            raise


def _keystone(secrets: Mapping[str, str]) -> dict[str, Any]:
    """The body of a login with a password, scoped to a project (Identity API v3)."""
    user_domain, project_domain = secrets.get("user_domain", "Default"), secrets.get("project_domain", "Default")
    user = {"name": secrets["user"], "password": secrets["key"], "domain": {"name": user_domain}}
    project = {"name": secrets["project"], "domain": {"name": project_domain}}
    identity = {"methods": ["password"], "password": {"user": user}}
    return {"auth": {"identity": identity, "scope": {"project": project}}}


def _object_store(catalog: Any, region: str | None) -> str:
    for offered in catalog:
        for place in offered["endpoints"] if offered["type"] == "object-store" else ():
            if place["interface"] == "public" and region in (None, place.get("region")):
                return str(place["url"])
    raise _Unreadable("the catalog has no object store" + (f" in {region}" if region else ""))
