"""A raw client of the OneDrive emulator that checks every answer against Graph's published metadata.

``specs/graph-drive.json`` is a trimmed copy, as JSON Schema; its first lines give source and date.
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

__all__ = ["GraphWire", "Told", "problems"]

_SPEC = json.loads((Path(__file__).parent / "specs" / "graph-drive.json").read_text("utf-8"))


@functools.cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": _SPEC["$defs"]})


def problems(name: str, value: object, *, is_partial: bool = False) -> list[str]:
    """What the metadata does not allow in a value of a type; ``is_partial``: it may lack anything."""
    found = [
        error for error in _validator(name).iter_errors(value) if not (is_partial and error.validator == "required")
    ]
    return [f"{name} {error.json_path}: {error.message}" for error in found]


def _type_of(value: Mapping[str, Any]) -> str:
    """The metadata's type of an answer, by its context or by what it is about."""
    told = value.get("@odata.context", "")
    if "nextExpectedRanges" in value:
        return "uploadSession"
    if told.endswith(("#drives/$entity", "#drives")):
        return "drive"
    if "ermission" in told:
        return "permission"
    if "/versions" in told:
        return "driveItemVersion"
    return "driveItem"


def check(status: int, headers: Mapping[str, str], value: Any, *, is_partial: bool = False) -> None:
    """Raise AssertionError if an answer is not what the metadata allows."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("error"), str):
        return  # OAuth's
    if status >= 400:
        assert problems("error", value) == []
        return
    is_older = "graph.microsoft.com" not in value.get("@odata.context", "graph.microsoft.com")
    if is_older or headers["content-type"].endswith("odata.metadata=none"):
        return  # the older API's, for which there is no metadata
    if {"access_token", "device_code", "status", "businessPhones", "token_endpoint", "metadata"} & set(value):
        return  # not of the drive: tokens, monitors, users, the identity platform
    name = _type_of(value)
    found = value["value"] if isinstance(value.get("value"), list) else [value]
    assert [told for entry in found for told in problems(name, entry, is_partial=is_partial)] == []
    assert "@odata.context" in value
    if "odata-version" in headers:
        assert headers["odata-version"] == "4.0"


@dataclass(frozen=True)
class Told:
    """One answer. ``value`` is the decoded JSON, or bytes."""

    status: int
    headers: Mapping[str, str]
    value: Any

    @property
    def code(self) -> str:
        """The code of a refusal."""
        return str(self.value["error"]["code"])


class GraphWire:
    """One kept-alive connection, no retries, no redirects."""

    def __init__(self, endpoint: Endpoint) -> None:
        context = ssl.create_default_context(cafile=endpoint.ca_file)
        self.origin = endpoint.url
        port = urlsplit(endpoint.url).port
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_S, context=context)
        self.token = endpoint.credentials["access_token"]
        self.drive_id = str(self("GET", "/v1.0/me/drive").value["id"])

    def __call__(self, method: str, path: str, body: Any = None, *, token: str | None = "", **headers: str) -> Told:
        """Send a request. ``body`` is JSON unless it is bytes; ``token`` None sends none."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token or self.token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        address = path.removeprefix(self.origin)
        self.connection.request(method, quote(address, "/:?=&$%!'()*+,;@~-._"), body, given)
        answer = self.connection.getresponse()
        data = answer.read()
        found = {name.lower(): text for name, text in answer.getheaders()}
        value: Any = data
        if found.get("content-type", "").startswith("application/json") and data and "content-disposition" not in found:
            value = json.loads(data)
            check(answer.status, found, value, is_partial="select=" in address)
        return Told(answer.status, found, value)

    def put(self, path: str, data: bytes = b"hello") -> Any:
        """Upload a file; returns the item."""
        told = self("PUT", f"/v1.0/me/drive/root:/{path}:/content", data)
        assert told.status in (200, 201), told.value
        return told.value

    def folder(self, name: str, parent: str = "root") -> Any:
        """Make a folder unless there is one; returns the item."""
        wanted = {"name": name, "folder": {}, "@microsoft.graph.conflictBehavior": "replace"}
        told = self("POST", f"/v1.0/me/drive/items/{parent}/children", wanted)
        assert told.status == 201, told.value
        return told.value

    def item(self, path: str) -> Told:
        """Ask for an item by path."""
        return self("GET", f"/v1.0/me/drive/root:/{path}")
