"""WebDAV on a real server, and the answers of unusual servers."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx
import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers import webdav
from pytest_cloudbench.model import CredentialsError, Endpoint, ErrorKind, ProviderSpec, SpecError, Verb
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal

from .real import (
    StubServer,
    answering,
    assert_killed_server_is_a_network_error,
    connected,
    content_of,
    refusal,
    served,
    silent_server,
)

KEYS = {"user": "alice", "password": "app-password-4711"}


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with served("webdav") as running:
        yield running


@pytest.fixture
def stub_and_driver() -> Iterator[tuple[StubServer, Any]]:
    with answering() as stub, connected(Endpoint({"": stub.url}, KEYS), "webdav") as driver:
        yield stub, driver


def test_killed_server_is_a_network_error() -> None:
    with served("webdav") as service, connected(service.endpoint, "webdav") as driver:
        assert_killed_server_is_a_network_error(service, driver)


def test_silence_ends_with_the_timeout() -> None:
    spec = "webdav?timeout_s=0.2"
    with silent_server() as port, connected(Endpoint({"": f"http://127.0.0.1:{port}"}, KEYS), spec) as driver:
        refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))
        refusal(ErrorKind.NETWORK, lambda: content_of(driver, "/a"))


def test_a_wrong_password_is_named_without_itself(server: Any) -> None:
    wrong = Endpoint(server.endpoint.urls, KEYS)
    with connected(wrong, "webdav") as driver:
        error = refusal(ErrorKind.AUTH, lambda: driver.put("/a", Literal(b"1")))
    assert error.detail.startswith("401 ")
    assert KEYS["password"] not in f"{error!r} {error.__cause__!r}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid"), (403, "auth"), (423, "conflict"), (429, "throttled"), (500, "server"), (502, "server"),
     (503, "server"), (507, "quota"), (509, "throttled"), (301, "server"), (302, "server")],
)  # fmt: skip
def test_each_refusal_is_one_request_of_its_kind(
    status: int, kind: str, stub_and_driver: tuple[StubServer, Any]
) -> None:
    stub, driver = stub_and_driver
    stub.status, stub.headers = status, {"Retry-After": "7", "Location": "http://127.0.0.1:1/elsewhere"}
    stub.body = b'<d:error xmlns:d="DAV:" xmlns:s="http://sabredav.org/ns"><s:message>In words</s:message></d:error>'
    actions = (
        lambda: driver.put("/a", Literal(b"1")), lambda: content_of(driver, "/a"), lambda: driver.stat("/a"),
        lambda: list(driver.list("/a")), lambda: driver.delete("/a"), lambda: driver.mkdir("/a"),
        lambda: driver.copy("/a", "/b"), lambda: driver.move("/a", "/b"),
    )  # fmt: skip
    for action in actions:
        before, counted = len(stub.asked), driver.requests()
        error = refusal(ErrorKind(kind), action)
        others = [method for method, _ in stub.asked[before + 1 :]]
        assert len(stub.asked) - before == driver.requests() - counted
        assert others in ([], ["PROPFIND"] if status in {400, 403} else []), "it may ask once what is there"
        assert (error.retry_after_s, error.detail) == (7.0, f"{status} In words")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    "location", ["/d/", "{url}/d/", "https://cloud.example/inside/d/", "http://127.0.0.1:1/d/"], ids=range(4)
)
def test_a_redirect_to_the_final_slash_means_a_folder(
    status: int, location: str, stub_and_driver: tuple[StubServer, Any]
) -> None:
    """A server behind a proxy may name a wrong host or prefix. The driver repeats the request at its own address."""
    stub, driver = stub_and_driver
    stub.status, stub.headers = status, {"Location": location.replace("{url}", stub.url)}
    stub.others = {"/d/": (207, listing_of("/d/")), "/f": (207, b"")}
    for action in (lambda: driver.put("/d", Literal(b"1")), lambda: content_of(driver, "/d")):
        assert refusal(ErrorKind.CONFLICT, action).detail == f"{status}: it is a folder"
    assert driver.stat("/d").is_folder
    stub.asked.clear()
    driver.delete("/d")
    assert stub.asked == [("DELETE", "/d"), ("PROPFIND", "/d"), ("PROPFIND", "/d/"), ("DELETE", "/d/")]


@pytest.mark.parametrize("location", ["/elsewhere", "{url}/elsewhere/", "elsewhere?login=1"])
def test_unfollowed_redirect_error_names_its_target(location: str, stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.status, stub.headers = 302, {"Location": location.replace("{url}", stub.url)}
    for action in (lambda: driver.put("/a", Literal(b"1")), lambda: driver.stat("/a"), lambda: list(driver.list("/a"))):
        stub.asked.clear()
        error = refusal(ErrorKind.INVALID, action)
        assert "elsewhere" in error.detail
        assert "put it into the spec" in error.detail
        assert len(stub.asked) == 1


def listing_of(path: str) -> bytes:
    return (
        f'<D:multistatus xmlns:D="DAV:"><D:response><D:href>{path}</D:href><D:propstat><D:prop><D:resourcetype>'
        "<D:collection/></D:resourcetype></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
        "</D:multistatus>"
    ).encode()


def test_abilities_that_a_server_lacks_are_not_declared(server: Any) -> None:
    with connected(server.endpoint, "webdav?lacks=copy,dotfiles") as driver:
        assert Verb.COPY not in driver.capabilities.verbs
        assert driver.capabilities.names.problem(".x") == "no name may begin with a dot"
        for path in ("/.x", "/.x/y", "/y/.x"):
            refusal(ErrorKind.INVALID, lambda path=path: driver.put(path, Literal(b"1")))
        driver.put("/x.", Literal(b"1"))
        driver.delete("/x.")
    with connected(server.endpoint, "webdav") as driver:
        assert Verb.COPY in driver.capabilities.verbs
    with pytest.raises(SpecError, match="lacks is a list of copy and dotfiles, not 'slash'"):
        drivers.connect(ProviderSpec.parse("webdav://cloud.example?lacks=copy,slash"), None, KEYS)


def test_unreadable_answers_are_server_errors(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    for body in (b"", b"<", b"<html/>", b'<d:multistatus xmlns:d="DAV:"/>', b"\xff"):
        stub.status, stub.body = 207, body
        refusal(ErrorKind.SERVER, lambda: driver.stat("/a"))
        refusal(ErrorKind.SERVER, lambda: list(driver.list("/a")))
    stub.status, stub.body = 200, b"the whole file"
    assert refusal(ErrorKind.SERVER, lambda: content_of(driver, "/a", 4)).detail == "the range was ignored"


def test_a_folder_that_could_not_be_removed_whole_says_why(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.status = 207
    stub.body = (
        b'<d:multistatus xmlns:d="DAV:"><d:response><d:href>/a/b</d:href><d:status>HTTP/1.1 423 Locked</d:status>'
        b"</d:response></d:multistatus>"
    )
    refusal(ErrorKind.CONFLICT, lambda: driver.delete("/a"))


def rows_of(*rows: tuple[str, str]) -> tuple[int, bytes]:
    """Return a listing of files and folders with their properties, or with the status by which the server refuses."""
    folder = "<D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop>"
    file = "<D:propstat><D:prop><D:getcontentlength>3</D:getcontentlength><D:resourcetype/></D:prop>"
    ok = "<D:status>HTTP/1.1 200 OK</D:status></D:propstat>"
    texts = {"file": file + ok, "folder": folder + ok}
    listed = [
        f"<D:response><D:href>{path}</D:href>{texts.get(what, f'<D:status>HTTP/1.1 {what}</D:status>')}</D:response>"
        for path, what in rows
    ]
    return 207, f'<D:multistatus xmlns:D="DAV:">{"".join(listed)}</D:multistatus>'.encode()


@pytest.mark.parametrize(
    "named", ["/Caf%C3%A9", "/Cafe%CC%81", "/CAF%C3%89", "/caf%c3%a9"], ids=["same", "decomposed", "upper", "lower"]
)
def test_a_server_may_name_a_folder_in_a_form_of_its_own(named: str, stub_and_driver: tuple[StubServer, Any]) -> None:
    """Servers on file systems that ignore case, or that decompose names, list the folder under its name on disk."""
    stub, driver = stub_and_driver
    listing = rows_of((f"{named}/", "folder"), (f"{named}/a", "file"), (f"{named}/sub/", "folder"))
    folder = unquote(named)
    stub.others = {"/Caf%C3%A9/": listing, f"{quote(folder)}/sub/": rows_of((f"{named}/sub/", "folder"))}
    assert [entry.path for entry in driver.list("/Caf\u00e9")] == [f"{folder}/a", f"{folder}/sub"]


def test_what_lies_deeper_is_listed_once(stub_and_driver: tuple[StubServer, Any]) -> None:
    """Some servers answer with the whole tree, whatever the depth of the request."""
    stub, driver = stub_and_driver
    sub = (("/d/sub/", "folder"), ("/d/sub/b", "file"))
    stub.others = {"/d/": rows_of(("/d/", "folder"), ("/d/a", "file"), *sub), "/d/sub/": rows_of(*sub)}
    assert [entry.path for entry in driver.list("/d")] == ["/d/a", "/d/sub", "/d/sub/b"]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (("/d/secret", "403 Forbidden"), ErrorKind.AUTH),
        (("/d/", "507 Insufficient Storage"), ErrorKind.QUOTA),  # the listing is longer than the server gives
        (("/d/broken", "500 Internal Server Error"), ErrorKind.SERVER),
    ],
)
def test_a_listing_that_lacks_a_member_is_refused_for_the_servers_reason(
    row: tuple[str, str], kind: ErrorKind, stub_and_driver: tuple[StubServer, Any]
) -> None:
    stub, driver = stub_and_driver
    stub.others = {"/d/": rows_of(("/d/", "folder"), ("/d/a", "file"), row)}
    assert refusal(kind, lambda: list(driver.list("/d"))).detail == row[1]


def test_a_member_that_is_gone_meanwhile_is_left_out(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.others = {
        "/d/": rows_of(("/d/", "folder"), ("/d/a", "file"), ("/d/gone", "404 Not Found")),
        "/gone": rows_of(("/gone", "404 Not Found")),
        "/gone/": rows_of(("/gone/", "404 Not Found")),
    }
    assert [entry.path for entry in driver.list("/d")] == ["/d/a"]
    refusal(ErrorKind.NOT_FOUND, lambda: driver.stat("/gone"))
    refusal(ErrorKind.NOT_FOUND, lambda: list(driver.list("/gone")))


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ("webdav://cloud.example/remote.php/dav/files/alice", "https://cloud.example/remote.php/dav/files/alice"),
        ("webdav://cloud.example:8080/dav?tls=0", "http://cloud.example:8080/dav"),
        ("webdav:https://cloud.example/dav/", "https://cloud.example/dav/"),
        ("webdav:http://[::1]:8080/", "http://[::1]:8080/"),
    ],
)
def test_specs(spec: str, url: str) -> None:
    assert webdav._server_url(ProviderSpec.parse(spec)) == url
    drivers.connect(ProviderSpec.parse(spec), None, KEYS).close()


@pytest.mark.parametrize(
    "spec",
    ["webdav", "webdav:", "webdav:///dav", "webdav://alice:pw@cloud.example/", "webdav://cloud.example?tls=maybe",
     "webdav:https://cloud.example/?tls=1", "webdav://cloud.example:port/", "webdav://cloud\u2013server.example/"],
)  # fmt: skip
def test_unusable_specs_are_refused(spec: str) -> None:
    with pytest.raises(SpecError) as caught:
        drivers.connect(ProviderSpec.parse(spec), None, KEYS)
    assert "\n" not in str(caught.value)


def test_credentials_are_user_and_password_or_a_token(stub_and_driver: tuple[StubServer, Any]) -> None:
    with pytest.raises(CredentialsError, match="user and password, or token"):
        drivers.connect(ProviderSpec.parse("webdav://cloud.example"), None, {"user": "alice"})
    stub, _ = stub_and_driver
    with connected(Endpoint({"": stub.url}, {"token": "t0ken-0815-long"}), "webdav") as driver:
        stub.status = 204
        driver.delete("/a")
        assert driver._http.headers["authorization"] == "Bearer t0ken-0815-long"


def test_paths_outside_the_folder_of_the_spec_are_refused(server: Any) -> None:
    """The folder's name needs encoding, and the name of its sibling begins with it."""
    base = Endpoint({"": f"{server.endpoint.url}base%20%2525/"}, server.endpoint.credentials)
    with connected(server.endpoint, "webdav") as root_driver, connected(base, "webdav") as driver:
        root_driver.put("/base %25-not/x", Literal(b"beside"))
        root_driver.mkdir("/base %25")
        driver.put("/a/b", RandomContent("b", 100))
        assert [entry.path for entry in driver.list("/")] == ["/a", "/a/b"]
        assert root_driver.stat("/base %25/a/b").size_bytes == 100
        root_driver.delete("/base %25")
        root_driver.delete("/base %25-not")


def test_listing_a_file_is_refused(server: Any) -> None:
    with connected(server.endpoint, "webdav") as driver:
        driver.put("/alone", RandomContent("alone", 1))
        refusal(ErrorKind.CONFLICT, lambda: list(driver.list("/alone")))
        driver.delete("/alone")


def test_large_files_stream(server: Any) -> None:
    content = RandomContent("large", 20_000_003)
    with connected(server.endpoint, "webdav") as driver:
        driver.put("/large", content)
        assert content_of(driver, "/large") == content.read(0, content.size_bytes)
        assert content_of(driver, "/large", 19_999_999) == content.read(19_999_999, 4)
        driver.delete("/large")
        assert driver.versions()["webdav4.retries"] == "off"


def test_a_folder_that_many_make_at_once_is_made_once(server: Any) -> None:
    """WsgiDAV by itself answers 500 to some of these requests."""
    url = urlsplit(server.endpoint.urls[""])
    keys = server.endpoint.credentials
    login = base64.b64encode(f"{keys['user']}:{keys['password']}".encode()).decode()
    barrier = threading.Barrier(16)

    def make_folders(_number: int) -> list[int]:
        connection = HTTPConnection(str(url.hostname), url.port or 80)
        statuses = []
        for folder in range(30):
            barrier.wait()
            connection.request("MKCOL", f"/at-once-{folder}", headers={"Authorization": f"Basic {login}"})
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()
        return statuses

    with ThreadPoolExecutor(16) as pool:
        rounds = list(zip(*pool.map(make_folders, range(16)), strict=True))
    assert {tuple(sorted(codes)) for codes in rounds} == {(201, *[405] * 15)}


def test_a_missing_folder_that_the_spec_names_is_not_found(server: Any) -> None:
    nowhere = Endpoint({"": f"{server.endpoint.url}no/such"}, server.endpoint.credentials)
    with connected(server.endpoint, "webdav") as root_driver, connected(nowhere, "webdav") as driver:
        for action in (lambda: driver.put("/a", Literal(b"1")), lambda: driver.put("/run/a", Literal(b"1"))):
            refusal(ErrorKind.NOT_FOUND, action)
        refusal(ErrorKind.NOT_FOUND, lambda: root_driver.stat("/no"))


def test_a_server_that_wants_another_way_to_log_in_is_told_from_a_wrong_password(
    stub_and_driver: tuple[StubServer, Any],
) -> None:
    stub, driver = stub_and_driver
    stub.status, stub.headers = 401, {"WWW-Authenticate": 'Digest realm="files", nonce="0"'}
    error = refusal(ErrorKind.AUTH, lambda: driver.stat("/a"))
    assert error.detail.endswith("; the server wants Digest, which this driver does not speak")


def test_a_password_may_hold_spaces_and_letters_of_any_script() -> None:
    words = "correct horse \u00df"
    keys = {"user": "cloudbench", "password": words}
    with served("webdav", environment={"SECRET": words}, credentials=keys) as service:
        with connected(service.endpoint, "webdav") as driver:
            driver.put("/a", Literal(b"1"))
        for wrong in ("line\nbreak", "tab\t"):
            with pytest.raises(CredentialsError, match="password contains a control character; copy it again"):
                drivers.connect(ProviderSpec.parse("webdav://cloud.example"), None, {**keys, "password": wrong})
    with pytest.raises(CredentialsError, match="token contains a space"):
        drivers.connect(ProviderSpec.parse("webdav://cloud.example"), None, {"token": "to ken"})


def test_other_clients_find_properties_and_locks_on_the_shipped_server(server: Any) -> None:
    """Tools such as litmus test these, and clients such as davfs2 and Windows need them before they write."""
    endpoint: Endpoint = server.endpoint
    auth = (endpoint.credentials["user"], endpoint.credentials["password"])
    with httpx.Client(base_url=endpoint.url, auth=auth, trust_env=False) as client:
        assert client.put("/locked", content=b"1").status_code == 201
        proppatch = client.request("PROPPATCH", "/locked", content=(
            '<D:propertyupdate xmlns:D="DAV:"><D:set><D:prop><x:owner xmlns:x="urn:x">me</x:owner></D:prop></D:set>'
            "</D:propertyupdate>"
        ))  # fmt: skip
        assert (proppatch.status_code, "200 OK" in proppatch.text) == (207, True)
        locked = client.request("LOCK", "/locked", headers={"Depth": "0"}, content=(
            '<D:lockinfo xmlns:D="DAV:"><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>'
            "</D:lockinfo>"
        ))  # fmt: skip
        token = locked.headers["lock-token"]
        assert (locked.status_code, locked.headers["content-type"]) == (200, "application/xml; charset=utf-8")
        assert token.startswith("<opaquelocktoken:")
        assert token.endswith(">")
        assert client.put("/locked", content=b"2").status_code == 423
        assert client.put("/locked", content=b"2", headers={"If": f"({token})"}).status_code == 204
        assert client.request("UNLOCK", "/locked", headers={"Lock-Token": token}).status_code == 204
        assert client.delete("/locked").status_code == 204
