"""Items: reading, listing, folders, content, moving, copying, the recycle bin, versions.

What may live here: functions of the API on items, each a row of ``FUNCTIONS``.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from pytest_cloudbench.emulators.blob import Blob, hashed
from pytest_cloudbench.emulators.http import byte_range
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError
from pytest_cloudbench.emulators.onedrive.answers import (
    GRAPH,
    GraphError,
    answer_json,
    answer_text,
    seconds_of,
    timestamp,
)
from pytest_cloudbench.emulators.onedrive.items import content_type, context, drive, item, item_text, selected
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest, GraphState, etag
from pytest_cloudbench.emulators.onedrive.tree import details_of
from pytest_cloudbench.emulators.skin import Answer, Call, Kind
from pytest_cloudbench.workload.payload.quickxor import QuickXor

_PAGE_ENTRIES = 200
_MAX_PAGE_ENTRIES = 1000
_BEHAVIORS = ("fail", "replace", "rename")


def behavior_of(given: object, default: str) -> str:
    """Returns what to do if a name is taken. Raises GraphError."""
    if given in (None, ""):
        return default
    if given not in _BEHAVIORS:
        raise GraphError(400, "invalidRequest", f"Invalid value for @microsoft.graph.conflictBehavior: {given}")
    return str(given)


def page_size(request: GraphRequest) -> int:
    """Returns how many entries a page has. Raises GraphError."""
    top = request.option("top")
    if not top:
        return _PAGE_ENTRIES
    if not top.isascii() or not top.isdigit() or int(top) < 1:
        raise GraphError(400, "invalidRequest", f"The value of $top is not a positive number: {top[:40]}")
    return min(int(top), _MAX_PAGE_ENTRIES)


def next_link(request: GraphRequest, **options: str) -> str:
    """Returns the address of the request with other options."""
    query = {name: value for name, value in request.query.items() if name.lstrip("$") not in ("skiptoken", "token")}
    path = quote(request.call.path, "/:!$&'()*+,;=@-._~")
    return f"{request.origin}{path}?{urlencode({**query, **options}, safe='$')}"


def target_name(request: GraphRequest, folder: Folder, name: str, behavior: str, *, moved: Node | None = None) -> str:
    """Returns a free name for a new item of a folder. Raises StoreError if an item other than ``moved`` has the name.

    With ``replace``, the item that has the name goes to the recycle bin.
    """
    there = request.tree.taken(folder, name)
    if there is None or there is moved:
        return name
    if behavior == "rename":
        return request.tree.free_name(folder, name)
    if behavior == "fail" or isinstance(there, Folder) or isinstance(moved, Folder):
        raise StoreError("taken")
    request.tree.recycle(there, request.now_s)
    return name


def set_client_times(node: Node, given: object) -> None:
    """Note the times in a ``fileSystemInfo``. Raises GraphError."""
    if not isinstance(given, dict):
        return
    known = details_of(node)
    if given.get("createdDateTime") is not None:
        known.client_created_s = seconds_of(given["createdDateTime"])
    if given.get("lastModifiedDateTime") is not None:
        known.client_changed_s = seconds_of(given["lastModifiedDateTime"])


def new_version(request: GraphRequest, folder: Folder, name: str, blob: Blob, behavior: str) -> tuple[File, bool]:
    """Store content under a name; returns whether the file is new. Raises StoreError."""
    there = request.tree.taken(folder, name)
    if there is not None and (behavior != "replace" or isinstance(there, Folder)):
        name = target_name(request, folder, name, "fail" if isinstance(there, Folder) else behavior)
    return request.tree.put(folder, name, blob, request.now_s)


# -------------------------------------------------------------------- reading


def _get_drive(request: GraphRequest) -> Answer:
    return answer_json({"@odata.context": f"{GRAPH}drives/$entity", **drive(request)})


def _get_item(request: GraphRequest) -> Answer:
    node = request.read()
    if request.call.headers.get(b"if-none-match", b"").decode("latin-1") == etag(details_of(node)):
        return Answer(304, [], b"")
    shown = selected(request, item(request, node))
    if request.option("expand").partition("(")[0] == "children" and isinstance(node, Folder):
        shown["children"] = [
            item(request, child, is_listed=True) for child in request.tree.children(node, request.now_s)
        ]
    if request.is_spaced:
        told = f"{GRAPH}Collection(driveItem)/$entity"
    elif node is request.tree.root and request.address.base == "root" and not request.address.path:
        told = context(request, "items/$entity").replace("items/$entity", "root/$entity")
    else:
        told = context(request, "items/$entity")
    return answer_json({"@odata.context": told, **shown}, spaced=request.is_spaced)


def _list_children(request: GraphRequest) -> Answer:
    node, size = request.node(), page_size(request)
    key, is_down = _order(request)
    children = [*request.tree.children(node, request.now_s)] if isinstance(node, Folder) else []
    if key is not None:
        children.sort(key=key, reverse=is_down)
    start = _skipped(request, children, by_name=key is None)
    page = children[start : start + size]
    names = [name for name in request.option("select").split(",") if name]
    told = context(request, f"children({','.join(names)})" if names else "children")
    if request.is_spaced:
        told = f"{GRAPH}Collection(driveItem)"
    body: dict[str, Any] = {"@odata.context": told}
    if start + size < len(children):
        mark = page[-1].name if key is None else str(start + size)
        token = urlsafe_b64encode(json.dumps(mark).encode()).decode().rstrip("=")
        body["@odata.nextLink"] = next_link(request, **{"$skiptoken": token})
    body["value"] = [selected(request, item(request, child, is_listed=True)) for child in page]
    return answer_json(body, spaced=request.is_spaced)


def _order(request: GraphRequest) -> tuple[Any, bool]:
    """Returns what to sort by, None for the folder's own order, and whether the largest comes first."""
    name, _, direction = request.option("orderby").partition(" ")
    keys: Mapping[str, Any] = {
        "": None,
        "name": lambda node: node.name.lower(),
        "size": request.tree.size,
        "lastModifiedDateTime": lambda node: details_of(node).changed_s,
        "createdDateTime": lambda node: details_of(node).created_s,
    }
    if name not in keys or direction not in ("", "asc", "desc"):
        raise GraphError(400, "invalidRequest", f"$orderby: {name[:40]} cannot be sorted by", "invalidQueryOption")
    if name == "name" and direction != "desc":
        return None, False
    return keys[name], direction == "desc"


def _skipped(request: GraphRequest, children: list[Node], *, by_name: bool) -> int:
    """Returns where a page begins."""
    token = request.option("skiptoken")
    if not token:
        return 0
    try:
        mark = json.loads(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if not by_name:
            return int(mark)
        folded = mark.lower()
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise GraphError(400, "invalidRequest", "The provided skip token is not valid", "invalidQueryOption") from None
    return next((place for place, node in enumerate(children) if node.name.lower() > folded), len(children))


def _search(request: GraphRequest) -> Answer:
    words = (request.address.argument or request.query.get("q", "")).strip("'").lower()
    top = request.folder() if request.address.base else request.tree.root
    found = []
    for node in top.below():
        if words in node.name.lower() and not (isinstance(node, File) and node.seen(request.now_s) is None):
            shown = item(request, node)
            if "file" in shown:
                shown["file"] = {"hashes": {}, "mimeType": shown["file"]["mimeType"]}
            found.append({**selected(request, shown), "searchResult": {}})
    size = page_size(request)
    return answer_json({"@odata.context": f"{GRAPH}Collection(microsoft.graph.driveItem)", "value": found[:size]})


def _empty(request: GraphRequest) -> Answer:
    return answer_json({"@odata.context": f"{GRAPH}Collection(microsoft.graph.driveItem)", "value": []})


def _recent(request: GraphRequest) -> Answer:
    files = [node for node in request.tree.root.below() if isinstance(node, File) and node.seen(request.now_s)]
    files.sort(key=lambda node: -details_of(node).changed_s)
    value = [item(request, node) for node in files[: page_size(request)]]
    return answer_json({"@odata.context": f"{GRAPH}Collection(microsoft.graph.driveItem)", "value": value})


# -------------------------------------------------------------------- content


def _get_content(request: GraphRequest) -> Answer:
    file, version = request.tree.file(request.read(), request.now_s)
    url = request.state.download_url(request.files_origin, file, version, request.now_s)
    return Answer(302, [(b"content-type", b"application/octet-stream"), (b"location", url.encode("latin-1"))], b"")


def download(state: GraphState, call: Call, proof: str) -> Answer | None:
    """Returns the content behind an address that needs no token; None if the address does not work (any more)."""
    bare = state.unsigned(proof) or ""
    item_id, _, rest = bare.partition(".")
    rev, _, until = rest.partition(".")
    node = state.tree.store.by_id(item_id)
    if not bare or int(until) < call.now_s or not isinstance(node, File):
        return None
    if not state.tree.is_here(node) and not state.tree.is_fading(node, call.now_s):
        return None
    version = next((each for each in node.versions if each.rev == rev), None)
    if version is None:
        return None
    size = version.blob.size_bytes
    safe = node.name.encode("ascii", "replace").decode().replace("?", "_")
    told = f"attachment; filename*=UTF-8''{quote(node.name, '')}; filename=\"{safe}\""
    headers = [
        (b"content-type", content_type(node.name).encode("ascii", "replace")),
        (b"content-disposition", told.encode()),
        (b"accept-ranges", b"bytes"),
        (b"etag", etag(details_of(node)).encode()),
    ]
    bounds = byte_range(call.headers.get(b"range", b""), size)
    if bounds is None:
        return Answer(200, headers, version.blob)
    start, end = bounds
    if start >= end:
        return Answer(416, [(b"content-range", b"bytes */%d" % size)], b"")
    headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, size)))
    return Answer(206, headers, version.blob.part(start, end))


def _put_content(request: GraphRequest) -> Answer:
    blob: Blob = request.call.body
    if request.call.damage is not None:
        blob = hashed(blob.flipped(request.call.damage), QuickXor())
    behavior = behavior_of(request.query.get("@microsoft.graph.conflictBehavior"), "replace")
    folder, name = request.place()
    there = request.tree.taken(folder, name)
    if there is not None:
        request.require_match(there)
    if there is None:
        return _answer_item(request, request.tree.add_file(folder, name, blob, request.now_s), 201)
    file, is_new = new_version(request, folder, name, blob, behavior)
    return _answer_item(request, file, 201 if is_new else 200)


def _answer_item(request: GraphRequest, node: Node, status: int = 200) -> Answer:
    """Returns the answer that shows one item."""
    told = context(request, "items/$entity")
    if request.call.query and request.option("select"):
        return answer_json({"@odata.context": told, **selected(request, item(request, node))}, status)
    return answer_text(f'{{"@odata.context": "{told}", {item_text(request, node)[1:]}', status)


# -------------------------------------------------------------------- changing


def _create_child(request: GraphRequest) -> Answer:
    body = request.json_body()
    folder = request.folder()
    if "folder" not in body:
        raise GraphError(400, "invalidRequest", "The request must contain a folder facet")
    name = request.tree.check_name(body.get("name"))
    request.tree.check_path(folder, name)
    behavior = behavior_of(body.get("@microsoft.graph.conflictBehavior") or body.get("@name.conflictBehavior"), "fail")
    there = request.tree.taken(folder, name)
    if there is not None and isinstance(there, Folder) and behavior == "replace":
        made = there
    else:
        made = request.tree.add_folder(folder, target_name(request, folder, name, behavior), request.now_s)
    set_client_times(made, body.get("fileSystemInfo"))
    shown = selected(request, item(request, made, is_new=True))
    place = f"{request.origin}/_api/v2.0/drives('{request.state.drive_id}')/items('{folder.id}')/children('{made.id}')"
    headers = (b"location", place.encode("latin-1")), (b"etag", etag(details_of(made)).encode())
    return answer_json({"@odata.context": context(request, "children/$entity"), **shown}, 201, *headers)


def _folder_of(request: GraphRequest, reference: object) -> Folder:
    """Returns the folder that a ``parentReference`` names. Raises GraphError and StoreError."""
    if not isinstance(reference, dict):
        raise GraphError(400, "invalidRequest", "parentReference must be an object")
    given = reference.get("driveId")
    if isinstance(given, str):
        request.state.require_drive(request.address._replace(drive_id=given))
    if isinstance(reference.get("id"), str):
        node = request.tree.get(reference["id"])
    elif isinstance(reference.get("path"), str):
        from urllib.parse import unquote

        node = request.tree.below(request.tree.root, unquote(reference["path"].partition("root:")[2]))
    else:
        raise GraphError(400, "invalidRequest", "parentReference must have an id or a path")
    if not isinstance(node, Folder):
        raise StoreError("not_folder")
    return node


def _update(request: GraphRequest) -> Answer:
    body, node = request.json_body(), request.node()
    request.require_match(node)
    wanted = body.get("parentReference")
    if node is request.tree.root and (wanted or "name" in body):
        raise GraphError(400, "invalidRequest", "The root cannot be moved or renamed")
    set_client_times(node, body.get("fileSystemInfo"))
    if isinstance(body.get("description"), str):
        details_of(node).description = body["description"]
    if wanted is not None or "name" in body:
        folder = node.parent if wanted is None else _folder_of(request, wanted)
        assert folder is not None
        name = request.tree.check_name(body["name"]) if "name" in body else node.name
        behavior = behavior_of(
            body.get("@microsoft.graph.conflictBehavior") or request.query.get("@microsoft.graph.conflictBehavior"),
            "fail",
        )
        if request.tree.store.holds(node, folder):
            raise StoreError("into_itself")
        name = target_name(request, folder, name, behavior, moved=node)
        request.tree.move(node, folder, name, request.now_s)
    request.tree.touch(node, request.now_s)
    return _answer_item(request, node)


def _delete(request: GraphRequest) -> Answer:
    node = request.node()
    if node is request.tree.root:
        raise GraphError(403, "accessDenied", "The root cannot be deleted")
    request.require_match(node)
    request.tree.recycle(node, request.now_s)
    return Answer(204, [], b"")


def _delete_for_good(request: GraphRequest) -> Answer:
    node = request.node()
    if node is request.tree.root:
        raise GraphError(403, "accessDenied", "The root cannot be deleted")
    request.tree.remove(node, request.now_s)
    return Answer(204, [], b"")


def _restore(request: GraphRequest) -> Answer:
    body = request.json_body()
    parent = _folder_of(request, body["parentReference"]) if "parentReference" in body else None
    name = request.tree.check_name(body["name"]) if "name" in body else ""
    node = request.tree.restore(request.address.base, parent, name, request.now_s)
    return answer_json({"@odata.context": context(request, "items/$entity"), **item(request, node)})


def _copy(request: GraphRequest) -> Answer:
    """Accept a copy; the monitor tells how it ends."""
    state, tree = request.state, request.tree
    body, node = request.json_body(), request.node()
    folder = _folder_of(request, body["parentReference"]) if "parentReference" in body else node.parent
    if folder is None or node is tree.root:
        raise GraphError(400, "invalidRequest", "The root cannot be copied")
    name = tree.check_name(body["name"]) if "name" in body else node.name
    query = request.query.get("@microsoft.graph.conflictBehavior")
    behavior = behavior_of(body.get("@microsoft.graph.conflictBehavior") or query, "fail")
    if tree.store.holds(node, folder):
        raise StoreError("into_itself")
    target: Folder = folder

    def do(now_s: float) -> Node | str:
        later = GraphRequest(state, request.call, request.address)
        try:
            if not tree.is_here(node) or not tree.is_here(target):
                raise StoreError("not_found")
            free = target_name(later, target, name, behavior)
            return tree.copy(node, target, free, now_s)
        except StoreError as error:
            return error.reason

    entries = 1 + (sum(1 for _ in node.below()) if isinstance(node, Folder) else 0)
    job_id = tree.guid()
    steps = [*[lambda now_s: None] * (entries - 1), do]
    times = state.job_times
    state.jobs.start(job_id, "copy", steps, request.now_s, start_s=times.start_s, entry_s=times.entry_s)
    state.copies[job_id] = entries
    return Answer(202, [(b"location", f"{request.files_origin}/monitor/{job_id}".encode("latin-1"))], b"")


# -------------------------------------------------------------------- versions


def _version(request: GraphRequest, file: File, number: int) -> dict[str, Any]:
    version = file.versions[number]
    shown: dict[str, Any] = {
        "@microsoft.graph.downloadUrl": request.state.download_url(request.files_origin, file, version, request.now_s),
        "id": f"{number + 1}.0",
        "lastModifiedBy": item(request, file)["lastModifiedBy"],
        "lastModifiedDateTime": timestamp(version.server_s),
        "size": version.blob.size_bytes,
    }
    return shown


def _place_of_version(request: GraphRequest) -> tuple[File, int]:
    file, newest = request.tree.file(request.node(), request.now_s)
    wanted = request.address.argument
    if wanted == "current":
        return file, file.versions.index(newest)
    number = wanted.removesuffix(".0")
    if not number.isascii() or not number.isdigit() or not 0 < int(number) <= len(file.versions):
        raise StoreError("not_found")
    return file, int(number) - 1


def _list_versions(request: GraphRequest) -> Answer:
    file, newest = request.tree.file(request.node(), request.now_s)
    seen = file.versions.index(newest)
    value = [_version(request, file, number) for number in range(seen, -1, -1)]
    return answer_json({"@odata.context": context(request, "versions"), "value": value})


def _get_version(request: GraphRequest) -> Answer:
    shown = _version(request, *_place_of_version(request))
    return answer_json({"@odata.context": context(request, "versions/$entity"), **shown})


def _get_version_content(request: GraphRequest) -> Answer:
    file, number = _place_of_version(request)
    url = request.state.download_url(request.files_origin, file, file.versions[number], request.now_s)
    return Answer(302, [(b"location", url.encode("latin-1"))], b"")


def _restore_version(request: GraphRequest) -> Answer:
    file, number = _place_of_version(request)
    assert file.parent is not None
    request.tree.put(file.parent, file.name, file.versions[number].blob, request.now_s)
    return Answer(204, [], b"")


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    ("GET", "drive"): GraphFunction(Kind.META, _get_drive),
    ("GET", ""): GraphFunction(Kind.META, _get_item),
    ("PATCH", ""): GraphFunction(Kind.WRITE, _update),
    ("DELETE", ""): GraphFunction(Kind.WRITE, _delete),
    ("GET", "children"): GraphFunction(Kind.META, _list_children),
    ("POST", "children"): GraphFunction(Kind.WRITE, _create_child),
    ("GET", "content"): GraphFunction(Kind.READ, _get_content),
    ("PUT", "content"): GraphFunction(Kind.WRITE, _put_content, takes_content=True),
    ("POST", "copy"): GraphFunction(Kind.WRITE, _copy),
    ("POST", "permanentDelete"): GraphFunction(Kind.WRITE, _delete_for_good),
    ("POST", "restore"): GraphFunction(Kind.WRITE, _restore),
    ("GET", "search"): GraphFunction(Kind.META, _search),
    ("GET", "recent"): GraphFunction(Kind.META, _recent),
    ("GET", "sharedWithMe"): GraphFunction(Kind.META, _empty),
    ("GET", "versions"): GraphFunction(Kind.META, _list_versions),
    ("GET", "versions/*"): GraphFunction(Kind.META, _get_version),
    ("GET", "versions/*/content"): GraphFunction(Kind.READ, _get_version_content),
    ("POST", "versions/*/restoreVersion"): GraphFunction(Kind.WRITE, _restore_version),
}
