"""Driver for Amazon S3, and services with its API, with the official SDK (boto3).

What may live here: everything that is special to S3 as a client, in this order: imports, capabilities, error table,
connect, required verbs, optional verbs.

What the SDK does on its own, and how this driver handles it:

- It sends a request up to five times, and once more to another region or host if an answer names one: both are off, one
  call is one request and a redirect is an error.
- It computes a CRC of each upload, and compares that of each download: off, because that measures the client's CPU;
  ``?checksum=1`` turns it on, and a mismatch then has the kind ``corrupt``.
- If it sends no checksum, it reads a body twice to sign it: off, the body is unsigned, as by the SDK's own defaults
  over TLS.
- It reads the user's AWS configuration, which could change all of this: not read.

``delete`` lists before it deletes, because S3 has no folders and does not say that a key did not exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from typing import Any, ClassVar

from pytest_cloudbench import redact
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    RequestCount,
    check_params,
    detail_of,
    detail_of_error,
    kind_of_status,
    seconds_of,
    timeout_of,
    usable_credentials,
)
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
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
)

__all__ = ["S3Driver"]

# --- capabilities ---------------------------------------------------------------------------------

# Above this a put is an upload in parts. Services take up to 5 GiB at once; parts bound what a lost connection costs.
_MULTIPART_BYTES = 64 * MIB
_PART_BYTES = 16 * MIB
_MOST_PARTS = 10_000

_CAPABILITIES = Capabilities(
    digest="md5",
    max_digest_bytes=_MULTIPART_BYTES,
    verbs=frozenset({Verb.PUT, Verb.GET, Verb.STAT, Verb.LIST, Verb.DELETE, Verb.COPY}),
    ranges=True,
    folders=False,
    lists_by_prefix=True,
    deletes_missing=True,
    server_side_copy=True,
    names=NameRules(),
    max_request_bytes=_MULTIPART_BYTES,
    requests={Verb.PUT: 1, Verb.GET: 1, Verb.STAT: 1, Verb.LIST: 1, Verb.DELETE: 2, Verb.COPY: 2},
    via="boto3 on urllib3; retries, redirects and checksums off; the body is not signed",
)

_PARAMS = frozenset({"endpoint", "region", "checksum", "etag", "timeout_s", "token_env"})
_REGION = "us-east-1"
_TIMEOUT_S = 100.0
_CONNECTIONS = 256
# Up to this size, a body in one piece costs less than a file.
_ONE_PIECE_BYTES = MIB
_READ_PIECE_BYTES = 64 * KIB
# The HTTP library waits for a whole piece: a small first one marks the first byte.
_FIRST_READ_BYTES = 1 * KIB
_DELETED_AT_ONCE = 1000
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")

# --- error table ----------------------------------------------------------------------------------

_CODE_KINDS: Mapping[str, ErrorKind] = {
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
    "ExpiredToken": ErrorKind.AUTH,
    "InvalidToken": ErrorKind.AUTH,
    "RequestTimeout": ErrorKind.NETWORK,  # the server waited for the rest of the request
    "IncompleteBody": ErrorKind.NETWORK,
}


# The answers of services that lack an operation, such as the listing of versions, or have nothing to list.
_NOT_OFFERED = frozenset({"NotImplemented", "MethodNotAllowed", "AccessDenied", "NoSuchUpload", "501", "405", "403"})


def _kind(code: str, status: int) -> ErrorKind:
    return _CODE_KINDS.get(code) or kind_of_status(status)


# --- connect --------------------------------------------------------------------------------------


class S3Driver:
    """One SDK client, shared by all threads, with a pool of connections that is large enough for them."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_key_id", "secret_access_key"), ("session_token",), public=("access_key_id",)),
        CredentialSet(("profile",), public=("profile",)),
    )
    multipart_bytes = _MULTIPART_BYTES
    part_bytes = _PART_BYTES
    list_page_entries: int | None = None

    def __init__(self, client: Any, bucket: str, *, tells_md5: bool = True) -> None:
        from botocore import exceptions, parsers

        self._errors, self._unreadable = exceptions, parsers.ResponseParserError
        self._client, self._bucket, self._tells_md5 = client, bucket, tells_md5
        self._sent = RequestCount()
        self._has_versions = True
        client.meta.events.register("before-send.s3", self._sent.count)
        client.meta.events.register("before-call.s3", _never_redirect)

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> S3Driver:
        """Returns the driver for ``s3://BUCKET``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        if not spec.target or "/" in spec.target:
            raise SpecError(f"provider {spec.text!r}: expected s3://BUCKET")
        checksum, etag = spec.params.get("checksum", "0"), spec.params.get("etag", "md5")
        if checksum not in {"0", "1"}:
            raise SpecError(f"provider {spec.text!r}: checksum is 0 or 1, not {checksum!r}")
        if etag not in {"md5", "opaque"}:
            raise SpecError(f"provider {spec.text!r}: etag is md5 or opaque, not {etag!r}")
        given = endpoint.credentials if endpoint else credentials
        secrets = usable_credentials(spec.scheme, cls.credential_sets, given)
        secrets = _of_profile(secrets["profile"]) if "profile" in secrets else secrets
        client = _client(spec, endpoint, secrets, checks=checksum == "1")
        return cls(client, spec.target, tells_md5=etag == "md5")

    def versions(self) -> Mapping[str, str]:
        """Returns the libraries, and what is switched off in them."""
        config = self._client.meta.config
        checks = config.request_checksum_calculation == "when_supported"
        return {name: version(name) for name in ("boto3", "botocore", "urllib3")} | {
            "boto3.retries": "off",
            "boto3.redirects": "off",
            "boto3.checksums": "on" if checks else "off",
            "boto3.signed_body": "on" if checks else "off",
        }

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def requests(self) -> int:
        """Returns how many requests this thread has sent so far."""
        return self._sent.requests

    @contextmanager
    def _calling(self, verb: str, path: str) -> Iterator[None]:
        """Turns every error of the SDK into CloudError."""
        errors = self._errors
        try:
            yield
        except errors.ClientError as error:
            raise _refusal(error, verb, path) from error
        except self._unreadable as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail="the answer cannot be read") from error
        except errors.FlexibleChecksumError as error:
            raise CloudError(ErrorKind.CORRUPT, verb, path, detail=detail_of_error(error, path)) from error
        except (errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError, OSError) as error:
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail_of_error(error, path)) from error
        except (errors.BotoCoreError, UnicodeError) as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail=detail_of_error(error, path)) from error
        except KeyError as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail=f"the answer has no {error.args[0]}") from error

    def _entry(self, path: str, size_bytes: int, etag: str | None) -> Entry:
        has_digest = self._tells_md5 and size_bytes <= _MULTIPART_BYTES
        return Entry(path, size_bytes=size_bytes, digest=md5_of(etag) if has_digest else None)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or in parts if the file is large."""
        key, size_bytes = key_of("put", path), content.size_bytes
        if size_bytes > self.multipart_bytes:
            return self._put_in_parts(path, key, content)
        body = content.read(0, size_bytes) if size_bytes <= _ONE_PIECE_BYTES else ContentFile(content)
        with self._calling("put", path):
            answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=body, ContentLength=size_bytes)
            return self._entry(path, size_bytes, answer["ETag"])

    def _put_in_parts(self, path: str, key: str, content: Content) -> Entry:
        """Upload parts one after the other; if one fails, those stored are removed."""
        size_bytes = content.size_bytes
        part_bytes = max(self.part_bytes, -(-size_bytes // _MOST_PARTS))
        place = {"Bucket": self._bucket, "Key": key}
        with self._calling("put", path):
            upload = {**place, "UploadId": self._client.create_multipart_upload(**place)["UploadId"]}
        try:
            parts = []
            for number, begin in enumerate(range(0, size_bytes, part_bytes), 1):
                body = ContentFile(content, begin, min(part_bytes, size_bytes - begin))
                with self._calling("put", path):
                    etag = self._client.upload_part(**upload, PartNumber=number, Body=body, ContentLength=len(body))
                    parts.append({"PartNumber": number, "ETag": etag["ETag"]})
            with self._calling("put", path):
                answer = self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
                return self._entry(path, size_bytes, answer["ETag"])
        except BaseException:
            self._abort(upload)
            raise

    def _abort(self, upload: Mapping[str, Any]) -> None:
        try:
            self._client.abort_multipart_upload(**upload)
        except (self._errors.ClientError, self._errors.BotoCoreError, OSError):
            return  # the upload's error is the one to raise; `delete` of the folder finds what is left

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yields the object's bytes from ``offset``; sends the request when the first piece is asked for."""
        more = {"Range": f"bytes={offset}-"} if offset else {}
        key = key_of("get", path)
        with self._calling("get", path):
            answer = self._client.get_object(Bucket=self._bucket, Key=key, **more)
            with closing(answer["Body"]) as body:
                # Not judged by the status: rclone's server sends a range with 200.
                if offset and not answer.get("ContentRange", "").startswith(f"bytes {offset}-"):
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                piece_bytes = _FIRST_READ_BYTES
                while piece := body.read(piece_bytes):
                    yield piece
                    piece_bytes = _READ_PIECE_BYTES

    def stat(self, path: str) -> Entry:
        """Returns what S3 knows about one key."""
        key = key_of("stat", path)
        with self._calling("stat", path):
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
            return self._entry(path, answer["ContentLength"], answer["ETag"])

    def list(self, folder: str) -> Iterator[Entry]:
        """Yields all objects whose keys begin with the folder's path, page by page."""
        for row in self._rows("list", folder, prefix_of("list", folder)):
            if not row["Key"].endswith("/"):  # an empty object by which consoles show a folder
                yield self._entry(path_of(row["Key"]), row["Size"], row.get("ETag"))

    def _rows(self, verb: str, path: str, prefix: str) -> Iterator[dict[str, Any]]:
        page: dict[str, Any] = {}
        where: dict[str, Any] = {"Bucket": self._bucket, "Prefix": prefix}
        if self.list_page_entries:
            where["MaxKeys"] = self.list_page_entries
        while not page or page.get("IsTruncated"):
            with self._calling(verb, path):
                more = {"ContinuationToken": page["NextContinuationToken"]} if page else {}
                page = self._client.list_objects_v2(**where, **more)
            yield from page.get("Contents", ())

    def delete(self, path: str) -> None:
        """Remove an object, or all whose keys begin with the path: their versions and unfinished uploads too."""
        key = "" if path == "/" else key_of("delete", path)
        with self._calling("delete", path):
            page: Any = self._client.list_objects_v2(Bucket=self._bucket, Prefix=key) if key else {}
        found = [row["Key"] for row in page.get("Contents", ())]
        is_file = key in found
        if is_file:
            with self._calling("delete", path):
                self._client.delete_object(Bucket=self._bucket, Key=key)
        # Other keys may begin alike and sort before the slash; only a complete page shows that nothing is below.
        if not is_file or page.get("IsTruncated") or any(each.startswith(f"{key}/") for each in found):
            self._delete_below(path, f"{key}/" if key else "")

    def _delete_below(self, path: str, prefix: str) -> None:
        """Remove first what no listing of objects shows: an interrupted removal can be told and repeated."""
        self._abort_below(path, prefix)
        batch: list[dict[str, str]] = []
        for row in self._versions_below(path, prefix):
            if _NOT_IN_XML.search(row["Key"]):  # the list of what to delete could not name it
                with self._calling("delete", path):
                    self._client.delete_object(Bucket=self._bucket, **row)
                continue
            batch.append(row)
            if len(batch) == _DELETED_AT_ONCE:
                self._delete_batch(path, batch)
                batch = []
        if batch:
            self._delete_batch(path, batch)

    def _versions_below(self, path: str, prefix: str) -> Iterator[dict[str, str]]:
        """What to remove: all versions, former ones first; or the listed objects, if there are none to be listed."""
        marks: dict[str, str] = {}
        newest: list[dict[str, str]] = []
        where = {"Bucket": self._bucket, "Prefix": prefix}
        while self._has_versions:
            with self._calling("delete", path):
                try:
                    page = self._client.list_object_versions(**where, **marks)
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
        yield from ({"Key": row["Key"]} for row in self._rows("delete", path, prefix))

    def _delete_batch(self, path: str, batch: Sequence[Mapping[str, str]]) -> None:
        with self._calling("delete", path):
            answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
        for refused in answer.get("Errors", ()):
            code = str(refused.get("Code", ""))
            told = detail_of(f"{code} {refused.get('Message', '')}", refused.get("Key", ""))
            kind = _CODE_KINDS.get(code) or (ErrorKind.AUTH if code == "AccessDenied" else ErrorKind.SERVER)
            raise CloudError(kind, "delete", path_of(refused.get("Key", "")), detail=told)

    def _abort_below(self, path: str, prefix: str) -> None:
        """Abort unfinished uploads in parts: they cost money, and no listing of objects shows them."""
        marks: dict[str, str] = {}
        where = {"Bucket": self._bucket, "Prefix": prefix}
        while True:
            with self._calling("delete", path):
                try:
                    page = self._client.list_multipart_uploads(**where, **marks)
                except self._errors.ClientError as error:
                    if error.response["Error"]["Code"] not in _NOT_OFFERED:
                        raise
                    return
                for row in page.get("Uploads", ()):
                    if row["Key"].startswith(prefix):
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=row["Key"], UploadId=row["UploadId"]
                        )
                if not page.get("IsTruncated"):
                    return
                marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def mkdir(self, path: str) -> None:
        """There are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the bucket; an existing target is replaced."""
        origin = {"Bucket": self._bucket, "Key": key_of("copy", source)}
        key = key_of("copy", target)
        with self._calling("copy", source):
            _ = self._client.copy_object(Bucket=self._bucket, Key=key, CopySource=origin)["CopyObjectResult"]["ETag"]
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
            return self._entry(target, answer["ContentLength"], answer["ETag"])


def _client(spec: ProviderSpec, endpoint: Endpoint | None, secrets: Mapping[str, str], *, checks: bool) -> Any:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    url = endpoint.url if endpoint else spec.params.get("endpoint")
    when = "when_supported" if checks else "when_required"
    s3 = {"addressing_style": "path" if url else "auto", **({} if checks else {"payload_signing_enabled": False})}
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=_CONNECTIONS,
        connect_timeout=timeout_of(spec, _TIMEOUT_S),
        read_timeout=timeout_of(spec, _TIMEOUT_S),
        request_checksum_calculation=when,
        response_checksum_validation=when,
        signature_version="s3v4",
        proxies=None if endpoint is None else {"https": endpoint.proxy} if endpoint.proxy else {},
        s3=s3,
    )
    nothing = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
        "ignore_configured_endpoint_urls": (None, None, True, None),
    }
    try:
        return boto3.Session(botocore_session=Session(session_vars=nothing)).client(
            "s3",
            region_name=spec.params.get("region", _REGION),
            endpoint_url=url,
            verify=endpoint.ca_file if endpoint and endpoint.ca_file else None,
            aws_access_key_id=secrets["access_key_id"],
            aws_secret_access_key=secrets["secret_access_key"],
            aws_session_token=secrets.get("session_token"),
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise SpecError(f"provider {spec.text!r}: {redact.clean(str(error))}") from error


def _of_profile(name: str) -> Mapping[str, str]:
    """Returns the keys of a profile in the user's own AWS files. Raises CredentialsError."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        found = boto3.Session(profile_name=name).get_credentials()
        keys = found.get_frozen_credentials() if found is not None else None
    except BotoCoreError as error:
        raise CredentialsError(f"s3: profile {name}: {redact.clean(str(error))}") from error
    if keys is None or not keys.access_key or not keys.secret_key:
        raise CredentialsError(f"s3: profile {name}: it has no keys; see ~/.aws/credentials")
    given = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "session_token": keys.token or ""}
    redact.learn([keys.secret_key, *([keys.token] if keys.token else [])])
    return {field: value for field, value in given.items() if value}


def _never_redirect(context: dict[str, Any], **_: object) -> None:
    """Set the mark that the SDK puts on a request it has sent to another region, so that it never redirects one."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _refusal(error: Any, verb: str, path: str) -> CloudError:
    about, answer = error.response.get("ResponseMetadata", {}), error.response.get("Error", {})
    code, status = str(answer.get("Code", "")), int(about.get("HTTPStatusCode", 0))
    retry_after_s = seconds_of(about.get("HTTPHeaders", {}).get("retry-after"))
    said = " ".join(dict.fromkeys(filter(None, (str(status), code, str(answer.get("Message", ""))))))
    told = detail_of(said, path)
    redact.clean_error(error)  # a service may repeat what it was sent
    return CloudError(_kind(code, status), verb, path, retry_after_s=retry_after_s, detail=told)
