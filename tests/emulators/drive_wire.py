"""A raw client of the Drive emulator that checks every answer against Google's own description of the API.

``specs/drive.v3.json`` has the methods and the schemas of their answers, trimmed from the discovery document. Every
JSON answer with status 200 must match the method's schema and have no other property. An error must have the form
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


def _schema(google_schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema of the discovery document to a JSON Schema that allows no other properties."""
    if "$ref" in google_schema:
        return {"$ref": f"#/definitions/{google_schema['$ref']}"}
    if google_schema.get("format") in _FORMATS:
        return dict(_FORMATS[google_schema["format"]])
    schema: dict[str, Any] = {"type": google_schema["type"]}
    if schema["type"] == "object":
        schema["properties"] = {
            name: _schema(definition) for name, definition in google_schema.get("properties", {}).items()
        }
        additional = google_schema.get("additionalProperties")
        schema["additionalProperties"] = _schema(additional) if additional else False
    elif schema["type"] == "array":
        schema["items"] = _schema(google_schema["items"])
    if "enum" in google_schema:
        schema["enum"] = google_schema["enum"]
    if re.fullmatch(r"drive#\w+", str(google_schema.get("default", ""))):
        schema["const"] = google_schema["default"]
    return schema


@cache
def _validator(name: str) -> Any:
    definitions = {schema_name: _schema(schema) for schema_name, schema in _SPEC["schemas"].items()}
    return jsonschema.Draft7Validator({"$ref": f"#/definitions/{name}", "definitions": definitions})


@cache
def _method(verb: str, path: str) -> str | None:
    """Return the name of the method that a request calls. Methods with fewer parameters in their paths go first."""
    bare = re.sub(r"^/(resumable/)?(upload/)?drive/v3/", "", path)
    for name, method in sorted(_SPEC["methods"].items(), key=lambda entry: entry[1]["path"].count("{")):
        pattern = re.sub(r"\{\w+\}", "[^/]+", method["path"])
        if (method["httpMethod"], bool(re.fullmatch(pattern, bare))) == (verb, True):
            return str(name)
    return None


def check_answer(verb: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Fail unless the specification allows the answer."""
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
    """An answer of Drive. ``value`` is the decoded JSON, or the bytes."""

    status: int
    headers: Mapping[str, str]
    value: Any

    @property
    def reason(self) -> str:
        """The API's reason for a refusal."""
        return str(self.value["error"]["errors"][0]["reason"])


class DriveWire:
    """A raw client with one persistent connection. It retries nothing and checks every answer."""

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
        """Send a request. Bodies that are not bytes are sent as JSON. Paths without leading ``/`` belong to the API."""
        full_path = path if path.startswith("/") else f"/drive/v3/{path}"
        request_headers = {"Authorization": f"Bearer {self.token if token is None else token}"}
        data = body
        if body is not None and not isinstance(body, bytes):
            data, request_headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        address = f"{full_path}{'&' if '?' in full_path else '?'}{urlencode(query)}" if query else full_path
        request_headers = {name: text for name, text in {**request_headers, **(headers or {})}.items() if text}
        self.connection.request(verb, address, data, request_headers)
        answer = self.connection.getresponse()
        content = answer.read()
        answer_headers = {name.lower(): text for name, text in answer.getheaders()}
        check_answer(
            request_headers.get("X-HTTP-Method-Override", verb),
            urlsplit(full_path).path,
            answer.status,
            answer_headers,
            content,
        )
        is_json = answer_headers.get("content-type", "").startswith("application/json")
        return DriveReply(answer.status, answer_headers, json.loads(content) if is_json else content)

    def ok(self, verb: str, path: str, body: Any = None, **options: Any) -> Any:
        """Send a request that has to succeed, and return the value of its answer."""
        reply = self(verb, path, body, **options)
        assert reply.status in (200, 204), (reply.status, reply.value)
        return reply.value

    def folder(self, name: str, parent: str = "root") -> str:
        """Create a folder, and return its id."""
        return str(self.ok("POST", "files", {"name": name, "mimeType": FOLDER, "parents": [parent]})["id"])

    def upload(self, name: str, data: bytes = b"x", parent: str = "root", *, mime: str = "", **properties: Any) -> str:
        """Create a file with content by one multipart request, and return its id."""
        metadata = {"name": name, "parents": [parent], **({"mimeType": mime} if mime else {}), **properties}
        body = (
            b'--b\r\nContent-Type: application/json\r\n\r\n' + json.dumps(metadata).encode()
            + b"\r\n--b\r\nContent-Type: application/octet-stream\r\n\r\n" + data + b"\r\n--b--"
        )  # fmt: skip
        headers = {"Content-Type": "multipart/related; boundary=b"}
        file = self.ok("POST", "/upload/drive/v3/files?uploadType=multipart", body, headers=headers)
        return str(file["id"])

    def names(self, q: str = "", **query: str) -> list[str]:
        """Return the names of the files that a search finds."""
        return [file["name"] for file in self.ok("GET", "files", query={"q": q, **query})["files"]]


@contextmanager
def drive_client(endpoint: Endpoint) -> Iterator[DriveWire]:
    """Return a raw client as a context that closes it."""
    wire = DriveWire(endpoint)
    try:
        yield wire
    finally:
        wire.connection.close()
