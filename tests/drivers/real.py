"""Real servers, stub servers and silent servers, with checks for every driver on them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import CloudError, Endpoint, ErrorKind, ProviderSpec
from pytest_cloudbench.services.command import CommandService, load_recipe
from pytest_cloudbench.workload.payload.contents import Literal

ODD_NAMES = (
    "\u00e9", "e\u0301", "a%41", "aA", "a%2Fb", "%", "%zz", "100%25", "a+b", "a b", " before", "after ", "dot.",
    ".hidden", "..hidden", "hidden..", "...", "a\\b", "~", "a?b", "a#b", "a;b", "a:b", "a*b", "a&amp;b", "<x>", "'\"",
    "n" * 1024, "\u00f6" * 512, "n" * 255, "a\nb", "a\x7f", "a\0b", "\ud800", "\U0001f327", "\u65e5\u672c\u8a9e",
)  # fmt: skip
"""Names that some client or server on the way takes for something else."""

OUTSIDE = ("/../x", "/a/../b", "/./x", "/a/.", "/..", "/%2e%2e/../x", "x", "")
"""Paths that no file can have."""


_SOON_S = 120.0
"""Far below the timeouts of drivers that wait for a dead server, even on a busy machine."""


@contextmanager
def served(recipe: str, **changes: Any) -> Iterator[CommandService]:
    """Run a shipped server. Skip the test where it is not installed."""
    loaded = replace(load_recipe(recipe), **changes)
    if missing := loaded.describe_missing():
        pytest.skip(missing)
    with CommandService(loaded) as service:
        service.start()
        yield service


@contextmanager
def connected(endpoint: Endpoint | None, text: str, credentials: Mapping[str, str] | None = None) -> Iterator[Any]:
    driver = drivers.connect(ProviderSpec.parse(text), endpoint, credentials or {})
    try:
        yield driver
    finally:
        driver.close()


def content_of(driver: Any, path: str, offset: int = 0) -> bytes:
    return b"".join(driver.get(path, offset))


def refusal(kind: ErrorKind, action: Any) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


def refused_put(driver: Any, path: str, data: bytes) -> CloudError | None:
    try:
        driver.put(path, Literal(data))
    except CloudError as error:
        return error
    return None


def assert_names_are_kept_or_refused(driver: Any, top: str) -> set[str]:
    """Upload odd names: each one must hold its own content, or be refused in one line. Return the refused names."""
    contents, refused = dict[str, bytes](), set[str]()
    for number, name in enumerate(ODD_NAMES):
        path, data = f"{top}/{name}", f"content {number}".encode()
        if error := refused_put(driver, path, data):
            assert error.kind in {ErrorKind.INVALID, ErrorKind.SERVER}, error
            assert "\n" not in error.detail
            refused.add(name)
        else:
            contents[path] = data
    listed = {entry.path for entry in driver.list(top)}
    assert (listed - contents.keys(), contents.keys() - listed) == (set(), set())
    for path, data in contents.items():
        assert content_of(driver, path) == data, path
        assert driver.stat(path).path == path
    for path in OUTSIDE:
        refusal(ErrorKind.INVALID, lambda path=path: driver.put(path, Literal(b"x")))
        refusal(ErrorKind.INVALID, lambda path=path: content_of(driver, path))
        refusal(ErrorKind.INVALID, lambda path=path: driver.stat(path))
        refusal(ErrorKind.INVALID, lambda path=path: driver.delete(path))
    for path in contents:
        driver.delete(path)
    assert list(driver.list(top)) == []
    return refused


def assert_killed_server_is_a_network_error(service: CommandService, driver: Any, threads: int = 8) -> None:
    """Kill the server while threads write and read. Each thread must end soon, with a network error."""
    data, busy, over = bytes(300_000), threading.Barrier(threads + 1), threading.Event()

    def write_and_read(number: int) -> CloudError:
        driver.put(f"/killed/{number}", Literal(data))
        busy.wait(_SOON_S)
        try:
            while not over.is_set():
                driver.put(f"/killed/{number}", Literal(data))
                content_of(driver, f"/killed/{number}")
        except CloudError as error:
            return error
        raise AssertionError("it still answers")

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(write_and_read, number) for number in range(threads)]
        try:
            busy.wait(_SOON_S)
            service.child.kill()
            errors = [future.result(_SOON_S) for future in futures]
        finally:
            over.set()
    assert {error.kind for error in errors} == {ErrorKind.NETWORK}, errors
    assert all(error.__cause__ is not None for error in errors)
    for action in (lambda: driver.stat("/killed/0"), lambda: list(driver.list("/"))):
        refusal(ErrorKind.NETWORK, action)


@contextmanager
def silent_server() -> Iterator[int]:
    """Yield the port of a server that accepts connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


class StubServer:
    """A plain HTTP server with one answer for all paths except those in ``others``, which records its requests."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, dict[str, str](), b""
        self.others = dict[str, tuple[int, bytes]]()
        self.asked: list[tuple[str, str]] = []
        self.url = ""


def a_folder_that_goes(stub: StubServer) -> None:
    """Answer as a WebDAV server whose ``/top`` lists ``/top/a`` and ``/top/sub``, although ``/top/sub`` is missing."""

    def response(path: str, kind: str) -> str:
        return (
            f"<D:response><D:href>{path}</D:href><D:propstat><D:prop><D:getcontentlength>3</D:getcontentlength>"
            "<D:getlastmodified>Mon, 03 Jan 2022 10:00:00 GMT</D:getlastmodified>"
            f"<D:resourcetype>{kind}</D:resourcetype></D:prop>"
            "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        )

    folder = "<D:collection/>"
    rows = response("/top/", folder) + response("/top/a", "") + response("/top/sub/", folder)
    listing = f'<?xml version="1.0" encoding="utf-8"?><D:multistatus xmlns:D="DAV:">{rows}</D:multistatus>'.encode()
    stub.status, stub.headers = 404, {"Content-Type": "application/xml"}
    stub.others = {"/top/": (207, listing), "/top": (207, listing)}


@contextmanager
def answering() -> Iterator[StubServer]:
    stub = StubServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            stub.asked.append((self.command, self.path))
            # The test may set the next answer as soon as the head has arrived.
            status, body = stub.others.get(self.path, (stub.status, stub.body))
            self.send_response(status)
            for name, value in stub.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PROPFIND = do_MKCOL = do_COPY = do_MOVE = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
