"""CPU time of MEGA's emulator for one 5 KiB upload over kept-alive TLS.

An upload takes three requests: where to send, the content, the node. The reference is the smallest ASGI application
with requests of the same bytes; the two take turns. Otherwise as ``bench_emulator``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from benchmarks import bench_emulator
from benchmarks.harness import Figure, alternating, measure_growth, median
from pytest_cloudbench.emulators import start_emulator

__all__ = ["measure"]

_UPLOADS = 400
_BLOCKS = 6
_BODY = os.urandom(5 * 1024)
_ATTRIBUTES, _KEY = (base64.urlsafe_b64encode(os.urandom(size)).rstrip(b"=").decode() for size in (48, 32))


def _request(target: str, body: bytes, kind: str) -> bytes:
    head = (
        f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: async-mega-py/2.5.0\r\nAccept: */*\r\n"
        f"Accept-Encoding: gzip, deflate\r\nContent-Length: {len(body)}\r\nContent-Type: {kind}\r\n\r\n"
    )
    return head.encode() + body


def _ask(connection: ssl.SSLSocket, request: bytes) -> bytes:
    """Return the body of the answer. Raises RuntimeError if it is not a success."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"unexpected answer: {data[:200]!r}")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65536)
    return body


class _Client:
    """A logged-in client without its cryptography, which makes no difference to the server."""

    def __init__(self, connection: ssl.SSLSocket, session: str, parent: str) -> None:
        self._connection, self._parent, self._target = connection, parent, f"/cs?id=1&sid={session}"

    def _command(self, **command: object) -> bytes:
        return _request(self._target, json.dumps([command]).encode(), "application/json")

    def upload(self, *, is_answered: bool) -> None:
        """Upload once. If the server gives no address or handle, made-up ones of the same length are sent instead."""
        answer = _ask(self._connection, self._command(a="u", s=len(_BODY)))
        path = urlsplit(json.loads(answer)[0]["p"]).path if is_answered else "/ul/" + "x" * 48
        handle = _ask(self._connection, _request(f"{path}/0", _BODY, "application/octet-stream"))
        entry = {"h": handle.decode() if is_answered else "x" * 48, "t": 0, "a": _ATTRIBUTES, "k": _KEY}
        _ask(self._connection, self._command(a="p", t=self._parent, i="x" * 10, n=[entry]))


def _cpu_s(pid: int, upload: Callable[[], None], count: int) -> float:
    clock = (~pid << 3) | 2  # clock_getcpuclockid(3): the whole process's CPU clock
    before_s = time.clock_gettime(clock)
    for _ in range(count):
        upload()
    return time.clock_gettime(clock) - before_s


def _login(connection: ssl.SSLSocket, email: str, password: str) -> tuple[str, str]:
    """Return a session, and the handle of the cloud drive."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    def ask(session: str = "", **command: object) -> dict[str, str]:
        target = f"/cs?id=1{session and f'&sid={session}'}"
        body = _ask(connection, _request(target, json.dumps([command]).encode(), "application/json"))
        answer: dict[str, str] = json.loads(body)[0]
        return answer

    def decode(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    def decrypt(key: bytes, text: str) -> bytes:
        return Cipher(algorithms.AES(key), modes.ECB()).decryptor().update(decode(text))

    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), decode(ask(a="us0", user=email)["s"]), 100_000, 32)
    login = ask(a="us", user=email, uh=base64.urlsafe_b64encode(derived[16:]).rstrip(b"=").decode())
    private, numbers = decrypt(decrypt(derived[:16], login["k"]), login["privk"]), []
    for _ in range(3):
        length = (int.from_bytes(private[:2], "big") + 7) // 8
        numbers.append(int.from_bytes(private[2 : 2 + length], "big"))
        private = private[2 + length :]
    opened = pow(int.from_bytes(decode(login["csid"])[2:], "big"), numbers[2], numbers[0] * numbers[1])
    session = base64.urlsafe_b64encode(opened.to_bytes(255, "big")[:43]).rstrip(b"=").decode()
    nodes: list[dict[str, str]] = ask(session, a="f", c=1)["f"]  # type: ignore[assignment]  # the only answer with a list
    return session, nodes[0]["h"]


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    """``emulator_over_asgi_mega``."""
    with (
        start_emulator("mega-ideal") as emulator,
        bench_emulator._smallest() as other,
        bench_emulator._connected(urlsplit(emulator.endpoint.url).port or 0, emulator.endpoint.ca_file) as ours,
        bench_emulator._connected(int(other["port"]), str(other["ca_file"])) as theirs,
    ):
        session, root = _login(ours, *emulator.endpoint.credentials.values())
        client, reference = _Client(ours, session, root), _Client(theirs, session, root)

        def ours_cpu_s(count: int) -> float:
            return _cpu_s(emulator.child.pid, lambda: client.upload(is_answered=True), count)

        blocks = alternating(
            lambda: ours_cpu_s(_UPLOADS) / _UPLOADS * 1e3,
            lambda: _cpu_s(int(other["pid"]), lambda: reference.upload(is_answered=False), _UPLOADS) / _UPLOADS * 1e3,
            _BLOCKS * runs,
        )
        growth = measure_growth("uploads", 100, ours_cpu_s)
    absolute = {"emulator, ms CPU / upload of 3 requests": median(blocks.ours),
                "smallest application, ms CPU / 3 requests": median(blocks.reference)}  # fmt: skip
    return [Figure("emulator_over_asgi_mega", blocks.ratio, "CPU / CPU of the smallest application", 1.5,
                   details=blocks.details(), absolute=absolute, growth=growth)]  # fmt: skip
