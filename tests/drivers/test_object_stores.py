"""Drivers of object stores: what a service says, or fails to say, is classified; one call is one request."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Counting
from pytest_cloudbench.model import CloudError, CredentialsError, ErrorKind, ProviderSpec
from pytest_cloudbench.payload.contents import Literal

from .conftest import Scripted

SECRET = "c2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTEtc2VjcmV0LTQ3MTE="
XML = {"Content-Type": "application/xml"}


@dataclass(frozen=True)
class Store:
    """One driver: its spec, its credentials, how its service asks to slow down."""

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
    found = STORES[request.param]
    if missing := drivers.missing_library(ProviderSpec.parse(found.spec).scheme):
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def one_driver(store: Store, one_server: Scripted) -> Iterator[Any]:
    driver = connected(store, one_server)
    yield driver
    driver.close()


@pytest.fixture
def driver(one_driver: Any, server: Scripted) -> Any:
    """The driver, and a server that has had no request yet."""
    return one_driver


def connected(store: Store, server: Scripted, **changes: Any) -> Any:
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
    if verb != "stat":  # the answer to HEAD has no words; its status may mean something else
        assert error.kind is ErrorKind.THROTTLED
    assert error.retry_after_s == (7.0 if store.tells_wait else None)
    if isinstance(driver, Counting):
        assert driver.requests() - before == 1


@pytest.mark.parametrize(
    "body", [b"", b"<html>not what you expect</html>", b"\xff\x00{"], ids=["empty", "page", "noise"]
)
def test_statuses_count_where_words_do_not(store: Store, driver: Any, server: Scripted, body: bytes) -> None:
    for status, meant in STATUSES.items():
        server.say(status, body, {"Content-Type": "text/html"})
        for verb in ("stat", "put"):
            # If the answer's text cannot be decoded, the Rust client says only that.
            kind = ErrorKind.SERVER if store.follows and not body.isascii() and verb == "put" else meant
            server.requests.clear()
            error = refusal(actions(driver)[verb])
            found = (error.kind, error.retry_after_s, len(server.requests))
            assert found == (kind, None, 1), (status, verb)


@pytest.mark.parametrize("verb", ["put", "get", "stat", "list"])
def test_a_lost_connection_is_the_network(driver: Any, server: Scripted, verb: str) -> None:
    server.say(close=True)
    assert refusal(actions(driver)[verb]).kind is ErrorKind.NETWORK
    assert len(server.requests) == 1


def test_an_answer_that_is_cut_is_the_network(driver: Any, server: Scripted) -> None:
    server.say(200, b"half of it", {"ETag": '"0"', "Last-Modified": "Sun, 22 Nov 2026 10:00:00 GMT"}, length=100)
    assert refusal(actions(driver)["get"]).kind is ErrorKind.NETWORK


def test_noise_for_a_listing_is_the_server(store: Store, driver: Any, server: Scripted) -> None:
    server.say(200, b"\x00\xff noise", store.headers)
    assert refusal(actions(driver)["list"]).kind is ErrorKind.SERVER
    assert len(server.requests) == 1


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
    driver = connected(store, server, ca_file=other_server.endpoint.ca_file)
    assert refusal(actions(driver)["stat"]).kind is ErrorKind.NETWORK
    assert server.requests == []
    driver.close()


def test_a_service_that_says_nothing_is_left(store: Store, server: Scripted) -> None:
    driver = connected(replace(store, spec=f"{store.spec}?timeout_s=0.6"), server)
    server.say(silent=True)
    assert refusal(actions(driver)["stat"]).kind is ErrorKind.NETWORK
    assert len(server.requests) == 1
    driver.close()


@pytest.mark.parametrize("path", ["/a//b", "/a/../b", "/a/./b", "/a/", "/a/\ud800", "a"])
def test_paths_that_may_become_others_are_refused(driver: Any, server: Scripted, path: str) -> None:
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
    keys = driver._client._request_signer._credentials
    assert (keys.access_key, keys.secret_key) == ("the-id", "the-secret")
    driver.close()
    with pytest.raises(CredentialsError, match="s3: profile nobodys"):
        drivers.connect(spec, None, {"profile": "nobodys"})
