"""Code shared by both ends of a connection to a host: frames, the order in which they are sent, and TCP connections.

Its source is sent to a bare Python, so it needs nothing but the standard library of Python 3.11.

A frame is a header (``FRAME``: stream, length) and its payload. Stream 0 has commands and answers in JSON, ``FILES``
has the archive of files, and ``CREDITS`` says how many bytes of a TCP connection have been taken. Streams from
``FIRST_TCP`` are TCP connections, and any other has the bytes of one agent. An empty frame ends a stream.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

FRAME = struct.Struct(">IQ")
FILES = 0xFFFFFFFF
"""The stream of the archive of files."""
CREDITS = 0xFFFFFFFE
"""The stream of credits: pairs of a TCP connection's stream, and bytes that were taken from it."""
FIRST_TCP = 0x8000_0000
CHUNK_BYTES = 1 << 15
WINDOW_BYTES = 1 << 19
"""The most bytes of one TCP connection that may be under way, and so the most that wait for a slow reader."""
_MOST_BULK_BYTES = 1 << 18
"""How many bytes of TCP connections may wait for the pipe before no more are read from the connections."""
_RESET = struct.pack("ii", 1, 0)


def pack_frame(stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    return FRAME.pack(stream, len(payload)) + payload


def is_tcp(stream: int) -> bool:
    """Return whether a stream is a TCP connection."""
    return FIRST_TCP <= stream < CREDITS


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one, because each connection needs one at both ends."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class FrameReader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames that are complete with these bytes."""
        self._data += data
        frames, start = [], 0
        while len(self._data) - start >= FRAME.size:
            stream, length = FRAME.unpack_from(self._data, start)
            end = start + FRAME.size + length
            if len(self._data) < end:
                break
            frames.append((stream, bytes(self._data[start + FRAME.size : end])))
            start = end
        del self._data[:start]
        return frames


class FrameQueue:
    """Frames that wait for the pipe. Those of agents and commands overtake those of TCP connections.

    So a large transfer delays no message of an agent, and no sign of life, by more than one frame and what the pipe
    itself holds. Safe to use from many threads.

    Attributes:
        urgent_bytes: the waiting bytes of agents and commands.
    """

    def __init__(self) -> None:
        self._urgent, self._bulk = deque[bytes](), deque[bytes]()
        self.urgent_bytes = self._bulk_bytes = 0
        self._is_closed = False
        self._changed = threading.Condition()

    def put(self, stream: int, payload: bytes) -> None:
        """Add a frame."""
        data = pack_frame(stream, payload)
        with self._changed:
            if is_tcp(stream):
                self._bulk.append(data)
                self._bulk_bytes += len(data)
            else:
                self._urgent.append(data)
                self.urgent_bytes += len(data)
            self._changed.notify()

    def close(self) -> None:
        """Add no more: ``get`` returns None after the last frame."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def get(self) -> bytes | None:
        """Wait for the frames to be sent next, and return them. None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._bulk or self._is_closed)
            return self.take() or None

    def take(self) -> bytes:
        """Return the frames to be sent next: all urgent ones, else one of a TCP connection, or nothing."""
        with self._changed:
            if self._urgent:
                data = b"".join(self._urgent)
                self._urgent.clear()
                self.urgent_bytes = 0
                return data
            data = self._bulk.popleft() if self._bulk else b""
            self._bulk_bytes -= len(data)
            return data

    @property
    def has_room(self) -> bool:
        """True if more may be read from TCP connections."""
        return self._bulk_bytes < _MOST_BULK_BYTES


@dataclass(slots=True)
class _Tcp:
    """A TCP connection of this machine, whose other half is at the other end of the pipe.

    Attributes:
        stream: its number.
        connection: the socket.
        unsent: what came through the pipe, and the socket has not taken yet.
        credit_bytes: how many bytes of the socket the other end still takes.
        taken_bytes: what the socket has taken since the other end was last told.
        is_read, is_written: whether the socket was read to its end, and whether the other end has sent its last bytes.
    """

    stream: int
    connection: socket.socket
    unsent: bytearray = field(default_factory=bytearray)
    credit_bytes: int = WINDOW_BYTES
    taken_bytes: int = 0
    is_read: bool = False
    is_written: bool = False


class TcpStreams:
    """The TCP connections of one end, for use in one thread.

    The thread's selector has their sockets, with the number of their stream as data. A connection that breaks here is
    reset at the other end, too, and does not just end there: the client sees what the server did.

    Args:
        selector: the thread's.
        queue: the frames that wait for the pipe.
        reset: tells the other end that a connection was broken here.
    """

    def __init__(self, selector: selectors.BaseSelector, queue: FrameQueue, reset: Callable[[int], None]) -> None:
        self._selector, self._queue, self._reset = selector, queue, reset
        self._streams = dict[int, _Tcp]()
        self._had_room = True

    def add(self, stream: int, connection: socket.socket) -> None:
        """Carry a connection."""
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # it may be broken already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tcp = self._streams[stream] = _Tcp(stream, connection)
        self._watch(tcp)

    def take_frame(self, stream: int, payload: bytes) -> None:
        """Take bytes that the other end has sent. They are dropped if the connection was broken here."""
        if (tcp := self._streams.get(stream)) is None:
            return
        tcp.unsent += payload
        tcp.is_written |= not payload
        self._serve(tcp, self._write)

    def take_credits(self, payload: bytes) -> None:
        """Note what the other end has taken."""
        for stream, taken_bytes in FRAME.iter_unpack(payload):
            if (tcp := self._streams.get(stream)) is not None:
                tcp.credit_bytes += taken_bytes
                self._watch(tcp)

    def take_reset(self, stream: int) -> None:
        """Break a connection that was broken at the other end."""
        if (tcp := self._streams.get(stream)) is not None:
            self._break(tcp)

    def serve(self, stream: int, events: int) -> None:
        """Do what the selector says is possible."""
        if (tcp := self._streams.get(stream)) is None:
            return
        if events & selectors.EVENT_WRITE:
            self._serve(tcp, self._write)
        if events & selectors.EVENT_READ and stream in self._streams:
            self._serve(tcp, self._read)

    @property
    def is_held(self) -> bool:
        """True if nothing is read because the queue had no room."""
        return not self._had_room

    def heed_room(self) -> None:
        """Begin or stop to read, depending on the room in the queue."""
        if self._had_room != self._queue.has_room:
            self._had_room = self._queue.has_room
            for tcp in self._streams.values():
                self._watch(tcp)

    def close(self) -> None:
        """Break all connections."""
        for tcp in list(self._streams.values()):
            self._break(tcp)

    def _serve(self, tcp: _Tcp, work: Callable[[_Tcp], None]) -> None:
        try:
            work(tcp)
        except BlockingIOError:
            pass
        except OSError:
            self._break(tcp)
            self._reset(tcp.stream)
            return
        if tcp.is_read and tcp.is_written and not tcp.unsent:
            self._remove(tcp)
        else:
            self._watch(tcp)

    def _read(self, tcp: _Tcp) -> None:
        data = tcp.connection.recv(min(CHUNK_BYTES, tcp.credit_bytes))
        tcp.is_read = not data
        tcp.credit_bytes -= len(data)
        self._queue.put(tcp.stream, data)

    def _write(self, tcp: _Tcp) -> None:
        try:
            while tcp.unsent:
                sent_bytes = tcp.connection.send(tcp.unsent)
                del tcp.unsent[:sent_bytes]
                tcp.taken_bytes += sent_bytes
        finally:
            if tcp.taken_bytes >= WINDOW_BYTES // 4:
                self._queue.put(CREDITS, FRAME.pack(tcp.stream, tcp.taken_bytes))
                tcp.taken_bytes = 0
        if tcp.is_written:
            tcp.connection.shutdown(socket.SHUT_WR)

    def _watch(self, tcp: _Tcp) -> None:
        is_readable = not tcp.is_read and tcp.credit_bytes > 0 and self._queue.has_room
        self._had_room &= self._queue.has_room
        events = (selectors.EVENT_READ if is_readable else 0) | (selectors.EVENT_WRITE if tcp.unsent else 0)
        is_watched = tcp.connection.fileno() in self._selector.get_map()
        if events and is_watched:
            self._selector.modify(tcp.connection, events, tcp.stream)
        elif events:
            self._selector.register(tcp.connection, events, tcp.stream)
        elif is_watched:
            self._selector.unregister(tcp.connection)

    def _break(self, tcp: _Tcp) -> None:
        with contextlib.suppress(OSError):
            tcp.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._remove(tcp)

    def _remove(self, tcp: _Tcp) -> None:
        del self._streams[tcp.stream]
        if tcp.connection.fileno() in self._selector.get_map():
            self._selector.unregister(tcp.connection)
        tcp.connection.close()
