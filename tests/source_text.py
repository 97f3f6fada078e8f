"""Helpers that read source text for rules: statements that run on import, imports, identifiers and words."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator


@functools.lru_cache(maxsize=8)  # all rules run over one file, and keeping all trees would cost more than parsing again
def parse(source: str) -> ast.Module:
    return ast.parse(source)


@functools.lru_cache(maxsize=8)
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of a source, a parent before its children.

    Most rules look at every node, so the tree is walked once, and in half of the time that ``ast.walk`` takes.
    """
    reached: list[ast.AST] = [parse(source)]
    for node in reached:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                reached.append(value)
            elif isinstance(value, list):
                reached.extend(item for item in value if isinstance(item, ast.AST))
    return tuple(reached)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def top_level(body: list[ast.stmt], *, typing_too: bool) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module is imported, also those in if, try and with."""
    for statement in body:
        yield statement
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        skip_body = is_type_checking(statement) and not typing_too
        for name in ("body", "orelse", "finalbody"):
            if not (skip_body and name == "body"):
                yield from top_level(getattr(statement, name, []), typing_too=typing_too)
        for handler in getattr(statement, "handlers", []):
            yield from top_level(handler.body, typing_too=typing_too)


def public_names(source: str) -> Iterator[tuple[str, str]]:
    """Yield (public name, dotted home below the package) of each import in the package's block for type checkers."""
    for block in filter(is_type_checking, parse(source).body):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and node.module:
                home = node.module.partition(".")[2]
                yield from ((alias.asname or alias.name, f"{home}.{alias.name}") for alias in node.names)


def outside_imports(tree_nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import that is not relative."""
    for node in tree_nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module


def docstrings(source: str) -> set[int]:
    """Return the ids of the constants that are docstrings, also of attributes."""
    ids = set()
    for node in nodes(source):
        for statement in getattr(node, "body", []) if not isinstance(node, (ast.Lambda, ast.IfExp)) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                ids.add(id(statement.value))
    return ids


NAMING_FIELDS = frozenset({"id", "attr", "name", "arg", "asname", "module"})
"""The fields of nodes that hold names."""


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        for name in node._fields:
            if name in NAMING_FIELDS and isinstance(value := getattr(node, name, None), str):
                yield getattr(node, "lineno", 0), value


@functools.cache  # most identifiers occur many times
def words(text: str) -> list[str]:
    """Return the words of an identifier or a sentence in lower case, with camel case split."""
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    return [word for part in (text, split) for word in re.findall(r"[a-z0-9]+", part.lower())]
