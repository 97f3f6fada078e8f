"""Drivers of object stores: every answer, or its absence, has the right kind of error, and a call is one request."""

from __future__ import annotations

import importlib
import socket
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Counting
from pytest_cloudbench.drivers.egress import CERTIFICATES
from pytest_cloudbench.model import CloudError, CredentialsError, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.providers import leaves
from pytest_cloudbench.workload.payload.contents import Literal

from .conftest import Scripted
from .real import answering
from .tls_front import folder_of_authorities

SECRET = "c2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTE="
XML = {"Content-Type": "application/xml"}


@dataclass(frozen=True)
class Store:
    """One driver: its spec, its credentials, and its service's request to slow down."""

    spec: str
    credentials: dict[str, str]
    slow_down: bytes
    slow_down_status: int = 503
    headers: dict[str, str] = field(default_factory=lambda: XML)
    tells_wait: bool = True
    follows: bool = False


SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
AWS = {"access_key_id": "AKIA", "secret_access_key": SECRET}
STORES = {
    "azure": Store(
        "azure://bench",
        {"account": "us", "account_key": SECRET},
        b"<Error><Code>ServerBusy</Code><Message>The server is busy.</Message></Error>",
        headers={**XML, "x-ms-error-code": "ServerBusy"},
    ),
    "gcs": Store(
        "gcs://bench",
        {"access_token": SECRET},
        b'{"error": {"code": 403, "message": "slower", "errors": [{"reason": "rateLimitExceeded"}]}}',
        slow_down_status=403,
        headers={"Content-Type": "application/json"},
    ),
    "s3": Store("s3://bench", AWS, SLOW_DOWN),
    # The Rust client follows redirects and does not tell how long to wait, as its driver declares.
    "s3+fast": Store("s3+fast://bench", AWS, SLOW_DOWN, tells_wait=False, follows=True),
    "swift": Store(
        "swift://bench", {"auth_url": "https://127.0.0.1:9", "user": "us:me", "key": SECRET}, b"slower", 498,
        headers={"Content-Type": "application/json"},
    ),
}  # fmt: skip


STATUSES = {
    400: ErrorKind.INVALID,
    403: ErrorKind.AUTH,
    404: ErrorKind.NOT_FOUND,
    429: ErrorKind.THROTTLED,
    500: ErrorKind.SERVER,
    502: ErrorKind.SERVER,
    507: ErrorKind.QUOTA,
}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    row = STORES[request.param]
    if missing := drivers.missing_library(ProviderSpec.parse(row.spec).scheme):
        pytest.skip(missing)
    return row


@pytest.fixture(scope="module")
def one_driver(store: Store, one_server: Scripted) -> Iterator[Any]:
    driver = connect(store, one_server)
    yield driver
    driver.close()


@pytest.fixture
def driver(one_driver: Any, server: Scripted) -> Any:
    """The driver, on a server that has had no request yet."""
    return one_driver


def connect(store: Store, server: Scripted, **changes: Any) -> Any:
    endpoint = replace(server.elsewhere(**changes), credentials=store.credentials)
    driver: Any = drivers.connect(ProviderSpec.parse(store.spec), endpoint, {})
    if store.spec.startswith("swift"):  # logged in
        driver._login = importlib.import_module(type(driver).__module__)._Login(f"{endpoint.url}/v1/us", "token-4711")
    return driver


def refusal(action: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        list(action() or ())
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"
    assert "\n" not in caught.value.detail
    return caught.value


def actions(driver: Any) -> dict[str, Any]:
    return {
        "put": lambda: driver.put("/run/a", Literal(b"x")),
        "get": lambda: driver.get("/run/a"),
        "stat": lambda: driver.stat("/run/a"),
        "list": lambda: driver.list("/run"),
        "delete": lambda: driver.delete("/run/a"),
    }


@pytest.mark.parametrize("verb", ["put", "get", "stat", "list", "delete"])
def test_an_overloaded_service_is_asked_once(store: Store, driver: Any, server: Scripted, verb: str) -> None:
    before = driver.requests() if isinstance(driver, Counting) else 0
    server.say(store.slow_down_status, store.slow_down, {**store.headers, "Retry-After": "7"})
    error = refusal(actions(driver)[verb])
    assert len(server.requests) == 1
    if verb != "stat":  # the answer to a HEAD has no body, and its status may mean something else
        assert error.kind is ErrorKind.THROTTLED
    assert error.retry_after_s == (7.0 if store.tells_wait else None)
    if isinstance(driver, Counting):
        assert driver.requests() - before == 1


@pytest.mark.parametrize("name", ["s3", "s3+fast"])
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "XMinioAdminBucketQuotaExceeded", ErrorKind.QUOTA),
        (403, "StorageQuotaExceeded", ErrorKind.QUOTA),
        (400, "IncompleteBody", ErrorKind.NETWORK),
        (400, "XAmzContentChecksumMismatch", ErrorKind.CORRUPT),
        (400, "RequestLimitExceeded", ErrorKind.THROTTLED),
        (403, "InvalidAccessKeyId", ErrorKind.AUTH),
    ],
)
def test_both_clients_of_s3_give_a_code_one_meaning(
    name: str, status: int, code: str, kind: ErrorKind, server: Scripted
) -> None:
    driver = connect(STORES[name], server)
    server.say(status, f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode(), XML)
    assert refusal(actions(driver)["put"]).kind is kind
    driver.close()


@pytest.mark.parametrize(
    "body", [b"", b"<html>not what you expect</html>", b"\xff\x00{"], ids=["empty", "page", "noise"]
)
def test_http_status_decides_kind_of_error_without_readable_body(
    store: Store, driver: Any, server: Scripted, body: bytes
) -> None:
    for status, usual_kind in STATUSES.items():
        server.say(status, body, {"Content-Type": "text/html"})
        for verb in ("stat", "put"):
            # If the answer's text cannot be decoded, the Rust client reports only that.
            kind = ErrorKind.SERVER if store.follows and not body.isascii() and verb == "put" else usual_kind
            server.requests.clear()
            error = refusal(actions(driver)[verb])
            outcome = (error.kind, error.retry_after_s, len(server.requests))
            assert outcome == (kind, None, 1), (status, verb)


@pytest.mark.parametrize("verb", ["put", "get", "stat", "list"])
def test_lost_connection_is_a_network_error(driver: Any, server: Scripted, verb: str) -> None:
    server.say(close=True)
    assert refusal(actions(driver)[verb]).kind is ErrorKind.NETWORK
    assert len(server.requests) == 1


def test_truncated_answer_is_a_network_error(driver: Any, server: Scripted) -> None:
    server.say(200, b"half of it", {"ETag": '"0"', "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT"}, length=100)
    assert refusal(actions(driver)["get"]).kind is ErrorKind.NETWORK


def test_refusal_with_truncated_body_is_a_network_error() -> None:
    """The SDK does not catch this error of its HTTP library, which occurs when a server resets the connection."""
    broken = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        driver = drivers.connect(ProviderSpec.parse(f"s3://bench?endpoint={url}"), None, AWS)
        future = pool.submit(refusal, lambda: driver.get("/run/a"))
        connection = listener.accept()[0]
        with connection:
            connection.recv(65536)
            connection.sendall(broken)
        assert future.result().kind is ErrorKind.NETWORK
        driver.close()


def test_unreadable_listing_is_a_server_error(store: Store, driver: Any, server: Scripted) -> None:
    server.say(200, b"\x00\xff noise", store.headers)
    assert refusal(actions(driver)["list"]).kind is ErrorKind.SERVER
    assert len(server.requests) == 1


@pytest.mark.parametrize("verb", ["put", "stat", "list", "delete"])
@pytest.mark.parametrize("body", [b"<html><body>Log in</body></html>", b""], ids=["page", "empty"])
def test_what_something_on_the_way_answers_is_no_success(
    body: bytes, verb: str, store: Store, driver: Any, server: Scripted
) -> None:
    """A proxy may answer with a page of its own, which is well-formed XML, and with status 200."""
    name = ProviderSpec.parse(store.spec).scheme
    if (name, verb) in {("s3+fast", "list"), ("s3+fast", "delete")}:
        pytest.skip("its library shows no more of an answer than the objects in it")
    if verb == "delete" and name != "s3":
        pytest.skip("the service's own answer says no more")
    server.say(200, body, {"Content-Type": "text/html"})
    assert refusal(actions(driver)[verb]).kind is ErrorKind.SERVER


def test_swifts_connections_end_with_their_threads(server: Scripted) -> None:
    store = STORES["swift"]
    if missing := drivers.missing_library("swift"):
        pytest.skip(missing)
    driver = connect(store, server)
    for _ in range(5):
        server.say(404, b"", store.headers)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(refusal, actions(driver)["stat"]).result().kind is ErrorKind.NOT_FOUND
    assert len(driver._connections) == 0
    driver.close()


ROW_WITHOUT_SIZE = {
    "azure": (
        b"<EnumerationResults><Blobs><Blob><Name>run/a</Name><Properties></Properties></Blob></Blobs>"
        b"<NextMarker/></EnumerationResults>"
    ),
    "gcs": b'{"items": [{"name": "run/a"}]}',
    "s3": b"<ListBucketResult><Contents><Key>run/a</Key></Contents><IsTruncated>false</IsTruncated></ListBucketResult>",
    "swift": b'[{"name": "run/a", "hash": "00"}]',
}


def test_listing_without_a_size_is_a_server_error(store: Store, driver: Any, server: Scripted) -> None:
    scheme = ProviderSpec.parse(store.spec).scheme
    if scheme not in ROW_WITHOUT_SIZE:
        pytest.skip("its library reads listings itself")
    server.say(200, ROW_WITHOUT_SIZE[scheme], store.headers)
    assert refusal(actions(driver)["list"]).kind is ErrorKind.SERVER


@pytest.mark.parametrize("verb", ["put", "get", "stat"])
def test_a_redirect_is_not_followed(
    store: Store, driver: Any, server: Scripted, other_server: Scripted, verb: str
) -> None:
    if store.follows and verb != "put":
        pytest.skip("its library cannot be told not to")
    target = f"{other_server.endpoint.url}/elsewhere"
    server.say(307, b"", {"Location": target, "x-amz-bucket-region": "eu-west-1"})
    refusal(actions(driver)[verb])
    assert (len(server.requests), len(other_server.requests)) == (1, 0)


def test_a_certificate_of_somebody_else_is_refused(store: Store, server: Scripted, other_server: Scripted) -> None:
    driver = connect(store, server, ca_file=other_server.endpoint.ca_file)
    assert refusal(actions(driver)["stat"]).kind is ErrorKind.NETWORK
    assert server.requests == []
    driver.close()


def test_silent_service_is_given_up_after_the_timeout(store: Store, server: Scripted) -> None:
    driver = connect(replace(store, spec=f"{store.spec}?timeout_s=0.6"), server)
    server.say(silent=True)
    assert refusal(actions(driver)["stat"]).kind is ErrorKind.NETWORK
    assert len(server.requests) == 1
    driver.close()


@pytest.mark.parametrize("path", ["/a//b", "/a/../b", "/a/./b", "/a/", "/a/\ud800", "a"])
def test_ambiguous_paths_are_refused(driver: Any, server: Scripted, path: str) -> None:
    for action in (lambda: driver.put(path, Literal(b"x")), lambda: driver.get(path), lambda: driver.delete(path)):
        assert refusal(action).kind is ErrorKind.INVALID
    assert server.requests == []


def test_a_client_that_follows_redirects_is_given_no_session_token() -> None:
    secrets = AWS | {"session_token": "of-the-session"}
    with pytest.raises(CredentialsError, match="a session token needs s3, whose client follows no redirect"):
        drivers.connect(ProviderSpec.parse("s3+fast://bench"), None, secrets)


def test_a_profile_of_ones_own_files_has_the_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keys that the user has for other tools are used only if the profile is named."""
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = the-id\naws_secret_access_key = the-secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    spec = ProviderSpec.parse("s3://bucket?endpoint=http://127.0.0.1:9")
    driver: Any = drivers.connect(spec, None, {"profile": "mine"})
    keys = driver._client._request_signer._credentials.get_frozen_credentials()
    assert (keys.access_key, keys.secret_key) == ("the-id", "the-secret")
    driver.close()
    with pytest.raises(CredentialsError, match="s3: profile nobodys"):
        drivers.connect(spec, None, {"profile": "nobodys"})


KEYS_OF_A_PROGRAM = """
import datetime, json, os, pathlib
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    print("called", file=calls)
number = len((here / "calls").read_text().splitlines())
ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=int((here / "left_s").read_text()))
token = os.environ.get("AWS_REGION", "of-closed-surroundings")
keys = {"Version": 1, "AccessKeyId": f"AKIA{number}", "SecretAccessKey": "secret", "SessionToken": token}
print(json.dumps({**keys, "Expiration": ends.isoformat()}))
"""


@pytest.fixture
def short_lived_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Scripted) -> Iterator[Any]:
    """A driver with the keys of a profile's program, which end within the minute."""
    (tmp_path / "keys.py").write_text(KEYS_OF_A_PROGRAM)
    (tmp_path / "left_s").write_text("50")
    (tmp_path / "config").write_text(f"[profile mine]\ncredential_process = {sys.executable} {tmp_path / 'keys.py'}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_REGION", "not-for-the-program")
    endpoint = replace(server.endpoint, credentials={"profile": "mine"})
    driver = drivers.connect(ProviderSpec.parse("s3://bench"), endpoint, {})
    yield driver
    driver.close()


def test_keys_of_a_profile_are_renewed_once_before_they_end(
    short_lived_driver: Any, tmp_path: Path, server: Scripted
) -> None:
    driver, calls = short_lived_driver, tmp_path / "calls"
    server.say(200, b"", {"ETag": f'"{32 * "a"}"'})
    (tmp_path / "left_s").write_text("500")
    before = len(calls.read_text().splitlines())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: driver.put(f"/{number}", Literal(b"x")), range(8)))
    assert len(calls.read_text().splitlines()) == before + 1
    signed_by = {headers["Authorization"].partition("=")[2].partition("/")[0] for _, headers in server.requests}
    assert signed_by == {f"AKIA{before + 1}"}
    assert {headers["X-Amz-Security-Token"] for _, headers in server.requests} == {"of-closed-surroundings"}


def test_keys_of_a_profile_that_cannot_be_renewed_are_an_auth_error(
    short_lived_driver: Any, tmp_path: Path, server: Scripted
) -> None:
    (tmp_path / "keys.py").write_text("import sys; sys.exit('log in again,\\nplease')")
    error = refusal(lambda: short_lived_driver.stat("/a"))
    assert error.kind is ErrorKind.AUTH
    assert error.detail.startswith("profile mine: ")
    assert "log in again, please" in error.detail
    assert server.requests == []


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        ("credential_process = {here}/missing", "No such file or directory"),
        ("credential_process = {python} -c print()", "Expecting value"),
        ("credential_process = {python} -c print(7)", "has no attribute"),
        ("credential_process = {python} -c unknown", "NameError"),
        ("role_arn = arn:aws:iam::1:role/r\nsource_profile = keys", "AccessDenied"),
    ],
)
def test_a_profile_that_gives_no_keys_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str, problem: str
) -> None:
    mine = profile.format(here=tmp_path, python=sys.executable)
    keys = "[profile keys]\naws_access_key_id = id\naws_secret_access_key = secret\n"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with answering() as stub:
        stub.status, stub.headers = 403, XML
        stub.body = b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
        (tmp_path / "config").write_text(f"{keys}[profile mine]\nregion = x\nendpoint_url = {stub.url}\n{mine}\n")
        with pytest.raises(CredentialsError, match=f"^s3: profile mine: .*{problem}") as caught:
            drivers.connect(ProviderSpec.parse("s3://bucket"), None, {"profile": "mine"})
    assert "\n" not in str(caught.value)


def test_a_folder_of_authorities_is_trusted_and_its_file_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Scripted
) -> None:
    """The SDK takes only a file, also for the service that gives the keys of a profile's role."""
    url = server.endpoint.url
    mine = f"role_arn = arn:aws:iam::1:role/r\nsource_profile = keys\nendpoint_url = {url}\nregion = x\n"
    keys = "[profile keys]\naws_access_key_id = id\naws_secret_access_key = secret\n"
    (tmp_path / "config").write_text(f"{keys}[profile mine]\n{mine}")
    for name in CERTIFICATES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("SSL_CERT_DIR", folder_of_authorities(server.endpoint.ca_file, tmp_path / "ca"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    server.say(403, b"<E><Error><Code>AccessDenied</Code><Message>no</Message></Error></E>", XML)
    spec = ProviderSpec.parse(f"s3://bucket?endpoint={url}")
    with pytest.raises(CredentialsError, match="AccessDenied"):
        drivers.connect(spec, None, {"profile": "mine"})
    driver: Any = drivers.connect(spec, None, AWS)
    assert refusal(lambda: driver.stat("/a")).kind is ErrorKind.AUTH
    assert set(tmp_path.iterdir()) != before
    driver.close()
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["azure", "gcs", "s3", "s3+fast"])
@pytest.mark.parametrize("endpoint", ["127.0.0.1:9", "localhost:9", "ftp://127.0.0.1:9", "http://", "http://us:pw@a"])
def test_an_endpoint_is_a_whole_address(name: str, endpoint: str) -> None:
    """Libraries would guess the missing parts, raise errors of their own, or panic."""
    with pytest.raises(SpecError, match="endpoint is a URL, such as https://HOST:PORT"):
        drivers.connect(ProviderSpec.parse(f"{STORES[name].spec}?endpoint={endpoint}"), None, STORES[name].credentials)


def test_login_address_must_be_a_whole_url() -> None:
    keys = STORES["swift"].credentials | {"auth_url": "127.0.0.1:9/auth"}
    with pytest.raises(CredentialsError, match="auth_url is a URL"):
        drivers.connect(ProviderSpec.parse("swift://bench"), None, keys)


@pytest.mark.parametrize("name", ["s3", "s3+fast"])
@pytest.mark.parametrize(
    ("addressing", "base_url"),
    [("", "http://store.test:9/bench/"), ("&addressing=virtual", "http://bench.store.test:9/")],
)
def test_virtual_addressing_puts_the_bucket_into_the_host(
    monkeypatch: pytest.MonkeyPatch, name: str, addressing: str, base_url: str
) -> None:
    """Some services, such as Alibaba's, refuse a bucket in the path. A proxy takes requests to a made-up host."""
    with answering() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        for variable in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(variable, raising=False)
        spec = ProviderSpec.parse(f"{name}://bench?endpoint=http://store.test:9{addressing}")
        driver = drivers.connect(spec, None, AWS)
        proxy.status, proxy.body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        assert refusal(lambda: driver.get("/run/a")).kind is ErrorKind.NOT_FOUND
        driver.close()
    assert proxy.asked == [("GET", f"{base_url}run/a")]


def test_another_addressing_is_refused() -> None:
    for name in ("s3", "s3+fast"):
        with pytest.raises(SpecError, match="addressing is path or virtual, not 'dns'"):
            drivers.connect(ProviderSpec.parse(f"{name}://bench?addressing=dns"), None, AWS)


def test_both_clients_of_s3_have_the_same_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_S3_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("CLOUDBENCH_S3_SECRET_ACCESS_KEY", SECRET)
    for name in ("s3", "s3+fast"):
        assert leaves.load_credentials(drivers.bind(ProviderSpec.parse(f"{name}://bench"))) == AWS


def test_public_fields_may_be_in_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDBENCH_AZURE_ACCOUNT_KEY", SECRET)
    loaded = leaves.load_credentials(drivers.bind(ProviderSpec.parse("azure://bench?account=us")))
    assert loaded == {"account": "us", "account_key": SECRET}
    monkeypatch.setenv("CLOUDBENCH_SWIFT_USER", "us:me")
    monkeypatch.setenv("CLOUDBENCH_SWIFT_KEY", SECRET)
    loaded = leaves.load_credentials(drivers.bind(ProviderSpec.parse("swift://bench?auth_url=https://127.0.0.1:9/v1")))
    assert loaded["auth_url"] == "https://127.0.0.1:9/v1"


def test_a_connection_string_and_the_spec_must_not_name_two_accounts() -> None:
    """The string would win, and the run would go to another account than the spec names."""
    keys = {"connection_string": f"AccountName=us;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:9/us;"}
    with pytest.raises(SpecError, match="says that already: leave account and endpoint out"):
        drivers.connect(ProviderSpec.parse("azure://bench?account=them&endpoint=http://127.0.0.1:9"), None, keys)


def test_unusable_signing_key_is_an_auth_error() -> None:
    spec = ProviderSpec.parse("azure://bench?endpoint=http://127.0.0.1:9")
    driver = drivers.connect(spec, None, {"account": "us", "account_key": "not-base64"})
    assert refusal(lambda: driver.stat("/run/a")).kind is ErrorKind.AUTH
    driver.close()
