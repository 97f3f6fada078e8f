"""The SDKs without our drivers, called as an application would, each with its driver's settings.

These are: no retries, no hashes that nobody asked for, no look at the environment, and as many requests per put.
There is none for ``onedrive`` and ``dropbox+fast``, whose clients are our own; for ``mega``, whose SDK only uploads
files that lie on a disk; and for ``s3+fast``, which ``s3_fast_over_obstore`` compares.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench.model import Endpoint
from pytest_cloudbench.services.command import load_recipe

__all__ = ["BARE", "BODY", "Bare", "bare_dropbox"]

BODY = os.urandom(5 * 1024)
"""The content of each put."""


@dataclass(frozen=True, slots=True)
class Bare:
    """A client of a service.

    Attributes:
        put: stores the body under a path, such as ``/folder/name``.
        get: returns the whole content of a path. None if a client needs an id, which only the one that put it knows.
    """

    put: Callable[[str], object]
    get: Callable[[str], Sized] | None = None


def bare_dropbox(endpoint: Endpoint, connections: int = 8) -> Bare:
    """Return the Dropbox SDK with the driver's settings and a pool of ``connections``."""
    sdk: Any = import_module("dropbox")
    session = sdk.create_session(max_connections=connections, ca_certs=endpoint.ca_file)
    session.trust_env = False
    client = sdk.Dropbox(
        oauth2_access_token=endpoint.credentials["access_token"], max_retries_on_error=0, max_retries_on_rate_limit=0,
        session=session, timeout=100, auto_content_hash=False,
    )  # fmt: skip
    host = endpoint.url.removeprefix("https://")
    client._host_map = dict.fromkeys(("api", "content", "notify"), host)
    overwrite = sdk.files.WriteMode.overwrite
    return Bare(
        lambda path: client.files_upload(BODY, path, mode=overwrite, mute=True),
        lambda path: client.files_download(path)[1].content,
    )


def _box(endpoint: Endpoint) -> Bare:
    """Return a client that uploads a new version each time, as the driver's second put of a path does."""
    sdk: Any = import_module("box_sdk_gen")
    session = import_module("requests").Session()
    session.trust_env, session.verify = False, endpoint.ca_file
    network = sdk.NetworkSession(
        network_client=sdk.BoxNetworkClient(session),
        base_urls=sdk.BaseUrls(base_url=endpoint.urls["api"], upload_url=f"{endpoint.urls['upload']}/api"),
        retry_strategy=sdk.BoxRetryStrategy(max_attempts=1, max_retries_on_exception=0),
    )
    client = sdk.BoxClient(
        auth=sdk.BoxDeveloperTokenAuth(token=endpoint.credentials["access_token"]), network_session=network
    )
    folder = client.folders.create_folder("bare", sdk.CreateFolderParent(id="0")).id
    file_ids: dict[str, str] = {}

    def put(path: str) -> None:
        name = path.rpartition("/")[2]
        attributes: Any
        if name in file_ids:
            attributes = sdk.UploadFileVersionAttributes(name=name)
            client.uploads.upload_file_version(file_ids[name], attributes, BytesIO(BODY))
            return
        attributes = sdk.UploadFileAttributes(name=name, parent=sdk.UploadFileAttributesParentField(id=folder))
        file_ids[name] = client.uploads.upload_file(attributes, BytesIO(BODY)).entries[0].id

    return Bare(put)


def _s3(endpoint: Endpoint) -> Bare:
    boto3: Any = import_module("boto3")
    config = import_module("botocore.config").Config(
        retries={"total_max_attempts": 1, "mode": "standard"}, signature_version="s3v4", proxies={},
        request_checksum_calculation="when_required", response_checksum_validation="when_required",
        s3={"addressing_style": "path", "payload_signing_enabled": False},
    )  # fmt: skip
    client = boto3.client(
        "s3", region_name="us-east-1", endpoint_url=endpoint.url, verify=endpoint.ca_file or None, config=config,
        aws_access_key_id=endpoint.credentials["access_key_id"],
        aws_secret_access_key=endpoint.credentials["secret_access_key"],
    )  # fmt: skip
    target = load_recipe("s3").target
    return Bare(
        lambda path: client.put_object(Bucket=target, Key=path[1:], Body=BODY, ContentLength=len(BODY)),
        lambda path: client.get_object(Bucket=target, Key=path[1:])["Body"].read(),
    )


def _azure(endpoint: Endpoint) -> Bare:
    blobs: Any = import_module("azure.storage.blob")
    credentials = endpoint.credentials
    key = {"account_name": credentials["account"], "account_key": credentials["account_key"]}
    client = blobs.ContainerClient(
        endpoint.url, load_recipe("azure").target, credential=key, retry_total=0, permit_redirects=False,
        use_env_settings=False,
    )  # fmt: skip
    return Bare(
        lambda path: client.get_blob_client(path[1:]).upload_blob(
            BODY, overwrite=True, length=len(BODY), max_concurrency=1
        ),
        lambda path: client.get_blob_client(path[1:]).download_blob(max_concurrency=1).readall(),
    )


def _gcs(endpoint: Endpoint) -> Bare:
    storage: Any = import_module("google.cloud.storage")
    anonymous = import_module("google.auth.credentials").AnonymousCredentials()
    session = import_module("google.auth.transport.requests").AuthorizedSession(anonymous)
    session.trust_env = False
    client = storage.Client("none", anonymous, session, client_options={"api_endpoint": endpoint.url})
    client._bucket_metadata_cache = None  # otherwise a thread asks for the bucket
    bucket = client.bucket(load_recipe("gcs").target)
    kind = "application/octet-stream"
    return Bare(
        lambda path: bucket.blob(path[1:]).upload_from_file(
            BytesIO(BODY), size=len(BODY), content_type=kind, checksum=None, retry=None, timeout=100
        ),
        lambda path: bucket.blob(path[1:]).download_as_bytes(checksum=None, retry=None, timeout=100),
    )


def _gdrive(endpoint: Endpoint) -> Bare:
    """Return a client that searches and uploads a revision each time, as the driver's second put of a path does."""
    discovery, http = import_module("googleapiclient.discovery"), import_module("googleapiclient.http")
    credentials = import_module("google.oauth2.credentials").Credentials(endpoint.credentials["access_token"])
    transport = import_module("httplib2").Http(ca_certs=endpoint.ca_file, proxy_info=None, timeout=100)
    documents = Path(str(import_module("googleapiclient.discovery_cache").__file__)).parent / "documents"
    document = json.loads((documents / "drive.v3.json").read_bytes())
    document["rootUrl"] = f"{endpoint.urls['api']}/"
    document["baseUrl"] = document["rootUrl"] + document["servicePath"]
    del document["mtlsRootUrl"]
    authorized = import_module("google_auth_httplib2").AuthorizedHttp(credentials, transport)
    files = discovery.build_from_document(document, http=authorized).files()
    folder = files.create(body={"name": "bare", "mimeType": "application/vnd.google-apps.folder"}).execute()["id"]
    fields = "id,name,mimeType,size,md5Checksum,headRevisionId"

    def put(path: str) -> None:
        name = path.rpartition("/")[2]
        matches = files.list(
            q=f"'{folder}' in parents and name = '{name}' and trashed = false",
            fields=f"files({fields},createdTime,modifiedTime,webViewLink)",
            supportsAllDrives=True, includeItemsFromAllDrives=True,
        ).execute()["files"]  # fmt: skip
        media = http.MediaInMemoryUpload(BODY, "application/octet-stream")
        if matches:
            files.update(
                fileId=matches[0]["id"], media_body=media, fields=fields, supportsAllDrives=True
            ).execute()  # fmt: skip
        else:
            body = {"name": name, "parents": [folder]}
            files.create(body=body, media_body=media, fields=fields, supportsAllDrives=True).execute()

    return Bare(put)


def _sftp(endpoint: Endpoint) -> Bare:
    """Return a client that opens, writes and closes.

    ``putfo`` would either ignore the answers to writes, or send one more request for the size.
    """
    client: Any = import_module("paramiko").SSHClient()
    credentials, address = endpoint.credentials, urlsplit(endpoint.url)
    client.load_system_host_keys(credentials["known_hosts"])
    client.connect(
        address.hostname, address.port, credentials["user"], credentials["password"], allow_agent=False,
        look_for_keys=False,
    )  # fmt: skip
    channel = client.open_sftp()

    def put(path: str) -> None:
        with channel.open(path, "wb") as file:
            file.write(BODY)

    def get(path: str) -> bytes:
        content = BytesIO()
        channel.getfo(path, content)
        return content.getvalue()

    return Bare(put, get)


def _swift(endpoint: Endpoint) -> Bare:
    credentials = endpoint.credentials
    client = import_module("swiftclient").Connection(
        credentials["auth_url"], credentials["user"], credentials["key"], retries=0
    )
    container = load_recipe("swift").target
    return Bare(
        lambda path: client.put_object(container, path[1:], contents=BODY, content_length=len(BODY)),
        lambda path: client.get_object(container, path[1:])[1],
    )


def _webdav(endpoint: Endpoint) -> Bare:
    credentials = endpoint.credentials
    client = import_module("webdav4.client").Client(
        endpoint.url, auth=(credentials["user"], credentials["password"]), retry=False, trust_env=False, timeout=100
    )

    def get(path: str) -> bytes:
        content = BytesIO()
        client.download_fileobj(path, content)
        return content.getvalue()

    return Bare(lambda path: client.upload_fileobj(BytesIO(BODY), path, overwrite=True, size=len(BODY)), get)


BARE: Mapping[str, tuple[str, Callable[[Endpoint], Bare]]] = {
    "azure": ("local:azure", _azure),
    "box": ("emulated:box?profile=ideal", _box),
    "dropbox": ("emulated:ideal", bare_dropbox),
    "gcs": ("local:gcs", _gcs),
    "gdrive": ("emulated:gdrive?profile=ideal", _gdrive),
    "s3": ("local:s3", _s3),
    "sftp": ("local:sftp", _sftp),
    "swift": ("local:swift", _swift),
    "webdav": ("local:webdav", _webdav),
}
"""For each driver, the server that stands in for its provider, and its bare SDK."""
