"""A service whose page names itself as the next one: its listing ends in an error, and not never."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import CloudError, ErrorKind, ProviderSpec
from tests.limits import HANG_S

from .rows import JSON, ROWS
from .server import Answer, FaultServer, fault_server

AZURE_PAGE = (
    b'<?xml version="1.0"?><EnumerationResults ContainerName="container"><Blobs/><NextMarker>again</NextMarker>'
    b"</EnumerationResults>"
)
S3_PAGE = (
    b'<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated>'
    b"<NextContinuationToken>again</NextContinuationToken></ListBucketResult>"
)


def answer_json(page: object, **headers: str) -> Answer:
    return Answer(200, json.dumps(page).encode(), {**JSON, **headers})


def answer_swift(url: str) -> Answer:
    row = {"name": "a", "bytes": 1, "hash": "0" * 32, "last_modified": "2026-12-01T00:00:00"}
    return answer_json([row], **{"x-storage-url": f"{url}/v1/us", "x-auth-token": "t"})


PAGES: dict[str, Callable[[str], Answer]] = {
    "azure": lambda url: Answer(200, AZURE_PAGE, {"content-type": "application/xml"}),
    "box": lambda url: answer_json({"entries": [], "limit": 100, "next_marker": "again"}),
    "dropbox": lambda url: answer_json({"entries": [], "cursor": "again", "has_more": True}),
    "dropbox+fast": lambda url: answer_json({"entries": [], "cursor": "again", "has_more": True}),
    "gcs": lambda url: answer_json({"kind": "storage#objects", "items": [], "nextPageToken": "again"}),
    "gdrive": lambda url: answer_json({"files": [], "nextPageToken": "again"}),
    "onedrive": lambda url: answer_json({"value": [], "@odata.nextLink": f"{url}/again"}),
    "s3": lambda url: Answer(200, S3_PAGE, {"content-type": "application/xml"}),
    "swift": answer_swift,
}
"""A page of each service that has pages, from the server's URL. The client of ``s3+fast`` reads all pages itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with fault_server(tmp_path_factory.mktemp("pages")) as running:
        yield running


@pytest.mark.parametrize("scheme", PAGES)
def test_listing_ends_at_a_page_that_names_itself(scheme: str, server: FaultServer) -> None:
    row, url = ROWS[scheme], server.url()
    driver: Any = drivers.connect(ProviderSpec.parse(f"{scheme}{row.spec}"), row.endpoint(url, server.ca_file), {})
    driver.list_page_entries = 1
    server.say(PAGES[scheme](f"{url}/v1.0" if scheme == "onedrive" else url))
    with ThreadPoolExecutor(1) as threads:
        try:
            error = threads.submit(lambda: list(driver.list("/"))).exception(HANG_S)
        finally:
            server.say(Answer(None, b""))  # which ends a listing that goes on
    driver.close()
    assert isinstance(error, CloudError), error
    assert error.kind is ErrorKind.SERVER
