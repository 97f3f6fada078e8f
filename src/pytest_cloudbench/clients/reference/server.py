"""The server half of the reference client: a small HTTPS server in a process of its own.

What may live here: connections, requests and their counters. What is kept is in ``store``.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import sys
import threading
import traceback
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl

from pytest_cloudbench.clients.reference.protocol import Entry, Limited, WireError, answer, read_head
from pytest_cloudbench.clients.reference.settings import Settings
from pytest_cloudbench.clients.reference.store import ConflictError, Store

__all__ = ["STATS", "Server", "main"]

STATS = "stats.sock"
"""A socket in the server's own folder. Who connects is told the counters as JSON; no byte of it is counted."""
_BACKLOG = 128
_TCP_INFO_BYTES = 136
_BYTES_RECEIVED_AT = 128


class _Refused(Exception):
    """Answered with a status that is not 200."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Server:
    """One server; every connection has a thread.

    Args:
        config: ``address``, ``port``, ``certificate`` (path of key and chain), ``token``, ``stored``, ``private``
            (paths) and ``settings``.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        settings = Settings(**config["settings"])
        self._store = Store(Path(config["stored"]), Path(config["private"]), settings)
        self._token: str = config["token"]
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(config["certificate"])
        family = socket.AF_INET6 if ":" in config["address"] else socket.AF_INET
        self._listener = socket.create_server((config["address"], config["port"]), family=family, backlog=_BACKLOG)
        self._counting = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._connections = 0
        self._body_bytes = 0
        self._closed_received_bytes = 0
        self._open: set[socket.socket] = set()

    def serve(self) -> None:
        """Accept connections until the process ends."""
        with suppress(FileNotFoundError):
            os.unlink(STATS)
        with socket.socket(socket.AF_UNIX) as asked:
            asked.bind(STATS)
            asked.listen()
            threading.Thread(target=self._tell, args=(asked,), daemon=True).start()
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def counters(self) -> dict[str, Any]:
        """What came so far.

        ``connections`` accepted; ``requests`` by path; ``body_bytes`` of them; ``received_bytes``: TCP payload
        with TLS and heads, each byte once, as the kernel counts it.
        """
        with self._counting:
            received_bytes = self._closed_received_bytes + sum(_received_bytes(one) for one in self._open)
            return {
                "connections": self._connections,
                "requests": dict(self._requests),
                "body_bytes": self._body_bytes,
                "received_bytes": received_bytes,
            }

    # --- inside -----------------------------------------------------------------------------------

    def _tell(self, asked: socket.socket) -> None:
        while True:
            one, _ = asked.accept()
            with one, suppress(OSError):
                one.sendall(json.dumps(self.counters()).encode())

    def _connection(self, raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A duplicate, since TLS takes the socket itself away.
        counted = raw.dup()
        with self._counting:
            self._connections += 1
            self._open.add(counted)
        try:
            with self._tls.wrap_socket(raw, server_side=True) as connection, connection.makefile("rb") as file:
                while self._request(connection, file):
                    pass
        except (OSError, WireError) as error:
            _log(f"a connection ended: {error}")
        finally:
            with self._counting:
                self._closed_received_bytes += _received_bytes(counted)
                self._open.remove(counted)
            counted.close()

    def _request(self, connection: ssl.SSLSocket, file: IO[bytes]) -> bool:
        """Answer one request; False when there is none any more."""
        found = read_head(file)
        if found is None:
            return False
        line, headers, length_bytes = found
        method, _, rest = line.partition(" ")
        path, _, query = rest.partition(" ")[0].partition("?")
        with self._counting:
            self._requests[path] += 1
            self._body_bytes += length_bytes
        body = Limited(file, length_bytes)
        try:
            if headers.get("authorization") != f"Bearer {self._token}":
                raise _Refused(HTTPStatus.UNAUTHORIZED, "the token is wrong")
            status, said = HTTPStatus.OK, self._answer(f"{method} {path}", dict(parse_qsl(query)), body)
        except _Refused as refused:
            status, said = refused.status, str(refused).encode()
        except ConflictError as error:
            status, said = HTTPStatus.CONFLICT, str(error).encode()
        except (OSError, ValueError) as error:
            if isinstance(error, (ConnectionError, ssl.SSLError)):
                raise
            _log(traceback.format_exc())
            status, said = HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}".encode()
        body.drain()
        connection.sendall(answer(status, said))
        return True

    def _answer(self, what: str, query: dict[str, str], body: Limited) -> bytes:
        if what == "GET /list":
            return json.dumps(self._store.files()).encode()
        if what == "GET /poll":
            return json.dumps({"changes": self._store.changes}).encode()
        if what == "POST /have":
            asked = body.read(body.left_bytes)
            return self._store.have([asked[at : at + 32] for at in range(0, len(asked), 32)])
        if what == "POST /signatures":
            return b"".join(self._store.signature(path) for path in json.loads(body.read(body.left_bytes)))
        if what == "POST /chunk":
            self._store.add_chunk(query.get("session", ""), int(query.get("at", "0")), body, query.get("encoding", ""))
            return b"null"
        if what == "POST /files":
            said = []
            while body.left_bytes:
                said.append(self._store.take(Entry.read(body), body))
            return json.dumps(said).encode()
        raise _Refused(HTTPStatus.NOT_FOUND, f"there is no {what}")


def _received_bytes(connection: socket.socket) -> int:
    """Payload that the kernel has taken in on a connection (linux/tcp.h: tcpi_bytes_received)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    received_bytes: int = struct.unpack_from("Q", info, _BYTES_RECEIVED_AT)[0]
    return received_bytes


def _log(text: str) -> None:
    sys.stderr.write(f"{text.rstrip()}\n")
    sys.stderr.flush()


def main(config: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    Server(config).serve()
