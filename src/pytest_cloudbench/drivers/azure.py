"""Driver for Azure Blob Storage with the official SDK.

What may live here: everything that is special to Azure as a client, in this order: imports, capabilities, error table,
connect, required verbs.

What the SDK does on its own, and how this driver handles it:

- It retries three times, after 15 s and more: off (``retry_total=0``).
- Its download asks for 4 MiB at a time, holds each piece whole, and asks up to three times for a piece that was cut.
  The driver sends a single request through the layer below, and streams the answer.
- Its upload reads a file below 64 MiB at once; larger ones go up here in blocks, one after the other, and are then
  committed.
- Its HTTP library has a pool of ten connections: here one without a limit. It follows no redirect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from pytest_cloudbench.drivers.base import (
    CredentialSet,
    LastResponse,
    check_params,
    endpoint_of,
    kind_of_status,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import Egress, egress_of
from pytest_cloudbench.drivers.keys import bucket_of, key_of, path_of, prefix_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import (
    UNLIMITED_POOL,
    UNREADABLE,
    Meaning,
    SdkDriver,
    meaning_of_refusal,
    network_failure,
    require_etag,
    response_pieces,
)
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_MULTIPART_BYTES = 32 * MIB
_BLOCK_BYTES = 8 * MIB
_MOST_BLOCKS = 50_000

_CAPABILITIES = Capabilities(
    digest="md5",
    max_digest_bytes=_MULTIPART_BYTES,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    names=NameRules(),
    max_request_bytes=_MULTIPART_BYTES,
    requests={Verb.PUT: 1, Verb.GET: 1, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 1},
    via="azure-storage-blob on requests; retries off; downloads without the SDK's own pieces",
)

_PARAMS = frozenset({"account", "endpoint", "timeout_s", "token_env"})
_NO_NAME = re.compile(r"\.(?:/|\Z)|[\\\x00-\x08\x0b\x0c\x0e-\x1f]")

# --- error table ----------------------------------------------------------------------------------

_CODE_KINDS: Mapping[str, ErrorKind] = {
    "ServerBusy": ErrorKind.THROTTLED,
    "TooManyRequests": ErrorKind.THROTTLED,
    "AccountIsDisabled": ErrorKind.AUTH,
    "Md5Mismatch": ErrorKind.CORRUPT,
    "Crc64Mismatch": ErrorKind.CORRUPT,
    "AccountLimitExceeded": ErrorKind.QUOTA,
    "InsufficientAccountPermissions": ErrorKind.AUTH,
}


def _meaning_of(error: Any) -> Meaning:
    """Return the meaning of a refusal, without the SDK's words, which hold the request's number and the time."""
    headers = error.response.headers
    code = str(headers.get("x-ms-error-code") or getattr(error, "error_code", None) or "").rpartition(".")[2]
    words = code or str(getattr(error, "reason", "") or "")
    return meaning_of_refusal(error.status_code, words, headers, _CODE_KINDS.get(code))


# --- connect --------------------------------------------------------------------------------------


class AzureDriver(SdkDriver):
    """One client of one container, shared by all threads."""

    imports = ("requests.adapters", "azure.core.pipeline.transport", "azure.storage.blob")
    libraries = ("azure-storage-blob", "azure-core", "requests", "urllib3")
    settings: Mapping[str, str] = {"azure-storage-blob.retries": "off", "azure-storage-blob.redirects": "off"}
    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("connection_string",)),
        CredentialSet(("account", "account_key"), public=("account",)),
        CredentialSet(("account", "sas_token"), public=("account",)),
    )
    multipart_bytes = _MULTIPART_BYTES
    part_bytes = _BLOCK_BYTES
    list_page_entries: int | None = None

    def __init__(self, container: Any, session: Any, egress: Egress) -> None:
        from azure.core import exceptions

        self._errors, self._container, self._last = exceptions, container, LastResponse()
        super().__init__(self._last, egress.remarks, container, session)
        self._last.watch(session)
        self.clock_url = str(container.url).partition("?")[0]

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> AzureDriver:
        """Return the driver for ``azure://CONTAINER``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        bucket_of(spec, "azure://CONTAINER")
        fields = dict(endpoint.credentials if endpoint else credentials)
        if "account" in spec.params:
            fields["account"] = spec.params["account"]
        secrets = usable_credentials(spec.scheme, cls.credential_sets, fields)
        if "connection_string" in secrets and (repeated := sorted({"account", "endpoint"} & spec.params.keys())):
            problem = (
                f"the connection string says that already: leave {' and '.join(repeated)} out, or unset the string"
            )
            raise SpecError(f"provider {spec.text!r}: {problem}")
        session = _pooled_session()
        container = _container_client(spec, endpoint, secrets, session)
        egress = egress_of(endpoint, str(container.url))
        egress.direct_session(session)
        return cls(container, session, egress)

    def _explain_error(self, error: Exception) -> Meaning | None:
        errors = self._errors
        if isinstance(error, errors.IncompleteReadError):
            return Meaning(ErrorKind.NETWORK, "the answer was cut")
        if isinstance(error, errors.DecodeError):
            return UNREADABLE
        if isinstance(error, errors.ClientAuthenticationError) and error.response is None:
            return Meaning(ErrorKind.AUTH, str(error))  # nothing was sent: the key is not one that could sign
        if isinstance(error, errors.HttpResponseError) and error.response is not None and error.status_code is not None:
            return UNREADABLE if 200 <= error.status_code < 300 else _meaning_of(error)
        if isinstance(error, (errors.AzureError, OSError)):
            return network_failure(error)
        if isinstance(error, (AttributeError, KeyError, TypeError, ValueError)):  # what the SDK's own parser raises
            return Meaning(kind_of_status(self._last.status() or 0), "the answer cannot be read")
        return None

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or in blocks if the file is large."""
        name, size_bytes = _blob_name("put", path), content.size_bytes
        if size_bytes > self.multipart_bytes:
            return self._put_in_blocks(path, name, content)
        data = content.read(0, size_bytes)
        with self._cloud_errors("put", path):
            blob = self._container.get_blob_client(name)
            answer = blob.upload_blob(data, overwrite=True, length=size_bytes, max_concurrency=1)
            return Entry(path, size_bytes=size_bytes, digest=_md5_in_hex(answer.get("content_md5")))

    def _put_in_blocks(self, path: str, name: str, content: Content) -> Entry:
        """Upload blocks one after the other. Those of a failed upload stay, invisible, until the folder is removed."""
        from azure.storage.blob import BlobBlock

        size_bytes = content.size_bytes
        block_bytes = max(self.part_bytes, -(-size_bytes // _MOST_BLOCKS))
        blob = self._container.get_blob_client(name)
        blocks: list[Any] = []
        for begin in range(0, size_bytes, block_bytes):
            data = content.read(begin, min(block_bytes, size_bytes - begin))
            blocks.append(BlobBlock(f"{len(blocks):08}"))
            with self._cloud_errors("put", path):
                blob.stage_block(blocks[-1].id, data, length=len(data))
        with self._cloud_errors("put", path):
            blob.commit_block_list(blocks)
        return Entry(path, size_bytes=size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the blob's bytes from ``offset``. The request is sent when the first piece is asked for."""
        name = _blob_name("get", path)
        with self._cloud_errors("get", path):
            operations = self._container.get_blob_client(name)._client.blob
            answer, pieces, headers = operations.download(
                range=f"bytes={offset}-" if offset else None, cls=lambda *answered: answered
            )
            try:
                if offset and not str(headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                pieces.iter_content_func = response_pieces(answer.http_response.internal_response)
                yield from pieces
            finally:
                answer.http_response.close()

    def stat(self, path: str) -> Entry:
        """Return what Azure knows about one blob."""
        name = _blob_name("stat", path)
        with self._cloud_errors("stat", path):
            blob = self._container.get_blob_client(name).get_blob_properties()
            require_etag(blob.etag)
            return self._entry_of_blob(path, blob)

    def _entry_of_blob(self, path: str, blob: Any) -> Entry:
        md5 = blob.content_settings.content_md5 if blob.size <= _MULTIPART_BYTES else None
        return Entry(path, size_bytes=blob.size, digest=_md5_in_hex(md5))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all blobs whose names begin with the folder's path, page by page."""
        with self._cloud_errors("list", folder):
            for blob in self._list_blobs("list", folder):
                yield self._entry_of_blob(path_of(blob.name), blob)

    def _list_blobs(self, verb: str, path: str, include: tuple[str, ...] = ()) -> Iterator[Any]:
        prefix = prefix_of(verb, path)
        with self._cloud_errors(verb, path):
            blobs = self._container.list_blobs(
                name_starts_with=prefix or None, include=list(include) or None, results_per_page=self.list_page_entries
            )
            pages, tokens = blobs.by_page(), PageTokens(verb, path)
            for page in pages:
                yield from page
                tokens.use(pages.continuation_token)

    def delete(self, path: str) -> None:
        """Remove a blob or, where there is none, all whose names begin with the path, with snapshots and versions."""
        if path != "/":
            name = _blob_name("delete", path)
            with self._cloud_errors("delete", path):
                try:
                    self._container.delete_blob(name, delete_snapshots="include")
                except self._errors.ResourceNotFoundError as error:
                    if _error_code(error) != "BlobNotFound":
                        raise  # there is no such container
                else:
                    return
        self._delete_below(path)

    def _delete_below(self, path: str) -> None:
        """Remove first what no listing of blobs shows, so that an interrupted removal can be noticed and repeated."""
        listed_names = {blob.name for blob in self._list_blobs("delete", path)}
        blobs = [*self._list_blobs("delete", path, ("snapshots", "versions", "uncommittedblobs"))]
        for blob in blobs:
            if blob.version_id and not blob.is_current_version:
                self._delete_version(path, blob)
        current = [blob for blob in blobs if not blob.snapshot and (blob.is_current_version or not blob.version_id)]
        for blob in sorted(current, key=lambda blob: blob.name in listed_names):
            with self._cloud_errors("delete", path):
                try:
                    self._container.delete_blob(blob.name, delete_snapshots="include")
                except self._errors.ResourceNotFoundError:
                    self._delete_uncommitted(blob.name)
            if blob.version_id:  # it has become a former version
                self._delete_version(path, blob)

    def _delete_version(self, path: str, blob: Any) -> None:
        with self._cloud_errors("delete", path), suppress(self._errors.ResourceNotFoundError):
            self._container.delete_blob(blob.name, version_id=blob.version_id)

    def _delete_uncommitted(self, name: str) -> None:
        """Make a blob of uncommitted blocks and delete that, since they cannot be deleted before they are a blob."""
        blob = self._container.get_blob_client(name)
        with suppress(self._errors.ResourceNotFoundError):  # somebody else has removed it
            if blob.get_block_list("uncommitted")[1]:
                blob.commit_block_list([])
                blob.delete_blob()

    def mkdir(self, path: str) -> None:
        """Do nothing: there are no folders."""


def _blob_name(verb: str, path: str) -> str:
    """Return the blob's name.

    Raises CloudError for a name that Azure would change or could not list. It removes dots at the end of a part, and
    reads a backslash as a slash. A list, which is XML, cannot hold control characters: one such name would hide all
    others.
    """
    name = key_of(verb, path)
    if _NO_NAME.search(name):
        detail = "no part of a name ends with a dot, or holds a backslash or a control character"
        raise CloudError(ErrorKind.INVALID, verb, path, detail=detail)
    return name


def _md5_in_hex(md5: Any) -> str | None:
    return bytes(md5).hex() if md5 else None


def _error_code(error: Any) -> str:
    return str(error.response.headers.get("x-ms-error-code") or "") if error.response is not None else ""


def _pooled_session() -> Any:
    """Return a session with one pool of connections for all threads, without retries."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=UNLIMITED_POOL, max_retries=0))
    return session


def _container_client(spec: ProviderSpec, endpoint: Endpoint | None, secrets: Mapping[str, str], session: Any) -> Any:
    """Return the SDK's client of a container, which never repeats or redirects a request. Raises SpecError."""
    from azure.core.pipeline.transport import RequestsTransport
    from azure.core.settings import settings
    from azure.storage.blob import ContainerClient

    settings.tracing_enabled.set_value(False)  # or variables that the SDK reads before each request add headers
    options: dict[str, Any] = {
        "transport": RequestsTransport(
            session=session,
            session_owner=False,
            connection_timeout=timeout_of(spec),
            read_timeout=timeout_of(spec),
            connection_verify=None,  # the session has its own setting
            use_env_settings=False,
        ),
        "retry_total": 0,
        "permit_redirects": False,  # a redirect would take the request and its signature to any host
        "max_single_put_size": _MULTIPART_BYTES,
        "user_agent_use_env": False,
    }
    url = endpoint.url if endpoint else endpoint_of(spec)
    try:
        if "connection_string" in secrets:
            return ContainerClient.from_connection_string(secrets["connection_string"], spec.target, **options)
        account = secrets["account"]
        key: Any = secrets.get("sas_token", "").removeprefix("?")
        if "account_key" in secrets:
            key = {"account_name": account, "account_key": secrets["account_key"]}
        return ContainerClient(
            url or f"https://{account}.blob.core.windows.net", spec.target, credential=key, **options
        )
    except ValueError as error:
        raise SpecError(f"provider {spec.text!r}: {redact.clean(str(error))}") from error
