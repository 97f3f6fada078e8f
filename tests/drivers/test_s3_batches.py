"""Removal of a folder on services with strict rules for DeleteObjects, with rclone's server behind a strict door."""

from __future__ import annotations

import base64
import hashlib
import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pytest_cloudbench.model import Endpoint, ErrorKind
from pytest_cloudbench.workload.payload.contents import Literal

from .real import connected, refusal, served

FILES = 5


class Door:
    """A front of a server that passes on all requests but DeleteObjects, which it answers with ``status`` and ``code``.

    If ``status`` is 0, it passes on DeleteObjects with a right MD5, too.
    """

    def __init__(self, inner: str) -> None:
        self.inner, self.status, self.code, self.url = inner, 0, "", ""
        self.request_counts = Counter[str]()

    def refusal(self, body: bytes, md5: str | None) -> tuple[int, str]:
        if self.status:
            return self.status, self.code
        right = base64.b64encode(hashlib.md5(body).digest()).decode()
        return (0, "") if md5 == right else (400, "MissingContentMD5" if md5 is None else "BadDigest")


@contextmanager
def strict_door(inner: Endpoint) -> Iterator[tuple[Door, Endpoint]]:
    ((host, port),) = inner.addresses
    door = Door(f"{host}:{port}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            door.request_counts[self.command] += 1
            status, code = door.refusal(body, self.headers["Content-MD5"]) if self.command == "POST" else (0, "")
            if status:
                self.answer(status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
                return
            connection = http.client.HTTPConnection(door.inner)
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            self.answer(response.status, dict(response.getheaders()), response.read())
            connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield door, replace(inner, urls={"": f"http://127.0.0.1:{server.server_address[1]}"})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def inner() -> Iterator[Endpoint]:
    with served("s3") as running:
        yield running.endpoint


@pytest.fixture
def door_and_driver(inner: Endpoint) -> Iterator[tuple[Door, Any]]:
    with strict_door(inner) as (door, endpoint), connected(endpoint, "s3:bench") as driver:
        for number in range(FILES):
            driver.put(f"/run/{number}", Literal(b"1"))
        yield door, driver
        door.status = 0
        driver.delete("/run")


def test_a_service_that_wants_a_content_md5_gets_it(door_and_driver: tuple[Door, Any]) -> None:
    door, driver = door_and_driver
    driver.delete("/run")
    assert list(driver.list("/run")) == []
    assert (door.request_counts["POST"], door.request_counts["DELETE"]) == (1, 0)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "MissingContentMD5"), (400, "InvalidRequest"), (403, "SignatureDoesNotMatch"), (404, "NoSuchKey"),
     (405, "MethodNotAllowed"), (411, "MissingContentLength"), (501, "NotImplemented")],
)  # fmt: skip
def test_a_service_that_refuses_many_at_once_is_asked_for_one_after_the_other(
    status: int, code: str, door_and_driver: tuple[Door, Any]
) -> None:
    door, driver = door_and_driver
    door.status, door.code = status, code
    driver.delete("/run")
    assert list(driver.list("/run")) == []
    assert (door.request_counts["POST"], door.request_counts["DELETE"]) == (1, FILES)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(500, "InternalError", "server"), (503, "SlowDown", "throttled"), (429, "TooManyRequests", "throttled")],
)
def test_a_service_in_trouble_is_not_asked_again(
    status: int, code: str, kind: str, door_and_driver: tuple[Door, Any]
) -> None:
    door, driver = door_and_driver
    door.status, door.code = status, code
    refusal(ErrorKind(kind), lambda: driver.delete("/run"))
    assert (door.request_counts["POST"], door.request_counts["DELETE"]) == (1, 0)
    assert len(list(driver.list("/run"))) == FILES
