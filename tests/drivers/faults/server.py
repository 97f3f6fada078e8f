"""A raw HTTPS server on loopback that answers every request with a fault.

It has several doors, each with a port of its own: one with proper TLS, one without TLS, one with a certificate for
another host, one with a certificate of another authority, one with an expired certificate, one that never completes the
handshake, one that resets at once, and one on another host, to which redirects lead. It counts connections and
requests, and puts the caller's own secrets into its answers: ``{echo}`` in a body or a header stands for the whole head
of a request.
"""

from __future__ import annotations

import datetime
import secrets
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme

__all__ = ["DOORS", "Answer", "Asked", "FaultServer", "fault_server"]

DOORS = ("right", "plain", "wrong_name", "wrong_authority", "ended", "mute", "resetting", "elsewhere")
_MOST_HEAD_BYTES = 256 * 1024
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without lingering: closing sends RST instead of FIN."""


@dataclass(frozen=True)
class Answer:
    """The server's answer to every request, and its next action.

    Attributes:
        status: None sends the body alone, without any HTTP.
        body: may hold ``{echo}``, ``{path}`` (the requested path) and ``{id}`` (a new one for each request).
        headers: besides content-length; values may hold ``{echo}`` and ``{elsewhere}`` (host and port of that door).
        promised: the number of bytes by which the announced length of the body exceeds the real one.
        then: ``keep`` the connection, ``close``, ``reset``, or ``hold`` it and send no more.
        at_head: whether it answers after the request's head, before the body has arrived.
    """

    status: int | None = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    promised: int = 0
    then: str = "keep"
    at_head: bool = False


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    door: str
    line: str
    head: str


@dataclass
class FaultServer:
    """A running server: its answer, and the requests to it."""

    ca_file: str
    ports: dict[str, int] = field(default_factory=dict)
    answer: Answer = field(default_factory=Answer)
    requests: list[Asked] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def url(self, door: str = "right") -> str:
        """Return the URL of a door. The door on another host has another host name."""
        host = "localhost" if door == "elsewhere" else "127.0.0.1"
        return f"{'http' if door == 'plain' else 'https'}://{host}:{self.ports[door]}"

    def say(self, answer: Answer) -> None:
        """Give this answer to all further requests, and forget the earlier requests."""
        self.answer = answer
        self.requests.clear()
        self.connections.clear()


class _Talk:
    """One connection's conversation."""

    def __init__(self, server: FaultServer, door: str, link: socket.socket) -> None:
        self._server, self._door, self._link, self._rest = server, door, link, b""

    def run(self) -> None:
        while (head := self._head()) is not None:
            line, _, fields = head.partition("\r\n")
            answer = self._server.answer
            self._server.requests.append(Asked(self._door, line, head))
            if not answer.at_head and not self._body(fields):
                return
            if not self._say(answer, head, line.startswith("HEAD ")):
                return

    def _head(self) -> str | None:
        """Read the next request's head. Return None if the peer has gone."""
        while b"\r\n\r\n" not in self._rest:
            piece = self._link.recv(65536)
            if not piece or len(self._rest) > _MOST_HEAD_BYTES:
                return None
            self._rest += piece
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def _body(self, fields: str) -> bool:
        """Read the request's body, and return whether all of it arrived."""
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields.split("\r\n"))
        }
        if headers.get("expect", "").lower() == "100-continue":
            self._link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            while b"0\r\n\r\n" not in self._rest[-7:]:
                piece = self._link.recv(65536)
                if not piece:
                    return False
                self._rest = self._rest[-7:] + piece
            self._rest = b""
            return True
        missing = int(headers.get("content-length", "0")) - len(self._rest)
        while missing > 0:
            piece = self._link.recv(65536)
            if not piece:
                return False
            missing -= len(piece)
        self._rest = b""
        return True

    def _say(self, answer: Answer, head: str, is_head: bool) -> bool:
        """Send the answer, and return whether the connection continues."""
        echo = " ".join(head.split())
        body = answer.body.replace(b"{echo}", echo.encode("latin-1"))
        body = body.replace(b"{path}", head.split(" ", 2)[1].encode("latin-1"))
        body = body.replace(b"{id}", secrets.token_hex(8).upper().encode())
        if answer.status is not None:
            elsewhere = f"localhost:{self._server.ports['elsewhere']}"
            fields = {"content-length": str(len(body) + answer.promised), **answer.headers}
            lines = [f"HTTP/1.1 {answer.status} Said"]
            lines += [
                f"{name}: {value.replace('{echo}', echo).replace('{elsewhere}', elsewhere)}"
                for name, value in fields.items()
            ]
            body = "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if is_head else body)
        if body:
            self._link.sendall(body)
        if answer.then == "hold":
            self._server._over.wait()
        if answer.then == "reset":
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return answer.then == "keep"


def _contexts(folder: Path) -> dict[str, ssl.SSLContext]:
    """Return each door's TLS context with its certificate."""
    ours, other = trustme.CA(key_type=trustme.KeyType.ECDSA), trustme.CA(key_type=trustme.KeyType.ECDSA)
    ours.cert_pem.write_to_path(str(folder / "ca.pem"))
    ended = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    leaves = {
        "right": ours.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA),
        "wrong_name": ours.issue_cert("other.example", key_type=trustme.KeyType.ECDSA),
        "wrong_authority": other.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA),
        "ended": ours.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA, not_after=ended),
        "elsewhere": ours.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA),
    }
    contexts = {}
    for door, leaf in leaves.items():
        contexts[door] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(contexts[door])
    return contexts


@contextmanager
def fault_server(folder: Path) -> Iterator[FaultServer]:
    """Run a server with all its doors. Its threads end afterwards, even with hanging connections."""
    contexts = _contexts(folder)
    server = FaultServer(str(folder / "ca.pem"))
    open_links: set[socket.socket] = set()
    lock = threading.Lock()

    def serve(door: str, link: socket.socket) -> None:
        try:
            if door == "resetting":
                link.recv(1)  # the beginning of a handshake
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif door == "mute":
                server._over.wait()
            else:
                stream = link if door == "plain" else contexts[door].wrap_socket(link, server_side=True)
                with lock:
                    open_links.add(stream)
                try:
                    _Talk(server, door, stream).run()
                finally:
                    with lock:
                        open_links.discard(stream)
                    # Without TLS's close_notify, as if the network had broken.
                    socket.close(stream.detach())
        except OSError:
            pass  # some tests are about clients that hang up or distrust a certificate
        finally:
            with suppress(OSError):
                link.close()

    def accept(door: str, listener: socket.socket) -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            server.connections.append(door)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=serve, args=(door, link), daemon=True).start()

    listeners = {door: socket.create_server(("127.0.0.1", 0), backlog=64) for door in DOORS}
    server.ports = {door: listener.getsockname()[1] for door, listener in listeners.items()}
    closed = socket.socket()  # its port is taken, and nobody listens there
    closed.bind(("127.0.0.1", 0))
    server.ports["closed"] = closed.getsockname()[1]
    for door, listener in listeners.items():
        threading.Thread(target=accept, args=(door, listener), daemon=True).start()
    try:
        yield server
    finally:
        server._over.set()
        closed.close()
        for listener in listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
            listener.close()
        with lock:
            for link in open_links:
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
