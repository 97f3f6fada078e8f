"""CPU the emulator needs for one 5 KiB upload over kept-alive TLS, all of its process counted.

``measure()`` answers the figures; run as a script it prints them. The client is a raw TLS socket that sends
each request in one piece, so that it does not compete for the CPU more than it must.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import statistics

from pytest_cloudbench.emulators import RunningEmulator, start

__all__ = ["measure"]

_UPLOADS = 4000
_WARM_UP = 500
_ROUNDS = 3
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


def _uploads(emulator: RunningEmulator, connection: ssl.SSLSocket, first: int, count: int) -> float:
    """CPU seconds of the emulator for so many uploads."""
    requests = [_request(emulator.endpoint.access_token, number) for number in range(first, first + count)]
    before_s = emulator.cpu_s()
    for request in requests:
        connection.sendall(request)
        _answered(connection)
    return emulator.cpu_s() - before_s


def measure() -> dict[str, float]:
    """``emulator_cpu_ms_per_upload``: the median of some rounds of several thousand uploads each."""
    with start("ideal") as emulator:
        context = ssl.create_default_context(cafile=emulator.endpoint.ca_file)
        with (
            socket.create_connection(("127.0.0.1", emulator.endpoint.port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            _uploads(emulator, connection, 0, _WARM_UP)
            rounds = [
                _uploads(emulator, connection, _WARM_UP + number * _UPLOADS, _UPLOADS) / _UPLOADS
                for number in range(_ROUNDS)
            ]
    return {"emulator_cpu_ms_per_upload": statistics.median(rounds) * 1e3}


if __name__ == "__main__":
    print(json.dumps(measure()))
