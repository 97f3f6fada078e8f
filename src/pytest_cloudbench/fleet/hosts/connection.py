"""The controller's side of a connection to one host. When the connection ends, all its streams do."""

from __future__ import annotations

import base64
import contextlib
import inspect
import json
import subprocess
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

from pytest_cloudbench.fleet.hosts import installer, probe, processes, relay, streams
from pytest_cloudbench.fleet.hosts.carrier import Carrier
from pytest_cloudbench.fleet.hosts.table import Host
from pytest_cloudbench.model import FleetError

PRINTS_AT_START = "its Python prints something else at its start"
"""The reason why a program on a host cannot be understood."""

_READ_BYTES = 1 << 16
_MOST_NOISE_BYTES = 1 << 16
"""What a login shell may write before the relay begins."""
_SPARE_S = 10.0
"""How much longer than the controller the relay waits, so that a host is never given up at both ends for one pause."""
_END_S = 5.0
_LAST_LINES = 60
_LINE_S = 2.0
"""How long a program's last lines may take to arrive after its end."""
_NOT_FOR_PEOPLE = (">>>", "now exit", " ", "Traceback", "Fatal Python")
"""The beginnings of lines that an interpreter writes around its actual message."""

_BEGIN = """
import sys, types
for name, source in {sources!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(source, module.__dict__)
module.main({silence_s})
"""
"""The code that a bare Python runs. It loads the sent modules under the names by which they import each other."""


class HostStream:
    """The bytes of one agent, with the methods of ``execnet.gateway_base.Popen2IO``.

    Args:
        connection: the connection that carries them.
        number: the stream's number.
        execmodel: execnet's execution model for this process.
        is_held: whether users of the stream learn of its end only after ``release``.

    Attributes:
        has_started: whether the process at the other end has started, or will never start.
    """

    error = (OSError, EOFError)

    def __init__(self, connection: HostConnection, number: int, execmodel: Any, *, is_held: bool = False) -> None:
        self.number, self.execmodel = number, execmodel
        self._connection = connection
        self._data, self._is_over, self._is_held = bytearray(), False, is_held
        self.has_started = False
        self._changed = threading.Condition()

    def feed(self, data: bytes) -> None:
        """Take bytes that the agent has sent. An empty piece is the end of its stream."""
        with self._changed:
            self._data += data
            self._is_over |= not data
            self.has_started |= not data
            self._changed.notify_all()

    def release(self) -> None:
        """Let those who use the stream learn of its end."""
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    @property
    def _has_ended(self) -> bool:
        return self._is_over and not self._is_held

    def read(self, size_bytes: int) -> bytes:
        """Return exactly this many bytes. Raises EOFError if the agent, or its host, is gone."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._data) >= size_bytes or self._has_ended)
            if len(self._data) < size_bytes:
                raise EOFError(f"expected {size_bytes} bytes, got {len(self._data)}")
            data = bytes(self._data[:size_bytes])
            del self._data[:size_bytes]
            return data

    def write(self, data: bytes) -> None:
        """Send all the bytes. Raises OSError if the agent is gone."""
        if self._has_ended:
            raise BrokenPipeError("the agent is gone")
        if data:  # an empty frame would be the end
            self._connection.send(self.number, data)

    def close_read(self) -> None:
        """Receive no more."""
        self.feed(b"")

    def close_write(self) -> None:
        """Send no more, so that the agent sees the end of the stream."""
        self._connection.send(self.number, b"")

    def wait(self) -> None:
        """Wait for the end of the agent's stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended)

    def kill(self) -> None:
        """End the agent at once. If its host does not answer, at least nobody here waits for it any more."""
        self._connection.command(kill=self.number)
        self.feed(b"")


def read_line(stream: HostStream) -> bytes:
    """Return the next line of a program on a host. Raises EOFError if there is none."""
    line = b""
    while not line.endswith(b"\n"):
        line += stream.read(1)
    return line


class HostConnection:
    """A connection to one host, made in the background.

    Args:
        host: the host to connect to.
        patience_s: how long the host may say nothing before it is given up.
        lost: called once with this connection when the host is given up, by the thread that gives it up.
            ``lost_because`` has the reason.

    Attributes:
        description: what the host said of itself. Empty before it answered.
        lost_because: why it was given up. Empty if it was not.
        obstacle: why agents could not be forked from one process there. Empty if they could.
    """

    def __init__(self, host: Host, patience_s: float, lost: Callable[[HostConnection], None]) -> None:
        self.host, self.description, self.lost_because, self.obstacle = host, dict[str, Any](), "", ""
        self._patience_s, self._report_loss = patience_s, lost
        self._streams: dict[int, HostStream] = {}
        self._outgoing = streams.FrameQueue()
        self._carrier = Carrier(host.name, self._outgoing, self.command)
        self._lock = threading.Lock()
        self._has_answered, self._is_settled = threading.Event(), threading.Event()
        self._heard_s = time.monotonic()
        self._is_closing = threading.Event()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._line_came, self._has_said_all = threading.Condition(), False
        self._process: subprocess.Popen[bytes] | None = None
        self._threads = [
            threading.Thread(target=work, name=f"{host.name}-{work.__name__.strip('_')}", daemon=True)
            for work in (self._receive, self._watch)
        ]

    def open(self) -> None:
        """Begin to connect. Whether it succeeds is known later."""
        for thread in self._threads:
            thread.start()

    def add_stream(self, number: int, execmodel: Any, *, is_held: bool = False) -> HostStream:
        """Return a new stream, for an agent that is started by ``command``."""
        stream = HostStream(self, number, execmodel, is_held=is_held)
        with self._lock:
            self._streams[number] = stream
            is_lost = bool(self.lost_because)
        if is_lost:
            stream.feed(b"")
        return stream

    def send(self, stream: int, data: bytes) -> None:
        """Send bytes. They wait here until the host takes them."""
        self._outgoing.put(stream, data)

    def command(self, **message: Any) -> None:
        """Send the relay a command."""
        self.send(0, json.dumps(message).encode())

    def find_port(self, address: tuple[str, int]) -> int:
        """Return the port of the host's loopback that leads to a service of this machine. Raises FleetError."""
        return self._carrier.find_port(address, self._patience_s)

    def describe_program(self, code: str, *args: str, folder: str = ".") -> dict[str, Any]:
        """Return what the relay needs to start a program: Python code, with this package if it was installed there."""
        argv = [self.host.python, "-u", "-c", code, *args]
        return {"argv": argv, "env": dict(self.host.env), "folder": folder, "installed": probe.name_code()}

    def start(self, stream: HostStream, code: str) -> None:
        """Run Python code whose standard input and output are a stream."""
        self.command(start={"stream": stream.number, **self.describe_program(code)})

    def wait(self, timeout_s: float) -> None:
        """Wait until the host has answered. Raises FleetError if it has not, with the reason."""
        if not self._is_settled.wait(timeout_s):
            self.give_up(f"has not answered for {timeout_s:.0f} s")
        if self.lost_because:
            raise FleetError(f"{self.host.name}: {self.lost_because}")

    def give_up(self, reason: str) -> None:
        """Go on without this host: end all its streams, and report the reason once."""
        with self._lock:
            if self.lost_because or self._is_closing.is_set():
                reason = ""
            self.lost_because = self.lost_because or reason
            ended, self._streams = list(self._streams.values()), {}
        if reason:
            self._report_loss(self)
            self.command(end=True)
        for stream in ended:
            stream.feed(b"")
        self._is_settled.set()
        self._outgoing.close()
        self._carrier.close(self.lost_because or "the session has ended")

    def end(self) -> None:
        """Begin to end everything on the host, without waiting for it."""
        self._is_closing.set()
        self.command(end=True)
        self._outgoing.close()

    def close(self) -> None:
        """End everything on the host, and the connection."""
        self.end()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._carrier.close("the session has ended")

    # -- in threads -------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Connect, and hand out what comes until the end."""
        try:
            process: Any = subprocess.Popen(
                [*self.host.command, "-I", "-u", "-m", "code"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for pytest, which ends the hosts in order
            )  # fmt: skip
        except OSError as error:
            self.give_up(f"{self.host.command[0]}: {error.strerror}")
            return
        self._process = process
        if self.lost_because or self._is_closing.is_set():
            process.kill()
        threading.Thread(target=self._send, args=(process.stdin,), name=f"{self.host.name}-send", daemon=True).start()
        notices = threading.Thread(target=self._keep_last_lines, args=(process.stderr,), daemon=True)
        notices.start()
        try:
            self._read_frames(process.stdout)
        except (OSError, ValueError) as error:
            self.give_up(str(error))
        finally:
            process.stdout.close()
        process.kill()
        status = process.wait()
        notices.join(_END_S)  # agents that still run may keep the pipe open
        ended = f"{self.host.command[0]} ended with exit status {status}"
        self.give_up(f"the connection broke: {ended}" if self._has_answered.is_set() else self.last_line() or ended)

    def _read_frames(self, pipe: Any) -> None:
        noise = b""
        while relay.MAGIC not in noise:
            data = pipe.read1(_READ_BYTES)
            if not data:
                return
            noise += data
            if len(noise) > _MOST_NOISE_BYTES:
                raise ValueError(f"wrote {len(noise)} bytes and started no Python")
        reader, data = streams.FrameReader(), noise.partition(relay.MAGIC)[2]
        self._heard_s = time.monotonic()
        while True:
            for stream, payload in reader.feed(data):
                self._take_frame(stream, payload)
            data = pipe.read1(_READ_BYTES)
            if not data:
                return
            self._heard_s = time.monotonic()

    def _take_frame(self, number: int, payload: bytes) -> None:
        """Hand one frame to the stream that it is for. Number 0 carries the relay's messages."""
        if number == 0:
            message = json.loads(payload)
            if "hello" in message:
                self.description = message["hello"]
                self._has_answered.set()
                self._is_settled.set()
            elif "started" in message:
                if (stream := self._streams.get(message["started"])) is not None:
                    stream.has_started = True
            elif "obstacle" in message:
                self.obstacle = self.obstacle or message["obstacle"]
            elif "failed" in message:
                self.give_up(message["failed"])
            else:
                self._carrier.take_message(message)
            return
        if number == streams.CREDITS:
            self._carrier.take_credits(payload)
            return
        if streams.is_tcp(number):
            self._carrier.take_frame(number, payload)
            return
        with self._lock:
            stream = self._streams.get(number)
            if not payload:
                self._streams.pop(number, None)
        if stream is not None:
            stream.feed(payload)

    def _send(self, pipe: Any) -> None:
        begin = _pack_relay(self._patience_s + _SPARE_S)
        with contextlib.suppress(OSError), pipe:
            pipe.write(begin)
            pipe.flush()
            # Bytes that are sent earlier would be read by the interpreter, not by the relay that it starts.
            while not self._has_answered.wait(relay.BEAT_S):
                if self.lost_because or self._is_closing.is_set():
                    return
            while (data := self._outgoing.get()) is not None:
                pipe.write(data)
                pipe.flush()
                self._carrier.heed_room()

    def _keep_last_lines(self, pipe: Any) -> None:
        with contextlib.suppress(OSError), pipe:
            for line in pipe:
                with self._line_came:
                    self._last_lines.append(line.decode(errors="replace").rstrip())
                    self._line_came.notify_all()
        with self._line_came:
            self._has_said_all = True
            self._line_came.notify_all()

    def last_line(self) -> str:
        """Return the last line that the host wrote for people. Empty if it wrote none.

        Programs that end at the same time write between each other's lines, so a traceback's own lines do not count,
        and the line after them may still be on its way.
        """

        def find() -> str:
            lines = (line for line in reversed(self._last_lines) if line and not line.startswith(_NOT_FOR_PEOPLE))
            return next(lines, "")

        with self._line_came:
            self._line_came.wait_for(lambda: find() or self._has_said_all, _LINE_S)
            return find()

    def _watch(self) -> None:
        """Give the host up when it has said nothing for too long, and tell it meanwhile that this process runs.

        A host that is given up has some seconds to tidy up before the connection is cut.
        """
        while not self._is_closing.wait(relay.BEAT_S) and not self.lost_because:
            if self._has_answered.is_set():
                self.command(beat=True)
            silent_s = time.monotonic() - self._heard_s
            if silent_s > self._patience_s:
                self.give_up(f"has not answered for {silent_s:.0f} s")
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._process.kill()


def _pack_relay(silence_s: float) -> bytes:
    """Return the line of code with which a bare Python runs the relay."""
    modules = (streams, installer, processes, relay)
    sources = {module.__name__: inspect.getsource(module) for module in modules}
    packed = base64.b64encode(zlib.compress(_BEGIN.format(sources=sources, silence_s=silence_s).encode())).decode()
    return f"exec(__import__('zlib').decompress(__import__('base64').b64decode('{packed}')))\n".encode()
