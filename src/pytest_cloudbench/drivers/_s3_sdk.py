"""A bucket of Amazon's API through the official SDK: its client, its errors, and removing all that a folder holds.

What may live here: what ``s3`` and ``s3+fast`` have in common. The latter removes folders with the official SDK, too,
because its own client cannot list all that is in them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_cloudbench.drivers._s3_profile import ProfileKeys
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    RequestCount,
    detail_of,
    endpoint_of,
    timeout_of,
    usable_credentials,
)
from pytest_cloudbench.drivers.egress import Egress, egress_of, is_on_this_machine
from pytest_cloudbench.drivers.keys import key_of, md5_of, path_of
from pytest_cloudbench.drivers.pages import PageTokens
from pytest_cloudbench.drivers.sdk import (
    UNLIMITED_POOL,
    UNREADABLE,
    Meaning,
    OwnError,
    SdkDriver,
    meaning_of_refusal,
    network_failure,
)
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

REGION = "us-east-1"
"""The region of a spec that names none."""

# Above this a put is an upload in parts. Services take up to 5 GiB at once; parts bound what a lost connection costs.
MULTIPART_BYTES = 64 * MIB
PART_BYTES = 16 * MIB
_MOST_PARTS = 10_000

CAPABILITIES = Capabilities(
    digest="md5",
    max_digest_bytes=MULTIPART_BYTES,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    server_side_copy=True,
    max_request_bytes=MULTIPART_BYTES,
    requests={Verb.PUT: 1, Verb.GET: 1, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 2, Verb.COPY: 2},
)
"""Without ``via``, which differs between the drivers."""

_AMAZON = "https://{bucket}.s3.{region}.amazonaws.com"
_DELETED_AT_ONCE = 1000
_NOT_IMPLEMENTED = 501
_NO_LISTING = frozenset({"ResponseMetadata", "RequestCharged"})
"""What the SDK takes from the headers of an answer."""
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")

CODE_KINDS: Mapping[str, ErrorKind] = {
    "SlowDown": ErrorKind.THROTTLED,
    "Throttling": ErrorKind.THROTTLED,
    "ThrottlingException": ErrorKind.THROTTLED,
    "TooManyRequests": ErrorKind.THROTTLED,
    "RequestLimitExceeded": ErrorKind.THROTTLED,
    "BadDigest": ErrorKind.CORRUPT,
    "XAmzContentChecksumMismatch": ErrorKind.CORRUPT,
    "XAmzContentSHA256Mismatch": ErrorKind.CORRUPT,
    "QuotaExceeded": ErrorKind.QUOTA,
    "StorageQuotaExceeded": ErrorKind.QUOTA,
    "XMinioStorageFull": ErrorKind.QUOTA,
    "XMinioAdminBucketQuotaExceeded": ErrorKind.QUOTA,  # with status 400
    "ExpiredToken": ErrorKind.AUTH,
    "InvalidToken": ErrorKind.AUTH,
    "RequestTimeout": ErrorKind.NETWORK,  # the server waited for the rest of the request
    "IncompleteBody": ErrorKind.NETWORK,
}
"""What a refusal's code means, of Amazon or of services with its API. Where it is not known, its status decides."""

# The answers of services that lack an operation, such as the listing of versions, or have nothing to list.
_NOT_OFFERED = frozenset({"NotImplemented", "MethodNotAllowed", "AccessDenied", "NoSuchUpload", "501", "405", "403"})


def _meaning_of(error: Any) -> Meaning:
    request, problem = error.response.get("ResponseMetadata", {}), error.response.get("Error", {})
    code, status = str(problem.get("Code", "")), int(request.get("HTTPStatusCode", 0))
    # Without the code, the SDK gives the status in its place.
    words = " ".join(text for text in dict.fromkeys((code, str(problem.get("Message", "")))) if text != str(status))
    return meaning_of_refusal(status, words.strip(), request.get("HTTPHeaders", {}), CODE_KINDS.get(code))


def entry_of_object(path: str, size_bytes: int, etag: str | None, *, tells_md5: bool) -> Entry:
    """Return the entry of an object. Its ETag is its digest, unless it was uploaded in parts."""
    has_digest = tells_md5 and size_bytes <= MULTIPART_BYTES
    return Entry(path, size_bytes=size_bytes, digest=md5_of(etag) if has_digest else None)


def part_size(size_bytes: int, part_bytes: int) -> int:
    """Return the size of an upload's parts: ``part_bytes``, or more if these would be too many parts."""
    return max(part_bytes, -(-size_bytes // _MOST_PARTS))


class S3Bucket(SdkDriver):
    """One bucket. Its client may be shared by all threads."""

    imports = ("boto3", "botocore.handlers", "botocore.parsers", "botocore.session", "urllib3.exceptions")
    libraries = ("boto3", "botocore", "urllib3")
    list_page_entries: int | None = None

    def __init__(self, client: Any, bucket: str, egress: Egress) -> None:
        from botocore import exceptions, handlers, parsers
        from urllib3.exceptions import HTTPError

        super().__init__(RequestCount(), egress.remarks, client, egress)
        self._errors, self._unreadable, self._cut = exceptions, parsers.ResponseParserError, HTTPError
        self._client, self._bucket = client, bucket
        self._has_versions = True
        client.meta.events.register("before-send.s3", self._sent.count)
        client.meta.events.register("before-call.s3", _never_redirect)
        # The handler adds a header of Lambda's, from variables that it reads before each request.
        client.meta.events.unregister("before-call", handlers.add_recursion_detection_header)
        client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)

    def _explain_error(self, error: Exception) -> Meaning | None:
        errors = self._errors
        if isinstance(error, errors.ClientError):
            return _meaning_of(error)
        if isinstance(error, self._unreadable):
            return UNREADABLE
        if isinstance(error, errors.FlexibleChecksumError):
            return Meaning(ErrorKind.CORRUPT, str(error))
        # Where an answer to be parsed is cut, the SDK lets through what the HTTP library raises.
        broken = (errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError, self._cut, OSError)
        if isinstance(error, broken):
            return network_failure(error)
        if isinstance(error, (errors.BotoCoreError, UnicodeError)):
            return Meaning(ErrorKind.INVALID, str(error))
        if isinstance(error, KeyError):
            return Meaning(ErrorKind.SERVER, f"the answer has no {error.args[0]}")
        return None

    def _list_objects(self, verb: str, path: str, prefix: str) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {}
        where: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix}
        tokens = PageTokens(verb, path)
        if self.list_page_entries:
            where["MaxKeys"] = self.list_page_entries
        while not page or page.get("IsTruncated"):
            with self._cloud_errors(verb, path):
                more = {"ContinuationToken": page["NextContinuationToken"]} if page else {}
                page = _require_listing(self._client.list_objects_v2(**where, **more))
            yield from page.get("Contents", ())
            tokens.use(page.get("NextContinuationToken"))

    def delete(self, path: str) -> None:
        """Remove an object, or all whose keys begin with the path, with their versions and unfinished uploads."""
        key = "" if path == "/" else key_of("delete", path)
        with self._cloud_errors("delete", path):
            page: Any = _require_listing(self._client.list_objects_v2(Bucket=self._bucket, Prefix=key)) if key else {}
        keys = [row["Key"] for row in page.get("Contents", ())]
        is_file = key in keys
        if is_file:
            with self._cloud_errors("delete", path):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        # Other keys may begin alike and sort before the slash; only a complete page shows that nothing is below.
        if not is_file or page.get("IsTruncated") or any(other.startswith(f"{key}/") for other in keys):
            self._delete_below(path, f"{key}/" if key else "")

    def _delete_below(self, path: str, prefix: str) -> None:
        """Remove first what no listing of objects shows, so that an interrupted removal can be noticed and repeated."""
        self._abort_below(path, prefix)
        batch: list[dict[str, str]] = []
        for row in self._versions_below(path, prefix):
            if _NOT_IN_XML.search(row["Key"]):  # the list of what to delete could not name it
                with self._cloud_errors("delete", path):
                    self._client.delete_object(Bucket=self._bucket, **row)
                continue
            batch.append(row)
            if len(batch) == _DELETED_AT_ONCE:
                self._delete_batch(path, batch)
                batch = []
        if batch:
            self._delete_batch(path, batch)

    def _versions_below(self, path: str, prefix: str) -> Iterator[dict[str, str]]:
        """Yield what to remove: all versions, former ones first, or the objects of a service that lists no versions."""
        marks: dict[str, str] = {}
        newest: list[dict[str, str]] = []
        tokens = PageTokens("delete", path)
        where = {"Bucket": self._bucket, "Prefix": prefix}
        while self._has_versions:
            with self._cloud_errors("delete", path):
                try:
                    page = _require_listing(self._client.list_object_versions(**where, **marks))
                except self._errors.ClientError as error:
                    if error.response["Error"]["Code"] not in _NOT_OFFERED:
                        raise
                    self._has_versions = False
                    break
                for row in [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]:
                    version = {"Key": row["Key"], "VersionId": row["VersionId"]}
                    if row.get("IsLatest") and "ETag" in row:  # a delete marker has none
                        newest.append(version)
                    else:
                        yield version
                if not page.get("IsTruncated"):
                    yield from newest
                    return
                marks = {"KeyMarker": page["NextKeyMarker"]}
                if page.get("NextVersionIdMarker"):
                    marks["VersionIdMarker"] = page["NextVersionIdMarker"]
                tokens.use(tuple(marks.values()))
        yield from ({"Key": row["Key"]} for row in self._list_objects("delete", path, prefix))

    def _delete_batch(self, path: str, batch: Sequence[Mapping[str, str]]) -> None:
        """Remove many objects with one request, or one by one if the service refuses that."""
        try:
            with self._cloud_errors("delete", path):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
        except CloudError as refusal:
            if not _is_refused_batch(refusal):
                raise
            for row in batch:
                with self._cloud_errors("delete", path_of(row["Key"])):
                    self._client.delete_object(Bucket=self._bucket, **row)
            return
        for refused in answer.get("Errors", ()):
            code = str(refused.get("Code", ""))
            detail = detail_of(f"{code} {refused.get('Message', '')}", refused.get("Key", ""))
            kind = CODE_KINDS.get(code) or (ErrorKind.AUTH if code == "AccessDenied" else ErrorKind.SERVER)
            raise CloudError(kind, "delete", path_of(refused.get("Key", "")), detail=detail)

    def _abort_below(self, path: str, prefix: str) -> None:
        """Abort unfinished uploads in parts: they cost money, and no listing of objects shows them."""
        marks: dict[str, str] = {}
        tokens = PageTokens("delete", path)
        where = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            with self._cloud_errors("delete", path):
                try:
                    page = self._client.list_multipart_uploads(**where, **marks)
                except self._errors.ClientError as error:
                    if error.response["Error"]["Code"] not in _NOT_OFFERED:
                        raise
                    return
                for row in page.get("Uploads", ()):
                    if row["Key"].startswith(prefix):
                        self._abort_unfinished(row["Key"], row["UploadId"])
                if not page.get("IsTruncated"):
                    return
                marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
                tokens.use(tuple(marks.values()))

    def _abort_unfinished(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload_id)
        except self._errors.ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchUpload":  # it has ended meanwhile
                raise


def _require_listing(page: dict[str, Any]) -> dict[str, Any]:
    """Return a page of a listing. Raises OwnError for an answer without any word of one, such as a proxy's page.

    The SDK reads that as a page without objects, so that all of them would seem lost.
    """
    if page.keys() <= _NO_LISTING:
        raise OwnError(ErrorKind.SERVER, "the answer is no listing")
    return page


def bucket_egress(spec: ProviderSpec, endpoint: Endpoint | None) -> Egress:
    """Return how requests to a bucket leave this machine. Raises UsageError."""
    return egress_of(endpoint, endpoint_of(spec) or _amazon_url(spec))


def _amazon_url(spec: ProviderSpec) -> str:
    return _AMAZON.format(bucket=spec.target, region=spec.params.get("region", REGION))


def signing_keys(spec: ProviderSpec, sets: Sequence[CredentialSet], fields: Mapping[str, str]) -> Mapping[str, str]:
    """Return the credentials that sign requests. Raises CredentialsError if they are incomplete.

    The user's own server may want no credentials, and then ignores the signature.
    """
    if not fields and is_on_this_machine(spec.params.get("endpoint", "")):
        return {"access_key_id": "anonymous", "secret_access_key": "anonymous"}
    return usable_credentials(spec.scheme, sets, fields)


def sdk_client(
    spec: ProviderSpec, endpoint: Endpoint | None, secrets: Mapping[str, str] | ProfileKeys, egress: Egress,
    *, checks: bool,
) -> Any:  # fmt: skip
    """Return a client that sends each request once. Raises SpecError."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.loaders import Loader
    from botocore.session import Session

    url = endpoint.url if endpoint else endpoint_of(spec)
    proxy = egress.proxy_for(url or _amazon_url(spec))
    when = "when_supported" if checks else "when_required"
    s3 = {
        "addressing_style": addressing_of(spec) or ("path" if url else "auto"),
        **({} if checks else {"payload_signing_enabled": False}),
    }
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=UNLIMITED_POOL,
        connect_timeout=timeout_of(spec),
        read_timeout=timeout_of(spec),
        request_checksum_calculation=when,
        response_checksum_validation=when,
        signature_version="s3v4",
        proxies=dict.fromkeys(("http", "https"), proxy) if proxy else {},
        s3=s3,
    )
    session_vars = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
        "ignore_configured_endpoint_urls": (None, None, True, None),
    }
    session = Session(session_vars=session_vars)
    # Not the files in the home folder, which would replace the SDK's own descriptions of services.
    models = Loader([Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    session.register_component("data_loader", models)
    keys: dict[str, str | None] = {}
    if isinstance(secrets, ProfileKeys):
        session.register_component("credential_provider", secrets)
    else:
        keys["aws_access_key_id"] = secrets["access_key_id"]
        keys["aws_secret_access_key"] = secrets["secret_access_key"]
        keys["aws_session_token"] = secrets.get("session_token")
    try:
        return boto3.Session(botocore_session=session).client(
            "s3",
            region_name=spec.params.get("region", REGION),
            endpoint_url=url or None,
            verify=egress.trusted_file() or True,
            config=config,
            **keys,
        )
    except (BotoCoreError, OSError, ValueError) as error:
        raise SpecError(f"provider {spec.text!r}: {redact.clean(str(error))}") from error


def addressing_of(spec: ProviderSpec) -> str:
    """Return how the spec says that a bucket is addressed: ``path`` (HOST/BUCKET), ``virtual`` (BUCKET.HOST), or "".

    Without it, buckets of Amazon are virtual, and those at an endpoint are not: few servers have names for buckets.
    Raises SpecError.
    """
    style = spec.params.get("addressing", "")
    if style not in {"path", "virtual"} and "addressing" in spec.params:
        raise SpecError(f"provider {spec.text!r}: addressing is path or virtual, not {style!r}")
    return style


def _never_redirect(context: dict[str, Any], **_: object) -> None:
    """Set the mark that the SDK puts on a request it has sent to another region, so that it never redirects one."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _add_content_md5(params: dict[str, Any], **_: object) -> None:
    """Add the digest that many services want with DeleteObjects. The SDK sends only newer ones, which they ignore."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _is_refused_batch(error: CloudError) -> bool:
    """Return whether a service may take single deletions although it has refused many at once.

    It may not if it has not answered, is in trouble or asks to slow down.
    """
    response: Mapping[str, Any] = getattr(error.__cause__, "response", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return error.kind is not ErrorKind.THROTTLED and (400 <= status < 500 or status == _NOT_IMPLEMENTED)
