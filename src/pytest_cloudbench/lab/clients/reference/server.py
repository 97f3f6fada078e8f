"""The server half of the reference client: a small HTTPS server in a process of its own.

It has connections, requests and their counters. ``store`` keeps the content.
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
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl

from pytest_cloudbench.lab.clients.reference.protocol import Limited, UploadEntry, WireError, format_answer, read_head
from pytest_cloudbench.lab.clients.reference.settings import Settings
from pytest_cloudbench.lab.clients.reference.store import ConflictError, Store

STATS = "stats.sock"
"""A socket in the server's own folder. Whoever connects gets the counters as JSON. These bytes are not counted."""
_BACKLOG = 128
_TCP_INFO_BYTES = 136
_BYTES_ACKED_AT = 120


class _RefusedError(Exception):
    """The request is answered with a status other than 200."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class _Tally:
    """The traffic with the client, or with its second device."""

    connections: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    body_bytes: int = 0
    open: set[socket.socket] = field(default_factory=set)
    closed_received_bytes: int = 0
    closed_sent_bytes: int = 0

    def begin(self, connection: socket.socket) -> None:
        self.connections += 1
        self.open.add(connection)

    def leave_to(self, other: _Tally, connection: socket.socket) -> None:
        self.connections -= 1
        self.open.remove(connection)
        other.begin(connection)

    def end(self, connection: socket.socket) -> None:
        sent_bytes, received_bytes = _payload_bytes(connection)
        self.closed_sent_bytes += sent_bytes
        self.closed_received_bytes += received_bytes
        self.open.remove(connection)

    def as_dict(self) -> dict[str, Any]:
        open_bytes = [_payload_bytes(connection) for connection in self.open]
        sent_bytes, received_bytes = (sum(column) for column in zip((0, 0), *open_bytes, strict=True))
        return {
            "connections": self.connections,
            "requests": dict(self.requests),
            "body_bytes": self.body_bytes,
            "received_bytes": self.closed_received_bytes + received_bytes,
            "sent_bytes": self.closed_sent_bytes + sent_bytes,
        }


class Server:
    """One server, in which every connection has a thread.

    Args:
        config: ``address``, ``port``, ``certificate`` (path of key and chain), ``token``, ``device_token``,
            ``stored``, ``private`` (paths), ``settings``, and ``accounts``: maps names to tokens of further clients,
            each with a folder of its own below both paths.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        settings = Settings(**config["settings"])
        stored, private = Path(config["stored"]), Path(config["private"])
        store = Store(stored, private, settings)
        self._stores = {f"Bearer {config[name]}": store for name in ("token", "device_token")}
        for name, token in config["accounts"].items():
            beside = store if settings.deduplicate_accounts else None
            self._stores[f"Bearer {token}"] = Store(stored / name, private / name, settings, beside)
        self._tallies = {f"Bearer {config['token']}": _Tally(), f"Bearer {config['device_token']}": _Tally()}
        self._client, self._device = self._tallies.values()
        self._tls = None if settings.flaw == "plain" else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self._tls is not None:
            self._tls.load_cert_chain(config["certificate"])
        family = socket.AF_INET6 if ":" in config["address"] else socket.AF_INET
        self._listener = socket.create_server((config["address"], config["port"]), family=family, backlog=_BACKLOG)
        self._counting = threading.Lock()

    def serve(self) -> None:
        """Accept connections until the process ends."""
        with suppress(FileNotFoundError):
            os.unlink(STATS)
        with socket.socket(socket.AF_UNIX) as counters_socket:
            counters_socket.bind(STATS)
            counters_socket.listen()
            threading.Thread(target=self._serve_counters, args=(counters_socket,), daemon=True).start()
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def counters(self) -> dict[str, Any]:
        """Return what was received so far.

        ``connections`` were accepted, ``requests`` are by path, and ``body_bytes`` are theirs. ``received_bytes`` is
        TCP payload with TLS and heads, each byte once, as the kernel counts it. All of it excludes the second device,
        whose numbers are in ``device``, with the acknowledged ``sent_bytes`` to it.
        """
        with self._counting:
            client, device = self._client.as_dict(), self._device.as_dict()
        del client["sent_bytes"]  # later acknowledgements by its kernel would change it while nothing happens
        return {**client, "device": device}

    # --- inside -----------------------------------------------------------------------------------

    def _serve_counters(self, counters_socket: socket.socket) -> None:
        while True:
            connection, _ = counters_socket.accept()
            with connection, suppress(OSError):
                connection.sendall(json.dumps(self.counters()).encode())

    def _serve_connection(self, raw: socket.socket) -> None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A duplicate, since TLS takes the socket itself away.
        counted = raw.dup()
        with self._counting:
            self._client.begin(counted)
        try:
            wrapped = self._tls.wrap_socket(raw, server_side=True) if self._tls is not None else raw
            with wrapped as connection, connection.makefile("rb") as file:
                while self._serve_request(connection, file, counted):
                    pass
        except (OSError, WireError) as error:
            _log_text(f"a connection ended: {error}")
        finally:
            with self._counting:
                next(tally for tally in self._tallies.values() if counted in tally.open).end(counted)
            counted.close()

    def _serve_request(self, connection: socket.socket, file: IO[bytes], counted: socket.socket) -> bool:
        """Answer one request. Returns False if there are no more."""
        head = read_head(file)
        if head is None:
            return False
        line, headers, length_bytes = head
        method, _, target = line.partition(" ")
        path, _, query = target.partition(" ")[0].partition("?")
        token = headers.get("authorization", "")
        with self._counting:
            tally = self._tallies.get(token, self._client)
            if tally is self._device and counted in self._client.open:  # until now it counted as the client's
                self._client.leave_to(tally, counted)
            tally.requests[path] += 1
            tally.body_bytes += length_bytes
        body = Limited(file, length_bytes)
        try:
            if (store := self._stores.get(token)) is None:
                raise _RefusedError(HTTPStatus.UNAUTHORIZED, "the token is wrong")
            answer_body = _answer_request(store, f"{method} {path}", dict(parse_qsl(query)), body)
            status = HTTPStatus.OK
        except _RefusedError as refused:
            status, answer_body = refused.status, str(refused).encode()
        except ConflictError as error:
            status, answer_body = HTTPStatus.CONFLICT, str(error).encode()
        except (OSError, ValueError) as error:
            if isinstance(error, (ConnectionError, ssl.SSLError)):
                raise
            _log_text(traceback.format_exc())
            status, answer_body = HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}".encode()
        body.drain()
        connection.sendall(format_answer(status, answer_body))
        return True


def _answer_request(store: Store, request: str, query: dict[str, str], body: Limited) -> bytes:
    """Carry out one request and return the body of its answer."""
    if request == "GET /list":
        return json.dumps(store.files()).encode()
    if request == "GET /poll":
        return json.dumps({"changes": store.changes}).encode()
    if request == "GET /news":
        changes, files = store.news(int(query.get("since", "0")))
        return json.dumps({"changes": changes, "files": files}).encode()
    if request == "POST /content":
        return store.read_piece(*json.loads(body.read(body.left_bytes)))
    if request == "POST /have":
        digests = body.read(body.left_bytes)
        return store.check_digests([digests[offset : offset + 32] for offset in range(0, len(digests), 32)])
    if request == "POST /signatures":
        return b"".join(store.pack_signature(path) for path in json.loads(body.read(body.left_bytes)))
    if request == "POST /chunk":
        store.add_chunk(query.get("session", ""), int(query.get("at", "0")), body, query.get("encoding", ""))
        return b"null"
    if request == "POST /files":
        reasons = []
        while body.left_bytes:
            reasons.append(store.apply_entry(UploadEntry.read(body), body))
        return json.dumps(reasons).encode()
    raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is no {request}")


def _payload_bytes(connection: socket.socket) -> tuple[int, int]:
    """Return a connection's payload bytes: sent and acknowledged, and received by the kernel (linux/tcp.h)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    acked_bytes, received_bytes = struct.unpack_from("QQ", info, _BYTES_ACKED_AT)
    return acked_bytes, received_bytes


def _log_text(text: str) -> None:
    sys.stderr.write(f"{text.rstrip()}\n")
    sys.stderr.flush()


def main(config: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    Server(config).serve()
