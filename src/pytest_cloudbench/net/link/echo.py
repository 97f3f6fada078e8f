"""What measures a link from inside: a server for one side and a client for the other, each a process.

What may live here: sockets and clocks of the measurement. Run by its path, with nothing of the package importable:
``echo.py serve ADDRESS`` prints its ports, ``echo.py probe ADDRESS PORTS SETTINGS`` what it saw, as JSON.
The two processes share one monotonic clock, so delays of each direction are known, not only their sum.
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
_ASKED = struct.Struct("!cdQ")
_FILL = b"\0" * 65536
_RCVBUFFORCE, _TIMESTAMPNS = 33, 35
"""Of Linux; Python has no names for them."""
_TRAIN_BUFFER_BYTES = 8 << 20
_LEAST_SLEEP_S = 0.0005


def _serve(address: str) -> int:
    """Echo datagrams with the time of their arrival; take or send a stream as the first byte asks.

    Ends with stdin. A port written there asks how many datagrams came from it; the link itself might lose the answer.
    """
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    echo.bind((address, 0))
    streams = socket.create_server((address, 0))
    _say([echo.getsockname()[1], streams.getsockname()[1]])
    arrived: dict[int, int] = {}
    while True:
        ready = select.select([echo, streams, sys.stdin], (), ())[0]
        if echo in ready:
            data, sender = echo.recvfrom(2048)
            arrived[sender[1]] = arrived.get(sender[1], 0) + 1
            number, sent_ns, _ = _PROBE.unpack_from(data)
            echo.sendto(_PROBE.pack(number, sent_ns, time.monotonic_ns()), sender)
        if streams in ready:
            # a thread, because datagrams must not wait for a stream
            threading.Thread(target=_stream, args=(streams.accept()[0],), daemon=True).start()
        if sys.stdin in ready:
            line = sys.stdin.readline()
            if not line:
                return 0
            _say(arrived.get(int(line), 0))


def _stream(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError, struct.error, ValueError):
        way, seconds, most_bytes = _ASKED.unpack(connection.recv(_ASKED.size, socket.MSG_WAITALL))
        if way == b"t":
            _answer_train(connection)
        elif way == b"d":
            _send_for(connection, seconds, most_bytes)
        else:
            connection.sendall(json.dumps(_take(connection)).encode())


def _send_for(connection: socket.socket, seconds: float, most_bytes: int) -> None:
    until_s, left_bytes = time.monotonic() + seconds, most_bytes or sys.maxsize
    while left_bytes and time.monotonic() < until_s:
        connection.sendall(_FILL[:left_bytes])
        left_bytes -= min(left_bytes, len(_FILL))
    connection.shutdown(socket.SHUT_WR)


def _answer_train(connection: socket.socket) -> None:
    """The server's part of a train: the first line says in which direction it goes."""
    asked = json.loads(connection.makefile("rb").readline())
    with _datagrams(connection.getsockname()[0]) as udp:
        way, port = asked.pop("way"), asked.pop("port")
        if way == "down":
            _send_train(udp, (connection.getpeername()[0], port), **asked)
            return
        connection.sendall(b"%d\n" % udp.getsockname()[1])
        connection.sendall(json.dumps(_take_train(udp, asked["count"], asked["wait_s"])).encode())


def _datagrams(address: str) -> socket.socket:
    """A socket with room for what comes while its reader pauses, and with the kernel's time stamps."""
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
    """Send datagrams, each when it is due; late ones are sent at once."""
    del wait_s
    start_s = time.monotonic()
    for number in range(count):
        ahead_s = start_s + number * spacing_s - time.monotonic()
        if ahead_s > _LEAST_SLEEP_S:
            time.sleep(ahead_s)
        udp.sendto(_FILL[:size_bytes], target)


def _take_train(udp: socket.socket, count: int, wait_s: float) -> list[int]:
    """When each datagram came, in nanoseconds since the first; all, or those before a silence of ``wait_s``."""
    arrived_ns: list[int] = []
    udp.settimeout(wait_s)
    with contextlib.suppress(TimeoutError):
        while len(arrived_ns) < count:
            _, told, _, _ = udp.recvmsg(2048, 64)
            stamps = [data for level, kind, data in told if (level, kind) == (socket.SOL_SOCKET, _TIMESTAMPNS)]
            seconds, nanoseconds = struct.unpack("qq", stamps[0][:16]) if stamps else (0, time.time_ns())
            arrived_ns.append(seconds * 1_000_000_000 + nanoseconds)
    return [each - arrived_ns[0] for each in arrived_ns]


def _take(connection: socket.socket) -> dict[str, float]:
    """How many bytes came, and the time between the first and the last of them."""
    total, first_bytes, first_s, last_s = 0, 0, 0.0, 0.0
    buffer = bytearray(1 << 20)
    while size := connection.recv_into(buffer):
        last_s = time.monotonic()
        if not total:
            first_s, first_bytes = last_s, size
        total += size
    return {"bytes": total, "timed_bytes": total - first_bytes, "seconds": last_s - first_s}


def _answer(connection: socket.socket) -> Any:
    return json.loads(b"".join(iter(lambda: connection.recv(4096), b"")))


def _say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _probe(address: str, ports: list[int], count: int, spacing_s: float, wait_s: float) -> dict[str, Any]:
    """Send ``count`` numbered datagrams and collect what comes back, until ``wait_s`` after the last."""
    delays: dict[int, tuple[int, int]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        probe.connect((address, ports[0]))
        start_s, sent = time.monotonic(), 0
        until_s = start_s + count * spacing_s + wait_s
        while len(delays) < count:
            now_s = time.monotonic()
            due_s = start_s + sent * spacing_s if sent < count else until_s
            if sent < count and now_s >= due_s:
                probe.send(_PROBE.pack(sent, time.monotonic_ns(), 0))
                sent += 1
            elif now_s >= until_s:
                break
            elif select.select([probe], (), (), due_s - now_s)[0]:
                number, sent_ns, there_ns = _PROBE.unpack(probe.recv(2048))
                delays.setdefault(number, (there_ns - sent_ns, time.monotonic_ns() - there_ns))
        own_port = probe.getsockname()[1]
    up_ns, down_ns = [up for up, _ in delays.values()], [down for _, down in delays.values()]
    return {"port": own_port, "sent": sent, "back": len(delays), "up_ns": up_ns, "down_ns": down_ns}


def _bulk(address: str, port: int, way: str, seconds: float, most_bytes: int, wait_s: float) -> dict[str, float]:
    """One stream for ``seconds``; returns what its receiver saw, nothing if the link was too bad to connect."""
    try:
        with socket.create_connection((address, port), timeout=wait_s) as connection:
            connection.sendall(_ASKED.pack(way[0].encode(), seconds, most_bytes))
            if way == "down":
                return _take(connection)
            _send_for(connection, seconds, most_bytes)
            return dict(_answer(connection))
    except (OSError, ValueError):  # too late, or an answer that was cut off
        return {"bytes": 0, "timed_bytes": 0, "seconds": 0.0}


def _train(address: str, port: int, way: str, **settings: Any) -> dict[str, list[int]]:
    """Send datagrams faster than the link can pass them; returns when each came, nothing if it was too bad."""
    wait_s = settings["wait_s"] + settings["count"] * settings["spacing_s"] * 4
    try:
        with (
            socket.create_connection((address, port), timeout=wait_s) as connection,
            _datagrams(connection.getsockname()[0]) as udp,
        ):
            asked = {**settings, "way": way, "port": udp.getsockname()[1]}
            connection.sendall(_ASKED.pack(b"t", 0.0, 0) + json.dumps(asked).encode() + b"\n")
            if way == "down":
                return {"arrived_ns": _take_train(udp, settings["count"], settings["wait_s"])}
            answers = connection.makefile("rb")
            _send_train(udp, (address, int(answers.readline())), **settings)
            return {"arrived_ns": json.loads(answers.read())}
    except (OSError, ValueError):
        return {"arrived_ns": []}


def _hurry() -> None:
    """Take priority over other processes, if permitted: a busy machine's delays would count as the link's."""
    with contextlib.suppress(OSError):
        os.nice(-15)
        if os.getsid(0) == os.getpid():  # nice works within a session; this is for the whole session
            with open("/proc/self/autogroup", "w", encoding="ascii") as file:
                file.write("-15")


def main(argv: list[str]) -> int:
    """Serve or probe; the exit status."""
    _hurry()
    if argv[0] == "serve":
        return _serve(argv[1])
    address, ports, settings = argv[1], json.loads(argv[2]), json.loads(argv[3])
    if "spacing_s" in settings and "way" in settings:
        _say(_train(address, ports[1], **settings))
    elif "way" in settings:
        _say(_bulk(address, ports[1], **settings))
    else:
        _say(_probe(address, ports, **settings))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
