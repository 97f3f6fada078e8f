"""Tests of Dropbox without its SDK: the same requests as with it, and the same accounts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.model import MIB, CloudError, Endpoint, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.workload.payload import RandomContent

from .conftest import Scripted
from .test_driver_dropbox import JSON, METADATA, REFUSALS, STATUSES, failure
from .test_driver_requests import actions, count_requests, requests_at

FAST = ProviderSpec.parse("dropbox+fast")


@contextmanager
def connected(endpoint: Endpoint | None, **secrets: str) -> Iterator[Any]:
    driver: Any = drivers.connect(FAST, endpoint, secrets)
    try:
        yield driver
    finally:
        driver.close()


def routes_of(emulator: EmulatorService) -> Counter[str]:
    routes: Any = emulator.control(get="stats")["stats"]
    return Counter({name: sum(counts.values()) for name, counts in routes["routes"].items()})


def test_fast_driver_sends_same_requests_as_sdk(emulator: EmulatorService) -> None:
    """Each verb calls the same API functions equally often. Otherwise a comparison would say nothing about the SDK."""
    routes = []
    for scheme in ("dropbox", "dropbox+fast"):
        emulator.control(reset=True)
        driver: Any = drivers.connect(ProviderSpec.parse(scheme), emulator.endpoint, {})
        driver.multipart_bytes, driver.part_bytes, driver.list_page_entries = 4 * MIB, 4 * MIB, 2
        for verb, action in actions(driver).items():
            before = requests_at(emulator)
            assert count_requests(driver, action) == requests_at(emulator) - before, verb
        content = RandomContent("big", 9 * MIB + 1)
        entry = driver.put("/counted/big", content)
        assert (entry, b"".join(driver.get("/counted/big"))) == (driver.stat("/counted/big"), content.read(0, 10 * MIB))
        driver.mkdir("/counted")
        assert driver.space()[0] > content.size_bytes
        assert len(list(driver.list("/"))) == 3
        driver.revoke(driver.share("/counted/big"))
        driver.close()
        routes.append(routes_of(emulator))
    assert routes[0] == routes[1]


@pytest.mark.parametrize(("verb", "status", "body", "headers", "kind", "retry_after_s"), REFUSALS + STATUSES)
def test_error_table(
    server: Scripted, verb: str, status: int, body: bytes, headers: dict[str, str], kind: ErrorKind,
    retry_after_s: float | None,
) -> None:  # fmt: skip
    """The table is the SDK's, but only the SDK knows the specified tags and the field that repeats the header."""
    if b'"retry_after": 9' in body:
        retry_after_s = None
    server.say(status, body, JSON | headers)
    with connected(server.endpoint) as driver:
        error = failure(driver, verb)
    if b"a_tag_of_next_year" in body:
        kind = ErrorKind.INVALID
    assert (error.kind, error.retry_after_s) == (kind, retry_after_s), error
    assert len(server.requests) == 1
    assert error.__cause__ is not None


def test_a_token_is_refreshed_by_the_operation_that_needs_it(server: Scripted) -> None:
    endpoint = Endpoint(
        server.endpoint.urls, {"refresh_token": "refresh-me", "app_key": "key", "app_secret": "hidden-too"},
        server.endpoint.ca_file,
    )  # fmt: skip
    answer = METADATA | {"content_hash": "0" * 64, "access_token": "sl.fresh-0816", "expires_in": 14400}
    server.say(200, json.dumps(answer).encode())
    with connected(endpoint) as driver:
        assert [count_requests(driver, lambda: driver.stat("/a")) for _ in range(2)] == [2, 1]
        assert [path for path, _ in server.requests] == ["/oauth2/token", *["/2/files/get_metadata"] * 2]
        assert server.requests[1][1]["authorization"] == "Bearer sl.fresh-0816"
        server.say(400, b"sl.fresh-0816 refresh-me hidden-too", {})
        assert failure(driver, "stat").detail == "400 *** *** ***"


def test_path_that_is_not_unicode_is_never_sent(server: Scripted) -> None:
    with connected(server.endpoint) as driver, pytest.raises(CloudError, match="not Unicode text") as caught:
        driver.stat("/\ud800")
    assert caught.value.kind is ErrorKind.INVALID
    assert server.requests == []


def test_it_uses_the_credentials_of_dropbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_DROPBOX_ACCESS_TOKEN", "sl.of-the-account")
    assert (
        credentials.load(credentials.ProviderAccount.named("dropbox+fast"))
        == credentials.load(credentials.ProviderAccount.named("dropbox"))
        == {"access_token": "sl.of-the-account"}
    )
    assert (
        drivers.bind(ProviderSpec.parse("dropbox+fast")).owner,
        drivers.bind(ProviderSpec.parse("folder:x")).owner,
    ) == ("dropbox", "folder")


def test_fast_driver_is_chosen_by_its_name_in_a_spec() -> None:
    providers.resolve("emulated:dropbox?driver=dropbox+fast")
    with pytest.raises(SpecError, match="the driver dropbox\\+fast does not speak onedrive"):
        providers.resolve("emulated:onedrive?driver=dropbox+fast")
