"""The format of Graph's answers: JSON with OData's headers, errors and times."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer
from pytest_cloudbench.support.json_text import json_writer

GRAPH = "https://graph.microsoft.com/v1.0/$metadata#"
JSON = b"application/json;odata.metadata=minimal;odata.streaming=true;IEEE754Compatible=false;charset=utf-8"
JSON_SPACED = b"application/json; odata.metadata=minimal; odata.streaming=true; IEEE754Compatible=false; charset=utf-8"
_HEADERS = [(b"content-type", JSON), (b"odata-version", b"4.0")]
_HEADERS_SPACED = [(b"content-type", JSON_SPACED)]
_encode = json_writer(", ", ": ")
_ERROR_TYPE = (b"content-type", b"application/json")


class GraphError(Exception):
    """A refusal with its status, code and message, and optionally the code of an inner error and headers."""

    def __init__(
        self, status: int, code: str, message: str, inner: str = "", headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.inner, self.headers = status, code, message, inner, headers


_STORE_ERRORS: Mapping[str, tuple[int, str, str]] = {
    "not_found": (404, "itemNotFound", "Item not found"),
    "not_folder": (404, "itemNotFound", "Item not found"),
    "not_file": (400, "invalidRequest", "The item is a folder and has no content"),
    "taken": (409, "nameAlreadyExists", "Name already exists"),
    "file_ancestor": (409, "nameAlreadyExists", "Name already exists"),
    "insufficient_space": (507, "quotaLimitReached", "The user has reached their quota limit."),
    "into_itself": (400, "invalidRequest", "The destination is inside of the item, or is the item itself"),
}


def store_refusal(error: StoreError) -> GraphError:
    """Return the API's error for a refusal by the store."""
    return GraphError(*_STORE_ERRORS[error.reason])


def unsupported_feature(feature: str) -> GraphError:
    """Return the refusal of a feature that the service has and the emulator does not."""
    return GraphError(400, "notSupported", f"This emulator does not offer {feature}.")


def answer_json(
    value: Mapping[str, Any], status: int = 200, *headers: tuple[bytes, bytes], spaced: bool = False
) -> Answer:
    """Return an answer with a JSON body. One part of the service writes its content type with spaces (``spaced``)."""
    first = _HEADERS_SPACED if spaced else _HEADERS
    return Answer(status, [*first, *headers], _encode(value))


def answer_text(text: str | BytePieces, status: int = 200, *, spaced: bool = False) -> Answer:
    """Return an answer whose body is JSON already."""
    body = text.encode() if isinstance(text, str) else text
    return Answer(status, _HEADERS_SPACED if spaced else _HEADERS, body)


def answer_error(error: GraphError, now_s: float, request_id: str, client_id: str = "") -> Answer:
    """Return the answer to a refused request."""
    inner_error = {
        "date": format_time(now_s)[:-1],
        "request-id": request_id,
        "client-request-id": client_id or request_id,
    }
    if error.inner:
        inner_error = {"code": error.inner, **inner_error}
    body = {"error": {"code": error.code, "message": error.message, "innerError": inner_error}}
    return Answer(error.status, [_ERROR_TYPE, *error.headers], _encode(body))


def format_time(at_s: float) -> str:
    """Return a time in the API's format, in whole seconds."""
    return _format_seconds(int(at_s))


def format_precise_time(at_s: float) -> str:
    """Return a time in the API's format, with milliseconds."""
    return f"{_format_seconds(int(at_s))[:-1]}.{int(at_s * 1000) % 1000:03d}Z"


@lru_cache(maxsize=4096)
def _format_seconds(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def parse_time(text: object) -> float:
    """Return the seconds since 1970 of a time such as ``2026-06-03T12:00:00.5Z``. Raises GraphError."""
    from datetime import UTC, datetime

    try:
        if not isinstance(text, str):
            raise TypeError(text)
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError):
        raise GraphError(
            400, "invalidRequest", "Cannot convert the literal to the expected type DateTimeOffset"
        ) from None
