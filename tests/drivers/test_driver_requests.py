"""Counts of requests per operation, in which the driver must agree with the server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Counting, Driver
from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.model import KIB, CloudError, ProviderSpec, Verb
from pytest_cloudbench.workload.payload import RandomContent

from .conftest import Scripted

SMALL = RandomContent("small", 5 * KIB)


@contextmanager
def connected(endpoint: Any, text: str = "dropbox") -> Iterator[Any]:
    driver: Any = drivers.connect(ProviderSpec.parse(text), endpoint, {})
    try:
        yield driver
    finally:
        driver.close()


def count_requests(driver: Any, action: Any) -> int:
    """Return the number of requests that an action sent, whatever its outcome."""
    before: int = driver.requests()
    with suppress(CloudError):
        action()
    return int(driver.requests()) - before


def requests_at(emulator: EmulatorService) -> int:
    routes: Any = emulator.control(get="stats")["stats"]
    return sum(sum(counts.values()) for counts in routes["routes"].values())


def actions(driver: Any) -> dict[Verb, Any]:
    """Return an action for each verb, in an order in which all succeed."""
    return {
        Verb.PUT: lambda: driver.put("/counted/a", SMALL),
        Verb.STAT: lambda: driver.stat("/counted/a"),
        Verb.LIST: lambda: list(driver.list("/counted")),
        Verb.GET: lambda: list(driver.get("/counted/a")),
        Verb.SHARE: lambda: driver.share("/counted/a"),
        Verb.COPY: lambda: driver.copy("/counted/a", "/counted/b"),
        Verb.MOVE: lambda: driver.move("/counted/b", "/counted/c"),
        Verb.DELETE: lambda: driver.delete("/counted/c"),
    }


def test_every_verb_is_counted_as_the_emulator_counts_it(emulator: EmulatorService) -> None:
    with connected(emulator.endpoint) as driver:
        declared = driver.capabilities.requests
        assert isinstance(driver, Counting)
        emulator.control(reset=True)
        for verb, action in actions(driver).items():
            before = requests_at(emulator)
            count = count_requests(driver, action)
            assert count == requests_at(emulator) - before, verb
            assert count >= declared[verb], verb


def test_an_upload_in_pieces_and_a_list_in_pages_take_several(emulator: EmulatorService) -> None:
    with connected(emulator.endpoint) as driver:
        emulator.control(reset=True)
        driver.multipart_bytes = driver.part_bytes = 4 * 1024 * KIB
        big = RandomContent("big", 10 * 1024 * KIB)
        assert count_requests(driver, lambda: driver.put("/pieces/big", big)) == requests_at(emulator) == 3
        for number in range(4):
            driver.put(f"/pieces/{number}", SMALL)
        driver.list_page_entries = 2
        before = requests_at(emulator)
        assert count_requests(driver, lambda: list(driver.list("/pieces"))) == requests_at(emulator) - before == 3


def test_refused_requests_and_lost_answers_are_counted(emulator: EmulatorService) -> None:
    with connected(emulator.endpoint) as driver:
        emulator.control(reset=True)
        missing = count_requests(driver, lambda: driver.stat("/nobody"))
        emulator.control(set={"faults.reset_rate": 1.0})
        try:
            lost = count_requests(driver, lambda: driver.stat("/nobody"))
        finally:
            emulator.control(set={"faults.reset_rate": 0.0})
        assert (missing, lost) == (1, 1)
        assert requests_at(emulator) == 2


def test_each_thread_counts_its_own(emulator: EmulatorService) -> None:
    with connected(emulator.endpoint) as driver:
        emulator.control(reset=True)

        def put_files(worker: int) -> int:
            return sum(count_requests(driver, lambda: driver.put(f"/threads/{worker}", SMALL)) for _ in range(worker))

        with ThreadPoolExecutor(4) as pool:
            counts = list(pool.map(put_files, range(1, 6)))
        assert counts == [1, 2, 3, 4, 5]
        assert requests_at(emulator) == 15
        assert driver.requests() == 0, "this thread has sent nothing"


def test_a_new_token_is_a_request_of_the_operation_that_needed_it(server: Scripted) -> None:
    from .test_driver_dropbox import METADATA, _answer_on

    keys = {"refresh_token": "refresh-me", "app_key": "key", "app_secret": "hidden-too"}
    driver: Any = drivers.connect(ProviderSpec.parse("dropbox"), None, keys)
    _answer_on(server, driver)
    answer = METADATA | {"access_token": "sl.fresh-0816", "expires_in": 14400, "account_id": "x"}
    server.say(200, json.dumps(answer).encode())
    assert [count_requests(driver, lambda: driver.stat("/a")) for _ in range(2)] == [2, 1]
    assert Counter(path for path, _ in server.requests) == {"/oauth2/token": 1, "/2/files/get_metadata": 2}
    driver.close()


def test_redirects_that_are_followed_are_counted(server: Scripted) -> None:
    """The driver follows no redirect. If a session ever did, each hop would count as a request."""
    with connected(server.endpoint) as driver:
        server.say(307, b"elsewhere", {"Location": f"{server.endpoint.url}/2/files/get_metadata"})
        assert count_requests(driver, lambda: driver.stat("/a")) == len(server.requests) == 1
        del driver._session.get_redirect_target
        driver._session.max_redirects = 3
        server.requests.clear()
        assert count_requests(driver, lambda: driver.stat("/a")) == len(server.requests) == 4


def test_a_folder_sends_none_and_says_so(tmp_path: Path) -> None:
    with connected(None, f"folder:{tmp_path}") as driver:
        supported = {verb: action for verb, action in actions(driver).items() if verb in driver.capabilities.verbs}
        assert {count_requests(driver, action) for action in supported.values()} == {0}


def test_driver_without_a_count_is_not_counting() -> None:
    class Silent:
        def put(self, path: str, content: Any) -> None: ...

    assert not isinstance(Silent(), Counting)
    assert "requests" not in vars(Driver), "it is not part of what every driver must have"
