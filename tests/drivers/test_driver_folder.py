"""Tests of the folder driver: its root, its errors, and files that are complete or absent."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.drivers.folder import file_system
from pytest_cloudbench.model import CloudError, ErrorKind, ProviderSpec, SpecError
from pytest_cloudbench.workload.payload import RandomContent
from pytest_cloudbench.workload.payload.contents import Literal

CONTENT = RandomContent("folder", 3000)


def connect(root: Path, params: str = "") -> Any:
    root.mkdir(exist_ok=True)
    return drivers.connect(ProviderSpec.parse(f"folder:{root}{params}"))


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    return connect(tmp_path / "root")


class Broken:
    """A content whose second half cannot be read."""

    size_bytes = 8 * 1024 * 1024

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, offset: int, length: int) -> bytes:
        if offset:
            raise self.error
        return bytes(length)


def test_a_missing_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    """The folder may be an absent mount. Then the local disk would be measured instead."""
    with pytest.raises(SpecError, match=r"there is no folder .*/nas; mount it, or make it first"):
        drivers.connect(ProviderSpec.parse(f"folder:{tmp_path / 'nas'}"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_went_away_is_not_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "nas"
    folder.mkdir()
    with closing(drivers.connect(ProviderSpec.parse(f"folder:{folder}"))) as driver:
        folder.rmdir()
        for operation in (
            lambda: driver.put("/a", Literal(b"1")),
            lambda: driver.mkdir("/b"),
            lambda: driver.stat("/a"),
        ):
            with pytest.raises(CloudError, match="nas is not there") as raised:
                operation()
            assert raised.value.kind is ErrorKind.NETWORK
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_an_array_may_come_back(tmp_path: Path) -> None:
    spec = ProviderSpec.parse(f"folder:{tmp_path / 'nas'}")
    with closing(drivers.connect(spec, is_part=True)) as driver:
        with pytest.raises(CloudError, match="nas is not there"):
            driver.put("/a", Literal(b"1"))
        (tmp_path / "nas").mkdir()
        driver.put("/a", Literal(b"1"))
        assert driver.stat("/a").size_bytes == 1


MOUNTS = r"""
23 28 0:22 / /proc rw - proc proc rw
28 1 254:0 / / rw - ext4 /dev/vda rw
31 28 0:40 /export /mnt/nas rw - nfs4 nas:/export rw
32 28 0:41 / /mnt/a\040b rw shared:1 - cifs //server/share rw
33 31 0:42 / /mnt/nas rw - tmpfs tmpfs rw
a line that is none
"""


@pytest.mark.parametrize(
    ("folder", "described"),
    [
        ("/home/me", "ext4 (/dev/vda at /)"),
        ("/mnt/nas/x", "tmpfs (tmpfs at /mnt/nas)"),
        ("/mnt/nasty", "ext4 (/dev/vda at /)"),
        ("/mnt/a b/c", "cifs (//server/share at /mnt/a b)"),
    ],
)
def test_file_system_of_a_folder_is_reported(folder: str, described: str, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS, "utf-8")
    assert file_system(Path(folder), tmp_path / "mountinfo") == described
    assert file_system(Path(folder), tmp_path / "none") == "unknown"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list of mounts is Linux's")
def test_the_file_system_is_among_the_facts_of_a_run(tmp_path: Path) -> None:
    assert " at /" in connect(tmp_path / "root").versions()["file system"]


def test_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sync").mkdir()
    drivers.connect(ProviderSpec.parse("folder:~/sync")).put("/x", CONTENT)
    assert (tmp_path / "sync/x").exists()


@pytest.mark.parametrize("text", ["folder:", "folder", "folder:?fsync=1", "folder:/tmp/x?fsync=yes"])
def test_unusable_spec_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        drivers.connect(ProviderSpec.parse(text))
    assert "\n" not in str(caught.value)


def test_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match="is not a folder"):
        drivers.connect(ProviderSpec.parse(f"folder:{tmp_path / 'file'}"))


@pytest.mark.parametrize("path", ["/../x", "/a/../../x", "/.", "/a/./b", "..", "/a\0b", "/\ud800"])
@pytest.mark.parametrize("verb", ["put", "get", "stat", "list", "delete", "mkdir"])
def test_never_leaves_its_root(driver: Any, tmp_path: Path, verb: str, path: str) -> None:
    (tmp_path / "x").write_text("outside")
    arguments = [path, CONTENT] if verb == "put" else [path]
    with pytest.raises(CloudError) as caught:
        list(getattr(driver, verb)(*arguments))
    assert caught.value.kind is ErrorKind.INVALID
    assert (tmp_path / "x").read_text() == "outside"


def test_links_do_not_lead_out(driver: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("outside")
    (tmp_path / "root/way").symlink_to(outside)
    (tmp_path / "root/file").symlink_to(outside / "secret")
    for action in (
        lambda: driver.put("/way/new", CONTENT),
        lambda: list(driver.get("/file")),
        lambda: list(driver.get("/way/secret")),
        lambda: driver.delete("/way"),
        lambda: driver.delete("/way/secret"),
    ):
        with pytest.raises(CloudError) as caught:
            action()
        assert caught.value.kind is ErrorKind.INVALID
    assert list(driver.list("/")) == []
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_links_within_the_folder_are_followed(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "root/real/deep").mkdir(parents=True)
    (tmp_path / "root/way").symlink_to(tmp_path / "root/real")
    driver.put("/way/deep/new", CONTENT)
    assert b"".join(driver.get("/real/deep/new")) == CONTENT.read(0, 3000)
    (tmp_path / "root/real/deep/out").symlink_to(tmp_path)
    with pytest.raises(CloudError, match="leaves the folder"):
        driver.put("/way/deep/out/new", CONTENT)


def test_root_itself_is_not_deleted(driver: Any, tmp_path: Path) -> None:
    with pytest.raises(CloudError):
        driver.delete("/")
    assert (tmp_path / "root").is_dir()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, ErrorKind.QUOTA),
        (errno.EDQUOT, ErrorKind.QUOTA),
        (errno.EACCES, ErrorKind.AUTH),
        (errno.EPERM, ErrorKind.AUTH),
        (errno.EIO, ErrorKind.SERVER),
        (errno.ENAMETOOLONG, ErrorKind.INVALID),
    ],
)
def test_failed_put_leaves_the_old_file_and_no_other(driver: Any, tmp_path: Path, number: int, kind: ErrorKind) -> None:
    driver.put("/a", CONTENT)
    with pytest.raises(CloudError) as caught:
        driver.put("/a", Broken(OSError(number, os.strerror(number))))
    assert caught.value.kind is kind
    assert isinstance(caught.value.__cause__, OSError)
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["a"]
    assert b"".join(driver.get("/a")) == CONTENT.read(0, 3000)


def test_a_file_that_vanishes_meanwhile_does_not_end_the_removal_of_its_folder(
    driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        driver.put(f"/run/deep/{number}", CONTENT)
    unlink, calls = os.unlink, list[Any]()

    def unlink_twice(path: Any, **options: Any) -> None:
        calls.append(path)
        unlink(path, **options)
        if len(calls) == 2:
            unlink(path, **options)  # as if another program had been quicker

    monkeypatch.setattr(os, "unlink", unlink_twice)
    driver.delete("/run")
    assert len(calls) == 5
    assert list((tmp_path / "root").iterdir()) == []
    with pytest.raises(CloudError, match="not_found"):
        driver.delete("/run")


def test_failed_copy_leaves_no_part_of_the_file(driver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.put("/a", CONTENT)
    copy = shutil.copyfileobj

    def fill_disk(reader: Any, writer: Any, *_: Any) -> None:
        writer.write(reader.read(10))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", fill_disk)
    with pytest.raises(CloudError) as caught:
        driver.copy("/a", "/b")
    assert caught.value.kind is ErrorKind.QUOTA
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["a"]
    monkeypatch.setattr(shutil, "copyfileobj", copy)
    assert driver.copy("/a", "/b").size_bytes == 3000
    with pytest.raises(CloudError) as caught:
        driver.copy("/a", "/b")
    assert caught.value.kind is ErrorKind.CONFLICT
    assert b"".join(driver.get("/b")) == CONTENT.read(0, 3000)


def test_two_drivers_write_into_one_folder_at_once(tmp_path: Path) -> None:
    one, other = (connect(tmp_path / "root") for _ in range(2))

    class Meanwhile:
        """A content that makes the other driver put files of its own while it is read."""

        size_bytes = 3

        def read(self, offset: int, length: int) -> bytes:
            for _ in range(3):
                other.put("/b", CONTENT)
            return b"one"[offset : offset + length]

    for _ in range(3):
        one.put("/a", Meanwhile())
    assert b"".join(one.get("/a")) == b"one"
    assert {path.name for path in (tmp_path / "root").iterdir()} == {"a", "b"}


def test_mistake_of_the_caller_is_raised_as_it_is(driver: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        driver.put("/a", Broken(ZeroDivisionError()))
    assert list((tmp_path / "root").iterdir()) == []


def test_real_errors_of_the_disk(driver: Any) -> None:
    driver.put("/file", CONTENT)
    for action, kind in (
        (lambda: driver.put("/" + "n" * 300, CONTENT), ErrorKind.INVALID),
        (lambda: driver.stat("/file/below"), ErrorKind.CONFLICT),
        (lambda: list(driver.list("/file")), ErrorKind.CONFLICT),
    ):
        with pytest.raises(CloudError) as caught:
            action()
        assert caught.value.kind is kind, caught.value


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_missing_source_leaves_no_folder_for_its_target(driver: Any, tmp_path: Path, verb: str) -> None:
    with pytest.raises(CloudError) as caught:
        getattr(driver, verb)("/no", "/new/deep/file")
    assert caught.value.kind is ErrorKind.NOT_FOUND
    assert list((tmp_path / "root").iterdir()) == []


def test_half_written_files_are_not_listed(driver: Any, tmp_path: Path) -> None:
    (tmp_path / "root/.~cloudbench-1-1").write_text("half")
    (tmp_path / "root/.other").write_text("hidden, but a file")
    assert [entry.path for entry in driver.list("/")] == ["/.other"]


@pytest.mark.skipif(os.name == "nt", reason="no folder can be opened there")
@pytest.mark.parametrize("path", ["/a", "/new/deep/file", "/there"])
def test_fsync_waits_for_the_content_before_the_name_and_then_for_all_names_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Otherwise a power cut could leave an empty file, or no file at all, after the put."""
    root, sync, synced = tmp_path / "root", os.fsync, list[tuple[int, bool]]()
    connect(tmp_path / "root").put("/there", Literal(b"old"))

    def is_new() -> bool:
        local = root.joinpath(path[1:])
        return local.exists() and local.read_bytes() == CONTENT.read(0, CONTENT.size_bytes)

    def record_sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, is_new()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    connect(tmp_path / "root").put("/other", CONTENT)
    assert synced == []
    driver = connect(tmp_path / "root", "?fsync=1")
    driver.put(path, CONTENT)
    local = root.joinpath(path[1:])
    folders = [folder for folder in local.parents if folder.is_relative_to(root)]
    assert synced == [(local.stat().st_ino, False), *((folder.stat().st_ino, True) for folder in folders)]
    assert driver.versions()["fsync"] == "on"
