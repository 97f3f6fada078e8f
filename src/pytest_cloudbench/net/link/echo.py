"""The processes that measure a link from inside, a server on one side and a client on the other.

They are run by path and cannot import the package. ``echo.py serve ADDRESS`` prints its ports, and ``echo.py probe
ADDRESS PORTS SETTINGS`` prints its measurements, both as JSON. The two processes share one monotonic clock, so the
delay of each direction is known, not only their sum.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from typing import Any

_PROBE = struct.Struct("!IQQ")
_STREAM_REQUEST = struct.Struct("!cdQ")
_FILL = b"\0" * 65536
_RCVBUFFORCE, _TIMESTAMPNS = 33, 35
"""Linux socket options that have no names in Python."""
_TRAIN_BUFFER_BYTES = 8 << 20
_SHORTEST_SLEEP_S = 0.0005


def _serve(address: str) -> int:
    """Echo datagrams with their arrival time, and receive or send a stream as its first byte requests.

    The server ends when stdin closes. For each port written to stdin, it prints the number of datagrams from that port,
    because the link itself might lose the answer.
    """
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    echo.bind((address, 0))
    streams = socket.create_server((address, 0))
    _print_json([echo.getsockname()[1], streams.getsockname()[1]])
    arrived: dict[int, int] = {}
    while True:
        ready = select.select([echo, streams, sys.stdin], (), ())[0]
        if echo in ready:
            data, sender = echo.recvfrom(2048)
            arrived[sender[1]] = arrived.get(sender[1], 0) + 1
            number, sent_ns, _ = _PROBE.unpack_from(data)
            echo.sendto(_PROBE.pack(number, sent_ns, time.monotonic_ns()), sender)
        if streams in ready:
            # in a thread, because datagrams must not wait for a stream
            threading.Thread(target=_handle_stream, args=(streams.accept()[0],), daemon=True).start()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return 0
            _print_json(arrived.get(int(line), 0))


def _handle_stream(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError, struct.error, ValueError):
        way, seconds, most_bytes = _STREAM_REQUEST.unpack(connection.recv(_STREAM_REQUEST.size, socket.MSG_WAITALL))
        if way == b"t":
            _serve_train(connection)
        elif way == b"d":
            _send_stream(connection, seconds, most_bytes)
        else:
            connection.sendall(json.dumps(_receive_stream(connection)).encode())


def _send_stream(connection: socket.socket, seconds: float, most_bytes: int) -> None:
    until_s, left_bytes = time.monotonic() + seconds, most_bytes or sys.maxsize
    while left_bytes and time.monotonic() < until_s:
        connection.sendall(_FILL[:left_bytes])
        left_bytes -= min(left_bytes, len(_FILL))
    connection.shutdown(socket.SHUT_WR)


def _serve_train(connection: socket.socket) -> None:
    """Send or receive a train of datagrams on the server, as the first line of the connection requests."""
    settings = json.loads(connection.makefile("rb").readline())
    with _open_datagram_socket(connection.getsockname()[0]) as udp:
        way, port = settings.pop("way"), settings.pop("port")
        if way == "down":
            _send_train(udp, (connection.getpeername()[0], port), **settings)
            return
        connection.sendall(b"%d\n" % udp.getsockname()[1])
        connection.sendall(json.dumps(_receive_train(udp, settings["count"], settings["wait_s"])).encode())


def _open_datagram_socket(address: str) -> socket.socket:
    """Return a socket with a large buffer, in case its reader pauses, and with kernel time stamps."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _TRAIN_BUFFER_BYTES)
    except OSError:
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TRAIN_BUFFER_BYTES)
    udp.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
    udp.bind((address, 0))
    return udp


def _send_train(
    udp: socket.socket, target: tuple[str, int], count: int, size_bytes: int, spacing_s: float, wait_s: float
) -> None:  # fmt: skip
    """Send datagrams, each at its due time. Late ones are sent at once."""
    del wait_s
    start_s = time.monotonic()
    for number in range(count):
        ahead_s = start_s + number * spacing_s - time.monotonic()
        if ahead_s > _SHORTEST_SLEEP_S:
            time.sleep(ahead_s)
        udp.sendto(_FILL[:size_bytes], target)


def _receive_train(udp: socket.socket, count: int, wait_s: float) -> list[int]:
    """Return the arrival time of each datagram in nanoseconds since the first.

    Stops after ``count`` datagrams, or after a silence of ``wait_s``.
    """
    arrived_ns: list[int] = []
    udp.settimeout(wait_s)
    with contextlib.suppress(TimeoutError):
        while len(arrived_ns) < count:
            _, control, _, _ = udp.recvmsg(2048, 64)
            stamps = [data for level, kind, data in control if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS)]
            seconds, nanoseconds = struct.unpack("qq", stamps[0][:16]) if stamps else (0, time.time_ns())
            arrived_ns.append(seconds * 1_000_000_000 + nanoseconds)
    return [time_ns - arrived_ns[0] for time_ns in arrived_ns]


def _receive_stream(connection: socket.socket) -> dict[str, float]:
    """Receive a stream and return its bytes and the seconds from its first to its last byte."""
    total, first_bytes, first_s, last_s = 0, 0, 0.0, 0.0
    buffer = bytearray(1 << 20)
    while size := connection.recv_into(buffer):
        last_s = time.monotonic()
        if not total:
            first_s, first_bytes = last_s, size
        total += size
    return {"bytes": total, "timed_bytes": total - first_bytes, "seconds": last_s - first_s}


def _read_json(connection: socket.socket) -> Any:
    return json.loads(b"".join(iter(lambda: connection.recv(4096), b"")))


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _run_probe(address: str, ports: list[int], count: int, spacing_s: float, wait_s: float) -> dict[str, Any]:
    """Send ``count`` numbered datagrams and collect the echoes, until ``wait_s`` after the last datagram."""
    delays: dict[int, tuple[int, int]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        probe.connect((address, ports[0]))
        start_s, sent_count = time.monotonic(), 0
        until_s = start_s + count * spacing_s + wait_s
        while len(delays) < count:
            now_s = time.monotonic()
            due_s = start_s + sent_count * spacing_s if sent_count < count else until_s
            if sent_count < count and now_s >= due_s:
                probe.send(_PROBE.pack(sent_count, time.monotonic_ns(), 0))
                sent_count += 1
            elif now_s >= until_s:
                break
            elif select.select([probe], (), (), due_s - now_s)[0]:
                number, sent_ns, server_ns = _PROBE.unpack(probe.recv(2048))
                delays.setdefault(number, (server_ns - sent_ns, time.monotonic_ns() - server_ns))
        own_port = probe.getsockname()[1]
    up_ns, down_ns = [up for up, _ in delays.values()], [down for _, down in delays.values()]
    return {"port": own_port, "sent": sent_count, "back": len(delays), "up_ns": up_ns, "down_ns": down_ns}


def _run_stream(address: str, port: int, way: str, seconds: float, most_bytes: int, wait_s: float) -> dict[str, float]:
    """Run one stream for ``seconds`` and return its receiver's measurements.

    They are all zero if the link was too bad to connect.
    """
    try:
        with socket.create_connection((address, port), timeout=wait_s) as connection:
            connection.sendall(_STREAM_REQUEST.pack(way[0].encode(), seconds, most_bytes))
            if way == "down":
                return _receive_stream(connection)
            _send_stream(connection, seconds, most_bytes)
            return dict(_read_json(connection))
    except (OSError, ValueError):  # a timeout, or a truncated answer
        return {"bytes": 0, "timed_bytes": 0, "seconds": 0.0}


def _run_train(address: str, port: int, way: str, **settings: Any) -> dict[str, list[int]]:
    """Send datagrams faster than the link can carry them, and return their arrival times.

    There are none if the link was too bad to connect.
    """
    wait_s = settings["wait_s"] + settings["count"] * settings["spacing_s"] * 4
    try:
        with (
            socket.create_connection((address, port), timeout=wait_s) as connection,
            _open_datagram_socket(connection.getsockname()[0]) as udp,
        ):
            request = {**settings, "way": way, "port": udp.getsockname()[1]}
            connection.sendall(_STREAM_REQUEST.pack(b"t", 0.0, 0) + json.dumps(request).encode() + b"\n")
            if way == "down":
                return {"arrived_ns": _receive_train(udp, settings["count"], settings["wait_s"])}
            answers = connection.makefile("rb")
            _send_train(udp, (address, int(answers.readline())), **settings)
            return {"arrived_ns": json.loads(answers.read())}
    except (OSError, ValueError):
        return {"arrived_ns": []}


def _raise_priority() -> None:
    """Raise this process's priority if permitted, because a busy machine's delays would count as the link's."""
    with contextlib.suppress(OSError):
        os.nice(-15)
        if os.getsid(0) == os.getpid():  # nice compares processes within a session, and this raises the session
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write("-15")


def main(argv: list[str]) -> int:
    """Serve or probe, and return the exit status."""
    _raise_priority()
    if argv[0] == "serve":
        return _serve(argv[1])
    address, ports, settings = argv[1], json.loads(argv[2]), json.loads(argv[3])
    if "spacing_s" in settings and "way" in settings:
        _print_json(_run_train(address, ports[1], **settings))
    elif "way" in settings:
        _print_json(_run_stream(address, ports[1], **settings))
    else:
        _print_json(_run_probe(address, ports, **settings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
