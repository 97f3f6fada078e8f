"""The OneDrive API v1.0 (api.onedrive.com), which personal accounts had before Graph and still answers.

What may live here: Graph's answers in the older API's words: other contexts, other names of some properties, and a few
more properties. Its functions do the same.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_cloudbench.emulators.onedrive.answers import JSON, precise_time
from pytest_cloudbench.emulators.onedrive.items import PERSON, extension
from pytest_cloudbench.emulators.onedrive.state import GraphRequest
from pytest_cloudbench.emulators.skin import Answer

_METADATA = "https://api.onedrive.com/v1.0/$metadata#"
_MINIMAL = b"application/json; odata.metadata=minimal"
_NONE = b"application/json; odata.metadata=none"
_DEPRECATED = "GrantedToIdentities has been deprecated. Refer to GrantedToIdentitiesV2"
_PERMISSIONS = ("createLink", "invite", "permissions", "permissions/*")


def is_legacy(request: GraphRequest) -> bool:
    """Returns whether a request is for the older API: its drive has no owner in the address."""
    return request.address.drive == "drive" and request.address.version != "_api/v2.0"


def reworded(request: GraphRequest, answer: Answer) -> Answer:
    """Returns an answer in the words of the older API."""
    if not answer.body or answer.status >= 300:
        return answer
    value: dict[str, Any] = json.loads(bytes(answer.body))
    function, method = request.address.function, request.call.method
    where = f"drives('{request.state.drive_id}')/items('{request.address.base}')"
    kind, status = _MINIMAL, answer.status
    listed: list[dict[str, Any]] = value["value"] if isinstance(value.get("value"), list) else [value]
    if function in _PERMISSIONS:
        value["@odata.context"] = f"{_METADATA}{where}/permissions{'' if 'value' in value else '/$entity'}"
        for entry in listed:
            _reword_permission(request, entry)
    elif function == "versions":
        value["@odata.context"] = f"{_METADATA}{where}/versions"
        for entry in listed:
            entry |= {"checkInComment": "", "file": {}}
    elif function == "search":
        del value["@odata.context"]
        kind = _NONE
        for entry in listed:
            entry["commentSettings"] = {"commentingDisabled": {"isDisabled": False}}
    elif function == "children" and method == "POST":
        value["@odata.context"] = f"{_METADATA}{where}/children/$entity"
        status = 200
    elif not function and not request.address.base:
        value["@odata.context"] = f"{_METADATA}drives/$entity"
    elif function in ("", "children", "content"):
        value["@odata.context"] = f"{_METADATA}items{'' if 'value' in value else '/$entity'}"
        kind = JSON
    if function in ("", "children", "content") and request.address.base:
        for entry in listed:
            _reword_item(entry, is_changed=method in ("PATCH", "PUT"))
    return Answer(status, [(b"content-type", kind)], json.dumps(value).encode())


def _reword_item(entry: dict[str, Any], *, is_changed: bool) -> None:
    if "@microsoft.graph.downloadUrl" in entry:
        entry["@content.downloadUrl"] = entry.pop("@microsoft.graph.downloadUrl")
    if "folder" in entry:
        view = entry["folder"].get("view", {})
        entry["folder"] |= {"folderType": "documents", "folderView": view}
    if "file" in entry:
        entry["file"] |= {
            "fileExtension": extension(entry.get("name", "")),
            "irmEnabled": False,
            "irmEffectivelyEnabled": False,
        }
    if is_changed:
        entry["shared"] = {"effectiveRoles": ["write"], "owner": {"user": PERSON}, "scope": "users"}
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
            "createdDateTime": precise_time(request.now_s),
            "iconUrl": "",
            "localizedDescription": "Anyone with the link can view",
            "role": entry["link"].get("type", "view"),
            "status": "",
            "variant": "",
        }
