"""Tahoe-LAFS on a grid of its own, and a gateway's errors."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import CredentialsError, Endpoint, ErrorKind, ProviderSpec, SpecError
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

CAP = "URI:DIR2:aaaaaaaaaaaaaaaaaaaaaaaaaa:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"


@pytest.fixture(scope="module")
def grid() -> Iterator[Any]:
    with served("tahoe") as running:
        yield running


@pytest.fixture
def stub_and_driver() -> Iterator[tuple[StubServer, Any]]:
    with answering() as stub, connected(Endpoint({"": stub.url}, {"cap": CAP}), "tahoe") as driver:
        yield stub, driver


@pytest.mark.slow
def test_a_file_needs_two_of_three_servers(grid: Any) -> None:
    """Shares of one storage server are removed, then those of another. The file cannot be read after that."""
    content = RandomContent("shares", 200_000)
    folder = Path(grid.endpoint.credentials["cap_file"]).parent
    with connected(grid.endpoint, "tahoe") as driver:
        before = set(folder.glob("storage*/storage/shares/*/*/*"))
        driver.put("/shares", content)
        with ThreadPoolExecutor(4) as pool:
            contents = list(pool.map(lambda _: content_of(driver, "/shares"), range(4)))
        assert contents == [content.read(0, content.size_bytes)] * 4
        new = sorted(
            path for path in {*folder.glob("storage*/storage/shares/*/*/*")} - before if path.stat().st_size > 90_000
        )
        assert [path.parts[len(folder.parts)] for path in new] == ["storage1", "storage2", "storage3"]
        new[0].unlink()
        assert content_of(driver, "/shares") == content.read(0, content.size_bytes)
        new[1].unlink()
        refusal(ErrorKind.SERVER, lambda: content_of(driver, "/shares"))


@pytest.mark.slow
def test_lost_shares_are_made_anew(grid: Any) -> None:
    folder = Path(grid.endpoint.credentials["cap_file"]).parent
    with connected(grid.endpoint, "tahoe") as driver:
        assert driver.count_servers() == 3
        before = set(folder.glob("storage*/storage/shares/*/*/*"))
        driver.put("/repaired", RandomContent("repaired", 200_000))
        new = [
            path for path in {*folder.glob("storage*/storage/shares/*/*/*")} - before if path.stat().st_size > 90_000
        ]
        new[0].unlink()
        assert driver.repair("/repaired")
        assert new[0].exists()
        assert driver.repair("/repaired")


def test_check_results_and_server_status_are_parsed(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    for is_healthy in (True, False):
        stub.body = b'{"post-repair-results": {"results": {"healthy": %s}}}' % str(is_healthy).lower().encode()
        assert driver.repair("/a") is is_healthy
    stub.body = b'{"servers": [{"connection_status": "connected"}, {"connection_status": "Trying to connect"}]}'
    assert driver.count_servers() == 1
    for body in (b"", b"[]", b'{"servers": 1}', b'{"post-repair-results": 3}'):
        stub.body = body
        refusal(ErrorKind.SERVER, lambda: driver.repair("/a"))
        refusal(ErrorKind.SERVER, driver.count_servers)


@pytest.mark.slow
def test_killed_grid_is_a_network_error() -> None:
    with served("tahoe") as service, connected(service.endpoint, "tahoe") as driver:
        assert_killed_server_is_a_network_error(service, driver, threads=3)


def test_silence_ends_with_the_timeout() -> None:
    with silent_server() as port:
        silent_endpoint = Endpoint({"": f"http://127.0.0.1:{port}"}, {"cap": CAP})
        with connected(silent_endpoint, "tahoe?timeout_s=0.2") as driver:
            refusal(ErrorKind.NETWORK, lambda: driver.stat("/a"))


@pytest.mark.parametrize(
    ("status", "body", "kind", "detail"),
    [
        (404, b"No such child: no", "not_found", "404 No such child: no"),
        (400, b"PUT to a directory", "conflict", "400 PUT to a directory"),
        (500, b"Traceback (most recent call last):\n  File x\nallmydata.UploadUnhappinessError: shares on 1", "server",
         "500 allmydata.UploadUnhappinessError: shares on 1"),
        (410, b"<html><head>x</head><body><h1>NoSharesError</h1> gone &amp; lost</body></html>", "not_found",
         "410 NoSharesError gone & lost"),
        (410, b"UnrecoverableFileError: insufficient good shares of the directory", "server",
         "410 UnrecoverableFileError: insufficient good shares of the directory"),
        (503, b"", "server", "503"),
        (429, b"slow", "throttled", "429 slow"),
    ],
)  # fmt: skip
def test_each_refusal_is_one_request_of_its_kind(
    status: int, body: bytes, kind: str, detail: str, stub_and_driver: tuple[StubServer, Any]
) -> None:
    stub, driver = stub_and_driver
    stub.status, stub.body = status, body
    actions = (
        lambda: driver.put("/a", Literal(b"1")), lambda: content_of(driver, "/a"), lambda: driver.stat("/a"),
        lambda: list(driver.list("/a")), lambda: driver.delete("/a"), lambda: driver.mkdir("/a"),
        lambda: driver.copy("/a", "/b"), lambda: driver.move("/a", "/b"),
    )  # fmt: skip
    for action in actions:
        stub.asked.clear()
        before = driver.requests()
        error = refusal(ErrorKind(kind), action)
        assert len(stub.asked) == driver.requests() - before == 1
        assert error.detail == detail
        assert CAP not in f"{error!r} {error.__cause__!r}"


def test_a_name_that_the_gateway_would_change_is_refused(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    refusal(ErrorKind.INVALID, lambda: driver.put("/e\u0301", Literal(b"1")))
    assert stub.asked == []


def test_page_about_a_folder_is_not_taken_for_a_file(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.body = b"<html>a folder</html>"
    refusal(ErrorKind.CONFLICT, lambda: content_of(driver, "/a"))
    for body in (b"", b"{}", b"[1]", b'["unknown", {}]', b'["filenode", {}]'):
        stub.body = body
        refusal(ErrorKind.SERVER, lambda: driver.stat("/a"))


def test_list_omits_folder_removed_meanwhile(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.body = b'["dirnode", {"children": {"a": ["filenode", {"size": 1}], "x": ["dirnode", {}]}}]'
    listing = driver.list("/top")
    assert next(listing).path == "/top/a"
    stub.status, stub.body = 404, b"No such child: x"
    assert [entry.path for entry in listing] == ["/top/x"]
    assert [path.rpartition("/")[2] for _, path in stub.asked] == ["top?t=json", "x?t=json"]
    refusal(ErrorKind.NOT_FOUND, lambda: list(driver.list("/top")))


def test_a_file_has_no_list(stub_and_driver: tuple[StubServer, Any]) -> None:
    stub, driver = stub_and_driver
    stub.body = b'["filenode", {"size": 1}]'
    refusal(ErrorKind.CONFLICT, lambda: list(driver.list("/file")))


def test_specs_and_credentials(tmp_path: Path) -> None:
    def connect(text: str, **keys: str) -> None:
        drivers.connect(ProviderSpec.parse(text), None, keys).close()

    (tmp_path / "cap").write_text(f"{CAP}\n")
    connect("tahoe:http://127.0.0.1:3456", cap=CAP)
    connect("tahoe:https://grid.example/", cap_file=str(tmp_path / "cap"))
    for text in ("tahoe", "tahoe://127.0.0.1", "tahoe:ftp://x"):
        with pytest.raises(SpecError, match="expected tahoe:URL"):
            connect(text, cap=CAP)
    for keys, message in (
        ({}, "cap, or cap_file"),
        ({"cap": "URI:CHK:xxxxxxxx"}, "URI:DIR2"),
        ({"cap_file": "/no"}, "/no"),
    ):
        with pytest.raises(CredentialsError, match=message):
            connect("tahoe:http://127.0.0.1:3456", **keys)
