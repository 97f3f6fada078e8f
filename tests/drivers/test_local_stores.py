"""Drivers of object stores on real servers: names, pages, large objects, and remains after a delete."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.model import KIB, MIB, CloudError, Endpoint, ErrorKind, ProviderSpec
from pytest_cloudbench.services.command import CommandService, load_recipe, recipe_names
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal
from tests.limits import HANG_S

SOURCE = str(Path(__file__).parents[2] / "src")
RECIPES = {"azure": "azure", "gcs": "gcs", "s3": "s3", "s3+fast": "s3", "swift": "swift"}
"""The recipe of each driver's server."""
SECRETS = {
    "azure": {"account_key": "d3JvbmctNDcxMS13cm9uZy00NzEx"},
    "s3": {"secret_access_key": "wrong-4711-wrong-4711"},
    "s3+fast": {"secret_access_key": "wrong-4711-wrong-4711"},
    "swift": {"key": "wrong-4711-wrong-4711"},
}
"""Keys for each driver that its server does not know."""


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Endpoint]]:
    running: dict[str, Endpoint] = {}
    services: list[CommandService] = []
    yield _ServersOnDemand(running, services)
    for service in services:
        service.stop()


class _ServersOnDemand(dict[str, Endpoint]):
    """The endpoint of each recipe's server, which is started at its first use."""

    def __init__(self, running: dict[str, Endpoint], services: list[CommandService]) -> None:
        super().__init__(running)
        self._services = services

    def __missing__(self, name: str) -> Endpoint:
        recipe = load_recipe(name)
        if missing := recipe.describe_missing():
            pytest.skip(missing)
        self._services.append(CommandService(recipe))
        self[name] = self._services[-1].start()
        return self[name]


def server_params(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters. Those whose servers take seconds to start are marked as slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in ("azure", "swift") else []) for name in names]


@pytest.fixture(scope="module", params=server_params(RECIPES))
def driver(request: pytest.FixtureRequest, servers: dict[str, Endpoint]) -> Iterator[Any]:
    scheme = request.param
    if missing := drivers.missing_library(scheme):
        pytest.skip(missing)
    new_driver: Any = connect(scheme, servers)
    yield new_driver
    new_driver.close()


def connect(scheme: str, servers: dict[str, Endpoint]) -> Any:
    name = RECIPES[scheme]
    return drivers.connect(ProviderSpec.parse(f"{scheme}://{load_recipe(name).target}"), servers[name], {})


def test_list_and_delete_follow_pages(driver: Any) -> None:
    paths = {f"/pages/{number:03}" for number in range(23)}
    for path in paths:
        driver.put(path, Literal(b"x"))
    driver.list_page_entries = 5
    try:
        listed = [entry.path for entry in driver.list("/pages")]
        driver.delete("/pages")
        assert list(driver.list("/pages")) == []
    finally:
        driver.list_page_entries = None
    assert sorted(listed) == sorted(paths)


@pytest.mark.slow
def test_folder_of_more_than_a_thousand_files_is_removed(driver: Any) -> None:
    for number in range(1203):
        driver.put(f"/many/{number:04}", Literal(b"x"))
    driver.put("/many-not", Literal(b"x"))
    assert len({entry.path for entry in driver.list("/many")}) == 1203
    driver.delete("/many")
    assert [entry.path for entry in driver.list("/")] == ["/many-not"]
    driver.delete("/many-not")


def test_a_name_that_begins_like_a_folder_stays(driver: Any) -> None:
    for path in ("/begin/a/x", "/begin/a-b", "/begin/a.b", "/begin/ab"):
        driver.put(path, Literal(b"x"))
    driver.delete("/begin/a")
    assert sorted(entry.path for entry in driver.list("/begin")) == ["/begin/a-b", "/begin/a.b", "/begin/ab"]
    driver.delete("/begin")


@dataclass(frozen=True)
class Breaks:
    """A content whose disk dies in the middle of a read."""

    size_bytes: int

    def read(self, offset: int, length: int) -> bytes:
        if offset + length > self.size_bytes // 2:
            raise OSError("the disk has died")
        return bytes(length)


def test_large_objects_go_up_in_parts(driver: Any) -> None:
    in_parts = hasattr(driver, "multipart_bytes")
    if in_parts:
        driver.multipart_bytes, driver.part_bytes = 6 * MIB, 5 * MIB
    try:
        content = RandomContent("parts", 11 * MIB + 7)
        before = driver.requests() if hasattr(driver, "requests") else 0
        driver.put("/parts/a", content)
        if hasattr(driver, "requests"):
            assert driver.requests() - before >= (3 if in_parts else 1)
        assert driver.stat("/parts/a").size_bytes == content.size_bytes
        offset = 0
        for piece in driver.get("/parts/a"):
            assert piece == content.read(offset, len(piece))
            offset += len(piece)
        assert offset == content.size_bytes
        with pytest.raises((OSError, CloudError)):
            driver.put("/parts/b", Breaks(11 * MIB))
        with pytest.raises(CloudError) as caught:
            driver.stat("/parts/b")
        assert caught.value.kind is ErrorKind.NOT_FOUND
        driver.delete("/parts")
        assert list(driver.list("/parts")) == []
    finally:
        if in_parts:
            del driver.multipart_bytes, driver.part_bytes


@pytest.mark.parametrize("scheme", server_params(SECRETS))
def test_wrong_keys_are_an_auth_error(scheme: str, servers: dict[str, Endpoint]) -> None:
    right = servers[RECIPES[scheme]]
    endpoint = replace(right, credentials={**right.credentials, **SECRETS[scheme]})
    driver = connect(scheme, {RECIPES[scheme]: endpoint})
    for action in (lambda: driver.stat("/a"), lambda: list(driver.list("/a")), lambda: driver.put("/a", Literal(b""))):
        with pytest.raises(CloudError) as caught:
            action()
        assert caught.value.kind is ErrorKind.AUTH
        assert not [value for value in SECRETS[scheme].values() if value in str(caught.value)]
    driver.close()


# --- S3 alone -------------------------------------------------------------------------------------


def test_unfinished_uploads_end_with_their_folder(servers: dict[str, Endpoint]) -> None:
    driver = connect("s3", servers)
    client, bucket = driver._client, driver._bucket
    for key in ("left/a", "left/b/c", "left-not/a"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    driver.delete("/left")  # nothing else is in it
    assert [row["Key"] for row in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())] == ["left-not/a"]
    driver.delete("/left-not")
    assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())
    driver.close()


def test_the_fast_client_removes_unfinished_uploads_with_a_folder_too(servers: dict[str, Endpoint]) -> None:
    driver, other = connect("s3+fast", servers), connect("s3", servers)
    client, bucket = other._client, other._bucket
    for key in ("cut/a", "cut-not/a"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    driver.put("/cut/b", Literal(b"x"))
    driver.delete("/cut")
    assert list(driver.list("/cut")) == []
    assert [row["Key"] for row in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())] == ["cut-not/a"]
    other.delete("/cut-not")
    for opened in (driver, other):
        opened.close()


def test_requests_are_counted_as_documented(servers: dict[str, Endpoint]) -> None:
    driver = connect("s3", servers)
    counts = {}
    actions: dict[str, Any] = {
        "put": lambda: driver.put("/count/a", Literal(bytes(5 * KIB))),
        "get": lambda: list(driver.get("/count/a")),
        "stat": lambda: driver.stat("/count/a"),
        "list": lambda: list(driver.list("/count")),
        "copy": lambda: driver.copy("/count/a", "/count/b"),
        "delete": lambda: driver.delete("/count/a"),
    }
    for verb, action in actions.items():
        before = driver.requests()
        action()
        counts[verb] = driver.requests() - before
    assert counts == {verb.value: number for verb, number in driver.capabilities.requests.items()}
    driver.delete("/count")
    driver.close()


# --- Azure alone ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_blocks_that_nobody_has_committed_end_with_their_folder(servers: dict[str, Endpoint]) -> None:
    driver = connect("azure", servers)
    container = driver._container
    for name in ("left/a", "left-not/a"):
        container.get_blob_client(name).stage_block("00000000", b"x")
    driver.delete("/left")
    names = [blob.name for blob in container.list_blobs(include=["uncommittedblobs"])]
    assert names == ["left-not/a"]
    driver.delete("/left-not")
    assert list(container.list_blobs(include=["uncommittedblobs"])) == []
    driver.close()


# --- the servers end with their owner -------------------------------------------------------------


STARTS = """
import os, signal, sys
from pytest_cloudbench.services.command import CommandService, load_recipe
service = CommandService(load_recipe(sys.argv[1]))
service.start()
print(service.child.pid, service._folder, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("name", server_params(name for name in recipe_names() if name in RECIPES.values()))
def test_servers_end_when_their_owner_is_killed(name: str) -> None:
    if missing := load_recipe(name).describe_missing():
        pytest.skip(missing)
    owner = subprocess.Popen(
        [sys.executable, "-c", STARTS, name], env={**os.environ, "PYTHONPATH": SOURCE}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner:
        pid, _, folder = owner.stdout.readline().strip().partition(" ")
        processes = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
        assert len(processes) > 1
        owner.stdin.write("\n")
        owner.stdin.close()
        assert owner.wait(HANG_S) == -signal.SIGKILL
    _, alive = psutil.wait_procs(processes, HANG_S)
    assert alive == []
    assert not Path(folder).exists()
