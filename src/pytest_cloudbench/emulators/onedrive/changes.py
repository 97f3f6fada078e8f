"""delta: everything in a drive, and what has changed since.

What may live here: lists of changes and their tokens. The server keeps no state for a token, which holds a place in the
store's log, and whether the client has seen nothing yet: such a client need not be told what is gone.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pytest_cloudbench.emulators.nodes import File, Folder, Node
from pytest_cloudbench.emulators.onedrive.answers import GRAPH, GraphError, answer_json
from pytest_cloudbench.emulators.onedrive.files import next_link, page_size
from pytest_cloudbench.emulators.onedrive.items import item, selected
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest
from pytest_cloudbench.emulators.onedrive.tree import details_of
from pytest_cloudbench.emulators.skin import Answer, Kind


def _token(place: int, drive_id: str, *, is_first: bool) -> str:
    return urlsafe_b64encode(json.dumps([place, is_first, drive_id]).encode()).decode().rstrip("=")


def _read(request: GraphRequest, token: str) -> tuple[int, bool]:
    """Returns place and "nothing seen yet" of a token. Raises GraphError."""
    log = request.tree.store.log
    try:
        place, is_first, drive_id = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if not 0 <= place <= len(log.keys) or drive_id != request.state.drive_id:
            raise ValueError(place)
        return int(place), bool(is_first)
    except (ValueError, TypeError, RecursionError):
        again = f"{request.origin}{quote(request.call.path)}".encode("latin-1")
        message = "Resync required. Replace any local items with the server's version (including deletes)."
        raise GraphError(410, "resyncRequired", message, "resyncApplyDifferences", ((b"location", again),)) from None


def _delta(request: GraphRequest) -> Answer:
    tree, log = request.tree, request.tree.store.log
    end, limit = log.end(request.now_s), page_size(request)
    token = request.option("token") or request.option("skiptoken") or request.address.argument
    body: dict[str, Any] = {"@odata.context": f"{GRAPH}Collection(driveItem)"}
    if not request.is_spaced:
        body["@odata.context"] = f"{GRAPH}Collection(microsoft.graph.driveItem)"
    top = request.folder()
    if token == "latest":
        body["@odata.deltaLink"] = next_link(request, token=_token(end, request.state.drive_id, is_first=False))
        return answer_json({**body, "value": []}, spaced=request.is_spaced)
    place, is_first = _read(request, token) if token else (0, True)
    found: dict[str, dict[str, Any]] = {}
    while place < end and len(found) < limit:
        key = log.keys[place]
        place += 1
        node = tree.store.by_id(key)
        shown = _shown(request, top, node, is_first=is_first) if node is not None else None
        if shown is not None:
            found.pop(key, None)
            found[key] = selected(request, shown)
    further = _token(place, request.state.drive_id, is_first=is_first and place < end)
    if place < end:
        body["@odata.nextLink"] = next_link(request, token=further)
    else:
        body["@odata.deltaLink"] = next_link(request, token=further)
    if request.is_spaced:
        body |= {"@microsoft.graph.hasMoreData": place < end, "@microsoft.graph.syncStatus": "upToDate"}
    return answer_json({**body, "value": [*found.values()]}, spaced=request.is_spaced)


def _shown(request: GraphRequest, top: Folder, node: Node, *, is_first: bool) -> dict[str, Any] | None:
    """Returns what a client is told about an item now; None if nothing."""
    tree = request.tree
    if node in (tree.store.root, tree.bin):
        return None
    if (tree.is_here(node) and _is_below(top, node)) or tree.is_fading(node, request.now_s):
        if isinstance(node, File) and node.seen(request.now_s) is None:
            return None
        return item(request, node, has_type=True)
    if is_first:
        return None
    above = details_of(node).former or node.parent
    reference = {"driveId": request.state.drive_id, "driveType": request.state.account.type}
    if above is not None:
        reference["id"] = above.id
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


def _is_below(top: Folder, node: Node) -> bool:
    above: Node | None = node
    while above is not None and above is not top:
        above = above.parent
    return above is top


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {("GET", "delta"): GraphFunction(Kind.META, _delta)}
