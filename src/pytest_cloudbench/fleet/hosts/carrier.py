"""The controller's end of TCP connections that clients on a host make to services of this machine."""

from __future__ import annotations

import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from pytest_cloudbench.fleet.hosts.streams import FrameQueue, TcpStreams, allow_many_connections
from pytest_cloudbench.model import FleetError

_WAKE = -1


class Carrier:
    """Connects to services here for clients on one host, and carries the bytes, in a thread.

    Args:
        name: the host's name.
        queue: the frames that wait for the pipe to the host.
        command: sends the relay a command.
    """

    def __init__(self, name: str, queue: FrameQueue, command: Callable[..., None]) -> None:
        self._name, self._queue, self._command = name, queue, command
        self._lock = threading.Lock()
        self._services: dict[tuple[str, int], tuple[int, Future[int]]] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._lost_because = ""
        self._selector = selectors.DefaultSelector()
        self._tcp = TcpStreams(self._selector, queue, lambda stream: command(reset=stream))
        self._to_do = deque[Callable[[], None]]()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name=f"{name}-carry", daemon=True)

    def find_port(self, address: tuple[str, int], timeout_s: float) -> int:
        """Return the port of the host's loopback that leads to a service here, which the first call opens.

        Raises FleetError if the host does not open one.
        """
        with self._lock:
            if self._lost_because:
                raise FleetError(f"{self._name}: {self._lost_because}")
            is_new = address not in self._services
            if is_new:
                number = len(self._services) + 1
                self._services[address] = number, Future()
                self._addresses[number] = address
                if not self._thread.ident:
                    allow_many_connections()
                    self._thread.start()
            number, port = self._services[address]
        if is_new:
            self._command(listen={"target": number, "port": address[1]})
        try:
            return port.result(timeout_s)
        except TimeoutError:
            raise FleetError(f"{self._name}: opened no port for {address[0]}:{address[1]} in {timeout_s:g} s") from None

    def take_message(self, message: dict[str, Any]) -> bool:
        """Take what the relay says of listeners and connections. Returns False if it is about something else."""
        if "connected" in message:
            self.do(partial(self._connect, **message["connected"]))
        elif "reset" in message:
            self.do(partial(self._tcp.take_reset, message["reset"]))
        elif "listening" in message:
            answer = message["listening"]
            with self._lock:
                port = self._services[self._addresses[answer["target"]]][1]
            if "problem" in answer:
                port.set_exception(FleetError(f"{self._name}: cannot listen on loopback: {answer['problem']}"))
            else:
                port.set_result(answer["port"])
        else:
            return False
        return True

    def take_frame(self, stream: int, payload: bytes) -> None:
        """Take bytes that a client has sent."""
        self.do(partial(self._tcp.take_frame, stream, payload))

    def take_credits(self, payload: bytes) -> None:
        """Note what clients have taken."""
        self.do(partial(self._tcp.take_credits, payload))

    def do(self, work: Callable[[], None]) -> None:
        """Have the thread call a function."""
        self._to_do.append(work)
        self._notify()

    def heed_room(self) -> None:
        """Read on if the queue has room again."""
        if self._tcp.is_held:
            self._notify()

    def close(self, reason: str) -> None:
        """Break all connections."""
        with self._lock:
            if self._lost_because:
                return
            self._lost_because = reason
            for _, port in self._services.values():
                if not port.done():
                    port.set_exception(FleetError(f"{self._name}: {reason}"))
            has_begun = bool(self._thread.ident)
        self._notify()
        if has_begun and threading.current_thread() is not self._thread:
            self._thread.join()
        else:
            self._close_selector()

    # -- in the thread ----------------------------------------------------------------------------

    def _notify(self) -> None:
        try:
            self._wake.send(b"!")
        except OSError:  # it has been woken often enough, or has ended
            return

    def _run(self) -> None:
        self._selector.register(self._woken, selectors.EVENT_READ, _WAKE)
        while not self._lost_because:
            for key, events in self._selector.select():
                if key.data == _WAKE:
                    self._woken.recv(1 << 12)
                else:
                    self._tcp.serve(key.data, events)
            while self._to_do:
                self._to_do.popleft()()
            self._tcp.heed_room()
        self._tcp.close()
        self._close_selector()

    def _connect(self, stream: int, target: int) -> None:
        host, port = self._addresses[target]
        try:
            connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError:  # too many open files
            self._command(reset=stream)
            return
        connection.setblocking(False)
        # An error shows when the connection is used, and reaches the client as a reset.
        connection.connect_ex((host, port))
        self._tcp.add(stream, connection)

    def _close_selector(self) -> None:
        self._selector.close()
        for end in (self._wake, self._woken):
            end.close()
