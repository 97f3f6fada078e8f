"""``drives`` of the API, which are shared drives."""

from __future__ import annotations

from typing import Any

from pytest_cloudbench.emulators.gdrive.answers import DriveError, answer_no_content, format_time
from pytest_cloudbench.emulators.gdrive.requests import (
    answer_list,
    answer_selected,
    query_params,
    read_flag,
    read_json_body,
)
from pytest_cloudbench.emulators.gdrive.selection import Selection
from pytest_cloudbench.emulators.gdrive.state import DriveState, SharedDrive
from pytest_cloudbench.emulators.skin import Answer, Call

_DRIVE: Selection = {"kind": None, "id": None, "name": None}
_DRIVES: Selection = {"kind": None, "nextPageToken": None, "drives": _DRIVE}


def _find_drive(state: DriveState, call: Call) -> SharedDrive:
    drive_id = call.parameters["drive"]
    if drive_id not in state.drives:
        raise DriveError(404, "notFound", f"Shared drive not found: {drive_id}", "driveId")
    return state.drives[drive_id]


def _describe_drive(drive: SharedDrive) -> dict[str, Any]:
    details = {"createdTime": format_time(drive.created_s), "hidden": False, "colorRgb": "#ea6100"}
    return {"kind": "drive#drive", "id": drive.root.id, "name": drive.root.name, **details, **drive.properties}


def list_drives(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.list``."""
    items = [_describe_drive(drive) for drive in state.drives.values()]
    return answer_list(call, "drives", items, "drive#driveList", _DRIVES, default_size=10, largest_size=100)


def create_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.create``. A repeated request has the same id, and is refused instead of making a second drive."""
    body, request_id = read_json_body(call), query_params(call).get("requestId", "")
    if not request_id:
        raise DriveError(400, "required", "Required parameter: requestId", "requestId")
    if not isinstance(body.get("name"), str) or not body["name"]:
        raise DriveError(400, "required", "The shared drive name field is required.", "drive.name")
    for drive in state.drives.values():
        if drive.request_id == request_id:
            raise DriveError(409, "duplicate", "A shared drive with this request id exists already.", "requestId")
    drive = state.add_drive(_pick_drive_properties(body), request_id, call.now_s)
    return answer_selected(_describe_drive(drive), query_params(call), _DRIVE)


def _pick_drive_properties(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("name", "colorRgb", "hidden", "themeId", "restrictions") if name in body}


def get_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.get``."""
    return answer_selected(_describe_drive(_find_drive(state, call)), query_params(call), _DRIVE)


def update_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.update``."""
    drive = _find_drive(state, call)
    drive.properties |= _pick_drive_properties(read_json_body(call))
    assert drive.root.parent is not None
    state.store.move(drive.root, drive.root.parent, drive.properties["name"], call.now_s)
    return get_drive(state, call)


def hide_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.hide``."""
    _find_drive(state, call).properties["hidden"] = True
    return get_drive(state, call)


def unhide_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.unhide``."""
    _find_drive(state, call).properties["hidden"] = False
    return get_drive(state, call)


def delete_drive(state: DriveState, call: Call) -> Answer:
    """Answer ``drives.delete``. A drive that is not empty is deleted only if the request allows it."""
    drive = _find_drive(state, call)
    if drive.root.children and not read_flag(query_params(call), "allowItemDeletion"):
        raise DriveError(403, "teamDriveNotEmpty", "The shared drive is not empty.", "driveId")
    state.remove_node(drive.root, call.now_s)
    del state.drives[drive.root.id]
    return answer_no_content()
