"""A raw client of the Box emulator. Every answer is checked against Box's specification (specs/box-openapi.json)."""

from __future__ import annotations

import http.client
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema

from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

__all__ = ["SPEC", "BoxReply", "BoxWire", "broken_rules"]

SPEC: Any = json.loads((Path(__file__).parent / "specs" / "box-openapi.json").read_text())
_ENTRIES = {
    "file": "File--Full", "folder": "Folder--Full", "event": "Event", "file_version": "FileVersion--Full",
    "comment": "Comment--Full", "collaboration": "Collaboration", "realtime_server": "RealtimeServer",
}  # fmt: skip
_BOUNDARY = "boundary-4711"


@dataclass(frozen=True)
class BoxReply:
    """An answer of Box. ``value`` is the decoded JSON, or bytes if the body is not JSON."""

    status: int
    headers: Mapping[str, str]
    value: Any


@cache
def _validator(schema: str) -> Any:
    full_schema = {**json.loads(schema), "unevaluatedProperties": False, "schemas": SPEC["schemas"]}
    return jsonschema.Draft202012Validator(full_schema)


def broken_rules(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return the violations of a schema by a value. A key that the specification lacks is a violation, too."""
    violations = [
        f"{error.json_path}: {error.message[:200]}" for error in _validator(json.dumps(schema)).iter_errors(value)
    ]
    entries = value.get("entries", []) if isinstance(value, dict) else []
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("type") in _ENTRIES:
            inner = {"$ref": f"#/schemas/{_ENTRIES[entry['type']]}"}
            violations += [f"$.entries[{number}]{rule[1:]}" for rule in broken_rules(inner, entry)]
    return violations


def _function(method: str, path: str) -> str:
    plain = path.partition("?")[0].removeprefix("/api").removeprefix("/2.0").rstrip("/")
    if f"{method} {plain}" in SPEC["functions"]:
        return f"{method} {plain}"
    for template in SPEC["functions"]:
        if re.fullmatch(template.replace("{}", "[^/]+"), f"{method} {plain}"):
            return str(template)
    return ""


def check(method: str, path: str, status: int, content_type: str, data: bytes) -> None:
    """Fail if the specification does not allow an answer to this request."""
    name = _function(method, path)
    if not name or status in (401, 405):
        assert status != 401 or data == b""
        return
    answers = SPEC["functions"][name]
    key = str(status) if str(status) in answers else "default"
    if status < 400 and status not in (206, 304):
        assert str(status) in answers, f"{name} does not answer {status}"
    schema = answers.get(key)
    if schema is None:
        assert data == b"", f"{name} answers {status} without a body"
        return
    assert content_type == "application/json"
    rules = broken_rules(schema, json.loads(data))
    assert not rules, f"{name}: {rules}"


class BoxWire:
    """A client with one persistent connection. It neither repeats requests nor follows redirects."""

    def __init__(self, endpoint: Endpoint, connection: http.client.HTTPSConnection | None = None) -> None:
        if connection is None:
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            port = urlsplit(endpoint.url).port
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self._connection = connection
        self.token = endpoint.credentials["access_token"]

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> BoxReply:
        """Send a request. A ``body`` that is not bytes is sent as JSON. ``/2.0`` is put before paths of the API."""
        request_headers = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        if token == "":
            del request_headers["Authorization"]
        full_path = (
            path
            if path.startswith(("/api", "/d/", "/oauth2", "/s/", "/v/", "/shared/", "/subscribe"))
            else f"/2.0{path}"
        )
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, full_path, data, request_headers)
        answer = self._connection.getresponse()
        content, content_type = answer.read(), answer.headers.get("content-type", "")
        check(method, full_path, answer.status, content_type, content)
        value = json.loads(content) if content_type == "application/json" and content else content
        return BoxReply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, value)

    def upload(
        self, attributes: Any, data: bytes, file_id: str = "", *, query: str = "", content: str = "file", **headers: str
    ) -> BoxReply:
        """Upload a file, or a new version of a file."""
        line = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
        text = attributes if isinstance(attributes, str) else json.dumps(attributes)
        body = (
            f'{line}"attributes"\r\n\r\n{text}\r\n{line}"{content}"; filename="x"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        body += data + f"\r\n--{_BOUNDARY}--\r\n".encode()
        path = f"/api/2.0/files/{file_id}/content" if file_id else "/api/2.0/files/content"
        kind = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
        return self(
            "POST", path + query, body, headers={**kind, **{key.replace("_", "-"): v for key, v in headers.items()}}
        )

    def file(self, name: str, data: bytes = b"content", parent: str = "0") -> Any:
        """Upload a file, and return its entry."""
        return self.upload({"name": name, "parent": {"id": parent}}, data).value["entries"][0]

    def folder(self, name: str, parent: str = "0") -> Any:
        """Create a folder, and return it."""
        return self("POST", "/folders", {"name": name, "parent": {"id": parent}}).value

    def download(self, path: str, **headers: str) -> BoxReply:
        """Download a file by following the redirect."""
        reply = self("GET", path, headers=headers)
        if reply.status != 302:
            return reply
        location = urlsplit(reply.headers["location"])
        return self("GET", location.path, token="", headers=headers)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
