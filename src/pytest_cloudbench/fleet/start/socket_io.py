"""The connection between a controller and a forked worker, as execnet's gateways want it.

Both ends import it. Keep it light, and free of everything but the standard library and execnet's base, which both have.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from execnet.gateway_base import Message

_BUFFER_BYTES = 1 << 16


class SocketIO:
    """One end of a socket with the methods of ``execnet.gateway_base.Popen2IO``.

    Args:
        connection: a connected stream socket.
        execmodel: execnet's execution model for this process.
        wait, kill: wait for the process at the other end, and end it. A worker needs neither.
    """

    error = (OSError, EOFError)

    def __init__(
        self, connection: socket.socket, execmodel: Any,
        wait: Callable[[], None] = lambda: None, kill: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.execmodel, self.wait, self.kill = execmodel, wait, kill
        self._socket = connection
        self._input = connection.makefile("rb", buffering=_BUFFER_BYTES)
        self._lock = threading.Lock()

    def read(self, size_bytes: int) -> bytes:
        """Return exactly this many bytes. Raises EOFError if the other end is gone."""
        data: bytes = self._input.read(size_bytes)
        if len(data) < size_bytes:
            raise EOFError(f"expected {size_bytes} bytes, got {len(data)}")
        return data

    def write(self, data: bytes) -> None:
        """Send all the bytes. Raises OSError if the other end is gone."""
        with self._lock:
            self._socket.sendall(data)

    def close_read(self) -> None:
        """Receive no more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close_write(self) -> None:
        """Send no more, so that the other end sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


def discard_task(io: SocketIO) -> None:
    """Read what a worker that cannot start is to do, because xdist fails if it cannot send that."""
    with contextlib.suppress(OSError, EOFError):
        while Message.from_io(io).msgcode != Message.CHANNEL_DATA:
            pass
