"""Files and folders: create, get, update, copy, delete, list, and the trash.

What may live here: ``files`` of the API, without uploads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, hashed
from pytest_cloudbench.emulators.gdrive.answers import (
    DriveError,
    answer_json,
    invalid,
    no_content,
    not_found,
    read_time,
)
from pytest_cloudbench.emulators.gdrive.metadata import EXPORTS, FILE_DEFAULT, FileView, file_resource
from pytest_cloudbench.emulators.gdrive.query import Search, read_query
from pytest_cloudbench.emulators.gdrive.requests import (
    about_file,
    body_of,
    flag,
    page_size,
    page_token,
    params_of,
    selection,
    spaces_of,
)
from pytest_cloudbench.emulators.gdrive.selection import Chosen, pick, within
from pytest_cloudbench.emulators.gdrive.state import APP_DATA, FOLDER, SHORTCUT, DriveMeta, DriveState, meta_of
from pytest_cloudbench.emulators.http import byte_range
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError
from pytest_cloudbench.emulators.skin import Answer, Call

EMPTY = hashed(b"", hashlib.md5(usedforsecurity=False))
"""The content of a file that was created without any."""

_PAGE, _MOST = 100, 1000
_GIVEN: Mapping[str, tuple[type[Any], ...]] = {
    "description": (str,),
    "starred": (bool,),
    "properties": (dict,),
    "appProperties": (dict,),
    "folderColorRgb": (str,),
    "originalFilename": (str,),
    "writersCanShare": (bool,),
    "copyRequiresWriterPermission": (bool,),
    "viewedByMeTime": (str,),
    "contentRestrictions": (list,),
    "inheritedPermissionsDisabled": (bool,),
    "shortcutDetails": (dict,),
}
"""Properties that clients set and nothing acts on."""

_READ_ONLY = frozenset(
    "size md5Checksum sha1Checksum sha256Checksum version webViewLink webContentLink owners permissions permissionIds "
    "headRevisionId capabilities shared ownedByMe spaces iconLink thumbnailLink quotaBytesUsed fileExtension "
    "fullFileExtension driveId exportLinks lastModifyingUser isAppAuthorized".split()
)
_DEFAULT_LIST: Chosen = {"kind": None, "nextPageToken": None, "incompleteSearch": None, "files": FILE_DEFAULT}
_LISTED = frozenset({"kind", "nextPageToken", "incompleteSearch", "files", "*"})
_SORT_KEYS: Mapping[str, Callable[[FileView], Any]] = {
    "createdTime": lambda view: view.meta.created_s,
    "modifiedTime": lambda view: view.meta.modified_s,
    "modifiedByMeTime": lambda view: view.meta.modified_s,
    "viewedByMeTime": lambda view: view.meta.modified_s,
    "sharedWithMeTime": lambda view: 0,
    "recency": lambda view: view.meta.modified_s,
    "folder": lambda view: view.meta.mime != FOLDER,
    "name": lambda view: view.node.name.casefold(),
    "name_natural": lambda view: _natural(view.node.name.casefold()),
    "quotaBytesUsed": lambda view: 0 if view.version is None else view.version.blob.size_bytes,
    "starred": lambda view: bool(view.meta.given.get("starred")),
}


# ---------------------------------------------------------------- writes


def make(state: DriveState, given: Mapping[str, Any], blob: Blob | None, mime: str, now_s: float) -> Node:
    """Create a file from what a client gives: its metadata, content if there is any, and the content's type."""
    _check_writable(given)
    wanted = str(given.get("mimeType") or mime or "application/octet-stream")
    parents = given.get("parents") or ["root"]
    if not isinstance(parents, list) or not all(isinstance(each, str) for each in parents):
        raise invalid("parents")
    if len(parents) > 1:
        raise DriveError(400, "invalid", "A file can be created in one folder only.", "parents")
    parent = state.folder(parents[0], now_s)
    file_id = given.get("id") or ""
    if file_id and (state.store.by_id(file_id) is not None or file_id not in state.free_ids):
        if state.store.by_id(file_id) is None:
            raise DriveError(400, "invalid", "The provided file ID is not usable.", "id")
        raise DriveError(409, "fileIdInUse", "A file already exists with the provided ID.", "id")
    if wanted == SHORTCUT:
        _check_shortcut(state, given, now_s)
    meta = state.meta(wanted, now_s)
    name = _change_meta(meta, given, now_s, "Untitled")
    if "createdTime" in given:
        meta.created_s = read_time(given["createdTime"], "createdTime")
    return state.add(parent, name, meta, None if wanted == FOLDER else blob or EMPTY, now_s, file_id=str(file_id))


def change(state: DriveState, node: Node, given: Mapping[str, Any], params: Mapping[str, str], now_s: float) -> None:
    """Change what is known of a file: name, times, parents, trash."""
    _check_writable(given)
    if "parents" in given:
        words = (
            "The parents field is not directly writable in update requests. "
            "Use the addParents and removeParents parameters instead."
        )
        raise DriveError(403, "fieldNotWritable", words)
    meta = meta_of(node)
    if state.parent(node) is None and given.keys() - {"starred", "description", "folderColorRgb"}:
        raise DriveError(403, "insufficientFilePermissions", "The root folder cannot be changed.", "fileId")
    parent = _new_parent(state, node, params, now_s)
    if given.get("id") not in (None, node.id):
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")
    name = _change_meta(meta, given, now_s, node.name)
    if "trashed" in given:
        meta.trashed_s = (meta.trashed_s or now_s) if given["trashed"] else None
    if parent is not None or name != node.name:
        above = parent or node.parent
        assert above is not None
        try:
            state.store.move(node, above, name, now_s)
        except StoreError:
            raise DriveError(403, "cannotAddParent", "A folder cannot be added to itself or to one below it.") from None
        meta.version += 1
    else:
        state.changed(node, now_s)


def _check_writable(given: Mapping[str, Any]) -> None:
    if not _READ_ONLY.isdisjoint(given):
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")


def _check_shortcut(state: DriveState, given: Mapping[str, Any], now_s: float) -> None:
    details = given.get("shortcutDetails")
    if not isinstance(details, dict) or not isinstance(details.get("targetId"), str):
        raise DriveError(400, "invalid", "A shortcut needs a target.", "shortcutDetails.targetId")
    target = state.find(details["targetId"], now_s)
    details["targetMimeType"] = meta_of(target).mime


def _change_meta(meta: DriveMeta, given: Mapping[str, Any], now_s: float, name: str) -> str:
    """Take over what a client gives; returns the name."""
    for key, value in given.items():
        kinds = _GIVEN.get(key)
        if kinds is None:
            continue
        if value is None:
            meta.given.pop(key, None)
        elif not isinstance(value, kinds):
            raise invalid(key)
        elif isinstance(value, dict) and key != "shortcutDetails":
            merged = {**meta.given.get(key, {}), **value}
            meta.given[key] = {each: text for each, text in merged.items() if text is not None}
        else:
            meta.given[key] = value
    if given.get("mimeType"):
        meta.mime = str(given["mimeType"])
    if given.get("modifiedTime"):
        meta.modified_s = read_time(given["modifiedTime"], "modifiedTime")
    elif given.keys() - {"trashed", "viewedByMeTime", "starred"}:
        meta.modified_s = now_s
    wanted = given.get("name")
    if wanted is None or wanted == "":
        return name
    if not isinstance(wanted, str):
        raise invalid("name")
    return wanted


def _new_parent(state: DriveState, node: Node, params: Mapping[str, str], now_s: float) -> Folder | None:
    """Returns the folder that an update moves a file to; None if it stays."""
    added = [each for each in params.get("addParents", "").split(",") if each]
    removed = [each for each in params.get("removeParents", "").split(",") if each]
    current = state.parent(node)
    parents = {state.folder(each, now_s).id for each in removed}
    if len(added) > 1:
        raise DriveError(403, "cannotAddParent", "Increasing the number of parents is not allowed")
    if not added:
        if current is not None and current.id in parents:
            raise DriveError(403, "cannotRemoveParent", "A file must have at least one parent.")
        return None
    target = state.folder(added[0], now_s)
    if current is None:
        raise DriveError(403, "cannotAddParent", "The root folder cannot be moved.")
    if state.space(target) != state.space(current):
        raise DriveError(403, "cannotAddParent", "A file cannot be moved to another space.")
    return None if target is current else target


def create(state: DriveState, call: Call) -> Answer:
    """``files.create`` without content: folders, shortcuts, Google's own documents, empty files."""
    params = params_of(call)
    return about_file(state, make(state, body_of(call), None, "", call.now_s), call, params)


def update(state: DriveState, call: Call) -> Answer:
    """``files.update`` without content."""
    params, node = params_of(call), state.find(call.parameters["id"], call.now_s)
    change(state, node, body_of(call), params, call.now_s)
    return about_file(state, node, call, params)


def copy(state: DriveState, call: Call) -> Answer:
    """``files.copy``: the file's newest content under another name; folders cannot be copied."""
    params, given, now_s = params_of(call), body_of(call), call.now_s
    node = state.find(call.parameters["id"], now_s)
    version = node.seen(now_s) if isinstance(node, File) else None
    if version is None:
        raise DriveError(403, "cannotCopyFile", "This file cannot be copied by the user.")
    meta, parent = meta_of(node), state.parent(node)
    whole = {"name": f"Copy of {node.name}", "mimeType": meta.mime, "parents": [parent.id] if parent else None}
    kept = {key: value for key, value in meta.given.items() if key not in ("starred", "viewedByMeTime")}
    chosen = {key: value for key, value in given.items() if value is not None}
    return about_file(state, make(state, {**kept, **whole, **chosen}, version.blob, meta.mime, now_s), call, params)


def delete(state: DriveState, call: Call) -> Answer:
    """``files.delete``: for good, past the trash."""
    state.remove(state.find(call.parameters["id"], call.now_s), call.now_s)
    return no_content()


def empty_trash(state: DriveState, call: Call) -> Answer:
    """``files.emptyTrash``."""
    for node in [
        each for each in state.nodes(params_of(call).get("driveId", "")) if meta_of(each).trashed_s is not None
    ]:
        if node.deleted_s is None:
            state.remove(node, call.now_s)
    return no_content()


def generate_ids(state: DriveState, call: Call) -> Answer:
    """``files.generateIds``."""
    params = params_of(call)
    count = page_size({"pageSize": params.get("count", "")}, 10, 1000)
    value = {"kind": "drive#generatedIds", "space": params.get("space", "drive")}
    return answer_json(pick({**value, "ids": [state.new_id() for _ in range(count)]}, selection(params, None)))


# ---------------------------------------------------------------- reads


def get(state: DriveState, call: Call) -> Answer:
    """``files.get``: what is known of a file, or its content."""
    params, node = params_of(call), state.read(call.parameters["id"], call.now_s)
    if params.get("alt") != "media":
        return about_file(state, node, call, params)
    return content_answer(FileView(state, node, call.now_s), call)


def content_answer(view: FileView, call: Call) -> Answer:
    """Returns a file's content, or the range of it that was asked for. Raises DriveError."""
    version = view.blob_version
    if version is None:
        words = "Only files with binary content can be downloaded. Use Export with Docs Editors files."
        raise DriveError(403, "fileNotDownloadable", words, "alt")
    size = version.blob.size_bytes
    kind = view.meta.mime.encode("latin-1", "replace").replace(b"\r", b"").replace(b"\n", b"")
    headers = [(b"content-type", kind), (b"accept-ranges", b"bytes"), (b"content-disposition", b"attachment")]
    bounds = byte_range(call.headers.get(b"range", b""), size)
    if bounds is None:
        return Answer(200, headers, version.blob)
    start, end = bounds
    if start >= end:
        raise DriveError(
            416, "requestedRangeNotSatisfiable", "Request range not satisfiable", "Range", "header",
            headers=[(b"content-range", b"bytes */%d" % size)],
        )  # fmt: skip
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, size)))
    return Answer(206, headers, version.blob.part(start, end))


def export(state: DriveState, call: Call) -> Answer:
    """``files.export``: a document of Google's own in another form; here, the bytes that it was made of."""
    params, node = params_of(call), state.find(call.parameters["id"], call.now_s)
    view, wanted = FileView(state, node, call.now_s), params.get("mimeType", "")
    if not wanted:
        raise DriveError(400, "required", "Required parameter: mimeType", "mimeType")
    return _exported(view, wanted)


def export_link(state: DriveState, call: Call) -> Answer:
    """What a file's ``exportLinks`` lead to."""
    params = params_of(call)
    view = FileView(state, state.find(params.get("id", ""), call.now_s), call.now_s)
    endings = EXPORTS.get(view.meta.mime, {}).items()
    return _exported(view, next((kind for kind, ending in endings if ending == params.get("exportFormat")), ""))


def _exported(view: FileView, wanted: str) -> Answer:
    if view.meta.mime not in EXPORTS or view.version is None:
        raise DriveError(403, "fileNotExportable", "Export only supports Docs Editors files.", "alt")
    if wanted not in EXPORTS[view.meta.mime]:
        raise DriveError(400, "badRequest", "The requested conversion is not supported.", "convertTo")
    headers = [(b"content-type", wanted.encode("latin-1", "replace")), (b"content-disposition", b"attachment")]
    return Answer(200, headers, view.version.blob)


def list_files(state: DriveState, call: Call) -> Answer:
    """``files.list``: all that a query matches, page by page."""
    params, now_s = params_of(call), call.now_s
    search, size, start = read_query(params.get("q", "")), page_size(params, _PAGE, _MOST), page_token(params)
    tree = selection(params, _DEFAULT_LIST) or {"*": None}
    if unknown := tree.keys() - _LISTED:
        raise DriveError(400, "invalidParameter", f"Invalid field selection {min(unknown)}", "fields")
    found = _found(state, search, params, now_s)
    page = found[start : start + size]
    whole: dict[str, Any] = {"kind": "drive#fileList", "incompleteSearch": False}
    if len(found) > start + size:
        whole["nextPageToken"] = f"~!!~{start + size}"
    answer = {name: value for name, value in whole.items() if name in tree or "*" in tree}
    of_file = within(tree, "files")
    if of_file is None or of_file:
        answer["files"] = [file_resource(view, of_file) for view in page]
    return answer_json(answer)


def _found(state: DriveState, search: Search, params: Mapping[str, str], now_s: float) -> list[FileView]:
    """Returns all files that a search finds, in its order. Raises DriveError."""
    spaces = spaces_of(params)
    views = [
        view
        for node in _candidates(state, search, params, now_s)
        if (view := FileView(state, node, now_s, is_listed=True)).version is not None or isinstance(node, Folder)
        if search.matches(view) and state.space(node) in spaces
    ]
    views.sort(key=lambda view: view.meta.seq, reverse=True)
    keys = [each.split() for each in params.get("orderBy", "").split(",") if each.strip()]
    for key in reversed(keys):
        if key[0] not in _SORT_KEYS or key[1:] not in ([], ["desc"], ["asc"]):
            raise invalid("orderBy")
        views.sort(key=_SORT_KEYS[key[0]], reverse=key[1:] == ["desc"])
    return views


def _candidates(state: DriveState, search: Search, params: Mapping[str, str], now_s: float) -> Iterable[Node]:
    """Returns the files among which a search looks."""
    if search.parent is None and APP_DATA in spaces_of(params):
        return (*state.app_data.below(), *state.nodes(), *state.store.fading(None, now_s))
    if search.parent is None:
        drive_id, corpora = params.get("driveId", ""), params.get("corpora", "user")
        if corpora == "drive" or drive_id:
            if drive_id not in state.drives:
                raise DriveError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
        elif corpora == "allDrives" or flag(params, "includeItemsFromAllDrives"):
            return (*state.nodes(None), *state.store.fading(None, now_s))
        fading = (node for node in state.store.fading(None, now_s) if state.drive_id(node) == drive_id)
        return (*state.nodes(drive_id), *fading)
    try:
        folder = state.find(search.parent, now_s)
    except DriveError:
        raise not_found("") from None
    if not isinstance(folder, Folder):
        return ()
    there = folder.nodes() if search.name is None else state.store.named(folder, search.name)
    return (*there, *state.store.fading(folder, now_s, search.name))


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Returns a sort key by which 2 comes before 12."""
    parts: list[tuple[int, int, str]] = []
    for character in name:
        digit = character.isascii() and character.isdigit()
        if digit and parts and parts[-1][0] == 0:
            parts[-1] = (0, parts[-1][1] * 10 + int(character), "")
        else:
            parts.append((0, int(character), "") if digit else (1, 0, character))
    return parts
