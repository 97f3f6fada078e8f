"""The parts of a request that all functions of the API read: parameters, the JSON body and the selection of fields."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from functools import lru_cache
from math import inf
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_json, invalid_parameter
from pytest_cloudbench.emulators.gdrive.metadata import FILE_DEFAULT, FileView, describe_file
from pytest_cloudbench.emulators.gdrive.selection import Selection, parse_selection, pick_selected
from pytest_cloudbench.emulators.gdrive.state import APP_DATA, DriveState
from pytest_cloudbench.emulators.http import parse_form
from pytest_cloudbench.emulators.nodes import Node
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

GZIP_BITS = 31
"""The window of ``zlib`` for gzip's format."""
_CACHED_BYTES = 512
_SPACES = frozenset({"drive", APP_DATA, "photos"})


def query_params(call: Call) -> Mapping[str, str]:
    """Return the parameters of the query. Short queries are cached, since clients repeat most of them word for word."""
    return _parse_query(call.query) if len(call.query) <= _CACHED_BYTES else parse_form(call.query)


@lru_cache(maxsize=256)
def _parse_query(query: bytes) -> Mapping[str, str]:
    return MappingProxyType(parse_form(query))


def read_flag(params: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Return a parameter that must be true or false. Raises DriveError for anything else."""
    text = params.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise invalid_parameter(
            name, f"Invalid value '{params[name]}'. Values must match the following regular expression: 'true|false'"
        )
    return text == "true" if text else default


def read_spaces(params: Mapping[str, str]) -> frozenset[str]:
    """Return the spaces that a request names, or that of My Drive and shared drives. Raises DriveError."""
    spaces = frozenset(name.strip() for name in params.get("spaces", "").split(",")) - {""}
    if not spaces <= _SPACES:
        raise invalid_parameter("spaces")
    return spaces or frozenset({"drive"})


def read_page_size(params: Mapping[str, str], default: int, limit: int) -> int:
    """Return the parameter ``pageSize``. Raises DriveError."""
    text = params.get("pageSize", "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= limit:
        message = f"Invalid value '{text}'. Values must be within the range: [1, {limit}]"
        raise DriveError(400, "invalidParameter", message, "pageSize")
    return int(text)


def read_page_start(params: Mapping[str, str]) -> int:
    """Return the number in ``pageToken``, where the page begins, or 0 for the first page. Raises DriveError."""
    text = params.get("pageToken", "")
    if not text:
        return 0
    offset_text = text.removeprefix("~!!~")
    if offset_text == text or not (offset_text.isascii() and offset_text.isdigit()):
        raise invalid_parameter("pageToken")
    return int(offset_text)


def read_selection(params: Mapping[str, str], default: Selection | None) -> Selection | None:
    """Return the fields that the request selects, or the default. Raises DriveError."""
    text = params.get("fields", "")
    return parse_selection(text) if text else default


def seen_s(call: Call) -> float:
    """Return the time as of which a call sees files. Writes see at once what was written."""
    return inf if call.route.kind is Kind.WRITE else call.now_s


def find_named_node(state: DriveState, call: Call) -> Node:
    """Return the node that a call's path names. Raises DriveError."""
    return state.find_node(call.parameters["id"], seen_s(call))


def read_body(call: Call) -> bytes:
    """Return the body, which may be compressed with gzip, as Google's library for Java sends it. Raises DriveError."""
    try:
        return zlib.decompress(call.body, GZIP_BITS) if is_gzip(call) else bytes(call.body)
    except zlib.error:
        raise DriveError(400, "parseError", "Parse Error") from None


def read_json_body(call: Call) -> dict[str, Any]:
    """Return the JSON object in the body, which is empty if there is no body. Raises DriveError."""
    return parse_json_object(read_body(call))


def is_gzip(call: Call) -> bool:
    """Return whether the body of a request is compressed with gzip."""
    return call.headers.get(b"content-encoding", b"").lower() == b"gzip"


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in some bytes. Raises DriveError if they hold anything else.

    It is empty for ``null``, which Google's library for Go sends instead of leaving out the object.
    """
    if not body or body.isspace():
        return {}
    try:
        value = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise DriveError(400, "parseError", "Parse Error") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DriveError(400, "parseError", "Parse Error")
    return value


def answer_file(state: DriveState, node: Node, call: Call, params: Mapping[str, str]) -> Answer:
    """Answer with the selected properties of one file."""
    return answer_json(describe_file(FileView(state, node, seen_s(call)), read_selection(params, FILE_DEFAULT)))


def answer_selected(value: Any, params: Mapping[str, str], default: Selection | None) -> Answer:
    """Answer with the selected parts of a value."""
    return answer_json(pick_selected(value, read_selection(params, default)))


def answer_list(
    call: Call,
    name: str,
    items: list[dict[str, Any]],
    kind: str,
    default: Selection | None,
    *,
    default_size: int = 100,
    largest_size: int = 1000,
) -> Answer:
    """Answer with the requested page of a list. ``name`` is the property that holds the items."""
    params = query_params(call)
    start, size = read_page_start(params), read_page_size(params, default_size, largest_size)
    value: dict[str, Any] = {"kind": kind, name: items[start : start + size]}
    if len(items) > start + size:
        value["nextPageToken"] = f"~!!~{start + size}"
    return answer_selected(value, params, default)
