"""uvicorn's protocol, tuned for many small requests. Every use of uvicorn's private names is in this module.

It differs from uvicorn's protocol in these ways:

- The application can access its connection: to reset it, to send a short answer in one write, or to refuse a request
  without reading its body.
- A request whose body has come with its head or in one packet after it is answered at once, without ASGI, if the
  profile has nothing that delays, refuses or disturbs requests.
- Any other request starts as soon as its body, or the first packet of the body, has arrived, so one that never waits is
  answered without a task. It becomes a task when it first waits, so code that must run inside a task has to wait first.
- All connections read into one buffer.
- It has the limits of the servers that stand in front of such services:

=======================================  ==============================================
a request                                is answered by
=======================================  ==============================================
with a head above ``most_head_bytes``    431, and the end of the connection
whose head takes longer than ``head_s``  408 and the same; from the first byte of the
                                         request, or from the start of the connection
whose body stops for ``body_s``          the same
=======================================  ==============================================
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import types
from collections.abc import Coroutine, Generator, Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.skin import BODILESS, Answer

_READ_BYTES = 256 * 1024
_ONE_WRITE_BYTES = 32 * 1024
# A client that was turned away may still be sending, and reads the answer only afterwards. Closing at once would reset
# the connection, so up to this many bytes are discarded first.
_LINGER_BYTES = 16 * 1024 * 1024
_LINGER_S = 5.0
_PLAIN_TARGET = re.compile(rb'/[!"$-~]*')


class EagerProtocol(HttpToolsProtocol):
    """A connection of the emulator."""

    most_head_bytes = 64 * 1024
    """Envoy's default is 60 KiB (``max_request_headers_kb``), nginx's four buffers of 8 KiB."""
    head_s, body_s = 30.0, 60.0
    """nginx gives both 60 s (``client_header_timeout``, ``client_body_timeout``), Apache a head 20 to 40 s."""

    _first_step: tuple[Any, Any] | None = None
    _held: dict[str, Any] | None = None
    """The scope of a request that ASGI has not seen yet, as far as the application needs it."""
    _held_body, _is_held_whole = b"", False
    _is_releasing = False
    _idle_since_s = 0.0
    _linger_bytes: int | None = None
    _head_start_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own signature
        """Make this object available as ``scope["state"]["connection"]``."""
        super().connection_made(transport)
        self.app_state = {"connection": self}
        self._emulator: Any = self.app
        self._in_head, self._head_bytes, self._packet_bytes, self._is_head_too_long = True, 0, 0, False
        self._head_start_s = self._received_s = self.loop.time()
        self._patience = self.loop.call_later(self.head_s, self._end_if_stopped)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching for requests that are not completed."""
        self._patience.cancel()
        self._held = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End the connection as soon as it has answered."""
        if self._held is not None:
            self._release()
        super().shutdown()

    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | BytePieces) -> bool:
        """Send a whole answer in one write. Return False if it must be sent through ASGI."""
        cycle = self.cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive or self.flow.write_paused:
            return False
        if self.pipeline or len(body) > _ONE_WRITE_BYTES or cycle.scope["method"] == "HEAD":
            return False
        self._write(status, headers, body)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def turn_away(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | BytePieces) -> bool:
        """Answer a request whose body is incomplete, and end the connection. Return False if the body is complete."""
        cycle = self.cycle
        if cycle.disconnected or not cycle.more_body:
            return False
        cycle.keep_alive = cycle.waiting_for_100_continue = False
        self._write(status, [*headers, (b"connection", b"close")], body)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        self._linger()
        return True

    def reset(self) -> None:
        """End the connection with a TCP reset, as a failing network does."""
        with contextlib.suppress(OSError, AttributeError):
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()
        self.cycle.disconnected = True  # uvicorn learns it only later, and would log that an answer is missing

    def _linger(self) -> None:
        """Discard for a while what the client still sends, then end the connection."""
        self._linger_bytes = _LINGER_BYTES
        self._patience.cancel()
        self.loop.call_later(_LINGER_S, self.transport.abort)
        self.flow.resume_reading()

    def _write(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes | BytePieces) -> None:
        # The default headers hold only the date, which uvicorn formats once per second.
        lines = _format_headers((*self.server_state.default_headers, *headers))
        ending = b"\r\n" if status in BODILESS else b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(b"".join((STATUS_LINE[status], lines, ending, bytes(body))))

    def data_received(self, data: bytes | memoryview) -> None:
        """Read a packet, then begin the request in it."""
        if self._linger_bytes is not None:
            self._linger_bytes -= len(data)
            if self._linger_bytes < 0:
                self.transport.abort()  # abort, because an orderly end of TLS would continue to read
            return
        self._received_s, self._packet_bytes = self.loop.time(), len(data)
        super().data_received(data)  # type: ignore[arg-type]  # the parser takes any buffer
        if self._in_head:
            self._head_bytes += len(data)
        if self._is_head_too_long or (self._in_head and self._head_bytes > self.most_head_bytes):
            self._refuse(431)
            return
        if self._held is not None:
            self._answer_held(self._held)
        if self._first_step is not None:
            cycle, app = self._first_step
            waits = cycle.more_body and not cycle.body and not cycle.waiting_for_100_continue
            if waits and not app.denial(cycle.scope):
                return  # the body is on its way, because clients send the headers in a packet of their own
            self._first_step = None
            self._run(cycle, app)

    def _run(self, cycle: Any, app: Any) -> None:
        """Run the application until it first waits, and the rest in a task."""
        running = cycle.run_asgi(app)
        try:
            awaited = running.send(None)
        except StopIteration:
            return
        task = self.loop.create_task(_run_rest(running, awaited))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    # ---------------------------------------------------------------- without ASGI

    def _hold(self) -> None:
        """Hold a request back from ASGI if it may be answered without."""
        parser = self.parser
        cycle: Any = self.cycle  # None before the first request
        if (
            not self._emulator.is_prompt
            or self.expect_100_continue
            or (cycle is not None and not cycle.response_complete)
        ):
            return
        target, method = self.url, parser.get_method()
        if _PLAIN_TARGET.fullmatch(target) is None or method == b"HEAD" or parser.get_http_version() != "1.1":
            return
        if not parser.should_keep_alive() or parser.should_upgrade():
            return
        raw_path, _, query = target.partition(b"?")
        path = raw_path.decode("ascii")
        self._held = {
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
        }

    def _answer_held(self, scope: dict[str, Any]) -> None:
        """Answer a held request if all of it is here, keep it while its body is on its way, or leave it to ASGI."""
        if not self._is_held_whole:
            if self._held_body or self._emulator.denial(scope):
                self._release()
            return
        if self.flow.write_paused:
            self._release()
            return
        try:
            answer = self._emulator.answer_now(scope, self._held_body)
        except Exception as error:
            answer = _fail(error)
        if answer is None:
            self._release()
        elif not isinstance(answer, Answer) or len(answer.body) > _ONE_WRITE_BYTES:
            self._release(partial(self._emulator.send_begun, answer))
        else:
            self._held = None
            self._write(answer.status, answer.headers, answer.body)
            self.server_state.total_requests += 1

    def _release(self, application: Any = None) -> None:
        """Leave the held request to ASGI, and to an application other than the emulator if one is given."""
        self._held, body, is_whole = None, self._held_body, self._is_held_whole
        target, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = target, expects
        self.headers += headers  # the scope has this list
        self.app, self._is_releasing = application or self._emulator, True
        super().on_headers_complete()
        self.app, self._is_releasing = self._emulator, False
        if body:
            super().on_body(body)
        if is_whole:
            super().on_message_complete()

    # ---------------------------------------------------------------- the parser's calls

    def on_message_begin(self) -> None:
        """Start counting the head of a request."""
        if self._held is not None:
            self._release()  # the next request is in the same packet
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._in_head, self._head_bytes, self._head_start_s = True, 0, self._received_s

    def on_headers_complete(self) -> None:
        """Check the size of a complete head."""
        self._in_head, self._head_start_s = False, None
        self._is_head_too_long = False
        if self._head_bytes + self._packet_bytes > self.most_head_bytes:  # a head cannot be longer than what has come
            head_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            self._is_head_too_long = head_bytes > self.most_head_bytes
        self._held_body, self._is_held_whole = b"", False
        self._hold()
        if self._held is None:
            self._release()

    def on_body(self, body: bytes) -> None:
        """Keep the next part of a held request's body."""
        if self._held is None:
            super().on_body(body)
        else:
            self._held_body += body

    def on_message_complete(self) -> None:
        """Note that a request is complete."""
        if self._held is None:
            super().on_message_complete()
        else:
            self._is_held_whole = True

    def on_response_complete(self) -> None:
        """Begin the next request. uvicorn would start a timer for each answer, while here one watches all requests."""
        self._idle_since_s = self.loop.time()
        if self.pipeline:
            super().on_response_complete()
        else:
            self.server_state.total_requests += 1
            if not self.transport.is_closing():
                self.flow.resume_reading()

    def _end_if_stopped(self) -> None:
        """End the connection if the remainder of a request is overdue, or schedule the next check."""
        now_s = self.loop.time()
        cycle: Any = self.cycle  # None before the first request
        due_s, is_idle = now_s + self.head_s, False
        if self.flow.read_paused:
            self._received_s = now_s  # reading is paused here, so the client is not to blame
        elif self._head_start_s is not None:
            due_s = self._head_start_s + self.head_s
        elif self._held is not None or (cycle is not None and cycle.more_body and not cycle.response_complete):
            due_s = self._received_s + self.body_s
        elif cycle is None or cycle.response_complete:
            idle_s = max(self._received_s, self._idle_since_s)
            due_s, is_idle = idle_s + self.timeout_keep_alive, True
        if due_s <= now_s and is_idle:
            self.timeout_keep_alive_handler()
        elif due_s <= now_s:
            self._refuse(408)
        else:
            self._patience = self.loop.call_later(min(due_s - now_s, self.head_s), self._end_if_stopped)

    def _refuse(self, status: int) -> None:
        """Answer an incomplete request, and end the connection."""
        cycle: Any = self.cycle
        has_begun = cycle is not None or self._held is not None or self._head_bytes > 0
        self._first_step = self._held = None
        if not has_begun:
            self.transport.close()
        if self.transport.is_closing():
            return
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            cycle.disconnected = True
            cycle.message_event.set()
        if not is_answering or not cycle.response_started:
            self.transport.write(STATUS_LINE[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        if status == 408:
            self.transport.close()  # nothing more is on its way
        else:
            self._linger()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._is_head_too_long:
            return
        if self._is_releasing:
            self._first_step = (cycle, app)
        else:
            super()._start_asgi_task(cycle, app)


class BufferedConnection(asyncio.BufferedProtocol):
    """Reads into one buffer for all connections, and passes what has arrived to an ``EagerProtocol``.

    For a protocol without a buffer, TLS reads into a new one of 256 KiB each time, which is mapped and soon unmapped.
    One is enough for all connections, because the parser keeps nothing of it.
    """

    _buffer = memoryview(bytearray(_READ_BYTES))

    def __init__(self, **arguments: Any) -> None:
        self._protocol = EagerProtocol(**arguments)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what has been read."""
        self._protocol.data_received(self._buffer[:nbytes])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own signature
        """Pass on that the connection begins."""
        self._protocol.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection has ended."""
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client does not read fast enough."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the client has caught up."""
        self._protocol.resume_writing()


@lru_cache(maxsize=256)
def _format_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return headers as they are sent. Most answers within a second have the same ones, date included."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


async def _fail(error: Exception) -> NoReturn:
    raise error


async def _run_rest(running: Coroutine[Any, Any, None], awaited: Any) -> None:
    await _resume(running, awaited)


@types.coroutine
def _resume(running: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Run a request that has begun and waits for ``awaited`` until it ends."""
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
