"""The function ``delta``, which lists everything in a drive and later the changes since then.

The server keeps no state for a token. The token holds the position in the log of the store at which the next page
begins, and the log's length when the list began. A first list shows what is in the drive, and need not report what was
deleted before it began. What was deleted since may have been on one of its pages, and is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.emulators.http import decode_base64url, encode_base64url
from pytest_cloudbench.emulators.nodes import Folder, Node
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, GraphError, answer_json
from pytest_cloudbench.emulators.onedrive.files import make_next_link, read_page_size
from pytest_cloudbench.emulators.onedrive.items import describe_item, select_properties
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest
from pytest_cloudbench.emulators.onedrive.tree import item_details
from pytest_cloudbench.emulators.skin import Answer, Kind


def _format_token(request: GraphRequest, position: int, begun: int) -> str:
    parts = [position, begun, request.state.drive_id, request.tree.store.log.number]
    return encode_base64url(json.dumps(parts).encode())


def _parse_token(request: GraphRequest, token: str) -> tuple[int, int]:
    """Return the position in a token, and the log's length when its list began. Raises GraphError."""
    length = len(request.tree.store.log.keys)
    try:
        position, begun, *drive = json.loads(decode_base64url(token))
        is_known = drive == [request.state.drive_id, request.tree.store.log.number]
        if not (is_known and 0 <= position <= length and 0 <= begun <= length):
            raise ValueError(position)
        return int(position), int(begun)
    except (ValueError, TypeError, RecursionError):
        restart_url = f"{request.origin}{quote(request.call.path)}".encode("latin-1")
        message = "Resync required. Replace any local items with the server's version (including deletes)."
        headers = ((b"location", restart_url),)
        raise GraphError(410, "resyncRequired", message, "resyncApplyDifferences", headers) from None


def _list_changes(request: GraphRequest) -> Answer:
    """Answer with the next page of a list. The last page has the token with which the list of later changes begins."""
    tree, log = request.tree, request.tree.store.log
    end, limit = log.end(request.now_s), read_page_size(request)
    token = request.odata_option("token") or request.odata_option("skiptoken") or request.address.argument
    item_type = "driveItem" if request.is_spaced else "microsoft.graph.driveItem"
    body: dict[str, Any] = {"@odata.context": f"{GRAPH}Collection({item_type})"}
    top = request.find_folder()
    if token == "latest":
        body["@odata.deltaLink"] = make_next_link(request, token=_format_token(request, end, end))
        return answer_json({**body, "value": []}, spaced=request.is_spaced)
    position, begun = _parse_token(request, token) if token else (0, end)
    changes: dict[str, dict[str, Any]] = {}
    while position < end and len(changes) < limit:
        item_id, since = log.keys[position], begun if position >= begun else None
        position += 1
        node = tree.store.by_id(item_id)
        change = _describe_change(request, top, node, since) if node is not None else None
        if change is not None:
            changes.pop(item_id, None)  # an item that has changed again is listed once, in its last place
            changes[item_id] = select_properties(request, change)
    next_token = _format_token(request, position, begun if position < end else position)
    body["@odata.nextLink" if position < end else "@odata.deltaLink"] = make_next_link(request, token=next_token)
    if request.is_spaced:
        body |= {"@microsoft.graph.hasMoreData": position < end, "@microsoft.graph.syncStatus": "upToDate"}
    return answer_json({**body, "value": [*changes.values()]}, spaced=request.is_spaced)


def _describe_change(request: GraphRequest, top: Folder, node: Node, since: int | None) -> dict[str, Any] | None:
    """Return the present entry of an item in a list of changes, or None if the list leaves it out.

    ``since`` is the position in the log at which the list began, or None if the client cannot know the item as it was
    at this change, because that was before its first list.
    """
    tree = request.tree
    if node in (tree.store.root, tree.bin):
        return None
    if _is_below(top, node) and (tree.is_in_drive(node) or tree.is_fading(node, request.now_s)):
        if not node.is_seen(request.now_s):
            return None
        return describe_item(request, node, has_type=True)
    if since is None or not _was_below(request, top, node, since):
        return None
    parent = item_details(node).former or node.parent
    reference = {"driveId": request.state.drive_id, "driveType": request.state.account.type}
    if parent is not None:
        reference["id"] = parent.id
    kind: dict[str, Any] = {"folder": {}} if isinstance(node, Folder) else {"file": {}}
    return {
        "@odata.type": "#microsoft.graph.driveItem",
        "id": node.id,
        "name": node.name,
        "eTag": "",
        "size": 0,
        "parentReference": reference,
        "deleted": {"state": "deleted"},
        **kind,
    }


def _last_folder(node: Node) -> Folder | None:
    """Return the folder that an item is in, or was in before it went to the recycle bin."""
    return None if node.parent is None else item_details(node).former or node.parent


def _is_below(top: Folder, node: Node) -> bool:
    ancestor: Node | None = node
    while ancestor is not None and ancestor is not top:
        ancestor = _last_folder(ancestor)
    return ancestor is top


def _was_below(request: GraphRequest, top: Folder, node: Node, since: int) -> bool:
    """Return whether an item was below a folder at a position in the log or later."""
    pending: list[Node] = [node]
    seen: set[Node] = set()
    while pending:
        item = pending.pop()
        folder = _last_folder(item)
        if item is top:
            return True
        if folder is not None and item not in seen:
            seen.add(item)
            pending += [folder, *request.tree.folders_left(item, since)]
    return False


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {("GET", "delta"): GraphFunction(Kind.META, _list_changes)}
