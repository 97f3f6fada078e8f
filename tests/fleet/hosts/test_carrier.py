"""TCP connections through a host's connection. Data, ends and resets arrive, and none waits for another."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from pytest_cloudbench.fleet.hosts.connection import HostConnection
from pytest_cloudbench.fleet.hosts.streams import WINDOW_BYTES
from pytest_cloudbench.model import FleetError
from tests.fleet.hosts.conftest import Losses
from tests.limits import HANG_S

MIB = 1 << 20
MANY = 1100


class Service:
    """A service on loopback, with a thread for each client."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener, self._serve = socket.create_server(("127.0.0.1", 0)), serve
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve_client, args=(connection,), daemon=True).start()

    def _serve_client(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def reach(connection: HostConnection) -> Iterator[Callable[[Callable[[socket.socket], None]], socket.socket]]:
    """A function that starts a service, and connects a client to it through the host."""
    with contextlib.ExitStack() as stack:

        def connect(serve: Callable[[socket.socket], None]) -> socket.socket:
            service = Service(serve)
            stack.callback(service.close)
            port = connection.find_port(service.address)
            assert port != service.address[1], "on one machine it cannot be the same"
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), HANG_S))

        yield connect


def echo(connection: socket.socket) -> None:
    while data := connection.recv(1 << 16):
        connection.sendall(data)


def digest_all(connection: socket.socket) -> bytes:
    digest = hashlib.sha256()
    while data := connection.recv(1 << 16):
        digest.update(data)
    return digest.digest()


def test_bytes_and_the_end_of_each_direction_arrive(reach: Callable[..., socket.socket]) -> None:
    content = os.urandom(4 * WINDOW_BYTES + 7)

    def answer_at_the_end(connection: socket.socket) -> None:
        digest = digest_all(connection)
        connection.sendall(content + digest)

    client = reach(answer_at_the_end)
    client.sendall(content)
    client.shutdown(socket.SHUT_WR)
    received = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert received[:-32] == content
    assert received[-32:] == hashlib.sha256(content).digest()


def test_a_client_that_reads_nothing_delays_no_other_and_fills_no_memory(
    reach: Callable[..., socket.socket], losses: Losses
) -> None:
    sent_bytes = [0]

    def flood(connection: socket.socket) -> None:
        while True:
            sent_bytes[0] += connection.send(bytes(1 << 16))

    stuck, other = reach(flood), reach(echo)
    answers = other.makefile("rb")
    for _ in range(128):
        other.sendall(bytes(1 << 16))
        assert len(answers.read(1 << 16)) == 1 << 16
    assert sent_bytes[0] < 32 * MIB, "what sockets hold at both ends, and one window"
    assert losses.reasons == []
    assert stuck.recv(1) == b"\0"


def test_a_large_transfer_delays_no_agent(connection: HostConnection, reach: Callable[..., socket.socket]) -> None:
    """An agent answers in the middle of a transfer that began before the question."""
    is_over = threading.Event()

    def flood(connection: socket.socket) -> None:
        while not is_over.is_set():
            connection.sendall(bytes(MIB))

    client, received_bytes = reach(flood), [0]

    def drain() -> None:
        while data := client.recv(MIB):
            received_bytes[0] += len(data)

    thread = threading.Thread(target=drain)
    thread.start()
    agent = connection.add_stream(1, None)
    program = "import os\nwhile data := os.read(0, 4096): os.write(1, data)"
    connection.command(start={"stream": 1, "argv": ["", "-c", program], "env": {}, "folder": "."})
    for _ in range(20):
        before_bytes = received_bytes[0]
        agent.write(b"ping")
        assert agent.read(4) == b"ping"
        assert received_bytes[0] - before_bytes < 64 * MIB
    is_over.set()
    thread.join()
    assert received_bytes[0] > 0


def test_a_connection_that_the_service_resets_is_reset_for_the_client(reach: Callable[..., socket.socket]) -> None:
    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    client = reach(reset)
    client.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def read_from(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), HANG_S) as client:
        client.recv(1)


def test_a_service_that_is_gone_resets_its_clients(connection: HostConnection) -> None:
    service = Service(echo)
    port = connection.find_port(service.address)
    service.close()
    with pytest.raises(ConnectionResetError):  # the reset may come while the client still connects
        read_from(port)


def test_a_client_that_goes_ends_its_connection_to_the_service(reach: Callable[..., socket.socket]) -> None:
    ended = threading.Event()

    def wait(connection: socket.socket) -> None:
        connection.recv(1)
        ended.set()

    reach(wait).close()
    assert ended.wait(HANG_S)


@pytest.mark.slow
def test_more_connections_than_files_may_usually_be_open(
    connection: HostConnection, reach: Callable[..., socket.socket]
) -> None:
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    if former[1] < 4 * MANY:
        pytest.skip(f"needs a hard limit of {4 * MANY} open files (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, former[1]))
    try:
        first = reach(echo)
        address = first.getpeername()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(socket.create_connection(address, HANG_S)) for _ in range(MANY)]
            for client in clients:
                client.sendall(b"x")
            assert [client.recv(1) for client in clients] == [b"x"] * MANY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)


def test_a_lost_host_breaks_its_connections_and_opens_no_port(
    connection: HostConnection, reach: Callable[..., socket.socket]
) -> None:
    client = reach(echo)
    client.sendall(b"x")
    assert client.recv(1) == b"x"
    connection.give_up("it was given up")
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
    with pytest.raises(FleetError, match="it was given up"):
        connection.find_port(("127.0.0.1", 1))
