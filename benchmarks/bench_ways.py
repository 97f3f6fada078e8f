"""Measure the relay between an agent on another host and a service of the controller, over a loopback connection.

The host is this machine, by a pipe, so no network is a part of it.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.harness import Blocks, Figure, alternating, median
from pytest_cloudbench.fleet.hosts.connection import HostConnection
from pytest_cloudbench.fleet.hosts.table import Host

__all__ = ["measure"]

_TRIPS = 500
_REQUEST_BYTES, _FLOOD_BYTES = 200, 64 << 20
_PATIENCE_S = 60.0


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``way_round_trip_ratio`` and ``way_throughput_ratio``: through the relay over directly."""
    figures = []
    with ExitStack() as stack:
        connection = HostConnection(Host("here", (sys.executable,)), _PATIENCE_S, lambda connection: None)
        connection.open()
        stack.callback(connection.close)
        connection.wait(_PATIENCE_S)
        if "way_round_trip_ratio" in names:
            direct = stack.enter_context(_serve(_echo))
            blocks = _compare(_round_trip_s, direct, connection, runs)
            figures.append(_figure("way_round_trip_ratio", blocks, 40.0, "at most", "ms", 1e3))
        if "way_throughput_ratio" in names:
            direct = stack.enter_context(_serve(_flood))
            blocks = _compare(_throughput_bytes_per_s, direct, connection, runs)
            figures.append(_figure("way_throughput_ratio", blocks, 0.02, "at least", "MB/s", 1e-6))
    return figures


def _compare(probe: Callable[[int], float], direct: int, connection: HostConnection, runs: int) -> Blocks:
    through = connection.find_port(("127.0.0.1", direct))
    return alternating(lambda: probe(through), lambda: probe(direct), runs)


def _figure(name: str, blocks: Blocks, bound: float, sense: str, unit: str, scale: float) -> Figure:
    absolute = {
        f"through, {unit}": round(median(blocks.ours) * scale, 4),
        f"direct, {unit}": round(median(blocks.reference) * scale, 4),
    }
    is_most = sense == "at most"
    return Figure(
        name, round(blocks.ratio, 3), "times a loopback connection's", bound, "at most" if is_most else "at least",
        details=blocks.details(), absolute=absolute,
    )  # fmt: skip


def _round_trip_s(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times_s = []
        for _ in range(_TRIPS):
            begun_s = time.perf_counter()
            client.sendall(bytes(_REQUEST_BYTES))
            client.recv(1 << 16)
            times_s.append(time.perf_counter() - begun_s)
    return median(times_s)


def _throughput_bytes_per_s(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as client:
        begun_s, left_bytes = time.perf_counter(), _FLOOD_BYTES
        while left_bytes > 0:
            left_bytes -= len(client.recv(1 << 20))
        return _FLOOD_BYTES / (time.perf_counter() - begun_s)


@contextmanager
def _serve(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve on a port of loopback, with a thread for each client."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client:
            try:
                answer(client)
            except OSError:  # the client has enough
                return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _echo(client: socket.socket) -> None:
    while data := client.recv(1 << 16):
        client.sendall(data)


def _flood(client: socket.socket) -> None:
    while True:
        client.sendall(bytes(1 << 20))
