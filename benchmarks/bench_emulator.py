"""CPU time of an emulator's whole process for one 5 KiB upload over kept-alive TLS, skin by skin.

The reference is the smallest ASGI application on the same server (``smallest_asgi.py``); the two take turns with the
same requests. The client is a raw TLS socket that sends each request in one piece, so that it uses as little CPU as
possible.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from benchmarks.harness import ROOT, Figure, alternating, environment, measure_growth, median, python
from pytest_cloudbench.emulators import start_emulator

__all__ = ["measure"]

_UPLOADS = 1000
_BLOCKS = 6
_BODY = os.urandom(5 * 1024)


def _dropbox(token: str, number: int) -> bytes:
    argument = json.dumps({"path": f"/bench/sensor-{number % 50}/{number}.bin", "mode": "add", "mute": True})
    head = (
        "POST /2/files/upload HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: OfficialDropboxPythonSDKv2/12.0\r\n"
        "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/octet-stream\r\n"
        f"Dropbox-API-Arg: {argument}\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    )
    return head.encode() + _BODY


def _box(token: str, number: int) -> bytes:
    attributes = json.dumps({"name": f"{number}.bin", "parent": {"id": "0"}})
    body = (
        f'--4711\r\nContent-Disposition: form-data; name="attributes"\r\n\r\n{attributes}\r\n--4711\r\n'
        f'Content-Disposition: form-data; name="file"; filename="{number}.bin"\r\n\r\n'
    ).encode() + _BODY + b"\r\n--4711--\r\n"  # fmt: skip
    head = (
        "POST /api/2.0/files/content HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: box-python-generated-sdk-10.18.0\r\n"
        "Accept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n"
        "X-Box-UA: agent=box-python-generated-sdk/10.18.0; env=python/3.11.7\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: multipart/form-data; boundary=4711\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _onedrive(token: str, number: int) -> bytes:
    head = (
        f"PUT /v1.0/me/drive/root:/bench/sensor-{number % 50}/{number}.bin:/content HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nuser-agent: pytest-cloudbench\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(_BODY)}\r\n\r\n"
    )
    return head.encode() + _BODY


def _gdrive(token: str, number: int) -> bytes:
    metadata = json.dumps({"name": f"{number}.bin", "parents": ["root"]})
    body = (
        f"--===4711==\r\nContent-Type: application/json\r\nMIME-Version: 1.0\r\n\r\n{metadata}\r\n--===4711==\r\n"
        "Content-Type: application/octet-stream\r\nMIME-Version: 1.0\r\nContent-Transfer-Encoding: binary\r\n\r\n"
    ).encode() + _BODY + b"\r\n--===4711==--"  # fmt: skip
    head = (
        "POST /upload/drive/v3/files?fields=id%2Cname%2CmimeType%2Csize%2Cmd5Checksum%2CheadRevisionId"
        "&supportsAllDrives=true&alt=json&uploadType=multipart HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "accept: application/json\r\naccept-encoding: gzip, deflate\r\nuser-agent: (gzip)\r\n"
        "x-goog-api-client: gdcl/2.202.0 gl-python/3.11.7\r\n"
        f'authorization: Bearer {token}\r\ncontent-type: multipart/related; boundary="===4711=="\r\n'
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_SKINS: Mapping[str, tuple[str, float, Callable[[str, int], bytes]]] = {
    "emulator_over_asgi": ("dropbox", 1.5, _dropbox),
    "emulator_over_asgi_box": ("box", 1.5, _box),
    "emulator_over_asgi_gdrive": ("gdrive", 1.5, _gdrive),
    "emulator_over_asgi_onedrive": ("onedrive", 1.5, _onedrive),
}
"""For each figure, the API, the bound, and a function that makes an upload's request from a token and a number."""


def _receive(connection: ssl.SSLSocket) -> bytes:
    """Return the next bytes. Raises RuntimeError if the server has closed, so that no loop is endless."""
    if piece := connection.recv(65536):
        return piece
    raise RuntimeError("the server has closed the connection")


def _read_answer(connection: ssl.SSLSocket) -> None:
    """Read one answer to its end. Raises RuntimeError if it is not a success."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(f"unexpected answer: {data[:200]!r}")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += _receive(connection)


@contextmanager
def _connected(port: int, ca_file: str) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=ca_file)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


def _cpu_ms(pid: int, connection: ssl.SSLSocket, requests: Sequence[bytes]) -> float:
    """Return a server's CPU per request, in milliseconds."""
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3): the whole process's CPU clock
    before_s = time.clock_gettime(clock)
    for request in requests:
        connection.sendall(request)
        _read_answer(connection)
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
    """``emulator_over_asgi``, and the same for the other skins."""
    return [_measure_one(name, runs) for name in names if name in _SKINS]


def _measure_one(name: str, runs: int) -> Figure:
    api, bound, request = _SKINS[name]
    numbers = itertools.count()
    with start_emulator("ideal", api=api) as emulator, _smallest() as other:
        token, pid = emulator.endpoint.credentials["access_token"], emulator.child.pid
        with (
            _connected(urlsplit(emulator.endpoint.url).port or 0, emulator.endpoint.ca_file) as ours,
            _connected(int(other["port"]), str(other["ca_file"])) as theirs,
        ):

            def requests(count: int = _UPLOADS) -> list[bytes]:
                return [request(token, number) for number in itertools.islice(numbers, count)]

            blocks = alternating(
                lambda: _cpu_ms(pid, ours, requests()),
                lambda: _cpu_ms(int(other["pid"]), theirs, requests()),
                _BLOCKS * runs,
            )
            growth = measure_growth("uploads", 100, lambda count: _cpu_ms(pid, ours, requests(count)) * count / 1e3)
    absolute = {"emulator, ms CPU / upload": median(blocks.ours),
                "smallest application, ms CPU / upload": median(blocks.reference)}  # fmt: skip
    return Figure(name, blocks.ratio, "CPU / CPU of the smallest application", bound,
                  details=blocks.details(), absolute=absolute, growth=growth)  # fmt: skip
