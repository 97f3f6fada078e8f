"""Driver for Amazon S3, and services with its API, with the official SDK (boto3).

What may live here: everything that is special to S3 as a client, in this order: imports, capabilities, connect,
required verbs, optional verbs. The SDK's client, its errors and ``delete`` are in ``_s3_sdk``.

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

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar

from pytest_cloudbench.drivers._s3_profile import ProfileKeys
from pytest_cloudbench.drivers._s3_sdk import (
    CAPABILITIES,
    MULTIPART_BYTES,
    PART_BYTES,
    S3Bucket,
    bucket_egress,
    entry_of_object,
    part_size,
    sdk_client,
    signing_keys,
)
from pytest_cloudbench.drivers.base import CredentialSet, check_params, choice_of
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.drivers.keys import ContentFile, bucket_of, key_of, path_of, prefix_of
from pytest_cloudbench.drivers.sdk import read_pieces
from pytest_cloudbench.model import (
    MIB,
    Capabilities,
    CloudError,
    Content,
    Endpoint,
    Entry,
    ErrorKind,
    ProviderSpec,
)

# --- capabilities ---------------------------------------------------------------------------------

_CAPABILITIES = replace(
    CAPABILITIES, via="boto3 on urllib3; retries, redirects and checksums off; the body is not signed"
)

_PARAMS = frozenset({"endpoint", "region", "addressing", "checksum", "etag", "timeout_s", "token_env"})
# Up to this size, a body in one piece costs less than a file.
_ONE_PIECE_BYTES = MIB

# --- connect --------------------------------------------------------------------------------------


class S3Driver(S3Bucket):
    """One SDK client, shared by all threads, with a pool of connections that is large enough for them."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_key_id", "secret_access_key"), ("session_token",), public=("access_key_id",)),
        CredentialSet(("profile",), public=("profile",), free=("profile",)),
    )
    multipart_bytes = MULTIPART_BYTES
    part_bytes = PART_BYTES

    def __init__(
        self, client: Any, bucket: str, egress: Egress, profile: ProfileKeys | None = None, *, tells_md5: bool = True
    ) -> None:
        super().__init__(client, bucket, egress)
        if profile is not None:
            self._opened.append(profile)
        self._tells_md5, self.clock_url = tells_md5, str(client.meta.endpoint_url)
        checks = "on" if client.meta.config.request_checksum_calculation == "when_supported" else "off"
        self.settings = {
            "boto3.retries": "off",
            "boto3.redirects": "off",
            "boto3.checksums": checks,
            "boto3.signed_body": checks,
        }

    may_be_anonymous: ClassVar[bool] = True

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> S3Driver:
        """Return the driver for ``s3://BUCKET``. Nothing is sent before the first operation."""
        check_params(spec, _PARAMS)
        bucket = bucket_of(spec, "s3://BUCKET")
        checksum, etag = choice_of(spec, "checksum", ("0", "1")), choice_of(spec, "etag", ("md5", "opaque"))
        fields = endpoint.credentials if endpoint else credentials
        secrets = signing_keys(spec, cls.credential_sets, fields)
        profile = ProfileKeys(secrets["profile"]) if "profile" in secrets else None
        egress = bucket_egress(spec, endpoint)
        client = sdk_client(spec, endpoint, profile or secrets, egress, checks=checksum == "1")
        return cls(client, bucket, egress, profile, tells_md5=etag == "md5")

    def _entry_of_object(self, path: str, size_bytes: int, etag: str | None) -> Entry:
        return entry_of_object(path, size_bytes, etag, tells_md5=self._tells_md5)

    # --- required verbs ---------------------------------------------------------------------------

    def put(self, path: str, content: Content) -> Entry:
        """Upload with one request, or in parts if the file is large."""
        key, size_bytes = key_of("put", path), content.size_bytes
        if size_bytes > self.multipart_bytes:
            return self._put_in_parts(path, key, content)
        body = content.read(0, size_bytes) if size_bytes <= _ONE_PIECE_BYTES else ContentFile(content)
        with self._cloud_errors("put", path):
            answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=body, ContentLength=size_bytes)
            return self._entry_of_object(path, size_bytes, answer["ETag"])

    def _put_in_parts(self, path: str, key: str, content: Content) -> Entry:
        """Upload parts one after the other. If one fails, those that are stored already are removed."""
        size_bytes = content.size_bytes
        part_bytes = part_size(size_bytes, self.part_bytes)
        target = {"Bucket": self._bucket, "Key": key}
        with self._cloud_errors("put", path):
            upload = {**target, "UploadId": self._client.create_multipart_upload(**target)["UploadId"]}
        try:
            parts = []
            for number, begin in enumerate(range(0, size_bytes, part_bytes), 1):
                body = ContentFile(content, begin, min(part_bytes, size_bytes - begin))
                with self._cloud_errors("put", path):
                    part = self._client.upload_part(**upload, PartNumber=number, Body=body, ContentLength=len(body))
                    parts.append({"PartNumber": number, "ETag": part["ETag"]})
            with self._cloud_errors("put", path):
                answer = self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
                return self._entry_of_object(path, size_bytes, answer["ETag"])
        except BaseException:
            self._abort_upload(upload)
            raise

    def _abort_upload(self, upload: Mapping[str, Any]) -> None:
        try:
            self._client.abort_multipart_upload(**upload)
        except (self._errors.ClientError, self._errors.BotoCoreError, OSError):
            return  # the upload's error is the one to raise; `delete` of the folder finds what is left

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        """Yield the object's bytes from ``offset``. The request is sent when the first piece is asked for."""
        options = {"Range": f"bytes={offset}-"} if offset else {}
        key = key_of("get", path)
        with self._cloud_errors("get", path):
            answer = self._client.get_object(Bucket=self._bucket, Key=key, **options)
            with closing(answer["Body"]) as body:
                # Not judged by the status: rclone's server sends a range with 200.
                if offset and not answer.get("ContentRange", "").startswith(f"bytes {offset}-"):
                    raise CloudError(ErrorKind.SERVER, "get", path, detail="the range was ignored")
                yield from read_pieces(body.read)

    def stat(self, path: str) -> Entry:
        """Return what S3 knows about one key."""
        key = key_of("stat", path)
        with self._cloud_errors("stat", path):
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
            return self._entry_of_object(path, answer["ContentLength"], answer["ETag"])

    def list(self, folder: str) -> Iterator[Entry]:
        """Yield all objects whose keys begin with the folder's path, page by page."""
        with self._cloud_errors("list", folder):
            for row in self._list_objects("list", folder, prefix_of("list", folder)):
                if not row["Key"].endswith("/"):  # an empty object by which consoles show a folder
                    yield self._entry_of_object(path_of(row["Key"]), row["Size"], row.get("ETag"))

    def mkdir(self, path: str) -> None:
        """Do nothing: there are no folders."""

    # --- optional verbs ---------------------------------------------------------------------------

    def copy(self, source: str, target: str) -> Entry:
        """Copy an object within the bucket. An existing target is replaced."""
        origin = {"Bucket": self._bucket, "Key": key_of("copy", source)}
        key = key_of("copy", target)
        with self._cloud_errors("copy", source):
            # An answer without an ETag is no success: S3 reports late errors of a copy with status 200.
            _ = self._client.copy_object(Bucket=self._bucket, Key=key, CopySource=origin)["CopyObjectResult"]["ETag"]
            answer = self._client.head_object(Bucket=self._bucket, Key=key)
            return self._entry_of_object(target, answer["ContentLength"], answer["ETag"])
