"""The resources ``driveItem`` and ``drive`` as JSON, with OData's contexts and selections."""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Iterable, Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote_json
from mimetypes import guess_type
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.emulators.http import ListWriter
from pytest_cloudbench.emulators.nodes import File, Folder, Node, Version
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, format_time
from pytest_cloudbench.emulators.onedrive.state import SPECIAL_FOLDERS, GraphRequest, GraphState, describe_person, etag
from pytest_cloudbench.emulators.onedrive.tree import (
    ItemChanges,
    ItemDetails,
    item_changes,
    item_details,
    version_number,
)
from pytest_cloudbench.emulators.skin import Kind

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
_SPECIAL_NAMES = {f"/{path}": name for name, path in SPECIAL_FOLDERS.items()}
_ALWAYS = ("@odata.etag", "createdBy", "file", "fileSystemInfo", "folder", "lastModifiedBy", "parentReference",
           "shared")  # fmt: skip
"""Properties that the part of the service which finds items by path adds to every selection."""
_SAFE = "/!$&'()*+,;=@-._~"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._~-]*")


def guess_content_type(name: str) -> str:
    """Return the media type that belongs to the name of a file."""
    return _guess_type(name[-16:].rpartition(".")[2].lower())


@lru_cache(maxsize=4096)
def _guess_type(ending: str) -> str:
    return guess_type(f"a.{ending}")[0] or "application/octet-stream"


def file_extension(name: str) -> str:
    """Return the text after the last dot of a name, which is empty without a dot."""
    return name.rpartition(".")[2] if "." in name else ""


def web_url(state: GraphState, node: Node) -> str:
    """Return the address at which a browser shows an item."""
    if state.account.type == "personal":
        return f"https://onedrive.live.com?cid={state.drive_id}&id={node.id.replace('!', '%21')}"
    if node is state.tree.root or node.parent is None:
        return f"{_LIST['siteUrl']}/Documents"
    parent_path = _quote_path(state.tree.path_of(node.parent))
    name = node.name
    if _PLAIN_NAME.fullmatch(name) is None:
        name = quote(name.encode(errors="replace"), _SAFE)
    return f"{_LIST['siteUrl']}/Documents{parent_path}/{name}"


def odata_context(request: GraphRequest, tail: str) -> str:
    """Return OData's context of an answer, which is the address in the terms of the metadata."""
    address = request.address
    kind = address.drive.partition("/")[0]
    if kind in ("me", "users", "drive"):
        start = f"users('{_quote_address(request.state.address)}')/drive"
    elif (address.base == "root" and address.path is None) or kind == "sites":
        start = f"drives('{quote(request.state.drive_id)}')"
    else:
        start = f"sites('{SITE_ID}')/drives('{quote(request.state.drive_id)}')"
    if tail.startswith("items"):
        return f"{GRAPH}{start}/{tail}"
    if address.base == "root" and address.drive.startswith("drives/"):
        return f"{GRAPH}{start}/root/{tail}"
    return f"{GRAPH}{start}/items('{quote(address.base)}')/{tail}"


@lru_cache(maxsize=128)
def _quote_address(address: str) -> str:
    return quote(address, "")


def describe_item(
    request: GraphRequest, node: Node, *, is_new: bool = False, has_type: bool = False, is_listed: bool = False
) -> dict[str, Any]:
    """Return a driveItem.

    ``is_new`` adds the fields of an answer to a creation, and ``has_type`` those in a list of changes. ``is_listed``
    takes the version that listings see.
    """
    properties: dict[str, Any] = json.loads(ItemFormat(request, is_listed=is_listed).format(node))
    details = item_details(node)
    if is_new:
        _add_creation_fields(properties, details)
    if has_type:
        properties["@odata.type"] = "#microsoft.graph.driveItem"
    if "file" in properties and (has_type or request.state.account.type != "personal"):
        properties["file"]["fileExtension"] = file_extension(node.name)
    return properties


def describe_expanded(request: GraphRequest, node: Node) -> dict[str, Any]:
    """Return the selected properties of a driveItem, and its children if the request expands them."""
    properties = select_properties(request, describe_item(request, node))
    if request.odata_option("expand") and isinstance(node, Folder):
        children = request.tree.list_children(node, request.now_s)
        properties["children"] = [describe_item(request, child, is_listed=True) for child in children]
    return properties


def write_listed_items(request: GraphRequest, nodes: Iterable[Node], body: ListWriter) -> None:
    """Write driveItems in a listing without ``$select``."""
    form = ItemFormat(request, is_listed=True, has_extension=request.state.account.type != "personal")
    if not request.is_spaced:
        for node in nodes:
            body.add(form.format(node))
        return
    for node in nodes:
        tag = etag(node, shown_version(request, node, is_listed=True))
        body.add(f'{{"@odata.etag": {_quote_json(tag)}, {form.format(node)[1:]}')


def shown_version(request: GraphRequest, node: Node, *, is_listed: bool = False) -> Version | None:
    """Return the version of an item that the answer shows, or None if it shows none. A write shows what it wrote."""
    if not isinstance(node, File):
        return None
    if request.call.route.kind is Kind.WRITE:
        return node.newest
    return node.listed(request.call.now_s) if is_listed else node.seen(request.call.now_s)


def shown_creation_s(request: GraphRequest, node: Node) -> float:
    """Return the time of creation that the answer shows.

    SharePoint has one such time, which clients may set. Personal drives also keep when the item arrived.
    """
    return _choose_creation_s(item_details(node), request.state.account.type)


def _choose_creation_s(details: ItemDetails, drive_type: str) -> float:
    return details.created_s if drive_type == "personal" else details.client_created_s


class ItemFormat:
    """The driveItems of one answer as JSON text.

    It is formatted by hand for speed, since every upload is answered with an item, and what the items of an answer have
    in common is made once. ``is_listed`` takes the version that listings see.
    """

    __slots__ = ("_author", "_drive_type", "_files_origin", "_has_extension", "_is_listed", "_request", "_state")

    def __init__(self, request: GraphRequest, *, is_listed: bool = False, has_extension: bool = False) -> None:
        self._request, self._state = request, request.state
        self._is_listed, self._has_extension = is_listed, has_extension
        self._drive_type = request.state.account.type
        self._author = _format_author(request.state.address)
        self._files_origin = _quote_json(request.files_origin)[1:-1]

    def format(self, node: Node) -> str:
        """Return an item."""
        details = item_details(node)
        changes: ItemDetails | ItemChanges = details
        size, count = details.size_bytes, 0
        tail = self._format_parent_reference(node, details)
        if isinstance(node, Folder):
            tail += self._format_folder(node)
        elif isinstance(node, File) and (version := shown_version(self._request, node, is_listed=self._is_listed)):
            size, count = version.blob.size_bytes, version_number(node, version)
            tail += self._format_file(node, version)
            if version is not node.newest:
                changes = item_changes(node, version)
        if details.description:
            tail += f', "description": {_quote_json(details.description)}'
        if scope := self._find_scope(node):
            tail += f', "shared": {{"scope": "{scope}"}}'
        created_s = _choose_creation_s(details, self._drive_type)
        created = format_time(created_s)
        changed = created if changes.changed_s == created_s else format_time(changes.changed_s)
        first = created if details.client_created_s == created_s else format_time(details.client_created_s)
        last = changed if changes.client_changed_s == changes.changed_s else format_time(changes.client_changed_s)
        return (
            f'{{"createdBy": {self._author}, "lastModifiedBy": {self._author}, "isAuthoritative": false, '
            f'"id": "{node.id}", "name": {_quote_json(node.name)}, "size": {size}, "createdDateTime": "{created}", '
            f'"lastModifiedDateTime": "{changed}", "eTag": "\\"{{{details.guid}}},{changes.tag}\\"", '
            f'"cTag": "\\"c:{{{details.guid}}},{count}\\"", "webUrl": "{web_url(self._state, node)}", '
            f'"fileSystemInfo": {{"createdDateTime": "{first}", "lastModifiedDateTime": "{last}"}}, {tail}}}'
        )

    def _format_parent_reference(self, node: Node, details: ItemDetails) -> str:
        state, tree = self._state, self._state.tree
        parent = node.parent if details.former is None else tree.visible_parent(node, self._request.call.now_s)
        if parent is None or parent is tree.bin or node is tree.root:
            root = ', "root": {}' if node is tree.root else ""
            return f'"parentReference": {{"driveId": "{state.drive_id}", "driveType": "{self._drive_type}"}}{root}'
        # Nothing changes during a request, and the items of a listing have one parent.
        references = self._request.parent_references
        reference = references.get(parent.id)
        if reference is None:
            reference = references[parent.id] = _format_parent_reference(self._request, parent)
        return reference

    def _format_file(self, file: File, version: Version) -> str:
        url = self._state.download_url(self._files_origin, file, version, self._request.call.now_s)
        digest = b2a_base64(bytes.fromhex(version.blob.hash_hex), newline=False).decode()
        extension = f', "fileExtension": {_quote_json(file_extension(file.name))}' if self._has_extension else ""
        return (
            f', "@microsoft.graph.downloadUrl": "{url}", "file": {{"mimeType": "{guess_content_type(file.name)}", '
            f'"hashes": {{"quickXorHash": "{digest}"}}{extension}}}'
        )

    def _format_folder(self, folder: Folder) -> str:
        text = f', "folder": {{"childCount": {len(folder.children)}'
        if self._drive_type != "personal":
            return f"{text}}}"
        text += f', "view": {_VIEW}}}'
        special_name = _SPECIAL_NAMES.get(self._state.tree.path_of(folder))
        return text if special_name is None else f'{text}, "specialFolder": {{"name": "{special_name}"}}'

    def _find_scope(self, node: Node) -> str:
        """Return for whom an item is shared, or an empty text."""
        state = self._state
        if self._drive_type == "documentLibrary" and node is not state.tree.root:
            return "users"  # the members share everything in a library
        links = state.active_links(node, self._request.call.now_s) if state.permissions_by_item else ()
        return links[0].scope if links else ""


@lru_cache(maxsize=128)
def _format_author(address: str) -> str:
    """Return the identity that makes and changes an account's items, as JSON."""
    return json.dumps({"application": dict(APP), "user": dict(describe_person(address))})


def _format_parent_reference(request: GraphRequest, parent: Folder) -> str:
    """Return the ``parentReference`` to a folder, as JSON."""
    state = request.state
    is_own = request.address.drive in ("me/drive", "drive")
    top = "/drive" if is_own else f"/drives/{state.drive_id}"
    path = _quote_path(state.tree.path_of(parent))
    return (
        f'"parentReference": {{"driveId": "{state.drive_id}", "driveType": "{state.account.type}", '
        f'"id": "{parent.id}", "name": {_quote_json(parent.name)}, "path": "{top}/root:{path}", "siteId": "{SITE_ID}"}}'
    )


@lru_cache(maxsize=4096)
def _quote_path(path: str) -> str:
    return quote(path.encode(errors="replace"), _SAFE)


def _add_creation_fields(properties: dict[str, Any], details: ItemDetails) -> None:
    """Add the fields that only the answer to the creation of a folder has."""
    properties["@odata.etag"] = properties["eTag"]
    if "shared" in properties:
        properties["shared"]["scope"] = "unknown"
    properties["commentSettings"] = {"commentingDisabled": {"isDisabled": False}}
    properties["parentReference"]["sharepointIds"] = {**_LIST, "listItemUniqueId": details.guid}


def select_properties(request: GraphRequest, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of an item that ``$select`` names, or all if the request has no ``$select``."""
    names = [name.strip() for name in request.odata_option("select").split(",") if name.strip()]
    if not names or "*" in names:
        if request.is_spaced and "@odata.type" not in properties:
            properties = {"@odata.etag": properties["eTag"], **properties}
        return properties
    selected_names = {name.partition("/")[0].lower() for name in names}
    if selected_names & {"content.downloadurl", "@content.downloadurl", "@microsoft.graph.downloadurl"}:
        selected_names.add("@microsoft.graph.downloadurl")
    selection = {key: value for key, value in properties.items() if key.lower() in selected_names}
    if "root" not in properties:
        selection = {"@odata.etag": properties["eTag"], **selection}
    if request.is_spaced:
        selection |= {key: properties[key] for key in _ALWAYS if key in properties}
    return selection


def describe_drive(request: GraphRequest) -> dict[str, Any]:
    """Return the drive as a resource, with its quota."""
    state, tree = request.state, request.tree
    total = tree.store.quota_bytes or 2**50
    used, remaining = tree.store.used_bytes, max(0, total - tree.store.used_bytes)
    share = remaining / total
    condition = "exceeded" if not remaining else "critical" if share < 0.01 else "nearing" if share < 0.1 else "normal"
    created = format_time(item_details(tree.root).created_s)
    url = {"personal": f"https://onedrive.live.com?cid={state.drive_id}"}
    properties: dict[str, Any] = {
        "createdDateTime": created,
        "description": "",
        "id": state.drive_id,
        "lastModifiedDateTime": format_time(item_details(tree.root).changed_s),
        "name": "OneDrive",
        "webUrl": url.get(state.account.type, f"{_LIST['siteUrl']}/Documents"),
        "driveType": state.account.type,
        "createdBy": {"user": {"displayName": "System Account"}},
        "lastModifiedBy": {"user": state.person},
        "owner": {"group": GROUP} if state.account.type == "documentLibrary" else {"user": state.person},
        "quota": {
            "deleted": item_details(tree.bin).size_bytes,
            "remaining": remaining,
            "state": condition,
            "total": total,
            "used": used,
        },
    }
    if state.account.type == "personal":
        properties["quota"]["storagePlanInformation"] = {"upgradeAvailable": True}
    return properties
