"""``files`` of the API without uploads: create, get, update, copy, delete and list files and folders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from math import inf
from typing import Any

from pytest_cloudbench.emulators.blob import Blob, hash_blob
from pytest_cloudbench.emulators.gdrive.answers import (
    DriveError,
    answer_json,
    answer_no_content,
    file_not_found,
    invalid_parameter,
    parse_time,
)
from pytest_cloudbench.emulators.gdrive.metadata import EXPORTS, FILE_DEFAULT, FileView, describe_file
from pytest_cloudbench.emulators.gdrive.query import Search, parse_query
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_file,
    answer_selected,
    find_named_node,
    query_params,
    read_flag,
    read_json_body,
    read_page_size,
    read_page_start,
    read_selection,
    read_spaces,
    seen_s,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection, selection_within
from pytest_cloudbench.emulators.gdrive.state import (
    APP_DATA,
    FOLDER,
    SHORTCUT,
    DriveMeta,
    DriveState,
    creation_number,
    drive_meta,
)
from pytest_cloudbench.emulators.http import answer_range
from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.skin import Answer, Call

EMPTY = hash_blob(b"", hashlib.md5(usedforsecurity=False))
"""The content of a file that was created without any."""

_DEFAULT_PAGE, _LARGEST_PAGE = 100, 1000
_CLIENT_PROPERTIES: Mapping[str, tuple[type[Any], ...]] = {
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
"""Properties that clients set and the emulator merely returns."""

_READ_ONLY = frozenset(
    "size md5Checksum sha1Checksum sha256Checksum version webViewLink webContentLink owners permissions permissionIds "
    "headRevisionId capabilities shared ownedByMe spaces iconLink thumbnailLink quotaBytesUsed fileExtension "
    "fullFileExtension driveId exportLinks lastModifyingUser isAppAuthorized".split()
)
_LEAVE_TIME = frozenset({"trashed", "viewedByMeTime", "starred"})
"""Properties whose change does not count as a modification of the file."""
_DEFAULT_LIST_FIELDS: Selection = {"kind": None, "nextPageToken": None, "incompleteSearch": None, "files": FILE_DEFAULT}
_LIST_FIELDS = frozenset({"kind", "nextPageToken", "incompleteSearch", "files", "*"})
_SORT_KEYS: Mapping[str, Callable[[FileView], Any]] = {
    "createdTime": lambda view: view.meta.created_s,
    "modifiedTime": lambda view: view.meta.modified_s,
    "modifiedByMeTime": lambda view: view.meta.modified_s,
    "viewedByMeTime": lambda view: view.meta.modified_s,
    "sharedWithMeTime": lambda view: 0,
    "recency": lambda view: view.meta.modified_s,
    "folder": lambda view: view.meta.mime != FOLDER,
    "name": lambda view: view.node.name.casefold(),
    "name_natural": lambda view: _natural_sort_key(view.node.name.casefold()),
    "quotaBytesUsed": lambda view: 0 if view.version is None else view.version.blob.size_bytes,
    "starred": lambda view: bool(view.meta.client_properties.get("starred")),
}


# ---------------------------------------------------------------- writes


def make_file(
    state: DriveState, metadata: Mapping[str, Any], blob: Blob | None, content_mime: str, now_s: float
) -> Node:
    """Create a file from the metadata of a client, its content if there is any, and the type of the content."""
    _check_writable(metadata)
    mime_type = str(metadata.get("mimeType") or content_mime or "application/octet-stream")
    parents = metadata.get("parents") or ["root"]
    if not isinstance(parents, list) or not all(isinstance(parent_id, str) for parent_id in parents):
        raise invalid_parameter("parents")
    if len(parents) > 1:
        raise DriveError(400, "invalid", "A file can be created in one folder only.", "parents")
    parent = state.find_folder(parents[0], now_s)
    file_id = metadata.get("id") or ""
    if file_id and (state.store.by_id(file_id) is not None or file_id not in state.free_ids):
        if state.store.by_id(file_id) is None:
            raise DriveError(400, "invalid", "The provided file ID is not usable.", "id")
        raise DriveError(409, "fileIdInUse", "A file already exists with the provided ID.", "id")
    if mime_type == SHORTCUT:
        _check_shortcut(state, metadata)
    meta = state.new_meta(mime_type, now_s)
    name = _change_metadata(meta, metadata, now_s, "Untitled")
    if "createdTime" in metadata:
        meta.created_s = parse_time(metadata["createdTime"], "createdTime")
    content = None if mime_type == FOLDER else blob or EMPTY
    return state.add_node(parent, name, meta, content, now_s, file_id=str(file_id))


def change_file(
    state: DriveState, node: Node, metadata: Mapping[str, Any], params: Mapping[str, str], now_s: float
) -> None:
    """Change the metadata of a file: name, times, parent, and whether it is in the trash."""
    _check_writable(metadata)
    if "parents" in metadata:
        message = (
            "The parents field is not directly writable in update requests. "
            "Use the addParents and removeParents parameters instead."
        )
        raise DriveError(403, "fieldNotWritable", message)
    meta = drive_meta(node)
    if state.parent_of(node) is None and metadata.keys() - {"starred", "description", "folderColorRgb"}:
        raise DriveError(403, "insufficientFilePermissions", "The root folder cannot be changed.", "fileId")
    parent = _new_parent(state, node, params, now_s)
    if metadata.get("id") not in (None, node.id):
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")
    if parent is not None and state.store.holds(node, parent):
        raise DriveError(403, "cannotAddParent", "A folder cannot be added to itself or to one below it.")
    name, was_trashed = _change_metadata(meta, metadata, now_s, node.name), meta.trashed_s is not None
    if "trashed" in metadata:
        meta.trashed_s = (meta.trashed_s or now_s) if metadata["trashed"] else None
    if parent is not None or name != node.name:
        target = parent or node.parent
        assert target is not None
        state.store.move(node, target, name, now_s)
        meta.version += 1
    else:
        state.log_change(node, now_s)
    if meta.trashed_s is not None and not was_trashed:
        state.log_removal(node, now_s)


def _check_writable(metadata: Mapping[str, Any]) -> None:
    if not _READ_ONLY.isdisjoint(metadata):
        raise DriveError(403, "fieldNotWritable", "The resource body includes fields which are not directly writable.")


def _check_shortcut(state: DriveState, metadata: Mapping[str, Any]) -> None:
    details = metadata.get("shortcutDetails")
    if not isinstance(details, dict) or not isinstance(details.get("targetId"), str):
        raise DriveError(400, "invalid", "A shortcut needs a target.", "shortcutDetails.targetId")
    target = state.find_node(details["targetId"], inf)
    details["targetMimeType"] = drive_meta(target).mime


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise DriveError if the metadata of a client has a value that cannot be applied."""
    kinds_by_name: Mapping[str, tuple[type[Any], ...]] = {**_CLIENT_PROPERTIES, "name": (str,)}
    for key, kinds in kinds_by_name.items():
        if metadata.get(key) not in (None, "") and not isinstance(metadata[key], kinds):
            raise invalid_parameter(key)
    for key in ("createdTime", "modifiedTime"):
        if metadata.get(key):
            parse_time(metadata[key], key)


def _change_metadata(meta: DriveMeta, metadata: Mapping[str, Any], now_s: float, name: str) -> str:
    """Apply the metadata of a client to ``meta``, or nothing of it. Return the name that it gives, or else ``name``."""
    _check_metadata(metadata)
    for key, value in metadata.items():
        if key not in _CLIENT_PROPERTIES:
            continue
        if value is None:
            meta.client_properties.pop(key, None)
        elif isinstance(value, dict) and key != "shortcutDetails":
            merged = {**meta.client_properties.get(key, {}), **value}
            meta.client_properties[key] = {label: text for label, text in merged.items() if text is not None}
        else:
            meta.client_properties[key] = value
    if metadata.get("mimeType"):
        meta.mime = str(metadata["mimeType"])
    if metadata.get("modifiedTime"):
        meta.modified_s = parse_time(metadata["modifiedTime"], "modifiedTime")
    elif not _LEAVE_TIME.issuperset(metadata):
        meta.modified_s = now_s
    return metadata.get("name") or name


def _new_parent(state: DriveState, node: Node, params: Mapping[str, str], now_s: float) -> Folder | None:
    """Return the folder that an update moves a file to, or None if the file stays."""
    added = [folder_id for folder_id in params.get("addParents", "").split(",") if folder_id]
    removed = [folder_id for folder_id in params.get("removeParents", "").split(",") if folder_id]
    current = state.parent_of(node)
    parents = {state.find_folder(folder_id, now_s).id for folder_id in removed}
    if len(added) > 1:
        raise DriveError(403, "cannotAddParent", "Increasing the number of parents is not allowed")
    if not added:
        if current is not None and current.id in parents:
            raise DriveError(403, "cannotRemoveParent", "A file must have at least one parent.")
        return None
    target = state.find_folder(added[0], now_s)
    if current is None:
        raise DriveError(403, "cannotAddParent", "The root folder cannot be moved.")
    if state.space_of(target) != state.space_of(current):
        raise DriveError(403, "cannotAddParent", "A file cannot be moved to another space.")
    return None if target is current else target


def create_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.create`` without content, for folders, shortcuts, Google's own documents and empty files."""
    params = query_params(call)
    return answer_file(state, make_file(state, read_json_body(call), None, "", call.now_s), call, params)


def update_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.update`` without content."""
    params, node = query_params(call), find_named_node(state, call)
    change_file(state, node, read_json_body(call), params, call.now_s)
    return answer_file(state, node, call, params)


def copy_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.copy``, which copies the newest content of a file to another name. Folders cannot be copied."""
    params, changes, now_s = query_params(call), read_json_body(call), call.now_s
    node = find_named_node(state, call)
    version = node.seen(seen_s(call)) if isinstance(node, File) else None
    if version is None:
        raise DriveError(403, "cannotCopyFile", "This file cannot be copied by the user.")
    meta, parent = drive_meta(node), state.parent_of(node)
    defaults = {"name": f"Copy of {node.name}", "mimeType": meta.mime, "parents": [parent.id] if parent else None}
    copied = {key: value for key, value in meta.client_properties.items() if key not in ("starred", "viewedByMeTime")}
    overrides = {key: value for key, value in changes.items() if value is not None}
    twin = make_file(state, {**copied, **defaults, **overrides}, version.blob, meta.mime, now_s)
    return answer_file(state, twin, call, params)


def delete_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.delete``, which deletes for good and bypasses the trash."""
    state.remove_node(find_named_node(state, call), call.now_s)
    return answer_no_content()


def empty_trash(state: DriveState, call: Call) -> Answer:
    """Answer ``files.emptyTrash``."""
    nodes = state.list_nodes(query_params(call).get("driveId", ""))
    for node in [node for node in nodes if drive_meta(node).trashed_s is not None]:
        if node.deleted_s is None:
            state.remove_node(node, call.now_s)
    return answer_no_content()


def generate_ids(state: DriveState, call: Call) -> Answer:
    """Answer ``files.generateIds``."""
    params = query_params(call)
    count = read_page_size({"pageSize": params.get("count", "")}, 10, 1000)
    ids = [state.reserve_id() for _ in range(count)]
    value = {"kind": "drive#generatedIds", "space": params.get("space", "drive"), "ids": ids}
    return answer_selected(value, params, None)


# ---------------------------------------------------------------- reads


def get_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.get`` with the metadata of a file, or with its content."""
    params, node = query_params(call), state.find_readable_node(call.parameters["id"], call.now_s)
    if params.get("alt") != "media":
        return answer_file(state, node, call, params)
    return answer_content(FileView(state, node, call.now_s), call)


def answer_content(view: FileView, call: Call) -> Answer:
    """Answer with the content of a file, or the requested range of it. Raises DriveError."""
    version = view.blob_version
    if version is None:
        message = "Only files with binary content can be downloaded. Use Export with Docs Editors files."
        raise DriveError(403, "fileNotDownloadable", message, "alt")
    kind = view.meta.mime.encode("latin-1", "replace").replace(b"\r", b"").replace(b"\n", b"")
    headers = [(b"content-type", kind), (b"accept-ranges", b"bytes"), (b"content-disposition", b"attachment")]
    answer = answer_range(call, headers, version.blob)
    if answer.status == 416:
        raise DriveError(
            416, "requestedRangeNotSatisfiable", "Request range not satisfiable", "Range", "header",
            headers=answer.headers,
        )  # fmt: skip
    return answer


def export_file(state: DriveState, call: Call) -> Answer:
    """Answer ``files.export``, which converts a document of Google's own.

    This emulator converts nothing, and answers with the bytes from which the document was made.
    """
    params, node = query_params(call), find_named_node(state, call)
    view, target_mime = FileView(state, node, call.now_s), params.get("mimeType", "")
    if not target_mime:
        raise DriveError(400, "required", "Required parameter: mimeType", "mimeType")
    return _answer_export(view, target_mime)


def follow_export_link(state: DriveState, call: Call) -> Answer:
    """Answer a request to one of the ``exportLinks`` of a file."""
    params = query_params(call)
    view = FileView(state, state.find_node(params.get("id", ""), call.now_s), call.now_s)
    endings = EXPORTS.get(view.meta.mime, {}).items()
    return _answer_export(view, next((kind for kind, ending in endings if ending == params.get("exportFormat")), ""))


def _answer_export(view: FileView, target_mime: str) -> Answer:
    if view.meta.mime not in EXPORTS or view.version is None:
        raise DriveError(403, "fileNotExportable", "Export only supports Docs Editors files.", "alt")
    if target_mime not in EXPORTS[view.meta.mime]:
        raise DriveError(400, "badRequest", "The requested conversion is not supported.", "convertTo")
    headers = [(b"content-type", target_mime.encode("latin-1", "replace")), (b"content-disposition", b"attachment")]
    return Answer(200, headers, view.version.blob)


def list_files(state: DriveState, call: Call) -> Answer:
    """Answer ``files.list`` with one page of the files that match a query."""
    params, now_s = query_params(call), call.now_s
    search, start = parse_query(params.get("q", "")), read_page_start(params)
    size = read_page_size(params, _DEFAULT_PAGE, _LARGEST_PAGE)
    tree = read_selection(params, _DEFAULT_LIST_FIELDS) or {"*": None}
    if unknown := tree.keys() - _LIST_FIELDS:
        raise DriveError(400, "invalidParameter", f"Invalid field selection {min(unknown)}", "fields")
    keys = [part.split() for part in params.get("orderBy", "").split(",") if part.strip()]
    matches = _search_files(state, search, params, now_s, inf if keys or not start else start)
    if keys:
        matches = islice(_sort_files(matches, keys), start, None)
    page = list(islice(matches, size))
    envelope: dict[str, Any] = {"kind": "drive#fileList", "incompleteSearch": False}
    if next(matches, None) is not None:
        envelope["nextPageToken"] = f"~!!~{start + size if keys else page[-1].meta.sequence}"
    answer = {name: value for name, value in envelope.items() if name in tree or "*" in tree}
    file_selection = selection_within(tree, "files")
    if file_selection is None or file_selection:
        answer["files"] = [describe_file(view, file_selection) for view in page]
    return answer_json(answer)


def _search_files(
    state: DriveState, search: Search, params: Mapping[str, str], now_s: float, before: float
) -> Iterator[FileView]:
    """Return the files that match a search and whose creation number is below ``before``, latest created first.

    Raises DriveError.
    """
    spaces = read_spaces(params)
    return (
        view
        for node in _search_candidates(state, search, params, now_s, before)
        if (view := FileView(state, node, now_s, is_listed=True)).version is not None or isinstance(node, Folder)
        if search.matches(view) and state.space_of(node) in spaces
    )


def _sort_files(matches: Iterable[FileView], keys: Sequence[list[str]]) -> list[FileView]:
    """Return files in the order that a request asks for. Raises DriveError."""
    views = list(matches)
    for key in reversed(keys):
        if key[0] not in _SORT_KEYS or key[1:] not in ([], ["desc"], ["asc"]):
            raise invalid_parameter("orderBy")
        views.sort(key=_SORT_KEYS[key[0]], reverse=key[1:] == ["desc"])
    return views


def _search_candidates(
    state: DriveState, search: Search, params: Mapping[str, str], now_s: float, before: float
) -> Iterator[Node]:
    """Return the files that a search has to look at, latest created first. Raises DriveError."""
    if search.parent is None:
        is_searched, fading_too = _search_scope(state, params)
        files = filter(is_searched, state.files_by_creation.before(before))
        return _merge_fading(files, filter(fading_too, state.store.fading(None, now_s)), before)
    try:
        folder = state.find_node(search.parent, now_s)
    except DriveError:
        raise file_not_found("") from None
    if not isinstance(folder, Folder):
        return iter(())
    fading = state.store.fading(folder, now_s, search.name)
    if search.name is None:
        return _merge_fading(folder.sorted_by(creation_number).before(before), fading, before)
    namesakes = sorted(state.store.named(folder, search.name), key=creation_number, reverse=True)
    return _merge_fading((node for node in namesakes if creation_number(node) < before), fading, before)


def _search_scope(
    state: DriveState, params: Mapping[str, str]
) -> tuple[Callable[[Node], bool], Callable[[Node], bool]]:
    """Return filters for the files and the removed files that a search without a parent looks at. Raises DriveError."""
    if APP_DATA in read_spaces(params):
        return lambda node: not state.drive_id_of(node), lambda node: True
    drive_id, corpora = params.get("driveId", ""), params.get("corpora", "user")
    if corpora == "drive" or drive_id:
        if drive_id not in state.drives:
            raise DriveError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
    elif corpora == "allDrives" or read_flag(params, "includeItemsFromAllDrives"):
        return lambda node: True, lambda node: True

    def is_in_drive(node: Node) -> bool:
        return state.drive_id_of(node) == drive_id

    return is_in_drive, is_in_drive


def _merge_fading(files: Iterator[Node], fading: Iterable[Node], before: float) -> Iterator[Node]:
    """Return files and removed files that listings still show, latest created first."""
    removed = [node for node in fading if creation_number(node) < before]
    if not removed:
        return files
    removed.sort(key=creation_number, reverse=True)
    return merge(files, removed, key=creation_number, reverse=True)


def _natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key for which 2 comes before 12."""
    parts: list[tuple[int, int, str]] = []
    for character in name:
        digit = character.isascii() and character.isdigit()
        if digit and parts and parts[-1][0] == 0:
            parts[-1] = (0, parts[-1][1] * 10 + int(character), "")
        else:
            parts.append((0, int(character), "") if digit else (1, 0, character))
    return parts
