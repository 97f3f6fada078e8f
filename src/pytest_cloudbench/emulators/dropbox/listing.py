"""list_folder, its cursors and the long poll.

What may live here: listings and what has changed since. A cursor is no state of the server: it names the
folder, the place in the tree's log of changes, and, while a listing goes on, the last path it has given.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import ApiError, BadRequest, lookup_error, metadata
from pytest_cloudbench.emulators.dropbox.args import (
    array,
    boolean,
    integer,
    list_path,
    optional,
    string,
    struct,
    union,
)
from pytest_cloudbench.emulators.dropbox.state import Function, State
from pytest_cloudbench.emulators.nodes import File, Folder, Node, TreeError
from pytest_cloudbench.emulators.skin import Call, Kind

__all__ = ["FUNCTIONS"]

_DEFAULT_LIMIT = 2000
_list_folder = struct(
    path=list_path,
    recursive=(boolean, False),
    include_media_info=(boolean, False),
    include_deleted=(boolean, False),
    include_has_explicit_shared_members=(boolean, False),
    include_mounted_folders=(boolean, True),
    limit=(optional(integer(1, 2000)), None),
    shared_link=(optional(struct(url=string(), password=(optional(string()), None))), None),
    include_property_groups=(optional(union(filter_some=array(string(minimum=1), minimum=1))), None),
    include_non_downloadable_files=(boolean, True),
    include_restorable_info=(boolean, False),
)
_continue = struct(cursor=string(minimum=1))
_longpoll = struct(cursor=string(minimum=1), timeout=(integer(30, 480), 30))


@dataclass(frozen=True, slots=True)
class _Cursor:
    """Where a client stands. ``after`` is the last path given while the listing goes on, else None."""

    folder: str
    recursive: bool
    deleted: bool
    limit: int
    place: int
    after: str | None

    def text(self) -> str:
        """The cursor as the client carries it."""
        return urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()


def _read_cursor(text: str) -> _Cursor:
    try:
        value = json.loads(urlsafe_b64decode(text.encode()))
        cursor = _Cursor(
            _typed(value, "folder", str),
            _typed(value, "recursive", bool),
            _typed(value, "deleted", bool),
            _typed(value, "limit", int),
            _typed(value, "place", int),
            _typed(value, "after", (str, type(None))),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadRequest('Invalid "cursor" parameter') from None
    if cursor.limit < 1 or cursor.place < 0:
        raise BadRequest('Invalid "cursor" parameter')
    return cursor


def _typed(value: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value[key], kind):
        raise TypeError(key)
    return value[key]


def _start(state: State, arg: dict[str, Any], now_s: float) -> tuple[Folder, _Cursor]:
    try:
        folder = state.tree.folder(arg["path"], now_s)
    except TreeError as error:
        raise lookup_error(error) from error
    mark = state.tree.log_end(now_s)
    limit = arg["limit"] or _DEFAULT_LIMIT
    return folder, _Cursor(folder.id, arg["recursive"], arg["include_deleted"], limit, mark, "")


def _page(state: State, folder: Folder, cursor: _Cursor, now_s: float) -> dict[str, Any]:
    """The next entries of a listing that goes on."""
    pairs = state.tree.entries(folder, now_s, recursive=cursor.recursive, include_deleted=cursor.deleted)
    if cursor.recursive and folder.lower:
        pairs.insert(0, (folder, None))
    after = cursor.after or ""
    if after:
        pairs = [pair for pair in pairs if pair[0].lower > after]
    page, has_more = pairs[: cursor.limit], len(pairs) > cursor.limit
    following = replace(cursor, after=page[-1][0].lower if has_more else None)
    entries = [metadata(node, version) for node, version in page]
    return {"entries": entries, "cursor": following.text(), "has_more": has_more}


def _changes(state: State, folder: Folder, cursor: _Cursor, now_s: float) -> dict[str, Any]:
    """The entries that changed since the cursor, each once, in the order of their last change."""
    tree = state.tree
    visible = tree.log_end(now_s)
    paths: dict[str, None] = {}
    place = cursor.place
    while place < visible and len(paths) < cursor.limit:
        path = tree.log[place]
        place += 1
        if _concerns(folder, path, cursor.recursive):
            paths.pop(path, None)
            paths[path] = None
    entries = [entry for path in paths for entry in _now(state, path, now_s)]
    return {"entries": entries, "cursor": replace(cursor, place=place).text(), "has_more": place < visible}


def _concerns(folder: Folder, path: str, recursive: bool) -> bool:
    rest = path[len(folder.lower) :]
    if not path.startswith(folder.lower) or rest[:1] != "/":
        return False
    return recursive or "/" not in rest[1:]


def _now(state: State, path: str, now_s: float) -> list[dict[str, Any]]:
    """What a path is now, for a client that has to follow: nothing if it is not to be seen yet."""
    live, deleted = state.tree.at(path)
    if isinstance(live, File):
        version = live.seen(now_s)
        return [metadata(live, version)] if version else []
    node: Node | None = live or deleted
    return [metadata(node, None)] if node else []


def _folder(state: State, cursor: _Cursor) -> Folder:
    node = state.tree.by_id(cursor.folder)
    if cursor.place > len(state.tree.log) or node is None:
        raise ApiError("reset")
    if not isinstance(node, Folder) or node.deleted_s is not None:
        raise ApiError("path", "not_found")
    return node


def _run_list_folder(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    folder, cursor = _start(state, arg, call.now_s)
    return _page(state, folder, cursor, call.now_s)


def _run_continue(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    cursor = _read_cursor(arg["cursor"])
    folder = _folder(state, cursor)
    further = _changes if cursor.after is None else _page
    return further(state, folder, cursor, call.now_s)


def _run_get_latest_cursor(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    _, cursor = _start(state, arg, call.now_s)
    return {"cursor": replace(cursor, after=None).text()}


async def _run_longpoll(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Answer as soon as something changed below the folder, or when the time is over."""
    cursor = _read_cursor(arg["cursor"])
    tree, clock = state.tree, state.clock
    end_s = call.now_s + arg["timeout"]
    woken = asyncio.Event()
    tree.on_change.append(woken.set)
    try:
        while True:
            try:
                folder = _folder(state, cursor)
            except ApiError:
                raise ApiError("reset") from None
            now_s = clock.now_s()
            if cursor.after is not None or _changes(state, folder, cursor, now_s)["entries"]:
                return {"changes": True}
            if now_s >= end_s:
                return {"changes": False}
            next_s = min(end_s, tree.next_change_s())
            woken.clear()
            try:
                await asyncio.wait_for(woken.wait(), clock.real_s(max(0.0, next_s - now_s)))
            except TimeoutError:
                continue
    finally:
        tree.on_change.remove(woken.set)


FUNCTIONS: Mapping[str, Function] = {
    "files/list_folder": Function(Kind.META, "rpc", _list_folder, _run_list_folder),
    "files/list_folder/continue": Function(Kind.META, "rpc", _continue, _run_continue),
    "files/list_folder/get_latest_cursor": Function(Kind.META, "rpc", _list_folder, _run_get_latest_cursor),
    "files/list_folder/longpoll": Function(Kind.FREE, "rpc", _longpoll, _run_longpoll, auth="none"),
}
