"""SFTP on a real server: trust, threads, and errors after the server is killed."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import sftp
from pytest_cloudbench.model import CloudError, CredentialsError, Endpoint, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

from .real import (
    assert_killed_server_is_a_network_error,
    connected,
    content_of,
    refusal,
    served,
    silent_server,
)

KEYS = {"user": "alice", "password": "long-password-4711"}


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with served("sftp") as running:
        yield running


def fingerprint(endpoint: Endpoint) -> str:
    from paramiko.hostkeys import HostKeys

    (keys,) = HostKeys(endpoint.credentials["known_hosts"]).values()
    return str(next(iter(keys.values())).fingerprint)


@pytest.mark.slow
def test_killed_server_is_a_network_error() -> None:
    with served("sftp") as service, connected(service.endpoint, "sftp") as driver:
        assert_killed_server_is_a_network_error(service, driver)


def test_silence_ends_with_the_timeout(server: Any) -> None:
    with silent_server() as port:
        silent_endpoint = replace(server.endpoint, urls={"": f"sftp://127.0.0.1:{port}/"})
        with connected(silent_endpoint, "sftp?timeout_s=0.2") as driver:
            refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))


def test_only_a_known_host_key_is_trusted(server: Any, tmp_path: Path) -> None:
    endpoint: Endpoint = server.endpoint
    credentials = {name: value for name, value in endpoint.credentials.items() if name != "known_hosts"}
    unknown = replace(endpoint, credentials=credentials)
    (tmp_path / "empty").touch()
    own = fingerprint(endpoint)
    other = f"SHA256:{'A' * 43}"
    for params in (f"known_hosts={tmp_path}/empty", f"host_key={other}"):
        with connected(unknown, f"sftp?{params}") as driver:
            error = refusal(ErrorKind.AUTH, lambda driver=driver: driver.put("/a", Literal(b"1")))
            assert own in error.detail
            assert "if it is the server's, name it as the spec's host_key" in error.detail
            assert driver.requests() == 0
    lines = Path(endpoint.credentials["known_hosts"]).read_text("utf-8")
    key = lines.split()[-1]
    (tmp_path / "changed").write_text(lines.replace(key, key[:-6] + ("A" * 6 if key[-6:] != "A" * 6 else "B" * 6)))
    with connected(unknown, f"sftp?known_hosts={tmp_path}/changed") as driver:
        refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
    with connected(unknown, f"sftp?host_key={own}") as driver:
        assert driver.stat("/").is_folder


def test_a_wrong_password_is_named_without_itself(server: Any) -> None:
    wrong = replace(server.endpoint, credentials={**server.endpoint.credentials, "password": KEYS["password"]})
    with connected(wrong, "sftp") as driver:
        error = refusal(ErrorKind.AUTH, lambda: driver.stat("/"))
    assert KEYS["password"] not in f"{error!r} {error.__cause__!r}"


def test_a_key_file_authenticates(tmp_path: Path) -> None:
    import paramiko
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    for name in ("mine", "other"):
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
        (tmp_path / name).write_bytes(private)
    public = paramiko.Ed25519Key.from_private_key_file(str(tmp_path / "mine"))
    (tmp_path / "authorized").write_text(f"{public.get_name()} {public.get_base64()}\n")
    environment = {"RCLONE_AUTHORIZED_KEYS": str(tmp_path / "authorized")}
    with served("sftp", environment=environment) as service:
        host_key = fingerprint(service.endpoint)
        for name in ("mine", "other"):
            keys = {"user": "anyone", "key_file": str(tmp_path / name)}
            endpoint = replace(service.endpoint, credentials=keys)
            with connected(endpoint, f"sftp?host_key={host_key}") as driver:
                if name == "mine":
                    driver.put("/a", Literal(b"1"))
                else:
                    refusal(ErrorKind.AUTH, lambda driver=driver: driver.stat("/a"))


def test_a_key_file_is_read_once_and_before_anything_is_sent(tmp_path: Path) -> None:
    """The path and the passphrase of a key file may hold spaces. A wrong file is not a network error."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path, words = tmp_path / "my key", "correct horse"
    sealed = form.BestAvailableEncryption(words.encode())
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, sealed))
    spec = ProviderSpec.parse(f"sftp://127.0.0.1:9?host_key=SHA256:{'A' * 43}")
    keys = {"user": "Alice B\u00f6hm", "key_file": str(path)}
    drivers.connect(spec, None, {**keys, "passphrase": words}).close()
    with pytest.raises(CredentialsError, match="my key is encrypted: give its passphrase"):
        drivers.connect(spec, None, keys)
    for wrong in ({**keys, "passphrase": "battery"}, {**keys, "key_file": __file__}):
        with pytest.raises(CredentialsError, match="is not a private key, or its passphrase is wrong"):
            drivers.connect(spec, None, wrong)


def test_the_folder_that_the_spec_names_is_never_made(server: Any) -> None:
    """A mistyped folder would stay on the server for good."""
    elsewhere = replace(server.endpoint, urls={"": f"{server.endpoint.url}no/such"})
    with connected(server.endpoint, "sftp") as root_driver, connected(elsewhere, "sftp") as driver:
        for action in (
            lambda: driver.put("/a", Literal(b"1")), lambda: driver.put("/b/c", Literal(b"1")),
            lambda: driver.mkdir("/b/c"),
        ):  # fmt: skip
            error = refusal(ErrorKind.NOT_FOUND, action)
            assert error.detail == "the folder that the spec names is missing: /no/such"
        refusal(ErrorKind.NOT_FOUND, lambda: root_driver.stat("/no"))


def test_read_only_account_is_an_auth_error() -> None:
    environment = {"RCLONE_USER": "us", "RCLONE_PASS": "{secret}", "RCLONE_READ_ONLY": "true"}
    with served("sftp", environment=environment, credentials={
        "user": "us", "password": "{secret}", "known_hosts": "{folder}/known_hosts",
    }) as service, connected(service.endpoint, "sftp") as driver:  # fmt: skip
        for action in (lambda: driver.put("/run/a", Literal(b"1")), lambda: driver.mkdir("/run")):
            assert "ead only" in refusal(ErrorKind.AUTH, action).detail


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("sftp://host", ("host", 22, "")),
        ("sftp://host:2022/data/", ("host", 2022, "/data")),
        ("sftp://host/~", ("host", 22, ".")),
        ("sftp://host/~/bench", ("host", 22, "./bench")),
        ("sftp://[::1]:2022/", ("::1", 2022, "")),
    ],
)
def test_address_gives_host_port_and_folder(url: str, address: tuple[str, int, str]) -> None:
    assert sftp._parse_address(ProviderSpec.parse(url), url) == address


@pytest.mark.parametrize("spec", ["sftp://host?host_key=SHA256:x", "sftp://host/?host_key=SHA256:x"])
def test_the_root_of_a_server_has_a_path(spec: str) -> None:
    driver: Any = drivers.connect(ProviderSpec.parse(spec), None, KEYS)
    assert driver._remote_path("list", "/") == "/"  # OpenSSH finds nothing at an empty path
    assert driver._remote_path("put", "/a/b") == "/a/b"
    driver.close()


@pytest.mark.parametrize(
    "spec",
    ["sftp", "sftp://alice:pw@host/", "sftp://host:port/", "sftp://host?host_key=MD5:11:22",
     "sftp://host?known_hosts=/nowhere/at/all"],
)  # fmt: skip
def test_unusable_specs_are_refused(spec: str) -> None:
    with pytest.raises(SpecError) as caught:
        drivers.connect(ProviderSpec.parse(spec), None, KEYS)
    assert "\n" not in str(caught.value)


def test_many_threads_share_few_connections(server: Any) -> None:
    content = RandomContent("large", 3_000_001)
    with connected(server.endpoint, "sftp") as driver:

        def put_and_get(number: int) -> bool:
            driver.put(f"/threads/{number}", content)
            return content_of(driver, f"/threads/{number}") == content.read(0, content.size_bytes)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(put_and_get, range(16)))
        assert len(driver._idle) <= 8
        driver.delete("/threads")


def test_few_connections_are_opened_at_a_time() -> None:
    """OpenSSH refuses some connections while more than ten have not logged in: 16 of 60 simultaneous puts failed."""
    max_open = 0

    def serve(listener: socket.socket) -> None:
        nonlocal max_open
        opened: list[socket.socket] = []
        with suppress(OSError):
            while True:
                opened = [connection for connection in [*opened, listener.accept()[0]] if not has_ended(connection)]
                max_open = max(max_open, len(opened))
        for connection in opened:
            connection.close()

    def has_ended(connection: socket.socket) -> bool:
        """Read all data that has arrived, and return whether the connection has ended."""
        connection.setblocking(False)
        try:
            while connection.recv(4096):
                pass
        except BlockingIOError:
            return False
        except OSError:
            pass
        connection.close()
        return True

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        spec = f"sftp://127.0.0.1:{listener.getsockname()[1]}?host_key=SHA256:{'A' * 43}&timeout_s=0.3"
        with connected(None, spec, KEYS) as driver, ThreadPoolExecutor(12) as pool:
            attempts = [pool.submit(refusal, ErrorKind.NETWORK, lambda: driver.stat("/a")) for _ in range(12)]
            for attempt in attempts:
                attempt.result(HANG_S)
    assert 1 <= max_open <= 3  # the end of an abandoned connection may not have been seen yet


def test_abandoned_download_leaves_nothing_behind(server: Any) -> None:
    with connected(server.endpoint, "sftp") as driver:
        driver.put("/left", RandomContent("left", 5_000_000))
        pieces = driver.get("/left")
        next(pieces)
        pieces.close()
        assert not driver._idle, "answers are still on their way on its connection"
        assert content_of(driver, "/left", 4_999_990) == RandomContent("left", 5_000_000).read(4_999_990, 10)


def test_requests_are_those_of_the_protocol(server: Any) -> None:
    with connected(server.endpoint, "sftp") as driver:
        driver.put("/count/a", Literal(b"1"))
        before = driver.requests()
        driver.put("/count/a", Literal(bytes(3 * 32 * 1024)))
        assert driver.requests() - before == 5, "open, three writes, close"
        assert content_of(driver, "/count/a") == bytes(3 * 32 * 1024)
        assert driver.requests() - before == 5 + 6, "open, its size, three reads, close"


def test_a_failed_operation_leaves_no_open_file(server: Any) -> None:
    """The garbage collector closes a forgotten file, which hangs the thread if the file's connection is sending."""
    import paramiko

    class Torn(RandomContent):
        def read(self, offset: int, size_bytes: int) -> bytes:
            raise ValueError("torn")

    with connected(server.endpoint, "sftp") as driver:
        driver.mkdir("/open/folder")
        before = driver.requests()
        errors: list[Exception] = [refusal(ErrorKind.CONFLICT, lambda: content_of(driver, "/open/folder"))]
        assert driver.requests() - before == 3, "open, its kind, close"
        assert len(driver._idle) == 1, "the connection can be used again"
        with pytest.raises(ValueError, match="torn") as caught:
            driver.put("/open/torn", Torn("torn", 9))
        errors.append(caught.value)  # errors keep frames, and frames keep files
        files = [item for item in gc.get_objects() if isinstance(item, paramiko.SFTPFile)]
        assert [file for file in files if not file._closed] == []
        driver.delete("/open")


@contextmanager
def own_server(subsystem: Any, files: Any) -> Iterator[tuple[Endpoint, str]]:
    """Run an SFTP server of paramiko's classes. Yield its endpoint and host key. All its connections must end."""
    import paramiko

    class Door(paramiko.ServerInterface):  # type: ignore[misc]  # the library has no types
        def get_allowed_auths(self, username: str) -> str:
            return "password"

        def check_auth_password(self, username: str, password: str) -> Any:
            return paramiko.AUTH_SUCCESSFUL

        def check_channel_request(self, kind: str, chanid: int) -> Any:
            return paramiko.OPEN_SUCCEEDED

    key = paramiko.ECDSAKey.generate()
    doors = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    door = paramiko.Transport(listener.accept()[0])
                    doors.append(door)
                    door.add_server_key(key)
                    door.set_subsystem_handler("sftp", subsystem, files)
                    door.start_server(server=Door())
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Endpoint({"": f"sftp://127.0.0.1:{listener.getsockname()[1]}/"}, KEYS), key.fingerprint
        for door in doors:
            door.join(HANG_S)
            assert not door.is_alive(), "the driver has left a connection open"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def full_server(max_bytes: int) -> AbstractContextManager[tuple[Endpoint, str]]:
    """Run an SFTP server whose disk is full after this many bytes of a file."""
    import paramiko

    class Full(paramiko.SFTPHandle):  # type: ignore[misc]  # the library has no types
        def stat(self) -> Any:
            return paramiko.SFTPAttributes()

        def write(self, offset: int, data: bytes) -> Any:
            return paramiko.SFTP_OK if offset + len(data) <= max_bytes else paramiko.SFTP_FAILURE

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]  # the library has no types
        def open(self, path: str, flags: int, attr: Any) -> Any:
            return Full(flags)

        def stat(self, path: str) -> Any:
            return paramiko.SFTP_NO_SUCH_FILE

    return own_server(paramiko.SFTPServer, Files)


def server_that_answers(asked: str, kind: str, content: Any) -> AbstractContextManager[tuple[Endpoint, str]]:
    """Run an SFTP server with files of 40,000 bytes that answers requests of one kind in its own way."""
    import paramiko
    from paramiko import sftp as protocol

    class Answering(paramiko.SFTPServer):  # type: ignore[misc]  # the library has no types
        def _process(self, request_kind: int, number: int, message: Any) -> None:
            if request_kind == getattr(protocol, asked):
                self._response(number, getattr(protocol, kind), content)
            else:
                super()._process(request_kind, number, message)

    class File(paramiko.SFTPHandle):  # type: ignore[misc]  # the library has no types
        def stat(self) -> Any:
            status = paramiko.SFTPAttributes()
            status.st_size, status.st_mode = 40_000, 0o100644
            return status

        def read(self, offset: int, length: int) -> Any:
            return bytes(length)

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]  # the library has no types
        def open(self, path: str, flags: int, attr: Any) -> Any:
            return File(flags)

        def stat(self, path: str) -> Any:
            return File().stat()

    return own_server(Answering, Files)


@pytest.mark.parametrize(("size_bytes", "mode"), [(None, 0o100644), (3, None), (None, None)])
def test_what_a_server_leaves_out_is_not_guessed(size_bytes: int | None, mode: int | None) -> None:
    """All attributes are optional. A file is neither empty because of that, nor missing in a list."""
    import paramiko

    attributes = paramiko.SFTPAttributes()
    attributes.st_size, attributes.st_mode, attributes.filename = size_bytes, mode, "a"

    class File(paramiko.SFTPHandle):  # type: ignore[misc]  # the library has no types
        def stat(self) -> Any:
            return attributes

        def read(self, offset: int, length: int) -> Any:
            return b"abc"[offset : offset + length]

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]  # the library has no types
        def open(self, path: str, flags: int, attr: Any) -> Any:
            return File(flags)

        def stat(self, path: str) -> Any:
            return attributes

        def list_folder(self, path: str) -> Any:
            return [attributes]

    with (
        own_server(paramiko.SFTPServer, Files) as (endpoint, key),
        connected(endpoint, f"sftp?host_key={key}") as driver,
    ):
        missing = "its size" if mode else "whether it is a folder"
        for action in (lambda: driver.stat("/a"), lambda: list(driver.list("/"))):
            assert refusal(ErrorKind.SERVER, action).detail == f"the server does not tell {missing}"
        if size_bytes is None:
            refusal(ErrorKind.SERVER, lambda: content_of(driver, "/a"))
        else:
            assert content_of(driver, "/a") == b"abc"


def test_a_connection_that_breaks_is_an_error_and_no_traceback_in_a_log(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a dying server would fill a report with hundreds of tracebacks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        endpoint = Endpoint({"": f"sftp://127.0.0.1:{listener.getsockname()[1]}/"}, KEYS)
        driver: Any = drivers.connect(ProviderSpec.parse("sftp?host_key=SHA256:nobody"), endpoint, KEYS)
        with pytest.raises(CloudError) as caught:
            driver.stat("/a")
        thread.join()
    assert caught.value.kind is ErrorKind.NETWORK
    assert caplog.text == ""


def test_a_refused_last_write_is_not_lost() -> None:
    """The disk is full. paramiko's own pipelining would ignore the server's answers to the last writes."""
    with full_server(100_000) as (endpoint, key), connected(endpoint, f"sftp?host_key={key}") as driver:
        driver.put("/fits", RandomContent("fits", 100_000))
        refusal(ErrorKind.SERVER, lambda: driver.put("/full", RandomContent("full", 100_001)))
        refusal(ErrorKind.SERVER, lambda: driver.put("/full", RandomContent("full", 10_000_000)))
        driver.put("/fits", RandomContent("fits", 100_000))


def test_a_greeting_in_the_place_of_an_answer_is_a_server_error() -> None:
    """A login script of the server's user prints it, which breaks the protocol."""
    import paramiko

    class Greeting(paramiko.SFTPServer):  # type: ignore[misc]  # the library has no types
        def start_subsystem(self, name: str, transport: Any, channel: Any) -> None:
            channel.sendall(b"Welcome to our server!\r\n")
            super().start_subsystem(name, transport, channel)

    with (
        own_server(Greeting, paramiko.SFTPServerInterface) as (endpoint, key),
        connected(endpoint, f"sftp?host_key={key}") as driver,
    ):
        for action in (lambda: driver.stat("/a"), lambda: driver.put("/a", Literal(b"1"))):
            error = refusal(ErrorKind.SERVER, action)
            assert error.detail == "the answer cannot be read: Garbage packet received"


@pytest.mark.parametrize(
    ("asked", "answer", "verb", "words"),
    [
        ("CMD_STAT", ("CMD_HANDLE", b"h"), "stat", "Expected attributes"),
        ("CMD_OPENDIR", ("CMD_ATTRS", 0), "list", "Expected handle"),
        ("CMD_OPEN", ("CMD_ATTRS", 0), "put", "Expected handle"),
        ("CMD_READ", ("CMD_ATTRS", 0), "get", "expected data"),
        ("CMD_READ", ("CMD_DATA", b""), "get", "no data before the end"),
    ],
)
def test_an_answer_to_another_question_is_a_server_error(
    asked: str, answer: tuple[str, Any], verb: str, words: str
) -> None:
    actions: dict[str, Callable[[Any], object]] = {
        "stat": lambda driver: driver.stat("/a"),
        "list": lambda driver: list(driver.list("/")),
        "put": lambda driver: driver.put("/a", Literal(b"1")),
        "get": lambda driver: content_of(driver, "/a"),
    }
    with server_that_answers(asked, *answer) as (endpoint, key), connected(endpoint, f"sftp?host_key={key}") as driver:
        assert refusal(ErrorKind.SERVER, lambda: actions[verb](driver)).detail == f"the answer cannot be read: {words}"
        assert not driver._idle, "what the server sends next could be taken for another answer"
