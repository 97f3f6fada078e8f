"""Tests of routes with parameters and several methods, by themselves and through the server over TLS."""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_cloudbench.emulators.http import ListWriter, byte_range, parse_form
from pytest_cloudbench.emulators.routing import RouteTable
from pytest_cloudbench.emulators.skin import Answer, Kind, Route
from pytest_cloudbench.services.child import Child
from pytest_cloudbench.support.json_text import json_writer
from tests.limits import HANG_S

_ROOT = str(Path(__file__).parents[2])
_BOOT = (
    "import sys; from pytest_cloudbench.emulators import registry, server; "
    "registry.SKINS['toy'] = 'tests.emulators.toy_skin'; sys.exit(server.main())"
)
_PROFILE = '[meta]\nname = "toy"\napi = "toy"\ndescription = "notes on shelves"\n'


def _route(name: str) -> Route:
    return Route(name, Kind.META, lambda call: Answer(200, [], b""))


def _table(*rows: tuple[str, str, str]) -> RouteTable:
    return RouteTable((method, path, _route(name)) for method, path, name in rows)


def _find_route(table: RouteTable, method: str, path: str) -> tuple[str, dict[str, str]] | None:
    match = table.find(method, path)
    return (match.route.name, dict(match.parameters)) if match else None


_GRAPH = _table(
    ("GET", "/me/drive", "drive"),
    ("GET", "/me/drive/items/{id}", "item"),
    ("PATCH", "/me/drive/items/{id}", "rename"),
    ("GET", "/me/drive/root:/{path*}:/children", "children"),
    ("PUT", "/me/drive/items/{id}:/{name}:/content", "upload"),
    ("GET", "/{bucket}/{key*}", "object"),
)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/me/drive", ("drive", {})),
        ("GET", "/me%2Fdrive", ("drive", {})),
        ("GET", "/me/drive/items/A1", ("item", {"id": "A1"})),
        ("PATCH", "/me/drive/items/A1", ("rename", {"id": "A1"})),
        ("GET", "/me/drive/root:/a%20b/c:/children", ("children", {"path": "a b/c"})),
        ("PUT", "/me/drive/items/A1:/x%2Fy.txt:/content", ("upload", {"id": "A1", "name": "x/y.txt"})),
        ("GET", "/photos/a//b/%25", ("object", {"bucket": "photos", "key": "a//b/%"})),
        ("GET", "/photos/", None),
        ("GET", "/photos", None),
        ("POST", "/me/drive", None),
        ("PUT", "/me/drive/items/A1/B2:/x:/content", None),
    ],
)
def test_path_is_routed_with_its_fields(method: str, path: str, expected: tuple[str, dict[str, str]] | None) -> None:
    assert _find_route(_GRAPH, method, path) == expected


def test_methods_of_a_path() -> None:
    assert _GRAPH.methods("/me/drive/items/A1") == ("GET", "PATCH")
    assert _GRAPH.methods("/") == ()


def test_route_pattern_is_not_a_regular_expression() -> None:
    table = _table(("GET", "/v1.0/{id}(x)", "one"))
    assert _find_route(table, "GET", "/v1.0/a(x)") == ("one", {"id": "a"})
    assert _find_route(table, "GET", "/v1-0/a(x)") is None


@pytest.mark.parametrize("path", ["/fixed", "/{pattern}"])
def test_duplicate_route_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="two routes for GET"):
        _table(("GET", path, "one"), ("GET", path, "two"))
    _table(("GET", path, "one"), ("PUT", path, "two"))


def test_fields_of_a_query() -> None:
    assert parse_form(b"a=1&a=2&uploads&b=%2F+%C3%A4") == {"a": "2", "uploads": "", "b": "/ ä"}
    assert parse_form(b"%FF&&=") == {"\ufffd": "", "": ""}


@pytest.mark.parametrize(
    ("header", "expected"),
    [(b"bytes=2-4", (2, 5)), (b"bytes=9-3", (9, 4)), (b"bytes=-20", (0, 10)), (b"bytes=-0", (10, 10)), (b"", None)],
)
def test_byte_ranges(header: bytes, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, 10) == expected


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_body_with_a_list_of_any_length(count: int) -> None:
    writer = ListWriter('{"a": 1, "value": [')
    for number in range(count):
        writer.add(json.dumps({"name": str(number)}))
    body = writer.finish('], "more": true}')
    whole = {"a": 1, "value": [{"name": str(number)} for number in range(count)], "more": True}
    assert (bytes(body), len(body)) == (json.dumps(whole).encode(), len(json.dumps(whole)))


# --- the toy skin in its own process ---


class _Client:
    """A client with one persistent connection to the toy emulator."""

    def __init__(self, ready: dict[str, Any]) -> None:
        context = ssl.create_default_context(cafile=ready["ca_file"])
        self.connection = http.client.HTTPSConnection(
            "127.0.0.1", urlsplit(ready["urls"]["api"]).port, timeout=HANG_S, context=context
        )

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        request_headers = {"X-Key": "toy", **{name.replace("_", "-"): value for name, value in headers.items()}}
        self.connection.request(method, path, body, request_headers, encode_chunked=not isinstance(body, bytes | None))
        answer = self.connection.getresponse()
        data = answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.toml"
    path.write_text(_PROFILE)
    return path


@pytest.fixture
def client(profile: Path, request: pytest.FixtureRequest) -> Iterator[_Client]:
    profile.write_text(_PROFILE + getattr(request, "param", ""))
    child = Child([sys.executable, "-c", _BOOT, f"--profile={profile}", "--lifeline"], cwd=_ROOT)
    try:
        toy = _Client(json.loads(child.readline(60)))
        yield toy
        toy.connection.close()
    finally:
        child.stop()


def test_a_toy_over_tls(client: _Client) -> None:
    """The toy has several methods on one path, parameters with any character, and answers without a body."""
    note = "/v1/shelves/left%2Fmost/notes/to%20do/%25/today"
    md5 = hashlib.md5(b"milk", usedforsecurity=False).hexdigest()
    status, _, data = client("PUT", note, b"milk")
    assert (status, json.loads(data)) == (201, {"md5": md5, "pieces": 1})
    assert client("GET", note)[::2] == (200, b"milk")
    status, headers, data = client("HEAD", note)
    assert (status, headers["etag"], headers["content-length"], data) == (200, md5, "4", b"")
    shelf = "/v1/shelves/left%2Fmost"
    assert json.loads(client("GET", f"{shelf}?prefix=to%20")[2]) == {"notes": ["to do/%/today"]}
    assert json.loads(client("GET", f"{shelf}?prefix=no")[2]) == {"notes": []}
    assert json.loads(client("GET", "/v1/shelves/left")[2]) == {"notes": []}
    status, headers, data = client("DELETE", note)
    assert (status, "content-length" in headers, data) == (204, False, b"")
    assert client("DELETE", note)[0] == 404
    assert client("GET", note)[0] == 404
    client("PUT", note, b"eggs")
    assert client("DELETE", shelf)[0] == 204
    assert json.loads(client("GET", shelf)[2]) == {"notes": []}


def test_unknown_paths_and_methods_are_refused_in_the_words_of_the_api(client: _Client) -> None:
    status, _, data = client("POST", "/v1/shelves/x/notes/y")
    assert (status, json.loads(data)) == (405, {"allowed": ["GET", "HEAD", "PUT", "DELETE"]})
    status, _, data = client("GET", "/v1/shelf%20s")
    assert (status, json.loads(data)) == (404, {"nothing": "/v1/shelf s"})


def test_refusal_sees_method_and_path_fields(client: _Client) -> None:
    status, _, data = client("PUT", "/v1/shelves/mine/notes/x", b"x", X_Key="wrong")
    assert (status, json.loads(data)) == (401, {"asked": "PUT", "shelf": {"shelf": "mine", "note": "x"}})


def test_a_query_may_choose_the_route(client: _Client) -> None:
    status, _, data = client("PATCH", "/any/path?echo", b"hello", X_Word="now")
    assert (status, json.loads(data)) == (
        200,
        {"method": "PATCH", "path": "/any/path", "said": "hello", "header": "now"},
    )


def test_a_body_is_taken_while_it_arrives(client: _Client) -> None:
    pieces = [bytes([number]) * 100_000 for number in range(40)]
    status, _, data = client("PUT", "/v1/shelves/big/notes/x", iter(pieces))
    value = json.loads(data)
    assert (status, value["md5"]) == (201, hashlib.md5(b"".join(pieces), usedforsecurity=False).hexdigest())
    # Some are joined on their way, but a single one would mean that the server waited for all.
    assert value["pieces"] > 10
    assert client("GET", "/v1/shelves/big/notes/x")[2] == b"".join(pieces)


@pytest.mark.parametrize("client", ["[throttle]\nrate_per_s = 0.001\nburst = 1\n[quota]\nbytes = 3\n"], indirect=True)
def test_size_limits_are_reported_in_the_words_of_the_api(client: _Client) -> None:
    status, _, data = client("PUT", "/v1/shelves/s/notes/n", b"1234")
    assert (status, json.loads(data)) == (507, {"reason": "insufficient_space"})
    status, _, data = client("PUT", "/v1/shelves/s/notes/n", b"123")
    assert (status, json.loads(data)) == (503, {"slow_down": {"shelf": "s", "note": "n"}, "reason": "too_fast"})


@pytest.mark.parametrize("client", ["[faults]\nerror_rate = 1\n"], indirect=True)
def test_faults_are_reported_in_the_words_of_the_api(client: _Client) -> None:
    status, _, data = client("GET", "/v1/shelves/s")
    assert (status, json.loads(data)) == (500, {"broken": "/v1/shelves/s"})


@pytest.mark.parametrize("text", ['\x01\n"\\/', "\u00e9", '\ud800"'])
@pytest.mark.parametrize(("comma", "colon"), [(",", ":"), (", ", ": "), (",\n", ":")])
def test_json_is_written_as_the_library_writes_it(text: str, comma: str, colon: str) -> None:
    value = {"a": [1, 2.5, None, True, text], "b": {"c": (), "d": {}}, "3": 1e-3}
    write = json_writer(comma, colon)
    assert write(value) == write(value) == json.dumps(value, separators=(comma, colon)).encode()
    assert json.loads(write(1e300)) == 1e300, "with or without a plus sign"
    with pytest.raises(TypeError):
        write({"a": object()})
    assert write([]) == b"[]", "a value that cannot be written leaves nothing behind"
