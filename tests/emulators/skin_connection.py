"""Emulators in the test's own process, whose time the test sets. The raw clients talk to them without a server."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

from pytest_cloudbench.emulators.box import create as create_box
from pytest_cloudbench.emulators.mega import create as create_mega
from pytest_cloudbench.emulators.onedrive import create as create_onedrive
from pytest_cloudbench.emulators.profile import Profile, parse_profile
from pytest_cloudbench.emulators.skin import BODILESS, Answer, Call, Skin
from pytest_cloudbench.model import Endpoint

from .box_wire import BoxWire
from .graph_wire import GraphWire
from .mega_wire import MegaWire

__all__ = ["SetClock", "connect_box", "connect_graph", "connect_mega"]


@dataclass
class SetClock:
    """A clock that stands still until a test sets it."""

    at_s: float = 1_700_000_000.0

    def now_s(self) -> float:
        return self.at_s

    def real_s(self, emulated_s: float) -> float:
        return emulated_s


class _Received:
    """A received answer, in place of the socket that it came from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


class SkinConnection(http.client.HTTPSConnection):
    """A connection that hands each request to a skin, and reads the answer as if it had come from a server."""

    def __init__(self, skin: Skin, clock: SetClock) -> None:
        super().__init__("127.0.0.1", 443)
        self._skin, self._clock, self._received = skin, clock, b""

    def request(
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, Any] = {},
        *,
        encode_chunked: bool = False,
    ) -> None:
        path, _, query = url.partition("?")
        match = self._skin.route(method, path, query.encode())
        if match is None:
            answer = self._skin.unknown(method, path)
        else:
            lower_headers = {name.lower().encode(): str(value).encode() for name, value in headers.items()}
            call = Call(
                match.route, method, unquote(path), match.parameters, query.encode(),
                {b"host": b"127.0.0.1", **lower_headers}, self._clock.now_s(),
            )  # fmt: skip
            refusal = match.route.denied(call) if match.route.denied is not None else None
            answer = refusal or _run(call, body or b"")
        self._received = _format_answer(answer)

    def getresponse(self) -> http.client.HTTPResponse:
        response = http.client.HTTPResponse(cast("socket.socket", _Received(self._received)))
        response.begin()
        return response


def _run(call: Call, body: bytes) -> Answer:
    call.body = body
    if call.route.sink is not None:
        sink = call.route.sink(call)
        sink.feed(body)
        call.body = sink.finish()
    answer = call.route.handler(call)
    assert isinstance(answer, Answer), "a call that waits needs a server"
    return answer


def _format_answer(answer: Answer) -> bytes:
    body = b"" if answer.status in BODILESS else bytes(answer.body)
    headers: Iterable[tuple[bytes, bytes]] = [*answer.headers, (b"content-length", b"%d" % len(body))]
    lines = [b"HTTP/1.1 %d answer" % answer.status, *(name + b": " + value for name, value in headers)]
    return b"\r\n".join([*lines, b"", body])


def _make_profile(api: str, settings: str) -> Profile:
    return parse_profile(f'[meta]\nname = "x"\napi = "{api}"\ndescription = "d"\n{settings}', "x.toml")


def connect_box(clock: SetClock, settings: str) -> BoxWire:
    """Return a client of a new Box emulator with these lines in its profile."""
    skin = create_box(_make_profile("box", settings), clock, 0)
    return BoxWire(Endpoint({"api": "https://127.0.0.1"}, skin.credentials), SkinConnection(skin, clock))


def connect_graph(clock: SetClock, settings: str) -> GraphWire:
    """Return a client of a new OneDrive emulator with these lines in its profile."""
    skin = create_onedrive(_make_profile("onedrive", settings), clock, 0)
    endpoint = Endpoint({"api": "https://127.0.0.1"}, skin.credentials)
    return GraphWire(endpoint, SkinConnection(skin, clock))


def connect_mega(clock: SetClock, settings: str) -> MegaWire:
    """Return a client, with a login, of a new MEGA emulator with these lines in its profile."""
    skin = create_mega(_make_profile("mega", settings), clock, 0)
    wire = MegaWire(Endpoint({"api": "https://127.0.0.1"}, skin.credentials), SkinConnection(skin, clock))
    wire.login()
    return wire
