"""The client's connection to the reference server: HTTPS that stays open.

It sends requests and reads their answers. Other modules decide what to ask.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import IO, Any, NamedTuple

from pytest_cloudbench.lab.clients.reference.protocol import (
    PIECE_BYTES,
    Part,
    WireError,
    format_request_head,
    read_answer,
)
from pytest_cloudbench.support.clock import due_ns, sleep_until_ns

_TIMEOUT_S = 60.0
_PAUSE_S = 1.0
_UNANSWERED = 64
"""Pipelined requests that may wait for an answer: more could fill both sides' buffers, and both would wait."""


class Request(NamedTuple):
    """One request with its body."""

    method: str
    target: str
    body: Sequence[Part] = ()


class Connection:
    """A connection that is made when it is first used. Errors are retried only ``retries`` times.

    Args:
        config: ``address``, ``port``, ``client_address``, ``authority`` (path of a certificate), ``token``, and
            ``server_name`` among ``settings``.
        retries: the number of times that a request is repeated, on a new connection and a second later, after an error
            of the connection or of the server.
    """

    def __init__(self, config: dict[str, Any], retries: int) -> None:
        self._address: tuple[str, int] = (config["address"], config["port"])
        self._source: tuple[str, int] = (config["client_address"], 0)
        host = f"[{self._address[0]}]" if ":" in self._address[0] else self._address[0]
        self._host, self._token, self._retries = f"{host}:{self._address[1]}", config["token"], retries
        self._name: str = config["settings"]["server_name"] or config["address"]
        flaw: str = config["settings"]["flaw"]
        self._tls = None if flaw == "plain" else ssl.create_default_context(cafile=config["authority"])
        if self._tls is not None and flaw == "any-certificate":
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._socket: socket.socket | None = None
        self._file: IO[bytes] | None = None

    def ask(self, method: str, target: str, body: Sequence[Part] = ()) -> bytes:
        """Return the answer to one request. Raises OSError or WireError."""
        return self.ask_all([Request(method, target, body)])[0]

    def ask_all(self, requests: Sequence[Request]) -> list[bytes]:
        """Return the answers to requests that are sent without waiting for each other's.

        Raises OSError or WireError.
        """
        answers: list[bytes] = []
        for begin in range(0, len(requests), _UNANSWERED):
            answers += self._ask_with_retries(requests[begin : begin + _UNANSWERED])
        return answers

    def close(self) -> None:
        """End the connection. The next request makes a new one."""
        if self._file is not None:
            self._file.close()
        if self._socket is not None:
            self._socket.close()
        self._file = self._socket = None

    def _ask_with_retries(self, requests: Sequence[Request]) -> list[bytes]:
        for attempts_left in range(self._retries, -1, -1):
            try:
                return self._exchange_once(requests)
            except (OSError, WireError):
                self.close()
                if not attempts_left:
                    raise
                sleep_until_ns(due_ns(_PAUSE_S))
        raise AssertionError("the last attempt returns or raises")

    def _exchange_once(self, requests: Sequence[Request]) -> list[bytes]:
        if self._socket is None or self._file is None:
            raw = socket.create_connection(self._address, timeout=_TIMEOUT_S, source_address=self._source)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = self._tls.wrap_socket(raw, server_hostname=self._name) if self._tls is not None else raw
            self._file = self._socket.makefile("rb")
        for data in self._wire_pieces(requests):
            self._socket.sendall(data)
        answers = []
        for request in requests:
            status, body = read_answer(self._file)
            if status != HTTPStatus.OK:
                reason = body.decode(errors="replace")
                raise WireError(f"{request.method} {request.target}: status {status}: {reason}")
            answers.append(body)
        return answers

    def _wire_pieces(self, requests: Sequence[Request]) -> Iterator[bytes]:
        """Yield heads and bodies in pieces large enough to be worth a call. A small request is one packet."""
        buffer: list[bytes] = []
        buffer_bytes = 0
        for request in requests:
            body_bytes = sum(part.length_bytes for part in request.body)
            first = Part.from_bytes(
                format_request_head(request.method, request.target, self._host, self._token, body_bytes)
            )
            for part in (first, *request.body):
                for piece in part.pieces():
                    buffer.append(piece)
                    buffer_bytes += len(piece)
                    if buffer_bytes >= PIECE_BYTES:
                        yield b"".join(buffer)
                        buffer, buffer_bytes = [], 0
        if buffer:
            yield b"".join(buffer)
