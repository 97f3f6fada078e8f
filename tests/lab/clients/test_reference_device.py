"""The reference client's second device: its polls, its downloads, and its folder, which becomes equal."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pytest_cloudbench.lab.clients.base import Proof
from pytest_cloudbench.lab.clients.reference.adapter import ReferenceClient
from pytest_cloudbench.lab.clients.trees import FolderTree
from pytest_cloudbench.model import ClientError, UsageError
from tests.lab.clients.conftest import Prepare, is_gone
from tests.limits import HANG_S

PIECE_BYTES = 1 << 18


@pytest.fixture
def start(prepare: Prepare) -> Callable[[str], ReferenceClient]:
    def start_client(options: str) -> ReferenceClient:
        client = prepare(f"reference?settle_s=0.02&{options}".rstrip("&"))
        assert isinstance(client, ReferenceClient)
        client.start()
        return client

    return start_client


def device_folder(client: ReferenceClient) -> Path:
    receiver = client.receiver()
    assert receiver.side == "device"
    return receiver.folder


def wait_equal(client: ReferenceClient) -> None:
    """Wait until the second device has the files of the client's folder."""
    expected, tree = FolderTree(client.folder).digests(), FolderTree(device_folder(client))
    client.processes.wait_until(lambda: tree.digests() == expected, HANG_S, "the device's folder was not the same")


def read_device_counters(client: ReferenceClient) -> dict[str, Any]:
    counters: dict[str, Any] = client.counters()["device"]
    return counters


def count_polls(client: ReferenceClient) -> int:
    return int(read_device_counters(client)["requests"].get("/news", 0))


def test_without_the_option_there_is_none(start: Callable[[str], ReferenceClient]) -> None:
    client = start("")
    assert (client.pids("device"), client.cpu_s("device")) == ((), None)
    assert (client.receiver().folder, client.receiver().side) == (client.stored, "server")
    assert read_device_counters(client)["connections"] == 0


def test_content_comes_in_pieces_and_is_counted_apart(start: Callable[[str], ReferenceClient]) -> None:
    client = start("pull_s=0.05")
    before = client.counters()
    files = {"empty": b"", "small": b"x", "exact": os.urandom(PIECE_BYTES), "large": os.urandom(3 * PIECE_BYTES + 1)}
    for name, content in files.items():
        (client.folder / name).write_bytes(content)
    wait_equal(client)
    assert client.wait_synced(HANG_S) is Proof.CONTENT
    after = client.counters()
    assert {name: (device_folder(client) / name).read_bytes() for name in files} == files
    assert after["device"]["requests"]["/content"] == 1 + 1 + 2 + 4
    size_bytes = sum(map(len, files.values()))
    receiver = client.receiver()
    assert receiver.bytes_moved is not None
    received_bytes, sent_bytes = receiver.bytes_moved()
    poll_bytes = 500 * sum(after["device"]["requests"].values())  # a busy machine asks for longer
    assert size_bytes < received_bytes < size_bytes * 1.02 + 20_000 + poll_bytes
    assert 1000 < sent_bytes < 20_000 + poll_bytes
    assert after["connections"] == before["connections"] == after["device"]["connections"] == 1
    assert after["requests"].keys() <= {"/list", "/files"}, "the client's own are without the device's"
    assert size_bytes < after["received_bytes"] - before["received_bytes"] < size_bytes * 1.01 + 5000


def test_a_question_follows_a_period_after_the_last_answer(start: Callable[[str], ReferenceClient]) -> None:
    """A change made just after a poll arrives with the answer to the next poll, and not before."""
    client = start("pull_s=1.2")
    look_s = before_s = time.monotonic()
    polls = count_polls(client)
    while count_polls(client) == polls:
        # At this time the next poll had not arrived yet.
        before_s, look_s = look_s, time.monotonic()
    (client.folder / "a").write_bytes(b"new")
    client.wait_synced(HANG_S)
    arrived_file = device_folder(client) / "a"
    client.processes.wait_until(arrived_file.exists, HANG_S, "it did not arrive")
    assert time.monotonic() - before_s >= 1.2
    assert count_polls(client) >= polls + 2


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("options", ["", "deduplication=block&bundling=1&delta=1", "connections=per-file"])
def test_many_changes_and_the_folders_are_the_same(options: str, start: Callable[[str], ReferenceClient]) -> None:
    client, random = start(f"pull_s=0.01&{options}"), Random(options)
    names = [client.folder / name for name in ("a", "b", "d/e", "d/f", "d/g/h", "d", "i j.txt", "ü", "\udcff")]
    for number in range(150):
        path = random.choice(names)
        with suppress(OSError):
            match random.randrange(5):
                case 0:
                    path.unlink()
                case 1:
                    path.rename(random.choice(names))
                case 2:
                    path.rmdir()
                case _:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(random.randbytes(random.choice([0, 1, 3000, 300_000])))
        if number % 30 == 29:
            wait_equal(client)
    (client.folder / "last").write_bytes(b"last")
    wait_equal(client)
    device_files = {
        path.relative_to(device_folder(client)): path.read_bytes() for path in list_files(device_folder(client))
    }
    assert device_files == {path.relative_to(client.folder): path.read_bytes() for path in list_files(client.folder)}
    assert len(device_files) >= 1


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_content_that_differs_from_its_announcement_is_not_stored(
    start: Callable[[str], ReferenceClient],
) -> None:
    client = start("pull_s=0.02")
    (client.folder / "a").write_bytes(b"first")
    wait_equal(client)
    (pid,) = client.pids("device")
    os.kill(pid, signal.SIGSTOP)
    (client.folder / "a").write_bytes(b"second")
    (client.folder / "b").write_bytes(b"other")
    client.wait_synced(HANG_S)
    (client.stored / "a").write_bytes(b"broken")  # on the server's disk, which it does not notice
    polls = count_polls(client)
    os.kill(pid, signal.SIGCONT)
    client.processes.wait_until(lambda: count_polls(client) >= polls + 3, HANG_S, "no question")
    assert (device_folder(client) / "a").read_bytes() == b"first"
    assert (device_folder(client) / "b").read_bytes() == b"other", "one file does not hold up another one"
    assert "'a' differs from what was announced" in (client.workdir / "logs" / "reference-device.log").read_text()
    (client.stored / "a").write_bytes(b"second")
    wait_equal(client)


def test_second_device_starts_empty_and_receives_existing_files(prepare: Prepare) -> None:
    client = prepare("reference?settle_s=0.02&pull_s=0.05")
    assert isinstance(client, ReferenceClient)
    device_folder(client).mkdir()
    (device_folder(client) / "old").write_bytes(b"of an earlier run")
    (client.folder / "a").write_bytes(b"there before")
    client.start()
    assert [path.name for path in list_files(device_folder(client))] == ["a"]


def test_killed_second_device_is_an_error(start: Callable[[str], ReferenceClient]) -> None:
    client = start("pull_s=0.05")
    (pid,) = client.pids("device")
    assert pid not in (*client.pids("client"), *client.pids("server"))
    assert client.cpu_s("device") is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ClientError, match=r"reference-device \(device\): killed by signal 9"):
        client.idle(HANG_S)
    client.stop()
    assert is_gone(pid)


def test_second_device_ends_with_a_message_when_its_server_is_killed(start: Callable[[str], ReferenceClient]) -> None:
    client = start("pull_s=0.05")
    (pid,), (device_pid,) = client.pids("server"), client.pids("device")
    pidfd = os.pidfd_open(device_pid)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ClientError, match="killed by signal 9"):
        client.processes.wait_until(lambda: False, HANG_S, "not missed")
    assert select.select([pidfd], [], [], HANG_S)[0], "it does not end"
    os.close(pidfd)
    assert "Error" in (client.workdir / "logs" / "reference-device.log").read_text()


@pytest.mark.parametrize("value", ["-1", "often", "86401"])
def test_a_wrong_period_is_refused(value: str, prepare: Prepare) -> None:
    with pytest.raises(UsageError, match="pull_s must be a number from 0 to 86400"):
        prepare(f"reference?pull_s={value}")
