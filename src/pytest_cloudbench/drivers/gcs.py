"""Driver for Google Cloud Storage with the official SDK.

What may live here: everything that is special to Cloud Storage as a client, in this order: imports, capabilities, error
table, connect, required verbs, optional verbs.

What the SDK does on its own, and how this driver handles it:

- It retries for two minutes, and repeats a request with a new token after a 401: both are off.
- It repeats a refused request for a token after pauses, and each thread asks for a token of its own. Here one request,
  of the operation that needs it first, renews the token for all threads.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    endpoint_of,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import Egress, egress_of, is_on_this_machine
from pytest_cloudbench.drivers.google_home import OAUTH_FIELDS, TokenAnswer, google_credentials, renewed_once
from pytest_cloudbench.drivers.keys import as_file, bucket_of, key_of, path_of, prefix_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import (
    UNLIMITED_POOL,
    UNREADABLE,
    Meaning,
    OwnError,
    SdkDriver,
    meaning_of_refusal,
    network_failure,
    response_pieces,
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
    NameRules,
    ProviderSpec,
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

# --- error table ----------------------------------------------------------------------------------

_REASON_KINDS: Mapping[str, ErrorKind] = {
    "rateLimitExceeded": ErrorKind.THROTTLED,
    "userRateLimitExceeded": ErrorKind.THROTTLED,
    "quotaExceeded": ErrorKind.QUOTA,
    "accountDisabled": ErrorKind.AUTH,
    "internal_failure": ErrorKind.SERVER,  # of the token route, with status 400
}
# What a refusal of the token route says about the service. All others are about the login.
_SERVICE_KINDS = frozenset({ErrorKind.SERVER, ErrorKind.THROTTLED})


def _meaning_of(response: Any) -> Meaning:
    reason, words = "", ""
    try:
        answer = response.json()
        problem = answer["error"]
        if isinstance(problem, str):  # the token route's
            reason, words = problem, str(answer.get("error_description", ""))
        else:
            words = str(problem["message"])
            reason = str(problem["errors"][0]["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        words = words or response.text
    text = " ".join(filter(None, (reason, words)))
    return meaning_of_refusal(int(response.status_code), text, response.headers, _REASON_KINDS.get(reason))


# --- connect --------------------------------------------------------------------------------------


class GcsDriver(SdkDriver):
    """One SDK client and one session, shared by all threads."""

    imports = (
        "google.auth.transport.requests", "google.cloud.storage", "google.oauth2.credentials", "requests.adapters"
    )  # fmt: skip
    libraries = ("google-cloud-storage", "google-auth", "requests", "urllib3")
    settings: Mapping[str, str] = {"google-cloud-storage.retries": "off", "google-cloud-storage.hashes": "off"}
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

        self._errors, self._auth, self._last = exceptions, google.auth.exceptions, LastResponse()
        super().__init__(self._last, egress.remarks, session)
        self._sdk, self._session, self._host, self._name = client, session, host, bucket
        self._bucket, self._timeout_s, self.clock_url = client.bucket(bucket), timeout_s, host
        self._last.watch(session)  # requests for tokens go through the same adapter

    may_be_anonymous: ClassVar[bool] = True

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> GcsDriver:
        """Return the driver for ``gcs://BUCKET``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        bucket = bucket_of(spec, "gcs://BUCKET")
        fields = endpoint.credentials if endpoint else credentials
        if not fields and is_on_this_machine(spec.params.get("endpoint", "")):  # the user's own server may want none
            fields = {"anonymous": "1"}
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        from google.cloud.storage import Client

        host = (endpoint.url if endpoint else endpoint_of(spec) or _HOST).rstrip("/")
        token_url = f"{endpoint.urls['oauth']}/token" if endpoint and "oauth" in endpoint.urls else _TOKEN_URL
        egress = egress_of(endpoint, host)
        session = _new_session(egress, _sdk_credentials(spec, secrets, token_url))
        client = Client(
            project="none", credentials=session.credentials, _http=session, client_options={"api_endpoint": host}
        )
        client._bucket_metadata_cache = None
        client._connection.API_BASE_MTLS_URL = host  # or the environment chooses one of two before each request
        return cls(client, session, host, bucket, timeout_of(spec), egress)

    def _explain_error(self, error: Exception) -> Meaning | None:
        if isinstance(error, self._errors.GoogleAPICallError):
            return _meaning_of(error.response)
        if isinstance(error, self._auth.GoogleAuthError):
            return Meaning(ErrorKind.AUTH, str(error))
        if isinstance(error, (ValueError, KeyError, TypeError, AttributeError)):
            answer = self._last.response
            # A refusal whose words the SDK could not read raises the same as an answer that makes no sense.
            return UNREADABLE if answer is None or answer.status_code < 400 else _meaning_of(answer)
        if isinstance(error, OSError):  # whatever requests raises is an OSError
            return network_failure(error)
        return None

    def _entry_of_blob(self, path: str, blob: Any) -> Entry:
        return Entry(path, size_bytes=int(blob.size), digest=_md5_in_hex(blob.md5_hash))

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or with a resumable session, piece by piece, if the file is large."""
        name, size_bytes = key_of("put", path), content.size_bytes
        if "\r" in name or "\n" in name:
            raise CloudError(ErrorKind.INVALID, "put", path, detail="a name cannot contain a line break")
        is_large = size_bytes > self.multipart_bytes
        with self._cloud_errors("put", path):
            blob = self._bucket.blob(name, chunk_size=self.part_bytes if is_large else None)
            blob.upload_from_file(
                as_file(content),
                size=size_bytes,
                content_type="application/octet-stream",
                checksum=None,
                retry=None,
                timeout=self._timeout_s,
            )
            return self._entry_of_blob(path, blob)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from ``offset``. The request is sent when the first piece is asked for."""
        name = quote(key_of("get", path), safe="")
        url = f"{self._host}/download/storage/v1/b/{self._name}/o/{name}?alt=media"
        headers = {"Accept-Encoding": "gzip", **({"Range": f"bytes={offset}-"} if offset else {})}
        with self._cloud_errors("get", path), closing(
            self._session.get(url, headers=headers, stream=True, timeout=self._timeout_s)
        ) as response:  # fmt: skip
            if not 200 <= response.status_code < 300:
                raise OwnError(*_meaning_of(response))
            if offset and response.status_code != 206:
                raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
            yield from response_pieces(response)

    def stat(self, path: str) -> Entry:
        """Return what Cloud Storage knows about one object."""
        name = key_of("stat", path)
        with self._cloud_errors("stat", path):
            blob = self._bucket.blob(name)
            blob.reload(retry=None, timeout=self._timeout_s)
            return self._entry_of_blob(path, blob)

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all objects whose names begin with the folder's path, page by page."""
        with self._cloud_errors("list", folder):
            for blob in self._list_blobs("list", folder):
                if not blob.name.endswith("/"):  # consoles use an empty object to show a folder
                    yield self._entry_of_blob(path_of(blob.name), blob)

    def _list_blobs(self, verb: str, path: str, *, versions: bool | None = None) -> Iterator[Any]:
        prefix = prefix_of(verb, path)
        with self._cloud_errors(verb, path):
            blobs = self._sdk.list_blobs(
                self._name, prefix=prefix or None, versions=versions, page_size=self.list_page_entries, retry=None,
                timeout=self._timeout_s,
            )  # fmt: skip
            tokens = PageTokens(verb, path)
            for page in blobs.pages:
                yield from page
                tokens.use(blobs.next_page_token)

    def delete(self, path: str) -> None:
        """Remove an object or, where there is none, all whose names begin with the path, with their old versions."""
        if path != "/":
            name = key_of("delete", path)
            with self._cloud_errors("delete", path):
                try:
                    self._bucket.delete_blob(name, retry=None, timeout=self._timeout_s)
                except self._errors.NotFound:
                    pass  # it may be a folder; if the bucket is missing, the listing says so
                else:
                    return
        # Former versions first, because no listing shows them: an interrupted removal can be noticed and repeated.
        for blob in sorted(self._list_blobs("delete", path, versions=True), key=lambda blob: blob.time_deleted is None):
            # Somebody else may have removed it meanwhile.
            with self._cloud_errors("delete", path), suppress(self._errors.NotFound):
                self._bucket.delete_blob(blob.name, generation=blob.generation, retry=None, timeout=self._timeout_s)

    def mkdir(self, path: str) -> None:
        """Do nothing: there are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the bucket. An existing target is replaced."""
        origin, name = key_of("copy", source), key_of("copy", target)
        with self._cloud_errors("copy", source):
            blob = self._bucket.copy_blob(
                self._bucket.blob(origin), self._bucket, name, retry=None, timeout=self._timeout_s
            )
            return self._entry_of_blob(target, blob)


def _md5_in_hex(md5: str | None) -> str | None:
    try:
        return base64.b64decode(md5, validate=True).hex() if md5 else None
    except binascii.Error:
        return None


def _sdk_credentials(spec: ProviderSpec, secrets: Mapping[str, str], token_url: str) -> Any:
    """Return the credentials as the SDK takes them. Raises CredentialsError."""
    users = import_module("google.oauth2.credentials")
    if "access_token" in secrets:
        return users.Credentials(secrets["access_token"])
    if "refresh_token" in secrets:
        fields = {name: secrets[name] for name in OAUTH_FIELDS}
        return _renewed_once(users.Credentials(None, token_uri=token_url, **fields))
    if "service_account_file" not in secrets:
        return import_module("google.auth.credentials").AnonymousCredentials()
    account = import_module("google.oauth2.service_account")
    path = Path(secrets["service_account_file"])
    try:
        key = json.loads(opening.read_file(path))
        redact.learn([str(key["private_key"])])
        credentials = account.Credentials.from_service_account_info(key, scopes=_SCOPES)
    except OSError as error:
        raise CredentialsError(f"{spec.scheme}: {path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError):
        # Not chained: the error can quote the key.
        raise CredentialsError(f"{spec.scheme}: {path}: not a service account's key as JSON") from None
    return _renewed_once(credentials)


def _renewed_once(credentials: Any) -> Any:
    """Make credentials renew their token once for all threads, and return them."""
    valid_token = renewed_once(credentials)

    def before_request(request: Any, _method: str, _url: str, headers: dict[str, str]) -> None:
        valid_token(request)
        credentials.apply(headers)

    credentials.before_request = before_request  # the library's own also looks up where a service account may be used
    return credentials


def _token_request(session: Any) -> Callable[..., TokenAnswer]:
    """Return the function by which google-auth sends a request for a token."""

    def send(
        url: str, method: str = "GET", body: Any = None, headers: Any = None, timeout: Any = None, **_more: Any
    ) -> TokenAnswer:
        response = session.request(method, url, data=body, headers=headers, timeout=timeout)
        if response.status_code != 200:
            kind, words, retry_after_s = _meaning_of(response)
            raise OwnError(kind if kind in _SERVICE_KINDS else ErrorKind.AUTH, words, retry_after_s)
        return TokenAnswer(response.status_code, response.headers, response.content)

    return send


def _new_session(egress: Egress, credentials: Any) -> Any:
    """Return the SDK's own session, with one pool of connections for all threads, without retries or redirects."""
    from requests import Session
    from requests.adapters import HTTPAdapter

    transport = import_module("google.auth.transport.requests")
    tokens: Any = Session()
    session = transport.AuthorizedSession(
        credentials, refresh_status_codes=(), max_refresh_attempts=0, auth_request=_token_request(tokens)
    )
    adapter = HTTPAdapter(pool_maxsize=UNLIMITED_POOL, max_retries=0)
    for own_session in (tokens, session):
        for scheme in ("https://", "http://"):
            own_session.mount(scheme, adapter)
        own_session.get_redirect_target = lambda _response: None
        egress.direct_session(own_session)
    return session
