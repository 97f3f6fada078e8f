"""The arguments of the API's functions, as small composable checks of JSON values.

A check returns the checked value, or raises ArgError. The types are those of the published specification.
"""

from __future__ import annotations

from calendar import timegm
from collections.abc import Callable, Mapping
from time import strptime
from typing import Any

Check = Callable[[Any], Any]
_HEX = frozenset("0123456789abcdef")
_REQUIRED = object()


class ArgError(Exception):
    """A value that the specification does not allow. The text says where and why."""


def string(*, minimum: int = 0, maximum: int | None = None) -> Check:
    """Check a text with bounds on its length."""

    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ArgError(f"expected string, got {_type_name(value)}")
        if len(value) < minimum:
            raise ArgError(f"{value!r} must be at least {minimum} characters, got {len(value)}")
        if maximum is not None and len(value) > maximum:
            raise ArgError(f"{value!r} must be at most {maximum} characters, got {len(value)}")
        return value

    return check


def boolean(value: Any) -> bool:
    """Check that a value is true or false."""
    if not isinstance(value, bool):
        raise ArgError(f"expected bool, got {_type_name(value)}")
    return value


def integer(minimum: int, maximum: int) -> Check:
    """Check a whole number with bounds."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgError(f"expected integer, got {_type_name(value)}")
        if not minimum <= value <= maximum:
            raise ArgError(f"{value} is not within range {minimum} to {maximum}")
        return value

    return check


def timestamp(value: Any) -> float:
    """Return ``2026-11-20T12:00:00Z`` as seconds since 1970."""
    if not isinstance(value, str):
        raise ArgError(f"expected timestamp, got {_type_name(value)}")
    try:
        return float(timegm(strptime(value, "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        raise ArgError(f"time data {value!r} does not match format '%Y-%m-%dT%H:%M:%SZ'") from None


def optional(inner: Check) -> Check:
    """Check a value that may be null."""
    return lambda value: None if value is None else inner(value)


def array(inner: Check, *, minimum: int = 0, maximum: int | None = None) -> Check:
    """Check a list with bounds on its length."""

    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ArgError(f"expected list, got {_type_name(value)}")
        if len(value) < minimum or (maximum is not None and len(value) > maximum):
            raise ArgError(f"list has {len(value)} items, expected {minimum} to {maximum}")
        return [_check_inner(f"{index}", inner, item) for index, item in enumerate(value)]

    return check


def struct(**fields: Check | tuple[Check, Any]) -> Check:
    """Check an object. A field is required as ``name=check``, and has a default as ``name=(check, default)``."""
    checks = {name: field[0] if isinstance(field, tuple) else field for name, field in fields.items()}
    defaults = {name: field[1] if isinstance(field, tuple) else _REQUIRED for name, field in fields.items()}

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ArgError(f"expected object, got {_type_name(value)}")
        checked = dict(defaults)
        for name, item in value.items():
            inner = checks.get(name)
            if inner is None:
                if name == ".tag":
                    continue
                raise ArgError(f"unknown field {name!r}")
            try:
                checked[name] = inner(item)
            except ArgError as error:
                raise ArgError(f"{name}: {error}") from None
        if _REQUIRED in checked.values():
            missing = next(name for name, item in checked.items() if item is _REQUIRED)
            raise ArgError(f"missing required field {missing!r}")
        return checked

    return check


def union(**tags: Check | None) -> Check:
    """Check a union of tags, some with a value, and return ``(tag, value)``. The short form ``"tag"`` is accepted."""

    def check(value: Any) -> tuple[str, Any]:
        if isinstance(value, str):
            tag, body = value, {}
        elif isinstance(value, dict) and isinstance(value.get(".tag"), str):
            tag, body = value[".tag"], value
        elif isinstance(value, dict) and len(value) == 1:
            tag, body = next(iter(value)), value
        else:
            raise ArgError(f"expected string or object with '.tag', got {_type_name(value)}")
        if tag not in tags:
            raise ArgError(f"unknown tag {tag!r}")
        inner = tags[tag]
        if inner is None:
            return tag, None
        if tag not in body:
            raise ArgError(f"missing {tag!r} key")
        return tag, _check_inner(tag, inner, body[tag])

    return check


def rev(value: Any) -> str:
    """Check a revision, which has at least nine hexadecimal digits."""
    text: str = _TEXT(value)
    if len(text) < 9 or not _HEX.issuperset(text):
        raise ArgError(f"{text!r} did not match pattern '[0-9a-f]{{9,}}'")
    return text


def _path_check(pattern: str, *, root: bool = False, ids: bool = True, revs: bool = False) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ArgError(f"expected string, got {_type_name(value)}")
        if value[:1] == "/" or (value == "" and root) or (ids and value.startswith("id:")):
            return value
        if value.startswith("ns:") and _is_namespace(value):
            return value
        if revs and value.startswith("rev:") and len(value) >= 13 and _HEX.issuperset(value[4:]):
            return value
        raise ArgError(f"{value!r} did not match pattern '{pattern}'")

    return check


def _is_namespace(value: str) -> bool:
    digits = value[3:].partition("/")[0]
    return digits.isascii() and digits.isdigit()


_ANY = "(.|[\\r\\n])*"
_TEXT = string()
write_path = _path_check(f"(/{_ANY})|(ns:[0-9]+(/.*)?)|(id:.*)")
create_path = _path_check(f"(/{_ANY})|(ns:[0-9]+(/.*)?)", ids=False)
read_path = _path_check(f"(/{_ANY}|id:.*)|(rev:[0-9a-f]{{9,}})|(ns:[0-9]+(/.*)?)", revs=True)
revisions_path = _path_check(f"/{_ANY}|id:.*|(ns:[0-9]+(/.*)?)")
_folder_path = _path_check(f"(/{_ANY})?|id:.*|(ns:[0-9]+(/.*)?)", root=True)


def list_path(value: Any) -> str:
    """Check the path of a folder to list. The root is the empty text."""
    if value == "/":
        raise ArgError('Specify the root folder as an empty string rather than as "/".')
    path: str = _folder_path(value)
    return path


def _check_inner(name: str, inner: Check, value: Any) -> Any:
    try:
        return inner(value)
    except ArgError as error:
        raise ArgError(f"{name}: {error}") from None


def _type_name(value: Any) -> str:
    names: Mapping[type[Any], str] = {
        dict: "object",
        list: "list",
        str: "string",
        bool: "bool",
        int: "integer",
        float: "float",
    }
    return names.get(type(value), "null")
