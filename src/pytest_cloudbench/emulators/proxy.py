"""A way in for clients that cannot be pointed at an emulator: an HTTP proxy that knows the API's real host names.

What may live here: ``CONNECT HOST:443``, and bytes in both directions. Names of the API lead to the emulator, whose
certificate holds them; every other name is refused, so a client behind this proxy never leaves the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

_HEAD_BYTES = 16 * 1024
_HEAD_S = 10.0
_PIECE_BYTES = 64 * 1024


async def serve_proxy(host_names: Collection[str], port: int) -> str:
    """Start the proxy on a free port of loopback, for an emulator on ``port``; returns its URL.

    A host name that begins with ``*.`` stands for all names below it.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, TimeoutError):
            refusal = await _refusal(reader, host_names)
            if refusal:
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % refusal)
                await writer.drain()
            else:
                await _join(reader, writer, port)
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _refusal(reader: asyncio.StreamReader, host_names: Collection[str]) -> bytes:
    """Read a request's head. Returns the status line's end for one that goes nowhere; empty if it may pass."""
    try:
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b"431 Request Header Fields Too Large"
    method, _, rest = head.partition(b" ")
    if method != b"CONNECT":
        return b"405 Only CONNECT"
    host, _, port = rest.partition(b" ")[0].decode("latin-1").lower().rpartition(":")
    is_known = host in host_names or f"*.{host.partition('.')[2]}" in host_names
    return b"" if is_known and port == "443" else b"403 Not a host of this emulator"


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    """Pass bytes between a client and the emulator until both have ended."""
    from_emulator, to_emulator = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pass(reader, to_emulator), _pass(from_emulator, writer))
    finally:
        to_emulator.close()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(_PIECE_BYTES):
            target.write(piece)
            await target.drain()
    finally:
        with contextlib.suppress(OSError, RuntimeError):
            target.write_eof()
