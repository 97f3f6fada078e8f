"""Finds the route of an API for a request: fixed paths, and patterns with parameters.

What may live here: the table in which skins look up routes. No I/O; the skin decides what to answer if no route is
found.

==============  ==========================================================================
in a pattern    stands for
==============  ==========================================================================
``{name}``      one part of the path: anything but ``/``
``{name*}``     one or more parts, separated by ``/``: ``/root:/{path*}:/content``
==============  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from pytest_cloudbench.emulators.skin import Match, Route

_PARAMETER = re.compile(r"\{(\w+)(\*?)\}")


class RouteTable:
    """Routes by method and path, as ``(method, path or pattern, route)``.

    A path is matched as it was sent, so that ``%2F`` stays inside a parameter; parameters are decoded afterwards. Fixed
    paths go before patterns, and patterns are tried in their order. Raises ValueError if two routes are equal.
    """

    def __init__(self, routes: Iterable[tuple[str, str, Route]]) -> None:
        self._fixed: dict[str, dict[str, Match]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for method, path, route in routes:
            if "{" in path:
                known = self._patterns.setdefault(path, (_compiled(path), {}))[1]
                twice = known.setdefault(method, route) is not route
            else:
                twice = self._fixed.setdefault(path, {}).setdefault(method, Match(route, {})).route is not route
            if twice:
                raise ValueError(f"two routes for {method} {path}")

    def find(self, method: str, path: str) -> Match | None:
        """Returns the route for a request, and its parameters."""
        fixed = self._fixed.get(path)
        if fixed is not None and method in fixed:
            return fixed[method]
        return next((match for known, match in self._matches(path) if known == method), None)

    def methods(self, path: str) -> tuple[str, ...]:
        """Returns the methods that a path accepts; empty if there is no such path."""
        return tuple(dict.fromkeys(method for method, _ in self._matches(path)))

    def _matches(self, path: str) -> Iterator[tuple[str, Match]]:
        yield from self._fixed.get(unquote(path), {}).items()
        for pattern, routes in self._patterns.values():
            found = pattern.fullmatch(path)
            if found is not None:
                parameters = {name: unquote(value) for name, value in found.groupdict().items()}
                yield from ((method, Match(route, parameters)) for method, route in routes.items())


def _compiled(pattern: str) -> re.Pattern[str]:
    parts, end = [], 0
    for parameter in _PARAMETER.finditer(pattern):
        name, star = parameter.groups()
        parts += [re.escape(pattern[end : parameter.start()]), f"(?P<{name}>{'.+' if star else '[^/]+'})"]
        end = parameter.end()
    return re.compile("".join([*parts, re.escape(pattern[end:])]), re.DOTALL)
