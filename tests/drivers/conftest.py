"""Fixtures of the driver tests: one emulator and one scripted server for all of them.

The scripted server is a tiny HTTPS server on loopback that gives the answer of a test and counts the requests. It is
for answers that an emulator would never give (wrong statuses, broken bodies, odd headers, silence).
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from pytest_cloudbench import emulators
from pytest_cloudbench.model import Endpoint

JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    """One answer, or none: ``close`` drops the connection, ``silent`` sends nothing."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=lambda: JSON)
    length: int | None = None
    close: bool = False
    silent: bool = False


@dataclass
class Scripted:
    """A running server: its answer, and the requests to it."""

    endpoint: Endpoint
    answer: Answer = field(default_factory=Answer)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def say(self, status: int = 200, body: bytes = b"{}", headers: dict[str, str] | None = None, **more: Any) -> None:
        """Give this answer to all further requests."""
        self.answer = Answer(status, body, JSON if headers is None else headers, **more)

    def elsewhere(self, port: int | None = None, ca_file: str | None = None) -> Endpoint:
        """Return the endpoint with another port or authority."""
        urls = self.endpoint.urls if port is None else urls_on(port)
        return replace(self.endpoint, urls=urls, ca_file=ca_file or self.endpoint.ca_file)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: Scripted

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.scripted.requests.append((self.path, dict(self.headers)))
        answer = self.scripted.answer
        if answer.silent:
            self.scripted.released.wait()
        if answer.silent or answer.close:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body) if answer.length is None else answer.length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.close_connection = answer.length is not None

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # some tests are about clients that hang up or distrust the certificate

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        # The base class only shuts down the plain socket, but the TLS layer above it is open.
        assert isinstance(request, socket.socket)
        request.close()


def urls_on(port: int) -> dict[str, str]:
    return dict.fromkeys(("api", "content", "notify", "web"), f"https://127.0.0.1:{port}")


@contextmanager
def scripted_server(folder: Path) -> Iterator[Scripted]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    handler: Any = type("Handler", (_Handler,), {})
    server = _Server(("127.0.0.1", 0), handler)
    # The handler's thread does the handshake: one client that hangs must not stop the others.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    port = int(server.server_address[1])
    scripted = Scripted(Endpoint(urls_on(port), {"access_token": "sl.secret-4711"}, str(folder / "ca.pem")))
    handler.scripted = scripted
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def emulator() -> Iterator[emulators.EmulatorService]:
    with emulators.start_emulator("ideal") as running:
        yield running


@pytest.fixture(scope="session")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripted]:
    with scripted_server(tmp_path_factory.mktemp("scripted")) as running:
        yield running


@pytest.fixture
def server(one_server: Scripted) -> Scripted:
    one_server.answer = Answer()
    one_server.requests.clear()
    one_server.released.clear()
    return one_server


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[Scripted]:
    """A second scripted server, with an authority of its own."""
    with scripted_server(tmp_path) as running:
        yield running
