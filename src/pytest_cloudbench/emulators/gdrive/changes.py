"""``about`` and ``changes`` of the API: the account's owner, its used space, and its log of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_json, format_time, invalid_parameter
from pytest_cloudbench.emulators.gdrive.metadata import EXPORTS, FILE_DEFAULT, IMPORTS, FileView, describe_file
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_selected,
    query_params,
    read_flag,
    read_page_size,
    read_selection,
    read_spaces,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection, pick_selected, selection_within
from pytest_cloudbench.emulators.gdrive.state import APPS, DriveState, drive_meta
from pytest_cloudbench.emulators.nodes import File, Node
from pytest_cloudbench.emulators.skin import Answer, Call

_FIRST = 1
"""The page token of an account in which nothing has happened yet."""
_UPLOAD_BYTES, _IMPORT_BYTES = 5_497_558_138_880, 10_485_760
_THEME = {
    "id": "abacus",
    "backgroundImageLink": "https://ssl.gstatic.com/team_drive_themes/a.jpg",
    "colorRgb": "#ea6100",
}
_CHANGE: Selection = {
    "kind": None, "removed": None, "fileId": None, "time": None, "type": None, "changeType": None, "file": FILE_DEFAULT,
    "driveId": None,
}  # fmt: skip
_DEFAULT: Selection = {"kind": None, "nextPageToken": None, "newStartPageToken": None, "changes": _CHANGE}


def get_about(state: DriveState, call: Call) -> Answer:
    """Answer ``about.get``. The request must select fields."""
    params = query_params(call)
    if not params.get("fields"):
        raise DriveError(400, "required", "The 'fields' parameter is required for this method.", "fields")
    used_bytes, trashed_bytes = state.store.used_bytes, _trashed_bytes(state, call.now_s)
    quota = {"usage": str(used_bytes), "usageInDrive": str(used_bytes), "usageInDriveTrash": str(trashed_bytes)}
    if state.store.quota_bytes:
        quota["limit"] = str(state.store.quota_bytes)
    sizes = ("document", "spreadsheet", "presentation", "drawing")
    value: dict[str, Any] = {
        "kind": "drive#about",
        "user": state.user,
        "storageQuota": quota,
        "importFormats": IMPORTS,
        "exportFormats": {kind: list(formats) for kind, formats in EXPORTS.items()},
        "maxImportSizes": {APPS + kind: str(_IMPORT_BYTES) for kind in sizes},
        "maxUploadSize": str(_UPLOAD_BYTES),
        "appInstalled": False,
        "folderColorPalette": ["#ac725e", "#d06b64", "#f83a22", "#fa573c", "#8f8f8f"],
        "driveThemes": [_THEME],
        "teamDriveThemes": [_THEME],
        "canCreateDrives": True,
        "canCreateTeamDrives": True,
    }
    return answer_selected(value, params, None)


def _trashed_bytes(state: DriveState, now_s: float) -> int:
    total = 0
    for node in state.list_nodes():
        if isinstance(node, File) and state.is_trashed(node, now_s):
            total += node.versions[-1].blob.size_bytes
    return total


def get_start_page_token(state: DriveState, call: Call) -> Answer:
    """Answer ``changes.getStartPageToken``."""
    token = str(state.store.log.end(call.now_s) + _FIRST)
    return answer_selected({"kind": "drive#startPageToken", "startPageToken": token}, query_params(call), None)


def list_changes(state: DriveState, call: Call) -> Answer:
    """Answer ``changes.list``: each file that changed since a page token once, in order of its last change."""
    params, now_s = query_params(call), call.now_s
    size, log = read_page_size(params, 100, 1000), state.store.log
    end, text = log.end(now_s), params.get("pageToken", "")
    if not text:
        raise DriveError(400, "required", "Required parameter: pageToken", "pageToken")
    if not (text.isascii() and text.isdigit()) or int(text) < _FIRST:
        raise invalid_parameter("pageToken")
    position = min(int(text) - _FIRST, len(log.keys))  # a token of a replica that leads may be beyond the end
    ids: dict[str, None] = {}
    while position < end and len(ids) < size:
        file_id = log.keys[position]
        position += 1
        ids.pop(file_id, None)
        ids[file_id] = None
    tree = read_selection(params, _DEFAULT) or {"*": None}
    change_selection = selection_within(tree, "changes")
    includes_removed = read_flag(params, "includeRemoved", True)
    is_asked_for = _change_filter(state, params)
    nodes = [node for file_id in ids if (node := state.store.by_id(file_id)) is not None and is_asked_for(node)]
    entries = [_describe_change(state, node, change_selection, now_s) for node in nodes]
    envelope: dict[str, Any] = {"kind": "drive#changeList"}
    envelope["nextPageToken" if position < end else "newStartPageToken"] = str(position + _FIRST)
    answer = {name: value for name, value in envelope.items() if name in tree or "*" in tree}
    if change_selection is None or change_selection:
        answer["changes"] = [value for is_there, value in entries if is_there or includes_removed]
    return answer_json(answer)


def _change_filter(state: DriveState, params: Mapping[str, str]) -> Callable[[Node], bool]:
    """Return a filter for the files whose changes a request asks for: of My Drive, unless it names others.

    Raises DriveError.
    """
    spaces, drive_id = read_spaces(params), params.get("driveId", "")
    if drive_id and drive_id not in state.drives:
        raise DriveError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
    has_all = read_flag(params, "includeItemsFromAllDrives") and not read_flag(params, "restrictToMyDrive")

    def is_asked_for(node: Node) -> bool:
        is_in_drive = state.drive_id_of(node) == drive_id if drive_id or not has_all else True
        return is_in_drive and state.space_of(node) in spaces

    return is_asked_for


def _describe_change(
    state: DriveState, node: Node, tree: Selection | None, now_s: float
) -> tuple[bool, dict[str, Any]]:
    """Return whether the file or shared drive still exists, and its entry in the list."""
    is_there = (node.deleted_s is None or now_s < state.store.fading_until_s(node)) and node.is_seen(now_s)
    at_s = node.deleted_s if node.deleted_s is not None else drive_meta(node).modified_s
    kind = "drive" if state.drive_id_of(node) == node.id else "file"
    value: dict[str, Any] = {
        "kind": "drive#change",
        "type": kind,
        "changeType": kind,
        "time": format_time(at_s),
        "removed": not is_there,
        f"{kind}Id": node.id,
    }
    value = pick_selected(value, tree)
    file_selection: Selection | None = None if tree is None else selection_within(tree, "file")
    if is_there and kind == "file" and (file_selection is None or file_selection):
        value["file"] = describe_file(FileView(state, node, now_s), file_selection)
    return is_there, value
