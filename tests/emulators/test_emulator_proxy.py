"""Tests of the proxy for clients that know only the real host names. It refuses all other hosts."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal") as running:
        yield running


def ask(emulator: EmulatorService, host: str, port: int = 443) -> http.client.HTTPResponse:
    proxy = urlsplit(emulator.endpoint.proxy)
    context = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
    connection = http.client.HTTPSConnection(proxy.hostname or "", proxy.port, timeout=HANG_S, context=context)
    connection.set_tunnel(host, port)
    token = emulator.endpoint.credentials["access_token"]
    connection.request("POST", "/2/users/get_current_account", headers={"Authorization": f"Bearer {token}"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def test_a_real_name_leads_to_the_emulator_with_its_certificate(emulator: EmulatorService) -> None:
    assert emulator.endpoint.api == "dropbox"
    assert ask(emulator, "api.dropboxapi.com").status == 200
    assert ask(emulator, "API.Dropboxapi.com").status == 200


@pytest.mark.parametrize(
    ("host", "port"),
    [("example.com", 443), ("api.dropboxapi.com", 80), ("127.0.0.1", 443), ("x.api.dropboxapi.com", 443)],
)
def test_proxy_refuses_other_host_names(emulator: EmulatorService, host: str, port: int) -> None:
    with pytest.raises(OSError, match="403 Not a host"):
        ask(emulator, host, port)


@pytest.mark.parametrize("head", [b"GET http://example.com/ HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"CONNECT \r\n\r\n"])
def test_proxy_refuses_requests_other_than_tunnels(emulator: EmulatorService, head: bytes) -> None:
    proxy = urlsplit(emulator.endpoint.proxy)
    with socket.create_connection((proxy.hostname or "", proxy.port or 0), timeout=HANG_S) as connection:
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith((b"HTTP/1.1 405 ", b"HTTP/1.1 403 "))


@pytest.mark.parametrize("head", [
    b"CONNECT " + b"x" * 20_000, b"CONNECT " + b"x" * 20_000 + b":443 HTTP/1.1\r\n\r\n",
    b"CONNECT api.dropboxapi.com:443 HTTP/1.1\r\n" + b"a: b\r\n" * 3_000,
], ids=["a line without an end", "a long line", "many headers"])  # fmt: skip
def test_oversized_proxy_head_is_refused_without_log_lines(head: bytes, tmp_path: Path) -> None:
    with start_emulator("ideal", log_path=tmp_path / "log.txt") as running:
        proxy = urlsplit(running.endpoint.proxy)
        with socket.create_connection((proxy.hostname or "", proxy.port or 0), timeout=HANG_S) as connection:
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert ask(running, "api.dropboxapi.com").status == 200
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert (tmp_path / "log.txt").read_text() == ""


def test_clients_that_leave_during_a_download_do_not_end_the_emulator(tmp_path: Path) -> None:
    """rclone leaves so when it ends. In the tests of clients, the emulator crashed in one of three runs."""
    with start_emulator("ideal", log_path=tmp_path / "log.txt") as running:
        proxy = urlsplit(running.endpoint.proxy)
        context = ssl.create_default_context(cafile=running.endpoint.ca_file)
        headers = {"Authorization": f"Bearer {running.endpoint.credentials['access_token']}",
                   "Dropbox-API-Arg": '{"path": "/large"}', "Content-Type": "application/octet-stream"}  # fmt: skip

        def begin(verb: str, body: bytes | None = None) -> http.client.HTTPSConnection:
            connection = http.client.HTTPSConnection(proxy.hostname or "", proxy.port, timeout=HANG_S, context=context)
            connection.set_tunnel("content.dropboxapi.com")
            connection.request("POST", f"/2/files/{verb}", body, headers)
            return connection

        with closing(begin("upload", bytes(8_000_000))) as uploading:
            assert uploading.getresponse().status == 200
        for _ in range(100):
            with closing(begin("download")) as leaving:
                assert len(leaving.getresponse().read(1000)) == 1000
        running.control(reset=True)
        assert ask(running, "api.dropboxapi.com").status == 200
    assert (tmp_path / "log.txt").read_text() == ""
