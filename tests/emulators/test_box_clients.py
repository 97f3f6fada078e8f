"""Tests of third-party clients of Box, which reach the emulator through its proxy by Box's real host names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench import drivers
from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.model import ProviderSpec
from pytest_cloudbench.workload.payload import RandomContent
from tests.limits import HANG_S

from .box_wire import BoxWire

pytestmark = pytest.mark.slow

RCLONE = Path(sys.executable).parent / "rclone"
STORY = Path(__file__).parent / "box_story.cjs"

Run = Callable[..., str]


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("ideal", api="box") as running:
        yield running


@pytest.fixture
def box(emulator: EmulatorService) -> Iterator[BoxWire]:
    emulator.control(reset=True)
    client = BoxWire(emulator.endpoint)
    yield client
    client.close()


@pytest.fixture
def rclone(emulator: EmulatorService, box: BoxWire, tmp_path: Path) -> Run:
    """A function that runs rclone and returns its standard output."""
    if not RCLONE.exists():
        pytest.skip("rclone is not installed")
    endpoint = emulator.endpoint
    token = {
        "access_token": endpoint.credentials["access_token"],
        "token_type": "bearer",
        "expiry": "2035-01-01T00:00:00Z",
    }
    (tmp_path / "rclone.conf").write_text(f"[box]\ntype = box\ntoken = {json.dumps(token)}\n")
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "HTTPS_PROXY": endpoint.proxy,
        "SSL_CERT_FILE": endpoint.ca_file,
    }  # fmt: skip

    def run(*args: str) -> str:
        command = [
            str(RCLONE),
            "--config",
            str(tmp_path / "rclone.conf"),
            "--ca-cert",
            endpoint.ca_file,
            "--retries=1",
            *args,
        ]
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run


def test_rclone_copies_moves_compares_and_removes(rclone: Run, box: BoxWire, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for path, size in (("a.txt", 5), ("deep/er/b ä.bin", 70_000), ("deep/empty", 0), ("deep/er/100%25 + #.x", 17)):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(RandomContent(path, size).read(0, size))
    rclone("copy", str(tree), "box:top")
    expected_paths = {"a.txt", "deep/", "deep/empty", "deep/er/", "deep/er/100%25 + #.x", "deep/er/b ä.bin"}
    assert set(rclone("lsf", "-R", "box:top").split("\n")) - {""} == expected_paths
    assert json.loads(rclone("size", "--json", "box:")) == {"count": 4, "bytes": 70_022, "sizeless": 0}
    rclone("check", str(tree), "box:top")
    (tree / "a.txt").write_bytes(b"changed")
    (tree / "deep" / "empty").unlink()
    rclone("sync", str(tree), "box:top")
    rclone("check", str(tree), "box:top")
    rclone("copy", "box:top", str(tmp_path / "back"))
    assert (tmp_path / "back" / "a.txt").read_bytes() == b"changed"
    rclone("moveto", "box:top/a.txt", "box:other/moved.txt")
    rclone("copyto", "box:other/moved.txt", "box:other/copied.txt")
    assert rclone("cat", "--offset=2", "box:other/copied.txt") == "anged"
    rclone("moveto", "box:top/deep", "box:deep")
    rclone("deletefile", "box:other/moved.txt")
    assert rclone("link", "box:other/copied.txt").startswith("https://")
    assert set(rclone("lsf", "-R", "box:other").split()) == {"copied.txt"}
    rclone("purge", "box:deep")
    rclone("cleanup", "box:")
    assert box("GET", "/folders/trash/items").value["total_count"] == 0
    assert json.loads(rclone("about", "--json", "box:"))["used"] == 7


def test_rclone_uploads_in_parts(rclone: Run, box: BoxWire, tmp_path: Path) -> None:
    content = RandomContent("parts", 60_000_001)
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(RandomContent(name, 60_000_001).read(0, content.size_bytes))
        # rclone takes files of one size that were written within the same second for equal.
        rclone("copyto", "--ignore-times", str(tmp_path / name), "box:large")
    rclone("copyto", "box:large", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "second").read_bytes()
    assert box("GET", "/folders/0/items").value["entries"][0]["etag"] == "1"


def test_the_rclone_driver_reaches_it(emulator: EmulatorService, box: BoxWire) -> None:
    if not RCLONE.exists():
        pytest.skip("rclone is not installed")
    driver: Any = drivers.connect(ProviderSpec.parse("rclone"), emulator.endpoint, {})
    driver.put("/top/a ä", RandomContent("small", 5000))
    assert [(entry.path, entry.size_bytes) for entry in driver.list("/")] == [("/top/a ä", 5000)]
    driver.close()
    assert box("GET", "/folders/0/items").value["entries"][0]["name"] == "top"


def test_javascript_sdk_completes_a_whole_scenario(emulator: EmulatorService, box: BoxWire, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node is not installed")
    modules = subprocess.run(
        [npm, "root", "-g"], capture_output=True, text=True, timeout=HANG_S, check=True
    ).stdout.strip()
    if not (Path(modules) / "box-node-sdk").exists():
        pytest.skip("the npm package box-node-sdk is not installed")
    endpoint = emulator.endpoint
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "NODE_PATH": modules, "HTTPS_PROXY": endpoint.proxy,
        "NODE_EXTRA_CA_CERTS": endpoint.ca_file, "BOX_TOKEN": endpoint.credentials["access_token"],
    }  # fmt: skip
    completed = subprocess.run(
        [node, str(STORY)], env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result.pop("link").startswith("https://app.box.com/s/")
    assert result == {
        "first": "hello", "second": "hello again", "part": "again", "names": ["a.txt", "c.txt"], "same": True,
        "trash": ["a.txt"], "left": 0, "user": "emulated@example.com", "missing": 404,
    }  # fmt: skip
