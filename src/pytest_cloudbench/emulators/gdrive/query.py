"""The search language of ``files.list``: ``'ID' in parents and name = 'a' and trashed = false``.

What may live here: its grammar, and what its terms mean for one file. A query becomes a function of a ``View``, and two
hints that spare a search most files: a parent and a name that every match must have.

==============  =======================================================================
operator        for
==============  =======================================================================
``=`` ``!=``    all but lists; names and types without regard to case
``contains``    names (beginnings of words), types (beginnings), full text (anywhere)
``<`` ``>``...  times
``in``          lists: parents, owners, writers, readers
``has``         properties
none            trashed, starred, sharedWithMe: true
==============  =======================================================================
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from pytest_cloudbench.emulators.gdrive.answers import invalid, read_time

_TOKEN = re.compile(
    r"""\s*(?:('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(<=|>=|!=|[=<>(){}])|([A-Za-z][\w.]*))""", re.DOTALL
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_TIMES = frozenset({"modifiedTime", "createdTime", "viewedByMeTime", "sharedWithMeTime"})
_FLAGS = frozenset({"trashed", "starred", "sharedWithMe"})
_TEXTS = frozenset({"name", "title", "mimeType", "visibility", "shortcutDetails.targetId", "id"})
_LISTS = frozenset({"parents", "owners", "writers", "readers"})
_MAPS = frozenset({"properties", "appProperties"})
_MOST_DEPTH = 50
_WORDS = re.compile(r"\w+")


class View(Protocol):
    """What a query asks of one file."""

    def text(self, name: str) -> str:
        """Returns a text: name, mimeType, fullText..."""
        ...

    def flag(self, name: str) -> bool:
        """Returns whether it is trashed, starred..."""
        ...

    def time_s(self, name: str) -> float:
        """Returns a time, in seconds since 1970."""
        ...

    def names(self, name: str) -> Collection[str]:
        """Returns a list: parents, owners..."""
        ...

    def pairs(self, name: str) -> Mapping[str, str]:
        """Returns properties."""
        ...


_Test = Callable[[View], bool]


@dataclass(frozen=True, slots=True)
class Search:
    """A query. ``parent`` and ``name`` are what every match must have; None if it need not."""

    matches: _Test
    parent: str | None = None
    name: str | None = None


@lru_cache(maxsize=1024)
def read_query(text: str) -> Search:
    """Read a query; an empty one matches all. Raises DriveError."""
    if not text.strip():
        return Search(lambda view: True)
    tokens, end = [], 0
    while found := _TOKEN.match(text, end):
        tokens.append((found.lastindex or 0, found.group(found.lastindex or 0)))
        end = found.end()
    if text[end:].strip():
        raise invalid("q")
    return _Reader(tokens).whole()


def _unquoted(token: str) -> str:
    return _ESCAPED.sub(r"\1", token[1:-1])


class _Reader:
    """Reads tokens: 1 is a quoted text, 2 a sign, 3 a word."""

    def __init__(self, tokens: list[tuple[int, str]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def whole(self) -> Search:
        """The whole query."""
        search = self._any()
        if self._at < len(self._tokens):
            raise invalid("q")
        return search

    def _peek(self, kind: int, *texts: str) -> bool:
        if self._at >= len(self._tokens):
            return False
        found, text = self._tokens[self._at]
        return found == kind and (not texts or text.lower() in texts)

    def _take(self, kind: int, *texts: str) -> str:
        if not self._peek(kind, *texts):
            raise invalid("q")
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _any(self) -> Search:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise invalid("q")
        parts = [self._all()]
        while self._peek(3, "or"):
            self._at += 1
            parts.append(self._all())
        self._depth -= 1
        if len(parts) == 1:
            return parts[0]
        tests = [part.matches for part in parts]
        return Search(lambda view: any(test(view) for test in tests))

    def _all(self) -> Search:
        parts = [self._one()]
        while self._peek(3, "and"):
            self._at += 1
            parts.append(self._one())
        if len(parts) == 1:
            return parts[0]
        tests = [part.matches for part in parts]
        parent = next((part.parent for part in parts if part.parent is not None), None)
        name = next((part.name for part in parts if part.name is not None), None)
        return Search(lambda view: all(test(view) for test in tests), parent, name)

    def _one(self) -> Search:
        if self._peek(3, "not"):
            self._at += 1
            self._depth += 1
            if self._depth > _MOST_DEPTH:
                raise invalid("q")
            test = self._one().matches
            self._depth -= 1
            return Search(lambda view: not test(view))
        if self._peek(2, "("):
            self._at += 1
            inner = self._any()
            self._take(2, ")")
            return inner
        return self._list_term() if self._peek(1) else self._term(self._take(3))

    def _list_term(self) -> Search:
        value = _unquoted(self._take(1))
        self._take(3, "in")
        name = self._take(3)
        if name not in _LISTS:
            raise invalid("q")
        return Search(lambda view: value in view.names(name), parent=value if name == "parents" else None)

    def _term(self, name: str) -> Search:
        if name in _MAPS:
            return self._pair_term(name)
        if self._peek(3, "contains"):
            self._at += 1
            return _contains(name, _unquoted(self._take(1)))
        if self._peek(3, "in") and name in _LISTS:  # the reverse form, as an old version wrote it
            self._at += 1
            value = _unquoted(self._take(1))
            return Search(lambda view: value in view.names(name))
        if name in _FLAGS and not self._peek(2, *_COMPARE):
            return Search(lambda view: view.flag(name))  # Google's own example: sharedWithMe and name contains 'hello'
        sign = self._take(2, *_COMPARE)
        compare = _COMPARE[sign]
        if name in _FLAGS:
            wanted = self._take(3, "true", "false").lower() == "true"
            if sign not in ("=", "!="):
                raise invalid("q")
            return Search(lambda view: compare(view.flag(name), wanted))
        text = _unquoted(self._take(1))
        if name in _TIMES:
            at_s = read_time(text, "q")
            return Search(lambda view: compare(view.time_s(name), at_s))
        if name not in _TEXTS or sign not in ("=", "!="):
            raise invalid("q")
        folded = text.casefold()
        is_name = name == "name" and sign == "="
        return Search(lambda view: compare(view.text(name).casefold(), folded), name=text if is_name else None)

    def _pair_term(self, name: str) -> Search:
        self._take(3, "has")
        self._take(2, "{")
        self._take(3, "key")
        self._take(2, "=")
        key = _unquoted(self._take(1))
        self._take(3, "and")
        self._take(3, "value")
        self._take(2, "=")
        value = _unquoted(self._take(1))
        self._take(2, "}")
        return Search(lambda view: view.pairs(name).get(key) == value)


def _contains(name: str, text: str) -> Search:
    wanted = text.casefold()
    if name in ("name", "title"):
        return Search(lambda view: _begins_word(view.text(name).casefold(), wanted))
    if name == "mimeType":
        return Search(lambda view: view.text(name).casefold().startswith(wanted))
    if name == "fullText":
        bare = wanted.strip('"')
        return Search(lambda view: bare in view.text(name).casefold())
    raise invalid("q")


def _begins_word(text: str, wanted: str) -> bool:
    """Returns whether a name, or a word in it, begins with this text."""
    return text.startswith(wanted) or any(text.startswith(wanted, word.start()) for word in _WORDS.finditer(text))
