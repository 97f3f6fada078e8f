"""``list_folder``, its cursors and the long poll.

The server keeps no state for a cursor. The cursor holds the folder, the position in the tree's log of changes, and,
until a listing is complete, the last path returned.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any

from pytest_cloudbench.emulators.dropbox.answers import (
    ApiError,
    BadRequest,
    answer_body,
    deleted_metadata,
    entry_metadata,
    format_entry,
    lookup_error,
)
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
from pytest_cloudbench.emulators.http import ListWriter
from pytest_cloudbench.emulators.nodes import Folder, StoreError
from pytest_cloudbench.emulators.skin import Answer, Call, Kind

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
class Cursor:
    """A client's position. ``after`` is the last path returned until the listing is complete, then None.

    All pages of a listing are at least as new as its first one, at ``begun_s``, even if a lagging replica answers:
    changes before ``place`` are listed, or never shown. ``log`` is the number of the log, which is another one after a
    reset.
    """

    folder: str
    recursive: bool
    deleted: bool
    limit: int
    log: int
    place: int
    begun_s: float
    after: str | None

    def encode(self) -> str:
        """Return the cursor as text for the client."""
        return urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()


def _read_cursor(text: str) -> Cursor:
    try:
        value = json.loads(urlsafe_b64decode(text.encode()))
        cursor = Cursor(
            _read_field(value, "folder", str),
            _read_field(value, "recursive", bool),
            _read_field(value, "deleted", bool),
            _read_field(value, "limit", int),
            _read_field(value, "log", int),
            _read_field(value, "place", int),
            _read_field(value, "begun_s", (int, float)),
            _read_field(value, "after", (str, type(None))),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadRequest('Invalid "cursor" parameter') from None
    if cursor.limit < 1 or cursor.place < 0:
        raise BadRequest('Invalid "cursor" parameter')
    return cursor


def _read_field(value: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(value[key], kind):
        raise TypeError(key)
    return value[key]


def _start_listing(state: State, arg: dict[str, Any], now_s: float) -> tuple[Folder, Cursor]:
    if arg["shared_link"] is not None:
        raise BadRequest("shared_link: this emulator does not list what a link shows")
    path = arg["path"]
    if path.startswith("//"):  # rclone lists the root in this way, and the service accepts it
        path = f"/{path.lstrip('/')}"
    try:
        folder = state.tree.find_folder(path, now_s)
    except StoreError as error:
        raise lookup_error(error) from error
    log, limit = state.tree.paths.log, arg["limit"] or _DEFAULT_LIMIT
    position = log.end(now_s)
    return folder, Cursor(folder.id, arg["recursive"], arg["include_deleted"], limit, log.number, position, now_s, "")


def _list_page(state: State, folder: Folder, cursor: Cursor, now_s: float) -> Answer:
    """Return the next entries of an incomplete listing."""
    after, now_s = cursor.after or "", max(now_s, cursor.begun_s)
    entries = state.tree.paths.entries(folder, now_s, recursive=cursor.recursive, gone_too=cursor.deleted, after=after)
    if cursor.recursive and folder.parent is not None and not after:
        entries = chain([state.tree.newest_entry(folder)], entries)
    body = ListWriter('{"entries": [')
    for entry in islice(entries, cursor.limit):
        body.add(format_entry(entry))
    has_more = next(entries, None) is not None
    next_cursor = replace(cursor, after=entry.path.lower() if has_more else None)
    tail = json.dumps({"cursor": next_cursor.encode(), "has_more": has_more})
    return answer_body(body.finish(f"], {tail[1:]}"))


def _list_changes(state: State, folder: Folder, cursor: Cursor, now_s: float) -> dict[str, Any]:
    """Return the entries that changed since the cursor, each once, in the order of their last change."""
    log = state.tree.paths.log
    end = log.end(now_s)
    prefix = f"{state.tree.paths.path(folder).lower()}/"
    paths: dict[str, None] = {}
    position = cursor.place
    while position < end and len(paths) < cursor.limit:
        path = log.keys[position]
        position += 1
        if path.startswith(prefix) and (cursor.recursive or "/" not in path[len(prefix) :]):
            paths.pop(path, None)
            paths[path] = None
    entries = [entry for path in paths for entry in _current_entries(state, path, now_s)]
    return {"entries": entries, "cursor": replace(cursor, place=position).encode(), "has_more": position < end}


def _current_entries(state: State, path: str, now_s: float) -> list[dict[str, Any]]:
    """Return the entry that is at a path now, in a list that is empty if the entry is not visible yet."""
    try:
        return [entry_metadata(state.tree.get(path, now_s, include_deleted=True))]
    except StoreError:
        return [] if state.tree.paths.find(path) is not None else [deleted_metadata(path)]  # deleted permanently


def _cursor_folder(state: State, cursor: Cursor) -> Folder:
    node = state.tree.store.by_id(cursor.folder)
    log = state.tree.paths.log
    if cursor.log != log.number or cursor.place > len(log.keys) or node is None:
        raise ApiError("reset")
    if not isinstance(node, Folder) or node.deleted_s is not None:
        raise ApiError("path", "not_found")
    return node


def _run_list_folder(state: State, arg: dict[str, Any], call: Call) -> Answer:
    folder, cursor = _start_listing(state, arg, call.now_s)
    return _list_page(state, folder, cursor, call.now_s)


def _run_continue(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any] | Answer:
    cursor = _read_cursor(arg["cursor"])
    folder = _cursor_folder(state, cursor)
    if cursor.after is None:
        return _list_changes(state, folder, cursor, call.now_s)
    return _list_page(state, folder, cursor, call.now_s)


def _run_get_latest_cursor(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    _, cursor = _start_listing(state, arg, call.now_s)
    return {"cursor": replace(cursor, after=None).encode()}


async def _run_longpoll(state: State, arg: dict[str, Any], call: Call) -> dict[str, Any]:
    """Answer as soon as something has changed below the folder, or at the timeout."""
    cursor = _read_cursor(arg["cursor"])
    # The call has no token, so only its cursor tells which account it is for.
    state = next((peer for peer in state.peers() if peer.tree.store.by_id(cursor.folder) is not None), state)
    log, clock = state.tree.paths.log, state.clock
    end_s = call.now_s + arg["timeout"]
    wake_up = asyncio.Event()
    log.listeners.append(wake_up.set)
    try:
        while True:
            try:
                folder = _cursor_folder(state, cursor)
            except ApiError:
                raise ApiError("reset") from None
            if log.has_ended:  # the account of the cursor is no longer there
                raise ApiError("reset")
            now_s = clock.now_s()
            state.jobs.advance(now_s)
            if cursor.after is not None or _list_changes(state, folder, cursor, now_s)["entries"]:
                return {"changes": True}
            if now_s >= end_s:
                return {"changes": False}
            next_s = min(end_s, log.next_change_s(now_s), state.jobs.next_s())
            wake_up.clear()
            try:
                await asyncio.wait_for(wake_up.wait(), clock.real_s(max(0.0, next_s - now_s)))
            except TimeoutError:
                continue
    finally:
        log.listeners.remove(wake_up.set)


FUNCTIONS: Mapping[str, Function] = {
    "files/list_folder": Function(Kind.META, "rpc", _list_folder, _run_list_folder),
    "files/list_folder/continue": Function(Kind.META, "rpc", _continue, _run_continue),
    "files/list_folder/get_latest_cursor": Function(Kind.META, "rpc", _list_folder, _run_get_latest_cursor),
    "files/list_folder/longpoll": Function(Kind.FREE, "rpc", _longpoll, _run_longpoll, auth="none"),
}
