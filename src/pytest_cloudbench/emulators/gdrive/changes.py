"""The account as a whole: whose it is, how full it is, and what has changed in it.

What may live here: ``about`` and ``changes`` of the API.
"""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_json, invalid, timestamp
from pytest_cloudbench.emulators.gdrive.metadata import EXPORTS, FILE_DEFAULT, IMPORTS, FileView, file_resource
from pytest_cloudbench.emulators.gdrive.requests import about_value, flag, page_size, params_of, selection, spaces_of
from pytest_cloudbench.emulators.gdrive.selection import Chosen, pick, within
from pytest_cloudbench.emulators.gdrive.state import APPS, USER, DriveState, meta_of
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
_CHANGE: Chosen = {
    "kind": None, "removed": None, "fileId": None, "time": None, "type": None, "changeType": None, "file": FILE_DEFAULT,
}  # fmt: skip
_DEFAULT: Chosen = {"kind": None, "nextPageToken": None, "newStartPageToken": None, "changes": _CHANGE}


def about(state: DriveState, call: Call) -> Answer:
    """``about.get``; the request must have a selection."""
    params = params_of(call)
    if not params.get("fields"):
        raise DriveError(400, "required", "The 'fields' parameter is required for this method.", "fields")
    used, trash = state.store.used_bytes, _trashed_bytes(state, call.now_s)
    quota = {"usage": str(used), "usageInDrive": str(used), "usageInDriveTrash": str(trash)}
    if state.store.quota_bytes:
        quota["limit"] = str(state.store.quota_bytes)
    sizes = ("document", "spreadsheet", "presentation", "drawing")
    value: dict[str, Any] = {
        "kind": "drive#about",
        "user": USER,
        "storageQuota": quota,
        "importFormats": IMPORTS,
        "exportFormats": {kind: list(found) for kind, found in EXPORTS.items()},
        "maxImportSizes": {APPS + kind: str(_IMPORT_BYTES) for kind in sizes},
        "maxUploadSize": str(_UPLOAD_BYTES),
        "appInstalled": False,
        "folderColorPalette": ["#ac725e", "#d06b64", "#f83a22", "#fa573c", "#8f8f8f"],
        "driveThemes": [_THEME],
        "teamDriveThemes": [_THEME],
        "canCreateDrives": True,
        "canCreateTeamDrives": True,
    }
    return about_value(value, params, None)


def _trashed_bytes(state: DriveState, now_s: float) -> int:
    total = 0
    for node in state.nodes():
        if isinstance(node, File) and state.is_trashed(node, now_s):
            total += node.versions[-1].blob.size_bytes
    return total


def start_page_token(state: DriveState, call: Call) -> Answer:
    """``changes.getStartPageToken``."""
    token = str(state.store.log.end(call.now_s) + _FIRST)
    return about_value({"kind": "drive#startPageToken", "startPageToken": token}, params_of(call), None)


def list_changes(state: DriveState, call: Call) -> Answer:
    """``changes.list``: each file that changed since a page token, once, in order of its last change."""
    params, now_s = params_of(call), call.now_s
    size, log = page_size(params, 100, 1000), state.store.log
    end, text = log.end(now_s), params.get("pageToken", "")
    if not text:
        raise DriveError(400, "required", "Required parameter: pageToken", "pageToken")
    if not (text.isascii() and text.isdigit()) or int(text) < _FIRST:
        raise invalid("pageToken")
    place = min(int(text) - _FIRST, end)
    ids: dict[str, None] = {}
    while place < end and len(ids) < size:
        file_id = log.keys[place]
        place += 1
        ids.pop(file_id, None)
        ids[file_id] = None
    tree = selection(params, _DEFAULT) or {"*": None}
    of_change = within(tree, "changes")
    removed_too = flag(params, "includeRemoved", True)
    spaces = spaces_of(params)
    shown = [each for each in ids if (node := state.store.by_id(each)) is None or state.space(node) in spaces]
    found = [_change(state, file_id, of_change, now_s) for file_id in shown]
    whole: dict[str, Any] = {"kind": "drive#changeList"}
    whole["nextPageToken" if place < end else "newStartPageToken"] = str(place + _FIRST)
    answer = {name: value for name, value in whole.items() if name in tree or "*" in tree}
    if of_change is None or of_change:
        answer["changes"] = [value for is_there, value in found if is_there or removed_too]
    return answer_json(answer)


def _change(state: DriveState, file_id: str, tree: Chosen | None, now_s: float) -> tuple[bool, dict[str, Any]]:
    """Returns whether the file is there, and one entry of the list."""
    node: Node | None = state.store.by_id(file_id)
    is_there = (
        node is not None
        and (node.deleted_s is None or now_s < state.store.fading_until_s(node))
        and not (isinstance(node, File) and node.seen(now_s) is None)
    )
    at_s = now_s
    if node is not None:
        at_s = node.deleted_s if node.deleted_s is not None else meta_of(node).modified_s
    value: dict[str, Any] = {
        "kind": "drive#change",
        "type": "file",
        "changeType": "file",
        "time": timestamp(at_s),
        "removed": not is_there,
        "fileId": file_id,
    }
    value = pick(value, tree)
    of_file: Chosen | None = None if tree is None else within(tree, "file")
    if is_there and node is not None and (of_file is None or of_file):
        value["file"] = file_resource(FileView(state, node, now_s), of_file)
    return is_there, value
