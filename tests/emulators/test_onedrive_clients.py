"""Tests of third-party clients of OneDrive, rclone and opendal, through the emulator's proxy."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from tests.limits import HANG_S

from .graph_wire import GraphWire

Run = Callable[..., str]
_RCLONE = Path(sys.executable).with_name("rclone")


@pytest.fixture(scope="module")
def emulator() -> Iterator[EmulatorService]:
    with start_emulator("onedrive-ideal") as running:
        yield running


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files that are small or empty, lie in folders, or have odd names."""
    top = tmp_path / "src"
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a.txt").write_bytes(b"hello world")
    (top / "zero").write_bytes(b"")
    (top / "sub" / "b.bin").write_bytes(random.Random(1).randbytes(300_000))
    (top / "sub" / "deep" / "ä ö #%+ 100%25.txt").write_bytes(b"x")
    return top


def environment(emulator: EmulatorService) -> dict[str, str]:
    endpoint = emulator.endpoint
    variables = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return {**variables, "HTTPS_PROXY": endpoint.proxy, "SSL_CERT_FILE": endpoint.ca_file}


def _run_command(command: Sequence[str | Path], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.fixture(params=["real names", "tenant_url"])
def rclone(emulator: EmulatorService, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """A function that runs rclone, either behind the proxy or with the emulator's own address."""
    if not _RCLONE.exists():
        pytest.skip("rclone is not installed: run pip install 'pytest-cloudbench[rclone]'")
    emulator.control(reset=True)
    wire = GraphWire(emulator.endpoint)
    wire.connection.close()
    token = {"access_token": wire.token, "token_type": "Bearer", "refresh_token": "r", "expiry": "2035-01-01T00:00:00Z"}
    lines = ["[od]", "type = onedrive", f"token = {json.dumps(token)}", f"drive_id = {wire.drive_id}",
             "drive_type = personal"]  # fmt: skip
    variables = environment(emulator)
    if request.param == "tenant_url":
        del variables["HTTPS_PROXY"]
        lines.append(f"tenant_url = {emulator.endpoint.url}/_api")
    config = tmp_path / "rclone.conf"
    config.write_text("\n".join(lines))

    def run(*words: str) -> str:
        options = ("--config", config, "--ca-cert", emulator.endpoint.ca_file, "--retries", "1",
                   "--low-level-retries", "1")  # fmt: skip
        completed = subprocess.run(
            [_RCLONE, *words, *options], env=variables, capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert completed.returncode == 0, completed.stderr
        return completed.stdout

    return run


@pytest.mark.slow
def test_rclone(rclone: Run, tree: Path, tmp_path: Path, emulator: EmulatorService) -> None:
    rclone("copy", str(tree), "od:top", "--create-empty-src-dirs")
    assert sorted(rclone("lsf", "-R", "od:").splitlines()) == [
        "top/", "top/a.txt", "top/empty/", "top/sub/", "top/sub/b.bin", "top/sub/deep/",
        "top/sub/deep/ä ö #%+ 100%25.txt", "top/zero",
    ]  # fmt: skip
    big = tmp_path / "big.bin"
    big.write_bytes(random.Random(2).randbytes(5 * 1024 * 1024))
    rclone("copyto", str(big), "od:top/big.bin", "--onedrive-chunk-size", "2560k")
    assert json.loads(rclone("size", "od:", "--json")) == {
        "count": 5,
        "bytes": 300_012 + 5 * 1024 * 1024,
        "sizeless": 0,
    }
    rclone("copy", "od:top", str(tmp_path / "back"))
    assert (tmp_path / "back" / "big.bin").read_bytes() == big.read_bytes()
    rclone("check", str(tmp_path / "back"), "od:top")  # compares by quickXorHash, which rclone computes itself
    rclone("moveto", "od:top/a.txt", "od:top/moved/c.txt")
    rclone("copyto", "od:top/big.bin", "od:top/copied.bin")
    assert rclone("cat", "od:top/moved/c.txt", "--offset", "6") == "world"
    rclone("deletefile", "od:top/copied.bin")
    rclone("sync", str(tree), "od:top", "--create-empty-src-dirs")
    rclone("check", str(tree), "od:top")
    rclone("moveto", "od:top/sub", "od:other")
    rclone("purge", "od:other")
    assert sorted(rclone("lsf", "-R", "od:").splitlines()) == ["top/", "top/a.txt", "top/empty/", "top/zero"]
    assert rclone("link", "od:top/a.txt").startswith("https://1drv.ms/")
    assert json.loads(rclone("about", "od:", "--json"))["used"] == 11
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    assert {int(status) for counts in routes.values() for status in counts} <= {200, 201, 202, 204, 206, 302, 404}


_OPENDAL = """
import json, os, sys
import opendal
operator = opendal.Operator("onedrive", access_token=sys.argv[1], root="/base")
big = os.urandom(9 * 1024 * 1024)
operator.write("a/b.txt", b"hello")
operator.write("big.bin", big)
operator.create_dir("made/")
operator.copy("a/b.txt", "a/c.txt")
operator.rename("a/c.txt", "a/d.txt")
with operator.open("big.bin", "rb") as file:
    file.seek(5)
    part = file.read(10)
try:
    operator.stat("nothing")
    missing = "found"
except opendal.exceptions.NotFound:
    missing = "not found"
found = sorted(entry.path for entry in operator.scan(""))
operator.delete("a/b.txt")
operator.remove_all("made/")
print(json.dumps({
    "whole": bytes(operator.read("big.bin")) == big, "part": bytes(part) == big[5:15], "missing": missing,
    "size": operator.stat("a/d.txt").content_length, "found": found,
    "left": sorted(entry.path for entry in operator.scan("")),
}))
"""


@pytest.mark.slow
def test_opendal(emulator: EmulatorService) -> None:
    pytest.importorskip("opendal", reason="an extra: pip install 'pytest-cloudbench[opendal]'")
    emulator.control(reset=True)
    token = emulator.endpoint.credentials["access_token"]
    command = [sys.executable, "-c", _OPENDAL, token]
    completed = _run_command(command, environment(emulator))
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert set(result["found"]) - {"/"} == {"a/", "a/b.txt", "a/d.txt", "big.bin", "made/"}
    assert set(result["left"]) - {"/"} == {"a/", "a/d.txt", "big.bin"}
    assert (result["whole"], result["part"], result["missing"], result["size"]) == (True, True, "not found", 5)


def test_a_client_behind_the_proxy_reaches_no_other_host(emulator: EmulatorService) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    for host, expected in (("graph.microsoft.com", "401"), ("contoso.sharepoint.com", "404"), ("example.com", "000")):
        command = [curl, "-s", "-o", os.devnull, "-w", "%{http_code}", "--cacert", emulator.endpoint.ca_file,
                   f"https://{host}/v1.0/me/drive" if expected == "401" else f"https://{host}/elsewhere"]  # fmt: skip
        completed = subprocess.run(
            command, env=environment(emulator), capture_output=True, text=True, timeout=HANG_S, check=False
        )
        assert completed.stdout == expected, (host, completed.stderr)
