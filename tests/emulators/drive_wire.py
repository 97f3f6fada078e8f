"""A raw client of the Drive emulator that checks every answer against Google's own description of the API.

``specs/drive.v3.json`` has the methods and the schemas of their answers, trimmed from the discovery document. Every
JSON answer with status 200 must be what the method's schema allows, with no other property; an error must have the form
that Google's guide gives.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

__all__ = ["FOLDER", "DriveReply", "DriveWire", "check_answer", "drive_client"]

FOLDER = "application/vnd.google-apps.folder"
jsonschema: Any = pytest.importorskip("jsonschema", reason="an extra of development: pip install -e .[dev]")
_SPEC = json.loads((Path(__file__).parent / "specs" / "drive.v3.json").read_text())
_FORMATS = {
    "int64": {"type": "string", "pattern": "^-?[0-9]+$"},
    "date-time": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"},
}
_ERROR = {
    "type": "object", "required": ["error"], "additionalProperties": False,
    "properties": {"error": {
        "type": "object", "required": ["code", "message", "errors"],
        "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "errors": {
            "type": "array", "minItems": 1, "items": {
                "type": "object", "required": ["domain", "reason", "message"], "additionalProperties": False,
                "properties": {name: {"type": "string"} for name in
                               ("domain", "reason", "message", "location", "locationType")},
            },
        }},
    }},
}  # fmt: skip


def _schema(found: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the discovery document as a JSON Schema that allows nothing else."""
    if "$ref" in found:
        return {"$ref": f"#/definitions/{found['$ref']}"}
    if found.get("format") in _FORMATS:
        return dict(_FORMATS[found["format"]])
    made: dict[str, Any] = {"type": found["type"]}
    if made["type"] == "object":
        made["properties"] = {name: _schema(each) for name, each in found.get("properties", {}).items()}
        more = found.get("additionalProperties")
        made["additionalProperties"] = _schema(more) if more else False
    elif made["type"] == "array":
        made["items"] = _schema(found["items"])
    if "enum" in found:
        made["enum"] = found["enum"]
    if re.fullmatch(r"drive#\w+", str(found.get("default", ""))):
        made["const"] = found["default"]
    return made


@cache
def _validator(name: str) -> Any:
    definitions = {each: _schema(found) for each, found in _SPEC["schemas"].items()}
    return jsonschema.Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": definitions})


@cache
def _method(verb: str, path: str) -> str | None:
    """The method that a request is for; those without parameters in their paths go first."""
    bare = re.sub(r"^/(resumable/)?(upload/)?drive/v3/", "", path)
    for name, method in sorted(_SPEC["methods"].items(), key=lambda each: each[1]["path"].count("{")):
        pattern = re.sub(r"\{\w+\}", "[^/]+", method["path"])
        if (method["httpMethod"], bool(re.fullmatch(pattern, bare))) == (verb, True):
            return str(name)
    return None


def check_answer(verb: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Fail unless the answer is one that the specification allows."""
    if not headers.get("content-type", "").startswith("application/json") or "/drive/v3" not in path:
        return
    value = json.loads(body)
    if status >= 400:
        jsonschema.validate(value, _ERROR)
        assert value["error"]["code"] == status
        return
    if (name := _method(verb, path)) is not None and "response" in _SPEC["methods"][name]:
        _validator(_SPEC["methods"][name]["response"]).validate(value)


@dataclass(frozen=True)
class DriveReply:
    """One answer; ``value`` is the decoded JSON, or the bytes."""

    status: int
    headers: Mapping[str, str]
    value: Any

    @property
    def reason(self) -> str:
        """Why a request was refused, in the API's word."""
        return str(self.value["error"]["errors"][0]["reason"])


class DriveWire:
    """A raw client: one kept-alive connection, no retries, every answer checked."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        port = urlsplit(endpoint.url).port
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.token = endpoint.credentials["access_token"]

    def __call__(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
    ) -> DriveReply:
        """Send one request: bytes as they are, anything else as JSON; a path without ``/`` is one of the API."""
        whole = path if path.startswith("/") else f"/drive/v3/{path}"
        given = {"Authorization": f"Bearer {self.token if token is None else token}"}
        data = body
        if body is not None and not isinstance(body, bytes):
            data, given["Content-Type"] = json.dumps(body).encode(), "application/json"
        address = f"{whole}{'&' if '?' in whole else '?'}{urlencode(query)}" if query else whole
        given = {name: text for name, text in {**given, **(headers or {})}.items() if text}
        self.connection.request(verb, address, data, given)
        answer = self.connection.getresponse()
        content = answer.read()
        found = {name.lower(): text for name, text in answer.getheaders()}
        check_answer(given.get("X-HTTP-Method-Override", verb), urlsplit(whole).path, answer.status, found, content)
        is_json = found.get("content-type", "").startswith("application/json")
        return DriveReply(answer.status, found, json.loads(content) if is_json else content)

    def ok(self, verb: str, path: str, body: Any = None, **more: Any) -> Any:
        """Send a request that succeeds; returns the value."""
        reply = self(verb, path, body, **more)
        assert reply.status in (200, 204), (reply.status, reply.value)
        return reply.value

    def folder(self, name: str, parent: str = "root") -> str:
        """Create a folder; returns its id."""
        return str(self.ok("POST", "files", {"name": name, "mimeType": FOLDER, "parents": [parent]})["id"])

    def upload(self, name: str, data: bytes = b"x", parent: str = "root", *, mime: str = "", **more: Any) -> str:
        """Create a file with content by one multipart request; returns its id."""
        given = {"name": name, "parents": [parent], **({"mimeType": mime} if mime else {}), **more}
        body = (
            b'--b\r\nContent-Type: application/json\r\n\r\n' + json.dumps(given).encode()
            + b"\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--b--"
        )  # fmt: skip
        headers = {"Content-Type": "multipart/related; boundary=b"}
        found = self.ok("POST", "/upload/drive/v3/files?uploadType=multipart", body, headers=headers)
        return str(found["id"])

    def names(self, q: str = "", **query: str) -> list[str]:
        """The names of what a search finds."""
        return [each["name"] for each in self.ok("GET", "files", query={"q": q, **query})["files"]]


@contextmanager
def drive_client(endpoint: Endpoint) -> Iterator[DriveWire]:
    """A raw client that is closed at the end."""
    wire = DriveWire(endpoint)
    try:
        yield wire
    finally:
        wire.connection.close()
