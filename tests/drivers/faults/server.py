"""A raw HTTPS server on loopback that is faulty, whatever it is asked.

It has several doors, each with a port of its own: one that keeps the rules of TLS, a plain one without, one whose
certificate is for another host, one of another authority, one whose certificate has expired, one that never completes
the handshake, one that resets at once, and one on another host, to which redirects lead. It counts connections and
requests, and puts the caller's own secrets into what it says: ``{echo}`` in a body or a header is everything that a
request's head held.
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
    """What the server answers to every request, and what it does then.

    Attributes:
        status: None says nothing of HTTP at all: the body goes out as it is.
        body: may hold ``{echo}``, ``{path}`` (what was asked for) and ``{id}`` (another one for each request).
        headers: besides content-length; values may hold ``{echo}`` and ``{elsewhere}`` (host and port of that door).
        promised: by how many bytes the announced length of the body exceeds the real one.
        then: ``keep`` the connection, ``close``, ``reset``, or ``hold`` it and say no more.
        at_head: answers once the head has come, before the body has.
    """

    status: int | None = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    promised: int = 0
    then: str = "keep"
    at_head: bool = False


@dataclass(frozen=True)
class Asked:
    """One request, as it came."""

    door: str
    line: str
    head: str


@dataclass
class FaultServer:
    """A running server: what it answers, and what it was asked."""

    ca_file: str
    ports: dict[str, int] = field(default_factory=dict)
    answer: Answer = field(default_factory=Answer)
    asked: list[Asked] = field(default_factory=list)
    connections: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def url(self, door: str = "right") -> str:
        """Where a door is. The one on another host has another host name."""
        host = "localhost" if door == "elsewhere" else "127.0.0.1"
        return f"{'http' if door == 'plain' else 'https'}://{host}:{self.ports[door]}"

    def say(self, answer: Answer) -> None:
        """From now on, answer this; forget what was asked."""
        self.answer = answer
        self.asked.clear()
        self.connections.clear()


class _Talk:
    """One connection's conversation."""

    def __init__(self, server: FaultServer, door: str, link: socket.socket) -> None:
        self._server, self._door, self._link, self._rest = server, door, link, b""

    def run(self) -> None:
        while (head := self._head()) is not None:
            line, _, fields = head.partition("\r\n")
            said = self._server.answer
            self._server.asked.append(Asked(self._door, line, head))
            if not said.at_head and not self._body(fields):
                return
            if not self._say(said, head, line.startswith("HEAD ")):
                return

    def _head(self) -> str | None:
        """The next request's head; None once the peer has gone."""
        while b"\r\n\r\n" not in self._rest:
            piece = self._link.recv(65536)
            if not piece or len(self._rest) > _MOST_HEAD_BYTES:
                return None
            self._rest += piece
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        return head.decode("latin-1")

    def _body(self, fields: str) -> bool:
        """Read the request's body; returns whether all of it came."""
        known = {
            name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields.split("\r\n"))
        }
        if known.get("expect", "").lower() == "100-continue":
            self._link.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in known.get("transfer-encoding", "").lower():
            while b"0\r\n\r\n" not in self._rest[-7:]:
                piece = self._link.recv(65536)
                if not piece:
                    return False
                self._rest = self._rest[-7:] + piece
            self._rest = b""
            return True
        missing = int(known.get("content-length", "0")) - len(self._rest)
        while missing > 0:
            piece = self._link.recv(65536)
            if not piece:
                return False
            missing -= len(piece)
        self._rest = b""
        return True

    def _say(self, said: Answer, head: str, is_head: bool) -> bool:
        """Answer; returns whether the connection continues."""
        echo = " ".join(head.split())
        body = said.body.replace(b"{echo}", echo.encode("latin-1"))
        body = body.replace(b"{path}", head.split(" ", 2)[1].encode("latin-1"))
        body = body.replace(b"{id}", secrets.token_hex(8).upper().encode())
        if said.status is not None:
            elsewhere = f"localhost:{self._server.ports['elsewhere']}"
            fields = {"content-length": str(len(body) + said.promised), **said.headers}
            lines = [f"HTTP/1.1 {said.status} Said"]
            lines += [
                f"{name}: {value.replace('{echo}', echo).replace('{elsewhere}', elsewhere)}"
                for name, value in fields.items()
            ]
            body = "\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if is_head else body)
        if body:
            self._link.sendall(body)
        if said.then == "hold":
            self._server._over.wait()
        if said.then == "reset":
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return said.then == "keep"


def _contexts(folder: Path) -> dict[str, ssl.SSLContext]:
    """Each door's certificate."""
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
    found = {}
    for door, leaf in leaves.items():
        found[door] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        leaf.configure_cert(found[door])
    return found


@contextmanager
def fault_server(folder: Path) -> Iterator[FaultServer]:
    """A server with all its doors; ends its threads, whatever hangs on them."""
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
                talking = link if door == "plain" else contexts[door].wrap_socket(link, server_side=True)
                with lock:
                    open_links.add(talking)
                try:
                    _Talk(server, door, talking).run()
                finally:
                    with lock:
                        open_links.discard(talking)
                    # Without TLS's close_notify, as if the network had broken.
                    socket.close(talking.detach())
        except OSError:
            pass  # clients that hang up, or distrust a certificate, are what this is about
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
