"""Counts of the kernel for real connections, compared with the bytes that a client and a server exchanged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pytest_cloudbench.net.capture import Capture, CaptureUnavailable, check
from pytest_cloudbench.net.dissect import open_capture
from pytest_cloudbench.net.sockets.counter import OwnCounter, ServiceCounter
from pytest_cloudbench.net.sockets.kernel import SocketWatch, cookie_of
from pytest_cloudbench.net.traffic import analyze
from tests.limits import HANG_S
from tests.unprivileged import needs_root, run_as_nobody

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")

_HEAD = struct.Struct("!II")


def _answer_requests(listener: socket.socket) -> None:
    """Accept connections and answer each request with as many bytes as it asks for."""

    def answer(connection: socket.socket) -> None:
        with (
            contextlib.suppress(ConnectionError),
            connection,
            connection.makefile("rb") as requests,
        ):
            while head := requests.read(_HEAD.size):
                up, down = _HEAD.unpack(head)
                requests.read(up)
                connection.sendall(bytes(down))

    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


@contextmanager
def run_server(family: int, address: str) -> Iterator[tuple[str, int]]:
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        thread = threading.Thread(target=_answer_requests, args=(listener,))
        thread.start()
        yield address, listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    with run_server(*request.param) as address:
        yield address


def exchange(connection: socket.socket, up: int, down: int) -> int:
    """Send and receive this many bytes. Return how many bytes went over the connection."""
    connection.sendall(_HEAD.pack(up, down) + bytes(up))
    remaining_bytes = down
    while remaining_bytes:
        remaining_bytes -= len(connection.recv(remaining_bytes))
    return _HEAD.size + up + down


def test_exchanged_bytes_are_counted_exactly(server: tuple[str, int]) -> None:
    """One connection is older than the count, one is new, one is closed meanwhile, and some are opened and closed."""
    with socket.create_connection(server) as old, socket.create_connection(server) as ending:
        exchange(old, 10_000, 20_000)
        exchange(ending, 1, 1)
        counter = ServiceCounter([server])
        total = exchange(old, 123, 456) + exchange(ending, 300_000, 5)
        ending.close()
        for number in range(50):
            with socket.create_connection(server) as short:
                total += exchange(short, number, 2_000_000 if number == 7 else 3 * number)
        with socket.create_connection(server) as new:
            total += exchange(new, 1_000_000, 0) + exchange(new, 0, 1)
            count = counter.stop()
    assert (count.bytes, count.connections, count.why) == (total, 51, "")


def test_bytes_before_start_and_after_stop_do_not_count(server: tuple[str, int]) -> None:
    for _ in range(20):
        with socket.create_connection(server) as before:
            exchange(before, 500, 500)
    counter = ServiceCounter([server])
    assert counter.stop().bytes == 0
    with socket.create_connection(server) as after:
        exchange(after, 500, 500)
    assert counter.stop().why == "already stopped"


def test_other_services_and_own_questions_do_not_count(server: tuple[str, int]) -> None:
    with run_server(socket.AF_INET, "127.0.0.1") as other:
        counter = ServiceCounter([server])
        with socket.create_connection(other) as elsewhere, socket.create_connection(server) as own:
            exchange(elsewhere, 10, 10)
            exchange(own, 1000, 1000)
            cookie = cookie_of(own)
        assert cookie is not None
        with socket.create_connection(server) as client:
            total = exchange(client, 30, 30)
        assert counter.stop({cookie}).bytes == total


def test_several_services_are_summed(server: tuple[str, int]) -> None:
    with run_server(socket.AF_INET, "127.0.0.1") as other:
        counter = ServiceCounter([server, other])
        with socket.create_connection(other) as first, socket.create_connection(server) as second:
            total = exchange(first, 10, 20) + exchange(second, 40, 80)
        assert counter.stop().bytes == total


def test_an_ipv4_client_of_a_dual_stack_server_counts() -> None:
    with run_server(socket.AF_INET6, "::") as (_, port):
        counter = ServiceCounter([("localhost", port)])
        with socket.create_connection(("127.0.0.1", port)) as first, socket.create_connection(("::1", port)) as second:
            total = exchange(first, 10, 20) + exchange(second, 40, 80)
        assert counter.stop().bytes == total


def test_clients_in_other_processes_count(server: tuple[str, int]) -> None:
    code = f"import socket; s = socket.create_connection({server!r}); s.sendall({_HEAD.pack(5, 7) + bytes(5)!r}); "
    code += "exit(len(s.recv(7, socket.MSG_WAITALL)) != 7)"
    counter = ServiceCounter([server])
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG_S)
    assert counter.stop().bytes == 2 * (_HEAD.size + 12)


def test_a_reset_that_cleared_counts_is_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        counter = ServiceCounter([listener.getsockname()])
        with socket.create_connection(listener.getsockname()) as client, closing(listener.accept()[0]) as accepted:
            client.sendall(bytes(1000))
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
            count = counter.stop()
    assert count.bytes is None
    assert "reset" in count.why


@needs_root
def test_a_client_in_another_network_makes_the_count_unknown() -> None:
    with run_server(socket.AF_INET, "0.0.0.0") as (_, port):
        pair = f"cb{os.getpid() % 100_000}"
        child = subprocess.Popen(
            ["unshare", "-n", sys.executable, "-c", _ELSEWHERE, pair, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        finished = subprocess.run(
            ["ip", "link", "add", pair, "type", "veth", "peer", "name", f"{pair}p", "netns", str(child.pid)],
            check=False, capture_output=True,
        )  # fmt: skip
        if finished.returncode:
            child.kill()
            child.wait()
            pytest.skip("no pair of interfaces can be made here")
        subprocess.run(["ip", "addr", "add", "10.231.77.1/30", "dev", pair], check=True)
        subprocess.run(["ip", "link", "set", pair, "up"], check=True)
        counter = ServiceCounter([("10.231.77.1", port)])
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.wait(HANG_S) == 0
        child.stdin.close()
        child.stdout.close()
        count = counter.stop()
    assert count.bytes is None
    assert "in another network namespace" in count.why


_ELSEWHERE = f"""
import socket, subprocess, sys
print("ready", flush=True)
sys.stdin.readline()
pair, port = sys.argv[1], int(sys.argv[2])
subprocess.run(["ip", "addr", "add", "10.231.77.2/30", "dev", pair + "p"], check=True)
subprocess.run(["ip", "link", "set", pair + "p", "up"], check=True)
with socket.create_connection(("10.231.77.1", port), {HANG_S}) as client:
    client.sendall({_HEAD.pack(5, 7) + bytes(5)!r})
    assert len(client.recv(7, socket.MSG_WAITALL)) == 7
"""


def test_more_closed_connections_than_can_be_recorded_are_unknown(
    server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_record = threading.Event()
    may_record.set()
    record_closed = SocketWatch._record_closed
    monkeypatch.setattr(SocketWatch, "_record_closed", lambda self: (may_record.wait(), record_closed(self)))
    monkeypatch.setattr("pytest_cloudbench.net.sockets.kernel._BUFFER_BYTES", 1)
    counter = ServiceCounter([server])
    may_record.clear()
    for _ in range(200):
        with socket.create_connection(server) as client:
            exchange(client, 1, 1)
    may_record.set()
    count = counter.stop()
    assert count.bytes is None
    assert "faster than this process could record" in count.why


def test_other_systems_than_linux_are_unknown(server: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ServiceCounter([server]).stop().why == "only Linux counts the bytes of its sockets"


def test_use_of_other_services_is_unknown() -> None:
    assert ServiceCounter(None).stop().why == "part of the provider is not a service of this run"


_FOREIGN = f"""
import os, socket, struct
listener = socket.create_server(("127.0.0.1", 0))
print(os.getpid(), listener.getsockname()[1], flush=True)
kept = []
while True:
    kept.append(listener.accept()[0])
    while head := kept[-1].recv({_HEAD.size}, socket.MSG_WAITALL):
        up, down = struct.unpack("{_HEAD.format}", head)
        kept[-1].recv(up, socket.MSG_WAITALL)
        kept[-1].sendall(bytes(down))
"""


@contextmanager
def run_foreign_server() -> Iterator[tuple[str, int]]:
    """Run a server that is no descendant of this process, because the process that started it has ended."""
    start = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    with subprocess.Popen([sys.executable, "-c", start, _FOREIGN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        try:
            parent.wait(HANG_S)
            yield "127.0.0.1", port
        finally:
            os.kill(pid, signal.SIGKILL)


UNCLEAR = "a connection that may belong to this run ended meanwhile"


def assert_own_bytes(exchange_bytes: Callable[[], int]) -> None:
    """Assert that exchanged bytes are counted. Try again if a connection of another test ended meanwhile."""
    for _ in range(50):
        counter = OwnCounter([os.getpid()])
        total = exchange_bytes()
        count = counter.stop()
        if count.why != UNCLEAR:
            break
    assert count.bytes == total, count.why


def test_own_processes_exchange_with_others_is_counted() -> None:
    with run_foreign_server() as server, socket.create_connection(server) as old:
        exchange(old, 100, 100)
        assert_own_bytes(lambda: exchange(old, 100_000, 30))


def test_an_ended_connection_of_unclear_owner_is_unknown() -> None:
    with run_foreign_server() as server:
        counter = OwnCounter([os.getpid()])
        with socket.create_connection(server) as client:
            exchange(client, 10, 10)
        count = counter.stop()
        assert (count.bytes, count.why) == (None, UNCLEAR)
        assert OwnCounter([os.getpid(), 0]).stop().why == "some agents are on another host or in a container"


def test_traffic_between_own_processes_does_not_count(server: tuple[str, int]) -> None:
    with (
        run_foreign_server() as other,
        socket.create_connection(server) as inside,
        socket.create_connection(other) as outside,
    ):

        def exchange_both() -> int:
            exchange(inside, 5000, 5000)
            return exchange(outside, 7, 9)

        assert_own_bytes(exchange_both)


@needs_root
def test_no_rights_are_needed() -> None:
    output = run_as_nobody(
        "import json, os, socket\n"
        "from pytest_cloudbench.net.sockets.counter import ServiceCounter\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "counter = ServiceCounter([listener.getsockname()])\n"
        "for _ in range(3):\n"
        "    with socket.create_connection(listener.getsockname()) as client:\n"
        "        accepted, _ = listener.accept()\n"
        "        client.sendall(bytes(70))\n"
        "        accepted.recv(70, socket.MSG_WAITALL)\n"
        "        accepted.close()\n"
        "found = counter.stop()\n"
        "print(json.dumps([os.geteuid(), found.bytes, found.why]))\n"
    )
    assert json.loads(output) == [65534, 210, ""]


@pytest.mark.slow
def test_socket_counts_equal_a_capture(server: tuple[str, int], tmp_path: Path) -> None:
    try:
        check("lo")
    except CaptureUnavailable as error:
        pytest.skip(str(error))
    with Capture("lo", tmp_path / "seen.pcapng", filter=f"port {server[1]}", snaplen=128) as capture:
        counter = ServiceCounter([server])
        total = 0
        for number in range(20):
            with socket.create_connection(server) as client:
                total += exchange(client, 1000 * number, 100_000) + exchange(client, 5, 6)
        count = counter.stop()
        result = capture.stop()
    assert result.is_valid, result.reasons
    with open_capture(result.path) as (data, release):
        analysis = analyze(data, source=result.path.name, release=release)
        assert int(analysis.table.sums["unique_bytes"].sum()) == count.bytes == total
