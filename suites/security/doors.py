"""Doors: servers with one fault each, to see whether a client sends anything through them.

A door counts the bytes that a client sends *after* the handshake. Neither the handshake nor an exit status is a
verdict: some programs finish a handshake and then send nothing. Each door is tried by a client that accepts everything
first, so that a door which nobody could pass is not taken for one that a client refused.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from pytest_cloudbench import parse_client_hello

from .authority import (
    CERTIFICATE_FAULTS,
    GOOD,
    HOST,
    NOT_REVOKED,
    REVOCATION_FAULTS,
    Authority,
    Responder,
    make_certificates,
)

_IDLE_S = 10.0
_HELLO_BYTES = 16384
_MOST_BODY_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 65536
_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

OLD_TLS = "TLS 1.0 and 1.1 only"
TO_PLAIN = "redirect to plain HTTP"

CA_VARIABLES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS", "HTTPLIB2_CA_CERTS",
)  # fmt: skip
"""Variables that would change which authorities a program trusts, so programs do not inherit them."""


@dataclass(slots=True)
class Visits:
    """The traffic that came to a door.

    Attributes:
        hellos: connections that began with a TLS hello.
        offered: versions of TLS that were offered.
        sent_bytes: bytes that came after the handshake.
        plain_bytes: bytes that came without TLS, to where a redirect leads.
        content: all of these bytes.
    """

    hellos: int = 0
    offered: tuple[str, ...] = ()
    sent_bytes: int = 0
    plain_bytes: int = 0
    content: bytearray = field(default_factory=bytearray)


class Door:
    """One server on loopback.

    Args:
        fault: ``GOOD``, one of ``CERTIFICATE_FAULTS``, ``OLD_TLS``, ``TO_PLAIN``, ``NOT_REVOKED`` or one of
            ``REVOCATION_FAULTS``.
        folder: the folder with the files of ``make_certificates``.
        responder: the server that says which certificates are revoked.
    """

    def __init__(self, fault: str, folder: Path, responder: Responder) -> None:
        self.fault, self.visits, self.responder = fault, Visits(), responder
        self._context = _make_context(fault, folder)
        self._listener = socket.create_server((HOST, 0))
        self._plain = socket.create_server((HOST, 0)) if fault == TO_PLAIN else None
        self._connections: set[socket.socket] = set()
        self.has_data = threading.Event()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Door:
        threading.Thread(target=self._accept, args=(self._listener, self._serve_tls), daemon=True).start()
        if self._plain is not None:
            threading.Thread(target=self._accept, args=(self._plain, self._serve_plain), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in filter(None, (self._listener, self._plain)):
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes up the thread that accepts
            listener.close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def is_passable(self) -> bool:
        """Return whether a client that accepts every certificate and version can pass. Its visit does not count."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(ssl.SSLError):
            context.set_ciphers("ALL:@SECLEVEL=0")
        if self.fault == OLD_TLS:
            _allow_old(context)
        host, _, port = self.address.partition(":")
        try:
            with (
                socket.create_connection((host, int(port)), timeout=_IDLE_S) as raw,
                context.wrap_socket(raw, server_hostname=HOST) as connection,
            ):
                connection.sendall(b"GET /probe HTTP/1.1\r\nhost: door\r\n\r\n")
                passed = connection.recv(64).startswith(b"HTTP/1.1 ")
        except OSError:
            return False
        self.visits = Visits()
        self.has_data.clear()
        return passed

    # --- threads ---

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, serve), daemon=True).start()

    def _serve(self, connection: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        connection.settimeout(_IDLE_S)
        self._connections.add(connection)
        try:
            with connection, suppress(OSError):
                serve(connection)
        finally:
            self._connections.discard(connection)

    def _serve_tls(self, connection: socket.socket) -> None:
        visits = self.visits
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            visits.hellos += 1
            hello = parse_client_hello(connection.recv(_HELLO_BYTES, socket.MSG_PEEK))
            visits.offered = hello.versions if hello is not None else visits.offered
        with self._context.wrap_socket(connection, server_side=True) as stream:
            answer = _FORBIDDEN
            if self._plain is not None:
                plain_url = f"http://{HOST}:{self._plain.getsockname()[1]}"
                answer = (
                    b"HTTP/1.1 307 Temporary Redirect\r\nlocation: %s%%s\r\n" % plain_url.encode()
                    + b"content-length: 0\r\nconnection: close\r\n\r\n"
                )
            self._answer(stream, visits, answer)

    def _serve_plain(self, connection: socket.socket) -> None:
        self._answer(connection, self.visits, _FORBIDDEN, is_plain=True)

    def _answer(self, stream: socket.socket, visits: Visits, answer: bytes, *, is_plain: bool = False) -> None:
        """Read one request, send ``100 Continue`` if the client waits for it, count the bytes, and answer."""
        data = bytearray()

        def receive() -> bool:
            piece = stream.recv(_PIECE_BYTES)
            data.extend(piece)
            visits.content += piece
            if is_plain:
                visits.plain_bytes += len(piece)
            else:
                visits.sent_bytes += len(piece)
            if piece:
                self.has_data.set()
            return bool(piece)

        while b"\r\n\r\n" not in data:
            if not receive():
                return
        head, _, _ = bytes(data).partition(b"\r\n\r\n")
        if re.search(rb"(?i)\r\nexpect:\s*100-continue", head):
            stream.sendall(_CONTINUE)
        length = re.search(rb"(?i)\r\ncontent-length:\s*(\d+)", head)
        is_chunked = re.search(rb"(?i)\r\ntransfer-encoding:\s*chunked", head) is not None
        most_bytes = _MOST_BODY_BYTES if is_chunked else min(int(length[1]) if length else 0, _MOST_BODY_BYTES)
        while len(data) - len(head) - 4 < most_bytes and not (is_chunked and data.endswith(b"0\r\n\r\n")):
            if not receive():
                break
        target = head.split(b" ", 2)[1] if head.count(b" ") >= 2 else b"/"
        stream.sendall(answer % target if b"%s" in answer else answer)
        with suppress(OSError):
            stream.shutdown(socket.SHUT_WR)


def _make_context(fault: str, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    name = fault if fault in (*CERTIFICATE_FAULTS, NOT_REVOKED, *REVOCATION_FAULTS) else GOOD
    context.load_cert_chain(folder / f"{name}.pem")
    if fault == OLD_TLS:
        _allow_old(context)
    return context


def _allow_old(context: ssl.SSLContext) -> None:
    with warnings.catch_warnings():  # Python itself advises against these versions
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")


@contextmanager
def open_doors() -> Iterator[tuple[Callable[[str], Door], str]]:
    """Yield a function that makes a door for a fault, and the path of the authority that clients trust."""
    authority = Authority()
    with TemporaryDirectory(prefix="cloudbench-doors-") as name, Responder(authority) as responder:
        folder = Path(name)
        make_certificates(folder, authority, responder)
        yield lambda fault: Door(fault, folder, responder), str(folder / "ca.pem")
