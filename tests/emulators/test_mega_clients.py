"""Tests of third-party clients of MEGA: rclone, and megajs if ``npm install -g megajs`` has been run.

The driver's tests use a third client, async-mega-py (tests/drivers/test_driver_mega.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.emulators import EmulatorService, start_emulator
from pytest_cloudbench.lab.clients.processes import find_binary
from tests.limits import HANG_S

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shared() -> Iterator[EmulatorService]:
    with start_emulator("mega-ideal") as running:
        yield running


@pytest.fixture
def emulator(shared: EmulatorService) -> Iterator[EmulatorService]:
    before = shared.control(get="profile")["profile"]
    shared.control(reset=True)
    yield shared
    shared.control(set=before)


class Rclone:
    """A runner of rclone with one remote, ``m:``, which reaches the emulator by real host names or by its address."""

    def __init__(self, emulator: EmulatorService, folder: Path, *, by_proxy: bool) -> None:
        binary = find_binary("rclone")
        if binary is None:
            pytest.skip("rclone is not installed")
        endpoint = emulator.endpoint
        self.binary, self.ca_file = str(binary), endpoint.ca_file
        completed = subprocess.run(
            [self.binary, "obscure", endpoint.credentials["password"]], capture_output=True, check=True
        )
        config = folder / "rclone.conf"
        config.write_text(
            f"[m]\ntype = mega\nuser = {endpoint.credentials['email']}\npass = {completed.stdout.decode().strip()}\n"
            "hard_delete = true\n"
        )
        variables = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        address_variables = (
            dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), endpoint.proxy)
            if by_proxy
            else {"X_MEGA_API_URL": endpoint.url}
        )
        self.environment = {
            **variables,
            **address_variables,
            "SSL_CERT_FILE": endpoint.ca_file,
            "RCLONE_CONFIG": str(config),
        }

    def __call__(self, *arguments: str) -> str:
        completed = subprocess.run(
            [self.binary, *arguments, "--ca-cert", self.ca_file, "--retries", "1", "--low-level-retries", "1"],
            env=self.environment, capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        return completed.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a b ü.txt").write_bytes(b"hello")
    (folder / "empty").write_bytes(b"")
    (folder / "deep" / "er" / "x").write_bytes(os.urandom(300_000))
    return folder


@pytest.mark.slow
def test_rclone_by_the_real_names(emulator: EmulatorService, tmp_path: Path, source: Path) -> None:
    emulator.control(set={"account.type": "v2-hashcash"})
    rclone = Rclone(emulator, tmp_path, by_proxy=True)
    rclone("copy", str(source), "m:t")
    emulator.control(set={"account.type": "v2"})
    assert sorted(rclone("lsf", "-R", "m:").split("\n")) == [
        "", "t/", "t/a b ü.txt", "t/deep/", "t/deep/er/", "t/deep/er/x", "t/empty",
    ]  # fmt: skip
    rclone("copy", "m:t", str(tmp_path / "back"))
    names = ["a b ü.txt", "empty", "deep/er/x"]
    assert [(tmp_path / "back" / name).read_bytes() for name in names] == [
        (source / name).read_bytes() for name in names
    ]
    rclone("moveto", "m:t/deep/er/x", "m:u/moved")
    rclone("deletefile", "m:t/empty")
    paths_after = sorted(rclone("lsf", "-R", "m:").splitlines())
    assert paths_after == ["t/", "t/a b ü.txt", "t/deep/", "t/deep/er/", "u/", "u/moved"]
    routes: Any = emulator.control(get="stats")["stats"]["routes"]
    assert {status for counts in routes.values() for status in counts} == {"200", "402"}


@pytest.mark.slow
def test_rclone_by_the_address(emulator: EmulatorService, tmp_path: Path, source: Path) -> None:
    rclone = Rclone(emulator, tmp_path, by_proxy=False)
    big = tmp_path / "big"
    big.write_bytes(os.urandom(5 * 2**20 + 3))
    rclone("copyto", str(big), "m:t/big")
    assert json.loads(rclone("size", "--json", "m:"))["bytes"] == big.stat().st_size
    rclone("copyto", "m:t/big", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big.read_bytes()
    rclone("sync", str(source), "m:t")
    rclone("check", str(source), "m:t")
    assert json.loads(rclone("about", "--json", "m:"))["used"] == 300_005
    assert rclone("link", "m:t/deep/er/x").startswith("https://mega.co.nz/#!")
    rclone("mkdir", "m:new")
    rclone("rmdir", "m:new")
    rclone("purge", "m:t")
    assert rclone("lsf", "-R", "m:") == ""


def _megajs() -> dict[str, str] | None:
    """Return the environment in which node finds megajs, or None if megajs is not installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    modules = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=False).stdout.strip()
    return {**os.environ, "NODE_PATH": modules} if (Path(modules) / "megajs").is_dir() else None


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2-hashcash"])
def test_megajs(emulator: EmulatorService, version: str) -> None:
    environment = _megajs()
    if environment is None:
        pytest.skip("megajs is not installed")
    emulator.control(set={"account.type": version})
    endpoint = emulator.endpoint
    completed = subprocess.run(
        ["node", str(HERE / "mega_client.cjs"), f"{endpoint.url}/", *endpoint.credentials.values()],
        env={**environment, "NODE_EXTRA_CA_CERTS": endpoint.ca_file},
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    result = json.loads(completed.stdout)
    assert result.pop("closed").startswith("ESID (-15)")
    assert result == {
        "user": "Emulated User",
        "same": True,
        "range": True,
        "empty": 0,
        "space": [700_001, True],
        "linked": ["b.bin", True],
        "shared": ["b.bin", "empty"],
        "sharedContent": True,
        "listed": ["Cloud Drive/földer", "Cloud Drive/other", "other/b.bin", "other/empty"],
        "left": ["Cloud Drive/other", "Rubbish Bin/földer", "other/empty"],
    }
