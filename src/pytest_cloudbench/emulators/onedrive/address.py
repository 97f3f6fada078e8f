"""Graph's addresses: which drive, which item, and what to do with it.

What may live here: paths of requests into their parts, without any state.

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
_CALLED = re.compile(r"(\w+)\((?:\w+='((?:[^']|'')*)')?\)$")
_NAMESPACES = ("microsoft.graph.", "oneDrive.", "action.", "view.", "upload.")
_HAVE_IDS = frozenset({"permissions", "versions"})


class GraphAddress(NamedTuple):
    """The parts of an address.

    Attributes:
        version: ``v1.0``, ``beta`` or ``_api/v2.0``.
        drive: as it was written, such as ``me/drive``.
        drive_id: the drive's id; empty for the user's own.
        base: the id of an item, ``root``, ``special/NAME``, or empty for the drive itself.
        path: names below it, joined by ``/``; None if there is no path.
        function: what to do, such as ``versions/*/content``; ids are stars.
        argument: the id in it, or the argument of a function such as ``search(q='x')``.
    """

    version: str
    drive: str
    drive_id: str
    base: str
    path: str | None
    function: str
    argument: str


def parse(path: str) -> GraphAddress | None:
    """Returns the parts of a path as it was sent; None if no drive has such a path."""
    path = without_doubled_slashes(path)
    if "('" in path or "(%27" in path:
        head, colon, tail = path.partition(":")
        path = _KEYED.sub(r"/\1/\2", head.replace("%27", "'")) + colon + tail
    found = _DRIVE.match(path)
    if found is None:
        return None
    drive_id = found[3] or found[4]
    rest = path[found.end() :]
    base, below, rest = _item(rest)
    function, argument = _function(rest)
    if function.startswith("children/"):  # the child of that name
        below = f"{below or ''}/{argument}"
        function, argument = function.removeprefix("children/*").removeprefix("/"), ""
    return GraphAddress(found[1], found[2], unquote(drive_id) if drive_id else "", base, below, function, argument)


def without_doubled_slashes(path: str) -> str:
    """Returns a path in which each run of slashes is one slash, as the service reads it."""
    return _SLASHES.sub("/", path) if "//" in path else path


def _item(rest: str) -> tuple[str, str | None, str]:
    """Returns id and path of the item at the beginning of a text, and what follows."""
    if _BEGINS_ENCODED_PATH.match(rest):
        rest = _ENCODED_COLON.sub(":", rest)
    if rest.startswith("/root") and rest[5:6] in ("", "/", ":"):
        base, rest = "root", rest[5:]
    elif rest.startswith("/items/"):
        end = min(at for at in (rest.find("/", 7), rest.find(":", 7), len(rest)) if at >= 0)
        base, rest = unquote(rest[7:end]), rest[end:]
    elif rest.startswith("/special/"):
        end = min(at for at in (rest.find("/", 9), rest.find(":", 9), len(rest)) if at >= 0)
        base, rest = f"special/{unquote(rest[9:end])}", rest[end:]
    else:
        return "", None, rest
    if not rest.startswith(":"):
        return base, None, rest
    below, _, rest = rest[1:].partition(":")
    return base, unquote(below).strip("/"), rest


def _function(rest: str) -> tuple[str, str]:
    """Returns the name of a function and its argument."""
    rest = rest.strip("/")
    if not rest:
        return "", ""
    names = rest.split("/")
    argument = ""
    for place, name in enumerate(names):
        if (place and names[place - 1] in _HAVE_IDS) or (place == 1 and names[0] == "children"):
            names[place], argument = "*", unquote(name)
            continue
        for space in _NAMESPACES:
            names[place] = names[place].removeprefix(space)
        if "(" in name and (called := _CALLED.match(unquote(names[place]))):
            names[place], argument = called[1], (called[2] or "").replace("''", "'")
    return "/".join(names), argument
