"""Measurements of access lines with a known delay and rate: a set clock, a listener, and a link of namespaces."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from pytest_cloudbench.net.access_line import measure_round_trips, measure_transfer
from pytest_cloudbench.net.link import Link, Way

MB = 1_000_000


class SetLine:
    """A simulated line with a rate, a latency for each file, and its own clock."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self._latency_s, self._bytes_per_s = latency_s, bytes_per_s
        self.time_ns, self.sizes = 0, list[int]()

    def move(self, size_bytes: int) -> int:
        self.sizes.append(size_bytes)
        self.time_ns += round((self._latency_s + size_bytes / self._bytes_per_s) * 1e9)
        return size_bytes

    def clock(self) -> int:
        return self.time_ns


@pytest.mark.parametrize("bytes_per_s", [0.1 * MB, MB, 20 * MB])
def test_the_rate_is_never_above_the_truth_and_near_it(bytes_per_s: float) -> None:
    line = SetLine(0.05, bytes_per_s)
    transfer = measure_transfer(line.move, 10.0, 256 << 20, line.clock)
    assert 0.6 * bytes_per_s < transfer.bytes_per_s < bytes_per_s
    assert transfer.moved_bytes == sum(line.sizes)
    assert transfer.took_s == pytest.approx(line.time_ns / 1e9)
    assert transfer.took_s <= 10.5


def test_a_line_quicker_than_its_files_are_large_is_not_called_quicker_than_it_is() -> None:
    line = SetLine(0.05, 400 * MB)
    transfer = measure_transfer(line.move, 10.0, 256 << 20, line.clock)
    assert transfer.bytes_per_s < 400 * MB
    assert max(line.sizes) == 16 << 20


@pytest.mark.parametrize(
    ("bytes_per_s", "max_s", "max_bytes", "ended_by"),
    [(100 * MB, 60.0, 4 << 20, "bytes"), (0.05 * MB, 3.0, 64 << 20, "seconds"), (MB, 9.0, 1000, "bytes")],
)
def test_the_bound_that_was_reached_is_named(
    bytes_per_s: float, max_s: float, max_bytes: int, ended_by: str
) -> None:  # fmt: skip
    line = SetLine(0.01, bytes_per_s)
    transfer = measure_transfer(line.move, max_s, max_bytes, line.clock)
    assert transfer.ended_by == ended_by
    assert transfer.moved_bytes <= max_bytes


def test_a_line_too_slow_for_the_first_file_moves_no_second() -> None:
    line = SetLine(0.0, 1000.0)
    transfer = measure_transfer(line.move, 5.0, 64 << 20, line.clock)
    assert (len(line.sizes), transfer.ended_by) == (1, "seconds")
    assert transfer.bytes_per_s == pytest.approx(1000.0)


def test_each_round_trip_is_a_connect() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        trips_s = measure_round_trips(server.getsockname(), 7)
        assert len(trips_s) == 7
        assert trips_s == sorted(trips_s)
        for _ in trips_s:
            server.accept()[0].close()
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_closed_port_is_no_round_trip() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with pytest.raises(ConnectionRefusedError):
        measure_round_trips(address, 3)


def test_a_name_whose_first_address_does_not_answer_is_measured_at_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()
    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        tcp = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        listed = [(*tcp, gone), (*tcp, server.getsockname())]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: listed)
        assert len(measure_round_trips(("localhost", 443), 3)) == 3


def test_an_address_whose_first_connect_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = closed.getsockname()
    tried = list[object]()

    class Counted(socket.socket):
        def connect(self, address: Any) -> None:
            tried.append(address)
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Counted)
    with pytest.raises(ConnectionRefusedError):
        measure_round_trips(gone, 3)
    assert tried == [gone]


_SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        connection = server.accept()[0]
        while data := connection.recv(8):
            left = int.from_bytes(data, "big")
            while left:
                left -= len(connection.recv(min(left, 1 << 16)))
            connection.sendall(b"!")
"""
_CLIENT = """
import json, os, socket, sys
from pytest_cloudbench.net.access_line import measure_round_trips, measure_transfer
address = sys.argv[1], int(sys.argv[2])
trips_s = measure_round_trips(address, 10)
with socket.create_connection(address) as connection:
    def move(size_bytes):
        connection.sendall(size_bytes.to_bytes(8, "big") + os.urandom(size_bytes))
        connection.recv(1)
        return size_bytes
    carried = measure_transfer(move, 4.0, 8 << 20)
print(json.dumps([trips_s[0], trips_s[5], carried.bytes_per_s, carried.ended_by]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="links need Linux")
@pytest.mark.usefixtures("can_link")
def test_delay_and_rate_of_a_link_are_found_again() -> None:
    with Link(Way(delay_ms=15, rate_bit_per_s=16e6)) as link:
        address = link.address("server")
        sink: Any = link.popen("server", [sys.executable, "-c", _SINK, address], stdout=subprocess.PIPE, text=True)
        try:
            port = sink.stdout.readline().strip()
            finished = link.run(
                "client", [sys.executable, "-c", _CLIENT, address, port], capture_output=True, text=True
            )
        finally:
            sink.kill()
            sink.wait()
            sink.stdout.close()
        assert finished.returncode == 0, finished.stderr
        shortest_s, median_s, bytes_per_s, ended_by = json.loads(finished.stdout)
    assert 0.030 <= shortest_s < 0.040
    assert median_s >= shortest_s
    assert 0.6 * 2 * MB < bytes_per_s <= 2 * MB
    assert ended_by in ("seconds", "bytes")
