"""Partial answers: the parameter ``fields``, such as ``nextPageToken,files(id,parents,owners/emailAddress)``.

What may live here: its grammar, and taking the chosen parts of a value. No state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from pytest_cloudbench.emulators.gdrive.answers import DriveError

Chosen: TypeAlias = "Mapping[str, Chosen | None]"
"""Maps names to what is chosen of their values; None is all. ``*`` is every name."""

_TOKEN = re.compile(r"[A-Za-z0-9_\-.*]+|[,()/]")
_MOST_DEPTH = 20


@lru_cache(maxsize=512)
def chosen(text: str) -> Chosen:
    """Read a selection. Raises DriveError."""
    text = "".join(text.split())
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != text:
        raise _wrong(text)
    tree, rest = _listed(tokens, text, 0)
    if rest:
        raise _wrong(text)
    return tree


def _listed(tokens: list[str], text: str, depth: int) -> tuple[dict[str, Any], list[str]]:
    if depth > _MOST_DEPTH:
        raise _wrong(text)
    tree: dict[str, Any] = {}
    while True:
        tokens = _one(tokens, text, tree, depth)
        if not tokens or tokens[0] != ",":
            return tree, tokens
        tokens = tokens[1:]


def _one(tokens: list[str], text: str, tree: dict[str, Any], depth: int) -> list[str]:
    """Read one name, and what is chosen of its value, into ``tree``; returns the tokens after it."""
    if not tokens or tokens[0] in ",()/" or depth > _MOST_DEPTH:
        raise _wrong(text)
    name, tokens = tokens[0], tokens[1:]
    inner: dict[str, Any] | None = None
    if tokens and tokens[0] == "/":
        inner = {}
        tokens = _one(tokens[1:], text, inner, depth + 1)
    elif tokens and tokens[0] == "(":
        inner, tokens = _listed(tokens[1:], text, depth + 1)
        if not tokens or tokens[0] != ")":
            raise _wrong(text)
        tokens = tokens[1:]
    before = tree.get(name, {})
    tree[name] = None if inner is None or before is None else {**before, **inner}
    return tokens


def _wrong(text: str) -> DriveError:
    return DriveError(400, "invalidParameter", f"Invalid field selection {text}", "fields")


def within(tree: Chosen, name: str) -> Chosen | None:
    """Returns what is chosen of one name's value: None for all of it, an empty selection for nothing."""
    if name in tree:
        return tree[name]
    return tree.get("*", {})


def pick(value: Any, tree: Chosen | None) -> Any:
    """Returns the chosen parts of a JSON value; of a list, those of each item."""
    if tree is None or ("*" in tree and tree["*"] is None):
        return value
    if isinstance(value, list):
        return [pick(item, tree) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: pick(item, within(tree, name)) for name, item in value.items() if name in tree or "*" in tree}
