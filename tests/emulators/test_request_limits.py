"""Tests of requests that an emulator's front end refuses: endless heads, and requests that stop half-way."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from tests.limits import HANG_S

_QUICKER = (
    "import sys; from pytest_cloudbench.emulators.protocol import EagerProtocol as protocol; "
    "protocol.head_s = protocol.body_s = 0.5; "
    "from pytest_cloudbench.emulators.server import main; sys.exit(main(['dropbox', '--profile=ideal', '--lifeline']))"
)
"""The code of an emulator whose timeouts are shorter than those of the tests."""


@dataclass(frozen=True)
class FrontEnd:
    port: int
    token: str
    context: ssl.SSLContext

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
        return self.context.wrap_socket(plain, server_hostname="127.0.0.1")

    def upload_head(self, path: str, length: int) -> bytes:
        arg = json.dumps({"path": path})
        return (
            f"POST /2/files/upload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"Dropbox-API-Arg: {arg}\r\nContent-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


@pytest.fixture(scope="module")
def front() -> Iterator[FrontEnd]:
    with subprocess.Popen(
        [sys.executable, "-c", _QUICKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        ready = json.loads(process.stdout.readline())
        context = ssl.create_default_context(cafile=ready["ca_file"])
        yield FrontEnd(int(urlsplit(ready["urls"]["api"]).port or 0), ready["credentials"]["access_token"], context)
        process.stdin.close()


def answer_of(connection: ssl.SSLSocket, until: bytes = b"\r\n\r\n") -> bytes:
    """Return the bytes from the other side up to a mark or the end of the connection."""
    received = b""
    try:
        while until not in received and (piece := connection.recv(65_536)):
            received += piece
    except ConnectionError:  # a reset while bytes were still on their way
        pass
    return received


def send_until_refused(connection: ssl.SSLSocket, pieces: Iterator[bytes]) -> int:
    """Send pieces until the other side takes no more, and return the number of sent bytes."""
    sent_bytes = 0
    try:
        for piece in pieces:
            connection.sendall(piece)
            sent_bytes += len(piece)
    except OSError:
        pass
    return sent_bytes


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * 16_384),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-Another: short\r\n" * 1024),
        (b"GET /", b"a" * 16_384),
        (b"POST /2/files/upload HTTP/1.1\r\nDropbox-API-Arg: {", b"\t" * 16_384),
    ],
    ids=["one header", "many headers", "path", "argument"],
)
def test_a_head_of_ten_megabytes_is_refused(front: FrontEnd, start: bytes, more: bytes) -> None:
    with front.connect() as connection:
        connection.sendall(start)
        send_until_refused(connection, (more for _ in range(10_000_000 // len(more))))
        assert answer_of(connection).startswith(b"HTTP/1.1 431 ")


def test_the_limit_of_a_head_is_exact(front: FrontEnd) -> None:
    arg = b'{"path": "/a", "x": "'
    with front.connect() as connection:
        for length, status in ((60_000, b"400"), (70_000, b"431")):
            head = front.upload_head("/a", 0).replace(b'{"path": "/a"', arg + b"b" * length + b'"')
            connection.sendall(head)
            assert connection.recv(65_536)[9:12] == status


def test_half_sent_requests_are_not_held(front: FrontEnd) -> None:
    halves = [
        b"", b"G", b"GET /2/files", b"GET / HTTP/1.1\r\nHost: x\r\n", front.upload_head("/half", 100)[:-1],
        front.upload_head("/half", 100), front.upload_head("/half", 100) + b"x" * 99,
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        connections = []
        for half in halves * 10:
            connection = stack.enter_context(front.connect())
            connection.sendall(half)
            connections.append((half, connection))
        for half, connection in connections:
            answer = answer_of(connection)
            assert answer == b"" if not half else answer.startswith(b"HTTP/1.1 408 "), half
    with front.connect() as connection:
        connection.sendall(front.upload_head("/whole", 5) + b"whole")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_an_idle_connection_is_kept(front: FrontEnd) -> None:
    with front.connect() as connection, front.connect() as other:
        connection.sendall(front.upload_head("/kept", 4) + b"kept")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        other.sendall(b"GET")
        assert answer_of(other).startswith(b"HTTP/1.1 408 ")  # the timeout of a request has passed, then
        connection.sendall(front.upload_head("/kept again", 4) + b"kept")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_json_body_size_is_limited(front: FrontEnd) -> None:
    with front.connect() as connection:
        connection.sendall(
            f"POST /2/files/list_folder HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {front.token}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n".encode()
        )
        send_until_refused(connection, (b" " * 1_000_000 for _ in range(1000)))
        assert b"HTTP/1.1 413 " in answer_of(connection)
