"""Tokens of the driver for Google Cloud Storage: one request for all threads, whose refusal has the right kind."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import CloudError, CredentialsError, ErrorKind, ProviderSpec

from .conftest import JSON, Scripted
from .test_google_home import USER, key

K = ErrorKind


@pytest.fixture(params=["user", "service account"])
def driver(request: pytest.FixtureRequest, server: Scripted, tmp_path: Path) -> Iterator[Any]:
    """A driver without a token, whose storage and token route are the scripted server."""
    if missing := drivers.missing_library("gcs"):
        pytest.skip(missing)
    url = server.endpoint.url
    credentials = {name: USER[name] for name in ("refresh_token", "client_id", "client_secret")}
    if request.param == "service account":
        (tmp_path / "key.json").write_text(json.dumps(key(f"{url}/token")))
        credentials = {"service_account_file": str(tmp_path / "key.json")}
    endpoint = replace(server.endpoint, urls={"api": url, "oauth": url}, credentials=credentials)
    new_driver: Any = drivers.connect(ProviderSpec.parse("gcs://bench"), endpoint, {})
    yield new_driver
    new_driver.close()


def test_sixteen_threads_renew_a_token_once(server: Scripted, driver: Any) -> None:
    server.say(body=b'{"access_token": "token-4711", "expires_in": 3600, "size": "3"}')
    barrier = threading.Barrier(16)

    def stat(_: int) -> tuple[int, int]:
        barrier.wait()
        size_bytes = driver.stat("/a").size_bytes
        return size_bytes, driver.requests()

    with ThreadPoolExecutor(16) as pool:
        sizes_and_requests = list(pool.map(stat, range(16)))
    assert Counter(sizes_and_requests) == {(3, 1): 15, (3, 2): 1}, "one operation has the request for the token"
    assert sum(path == "/token" for path, _ in server.requests) == 1
    assert {headers["authorization"] for path, headers in server.requests if path != "/token"} == {"Bearer token-4711"}


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(
    ("status", "problem", "kind"),
    [
        (400, {"error": "invalid_grant", "error_description": "in words"}, K.AUTH),
        (400, {"error": "org_internal", "error_description": "in words"}, K.AUTH),
        (401, {"error": "invalid_client", "error_description": "in words"}, K.AUTH),
        (403, {"error": "access_denied", "error_description": "in words"}, K.AUTH),
        (400, {"error": "internal_failure", "error_description": "in words"}, K.SERVER),
        (429, {"error": "slower", "error_description": "in words"}, K.THROTTLED),
        (503, {"error": "temporarily_unavailable", "error_description": "in words"}, K.SERVER),
    ],
)
def test_a_refused_renewal_is_one_request(
    server: Scripted, driver: Any, status: int, problem: dict[str, str], kind: ErrorKind
) -> None:
    """The library would pause for seconds and ask again, all inside the measured operation."""
    server.say(status, json.dumps(problem).encode(), {**JSON, "Retry-After": "7"})
    with pytest.raises(CloudError) as caught:
        driver.stat("/a")
    error = caught.value
    assert (error.kind, error.retry_after_s) == (kind, 7.0)
    assert error.detail == f"{status} {problem['error']} in words"
    assert ([path for path, _ in server.requests], driver.requests()) == (["/token"], 1)


def test_a_renewal_without_an_answer_is_a_network_error(server: Scripted, driver: Any) -> None:
    server.say(close=True)
    with pytest.raises(CloudError) as caught:
        driver.stat("/a")
    assert caught.value.kind is K.NETWORK
    assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_an_answer_without_a_token_is_an_error(server: Scripted, driver: Any, body: bytes) -> None:
    server.say(200, body)
    with pytest.raises(CloudError) as caught:
        driver.stat("/a")
    assert caught.value.kind in {K.SERVER, K.AUTH}
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, '{"private_key": "secret words"}'])
def test_unusable_key_file_is_refused(tmp_path: Path, text: str) -> None:
    if missing := drivers.missing_library("gcs"):
        pytest.skip(missing)
    (tmp_path / "key.json").write_text(text)
    with pytest.raises(CredentialsError, match="not a service account's key") as caught:
        drivers.connect(
            ProviderSpec.parse("gcs://bench"), credentials={"service_account_file": str(tmp_path / "key.json")}
        )
    assert "secret words" not in str(caught.value)
