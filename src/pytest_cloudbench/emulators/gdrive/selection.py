"""The parameter ``fields`` for partial answers, such as ``nextPageToken,files(id,parents,owners/emailAddress)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from pytest_cloudbench.emulators.gdrive.answers import DriveError

Selection: TypeAlias = "Mapping[str, Selection | None]"
"""Maps selected names to the selection within their values, or to None for whole values. ``*`` is every name."""

_TOKEN = re.compile(r"[A-Za-z0-9_\-.*]+|[,()/]")
_MOST_DEPTH = 20


@lru_cache(maxsize=512)
def parse_selection(text: str) -> Selection:
    """Parse a selection. Raises DriveError if it is malformed."""
    text = "".join(text.split())
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise _invalid_selection(text)
    tree, remaining = _parse_list(tokens, text, 0)
    if remaining:
        raise _invalid_selection(text)
    return tree


def _parse_list(tokens: list[str], text: str, depth: int) -> tuple[dict[str, Any], list[str]]:
    if depth > _MOST_DEPTH:
        raise _invalid_selection(text)
    tree: dict[str, Any] = {}
    while True:
        tokens = _parse_entry(tokens, text, tree, depth)
        if not tokens or tokens[0] != ",":
            return tree, tokens
        tokens = tokens[1:]


def _parse_entry(tokens: list[str], text: str, tree: dict[str, Any], depth: int) -> list[str]:
    """Parse one name with the selection within its value into ``tree``, and return the remaining tokens."""
    if not tokens or tokens[0] in ",()/" or depth > _MOST_DEPTH:
        raise _invalid_selection(text)
    name, tokens = tokens[0], tokens[1:]
    inner: dict[str, Any] | None = None
    if tokens and tokens[0] == "/":
        inner = {}
        tokens = _parse_entry(tokens[1:], text, inner, depth + 1)
    elif tokens and tokens[0] == "(":
        inner, tokens = _parse_list(tokens[1:], text, depth + 1)
        if not tokens or tokens[0] != ")":
            raise _invalid_selection(text)
        tokens = tokens[1:]
    former = tree.get(name, {})
    tree[name] = None if inner is None or former is None else {**former, **inner}
    return tokens


def _invalid_selection(text: str) -> DriveError:
    return DriveError(400, "invalidParameter", f"Invalid field selection {text}", "fields")


def selection_within(tree: Selection, name: str) -> Selection | None:
    """Return the selection within the value of a name: None for all of it, and an empty one for nothing."""
    if name in tree:
        return tree[name]
    return tree.get("*", {})


def pick_selected(value: Any, tree: Selection | None) -> Any:
    """Return the selected parts of a JSON value, or of each item if it is a list."""
    if tree is None or ("*" in tree and tree["*"] is None):
        return value
    if isinstance(value, list):
        return [pick_selected(item, tree) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: pick_selected(item, selection_within(tree, name))
        for name, item in value.items()
        if name in tree or "*" in tree
    }
