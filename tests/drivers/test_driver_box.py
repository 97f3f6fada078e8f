"""Tests of the Box driver: ids behind paths, parts of a dictated size, one request per call, and errors."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import CloudError, CredentialsError, Endpoint, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

SPEC = ProviderSpec.parse("box")
TOKEN = "box-secret-4711"
K = ErrorKind


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal", api="box") as running:
        yield running


def connect(endpoint: Endpoint) -> Any:
    return drivers.connect(SPEC, endpoint, {})


@pytest.fixture
def driver(emulator: EmulatorService) -> Iterator[Any]:
    emulator.control(reset=True)
    new_driver = connect(emulator.endpoint)
    yield new_driver
    new_driver.close()


@pytest.fixture
def other(emulator: EmulatorService, driver: Any) -> Iterator[Any]:
    """Another client of the same account."""
    new_driver = connect(emulator.endpoint)
    yield new_driver
    new_driver.close()


def requests_at(emulator: EmulatorService) -> int:
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    return sum(sum(counts.values()) for counts in routes.values())


@pytest.mark.parametrize("folder", ["/a", "/b/c", "/d/e/f"])
def test_mkdir_of_an_existing_folder_is_no_error(driver: Any, folder: str) -> None:
    driver.mkdir(folder)
    driver.mkdir(folder)
    assert driver.stat(folder).is_folder


def refusal(kind: ErrorKind, action: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


def content_of(driver: Any, path: str) -> bytes:
    return b"".join(driver.get(path))


# --- requests ---


def test_every_verb_is_counted_as_the_emulator_counts_it(driver: Any, emulator: EmulatorService) -> None:
    driver.mkdir("/counted")
    declared = driver.capabilities.requests
    url = ""

    def share() -> None:
        nonlocal url
        url = driver.share("/counted/a")

    actions: dict[str, Any] = {
        "put": lambda: driver.put("/counted/a", Literal(b"12")),
        "stat": lambda: driver.stat("/counted/a"),
        "list": lambda: list(driver.list("/counted")),
        "get": lambda: content_of(driver, "/counted/a"),
        "share": share,
        "revoke": lambda: driver.revoke(url),
        "copy": lambda: driver.copy("/counted/a", "/counted/b"),
        "move": lambda: driver.move("/counted/b", "/counted/c"),
        "delete": lambda: driver.delete("/counted/c"),
    }
    for verb, action in actions.items():
        before, arrived = driver.requests(), requests_at(emulator)
        action()
        assert driver.requests() - before == requests_at(emulator) - arrived == declared[verb], verb


def test_prepare_looks_folders_up_before_anything_is_measured(driver: Any, other: Any) -> None:
    driver.mkdir("/a/b/c")
    other.prepare("/a/b/c")
    before = other.requests()
    other.put("/a/b/c/x", Literal(b"1"))
    assert other.requests() - before == 1


def test_a_list_follows_markers(driver: Any) -> None:
    for number in range(7):
        driver.put(f"/pages/{number}", Literal(b"1"))
    driver.list_page_entries, before = 2, driver.requests()
    assert sorted(entry.path for entry in driver.list("/pages")) == [f"/pages/{number}" for number in range(7)]
    assert driver.requests() - before == 4


def test_connect_sends_nothing(emulator: EmulatorService, driver: Any) -> None:
    assert driver.versions()["boxsdk.retries"] == "off"
    assert requests_at(emulator) == 0


# --- parts ---


def test_a_large_file_goes_in_parts_of_the_dictated_size(driver: Any, emulator: EmulatorService) -> None:
    driver.session_threshold_bytes = 20_000_000
    content = RandomContent("large", 20_000_017)
    entry = driver.put("/large", content)
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    assert (routes["upload_part"], routes["upload_session_commit"]) == ({"200": 3}, {"201": 1})
    assert entry == driver.stat("/large")
    assert content_of(driver, "/large") == content.read(0, content.size_bytes)
    again = driver.put("/large", RandomContent("again", 20_000_001))
    assert (again.size_bytes, driver.stat("/large").revision) == (20_000_001, again.revision)


def test_commit_answered_by_202_is_sent_again_after_the_wait(driver: Any, emulator: EmulatorService) -> None:
    emulator.control(set={"jobs.start_s": 2.0})
    driver.session_threshold_bytes = 20_000_000
    try:
        entry = driver.put("/large", RandomContent("large", 20_000_001))
    finally:
        emulator.control(set={"jobs.start_s": 0.0})
    commits: Any = emulator.control(get="stats")["stats"]["routes"]["upload_session_commit"]
    assert (entry.size_bytes, commits) == (20_000_001, {"202": 1, "201": 1})
    assert driver.requests() == requests_at(emulator)


# --- remembered ids ---


def test_remembered_folder_that_was_replaced_is_looked_up_again(driver: Any, other: Any) -> None:
    driver.put("/f/a", Literal(b"old"))
    other.delete("/f")
    refusal(K.NOT_FOUND, lambda: driver.stat("/f/a"))
    other.put("/f/a", Literal(b"new"))
    assert content_of(driver, "/f/a") == b"new"
    other.delete("/f")
    driver.put("/f/b", Literal(b"b"))
    assert [entry.path for entry in other.list("/f")] == ["/f/b"]


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_remembered_target_folder_that_is_gone_is_made_again(driver: Any, other: Any, verb: str) -> None:
    driver.put("/from/a", Literal(b"content"))
    driver.mkdir("/to/deep")
    other.delete("/to")
    getattr(driver, verb)("/from/a", "/to/deep/a")
    assert content_of(other, "/to/deep/a") == b"content"


def test_copy_of_a_missing_file_is_not_repeated(driver: Any) -> None:
    driver.mkdir("/from")
    driver.mkdir("/to")
    before = driver.requests()
    refusal(K.NOT_FOUND, lambda: driver.copy("/from/a", "/to/a"))
    assert driver.requests() - before == 1


def test_a_file_that_was_moved_away_is_never_overwritten(driver: Any, other: Any) -> None:
    driver.put("/a", Literal(b"first"))
    other.move("/a", "/b")
    refusal(K.NOT_FOUND, lambda: content_of(driver, "/a"))
    driver.put("/a", Literal(b"second"))
    assert (content_of(other, "/a"), content_of(other, "/b")) == (b"second", b"first")
    other.put("/a", Literal(b"third"))
    driver.put("/a", Literal(b"fourth"))
    assert content_of(other, "/a") == b"fourth"


def test_the_case_of_a_name_does_not_matter(driver: Any) -> None:
    driver.put("/Folder/A", Literal(b"1"))
    driver.put("/folder/a", Literal(b"22"))
    assert [entry.size_bytes for entry in driver.list("/FOLDER")] == [2]


# --- credentials ---


def test_client_credentials_get_a_token_once(emulator: EmulatorService) -> None:
    emulator.control(reset=True)
    secrets = {"client_id": "me", "client_secret": "client-secret-4711", "enterprise_id": "1"}
    endpoint = Endpoint(emulator.endpoint.urls, secrets, emulator.endpoint.ca_file)
    driver = connect(endpoint)
    driver.put("/a", Literal(b"1"))
    driver.put("/b", Literal(b"1"))
    assert driver.requests() == requests_at(emulator) == 3
    driver.close()
    driver = connect(Endpoint(endpoint.urls, {**secrets, "client_secret": "invalid-4711"}, endpoint.ca_file))
    error = refusal(K.AUTH, lambda: driver.put("/a", Literal(b"1")))
    assert "invalid-4711" not in "".join(traceback.format_exception(error))
    driver.close()


def test_unusable_specs_and_credentials_are_refused() -> None:
    with pytest.raises(SpecError, match="nothing may follow"):
        drivers.connect(ProviderSpec.parse("box:folder"), None, {"access_token": "x"})
    with pytest.raises(CredentialsError, match="access_token, or client_id and client_secret and enterprise_id"):
        drivers.connect(SPEC, None, {"client_id": "me"})


# --- answers of a stub server ---


@dataclass
class StubServer:
    """A server on loopback that gives the same answer to every request, and records the requests."""

    endpoint: Endpoint
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def say(self, status: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        self.status, self.body, self.headers, self.length = status, body, headers or {}, None
        self.requests.clear()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: StubServer

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.stub.requests.append((self.command, self.path, dict(self.headers)))
        self.send_response(self.stub.status)
        for name, value in self.stub.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(self.stub.body) if self.stub.length is None else self.stub.length))
        self.end_headers()
        self.wfile.write(self.stub.body)
        self.close_connection = self.stub.length is not None

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubServer]:
    authority, folder = trustme.CA(), Path(tmp_path_factory.mktemp("said"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    handler: Any = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    url = f"https://127.0.0.1:{server.server_address[1]}"
    urls = dict.fromkeys(("api", "upload", "account"), url)
    handler.stub = StubServer(Endpoint(urls, {"access_token": TOKEN}, str(folder / "ca.pem")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield handler.stub
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(one_server: StubServer) -> StubServer:
    one_server.say(200)
    return one_server


@pytest.fixture
def stub_driver(server: StubServer) -> Iterator[Any]:
    new_driver = connect(server.endpoint)
    yield new_driver
    new_driver.close()


def refusal_body(status: int, code: str) -> bytes:
    return json.dumps({"type": "error", "status": status, "code": code, "message": f"told {code}"}).encode()


@pytest.mark.parametrize(
    ("status", "code", "headers", "kind", "wait_s"),
    [
        (400, "item_name_invalid", {}, K.INVALID, None),
        (400, "bad_digest", {}, K.CORRUPT, None),
        (401, "unauthorized", {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, K.AUTH, 0.0),
        (403, "access_denied_insufficient_permissions", {}, K.AUTH, None),
        (403, "storage_limit_exceeded", {}, K.QUOTA, None),
        (404, "trashed", {}, K.NOT_FOUND, None),
        (409, "operation_blocked_temporary", {}, K.CONFLICT, None),
        (412, "precondition_failed", {}, K.CONFLICT, None),
        (429, "rate_limit_exceeded", {"Retry-After": "100"}, K.THROTTLED, 100.0),
        (429, "", {}, K.THROTTLED, None),
        (500, "internal_server_error", {}, K.SERVER, None),
        (503, "unavailable", {"Retry-After": "7"}, K.SERVER, 7.0),
    ],
)
def test_a_refusal_is_one_request_of_its_kind(
    server: StubServer,
    stub_driver: Any,
    status: int,
    code: str,
    headers: dict[str, str],
    kind: ErrorKind,
    wait_s: float | None,
) -> None:
    server.say(status, refusal_body(status, code), headers)
    error = refusal(kind, lambda: stub_driver.put("/a", Literal(b"1")))
    assert (len(server.requests), error.retry_after_s) == (1, wait_s)
    assert TOKEN not in "".join(traceback.format_exception(error))
    for action in (
        lambda: stub_driver.stat("/a"),
        lambda: content_of(stub_driver, "/a"),
        lambda: list(stub_driver.list("/")),
    ):
        server.requests.clear()
        refusal(kind, action)
        assert len(server.requests) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b'{"entries": []}', b'{"entries": [{"type": "file"}]}'])
def test_unusable_success_is_a_server_error(server: StubServer, stub_driver: Any, body: bytes) -> None:
    server.say(201, body)
    refusal(K.SERVER, lambda: stub_driver.put("/a", Literal(b"1")))
    assert len(server.requests) == 1
    refusal(K.SERVER, lambda: stub_driver.mkdir("/a"))
    refusal(K.SERVER, stub_driver.space)


def test_truncated_download_and_ignored_range_are_errors(server: StubServer, stub_driver: Any) -> None:
    conflict = {"code": "item_name_in_use", "context_info": {"conflicts": {"type": "file", "id": "7"}}}
    server.say(409, json.dumps(conflict).encode())
    file_id = stub_driver._file_id("get", "/a")
    stub_driver._file_id = lambda *_: file_id
    server.say(200, b"12345")
    assert content_of(stub_driver, "/a") == b"12345"
    refusal(K.SERVER, lambda: b"".join(stub_driver.get("/a", 2)))
    server.length = 10
    refusal(K.NETWORK, lambda: content_of(stub_driver, "/a"))


def test_no_token_and_no_content_go_to_another_host(server: StubServer, stub_driver: Any) -> None:
    server.say(302, b"", {"Location": "https://localhost:1/2.0/files/7/content"})
    stub_driver._file_id = lambda *_: "7"
    refusal(K.SERVER, lambda: content_of(stub_driver, "/a"))
    refusal(K.SERVER, lambda: stub_driver.put("/a", Literal(b"1")))
    refusal(K.SERVER, lambda: list(stub_driver.list("/")))
    assert len(server.requests) == 3


def test_no_answer_and_wrong_certificate_are_network_errors(server: StubServer, tmp_path: Path) -> None:
    stranger = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    nobody = dict.fromkeys(server.endpoint.urls, "https://127.0.0.1:1")
    for urls in (server.endpoint.urls, nobody):
        driver = connect(Endpoint(urls, {"access_token": TOKEN}, str(stranger)))
        error = refusal(K.NETWORK, lambda driver=driver: driver.put("/a", Literal(b"1")))
        assert TOKEN not in "".join(traceback.format_exception(error))
        assert driver.requests() == 1
        driver.close()


def test_the_driver_runs_a_small_part_of_the_sdk_and_all_stays_usable(emulator: EmulatorService) -> None:
    code = f"""
import sys
from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.sdk_import import is_loaded
from pytest_cloudbench.model import Endpoint, ProviderSpec
from pytest_cloudbench.workload.payload import RandomContent
driver = drivers.connect(ProviderSpec.parse("box"), Endpoint.from_plain({emulator.endpoint.plain()!r}))
assert driver.put("/lazy", RandomContent("lazy", 5000)).size_bytes == 5000
assert b"".join(driver.get("/lazy")) and list(driver.list("/"))
driver.close()
print(is_loaded("box_sdk_gen"), sum(name.startswith("box_sdk_gen.") for name in sys.modules) < 120)
import box_sdk_gen
print(box_sdk_gen.BoxClient.__name__, box_sdk_gen.managers.events.EventsManager.__name__, is_loaded("box_sdk_gen"))
from box_sdk_gen.box.errors import BoxAPIError
print(BoxAPIError is box_sdk_gen.BoxAPIError)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.stdout.splitlines() == ["False True", "BoxClient EventsManager True", "True"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell a process's peak")
def test_memory_stays_flat_for_large_files(emulator: EmulatorService) -> None:
    code = f"""
from pathlib import Path
from pytest_cloudbench import drivers
from pytest_cloudbench.model import MIB, Endpoint, ProviderSpec
from pytest_cloudbench.workload.payload import RandomContent
def peak_mib():
    lines = Path("/proc/self/status").read_text().splitlines()
    Path("/proc/self/clear_refs").write_text("5")
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
driver = drivers.connect(ProviderSpec.parse("box"), Endpoint.from_plain({emulator.endpoint.plain()!r}))
driver.put("/flat", RandomContent("small", 5000))
list(driver.get("/flat"))
start = peak_mib()
for threshold in (50_000_000, 10**12):
    driver.session_threshold_bytes = threshold
    driver.put("/flat", RandomContent(str(threshold), 256 * MIB))
    print(peak_mib() - start < 100)
print(sum(map(len, driver.get("/flat"))), peak_mib() - start < 100)
driver.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == ["True", "True", "268435456 True"], done.stderr
