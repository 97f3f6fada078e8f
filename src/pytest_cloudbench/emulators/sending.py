"""Sending an answer through ASGI: in one write if the connection supports it, and large ones in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.skin import BODILESS, Answer

_MAX_WRITE_BYTES = 1024 * 1024
"""TLS libraries refuse a write of 2 GiB or more, and copy a large write as a whole before they send any of it."""

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


async def send_answer(scope: Message, send: Send, answer: Answer) -> None:
    """Send an answer, in one write if the connection supports it."""
    connection, body = scope.get("state", {}).get("connection"), answer.body
    if connection is not None and connection.respond(answer.status, answer.headers, body):
        return
    length = [] if answer.status in BODILESS else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, *length]})
    if not body or scope["method"] == "HEAD":
        await send({"type": "http.response.body", "body": b""})
        return
    sent_bytes = 0
    for piece in split_body(body, _MAX_WRITE_BYTES):
        sent_bytes += len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": sent_bytes < len(body)})


def split_body(body: bytes | BytePieces, max_bytes: int) -> Iterator[bytes]:
    """Yield a body in pieces of at most the given size."""
    for piece in (body if isinstance(body, BytePieces) else BytePieces([body])).chunks(max_bytes):
        yield bytes(piece)
