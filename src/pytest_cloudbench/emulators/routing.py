"""Route tables, which skins use to look up the function of the API for a request.

==============  ==========================================================================
in a pattern    matches
==============  ==========================================================================
``{name}``      one part of the path: anything but ``/``
``{name*}``     one or more parts, separated by ``/``: ``/root:/{path*}:/content``
==============  ==========================================================================

The skin decides what to answer if no route matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote

from pytest_cloudbench.emulators.skin import Match, Route

_PARAMETER = re.compile(r"\{(\w+)(\*?)\}")


class RouteTable:
    """Routes by method and path, made from tuples ``(method, path or pattern, route)``.

    A path is matched as it was sent, so that ``%2F`` stays inside a parameter. Parameters are decoded afterwards. Fixed
    paths go before patterns, and patterns are tried in their order. Raises ValueError if two routes have the same
    method and path.
    """

    def __init__(self, routes: Iterable[tuple[str, str, Route]]) -> None:
        self._fixed: dict[str, dict[str, Match]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for method, path, route in routes:
            if "{" in path:
                routes_of_pattern = self._patterns.setdefault(path, (_compile_pattern(path), {}))[1]
                is_duplicate = routes_of_pattern.setdefault(method, route) is not route
            else:
                is_duplicate = self._fixed.setdefault(path, {}).setdefault(method, Match(route, {})).route is not route
            if is_duplicate:
                raise ValueError(f"two routes for {method} {path}")

    def find(self, method: str, path: str) -> Match | None:
        """Return the route of a request with its parameters, or None."""
        fixed = self._fixed.get(path)
        if fixed is not None and method in fixed:
            return fixed[method]
        return next((match for accepted, match in self._match_methods(path) if accepted == method), None)

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the methods that a path accepts, which is none if there is no such path."""
        return tuple(dict.fromkeys(method for method, _ in self._match_methods(path)))

    def _match_methods(self, path: str) -> Iterator[tuple[str, Match]]:
        yield from self._fixed.get(unquote(path), {}).items()
        for pattern, routes in self._patterns.values():
            parts = pattern.fullmatch(path)
            if parts is not None:
                parameters = {name: unquote(value) for name, value in parts.groupdict().items()}
                yield from ((method, Match(route, parameters)) for method, route in routes.items())


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    parts, end = [], 0
    for parameter in _PARAMETER.finditer(pattern):
        name, star = parameter.groups()
        parts += [re.escape(pattern[end : parameter.start()]), f"(?P<{name}>{'.+' if star else '[^/]+'})"]
        end = parameter.end()
    return re.compile("".join([*parts, re.escape(pattern[end:])]), re.DOTALL)
