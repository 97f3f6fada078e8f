"""Clients behind a savingbox: pushed files arrive, and both processes are waited for, counted and ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients.base import MissingProgramError, Proof
from pytest_cloudbench.lab.clients.savingbox import SavingboxClient
from pytest_cloudbench.lab.clients.trees import FolderTree
from pytest_cloudbench.model import ClientError, UsageError
from pytest_cloudbench.support.clock import wait_for
from tests.lab.clients.conftest import is_gone
from tests.limits import HANG_S

Start = Callable[[str], SavingboxClient]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    box_clients: list[SavingboxClient] = []

    def make(spec: str) -> SavingboxClient:
        client = clients.make_client(spec)
        assert isinstance(client, SavingboxClient)
        box_clients.append(client)
        try:
            client.prepare(tmp_path / "work")
        except MissingProgramError as error:
            pytest.skip(str(error))
        client.start()
        return client

    yield make
    for box_client in box_clients:
        box_client.stop()


def read_receiver(client: SavingboxClient) -> dict[str, str]:
    receiver = client.receiver()
    assert receiver is not None
    return FolderTree(receiver.folder).digests()


def test_many_changes_arrive_as_one(start: Start) -> None:
    pair = start("savingbox?quiet=300ms&ranges=compare")
    (pair.folder / "folder").mkdir()
    for number in range(20):
        with (pair.folder / "folder/log").open("a") as file:
            file.write(f"line {number}\n")
    (pair.folder / "photo").write_bytes(os.urandom(10_000))
    assert pair.wait_synced(HANG_S) is Proof.CONTENT
    assert read_receiver(pair) == FolderTree(pair.folder).digests()
    assert [push.why for push in pair.pushes()] == ["quiet"]
    assert 0.3 <= pair.pushes()[0].waited_s < HANG_S
    assert pair.settings()["quiet_s"] == 0.3
    assert pair.settings()["mechanism_why"] == "asked for by --ranges compare"
    both_s, box_s = pair.cpu_s("client"), pair.box_cpu_s()
    assert both_s is not None
    assert 0 < box_s < both_s
    assert len(pair.pids("client")) == 2
    assert {"reference", "savingbox"} <= pair.versions().keys()
    pids = [*pair.pids("client"), *pair.pids("server")]
    pair.stop()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_files_pulled_by_the_client_enter_the_savingbox(start: Start, tmp_path: Path) -> None:
    pair = start("savingbox?quiet=300ms")
    (tmp_path / "work/inner/folder/brought").write_text("by another device")
    assert wait_for((pair.folder / "brought").exists, HANG_S, poll_s=0.02)
    assert (pair.folder / "brought").read_text() == "by another device"
    assert pair.pushes() == []


def test_a_client_that_does_not_watch_is_run_for_each_push(start: Start, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "tool.toml").write_text(
        f"""name = "tool"
[sync]
command = ["sh", "-c", "echo >> {runs}; cp -r {{folder}}/. {{stored}}"]
[verify]
folder = "{{stored}}"
"""
    )
    pair = start(f"savingbox?over={tmp_path / 'tool.toml'}&quiet=300ms")
    assert not pair.facts.watches_folder
    for number in range(5):
        (pair.folder / "a").write_text(str(number))
        pair.after_change()
    assert not runs.exists(), "nothing was pushed yet"
    pair.wait_synced(HANG_S)
    assert len(runs.read_text()) == len(pair.pushes()) == 1
    (pair.folder / "b").write_text("b")
    assert wait_for(lambda: len(pair.pushes()) == 2, HANG_S, poll_s=0.02)
    pair.idle(0.0)
    assert len(runs.read_text()) == 2
    pair.wait_synced(HANG_S)
    assert len(runs.read_text()) == 2, "there was nothing more to carry"


@pytest.mark.parametrize("which", [0, 1])
def test_killed_savingbox_or_client_is_an_error(start: Start, which: int) -> None:
    pair = start("savingbox?quiet=300ms")
    (pair.folder / "a").write_text("never arrives")
    os.kill(pair.pids("client")[which], signal.SIGKILL)
    with pytest.raises(ClientError, match="killed by signal 9"):
        pair.wait_synced(HANG_S)


def test_file_not_pushed_in_time_is_named(start: Start) -> None:
    pair = start("savingbox?quiet=1h&at_most=1h")
    (pair.folder / "waits").write_text("for an hour")
    with pytest.raises(ClientError, match=r"the sync folder differs: 1 missing \(waits\)"):
        pair.wait_synced(0.3)


def test_facts_are_the_clients_own() -> None:
    box, inner = clients.make_client("savingbox?over=syncthing&compression=always"), clients.make_client("syncthing")
    assert (box.facts.name, box.facts.over, box.facts.binaries) == ("savingbox", "syncthing", ("syncthing",))
    assert box.facts.documented["compression"].answer == "yes"
    assert inner.facts.documented["compression"].answer == "no"
    assert clients.make_client("savingbox").facts.over == "reference"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("savingbox?over=nothing", "client 'nothing': unknown; expected one of external, "),
        ("savingbox?quite=5s", "client 'reference': unknown option 'quite'"),
        ("savingbox?over=syncthing&compression=1", "compression must be one of"),
        ("savingbox?over=external&folder=/", "client 'savingbox': over=external: .* cloudbench savingbox"),
    ],
)
def test_wrong_savingbox_spec_is_a_usage_error(spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clients.make_client(spec)


def test_a_wrong_option_of_the_savingbox_is_its_own_error(start: Start) -> None:
    with pytest.raises(ClientError, match="--quiet soon: expected a number"):
        start("savingbox?quiet=soon")
