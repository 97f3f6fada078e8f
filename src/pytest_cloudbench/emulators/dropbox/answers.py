"""The form of the API's answers: metadata, errors and envelopes.

An error is a chain of tags: ``ApiError("path", "not_found")`` is ``{"error_summary": "path/not_found/..", "error":
{".tag": "path", "path": {".tag": "not_found"}}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote_json
from time import gmtime, strftime
from typing import Any

from pytest_cloudbench.emulators.blob import BytePieces
from pytest_cloudbench.emulators.nodes import Folder, StoreError, Version
from pytest_cloudbench.emulators.paths import PathEntry
from pytest_cloudbench.emulators.skin import Answer
from pytest_cloudbench.support.json_text import json_writer

_JSON_HEADERS = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache")]
_TEXT_HEADERS = [(b"content-type", b"text/plain; charset=utf-8")]
_encode = json_writer(", ", ": ")


class ApiError(Exception):
    """Status 409: the function's own error, as a chain of tags.

    ``inside`` adds fields beside the last tag.
    """

    def __init__(self, *tags: str, inside: Mapping[str, Any] | None = None) -> None:
        super().__init__("/".join(tags))
        self.summary = "/".join(tags)
        self.error = nest_tags(*tags, inside=inside)


class BadRequest(Exception):
    """Status 400: a request that the API cannot parse. The text follows the API's usual sentence."""


def nest_tags(*tags: str, inside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the JSON form of nested unions, outermost tag first."""
    value: dict[str, Any] = {".tag": tags[-1], **(inside or {})}
    for tag in reversed(tags[:-1]):
        value = {".tag": tag, tag: value}
    return value


def answer_json(value: Any) -> Answer:
    """Return status 200 with a JSON body."""
    return Answer(200, _JSON_HEADERS, _encode(value))


def answer_body(body: BytePieces) -> Answer:
    """Return status 200 with a body that is JSON already."""
    return Answer(200, _JSON_HEADERS, body)


def answer_text(status: int, text: str) -> Answer:
    """Return a plain sentence, as the API answers requests that it cannot parse."""
    return Answer(status, _TEXT_HEADERS, text.encode())


def error_answer(status: int, summary: str, error: Any, *headers: tuple[bytes, bytes]) -> Answer:
    """Return an error with its summary."""
    body = _encode({"error_summary": f"{summary}/..", "error": error})
    return Answer(status, [*_JSON_HEADERS, *headers], body)


def unauthorized(tag: str, **other_fields: str) -> Answer:
    """Return status 401. ``other_fields`` are beside the tag."""
    return error_answer(401, tag, {".tag": tag, **other_fields})


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(second))


def timestamp(at_s: float) -> str:
    """Format seconds since 1970 as the API does, in whole seconds of UTC."""
    return _format_second(int(at_s))


def file_metadata(path: str, node_id: str, version: Version) -> dict[str, Any]:
    """Return a file without ``.tag``, as in functions that return only files."""
    return {
        "name": path.rpartition("/")[2],
        "path_lower": path.lower(),
        "path_display": path,
        "id": node_id,
        "client_modified": _format_second(int(version.client_s)),
        "server_modified": _format_second(int(version.server_s)),
        "rev": version.rev,
        "size": version.blob.size_bytes,
        "is_downloadable": True,
        "content_hash": version.blob.hash_hex,
    }


def folder_metadata(entry: PathEntry) -> dict[str, Any]:
    """Return a folder without ``.tag``."""
    return {**_path_fields(entry.path), "id": entry.node.id}


def entry_metadata(entry: PathEntry) -> dict[str, Any]:
    """Return a file, folder or deleted entry with ``.tag``."""
    if entry.version is not None:
        return {".tag": "file", **file_metadata(entry.path, entry.node.id, entry.version)}
    if isinstance(entry.node, Folder) and not entry.is_gone:
        return {".tag": "folder", **folder_metadata(entry)}
    return deleted_metadata(entry.path)


def format_entry(entry: PathEntry) -> str:
    """Return what ``entry_metadata`` does as JSON text. Files are formatted by hand, since there may be a million."""
    version = entry.version
    if version is None:
        return _encode(entry_metadata(entry)).decode()
    path = _quote_json(entry.path)
    return (
        f'{{".tag": "file", "name": "{path.rpartition("/")[2]}, "path_lower": {_quote_json(entry.path.lower())}, '
        f'"path_display": {path}, "id": "{entry.node.id}", '
        f'"client_modified": "{_format_second(int(version.client_s))}", '
        f'"server_modified": "{_format_second(int(version.server_s))}", "rev": "{version.rev}", '
        f'"size": {version.blob.size_bytes}, "is_downloadable": true, "content_hash": "{version.blob.hash_hex}"}}'
    )


def deleted_metadata(path: str) -> dict[str, Any]:
    """Return the entry of a path at which there is nothing any more."""
    return {".tag": "deleted", **_path_fields(path)}


def _path_fields(path: str) -> dict[str, Any]:
    return {"name": path.rpartition("/")[2], "path_lower": path.lower(), "path_display": path}


_LOOKUP_REASONS = frozenset({"malformed_path", "not_found", "not_file", "not_folder"})


def lookup_error(error: StoreError, tag: str = "path") -> ApiError:
    """Return the error for a read that the tree refused."""
    return ApiError(tag, error.reason if error.reason in _LOOKUP_REASONS else "not_found")


def write_tags(error: StoreError) -> tuple[str, ...]:
    """Return the tags of WriteError for a write that the tree refused."""
    reason = "malformed_path" if error.reason in _LOOKUP_REASONS else error.reason
    return tuple(reason.split("/"))


def relocation_error(error: StoreError) -> ApiError:
    """Return the error for a copy or move that the tree refused."""
    if error.reason == "into_itself":
        return ApiError("duplicated_or_nested_paths")
    if error.reason == "insufficient_space":
        return ApiError("insufficient_quota")
    if error.reason.startswith("to/"):
        return ApiError("to", *write_tags(StoreError(error.reason[3:])))
    return lookup_error(error, "from_lookup")
