"""Connections of drivers on httpx and aiohttp: one for each request in flight, kept while idle, closed at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.egress import Egress
from pytest_cloudbench.load.engine.limits import allow_descriptors
from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

from .real import connected

IN_FLIGHT = 300
"""More than the pool of any HTTP library keeps by default."""

Send = Callable[[], object]


class Meeting:
    """A server that answers once so many requests are there, and counts the connections that begin and end."""

    def __init__(self) -> None:
        self.url, self.begun, self.ended = "", 0, threading.Semaphore(0)
        self.barrier, self.hangs_up = threading.Barrier(1), False

    def send_together(self, send: Send, requests: int) -> None:
        """Send requests from as many threads. No answer comes before all have arrived."""
        self.barrier = threading.Barrier(requests)
        with ThreadPoolExecutor(requests) as pool:
            for future in [pool.submit(send) for _ in range(requests)]:
                future.result(HANG_S)
        self.barrier = threading.Barrier(1)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    allow_descriptors(2 * IN_FLIGHT)
    here, lock = Meeting(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with lock:
                here.begun += 1

        def do_GET(self) -> None:
            here.barrier.wait(HANG_S)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            self.close_connection = here.hangs_up

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, IN_FLIGHT

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            here.ended.release()

    with Server(("127.0.0.1", 0), Handler) as server:
        here.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def thin_client(url: str) -> Iterator[Send]:
    from pytest_cloudbench.drivers.web import WebClient

    with closing(WebClient(Egress(), lambda status, body: (None, ""), HANG_S)) as client:
        yield lambda: client.send("get", "/", "GET", url)


@contextmanager
def webdav(url: str) -> Iterator[Send]:
    with connected(Endpoint({"": url}, {"token": "token-4711"}), f"webdav?timeout_s={HANG_S}") as driver:
        yield lambda: list(driver.get("/a"))


@contextmanager
def event_loop(url: str) -> Iterator[Send]:
    from pytest_cloudbench.drivers._mega_loop import CountedSession, LoopThread

    async def open_session() -> CountedSession:
        return CountedSession(Egress(), HANG_S, (), "")

    async def send() -> None:
        async with session.request("GET", url) as answer:
            await answer.read()

    loop = LoopThread()
    session = loop.run(open_session())
    try:
        yield lambda: loop.run(send())
    finally:
        loop.close(session.close)


ON_HTTPX = {"onedrive": thin_client, "webdav": webdav}
CLIENTS: dict[str, Any] = {**ON_HTTPX, "mega": event_loop}


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    """A client, by the name of a driver that uses it."""
    if missing := drivers.missing_library(request.param):
        pytest.skip(missing)
    return CLIENTS[request.param]


on_httpx = pytest.mark.parametrize("client", ON_HTTPX, indirect=True)


@pytest.mark.quick_cases(1)
def test_no_request_waits_for_the_connection_of_another(meeting: Meeting, client: Any) -> None:
    """It would wait inside the measured operation, which counts as the provider's time."""
    with client(meeting.url) as send:
        for _ in range(2):
            meeting.send_together(send, IN_FLIGHT)
            assert meeting.begun == IN_FLIGHT, "the second time on the same connections"
    for _ in range(IN_FLIGHT):
        assert meeting.ended.acquire(timeout=HANG_S), "closed with the client"


def test_a_connection_is_kept_while_it_is_idle(meeting: Meeting, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each operation of a sensor that sends every minute would begin with a handshake."""
    passed_s = 0.0

    def monotonic() -> float:
        return time.monotonic() + passed_s

    with client(meeting.url) as send:
        monkeypatch.setattr("httpcore._sync.http11.time", SimpleNamespace(monotonic=monotonic))
        monkeypatch.setattr("aiohttp.connector.monotonic", monotonic)
        for _ in range(3):
            send()
            passed_s += 3600.0
    assert meeting.begun == 1


@on_httpx
def test_a_connection_that_the_server_has_closed_is_replaced(meeting: Meeting, client: Any) -> None:
    meeting.hangs_up = True
    with client(meeting.url) as send:
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

    with client(meeting.url) as send:
        send()
        with_one = count_calls()
        meeting.send_together(send, 30)
        assert meeting.begun == 30
        assert count_calls() == pytest.approx(with_one, rel=0.1)
