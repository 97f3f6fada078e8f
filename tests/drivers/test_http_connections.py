"""Connections of drivers that send HTTP: one for each request in flight, kept while idle, closed at the end."""

from __future__ import annotations

import gc
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import trustme

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Preparing
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.load.engine.limits import allow_descriptors
from pytest_cloudbench.model import CloudError, Endpoint
from tests.limits import HANG_S

from .real import connected

IN_FLIGHT = 300
"""More than the pool of any HTTP library keeps by default."""

Send = Callable[[], object]

_TLS = b"\x16"
"""The first byte of a connection with TLS."""


class Meeting:
    """A server that answers once so many requests are there, and counts the connections that begin and end.

    It understands TLS, too. Its threads are the same each time, because some clients have a connection for each.
    """

    def __init__(self, threads: ThreadPoolExecutor, ca_file: str) -> None:
        self.port, self.begun, self.ended = 0, 0, threading.Semaphore(0)
        self.barrier, self.hangs_up = threading.Barrier(1), False
        self.threads, self.ca_file = threads, ca_file

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endpoint(self, *roles: str, **credentials: str) -> Endpoint:
        """Return this server as the given services of a provider, with TLS."""
        url = f"https://127.0.0.1:{self.port}"
        return Endpoint(dict.fromkeys(roles or ("",), url), {"auth_url": url, **credentials}, self.ca_file)

    def send_together(self, send: Send, requests: int) -> None:
        """Send requests from as many threads. No answer comes before all have arrived."""
        self.barrier = threading.Barrier(requests)
        try:
            for future in [self.threads.submit(send) for _ in range(requests)]:
                future.result(HANG_S)
        finally:
            self.barrier.abort()
            self.barrier = threading.Barrier(1)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    allow_descriptors(2 * IN_FLIGHT)
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").configure_cert(context)
    threads, lock = ThreadPoolExecutor(IN_FLIGHT), threading.Lock()
    here = Meeting(threads, str(tmp_path / "ca.pem"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            if self.request.recv(1, socket.MSG_PEEK) == _TLS:
                self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()
            with lock:
                here.begun += 1

        def finish(self) -> None:
            super().finish()
            self.request.close()

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            here.barrier.wait(HANG_S)
            self.send_response(200)
            self.send_header("X-Storage-Url", here.endpoint().url)
            self.send_header("X-Auth-Token", "token-4711")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = here.hangs_up

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, IN_FLIGHT

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            here.ended.release()

    with Server(("127.0.0.1", 0), Handler) as server:
        here.port = int(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()
            threads.shutdown()


@contextmanager
def thin_client(meeting: Meeting) -> Iterator[Send]:
    from pytest_cloudbench.drivers.web import WebClient

    with closing(WebClient(Egress(), lambda status, body: (None, ""), HANG_S)) as client:
        yield lambda: client.send("get", "/", "GET", meeting.url)


@contextmanager
def webdav(meeting: Meeting) -> Iterator[Send]:
    with connected(Endpoint({"": meeting.url}, {"token": "token-4711"}), f"webdav?timeout_s={HANG_S}") as driver:
        yield lambda: list(driver.get("/a"))


@contextmanager
def event_loop(meeting: Meeting) -> Iterator[Send]:
    from pytest_cloudbench.drivers._mega_loop import CountedSession, LoopThread

    async def open_session() -> CountedSession:
        return CountedSession(Egress(), HANG_S, (), "")

    async def send() -> None:
        async with session.request("GET", meeting.url) as answer:
            await answer.read()

    loop = LoopThread()
    session = loop.run(open_session())
    try:
        yield lambda: loop.run(send())
    finally:
        loop.close(session.close)


@contextmanager
def sdk(text: str, roles: tuple[str, ...], credentials: dict[str, str], meeting: Meeting) -> Iterator[Send]:
    """A provider's own library. Some make no sense of the answer, but only after it has been read."""
    with connected(meeting.endpoint(*roles, **credentials), f"{text}?timeout_s={HANG_S}") as driver:

        def send() -> None:
            with suppress(CloudError):
                list(driver.list("/"))

        if isinstance(driver, Preparing):
            driver.prepare("/")
        yield send


ON_HTTPX = {"onedrive": thin_client, "webdav": webdav}
WITH_IDLE_LIMITS: dict[str, Any] = {**ON_HTTPX, "mega": event_loop}
_TOKEN = {"access_token": "token-4711"}
CLIENTS: dict[str, Any] = {
    **WITH_IDLE_LIMITS,
    "azure": partial(sdk, "azure://box", (), {"account": "me", "account_key": "a2V5"}),
    "box": partial(sdk, "box", ("api", "upload"), _TOKEN),
    "dropbox": partial(sdk, "dropbox", ("api", "content", "notify"), _TOKEN),
    "gcs": partial(sdk, "gcs://box", (), _TOKEN),
    "gdrive": partial(sdk, "gdrive", ("api",), _TOKEN),
    "s3": partial(sdk, "s3://box", (), {"access_key_id": "me", "secret_access_key": "key-4711"}),
    "swift": partial(sdk, "swift://box", (), {"user": "me", "key": "key-4711"}),
}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    """A client, by the name of a driver that uses it."""
    if missing := drivers.missing_library(request.param):
        pytest.skip(missing)
    return CLIENTS[request.param]


def count_connections(meeting: Meeting) -> int:
    """Return how many connections to the server are open on the client's side."""
    connections = psutil.Process().net_connections("tcp")
    return sum(
        bool(connection.raddr)
        and connection.raddr.port == meeting.port
        and connection.status == psutil.CONN_ESTABLISHED
        for connection in connections
    )


on_httpx = pytest.mark.parametrize("client", ON_HTTPX, indirect=True)
with_idle_limits = pytest.mark.parametrize("client", WITH_IDLE_LIMITS, indirect=True)


@pytest.mark.quick_cases(1)
def test_no_request_waits_for_the_connection_of_another(meeting: Meeting, client: Any) -> None:
    """It would wait inside the measured operation, which counts as the provider's time."""
    with client(meeting) as send:
        before = meeting.begun
        for _ in range(2):
            meeting.send_together(send, IN_FLIGHT)
            assert meeting.begun - before == IN_FLIGHT, "the second time on the same connections"


def test_connections_are_closed_with_the_client(meeting: Meeting, client: Any) -> None:
    """At once, and not when the garbage collector finds the objects that hold them."""
    gc.disable()
    try:
        with client(meeting) as send:
            meeting.send_together(send, 30)
            assert count_connections(meeting) >= 30
        assert count_connections(meeting) == 0
    finally:
        gc.enable()


@with_idle_limits
def test_a_connection_is_kept_while_it_is_idle(meeting: Meeting, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each operation of a sensor that sends every minute would begin with a handshake."""
    passed_s = 0.0

    def monotonic() -> float:
        return time.monotonic() + passed_s

    with client(meeting) as send:
        monkeypatch.setattr("httpcore._sync.http11.time", SimpleNamespace(monotonic=monotonic))
        monkeypatch.setattr("aiohttp.connector.monotonic", monotonic)
        for _ in range(3):
            send()
            passed_s += 3600.0
    assert meeting.begun == 1


@on_httpx
def test_a_connection_that_the_server_has_closed_is_replaced(meeting: Meeting, client: Any) -> None:
    meeting.hangs_up = True
    with client(meeting) as send:
        for _ in range(3):
            send()
            assert meeting.ended.acquire(timeout=HANG_S)
    assert meeting.begun == 3


@on_httpx
def test_a_request_costs_the_same_however_many_connections_are_idle(meeting: Meeting, client: Any) -> None:
    """httpx's own pool compares all of them with each other."""

    def count_calls() -> int:
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        former = sys.getprofile()
        sys.setprofile(count)
        try:
            send()
        finally:
            sys.setprofile(former)
        return calls

    with client(meeting) as send:
        send()
        with_one = count_calls()
        meeting.send_together(send, 30)
        assert meeting.begun == 30
        assert count_calls() == pytest.approx(with_one, rel=0.1)
