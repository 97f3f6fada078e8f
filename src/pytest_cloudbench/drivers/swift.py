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
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakSet

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    is_web_address,
    kind_of_status,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import egress_of
from pytest_cloudbench.drivers.keys import ContentFile, bucket_of, key_of, md5_of, path_of, prefix_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import (
    UNREADABLE,
    Meaning,
    OwnError,
    SdkDriver,
    meaning_of_refusal,
    network_failure,
    read_pieces,
    require_etag,
)
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    Verb,
    ignore_missing,
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
_PAGE_ENTRIES = 1000

# --- error table ----------------------------------------------------------------------------------

_STATUS_KINDS: Mapping[int, ErrorKind] = {
    412: ErrorKind.INVALID,  # a name that holds NUL
    413: ErrorKind.QUOTA,
    422: ErrorKind.CORRUPT,  # the bytes differ from the ETag that was sent with them
    498: ErrorKind.THROTTLED,
    499: ErrorKind.NETWORK,
}


def _meaning_of(status: int, reason: str | None, content: object, headers: Mapping[str, str] | None) -> Meaning:
    text = content.decode(errors="replace") if isinstance(content, bytes) else str(content or "")
    kind = kind_of_status(status, _STATUS_KINDS)
    return meaning_of_refusal(status, f"{reason or ''} {text}", headers or {}, kind)


# --- connect --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Login:
    """The address of the account, and a token for it."""

    url: str
    token: str


class _OpenConnection:
    """A connection that is closed when its thread ends."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def close(self) -> None:
        with suppress(Exception):  # it is no longer used, whatever the library says
            self.connection.close()

    __del__ = close


class _PerThread(LastResponse):
    """A thread's last response, its connection, and the login that the connection was made with."""

    opened: _OpenConnection | None = None
    login: _Login | None = None


class SwiftDriver(SdkDriver):
    """A connection for each thread, with one login for all."""

    imports = ("requests", "swiftclient", "urllib3.exceptions")
    libraries = ("python-swiftclient", "requests", "urllib3")
    settings: Mapping[str, str] = {"python-swiftclient.retries": "off"}
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
        self._secrets, self._container, self._timeout_s = secrets, container, timeout_s
        self.clock_url = secrets["auth_url"]
        self._egress = egress_of(endpoint, self.clock_url)
        self._own, self._lock = _PerThread(), Lock()
        super().__init__(self._own, self._egress.remarks)
        self._connections = WeakSet[_OpenConnection]()
        self._login: _Login | None = None
        self._session = requests.Session()
        self._adopt_session(self._session)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> SwiftDriver:
        """Return the driver for ``swift://CONTAINER``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        container = bucket_of(spec, "swift://CONTAINER")
        fields = dict(endpoint.credentials if endpoint else credentials)
        if "auth_url" in spec.params:
            fields["auth_url"] = spec.params["auth_url"]
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        if not is_web_address(secrets["auth_url"]):
            raise CredentialsError(f"{spec.scheme}: auth_url is a URL, such as https://HOST:5000/v3")
        return cls(secrets, container, endpoint, timeout_of(spec))

    def close(self) -> None:
        """Close all connections."""
        self._session.close()
        for opened in [*self._connections]:
            opened.close()

    def prepare(self, folder: str) -> None:
        """Log in."""
        with self._cloud_errors("connect", folder):
            self._connection()

    def _adopt_session(self, session: Any) -> None:
        """Let a session of ``requests`` follow no redirect, and count what it sends."""
        session.get_redirect_target = lambda _response: None
        self._egress.direct_session(session)
        self._own.watch(session)

    def _explain_error(self, error: Exception) -> Meaning | None:
        if isinstance(error, self._library.ClientException):
            if error.http_status == 401:
                self._login = None
            if not error.http_status:
                return Meaning(ErrorKind.SERVER, str(error))
            headers = error.http_response_headers
            return _meaning_of(int(error.http_status), error.http_reason, error.http_response_content, headers)
        if isinstance(error, (self._cut, OSError)):  # whatever requests raises is an OSError
            return network_failure(error)
        return UNREADABLE if isinstance(error, (ValueError, KeyError, TypeError, AttributeError)) else None

    def _connection(self) -> Any:
        """Return this thread's connection. Logs in first if that is necessary."""
        with self._lock:
            login = self._login = self._login or self._log_in()
        own = self._own
        if own.login is not login:
            options = {"cacert": self._egress.trusted} if self._egress.trusted else {}
            connection = self._library.Connection(
                preauthurl=login.url, preauthtoken=login.token, retries=0, timeout=self._timeout_s, **options
            )
            connection.http_conn = connection.http_connection()
            self._adopt_session(connection.http_conn[1].request_session)
            own.login, own.opened = login, _OpenConnection(connection)
            self._connections.add(own.opened)
        assert own.opened is not None
        return own.opened.connection

    def _log_in(self) -> _Login:
        """Log in with one request in Swift's own form (TempAuth, v1) or Keystone's (v3), without Keystone's library."""
        secrets = self._secrets
        url = secrets["auth_url"].rstrip("/")
        options: dict[str, Any] = {"timeout": self._timeout_s, "verify": self._egress.trusted or True}
        if "project" not in secrets:
            headers = {"X-Auth-User": secrets["user"], "X-Auth-Key": secrets["key"]}
            answer = _require_success(self._session.get(url, headers=headers, **options))
            login = _Login(answer.headers["X-Storage-Url"], answer.headers["X-Auth-Token"])
        else:
            url = url if url.endswith("/v3") else f"{url}/v3"
            answer = _require_success(
                self._session.post(f"{url}/auth/tokens", json=_keystone_login(secrets), **options)
            )
            storage_url = _object_store_url(answer.json()["token"]["catalog"], secrets.get("region"))
            login = _Login(storage_url, answer.headers["X-Subject-Token"])
        redact.learn([login.token])
        return login

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request."""
        name, size_bytes = key_of("put", path), content.size_bytes
        body = content.read(0, size_bytes) if size_bytes <= _ONE_PIECE_BYTES else ContentFile(content)
        with self._cloud_errors("put", path):
            etag = self._connection().put_object(self._container, name, contents=body, content_length=size_bytes)
            return Entry(path, size_bytes=size_bytes, digest=md5_of(require_etag(etag)))

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from ``offset``. The request is sent when the first piece is asked for."""
        name = key_of("get", path)
        options = {"headers": {"Range": f"bytes={offset}-"}} if offset else {}
        with self._cloud_errors("get", path):
            headers, body = self._connection().get_object(self._container, name, resp_chunk_size=MIB, **options)
            with closing(body):
                if offset and not headers.get("content-range", "").startswith(f"bytes {offset}-"):
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                missing_bytes = int(headers["content-length"])
                for piece in read_pieces(body.read):
                    missing_bytes -= len(piece)
                    yield piece
            if missing_bytes:
                raise CloudError(ErrorKind.NETWORK, "get", path, detail=f"the answer lacks {missing_bytes} bytes")

    def stat(self, path: str) -> Entry:
        """Return what Swift knows about one object."""
        name = key_of("stat", path)
        with self._cloud_errors("stat", path):
            return self._entry_of_object(path, self._connection().head_object(self._container, name))

    def _entry_of_object(self, path: str, headers: Mapping[str, str]) -> Entry:
        digest = md5_of(require_etag(headers.get("etag")))
        return Entry(path, size_bytes=int(headers["content-length"]), digest=digest)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all objects whose names begin with the folder's path, page by page."""
        with self._cloud_errors("list", folder):
            for row in self._list_objects("list", folder):
                yield Entry(path_of(row["name"]), size_bytes=int(row["bytes"]), digest=md5_of(row["hash"]))

    def _list_objects(self, verb: str, path: str) -> Iterator[Mapping[str, Any]]:
        prefix, marker = prefix_of(verb, path), ""
        limit, tokens = self.list_page_entries or _PAGE_ENTRIES, PageTokens(verb, path)
        while True:
            with self._cloud_errors(verb, path):
                rows = self._connection().get_container(self._container, prefix=prefix, marker=marker, limit=limit)[1]
                if not isinstance(rows, list):
                    raise OwnError(ErrorKind.SERVER, "the answer is no listing")
                marker = rows[-1]["name"] if rows else ""
            yield from rows
            if len(rows) < limit:
                return
            tokens.use(marker)

    def delete(self, path: str) -> None:
        """Remove an object or, where there is none, all whose names begin with the path and a slash."""
        if path != "/":
            with ignore_missing(), self._cloud_errors("delete", path):
                self._connection().delete_object(self._container, key_of("delete", path))
                return
        for row in [*self._list_objects("delete", path)]:
            with ignore_missing(), self._cloud_errors("delete", path):
                self._connection().delete_object(self._container, row["name"])

    def mkdir(self, path: str) -> None:
        """Do nothing: there are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the container. An existing target is replaced."""
        origin, name = key_of("copy", source), key_of("copy", target)
        with self._cloud_errors("copy", source):
            connection = self._connection()
            connection.copy_object(self._container, origin, destination=f"/{self._container}/{name}")
            return self._entry_of_object(target, connection.head_object(self._container, name))


def _keystone_login(secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a login with a password, scoped to a project (Identity API v3)."""
    user_domain, project_domain = secrets.get("user_domain", "Default"), secrets.get("project_domain", "Default")
    user = {"name": secrets["user"], "password": secrets["key"], "domain": {"name": user_domain}}
    project = {"name": secrets["project"], "domain": {"name": project_domain}}
    identity = {"methods": ["password"], "password": {"user": user}}
    return {"auth": {"identity": identity, "scope": {"project": project}}}


def _require_success(answer: Any) -> Any:
    """Return the answer to a login. Raises OwnError if it was refused."""
    if not 200 <= answer.status_code < 300:
        raise OwnError(*_meaning_of(answer.status_code, answer.reason, answer.content, answer.headers))
    return answer


def _object_store_url(catalog: Any, region: str | None) -> str:
    """Return the address of the object store in Keystone's catalog of services. Raises OwnError if it has none."""
    for offer in catalog:
        for address in offer["endpoints"] if offer["type"] == "object-store" else ():
            if address["interface"] == "public" and region in (None, address.get("region")):
                return str(address["url"])
    raise OwnError(ErrorKind.SERVER, "the catalog has no object store" + (f" in {region}" if region else ""))
