"""A tap: a relay in front of a service that records the traffic, as it is, or with TLS opened by a key of our own.

As it is, it shows what an eavesdropper sees. Opened, it shows what the service receives. The driver is told to trust
the tap's authority, so nothing else about it changes.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pytest_cloudbench import Endpoint, egress_of, parse_client_hello, parse_server_hello

_PIECE_BYTES = 65536
_HELLO_BYTES = 32768
_START_S = 30.0
_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_PORTS = {"http": 80, "https": 443, "sftp": 22}


@dataclass(slots=True)
class TappedFlow:
    """One recorded connection.

    Attributes:
        server: host and port behind the tap.
        up, down: the bytes that the client and the server sent. Decrypted if the tap opened them.
        known_protocol: the protocol that protects the flow, if that was found in another way.
    """

    server: str
    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)
    known_protocol: str = ""

    @property
    def protocol(self) -> str:
        """The protocol that protects the flow: a version of TLS with the cipher, or ``SSH``. Empty if none is known."""
        if self.known_protocol:
            return self.known_protocol
        if self.up[:4] == b"SSH-" and self.down[:4] == b"SSH-":
            return "SSH"
        hello = parse_client_hello(bytes(self.up[:_HELLO_BYTES]))
        answer = parse_server_hello(bytes(self.down[:_HELLO_BYTES]))
        if hello is None or answer is None or answer.is_plain:
            return ""
        return f"{answer.version or 'TLS'} {answer.cipher}"

    @property
    def offered(self) -> str:
        """The versions of TLS that the client offered, such as ``TLSv1.2, TLSv1.3``. Empty if it sent no hello."""
        hello = parse_client_hello(bytes(self.up[:_HELLO_BYTES]))
        return ", ".join(sorted(hello.versions)) if hello is not None else ""


class Tap:
    """A tap in front of all addresses of a service, or an HTTP proxy in front of a real account.

    Args:
        endpoint: the service. None for a proxy, which reaches hosts as drivers do, by the user's proxy if there is one.
        folder: an empty folder for the tap's own authority, which is needed if it opens TLS. None if it does not.

    Attributes:
        endpoint: the service as a client behind the tap should see it.
        proxy: the address of the proxy.
        authority: the file of the tap's own authority if it opens TLS.
        flows: the recorded connections, in the order in which they began.
    """

    def __init__(self, endpoint: Endpoint | None, folder: Path | None = None) -> None:
        self._service, self._folder, self.opens = endpoint, folder, folder is not None
        self.flows: list[TappedFlow] = []
        self.proxy, self.authority = "", "" if folder is None else str(folder / "tap-ca.pem")
        self._user_egress, self._contexts = egress_of(None), dict[str, ssl.SSLContext]()
        self._authority: Any = None
        self.endpoint = endpoint
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)
        self._ready, self._failure = threading.Event(), ""
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Tap:
        self._thread.start()
        if not self._ready.wait(_START_S) or self._failure:
            raise OSError(f"the tap did not start: {self._failure or 'no answer'}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)

    # --- the thread ---

    def _run(self) -> None:
        with suppress(RuntimeError):  # the loop was stopped meanwhile
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[Any]] = set()
        try:
            if self._service is None:
                servers = [await asyncio.start_server(self._track(tasks, self._serve_proxy), "127.0.0.1", 0)]
                self.proxy = f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}"
            else:
                urls, servers = await self._listen(self._service, tasks)
                ca_file = self.authority or self._service.ca_file
                self.endpoint = replace(self._service, urls=urls, ca_file=ca_file)
        except OSError as error:
            self._failure = str(error)
            self._ready.set()
            return
        if self.opens:
            self._own_context("127.0.0.1")  # so that the authority's file is there before a driver is connected
        self._ready.set()
        await self._stop.wait()
        for server in servers:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # so that aborted connections are closed before the loop is

    @staticmethod
    def _track(tasks: set[asyncio.Task[Any]], serve: _Serve) -> _Serve:
        """Return a handler that notes each connection's task, so that it can be cancelled when the tap ends."""

        async def serve_tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await serve(reader, writer)
            finally:
                tasks.discard(task)

        return serve_tracked

    async def _listen(
        self, service: Endpoint, tasks: set[asyncio.Task[Any]]
    ) -> tuple[Mapping[str, str], list[asyncio.Server]]:
        """Listen once for each address of the service. Return the URLs by role as they are behind the tap."""
        ports: dict[tuple[str, int, bool], int] = {}
        urls, servers = {}, []
        for role, url in service.urls.items():
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)
            is_opened = self.opens and parts.scheme == "https"
            if (host, port, is_opened) not in ports:
                relay = partial(self._relay, address=(host, port), is_opened=is_opened, ca_file=service.ca_file)
                context = self._own_context("127.0.0.1") if is_opened else None
                server = await asyncio.start_server(self._track(tasks, relay), "127.0.0.1", 0, ssl=context)
                servers.append(server)
                ports[host, port, is_opened] = server.sockets[0].getsockname()[1]
            netloc = f"127.0.0.1:{ports[host, port, is_opened]}"
            urls[role] = parts._replace(netloc=netloc).geturl()
        return urls, servers

    async def _relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, address: tuple[str, int], is_opened: bool,
        ca_file: str,
    ) -> None:  # fmt: skip
        flow = TappedFlow(f"{address[0]}:{address[1]}")
        self.flows.append(flow)
        writers = [writer]
        try:
            context = ssl.create_default_context(cafile=ca_file or None) if is_opened else None
            from_server, to_server = await asyncio.open_connection(*address, ssl=context)
            writers.append(to_server)
            await asyncio.gather(_copy(reader, to_server, flow.up), _copy(from_server, writer, flow.down))
        except (OSError, asyncio.CancelledError):
            pass  # the end of a connection or of the tap is no error
        finally:
            for open_writer in writers:
                _abort(open_writer)

    async def _serve_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve ``CONNECT HOST:PORT``, and nothing else."""
        writers = [writer]
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, _, target = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
            host, _, port = target.partition(" ")[0].rpartition(":")
            if method != "CONNECT" or not port.isdecimal():
                writer.write(b"HTTP/1.1 405 Only CONNECT\r\ncontent-length: 0\r\n\r\n")
                await writer.drain()
                return
            flow = TappedFlow(f"{host}:{port}")
            self.flows.append(flow)
            from_server, to_server = await self._connect_out(host, int(port))
            writers.append(to_server)
            if self.opens:
                trusted = self._user_egress.context()
                context = ssl.create_default_context() if isinstance(trusted, bool) else trusted
                await to_server.start_tls(context, server_hostname=host)
            own_context = self._own_context(host) if self.opens else None
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            if own_context is not None:
                await writer.start_tls(own_context)  # at once: the client's hello must not be read as something else
            await asyncio.gather(_copy(reader, to_server, flow.up), _copy(from_server, writer, flow.down))
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the end of a connection or of the tap is no error
        finally:
            for open_writer in writers:
                _abort(open_writer)

    async def _connect_out(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host as drivers do: by the user's proxy, if there is one for it. Raises OSError."""
        proxy = urlsplit(self._user_egress.proxy_for(f"https://{host}:{port}"))
        if not proxy.hostname:
            return await asyncio.open_connection(host, port)
        reader, writer = await asyncio.open_connection(proxy.hostname, proxy.port or 80)
        writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0] + b" ":
            _abort(writer)
            raise OSError("the user's proxy refuses")
        return reader, writer

    def _own_context(self, host: str) -> ssl.SSLContext:
        """Return the TLS settings of a server of this name, certified by the tap's own authority."""
        import trustme

        if self._authority is None:
            self._authority = trustme.CA(organization_name="pytest-cloudbench tap", key_type=trustme.KeyType.ECDSA)
            self._authority.cert_pem.write_to_path(self.authority)
        if host not in self._contexts:
            names = ("127.0.0.1", "localhost") if host == "127.0.0.1" else (host,)
            issued = self._authority.issue_cert(*names, key_type=trustme.KeyType.ECDSA)
            self._contexts[host] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            issued.configure_cert(self._contexts[host])
        return self._contexts[host]


def _abort(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, if it has not ended."""
    with suppress(AttributeError):  # Python 3.11.2 raises it for a TLS connection that has ended and is closed again
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    """Copy one direction of a connection to its end."""
    try:
        while data := await reader.read(_PIECE_BYTES):
            record += data
            writer.write(data)
            await writer.drain()
    finally:
        with suppress(OSError, RuntimeError):
            if writer.can_write_eof():
                writer.write_eof()
            else:  # TLS has no half-closed connections
                writer.close()


def sent_bytes(flows: Iterable[TappedFlow]) -> bytes:
    """Return everything that the client sent, one connection after the other."""
    return b"".join(bytes(flow.up) for flow in flows)
