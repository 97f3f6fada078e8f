"""rclone over real servers: the lifetime of its daemon, and the kinds of its errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import _rclone_daemon, rclone
from pytest_cloudbench.drivers._rclone_daemon import settings
from pytest_cloudbench.model import CloudError, Endpoint, ErrorKind, ProviderSpec, ServiceError, SpecError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .real import (
    a_folder_that_goes,
    answering,
    assert_killed_server_is_a_network_error,
    connected,
    content_of,
    refusal,
    served,
    silent_server,
)

HERE = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with served("webdav") as running:
        yield running


@pytest.fixture(scope="module")
def driver(server: Any) -> Iterator[Any]:
    with connected(server.endpoint, "rclone") as new_driver:
        yield new_driver


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_a_file_of_the_same_size_is_replaced(driver: Any, verb: str) -> None:
    if verb not in {offered.value for offered in driver.capabilities.verbs}:
        pytest.skip(f"the server has no {verb}")
    driver.put(f"/{verb}/a", Literal(b"AAAA"))
    driver.put(f"/{verb}/b", Literal(b"BBBB"))
    getattr(driver, verb)(f"/{verb}/a", f"/{verb}/b")
    assert b"".join(driver.get(f"/{verb}/b")) == b"AAAA"


@pytest.mark.parametrize("problem", [OSError("no rclone"), KeyError("id"), ValueError("no JSON")])
def test_failed_start_leaves_no_folder(
    problem: Exception, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_endpoint: Endpoint) -> dict[str, str]:
        raise problem

    monkeypatch.setattr(_rclone_daemon, "settings", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    daemon = _rclone_daemon.Daemon(server.endpoint, {}, 5.0)
    for _ in range(2):
        with pytest.raises(ServiceError, match="rclone did not start"):
            daemon.url()
        assert list(tmp_path.iterdir()) == []
    daemon.stop()


@pytest.fixture
def remote_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is a remote of the user's own configuration."""
    (tmp_path / "rclone.conf").write_text(f"[mine]\ntype = alias\nremote = {tmp_path}/files\n")
    (tmp_path / "files" / "sub").mkdir(parents=True)
    monkeypatch.setenv("RCLONE_CONFIG", str(tmp_path / "rclone.conf"))
    return tmp_path / "files"


def daemon_of(driver: Any) -> int:
    """Return the process id of a driver's daemon, the only child of the guard."""
    guard = driver._daemon._child.pid
    return int(Path(f"/proc/{guard}/task/{guard}/children").read_text("ascii"))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["webdav", "sftp", "s3"])
def test_killed_server_is_a_network_error(name: str) -> None:
    with served(name) as service, connected(service.endpoint, f"rclone:{'bench' if name == 's3' else ''}") as driver:
        assert_killed_server_is_a_network_error(service, driver, threads=4)


def test_sixteen_threads_start_one_daemon_which_ends_with_the_driver(server: Any) -> None:
    with connected(server.endpoint, "rclone") as driver:
        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(lambda _: driver._daemon.url(), range(16)))) == 1
        daemon, folder = daemon_of(driver), Path(driver._daemon._folder)
        assert is_running(daemon)
        assert folder.stat().st_mode & 0o077 == 0
    assert not is_running(daemon)
    assert not folder.exists()
    drivers.connect(ProviderSpec.parse("rclone"), server.endpoint, {}).close()  # a driver that was never used


def test_the_daemon_of_a_killed_agent_ends(remote_folder: Path) -> None:
    script = (
        "import os, sys\n"
        "from pytest_cloudbench import drivers\n"
        "from pytest_cloudbench.model import ProviderSpec\n"
        "from tests.drivers.test_driver_rclone import daemon_of\n"
        "driver = drivers.connect(ProviderSpec.parse('rclone:mine:'))\n"
        "driver.prepare('/')\n"
        "print(daemon_of(driver), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        daemon_fd = os.pidfd_open(daemon)
        assert is_running(daemon)
        process.send_signal(signal.SIGKILL)
    import select

    ended, _, _ = select.select([daemon_fd], [], [], 60)
    os.close(daemon_fd)
    assert ended


def test_killed_daemon_is_a_network_error(server: Any) -> None:
    with connected(server.endpoint, "rclone") as driver:
        driver.put("/a", Literal(b"1"))
        os.kill(daemon_of(driver), signal.SIGKILL)
        driver._daemon._child.wait(HANG_S)
        refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))


def test_the_users_own_remotes_are_used(remote_folder: Path) -> None:
    for spec, folder in (("rclone:mine:", remote_folder), ("rclone:mine:sub", remote_folder / "sub")):
        with connected(None, spec) as driver:
            driver.put("/x/a", RandomContent("own", 300_000))
            assert (folder / "x" / "a").stat().st_size == 300_000
            assert content_of(driver, "/x/a", 299_990) == RandomContent("own", 300_000).read(299_990, 10)
            driver.delete("/x")
            assert not (folder / "x").exists()


def test_an_encrypted_configuration_needs_its_password(remote_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rclone would ask for the password, and panics if nobody can type it."""
    program = [_rclone_daemon._program_path(), "config", "encryption", "set", "--config", os.environ["RCLONE_CONFIG"]]
    subprocess.run(program, input=b"correct-horse\n" * 2, check=True, capture_output=True, timeout=HANG_S)
    for password in ("", "battery-staple"):
        monkeypatch.setenv("RCLONE_CONFIG_PASS", password)
        with connected(None, "rclone:mine:") as driver:
            error = refusal(ErrorKind.AUTH, lambda driver=driver: driver.put("/a", Literal(b"1")))
        assert "RCLONE_CONFIG_PASS" in error.detail
    monkeypatch.setenv("RCLONE_CONFIG_PASS", "correct-horse")
    with connected(None, "rclone:mine:") as driver:
        driver.put("/a", Literal(b"1"))
    assert (remote_folder / "a").read_bytes() == b"1"


def test_a_remote_that_is_not_there_is_named(remote_folder: Path) -> None:
    with connected(None, "rclone:nobody:") as driver:
        error = refusal(ErrorKind.INVALID, lambda: driver.put("/a", Literal(b"1")))
    assert "nobody" in error.detail
    assert "\n" not in error.detail


@pytest.mark.parametrize("spec", ["rclone", "rclone:", "rclone::", "rclone:mydrive", "rclone:my:a]b"])
def test_unusable_specs_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="rclone:REMOTE:PATH"):
        drivers.connect(ProviderSpec.parse(spec))


@pytest.mark.slow
@pytest.mark.parametrize(("status", "kind"), [(503, "server"), (429, "throttled"), (401, "auth"), (507, "quota")])
def test_nothing_is_sent_twice(status: int, kind: str) -> None:
    keys = {"user": "alice", "password": "app-password-4711"}
    with answering() as stub:
        stub.status = status
        with connected(Endpoint({"": stub.url}, keys, api="webdav"), "rclone") as driver:
            for action in (lambda: driver.put("/a", Literal(b"1")), lambda: content_of(driver, "/a")):
                stub.asked.clear()
                error = refusal(ErrorKind(kind), action)
                assert stub.asked
                assert max(Counter(stub.asked).values()) == 1, stub.asked
                assert keys["password"] not in f"{error!r} {error.__cause__!r}"
                assert driver._daemon.password not in str(error)


def test_silence_ends_with_the_timeout() -> None:
    keys = {"user": "alice", "password": "app-password-4711"}
    with silent_server() as port:
        silent_endpoint = Endpoint({"": f"http://127.0.0.1:{port}"}, keys, api="webdav")
        with connected(silent_endpoint, "rclone?timeout_s=0.5") as driver:
            refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
            refusal(ErrorKind.NETWORK, lambda: driver.put("/a", Literal(b"1")))


def test_each_verb_of_files_alone(driver: Any) -> None:
    driver.put("/verbs/x/a", Literal(b"abc"))
    driver.mkdir("/verbs/empty")
    assert driver.copy("/verbs/x/a", "/verbs/y/b").path == "/verbs/y/b"
    assert driver.move("/verbs/y/b", "/verbs/c").size_bytes == 3
    assert {entry.path: entry.size_bytes for entry in driver.list("/verbs")} == {"/verbs/x/a": 3, "/verbs/c": 3}
    assert (driver.stat("/verbs/c").size_bytes, content_of(driver, "/verbs/c", 1)) == (3, b"bc")
    refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/verbs/no"))
    refusal(ErrorKind.NOT_FOUND, lambda: content_of(driver, "/verbs/no"))
    driver.delete("/verbs")
    driver.delete("/verbs")
    assert list(driver.list("/verbs")) == []


def test_missing_folder_is_empty_only_in_an_existing_remote(remote_folder: Path) -> None:
    with connected(None, "rclone:mine:sub") as driver:
        assert list(driver.list("/no")) == []
        driver.delete("/no")
        (remote_folder / "sub").rmdir()
        for folder in ("/no", "/"):
            refusal(ErrorKind.NOT_FOUND, lambda folder=folder: list(driver.list(folder)))
        refusal(ErrorKind.NOT_FOUND, lambda: driver.delete("/no"))


def test_missing_bucket_is_not_listed_as_empty() -> None:
    with served("s3") as service, connected(service.endpoint, "rclone:no-bucket") as driver:
        refusal(ErrorKind.NOT_FOUND, lambda: list(driver.list("/no")))
        refusal(ErrorKind.NOT_FOUND, lambda: driver.delete("/no"))


def test_missing_remote_folder_is_never_created(remote_folder: Path) -> None:
    """rclone would create a mistyped folder or bucket, which then stays in the account."""
    with connected(None, "rclone:mine:no/such") as driver:
        refusal(ErrorKind.NOT_FOUND, lambda: driver.put("/run/a", Literal(b"1")))
    assert not (remote_folder / "no").exists()
    with served("s3") as service:
        for _ in range(2):
            with connected(service.endpoint, "rclone:no-bucket") as driver:
                refusal(ErrorKind.NOT_FOUND, lambda driver=driver: driver.put("/run/a", Literal(b"1")))


def test_list_omits_folder_removed_meanwhile() -> None:
    keys = {"user": "alice", "password": "app-password-4711"}
    with answering() as stub, connected(Endpoint({"": stub.url}, keys, api="webdav"), "rclone") as driver:
        a_folder_that_goes(stub)
        assert [(entry.path, entry.size_bytes) for entry in driver.list("/top")] == [("/top/a", 3)]
        assert any(path.startswith("/top/sub") for _, path in stub.asked)


def test_versions_show_disabled_retries_and_enabled_pacers(driver: Any) -> None:
    versions = driver.versions()
    assert "--retries 1 --low-level-retries 1" in versions["rclone.flags"]
    assert versions["rclone.pacers"] == "on"
    assert driver.capabilities.via.startswith("via rclone")
    assert not hasattr(driver, "requests"), "how many requests its backends send is not known"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("object not found", "not_found"),
        ("too_many_requests/..", "throttled"),
        ("googleapi: Error 403: User rate limit exceeded, userRateLimitExceeded", "throttled"),
        ("SlowDown: Please reduce your request rate. status code: 503", "throttled"),
        ("operation error S3: PutObject, https response error StatusCode: 403, AccessDenied", "auth"),
        ("read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer", "network"),
        ('Put "http://127.0.0.1:1/a": dial tcp 127.0.0.1:1: connect: connection refused', "network"),
        ("unexpected EOF", "network"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "network"),
        ("is a directory not a file", "conflict"),
        ("insufficient_space/..", "quota"),
        ('error in ListJSON: couldn\'t list files: Error "trashed" (404): Item is trashed', "not_found"),
        ('Error "item_name_in_use" (409): Item with the same name', "conflict"),
        ("something new: 418 I'm a teapot", "invalid"),
        ("something new: 502 Bad Gateway", "server"),
        ("something new", "server"),
    ],
)
def test_error_words_give_the_kind(words: str, kind: str) -> None:
    import json

    reported_kind, reported_words = rclone._reason_of_refusal(500, json.dumps({"error": words, "status": 500}).encode())
    assert (reported_kind, reported_words) == (ErrorKind(kind), words)


def test_a_service_without_an_address_is_reached_through_its_proxy() -> None:
    keys = {"access_token": "t0ken"}
    proxied = Endpoint({"api": "https://127.0.0.1:1"}, keys, "/ca.pem", api="dropbox", proxy="http://127.0.0.1:2")
    variables = settings(proxied)
    assert variables["HTTPS_PROXY"] == "http://127.0.0.1:2"
    assert variables["SSL_CERT_FILE"] == variables["RCLONE_CA_CERT"] == "/ca.pem"
    assert variables["RCLONE_CONFIG_CLOUDBENCH_TYPE"] == "dropbox"
    assert '"t0ken"' in variables["RCLONE_CONFIG_CLOUDBENCH_TOKEN"]
    direct_variables = settings(
        Endpoint({"": "http://127.0.0.1:1/a/"}, {"account": "a", "account_key": "k"}, api="azure")
    )
    assert direct_variables["RCLONE_CONFIG_CLOUDBENCH_ENDPOINT"] == "http://127.0.0.1:1/a"
    assert "HTTPS_PROXY" not in direct_variables


def test_unreadable_answer_of_the_daemon_is_a_server_error(monkeypatch: pytest.MonkeyPatch, driver: Any) -> None:
    answers: list[Any] = [{}, {"item": 1}, [], None]
    for answer in answers:
        monkeypatch.setattr(driver._client, "send_json", lambda *_args, answer=answer, **_options: answer)
        with pytest.raises(CloudError) as caught:
            driver.stat("/a")
        assert caught.value.kind is ErrorKind.SERVER
