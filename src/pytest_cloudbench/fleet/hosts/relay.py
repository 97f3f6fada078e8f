"""The program that runs on another host for a session: it starts agents, and carries their bytes over one pipe.

Its source is sent to a bare Python with those of ``streams``, ``processes`` and ``installer``, so it needs nothing but
the standard library of Python 3.11. It ends, with all that it has started and written, when its pipe ends or when the
controller has been silent for too long.

It also listens on ports of this host's loopback, for services that listen on the controller's: it carries each TCP
connection to the controller, which connects it.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import platform
import selectors
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
import time
from typing import Any

from pytest_cloudbench.fleet.hosts.installer import find_installed
from pytest_cloudbench.fleet.hosts.processes import Starter
from pytest_cloudbench.fleet.hosts.streams import (
    CHUNK_BYTES,
    CREDITS,
    FILES,
    FIRST_TCP,
    FrameQueue,
    FrameReader,
    TcpStreams,
    allow_many_connections,
    is_tcp,
)

MAGIC = b"cloudbench-relay 2\n"
"""What precedes the first frame. A login shell may have written other lines before."""
FOLDER_PREFIX = "cloudbench-host-"
BEAT_S = 1.0
_LOOPBACK = "127.0.0.1"
_BACKLOG = 1024
_MOST_WAITING_BYTES = 8 << 20
"""Bytes for the controller above which no more are read from agents."""


class Relay:
    """The host's side of a connection.

    Args:
        source, sink: descriptors of the pipe.
        silence_s: how long the controller may be silent before everything ends.
    """

    def __init__(self, source: int, sink: int, silence_s: float) -> None:
        self._source, self._sink, self._silence_s = source, sink, silence_s
        self._reader = FrameReader()
        self._queue, self._writing = FrameQueue(), memoryview(b"")
        self._selector = selectors.DefaultSelector()
        self._tcp = TcpStreams(self._selector, self._queue, lambda stream: self._say(reset=stream))
        self._tcp_numbers = itertools.count(FIRST_TCP)
        self._listeners: dict[int, socket.socket] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._unsent: dict[int, bytearray] = {}
        self._half_closed = set[int]()
        self._archive = bytearray()
        remove_abandoned_folders()
        self._folder = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
        self._starter = Starter(self._folder, self._say, find_installed)
        self._is_paused = self._is_ended = False

    def run(self) -> None:
        """Serve until the controller has gone."""
        for descriptor in (self._source, self._sink):
            os.set_blocking(descriptor, False)
        self._selector.register(self._source, selectors.EVENT_READ, 0)
        self._say(hello=describe_host())
        heard_s = beaten_s = time.monotonic()
        try:
            while not self._is_ended:
                for key, events in self._selector.select(BEAT_S / 2):
                    if key.fd == self._source:
                        heard_s = time.monotonic()
                        self._receive()
                    elif key.fd == self._sink:
                        continue
                    elif isinstance(key.data, socket.socket):
                        self._take_fork(key.data)
                    elif key.data < 0:
                        self._accept(-key.data)
                    elif is_tcp(key.data):
                        self._tcp.serve(key.data, events)
                    else:
                        self._serve(key.data, events)
                now_s = time.monotonic()
                if now_s - beaten_s >= BEAT_S:
                    beaten_s = now_s
                    self._say(beat=now_s)
                    self._starter.reap()
                self._flush()
                self._is_ended |= now_s - heard_s > self._silence_s
        except Exception as error:
            self._say(failed=f"{type(error).__name__}: {error}")
            self._flush()
            raise
        finally:
            self._end()

    def _say(self, **message: Any) -> None:
        self._queue.put(0, json.dumps(message).encode())

    def _flush(self) -> None:
        """Write what the pipe takes. The sink is watched only while something waits, or it would be ready always."""
        try:
            while self._writing or (data := self._queue.take()):
                self._writing = self._writing or memoryview(data)
                self._writing = self._writing[os.write(self._sink, self._writing[:CHUNK_BYTES]) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._is_ended = True
            return
        is_watched = self._sink in self._selector.get_map()
        if bool(self._writing) != is_watched:
            if is_watched:
                self._selector.unregister(self._sink)
            else:
                self._selector.register(self._sink, selectors.EVENT_WRITE, 0)
        self._tcp.heed_room()
        is_full = self._queue.urgent_bytes + len(self._writing) > _MOST_WAITING_BYTES
        if is_full != self._is_paused:
            self._is_paused = is_full
            for stream in self._sockets:
                self._watch(stream)

    def _receive(self) -> None:
        """Read what the controller has sent, and hand each frame to what it is for."""
        try:
            data = os.read(self._source, 1 << 20)
        except BlockingIOError:
            return
        self._is_ended |= not data
        for stream, payload in self._reader.feed(data):
            if stream == 0:
                self._obey(json.loads(payload))
            elif stream == FILES:
                self._take_files(payload)
            elif stream == CREDITS:
                self._tcp.take_credits(payload)
            elif is_tcp(stream):
                self._tcp.take_frame(stream, payload)
            elif stream in self._sockets:
                self._unsent[stream] += payload
                if not payload:
                    self._half_closed.add(stream)
                self._send(stream)

    def _obey(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._start(**command["start"])
        elif "warm" in command:
            self._start_warm(**command["warm"])
        elif "kill" in command:
            self._starter.kill(command["kill"])
        elif "listen" in command:
            self._listen(**command["listen"])
        elif "reset" in command:
            self._tcp.take_reset(command["reset"])
        elif "end" in command:
            self._is_ended = True

    def _listen(self, target: int, port: int) -> None:
        """Listen for a service of the controller's machine, on the port that it has there if that is free here."""
        for candidate_port in (port, 0):
            try:
                listener = self._listeners[target] = socket.create_server((_LOOPBACK, candidate_port), backlog=_BACKLOG)
            except OSError as error:
                problem = str(error)
            else:
                listener.setblocking(False)
                self._selector.register(listener, selectors.EVENT_READ, -target)
                self._say(listening={"target": target, "port": listener.getsockname()[1]})
                return
        self._say(listening={"target": target, "problem": problem})

    def _accept(self, target: int) -> None:
        try:
            connection, _ = self._listeners[target].accept()
        except OSError:  # the client has gone, or there are too many open files
            return
        stream = next(self._tcp_numbers)
        self._say(connected={"stream": stream, "target": target})
        self._tcp.add(stream, connection)

    def _take_files(self, payload: bytes) -> None:
        self._archive += payload
        if payload:
            return
        try:
            with tarfile.open(fileobj=io.BytesIO(self._archive)) as archive:
                if hasattr(tarfile, "data_filter"):  # since Python 3.11.4
                    archive.extraction_filter = tarfile.data_filter
                archive.extractall(self._folder)
        except (OSError, tarfile.TarError) as error:
            self._say(failed=f"cannot write the tests to {self._folder}: {error}")
        self._archive.clear()

    def _start(self, stream: int, request: list[Any] | None = None, **how: Any) -> None:
        """Start an agent whose standard input and output are a stream."""
        near, far = socket.socketpair()
        near.setblocking(False)
        self._sockets[stream], self._unsent[stream] = near, bytearray()
        self._watch(stream)
        self._starter.start(stream, far, request or [], how)

    def _start_warm(self, **how: Any) -> None:
        self._starter.start_warm(**how)
        if (control := self._starter.control) is not None:
            self._selector.register(control, selectors.EVENT_READ, control)

    def _take_fork(self, control: socket.socket) -> None:
        self._starter.serve()
        if self._starter.control is None:
            self._selector.unregister(control)
            control.close()

    def _watch(self, stream: int) -> None:
        connection = self._sockets[stream]
        events = 0 if self._is_paused else selectors.EVENT_READ
        events |= selectors.EVENT_WRITE if self._unsent[stream] else 0
        is_watched = connection.fileno() in self._selector.get_map()
        if events and is_watched:
            self._selector.modify(connection, events, stream)
        elif events:
            self._selector.register(connection, events, stream)
        elif is_watched:
            self._selector.unregister(connection)

    def _serve(self, stream: int, events: int) -> None:
        connection = self._sockets.get(stream)
        if connection is None:
            return
        if events & selectors.EVENT_WRITE:
            self._send(stream)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = connection.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._queue.put(stream, data)
        if not data:
            self._end_stream(stream)

    def _send(self, stream: int) -> None:
        """Send an agent as much as it takes. Bytes for an agent that has gone are dropped."""
        connection, unsent = self._sockets[stream], self._unsent[stream]
        try:
            while unsent:
                del unsent[: connection.send(unsent)]
        except BlockingIOError:
            pass
        except OSError:
            unsent.clear()
        if not unsent and stream in self._half_closed:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        self._watch(stream)

    def _end_stream(self, stream: int) -> None:
        connection = self._sockets.pop(stream)
        self._unsent.pop(stream)
        self._half_closed.discard(stream)
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
        connection.close()

    def _end(self) -> None:
        self._tcp.close()
        self._starter.end()
        shutil.rmtree(self._folder, ignore_errors=True)


def remove_abandoned_folders() -> None:
    """Remove the folders of relays that were killed."""
    parent = tempfile.gettempdir()
    for name in os.listdir(parent):
        pid = name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if name.startswith(FOLDER_PREFIX) and pid.isdigit() and not is_running(int(pid)):
            shutil.rmtree(os.path.join(parent, name), ignore_errors=True)


def is_running(pid: int) -> bool:
    """Return whether there is such a process, also where it is another user's, or where there is no /proc."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def describe_host() -> dict[str, Any]:
    """Return the facts about this host."""
    return {
        "python": platform.python_version(), "executable": sys.executable, "node": platform.node(),
        "kernel": f"{platform.system()} {platform.release()}", "machine": platform.machine(), "cores": os.cpu_count(),
        "pid": os.getpid(), "free_bytes": count_free_bytes(),
    }  # fmt: skip


def count_free_bytes() -> int | None:
    """Return the memory that new processes may take. None if the system does not tell."""
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    return None


def main(silence_s: float) -> None:
    """Serve over this process's standard input and output, which nothing else may use from now on."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    allow_many_connections()
    try:
        os.write(sink, MAGIC)
        Relay(source, sink, silence_s).run()
    finally:
        os._exit(0)  # the interpreter that reads commands would go on
