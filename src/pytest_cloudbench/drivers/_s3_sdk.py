"""A bucket of Amazon's API through the official SDK: its client, its errors, and removing all that a folder holds.

What may live here: what ``s3`` and the cleaning of ``s3+fast``, whose own client cannot list all of it, have in common.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pytest_cloudbench.drivers.base import (
    detail_of,
    detail_of_error,
    endpoint_of,
    kind_of_status,
    seconds_of,
    timeout_of,
)
from pytest_cloudbench.drivers.egress import Egress, leaving
from pytest_cloudbench.drivers.keys import key_of, path_of
from pytest_cloudbench.model import CloudError, Endpoint, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.support import redact

REGION = "us-east-1"
"""The region of a spec that names none."""

_AMAZON = "https://{bucket}.s3.{region}.amazonaws.com"
_CONNECTIONS = 256
_DELETED_AT_ONCE = 1000
_NOT_IMPLEMENTED = 501
_NOT_IN_XML = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")

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


class S3Bucket:
    """One bucket. Its client may be shared by all threads."""

    list_page_entries: int | None = None

    def __init__(self, client: Any, bucket: str) -> None:
        from botocore import exceptions, handlers, parsers
        from urllib3.exceptions import HTTPError

        self._errors, self._unreadable, self._cut = exceptions, parsers.ResponseParserError, HTTPError
        self._client, self._bucket = client, bucket
        self._has_versions = True
        client.meta.events.register("before-call.s3", _never_redirect)
        # It adds a header of Lambda's, from variables that it reads before each request.
        client.meta.events.unregister("before-call", handlers.add_recursion_detection_header)
        client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

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
        except (  # the last one but OSError where an answer to be parsed is cut: the SDK lets it through
            errors.HTTPClientError, errors.ConnectionError, errors.IncompleteReadError, self._cut, OSError,
        ) as error:  # fmt: skip
            raise CloudError(ErrorKind.NETWORK, verb, path, detail=detail_of_error(error, path)) from error
        except (errors.BotoCoreError, UnicodeError) as error:
            raise CloudError(ErrorKind.INVALID, verb, path, detail=detail_of_error(error, path)) from error
        except KeyError as error:
            raise CloudError(ErrorKind.SERVER, verb, path, detail=f"the answer has no {error.args[0]}") from error

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
        """Remove many objects with one request; one by one if the service refuses that."""
        try:
            with self._calling("delete", path):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": batch, "Quiet": True})
        except CloudError as refusal:
            if not _is_refused_batch(refusal):
                raise
            for row in batch:
                with self._calling("delete", path_of(row["Key"])):
                    self._client.delete_object(Bucket=self._bucket, **row)
            return
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


def egress_of(spec: ProviderSpec, endpoint: Endpoint | None) -> Egress:
    """Return how requests to a bucket leave this machine. Raises UsageError."""
    return leaving(endpoint, endpoint_of(spec) or _amazon(spec))


def _amazon(spec: ProviderSpec) -> str:
    return _AMAZON.format(bucket=spec.target, region=spec.params.get("region", REGION))


def sdk_client(
    spec: ProviderSpec, endpoint: Endpoint | None, secrets: Mapping[str, str], egress: Egress, *, checks: bool
) -> Any:
    """Return a client that sends each request once. Raises SpecError."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.loaders import Loader
    from botocore.session import Session

    url = endpoint.url if endpoint else endpoint_of(spec)
    proxy = egress.proxy_for(url or _amazon(spec))
    when = "when_supported" if checks else "when_required"
    s3 = {
        "addressing_style": addressing_of(spec) or ("path" if url else "auto"),
        **({} if checks else {"payload_signing_enabled": False}),
    }
    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=_CONNECTIONS,
        connect_timeout=timeout_of(spec),
        read_timeout=timeout_of(spec),
        request_checksum_calculation=when,
        response_checksum_validation=when,
        signature_version="s3v4",
        proxies=dict.fromkeys(("http", "https"), proxy) if proxy else {},
        s3=s3,
    )
    nothing = {
        "profile": (None, None, None, None),
        "config_file": (None, None, os.devnull, None),
        "credentials_file": (None, None, os.devnull, None),
        "ignore_configured_endpoint_urls": (None, None, True, None),
    }
    session = Session(session_vars=nothing)
    # Not those in the home, which would replace the SDK's own descriptions of services.
    models = Loader([Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    session.register_component("data_loader", models)
    try:
        return boto3.Session(botocore_session=session).client(
            "s3",
            region_name=spec.params.get("region", REGION),
            endpoint_url=url or None,
            verify=egress.trusted or True,
            aws_access_key_id=secrets["access_key_id"],
            aws_secret_access_key=secrets["secret_access_key"],
            aws_session_token=secrets.get("session_token"),
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise SpecError(f"provider {spec.text!r}: {redact.clean(str(error))}") from error


def addressing_of(spec: ProviderSpec) -> str:
    """Returns how the spec says that a bucket is addressed: ``path`` (HOST/BUCKET), ``virtual`` (BUCKET.HOST), or "".

    Without it, Amazon's are virtual, and those at an endpoint are not: few servers have a name for each bucket.
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
    """Add the digest that many services want with DeleteObjects; the SDK sends only newer ones, which they ignore."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _is_refused_batch(error: CloudError) -> bool:
    """Returns whether a service may take single deletions although it has refused many at once.

    Not if it has not answered, is in trouble or wants to be left alone.
    """
    response: Mapping[str, Any] = getattr(error.__cause__, "response", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return error.kind is not ErrorKind.THROTTLED and (400 <= status < 500 or status == _NOT_IMPLEMENTED)


def _refusal(error: Any, verb: str, path: str) -> CloudError:
    about, answer = error.response.get("ResponseMetadata", {}), error.response.get("Error", {})
    code, status = str(answer.get("Code", "")), int(about.get("HTTPStatusCode", 0))
    retry_after_s = seconds_of(about.get("HTTPHeaders", {}).get("retry-after"))
    said = " ".join(dict.fromkeys(filter(None, (str(status), code, str(answer.get("Message", ""))))))
    told = detail_of(said, path)
    redact.clean_error(error)  # a service may repeat what it was sent
    return CloudError(_kind(code, status), verb, path, retry_after_s=retry_after_s, detail=told)
