"""How Graph shows items and drives: driveItem and drive as JSON, contexts, selections.

What may live here: state into JSON types. Nothing here changes anything.
"""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _text
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, timestamp
from pytest_cloudbench.emulators.onedrive.state import GraphRequest, GraphState
from pytest_cloudbench.emulators.onedrive.tree import ItemDetails, details_of

PERSON: Mapping[str, str] = {
    "email": "emulated@example.com",
    "id": "3f0c4d2e-7f1a-4c56-9a3b-0e5d6c7b8a90",
    "displayName": "Emulated User",
}
APP: Mapping[str, str] = {"id": "5b1c2d3e-0000-4a4b-8c8d-9e0f1a2b3c4d", "displayName": "pytest-cloudbench"}
GROUP: Mapping[str, str] = {
    "email": "emulated-team@example.com",
    "id": "7c1d2e3f-8a2b-4d5e-9c0f-1a2b3c4d5e6f",
    "displayName": "Emulated Team",
}
"""The group that owns a document library."""
SITE_ID = "0d6a8f6e-5c4b-4a39-8271-6f5e4d3c2b1a"
_LIST = {
    "listId": "a1b2c3d4-1111-4222-8333-444455556666",
    "siteId": SITE_ID,
    "siteUrl": "https://emulated-my.sharepoint.com/personal/emulated",
    "tenantId": "9188040d-6c67-4c5b-b112-36a304b66dad",
    "webId": "b2c3d4e5-2222-4333-8444-555566667777",
}
_VIEW = json.dumps({"sortBy": "name", "sortOrder": "ascending", "viewType": "thumbnails"})
_BY = json.dumps({"application": dict(APP), "user": dict(PERSON)})
_USER = quote(PERSON["email"], "")
_SPECIAL = {"Documents": "documents", "Pictures": "photos", "Music": "music", "Desktop": "desktop"}
_ALWAYS = ("@odata.etag", "createdBy", "file", "fileSystemInfo", "folder", "lastModifiedBy", "parentReference",
           "shared")  # fmt: skip
"""What the part of the service that finds items by path adds to a selection."""
_SAFE = "/!$&'()*+,;=@-._~"


def content_type(name: str) -> str:
    """Returns the media type of a file by its name."""
    return _type_of_ending(name[-16:].rpartition(".")[2].lower())


@lru_cache(maxsize=4096)
def _type_of_ending(ending: str) -> str:
    return guess_type(f"a.{ending}")[0] or "application/octet-stream"


def extension(name: str) -> str:
    """Returns what follows the last dot of a name; empty if it has none."""
    return name.rpartition(".")[2] if "." in name else ""


def web_url(state: GraphState, node: Node) -> str:
    """Returns where a browser shows an item."""
    if state.account.type == "personal":
        return f"https://onedrive.live.com?cid={state.drive_id}&id={node.id.replace('!', '%21')}"
    return f"{_LIST['siteUrl']}/Documents{_quoted(state.tree.path(node))}"


def context(request: GraphRequest, tail: str) -> str:
    """Returns OData's context of an answer: the address in the metadata's own words."""
    address = request.address
    kind = address.drive.partition("/")[0]
    if kind in ("me", "users", "drive"):
        start = f"users('{_USER}')/drive"
    elif (address.base == "root" and address.path is None) or kind == "sites":
        start = f"drives('{quote(request.state.drive_id)}')"
    else:
        start = f"sites('{SITE_ID}')/drives('{quote(request.state.drive_id)}')"
    if tail.startswith("items"):
        return f"{GRAPH}{start}/{tail}"
    if address.base == "root" and address.drive.startswith("drives/"):
        return f"{GRAPH}{start}/root/{tail}"
    return f"{GRAPH}{start}/items('{quote(address.base)}')/{tail}"


def item(
    request: GraphRequest, node: Node, *, is_new: bool = False, has_type: bool = False, is_listed: bool = False
) -> dict[str, Any]:
    """Returns a driveItem.

    With ``is_new`` as in a new folder's answer, with ``has_type`` as in a list of changes, with ``is_listed`` as
    listings see it.
    """
    shown: dict[str, Any] = json.loads(item_text(request, node, is_listed=is_listed))
    known = details_of(node)
    if is_new:
        _add_new(shown, known)
    if has_type:
        shown["@odata.type"] = "#microsoft.graph.driveItem"
    if "file" in shown and (has_type or request.state.account.type != "personal"):
        shown["file"]["fileExtension"] = extension(node.name)
    return shown


def item_text(request: GraphRequest, node: Node, *, is_listed: bool = False) -> str:
    """Returns a driveItem as JSON. It is put together by hand, because every upload is answered with one."""
    state = request.state
    tree, known, drive_type = state.tree, details_of(node), state.account.type
    above = tree.place(node, request.now_s)
    # SharePoint has one time of creation, which clients may set; personal drives also keep when the item arrived.
    created_s = known.created_s if drive_type == "personal" else known.client_created_s
    created = timestamp(created_s)
    changed = created if known.changed_s == created_s else timestamp(known.changed_s)
    first = created if known.client_created_s == created_s else timestamp(known.client_created_s)
    last = changed if known.client_changed_s == known.changed_s else timestamp(known.client_changed_s)
    path = "" if above is None or node is tree.root else tree.path(above)
    if node is tree.root:
        more = f'"parentReference": {{"driveId": "{state.drive_id}", "driveType": "{drive_type}"}}, "root": {{}}'
    elif above is None or above is tree.bin:
        more = f'"parentReference": {{"driveId": "{state.drive_id}", "driveType": "{drive_type}"}}'
    else:
        is_own = request.address.drive in ("me/drive", "drive")
        top = "/drive" if is_own else f"/drives/{state.drive_id}"
        more = _reference(state.drive_id, drive_type, above.id, above.name, top, path)
    now_s, version = request.call.now_s, None
    if isinstance(node, File):
        version = node.listed(now_s) if is_listed else node.seen(now_s)
    size, count = known.size_bytes, 0
    if isinstance(node, File) and version is not None:
        size, count = version.blob.size_bytes, len(node.versions)
        url = state.download_url(request.files_origin, node, version, now_s)
        digest = b2a_base64(bytes.fromhex(version.blob.hash_hex), newline=False).decode()
        more += (
            f', "@microsoft.graph.downloadUrl": {_text(url)}, "file": {{"mimeType": "{content_type(node.name)}", '
            f'"hashes": {{"quickXorHash": "{digest}"}}}}'
        )
    elif isinstance(node, Folder):
        more += f', "folder": {{"childCount": {len(node.children)}'
        if drive_type == "personal":
            more += f', "view": {_VIEW}'
        more += "}"
        if drive_type == "personal" and above is tree.root and node.name in _SPECIAL:
            more += f', "specialFolder": {{"name": "{_SPECIAL[node.name]}"}}'
    if known.description:
        more += f', "description": {_text(known.description)}'
    if drive_type == "documentLibrary" and node is not tree.root:
        more += ', "shared": {"scope": "users"}'  # a library belongs to its members
    elif state.shared and (links := state.links_to(node, now_s)):
        more += f', "shared": {{"scope": "{links[0].scope}"}}'
    return (
        f'{{"createdBy": {_BY}, "lastModifiedBy": {_BY}, "isAuthoritative": false, "id": "{node.id}", '
        f'"name": {_text(node.name)}, "size": {size}, "createdDateTime": "{created}", '
        f'"lastModifiedDateTime": "{changed}", "eTag": "\\"{{{known.guid}}},{known.tag}\\"", '
        f'"cTag": "\\"c:{{{known.guid}}},{count}\\"", "webUrl": "{web_url(state, node)}", '
        f'"fileSystemInfo": {{"createdDateTime": "{first}", "lastModifiedDateTime": "{last}"}}, {more}}}'
    )


@lru_cache(maxsize=4096)
def _reference(drive_id: str, drive_type: str, item_id: str, name: str, top: str, path: str) -> str:
    """Returns the ``parentReference`` to a folder, as JSON."""
    return (
        f'"parentReference": {{"driveId": "{drive_id}", "driveType": "{drive_type}", "id": "{item_id}", '
        f'"name": {_text(name)}, "path": "{top}/root:{_quoted(path)}", "siteId": "{SITE_ID}"}}'
    )


@lru_cache(maxsize=4096)
def _quoted(path: str) -> str:
    return quote(path.encode(errors="replace"), _SAFE)


def _add_new(shown: dict[str, Any], known: ItemDetails) -> None:
    """What the answer to creating a folder also holds."""
    shown["@odata.etag"] = shown["eTag"]
    if "shared" in shown:
        shown["shared"]["scope"] = "unknown"
    shown["commentSettings"] = {"commentingDisabled": {"isDisabled": False}}
    shown["parentReference"]["sharepointIds"] = {**_LIST, "listItemUniqueId": known.guid}


def selected(request: GraphRequest, shown: dict[str, Any]) -> dict[str, Any]:
    """Returns what a request's ``$select`` names of an item; all if it names nothing."""
    names = [name.strip() for name in request.option("select").split(",") if name.strip()]
    if not names or "*" in names:
        if request.is_spaced and "@odata.type" not in shown:
            shown = {"@odata.etag": shown["eTag"], **shown}
        return shown
    wanted = {name.partition("/")[0].lower() for name in names}
    if wanted & {"content.downloadurl", "@content.downloadurl", "@microsoft.graph.downloadurl"}:
        wanted.add("@microsoft.graph.downloadurl")
    kept = {key: value for key, value in shown.items() if key.lower() in wanted}
    if "root" not in shown:
        kept = {"@odata.etag": shown["eTag"], **kept}
    if request.is_spaced:
        kept |= {key: shown[key] for key in _ALWAYS if key in shown}
    return kept


def drive(request: GraphRequest) -> dict[str, Any]:
    """Returns the drive with its quota."""
    state, tree = request.state, request.tree
    total = tree.store.quota_bytes or 2**50
    used, remaining = tree.store.used_bytes, max(0, total - tree.store.used_bytes)
    share = remaining / total
    condition = "exceeded" if not remaining else "critical" if share < 0.01 else "nearing" if share < 0.1 else "normal"
    at = timestamp(details_of(tree.root).created_s)
    url = {"personal": f"https://onedrive.live.com?cid={state.drive_id}"}
    shown: dict[str, Any] = {
        "createdDateTime": at,
        "description": "",
        "id": state.drive_id,
        "lastModifiedDateTime": timestamp(details_of(tree.root).changed_s),
        "name": "OneDrive",
        "webUrl": url.get(state.account.type, f"{_LIST['siteUrl']}/Documents"),
        "driveType": state.account.type,
        "createdBy": {"user": {"displayName": "System Account"}},
        "lastModifiedBy": {"user": PERSON},
        "owner": {"group": GROUP} if state.account.type == "documentLibrary" else {"user": PERSON},
        "quota": {
            "deleted": details_of(tree.bin).size_bytes,
            "remaining": remaining,
            "state": condition,
            "total": total,
            "used": used,
        },
    }
    if state.account.type == "personal":
        shown["quota"]["storagePlanInformation"] = {"upgradeAvailable": True}
    return shown
