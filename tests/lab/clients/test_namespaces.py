"""Clients with their two halves in two network namespaces, started by a runner that enters them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_cloudbench.lab.clients.base import Proof
from pytest_cloudbench.lab.clients.processes import End, Loopback
from tests.lab.clients.conftest import Prepare
from tests.limits import HANG_S

ADDRESSES: dict[End, str] = {"client": "10.77.0.1", "server": "10.77.0.2"}


class Namespaces:
    """Two namespaces with a cable between them. Each exists as long as a process that sleeps in it."""

    def __init__(self) -> None:
        unshare = ["unshare", "--net", "sh", "-c", "echo; exec sleep 600"]
        self.keepers: dict[End, subprocess.Popen[bytes]] = {
            side: subprocess.Popen(unshare, stdout=subprocess.PIPE) for side in ADDRESSES
        }
        for keeper in self.keepers.values():
            assert keeper.stdout is not None
            assert keeper.stdout.readline(), "unshare failed"
        ip = ["ip", "link", "add", "eth0", "netns", str(self.keepers["client"].pid), "type", "veth"]
        subprocess.run([*ip, "peer", "name", "eth0", "netns", str(self.keepers["server"].pid)], check=True)
        for side, address in ADDRESSES.items():
            for words in (f"addr add {address}/24 dev eth0", "link set eth0 up", "link set lo up"):
                assert self.popen(side, ["ip", *words.split()]).wait(HANG_S) == 0

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["nsenter", f"--net=/proc/{self.keepers[side].pid}/ns/net", *argv], **kwargs)

    def sent_bytes(self) -> int:
        """Return the bytes that the client's end has sent."""
        process = self.popen("client", ["cat", "/proc/net/dev"], stdout=subprocess.PIPE)
        lines = process.communicate()[0].decode().splitlines()
        return int(next(line for line in lines if "eth0:" in line).partition(":")[2].split()[8])

    def close(self) -> None:
        for keeper in self.keepers.values():
            keeper.kill()
            keeper.communicate()


@pytest.fixture
def namespaces() -> Iterator[Namespaces]:
    if sys.platform != "linux" or os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("nsenter")):
        pytest.skip("two network namespaces need Linux, root, ip and nsenter")
    new_namespaces = Namespaces()
    yield new_namespaces
    new_namespaces.close()


@pytest.mark.parametrize(
    "spec",
    [
        "lsyncd",
        "rclone",
        *(pytest.param(s, marks=pytest.mark.slow) for s in ("syncthing", "unison", "restic", "lsyncd?over=ssh")),
    ],
)
def test_a_pair_over_a_cable(spec: str, prepare: Prepare, namespaces: Namespaces) -> None:
    pair = prepare(spec, runner=namespaces, server_address=ADDRESSES["server"], client_address=ADDRESSES["client"])
    pair.start()
    before_bytes = namespaces.sent_bytes()
    (pair.folder / "a.bin").write_bytes(os.urandom(1_000_000))
    pair.after_change()
    assert pair.wait_synced(60) is Proof.CONTENT
    sent_bytes = namespaces.sent_bytes() - before_bytes
    # The whole file went over the cable once, and checking cost nothing.
    assert 1_000_000 < sent_bytes < 1_200_000


class UserNamespace(Loopback):
    """A namespace in which this user seems to be root without root's rights, as on a link made without rights."""

    def popen(self, side: End, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        return super().popen(side, ["unshare", "--user", "--map-root-user", *argv], **kwargs)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() == 0, reason="root has its rights in there as well")
@pytest.mark.parametrize("spec", ["lsyncd", pytest.param("lsyncd?over=ssh", marks=pytest.mark.slow)])
def test_servers_that_root_starts_run_without_rights(spec: str, prepare: Prepare) -> None:
    if subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel allows no user namespaces")
    pair = prepare(spec, runner=UserNamespace())
    pair.start()
    (pair.folder / "a.bin").write_bytes(b"1")
    assert pair.wait_synced(60) is Proof.CONTENT


def test_the_pid_of_a_runner_is_that_of_the_program(namespaces: Namespaces) -> None:
    process = namespaces.popen("client", ["sh", "-c", "echo $$"], stdout=subprocess.PIPE)
    assert int(process.communicate()[0]) == process.pid
    assert Path(f"/proc/{process.pid}").exists() is False
