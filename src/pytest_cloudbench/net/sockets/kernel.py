"""Queries to the kernel for TCP sockets, and its notices about destroyed ones, over ``NETLINK_SOCK_DIAG``.

This needs no rights and costs nothing while bytes flow. A connection that ends costs one short message for each of its
ends.

The kernel announces a destroyed socket a moment later, from a queue of the processor that freed it. Therefore the watch
frees a socket of its own on every processor (a fence) and waits for their notices. All earlier notices have arrived by
then.
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
    make_dump_request,
    make_port_filter,
    read_errno,
    read_socket,
    split_messages,
)

_ANSWER_S = 10.0
"""Time limit for an answer. The kernel answers in microseconds unless this process gets no processor."""

_NETLINK, _SOCK_DIAG = 16, 4  # AF_NETLINK, which some systems' socket module lacks, and NETLINK_SOCK_DIAG
_SO_ATTACH_FILTER, _SO_COOKIE = 26, 57
_BUFFER_BYTES = 4 << 20
_MESSAGE_BYTES = 1 << 16


def cookie_of(sock: socket.socket) -> int | None:
    """Return the kernel's unique number for a socket, or None if the system has none."""
    if sys.platform != "linux":
        return None
    try:
        return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), sys.byteorder)
    except OSError:
        return None


class SocketWatch:
    """A listener for the kernel's notices about destroyed TCP sockets, from now until ``close``.

    Args:
        ports: ports of the sockets to watch, at either end, or None for all sockets.
        max_gone: the largest number of destroyed sockets to remember, at about 500 bytes each.

    Raises UncountedError and OSError.
    """

    def __init__(self, ports: Collection[int] | None, max_gone: int) -> None:
        if sys.platform != "linux":
            raise UncountedError("only Linux counts the bytes of its sockets")
        self._ports = None if ports is None else frozenset(ports)
        self._max_gone, self._gone = max_gone, dict[int, TcpSocket]()
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._notices = _open_netlink()
        self._wake, wake_reader = socket.socketpair()
        self._thread = threading.Thread(target=self._listen, args=(wake_reader,), name="socket-watch", daemon=True)
        try:
            self._notices.setblocking(False)
            with contextlib.suppress(OSError):  # the system may limit it for ordinary users
                self._notices.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            if self._ports is not None:
                _attach_filter(self._notices, make_port_filter(self._ports))
            self._notices.bind((0, DESTROYED))
        except BaseException:
            for endpoint in (self._notices, self._wake, wake_reader):
                endpoint.close()
            raise
        self._thread.start()

    def close(self) -> None:
        """Stop listening. It is safe to call again."""
        self._wake.close()
        self._thread.join()
        self._notices.close()

    def read_sockets(self) -> tuple[dict[int, TcpSocket], dict[int, TcpSocket]]:
        """Return the present sockets, and those destroyed since the last call, both by cookie.

        A socket that is destroyed during the call may be in both. Raises UncountedError and OSError.
        """
        ports = self._ports
        present = {
            sock.cookie: sock for sock in _dump_sockets()
            if ports is None or sock.local[1] in ports or sock.remote[1] in ports
        }  # fmt: skip
        fence = _free_fence_sockets()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or fence <= self._gone.keys(), _ANSWER_S)
            if self._failure is not None:
                raise self._failure
            if not fence <= self._gone.keys():
                raise UncountedError(f"the kernel did not report destroyed sockets within {_ANSWER_S:g} s")
            closed, self._gone = self._gone, {}
        return present, {cookie: sock for cookie, sock in closed.items() if cookie not in fence}

    def _listen(self, wake_reader: socket.socket) -> None:
        """Record the kernel's notices until the other end of ``wake_reader`` is closed."""
        with wake_reader, selectors.DefaultSelector() as selector:
            selector.register(self._notices, selectors.EVENT_READ)
            selector.register(wake_reader, selectors.EVENT_READ)
            while wake_reader not in [key.fileobj for key, _ in selector.select()]:
                try:
                    self._record_closed()
                except (UncountedError, OSError) as error:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return

    def _record_closed(self) -> None:
        while True:
            try:
                data = self._notices.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                raise UncountedError("connections ended faster than this process could record them") from error
            closed = [read_socket(body) for kind, body in split_messages(data) if kind == SOCKET]
            with self._changed:
                self._gone.update({sock.cookie: sock for sock in closed if sock is not None})
                if len(self._gone) > self._max_gone:
                    raise UncountedError(f"more than {self._max_gone:,} sockets were closed meanwhile")
                self._changed.notify_all()


def _open_netlink() -> socket.socket:
    return socket.socket(_NETLINK, socket.SOCK_RAW, _SOCK_DIAG)


def _attach_filter(netlink: socket.socket, program: bytes) -> None:
    """Attach a filter to a netlink socket."""
    buffer = ctypes.create_string_buffer(program, len(program))
    netlink.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    )


def _dump_sockets() -> list[TcpSocket]:
    """Return all listening and connected TCP sockets of this network namespace."""
    sockets: list[TcpSocket] = []
    with _open_netlink() as netlink:
        netlink.settimeout(_ANSWER_S)
        for family in (socket.AF_INET, socket.AF_INET6):
            netlink.send(make_dump_request(family))
            is_done = False
            while not is_done:
                for kind, body in split_messages(netlink.recv(_MESSAGE_BYTES)):
                    if kind == SOCKET and (sock := read_socket(body)) is not None:
                        sockets.append(sock)
                    elif kind in (FAILED, DONE):
                        is_done = True
                        if number := read_errno(body):
                            raise OSError(number, os.strerror(number))
    return sockets


def _free_fence_sockets() -> set[int]:
    """Free a socket on every processor, and return their cookies."""
    cookies, allowed_cpus = set[int](), os.sched_getaffinity(0)
    try:
        for processor in range(os.cpu_count() or 1):
            with contextlib.suppress(OSError):  # this container may not use that processor
                os.sched_setaffinity(0, {processor})
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as fence:
                cookie = cookie_of(fence)
                if cookie is None:
                    raise UncountedError("this kernel has no numbers for sockets (Linux 4.12 has)")
                cookies.add(cookie)
    finally:
        os.sched_setaffinity(0, allowed_cpus)
    return cookies
