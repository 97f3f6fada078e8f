"""Sleeps in disguise: waits in source code, with a time-out, for something that is never signalled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

# Classes whose objects can be waited for with a time-out. A wait for a new one, which no other code knows, is a sleep.
WAITABLE_CLASSES = frozenset(
    "Event Condition Barrier Semaphore BoundedSemaphore Lock RLock Queue SimpleQueue poll".split()
)
WAITS = frozenset("wait wait_for acquire get poll".split())


def is_new(node: ast.AST) -> bool:
    """Return whether a node creates something that can be waited for, without content."""
    return isinstance(node, ast.Call) and not node.args and last_part(node.func) in WAITABLE_CLASSES


def last_part(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def find_disguised_sleeps(nodes: Sequence[ast.AST]) -> Iterator[int]:
    """Yield the lines that wait for a new signal, for one whose every use is a wait, or for no descriptor at all."""
    created: dict[str, list[int]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr in WAITS and is_new(node.value):
            yield node.lineno
        elif isinstance(node, ast.Call) and len(node.args) == 4 and last_part(node.func) == "select":
            descriptors = [
                value for value in node.args[:3] if not isinstance(value, (ast.Tuple, ast.List)) or value.elts
            ]
            yield from () if descriptors else (node.lineno,)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for name, value in pairs:
                    if is_new(value):
                        created.setdefault(ast.unparse(name), []).append(node.lineno)
    uses = _find_uses(nodes) if created else {}
    for text in created:
        if uses.get(text) and all(attr in WAITS for attr, _ in uses[text]):
            yield from (line for _, line in uses[text])


def _find_uses(nodes: Sequence[ast.AST]) -> dict[str, list[tuple[str | None, int]]]:
    """Return for each name that is read, as it is written, the attribute that is asked of it, and the line."""
    uses: dict[str, list[tuple[str | None, int]]] = {}
    attributes = {id(node.value): node for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            use = attributes.get(id(node))
            uses.setdefault(ast.unparse(node), []).append((use.attr if use else None, node.lineno))
    return uses
