"""Driver for Amazon S3, and services with its API, with a client in Rust (obstore): the contrast to the official SDK.

What may live here: everything that is special to this client, in this order: imports, capabilities, error table,
connect, required verbs, optional verbs.

What the client does on its own, and how this driver handles it:

- It retries for three minutes: off (``max_retries`` 0).
- It follows redirects of reads and deletes, up to ten, and cannot be told not to.
- It reports neither how many requests it sends nor ``Retry-After``, so both are unknown.
- It refuses the answer to a range unless its status is 206, which rclone's server does not send: ``?ranges=0``.
- It sends everything above 5 MiB in parts of that size, twelve at once: here, one request up to this driver's
  threshold, and above it one part after the other.
- It lists neither former versions nor the parts that a failed upload leaves: a folder is removed through
  the official SDK, as by ``s3``, if that is installed. Files are deleted by this client, as they are measured.
- It reads ``AWS_...`` variables of the environment for settings that it is not given, some of which cannot be given as
  "none": it is made while the environment is closed (``drivers.surroundings``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from pytest_cloudbench.drivers._s3_sdk import (
    CAPABILITIES,
    CODE_KINDS,
    MULTIPART_BYTES,
    PART_BYTES,
    REGION,
    S3Bucket,
    addressing_of,
    bucket_egress,
    entry_of_object,
    part_size,
    sdk_client,
    signing_keys,
)
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    check_params,
    choice_of,
    endpoint_of,
    kind_of_status,
    timeout_of,
)
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.drivers.keys import ContentFile, bucket_of, key_of, path_of, prefix_of
from pytest_cloudbench.drivers.sdk import CloudErrors, Meaning, library_versions, require_etag
from pytest_cloudbench.drivers.surroundings import TABLE, closed
from pytest_cloudbench.model import (
    KIB,
    Capabilities,
    Content,
    CredentialsError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
)
from pytest_cloudbench.support import redact

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = replace(
    CAPABILITIES, via="obstore (Rust); retries off; follows redirects, tells neither its requests nor Retry-After"
)

_PARAMS = frozenset({"endpoint", "region", "addressing", "etag", "ranges", "timeout_s", "token_env"})
_NEVER = "365days"
_AWS = "https://s3.{region}.amazonaws.com/"
_READ_PIECE_BYTES = 1 * KIB
_DELETED_AT_ONCE = 1000

_LEFT = (
    "s3+fast: former versions and unfinished uploads below {folder} stay if there are any: a lifecycle rule of the "
    "bucket removes them; for later runs, install the extra s3"
)

# --- error table ----------------------------------------------------------------------------------

# The client's errors are texts that contain durations and end with a dump of its own values.
_DUMP = "\n\nDebug source"
_TOOK = re.compile(r" in [\d.]+(?:ns|µs|ms|s)(?= - )")
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REFUSED_CERTIFICATE = re.compile(r"\bInvalidCertificate\(\s*(\w+?)(?:Context)?\b")
"""The reason why a server was not trusted, which only the dump tells."""


def _kind_of_error(error: Exception) -> ErrorKind:
    words, _, dump = str(error).partition(_DUMP)
    if match := _STATUS.search(words):
        status, code = int(match[1]), _CODE.search(words)
        return (CODE_KINDS.get(code[1]) if code else None) or kind_of_status(status)
    if isinstance(error, FileNotFoundError):
        return ErrorKind.NOT_FOUND
    if isinstance(error, ValueError):
        return ErrorKind.INVALID
    if "HTTP error" in words and "kind: Decode" not in dump:
        return ErrorKind.NETWORK
    return ErrorKind.SERVER


# --- connect --------------------------------------------------------------------------------------


class S3FastDriver:
    """One client, shared by all threads."""

    imports = ("obstore.exceptions", "obstore.store")
    capabilities: Capabilities = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_key_id", "secret_access_key"), ("session_token",), public=("access_key_id",)),
    )
    apis: ClassVar[frozenset[str]] = frozenset({"s3"})
    credentials_of: ClassVar[str] = "s3"
    no_cassette: ClassVar[str] = "obstore, which is no Python, sends its requests; record s3"
    multipart_bytes = MULTIPART_BYTES
    part_bytes = PART_BYTES

    def __init__(
        self, library: Any, store: Any, connect_cleaner: Callable[[], S3Bucket], *,
        remarks: Mapping[str, str], tells_md5: bool = True, has_ranges: bool = True, is_kept: bool = True,
        clock_url: str = "",
    ) -> None:  # fmt: skip
        if not has_ranges:
            self.capabilities = replace(_CAPABILITIES, ranges=False)
        self._library, self._store, self._tells_md5 = library, store, tells_md5
        self._connect_cleaner, self._lock = connect_cleaner, Lock()
        self._cleaner: S3Bucket | None = None
        self._should_warn, self.clock_url, self._remarks = is_kept, clock_url, remarks
        self._failed = (library.exceptions.BaseError, OSError, ValueError)

    may_be_anonymous: ClassVar[bool] = True

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> S3FastDriver:
        """Return the driver for ``s3+fast://BUCKET``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        bucket_of(spec, "s3+fast://BUCKET")
        etag, ranges = choice_of(spec, "etag", ("md5", "opaque")), choice_of(spec, "ranges", ("0", "1"), "1")
        fields = endpoint.credentials if endpoint else credentials
        secrets = signing_keys(spec, cls.credential_sets, fields)
        if "session_token" in secrets:
            # It has a header of its own, which the client would send along to wherever an answer redirects it.
            raise CredentialsError(f"{spec.scheme}: a session token needs s3, whose client follows no redirect")
        import obstore
        import obstore.exceptions

        egress = bucket_egress(spec, endpoint)

        def connect_cleaner() -> S3Bucket:
            with closed(TABLE["s3"]):
                client = sdk_client(spec, endpoint, secrets, egress, checks=False)
                return S3Bucket(client, spec.target, egress)

        return cls(
            obstore, _object_store(spec, endpoint, secrets, egress), connect_cleaner, remarks=egress.remarks,
            tells_md5=etag == "md5", has_ranges=ranges == "1", is_kept=endpoint is None,
            clock_url=_service_url(spec, endpoint) or _AWS.format(region=spec.params.get("region", REGION)),
        )  # fmt: skip

    def versions(self) -> Mapping[str, str]:
        """Return the library, and what is switched off in it."""
        return {**library_versions(("obstore",)), "obstore.retries": "off", **self._remarks}

    def close(self) -> None:
        """Close the SDK's client, which removes folders. The other client closes itself when garbage-collected."""
        if self._cleaner is not None:
            self._cleaner.close()

    def _cloud_errors(self, verb: str, path: str) -> CloudErrors:
        return CloudErrors(verb, path, self._explain_error)

    def _explain_error(self, error: Exception) -> Meaning | None:
        if not isinstance(error, self._failed):
            return None
        words, _, dump = str(error).partition(_DUMP)
        refused = _REFUSED_CERTIFICATE.search(dump)
        why = f": the certificate is refused ({refused[1]})" if refused else ""
        return Meaning(_kind_of_error(error), _TOOK.sub("", words) + why)

    def _entry_of_object(self, path: str, size_bytes: int, etag: str | None) -> Entry:
        return entry_of_object(path, size_bytes, etag, tells_md5=self._tells_md5)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or in parts, one after the other, if the file is large."""
        key, size_bytes = key_of("put", path), content.size_bytes
        is_large = size_bytes > self.multipart_bytes
        body = ContentFile(content) if is_large else content.read(0, size_bytes)
        options = {"chunk_size": part_size(size_bytes, self.part_bytes), "max_concurrency": 1} if is_large else {}
        with self._cloud_errors("put", path):
            answer = self._library.put(self._store, key, body, use_multipart=is_large, **options)
            return self._entry_of_object(path, size_bytes, answer["e_tag"])

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from ``offset``. The request is sent when the first piece is asked for."""
        key = key_of("get", path)
        options = {"range": {"offset": offset}} if offset else None
        with self._cloud_errors("get", path):
            for piece in self._library.get(self._store, key, options=options).stream(min_chunk_size=_READ_PIECE_BYTES):
                yield bytes(piece)

    def stat(self, path: str) -> Entry:
        """Return what S3 knows about one key."""
        key = key_of("stat", path)
        with self._cloud_errors("stat", path):
            answer = self._library.head(self._store, key)
            return self._entry_of_object(path, answer["size"], require_etag(answer["e_tag"]))

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all objects whose keys begin with the folder's path, page by page."""
        for row in self._list_objects("list", folder):
            yield self._entry_of_object(path_of(row["path"]), row["size"], row["e_tag"])

    def _list_objects(self, verb: str, path: str) -> Iterator[Mapping[str, Any]]:
        prefix = prefix_of(verb, path)
        with self._cloud_errors(verb, path):
            for page in self._library.list(self._store, prefix or None, chunk_size=_DELETED_AT_ONCE):
                yield from page

    def delete(self, path: str) -> None:
        """Remove an object, or all whose keys begin with the path and a slash, with what only ``s3`` can list."""
        keys = [row["path"] for row in self._list_objects("delete", path)]
        if keys and (cleaner := self._cleaner_of(path)):
            cleaner.delete(path)
            return
        if path != "/":
            keys.append(key_of("delete", path))  # last: a server with real folders would refuse to delete it earlier
        for begin in range(0, len(keys), _DELETED_AT_ONCE):
            with self._cloud_errors("delete", path):
                self._library.delete(self._store, keys[begin : begin + _DELETED_AT_ONCE])

    def _cleaner_of(self, path: str) -> S3Bucket | None:
        """Return a driver that removes whole folders. Warns once, and returns None, if the official SDK is missing."""
        with self._lock:
            if self._cleaner is None:
                try:
                    self._cleaner = self._connect_cleaner()
                except ImportError:
                    if self._should_warn:
                        warnings.warn(_LEFT.format(folder=f"/{path.split('/')[1]}"), stacklevel=2)
                    self._should_warn = False
            return self._cleaner

    def mkdir(self, path: str) -> None:
        """Do nothing: there are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the bucket. An existing target is replaced."""
        origin, key = key_of("copy", source), key_of("copy", target)
        with self._cloud_errors("copy", source):
            self._library.copy(self._store, origin, key)
            answer = self._library.head(self._store, key)
            return self._entry_of_object(target, answer["size"], answer["e_tag"])


def _service_url(spec: ProviderSpec, endpoint: Endpoint | None) -> str:
    """Return the address of the service. Empty for Amazon's."""
    return endpoint.url if endpoint else endpoint_of(spec)


def _object_store(spec: ProviderSpec, endpoint: Endpoint | None, secrets: Mapping[str, str], egress: Egress) -> Any:
    """Return the library's store of a bucket, which never repeats a request. Raises SpecError."""
    from obstore.store import S3Store

    url = _service_url(spec, endpoint)
    # Not ``timeout``, which covers a whole transfer.
    client: Any = dict.fromkeys(("read_timeout", "connect_timeout"), f"{round(timeout_of(spec) * 1000)}ms")
    client["timeout"] = _NEVER
    if url:
        client["allow_http"] = url.startswith("http://")
    if endpoint and endpoint.ca_file:
        client["root_certificate"] = Path(endpoint.ca_file).read_bytes()
    if proxy := egress.proxy_for(url or _AWS.format(region=spec.params.get("region", REGION))):
        client["proxy_url"] = proxy
    is_virtual = (addressing_of(spec) or ("path" if url else "virtual")) == "virtual"
    if url and is_virtual:  # then the client expects the bucket's own endpoint
        scheme, mark, host = url.partition("://")
        url = f"{scheme}{mark}{spec.target}.{host}"
    options: dict[str, Any] = {"endpoint": url} if url else {}
    try:
        with egress.as_environment():  # the client takes trusted authorities from nowhere else
            return S3Store(
                spec.target,
                access_key_id=secrets["access_key_id"],
                secret_access_key=secrets["secret_access_key"],
                region=spec.params.get("region", REGION),
                virtual_hosted_style_request=is_virtual,
                unsigned_payload=True,
                client_options=client,
                retry_config={"max_retries": 0},
                **options,
            )
    except Exception as error:  # the client's own errors have no common base class
        problem = redact.clean(str(error).partition(_DUMP)[0])
        raise SpecError(f"provider {spec.text!r}: {problem}") from error
