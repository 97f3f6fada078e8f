"""A minimal driver for ``freeze_server.py``: one socket per thread, and HTTP by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import ClassVar

from pytest_cloudbench.drivers.base import Driver
from pytest_cloudbench.model import Capabilities, CloudError, Content, Endpoint, Entry, ErrorKind, ProviderSpec, Verb

__all__ = ["FreezeDriver", "request"]


def request(connection: socket.socket, head: str, body: bytes = b"") -> bytes:
    """Send one request and return the body of the answer."""
    connection.sendall(f"{head} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    data = b""
    while True:
        piece = connection.recv(4096)
        if not piece:
            raise ConnectionResetError("the connection ended")
        data += piece
        answer, mark, content = data.partition(b"\r\n\r\n")
        if mark and len(content) >= int(answer.rpartition(b":")[2]):
            return content


class FreezeDriver:
    """A driver that only uploads. It lists nothing, so experiments on it do not verify."""

    capabilities: ClassVar[Capabilities] = Capabilities(digest=None, verbs=frozenset({Verb.PUT}), via="a socket")

    def __init__(self, port: int) -> None:
        self._port, self._mine = port, threading.local()

    @classmethod
    def connect(cls, spec: ProviderSpec, endpoint: Endpoint | None, credentials: Mapping[str, str]) -> Driver:
        return cls(int(spec.target))

    def versions(self) -> Mapping[str, str]:
        return {}

    def put(self, path: str, content: Content) -> Entry:
        try:
            if not hasattr(self._mine, "connection"):
                self._mine.connection = socket.create_connection(("127.0.0.1", self._port))
            request(self._mine.connection, f"PUT {path}", content.read(0, content.size_bytes))
        except OSError as error:
            raise CloudError(ErrorKind.NETWORK, "put", path, detail=str(error)) from error
        return Entry(path, content.size_bytes)

    def get(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return iter(())

    def stat(self, path: str) -> Entry:
        return Entry(path)

    def list(self, folder: str) -> Iterator[Entry]:
        return iter(())

    def delete(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Start the first period, as the emulator does when an experiment begins."""
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            request(connection, "POST /origin")

    def close(self) -> None: ...
