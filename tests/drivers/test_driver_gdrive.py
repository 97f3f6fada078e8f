"""Tests of the Google Drive driver: ids behind paths, requests per verb, pieces, tokens, and the error table."""

from __future__ import annotations

import json
import select
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.gdrive import GoogleDriveDriver
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
from pytest_cloudbench.providers import login
from pytest_cloudbench.workload.payload import RandomContent
from tests.drivers.faults.server import Answer, FaultServer, fault_server
from tests.drivers.tls_front import folder_of_authorities
from tests.limits import HANG_S

SMALL = RandomContent("small", 5 * KIB)
APP = {"refresh_token": "1//refresh-me", "client_id": "app", "client_secret": "hidden-too"}
JSON = {"content-type": "application/json; charset=UTF-8"}
FOLDER = "application/vnd.google-apps.folder"
FILE = {"id": "f", "name": "a", "mimeType": "x/y", "size": "3", "createdTime": "1", "webViewLink": "https://x/d/f/view"}
K = ErrorKind


class Connect(Protocol):
    def __call__(
        self, endpoint: Endpoint | None, text: str = "gdrive", credentials: Mapping[str, str] | None = None
    ) -> Any: ...


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal", time_scale=50) as service:
        yield service


@pytest.fixture
def emulator(running: EmulatorService) -> Iterator[EmulatorService]:
    """An emulator with an empty account, whose settings are restored after the test."""
    before = running.control(get="profile")["profile"]
    running.control(reset=True)
    yield running
    running.control(set=before)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with fault_server(tmp_path_factory.mktemp("scripted")) as server:
        yield server


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that connects drivers, all of which are closed at the end."""
    with ExitStack() as stack:

        def connect_driver(
            endpoint: Endpoint | None, text: str = "gdrive", credentials: Mapping[str, str] | None = None
        ) -> Any:
            driver: Any = drivers.connect(ProviderSpec.parse(text), endpoint, credentials or {})
            stack.callback(driver.close)
            return driver

        yield connect_driver


@pytest.fixture
def driver(emulator: EmulatorService, connect: Connect) -> Any:
    return connect(emulator.endpoint)


@pytest.fixture
def scripted_driver(scripted: FaultServer, connect: Connect) -> Any:
    """A driver whose provider gives the answers of a test. The driver already knows the folder /f."""
    driver = connect(Endpoint({"api": scripted.url()}, {"access_token": "ya29.secret-4711"}, scripted.ca_file))
    driver._folders["f"] = "folder-id"
    return driver


def count_requests(driver: Any, action: Any) -> int:
    before: int = driver.requests()
    action()
    return int(driver.requests()) - before


def routes(emulator: EmulatorService) -> dict[str, int]:
    """Return the number of requests to each route of the emulator."""
    counts_by_route: Any = emulator.control(get="stats")["stats"]["routes"]
    return {name: sum(counts.values()) for name, counts in counts_by_route.items()}


def failure(action: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    return caught.value


# --- requests ---


def test_each_verb_sends_its_declared_number_of_requests(emulator: EmulatorService, driver: Any) -> None:
    driver.mkdir("/f")
    driver.prepare("/f")
    url = ""

    def share() -> None:
        nonlocal url
        url = driver.share("/f/a")

    actions = {
        Verb.PUT: lambda: driver.put("/f/a", SMALL),
        Verb.GET: lambda: list(driver.get("/f/a")),
        Verb.STAT: lambda: driver.stat("/f/a"),
        Verb.SHARE: share,
        Verb.REVOKE: lambda: driver.revoke(url),
        Verb.COPY: lambda: driver.copy("/f/a", "/f/b"),
        Verb.MOVE: lambda: driver.move("/f/b", "/f/c"),
        Verb.DELETE: lambda: driver.delete("/f/c"),
    }
    declared = driver.capabilities.requests
    for verb, action in actions.items():
        before = sum(routes(emulator).values())
        assert count_requests(driver, action) == declared[verb], verb
        assert sum(routes(emulator).values()) - before == declared[verb], verb
    assert count_requests(driver, lambda: list(driver.list("/"))) == 2  # the root and the folder in it
    assert count_requests(driver, lambda: driver.put("/f/a", SMALL)) == declared[Verb.PUT]  # an overwrite takes no more


def test_folders_are_looked_up_once(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    assert count_requests(driver, lambda: driver.put("/a/b/c/file", SMALL)) == 3 * 3 + 2, "search, create, search again"
    assert count_requests(driver, lambda: driver.put("/a/b/c/file", SMALL)) == 2
    other = connect(emulator.endpoint)
    assert count_requests(other, lambda: other.stat("/a/b/c/file")) == 4
    third = connect(emulator.endpoint)
    assert count_requests(third, lambda: third.prepare("/a/b/c")) == 3
    assert count_requests(third, lambda: third.stat("/a/b/c/file")) == 1


def test_sixteen_threads_make_one_folder(emulator: EmulatorService, driver: Any) -> None:
    barrier = threading.Barrier(16)

    def put(number: int) -> None:
        barrier.wait()
        driver.put(f"/new/deep/{number}", SMALL)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, range(16)))
    assert [entry.path for entry in driver.list("/") if entry.is_folder] == ["/new", "/new/deep"]
    assert len(list(driver.list("/new/deep"))) == 16


def test_connections_of_a_thread_end_with_it(driver: Any) -> None:
    driver.put("/a", SMALL)
    for _ in range(20):
        thread = threading.Thread(target=driver.stat, args=("/a",))
        thread.start()
        thread.join()
    assert len(driver._transport._all) == 1


def test_a_remembered_folder_that_is_gone_is_looked_up_again(
    emulator: EmulatorService, driver: Any, connect: Connect
) -> None:
    driver.put("/f/in/a", SMALL)
    other = connect(emulator.endpoint)
    other.delete("/f")
    assert failure(lambda: driver.stat("/f/in/a")).kind is K.NOT_FOUND
    driver.put("/f/in/b", SMALL)
    assert [entry.path for entry in other.list("/f")] == ["/f/in", "/f/in/b"]
    other.delete("/f")
    other.put("/f/in/c", SMALL)
    assert driver.stat("/f/in/c").size_bytes == SMALL.size_bytes


def test_files_are_never_remembered(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    other = connect(emulator.endpoint)
    first = driver.put("/a", SMALL)
    second = other.put("/a", RandomContent("other", 17))
    assert driver.stat("/a") == second != first
    other.delete("/a")
    assert failure(lambda: driver.stat("/a")).kind is K.NOT_FOUND


def test_newest_of_two_files_with_one_name_is_used(driver: Any) -> None:
    driver.put("/f/a", RandomContent("1", 1))
    driver.put("/g/a", RandomContent("2", 2))
    driver.move("/f/a", "/g/a")
    assert sorted(entry.size_bytes for entry in driver.list("/g")) == [1, 2]
    assert driver.stat("/g/a").size_bytes == 1, "the one that was changed last"


def make_folder(driver: Any, name: str) -> str:
    """Make a folder as another program does, which does not look whether there is one."""
    return str(driver._send(driver._files.create(body={"name": name, "mimeType": FOLDER}))["id"])


def ids_at(driver: Any, name: str) -> set[str]:
    return {str(file["id"]) for file in driver._search_files("root", name)}


def test_oldest_of_two_folders_with_one_name_is_used(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    oldest, other = make_folder(driver, "d"), make_folder(driver, "d")
    driver._send(driver._files.create(body={"name": "foreign", "parents": [other]}))  # this one was changed last
    fresh = connect(emulator.endpoint)
    fresh.put("/d/a", SMALL)
    assert [entry.path for entry in fresh.list("/d")] == ["/d/a"]
    assert fresh.stat("/d").is_folder
    fresh.move("/d", "/moved")
    assert ids_at(fresh, "moved") == {oldest}
    assert [entry.path for entry in fresh.list("/moved")] == ["/moved/a"]
    fresh.move("/moved", "/d")
    fresh.delete("/d")
    assert failure(lambda: fresh.stat("/d/a")).kind is K.NOT_FOUND
    assert ids_at(fresh, "d") == {other}, "nothing else is removed"


def test_folder_that_was_moved_onto_a_remembered_one_is_used(driver: Any) -> None:
    driver.put("/old/x", SMALL)
    driver.put("/d/a", SMALL)
    driver.move("/old", "/d")
    driver.put("/d/b", SMALL)
    assert sorted(entry.path for entry in driver.list("/d")) == ["/d/b", "/d/x"]


def test_folder_is_found_beside_a_file_of_its_name(emulator: EmulatorService, driver: Any) -> None:
    make_folder(driver, "d")
    driver._send(driver._files.create(body={"name": "d"}))
    driver.put("/d/a", SMALL)
    assert [entry.path for entry in driver.list("/d")] == ["/d/a"]


class InStep:
    """Stands in for a driver's function that sends: both drivers search, then both create, then they go on alone."""

    def __init__(self, driver: Any, barrier: threading.Barrier) -> None:
        self._send, self._barrier, self._sent = driver._send, barrier, 0

    def __call__(self, request: Any) -> Any:
        answer = self._send(request)
        self._sent += 1
        if self._sent <= 2:
            self._barrier.wait()
        return answer


def test_two_drivers_that_make_a_folder_at_once_use_one(
    emulator: EmulatorService, driver: Any, connect: Connect
) -> None:
    barrier = threading.Barrier(2, timeout=HANG_S)
    both = [driver, connect(emulator.endpoint)]
    for each in both:
        each._send = InStep(each, barrier)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: each.put(f"/new/{both.index(each)}", SMALL), both))
    assert routes(emulator)["files.create"] == 2
    reader = connect(emulator.endpoint)
    assert len(ids_at(reader, "new")) == 1
    assert sorted(entry.path for entry in reader.list("/new")) == ["/new/0", "/new/1"]


class EmptyFirst:
    """Stands in for a driver's function that sends: each search begins with an empty page, as the service's may."""

    def __init__(self, driver: Any) -> None:
        self._send = driver._send

    def __call__(self, request: Any) -> Any:
        if request.methodId == "drive.files.list" and "pageToken" not in request.uri:
            return {"files": [], "nextPageToken": "page-2"}
        request.uri = request.uri.replace("&pageToken=page-2", "")
        return self._send(request)


def test_an_empty_page_of_a_search_is_not_its_end(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    driver.put("/f/a", SMALL)
    second = connect(emulator.endpoint)
    second._send = EmptyFirst(second)
    assert second.stat("/f/a").size_bytes == SMALL.size_bytes
    second.put("/f/a", SMALL)
    second.mkdir("/f")
    assert [entry.path for entry in second.list("/")] == ["/f", "/f/a"]
    folder_id = next(iter(ids_at(second, "f")))
    second._remove_empty_folder(folder_id)
    assert [entry.path for entry in driver.list("/")] == ["/f", "/f/a"]


def test_names_with_a_slash_are_shown_without_one(emulator: EmulatorService, driver: Any) -> None:
    send, files = driver._send, driver._files
    send(files.create(body={"name": "a/b", "mimeType": "text/plain"}))
    send(files.create(body={"name": "c/d", "mimeType": FOLDER}))
    slash = "\N{FULLWIDTH SOLIDUS}"
    assert sorted(entry.path for entry in driver.list("/")) == [f"/a{slash}b", f"/c{slash}d"]
    assert failure(lambda: driver.stat("/a/b")).kind is K.NOT_FOUND


def test_root_parameter_names_another_folder(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    driver.put("/f/a", SMALL)
    inside = connect(emulator.endpoint, f"gdrive?root={driver._folders['f']}")
    assert [entry.path for entry in inside.list("/")] == ["/a"]
    assert inside.stat("/").is_folder


# --- up and down ---


class Watched:
    """Content that records the lengths of its reads."""

    def __init__(self, size_bytes: int) -> None:
        self._inner, self.size_bytes, self.reads = RandomContent("watched", size_bytes), size_bytes, list[int]()

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append(length)
        return self._inner.read(offset, length)


def test_a_large_file_goes_up_in_pieces(emulator: EmulatorService, driver: Any) -> None:
    content = Watched(5 * MIB + 17)
    driver.multipart_bytes, driver.part_bytes = 2 * MIB, 2 * MIB
    driver.prepare("/")
    entry = driver.put("/big", content)
    assert max(content.reads) == 2 * MIB
    assert routes(emulator) == {"files.list": 1, "upload.begin": 1, "upload": 3}
    assert entry == driver.stat("/big")
    assert b"".join(driver.get("/big")) == content.read(0, content.size_bytes)
    again = driver.put("/big", Watched(4 * MIB))
    assert (again.size_bytes, len(list(driver.list("/")))) == (4 * MIB, 1)


def test_exactly_the_threshold_is_one_upload(emulator: EmulatorService, driver: Any) -> None:
    assert driver.multipart_bytes == 5 * MIB
    driver.multipart_bytes = 5 * KIB
    driver.put("/a", SMALL)
    assert routes(emulator) == {"files.list": 1, "upload": 1}


def test_an_answer_that_leads_an_upload_elsewhere_is_not_followed(scripted: FaultServer, scripted_driver: Any) -> None:
    scripted_driver.multipart_bytes = 0
    headers = {**JSON, "location": "https://{elsewhere}/upload"}
    scripted.say(Answer(200, b'{"files": []}', headers))
    error = failure(lambda: scripted_driver.put("/f/a", SMALL))
    assert (error.kind, error.detail.partition(":")[0]) == (K.SERVER, "the answer leads to another host")
    assert len(scripted.requests) == 2
    assert set(scripted.connections) == {"right"}


def test_two_downloads_in_one_thread(driver: Any) -> None:
    content = RandomContent("big", 1 * MIB)
    driver.put("/a", content)
    first, second = driver.get("/a"), driver.get("/a", 1000)
    first_pieces = next(first), next(second)
    assert driver.stat("/a").size_bytes == 1 * MIB
    data = content.read(0, 1 * MIB)
    assert first_pieces[0] + b"".join(first) == data
    assert first_pieces[1] + b"".join(second) == data[1000:]


def test_abandoned_download_keeps_no_connection(driver: Any) -> None:
    driver.put("/a", RandomContent("big", 1 * MIB))
    pieces = driver.get("/a")
    assert 0 < len(next(pieces)) <= 1 * KIB
    pieces.close()
    assert len(b"".join(driver.get("/a"))) == 1 * MIB


def test_a_connection_that_the_server_has_closed_is_not_used(scripted: FaultServer, scripted_driver: Any) -> None:
    body = json.dumps({"files": [FILE]}).encode()
    scripted.say(Answer(200, body, JSON, then="close"))
    for _ in range(3):
        assert scripted_driver.stat("/f/a").size_bytes == 3
        (connection,) = scripted_driver._transport.http.connections.values()
        select.select([connection.sock], [], [], 30)  # until the server's close has arrived
    assert len(scripted.requests) == 3


# --- tokens ---


def test_a_token_is_renewed_by_the_operation_that_needs_it(
    emulator: EmulatorService, driver: Any, connect: Connect
) -> None:
    driver.put("/a", SMALL)
    other = connect(replace(emulator.endpoint, credentials=APP))
    assert [count_requests(other, lambda: other.stat("/a")) for _ in range(3)] == [2, 1, 1]
    assert routes(emulator)["oauth.token"] == 1


def test_sixteen_threads_renew_a_token_once(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    driver.put("/a", SMALL)
    other, barrier = connect(replace(emulator.endpoint, credentials=APP)), threading.Barrier(16)

    def stat(_: int) -> int:
        barrier.wait()
        return int(other.stat("/a").size_bytes)

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(stat, range(16))) == {SMALL.size_bytes}
    assert routes(emulator)["oauth.token"] == 1


def test_revoked_token_fails_each_operation(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    """The provider revoked the token early, and the driver does not send the request again."""
    emulator.control(set={"account.token_lifetime_s": 3600})
    other = connect(replace(emulator.endpoint, credentials=APP))
    other.mkdir("/f")
    emulator.control(reset=True)  # no token is known any more
    assert [failure(lambda: other.stat("/f/a")).kind for _ in range(2)] == [K.AUTH, K.AUTH]


def test_fields_of_a_login_are_those_of_the_driver(emulator: EmulatorService, connect: Connect) -> None:
    trusted = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
    browser = build_opener(HTTPSHandler(context=trusted), ProxyHandler({}))
    oauth = login.redirect_to_service(GoogleDriveDriver.oauth, emulator.endpoint)
    app = login.Application(oauth, APP["client_id"], APP["client_secret"], emulator.endpoint.ca_file)
    with ThreadPoolExecutor(1) as pool:  # the page sends the browser back to the waiting process
        tokens = login.login_by_browser(
            app, lambda text: None, lambda url: pool.submit(lambda: browser.open(url).read())
        )
    driver = connect(replace(emulator.endpoint, credentials={**APP, "refresh_token": tokens["refresh_token"]}))
    assert count_requests(driver, lambda: list(driver.list("/"))) == 2


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}, K.AUTH),
        (401, {"error": "invalid_client", "error_description": "The OAuth client was not found."}, K.AUTH),
        (500, {"error": "internal_failure"}, K.SERVER),
        (503, {}, K.SERVER),
        (429, {"error": "rate_limit_exceeded"}, K.THROTTLED),
        (200, {"no": "token"}, K.AUTH),
    ],
)
def test_a_refused_renewal_is_one_request(
    scripted: FaultServer, connect: Connect, status: int, body: dict[str, str], kind: ErrorKind
) -> None:
    driver = connect(Endpoint({"api": scripted.url()}, APP, scripted.ca_file))
    scripted.say(Answer(status, json.dumps(body).encode(), JSON))
    error = failure(lambda: driver.stat("/a"))
    assert error.kind is kind, error
    assert (len(scripted.requests), driver.requests()) == (1, 1)


@pytest.fixture(scope="module")
def key() -> dict[str, str]:
    """A service account's key."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account", "client_email": "robot@example.com", "private_key_id": "1",
        "private_key": private.decode(), "token_uri": "https://oauth2.googleapis.com/token",
    }  # fmt: skip


def test_a_service_account(emulator: EmulatorService, connect: Connect, key: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "key.json").write_text(json.dumps(key))
    account = {"service_account_file": str(tmp_path / "key.json")}
    driver = connect(replace(emulator.endpoint, credentials=account))
    assert count_requests(driver, lambda: driver.put("/a", SMALL)) == 3
    assert routes(emulator) == {"oauth.token": 1, "files.list": 1, "upload": 1}, "no look at where the account is"


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, '{"private_key": "secret words"}'])
def test_unusable_key_file_is_refused(connect: Connect, tmp_path: Path, text: str) -> None:
    (tmp_path / "key.json").write_text(text)
    with pytest.raises(CredentialsError, match="is not a service account's key") as caught:
        connect(None, credentials={"service_account_file": str(tmp_path / "key.json")})
    assert "secret words" not in str(caught.value)
    with pytest.raises(CredentialsError, match="cannot be read"):
        connect(None, credentials={"service_account_file": str(tmp_path / "none.json")})


# --- errors ---


def google(status: int, reason: str) -> Answer:
    detail = {"domain": "global", "reason": reason, "message": "words"}
    body = {"error": {"code": status, "message": "words", "errors": [detail]}}
    return Answer(status, json.dumps(body).encode(), JSON)


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (google(403, "userRateLimitExceeded"), K.THROTTLED, "403 userRateLimitExceeded: words"),
        (google(403, "rateLimitExceeded"), K.THROTTLED, None),
        (google(403, "sharingRateLimitExceeded"), K.THROTTLED, None),
        (google(429, "rateLimitExceeded"), K.THROTTLED, None),
        (google(403, "storageQuotaExceeded"), K.QUOTA, None),
        (google(403, "insufficientFilePermissions"), K.AUTH, None),
        (google(403, "fileNotDownloadable"), K.CONFLICT, None),
        (google(401, "authError"), K.AUTH, "401 authError: words"),
        (google(404, "notFound"), K.NOT_FOUND, None),
        (google(409, "fileIdInUse"), K.CONFLICT, None),
        (google(412, "conditionNotMet"), K.CONFLICT, None),
        (google(400, "badRequest"), K.INVALID, None),
        (google(500, "backendError"), K.SERVER, None),
        (google(503, "rateLimitExceeded"), K.SERVER, None),
        (Answer(403, b"no json", {}), K.AUTH, "403 no json"),
        (Answer(404, b'{"error": null}', JSON), K.NOT_FOUND, None),
        (Answer(403, b'{"error": {"errors": []}}', JSON), K.AUTH, None),
        (Answer(200, b'{"files": [{}]}', JSON), K.SERVER, None),
        (Answer(200, b"{}", JSON), K.SERVER, None),
    ],
)
def test_error_table(
    scripted: FaultServer, scripted_driver: Any, answer: Answer, kind: ErrorKind, detail: str | None
) -> None:
    scripted.say(answer)
    scripted_driver._folders.pop("f")  # the root is known, and cannot be forgotten
    error = failure(lambda: scripted_driver.stat("/a"))
    assert (error.kind, error.operation, error.path) == (kind, "stat", "/a"), error
    assert error.__cause__ is not None
    assert detail in (None, error.detail)
    assert len(scripted.requests) == 1


def test_truncated_download_and_ignored_range_are_errors(scripted: FaultServer, scripted_driver: Any) -> None:
    body = json.dumps({"files": [FILE]}).encode()
    scripted.say(Answer(200, body, JSON, promised=50, then="close"))
    assert failure(lambda: list(scripted_driver.get("/f/a"))).kind is K.NETWORK
    scripted.say(Answer(200, body, JSON))
    error = failure(lambda: list(scripted_driver.get("/f/a", 1)))
    assert (error.kind, error.detail) == (K.SERVER, "the range was ignored")
    assert b"".join(scripted_driver.get("/f/a")) == body


@pytest.mark.parametrize("path", ["", "a", "//", "/a//b", "/a/", "/a/../b", "/./a", "/a\0b", "/\ud800"])
def test_unusable_paths_are_invalid(emulator: EmulatorService, driver: Any, path: str) -> None:
    for action in (lambda: driver.put(path, SMALL), lambda: driver.stat(path), lambda: driver.mkdir(path)):
        assert failure(action).kind is K.INVALID
    assert routes(emulator) == {}


def test_quota_and_space(emulator: EmulatorService, driver: Any) -> None:
    driver.put("/a", SMALL)
    assert driver.space() == (SMALL.size_bytes, 2**63 - 1)
    emulator.control(set={"quota.bytes": SMALL.size_bytes})
    assert driver.space() == (SMALL.size_bytes, SMALL.size_bytes)
    assert failure(lambda: driver.put("/b", SMALL)).kind is K.QUOTA


# --- the connection ---


@pytest.mark.parametrize("credentials", [{}, {"refresh_token": "r"}, {"client_id": "c", "client_secret": "s"}])
def test_missing_credentials(credentials: dict[str, str], connect: Connect) -> None:
    with pytest.raises(CredentialsError, match="access_token, or refresh_token and client_id and client_secret"):
        connect(None, credentials=credentials)


@pytest.mark.parametrize("text", ["gdrive:/folder", "gdrive?retries=3", "gdrive?timeout_s=soon"])
def test_unusable_spec_is_refused(text: str, connect: Connect) -> None:
    with pytest.raises(SpecError) as caught:
        connect(None, text, {"access_token": "t"})
    assert "\n" not in str(caught.value)


def test_the_real_service_has_its_own_hosts(connect: Connect) -> None:
    driver = connect(None, credentials={"access_token": "t"})
    assert driver._transport.hosts == {"www.googleapis.com"}
    assert driver._files.list().uri.startswith("https://www.googleapis.com/drive/v3/files?")
    assert driver.requests() == 0, "connecting sends nothing"


def test_a_folder_of_authorities_is_trusted(scripted: FaultServer, connect: Connect, tmp_path: Path) -> None:
    def read_with(authorities: str) -> bytes:
        driver = connect(Endpoint({"api": scripted.url()}, {"access_token": "t"}, authorities))
        driver._folders["f"] = "folder-id"
        return b"".join(driver.get("/f/a"))

    body = json.dumps({"files": [FILE]}).encode()
    scripted.say(Answer(200, body, JSON))
    assert read_with(folder_of_authorities(scripted.ca_file, tmp_path / "ca")) == body
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    error = failure(lambda: read_with(folder_of_authorities(str(tmp_path / "other.pem"), tmp_path / "other")))
    assert (error.kind, "CERTIFICATE_VERIFY_FAILED" in error.detail) == (K.NETWORK, True)


def test_versions_name_the_libraries(driver: Any) -> None:
    assert {"google-api-python-client", "google-auth", "httplib2", "openssl", "gdrive.retries"} <= set(
        driver.versions()
    )
