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
from importlib.metadata import version
from typing import Any, ClassVar

from pytest_cloudbench.drivers._s3_sdk import S3Bucket, egress_of, sdk_client
from pytest_cloudbench.drivers.base import (
    CredentialSet,
    RequestCount,
    check_params,
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
    NameRules,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact

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

_PARAMS = frozenset({"endpoint", "region", "addressing", "checksum", "etag", "timeout_s", "token_env"})
# Up to this size, a body in one piece costs less than a file.
_ONE_PIECE_BYTES = MIB
_READ_PIECE_BYTES = 64 * KIB
# The HTTP library waits for a whole piece: a small first one marks the first byte.
_FIRST_READ_BYTES = 1 * KIB

# --- connect --------------------------------------------------------------------------------------


class S3Driver(S3Bucket):
    """One SDK client, shared by all threads, with a pool of connections that is large enough for them."""

    capabilities: ClassVar[Capabilities] = _CAPABILITIES
    credential_sets: ClassVar[tuple[CredentialSet, ...]] = (
        CredentialSet(("access_key_id", "secret_access_key"), ("session_token",), public=("access_key_id",)),
        CredentialSet(("profile",), public=("profile",), free=("profile",)),
    )
    multipart_bytes = _MULTIPART_BYTES
    part_bytes = _PART_BYTES

    def __init__(self, client: Any, bucket: str, remarks: Mapping[str, str], *, tells_md5: bool = True) -> None:
        super().__init__(client, bucket)
        self._tells_md5, self._sent, self._remarks = tells_md5, RequestCount(), remarks
        client.meta.events.register("before-send.s3", self._sent.count)

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
        egress = egress_of(spec, endpoint)
        client = sdk_client(spec, endpoint, secrets, egress, checks=checksum == "1")
        return cls(client, spec.target, egress.remarks, tells_md5=etag == "md5")

    @property
    def clock_url(self) -> str:
        """An address whose answers are dated."""
        return str(self._client.meta.endpoint_url)

    def versions(self) -> Mapping[str, str]:
        """Returns the libraries, and what is switched off in them."""
        config = self._client.meta.config
        checks = config.request_checksum_calculation == "when_supported"
        return {name: version(name) for name in ("boto3", "botocore", "urllib3")} | {
            "boto3.retries": "off",
            "boto3.redirects": "off",
            "boto3.checksums": "on" if checks else "off",
            "boto3.signed_body": "on" if checks else "off",
            **self._remarks,
        }

    def requests(self) -> int:
        """Returns how many requests this thread has sent so far."""
        return self._sent.requests

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


def _of_profile(name: str) -> Mapping[str, str]:
    """Returns the keys of a profile in the user's own AWS files. Raises CredentialsError."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        with leaving(None).as_environment():  # a profile may name a role, which another service of Amazon's gives
            found = boto3.Session(profile_name=name).get_credentials()
            keys = found.get_frozen_credentials() if found is not None else None
    except BotoCoreError as error:
        raise CredentialsError(f"s3: profile {name}: {redact.clean(str(error))}") from error
    if keys is None or not keys.access_key or not keys.secret_key:
        raise CredentialsError(f"s3: profile {name}: it has no keys; see ~/.aws/credentials")
    given = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key, "session_token": keys.token or ""}
    redact.learn([keys.secret_key, *([keys.token] if keys.token else [])])
    return {field: value for field, value in given.items() if value}
