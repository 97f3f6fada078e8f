"""Tests of third-party clients of Drive, rclone and opendal, through the proxy for Google's host names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S

RCLONE = Path(sysconfig.get_path("scripts")) / "rclone"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def running() -> Iterator[EmulatorService]:
    with start_emulator("gdrive-ideal") as service:
        yield service


@pytest.fixture
def emulator(running: EmulatorService) -> EmulatorService:
    running.control(reset=True)
    return running


def environment(emulator: EmulatorService) -> dict[str, str]:
    """Return variables that send a client through the proxy and let it trust the emulator's certificate."""
    endpoint = emulator.endpoint
    variables = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    return {**variables, "HTTPS_PROXY": endpoint.proxy, "SSL_CERT_FILE": endpoint.ca_file, "NO_PROXY": ""}


@pytest.fixture
def rclone(emulator: EmulatorService, tmp_path: Path) -> Run:
    """A function that runs rclone with the remote ``d:`` and returns its standard output."""
    token = {"access_token": emulator.endpoint.credentials["access_token"], "token_type": "Bearer"}
    text = json.dumps({**token, "refresh_token": "r", "expiry": "2035-01-01T00:00:00Z"})
    config = tmp_path / "rclone.conf"
    config.write_text(f"[d]\ntype = drive\nscope = drive\ntoken = {text}\n")
    options = [f"--config={config}", f"--ca-cert={emulator.endpoint.ca_file}", "--retries=1", "--low-level-retries=1",
               "--drive-pacer-min-sleep=0s"]  # fmt: skip

    def run(*args: str) -> str:
        completed = subprocess.run(
            [str(RCLONE), *options, *args], env=environment(emulator), capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_rclone(rclone: Run, tmp_path: Path) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    (local / "in" / "ner").mkdir(parents=True)
    (local / "a.txt").write_bytes(b"hello")
    (local / "in" / "it's \\ ä.bin").write_bytes(bytes(range(256)))
    (local / "in" / "ner" / "empty").write_bytes(b"")
    rclone("copy", str(local), "d:top")
    assert sorted(rclone("lsf", "-R", "d:").split("\n")[:-1]) == [
        "top/", "top/a.txt", "top/in/", "top/in/it's \\ ä.bin", "top/in/ner/", "top/in/ner/empty",
    ]  # fmt: skip
    rclone("copy", "d:top", str(back))
    assert tree(back) == tree(local)
    rclone("check", str(local), "d:top")
    assert json.loads(rclone("size", "--json", "d:")) == {"count": 3, "bytes": 261, "sizeless": 0}
    rclone("moveto", "d:top/a.txt", "d:top/in/b.txt")
    rclone("copyto", "d:top/in/b.txt", "d:other/c.txt")
    rclone("deletefile", "d:top/in/b.txt")
    (local / "new").write_bytes(b"new")
    rclone("sync", str(local), "d:top")
    rclone("check", str(local), "d:top")
    assert "other/c.txt" in rclone("lsf", "-R", "d:")
    rclone("purge", "d:top")
    assert sorted(rclone("lsf", "-R", "d:").split()) == ["other/", "other/c.txt"]
    assert "Used" in rclone("about", "d:")


@pytest.mark.slow
def test_rclone_in_pieces(rclone: Run, tmp_path: Path) -> None:
    """rclone uploads files above 8 MiB in pieces, by POST."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(20 * 1024 * 1024 + 17))
    rclone("copyto", str(big), "d:big")
    rclone("copyto", "d:big", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == big.read_bytes()
    big.write_bytes(b"small now")
    rclone("copyto", str(big), "d:big")
    assert rclone("cat", "d:big") == "small now"


OPENDAL = """
import sys, opendal
where = opendal.Operator("gdrive", root="/r/s", access_token=sys.argv[1])
where.write("a/b.txt", b"hello")
where.write("a/b.txt", b"hello again")
assert bytes(where.read("a/b.txt")) == b"hello again"
assert where.stat("a/b.txt").content_length == 11
assert sorted(entry.path for entry in where.list("a/")) == ["a/", "a/b.txt"]
where.create_dir("c/d/")
where.copy("a/b.txt", "c/copied")
where.rename("a/b.txt", "c/moved")
assert bytes(where.read("c/copied")) == bytes(where.read("c/moved")) == b"hello again"
where.delete("c/moved")
assert sorted(entry.path for entry in where.list("c/")) == ["c/", "c/copied", "c/d/"], list(where.list("c/"))
try:
    where.read("c/moved")
except opendal.exceptions.NotFound:
    print("done")
"""


def test_opendal(emulator: EmulatorService) -> None:
    """opendal reads proxy and CA from the environment, so it runs in its own process."""
    token = emulator.endpoint.credentials["access_token"]
    completed = subprocess.run(
        [sys.executable, "-c", OPENDAL, token], env=environment(emulator), capture_output=True, text=True,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    assert completed.stdout == "done\n", completed.stderr


def test_no_client_leaves_the_machine(emulator: EmulatorService) -> None:
    """The proxy refuses all hosts other than those of Google Drive."""
    code = (
        "import urllib.request, urllib.error, sys\n"
        "try: urllib.request.urlopen('https://example.com/', timeout=30)\n"
        "except OSError as error: print(error)\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(emulator),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert "403" in completed.stdout
