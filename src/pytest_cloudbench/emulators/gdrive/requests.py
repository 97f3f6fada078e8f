"""What the functions of the API read from a request: parameters, the JSON body, the selection.

What may live here: reading and checking, and answers reduced to a selection. No state of the account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_json, invalid
from pytest_cloudbench.emulators.gdrive.metadata import FILE_DEFAULT, FileView, file_resource
from pytest_cloudbench.emulators.gdrive.selection import Chosen, chosen, pick
from pytest_cloudbench.emulators.gdrive.state import APP_DATA, DriveState
from pytest_cloudbench.emulators.http import fields
from pytest_cloudbench.emulators.nodes import Node
from pytest_cloudbench.emulators.skin import Answer, Call

_CACHED_BYTES = 512
_SPACES = frozenset({"drive", APP_DATA, "photos"})


def params_of(call: Call) -> Mapping[str, str]:
    """Returns the parameters of the query; clients repeat most queries word for word."""
    return _params(call.query) if len(call.query) <= _CACHED_BYTES else fields(call.query)


@lru_cache(maxsize=256)
def _params(query: bytes) -> Mapping[str, str]:
    return MappingProxyType(fields(query))


def flag(params: Mapping[str, str], name: str, default: bool = False) -> bool:
    """Returns a parameter that is true or false. Raises DriveError."""
    text = params.get(name, "").lower()
    if text not in ("", "true", "false"):
        raise invalid(
            name, f"Invalid value '{params[name]}'. Values must match the following regular expression: 'true|false'"
        )
    return text == "true" if text else default


def spaces_of(params: Mapping[str, str]) -> frozenset[str]:
    """Returns the spaces that a request is about; My Drive and shared drives if it names none. Raises DriveError."""
    spaces = frozenset(each.strip() for each in params.get("spaces", "").split(",")) - {""}
    if not spaces <= _SPACES:
        raise invalid("spaces")
    return spaces or frozenset({"drive"})


def page_size(params: Mapping[str, str], default: int, most: int) -> int:
    """Returns the parameter ``pageSize``. Raises DriveError."""
    text = params.get("pageSize", "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= most:
        words = f"Invalid value '{text}'. Values must be within the range: [1, {most}]"
        raise DriveError(400, "invalidParameter", words, "pageSize")
    return int(text)


def page_token(params: Mapping[str, str]) -> int:
    """Returns where a page begins; 0 for the first. Raises DriveError."""
    text = params.get("pageToken", "")
    if not text:
        return 0
    digits = text.removeprefix("~!!~")
    if digits == text or not (digits.isascii() and digits.isdigit()):
        raise invalid("pageToken")
    return int(digits)


def selection(params: Mapping[str, str], default: Chosen | None) -> Chosen | None:
    """Returns what an answer is to contain. Raises DriveError."""
    text = params.get("fields", "")
    return chosen(text) if text else default


def body_of(call: Call) -> dict[str, Any]:
    """Returns the JSON object of the body; empty if there is none. Raises DriveError."""
    return checked(bytes(call.body))


def checked(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in some bytes, empty for ``null``, which Google's Go library sends for no object.

    Raises DriveError.
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


def about_file(state: DriveState, node: Node, call: Call, params: Mapping[str, str]) -> Answer:
    """Returns the answer that describes one file."""
    return answer_json(file_resource(FileView(state, node, call.now_s), selection(params, FILE_DEFAULT)))


def about_value(value: Any, params: Mapping[str, str], default: Chosen | None) -> Answer:
    """Returns the answer that gives the chosen parts of a value."""
    return answer_json(pick(value, selection(params, default)))
