"""Recognition of tests that are ours, by the fixture functions that a test uses.

A project may have fixtures, parameters and marks with any of our names, and its tests are not touched. So names alone
decide nothing, and pytest's fixture definitions are read.
"""

from __future__ import annotations

from typing import Any

import pytest

_BENCHMARK = "pytest_benchmark.plugin"


def used_fixtures(node: Any, plugin: str) -> set[str]:
    """Return names of the fixtures in a plugin's module that a test uses, directly or through another fixture.

    A fixture that overrides another one of its name uses the other only if it requests that name.
    """
    info = getattr(node, "_fixtureinfo", None)
    if info is None:
        return set()
    names: set[str] = set()
    todo = [(name, -1) for name in info.initialnames]  # a fixture's name, and the index of one of its definitions
    visited = set(todo)
    while todo:
        name, index = todo.pop()
        definitions = info.name2fixturedefs.get(name, ())
        if len(definitions) < -index:
            continue
        definition = definitions[index]
        if getattr(definition.func, "__module__", None) == plugin:
            names.add(name)
        new = {(arg, index - 1 if arg == name else -1) for arg in definition.argnames} - visited
        visited |= new
        todo += new
    return names


def uses_stock_benchmark(item: pytest.Item) -> bool:
    """Return True if a test uses pytest-benchmark's own fixture."""
    return "benchmark" in used_fixtures(item, _BENCHMARK)


def marked_providers(definition: pytest.Item) -> tuple[str, ...]:
    """Return the specs of a test's mark ``cloudbench_provider``, which are none if it has no such mark.

    Raises CollectError for a mark that names something else, because the test would run elsewhere than its author says.
    """
    mark = definition.get_closest_marker("cloudbench_provider")
    if mark is None:
        return ()
    if not mark.args or mark.kwargs or not all(isinstance(spec, str) and spec for spec in mark.args):
        words = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
        raise pytest.Collector.CollectError(
            f"{definition.nodeid}: cloudbench_provider: expected a text for each provider, such as "
            f'"emulated:ideal", found {", ".join(words) or "nothing"}'
        )
    return mark.args


def is_parametrized(metafunc: pytest.Metafunc, name: str) -> bool:
    """Return whether others parametrize a fixture: a hook that ran earlier, or a mark, which is applied later."""
    if any(name in call.params for call in metafunc._calls):
        return True
    marks = metafunc.definition.iter_markers("parametrize")
    argnames = [mark.args[0] if mark.args else mark.kwargs.get("argnames", "") for mark in marks]
    return any(name in ([part.strip() for part in names.split(",")] if isinstance(names, str) else names)
               for names in argnames)  # fmt: skip
