"""The format of the API's answers: JSON, errors and times."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Sequence
from re import compile as pattern
from time import gmtime, strftime, strptime
from typing import Any

from pytest_cloudbench.emulators.nodes import StoreError
from pytest_cloudbench.emulators.skin import Answer
from pytest_cloudbench.support.json_text import json_writer

_JSON_HEADERS = [(b"content-type", b"application/json; charset=UTF-8")]
_encode = json_writer()
_TIME = pattern(r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)?)?")


class DriveError(Exception):
    """An error of the API: its status, reason and message, and the part of the request at fault."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        location: str = "",
        kind: str = "parameter",
        *,
        domain: str = "global",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(f"{status} {reason}")
        self.status, self.reason, self.headers = status, reason, headers
        detail = {"message": message, "domain": domain, "reason": reason}
        if location:
            detail |= {"location": location, "locationType": kind}
        self.body = {"error": {"code": status, "message": message, "errors": [detail]}}

    def answer(self) -> Answer:
        """Return the HTTP answer for this error."""
        return Answer(self.status, [*_JSON_HEADERS, *self.headers], _encode(self.body))


def answer_json(value: Any) -> Answer:
    """Return an answer with status 200 and a JSON body."""
    return Answer(200, _JSON_HEADERS, _encode(value))


def answer_no_content() -> Answer:
    """Return an answer with status 204, which follows a deletion."""
    return Answer(204, [(b"content-type", b"text/html")], b"")


def answer_page(status: int, text: str) -> Answer:
    """Return an HTML page, which the servers in front of the API send instead of JSON."""
    page = f"<!DOCTYPE html>\n<html lang=en>\n<title>Error {status}</title>\n<p><b>{status}.</b> {text}\n"
    return Answer(status, [(b"content-type", b"text/html; charset=UTF-8")], page.encode())


def file_not_found(file_id: str) -> DriveError:
    """Return the error for a file that does not exist."""
    return DriveError(404, "notFound", f"File not found: {file_id}.", "fileId")


def invalid_parameter(location: str, message: str = "Invalid Value") -> DriveError:
    """Return the error for a parameter with an impossible value."""
    return DriveError(400, "invalid", message, location)


def store_refusal(error: StoreError) -> DriveError:
    """Return the error for a write that the store refused."""
    if error.reason == "insufficient_space":
        return DriveError(403, "storageQuotaExceeded", "The user's Drive storage quota has been exceeded.")
    if error.reason == "into_itself":
        return DriveError(403, "cannotAddParent", "A file cannot be moved into itself or one of its descendants.")
    return file_not_found(".")


_seconds: dict[int, str] = {}


def format_time(at_s: float) -> str:
    """Return seconds since 1970 in the API's format: in UTC, with milliseconds."""
    millis = int(at_s * 1000)
    seconds = millis // 1000
    text = _seconds.get(seconds)
    if text is None:
        if len(_seconds) > 4096:
            _seconds.clear()
        text = _seconds[seconds] = strftime("%Y-%m-%dT%H:%M:%S", gmtime(seconds))
    return f"{text}.{millis % 1000:03d}Z"


def parse_time(text: Any, location: str) -> float:
    """Return an RFC 3339 time as seconds since 1970, cut to milliseconds. Raises DriveError for another format."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is None:
            raise ValueError
        day, clock, fraction, zone = match.groups()
        at_s = float(timegm(strptime(f"{day} {clock or '00:00:00'}", "%Y-%m-%d %H:%M:%S")))
    except ValueError:
        raise invalid_parameter(location, f"Invalid value for: Invalid format: {text!r}") from None
    if zone and zone not in "Zz":
        offset_s = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
        at_s -= offset_s if zone[0] == "+" else -offset_s
    return at_s + float((fraction or "0")[: len(".000")])
