"""How the API says things: metadata, errors and the envelopes of answers.

What may live here: values of the tree turned into JSON objects and HTTP answers. No state, no routes.

An error is a chain of tags: ``ApiError("path", "not_found")`` is
``{"error_summary": "path/not_found/..", "error": {".tag": "path", "path": {".tag": "not_found"}}}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from time import gmtime, strftime
from typing import Any

from pytest_cloudbench.emulators.nodes import File, Folder, Node, TreeError, Version
from pytest_cloudbench.emulators.skin import Answer

__all__ = [
    "ApiError",
    "BadRequest",
    "answer_json",
    "answer_text",
    "error_answer",
    "file_metadata",
    "folder_metadata",
    "lookup_error",
    "metadata",
    "relocation_error",
    "tagged",
    "timestamp",
    "unauthorized",
    "write_tags",
]

_JSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]
_TEXT_HEADERS = [(b"content-type", b"text/plain; charset=utf-8")]
_encode = json.JSONEncoder(separators=(", ", ": ")).encode


class ApiError(Exception):
    """Status 409: the function's own error, as a chain of tags.

    ``inside`` adds fields beside the last tag.
    """

    def __init__(self, *tags: str, inside: Mapping[str, Any] | None = None) -> None:
        super().__init__("/".join(tags))
        self.summary = "/".join(tags)
        self.error = tagged(*tags, inside=inside)


class BadRequest(Exception):
    """Status 400: a request that the API cannot read; the text follows its usual sentence."""


def tagged(*tags: str, inside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON form of nested unions, outermost tag first."""
    value: dict[str, Any] = {".tag": tags[-1], **(inside or {})}
    for tag in reversed(tags[:-1]):
        value = {".tag": tag, tag: value}
    return value


def answer_json(value: Any) -> Answer:
    """Status 200 with a JSON body."""
    return Answer(200, _JSON_HEADERS, _encode(value).encode())


def answer_text(status: int, text: str) -> Answer:
    """A plain sentence, as the API answers what it cannot read."""
    return Answer(status, _TEXT_HEADERS, text.encode())


def error_answer(status: int, summary: str, error: Any, *headers: tuple[bytes, bytes]) -> Answer:
    """An error with its summary."""
    body = _encode({"error_summary": f"{summary}/..", "error": error}).encode()
    return Answer(status, [*_JSON_HEADERS, *headers], body)


def unauthorized(tag: str) -> Answer:
    """Status 401."""
    return error_answer(401, tag, {".tag": tag})


@lru_cache(maxsize=1024)
def _second(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(second))


def timestamp(at_s: float) -> str:
    """Seconds since 1970 as the API writes them, whole seconds of UTC."""
    return _second(int(at_s))


def file_metadata(file: File, version: Version) -> dict[str, Any]:
    """A file without ``.tag``, as the functions that only answer files give it."""
    return {
        "name": file.name,
        "path_lower": file.lower,
        "path_display": file.display,
        "id": file.id,
        "client_modified": _second(int(version.client_s)),
        "server_modified": _second(int(version.server_s)),
        "rev": version.rev,
        "size": version.blob.size_bytes,
        "is_downloadable": True,
        "content_hash": version.blob.hash_hex,
    }


def folder_metadata(folder: Node) -> dict[str, Any]:
    """A folder without ``.tag``."""
    return {"name": folder.name, "path_lower": folder.lower, "path_display": folder.display, "id": folder.id}


def metadata(node: Node, version: Version | None) -> dict[str, Any]:
    """A file, folder or deleted entry (no version, or a deleted folder) with ``.tag``."""
    if isinstance(node, File) and version is not None:
        return {".tag": "file", **file_metadata(node, version)}
    if isinstance(node, Folder) and node.deleted_s is None:
        return {".tag": "folder", **folder_metadata(node)}
    return {".tag": "deleted", "name": node.name, "path_lower": node.lower, "path_display": node.display}


_LOOKUP = frozenset({"malformed_path", "not_found", "not_file", "not_folder"})


def lookup_error(error: TreeError, tag: str = "path") -> ApiError:
    """A read that the tree refused."""
    return ApiError(tag, error.reason if error.reason in _LOOKUP else "not_found")


def write_tags(error: TreeError) -> tuple[str, ...]:
    """A write that the tree refused, as tags of WriteError."""
    reason = "malformed_path" if error.reason in _LOOKUP else error.reason
    return tuple(reason.split("/"))


def relocation_error(error: TreeError) -> ApiError:
    """A copy or move that the tree refused."""
    if error.reason == "into_itself":
        return ApiError("duplicated_or_nested_paths")
    if error.reason == "insufficient_space":
        return ApiError("insufficient_quota")
    if error.reason.startswith("to/"):
        return ApiError("to", *write_tags(TreeError(error.reason[3:])))
    return lookup_error(error, "from_lookup")
