"""OpenDAL on real servers, and its errors for odd ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers, providers
from pytest_cloudbench.drivers import opendal
from pytest_cloudbench.model import Endpoint, ErrorKind, ProviderSpec, SpecError, Verb
from pytest_cloudbench.providers.leaves import load_credentials
from pytest_cloudbench.support import redact
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .real import (
    answering,
    assert_killed_server_is_a_network_error,
    connected,
    content_of,
    refusal,
    served,
    silent_server,
)

HERE = Path(__file__).resolve().parents[2]
KEYS = {"user": "alice", "password": "app-password-4711"}


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with served("webdav") as running:
        yield running


@pytest.fixture(scope="module")
def driver(server: Any) -> Iterator[Any]:
    with connected(server.endpoint, "opendal") as new_driver:
        yield new_driver


def test_white_space_at_the_ends_would_be_another_files(driver: Any) -> None:
    for path in ("/ before", "/after ", "/x/after\u00a0", "/\u3000"):
        refusal(ErrorKind.INVALID, lambda path=path: driver.put(path, Literal(b"1")))
        refusal(ErrorKind.INVALID, lambda path=path: driver.delete(path))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["webdav", "s3"])
def test_killed_server_is_a_network_error(name: str) -> None:
    with served(name) as service, connected(service.endpoint, f"opendal:{'bench' * (name == 's3')}") as driver:
        assert_killed_server_is_a_network_error(service, driver)


def test_silence_ends_with_the_timeout() -> None:
    with silent_server() as port:
        silent_endpoint = Endpoint({"": f"http://127.0.0.1:{port}"}, KEYS, api="webdav")
        with connected(silent_endpoint, "opendal?timeout_s=0.3") as driver:
            refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
            refusal(ErrorKind.NETWORK, lambda: content_of(driver, "/a"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "auth"), (403, "auth"), (429, "throttled"), (500, "server"), (503, "server"), (507, "quota")],
)
def test_nothing_is_sent_twice(status: int, kind: str) -> None:
    with answering() as stub:
        stub.status, stub.headers = status, {"Retry-After": "7"}
        with connected(Endpoint({"": stub.url}, KEYS, api="webdav"), "opendal") as driver:
            for action in (lambda: content_of(driver, "/a"), lambda: driver.stat("/a")):
                stub.asked.clear()
                error = refusal(ErrorKind(kind), action)
                assert len(stub.asked) == 1
                assert error.__cause__ is not None
                assert KEYS["password"] not in f"{error!r} {error.__cause__!r}"
                assert "\n" not in error.detail
                assert error.retry_after_s == (7.0 if "retry-after" in str(error.__cause__) else None)


def test_a_wait_until_a_date_counts_from_that_of_the_answer() -> None:
    with answering() as stub:
        stub.status, stub.headers = 429, {"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}
        with connected(Endpoint({"": stub.url}, KEYS, api="webdav"), "opendal") as driver:
            error = refusal(ErrorKind.THROTTLED, lambda: driver.stat("/a"))
    assert error.retry_after_s is not None
    assert error.retry_after_s > 86_400


def test_each_verb_of_files_alone(driver: Any) -> None:
    driver.put("/verbs/x/a", Literal(b"abc"))
    driver.mkdir("/verbs/empty")
    assert driver.capabilities.verbs >= {Verb.COPY, Verb.MOVE}
    driver.copy("/verbs/x/a", "/verbs/b")
    assert driver.move("/verbs/b", "/verbs/c").size_bytes == 3
    assert {entry.path: entry.size_bytes for entry in driver.list("/verbs")} == {"/verbs/x/a": 3, "/verbs/c": 3}
    assert content_of(driver, "/verbs/c", 1) == b"bc"
    refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/verbs/no"))
    driver.delete("/verbs")
    driver.delete("/verbs")
    assert list(driver.list("/verbs")) == []


def test_missing_bucket_is_not_listed_as_empty() -> None:
    with served("s3") as service:
        with connected(service.endpoint, "opendal:bench") as driver:
            assert list(driver.list("/no")) == []
        with connected(service.endpoint, "opendal:no-bucket") as driver:
            refusal(ErrorKind.NOT_FOUND, lambda: list(driver.list("/no")))
            refusal(ErrorKind.NOT_FOUND, lambda: driver.delete("/no"))


def test_list_omits_folder_removed_meanwhile() -> None:
    """The server runs in another process, since the library blocks all threads of this one while it lists."""
    script = (
        "import sys\n"
        "from tests.drivers.real import a_folder_that_goes, answering\n"
        "with answering() as told:\n"
        "    a_folder_that_goes(told)\n"
        "    print(told.url, flush=True)\n"
        "    sys.stdin.read()\n"
        "    print(told.asked)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        with connected(Endpoint({"": url}, KEYS, api="webdav"), "opendal") as driver:
            entries = [(entry.path, entry.size_bytes) for entry in driver.list("/top")]
        request_log, _ = server.communicate(timeout=HANG_S)
    assert entries == [("/top/a", 3)]
    assert "('PROPFIND', '/top/sub/')" in request_log


def test_memory_service_needs_no_settings() -> None:
    with providers.opened("opendal:memory") as driver:
        driver.put("/a", Literal(b"abc"))
        assert content_of(driver, "/a") == b"abc"
        assert driver.versions()["opendal.retries"] == "off"
        assert "whole contents" in driver.capabilities.via
        assert not driver.capabilities.streams


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("opendal", "expected opendal:SERVICE"),
        ("opendal:webdov", "did you mean webdav"),
        ("opendal:webdav?endpiont=http://x", "unknown parameter 'endpiont'"),
        ("opendal:s3?bucket=b", "region is missing"),
        ("opendal:memory?timeout_s=never", "timeout_s is a number"),
        ("opendal:webdav?endpoint=http://[::1", "Invalid IPv6 URL"),
    ],
)
def test_unusable_specs_are_refused(spec: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SpecError, match=message) as caught:
        drivers.connect(ProviderSpec.parse(spec))
    assert "\n" not in str(caught.value)


def test_ids_stay_readable_and_secrets_do_not() -> None:
    """The key id of a test server is "cloudbench", and the names of run folders begin with it, too."""
    with served("s3") as service, connected(service.endpoint, "opendal:bench") as driver:
        driver.put("/cloudbench-abc/a", Literal(b"abc"))
        assert str(refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/cloudbench-abc/b"))).startswith(
            "stat /cloudbench-abc/b: "
        )
        assert [redact.clean(entry.path) for entry in driver.list("/cloudbench-abc")] == ["/cloudbench-abc/a"]
        assert redact.clean(service.endpoint.credentials["secret_access_key"]) == redact.MASK


@pytest.mark.parametrize("where", ["credentials", "spec"])
def test_only_secret_settings_are_hidden(where: str) -> None:
    values = {"access_key_id": "an-id-of-a-key", "secret_access_key": "the-key-itself", "session_token": "its-token"}
    params = {"region": "nowhere", "bucket": "b", **(values if where == "spec" else {})}
    text = f"opendal:s3?{'&'.join(f'{name}={value}' for name, value in params.items())}"
    with connected(None, text, values if where == "credentials" else None):
        assert [redact.clean(value) for value in values.values()] == ["an-id-of-a-key", "***", "***"]


def test_a_refused_spec_shows_no_secret() -> None:
    key = "secret_access_key=hunter22"
    for text in (f"opendal:s4?{key}", f"opendal:s3?scret=x&{key}", f"s3:b?{key}", f"folder:x?{key}"):
        with pytest.raises(SpecError) as caught:
            drivers.connect(ProviderSpec.parse(text))
        assert "hunter22" not in str(caught.value)


def test_every_secret_of_any_service_can_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from opendal import config

    services = {name.removesuffix("Config").lower(): value for name, value in vars(config).items() if "Config" in name}
    secrets = {
        name for service, value in services.items() for name in getattr(value, "__annotations__", {})
        if redact.names_secret(name) and (service, name) not in opendal._PUBLIC
    }  # fmt: skip
    (fields,) = opendal.OpendalDriver.credential_sets
    assert secrets <= {*fields.optional}
    monkeypatch.setenv("CLOUDBENCH_OPENDAL_SECRET_KEY", "hunter22")
    bound = drivers.bind(ProviderSpec.parse("opendal:s3?bucket=b&region=nowhere"))
    credentials = load_credentials(bound)
    assert credentials == {"secret_key": "hunter22"}
    bound.connect(None, credentials).close()  # S3 has no such setting, which does not matter


def test_error_omits_backtrace_of_the_library() -> None:
    with connected(None, "opendal:webdav?endpoint=http://127.0.0.1:9") as driver:
        error = refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
    assert "Connection refused" in error.detail
    assert "Backtrace" not in error.detail
