"""``search_v2`` and its continuation.

Words are searched in names only, although the service also searches texts. A cursor holds the query and the number of
matches already returned, so the server keeps no state.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import BadRequest, entry_metadata, lookup_error
from pytest_cloudbench.emulators.dropbox.args import (
    ArgError,
    array,
    boolean,
    integer,
    list_path,
    optional,
    string,
    struct,
    union,
)
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.nodes import File, StoreError
from pytest_cloudbench.emulators.paths import PathEntry
from pytest_cloudbench.emulators.skin import Call, Kind

_DEFAULT_RESULTS = 100
_MAX_RESULTS = 10_000
"""The most matches of one search, according to the specification."""

_CATEGORIES: Mapping[str, str] = {
    "image": "jpg jpeg png gif bmp tiff heic webp svg",
    "document": "doc docx odt rtf txt md",
    "pdf": "pdf",
    "spreadsheet": "xls xlsx ods csv tsv",
    "presentation": "ppt pptx odp key",
    "audio": "mp3 wav flac ogg m4a",
    "video": "mp4 mov avi mkv webm",
    "paper": "paper papert",
}
_KNOWN_EXTENSIONS = frozenset(" ".join(_CATEGORIES.values()).split())
_category = union(folder=None, others=None, other=None, **dict.fromkeys(_CATEGORIES, None))
_options = struct(
    path=(optional(list_path), None),
    max_results=(integer(1, 1000), _DEFAULT_RESULTS),
    order_by=(optional(union(relevance=None, last_modified_time=None, other=None)), None),
    file_status=(union(active=None, deleted=None, other=None), ("active", None)),
    filename_only=(boolean, False),
    file_extensions=(optional(array(string())), None),
    file_categories=(optional(array(_category)), None),
    account_id=(optional(string(minimum=40, maximum=40)), None),
)
_search = struct(
    query=string(maximum=1000),
    options=(optional(_options), None),
    match_field_options=(optional(struct(include_highlights=(boolean, False))), None),
    include_highlights=(optional(boolean), None),
)
_continue = struct(cursor=string(minimum=1))


def _matches_query(entry: PathEntry, words: list[str], options: dict[str, Any]) -> bool:
    name = entry.path.rpartition("/")[2].lower()
    extension = name.rpartition(".")[2] if "." in name else ""
    is_file = isinstance(entry.node, File)
    if (
        not words
        or not all(word in name for word in words)
        or entry.is_gone != (options["file_status"][0] == "deleted")
    ):
        return False
    extensions, categories = options["file_extensions"], options["file_categories"]
    if extensions and not (is_file and extension in {allowed.lower().lstrip(".") for allowed in extensions}):
        return False
    return not categories or any(_has_category(category[0], extension, is_file) for category in categories)


def _has_category(category: str, extension: str, is_file: bool) -> bool:
    if category == "folder" or not is_file:
        return category == "folder" and not is_file
    if category in ("others", "other"):
        return extension not in _KNOWN_EXTENSIONS
    return extension in _CATEGORIES[category].split()


def _find_matches(state: State, arg: dict[str, Any], now_s: float) -> Iterator[PathEntry]:
    options = arg["options"] or _options({})
    try:
        folder = state.tree.find_folder(options["path"] or "", now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    is_gone, words = options["file_status"][0] == "deleted", arg["query"].lower().split()
    entries = state.tree.paths.entries(folder, now_s, recursive=True, gone_too=is_gone)
    matches = [entry for entry in entries if _matches_query(entry, words, options)]
    if (options["order_by"] or ("", None))[0] == "last_modified_time":
        matches.sort(key=lambda entry: -entry.version.server_s if entry.version else 0.0)
    yield from matches[:_MAX_RESULTS]


def _answer_page(
    state: State, arg: dict[str, Any], encoded_arg: dict[str, Any], start: int, now_s: float
) -> dict[str, Any]:
    matches = list(_find_matches(state, arg, now_s))
    end = start + (arg["options"] or _options({}))["max_results"]
    is_highlighted = bool(arg["include_highlights"] or (arg["match_field_options"] or {}).get("include_highlights"))
    result: dict[str, Any] = {
        "matches": [_match_item(entry, arg["query"], is_highlighted) for entry in matches[start:end]],
        "has_more": end < len(matches),
    }
    if end < len(matches):
        result["cursor"] = urlsafe_b64encode(json.dumps({"arg": encoded_arg, "start": end}).encode()).decode()
    return result


def _match_item(entry: PathEntry, query: str, is_highlighted: bool) -> dict[str, Any]:
    match: dict[str, Any] = {
        "metadata": {".tag": "metadata", "metadata": entry_metadata(entry)},
        "match_type": {".tag": "filename"},
    }
    if is_highlighted:
        match["highlight_spans"] = list(_highlight_spans(entry.path.rpartition("/")[2], query.lower().split()[0]))
    return match


def _highlight_spans(name: str, word: str) -> Iterator[dict[str, Any]]:
    start = name.lower().find(word)
    for text, is_highlighted in (
        (name[:start], False),
        (name[start : start + len(word)], True),
        (name[start + len(word) :], False),
    ):
        if text:
            yield {"highlight_str": text, "is_highlighted": is_highlighted}


def _encode_argument(arg: Any) -> Any:
    """Return a checked argument as JSON that passes the same checks, with unions by their tags."""
    if isinstance(arg, tuple):
        return {".tag": arg[0]}
    if isinstance(arg, dict):
        return {name: _encode_argument(value) for name, value in arg.items()}
    return [_encode_argument(value) for value in arg] if isinstance(arg, list) else arg


def _run_search(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    return _answer_page(state, arg, _encode_argument(arg), 0, call.now_s)


def _run_continue(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    try:
        cursor = json.loads(urlsafe_b64decode(arg["cursor"].encode()))
        encoded_arg, start = cursor["arg"], cursor["start"]
        if not isinstance(start, int) or start < 0:
            raise ValueError(start)
        arguments = _search(encoded_arg)
    except (ValueError, TypeError, KeyError, RecursionError, ArgError):
        raise BadRequest('Invalid "cursor" parameter') from None
    return _answer_page(state, arguments, encoded_arg, start, call.now_s)


FUNCTIONS: Mapping[str, Function] = {
    "files/search_v2": Function(Kind.META, "rpc", _search, _run_search),
    "files/search/continue_v2": Function(Kind.META, "rpc", _continue, _run_continue),
}
