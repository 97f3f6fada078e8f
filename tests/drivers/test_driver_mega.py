"""Tests of the MEGA driver on the emulator, beyond those of the conformance suite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mega.errors import RequestError

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Counting, Preparing
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import (
    KIB,
    MIB,
    CloudError,
    CredentialsError,
    Endpoint,
    ErrorKind,
    ProviderSpec,
    SpecError,
    Verb,
)
from pytest_cloudbench.support import redact
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal

from .conftest import Scripted

SMALL = RandomContent("small", 5 * KIB)


def connect(endpoint: Endpoint) -> Any:
    return drivers.connect(ProviderSpec.parse("mega"), endpoint, {})


@pytest.fixture(scope="module")
def shared() -> Iterator[EmulatorService]:
    with start_emulator("mega-ideal") as running:
        yield running


@pytest.fixture(scope="module")
def logged_in(shared: EmulatorService) -> Iterator[Any]:
    driver = connect(shared.endpoint)
    yield driver
    driver.close()


@pytest.fixture
def emulator(shared: EmulatorService) -> Iterator[EmulatorService]:
    before = shared.control(get="profile")["profile"]
    shared.control(reset=True)
    yield shared
    shared.control(set=before)


@pytest.fixture
def driver(emulator: EmulatorService, logged_in: Any) -> Any:
    logged_in.stat("/")  # the driver notices that the account is a new one
    return logged_in


def requests_at(emulator: EmulatorService) -> int:
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    return sum(sum(counts.values()) for counts in routes.values())


def refusal(kind: ErrorKind, action: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        list(action() or ())
    assert caught.value.kind is kind, caught.value
    return caught.value


# --- requests ---


def test_it_counts_and_prepares(driver: Any) -> None:
    assert isinstance(driver, Counting)
    assert isinstance(driver, Preparing)


def test_every_verb_is_counted_as_the_emulator_counts_it(emulator: EmulatorService, driver: Any) -> None:
    driver.mkdir("/counted")
    driver.prepare("/counted")
    actions: dict[Verb, Any] = {
        Verb.PUT: lambda: driver.put("/counted/a", SMALL),
        Verb.STAT: lambda: driver.stat("/counted/a"),
        Verb.LIST: lambda: list(driver.list("/counted")),
        Verb.GET: lambda: list(driver.get("/counted/a")),
        Verb.SHARE: lambda: driver.share("/counted/a"),
        Verb.COPY: lambda: driver.copy("/counted/a", "/counted/b"),
        Verb.MOVE: lambda: driver.move("/counted/b", "/counted/c"),
        Verb.DELETE: lambda: driver.delete("/counted/c"),
    }
    counts = {}
    for verb, action in actions.items():
        before, counted = requests_at(emulator), driver.requests()
        action()
        counts[verb] = driver.requests() - counted
        assert counts[verb] == requests_at(emulator) - before, verb
    declared = driver.capabilities.requests
    assert {verb: count for verb, count in counts.items() if verb is not Verb.GET} == {
        verb: declared[verb] for verb in counts if verb is not Verb.GET
    }
    assert counts[Verb.GET] == 3


@pytest.mark.parametrize("version", ["v2-hashcash", pytest.param("v1-hashcash", marks=pytest.mark.slow)])
def test_a_login_is_a_part_of_the_operation_that_needs_it(emulator: EmulatorService, version: str) -> None:
    emulator.control(set={"account.type": version})
    driver = connect(emulator.endpoint)
    assert driver.requests() == requests_at(emulator) == 0
    driver.mkdir("/a")
    assert driver.requests() == requests_at(emulator) == 5  # us0, us and again with the work done, f, p
    assert driver.space()[0] == 0
    driver.close()


@pytest.mark.parametrize("reason", ["EAGAIN", "ERATELIMIT"])
def test_throttling_is_reported_and_not_retried(emulator: EmulatorService, driver: Any, reason: str) -> None:
    driver.put("/a", SMALL)
    emulator.control(set={"throttle.rate_per_s": 1e-9, "throttle.burst": 1, "throttle.reason": reason})
    for max_requests in (4, 2):  # changes, where to send, content (refused); changes, where to send (refused)
        before = driver.requests()
        with suppress(CloudError):
            driver.put("/b", SMALL)
            pytest.fail("it was not refused")
        assert driver.requests() - before <= max_requests
    before = driver.requests()
    error = refusal(ErrorKind.THROTTLED, lambda: driver.delete("/a"))
    assert (driver.requests() - before, error.retry_after_s) == (2, None)


def test_a_reset_download_is_not_repeated(emulator: EmulatorService, driver: Any) -> None:
    driver.put("/a", SMALL)
    emulator.control(set={"faults.reset_rate": 1.0})
    before = requests_at(emulator)
    refusal(ErrorKind.NETWORK, lambda: driver.get("/a"))
    assert requests_at(emulator) - before == 1


def test_each_thread_counts_its_own(driver: Any) -> None:
    driver.mkdir("/threads")
    driver.prepare("/threads")

    def put_files(worker: int) -> int:
        before: int = driver.requests()
        for number in range(worker):
            driver.put(f"/threads/{worker}-{number}", SMALL)
        return int(driver.requests()) - before

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(put_files, range(1, 5))] == [3, 6, 9, 12]
    assert len(list(driver.list("/threads"))) == 10


# --- the tree, and changes by others ---


def test_changes_of_another_client_are_seen(emulator: EmulatorService, driver: Any) -> None:
    other = connect(emulator.endpoint)
    driver.put("/x/a", Literal(b"first"))
    assert other.stat("/x/a").size_bytes == 5
    other.put("/x/a", Literal(b"second one"))
    other.move("/x", "/y")
    assert [entry.path for entry in driver.list("/")] == ["/y", "/y/a"]
    assert b"".join(driver.get("/y/a")) == b"second one"
    url = other.share("/y/a")
    driver.revoke(url)
    refusal(ErrorKind.NOT_FOUND, lambda: other.revoke(url))
    other.delete("/y")
    assert list(driver.list("/")) == []
    other.close()


def test_many_threads_see_each_change_once(emulator: EmulatorService, driver: Any) -> None:
    """Answers about changes arrive in any order, and some are longer than others."""
    other = connect(emulator.endpoint)
    other.mkdir("/many")
    other.prepare("/many")
    done = threading.Event()

    def list_repeatedly() -> int:
        list_count = 0
        while not done.is_set():
            list(driver.list("/many"))
            list_count += 1
        return list_count

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(list_repeatedly) for _ in range(4)]
        for number in range(30):
            other.put(f"/many/{number}", Literal(b"x"))
            if number % 2:
                other.delete(f"/many/{number}")
            if number % 3 == 0:
                other.move(f"/many/{number}", f"/many/moved-{number}") if number % 2 == 0 else None
        done.set()
        assert all(future.result() for future in futures)
    assert {entry.path for entry in driver.list("/many")} == {entry.path for entry in other.list("/many")}
    other.close()


def test_a_new_account_is_read_again(emulator: EmulatorService, driver: Any) -> None:
    driver.put("/a", SMALL)
    emulator.control(reset=True)
    before = driver.requests()
    refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/a"))
    assert driver.requests() - before == 2


def test_threads_make_a_folder_once(driver: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: driver.put(f"/one/two/{number}", SMALL), range(8)))
    assert len(driver._account._tree.nodes_at("/one")) == len(driver._account._tree.nodes_at("/one/two")) == 1


def test_newest_file_of_a_name_is_read(emulator: EmulatorService, driver: Any) -> None:
    other = connect(emulator.endpoint)
    driver.mkdir("/x")
    for client in (driver, other):
        client.prepare("/x")
    driver.put("/x/a", Literal(b"1"))
    newer = other.put("/x/a", Literal(b"22"))  # it was prepared before, so it does not know the first file
    sizes = {entry.revision: entry.size_bytes for entry in driver.list("/x")}
    assert sizes == {newer.revision: 2}
    driver.delete("/x/a")
    refusal(ErrorKind.NOT_FOUND, lambda: other.stat("/x/a"))
    other.close()


# --- content ---


def test_content_streams_in_both_directions(emulator: EmulatorService, driver: Any) -> None:
    """Files stream in the MAC's chunks. None is held in memory as a whole, and none is written to disk."""
    reads = []

    class Watched:
        size_bytes = 5 * MIB

        def read(self, offset: int, length: int) -> bytes:
            reads.append((offset, length))
            return bytes(max(0, min(length, self.size_bytes - offset)))

    driver.put("/big", Watched())
    assert max(length for _, length in reads) == MIB
    pieces = [len(piece) for piece in driver.get("/big")]
    assert (pieces[0], max(pieces), sum(pieces)) == (128 * KIB, MIB, 5 * MIB)


def test_a_flipped_bit_is_corrupt(emulator: EmulatorService, driver: Any) -> None:
    emulator.control(set={"faults.corrupt_rate": 1.0})
    driver.put("/a", RandomContent("a", 200 * KIB))
    pieces = driver.get("/a")
    assert len(next(pieces)) == 128 * KIB
    refusal(ErrorKind.CORRUPT, lambda: pieces)


def test_offset_is_refused(driver: Any) -> None:
    driver.put("/a", SMALL)
    refusal(ErrorKind.INVALID, lambda: driver.get("/a", 1))


def test_mega_driver_leaves_no_temporary_file(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    driver.put("/a", SMALL)
    list(driver.get("/a"))
    assert list(tmp_path.iterdir()) == []


# --- refusals ---


def test_full_account_is_a_quota_error(emulator: EmulatorService, driver: Any) -> None:
    emulator.control(set={"quota.bytes": 1000})
    assert refusal(ErrorKind.QUOTA, lambda: driver.put("/a", SMALL)).detail.startswith("-17 EOVERQUOTA")
    assert driver.space() == (0, 1000)


def test_a_wrong_password(emulator: EmulatorService) -> None:
    wrong = {**emulator.endpoint.credentials, "password": "not-the-password"}
    driver = connect(replace(emulator.endpoint, credentials=wrong))
    refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
    driver.close()


def test_a_session_that_ended_is_begun_again_by_the_next_operation(emulator: EmulatorService) -> None:
    driver = connect(emulator.endpoint)
    driver.stat("/")
    driver._loop.run(driver._account._api.post({"a": "sml"}))
    refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
    assert driver.stat("/").is_folder
    driver.close()


def test_put_into_a_prepared_folder_begins_an_ended_session_again(emulator: EmulatorService) -> None:
    driver = connect(emulator.endpoint)
    driver.mkdir("/x")
    driver.prepare("/x")
    driver.put("/x/a", SMALL)
    driver._loop.run(driver._account._api.post({"a": "sml"}))
    refusal(ErrorKind.AUTH, lambda: driver.put("/x/a", SMALL))
    assert driver.put("/x/a", SMALL).size_bytes == SMALL.size_bytes
    before = driver.requests()
    driver.put("/x/b", SMALL)
    assert driver.requests() - before == 3, "the folder is still a prepared one"
    driver.close()


def test_late_refusal_of_an_ended_session_keeps_the_next_one(emulator: EmulatorService) -> None:
    """Requests that were under way when the session ended are refused after another operation has logged in."""
    driver = connect(emulator.endpoint)
    driver.stat("/")
    former = driver._account._api
    driver._loop.run(former.post({"a": "sml"}))
    refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
    driver.mkdir("/x")
    driver.prepare("/x")
    with pytest.raises(RequestError):
        driver._loop.run(former.post({"a": "ug"}))
    before = driver.requests()
    driver.put("/x/a", SMALL)
    assert driver.requests() - before == 3, "no login among them"
    driver.close()


@pytest.mark.parametrize("path", ["", "a", "/a/../b", "/.", "/a\0b"])
def test_unusable_paths_are_invalid(driver: Any, path: str) -> None:
    refusal(ErrorKind.INVALID, lambda: driver.put(path, SMALL))


def test_the_root_stays(driver: Any) -> None:
    refusal(ErrorKind.INVALID, lambda: driver.delete("/"))
    refusal(ErrorKind.CONFLICT, lambda: driver.put("/", SMALL))
    driver.put("/a/b", SMALL)
    refusal(ErrorKind.INVALID, lambda: driver.move("/a", "/a/c"))
    refusal(ErrorKind.INVALID, lambda: driver.share("/a"))
    refusal(ErrorKind.CONFLICT, lambda: driver.list("/a/b"))


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((200, b"-3"), ErrorKind.THROTTLED),
        ((200, b"[-4]"), ErrorKind.THROTTLED),
        ((200, b"-16"), ErrorKind.AUTH),
        ((200, b"-20"), ErrorKind.SERVER),
        ((200, b"nonsense"), ErrorKind.SERVER),
        ((200, b"{}"), ErrorKind.SERVER),
        ((200, b""), ErrorKind.SERVER),
        ((500, b"Server Too Busy"), ErrorKind.SERVER),
        ((302, b"elsewhere"), ErrorKind.SERVER),
        ((402, b""), ErrorKind.AUTH),
        ((404, b""), ErrorKind.NOT_FOUND),
        ((429, b""), ErrorKind.THROTTLED),
        ((509, b""), ErrorKind.THROTTLED),
    ],
)
def test_unreadable_answers_are_server_errors(server: Scripted, answer: tuple[int, bytes], kind: ErrorKind) -> None:
    headers = {"Content-Type": "application/json", "Location": "https://example.com/", "X-MEGA-Time-Left": "9"}
    server.say(*answer, headers=headers)
    secrets = {"email": "me@example.com", "password": "hidden-4711"}
    driver = connect(replace(server.endpoint, credentials=secrets))
    error = refusal(kind, lambda: driver.stat("/a"))
    assert (driver.requests(), len(server.requests)) == (1, 1)
    assert error.retry_after_s == (None if answer[0] == 200 else 9)
    assert error.__cause__ is not None
    driver.close()


def test_no_answer_wrong_certificate_and_cut_answer_are_network_errors(
    server: Scripted, other_server: Scripted, emulator: EmulatorService
) -> None:
    secrets = dict(emulator.endpoint.credentials)
    distrusted = server.elsewhere(ca_file=other_server.endpoint.ca_file)
    for endpoint in (server.elsewhere(port=1), distrusted):
        driver = connect(replace(endpoint, credentials=secrets))
        refusal(ErrorKind.NETWORK, lambda driver=driver: driver.stat("/a"))
        driver.close()
    server.say(200, b'[{"v": ', length=100)
    driver = connect(replace(server.endpoint, credentials=secrets))
    refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
    driver.close()


def test_nothing_hangs_past_its_timeout(server: Scripted) -> None:
    secrets = {"email": "me@example.com", "password": "hidden-4711"}
    server.say(silent=True)
    spec = ProviderSpec.parse("mega?timeout_s=0.2")
    driver: Any = drivers.connect(spec, replace(server.endpoint, credentials=secrets), {})
    refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
    sockets: Any = [*driver._account._session._sockets]
    driver.close()
    assert sockets
    assert all(socket.fileno() < 0 for socket in sockets), "the server does not close its side"


def test_no_secret_is_shown(server: Scripted) -> None:
    secrets = {"email": "me@example.com", "password": "hidden-4711"}
    server.say(418, json.dumps(secrets).encode())
    driver = connect(replace(server.endpoint, credentials=secrets))
    error = refusal(ErrorKind.INVALID, lambda: driver.stat("/a"))
    assert "hidden-4711" not in redact.clean(str(error)) + error.detail
    driver.close()


def test_specs_and_credentials() -> None:
    with pytest.raises(SpecError, match="nothing may follow 'mega:'"):
        drivers.connect(ProviderSpec.parse("mega:folder"))
    with pytest.raises(CredentialsError, match="credentials are missing: email and password"):
        drivers.connect(ProviderSpec.parse("mega"))


def test_closing_ends_the_loop_and_all_it_does(emulator: EmulatorService) -> None:
    before = set(threading.enumerate())  # another test's thread may end meanwhile
    driver = connect(emulator.endpoint)
    driver.put("/a", RandomContent("a", 3 * MIB))
    abandoned, later = driver.get("/a"), driver.get("/a")
    next(abandoned)
    next(later)
    abandoned.close()
    driver.close()
    later.close()
    driver.close()
    assert set(threading.enumerate()) <= before
