"""Tests of an emulator's front end: requests that are answered at once, and idle connections."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from uvicorn.server import ServerState

from pytest_cloudbench.emulators import EmulatorService
from pytest_cloudbench.emulators.protocol import EagerProtocol
from pytest_cloudbench.emulators.sending import send_answer
from pytest_cloudbench.emulators.skin import Answer
from tests.limits import HANG_S

_TEXT = [(b"content-type", b"text/plain")]
_GET = b"GET /one?two=3 HTTP/1.1\r\nHost: x\r\n\r\n"
_PUT_HEAD = b"PUT /one HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"


class Application:
    """A replacement for an emulator that records its requests."""

    is_prompt = True

    def __init__(self, answer: Callable[[], Answer | Coroutine[Any, Any, Answer] | None]) -> None:
        self._answer = answer
        self.requests: list[tuple[str, str, bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send_answer(scope, send, Answer(404, _TEXT, b"unknown"))

    def denial(self, scope: Any) -> Answer | None:
        return None

    def answer_now(self, scope: Any, body: bytes) -> Answer | Coroutine[Any, Any, Answer] | None:
        self.requests.append((scope["method"], scope["path"], scope["query_string"], body))
        return self._answer()

    async def send_begun(self, answer: Any, scope: Any, receive: Any, send: Any) -> None:
        await send_answer(scope, send, answer if isinstance(answer, Answer) else await answer)


class Transport(asyncio.Transport):
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.is_closed = b"", False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


class Timer:
    """A piece of work that is due at a certain time."""

    def __init__(self, due_s: float, work: Callable[[], None]) -> None:
        self.due_s, self.work = due_s, work

    def cancel(self) -> None:
        self.due_s = inf


class Timers:
    """An event loop whose time passes only when a test moves it."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self._now_s + delay_s, work))
        return self._timers[-1]

    def pass_time(self, seconds: float) -> None:
        end_s = self._now_s + seconds
        while (first := min(self._timers, key=lambda timer: timer.due_s)).due_s <= end_s:
            self._now_s = first.due_s
            self._timers.remove(first)
            first.work()
            if not self._timers:
                break
        self._now_s = end_s


def connect(application: Application, loop: Any) -> tuple[EagerProtocol, Transport]:
    """Connect to an application, and return the protocol and the transport."""
    config = uvicorn.Config(
        application,
        ws="none",
        lifespan="off",
        loop="none",
        interface="asgi3",
        timeout_keep_alive=600,
        log_config=None,
        proxy_headers=False,
        access_log=False,
    )
    protocol = EagerProtocol(config=config, server_state=ServerState(), app_state={}, _loop=loop)
    transport = Transport()
    protocol.connection_made(transport)
    return protocol, transport


def test_a_complete_request_is_answered_before_its_packet_is_left() -> None:
    application = Application(lambda: Answer(201, _TEXT, b"done"))
    protocol, transport = connect(application, Timers())
    protocol.data_received(_GET)
    assert application.requests == [("GET", "/one", b"two=3", b"")]
    assert transport.written == b"HTTP/1.1 201 Created\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\ndone"


@pytest.mark.parametrize(
    "packets", [[_PUT_HEAD + b"body"], [_PUT_HEAD, b"body"], [_PUT_HEAD[:9], _PUT_HEAD[9:], b"body"]]
)
def test_a_body_may_follow_its_head_in_a_packet_of_its_own(packets: list[bytes]) -> None:
    application = Application(lambda: Answer(200, _TEXT, b""))
    protocol, transport = connect(application, Timers())
    for packet in packets:
        assert transport.written == b""
        protocol.data_received(packet)
    assert application.requests == [("PUT", "/one", b"", b"body")]
    assert transport.written.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "request_bytes",
    [
        _GET.replace(b"GET", b"HEAD"),
        _GET.replace(b"1.1", b"1.0"),
        _GET.replace(b"Host", b"Connection: close\r\nHost"),
        _GET.replace(b"/one", b"http://x/one"),
        _PUT_HEAD.replace(b"Host", b"Expect: 100-continue\r\nHost") + b"body",
    ],
    ids=["head", "old", "last", "proxy", "expects"],
)
def test_an_unusual_request_is_served_by_asgi(request_bytes: bytes) -> None:
    application = Application(lambda: Answer(200, _TEXT, b""))
    protocol, transport = connect(application, Timers())
    protocol.data_received(request_bytes)
    assert application.requests == []
    assert transport.written.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 404 Not Found\r\n")


def test_a_request_that_cannot_be_answered_at_once_is_served_by_asgi() -> None:
    protocol, transport = connect(Application(lambda: None), Timers())
    protocol.data_received(_GET)
    assert transport.written.endswith(b"\r\n\r\nunknown")


def test_an_answer_that_has_to_wait_is_sent_when_it_is_ready() -> None:
    async def run() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[Answer] = loop.create_future()

        async def wait() -> Answer:
            return await ready

        protocol, transport = connect(Application(wait), loop)
        protocol.data_received(_GET)
        before = transport.written
        ready.set_result(Answer(200, _TEXT, b"late"))
        await asyncio.gather(*protocol.tasks)
        protocol.connection_lost(None)
        return before, transport.written

    before, after = asyncio.run(run())
    assert (before, after[-8:]) == (b"", b"\r\n\r\nlate")


def test_a_large_answer_is_sent_whole() -> None:
    body = bytes(range(256)) * 1000
    protocol, transport = connect(Application(lambda: Answer(200, _TEXT, body)), Timers())
    protocol.data_received(_GET)
    assert transport.written.partition(b"\r\n\r\n")[2] == body


def test_a_failed_answer_is_logged_and_answered_with_status_500(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Answer:
        raise ZeroDivisionError

    protocol, transport = connect(Application(fail), Timers())
    protocol.data_received(_GET)
    assert transport.written.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert [(record.message, record.exc_info and record.exc_info[0]) for record in caplog.records] == [
        ("Exception in ASGI application\n", ZeroDivisionError)
    ]


def test_a_connection_ends_when_it_has_been_idle_for_long() -> None:
    loop = Timers()
    protocol, transport = connect(Application(lambda: Answer(200, _TEXT, b"")), loop)
    for _ in range(3):
        protocol.data_received(_GET)
        loop.pass_time(599.0)
        assert not transport.is_closed
    loop.pass_time(1.0)
    assert transport.is_closed


def test_a_request_whose_body_does_not_come_is_refused() -> None:
    loop = Timers()
    protocol, transport = connect(Application(lambda: Answer(200, _TEXT, b"")), loop)
    protocol.data_received(_GET)
    protocol.data_received(_PUT_HEAD)
    loop.pass_time(EagerProtocol.body_s - 0.1)
    assert b"408" not in transport.written
    loop.pass_time(0.1)
    assert transport.written.partition(b"\r\n\r\n")[2].startswith(b"HTTP/1.1 408 ")
    assert transport.is_closed


def test_requests_in_one_packet_are_answered_in_their_order(shared_emulator: EmulatorService) -> None:
    token = shared_emulator.endpoint.credentials["access_token"]

    def ask(method: str, path: str, arg: str, body: bytes) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: application/{'octet-stream' if arg else 'json'}\r\nDropbox-API-Arg: {arg}\r\n\r\n"
        ).encode() + body

    paths = [f"/pipelined/{number}" for number in range(3)]
    uploads = [ask("POST", "/2/files/upload", json.dumps({"path": path}), b"x" * 5) for path in paths]
    others = [ask("POST", "/2/files/list_folder", "", b'{"path": "/pipelined"}'), ask("GET", "/nothing", "", b"")]
    context = ssl.create_default_context(cafile=shared_emulator.endpoint.ca_file)
    with (
        socket.create_connection(("127.0.0.1", urlsplit(shared_emulator.endpoint.url).port or 0), HANG_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"".join([uploads[0], others[1], uploads[1], others[0], uploads[2]]))
        with connection.makefile("rb") as answers:
            statuses, bodies = [], []
            for _ in range(5):
                statuses.append(int(answers.readline().split()[1]))
                lengths = [line for line in iter(answers.readline, b"\r\n") if line.startswith(b"content-length")]
                bodies.append(answers.read(int(lengths[0].split()[1])))
    assert statuses == [200, 404, 200, 200, 200]
    listed = [entry["path_lower"] for entry in json.loads(bodies[3])["entries"]]
    assert ([json.loads(bodies[index])["path_lower"] for index in (0, 2, 4)], listed) == (paths, paths[:2])
