"""The parser of Graph's addresses, which name a drive, an item in it, and a function.

==================================================  =====================================================
begins with ``/v1.0``, ``/beta`` or ``/_api/v2.0``  then a drive, an item, perhaps a path, a function
==================================================  =====================================================
drive                                               ``/drive`` or ``/drives/ID``, by itself or after ``/me``,
                                                    ``/users/ID``, ``/groups/ID``, ``/sites/ID``
item                                                ``/root``, ``/items/ID``, ``/special/NAME``
path                                                ``:/a/b:`` after the item; the last colon may be missing
function                                            ``/children``, ``/content``, ``/versions/ID/content``...
==================================================  =====================================================

Ids may also be written as ``items('ID')``, and functions with a namespace: ``microsoft.graph.copy``. Clients that
encode an id also encode a path in its place: ``/items/root%3A%2Fa%2Fb%3A/content``. Doubled slashes count as one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

_DRIVE = re.compile(
    r"/(v1\.0|beta|_api/v2\.0)/"
    r"(drive|drives/([^/]+)|(?:me|(?:users|groups|sites)/[^/]+)/(?:drives/([^/]+)|drive))(?=/|$)"
)
_SLASHES = re.compile(r"/{2,}")
_KEYED = re.compile(r"/(drives|items|users|groups|sites|permissions|versions|children|special)\('([^']*)'\)")
_ENCODED_COLON = re.compile(r"%3A", re.IGNORECASE)
_BEGINS_ENCODED_PATH = re.compile(r"/(root|(items|special)/[^/:]+?)%3A", re.IGNORECASE)
_FUNCTION_CALL = re.compile(r"(\w+)\((?:\w+='((?:[^']|'')*)')?\)$")
_NAMESPACES = ("microsoft.graph.", "oneDrive.", "action.", "view.", "upload.")
_HAVE_IDS = frozenset({"permissions", "versions"})


class GraphAddress(NamedTuple):
    """The parts of an address.

    Attributes:
        version: ``v1.0``, ``beta`` or ``_api/v2.0``.
        drive: the path of the drive in the address, such as ``me/drive``.
        drive_id: the id of the drive, empty for the user's own.
        base: the id of an item, ``root``, ``special/NAME``, or empty for the drive itself.
        path: the names below the item, joined by ``/``, or None if there is no path.
        function: the name of the function with stars for ids, such as ``versions/*/content``.
        argument: the id in the function, or the argument of one such as ``search(q='x')``.
    """

    version: str
    drive: str
    drive_id: str
    base: str
    path: str | None
    function: str
    argument: str


def parse_address(path: str) -> GraphAddress | None:
    """Return the parts of a path that is still encoded, or None if it is not an address in a drive."""
    path = merge_slashes(path)
    if "('" in path or "(%27" in path:
        head, colon, tail = path.partition(":")
        path = _KEYED.sub(r"/\1/\2", head.replace("%27", "'")) + colon + tail
    match = _DRIVE.match(path)
    if match is None:
        return None
    version, drive, id_alone, id_of_owner = match.groups()
    base, item_path, remainder = _split_item(path[match.end() :])
    function, argument = _split_function(remainder)
    if function.startswith("children/"):  # names a child of the item
        item_path = f"{item_path or ''}/{argument}"
        function, argument = function.removeprefix("children/*").removeprefix("/"), ""
    drive_id = unquote(id_alone or id_of_owner or "")
    return GraphAddress(version, drive, drive_id, base, item_path, function, argument)


def merge_slashes(path: str) -> str:
    """Return a path with each run of slashes replaced by one, in the way the service reads it."""
    return _SLASHES.sub("/", path) if "//" in path else path


def _split_item(remainder: str) -> tuple[str, str | None, str]:
    """Return the id and path of the item at the beginning of a text, and the text after them."""
    if "%" in remainder and _BEGINS_ENCODED_PATH.match(remainder):
        remainder = _ENCODED_COLON.sub(":", remainder)
    if remainder.startswith("/root") and remainder[5:6] in ("", "/", ":"):
        base, remainder = "root", remainder[5:]
    elif remainder.startswith("/items/"):
        end = min(index for index in (remainder.find("/", 7), remainder.find(":", 7), len(remainder)) if index >= 0)
        base, remainder = unquote(remainder[7:end]), remainder[end:]
    elif remainder.startswith("/special/"):
        end = min(index for index in (remainder.find("/", 9), remainder.find(":", 9), len(remainder)) if index >= 0)
        base, remainder = f"special/{unquote(remainder[9:end])}", remainder[end:]
    else:
        return "", None, remainder
    if not remainder.startswith(":"):
        return base, None, remainder
    item_path, _, remainder = remainder[1:].partition(":")
    return base, unquote(item_path).strip("/"), remainder


@lru_cache(maxsize=512)
def _split_function(remainder: str) -> tuple[str, str]:
    """Return the name of the function in the remainder of an address, and its argument."""
    remainder = remainder.strip("/")
    if not remainder:
        return "", ""
    names = remainder.split("/")
    argument = ""
    for index, name in enumerate(names):
        if (index and names[index - 1] in _HAVE_IDS) or (index == 1 and names[0] == "children"):
            names[index], argument = "*", unquote(name)
            continue
        for namespace in _NAMESPACES:
            names[index] = names[index].removeprefix(namespace)
        if "(" in name and (match := _FUNCTION_CALL.match(unquote(names[index]))):
            names[index], argument = match[1], (match[2] or "").replace("''", "'")
    return "/".join(names), argument
