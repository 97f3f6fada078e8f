"""The search language of ``files.list``, such as ``'ID' in parents and name = 'a' and trashed = false``.

A query becomes a function of a ``View``, and two hints that spare a search most files: a parent and a name that every
match must have.

==============  =======================================================================
operator        for
==============  =======================================================================
``=`` ``!=``    everything but lists, with names and types compared regardless of case
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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from pytest_cloudbench.emulators.gdrive.answers import invalid_parameter, parse_time

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<sign><=|>=|!=|[=<>(){}])|(?P<word>[A-Za-z][\w.]*))""",
    re.DOTALL,
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
_LARGEST_DEPTH = 50
_WORDS = re.compile(r"\w+")


class View(Protocol):
    """The values of one file that a query compares."""

    def text(self, name: str) -> str:
        """Return a text property, such as name, mimeType or fullText."""
        ...

    def flag(self, name: str) -> bool:
        """Return a flag, such as trashed or starred."""
        ...

    def time_s(self, name: str) -> float:
        """Return a time property, in seconds since 1970."""
        ...

    def names(self, name: str) -> Collection[str]:
        """Return a list property, such as parents or owners."""
        ...

    def pairs(self, name: str) -> Mapping[str, str]:
        """Return a mapping property: properties or appProperties."""
        ...


_Test = Callable[[View], bool]


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed query. Every match has this ``parent`` and this ``name``, unless they are None."""

    matches: _Test
    parent: str | None = None
    name: str | None = None


@lru_cache(maxsize=1024)
def parse_query(text: str) -> Search:
    """Parse a query. An empty one matches every file. Raises DriveError if it is malformed."""
    if not text.strip():
        return Search(lambda view: True)
    tokens, end = [], 0
    while match := _TOKEN.match(text, end):
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        end = match.end()
    if text[end:].strip():
        raise invalid_parameter("q")
    return _QueryParser(tokens).parse_all()


def _unquote(token: str) -> str:
    return _ESCAPED.sub(r"\1", token[1:-1])


class _QueryParser:
    """A recursive-descent parser. The kinds of tokens are the names of the groups of ``_TOKEN``."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._position, self._depth = tokens, 0, 0

    def parse_all(self) -> Search:
        """Parse all tokens as one query."""
        search = self._parse_terms()
        if self._position < len(self._tokens):
            raise invalid_parameter("q")
        return search

    def _is_next(self, kind: str, *texts: str) -> bool:
        if self._position >= len(self._tokens):
            return False
        next_kind, text = self._tokens[self._position]
        return next_kind == kind and (not texts or text.lower() in texts)

    def _take_token(self, kind: str, *texts: str) -> str:
        if not self._is_next(kind, *texts):
            raise invalid_parameter("q")
        self._position += 1
        return self._tokens[self._position - 1][1]

    def _parse_terms(self) -> Search:
        """Parse terms with ``and`` and ``or``, which Google's guide evaluates from left to right."""
        self._depth += 1
        if self._depth > _LARGEST_DEPTH:
            raise invalid_parameter("q")
        search = self._parse_operand()
        while self._is_next("word", "and", "or"):
            join = _join_all if self._take_token("word").lower() == "and" else _join_any
            operands = [search, self._parse_operand()]
            while self._is_next("word", "and" if join is _join_all else "or"):
                self._position += 1
                operands.append(self._parse_operand())
            search = join(operands)
        self._depth -= 1
        return search

    def _parse_operand(self) -> Search:
        if self._is_next("word", "not"):
            self._position += 1
            self._depth += 1
            if self._depth > _LARGEST_DEPTH:
                raise invalid_parameter("q")
            test = self._parse_operand().matches
            self._depth -= 1
            return Search(lambda view: not test(view))
        if self._is_next("sign", "("):
            self._position += 1
            inner = self._parse_terms()
            self._take_token("sign", ")")
            return inner
        return self._parse_list_term() if self._is_next("text") else self._parse_term(self._take_token("word"))

    def _parse_list_term(self) -> Search:
        value = _unquote(self._take_token("text"))
        self._take_token("word", "in")
        name = self._take_token("word")
        if name not in _LISTS:
            raise invalid_parameter("q")
        return Search(lambda view: value in view.names(name), parent=value if name == "parents" else None)

    def _parse_term(self, name: str) -> Search:
        """Parse the rest of a term that begins with the name of a property."""
        if name in _MAPS:
            return self._parse_pair_term(name)
        if self._is_next("word", "contains"):
            self._position += 1
            return _contains_search(name, _unquote(self._take_token("text")))
        if self._is_next("word", "in") and name in _LISTS:  # version 2 of the API wrote lists in this order
            self._position += 1
            value = _unquote(self._take_token("text"))
            return Search(lambda view: value in view.names(name))
        # Google's documentation uses a flag alone: sharedWithMe and name contains 'hello'
        if name in _FLAGS and not self._is_next("sign", *_COMPARE):
            return Search(lambda view: view.flag(name))
        sign = self._take_token("sign", *_COMPARE)
        compare = _COMPARE[sign]
        if name in _FLAGS:
            expected = self._take_token("word", "true", "false").lower() == "true"
            if sign not in ("=", "!="):
                raise invalid_parameter("q")
            return Search(lambda view: compare(view.flag(name), expected))
        text = _unquote(self._take_token("text"))
        if name in _TIMES:
            at_s = parse_time(text, "q")
            return Search(lambda view: compare(view.time_s(name), at_s))
        if name not in _TEXTS or sign not in ("=", "!="):
            raise invalid_parameter("q")
        folded = text.casefold()
        is_name = name == "name" and sign == "="
        return Search(lambda view: compare(view.text(name).casefold(), folded), name=text if is_name else None)

    def _parse_pair_term(self, name: str) -> Search:
        self._take_token("word", "has")
        self._take_token("sign", "{")
        self._take_token("word", "key")
        self._take_token("sign", "=")
        key = _unquote(self._take_token("text"))
        self._take_token("word", "and")
        self._take_token("word", "value")
        self._take_token("sign", "=")
        value = _unquote(self._take_token("text"))
        self._take_token("sign", "}")
        return Search(lambda view: view.pairs(name).get(key) == value)


def _join_all(operands: Sequence[Search]) -> Search:
    tests = [operand.matches for operand in operands]
    parent = next((operand.parent for operand in operands if operand.parent is not None), None)
    name = next((operand.name for operand in operands if operand.name is not None), None)
    return Search(lambda view: all(test(view) for test in tests), parent, name)


def _join_any(operands: Sequence[Search]) -> Search:
    tests = [operand.matches for operand in operands]
    return Search(lambda view: any(test(view) for test in tests))


def _contains_search(name: str, text: str) -> Search:
    folded = text.casefold()
    if name in ("name", "title"):
        return Search(lambda view: _begins_word(view.text(name).casefold(), folded))
    if name == "mimeType":
        return Search(lambda view: view.text(name).casefold().startswith(folded))
    if name == "fullText":
        bare = folded.strip('"')
        return Search(lambda view: bare in view.text(name).casefold())
    raise invalid_parameter("q")


def _begins_word(text: str, beginning: str) -> bool:
    """Return whether a text, or a word in it, starts with this beginning."""
    return text.startswith(beginning) or any(text.startswith(beginning, word.start()) for word in _WORDS.finditer(text))
