"""Driver for Google Cloud Storage with the official SDK.

What may live here: everything that is special to Cloud Storage as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

What the SDK does on its own, and how this driver handles it:

- It retries for two minutes, and repeats a request with a new token after a 401: both are off. Only the request for a
  service account's token, which is sent before the request that needs it, may be repeated by the library.
- In a thread of its own, it asks another host where a service account may be used: off.
- During some uploads, another of its threads asks for the bucket, to name it in traces: off.
- It hashes what it uploads, and compares what it downloads: off, because that measures the client's CPU.
- It reads an upload of up to 8 MiB at once; larger ones are resumable here, in pieces of 8 MiB. A session that is
  abandoned expires after a week, and is never visible.
- Its download writes into a file: the driver sends the same single request with the SDK's session, and streams.
- Its HTTP library follows redirects: off.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    detail_of,
    detail_of_error,
    endpoint_of,
    kind_of_status,
    seconds_of,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import Egress, leaving
from pytest_cloudbench.drivers.google_home import OAUTH_FIELDS, google_credentials
from pytest_cloudbench.drivers.keys import as_file, key_of, path_of, prefix_of
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
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import opening, redact

# --- capabilities ---------------------------------------------------------------------------------

# The SDK's own threshold: above it an upload is resumable.
_MULTIPART_BYTES = 8 * MIB
_PIECE_BYTES = 8 * MIB

_CAPABILITIES = Capabilities(
    digest="md5",
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    server_side_copy=True,
    names=NameRules(refused="\r\n"),
    max_request_bytes=_MULTIPART_BYTES,
    requests=dict.fromkeys((Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY), 1),
    via="google-cloud-storage on requests; retries and hashes off; downloads streamed from the SDK's session",
)

_PARAMS = frozenset({"endpoint", "timeout_s", "token_env"})
_HOST = "https://storage.googleapis.com"
_TOKEN_URL = "https://oauth2.googleapis.com/token"
_SCOPES = ("https://www.googleapis.com/auth/devstorage.full_control",)
_CONNECTIONS = 256
_READ_PIECE_BYTES = 64 * KIB
# The HTTP library waits for a whole piece: a small first one marks the first byte.
_FIRST_READ_BYTES = 1 * KIB

# --- error table ----------------------------------------------------------------------------------

_REASON_KINDS: Mapping[str, ErrorKind] = {
    "rateLimitExceeded": ErrorKind.THROTTLED,
    "userRateLimitExceeded": ErrorKind.THROTTLED,
    "quotaExceeded": ErrorKind.QUOTA,
    "accountDisabled": ErrorKind.AUTH,
}


def _refusal(verb: str, path: str, response: Any) -> CloudError:
    status, reason, words = int(response.status_code), "", ""
    try:
        said = response.json()["error"]
        words = str(said["message"])
        reason = str(said["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        words = words or response.text
    kind = _REASON_KINDS.get(reason) or kind_of_status(status)
    retry_after_s = seconds_of(response.headers.get("retry-after"))
    told = " ".join(filter(None, (str(status), reason, words)))
    return CloudError(kind, verb, path, retry_after_s=retry_after_s, detail=detail_of(told, path))


class _Refused(Exception):
    """An answer other than success; the cause of the CloudError that is raised."""


# --- connect --------------------------------------------------------------------------------------


class GcsDriver:
    """One SDK client and one session, shared by all threads."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_token",)),
        CredentialSet(("service_account_file",), public=("service_account_file",), free=("service_account_file",)),
        CredentialSet(OAUTH_FIELDS, public=("client_id",)),
        CredentialSet(("anonymous",), public=("anonymous",)),
    )
    elsewhere = staticmethod(google_credentials)
    multipart_bytes = _MULTIPART_BYTES
    part_bytes = _PIECE_BYTES
    list_page_entries: int | None = None

    def __init__(self, client: Any, session: Any, host: str, bucket: str, timeout_s: float, egress: Egress) -> None:
        import google.auth.exceptions
        from google.api_core import exceptions

        self._refused, self._auth = exceptions, google.auth.exceptions
        self._sdk, self._session, self._host, self._name = client, session, host, bucket
        self._bucket, self._timeout_s, self._egress = client.bucket(bucket), timeout_s, egress
        self._last = LastResponse()
        adapter = session.get_adapter(host)  # one for everything, including the requests that get a token
        adapter.send = self._last.counted(adapter.send)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> GcsDriver:
        """Returns the driver for ``gcs://BUCKET``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        if not spec.target or "/" in spec.target:
            raise SpecError(f"provider {spec.text!r}: expected gcs://BUCKET")
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        from google.cloud.storage import Client

        host = (endpoint.url if endpoint else endpoint_of(spec) or _HOST).rstrip("/")
        token_url = f"{endpoint.urls['oauth']}/token" if endpoint and "oauth" in endpoint.urls else _TOKEN_URL
        egress = leaving(endpoint, host)
        session = _session(egress, _credentials(spec, secrets, token_url))
        client = Client(
            project="none", credentials=session.credentials, _http=session, client_options={"api_endpoint": host}
        )
        client._bucket_metadata_cache = None
        client._connection.API_BASE_MTLS_URL = host  # the environment says before each request which of two is used
        return cls(client, session, host, spec.target, timeout_of(spec), egress)

    @property
    def clock_url(self) -> str:
        """An address whose answers are dated."""
        return self._host

    def versions(self) -> Mapping[str, str]:
        """Returns the libraries, and what is switched off in them."""
        names = ("google-cloud-storage", "google-auth", "requests", "urllib3")
        return {name: version(name) for name in names} | {
            "google-cloud-storage.retries": "off",
            "google-cloud-storage.hashes": "off",
            **self._egress.remarks,
        }

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def requests(self) -> int:
        """Returns how many requests this thread has sent so far."""
        return self._last.requests

    @contextmanager
    def _calling(self, verb: str, path: str) -> Iterator[None]:
        """Turns every error of the SDK into CloudError."""
        try:
            yield
        except self._refused.GoogleAPICallError as error:
            redact.clean_error(error)
            raise _refusal(verb, path, error.response) from error
        except self._auth.TransportError as error:
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail_of_error(error, path)) from error
        except self._auth.GoogleAuthError as error:
            raise CloudError(ErrorKind.AUTH, verb, path, detail=detail_of_error(error, path)) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = self._last.response
            if answer is not None and answer.status_code >= 400:  # a refusal whose words the SDK could not read
                redact.clean_error(error)
                raise _refusal(verb, path, answer) from error
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error
        except OSError as error:  # whatever requests raises is an OSError
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail_of_error(error, path)) from error

    def _entry(self, path: str, blob: Any) -> Entry:
        return Entry(path, size_bytes=int(blob.size), digest=_hex(blob.md5_hash))

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with a resumable session, piece by piece, if the file is large."""
        name, size_bytes = key_of("put", path), content.size_bytes
        if "\r" in name or "\n" in name:
            raise CloudError(ErrorKind.INVALID, "put", path, detail="a name cannot contain a line break")
        is_large = size_bytes > self.multipart_bytes
        with self._calling("put", path):
            blob = self._bucket.blob(name, chunk_size=self.part_bytes if is_large else None)
            blob.upload_from_file(
                as_file(content),
                size=size_bytes,
                content_type="application/octet-stream",
                checksum=None,
                retry=None,
                timeout=self._timeout_s,
            )
            return self._entry(path, blob)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the object's bytes from ``offset``; sends the request when the first piece is asked for."""
        name = quote(key_of("get", path), safe="")
        url = f"{self._host}/download/storage/v1/b/{self._name}/o/{name}?alt=media"
        headers = {"Accept-Encoding": "gzip", **({"Range": f"bytes={offset}-"} if offset else {})}
        with self._calling("get", path), closing(
            self._session.get(url, headers=headers, stream=True, timeout=self._timeout_s)
        ) as response:  # fmt: skip
            if not 200 <= response.status_code < 300:
                raise _refusal("get", path, response) from _Refused(response.status_code)
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            if first := next(response.iter_content(_FIRST_READ_BYTES), b""):
                yield first
                yield from response.iter_content(_READ_PIECE_BYTES)

    def stat(self, path: str) -> Entry:
        """Returns what Cloud Storage knows about one object."""
        name = key_of("stat", path)
        with self._calling("stat", path):
            blob = self._bucket.blob(name)
            blob.reload(retry=None, timeout=self._timeout_s)
            return self._entry(path, blob)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yields all objects whose names begin with the folder's path, page by page."""
        for blob in self._rows("list", folder):
            if not blob.name.endswith("/"):  # consoles use an empty object to show a folder
                yield self._entry(path_of(blob.name), blob)

    def _rows(self, verb: str, path: str, *, versions: bool | None = None) -> Iterator[Any]:
        prefix = prefix_of(verb, path)
        with self._calling(verb, path):
            yield from self._sdk.list_blobs(
                self._name, prefix=prefix or None, versions=versions, page_size=self.list_page_entries, retry=None,
                timeout=self._timeout_s,
            )  # fmt: skip

    def delete(self, path: str) -> None:
        """Remove an object; or, where there is none, all whose names begin with the path: old versions too."""
        if path != "/":
            name = key_of("delete", path)
            with self._calling("delete", path):
                try:
                    self._bucket.delete_blob(name, retry=None, timeout=self._timeout_s)
                except self._refused.NotFound:
                    pass  # it may be a folder; if the bucket is missing, the listing says so
                else:
                    return
        # Former versions first, which no listing of objects shows: an interrupted removal can be told and repeated.
        for blob in sorted(self._rows("delete", path, versions=True), key=lambda blob: blob.time_deleted is None):
            with self._calling("delete", path):
                self._bucket.delete_blob(blob.name, generation=blob.generation, retry=None, timeout=self._timeout_s)

    def mkdir(self, path: str) -> None:
        """There are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the bucket; an existing target is replaced."""
        origin, name = key_of("copy", source), key_of("copy", target)
        with self._calling("copy", source):
            blob = self._bucket.copy_blob(
                self._bucket.blob(origin), self._bucket, name, retry=None, timeout=self._timeout_s
            )
            return self._entry(target, blob)


def _hex(md5: str | None) -> str | None:
    try:
        return base64.b64decode(md5, validate=True).hex() if md5 else None
    except binascii.Error:
        return None


def _credentials(spec: ProviderSpec, secrets: Mapping[str, str], token_url: str) -> Any:
    users = import_module("google.oauth2.credentials")
    if "access_token" in secrets:
        return users.Credentials(secrets["access_token"])
    if "refresh_token" in secrets:
        return users.Credentials(None, token_uri=token_url, **{name: secrets[name] for name in OAUTH_FIELDS})
    if "service_account_file" not in secrets:
        return import_module("google.auth.credentials").AnonymousCredentials()
    account = import_module("google.oauth2.service_account")
    path = Path(secrets["service_account_file"])
    try:
        told = json.loads(opening.read_file(path))
        redact.learn([str(told["private_key"])])
        credentials = account.Credentials.from_service_account_info(told, scopes=_SCOPES)
    except OSError as error:
        raise CredentialsError(f"{spec.scheme}: {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError):
        # Not chained: the error can quote the key.
        raise CredentialsError(f"{spec.scheme}: {path}: not a service account's key as JSON") from None

    def before_request(request: Any, _method: str, _url: str, headers: dict[str, str]) -> None:
        if not credentials.valid:
            credentials.refresh(request)
        credentials.apply(headers)

    credentials.before_request = before_request  # the library's own also looks up where the account may be used
    return credentials


def _session(egress: Egress, credentials: Any) -> Any:
    """The SDK's own session, with one pool of connections for all threads and without retries."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    transport = import_module("google.auth.transport.requests")
    tokens: Any = Session()
    session = transport.AuthorizedSession(
        credentials, refresh_status_codes=(), max_refresh_attempts=0, auth_request=transport.Request(tokens)
    )
    adapter = HTTPAdapter(_CONNECTIONS, _CONNECTIONS, max_retries=0)
    for each in (tokens, session):
        for scheme in ("https://", "http://"):
            each.mount(scheme, adapter)
        each.get_redirect_target = lambda _response: None
        egress.direct_session(each)
    return session
