"""Asking the kernel for TCP sockets, and listening to what it tells of those that are destroyed.

What may live here: the conversation with ``NETLINK_SOCK_DIAG``. It needs no rights. Nothing is done while bytes flow; a
connection that ends costs one short message for each of its ends.

The kernel tells of a destroyed socket a moment later, from a queue of the processor that freed it. So the watch frees a
socket of its own on every processor (a fence), and waits until it is told of these: by then it was told of all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Collection

from pytest_cloudbench.net.sockets.diag import (
    DESTROYED,
    DONE,
    FAILED,
    SOCKET,
    TcpSocket,
    UncountedError,
    dump_request,
    errno_of,
    filter_program,
    messages,
    read_socket,
)

_ANSWER_S = 10.0
"""The kernel answers in microseconds, unless this process gets no processor."""

_NETLINK, _SOCK_DIAG = 16, 4  # AF_NETLINK, which not every system's socket module has; NETLINK_SOCK_DIAG
_SO_ATTACH_FILTER, _SO_COOKIE = 26, 57
_ROOM_BYTES = 4 << 20
_LARGEST = 1 << 16


def cookie_of(sock: socket.socket) -> int | None:
    """Returns the kernel's number for a socket, which no other one gets; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), sys.byteorder)
    except OSError:
        return None


class SocketWatch:
    """Listens from now on to what the kernel tells of TCP sockets that are destroyed; leave it with ``close``.

    Args:
        ports: of sockets that matter, at either end; None for all sockets.
        most: how many destroyed sockets are remembered; some 500 bytes each.

    Raises UncountedError and OSError.
    """

    def __init__(self, ports: Collection[int] | None, most: int) -> None:
        if sys.platform != "linux":
            raise UncountedError("only Linux tells what its sockets have carried")
        self._ports = None if ports is None else frozenset(ports)
        self._most, self._gone = most, dict[int, TcpSocket]()
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._told = _netlink()
        self._wake, waked = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, args=(waked,), name="socket-watch", daemon=True)
        try:
            self._told.setblocking(False)
            with contextlib.suppress(OSError):  # as much as an ordinary user may have
                self._told.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
            if self._ports is not None:
                _attach(self._told, filter_program(self._ports))
            self._told.bind((0, DESTROYED))
        except BaseException:
            for each in (self._told, self._wake, waked):
                each.close()
            raise
        self._thread.start()

    def close(self) -> None:
        """Stop listening; safe to call again."""
        self._wake.close()
        self._thread.join()
        self._told.close()

    def look(self) -> tuple[dict[int, TcpSocket], dict[int, TcpSocket]]:
        """Returns the sockets that are there, and those that were destroyed since this was last asked, by cookie.

        A socket that is destroyed while this is asked may be in both. Raises UncountedError and OSError.
        """
        ports = self._ports
        found = {
            each.cookie: each for each in _dumped()
            if ports is None or each.local[1] in ports or each.remote[1] in ports
        }  # fmt: skip
        fence = _fence()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or fence <= self._gone.keys(), _ANSWER_S)
            if self._failure is not None:
                raise self._failure
            if not fence <= self._gone.keys():
                raise UncountedError(f"the kernel did not tell of destroyed sockets within {_ANSWER_S:g} s")
            gone, self._gone = self._gone, {}
        return found, {cookie: each for cookie, each in gone.items() if cookie not in fence}

    def _listen(self, waked: socket.socket) -> None:
        """Note what the kernel tells, until the other end of ``waked`` is closed."""
        with waked, selectors.DefaultSelector() as selector:
            selector.register(self._told, selectors.EVENT_READ)
            selector.register(waked, selectors.EVENT_READ)
            while waked not in [key.fileobj for key, _ in selector.select()]:
                try:
                    self._note()
                except (UncountedError, OSError) as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return

    def _note(self) -> None:
        while True:
            try:
                data = self._told.recv(_LARGEST)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                raise UncountedError("connections ended faster than this process could take note of it") from error
            found = [read_socket(body) for kind, body in messages(data) if kind == SOCKET]
            with self._changed:
                self._gone.update({each.cookie: each for each in found if each is not None})
                if len(self._gone) > self._most:
                    raise UncountedError(f"more than {self._most:,} sockets were closed meanwhile")
                self._changed.notify_all()


def _netlink() -> socket.socket:
    return socket.socket(_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)


def _attach(told: socket.socket, program: bytes) -> None:
    """Let only what a filter accepts reach a socket."""
    kept = ctypes.create_string_buffer(program, len(program))
    told.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(kept)))


def _dumped() -> list[TcpSocket]:
    """Returns all TCP sockets of this network namespace that listen or are connected."""
    found: list[TcpSocket] = []
    with _netlink() as asked:
        asked.settimeout(_ANSWER_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            asked.send(dump_request(family))
            is_done = False
            while not is_done:
                for kind, body in messages(asked.recv(_LARGEST)):
                    if kind == SOCKET and (each := read_socket(body)) is not None:
                        found.append(each)
                    elif kind in (FAILED, DONE):
                        is_done = True
                        if number := errno_of(body):
                            raise OSError(number, os.strerror(number))
    return found


def _fence() -> set[int]:
    """Free a socket on every processor. Returns their cookies."""
    found, before = set[int](), os.sched_getaffinity(0)
    try:
        for processor in range(os.cpu_count() or 1):
            with contextlib.suppress(OSError):  # nothing of this container runs there
                os.sched_setaffinity(0, {processor})
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fence:
                cookie = cookie_of(fence)
                if cookie is None:
                    raise UncountedError("this kernel has no numbers for sockets (Linux 4.12 has)")
                found.add(cookie)
    finally:
        os.sched_setaffinity(0, before)
    return found
