"""Values that clients of a service hardly send: each is answered as HTTP says, and none is an error of the emulator."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import ProviderSpec
from pytest_cloudbench.workload.payload.contents import Literal

DIGITS = 5000
"""More than Python makes a number of without being told."""
MANY, NOUGHT = "9" * DIGITS, "0" * DIGITS


@pytest.fixture(scope="module", params=["box", "dropbox", "gdrive", "onedrive"])
def emulator(request: pytest.FixtureRequest) -> Iterator[EmulatorService]:
    with start_emulator("ideal", api=request.param) as running:
        driver: Any = drivers.connect(ProviderSpec.parse(request.param), running.endpoint, {})
        driver.put("/a", Literal(b"abc"))
        driver.close()
        yield running


@pytest.fixture
def client(emulator: EmulatorService) -> Iterator[httpx.Client]:
    endpoint = emulator.endpoint
    headers = {"authorization": f"Bearer {endpoint.credentials['access_token']}"}
    context = ssl.create_default_context(cafile=endpoint.ca_file)
    with httpx.Client(base_url=endpoint.url, headers=headers, verify=context, trust_env=False) as new_client:
        yield new_client


def lists_of(api: str, number: str) -> str:
    """Return the address of a listing whose page has this many entries."""
    return {
        "box": f"/2.0/folders/0/items?limit={number}",
        "gdrive": f"/drive/v3/files?pageSize={number}",
        "onedrive": f"/v1.0/me/drive/root/children?$top={number}",
    }[api]


@pytest.mark.parametrize("number", [MANY, NOUGHT, NOUGHT + "1"], ids=["large", "zero", "one"])
def test_a_page_may_be_asked_for_by_a_number_of_many_digits(
    number: str, emulator: EmulatorService, client: httpx.Client
) -> None:
    if emulator.endpoint.api == "dropbox":
        pytest.skip("its numbers are in JSON, whose parser refuses these")
    assert client.get(lists_of(emulator.endpoint.api, number)).status_code in {200, 400}


def content_of(emulator: EmulatorService, client: httpx.Client, headers: dict[str, str]) -> httpx.Response:
    """Return the answer to a request for the content of the file."""
    api = emulator.endpoint.api
    if api == "dropbox":
        argument = {"dropbox-api-arg": '{"path": "/a"}', **headers}
        return client.post("/2/files/download", headers=argument)
    if api == "onedrive":
        return client.get(client.get("/v1.0/me/drive/root:/a:/content").headers["location"], headers=headers)
    if api == "gdrive":
        file_id = client.get("/drive/v3/files").json()["files"][0]["id"]
        return client.get(f"/drive/v3/files/{file_id}?alt=media", headers=headers)
    file_id = client.get("/2.0/folders/0/items").json()["entries"][0]["id"]
    return client.get(client.get(f"/2.0/files/{file_id}/content").headers["location"], headers=headers)


@pytest.mark.parametrize(
    ("span", "status", "content"),
    [(f"{MANY}-", 416, None), (f"0-{MANY}", 206, b"abc"), (f"-{MANY}", 206, b"abc"), (f"{NOUGHT}1-1", 206, b"b")],
    ids=["beyond", "all", "last", "zeros"],
)
def test_a_range_may_have_many_digits(
    span: str, status: int, content: bytes | None, emulator: EmulatorService, client: httpx.Client
) -> None:
    answer = content_of(emulator, client, {"range": f"bytes={span}"})
    assert (answer.status_code, content if content is None else answer.content) == (status, content)


def test_a_range_of_another_content_is_not_given(emulator: EmulatorService, client: httpx.Client) -> None:
    """A client that goes on with a download says by ``If-Range`` of which content it has the beginning."""
    etag, span = content_of(emulator, client, {}).headers.get("etag"), {"range": "bytes=1-"}
    known = {"if-range": etag} if etag else {}
    assert (emulator.endpoint.api == "gdrive") == (etag is None)
    assert content_of(emulator, client, {**span, **known}).content == b"bc"
    for other in ('"other"', 'W/"other"', "Fri, 20 Nov 2026 12:00:00 GMT"):
        answer = content_of(emulator, client, {**span, "if-range": other})
        assert (answer.status_code, answer.content) == (200, b"abc")


@pytest.mark.parametrize("value", [{}, [], {"a": 1}, ["reader"], 1, True], ids=str)
def test_a_value_of_another_type_is_refused(value: object, emulator: EmulatorService, client: httpx.Client) -> None:
    api = emulator.endpoint.api
    if api == "gdrive":
        file_id = client.get("/drive/v3/files").json()["files"][0]["id"]
        body: dict[str, object] = {"type": "user", "emailAddress": "a@example.com", "role": value}
        answer = client.post(f"/drive/v3/files/{file_id}/permissions", json=body)
    elif api == "onedrive":
        answer = client.post("/v1.0/me/drive/root:/a:/createLink", json={"type": value, "scope": "anonymous"})
    elif api == "box":
        file_id = client.get("/2.0/folders/0/items").json()["entries"][0]["id"]
        body = {"item": {"type": "file", "id": file_id}, "accessible_by": {"login": "a@example.com"}, "role": value}
        answer = client.post("/2.0/collaborations", json=body)
    else:
        answer = client.post("/2/files/list_folder", json={"path": value})
    assert answer.status_code == 400
