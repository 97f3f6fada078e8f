"""Tests of the OneDrive driver: redirects, fragments, slow copies, tokens that expire, and requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import CloudError, CredentialsError, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal

from .conftest import Scripted

SPEC = ProviderSpec.parse("onedrive")
K = ErrorKind


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as emulator:
        yield emulator


@pytest.fixture
def emulator(running: EmulatorService) -> Iterator[EmulatorService]:
    before = running.control(get="profile")["profile"]
    running.control(reset=True)
    yield running
    running.control(set=before)


@contextmanager
def connected(endpoint: Any, text: str = "onedrive", **credentials: str) -> Iterator[Any]:
    driver = drivers.connect(ProviderSpec.parse(text), endpoint, credentials)
    try:
        yield driver
    finally:
        driver.close()


@pytest.fixture
def driver(emulator: EmulatorService) -> Iterator[Any]:
    with connected(emulator.endpoint) as new_driver:
        yield new_driver


def requests_at(emulator: EmulatorService) -> int:
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    return sum(sum(counts.values()) for counts in routes.values())


def count_requests(driver: Any, emulator: EmulatorService, action: Callable[[], object]) -> int:
    """Return the number of requests of an action, by the driver's count, which must be the emulator's."""
    before, arrived = driver.requests(), requests_at(emulator)
    action()
    assert driver.requests() - before == requests_at(emulator) - arrived
    return int(driver.requests()) - int(before)


def refusal(kind: ErrorKind, action: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    assert caught.value.__cause__ is not None
    return caught.value


def content_of(driver: Any, path: str, offset: int = 0) -> bytes:
    return b"".join(driver.get(path, offset))


# --- requests ---


def test_every_request_is_counted(driver: Any, emulator: EmulatorService) -> None:
    driver.mkdir("/counted")
    url = ""

    def share() -> None:
        nonlocal url
        url = driver.share("/counted/a")

    actions: dict[str, Callable[[], object]] = {
        "put": lambda: driver.put("/counted/a", Literal(b"12")),
        "get": lambda: content_of(driver, "/counted/a"),
        "stat": lambda: driver.stat("/counted/a"),
        "list": lambda: list(driver.list("/counted")),
        "share": share,
        "revoke": lambda: driver.revoke(url),
        "copy": lambda: driver.copy("/counted/a", "/counted/b"),
        "move": lambda: driver.move("/counted/b", "/counted/c"),
        "delete": lambda: driver.delete("/counted/c"),
    }
    counts = {verb: count_requests(driver, emulator, action) for verb, action in actions.items()}
    declared = {verb.value: number for verb, number in driver.capabilities.requests.items()}
    assert counts == declared


def test_a_list_takes_a_request_for_each_folder_and_page(driver: Any, emulator: EmulatorService) -> None:
    for number in range(5):
        driver.put(f"/many/{number}", Literal(b"x"))
    driver.put("/many/below/x", Literal(b"x"))
    driver.list_page_entries = 2
    assert count_requests(driver, emulator, lambda: list(driver.list("/many"))) == 4
    assert len([*driver.list("/many")]) == 7


def test_each_thread_counts_its_own(driver: Any, emulator: EmulatorService) -> None:
    def put_files(worker: int) -> int:
        before = driver.requests()
        for number in range(worker):
            driver.put(f"/threads/{worker}-{number}", Literal(b"x"))
        return int(driver.requests() - before)

    before = driver.requests()
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(put_files, range(1, 6))) == [1, 2, 3, 4, 5]
    assert driver.requests() == before


# --- uploads, downloads, copies ---


@pytest.mark.parametrize("size", [1000, 320 * 1024, 2 * 320 * 1024 + 1])
def test_a_large_file_goes_up_in_fragments(driver: Any, emulator: EmulatorService, size: int) -> None:
    data = RandomContent("fragments", size)
    driver.multipart_bytes, driver.part_bytes = 999, 320 * 1024
    fragments = -(-size // driver.part_bytes)
    assert count_requests(driver, emulator, lambda: driver.put("/new/big", data)) == 1 + fragments
    assert content_of(driver, "/new/big") == data.read(0, size)
    again = driver.put("/new/big", RandomContent("other", size))
    assert (again.size_bytes, again.digest) == (size, driver.stat("/new/big").digest)


def test_a_file_above_one_piece_is_streamed(driver: Any) -> None:
    data = RandomContent("streamed", 3 * 1024 * 1024 + 5)
    assert driver.put("/streamed", data).size_bytes == data.size_bytes
    assert content_of(driver, "/streamed", 1024 * 1024) == data.read(1024 * 1024, data.size_bytes)


def test_a_copy_that_takes_its_time_is_waited_for(driver: Any, emulator: EmulatorService) -> None:
    driver.put("/from/sub/a", Literal(b"abc"))
    emulator.control(set={"jobs.start_s": 0.05, "jobs.entry_s": 0.01})
    assert count_requests(driver, emulator, lambda: driver.copy("/from", "/new/to")) > 4
    assert content_of(driver, "/new/to/sub/a") == b"abc"
    error = refusal(K.CONFLICT, lambda: driver.copy("/from", "/new/to"))
    assert "nameAlreadyExists" in error.detail


def test_missing_source_creates_nothing(driver: Any) -> None:
    for verb in (driver.copy, driver.move):
        refusal(K.NOT_FOUND, partial(verb, "/nothing", "/new/folder/b"))
    assert list(driver.list("/")) == []


@pytest.mark.parametrize("verb", ["mkdir", "move", "copy"])
def test_threads_that_make_the_same_folder_do_not_disturb_each_other(driver: Any, verb: str) -> None:
    workers = 8
    barrier = Barrier(workers)
    for worker in range(workers):
        driver.put(f"/{worker}", Literal(b"x"))

    def work(worker: int) -> None:
        barrier.wait()
        if verb == "mkdir":
            driver.mkdir("/new/folder/below")
        else:
            getattr(driver, verb)(f"/{worker}", f"/new/folder/below/{worker}")

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, range(workers)))
    assert driver.stat("/new/folder/below").is_folder


def test_a_drive_by_its_id(driver: Any, emulator: EmulatorService) -> None:
    driver.put("/a", Literal(b"1"))
    with connected(emulator.endpoint) as other:
        drive_id = other._call_graph("stat", "/", "GET", other._drive)["id"]
    with connected(emulator.endpoint, f"onedrive:{drive_id}") as other:
        assert other.stat("/a").size_bytes == 1
    with connected(emulator.endpoint, "onedrive:wrong") as other:
        assert "malformed" in refusal(K.INVALID, lambda: other.stat("/a")).detail


@pytest.mark.parametrize("path", ["/a/../b", "/./a", "//a", "/a/", "a", "", "/\udcff"])
def test_paths_that_could_mean_another_file_are_not_sent(driver: Any, path: str) -> None:
    before = driver.requests()
    with pytest.raises(CloudError) as caught:
        driver.put(path, Literal(b"x"))
    assert (caught.value.kind, driver.requests()) == (K.INVALID, before)


# --- redirects ---


def set_answer(server: Scripted, status: int, value: object = None, **headers: str) -> None:
    server.say(status, json.dumps(value or {}).encode(), {"Content-Type": "application/json", **headers})


def endpoint_at(server: Scripted) -> Any:
    return replace(server.endpoint, urls=dict.fromkeys(("api", "login"), server.endpoint.url))


@pytest.mark.parametrize("location", ["https://evil.example/x", "http://127.0.0.1/x", "https://127.0.0.1/x", "", "/x"])
def test_content_is_only_fetched_from_the_service(server: Scripted, location: str) -> None:
    set_answer(server, 302, Location=location)
    with connected(endpoint_at(server)) as driver:
        refusal(K.SERVER, lambda: content_of(driver, "/a"))
        assert driver.requests() == len(server.requests) == 1


def test_redirected_request_carries_no_token(server: Scripted) -> None:
    set_answer(server, 302, Location=f"{server.endpoint.url}/elsewhere")
    with connected(endpoint_at(server)) as driver:
        refusal(K.SERVER, lambda: content_of(driver, "/a"))  # the second answer redirects again, which is not followed
    (_, first), (path, second) = server.requests
    assert path == "/elsewhere"
    assert "authorization" in {name.lower() for name in first}
    assert "authorization" not in {name.lower() for name in second}


def test_content_hosts_of_the_real_service_are_accepted() -> None:
    with connected(None, access_token="made-up") as driver:
        for host in ("my.microsoftpersonalcontent.com", "contoso-my.sharepoint.com", "public.bn.files.1drv.com"):
            assert driver._check_own_host("get", "/a", f"https://{host}/x") == f"https://{host}/x"
        for host in ("evilsharepoint.com", "sharepoint.com.evil.example", "u@sharepoint.com", "sharepoint.com:444"):
            refusal(K.SERVER, partial(driver._check_own_host, "get", "/a", f"https://{host}/x"))


def test_further_pages_and_fragments_stay_with_the_service(server: Scripted) -> None:
    with connected(endpoint_at(server)) as driver:
        set_answer(server, 200, {"value": [], "@odata.nextLink": "https://evil.example/page"})
        refusal(K.SERVER, lambda: list(driver.list("/a")))
        driver.multipart_bytes = 0
        set_answer(server, 200, {"uploadUrl": "https://evil.example/up"})
        refusal(K.SERVER, lambda: driver.put("/a", Literal(b"1")))
        assert driver.requests() == len(server.requests) == 2


# --- errors, tokens ---


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, "activityLimitReached", K.THROTTLED),
        (503, "activityLimitReached", K.THROTTLED),
        (509, "other", K.THROTTLED),
        (503, "serviceNotAvailable", K.SERVER),
        (507, "quotaLimitReached", K.QUOTA),
        (403, "quotaLimitReached", K.QUOTA),
        (403, "accessDenied", K.AUTH),
        (404, "itemNotFound", K.NOT_FOUND),
        (409, "nameAlreadyExists", K.CONFLICT),
        (412, "resourceModified", K.CONFLICT),
        (416, "invalidRange", K.INVALID),
        (400, "invalidRequest", K.INVALID),
        (410, "resyncRequired", K.INVALID),
    ],
)
def test_refusal_gives_the_kind(server: Scripted, status: int, code: str, kind: ErrorKind) -> None:
    words = {"error": {"code": code, "message": "you sent sl.secret-4711"}}
    set_answer(server, status, words, **({"Retry-After": "9"} if kind is K.THROTTLED else {}))
    with connected(endpoint_at(server)) as driver:
        error = refusal(kind, lambda: driver.stat("/a"))
    assert error.retry_after_s == (9.0 if kind is K.THROTTLED else None)
    assert code in error.detail
    assert "4711" not in str(error)


def test_a_token_is_refreshed_once_and_counted(emulator: EmulatorService) -> None:
    keys = {"refresh_token": "R-4711-refresh", "client_id": "me"}
    endpoint = replace(emulator.endpoint, credentials=keys)
    with connected(endpoint) as driver:
        assert count_requests(driver, emulator, lambda: driver.put("/a", Literal(b"1"))) == 2
        assert count_requests(driver, emulator, lambda: driver.stat("/a")) == 1
    with connected(replace(endpoint, credentials={**keys, "refresh_token": "invalid"})) as driver:
        error = refusal(K.AUTH, lambda: driver.stat("/a"))
        assert "AADSTS" in error.detail


def test_an_expired_token_is_not_tried_again(server: Scripted) -> None:
    set_answer(server, 401, {"error": {"code": "InvalidAuthenticationToken", "message": "expired"}})
    with connected(endpoint_at(server)) as driver:
        refusal(K.AUTH, lambda: driver.stat("/a"))
        assert len(server.requests) == 1


def test_throttling_is_its_own_kind(driver: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"throttle.rate_per_s": 1e-6, "throttle.burst": 1, "throttle.retry_after_s": 7})
    driver.put("/a", Literal(b"1"))
    assert refusal(K.THROTTLED, lambda: driver.put("/a", Literal(b"1"))).retry_after_s == 7.0
    emulator.control(set={"quota.bytes": 1})


def test_unusable_specs_and_credentials_are_refused_on_connecting() -> None:
    with pytest.raises(CredentialsError, match="access_token, or refresh_token and client_id"):
        drivers.connect(SPEC, None, {})
    with pytest.raises(SpecError, match="colour"):
        drivers.connect(ProviderSpec.parse("onedrive?colour=red"), None, {"access_token": "x"})


def test_versions_show_disabled_redirects_and_retries(driver: Any) -> None:
    versions = driver.versions()
    assert (versions["httpx.redirects"], versions["httpx.retries"]) == ("off", "off")
