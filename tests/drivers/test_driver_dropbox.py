"""Tests of the Dropbox driver: sessions, pages, one request per call, and the error table."""

from __future__ import annotations

import base64
import functools
import json
import socket
import ssl
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.dropbox import DropboxDriver
from pytest_cloudbench.drivers.egress import CERTIFICATES
from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.model import MIB, CloudError, CredentialsError, Endpoint, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.workload.payload import RandomContent

SPEC = ProviderSpec.parse("dropbox")
SMALL = RandomContent("small", 5 * 1024)
METADATA = {
    ".tag": "file",
    "name": "a",
    "id": "id:aaaaaaaaaaaaaaaaaaaaaa",
    "path_lower": "/a",
    "path_display": "/a",
    "rev": "0123456789abcdef0",
    "size": 3,
    "client_modified": "2026-11-20T00:00:00Z",
    "server_modified": "2026-11-20T00:00:00Z",
}


class Connect(Protocol):
    def __call__(
        self, endpoint: Endpoint | None, text: str = "dropbox", credentials: Mapping[str, str] | None = None
    ) -> Any: ...


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A function that connects drivers, all of which are closed at the end."""
    with ExitStack() as stack:

        def connect_driver(
            endpoint: Endpoint | None, text: str = "dropbox", credentials: Mapping[str, str] | None = None
        ) -> Any:
            driver: Any = drivers.connect(ProviderSpec.parse(text), endpoint, credentials)
            stack.callback(driver.close)
            return driver

        yield connect_driver


@pytest.fixture
def driver(emulator: EmulatorService, connect: Connect) -> Any:
    return connect(emulator.endpoint)


@pytest.fixture
def scripted_driver(server: Any, connect: Connect) -> Any:
    return connect(server.endpoint)


def failure(driver: Any, verb: str = "put") -> CloudError:
    actions: dict[str, Callable[[], object]] = {
        "put": lambda: driver.put("/a", SMALL),
        "get": lambda: list(driver.get("/a")),
        "stat": lambda: driver.stat("/a"),
        "list": lambda: list(driver.list("/")),
        "mkdir": lambda: driver.mkdir("/a"),
        "delete": lambda: driver.delete("/a"),
        "move": lambda: driver.move("/a", "/b"),
        "share": lambda: driver.share("/a"),
    }
    with pytest.raises(CloudError) as caught:
        actions[verb]()
    return caught.value


def refusal_body(*tags: str) -> bytes:
    """Return the body of a refusal with these nested tags."""
    error: dict[str, Any] = {".tag": tags[-1]}
    for tag in tags[-2::-1]:
        error = {".tag": tag, tag: error}
    return json.dumps({"error_summary": "/".join(tags), "error": error}).encode()


def upload_refusal_body(*tags: str) -> bytes:
    """Return the body of a refused upload. UploadError.path is a struct, which has its reason beside the tag."""
    reason = json.loads(refusal_body(*tags))["error"]
    return json.dumps(
        {"error_summary": "path", "error": {".tag": "path", "reason": reason, "upload_session_id": "s"}}
    ).encode()


def requests_in(routes: Any) -> int:
    """Return the sum of the emulator's counts of requests by route."""
    return sum(map(requests_in, routes.values())) if isinstance(routes, dict) else int(routes)


# --- requests and connections ---


def test_big_file_goes_through_a_session_in_whole_blocks(driver: Any) -> None:
    driver.multipart_bytes, driver.part_bytes = 4 * MIB, 4 * MIB
    content = RandomContent("big", 13 * MIB + 17)
    routes: list[str] = []
    driver._session.hooks["response"].append(lambda response, **_: routes.append(response.request.path_url))
    entry = driver.put("/sessions/big", content)
    assert [route.removeprefix("/2/files/") for route in routes] == [
        "upload_session/start",
        *["upload_session/append_v2"] * 2,
        "upload_session/finish",
    ]
    assert entry == driver.stat("/sessions/big")
    assert entry.size_bytes == content.size_bytes
    assert b"".join(driver.get("/sessions/big")) == content.read(0, content.size_bytes)


def test_exactly_the_threshold_is_one_request(driver: Any) -> None:
    driver.multipart_bytes = 5 * 1024
    routes: list[str] = []
    driver._session.hooks["response"].append(lambda response, **_: routes.append(response.request.path_url))
    driver.put("/sessions/exact", SMALL)
    assert routes == ["/2/files/upload"]


def test_list_follows_pages(driver: Any) -> None:
    for number in range(7):
        driver.put(f"/pages/{number}", SMALL)
    driver.list_page_entries = 2
    routes: list[str] = []
    driver._session.hooks["response"].append(lambda response, **_: routes.append(response.request.path_url))
    assert sorted(entry.path for entry in driver.list("/pages")) == [f"/pages/{number}" for number in range(7)]
    assert routes[0] == "/2/files/list_folder"
    assert set(routes[1:]) == {"/2/files/list_folder/continue"}
    assert len(routes) >= 4


def test_connect_sends_nothing(server: Any, connect: Connect) -> None:
    driver = connect(server.endpoint)
    driver.versions()
    assert server.requests == []


def test_threads_share_kept_alive_connections(driver: Any) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: driver.put(f"/alive/{number}", SMALL), range(400)))
    manager = driver._session.get_adapter("https://").poolmanager
    pools = [manager.pools[key] for key in manager.pools.keys()]  # noqa: SIM118  # its own container, not iterable
    assert sum(pool.num_requests for pool in pools) == 400
    assert sum(pool.num_connections for pool in pools) <= 16


def test_cookies_are_not_kept(server: Any, scripted_driver: Any) -> None:
    body = json.dumps(METADATA).encode()
    server.say(200, body, {"Content-Type": "application/json", "Set-Cookie": "locale=en"})
    scripted_driver.stat("/a")
    scripted_driver.stat("/a")
    assert len(scripted_driver._session.cookies) == 0
    assert "Cookie" not in server.requests[1][1]


@pytest.mark.parametrize("status", [400, 401, 409, 429, 500, 503])
@pytest.mark.parametrize("verb", ["put", "get", "stat", "list"])
def test_a_refusal_is_one_request(server: Any, scripted_driver: Any, status: int, verb: str) -> None:
    server.say(status, refusal_body("expired_access_token"), {"Content-Type": "application/json"})
    failure(scripted_driver, verb)
    assert len(server.requests) == 1


def test_emulated_errors_are_counted_once(emulator: EmulatorService, driver: Any) -> None:
    emulator.control(set={"faults.error_rate": 1.0})
    try:
        before = emulator.control(get="stats")["stats"]["routes"]
        error = failure(driver)
        after = emulator.control(get="stats")["stats"]["routes"]
    finally:
        emulator.control(set={"faults.error_rate": 0.0})
    assert error.kind is ErrorKind.SERVER
    assert requests_in(after) - requests_in(before) == 1


# --- the error table ---

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain; charset=utf-8"}
K = ErrorKind
REFUSALS = [
    ("put", 409, upload_refusal_body("too_many_write_operations"), {"Retry-After": "3"}, K.THROTTLED, 3.0),
    ("put", 409, upload_refusal_body("insufficient_space"), {}, K.QUOTA, None),
    ("put", 409, upload_refusal_body("conflict", "folder"), {}, K.CONFLICT, None),
    ("put", 409, upload_refusal_body("malformed_path"), {}, K.INVALID, None),
    ("put", 409, upload_refusal_body("no_write_permission"), {}, K.AUTH, None),
    ("put", 409, refusal_body("content_hash_mismatch"), {}, K.CORRUPT, None),
    ("put", 409, refusal_body("payload_too_large"), {}, K.INVALID, None),
    ("put", 409, refusal_body("a_tag_of_next_year"), {}, K.SERVER, None),
    ("get", 409, refusal_body("path", "not_found"), {}, K.NOT_FOUND, None),
    ("get", 409, refusal_body("path", "not_file"), {}, K.CONFLICT, None),
    ("stat", 409, refusal_body("path", "not_found"), {}, K.NOT_FOUND, None),
    ("list", 409, refusal_body("path", "not_folder"), {}, K.CONFLICT, None),
    ("mkdir", 409, refusal_body("path", "conflict", "file"), {}, K.CONFLICT, None),
    ("move", 409, refusal_body("to", "conflict", "file"), {}, K.CONFLICT, None),
    ("move", 409, refusal_body("internal_error"), {}, K.SERVER, None),
    ("delete", 409, refusal_body("too_many_write_operations"), {"Retry-After": "1"}, K.THROTTLED, 1.0),
    ("share", 409, refusal_body("email_not_verified"), {}, K.AUTH, None),
]
STATUSES = [
    ("put", 429, b'{"error": {"reason": {".tag": "too_many_requests"}}}', {"Retry-After": "7"}, K.THROTTLED, 7.0),
    ("put", 429, b'{"error": {"reason": {".tag": "too_many_requests"}, "retry_after": 9}}', {}, K.THROTTLED, 9.0),
    ("put", 429, b'{"error": {"reason": {".tag": "a_new_reason"}}}', {"Retry-After": "2"}, K.THROTTLED, 2.0),
    ("put", 429, b"not json", {"Retry-After": "2"}, K.THROTTLED, 2.0),
    ("put", 429, b"slow down", TEXT | {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}, K.THROTTLED, 0.0),
    ("get", 429, b"slow down", TEXT, K.THROTTLED, None),
    ("put", 503, b"busy", TEXT | {"Retry-After": "5"}, K.SERVER, 5.0),
    ("get", 500, b"\xff\x00 no encoding named", {"Content-Type": "x/y"}, K.SERVER, None),
    ("stat", 502, b"<html>", {"Content-Type": "text/html"}, K.SERVER, None),
    ("put", 401, b'{"error": {".tag": "invalid_access_token"}}', {}, K.AUTH, None),
    ("put", 401, b'{"error": {".tag": "expired_access_token"}}', {}, K.AUTH, None),
    ("put", 401, b"no json at all", TEXT, K.AUTH, None),
    ("put", 400, b"Error in call: The given OAuth 2 access token is malformed.", TEXT, K.AUTH, None),
    ("put", 400, b"Error in call: request body: unexpected end", TEXT, K.INVALID, None),
    ("put", 403, b"no json at all", TEXT, K.AUTH, None),
    ("put", 404, b"no json at all", TEXT, K.NOT_FOUND, None),
    ("get", 416, b"", TEXT, K.INVALID, None),
    ("put", 422, b'{"error": {".tag": "no_permission"}}', {}, K.INVALID, None),
    ("put", 418, b"teapot", TEXT, K.INVALID, None),
    ("put", 200, b"not json", {}, K.SERVER, None),
    ("put", 200, b"[]", {}, K.SERVER, None),
    ("stat", 200, b'{".tag": "file"}', {}, K.SERVER, None),
    ("stat", 200, b"{}", TEXT, K.SERVER, None),
    ("get", 200, b"bytes without metadata", {}, K.SERVER, None),
]


@pytest.mark.parametrize(("verb", "status", "body", "headers", "kind", "retry_after_s"), REFUSALS + STATUSES)
def test_error_table(
    server: Any,
    scripted_driver: Any,
    verb: str,
    status: int,
    body: bytes,
    headers: dict[str, str],
    kind: ErrorKind,
    retry_after_s: float | None,
) -> None:
    server.say(status, body, JSON | headers)
    error = failure(scripted_driver, verb)
    assert (error.kind, error.retry_after_s) == (kind, retry_after_s), error
    assert (error.operation, error.path) == (verb, "/" if verb == "list" else "/a")
    assert error.__cause__ is not None
    assert error.detail


UNKNOWN_ENTRY = b'{".tag": "of_next_year", "name": "a", "path_lower": "/f/a", "path_display": "/f/a"}'


def test_what_a_later_version_of_the_service_adds_is_an_answer_that_cannot_be_read(
    server: Any, scripted_driver: Any
) -> None:
    answers: dict[bytes, Callable[[], object]] = {
        b'{"used": 1, "allocation": {".tag": "of_next_year"}}': scripted_driver.space,
        b'{"entries": [%b], "cursor": "c", "has_more": false}' % UNKNOWN_ENTRY: lambda: list(
            scripted_driver.list("/f")
        ),
    }
    for body, action in answers.items():
        server.say(200, body, JSON)
        with pytest.raises(CloudError) as caught:
            action()
        assert caught.value.kind is K.SERVER


def test_an_answer_is_not_remembered_by_the_next_call(server: Any, scripted_driver: Any) -> None:
    server.say(503, b"busy", TEXT | {"Retry-After": "5"})
    assert failure(scripted_driver).retry_after_s == 5.0
    server.say(close=True)
    error = failure(scripted_driver)
    assert (error.kind, error.retry_after_s) == (K.NETWORK, None)


def test_dropped_connection_is_a_network_error(server: Any, scripted_driver: Any) -> None:
    server.say(close=True)
    assert failure(scripted_driver).kind is K.NETWORK
    assert len(server.requests) == 1


def test_silent_server_is_a_network_error(server: Any, scripted_driver: Any) -> None:
    server.say(silent=True)
    scripted_driver._client._timeout = 0.2
    error = failure(scripted_driver)
    assert error.kind is K.NETWORK
    assert "timed out" in error.detail


def test_truncated_body_is_a_network_error(server: Any, scripted_driver: Any) -> None:
    result = json.dumps(METADATA)
    server.say(200, b"half", {"Dropbox-API-Result": result}, length=100)
    assert failure(scripted_driver, "get").kind is K.NETWORK


def test_ignored_range_is_not_taken_for_the_range(server: Any, scripted_driver: Any) -> None:
    server.say(200, b"abc", {"Dropbox-API-Result": json.dumps(METADATA)})
    with pytest.raises(CloudError, match="range was ignored"):
        list(scripted_driver.get("/a", 1))
    assert list(scripted_driver.get("/a")) == [b"abc"]


def test_refused_connection_is_a_network_error(server: Any, connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert failure(connect(server.elsewhere(port=port))).kind is K.NETWORK


def test_wrong_certificate_authority_is_a_network_error(server: Any, other_server: Any, connect: Connect) -> None:
    error = failure(connect(server.elsewhere(ca_file=other_server.endpoint.ca_file)))
    assert error.kind is K.NETWORK
    assert "certificate verify failed" in error.detail


def test_missing_ca_file_is_a_network_error(server: Any, connect: Connect) -> None:
    assert failure(connect(server.elsewhere(ca_file="/nowhere/ca.pem"))).kind is K.NETWORK


def test_environment_does_not_reach_an_emulator(
    server: Any, scripted_driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_text("")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "other.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    server.say(200, json.dumps(METADATA).encode())
    assert scripted_driver.stat("/a").size_bytes == 3


def test_quota_and_hash_of_the_emulator(emulator: EmulatorService, driver: Any, connect: Connect) -> None:
    emulator.control(set={"quota.bytes": 1})
    try:
        assert failure(driver).kind is K.QUOTA
    finally:
        emulator.control(set={"quota.bytes": 0})
    hashing = connect(emulator.endpoint, "dropbox?content_hash=1")
    assert hashing.put("/hashed", SMALL).digest == driver.stat("/hashed").digest
    assert hashing.versions()["dropbox.content_hash"] == "on"
    assert driver.versions()["dropbox.content_hash"] == "off"


# --- secrets ---


@pytest.mark.parametrize("status", [400, 401, 409, 500, 503])
def test_token_is_in_no_error_text(server: Any, scripted_driver: Any, status: int) -> None:
    token = server.endpoint.credentials["access_token"]
    server.say(status, f"your token {token} is bad".encode(), TEXT)
    error = failure(scripted_driver)
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    causes = []
    cause: BaseException | None = error
    while cause is not None:
        causes += [repr(cause), str(cause), repr(cause.args), repr(vars(cause))]
        cause = cause.__cause__ or cause.__context__
    assert token not in "\n".join([*report.format(), *causes])
    assert token not in repr(scripted_driver) + repr(server.endpoint) + repr(scripted_driver.versions())


@pytest.mark.parametrize(
    "encode",
    [
        lambda token: urllib.parse.quote(token, safe="").replace(".", "%2E"),
        lambda token: base64.b64encode(f"app:{token}".encode()).decode(),
        lambda token: token.replace("-", "\\u002d").replace(".", "\\u002E"),
        lambda token: token.encode().hex(),
        lambda token: "".join(f"&#{ord(letter)};" for letter in token),
    ],
    ids=["percent", "base64", "json", "hex", "html"],
)
def test_token_is_in_no_error_text_in_any_encoding(
    server: Any, scripted_driver: Any, encode: Callable[[str], str]
) -> None:
    echoed = encode(server.endpoint.credentials["access_token"])
    server.say(400, f"your header was <{echoed}>".encode(), TEXT)
    error = failure(scripted_driver)
    assert "your header was <" in error.detail
    assert "***" in error.detail
    assert echoed not in "".join(traceback.format_exception(error))


def test_refreshed_token_is_in_no_error_text(server: Any, connect: Connect) -> None:
    driver = connect(None, credentials={"refresh_token": "refresh-me", "app_key": "key", "app_secret": "hidden-too"})
    _answer_on(server, driver)
    answer = METADATA | {"access_token": "sl.fresh-0815", "expires_in": 14400, "account_id": "x"}
    server.say(200, json.dumps(answer).encode())
    driver.stat("/a")
    server.say(400, b"sl.fresh-0815 refresh-me hidden-too", TEXT)
    assert failure(driver).detail == "400 *** *** ***"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_takes_nothing_to_another_host(server: Any, scripted_driver: Any, status: int) -> None:
    host = urllib.parse.urlsplit(server.endpoint.url).netloc.replace("127.0.0.1", "localhost")
    server.say(status, b"elsewhere", {"Location": f"https://{host}/2/files/upload"})
    error = failure(scripted_driver)
    assert (error.kind, error.detail) == (K.SERVER, f"{status} elsewhere")
    assert len(server.requests) == 1


def _answer_on(server: Any, driver: Any) -> None:
    # The SDK has the real host as a default argument: there is no setting to redirect a refresh.
    api = urllib.parse.urlsplit(server.endpoint.url).netloc
    driver._client.refresh_access_token = functools.partial(driver._client.refresh_access_token, host=api)
    driver._client._host_map = dict.fromkeys(("api", "content", "notify"), api)
    driver._session.verify, driver._session.trust_env = server.endpoint.ca_file, False


@pytest.mark.parametrize(
    "credentials",
    [{}, {"access_token": ""}, {"refresh_token": "r"}, {"app_key": "k", "app_secret": "s"}],
)
def test_missing_credentials(credentials: dict[str, str], connect: Connect) -> None:
    with pytest.raises(CredentialsError, match="access_token, or refresh_token and app_key"):
        connect(None, credentials=credentials)


def test_unsendable_token_is_refused_without_showing_it(connect: Connect) -> None:
    with pytest.raises(CredentialsError, match="access_token contains a space") as caught:
        connect(None, credentials={"access_token": "half\nother-half"})
    assert "half" not in str(caught.value)


@pytest.mark.parametrize("text", ["dropbox:/folder", "dropbox?content_hash=yes", "dropbox?retries=3"])
def test_unusable_spec_is_refused(text: str, connect: Connect) -> None:
    with pytest.raises(SpecError) as caught:
        connect(None, text, {"access_token": "t"})
    assert "\n" not in str(caught.value)


def test_sixteen_threads_refresh_a_token_once(server: Any, connect: Connect) -> None:
    driver = connect(None, credentials={"refresh_token": "refresh-me", "app_key": "key", "app_secret": "hidden"})
    _answer_on(server, driver)
    # One answer that is a token for the one route and metadata for the other.
    answer = METADATA | {"access_token": "fresh", "expires_in": 14400, "account_id": "x"}
    server.say(200, json.dumps(answer).encode())
    start = threading.Barrier(16)

    def ask(_: int) -> int:
        start.wait()
        return int(driver.stat("/a").size_bytes)

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [3] * 16
    assert [path for path, _ in server.requests].count("/oauth2/token") == 1
    assert {headers.get("Authorization") for path, headers in server.requests if "token" not in path} == {
        "Bearer fresh"
    }


def test_refused_refresh_is_an_auth_error(server: Any, connect: Connect) -> None:
    driver = connect(None, credentials={"refresh_token": "refresh-me", "app_key": "key"})
    api = urllib.parse.urlsplit(server.endpoint.url).netloc
    driver._client.refresh_access_token = functools.partial(driver._client.refresh_access_token, host=api)
    driver._session.verify, driver._session.trust_env = server.endpoint.ca_file, False
    server.say(400, b'{"error": "invalid_grant", "error_description": "refresh token is invalid"}')
    assert failure(driver).kind is K.AUTH
    assert len(server.requests) == 1


# --- the connection ---


def test_http_adapter_never_retries(driver: Any) -> None:
    adapter = driver._session.get_adapter("https://api.example.org")
    assert (adapter.max_retries.total, adapter.max_retries.read) == (0, False)
    assert driver._client._timeout == 100


def test_real_service_uses_its_own_hosts_and_the_usual_trust(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CERTIFICATES:
        monkeypatch.delenv(name, raising=False)
    driver = connect(None, credentials={"access_token": "t"})
    assert set(driver._client._host_map) >= {"api", "content", "notify"}
    assert "127.0.0.1" not in str(driver._client._host_map)
    assert (driver._session.verify, driver._session.trust_env) == (True, False)
    assert isinstance(driver, DropboxDriver)


def test_versions_name_the_libraries(driver: Any) -> None:
    versions = driver.versions()
    assert {"dropbox", "requests", "urllib3", "stone", "dropbox.retries"} <= set(versions)
    assert versions["openssl"] == ssl.OPENSSL_VERSION
