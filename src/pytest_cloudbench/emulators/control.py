"""The control socket: first the token, then a JSON answer to each line of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Callable

_GREETING_S = 10.0


async def serve_control(
    control: Callable[[object], dict[str, object]],
    token: str,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Serve one connection of the control socket: first the token, then a JSON answer to each JSON line."""
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(_GREETING_S):
            answer = _check_greeting(await _read_line(reader), token)
        while answer is not None:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
            line = await _read_line(reader)
            if not line:
                break
            try:
                answer = control(json.loads(line))
            except (ValueError, RecursionError) as error:
                answer = {"ok": False, "error": f"expected one JSON object per line: {error}"}
    writer.close()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, which is empty at the end of input or if the line is too long."""
    try:
        return await reader.readline()
    except ValueError:
        return b""


def _check_greeting(line: bytes, token: str) -> dict[str, object] | None:
    """Return the answer to the first line, ``{"token": "..."}``, or None to end the connection after any other.

    So a web page that posts to this port gets no answer: its first line is HTTP, and nothing after it is read.
    """
    try:
        sent_token = json.loads(line)["token"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {"ok": True} if hmac.compare_digest(sent_token, token.encode()) else None
