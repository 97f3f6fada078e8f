"""Which tests are ours: decided by the fixture functions that a test uses, never by names alone.

What may live here: reading pytest's fixture definitions. A project may have fixtures, parameters and marks with any of
our names; its tests are not touched.
"""

from __future__ import annotations

from typing import Any

import pytest

_BENCHMARK = "pytest_benchmark.plugin"


def comes_to(node: Any, plugin: str) -> set[str]:
    """Returns names of the fixtures in a plugin's module that a test uses, directly or through another fixture.

    A fixture that overrides one of the same name uses that one only if it requests it.
    """
    info = getattr(node, "_fixtureinfo", None)
    if info is None:
        return set()
    found: set[str] = set()
    todo = [(name, -1) for name in info.initialnames]  # a fixture's name, and which of its definitions
    seen = set(todo)
    while todo:
        name, place = todo.pop()
        definitions = info.name2fixturedefs.get(name, ())
        if len(definitions) < -place:
            continue
        definition = definitions[place]
        if getattr(definition.func, "__module__", None) == plugin:
            found.add(name)
        new = {(arg, place - 1 if arg == name else -1) for arg in definition.argnames} - seen
        seen |= new
        todo += new
    return found


def uses_stock_benchmark(item: pytest.Item) -> bool:
    """Whether a test uses pytest-benchmark's own fixture."""
    return "benchmark" in comes_to(item, _BENCHMARK)


def is_parametrized(metafunc: pytest.Metafunc, name: str) -> bool:
    """Returns whether others parametrize a fixture: a hook that ran earlier, or a mark, which is applied later."""
    if any(name in call.params for call in metafunc._calls):
        return True
    marks = metafunc.definition.iter_markers("parametrize")
    argnames = [mark.args[0] if mark.args else mark.kwargs.get("argnames", "") for mark in marks]
    return any(name in ([part.strip() for part in each.split(",")] if isinstance(each, str) else each)
               for each in argnames)  # fmt: skip
