"""A raw client of the OneDrive emulator that checks every answer against Graph's published metadata.

``specs/graph-drive.json`` is a trimmed copy as a JSON Schema. Its first lines give source and date.
"""

from __future__ import annotations

import functools
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import jsonschema

from pytest_cloudbench.model import Endpoint
from tests.limits import HANG_S

__all__ = ["GraphReply", "GraphWire", "problems"]

_SPEC = json.loads((Path(__file__).parent / "specs" / "graph-drive.json").read_text("utf-8"))


@functools.cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _SPEC["$defs"]})


def problems(name: str, value: object, *, is_partial: bool = False) -> list[str]:
    """Return the errors of a value of a type. If ``is_partial``, required properties may be missing."""
    errors = [
        error for error in _validator(name).iter_errors(value) if not (is_partial and error.validator == "required")
    ]
    return [f"{name} {error.json_path}: {error.message}" for error in errors]


def _type_of(value: Mapping[str, Any]) -> str:
    """Return the metadata's type of an answer, judged by its context and its properties."""
    context = value.get("@odata.context", "")
    if "nextExpectedRanges" in value:
        return "uploadSession"
    if context.endswith(("#drives/$entity", "#drives")):
        return "drive"
    if "ermission" in context:
        return "permission"
    if "/versions" in context:
        return "driveItemVersion"
    return "driveItem"


def check(status: int, headers: Mapping[str, str], value: Any, *, is_partial: bool = False) -> None:
    """Raise AssertionError if an answer is not what the metadata allows."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("error"), str):
        return  # an answer of OAuth
    if status >= 400:
        assert problems("error", value) == []
        return
    is_older = "graph.microsoft.com" not in value.get("@odata.context", "graph.microsoft.com")
    if is_older or headers["content-type"].endswith("odata.metadata=none"):
        return  # an answer of the older API, which has no metadata
    if {"access_token", "device_code", "status", "businessPhones", "token_endpoint", "metadata"} & set(value):
        return  # not an answer about the drive, but about tokens, monitors, users or the identity platform
    name = _type_of(value)
    entries = value["value"] if isinstance(value.get("value"), list) else [value]
    assert [problem for entry in entries for problem in problems(name, entry, is_partial=is_partial)] == []
    assert "@odata.context" in value
    if "odata-version" in headers:
        assert headers["odata-version"] == "4.0"


@dataclass(frozen=True)
class GraphReply:
    """An answer of Graph. ``value`` is the decoded JSON, or bytes."""

    status: int
    headers: Mapping[str, str]
    value: Any

    @property
    def code(self) -> str:
        """The error code of a refusal."""
        return str(self.value["error"]["code"])


class GraphWire:
    """A client with one persistent connection. It neither retries nor follows redirects."""

    def __init__(self, endpoint: Endpoint, connection: http.client.HTTPSConnection | None = None) -> None:
        self.origin = endpoint.url
        if connection is None:
            context = ssl.create_default_context(cafile=endpoint.ca_file)
            port = urlsplit(endpoint.url).port
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.connection = connection
        self.token = endpoint.credentials["access_token"]
        self.drive_id = str(self("GET", "/v1.0/me/drive").value["id"])

    def __call__(
        self, method: str, path: str, body: Any = None, *, token: str | None = "", **headers: str
    ) -> GraphReply:
        """Send a request. A ``body`` that is not bytes is sent as JSON. If ``token`` is None, none is sent."""
        request_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            request_headers["Authorization"] = f"Bearer {token or self.token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            request_headers.setdefault("Content-Type", "application/json")
        address = path.removeprefix(self.origin)
        self.connection.request(method, quote(address, "/:?=&$%!'()*+,;@~-._"), body, request_headers)
        answer = self.connection.getresponse()
        data = answer.read()
        answer_headers = {name.lower(): text for name, text in answer.getheaders()}
        value: Any = data
        if (
            answer_headers.get("content-type", "").startswith("application/json")
            and data
            and "content-disposition" not in answer_headers
        ):
            value = json.loads(data)
            check(answer.status, answer_headers, value, is_partial="select=" in address)
        return GraphReply(answer.status, answer_headers, value)

    def put(self, path: str, data: bytes = b"hello") -> Any:
        """Upload a file, and return the item."""
        reply = self("PUT", f"/v1.0/me/drive/root:/{path}:/content", data)
        assert reply.status in (200, 201), reply.value
        return reply.value

    def folder(self, name: str, parent: str = "root") -> Any:
        """Create a folder unless it exists, and return the item."""
        body = {"name": name, "folder": {}, "@microsoft.graph.conflictBehavior": "replace"}
        reply = self("POST", f"/v1.0/me/drive/items/{parent}/children", body)
        assert reply.status == 201, reply.value
        return reply.value

    def item(self, path: str) -> GraphReply:
        """Request an item by its path."""
        return self("GET", f"/v1.0/me/drive/root:/{path}")
