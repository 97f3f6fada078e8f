"""The functions of the API on items: read, list, create, move, copy and recycle them, and their versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

from pytest_cloudbench.emulators.blob import Blob, hash_blob
from pytest_cloudbench.emulators.http import ListWriter, answer_range, decode_base64url, encode_base64url
from pytest_cloudbench.emulators.nodes import File, Folder, Node, StoreError, Version
from pytest_cloudbench.emulators.onedrive.answers import (
    GRAPH,
    GraphError,
    answer_json,
    answer_text,
    format_time,
    parse_time,
)
from pytest_cloudbench.emulators.onedrive.items import (
    ItemFormat,
    describe_drive,
    describe_expanded,
    describe_item,
    guess_content_type,
    odata_context,
    select_properties,
    shown_creation_s,
    shown_version,
    write_listed_items,
)
from pytest_cloudbench.emulators.onedrive.state import GraphFunction, GraphRequest, GraphState, etag
from pytest_cloudbench.emulators.onedrive.tree import ClientTimes, item_changes, item_details
from pytest_cloudbench.emulators.skin import Answer, Call, Kind
from pytest_cloudbench.workload.payload.quickxor import QuickXor

_PAGE_ENTRIES = 200
_MAX_PAGE_ENTRIES = 1000
_BEHAVIORS = ("fail", "replace", "rename")


def parse_behavior(value: object, default: str) -> str:
    """Return the behavior for a name that is taken. Raises GraphError if the client names an unknown one."""
    if value in (None, ""):
        return default
    if value not in _BEHAVIORS:
        raise GraphError(400, "invalidRequest", f"Invalid value for @microsoft.graph.conflictBehavior: {value}")
    return str(value)


def read_page_size(request: GraphRequest) -> int:
    """Return the number of entries on a page. Raises GraphError."""
    top = request.odata_option("top")
    if not top:
        return _PAGE_ENTRIES
    if not top.isascii() or not top.isdigit() or int(top) < 1:
        raise GraphError(400, "invalidRequest", f"The value of $top is not a positive number: {top[:40]}")
    return min(int(top), _MAX_PAGE_ENTRIES)


def make_next_link(request: GraphRequest, **options: str) -> str:
    """Return the address of the next page, which is that of the request with other options."""
    query = {name: value for name, value in request.query.items() if name.lstrip("$") not in ("skiptoken", "token")}
    path = quote(request.call.path, "/:!$&'()*+,;=@-._~")
    return f"{request.origin}{path}?{urlencode({**query, **options}, safe='$')}"


def resolve_name_conflict(
    request: GraphRequest, folder: Folder, name: str, behavior: str, *, moved: Node | None = None, more_bytes: int = 0
) -> str:
    """Return the name for an item that is new in a folder, and free the name if ``behavior`` says so.

    With ``replace``, a file that has the name already goes to the recycle bin. Raises StoreError if the name stays
    taken by an item other than ``moved``, or if there is no space for the ``more_bytes`` of the new item in its place.
    """
    existing = request.tree.find_child(folder, name)
    if existing is None or existing is moved:
        return name
    if behavior == "rename":
        return request.tree.find_free_name(folder, name)
    if behavior == "fail" or isinstance(existing, Folder) or isinstance(moved, Folder):
        raise StoreError("taken")
    request.tree.store.require_space(more_bytes - request.tree.size_of(existing))
    request.tree.recycle(existing, request.now_s)
    return name


def parse_client_times(times: object) -> ClientTimes:
    """Return the times in a ``fileSystemInfo``. Raises GraphError."""
    texts = times if isinstance(times, dict) else {}
    created, changed = texts.get("createdDateTime"), texts.get("lastModifiedDateTime")
    return ClientTimes(
        None if created is None else parse_time(created), None if changed is None else parse_time(changed)
    )


def set_client_times(node: Node, times: ClientTimes) -> None:
    """Store the times that a client names."""
    details = item_details(node)
    if times.created_s is not None:
        details.client_created_s = times.created_s
    if times.changed_s is not None:
        details.client_changed_s = times.changed_s


def store_content(request: GraphRequest, folder: Folder, name: str, blob: Blob, behavior: str) -> tuple[File, bool]:
    """Store content under a name. Return the file, and whether it is new. Raises StoreError."""
    existing = request.tree.find_child(folder, name)
    if existing is not None and (behavior != "replace" or isinstance(existing, Folder)):
        name = resolve_name_conflict(request, folder, name, "fail" if isinstance(existing, Folder) else behavior)
    return request.tree.put_content(folder, name, blob, request.now_s)


# -------------------------------------------------------------------- reading


def _get_drive(request: GraphRequest) -> Answer:
    return answer_json({"@odata.context": f"{GRAPH}drives/$entity", **describe_drive(request)})


def _get_item(request: GraphRequest) -> Answer:
    node = request.find_readable_node()
    tag = etag(node, shown_version(request, node))
    if request.call.headers.get(b"if-none-match", b"").decode("latin-1") == tag:
        return Answer(304, [], b"")
    properties = describe_expanded(request, node)
    if request.is_spaced:
        context_url = f"{GRAPH}Collection(driveItem)/$entity"
    elif node is request.tree.root and request.address.base == "root" and not request.address.path:
        context_url = odata_context(request, "items/$entity").replace("items/$entity", "root/$entity")
    else:
        context_url = odata_context(request, "items/$entity")
    return answer_json({"@odata.context": context_url, **properties}, spaced=request.is_spaced)


def _list_children(request: GraphRequest) -> Answer:
    """Answer with a page of what a folder holds, in the requested order."""
    node, size = request.find_node(), read_page_size(request)
    key, is_descending = _sort_order(request)
    mark = _read_skip_token(request, str if key is None else int)
    children: Iterator[Node] = iter(())
    if isinstance(node, Folder) and key is None:
        children = request.tree.list_children(node, request.now_s, after=str(mark).lower())
    elif isinstance(node, Folder):
        in_order = sorted(request.tree.list_children(node, request.now_s), key=key, reverse=is_descending)
        children = islice(in_order, max(0, int(mark)), None)
    page = list(islice(children, size))
    names = [name for name in request.odata_option("select").split(",") if name]
    context_url = odata_context(request, f"children({','.join(names)})" if names else "children")
    if request.is_spaced:
        context_url = f"{GRAPH}Collection(driveItem)"
    body: dict[str, Any] = {"@odata.context": context_url}
    if next(children, None) is not None:
        last_mark = page[-1].name if key is None else str(int(mark) + size)
        body["@odata.nextLink"] = _make_page_link(request, last_mark)
    if names:
        body["value"] = [select_properties(request, describe_item(request, child, is_listed=True)) for child in page]
        return answer_json(body, spaced=request.is_spaced)
    items = ListWriter(f'{json.dumps(body)[:-1]}, "value": [')
    write_listed_items(request, page, items)
    return answer_text(items.finish("]}"), spaced=request.is_spaced)


def _sort_order(request: GraphRequest) -> tuple[Any, bool]:
    """Return a sort key, or None for the folder's own order, and whether to sort in descending order."""
    name, _, direction = request.odata_option("orderby").partition(" ")

    def listed_version(node: Node) -> Version | None:
        return shown_version(request, node, is_listed=True)

    def listed_size(node: Node) -> int:
        version = listed_version(node)
        return request.tree.size_of(node) if version is None else version.blob.size_bytes

    keys: Mapping[str, Any] = {
        "": None,
        "name": lambda node: node.name.lower(),
        "size": listed_size,
        "lastModifiedDateTime": lambda node: item_changes(node, listed_version(node)).changed_s,
        "createdDateTime": lambda node: shown_creation_s(request, node),
    }
    if name not in keys or direction not in ("", "asc", "desc"):
        raise GraphError(400, "invalidRequest", f"$orderby: {name[:40]} cannot be sorted by", "invalidQueryOption")
    if name == "name" and direction != "desc":
        return None, False
    return keys[name], direction == "desc"


def _read_skip_token(request: GraphRequest, kind: type[str] | type[int]) -> str | int:
    """Return the name after which the requested page begins, or its first index. Raises GraphError."""
    token = request.odata_option("skiptoken")
    if not token:
        return kind()
    try:
        last_mark = json.loads(decode_base64url(token))
        if not isinstance(last_mark, str):
            raise TypeError(last_mark)
        return kind(last_mark)
    except (ValueError, TypeError, RecursionError):
        raise GraphError(400, "invalidRequest", "The provided skip token is not valid", "invalidQueryOption") from None


def _make_page_link(request: GraphRequest, mark: str) -> str:
    """Return the address of the page whose skip token holds a mark."""
    token = encode_base64url(json.dumps(mark).encode())
    return make_next_link(request, **{"$skiptoken": token})


def _answer_page(request: GraphRequest, nodes: Iterable[Node], describe: Callable[[Node], dict[str, Any]]) -> Answer:
    """Answer with one page of items, which the skip token counts."""
    first, size = max(0, int(_read_skip_token(request, int))), read_page_size(request)
    remaining = islice(nodes, first, None)
    body: dict[str, Any] = {"@odata.context": f"{GRAPH}Collection(microsoft.graph.driveItem)"}
    value = [describe(node) for node in islice(remaining, size)]
    if next(remaining, None) is not None:
        body["@odata.nextLink"] = _make_page_link(request, str(first + size))
    return answer_json({**body, "value": value})


def _search_items(request: GraphRequest) -> Answer:
    text = (request.address.argument or request.query.get("q", "")).strip("'").lower()
    top = request.find_folder() if request.address.base else request.tree.root

    def matches(node: Node) -> bool:
        return text in node.name.lower() and node.is_seen(request.now_s)

    def describe(node: Node) -> dict[str, Any]:
        properties = describe_item(request, node)
        if "file" in properties:
            properties["file"] = {"hashes": {}, "mimeType": properties["file"]["mimeType"]}
        return {**select_properties(request, properties), "searchResult": {}}

    return _answer_page(request, filter(matches, top.below()), describe)


def _answer_empty_list(request: GraphRequest) -> Answer:
    return answer_json({"@odata.context": f"{GRAPH}Collection(microsoft.graph.driveItem)", "value": []})


def _list_recent(request: GraphRequest) -> Answer:
    files = [node for node in request.tree.root.below() if isinstance(node, File) and node.seen(request.now_s)]
    files.sort(key=lambda node: -item_changes(node, node.seen(request.now_s)).changed_s)
    return _answer_page(request, files, lambda node: describe_item(request, node))


# -------------------------------------------------------------------- content


def _get_content(request: GraphRequest) -> Answer:
    file, version = request.tree.find_visible_version(request.find_readable_node(), request.now_s)
    url = request.state.download_url(request.files_origin, file, version, request.now_s)
    return Answer(302, [(b"content-type", b"application/octet-stream"), (b"location", url.encode("latin-1"))], b"")


def answer_download(state: GraphState, call: Call, proof: str) -> Answer | None:
    """Answer with the content behind an address that needs no token, or return None if the address is not valid now."""
    claim = state.verify_signature(proof) or ""
    item_id, _, version_part = claim.partition(".")
    rev, _, expiry = version_part.partition(".")
    node = state.tree.store.by_id(item_id)
    if not claim or int(expiry) < call.now_s or not isinstance(node, File):
        return None
    if not state.tree.is_in_drive(node) and not state.tree.is_fading(node, call.now_s):
        return None
    version = next((candidate for candidate in node.versions if candidate.rev == rev), None)
    if version is None or version.visible_s > call.now_s:
        return None
    ascii_name = node.name.encode("ascii", "replace").decode().replace("?", "_")
    disposition = f"attachment; filename*=UTF-8''{quote(node.name, '')}; filename=\"{ascii_name}\""
    headers = [
        (b"content-type", guess_content_type(node.name).encode("ascii", "replace")),
        (b"content-disposition", disposition.encode()),
        (b"accept-ranges", b"bytes"),
        (b"etag", etag(node, version).encode()),
    ]
    return answer_range(call, headers, version.blob)


def _put_content(request: GraphRequest) -> Answer:
    blob: Blob = request.call.body
    if request.call.damage is not None:
        blob = hash_blob(blob.flip_bit(request.call.damage), QuickXor())
    behavior = parse_behavior(request.query.get("@microsoft.graph.conflictBehavior"), "replace")
    (folder, name), tree = request.resolve_target(blob.size_bytes), request.tree
    existing = tree.find_child(folder, name)
    if existing is None:
        return _answer_item(request, tree.add_file(folder, name, blob, request.now_s), 201)
    request.require_match(existing)
    file, is_new = store_content(request, folder, name, blob, behavior)
    return _answer_item(request, file, 201 if is_new else 200)


def _answer_item(request: GraphRequest, node: Node, status: int = 200) -> Answer:
    """Answer with one item."""
    context_url = odata_context(request, "items/$entity")
    if request.call.query and request.odata_option("select"):
        properties = select_properties(request, describe_item(request, node))
        return answer_json({"@odata.context": context_url, **properties}, status)
    return answer_text(f'{{"@odata.context": "{context_url}", {ItemFormat(request).format(node)[1:]}', status)


# -------------------------------------------------------------------- changing


def _create_child(request: GraphRequest) -> Answer:
    """Answer with a new folder, as the requested behavior solves conflicts of names."""
    body = request.read_json_body()
    folder = request.find_folder()
    if "folder" not in body:
        raise GraphError(400, "invalidRequest", "The request must contain a folder facet")
    name = request.tree.check_name(body.get("name"))
    request.tree.check_path(folder, name)
    behavior = parse_behavior(
        body.get("@microsoft.graph.conflictBehavior") or body.get("@name.conflictBehavior"), "fail"
    )
    times = parse_client_times(body.get("fileSystemInfo"))
    existing = request.tree.find_child(folder, name)
    if existing is not None and isinstance(existing, Folder) and behavior == "replace":
        created = existing
    else:
        created = request.tree.add_folder(folder, resolve_name_conflict(request, folder, name, behavior), request.now_s)
    set_client_times(created, times)
    properties = select_properties(request, describe_item(request, created, is_new=True))
    drive_address = f"{request.origin}/_api/v2.0/drives('{request.state.drive_id}')"
    address = f"{drive_address}/items('{folder.id}')/children('{created.id}')"
    headers = (b"location", address.encode("latin-1")), (b"etag", etag(created).encode())
    return answer_json({"@odata.context": odata_context(request, "children/$entity"), **properties}, 201, *headers)


def _find_reference(request: GraphRequest, reference: object) -> Folder:
    """Return the folder to which a ``parentReference`` points. Raises GraphError and StoreError."""
    if not isinstance(reference, dict):
        raise GraphError(400, "invalidRequest", "parentReference must be an object")
    drive_id = reference.get("driveId")
    if isinstance(drive_id, str):
        request.state.require_drive(request.address._replace(drive_id=drive_id))
    if isinstance(reference.get("id"), str):
        node = request.tree.find_by_id(reference["id"])
    elif isinstance(reference.get("path"), str):
        from urllib.parse import unquote

        node = request.tree.find_below(request.tree.root, unquote(reference["path"].partition("root:")[2]))
    else:
        raise GraphError(400, "invalidRequest", "parentReference must have an id or a path")
    if not isinstance(node, Folder):
        raise StoreError("not_folder")
    return node


def _update_item(request: GraphRequest) -> Answer:
    """Answer with an item that has been moved, renamed or described anew."""
    body, node = request.read_json_body(), request.find_existing_node()
    request.require_match(node)
    reference = body.get("parentReference")
    if node is request.tree.root and (reference or "name" in body):
        raise GraphError(400, "invalidRequest", "The root cannot be moved or renamed")
    times = parse_client_times(body.get("fileSystemInfo"))
    if reference is not None or "name" in body:
        folder = node.parent if reference is None else _find_reference(request, reference)
        assert folder is not None
        name = request.tree.check_name(body["name"]) if "name" in body else node.name
        behavior = parse_behavior(
            body.get("@microsoft.graph.conflictBehavior") or request.query.get("@microsoft.graph.conflictBehavior"),
            "fail",
        )
        if request.tree.store.holds(node, folder):
            raise StoreError("into_itself")
        name = resolve_name_conflict(request, folder, name, behavior, moved=node)
        request.tree.move(node, folder, name, request.now_s)
    set_client_times(node, times)
    if isinstance(body.get("description"), str):
        item_details(node).description = body["description"]
    request.tree.log_change(node, request.now_s)
    return _answer_item(request, node)


def _recycle_item(request: GraphRequest) -> Answer:
    node = request.find_existing_node()
    if node is request.tree.root:
        raise GraphError(403, "accessDenied", "The root cannot be deleted")
    request.require_match(node)
    request.tree.recycle(node, request.now_s)
    return Answer(204, [], b"")


def _delete_item(request: GraphRequest) -> Answer:
    node = request.find_existing_node()
    if node is request.tree.root:
        raise GraphError(403, "accessDenied", "The root cannot be deleted")
    request.tree.remove(node, request.now_s)
    return Answer(204, [], b"")


def _restore_item(request: GraphRequest) -> Answer:
    if request.state.account.type != "personal":
        raise GraphError(400, "notSupported", "Only personal drives restore items from the recycle bin.")
    body = request.read_json_body()
    parent = _find_reference(request, body["parentReference"]) if "parentReference" in body else None
    name = request.tree.check_name(body["name"]) if "name" in body else ""
    node = request.tree.restore(request.address.base, parent, name, request.now_s)
    return answer_json({"@odata.context": odata_context(request, "items/$entity"), **describe_item(request, node)})


def _start_copy(request: GraphRequest) -> Answer:
    """Start a copy as a job, and answer with the address where the client can watch it."""
    state, tree = request.state, request.tree
    body, node = request.read_json_body(), request.find_existing_node()
    folder = _find_reference(request, body["parentReference"]) if "parentReference" in body else node.parent
    if folder is None or node is tree.root:
        raise GraphError(400, "invalidRequest", "The root cannot be copied")
    name = tree.check_name(body["name"]) if "name" in body else node.name
    query = request.query.get("@microsoft.graph.conflictBehavior")
    behavior = parse_behavior(body.get("@microsoft.graph.conflictBehavior") or query, "fail")
    if tree.store.holds(node, folder):
        raise StoreError("into_itself")
    target: Folder = folder

    def copy_items(now_s: float) -> Node | str:
        later_request = GraphRequest(state, request.call, request.address)
        try:
            if not tree.is_in_drive(node) or not tree.is_in_drive(target):
                raise StoreError("not_found")
            more_bytes = tree.size_of(node)
            free_name = resolve_name_conflict(later_request, target, name, behavior, more_bytes=more_bytes)
            return tree.copy(node, target, free_name, now_s)
        except StoreError as error:
            return error.reason

    entries = 1 + (sum(1 for _ in node.below()) if isinstance(node, Folder) else 0)
    job_id = tree.random_guid()
    steps = [*[lambda now_s: None] * (entries - 1), copy_items]
    times = state.job_times
    state.jobs.start(job_id, "copy", steps, request.now_s, start_s=times.start_s, entry_s=times.entry_s)
    state.copies[job_id] = entries
    return Answer(202, [(b"location", f"{request.files_origin}/monitor/{job_id}".encode("latin-1"))], b"")


# -------------------------------------------------------------------- versions


def _describe_version(request: GraphRequest, file: File, number: int) -> dict[str, Any]:
    version = file.versions[number]
    properties: dict[str, Any] = {
        "@microsoft.graph.downloadUrl": request.state.download_url(request.files_origin, file, version, request.now_s),
        "id": f"{number + 1}.0",
        "lastModifiedBy": describe_item(request, file)["lastModifiedBy"],
        "lastModifiedDateTime": format_time(version.server_s),
        "size": version.blob.size_bytes,
    }
    return properties


def _find_version(request: GraphRequest) -> tuple[File, int]:
    file, newest = request.tree.find_visible_version(request.find_node(), request.now_s)
    version_id = request.address.argument
    if version_id == "current":
        return file, file.versions.index(newest)
    number = version_id.removesuffix(".0")
    if not number.isascii() or not number.isdigit() or not 0 < int(number) <= len(file.versions):
        raise StoreError("not_found")
    return file, int(number) - 1


def _list_versions(request: GraphRequest) -> Answer:
    file, newest = request.tree.find_visible_version(request.find_node(), request.now_s)
    newest_index = file.versions.index(newest)
    value = [_describe_version(request, file, number) for number in range(newest_index, -1, -1)]
    return answer_json({"@odata.context": odata_context(request, "versions"), "value": value})


def _get_version(request: GraphRequest) -> Answer:
    properties = _describe_version(request, *_find_version(request))
    return answer_json({"@odata.context": odata_context(request, "versions/$entity"), **properties})


def _get_version_content(request: GraphRequest) -> Answer:
    file, number = _find_version(request)
    url = request.state.download_url(request.files_origin, file, file.versions[number], request.now_s)
    return Answer(302, [(b"location", url.encode("latin-1"))], b"")


def _restore_version(request: GraphRequest) -> Answer:
    file, number = _find_version(request)
    assert file.parent is not None
    request.tree.put_content(file.parent, file.name, file.versions[number].blob, request.now_s)
    return Answer(204, [], b"")


FUNCTIONS: Mapping[tuple[str, str], GraphFunction] = {
    ("GET", "drive"): GraphFunction(Kind.META, _get_drive),
    ("GET", ""): GraphFunction(Kind.META, _get_item),
    ("PATCH", ""): GraphFunction(Kind.WRITE, _update_item),
    ("DELETE", ""): GraphFunction(Kind.WRITE, _recycle_item),
    ("GET", "children"): GraphFunction(Kind.META, _list_children),
    ("POST", "children"): GraphFunction(Kind.WRITE, _create_child),
    ("GET", "content"): GraphFunction(Kind.READ, _get_content),
    ("PUT", "content"): GraphFunction(Kind.WRITE, _put_content, takes_content=True),
    ("POST", "copy"): GraphFunction(Kind.WRITE, _start_copy),
    ("POST", "permanentDelete"): GraphFunction(Kind.WRITE, _delete_item),
    ("POST", "restore"): GraphFunction(Kind.WRITE, _restore_item),
    ("GET", "search"): GraphFunction(Kind.META, _search_items),
    ("GET", "recent"): GraphFunction(Kind.META, _list_recent),
    ("GET", "sharedWithMe"): GraphFunction(Kind.META, _answer_empty_list),
    ("GET", "versions"): GraphFunction(Kind.META, _list_versions),
    ("GET", "versions/*"): GraphFunction(Kind.META, _get_version),
    ("GET", "versions/*/content"): GraphFunction(Kind.READ, _get_version_content),
    ("POST", "versions/*/restoreVersion"): GraphFunction(Kind.WRITE, _restore_version),
}
