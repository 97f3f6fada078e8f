"""CPU the emulator needs for one 5 KiB upload over kept-alive TLS, all of its process counted.

The reference is the smallest ASGI application on the same server (``smallest_asgi.py``); it gets the same requests in
turns. The client is a raw TLS socket that sends each request in one piece, so that it competes for the CPU no more than
it must.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.harness import ROOT, Figure, alternating, environment, median, python
from pytest_cloudbench.emulators import start

__all__ = ["measure"]

_UPLOADS = 1000
_BLOCKS = 6
_BODY = os.urandom(5 * 1024)


def _request(token: str, number: int) -> bytes:
    argument = json.dumps({"path": f"/bench/sensor-{number % 50}/{number}.bin", "mode": "add", "mute": True})
    head = (
        "POST /2/files/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: OfficialDropboxPythonSDKv2/12.0\r\n"
        "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/octet-stream\r\n"
        f"Dropbox-API-Arg: {argument}\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    )
    return head.encode() + _BODY


def _answered(connection: ssl.SSLSocket) -> None:
    """Read one answer to its end. Raises RuntimeError when it is no success."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"unexpected answer: {data[:200]!r}")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)


@contextmanager
def _connected(port: int, ca_file: str) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=ca_file)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


def _cpu_ms(pid: int, connection: ssl.SSLSocket, requests: Sequence[bytes]) -> float:
    """CPU of a server per request, milliseconds."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3): the whole process's CPU clock
    before_s = time.clock_gettime(clock)
    for request in requests:
        connection.sendall(request)
        _answered(connection)
    return (time.clock_gettime(clock) - before_s) / len(requests) * 1e3


@contextmanager
def _smallest() -> Iterator[dict[str, str | int]]:
    command = python("-m", "benchmarks.smallest_asgi")
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment(**path), stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``emulator_over_asgi``."""
    numbers = itertools.count()
    with start("ideal") as emulator, _smallest() as other:
        token, pid = emulator.endpoint.access_token, emulator.endpoint.pid
        with (
            _connected(emulator.endpoint.port, emulator.endpoint.ca_file) as ours,
            _connected(int(other["port"]), str(other["ca_file"])) as theirs,
        ):

            def requests() -> list[bytes]:
                return [_request(token, number) for number in itertools.islice(numbers, _UPLOADS)]

            blocks = alternating(
                lambda: _cpu_ms(pid, ours, requests()),
                lambda: _cpu_ms(int(other["pid"]), theirs, requests()),
                _BLOCKS * runs,
            )
    absolute = {"emulator, ms CPU / upload": median(blocks.ours),
                "smallest application, ms CPU / upload": median(blocks.reference)}  # fmt: skip
    return [Figure("emulator_over_asgi", blocks.ratio, "CPU / CPU of the smallest application", 2.3,
                   details=blocks.details(), absolute=absolute)]  # fmt: skip
