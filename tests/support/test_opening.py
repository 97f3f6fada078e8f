"""Files that are not regular or are too large are refused in one line, wherever a user can name a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_cloudbench import data
from pytest_cloudbench.commands import cli
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.emulators.profile import find_profile
from pytest_cloudbench.lab.clients.command import CommandClient
from pytest_cloudbench.load.conductor.outputs import Outputs
from pytest_cloudbench.model import CloudError, ErrorKind, UsageError
from pytest_cloudbench.net import dissect
from pytest_cloudbench.plugin.collect.benchcloud_file import read_legacy_text
from pytest_cloudbench.plugin.collect.module import read_utf8
from pytest_cloudbench.providers import credentials
from pytest_cloudbench.support import opening
from tests.odd_files import ODD_FILES, make_odd_file
from tests.unprivileged import needs_root, run_as_nobody

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="makes FIFOs, sockets and holes; needs /dev/zero")


def _capture(path: Path) -> None:
    with dissect.open_capture(path):
        raise AssertionError("it was opened")


def _expectations(path: Path) -> None:
    option = SimpleNamespace(
        cloudbench_summary=None, cloudbench_report=None, cloudbench_update_expectations=None
    )  # fmt: skip
    Outputs(option, "").read_judging(str(path))


OPENED_BY: Mapping[str, Callable[[Path], object]] = {
    "profile": lambda path: find_profile(str(path)),
    "client": lambda path: CommandClient.from_file(str(path)),
    "trace": lambda path: data.read_trace(str(path)),
    "rules": data.read_flow_rules,
    "expectations": _expectations,
    "credentials": lambda path: credentials._file("dropbox", [], path),
    "bench file": read_utf8,
    "capture": _capture,
}


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("what", OPENED_BY)
def test_refused_in_one_line(what: str, kind: str, tmp_path: Path) -> None:
    path = make_odd_file(tmp_path, kind)
    if (what, kind) == ("capture", "huge"):
        pytest.skip("a capture is mapped, and may have any size")
    with pytest.raises(UsageError) as caught:
        OPENED_BY[what](path)
    message = str(caught.value)
    expected = {
        "pipe": "a pipe, not a regular file", "socket": "a socket, not a regular file", "huge": "bytes, more than the ",
        "folder": "a folder, not a regular file", "device": "a device, not a regular file",
    }[kind.rpartition(" ")[2]]  # fmt: skip
    assert (expected in message, message.count("\n")) == (True, 0), message


@pytest.mark.parametrize("kind", ODD_FILES)
def test_a_file_that_only_looks_like_a_configuration_is_left_alone(kind: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"not a regular file|more than the"):
        read_legacy_text(make_odd_file(tmp_path, kind, "odd.ini"))


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a pipe", "folder"])
def test_in_a_providers_folder(kind: str, tmp_path: Path) -> None:
    driver = FolderDriver(tmp_path)
    path = f"/{make_odd_file(tmp_path, kind, 'odd').name}"
    attempts: list[Callable[[], object]] = [lambda: list(driver.get(path)), lambda: driver.copy(path, "/copy")]
    if kind != "folder":
        attempts.append(lambda: driver.stat(path))
        assert path not in {entry.path for entry in driver.list("/")}
    for attempt in attempts:
        with pytest.raises(CloudError) as caught:
            attempt()
        assert caught.value.kind in {ErrorKind.INVALID, ErrorKind.CONFLICT}
    assert not (tmp_path / "copy").exists()


def test_pipe_is_refused_as_a_capture_except_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", str(make_odd_file(tmp_path, "pipe"))]) == 4
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_of_the_size_that_it_may_have(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert opening.read_file(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes, more than the 4 that it may have"):
        opening.read_file(tmp_path / "link", 4)
    with pytest.raises(OSError, match="more than the 4 bytes that it may have"):
        opening.read_file("/proc/self/status", 4)  # its size is 0, but it has content
    with pytest.raises(FileNotFoundError):
        opening.read_file(tmp_path / "none")
    with pytest.raises(ValueError, match="null"):
        opening.read_file("a\0b")


def test_a_tree_is_read_without_links_and_odd_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "file").write_bytes(b"1")
    (tmp_path / "a").write_bytes(b"2")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "dangling").symlink_to("none")
    os.mkfifo(tmp_path / "pipe")
    assert [*opening.read_tree(tmp_path)] == [(tmp_path / "a", b"2"), (tmp_path / "b" / "file", b"1")]
    assert [*opening.read_tree(tmp_path / "gone")] == []


def test_a_file_that_goes_away_meanwhile_is_left_out(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    files = opening.read_tree(tmp_path)
    assert next(files) == (tmp_path / "a", b"a")
    (tmp_path / "b").unlink()
    assert [*files] == [(tmp_path / "c", b"c")]


UNREADABLE = """
import tempfile
from pathlib import Path
from pytest_cloudbench.drivers.folder import FolderDriver
from pytest_cloudbench.model import CloudError, ServiceError
from pytest_cloudbench.services.command import CommandService, load_recipe

service = CommandService(load_recipe("webdav"))
readers = (
    lambda folder: [*FolderDriver(Path(folder)).stored("/")],
    lambda folder: (setattr(service, "_folder", folder), [*service.stored()]),
)
with tempfile.TemporaryDirectory() as name:
    for kind in ("file", "folder"):
        path = Path(name, kind)
        path.mkdir() if kind == "folder" else path.write_bytes(b"1")
        path.chmod(0)
        for read in readers:
            try:
                read(name)
            except (CloudError, ServiceError) as error:
                print(type(error).__name__)
        path.chmod(0o700)
"""


@needs_root
def test_no_reader_of_a_store_passes_over_what_it_may_not_read() -> None:
    assert run_as_nobody(UNREADABLE).split() == ["CloudError", "ServiceError"] * 2


@pytest.mark.parametrize("letter", ["a", "ü", "\N{GRINNING FACE}"])
def test_a_file_of_the_longest_name_is_written_whole(tmp_path: Path, letter: str) -> None:
    path = tmp_path / (letter * (255 // len(letter.encode())))
    opening.write_whole(path, lambda file: file.write(b"content"))
    assert path.read_bytes() == b"content"
    assert list(tmp_path.iterdir()) == [path]
