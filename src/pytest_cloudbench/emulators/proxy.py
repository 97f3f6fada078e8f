"""An HTTP proxy that maps the API's real host names to an emulator, for clients that cannot be pointed at one.

It supports only ``CONNECT HOST:443``. Host names of the API lead to the emulator, whose certificate holds them. Every
other name is refused, so a client behind this proxy never leaves the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

_HEAD_BYTES = 16 * 1024
_HEAD_S = 10.0
_PIECE_BYTES = 64 * 1024


async def serve_proxy(host_names: Collection[str], address: str, port: int) -> str:
    """Start the proxy on a free port of loopback, for an emulator on ``port``, and return its URL.

    A host name that begins with ``*.`` stands for all names below it.
    """
    tasks = set[asyncio.Task[None] | None]()  # uvloop keeps no reference to a connection that waits, nor does its task

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        try:
            await serve_client(reader, writer)
        finally:
            tasks.discard(task)

    async def serve_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
            refusal = await _check_connect(reader, host_names)
            if refusal:
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % refusal)
                await writer.drain()
            else:
                await _relay_both_ways(reader, writer, address, port)
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, address, 0, limit=_HEAD_BYTES)
    return f"http://{address}:{server.sockets[0].getsockname()[1]}"


async def _check_connect(reader: asyncio.StreamReader, host_names: Collection[str]) -> bytes:
    """Read the header of a request. Return a status (code and reason) to refuse it with, or nothing if it may pass."""
    try:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b"431 Request Header Fields Too Large"
    method, _, target = head.partition(b" ")
    if method != b"CONNECT":
        return b"405 Only CONNECT"
    host, _, port = target.partition(b" ")[0].decode("latin-1").lower().rpartition(":")
    is_known = host in host_names or f"*.{host.partition('.')[2]}" in host_names
    return b"" if is_known and port == "443" else b"403 Not a host of this emulator"


async def _relay_both_ways(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int) -> None:
    """Relay bytes between a client and the emulator until either of them ends its connection."""
    from_emulator, to_emulator = await asyncio.open_connection(address, port)
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    # No direction is shut down alone: TLS has no half-closed connections, and uvloop 0.23 frees a transport twice if it
    # is collected meanwhile.
    directions = [
        asyncio.create_task(_relay_bytes(reader, to_emulator)),
        asyncio.create_task(_relay_bytes(from_emulator, writer)),
    ]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        to_emulator.close()
        await asyncio.gather(*directions, return_exceptions=True)


async def _relay_bytes(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(_PIECE_BYTES):
        target.write(piece)
        await target.drain()
