"""The form of Box's answers: JSON, errors, times and addresses. It also reads JSON bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from itertools import count
from time import gmtime, strftime
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer, Call
from pytest_cloudbench.support.json_text import json_writer

HELP_URL = "http://developers.box.com/docs/#errors"
_JSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache, no-store")]
_encode = json_writer()
_request_numbers = count(0x4D1C0DE)
_OFFSET_S = 7 * 3600
"""Box writes times in the account's time zone, here Pacific time as in the recorded answers."""

_MESSAGES: Mapping[str, str] = {
    "access_denied_insufficient_permissions": "Access denied - insufficient permission",
    "bad_digest": "The specified content-md5 did not match what we received",
    "bad_request": "Bad Request",
    "cyclical_folder_structure": "Folder move creates cyclical folder structure",
    "file_size_limit_exceeded": "File size exceeds the folder owner's file size limit",
    "file_size_too_small": "File size is below minimum file size for uploads via this API",
    "folder_not_empty": "Cannot delete - folder not empty",
    "incorrect_shared_item_password": "",
    "insufficient_scope": "The request requires higher privileges than provided by the access token.",
    "internal_server_error": "Internal Server Error",
    "invalid_limit": "Limit is not a valid number",
    "invalid_offset": "Offset is not a valid number",
    "invalid_upload_session_id": "The upload session ID provided in the URL is not of a valid format.",
    "item_name_in_use": "Item with the same name already exists",
    "item_name_invalid": "Item name invalid",
    "item_name_too_long": "Item name too long",
    "metadata_after_file_contents": "Metadata is included after file contents in a file upload request.",
    "method_not_allowed": "Method Not Allowed",
    "not_found": "Not Found",
    "not_trashed": "Item is not trashed",
    "precondition_failed": "The resource has been modified. Retrieve the resource again and retry",
    "rate_limit_exceeded": "Request rate limit exceeded, please try again later",
    "session_expired": "The upload session associated with the given upload session ID has expired",
    "storage_limit_exceeded": "Account storage limit reached",
    "too_many_requests": "Request rate limit exceeded, please try again later",
    "trashed": "Item is trashed",
}
"""The service's messages (its guide to common errors). The message of any other error is its code."""


class BoxError(Exception):
    """A refusal with status, code and the context of the error."""

    def __init__(
        self, status: int, code: str, *, message: str | None = None, context: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(code)
        self.status, self.code, self.context = status, code, context
        self.message = _MESSAGES.get(code, code) if message is None else message

    def answer(self, *headers: tuple[bytes, bytes]) -> Answer:
        """Return the HTTP answer for this error."""
        body: dict[str, Any] = {"type": "error", "status": self.status, "code": self.code}
        if self.context is not None:
            body["context_info"] = self.context
        body |= {"help_url": HELP_URL, "message": self.message, "request_id": f"{next(_request_numbers):016x}"}
        return Answer(self.status, [*_JSON_HEADERS, *headers], _encode(body))


def answer_json(value: Any, status: int = 200) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status, _JSON_HEADERS, _encode(value))


def empty_answer(status: int = 204) -> Answer:
    """Return an answer without a body."""
    return Answer(status, [], b"")


def unauthorized(has_token: bool) -> Answer:
    """Return status 401, which has no body, and the reason in a header."""
    reason = b'Bearer realm="Service"'
    if has_token:
        reason += b', error="invalid_token", error_description="The access token provided is invalid."'
    return Answer(401, [(b"www-authenticate", reason)], b"")


def insufficient_scope() -> Answer:
    """Return status 403, because the token's scopes do not allow the request."""
    reason = (
        b'Bearer realm="Service", error="insufficient_scope", '
        b'error_description="The request requires higher privileges than provided by the access token."'
    )
    return BoxError(403, "insufficient_scope").answer((b"www-authenticate", reason))


def missing_feature(feature: str) -> Answer:
    """Return status 400, because the service has this and the emulator does not."""
    return BoxError(400, "bad_request", message=f"This emulator does not offer {feature}.").answer()


def bad_parameter(name: str, message: str, status: int = 400, code: str = "bad_request") -> BoxError:
    """Return the error for a parameter that is missing or cannot be read."""
    reason = "missing_parameter" if message.endswith("is required") else "invalid_parameter"
    return BoxError(status, code, context={"errors": [{"reason": reason, "name": name, "message": message}]})


def store_error(error: StoreError) -> BoxError:
    """Return the error for a write that the store refused."""
    if error.reason == "insufficient_space":
        return BoxError(403, "storage_limit_exceeded")
    if error.reason == "into_itself":
        return BoxError(400, "cyclical_folder_structure")
    return BoxError(404, "not_found")


def json_body(call: Call) -> dict[str, Any]:
    """Return the body's JSON object, which is empty if there is no body. Raises BoxError."""
    try:
        value = json.loads(call.body) if call.body else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise bad_parameter(
            "entity-body", "Invalid value. Entity body should be a correctly nested resource attribute name/value pair"
        )
    return value


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S-07:00", gmtime(second - _OFFSET_S))


def timestamp(at_s: float | None) -> str | None:
    """Format seconds since 1970 as the API does. None stays None."""
    return None if at_s is None else _format_second(int(at_s))


def read_time(value: object, name: str) -> float:
    """Return a time that a client sent, in seconds since 1970. Raises BoxError."""
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError):
        raise bad_parameter(name, f"Invalid value '{value}'.") from None


def host_url(call: Call, real_name: str) -> str:
    """Return the address of one of the API's hosts, as a client that used the request's host name can reach it."""
    host = call.headers.get(b"host", b"").decode("latin-1")
    is_real = not host or host.partition(":")[0].endswith((".box.com", ".boxcloud.com", ".box.net"))
    return f"https://{real_name}" if is_real else f"https://{quote(host, safe=':[]')}"
