"""A client that somebody else runs: here a thread that copies, or traffic on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_cloudbench import clients
from pytest_cloudbench.clients import external
from pytest_cloudbench.clients.base import Proof
from pytest_cloudbench.clients.external import PRODUCTS, ExternalClient
from pytest_cloudbench.model import ClientError, UsageError


def made(folder: Path, **options: str) -> ExternalClient:
    client = clients.client("external", folder=str(folder), **options)
    assert isinstance(client, ExternalClient)
    client.prepare(folder)
    client.start()
    return client


def test_only_a_new_folder_is_written_and_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("stays")
    first, second = made(tmp_path), made(tmp_path)
    assert first.folder.parent == second.folder.parent == tmp_path
    assert first.folder != second.folder
    (first.folder / "a").mkdir()
    (first.folder / "a" / "x").write_text("goes")
    first.stop()
    second.stop()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_without_a_rule_it_is_unknown(tmp_path: Path) -> None:
    client = made(tmp_path)
    with pytest.raises(UsageError, match="unknown whether it is in sync; give verify=COMMAND or quiet_s=SECONDS"):
        client.wait_synced(1)


def test_a_command_verifies(tmp_path: Path) -> None:
    cloud = tmp_path / "cloud"
    client = made(tmp_path, verify=f"diff -r {{folder}} {cloud}")
    (client.folder / "x").write_text("1")
    with pytest.raises(ClientError, match=r"(?s)not verified within 0.1 s: .*cloud"):
        client.wait_synced(0.1)
    cloud.mkdir()
    (cloud / "x").write_text("1")
    assert client.wait_synced(10) is Proof.CONTENT


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="cannot be run"):
        made(tmp_path, verify="no-such-command").wait_synced(10)


class Interface:
    """The kernel's counters of an interface, as files that a test writes: on a real one others are busy, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "if0" / "statistics"
        self._folder.mkdir(parents=True)
        self._carried_bytes = 0
        self.carry(0)

    def carry(self, size_bytes: int) -> None:
        self._carried_bytes += size_bytes
        for name in ("rx_bytes", "tx_bytes"):
            (self._folder / "new").write_text(f"{self._carried_bytes}\n")
            (self._folder / "new").rename(self._folder / name)


@pytest.fixture
def interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interface:
    monkeypatch.setattr(external, "_COUNTERS", tmp_path / "net")
    return Interface(tmp_path / "net")


def test_quiet_after_traffic(tmp_path: Path, interface: Interface) -> None:
    client = made(tmp_path, interface="if0", quiet_s="0.3")
    client.after_change()
    later = threading.Timer(0.5, interface.carry, [1_000_000])
    later.start()
    assert client.wait_synced(60) is Proof.QUIET
    assert later.finished.is_set(), "a client that has not begun is quiet as well"
    later.join()


def test_traffic_between_the_change_and_the_question_counts(tmp_path: Path, interface: Interface) -> None:
    client = made(tmp_path, interface="if0", quiet_s="0.1")
    client.after_change()
    interface.carry(1_000_000)
    assert client.wait_synced(60) is Proof.QUIET
    client.after_change()
    with pytest.raises(ClientError, match="no traffic that stands out"):
        client.wait_synced(0.4)


def test_chatter_is_no_sign(tmp_path: Path, interface: Interface) -> None:
    client = made(tmp_path, interface="if0", quiet_s="0.1")
    client.after_change()
    interface.carry(5_000)
    with pytest.raises(ClientError, match="no traffic that stands out"):
        client.wait_synced(0.5)


def test_a_network_that_stays_busy_is_unknown(tmp_path: Path, interface: Interface) -> None:
    client = made(tmp_path, interface="if0", quiet_s="0.5")
    client.after_change()
    stop = threading.Event()

    def chatter() -> None:
        while not stop.wait(0.01):
            interface.carry(100_000)

    thread = threading.Thread(target=chatter)
    thread.start()
    try:
        with pytest.raises(ClientError, match="it stayed busy"):
            client.wait_synced(1)
    finally:
        stop.set()
        thread.join()


@pytest.mark.skipif(not Path("/sys/class/net/lo").is_dir(), reason="there are no counters below /sys/class/net")
def test_the_counters_are_the_kernels(tmp_path: Path) -> None:
    client = made(tmp_path, interface="lo", quiet_s="1")
    before_bytes = client._carried_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(60_000), ("127.0.0.1", 9))
    assert client._carried_bytes() >= before_bytes + 120_000


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_process_by_its_name(tmp_path: Path) -> None:
    program = tmp_path / "desktopclient"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process:
        client = made(tmp_path, process="desktopclient")
        assert process.pid in client.pids("client")
        assert client.pids("server") == ()
        assert client.cpu_s("client") is not None
        process.kill()
    assert client.cpu_s("client") is None
    assert made(tmp_path).cpu_s("client") is None


def test_names_of_a_product_or_ones_own(tmp_path: Path) -> None:
    assert made(tmp_path, product="onedrive").name_patterns == PRODUCTS["onedrive"]
    assert made(tmp_path, product="onedrive", names="a.example, *.b.example").name_patterns == (
        "a.example",
        "*.b.example",
    )
    assert made(tmp_path).name_patterns == ()
    assert made(tmp_path).facts.watches_folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "folder is missing"),
        ({"folder": "/no/such"}, "/no/such is not a folder"),
        ({"folder": "/", "quiet_s": "5", "interface": "none0"}, "quiet_s needs an interface"),
        ({"folder": "/", "quiet_s": "soon"}, "quiet_s is a number from 0, not 'soon'"),
        ({"folder": "/", "quiet_s": "-1"}, "quiet_s is a number from 0"),
        ({"folder": "/", "quiet_s": "5", "verify": "true", "interface": "lo"}, "exclude each other"),
        ({"folder": "/", "product": "mybox"}, "product is one of"),
    ],
)
def test_options_that_cannot_work(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clients.client("external", **options)


def test_a_folder_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert os.path.samefile(made(Path("~")).folder.parent, tmp_path)
