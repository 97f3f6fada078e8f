"""A client that somebody else runs: here a thread that copies, or traffic on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from pytest_cloudbench.lab import clients
from pytest_cloudbench.lab.clients import external, watchdog
from pytest_cloudbench.lab.clients.base import ClientUnavailable, Outside, Proof
from pytest_cloudbench.lab.clients.external import PRODUCTS, ExternalClient
from pytest_cloudbench.model import ClientError, UsageError
from tests.limits import HANG_S


def start_client(folder: Path, **options: str) -> ExternalClient:
    client = clients.make_client("external", folder=str(folder), **options)
    assert isinstance(client, ExternalClient)
    client.prepare(folder.parent / f"{folder.name}-work")
    client.start()
    return client


def test_only_a_new_folder_is_written_and_removed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("stays")
    folders = set()
    for _ in range(2):
        client = start_client(tmp_path)
        assert client.folder.parent == tmp_path
        folders.add(client.folder)
        (client.folder / "a").mkdir()
        (client.folder / "a" / "x").write_text("goes")
        client.stop()
        client.stop()
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert len(folders) == 2


def test_only_one_at_a_time_measures_a_client(tmp_path: Path) -> None:
    first = start_client(tmp_path)
    with pytest.raises(ClientUnavailable, match=r"another process measures the client of .* now; run it without -n"):
        start_client(tmp_path)
    assert list(tmp_path.glob("[!.]*")) == [first.folder]
    first.stop()
    start_client(tmp_path).stop()
    assert list(tmp_path.iterdir()) == []


def test_external_client_without_a_rule_is_unavailable(tmp_path: Path) -> None:
    client = start_client(tmp_path)
    with pytest.raises(
        ClientUnavailable, match="cannot tell whether it is in sync; give verify=COMMAND or quiet_s=SECONDS"
    ):
        client.wait_synced(1)


def test_a_command_verifies(tmp_path: Path) -> None:
    cloud = tmp_path / "cloud"
    client = start_client(tmp_path, verify=f"diff -r {{folder}} {cloud}")
    (client.folder / "x").write_text("1")
    with pytest.raises(ClientError, match=r"(?s)not verified within 0.1 s: .*cloud"):
        client.wait_synced(0.1)
    cloud.mkdir()
    (cloud / "x").write_text("1")
    assert client.wait_synced(10) is Proof.CONTENT


def test_missing_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="cannot be run"):
        start_client(tmp_path, verify="no-such-command").wait_synced(10)


@pytest.mark.skipif(sys.platform != "linux", reason="waits for a process by its descriptor")
def test_a_verify_command_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    pipe, script = tmp_path / "pipe", tmp_path / "verify.sh"
    os.mkfifo(pipe)
    script.write_text(f"sleep 600 > {pipe} & wait\n")
    client = start_client(tmp_path, verify=f"sh {script}")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(ClientError, match="not verified within 1 s"):
            client.wait_synced(1)
        watchdog.wait_any([reader], HANG_S)
        assert os.read(reader, 1) == b"", "the child holds the pipe no longer"
    finally:
        os.close(reader)


def test_secrets_in_the_errors_of_a_verify_command_are_not_shown(tmp_path: Path) -> None:
    script = tmp_path / "verify.sh"
    script.write_text("echo 'login password=hunter22 refused' >&2; exit 1\n")
    with pytest.raises(ClientError, match=r"not verified within 0.1 s: login password=\*\*\* refused"):
        start_client(tmp_path, verify=f"sh {script}").wait_synced(0.1)


class Interface:
    """Kernel counters of an interface, in a file that the test writes. Real ones also count others' traffic."""

    def __init__(self, path: Path) -> None:
        self._path, self._carried_bytes = path, 0
        self.carry(0)

    def carry(self, size_bytes: int) -> None:
        self._carried_bytes += size_bytes
        counters = f"{self._carried_bytes} 1 0 0 0 0 0 0"
        new = self._path.with_name("new")
        new.write_text(f"Inter-| Receive\n face |bytes\n    lo: 0 0 0 0 0 0 0 0 0 0\n   if0: {counters} {counters}\n")
        new.rename(self._path)


@pytest.fixture
def interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interface:
    path = tmp_path.parent / f"{tmp_path.name}-net"
    path.mkdir()
    monkeypatch.setattr(external, "_COUNTERS", path / "dev")
    return Interface(path / "dev")


def test_quiet_after_traffic(tmp_path: Path, interface: Interface) -> None:
    client = start_client(tmp_path, interface="if0", quiet_s="0.3")
    client.before_change()
    later = threading.Timer(0.5, interface.carry, [1_000_000])
    later.start()
    assert client.wait_synced(60) is Proof.QUIET
    assert later.finished.is_set(), "a client that has not begun is quiet as well"
    later.join()


def test_traffic_between_the_change_and_the_question_counts(tmp_path: Path, interface: Interface) -> None:
    client = start_client(tmp_path, interface="if0", quiet_s="0.1")
    client.before_change()
    interface.carry(1_000_000)
    assert client.wait_synced(60) is Proof.QUIET
    client.before_change()
    with pytest.raises(ClientError, match="no traffic that stands out"):
        client.wait_synced(0.4)


def test_background_traffic_is_no_sign_of_a_sync(tmp_path: Path, interface: Interface) -> None:
    client = start_client(tmp_path, interface="if0", quiet_s="0.1")
    client.before_change()
    interface.carry(5_000)
    with pytest.raises(ClientError, match="no traffic that stands out"):
        client.wait_synced(0.5)


def test_a_network_that_stays_busy_is_unknown(
    tmp_path: Path, interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start_client(tmp_path, interface="if0", quiet_s="0.5")
    client.before_change()
    count_bytes = client._carried_bytes

    def count_more_bytes() -> int:
        """Carry traffic before each look, however late a busy machine takes it."""
        interface.carry(100_000)
        return count_bytes()

    monkeypatch.setattr(client, "_carried_bytes", count_more_bytes)
    with pytest.raises(ClientError, match="it stayed busy"):
        client.wait_synced(1)


@pytest.mark.skipif(not Path("/proc/self/net/dev").exists(), reason="there are no counters in /proc/self/net/dev")
def test_the_counters_are_the_kernels(tmp_path: Path) -> None:
    client = start_client(tmp_path, interface="lo", quiet_s="1")
    before_bytes = client._carried_bytes()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(bytes(60_000), ("127.0.0.1", 9))
    assert client._carried_bytes() >= before_bytes + 120_000


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("ending", ["", "über-alle-15-bytes"])
def test_a_process_by_its_name(tmp_path: Path, ending: str) -> None:
    program = tmp_path / f"client{os.getpid():08}{ending}"  # others on this machine may run this test, too
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as process, ExitStack() as stack:
        stack.callback(process.kill)  # a failure must not wait for its end
        while not os.fsencode(program.name).startswith(Path(f"/proc/{process.pid}/comm").read_bytes().strip()):
            pass  # the kernel names it a moment after it has told the parent
        client = start_client(tmp_path, process=program.name)
        assert process.pid in client.pids("client")
        assert client.pids("server") == ()
        assert client.cpu_s("client") is not None
    assert client.cpu_s("client") is None
    client.stop()
    assert start_client(tmp_path).cpu_s("client") is None


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_cpu_time_is_unknown_when_one_of_several_processes_has_ended(tmp_path: Path) -> None:
    program = tmp_path / f"client{os.getpid():08}"
    program.symlink_to(sys.executable)
    busy = "import time\nwhile time.process_time() < 0.1: pass\nprint(flush=True)\ninput()"
    client = start_client(tmp_path, process=program.name)
    with ExitStack() as stack:
        started = []
        for _ in range(2):
            argv = [str(program), "-I", "-S", "-c", busy]
            started.append(stack.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)))
            stack.callback(started[-1].kill)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
        both_s = client.cpu_s("client")
        assert both_s is not None
        started[0].kill()
        started[0].wait()
        assert client.cpu_s("client") is None, "a part of the time would look like less than none"
        assert client.cpu_s("server") is None
        one_s = client.cpu_s("client")
        assert one_s is not None
        assert 0 < one_s < both_s


def test_names_of_a_product_or_ones_own(tmp_path: Path) -> None:
    def find_outside(**options: str) -> Outside:
        facts = clients.make_client("external", folder=str(tmp_path), **options).facts
        assert facts.outside is not None
        return facts.outside

    assert find_outside(product="onedrive").names == PRODUCTS["onedrive"]
    own_names = ("a.example", "*.b.example")
    assert find_outside(product="onedrive", names="a.example, *.b.example").names == own_names
    assert find_outside() == Outside("")
    configured = find_outside(interface="eth0", address="10.0.0.1", servers="10.1.0.0/16,2001:db8::1")
    assert configured == Outside("eth0", ("10.0.0.1",), (), ("10.1.0.0/16", "2001:db8::1"))
    assert clients.make_client("external", folder=str(tmp_path)).facts.watches_folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "folder is missing"),
        ({"folder": "/no/such"}, "/no/such is not a folder"),
        ({"folder": "~no-such-user/x"}, "~no-such-user/x is not a folder"),
        ({"folder": "/", "verify": "echo it's there"}, "verify: No closing quotation: echo it's there"),
        ({"folder": "/", "quiet_s": "5", "interface": "none0"}, "quiet_s needs an interface"),
        ({"folder": "/", "quiet_s": "soon"}, "quiet_s must be a number from 0, not 'soon'"),
        ({"folder": "/", "quiet_s": "-1"}, "quiet_s must be a number from 0"),
        ({"folder": "/", "quiet_s": "5", "verify": "true", "interface": "lo"}, "exclude each other"),
        ({"folder": "/", "product": "mybox"}, "product must be one of"),
        ({"folder": "/", "address": "eth0"}, "address: 'eth0' does not appear to be"),
        ({"folder": "/", "servers": "10.0.0.0/8,all"}, "servers: 'all' does not appear to be"),
    ],
)
def test_options_that_cannot_work(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        clients.make_client("external", **options)


def test_temporary_files_are_beside_the_folder_and_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = clients.make_client("external", folder=str(tmp_path))
    with pytest.raises(ClientUnavailable, match=r"would be in .* and be synced: set TMPDIR"):
        client.prepare(tmp_path / "work")
    status = os.stat(tmp_path)
    other = os.stat_result((*status[:2], status.st_dev + 1, *status[3:]))
    monkeypatch.setattr(Path, "stat", lambda path, **_: other if path == tmp_path else os.stat(path))
    with pytest.raises(ClientUnavailable, match=r"is not on the file system of temporary files, .*: set TMPDIR"):
        client.prepare(tmp_path.parent / f"{tmp_path.name}-work")
    assert [entry.name for entry in tmp_path.iterdir()] == []


def test_a_folder_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)  # the client's work folder is made here
    assert os.path.samefile(start_client(Path("~")).folder.parent, home)
