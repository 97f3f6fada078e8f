"""The OneDrive API v1.0 (api.onedrive.com), which personal accounts had before Graph and which still answers.

Its functions are Graph's. Its answers have other contexts, other names of some properties, and a few more properties:
Graph's answers are translated.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_cloudbench.emulators.onedrive.answers import JSON, format_precise_time
from pytest_cloudbench.emulators.onedrive.items import file_extension
from pytest_cloudbench.emulators.onedrive.state import GraphRequest
from pytest_cloudbench.emulators.skin import Answer

_METADATA = "https://api.onedrive.com/v1.0/$metadata#"
_MINIMAL = b"application/json; odata.metadata=minimal"
_NONE = b"application/json; odata.metadata=none"
_DEPRECATED = "GrantedToIdentities has been deprecated. Refer to GrantedToIdentitiesV2"
_PERMISSIONS = ("createLink", "invite", "permissions", "permissions/*")


def is_legacy(request: GraphRequest) -> bool:
    """Return whether a request is for the older API, whose addresses do not name the owner of the drive."""
    return request.address.drive == "drive" and request.address.version != "_api/v2.0"


def reword_answer(request: GraphRequest, answer: Answer) -> Answer:
    """Translate an answer of Graph to the older API."""
    if not answer.body or answer.status >= 300:
        return answer
    value: dict[str, Any] = json.loads(bytes(answer.body))
    function, method = request.address.function, request.call.method
    item_path = f"drives('{request.state.drive_id}')/items('{request.address.base}')"
    kind, status = _MINIMAL, answer.status
    entries: list[dict[str, Any]] = value["value"] if isinstance(value.get("value"), list) else [value]
    if function in _PERMISSIONS:
        value["@odata.context"] = f"{_METADATA}{item_path}/permissions{'' if 'value' in value else '/$entity'}"
        for entry in entries:
            _reword_permission(request, entry)
    elif function == "versions":
        value["@odata.context"] = f"{_METADATA}{item_path}/versions"
        for entry in entries:
            entry |= {"checkInComment": "", "file": {}}
    elif function == "search":
        del value["@odata.context"]
        kind = _NONE
        for entry in entries:
            entry["commentSettings"] = {"commentingDisabled": {"isDisabled": False}}
    elif function == "children" and method == "POST":
        value["@odata.context"] = f"{_METADATA}{item_path}/children/$entity"
        status = 200
    elif not function and not request.address.base:
        value["@odata.context"] = f"{_METADATA}drives/$entity"
    elif function in ("", "children", "content"):
        value["@odata.context"] = f"{_METADATA}items{'' if 'value' in value else '/$entity'}"
        kind = JSON
    if function in ("", "children", "content") and request.address.base:
        for entry in entries:
            _reword_item(request, entry, is_changed=method in ("PATCH", "PUT"))
    return Answer(status, [(b"content-type", kind)], json.dumps(value).encode())


def _reword_item(request: GraphRequest, entry: dict[str, Any], *, is_changed: bool) -> None:
    if "@microsoft.graph.downloadUrl" in entry:
        entry["@content.downloadUrl"] = entry.pop("@microsoft.graph.downloadUrl")
    if "folder" in entry:
        view = entry["folder"].get("view", {})
        entry["folder"] |= {"folderType": "documents", "folderView": view}
    if "file" in entry:
        entry["file"] |= {
            "fileExtension": file_extension(entry.get("name", "")),
            "irmEnabled": False,
            "irmEffectivelyEnabled": False,
        }
    if is_changed:
        entry["shared"] = {"effectiveRoles": ["write"], "owner": {"user": request.state.person}, "scope": "users"}
    ids = entry.get("parentReference", {}).get("sharepointIds")
    if ids is not None:
        ids |= {"@odata.type": "#oneDrive.sharepointIds", "syncResourceId": ids["listItemUniqueId"]}


def _reword_permission(request: GraphRequest, entry: dict[str, Any]) -> None:
    if "grantedTo" in entry:
        entry["@deprecated.GrantedTo"] = "GrantedTo has been deprecated. Refer to GrantedToV2"
        return
    entry["@deprecated.GrantedToIdentities"] = _DEPRECATED
    for identity in entry.get("grantedToIdentitiesV2", ()):
        identity["user"] = {"@odata.type": "#oneDrive.sharePointIdentity", **identity["user"]}
    if "invitation" not in entry:
        entry["link"] |= {
            "blocksDownload": entry["link"].pop("preventsDownload", False),
            "createOnly": False,
            "createdDateTime": format_precise_time(request.now_s),
            "iconUrl": "",
            "localizedDescription": "Anyone with the link can view",
            "role": entry["link"].get("type", "view"),
            "status": "",
            "variant": "",
        }
