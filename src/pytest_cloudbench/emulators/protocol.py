"""uvicorn's protocol, tuned for many small requests.

What may live here: every use of uvicorn's private names, in one place. It differs from uvicorn's protocol in two ways.
The application can access its connection, to reset it, to send a short answer in one write, or to refuse a request
without reading its body. And a request starts as soon as its body, or the first packet of the body, has arrived: a
request that never waits is answered without a task. A request becomes a task when it first waits, so code that must run
inside a task has to wait first.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pytest_cloudbench.emulators.skin import BODILESS

__all__ = ["EagerProtocol"]


_ONE_WRITE_BYTES = 32 * 1024
# A client that was turned away may still be sending, and reads the answer only afterwards: closing at once would reset
# the connection. Up to this much is discarded unread first.
_LINGER_BYTES = 16 * 1024 * 1024
_LINGER_S = 5.0


class EagerProtocol(HttpToolsProtocol):
    """See the module."""

    _reading = False
    _begun: tuple[Any, Any] | None = None
    _linger_bytes: int | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own signature
        """Make this object available as ``scope["state"]["connection"]``."""
        super().connection_made(transport)
        self.app_state = {"connection": self}

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | memoryview) -> bool:
        """Send a whole answer in one write; returns False if it must be sent through ASGI."""
        cycle = self.cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive or self.flow.write_paused:
            return False
        if self.pipeline or len(body) > _ONE_WRITE_BYTES or cycle.scope["method"] == "HEAD":
            return False
        self._write(cycle, status, headers, body)
        cycle.on_response()
        return True

    def turn_away(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | memoryview) -> bool:
        """Answer a request whose body is incomplete, and end the connection; returns False if the body is complete."""
        cycle = self.cycle
        if cycle.disconnected or not cycle.more_body:
            return False
        self._linger_bytes = _LINGER_BYTES
        cycle.keep_alive = cycle.waiting_for_100_continue = False
        self._write(cycle, status, [*headers, (b"connection", b"close")], body)
        self.loop.call_later(_LINGER_S, self.transport.abort)
        self.flow.resume_reading()
        return True

    def _write(self, cycle: Any, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | memoryview) -> None:
        # The default headers are the date, which uvicorn writes once in a second.
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        ending = b"\r\n" if status in BODILESS else b"content-length: %d\r\n\r\n" % len(body)
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"".join((STATUS_LINE[status], *lines, ending, body)))
        cycle.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read a packet, then begin the request in it."""
        if self._linger_bytes is not None:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self.transport.abort()  # an orderly end of TLS would go on reading
            return
        self._reading = True
        try:
            super().data_received(data)
        finally:
            self._reading = False
        if self._begun is not None:
            cycle, app = self._begun
            waits = cycle.more_body and not cycle.body and not cycle.waiting_for_100_continue
            if waits and not app.denial(cycle.scope):
                return  # clients send the headers alone; the body is on its way
            self._begun = None
            running = cycle.run_asgi(app)
            try:
                awaited = running.send(None)
            except StopIteration:
                return
            task = self.loop.create_task(_rest(running, awaited))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._reading and self._begun is None:
            self._begun = (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)


async def _rest(running: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _resumed(running, awaited)


@types.coroutine
def _resumed(running: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Run the rest of a request that has begun and waits for ``awaited``."""
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as error:
                awaited = running.throw(error)
            else:
                awaited = running.send(value)
    except StopIteration:
        return
