"""Fixtures for the emulator tests: emulators, a raw client, and the strict decoder.

Each answer of the Dropbox emulator, to the raw client or to the official SDK, is decoded strictly with the SDK's own
validators. A test fails if they reject an answer.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dropbox
import pytest
import requests
from dropbox import auth, check, files, sharing, users
from stone.backends.python_rsrc import stone_serializers

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

from .drive_wire import DriveWire, drive_client
from .graph_wire import GraphWire

_MODULES = {"files": files, "sharing": sharing, "users": users, "check": check, "auth": auth}
_CONTENT = ("files/upload", "files/download", "sharing/get_shared_link_file")


@dataclass(frozen=True)
class Reply:
    """An answer. ``value`` is the decoded JSON, the content of a download, or text."""

    status: int
    headers: Mapping[str, str]
    value: Any


def decode_strictly(name: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise unless the specification of this function allows the answer."""
    namespace, _, function = name.partition("/")
    if namespace not in _MODULES:
        return
    route_name = f"{function[:-3]}:2" if function.endswith("_v2") else function
    route = _MODULES[namespace].ROUTES[route_name]
    if route.attrs["style"] == "download" and status in (200, 206):
        result = headers["dropbox-api-result"]
        assert result.isascii()
        _decode(route.result_type, json.loads(result))
        return
    if status in (400, 405, 500):
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert body.decode()
        return
    if status == 416:
        return
    assert headers["content-type"] == "application/json"
    value = json.loads(body)
    if status == 200:
        _decode(route.result_type, value)
        return
    validators = {409: route.error_type, 401: auth.AuthError_validator, 429: auth.RateLimitError_validator}
    error = value["error"]
    _decode(validators[status], error)
    tag = error.get(".tag") or error["reason"][".tag"]
    assert value["error_summary"].startswith(tag)


def _decode(validator: Any, value: Any) -> None:
    if type(validator).__name__ == "Void":
        assert value is None
        return
    stone_serializers.json_compat_obj_decode(validator, value, strict=True)  # type: ignore[no-untyped-call]  # stone is untyped


class Wire:
    """A raw client with one persistent connection. It retries nothing and decodes every answer strictly."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        port = urlsplit(endpoint.url).port
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.token = endpoint.credentials["access_token"]

    def __call__(
        self,
        name: str,
        arg: Any = None,
        content: bytes | None = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Reply:
        """Call a function. ``content`` is the body of an upload. ``raw`` replaces the JSON of the argument."""
        text = json.dumps(arg).encode() if raw is None else raw
        style = "rpc"
        if content is not None or (name.startswith(_CONTENT) and "batch" not in name):
            style = "download" if name in _CONTENT[1:] else "upload"
        request_headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        if style == "rpc":
            body, request_headers["Content-Type"] = text, "application/json"
        else:
            body, request_headers["Dropbox-API-Arg"] = content or b"", text.decode("latin-1")
            if style == "upload":
                request_headers["Content-Type"] = "application/octet-stream"
        return self.request("POST", f"/2/{name}", body, {**request_headers, **(headers or {})}, name)

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str], name: str = "") -> Reply:
        """Send a request as it is given, and decode its answer."""
        self.connection.request(method, path, body, dict(headers))
        answer = self.connection.getresponse()
        data = answer.read()
        answer_headers = {key.lower(): value for key, value in answer.getheaders()}
        decode_strictly(name, answer.status, answer_headers, data)
        value: Any = data
        if answer_headers.get("content-type") == "application/json":
            value = json.loads(data)
        elif answer_headers.get("content-type", "").startswith("text/plain"):
            value = data.decode()
        return Reply(answer.status, answer_headers, value)


@contextmanager
def emptied(running: EmulatorService) -> Iterator[None]:
    """Empty an emulator's account, and restore its settings at the end."""
    before = running.control(get="profile")["profile"]
    running.control(reset=True)
    yield
    running.control(set=before)


@pytest.fixture(scope="session")
def shared_emulator() -> Iterator[EmulatorService]:
    """An emulator without throttle, delay or fault, for all tests of a session."""
    with start_emulator("ideal") as running:
        yield running


@pytest.fixture
def emulator(shared_emulator: EmulatorService) -> Iterator[EmulatorService]:
    """The shared emulator with an empty account. Its settings are restored after the test."""
    with emptied(shared_emulator):
        yield shared_emulator


@pytest.fixture
def connect() -> Iterator[Callable[[EmulatorService], Wire]]:
    """A function that makes raw clients. They are closed after the test."""
    wires: list[Wire] = []

    def make(running: EmulatorService) -> Wire:
        wires.append(Wire(running.endpoint))
        return wires[-1]

    yield make
    for wire in wires:
        wire.connection.close()


@pytest.fixture
def wire(emulator: EmulatorService, connect: Callable[[EmulatorService], Wire]) -> Wire:
    """A raw client of the shared emulator."""
    return connect(emulator)


@pytest.fixture(scope="session")
def shared_onedrive() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as running:
        yield running


@pytest.fixture
def onedrive(shared_onedrive: EmulatorService) -> Iterator[EmulatorService]:
    """The shared OneDrive emulator with an empty account. Its settings are restored after the test."""
    with emptied(shared_onedrive):
        yield shared_onedrive


@pytest.fixture
def graph(onedrive: EmulatorService) -> Iterator[GraphWire]:
    """A raw client of the shared OneDrive emulator."""
    with closing((client := GraphWire(onedrive.endpoint)).connection):
        yield client


@pytest.fixture(scope="session")
def shared_gdrive() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal") as running:
        yield running


@pytest.fixture
def gdrive(shared_gdrive: EmulatorService) -> Iterator[EmulatorService]:
    """The shared Drive emulator with an empty account. Its settings are restored after the test."""
    with emptied(shared_gdrive):
        yield shared_gdrive


@pytest.fixture
def drive(gdrive: EmulatorService) -> Iterator[DriveWire]:
    """A raw client of the shared Drive emulator."""
    with drive_client(gdrive.endpoint) as client:
        yield client


def _check_response(response: requests.Response, *_: object, **__: object) -> None:
    name = response.url.partition("/2/")[2].partition("?")[0]
    if name:
        headers = {key.lower(): value for key, value in response.headers.items()}
        body = b"" if name in _CONTENT[1:] and response.ok else response.content
        decode_strictly(name, response.status_code, headers, body)


@pytest.fixture
def sdk(emulator: EmulatorService) -> Iterator[dropbox.Dropbox]:
    """The official SDK without retries, connected to the shared emulator."""
    session = dropbox.create_session(max_connections=8, ca_certs=emulator.endpoint.ca_file)
    session.trust_env = False
    session.hooks["response"].append(_check_response)
    client = dropbox.Dropbox(
        emulator.endpoint.credentials["access_token"],
        session=session,
        max_retries_on_error=0,
        max_retries_on_rate_limit=0,
        app_key="key",
        app_secret="secret",
    )
    client._host_map = {role: urlsplit(url).netloc for role, url in emulator.endpoint.urls.items()}
    yield client
    client.close()
