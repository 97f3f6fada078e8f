"""CPU time of a small put through our driver, over the same put through the bare SDK.

Both send the same request to the same server in another process, from one thread and one connection, in turns. The bare
SDK has the driver's settings (no retries, no hashes that nobody asked for, no look at the environment), so that what is
left is the driver's own layer: its checks, its counting, its errors and its entry.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

from benchmarks.harness import Figure, alternating, median
from pytest_cloudbench import drivers, providers
from pytest_cloudbench.model import Endpoint
from pytest_cloudbench.payload.contents import Literal
from pytest_cloudbench.services.command import load_recipe

__all__ = ["bare_dropbox", "measure"]

_PUTS = 200
_BLOCKS = 8
_BODY = os.urandom(5 * 1024)
_BOUND = 1.05

Put = Callable[[str], object]
"""Stores the body under a path, such as ``/folder/name``."""


def bare_dropbox(endpoint: Endpoint, connections: int = 8) -> Put:
    """The Dropbox SDK with the driver's settings, and a pool of so many connections."""
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
    return lambda path: client.files_upload(_BODY, path, mode=overwrite, mute=True)


def _box(endpoint: Endpoint) -> Put:
    """A new version each time, as the driver's second put of a path."""
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
    known: dict[str, str] = {}

    def put(path: str) -> None:
        name = path.rpartition("/")[2]
        attributes: Any
        if name in known:
            attributes = sdk.UploadFileVersionAttributes(name=name)
            client.uploads.upload_file_version(known[name], attributes, BytesIO(_BODY))
            return
        attributes = sdk.UploadFileAttributes(name=name, parent=sdk.UploadFileAttributesParentField(id=folder))
        known[name] = client.uploads.upload_file(attributes, BytesIO(_BODY)).entries[0].id

    return put


def _s3(endpoint: Endpoint) -> Put:
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
    return lambda path: client.put_object(Bucket=target, Key=path[1:], Body=_BODY, ContentLength=len(_BODY))


_BARE: Mapping[str, tuple[str, Callable[[Endpoint], Put]]] = {
    "box": ("emulated:box?profile=ideal", _box),
    "dropbox": ("emulated:ideal", bare_dropbox),
    "s3": ("local:s3", _s3),
}
"""Driver to the server that stands in for its provider, and to its bare SDK."""


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``driver_overhead_ratio``: the largest of all drivers."""
    ratios: dict[str, Any] = {}
    absolute: dict[str, float] = {}
    for scheme, (spec, bare) in _BARE.items():
        if drivers.missing_library(scheme):
            continue
        with providers.provided(spec) as provider:
            endpoint, content = provider.endpoint, Literal(_BODY)
            assert endpoint is not None
            put = provider.driver.put
            blocks = alternating(
                _timed(lambda path, put=put, content=content: put(path, content)),  # type: ignore[misc]  # defaults bind
                _timed(bare(endpoint)),
                _BLOCKS * runs,
            )
        ratios[scheme] = {"ratio": blocks.ratio, **blocks.details()}
        absolute[f"{scheme}, ms CPU / put"] = median(blocks.ours)
        absolute[f"{scheme}, bare SDK, ms CPU / put"] = median(blocks.reference)
    worst = max((each["ratio"] for each in ratios.values()), default=float("nan"))
    return [
        Figure("driver_overhead_ratio", worst, "CPU / CPU of the bare SDK", _BOUND, details=ratios, absolute=absolute)
    ]


def _timed(put: Put) -> Callable[[], float]:
    """CPU of this process per put, milliseconds; the server's is not in it."""
    numbers = itertools.count()

    def block() -> float:
        paths = [f"/bench/{number % 50}.bin" for number in itertools.islice(numbers, _PUTS)]
        before_s = time.process_time()
        for path in paths:
            put(path)
        return (time.process_time() - before_s) / _PUTS * 1e3

    return block
