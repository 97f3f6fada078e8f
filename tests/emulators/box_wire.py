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
    """One answer; ``value`` is the decoded JSON, or the bytes of anything else."""

    status: int
    headers: Mapping[str, str]
    value: Any


@cache
def _validator(schema: str) -> Any:
    whole = {**json.loads(schema), "unevaluatedProperties": False, "schemas": SPEC["schemas"]}
    return jsonschema.Draft202012Validator(whole)


def broken_rules(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Where a value violates its schema; so does a key that the specification does not have."""
    found = [f"{error.json_path}: {error.message[:200]}" for error in _validator(json.dumps(schema)).iter_errors(value)]
    entries = value.get("entries", []) if isinstance(value, dict) else []
    for number, each in enumerate(entries):
        if isinstance(each, dict) and each.get("type") in _ENTRIES:
            inner = {"$ref": f"#/schemas/{_ENTRIES[each['type']]}"}
            found += [f"$.entries[{number}]{rule[1:]}" for rule in broken_rules(inner, each)]
    return found


def _function(method: str, path: str) -> str:
    plain = path.partition("?")[0].removeprefix("/api").removeprefix("/2.0").rstrip("/")
    if f"{method} {plain}" in SPEC["functions"]:
        return f"{method} {plain}"
    for known in SPEC["functions"]:
        if re.fullmatch(known.replace("{}", "[^/]+"), f"{method} {plain}"):
            return str(known)
    return ""


def check(method: str, path: str, status: int, content_type: str, data: bytes) -> None:
    """Fail if an answer is not what the specification allows for its function."""
    name = _function(method, path)
    if not name or status in (401, 405):
        assert status != 401 or data == b""
        return
    answers = SPEC["functions"][name]
    found = str(status) if str(status) in answers else "default"
    if status < 400 and status not in (206, 304):
        assert str(status) in answers, f"{name} does not answer {status}"
    schema = answers.get(found)
    if schema is None:
        assert data == b"", f"{name} answers {status} without a body"
        return
    assert content_type == "application/json"
    rules = broken_rules(schema, json.loads(data))
    assert not rules, f"{name}: {rules}"


class BoxWire:
    """One kept-alive connection, no repeats, no redirects."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        self._connection = http.client.HTTPSConnection(
            "127.0.0.1", urlsplit(endpoint.url).port, timeout=HANG_S, context=context
        )
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
        """Ask; ``body`` is JSON unless it is bytes, ``path`` begins with what follows ``/2.0`` or with a host's own."""
        given = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        if token == "":
            del given["Authorization"]
        whole = path if path.startswith(("/api", "/d/", "/oauth2", "/s/", "/shared/", "/subscribe")) else f"/2.0{path}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._connection.request(method, whole, data, given)
        answer = self._connection.getresponse()
        said, content_type = answer.read(), answer.headers.get("content-type", "")
        check(method, whole, answer.status, content_type, said)
        value = json.loads(said) if content_type == "application/json" and said else said
        return BoxReply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, value)

    def upload(
        self, attributes: Any, data: bytes, file_id: str = "", *, query: str = "", content: str = "file", **headers: str
    ) -> BoxReply:
        """Upload a file, or a new version of one."""
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
        """Make sure that a file exists, and return it."""
        return self.upload({"name": name, "parent": {"id": parent}}, data).value["entries"][0]

    def folder(self, name: str, parent: str = "0") -> Any:
        """Make sure that a folder exists, and return it."""
        return self("POST", "/folders", {"name": name, "parent": {"id": parent}}).value

    def download(self, path: str, **headers: str) -> BoxReply:
        """Follow the redirect of a download."""
        reply = self("GET", path, headers=headers)
        if reply.status != 302:
            return reply
        place = urlsplit(reply.headers["location"])
        return self("GET", place.path, token="", headers=headers)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
