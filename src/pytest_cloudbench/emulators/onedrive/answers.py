"""Answers in Graph's form: JSON with OData's headers, errors in the service's words, times.

What may live here: how an answer looks. No routes, no state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer

GRAPH = "https://graph.microsoft.com/v1.0/$metadata#"
JSON = b"application/json;odata.metadata=minimal;odata.streaming=true;IEEE754Compatible=false;charset=utf-8"
JSON_SPACED = b"application/json; odata.metadata=minimal; odata.streaming=true; IEEE754Compatible=false; charset=utf-8"
_HEADERS = [(b"content-type", JSON), (b"odata-version", b"4.0")]
_HEADERS_SPACED = [(b"content-type", JSON_SPACED)]
_ERROR_TYPE = (b"content-type", b"application/json")


class GraphError(Exception):
    """A refusal: status, code and message, and perhaps the code of an inner error and headers."""

    def __init__(
        self, status: int, code: str, message: str, inner: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.inner, self.headers = status, code, message, inner, headers


_OF_STORE: Mapping[str, tuple[int, str, str]] = {
    "not_found": (404, "itemNotFound", "Item not found"),
    "not_folder": (404, "itemNotFound", "Item not found"),
    "not_file": (400, "invalidRequest", "The item is a folder and has no content"),
    "taken": (409, "nameAlreadyExists", "Name already exists"),
    "file_ancestor": (409, "nameAlreadyExists", "Name already exists"),
    "insufficient_space": (507, "quotaLimitReached", "The user has reached their quota limit."),
    "into_itself": (400, "invalidRequest", "The destination is inside of the item, or is the item itself"),
}


def from_store(error: StoreError) -> GraphError:
    """Returns the API's error for a refusal by the store."""
    return GraphError(*_OF_STORE[error.reason])


def not_offered(what: str) -> GraphError:
    """Returns the refusal of what the service has and the emulator does not."""
    return GraphError(400, "notSupported", f"This emulator does not offer {what}.")


def answer_json(
    value: Mapping[str, Any], status: int = 200, *headers: tuple[bytes, bytes], spaced: bool = False
) -> Answer:
    """Returns an answer of Graph; ``spaced``: from the part of the service that writes its content type with spaces."""
    first = _HEADERS_SPACED if spaced else _HEADERS
    return Answer(status, [*first, *headers], json.dumps(value).encode())


def answer_text(text: str, status: int = 200) -> Answer:
    """Returns an answer of Graph whose JSON is put together already."""
    return Answer(status, _HEADERS, text.encode())


def error_answer(error: GraphError, now_s: float, request_id: str, client_id: str = "") -> Answer:
    """Returns the answer to a refused request."""
    inner = {
        "date": timestamp(now_s)[:-1],
        "request-id": request_id,
        "client-request-id": client_id or request_id,
    }
    if error.inner:
        inner = {"code": error.inner, **inner}
    body = {"error": {"code": error.code, "message": error.message, "innerError": inner}}
    return Answer(error.status, [_ERROR_TYPE, *error.headers], json.dumps(body).encode())


def timestamp(at_s: float) -> str:
    """Returns a time as the API writes it, in whole seconds."""
    return _timestamp(int(at_s))


def precise_time(at_s: float) -> str:
    """Returns a time with milliseconds."""
    return f"{_timestamp(int(at_s))[:-1]}.{int(at_s * 1000) % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _timestamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def seconds_of(text: object) -> float:
    """Returns the seconds since 1970 of a time such as ``2026-06-03T12:00:00.5Z``. Raises GraphError."""
    from datetime import UTC, datetime

    try:
        if not isinstance(text, str):
            raise TypeError(text)
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        raise GraphError(
            400, "invalidRequest", "Cannot convert the literal to the expected type DateTimeOffset"
        ) from None
