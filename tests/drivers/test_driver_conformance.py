"""One suite for all drivers. What a driver does not declare is not collected for it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.model import MIB, Capabilities, CloudError, Entry, ErrorKind, ProviderSpec, Verb
from pytest_cloudbench.payload import RandomContent

SCHEMES = drivers.schemes()
FOLDERS = itertools.count()


def needing(wanted: Callable[[Capabilities], object]) -> pytest.MarkDecorator:
    """Collect a test for those drivers alone whose capabilities have what it needs."""
    having = [scheme for scheme in SCHEMES if wanted(drivers.driver_class(scheme).capabilities)]
    return pytest.mark.parametrize("scheme", having)


every_driver = needing(lambda _: True)


@dataclass(frozen=True)
class Bytes:
    """A content with bytes that a test spells out."""

    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


@pytest.fixture
def driver(scheme: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    if scheme == "folder":
        connected = drivers.connect(ProviderSpec.parse(f"folder:{tmp_path / 'root'}"))
    else:
        emulator = request.getfixturevalue("emulator")
        connected = drivers.connect(ProviderSpec.parse(scheme), emulator.endpoint)
    yield connected
    connected.close()


@pytest.fixture
def top(driver: Driver) -> str:
    """A fresh folder: the emulator is shared by all tests."""
    path = f"/conformance-{next(FOLDERS)}"
    driver.mkdir(path)
    return path


def independent_digest(algorithm: str, data: bytes) -> str:
    """Written again here: a mistake in the driver's or the emulator's must not cancel itself."""
    if algorithm != "sha256-4mib-blocks":
        return hashlib.new(algorithm, data).hexdigest()
    blocks = [data[start : start + 4 * MIB] for start in range(0, len(data), 4 * MIB)]
    return hashlib.sha256(b"".join(hashlib.sha256(block).digest() for block in blocks)).hexdigest()


def refusal(kind: ErrorKind, action: Callable[[], object]) -> CloudError:
    with pytest.raises(CloudError) as caught:
        action()
    assert caught.value.kind is kind, caught.value
    return caught.value


@every_driver
def test_is_a_driver_and_says_what_it_is(driver: Driver) -> None:
    assert isinstance(driver, Driver)
    versions = driver.versions()
    assert versions
    assert all(name and text for name, text in versions.items())


@every_driver
@pytest.mark.parametrize("size_bytes", [0, 1, 5 * 1024, 4 * MIB, 4 * MIB + 1])
def test_round_trip(driver: Driver, top: str, size_bytes: int) -> None:
    data = RandomContent("round trip", size_bytes).read(0, size_bytes)
    path = f"{top}/file.bin"
    put = driver.put(path, Bytes(data))
    stat = driver.stat(path)
    assert b"".join(driver.get(path)) == data
    assert (put.path, put.size_bytes, put.is_folder) == (path, size_bytes, False)
    assert (stat.path, stat.size_bytes, stat.digest) == (path, size_bytes, put.digest)


@needing(lambda capabilities: capabilities.digest)
@pytest.mark.parametrize("size_bytes", [0, 1, 4 * MIB, 8 * MIB + 3])
def test_digest_is_the_declared_one(driver: Driver, top: str, size_bytes: int) -> None:
    data = RandomContent("digest", size_bytes).read(0, size_bytes)
    algorithm = driver.capabilities.digest
    assert algorithm is not None
    expected = independent_digest(algorithm, data)
    assert driver.put(f"{top}/a", Bytes(data)).digest == expected
    assert driver.stat(f"{top}/a").digest == expected
    assert [entry.digest for entry in driver.list(top)] == [expected]


@every_driver
def test_overwrite_replaces_content(driver: Driver, top: str) -> None:
    for data in (b"the first and longer one", b"second"):
        driver.put(f"{top}/a", Bytes(data))
        assert b"".join(driver.get(f"{top}/a")) == data
    assert [entry.size_bytes for entry in driver.list(top)] == [6]


@every_driver
@pytest.mark.parametrize("name", ["ä ö ß.bin", "日本語.txt", "🌧 cloud", "a'b\"c", "100%25 & +#?.x", ".hidden"])
def test_names(driver: Driver, top: str, name: str) -> None:
    path = f"{top}/{name}"
    driver.put(path, Bytes(b"x"))
    assert driver.stat(path).path == path
    assert b"".join(driver.get(path)) == b"x"
    assert [entry.path for entry in driver.list(top)] == [path]
    driver.delete(path)
    assert list(driver.list(top)) == []


@needing(lambda capabilities: capabilities.case_sensitive)
def test_case_is_kept_apart(driver: Driver, top: str) -> None:
    driver.put(f"{top}/A", Bytes(b"1"))
    driver.put(f"{top}/a", Bytes(b"2"))
    assert {entry.path for entry in driver.list(top)} == {f"{top}/A", f"{top}/a"}


@needing(lambda capabilities: not capabilities.case_sensitive)
def test_case_is_one(driver: Driver, top: str) -> None:
    driver.put(f"{top}/A", Bytes(b"1"))
    driver.put(f"{top}/a", Bytes(b"2"))
    assert len(list(driver.list(top.upper()))) == 1


@needing(lambda capabilities: capabilities.ranges)
@pytest.mark.parametrize("offset", [1, 1023, 1024, 70_000, 99_999])
def test_get_from_an_offset(driver: Driver, top: str, offset: int) -> None:
    data = RandomContent("range", 100_000).read(0, 100_000)
    driver.put(f"{top}/a", Bytes(data))
    assert b"".join(driver.get(f"{top}/a", offset)) == data[offset:]


@every_driver
def test_get_gives_pieces_and_can_be_left(driver: Driver, top: str) -> None:
    driver.put(f"{top}/a", RandomContent("pieces", 3 * MIB))
    pieces: Any = driver.get(f"{top}/a")
    assert 0 < len(next(pieces)) < 3 * MIB
    pieces.close()  # iterators of drivers are generators
    assert driver.stat(f"{top}/a").size_bytes == 3 * MIB


@every_driver
def test_list_is_recursive_and_without_the_folder_itself(driver: Driver, top: str) -> None:
    driver.put(f"{top}/deep/er/a", Bytes(b"12"))
    driver.put(f"{top}/b", Bytes(b"123"))
    driver.mkdir(f"{top}/empty")
    found = {(entry.path, entry.size_bytes, entry.is_folder) for entry in driver.list(top)}
    assert found == {
        (f"{top}/deep", 0, True),
        (f"{top}/deep/er", 0, True),
        (f"{top}/deep/er/a", 2, False),
        (f"{top}/b", 3, False),
        (f"{top}/empty", 0, True),
    }
    assert f"{top}/b" in {entry.path for entry in driver.list("/")}


@every_driver
def test_mkdir_again_is_no_error_but_over_a_file_is(driver: Driver, top: str) -> None:
    driver.mkdir(f"{top}/x/y/z")
    driver.mkdir(f"{top}/x/y/z")
    driver.mkdir(f"{top}/x")
    assert driver.stat(f"{top}/x/y").is_folder
    driver.put(f"{top}/file", Bytes(b""))
    refusal(ErrorKind.CONFLICT, lambda: driver.mkdir(f"{top}/file"))


@every_driver
def test_delete_removes_a_tree(driver: Driver, top: str) -> None:
    driver.put(f"{top}/x/y/a", Bytes(b"1"))
    driver.delete(f"{top}/x")
    assert list(driver.list(top)) == []
    refusal(ErrorKind.NOT_FOUND, lambda: driver.stat(f"{top}/x/y/a"))


@every_driver
@pytest.mark.parametrize("verb", ["get", "stat", "list", "delete"])
def test_not_found(driver: Driver, top: str, verb: str) -> None:
    actions: dict[str, Callable[[], object]] = {
        "get": lambda: list(driver.get(f"{top}/no")),
        "stat": lambda: driver.stat(f"{top}/no"),
        "list": lambda: list(driver.list(f"{top}/no")),
        "delete": lambda: driver.delete(f"{top}/no"),
    }
    error = refusal(ErrorKind.NOT_FOUND, actions[verb])
    assert (error.operation, error.path) == (verb, f"{top}/no")
    assert error.__cause__ is not None
    assert error.retry_after_s is None


@every_driver
def test_conflicts(driver: Driver, top: str) -> None:
    driver.put(f"{top}/file", Bytes(b"1"))
    driver.mkdir(f"{top}/folder")
    refusal(ErrorKind.CONFLICT, lambda: driver.put(f"{top}/folder", Bytes(b"2")))
    refusal(ErrorKind.CONFLICT, lambda: driver.put(f"{top}/file/below", Bytes(b"2")))
    refusal(ErrorKind.CONFLICT, lambda: list(driver.get(f"{top}/folder")))


@every_driver
@pytest.mark.parametrize("path", ["", "relative", "relative/a"])
def test_malformed_paths_are_invalid(driver: Driver, path: str) -> None:
    refusal(ErrorKind.INVALID, lambda: driver.put(path, Bytes(b"1")))


@every_driver
def test_sixteen_threads(driver: Driver, top: str) -> None:
    def story(number: int) -> list[Entry]:
        path = f"{top}/thread-{number}"
        data = RandomContent(f"thread {number}", 3000 + number).read(0, 4000)
        for _ in range(10):
            driver.put(f"{path}/a", Bytes(data))
            assert b"".join(driver.get(f"{path}/a")) == data
            refusal(ErrorKind.NOT_FOUND, lambda: driver.stat(f"{path}/no"))
        return list(driver.list(path))

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(story, range(16)))
    assert [[entry.size_bytes for entry in entries] for entries in results] == [[3000 + n] for n in range(16)]


@needing(lambda capabilities: Verb.COPY in capabilities.verbs)
def test_copy(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", Bytes(b"abc"))
    copied = driver.copy(f"{top}/a", f"{top}/b")
    assert (copied.path, copied.size_bytes) == (f"{top}/b", 3)
    assert {entry.path for entry in driver.list(top)} == {f"{top}/a", f"{top}/b"}
    refusal(ErrorKind.CONFLICT, lambda: driver.copy(f"{top}/a", f"{top}/b"))
    refusal(ErrorKind.NOT_FOUND, lambda: driver.copy(f"{top}/no", f"{top}/c"))


@needing(lambda capabilities: Verb.MOVE in capabilities.verbs)
def test_move(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", Bytes(b"abc"))
    assert driver.move(f"{top}/a", f"{top}/b").path == f"{top}/b"
    assert [entry.path for entry in driver.list(top)] == [f"{top}/b"]
    driver.put(f"{top}/a", Bytes(b"abc"))
    refusal(ErrorKind.CONFLICT, lambda: driver.move(f"{top}/a", f"{top}/b"))
    refusal(ErrorKind.NOT_FOUND, lambda: driver.move(f"{top}/no", f"{top}/c"))


@needing(lambda capabilities: Verb.SHARE in capabilities.verbs)
def test_share_and_revoke(driver: Any, top: str) -> None:
    driver.put(f"{top}/a", Bytes(b"abc"))
    url = driver.share(f"{top}/a")
    assert url.startswith("https://")
    refusal(ErrorKind.CONFLICT, lambda: driver.share(f"{top}/a"))
    driver.revoke(url)
    refusal(ErrorKind.NOT_FOUND, lambda: driver.revoke(url))
    refusal(ErrorKind.NOT_FOUND, lambda: driver.share(f"{top}/no"))


@every_driver
def test_space(driver: Any) -> None:
    used_bytes, total_bytes = driver.space()
    assert 0 <= used_bytes <= total_bytes


@every_driver
def test_unknown_parameter_is_refused(scheme: str, tmp_path: Path) -> None:
    target = f"folder:{tmp_path}" if scheme == "folder" else scheme
    with pytest.raises(Exception, match=r"unknown parameter 'colour'; \w+ knows: ") as caught:
        drivers.connect(ProviderSpec.parse(f"{target}?colour=red"))
    assert type(caught.value).__name__ == "SpecError"
